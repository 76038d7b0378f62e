"""Descriptions of a file's structure, which no file can break."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from intern.sources.descriptions import MOST_CHARS, describe_structure, detect_file_type
from intern.sources.scanning import drop_middle_lines


def test_python_tells_its_classes_and_functions() -> None:
    text = "class A:\n    def inner(self): ...\n\ndef _b(): ...\nasync def c(): ...\nclass D: ...\nimport os\n"
    assert describe_structure("/x/a.py", text) == "Lists classes: A, D. Main functions: c, _b."


def test_markdown_tells_its_sections_but_not_what_stands_in_code() -> None:
    text = "# One\n```sh\n# no heading\n```\n## Two ##\n#hashtag\n"
    assert describe_structure("a.md", text) == "Sections: One, Two."


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.yaml", "# c\nserver:\n  port: 1\n'log level': x\n- no: key\nurl: http://x\n"),
        ("a.json", '{"server": {"port": 1}, "log level": "x", "url": []}'),
        ("a.toml", '"log level" = 1\nurl = 2\n[server]\nport = 1\n'),
    ],
)
def test_configuration_tells_its_top_level_keys(path: str, text: str) -> None:
    told = describe_structure(path, text)
    assert told.startswith("Top-level keys: ")
    assert set(told.removeprefix("Top-level keys: ").rstrip(".").split(", ")) == {"server", "log level", "url"}


def test_services_tell_their_sections() -> None:
    assert describe_structure("a.service", "[Unit]\nAfter=x\n[Service]\n") == "Sections: Unit, Service."


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", "def ("),
        ("a.py", "\0"),
        ("a.py", "(" * 10_000),
        ("a.py", "-" * 50_000 + "1"),
        ("a.py", "x = '\\d'"),
        ("a.json", "[1]"),
        ("a.json", "{" * 100_000),
        ("a.toml", "= ="),
        ("a.toml", "a = " + "[" * 20_000),
        ("a.txt", "text"),
        ("noending", "text"),
    ],
)
def test_what_cannot_be_understood_tells_nothing(path: str, text: str) -> None:
    assert describe_structure(path, text) == ""


def test_a_long_list_is_cut() -> None:
    told = describe_structure("a.yaml", "".join(f"key{n}: 1\n" for n in range(1000)))
    assert len(told) < MOST_CHARS + 50
    assert told.endswith(", ….")


def test_file_types_are_those_of_the_specification() -> None:
    assert detect_file_type("/a/b.md", "documentation") == "markdown_doc"
    assert detect_file_type("/a/b.py", "source_code") == "python_file"
    assert detect_file_type("/a/b.yml", "configuration") == "yaml_config"
    assert detect_file_type("/a/b.service", "services") == "service_file"
    assert detect_file_type("/a/b.adoc", "documentation") == "text_doc"


@given(st.sampled_from(["py", "md", "yaml", "json", "toml", "service"]), st.text(max_size=200))
def test_no_text_breaks_it(ending: str, text: str) -> None:
    assert "\n" not in describe_structure(f"a.{ending}", text)


@given(st.integers(0, 30), st.booleans())
def test_a_text_up_to_the_bound_stays_whole(number: int, ended: bool) -> None:  # noqa: FBT001
    text = "\n".join(map(str, range(number))) + ("\n" if ended else "")
    assert drop_middle_lines(text) == (text, None)


def test_of_a_longer_text_first_and_last_lines_stay() -> None:
    cut, original = drop_middle_lines("\n".join(map(str, range(12_000))))
    lines = cut.split("\n")
    assert original == 12_000
    assert (lines[0], lines[4999], lines[5001], lines[-1]) == ("0", "4999", "11000", "11999")
    assert lines[5000] == "[… 6000 lines …]"
