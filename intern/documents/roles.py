"""Roles of reStructuredText and MyST: the text that `:ref:` and its kin show."""

from __future__ import annotations

import re

from intern.documents.writer import code_span

_TARGET = re.compile(r"(?s)\A(.*\S)\s*<[^<>]*>\Z")
# Their content is prose; all other roles name a part of a program.
_PROSE = frozenset(
    "ref doc term numref any abbr abbreviation title title-reference t emphasis strong sub sup subscript superscript"
    " dfn index menuselection guilabel download eq math".split()
)


def role_text(name: str, content: str) -> str:
    """Return the text that a role shows: without its target, and as code if it names a part of a program."""
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
