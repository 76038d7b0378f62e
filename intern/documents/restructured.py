"""reStructuredText by docutils, with Sphinx's directives and roles known by the kind of their content.

Docutils drops a directive that it does not know, with all its content. So one directive of our own, which takes any
argument and any option, replaces all but the few that docutils reads better; likewise one role. No file or address
that a document names is read, and none of its HTML is kept.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from docutils import nodes
from docutils.core import publish_doctree
from docutils.parsers.rst import Directive, Parser, directives, roles
from docutils.parsers.rst.directives.misc import Replace, Unicode
from docutils.parsers.rst.directives.tables import CSVTable, ListTable, RSTTable
from docutils.parsers.rst.states import Inliner
from docutils.readers.standalone import Reader
from docutils.transforms import Transform
from docutils.transforms.references import AnonymousHyperlinks, ExternalTargets, IndirectHyperlinks, Substitutions

from intern.documents.admonitions import default_admonition_title
from intern.documents.block_builder import BlockBuilder
from intern.documents.blocks import Document
from intern.documents.directives import DirectiveKind, directive_kind, has_title
from intern.documents.roles import role_text
from intern.documents.writer import DocumentWriter, Lines, code_span

_SETTINGS = {
    "_disable_config": True,
    "docinfo_xform": False,
    "doctitle_xform": False,
    "file_insertion_enabled": False,
    "halt_level": 5,
    "line_length_limit": 1_000_000,
    "raw_enabled": False,
    "report_level": 5,
    "syntax_highlight": "none",
    "tab_width": 8,
}
_NONE: Mapping[str, str] = {}
# Their argument is the language; of all others it is code, too.
_WITH_LANGUAGE = frozenset({"code", "code-block", "sourcecode", "prompt", "highlight"})
_MOST_SIGNS = 1000
_TERM = re.compile(r"(?!\.\. )\S")
_REFERENCE = re.compile(r"`([^`<]+?)\s*(?:<[^`<>]*>)?`__?|([^`\s]+?)__?")
# Names of fields at the top that are options for Sphinx.
_FOR_SPHINX = frozenset({"orphan", "tocdepth", "nocomments", "no-search", "nosearch"})


def parse_restructured(text: str) -> Document:
    """Return a text as blocks. Raises ValueError if it is nested too deeply to be read."""
    # Docutils has one place to look directives and roles up in, which Sphinx changes likewise.
    directives.directive = _find_directive  # type: ignore[assignment]
    roles.role = lambda *_: (_resolve_role, [])  # type: ignore[assignment]
    writer = DocumentWriter()
    try:
        parser = Parser(inliner=_make_bounded_inliner())
        doctree = publish_doctree(text, reader=_RestructuredReader(), parser=parser, settings_overrides=_SETTINGS)
        elements = BlockBuilder(writer)
        _DoctreeWalker(elements).walk(doctree)
        elements.close()
    except RecursionError:
        raise ValueError("it is nested too deeply to be read") from None
    return writer.build_document()


class _RestructuredReader(Reader):  # type: ignore[type-arg]
    """Resolves links and substitutions, and nothing else: chains of targets cost the square of their length."""

    def get_transforms(self) -> list[type[Transform]]:
        return [Substitutions, AnonymousHyperlinks, IndirectHyperlinks, ExternalTargets]


def _make_bounded_inliner() -> Inliner:
    """Return the parser of markup in lines; a text with more signs than a paragraph has stays as it is.

    The time grows with their square. A subclass would lack patterns, which docutils looks up in the class alone.
    """
    inliner = Inliner()
    parse = inliner.parse

    def parse_bounded(
        text: str, lineno: int, memo: SimpleNamespace, parent: nodes.Element
    ) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        is_tangled = sum(map(text.count, "*`|_[:")) > _MOST_SIGNS
        return ([nodes.Text(text)], []) if is_tangled else parse(text, lineno, memo, parent)

    inliner.parse = parse_bounded  # type: ignore[method-assign]
    return inliner


class _DirectivePart(nodes.General, nodes.Element):
    """The content or the title of a directive; `element` and `attrs` are those of `BlockBuilder.start`."""


class _OmittedDirective(nodes.Element):
    """A directive that readers do not see; its source is its text."""


def _any_option_spec(known: Mapping[str, Any]) -> Any:
    """Return a specification that takes any option as it is, but for the known ones; docutils asks for one at least."""
    return defaultdict(lambda: directives.unchanged, {"class": directives.unchanged, **known})


class _AnyDirective(Directive):
    """The one directive that replaces all others; the kind of each decides how its content is written."""

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[Any] = _any_option_spec({})

    def run(self) -> list[nodes.Node]:
        name = self.name.lower()
        argument = self.arguments[0] if self.arguments else ""
        kind = directive_kind(name)
        name = name.rpartition(":")[2]
        if kind == "left_out":
            return [
                self._set_location(
                    _OmittedDirective(f"{argument}\n" + "\n".join(self.content), reason=f"the directive {name}")
                )
            ]
        if kind == "code":
            return self._build_code(name, argument)
        if name == "image":
            return [self._set_location(nodes.image(alt=self.options.get("alt", "")))]
        if name == "code-tab":
            language, _, label = argument.partition(" ")
            code = self._set_location(nodes.literal_block("", "\n".join(self.content), language=language))
            return [self._build_part("tab", [code], label=label or language)]
        if name == "glossary":
            return self._read_glossary()
        return [self._build_holder(kind, name, argument)]

    def _build_holder(self, kind: DirectiveKind, name: str, argument: str) -> nodes.Node:
        children = self._parse_content()
        if kind == "tab":
            return self._build_part("tab", children, label=self._strip_markup(argument))
        if kind == "aside":
            title = self._strip_markup(argument) if name == "admonition" else default_admonition_title(name)
            # Else it says the version, and what changed in it.
            told = self._build_title("p", "" if name == "admonition" else argument)
            return self._build_part("aside", [*told, *children], **{"class": "admonition"}, title=title)
        title = self.options.get("alt", "") if kind == "figure" else argument if has_title(name) else ""
        if kind == "object" and title:
            return self._build_part("dl", [*self._build_title("dt", title), self._build_part("dd", children)])
        if kind == "details" and title:
            return self._build_part("details", [*self._build_title("summary", title), *children])
        return self._build_part("section", [*self._build_title("p", title), *children])

    def _build_code(self, name: str, argument: str) -> list[nodes.Node]:
        body = "\n".join(self.content)
        has_language = name in _WITH_LANGUAGE
        text = body if has_language or not argument else f"{argument}\n{body}".strip()
        code = nodes.literal_block(
            "", text, language=argument.split(maxsplit=1)[0] if has_language and argument else ""
        )
        code["title"] = self.options.get("caption", "")
        return [self._set_location(code)] if text.strip() else []

    def _build_part(self, tag: str, children: Sequence[nodes.Node], **attrs: str) -> nodes.Element:
        part = self._set_location(_DirectivePart("", *children, element=tag, attrs=attrs))
        part["last"] = part.line
        return part

    def _build_title(self, tag: str, title: str) -> list[nodes.Node]:
        if not title:
            return []
        inline, messages = self.state.inline_text(title, self.lineno)
        part = self._set_location(_DirectivePart("", *inline, element=tag, attrs={}))
        if self.content:
            part["last"] = max(part.line or 0, self.content_offset)
        return [part, *messages]

    def _set_location(self, node: nodes.Element) -> nodes.Element:
        node.source, node.line = self.state_machine.get_source_and_line(self.lineno)
        node["last"] = (node.line or 0) + self.block_text.rstrip().count("\n")
        return node

    def _strip_markup(self, title: str) -> str:
        """Return a title without its markup."""
        inline, _ = self.state.inline_text(title, self.lineno)
        return "".join(
            code_span(node.astext()) if isinstance(node, nodes.literal) else node.astext() for node in inline
        )

    def _parse_content(self) -> list[nodes.Node]:
        holder = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, holder, match_titles=True)
        return list(holder.children)

    def _read_glossary(self) -> list[nodes.Node]:
        """Read Sphinx's glossary: a list of definitions that may have several terms, each with a key behind it."""
        rows = self.content
        rows.disconnect()  # from the lines of the text, which stay as they are
        for n in reversed(range(len(rows))):
            if not _TERM.match(rows[n]):
                continue
            rows[n] = rows[n].partition(" : ")[0]
            if n + 1 < len(rows) and _TERM.match(rows[n + 1]):
                rows[n] += f", {rows[n + 1]}"
                del rows[n + 1]
        return self._parse_content()


class _AdmonitionDirective(_AnyDirective):
    """An admonition without a title of its own: its content may begin in its first line."""

    optional_arguments = 0


def _make_table_directive(directive: Any) -> Any:
    """Return a directive of docutils for tables that takes any option."""

    def run(self: Any) -> list[nodes.Node]:
        found: list[nodes.Node] = directive.run(self)
        if directive is CSVTable:  # its cells do not know their lines
            for inner in (inner for node in found for inner in node.findall(nodes.Element)):
                inner.line, inner["last"] = self.lineno, self.lineno + self.block_text.rstrip().count("\n")
        return found

    return type(directive.__name__, (directive,), {"option_spec": _any_option_spec(directive.option_spec), "run": run})


_READ_BY_DOCUTILS: dict[str, Any] = {
    "replace": Replace,
    "unicode": Unicode,
    "list-table": _make_table_directive(ListTable),
    "csv-table": _make_table_directive(CSVTable),
    "table": _make_table_directive(RSTTable),
}
_WITH_ARGUMENT = frozenset({"admonition", "versionadded", "versionchanged", "deprecated", "callout"})


def _find_directive(name: str, *_: object) -> tuple[Any, list[Any]]:
    name = name.lower()
    is_remark = directive_kind(name) == "aside" and name not in _WITH_ARGUMENT
    return _READ_BY_DOCUTILS.get(name, _AdmonitionDirective if is_remark else _AnyDirective), []


def _resolve_role(
    name: str, rawtext: str, text: str, *_: object, **__: object
) -> tuple[list[nodes.Node], list[nodes.Node]]:
    return [nodes.inline(rawtext, role_text(name, nodes.unescape(text)))], []


_NAMES = """
paragraph=p bullet_list=ul enumerated_list=ol list_item=li reference=a definition_list=dl term=dt definition=dd
field_list=dl field_name=dt field_body=dd option_list=dl option_group=dt description=dd block_quote=blockquote
table=table thead=thead tbody=tbody row=tr entry=td caption=caption strong=strong emphasis=em literal=code
"""
_TAGS = {name: tag for each in _NAMES.split() for name, _, tag in [each.partition("=")]}
_ATTRS = {"start": "start", "refuri": "href"}
_LEFT_OUT = frozenset(
    "comment substitution_definition target pending raw label colspec footnote_reference citation_reference"
    " meta".split()
)


class _DoctreeWalker:
    def __init__(self, elements: BlockBuilder) -> None:
        self._elements = elements
        self._level = 0

    def walk(self, node: nodes.Node) -> None:
        if isinstance(node, nodes.Text):
            self._elements.add_text(str(node).replace("\n", " "))
        elif isinstance(node, nodes.Element):
            lines = _find_lines(node) or self._elements.lines
            if (tag := _TAGS.get(node.tagname)) is not None:
                attrs = {to: str(node[name]) for name, to in _ATTRS.items() if name in node}
                self._write_element(tag, node, lines, attrs)
            elif node.tagname in _LEFT_OUT:
                self._elements.writer.leave_out(node.rawsource or node.astext(), f"a {node.tagname}".replace("_", " "))
            elif (take := getattr(self, f"_take_{node.tagname.lower().lstrip('_')}", None)) is not None:
                take(node, lines)
            elif isinstance(node, nodes.Inline):
                self._walk_children(node)
            else:
                self._elements.flush()
                self._walk_children(node)
                self._elements.flush()

    def _take_section(self, node: nodes.section, _lines: Lines) -> None:
        self._level += 1
        self._walk_children(node)
        self._level -= 1

    def _take_title(self, node: nodes.title, lines: Lines) -> None:
        if isinstance(node.parent, nodes.table):
            self._write_element("caption", node, lines)
            return
        ids = node.parent.get("ids")  # its line is that of the signs below it
        tag = f"h{min(max(self._level, 1), 6)}"
        self._write_element(tag, node, (max(lines[0] - 1, 1), lines[0]), {"id": ids[0]} if ids else {})

    def _take_literal_block(self, node: nodes.Element, lines: Lines) -> None:
        self._elements.add_code(node.astext(), node.get("language", ""), lines, title=node.get("title", ""))

    _take_doctest_block = _take_literal_block

    def _take_line(self, node: nodes.line, lines: Lines) -> None:
        self._elements.lines = lines
        self._walk_children(node)
        self._elements.start("br")

    def _take_option(self, node: nodes.option, _lines: Lines) -> None:
        self._elements.add_text(f"{', ' if node.parent.index(node) else ''}{node.astext()}")

    def _take_definition_list_item(self, node: nodes.definition_list_item, _lines: Lines) -> None:
        term: Any = node[0]
        for each in [child for child in node.children if isinstance(child, nodes.classifier)]:
            node.remove(each)
            term.append(nodes.Text(f" : {each.astext()}"))
        self._walk_children(node)

    def _take_field(self, node: nodes.field, _lines: Lines) -> None:
        if node[0].astext() in _FOR_SPHINX and not node[1].children:
            self._elements.writer.leave_out(node[0].astext(), "a field for Sphinx")
        else:
            self._walk_children(node)

    def _take_image(self, node: nodes.image, lines: Lines) -> None:
        self._elements.add_text(str(node.get("alt", "")), lines)
        if not isinstance(node.parent, nodes.TextElement):
            self._elements.flush()

    def _take_problematic(self, node: nodes.problematic, _lines: Lines) -> None:
        """Write a broken reference as readers see it: without its signs."""
        found = _REFERENCE.fullmatch(node.astext())
        self._elements.add_text(found[1] or found[2] if found else node.astext())

    def _take_omitteddirective(self, node: _OmittedDirective, _lines: Lines) -> None:
        self._elements.writer.leave_out(node.rawsource, node["reason"])

    def _take_directivepart(self, node: _DirectivePart, lines: Lines) -> None:
        self._write_element(node["element"], node, lines, node["attrs"])

    def _take_system_message(self, node: nodes.system_message, lines: Lines) -> None:
        """Write text that docutils could not read as it is in the source."""
        for block in node.findall(nodes.literal_block):
            for row in block.astext().split("\n\n"):
                self._elements.flush()
                self._elements.add_text(row, lines)
        self._elements.flush()

    def _walk_children(self, node: nodes.Element) -> None:
        for child in node.children:
            self.walk(child)

    def _write_element(self, tag: str, node: nodes.Element, lines: Lines, attrs: Mapping[str, str] = _NONE) -> None:
        self._elements.start(tag, attrs, lines, is_fixed=True)
        self._walk_children(node)
        self._elements.end(tag, is_fixed=True)


def _find_lines(node: nodes.Element) -> Lines | None:
    line = node.line
    if not line and isinstance(node, nodes.field_name | nodes.option_group):
        line = next((inner.line for inner in node.parent.findall(nodes.Element) if inner.line), None)
    if not line:
        return None
    return int(line), int(node.get("last", 0)) or int(line) + str(node.rawsource).count("\n")
