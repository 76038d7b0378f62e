"""Loaded sources share the room of a prompt."""

from __future__ import annotations

from hypothesis import given, strategies as st

from intern.answering.source_index import drop_duplicates, excerpt_sources
from intern.core.ids import SourceId
from intern.core.knowledge import SourceText


def source(source_id: str, text: str) -> SourceText:
    return SourceText(source_id=SourceId(source_id), text=text, title="T")


def test_short_sources_leave_their_room_to_long_ones() -> None:
    long = "word " * 1000
    shown = excerpt_sources([source("kb:a", long), source("kb:b", "short")], "word", 3000)
    assert shown[1].text == "short"
    assert len(shown[0].text) > 1800


def test_team_knowledge_stands_first() -> None:
    shown = excerpt_sources([source("kb:a", "x"), source("team:a.txt", "y"), source("kb:b", "z")], "", 100)
    assert [one.source_id for one in shown] == ["team:a.txt", "kb:a", "kb:b"]


def test_a_page_in_two_formats_and_a_copy_are_kept_once_and_a_version_stays() -> None:
    page = "Install the relay with apt, then open port 7480 for agents."
    asciidoc = source("kb:txt/install.txt", f"Install\n=======\n{page}\n")
    markdown = source("kb:html/install.html", f"# Install\n\n{page}")
    version = source("kb:old/install.txt", f"Install\n=======\n{page.replace('7480', '7481')}\n")
    other = source("kb:txt/install.md", "Agents buffer for a day when nobody listens.")
    copy = source("kb:copy.md", "Agents buffer for a day\nwhen nobody listens.\n")
    said = source("nugget:1", page)
    assert drop_duplicates([asciidoc, markdown, version, other, copy, said]) == (asciidoc, version, other, said)


@given(st.lists(st.text(alphabet="ab \n#", max_size=300), max_size=6), st.integers(1, 500))
def test_the_total_is_never_exceeded(texts: list[str], room: int) -> None:
    shown = excerpt_sources([source(f"kb:{n}", text) for n, text in enumerate(texts)], "a b", room)
    assert sum(len(one.text) for one in shown) <= room
    assert all(one.text.strip() for one in shown)
