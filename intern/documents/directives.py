"""Directives of Sphinx and MyST, and the parts that other builders mark: the kind of content of each."""

from __future__ import annotations

from typing import Literal

from intern.documents.admonitions import REMARKS

DirectiveKind = Literal["aside", "code", "details", "figure", "left_out", "object", "section", "tab"]

_NAMES: dict[DirectiveKind, str] = {
    "code": "code code-block sourcecode code-cell parsed-literal prompt testcode testoutput doctest ipython console"
    " jinja productionlist math literal graphviz digraph mermaid uml plot highlight",
    "details": "details dropdown expand expandable spoiler collapse accordion toggle faq help",
    "figure": "figure image",
    # Their content is shown elsewhere, or not at all.
    "left_out": "toctree contents index raw include literalinclude highlightlang default-role role meta module"
    " currentmodule py:module py:currentmodule sectionauthor moduleauthor codeauthor testsetup testcleanup"
    " tabularcolumns"
    " bibliography automodule autosummary sectnum header footer title eval-rst program comment",
    "object": "function method class attribute data exception option envvar confval setting autoclass autofunction"
    " describe object",
    "tab": "tab tab-item tabitem group-tab tabpane",
}
_KINDS: dict[str, DirectiveKind] = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_WITHOUT_TEXT = frozenset(
    "only ifconfig container rst-class cssclass tab-set tabs grid compound highlights epigraph pull-quote code-group"
    " div line-block hlist code-tab list-table".split()
)
_BRINGS_TEXT = frozenset(
    "topic sidebar margin card grid-item-card grid-item rubric centered step steps stepper column table csv-table"
    " glossary seealso aside".split()
)


def is_part(name: str) -> bool:
    """Return whether it is known that a directive holds text; other names in braces are languages of code."""
    name = name.lower()
    return ":" in name or name in REMARKS or name in _WITHOUT_TEXT or name in _BRINGS_TEXT or name in _KINDS


def directive_kind(name: str) -> DirectiveKind:
    """Return the kind of element that a directive becomes."""
    name = name.lower()
    if name in REMARKS:
        return "aside"
    found = _KINDS.get(name) or _KINDS.get(name.rpartition(":")[2])
    return found if found is not None else "object" if ":" in name else "section"


def has_title(name: str) -> bool:
    """Return whether readers see the argument of a directive."""
    return name.lower().rpartition(":")[2] not in _WITHOUT_TEXT
