"""Writes the blocks of a document in its order: below open headings, within tabs and lists, answers below questions."""

from __future__ import annotations

import re
from typing import Any

from intern.core.text.fences import remove_invisible
from intern.core.text.passages import make_anchor
from intern.documents.blocks import Block, BlockKind, Document, Heading, OmittedText

INNERMOST = 7
"""The level of a question or a summary that heads the text below it."""

Lines = tuple[int, int]
"""The first and the last line, from 1."""

_ASKS = re.compile(r"(?i)\AQ(?:uestion)?\s?\d{0,3}\s?[:.)]\s+")
_TOLD = re.compile(r"(?i)\AA(?:nswer)?\s?\d{0,3}\s?[:.)]\s+")
_QUESTION_ENDS = re.compile(r"[?？](?=\s|\Z)")
# Control characters but for tab and line break, and half surrogates.
_UNWANTED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class DocumentWriter:
    """Takes the parts that a parser finds, in order, and keeps the headings and labels above them."""

    def __init__(self) -> None:
        self.title = ""
        self.depth = 0
        """The number of lists around the next block."""
        self._blocks: list[Block] = []
        self._left_out: list[OmittedText] = []
        self._path: tuple[Heading, ...] = ()
        self._labels: tuple[str, ...] = ()
        self._outer = 0
        """The number of headings outside of the open part: a heading inside it ends none of them."""
        self._scopes: list[tuple[tuple[Heading, ...], tuple[str, ...], int, int]] = []
        self._anchors: dict[str, int] = {}

    def add_heading(self, level: int, text: str, lines: Lines, anchor: str = "") -> None:
        """Write a heading; later blocks are below it, until one of its level or an outer one."""
        text = clean_characters(collapse_blanks(text).replace("\n", " "))
        if not text:
            return
        inner = (above for above in self._path[self._outer :] if above.level < level)
        self._path = (*self._path[: self._outer], *inner)
        heading = Heading(level, text, anchor or self._make_anchor(text))
        self._append_block("heading", text, lines, {"level": level, "anchor": heading.anchor})
        self._path = (*self._path, heading)

    def add_block(self, kind: BlockKind, text: str, lines: Lines, *, bold: str = "", **fields: Any) -> None:
        """Write a block, unless it is empty; `bold` is the length of its beginning that is printed as a title.

        If that is a question, its answer is the rest of the block, or else the next blocks, which it heads.
        """
        text = collapse_blanks(text) if kind != "code" else text.strip("\n") if text.strip() else ""
        is_prose = kind in {"paragraph", "item"} or (kind == "admonition" and not fields.get("term"))
        if is_prose and (asked := _find_question(text, collapse_blanks(bold))):
            text = _TOLD.sub("", text.removeprefix(asked).lstrip(), count=1)
            asked = _ASKS.sub("", asked, count=1)
            if not text:
                self.add_heading(INNERMOST, asked, lines)
            kind, fields = "question", {**fields, "term": asked}
        elif self._path and self._path[-1].level == INNERMOST and kind == "paragraph":
            text = _TOLD.sub("", text, count=1)
        if text or (kind != "question" and fields.get("term")):
            self._append_block(kind, text, lines, fields)

    def leave_out(self, text: str, reason: str) -> None:
        """Note text that readers do not see."""
        if text.strip():
            self._left_out.append(OmittedText(text.strip(), reason))

    def enter(self, *, label: str = "", title: str = "", lines: Lines = (0, 0)) -> None:
        """Begin a part with a label or a title of its own, until `leave` is called."""
        self._scopes.append((self._path, self._labels, self.depth, self._outer))
        self._outer = len(self._path)
        label = clean_characters(collapse_blanks(label).replace("\n", " "))
        if label and label not in self._labels:
            self._labels = (*self._labels, label)
        if title:
            self.add_heading(INNERMOST, title, lines)
            self._outer = len(self._path)

    def leave(self) -> None:
        """End the innermost part; harmless if none is open."""
        if self._scopes:
            self._path, self._labels, self.depth, self._outer = self._scopes.pop()

    def build_document(self) -> Document:
        """Return the document that was written."""
        first = next((block.text for block in self._blocks if block.kind == "heading"), "")
        return Document(
            title=clean_characters(collapse_blanks(self.title).replace("\n", " ")) or first,
            blocks=tuple(self._blocks),
            left_out=tuple(self._left_out),
        )

    def _append_block(self, kind: BlockKind, text: str, lines: Lines, fields: dict[str, Any]) -> None:
        block = Block(
            kind=kind,
            text=clean_characters(text),
            term=clean_characters(fields.pop("term", "")),
            columns=tuple(map(clean_characters, fields.pop("columns", ()))),
            path=self._path,
            label=", ".join(self._labels) if self._labels else "",
            depth=self.depth,
            first_line=lines[0],
            last_line=lines[1],
            **fields,
        )
        self._blocks.append(block)

    def _make_anchor(self, text: str) -> str:
        """Return the anchor of a heading; the second one of a name gets `-1` at its end."""
        slug = make_anchor(text)
        n = self._anchors.get(slug, 0)
        self._anchors[slug] = n + 1
        return f"{slug}-{n}" if n else slug


def _find_question(text: str, bold: str) -> str:
    """Return the question that a paragraph begins with: `Q: How?`, or a bold one."""
    if bold.endswith(("?", "？")) and text.startswith(bold):
        return bold
    if _ASKS.match(text) and (found := _QUESTION_ENDS.search(text)):
        return text[: found.end()]
    return ""


def clean_characters(text: str) -> str:
    """Return a text without invisible characters, and with a sign in place of half characters."""
    return _UNWANTED.sub(lambda found: "\ufffd" if found[0] >= "\ud800" else "", remove_invisible(text))


def collapse_blanks(text: str) -> str:
    """Return a text with single blanks; its line ends stay."""
    if "\n" in text:
        return "\n".join([" ".join(line.split()) for line in text.split("\n")]).strip()
    return " ".join(text.split())


def code_span(text: str) -> str:
    """Return a text as inline code; with two backticks where it holds one."""
    text = " ".join(text.split())
    return f"`` {text} ``" if "`" in text else f"`{text}`"
