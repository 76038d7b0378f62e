"""One model of a document, for all formats: blocks of plain text, each below its headings.

Each word that a reader of the document sees is in exactly one block; hidden words are in none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct, structs

from intern.core.text.passages import PART_ENDS, make_anchor

BlockKind = Literal["heading", "paragraph", "item", "row", "code", "definition", "question", "admonition"]


class Heading(Struct, frozen=True):
    """A title above blocks."""

    level: int
    """1 is the outermost. A question or a summary that heads its answer counts as the innermost, 7."""
    text: str
    anchor: str = ""
    """Leads to it in an address, behind `#`."""


class Block(Struct, frozen=True, kw_only=True):
    """A paragraph, or an element of the same rank."""

    kind: BlockKind
    text: str
    """Plain text as a chat can show it: inline code in backticks, links to elsewhere as `[label](address)`."""
    path: tuple[Heading, ...] = ()
    """The headings above it, outermost first; of a heading, without itself."""
    label: str = ""
    """The readers for whom it holds: the names of the tabs around it, joined by commas."""
    term: str = ""
    """The term of a definition, the question of a question-and-answer, the title of code or of an admonition."""
    columns: tuple[str, ...] = ()
    """The names of a row's columns."""
    language: str = ""
    """The language of code."""
    anchor: str = ""
    """The anchor of a heading."""
    level: int = 0
    """The level of a heading, as in `Heading`."""
    marker: str = ""
    """The marker of an item, or of code at an item's beginning, as written: `-` or `3.`."""
    depth: int = 0
    """The number of lists around it."""
    first_line: int = 0
    last_line: int = 0
    """The first and the last line of its block in the source, from 1."""


class OmittedText(Struct, frozen=True):
    """Text of the source that is in no block."""

    text: str
    reason: str


class Document(Struct, frozen=True, kw_only=True):
    """A document, parsed."""

    title: str
    """Its own title, or its first heading; may be empty."""
    blocks: tuple[Block, ...]
    left_out: tuple[OmittedText, ...] = ()
    oddities: tuple[str, ...] = ()
    """About its bytes, each once: an encoding other than UTF-8, characters that no text holds."""


_FENCES = re.compile(r"`{3,}")
_INNERMOST = 6  # level of a heading in Markdown
# Text that would be read as a heading, a fence, the end of a part or a topic's block.
_STRUCTURE = re.compile(r"(?m)^(?=#{1,6}[ \t]+\S|---[ \t]*$|--- QA ---[ \t]*$)")
_OPENS = re.compile(r"(?m)^([ \t]*)(?=`{3,}|~{3,})")


def write_blocks(blocks: Iterable[Block]) -> str:
    """Return blocks as Markdown, headings in their places, labels before blocks, once for a list or a table.

    `passages.find_blocks` reads it again: a question is a heading, and a line `---` ends the part below it.
    """
    text, open_path = "", tuple[Heading, ...]()
    before: Block | None = None
    for block in blocks:
        if block.kind == "heading":
            open_path = (*block.path, Heading(block.level, block.text))
        elif len(block.path) < len(open_path):
            text += f"\n\n{PART_ENDS}" if before else ""
            open_path, before = block.path, None
        if block.kind == "question":
            open_path = (*block.path, Heading(_INNERMOST, block.term))
        goes_on = before is not None and before.kind == block.kind and block.kind in {"item", "row"}
        text += "\n" if goes_on else "\n\n"
        is_told = goes_on and before is not None and before.label == block.label
        text += _write_block(structs.replace(block, label="") if is_told else block)
        before = block
    return text.strip("\n")


def write_document(document: Document) -> str:
    """Return a document as Markdown, below its title."""
    text, headings = write_blocks(document.blocks), (each.text for each in document.blocks if each.kind == "heading")
    return text if document.title in {"", *headings} else f"# {document.title}\n\n{text}".rstrip()


def _write_block(block: Block) -> str:
    """Return one block as Markdown."""
    indent = "  " * max(block.depth - (block.kind == "item"), 0)
    return "\n".join(f"{indent}{line}" if line else "" for line in _format_lines(block))


def _format_lines(block: Block) -> Iterator[str]:
    text = block.text
    if block.kind == "heading":
        anchor = f" {{#{block.anchor}}}" if block.anchor not in {"", make_anchor(text)} else ""
        yield f"{'#' * min(block.level, _INNERMOST)} {text}{anchor}"
        return
    if block.kind == "code":
        fence = "`" * max(3, *(len(found) + 1 for found in _FENCES.findall(text)), 3)
        yield from (f"{each}:" for each in (block.label, block.term) if each)
        begin = f"{block.marker} " if block.marker else ""
        yield from (f"{begin}{fence}{block.language}", *text.split("\n"), fence)
        return
    term = "" if block.kind == "question" else block.term
    text = _OPENS.sub(r"\1\\", _STRUCTURE.sub(" ", ": ".join(filter(None, (block.label, term, text)))))
    if block.kind == "item":
        first, *others = text.split("\n")
        yield from (f"{block.marker} {first}", *(f"  {line}" for line in others))
        return
    if block.kind == "question":
        yield f"{'#' * _INNERMOST} {block.term}\n"
    yield from text.split("\n")
