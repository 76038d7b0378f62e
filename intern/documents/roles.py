"""Roles of reStructuredText and MyST: what `:ref:` and its kin show."""

from __future__ import annotations

from intern.core.text.patterns import regex
from intern.documents.writer import code_span

_TARGET = regex(r"(?s)\A(.*\S)\s*<[^<>]*>\Z")
# What they hold is prose; all other roles name something of a program.
_PROSE = frozenset(
    "ref doc term numref any abbr abbreviation title title-reference t emphasis strong sub sup subscript superscript"
    " dfn index menuselection guilabel download eq math".split()
)


def role_text(name: str, content: str) -> str:
    """Return what a role shows: its text without its target, as code where it names something of a program."""
    found = _TARGET.match(content)
    text = found[1] if found else content.lstrip("!")
    if not found and text.startswith("~"):
        text = text[1:].rpartition(".")[2]
    name = name.rpartition(":")[2].lower()
    if name == "menuselection":
        text = text.replace("-->", "›")
    if name in {"abbr", "abbreviation"}:
        text = text.replace("  ", " ")
    return text.replace("&", "") if name == "guilabel" else text if name in _PROSE else code_span(text)
