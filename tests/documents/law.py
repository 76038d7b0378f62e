"""The law of blocks: documents written of unique words, and the blocks that their words must come to.

A construct says how builders write something, and what is expected of it. In both, `w1` to `w9` stand for words of its
own, `x1` to `x9` for words that readers do not see. A line that ends with `@` takes other constructs, each line of them
with what stands before the sign; `~~~` is a fence that is longer than all in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

import hypothesis.strategies as st
from msgspec import Struct, structs

from intern.documents.blocks import Block, BlockKind, Document, Heading
from intern.documents.writer import INNERMOST

_WORD = re.compile(r"\b([wx])(\d)\b")
_UNIQUE = re.compile(r"\bz[a-z]{4}\b")


class Inside(NamedTuple):
    """The rules for constructs inside another one."""

    label: str = ""
    heading: str = ""
    kind: BlockKind | None = None
    """The kind of their paragraphs."""
    depth: int = 0
    scope: bool = True
    """Their headings head nothing outside."""


class Construct(NamedTuple):
    """A row of the table."""

    written: str
    expected: tuple[Block | Inside, ...]
    is_top: bool = False
    """It is never inside another construct."""
    is_loose: bool = False
    """Its blocks have the lines of all of it."""

    @property
    def heads(self) -> bool:
        """Whether later text is below its heading."""
        blocks = [part for part in self.expected if isinstance(part, Block) and part.kind == "heading"]
        return any(each.level < INNERMOST or each.text.endswith("?") for each in blocks)

    @property
    def is_open(self) -> bool:
        return any(isinstance(part, Inside) for part in self.expected)


def row(written: str, *expected: Block | Inside, is_top: bool = False, is_loose: bool = False) -> Construct:
    return Construct(written.strip("\n"), expected, is_top, is_loose)


def block(kind: BlockKind, text: str = "", **fields: object) -> Block:
    return Block(kind=kind, text=text, **fields)  # type: ignore[arg-type]


class Written(Struct):
    """A construct with its chosen content."""

    construct: Construct
    inner: list[Written]


def documents(table: Sequence[Construct]) -> st.SearchStrategy[list[Written]]:
    leaf = st.builds(
        Written, st.sampled_from([each for each in table if not (each.is_open or each.is_top)]), st.just([])
    )
    top = st.builds(Written, st.sampled_from([each for each in table if not each.is_open]), st.just([]))
    holders = [each for each in table if each.is_open]

    def hold(inner: st.SearchStrategy[Written]) -> st.SearchStrategy[Written]:
        return st.builds(Written, st.sampled_from(holders), st.lists(inner, min_size=1, max_size=3))

    return st.lists(top | st.recursive(leaf, hold, max_leaves=6), min_size=1, max_size=5)


class _Around(NamedTuple):
    path: tuple[Heading, ...] = ()
    labels: tuple[str, ...] = ()
    kind: BlockKind = "paragraph"
    depth: int = 0
    outer: int = 0
    """The number of headings outside of the construct that contains these words."""


_NOTHING = _Around()


def _below(around: _Around, block: Block) -> _Around:
    return around._replace(path=(*block.path, Heading(block.level, block.text, block.anchor)))


class Author:
    """Writes a document, and what is expected of it."""

    def __init__(self) -> None:
        self.expected: list[Block] = []
        self.hidden: list[str] = []
        self.loose: set[str] = set()
        self._numbers = count()

    def write(self, parts: Sequence[Written], around: _Around = _NOTHING) -> list[str]:
        lines: list[str] = []
        for part in parts:
            lines += ["", *self._write(part, around)] if lines else self._write(part, around)
            if part.construct.heads:
                last = next(each for each in reversed(self.expected) if each.kind == "heading")
                around = _below(around, last)
        return lines

    def _write(self, part: Written, around: _Around) -> list[str]:
        words: dict[str, str] = {}

        def say(text: str) -> str:
            for kind, digit in _WORD.findall(text):
                if kind + digit not in words:
                    words[kind + digit] = self._word(kind)
            return _WORD.sub(lambda found: words[found[0]], text)

        construct, inner = part.construct, list[str]()
        source = say(construct.written).split("\n")
        for expected in construct.expected:
            if isinstance(expected, Inside):
                # A heading that the construct has before its content is above it.
                inner = self.write(part.inner, self._inside(expected, around, say))
                continue
            told = self._told(expected, say, around)
            self.expected.append(told)
            if told.kind == "heading":
                around = _below(around, told)
        marks = re.findall("`{3,}|~{3,}|:{3,}", "\n".join(inner))
        longest = max((len(mark) for mark in marks), default=2) + 1
        self.loose |= {*words.values()} if construct.is_loose else set()
        lines: list[str] = []
        for line in source:
            if line.endswith("@"):
                lines += [(line[:-1] + each).rstrip() for each in inner]
            else:
                lines.append(line.replace("~~~", "`" * longest).replace("^^^", ":" * longest))
        return lines

    def _word(self, kind: str) -> str:
        number, letters = next(self._numbers), ""
        for size, signs in ((20, "bcdfghjklmnpqrstvwxz"), (5, "aeiou"), (20, "bcdfghjklmnpqrstvwxz"), (5, "aeiou")):
            number, digit = divmod(number, size)
            letters += signs[digit]
        if kind == "x":
            self.hidden.append("z" + letters)
        return "z" + letters

    def _inside(self, inside: Inside, around: _Around, say: Callable[[str], str]) -> _Around:
        heading = say(inside.heading)
        return _Around(
            (*around.path, Heading(7, heading, heading)) if heading else around.path,
            (*around.labels, say(inside.label)) if inside.label else around.labels,
            inside.kind or around.kind,
            around.depth + inside.depth,
            len(around.path) if inside.scope else around.outer,
        )

    def _told(self, expected: Block, say: Callable[[str], str], around: _Around) -> Block:
        path = around.path
        if expected.kind == "heading":
            # A foldable part stays within the answer to a question.
            level = expected.level + (expected.level == INNERMOST and not expected.text.endswith("?"))
            path = tuple(above for n, above in enumerate(path) if above.level < level or n < around.outer)
        return structs.replace(
            expected,
            kind=around.kind if expected.kind == "paragraph" else expected.kind,
            text=say(expected.text),
            term=say(expected.term),
            columns=tuple(say(name) for name in expected.columns),
            anchor=say(expected.anchor) or (say(expected.text).replace(" ", "-") if expected.kind == "heading" else ""),
            path=path,
            label=", ".join((*around.labels, *filter(None, [say(expected.label)]))),
            depth=around.depth + expected.depth,
        )


def faults(source: Sequence[str], author: Author, document: Document) -> Iterator[str]:
    """Yield in which the blocks of a document are not what its author expects."""
    found = [structs.replace(each, first_line=0, last_line=0) for each in document.blocks]
    for n in range(max(len(found), len(author.expected))):
        ours, theirs = (each[n] if n < len(each) else None for each in (author.expected, found))
        if ours != theirs:
            yield f"expected: {_told(ours)}\n   found: {_told(theirs)}"
            return
    left_out = " ".join(left.text for left in document.left_out)
    yield from (f"{word} was lost" for word in author.hidden if word not in left_out)
    places = {word: n for n, line in enumerate(source, 1) for word in _UNIQUE.findall(line)}
    # A term is in each of its definitions; its line belongs to the first.
    owners = {word: each for each in reversed(document.blocks) for word in _UNIQUE.findall(f"{each.text} {each.term}")}
    for each in document.blocks:
        own = set(_UNIQUE.findall(f"{each.text} {each.term}"))
        if outside := [
            word for word in own if owners[word] is each and not each.first_line <= places[word] <= each.last_line
        ]:
            yield f"{outside} stand outside of {each.first_line}..{each.last_line}: {_told(each)}"
        for n in range(each.first_line, each.last_line + 1):
            here = (
                {word for word in _UNIQUE.findall(source[n - 1]) if word in owners and word not in author.loose}
                if n <= len(source)
                else {"beyond"}
            )
            if here and not here & own:
                yield f"line {n} belongs to {here}, not to {each.first_line}..{each.last_line}: {_told(each)}"


def _told(told: Block | None) -> str:
    fields = structs.asdict(told).items() if told else ()
    return ", ".join(f"{name}={value!r}" for name, value in fields if value) or "nothing"
