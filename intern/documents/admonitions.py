"""Admonitions, with the names and classes that all builders give them."""

from __future__ import annotations

import re
from collections.abc import Mapping

REMARKS = frozenset(
    "note tip hint warning important caution danger attention error info success question failure bug example quote"
    " abstract summary seealso todo admonition callout alert aside versionadded versionchanged deprecated".split()
)
"""Names of admonitions, with all builders."""
_GENERAL = frozenset({"admonition", "callout", "alert", "aside"})
_TITLES = {
    "seealso": "See also",
    "versionadded": "Added in version",
    "versionchanged": "Changed in version",
    "deprecated": "Deprecated since version",
    **dict.fromkeys(_GENERAL, "Note"),
}
# Classes of elements that are admonitions, and names of components that are none.
_REMARK_CLASSES = frozenset({*_GENERAL, "admonitionblock", "theme-admonition"}) - {"aside"}
REMARK_TAGS = REMARKS - {"aside", "quote", "summary"}
REMARK_TITLE = re.compile(r"(?i)(?:admonition|alert|callout|custom-block)[\w-]*(?:title|heading)")
"""Classes of the title of an admonition."""


def default_admonition_title(name: str) -> str:
    """Return the heading of an admonition that has no title of its own."""
    return _TITLES.get(name.lower(), name.capitalize())


def find_admonition_title(tag: str, classes: str, attrs: Mapping[str, str]) -> str:
    """Return the title of an element that is an admonition by its name or its classes; empty if it is none."""
    if tag in REMARK_TAGS:
        return attrs.get("title") or default_admonition_title(attrs.get("type") or tag)
    if not classes or tag == "details":
        return ""
    names = [part for each in classes.lower().split() for part in (each, each.rpartition("-")[2])]
    if _REMARK_CLASSES.isdisjoint(names):
        return ""
    found = next((default_admonition_title(each) for each in names if each in REMARKS - _GENERAL), "Note")
    return attrs.get("title") or found
