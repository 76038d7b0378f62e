"""The citations, links and quotes of an answer are compared with the shown sources."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given, strategies as st

from intern.answering.addresses import find_bare_addresses, find_strange_urls, find_urls
from intern.answering.citations import check_citations, clean_answer, find_quote
from intern.answering.prompts import ShownSource
from intern.answering.quotes import MAX_QUOTE
from intern.core.messages import block_ids

TOPIC = """\
--- QA ---
id: qa_20260201_031056.228000
timestamp: 2026-02-01T03:10:56.228000Z
User: hi
  --- QA ---
  id: qa_2
id: qa_3
Team: --- QA ---\u2028id: qa_4

--- QA ---
id: qa_20260202_000000
Team: ok
"""
SOURCES = [
    ShownSource(source_id="kb:a.md", title="A", text="see https://x.example/a(b)?c=1, and <http://[::1]:80/>"),
    ShownSource(source_id="kb:b.md", title="B", text="--- QA ---\nid: qa_9\nsee https://y.example"),
    ShownSource(source_id="team:t.txt", title="T", text=TOPIC),
]


def test_only_headers_of_blocks_give_ids() -> None:
    assert list(block_ids(TOPIC)) == ["qa_20260201_031056.228000", "qa_20260202_000000"]


@pytest.mark.parametrize(
    ("citations", "kept", "dropped"),
    [
        (["kb:a.md", " kb:b.md "], ("kb:a.md", "kb:b.md"), 0),
        (["kb:c.md", "https://x.example/a", ""], (), 3),
        (["team:t.txt#qa_20260202_000000"], ("team:t.txt#qa_20260202_000000",), 0),
        (["team:t.txt#qa_2", "team:t.txt#qa_4", "kb:b.md#qa_9"], (), 3),
        (["team:t.txt"], ("team:t.txt",), 0),
        (["team:t.txt", "team:t.txt#qa_20260202_000000"], ("team:t.txt#qa_20260202_000000",), 0),
    ],
)
def test_a_citation_holds_if_its_source_and_its_block_were_shown(
    citations: list[str], kept: tuple[str, ...], dropped: int
) -> None:
    assert check_citations(citations, SOURCES) == (kept, dropped)


@pytest.mark.parametrize(
    "nothing",
    [
        None,
        "",
        "  \n",
        "null",
        "NULL",
        "None",
        '"null"',
        "`none`.",
        '""',
        "(null)",
        "<nil>",
        "N/A",
        "...",
        "—",
        "?",
        "**",
    ],
)
def test_the_ways_to_say_nothing(nothing: str | None) -> None:
    assert clean_answer(nothing) == ""


def test_an_answer_that_begins_with_nothing_is_an_answer() -> None:
    assert clean_answer(" Null values are dropped. ") == "Null values are dropped."


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see https://x.example/a.", ["https://x.example/a"]),
        ("(https://x.example/a)", ["https://x.example/a"]),
        ("[t](https://x.example/a(b)) and **https://y.example**", ["https://x.example/a(b)", "https://y.example"]),
        ("[https://good.example](https://evil.example)", ["https://good.example", "https://evil.example"]),
        ("<HTTPS://x.example>, `ftp://y.example`", ["HTTPS://x.example", "ftp://y.example"]),
        ("1:2 and a//b", []),
        ("参照：https://x.example/a。 “https://y.example/b”…", ["https://x.example/a", "https://y.example/b"]),
        ("https://x.example。y.example", ["https://x.example。y.example"]),
    ],
)
def test_addresses_are_found_without_what_surrounds_them(text: str, found: list[str]) -> None:
    assert list(find_urls(text)) == found


def test_an_address_must_stand_in_a_cited_source_byte_for_byte() -> None:
    answer = "https://x.example/a(b)?c=1 https://x.example/a https://y.example https://own.example"
    assert find_strange_urls(answer, [SOURCES[0].text], ["https://own.example"]) == [
        "https://x.example/a",
        "https://y.example",
    ]
    assert find_strange_urls("https://y.example", [SOURCES[1].text], []) == []


SITE = ShownSource(
    source_id="kb:a.md",
    title="A",
    text="See https://docs.lumen.com/faq/?a=1 or www.lumen.org/x. Write to help@lumen.com. Edit install.sh.",
)


@pytest.mark.parametrize(
    "answer",
    [
        "See docs.lumen.com, or docs.lumen.com/faq/?a=1.",
        "See lumen.org/x and www.lumen.org/x/.",
        "Write to help@lumen.com (HELP@LUMEN.COM).",
        "Replace relay.example.com with yours.",
        "Edit install.sh, README.md, relay.toml and src/app.io for ASP.NET, Node.js, socket.io, System.Net.Http, e.g.",
        "It is at own.com/page.",
        "Wait 1.5 s, at 10.30, for v1.2 or so",
    ],
)
def test_a_site_without_its_scheme_is_known_by_the_addresses_that_are(answer: str) -> None:
    assert find_strange_urls(answer, [SITE.text], ["https://own.com/page"]) == []


@pytest.mark.parametrize(
    ("answer", "strange"),
    [
        ("Visit lumen.com.", "lumen.com"),
        ("Visit evil.dev/docs.lumen.com", "evil.dev/docs.lumen.com"),
        ("Visit docs.lumen.com/other", "docs.lumen.com/other"),
        ("Visit www.evil.io!", "www.evil.io"),
        ("Join discord.gg/abc", "discord.gg/abc"),
        ("[here](//evil.net/x)", "evil.net/x"),
        ("[here](mailto:help@evil.co)", "help@evil.co"),
        ("https:/evil.com and https:evil.com", "evil.com"),
        ("Write to root@lumen.com", "root@lumen.com"),
        ("Write to support@evil.example", "support@evil.example"),  # Finding A14.
    ],
)
def test_a_site_or_mailbox_that_stands_in_no_cited_source_is_strange(answer: str, strange: str) -> None:
    assert find_strange_urls(answer, [SITE.text], ["https://own.com/page"]) == [strange]
    assert find_strange_urls(answer, [], []) == [strange]


@given(st.text(alphabet="htps:/.()[]{}<>`x ", max_size=60))
def test_finding_addresses_always_ends(text: str) -> None:
    assert all("://" in url for url in find_urls(text))


@pytest.mark.parametrize(
    "text",
    ["x" * 100_000, "https://" * 10_000, "https://a" + "(" * 50_000, "://" * 30_000, "a." * 50_000, "a@" * 50_000],
)
def test_finding_addresses_takes_no_more_than_its_length_in_work(text: str) -> None:
    began = process_time()
    list(find_urls(text))
    find_bare_addresses(text)
    # About 0.1 s; with quadratic time it would take minutes.
    assert process_time() - began < 5


GUIDE = ShownSource(
    source_id="kb:relay.md",
    title="Relay",
    text="# Relay\n\nThe relay forwards what agents send. It listens on port 7480. Set `listen` in relay.toml\n"
    "to change it. The relay keeps a log. The relay is written in Go.",
)
PURGED = ShownSource(
    source_id="team:spool.txt",
    title="spool",
    text="--- QA ---\nid: qa_1\nUser: How do I purge the spool on Linux?\nTeam: Stop the relay first.\n"
    "  Then purge the spool with `relay purge`.\n\n--- QA ---\nid: qa_2\nUser: Is it safe?\n"
    "Team: Purge the spool at night.\n",
)


@pytest.mark.parametrize(
    ("answer", "citation", "quote"),
    [
        ("The relay is on port 7480.", "kb:relay.md", "It listens on port 7480."),
        ("Change `listen` in relay.toml.", "kb:relay.md", "Set `listen` in relay.toml"),
        (
            "Run `relay purge` to purge the spool on Linux.",
            "team:spool.txt#qa_1",
            "Then purge the spool with `relay purge`.",
        ),
        ("Purge the spool.", "team:spool.txt#qa_2", "Purge the spool at night."),
        ("Bananas are yellow.", "kb:relay.md", None),
    ],
)
def test_the_quote_is_the_sentence_that_shares_the_telling_words_and_of_a_topic_what_the_team_said(
    answer: str, citation: str, quote: str | None
) -> None:
    assert find_quote(answer, citation, PURGED if citation.startswith("team:") else GUIDE) == quote


def test_of_a_model_s_account_the_team_s_own_words_are_quoted() -> None:
    nugget = ShownSource(
        source_id="nugget:1", title="", text="A model's account of port 7480.", said="It is port 7480."
    )
    assert find_quote("Port 7480.", "nugget:1", nugget) == "It is port 7480."


@given(st.text(), st.text(max_size=2000))
def test_a_quote_stands_in_its_source_word_for_word_and_is_short(answer: str, text: str) -> None:
    quote = find_quote(f"{answer} {text[:50]}", "kb:a.md", ShownSource(source_id="kb:a.md", title="", text=text))
    assert quote is None or (0 < len(quote) <= MAX_QUOTE and quote in text)
