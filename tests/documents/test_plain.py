"""Plain texts by their shape, and texts without an ending that are Markdown or reStructuredText."""

from __future__ import annotations

from textwrap import dedent

import pytest
from hypothesis import given, strategies as st

from intern.documents.blocks import Document
from intern.documents.parsing import parse_document as parse_bytes
from intern.documents.plain import parse_plain, parse_settings
from tests.documents.holding import held_words
from tests.timing import cpu_seconds


def parse(text: str) -> Document:
    return parse_plain(dedent(text))


def test_paragraphs_are_joined_and_line_ends_that_were_meant_stay() -> None:
    document = parse("""\
        The relay listens on port 7411 and forwards each
        message that it gets to all of the agents.

        Port: 7411
        Host: relay
        """)
    assert [block.text for block in document.blocks] == [
        "The relay listens on port 7411 and forwards each message that it gets to all of the agents.",
        "Port: 7411\nHost: relay",
    ]


def test_headings_are_known_by_lines_capitals_and_numbers() -> None:
    document = parse("""\
        *****
        Relay
        *****

        Setup
        =====
        Open the lid.

        PARTS OF IT

        A lid.

        2. Networking

        A cable.

        2.1 Radio

        None.
        """)
    assert [(block.level, block.text) for block in document.blocks if block.kind == "heading"] == [
        (1, "Relay"), (2, "Setup"), (3, "PARTS OF IT"), (3, "2. Networking"), (4, "2.1 Radio"),
    ]  # fmt: skip
    assert [above.text for above in document.blocks[2].path] == ["Relay", "Setup"]


def test_items_hold_their_wrapped_lines_and_nest() -> None:
    document = parse("""\
        First:
        1. Open the lid,
           slowly.
           - with a key
        2) Close it.

        * star

          Belongs to it.
        """)
    assert [(block.kind, block.marker, block.depth, block.text) for block in document.blocks] == [
        ("paragraph", "", 0, "First:"),
        ("item", "1.", 1, "Open the lid, slowly."),
        ("item", "-", 2, "with a key"),
        ("item", "2)", 1, "Close it."),
        ("item", "-", 1, "star"),
        ("paragraph", "", 1, "Belongs to it."),
    ]


def test_indented_and_columned_lines_and_prompts_are_code() -> None:
    document = parse("""\
        Run it:

            relay start
            relay status

        Name      Port
        relay     7411

        $ relay stop

        retries = 3
        delay = 10
        """)
    assert [block.text for block in document.blocks if block.kind == "code"] == [
        "relay start\nrelay status", "Name      Port\nrelay     7411", "$ relay stop", "retries = 3\ndelay = 10",
    ]  # fmt: skip


def test_questions_have_their_answers() -> None:
    document = parse("""\
        Q: How is it reset?
        A: Hold the button.

        Q: Where is it?

        A: At the back.
        """)
    first, asked, answer = document.blocks
    assert (first.kind, first.term, first.text) == ("question", "How is it reset?", "Hold the button.")
    assert (asked.text, answer.text, answer.path[-1].text) == ("Where is it?", "At the back.", "Where is it?")


def test_pages_of_a_manual_have_sections_and_options() -> None:
    document = parse("""\
        RELAY(1)                 User Commands                RELAY(1)

        NAME
               relay - forward messages between the agents

        OPTIONS
               -v, --verbose
                      tell  each  message  that  it forwards to the
                      agents

               -q     tell nothing

               --port=PORT
                      listen on this port
        """)
    assert [block.text for block in document.blocks if block.kind == "heading"] == ["NAME", "OPTIONS"]
    assert [(block.term, block.text) for block in document.blocks if block.kind == "definition"] == [
        ("-v, --verbose", "tell each message that it forwards to the agents"),
        ("-q", "tell nothing"),
        ("--port=PORT", "listen on this port"),
    ]


def test_pages_of_a_standard_are_one_text() -> None:
    document = parse("""\
        Network Working Group                                    M. Roe
        Request: 99999                                        June 2031

                        Relay Forwarding Protocol

        Abstract

           The protocol forwards messages between agents, and does so
           in the order in which they came from the first of
           all agents.

        1.  Terms

           o  agent: a program that
              takes messages

             message = header *octet
             header  = 4octet

        Table of Contents

           1. Terms ................................................ 2

        2.  Agents

           None yet.
        """)
    assert document.title == "Relay Forwarding Protocol"
    headings = [block.text for block in document.blocks if block.kind == "heading"]
    assert headings == ["Abstract", "1. Terms", "Table of Contents", "2. Agents"]
    abstract, item, code, _ = (block for block in document.blocks[2:] if block.kind != "heading")
    assert abstract.text.endswith("in which they came from the first of all agents.")
    assert (item.kind, item.text) == ("item", "agent: a program that takes messages")
    assert (code.kind, code.text) == ("code", "message = header *octet\nheader  = 4octet")
    assert {each.reason for each in document.left_out} == {"a table of contents"}


@pytest.mark.parametrize(
    "text",
    [
        "Relay\n*****\n\n.. note:: Mind.\n\nSee :ref:`lid`.\n\n.. code-block:: sh\n\n   relay start\n",
        "# Relay\n\nMind.\n\n```sh\nrelay start\n```\n\nSee [the lid](https://x.example/lid).\n",
    ],
)
def test_a_text_of_another_format_is_read_as_that(text: str) -> None:
    document = parse_bytes(text.encode(), "README", max_chars=1000)
    assert document.blocks[0].kind == "heading"
    assert [(block.text, block.language) for block in document.blocks if block.kind == "code"] == [
        ("relay start", "sh")
    ]


def test_settings_are_code_part_by_part() -> None:
    document = parse_settings("# The port.\nport = 7411\n\n[agents]\n", "toml")
    assert [(block.kind, block.text, block.language, block.first_line) for block in document.blocks] == [
        ("code", "# The port.\nport = 7411", "toml", 1), ("code", "[agents]", "toml", 4),
    ]  # fmt: skip


_LINES = st.sampled_from(
    [*("", "", "{}", "    {} {}", "{} {} {} {} {}, {} and {}.", "- {}", "  1. {}", "{}:", "{}      {}", "====="),
     *("-----", "Q: is {}?", "A: {}", "-v, --{}  {}", "       {}", "\t{}", "1.1 {}", "$ {}", "{} = {}")]
)  # fmt: skip


@given(st.lists(_LINES, max_size=30))
def test_each_word_stands_once_in_its_lines(lines: list[str]) -> None:
    words = (f"word{n}x" for n in range(1000))
    rows = [line.format(*(next(words) for _ in range(line.count("{}")))) for line in lines]
    document = parse_plain("\n".join(rows))
    held = held_words(document)
    written = [(word, n) for n, row in enumerate(rows, 1) for word in held_words_of(row)]
    assert [word for word, _ in written if len(held.get(word, [])) != 1] == []
    assert [word for word, n in written if not held[word][0].first_line <= n <= held[word][0].last_line] == []


def held_words_of(row: str) -> list[str]:
    return [part.strip(".,:?") for part in row.replace("--", " ").split() if part.startswith("word")]


@pytest.mark.parametrize(
    "sign",
    [
        "a ",
        "\n",
        " ",
        ". ",
        "-",
        "- a\n",
        "    a\n",
        "a  b\n",
        "=\n",
        "`a <",
        "[a](",
        "-a  ",
        "..a ",
        "A\n\n",
        "1.1.",
        ":a:`b",
    ],
)
def test_the_time_grows_with_the_length(sign: str) -> None:
    def seconds(size: int) -> float:
        return cpu_seconds(lambda: parse_plain(sign * (size // len(sign))))

    assert seconds(16_000) < 10 * seconds(4_000) + 0.2
