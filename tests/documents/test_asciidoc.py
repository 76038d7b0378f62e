"""AsciiDoc as blocks: each word that a reader sees is in one block of its kind, and no hidden word is in any."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from textwrap import dedent

import pytest
from hypothesis import given, strategies as st
from msgspec import Struct

from intern.documents.asciidoc import parse_asciidoc
from intern.documents.blocks import Block, Document
from tests.documents.holding import held_words
from tests.timing import cpu_seconds


def parse(text: str, **files: str) -> Document:
    return parse_asciidoc(dedent(text), {name.replace("_", "."): each for name, each in files.items()}.get)


def bodies(document: Document) -> list[tuple[str, str]]:
    return [(block.kind, block.text) for block in document.blocks]


def only(document: Document, kind: str) -> list[Block]:
    return [block for block in document.blocks if block.kind == kind]


class Written(Struct):
    """The output of a construct, and the place where its words must be."""

    lines: str
    kind: str = ""
    label: str = ""
    hidden: bool = False


# Each takes words that occur in no other place, and puts them at {}.
_CONSTRUCTS = [
    Written("{}\n{}", "paragraph"),
    Written("*{}* _{}_ #{}# `{}` **{}**{}", "paragraph"),
    Written("link:https://x.example/y[{} {}^] https://x.example[{}] xref:y.adoc[{}]", "paragraph"),
    Written('"`{}`" pass:[{}] +{}+ kbd:[{}] btn:[{}] menu:{}[{} > {}] footnote:[{}] \\*{}*', "paragraph"),
    Written("* {}\n** {}\n+\n{}", ""),
    Written(". {}\n.. {}\n\n. {}\n{}", "item"),
    Written("* [x] {}\n* [ ] {}", "item"),
    Written("{}:: {}\n{}::\n  {}", "definition"),
    Written("{}::\n{}::\n  {}", "definition"),
    Written("[horizontal]\n{};; {}", "definition"),
    Written("[qanda]\nIs {}?:: {}", "question"),
    Written("----\n{} {{port}}\n  {}\n----", "code"),
    Written(".{}\n[source,sh]\n----\n{} # <1>\n----", "code"),
    Written("....\n{}\n....", "code"),
    Written("```sh\n{}\n```", "code"),
    Written(" {}\n   {}", "code"),
    Written("NOTE: {}\n{}", "admonition"),
    Written("[WARNING]\n====\n{}\n====", "admonition"),
    Written("[TIP]\n{}", "admonition"),
    Written("====\n{}\n\n=====\n{}\n=====\n====", "paragraph"),
    Written("****\n{}\n****\n\n--\n{}\n--\n\n____\n{}\n____", "paragraph"),
    Written("[quote,{}]\n{}", "paragraph"),
    Written("|===\n|{} |{}\n\n|{}\n|{}\n|===", "row"),
    Written('[cols="1,2a",options="header"]\n|===\n|{}|{}\n|{}\n|* {}\n* {}\n|===', "row"),
    Written("[%header,cols=2*]\n|===\n2+|{}\n.2+|{}|{}\n|{}\n|===", "row"),
    Written("[tabs]\n====\nLinux::\n+\n{}\nMac:: {}\n====", "paragraph", label="Linux Mac"),
    Written("ifdef::asciidoctor[]\n{}\nendif::[]\n{}", "paragraph"),
    Written("ifndef::nothing[{}]", "paragraph"),
    Written(":held: {}\n\n{{held}}", "paragraph"),
    Written("// {}", hidden=True),
    Written("////\n{}\n////", hidden=True),
    Written("++++\n{}\n++++", hidden=True),
    Written("ifdef::nothing[]\n{}\n\n{}\nendif::[]", hidden=True),
    Written("ifdef::nothing[{}]", hidden=True),
    Written(":other: {}", hidden=True),
    Written("include::{}.adoc[]", hidden=True),
    Written("image::x.png[]\n\n(((hidden {})))", hidden=True),
]


def numbered_words() -> Iterator[str]:
    return (f"word{n}x" for n in count())


def fill(written: Written, words: Iterator[str]) -> tuple[str, list[str]]:
    taken = [next(words) for _ in range(written.lines.replace("{{", "").count("{}"))]
    return written.lines.format(*taken), taken


@pytest.mark.parametrize("construct", _CONSTRUCTS, ids=lambda construct: construct.lines.partition("\n")[0])
def test_each_word_of_a_construct_stands_once_in_a_block_of_its_kind(construct: Written) -> None:
    check_words([2, construct, 3, construct])


@given(st.lists(st.one_of(st.sampled_from(_CONSTRUCTS), st.integers(2, 4)), min_size=1, max_size=12))
def test_each_word_that_is_seen_stands_once_below_its_headings_and_no_other(parts: list[Written | int]) -> None:
    check_words(parts)


def check_words(parts: Sequence[Written | int]) -> None:
    words, lines, path = numbered_words(), ["= Title", ""], [("Title", 1)]
    expected: dict[str, tuple[Written, list[str]]] = {}
    hidden: list[str] = []
    for part in parts:
        if isinstance(part, int):
            name = next(words)
            path = [*(above for above in path if above[1] < part), (name, part)]
            lines += [f"{'=' * part} {name}", ""]
            continue
        text, taken = fill(part, words)
        # A comment ends a list, so that the next one is none of its items.
        lines += [text, "", "//-", ""]
        hidden += taken if part.hidden else []
        expected |= {} if part.hidden else {word: (part, [each for each, _ in path]) for word in taken}
    document, rows = parse_asciidoc("\n".join(lines)), "\n".join(lines).split("\n")
    held = held_words(document)
    assert [word for word in expected if len(held.get(word, [])) != 1] == []
    assert [word for word in hidden if word in held] == []
    left_out = " ".join(each.text for each in document.left_out)
    assert [word for word in hidden if word not in left_out] == []
    for word, (part, above) in expected.items():
        [block] = held[word]
        assert block.kind == part.kind or not part.kind, word
        assert [heading.text for heading in block.path] == above
        assert (block.label in part.label.split()) == bool(part.label), word
        source = "\n".join(rows[block.first_line - 1 : block.last_line])
        assert word in source or "held" in source


def test_a_header_with_attributes_stands_above_the_text_that_names_them() -> None:
    document = parse("""\
        = Relay handbook
        Mo Roe <mo@example.org>
        :port: 7411
        // a comment
        :long: one \\
          two

        Port {port}, {long}, {unset}, \\{port}, 10{nbsp}MB, {lt}x{gt}.

        :!port:

        Port {port}.
        """)
    assert document.title == "Relay handbook"
    assert bodies(document)[1:] == [
        ("paragraph", "Mo Roe <mo@example.org>"),
        ("paragraph", "Port 7411, one two, {unset}, {port}, 10 MB, <x>."),
        ("paragraph", "Port {port}."),
    ]


def test_anchors_of_sections_are_kept_and_references_show_their_titles() -> None:
    document = parse("""\
        = A

        [[first-id]]
        == First

        See <<second-id>>, <<first-id,above>>, <<other>> and xref:b.adoc[].

        [#second-id,role=x]
        == Second part

        === Third [[third-id]]
        """)
    assert [block.anchor for block in only(document, "heading")][1:] == ["first-id", "second-id", "third-id"]
    assert only(document, "paragraph")[0].text == "See Second part, above, [other] and b.adoc."


def test_titles_in_two_lines_are_titles_and_no_code() -> None:
    document = parse("""\
        relay(1)
        ========

        NAME
        ----
        relay - forwards

        EXAMPLES
        --------

        Deeper
        ~~~~~~
        """)
    assert [(block.level, block.text) for block in only(document, "heading")] == [
        (1, "relay(1)"), (2, "NAME"), (2, "EXAMPLES"), (3, "Deeper"),
    ]  # fmt: skip
    assert only(document, "code") == []


def test_a_block_title_heads_its_block_alone() -> None:
    document = parse("""\
        = FAQ

        .Why is it blank?
        [%collapsible]
        ====
        The driver is old.
        ====

        .Steps
        . One

        .Ports
        |===
        |a
        |===

        .relay.sh
        [source,sh]
        ----
        relay
        ----

        .Mind
        [NOTE]
        ====
        The gap.
        ====
        """)
    answer, caption, item, table, row, code, note = document.blocks[2:]
    assert [each.first_line for each in document.blocks[1:]] == [3, 6, 9, 10, 12, 14, 17, 23]
    assert [above.text for above in answer.path] == ["FAQ", "Why is it blank?"]
    assert [(each.kind, each.text) for each in (caption, item, table, row)] == [
        ("paragraph", "Steps"), ("item", "One"), ("paragraph", "Ports"), ("row", "a"),
    ]  # fmt: skip
    assert (code.term, code.language, code.text) == ("relay.sh", "sh", "relay")
    assert (note.term, note.text) == ("Mind", "The gap.")
    assert all([above.text for above in each.path] == ["FAQ"] for each in (caption, row, code, note))


def test_attributes_of_any_name_do_no_harm() -> None:
    block, by = parse('[quote,begin=x,@line=y,start=z,"@line"=9]\nText.').blocks
    assert (block.text, block.first_line, block.last_line) == ("Text.", 2, 2)
    assert (by.text, by.first_line, by.last_line) == ('@line=y, "@line"=9', 1, 2)


def test_lists_nest_by_their_marks_and_hold_what_is_attached() -> None:
    document = parse("""\
        . Start
        * inner
        +
        more of inner
        ** innermost

        +
        more of inner, too


        +
        more of start
        +
        ----
        relay
        ----
        . Next
        4. Fourth
        """)
    assert [(block.kind, block.marker, block.depth, block.text) for block in document.blocks] == [
        ("item", "1.", 1, "Start"),
        ("item", "-", 2, "inner"),
        ("paragraph", "", 2, "more of inner"),
        ("item", "-", 3, "innermost"),
        ("paragraph", "", 2, "more of inner, too"),
        ("paragraph", "", 1, "more of start"),
        ("code", "", 1, "relay"),
        ("item", "2.", 1, "Next"),
        ("item", "4.", 2, "Fourth"),
    ]


def test_callouts_are_no_part_of_the_code_and_items_below_it() -> None:
    document = parse("""\
        [source,sh]
        ----
        relay start # <1>
        relay stop <2>
        <b>
        ----
        <1> Starts.
        <2> Stops.
        """)
    assert bodies(document) == [
        ("code", "relay start\nrelay stop\n<b>"), ("item", "Starts."), ("item", "Stops."),
    ]  # fmt: skip


def test_cells_reach_over_lines_columns_and_rows() -> None:
    document = parse("""\
        [cols="1,1"]
        |===
        |Name |Value

        |port
        |7411,
        as a number
        .2+|host
        |a \\| b
        |c
        2+|wide
        |===
        """)
    header, *rows = document.blocks
    assert header.text == "Name | Value"
    assert [row.text for row in rows] == ["port | 7411, as a number", "host | a | b", "| c", "wide |"]
    assert {row.columns for row in rows} == {("Name", "Value")}
    assert (rows[0].first_line, rows[0].last_line) == (5, 7)


def test_attributes_stand_in_code_only_where_it_says_so() -> None:
    document = parse("""\
        :port: 7411

        ----
        {port} *a*
        ----

        [subs="attributes"]
        ----
        {port} *a*
        ----
        """)
    assert [block.text for block in document.blocks] == ["{port} *a*", "7411 *a*"]


def test_files_of_the_folder_are_included_with_their_levels_and_others_are_named() -> None:
    files = {
        "docs/part.adoc": "= Part\n:port: 7411\n\ninclude::sub/deep.adoc[leveloffset=+1]\n",
        "docs/sub/deep.adoc": "= Deep\n\ninclude::../code.sh[]\n",
        "docs/code.sh": "relay run\n",
    }
    text = "= Book\n\ninclude::part.adoc[leveloffset=1]\n\nPort {port}.\n\n"
    document = parse_asciidoc(f"{text}include::../../etc.adoc[]\ninclude::gone.adoc[]\n", files.get, "docs/book.adoc")
    assert [(block.level, block.text, block.first_line) for block in document.blocks] == [
        (1, "Book", 1), (2, "Part", 3), (3, "Deep", 3), (0, "relay run", 3), (0, "Port 7411.", 5),
    ]  # fmt: skip
    assert [each.reason for each in document.left_out if each.text.startswith("include")] == (
        ["not in the folder, too large, or an include more than 16 deep"] * 2
    )


def test_files_that_include_each_other_come_to_an_end() -> None:
    document = parse_asciidoc("include::a.adoc[]\n", lambda _: "Text.\n\ninclude::a.adoc[]\ninclude::a.adoc[]\n")
    assert 16 <= len(document.blocks) < 2500
    assert [each for each in document.left_out if "more than 16 deep" in each.reason]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("ifdef::port[]", True),
        ("ifdef::none,port[]", True),
        ("ifdef::none+port[]", False),
        ("ifndef::none[]", True),
        ('ifeval::["{port}" == "7411"]', True),
    ],
)
def test_what_a_condition_does_not_let_in_is_left_out(condition: str, holds: object) -> None:
    document = parse_asciidoc(f":port: 7411\n\n{condition}\nifdef::port[]\nInner.\nendif::[]\nendif::[]\nAfter.")
    assert bodies(document) == [("paragraph", "Inner. After." if holds else "After.")]
    assert ("Inner." in [each.text for each in document.left_out]) is not bool(holds)


def test_program_in_several_languages_has_their_names_as_labels() -> None:
    document = parse("""\
        [source,java,role="primary"]
        .Java
        ----
        a();
        ----

        [source,kotlin,role="secondary"]
        .Kotlin
        ----
        a()
        ----
        """)
    assert [(block.label, block.language) for block in document.blocks] == [("Java", "java"), ("Kotlin", "kotlin")]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("snake_case_name and a * b * c", "snake_case_name and a * b * c"),
        ("H~2~O and 2 < 3 &amp; 4", "H2O and 2 < 3 & 4"),
        ("one +\ntwo", "one\ntwo"),
        ("[.red]#marked# [x] [[here]]there", "marked [x] there"),
        ("`a` and ``b``c and `+{x}+`", "`a` and `b`c and `{x}`"),
        ("((term)) linkgit:relay-run[1] icon:x[]", "term relay-run(1)"),
        ("https://x.example/a_b_c. mailto:a@x.example[mail us]", "https://x.example/a_b_c. mail us"),
        ("std::vector of foo:bar[baz]", "std::vector of foo:bar[baz]"),
        ("image:x.png[The lid] opens", "The lid opens"),
        ("image::x.png[The lid]", "The lid"),
        ("[[[one]]] `toc::[]`", "[one] `toc::[]`"),
        ('use `\\"` in "`**`" or "`/**`"', 'use `\\"` in “**” or “/**”'),
    ],
)
def test_marks_inside_a_line_are_not_shown(text: str, shown: str) -> None:
    assert parse_asciidoc(text).blocks[0].text == shown


def test_blocks_that_are_nested_deeply_are_refused_with_the_reason() -> None:
    assert len(parse_asciidoc("\n".join("=" * (n + 4) for n in range(40)) + "\nText.").blocks) == 1
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_asciidoc("\n".join("=" * (n + 4) for n in range(300)))
    assert len(parse_asciidoc("* a\n+\n" * 5000).blocks) == 5000


def test_attributes_do_not_grow_without_bounds() -> None:
    doubling = "".join(f":a{n + 1}: {{a{n}}}{{a{n}}}\n" for n in range(60))
    with pytest.raises(ValueError, match="add more than"):
        parse_asciidoc(f":a0: boom\n{doubling}\n{{a60}}")


_HOSTILE: list[Callable[[int], str]] = [
    *(
        lambda n, sign=sign: sign * (n // len(sign))
        for sign in (
            "[",
            "*a ",
            "`a ",
            "**a ",
            "+a ",
            "<<a",
            "((a",
            "{a}",
            "\\",
            "link:a[",
            "|",
            '"`a ',
            "pass:[a",
            "ab:",
            "\0",
        )
    ),
    lambda n: "|===\n" + "|" * n + "\n|===",
    lambda n: "|===\n" + "9.99+|a\n" * (n // 8) + "|===",
    lambda n: "|===\n" + ".9+|a\n" * (n // 6) + "|===",
    lambda n: "* a\n" + "+\n" * (n // 2),
    lambda n: "ifdef::asciidoctor[" * (n // 20) + "]" * (n // 20),
    lambda n: "----\n" + " " * n + "\n----",
    lambda n: "a::\n" * (n // 4),
    lambda n: "[tabs]\n====\n" * (n // 12),
    lambda n: "\n" * n + "* a" + "\n" * n,
]


@pytest.mark.parametrize("text", _HOSTILE)
def test_the_time_grows_with_the_length(text: Callable[[int], str]) -> None:
    def seconds(size: int) -> float:
        return cpu_seconds(lambda: parse_asciidoc(text(size)))

    assert seconds(16_000) < 10 * seconds(4_000) + 0.2


@given(st.text(st.sampled_from("*_`+.-=|,[]{}<>:#/'\" \n\nab1ifdef::"), max_size=200))
def test_no_text_breaks_it_and_its_lines_are_those_of_the_source(text: str) -> None:
    document = parse_asciidoc(text)
    last = text.count("\n") + 1
    assert all(1 <= block.first_line <= block.last_line <= last for block in document.blocks)
