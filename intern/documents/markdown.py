"""Markdown and what site builders make of it, by markdown-it-py with rules of our own for blocks that builders add.

Known are MkDocs' `!!! note` and `=== "Tab"`, containers (`:::tip`), MyST's directives and roles, GitBook's, Hugo's and
Liquid's tags, MDX's imports and components, HTML in the text, and GitHub's alerts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from intern.core.text.patterns import regex
from intern.documents.blocks import Document
from intern.documents.elements import REMARKS, Elements, code_span, remark_title
from intern.documents.roles import role_text
from intern.documents.tags import TagReader
from intern.documents.writer import DocumentWriter, Lines

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_ANCHOR = regex(r"\s*\{:?\s*(?:[^{}#]*#(?P<anchor>[\w:.-]+))?[^{}]*\}\s*\Z")
_TITLE = regex(r"""(?m)^title\s*[:=]\s*(?P<quote>["']?)(?P<title>.+?)(?P=quote)\s*$""")
_CODE_TITLE = regex(r"""(?:title|filename|caption)\s*=\s*["']([^"']*)["']|\[([^\[\]]+)\]""")
_DIRECTIVE = regex(r"\{([\w:+.-]{1,40})\}\s*(.*)")
_OPTION = regex(r"\s*:([\w-]{1,40}):\s*(.*)")
_LANGUAGE = regex(r"[\w+#.-]{1,30}")

_FOLDS = frozenset({"details", "dropdown", "expand", "expandable", "spoiler", "collapse", "accordion", "toggle"})
_QUESTIONS = frozenset({"question", "faq", "help"})
_TAB_NAMES = frozenset({"tab", "tab-item", "tabitem", "==="})
_CODE_NAMES = frozenset({"code", "code-block", "sourcecode", "code-cell", "prompt", "literalinclude"})
_LEFT_OUT = frozenset({"toctree", "contents", "image", "raw", "index", "include", "eval-rst", "mermaid", "bibliography"})


def parse_markdown(text: str) -> Document:
    """Return a Markdown text as blocks. Raises ValueError where it is nested too deeply."""
    writer = DocumentWriter()
    reader = MarkdownReader(writer)
    reader.read(text, 0)
    reader.close()
    return writer.document()


class MarkdownReader:
    """Reads texts one after the other as parts of one document."""

    def __init__(self, writer: DocumentWriter) -> None:
        self._writer = writer
        self._elements = Elements(writer)
        self._tags = TagReader(self._elements)

    def close(self) -> None:
        self._elements.close()

    def read(self, text: str, first: int) -> None:
        """Read a text that begins after `first` lines of the source."""
        env: dict[str, Any] = {}
        tokens = markdown_parser().parse(text, env)
        for n, token in enumerate(tokens):
            lines = (first + token.map[0] + 1, first + token.map[1]) if token.map else self._elements.lines
            if token.type == "heading_open":
                self._head(token, tokens[n + 1], lines)
            else:
                self._take(token, lines)
        for name, reference in env.get("references", {}).items():
            self._writer.leave_out(f"[{name}]: {reference['href']} {reference['title']}", "a link's definition")

    def _head(self, token: Token, inline: Token, lines: Lines) -> None:
        anchor, children = "", inline.children or []
        if children and children[-1].type == "text" and (found := _ANCHOR.search(children[-1].content)):
            anchor, children[-1].content = found["anchor"] or "", children[-1].content[: found.start()]
        self._elements.start(token.tag, {"id": anchor} if anchor else {}, lines, is_fixed=True)

    def _take(self, token: Token, lines: Lines) -> None:
        elements = self._elements
        if token.type == "inline":
            self._inline(token, lines)
        elif token.type in {"fence", "code_block"}:
            self._code(token, lines)
        elif token.type == "html_block":
            self._tags.read(token.content, lines[0])
        elif token.type == "front_matter":
            found = _TITLE.search(token.content)
            self._writer.title = found["title"] if found else ""
            self._writer.leave_out(token.content, "front matter")
        elif token.type == "left_out":
            self._writer.leave_out(token.content, token.info)
        elif token.type == "part_open":
            self._open_part(token.info, token.content, lines, **token.meta)
        elif token.type == "part_close":
            elements.end(_element_of(token.info), lines)
        elif token.type == "hr":
            elements.flush()
        elif token.type in {"footnote_open", "footnote_close"}:
            elements.flush()
        elif token.tag and token.nesting == 1:
            attrs = {name: str(value) for name, value in token.attrs.items()}
            marker = {"marker": f"{token.info}{token.markup}"} if token.tag == "li" else {}
            elements.start(token.tag, attrs, lines, is_fixed=True, **marker)
        elif token.tag and token.nesting == -1:
            elements.end(token.tag, is_fixed=True)

    def _open_part(self, kind: str, title: str, lines: Lines, *, items: Sequence[str] = ()) -> None:
        """Begin what builders mark: an admonition, a tab, something that unfolds, or any other part."""
        elements, tag = self._elements, _element_of(kind)
        if tag == "tab":
            elements.start("tab", {"label": title}, lines)
        elif tag == "details":
            elements.start("details", {}, lines)
            elements.start("summary", {}, lines)
            self._inline_text(title, lines)
            elements.end("summary")
        elif tag == "aside":
            elements.start("aside", {}, lines, kind="admonition", term=title or remark_title(kind))
        else:
            elements.start("section", {}, lines)
            elements.tabs = [*items]
            if title and not items:
                self._inline_text(title, lines)
                elements.flush()

    def _inline_text(self, text: str, lines: Lines) -> None:
        for token in markdown_parser().parseInline(text):
            self._inline(token, lines)

    def _inline(self, token: Token, lines: Lines) -> None:
        elements, line = self._elements, lines[0]
        for child in token.children or []:
            here = (line, line)
            if child.type in {"text", "text_special"}:
                elements.text(child.content, here)
            elif child.type == "code_inline":
                elements.text(code_span(child.content), here)
            elif child.type == "myst_role":
                elements.text(role_text(child.meta["name"], child.content), here)
            elif child.type == "left_out":
                self._writer.leave_out(child.content, child.info)
            elif child.type == "softbreak":
                line += 1
                elements.text(" ", (line, line))
            elif child.type == "hardbreak":
                line += 1
                elements.start("br", {}, (line, line))
            elif child.type == "html_inline":
                self._tags.read(child.content, line)
            elif child.type == "image":
                elements.text(child.content, here)
            elif child.tag and child.nesting == 1:
                elements.start(child.tag, {k: str(v) for k, v in child.attrs.items()}, here, is_fixed=True)
            elif child.tag and child.nesting == -1:
                elements.end(child.tag, here, is_fixed=True)
        elements.lines = lines

    def _code(self, token: Token, lines: Lines) -> None:
        info, content, offset = token.info.strip(), token.content, int(token.type == "fence")
        if (found := _DIRECTIVE.match(info)) and offset:
            self._directive(found[1], found[2], content, lines)
            return
        title = _CODE_TITLE.search(info)
        label = title[2] or "" if title else ""
        if label:
            self._writer.enter(label=label)
        language = _LANGUAGE.match(info.removeprefix("{").lstrip("."))
        self._elements.code(content, language[0] if language else "", lines, title=title[1] or "" if title else "")
        if label:
            self._writer.leave()

    def _directive(self, name: str, argument: str, content: str, lines: Lines) -> None:
        """Read what MyST writes in a fence: code, or Markdown again."""
        rows = content.split("\n")
        skipped = _options_end(rows)
        options = {found[1]: found[2] for row in rows[:skipped] if (found := _OPTION.fullmatch(row))}
        body = "\n".join(rows[skipped:])
        name = name.rpartition(":")[2]
        if name in _CODE_NAMES:
            self._elements.code(body, argument, lines, title=options.get("caption", ""))
        elif name in _LEFT_OUT:
            self._writer.leave_out(f"{argument} {content}", f"the directive {name}")
        elif name in {"figure", "math"}:
            self._elements.code(body, "", lines) if name == "math" else self.read(body, lines[0] + skipped)
        else:
            self._elements.flush()
            self._open_part(name, argument, lines)
            self.read(body, lines[0] + skipped)
            self._elements.end(_element_of(name), lines)


def _options_end(rows: Sequence[str]) -> int:
    """Return how many lines at the beginning of a directive are its options."""
    if rows and rows[0].strip() == "---":
        return next((n + 1 for n, row in enumerate(rows[1:], 1) if row.strip() == "---"), 0)
    return next((n for n, row in enumerate(rows) if not _OPTION.fullmatch(row)), len(rows))


def _element_of(kind: str) -> str:
    """Return the element that stands for a part of a builder's."""
    if kind in _TAB_NAMES:
        return "tab"
    if kind in _FOLDS | _QUESTIONS:
        return "details"
    return "aside" if kind in REMARKS else "section"


@lru_cache(maxsize=1)
def markdown_parser() -> MarkdownIt:
    """Return the parser, which is loaded with the first text."""
    from markdown_it import MarkdownIt  # noqa: PLC0415 25 ms of CPU
    from mdit_py_plugins.deflist import deflist_plugin  # noqa: PLC0415
    from mdit_py_plugins.footnote import footnote_plugin  # noqa: PLC0415
    from mdit_py_plugins.front_matter import front_matter_plugin  # noqa: PLC0415
    from mdit_py_plugins.myst_role import myst_role_plugin  # noqa: PLC0415

    from intern.documents import builders  # noqa: PLC0415

    parser = MarkdownIt("commonmark", {"html": True, "maxNesting": builders.DEEPEST + 1}).enable(["table", "strikethrough"])
    for plugin in (front_matter_plugin, footnote_plugin, deflist_plugin, myst_role_plugin, builders.add_rules):
        parser.use(plugin)
    return parser
