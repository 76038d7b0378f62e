"""Markdown and its extensions by site builders, read by markdown-it-py with rules of our own for such blocks.

It knows MkDocs' `!!! note` and `=== "Tab"`, containers (`:::tip`), MyST's directives and roles, GitBook's, Hugo's and
Liquid's tags, MDX's imports and components, HTML in the text, and GitHub's alerts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from textwrap import dedent
from typing import TYPE_CHECKING, Any

from intern.documents.block_builder import BlockBuilder
from intern.documents.blocks import Document
from intern.documents.roles import role_text
from intern.documents.tag_reader import TagReader
from intern.documents.writer import DocumentWriter, Lines, code_span

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_NONE: dict[str, str] = {}
_ANCHOR = re.compile(r"\s*\{:?\s*(?:[^{}#]*#(?P<anchor>[\w:.-]+))?[^{}]*\}\s*\Z")
_TITLE = re.compile(r"""(?m)^title\s*[:=]\s*(?P<quote>["']?)(?P<title>.+?)(?P=quote)\s*$""")
_CODE_TITLE = re.compile(r"""(?:title|filename|caption)\s*=\s*["']([^"']*)["']|\[([^\[\]]+)\]""")
_TEXTS = frozenset({"text", "text_special"})
_HIGHLIGHTED = re.compile(r"\A#!\w+ ")  # MkDocs: the language of code in a line
_MARKUP = re.compile(r"[*_`\[<&\\]")
_LANGUAGE = re.compile(r"[\w+#.-]{1,30}")


def parse_markdown(text: str) -> Document:
    """Return a Markdown text as blocks. Raises ValueError if it is nested too deeply to be read."""
    writer = DocumentWriter()
    try:
        MarkdownReader(writer).read(text)
    except RecursionError:
        raise ValueError("it is nested too deeply to be read") from None
    return writer.build_document()


class MarkdownReader:
    """Reads texts one after the other as parts of one document."""

    def __init__(self, writer: DocumentWriter) -> None:
        self._writer = writer
        self._elements = BlockBuilder(writer)
        self._tags = TagReader(self._elements)

    def read(self, text: str, above: int = 0) -> None:
        """Read a text that begins below so many lines of its source, and end all its elements."""
        env: dict[str, Any] = {}
        tokens = markdown_parser().parse(text, env)
        for n, token in enumerate(tokens):
            lines = (above + token.map[0] + 1, above + token.map[1]) if token.map else self._elements.lines
            if token.type == "heading_open":
                self._begin_heading(token, tokens[n + 1], lines)
            else:
                self._read_token(token, lines)
        self._elements.close()
        definitions = [{"label": name, **each} for name, each in env.get("references", {}).items()]
        for each in (*definitions, *env.get("duplicate_refs", ())):
            self._writer.leave_out(f"[{each['label'].lower()}]: {each['href']} {each['title']}", "a link's definition")

    def _begin_heading(self, token: Token, inline: Token, lines: Lines) -> None:
        anchor, children = "", inline.children or []
        if children and children[-1].type == "text" and (found := _ANCHOR.search(children[-1].content)):
            anchor, children[-1].content = found["anchor"] or "", children[-1].content[: found.start()]
        self._elements.start(token.tag, {"id": anchor} if anchor else {}, lines, is_fixed=True)

    def _read_token(self, token: Token, lines: Lines) -> None:
        elements, kind = self._elements, token.type
        if kind == "inline":
            self._read_inline(token, lines)
        elif kind in {"fence", "code_block"}:
            self._write_code(token, lines)
        elif kind in {"html_block", "html_inline"}:
            self._tags.read(dedent(token.content) if kind == "html_block" else token.content, lines[0])
        elif kind == "left_out":
            self._writer.leave_out(token.content, token.info)
        elif kind == "part_open":
            self._open_part(token, lines)
        elif token.tag and token.nesting == 1:
            marker = f"{token.info}{token.markup}" if token.tag == "li" else ""
            attrs = {name: str(value) for name, value in token.attrs.items()}
            elements.start(token.tag, attrs, lines, is_fixed=True, marker=marker)
        elif token.tag and token.nesting == -1:
            elements.end(token.tag, lines, is_fixed=True)
        else:
            self._read_single_token(token, lines)

    def _open_part(self, token: Token, lines: Lines) -> None:
        """Begin a part that builders mark: an admonition, a tab, a foldable part, or any other."""
        elements = self._elements
        attrs = {name: self._strip_markup(str(value)) for name, value in token.attrs.items()}
        elements.start(token.tag, attrs, lines, is_fixed=True)
        elements.tabs = token.meta.get("items") or elements.tabs
        if token.content:
            tag = "summary" if token.tag == "details" else "p"
            elements.start(tag, _NONE, lines, is_fixed=True)
            elements.add_text(self._strip_markup(token.content), (lines[0], lines[0]))
            elements.end(tag, (lines[0], lines[0]), is_fixed=True)

    def _strip_markup(self, text: str) -> str:
        """Return a title without its markup."""
        if not _MARKUP.search(text):
            return text
        inline = markdown_parser().parseInline(text)[0].children or []
        return "".join(code_span(part.content) if part.type == "code_inline" else part.content for part in inline)

    def _read_inline(self, token: Token, lines: Lines) -> None:
        elements, line = self._elements, lines[0]
        for child in token.children or []:
            here = (line, line)
            if child.type in _TEXTS:
                elements.add_text(child.content, here)
            elif child.type in {"softbreak", "hardbreak"}:
                line += 1
                elements.add_text(" ", (line, line))
                if child.type == "hardbreak":
                    elements.start("br")
            else:
                self._read_token(child, here)
        elements.lines = lines

    def _read_single_token(self, token: Token, lines: Lines) -> None:
        elements = self._elements
        if token.type == "code_inline":
            elements.add_text(code_span(_HIGHLIGHTED.sub("", token.content)), lines)
        elif token.type == "myst_role":
            elements.add_text(role_text(token.meta["name"], token.content), lines)
        elif token.type == "image":
            elements.add_text(token.content, lines)
            self._writer.leave_out(str(token.attrs.get("title", "")), "a title of a picture")
        elif token.type == "front_matter":
            found = _TITLE.search(token.content)
            self._writer.title = found["title"] if found else ""
            self._writer.leave_out(token.content, "front matter")
        elif token.type in {"hr", "footnote_reference_open", "footnote_reference_close"}:
            elements.flush()

    def _write_code(self, token: Token, lines: Lines) -> None:
        info = token.info.strip()
        found = _CODE_TITLE.search(info)
        title, label = (found[1] or "", found[2] or "") if found else (token.meta.get("title", ""), "")
        if label:
            self._writer.enter(label=label)
        language = _LANGUAGE.match(info.lstrip("{ ."))
        content = dedent(token.content) if token.type == "code_block" else token.content
        self._elements.add_code(content, language[0] if language else "", lines, title=title)
        if label:
            self._writer.leave()


@lru_cache(maxsize=1)
def markdown_parser() -> MarkdownIt:
    """Return the parser, which is loaded with the first text."""
    from markdown_it import MarkdownIt  # noqa: PLC0415 25 ms of CPU
    from mdit_py_plugins.deflist import deflist_plugin  # noqa: PLC0415
    from mdit_py_plugins.footnote import footnote_plugin  # noqa: PLC0415
    from mdit_py_plugins.front_matter import front_matter_plugin  # noqa: PLC0415
    from mdit_py_plugins.myst_role import myst_role_plugin  # noqa: PLC0415

    from intern.documents import markdown_rules  # noqa: PLC0415

    parser = MarkdownIt("commonmark", {"html": True, "maxNesting": 2 * markdown_rules.DEEPEST}).enable(
        ["table", "strikethrough"]
    )
    for plugin in (front_matter_plugin, deflist_plugin, myst_role_plugin, markdown_rules.add_rules):
        parser.use(plugin)
    # Addresses stay as they are written, which saves a tenth of the time.
    parser.normalizeLink = parser.normalizeLinkText = str  # type: ignore[assignment,method-assign]
    parser.use(footnote_plugin, move_to_end=False, always_match_refs=True)
    return parser
