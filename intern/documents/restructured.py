"""reStructuredText by docutils, with Sphinx's directives and roles known as what they hold.

Docutils drops a directive that it does not know, with all that stands in it. So one directive of our own, which takes
any argument and any option, stands for all but the few that docutils reads better; likewise one role. Nothing that a
document names is read from elsewhere, and none of its HTML is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from docutils import nodes
from docutils.core import publish_doctree
from docutils.parsers.rst import Directive, directives, roles, states
from docutils.parsers.rst.directives.tables import CSVTable, ListTable, RSTTable
from docutils.statemachine import StringList

from intern.core.text.patterns import regex
from intern.documents.blocks import Document
from intern.documents.elements import REMARKS, Elements, remark_title
from intern.documents.roles import role_text
from intern.documents.writer import DocumentWriter, Lines

_SETTINGS = {
    "_disable_config": True,
    "doctitle_xform": False,
    "file_insertion_enabled": False,
    "halt_level": 5,
    "raw_enabled": False,
    "report_level": 5,
    "syntax_highlight": "none",
    "tab_width": 8,
}
_CODE = frozenset(
    "code code-block sourcecode parsed-literal prompt testcode testoutput doctest ipython console jinja productionlist"
    " math literal graphviz mermaid uml".split()
)
_TABS = frozenset({"tab", "tab-item", "group-tab", "code-tab"})
_FOLDS = frozenset({"dropdown", "details", "collapse", "spoiler", "toggle"})
# What they hold is shown elsewhere, or not at all.
_LEFT_OUT = frozenset(
    "toctree contents index raw include literalinclude highlight highlightlang default-role role meta module currentmodule"
    " sectionauthor moduleauthor codeauthor testsetup testcleanup tabularcolumns image figure-md bibliography"
    " automodule autosummary sectnum header footer".split()
)
# A title above what they hold.
_TITLED = frozenset({"topic", "sidebar", "card", "grid-item-card", "rubric", "centered", "step"})
_READ_BY_DOCUTILS = {"list-table": ListTable, "csv-table": CSVTable, "table": RSTTable}
_SUBSTITUTIONS = frozenset({"replace", "unicode", "date"})
_OPTIONS = regex(r":[\w-]{1,60}:")


def parse_restructured(text: str) -> Document:
    """Return a text as blocks. Raises ValueError where it is nested too deeply to be read."""
    _know_directives()
    writer = DocumentWriter()
    try:
        doctree = publish_doctree(text, settings_overrides=_SETTINGS)
        _Walker(writer).walk(doctree)
    except RecursionError:
        raise ValueError("it is nested too deeply to be read") from None
    return writer.document()


class part(nodes.General, nodes.Element):  # noqa: N801 named as docutils names its nodes
    """Anything that a directive holds: an admonition, a tab, something that unfolds."""


class _AnyOption(dict[str, Any]):
    """Takes any option as it is."""

    def __missing__(self, name: str) -> Any:
        return directives.unchanged

    def __bool__(self) -> bool:
        return True


class _AnyDirective(Directive):
    """Stands for each directive; what it is decides what becomes of its content."""

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[Any] = _AnyOption()

    def run(self) -> Sequence[nodes.Node]:
        name = self.name.rpartition(":")[2].lower()
        argument = self.arguments[0] if self.arguments else ""
        body = "\n".join(self.content)
        if name in _LEFT_OUT:
            return [self._part("left_out", f"{argument}\n{body}", ())]
        if name in _CODE:
            return self._code(name, argument, body)
        if name == "code-tab":
            words = argument.split(None, 1)
            code = nodes.literal_block(body, body, language=words[0] if words else "")
            return [self._part("tab", words[-1] if words else "", [self._located(code)])]
        if name in {"figure", "image"}:
            return [self._part("section", self.options.get("alt", ""), self._parsed())]
        if name == "glossary":
            return self._glossary()
        if name in REMARKS or name in _TABS or name in _FOLDS:
            kind = "tab" if name in _TABS else "details" if name in _FOLDS else name
            return [self._part(kind, argument, self._parsed())]
        if name in _TITLED:
            return [self._part("titled", argument, self._parsed())]
        if argument and (":" in self.name or name in _OBJECTS):
            return [self._part("object", argument, self._parsed())]
        return [self._part("section", "" if name in _WITHOUT_TEXT else argument, self._parsed())]

    def _code(self, name: str, argument: str, body: str) -> Sequence[nodes.Node]:
        is_language = name in {"code", "code-block", "sourcecode", "prompt"}
        text = body if is_language or not argument else f"{argument}\n{body}"
        code = nodes.literal_block(text, text, language=argument.split()[0] if is_language and argument else "")
        code["title"] = self.options.get("caption", "")
        return [self._located(code)] if text.strip() else []

    def _part(self, kind: str, title: str, children: Sequence[nodes.Node]) -> nodes.Node:
        return self._located(part("", *children, kind=kind, title=" ".join(title.split("\n"))))

    def _located(self, node: nodes.Element) -> nodes.Element:
        node.source, node.line = self.state_machine.get_source_and_line(self.lineno)
        node["last"] = (node.line or 0) + self.block_text.count("\n")
        return node

    def _parsed(self, content: StringList | None = None) -> Sequence[nodes.Node]:
        content = self.content if content is None else content
        holder = nodes.Element()
        self.state.nested_parse(content, self.content_offset, holder, match_titles=True)
        return holder.children

    def _glossary(self) -> Sequence[nodes.Node]:
        """Read Sphinx's glossary: lines that begin at the left are terms of the definition below them."""
        listing, terms, begin = nodes.definition_list(), list[str](), 0
        rows = list(self.content)
        while begin < len(rows):
            if rows[begin].strip() and not rows[begin][0].isspace():
                terms += [rows[begin].strip()] if not rows[begin].startswith("..") else []
                begin += 1
                continue
            end = next((n for n in range(begin, len(rows)) if rows[n].strip() and not rows[n][0].isspace()), len(rows))
            block = self.content[begin:end]
            block.trim_left(min((len(row) - len(row.lstrip()) for row in block if row.strip()), default=0))
            children = [] if not terms else [nodes.term("", ", ".join(terms)), nodes.definition("", *self._parsed(block))]
            if children:
                listing += self._located(nodes.definition_list_item("", *children))
                terms = []
            begin = end
        return [listing]


_OBJECTS = frozenset("function method class attribute data exception option envvar program confval setting autoclass autofunction".split())
_WITHOUT_TEXT = frozenset("only ifconfig container rst-class class cssclass tab-set tabs grid grid-item compound highlights epigraph pull-quote".split())


def _find_directive(name: str, _language: object, _document: object) -> tuple[Any, list[Any]]:
    lowered = name.lower()
    if lowered in _SUBSTITUTIONS:
        return directives._directives.get(lowered) or _docutils_directive(lowered), []
    return _READ_BY_DOCUTILS.get(lowered, _AnyDirective), []


def _any_role(
    name: str, rawtext: str, text: str, _lineno: int, _inliner: object, _options: object = None, _content: object = None
) -> tuple[list[nodes.Node], list[nodes.Node]]:
    return [nodes.inline(rawtext, role_text(name, nodes.unescape(text)))], []


def _find_role(_name: str, *_: object) -> tuple[Any, list[Any]]:
    return _any_role, []


_docutils_directive_lookup = directives.directive


def _docutils_directive(name: str) -> Any:
    from docutils.parsers.rst.languages import en

    class _Document:
        class settings:
            pass

    return _docutils_directive_lookup(name, en, _Document())[0]  # type: ignore[arg-type]


def _know_directives() -> None:
    """Let docutils find ours; as Sphinx does it, in the one place that there is."""
    directives.directive = _find_directive  # type: ignore[assignment]
    roles.role = _find_role  # type: ignore[assignment]


_TAGS: dict[type[nodes.Node], str] = {
    nodes.paragraph: "p",
    nodes.bullet_list: "ul",
    nodes.enumerated_list: "ol",
    nodes.list_item: "li",
    nodes.definition_list: "dl",
    nodes.term: "dt",
    nodes.definition: "dd",
    nodes.field_list: "dl",
    nodes.field_name: "dt",
    nodes.field_body: "dd",
    nodes.option_list: "dl",
    nodes.option_group: "dt",
    nodes.description: "dd",
    nodes.block_quote: "blockquote",
    nodes.table: "table",
    nodes.thead: "thead",
    nodes.tbody: "tbody",
    nodes.row: "tr",
    nodes.entry: "td",
    nodes.caption: "caption",
    nodes.strong: "strong",
    nodes.emphasis: "em",
    nodes.literal: "code",
}
_LEFT_OUT_NODES: tuple[type[nodes.Node], ...] = (
    nodes.comment, nodes.substitution_definition, nodes.target, nodes.pending, nodes.raw, nodes.image, nodes.label,
    nodes.colspec, nodes.footnote_reference, nodes.citation_reference, nodes.meta,
)


class _Walker:
    def __init__(self, writer: DocumentWriter) -> None:
        self._writer = writer
        self._elements = Elements(writer)
        self._level = 0

    def walk(self, node: nodes.Node) -> None:
        self._walk(node)
        self._elements.close()

    def _walk(self, node: nodes.Node) -> None:
        elements = self._elements
        lines = _lines_of(node) or elements.lines
        if isinstance(node, nodes.Text):
            elements.text(node.astext().replace("\n", " "))
        elif isinstance(node, part):
            self._part(node, lines)
        elif isinstance(node, nodes.section):
            self._level += 1
            self._children(node)
            self._level -= 1
        elif isinstance(node, nodes.title):
            self._title(node, lines)
        elif isinstance(node, nodes.literal_block | nodes.doctest_block):
            elements.code(node.astext(), node.get("language", ""), lines, title=node.get("title", ""))
        elif isinstance(node, nodes.line):
            self._children(node)
            elements.start("br")
        elif isinstance(node, nodes.system_message):
            self._message(node, lines)
        elif isinstance(node, nodes.problematic):
            elements.text(node.astext())
        elif isinstance(node, nodes.reference):
            uri = node.get("refuri", "")
            elements.start("a", {"href": uri}, lines, is_fixed=True)
            self._children(node)
            elements.end("a", is_fixed=True)
        elif isinstance(node, _LEFT_OUT_NODES):
            if isinstance(node, nodes.image) and node.get("alt"):
                elements.text(str(node["alt"]))
            self._writer.leave_out(node.astext() or node.rawsource if isinstance(node, nodes.Element) else "", "a comment")
        elif tag := _TAGS.get(type(node)):
            attrs = {"start": str(node.get("start", 1))} if tag == "ol" else {}
            elements.start(tag, attrs, lines, is_fixed=True)
            self._children(node)
            elements.end(tag, is_fixed=True)
        else:
            block = isinstance(node, nodes.General | nodes.Body | nodes.Structural) and not isinstance(node, nodes.Inline)
            if block:
                elements.flush()
            self._children(node)
            if block:
                elements.flush()

    def _children(self, node: nodes.Node) -> None:
        for child in node.children:
            self._walk(child)

    def _title(self, node: nodes.title, lines: Lines) -> None:
        parent = node.parent
        if isinstance(parent, nodes.table):
            self._elements.start("caption", {}, lines, is_fixed=True)
            self._children(node)
            self._elements.end("caption", is_fixed=True)
            return
        ids = parent.get("ids", [""]) if isinstance(parent, nodes.section) else [""]
        tag = f"h{min(max(self._level, 1), 6)}"
        self._elements.start(tag, {"id": ids[0]} if ids and ids[0] else {}, lines, is_fixed=True)
        self._children(node)
        self._elements.end(tag, is_fixed=True)

    def _part(self, node: part, lines: Lines) -> None:
        kind, title, elements = str(node["kind"]), str(node["title"]), self._elements
        if kind == "left_out":
            self._writer.leave_out(title, "a directive's argument")
            return
        if kind == "tab":
            elements.start("tab", {"label": title}, lines, is_fixed=True)
            self._children(node)
            elements.end("tab", is_fixed=True)
            return
        if kind == "object":
            elements.start("dl", {}, lines, is_fixed=True)
            elements.start("dt", {}, lines, is_fixed=True)
            elements.text(title, lines)
            elements.end("dt", is_fixed=True)
            elements.start("dd", {}, lines, is_fixed=True)
            self._children(node)
            elements.end("dd", is_fixed=True)
            elements.end("dl", is_fixed=True)
            return
        if kind == "details" or kind == "titled":
            elements.start("details", {}, lines, is_fixed=True)
            if title:
                elements.start("summary", {}, lines, is_fixed=True)
                elements.text(title, lines)
                elements.end("summary", is_fixed=True)
            self._children(node)
            elements.end("details", is_fixed=True)
            return
        if kind in REMARKS:
            version = kind.startswith(("version", "deprecated"))
            named = remark_title(kind)
            elements.start("div", {}, lines, is_fixed=True, kind="admonition", term=named if version else named)
            if title:
                elements.text(title, lines)
                elements.flush()
            self._children(node)
            elements.end("div", is_fixed=True)
            return
        elements.start("div", {}, lines, is_fixed=True)
        if title:
            elements.text(title, lines)
            elements.flush()
        self._children(node)
        elements.end("div", is_fixed=True)

    def _message(self, node: nodes.system_message, lines: Lines) -> None:
        """Write what docutils could not read as it stands."""
        for child in node.children:
            if isinstance(child, nodes.literal_block):
                for row in child.astext().split("\n\n"):
                    self._elements.flush()
                    self._elements.text(row, lines)
        self._elements.flush()


def _lines_of(node: nodes.Node) -> Lines | None:
    if not isinstance(node, nodes.Element) or not node.line:
        return None
    return int(node.line), int(node.get("last", 0)) or int(node.line) + str(node.rawsource).count("\n")
