"""Elements of HTML that stay hidden from readers: by an attribute, or by a style of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping

# In CSS, letters may be written as numbers.
_ESCAPE = re.compile(r"\\([0-9a-fA-F]{1,6})\s?")
_UNSEEN = re.compile(
    r"""(?ix)(?<![\w-])(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|color\s*:\s*transparent
    |(?:opacity|font-size)\s*:\s*0(?:\.0*)?(?![.\d])|clip\s*:\s*rect|(?:text-indent|left|right|top)\s*:\s*-\d{3,}
    |transform\s*:\s*scale\w?\(\s*0\s*[,)])"""
)


def is_unseen(tag: str, attrs: Mapping[str, str]) -> bool:
    """Return whether the element stays hidden from readers; tabs are shown one by one."""
    if attrs.get("role", "").strip().lower() == "tabpanel":
        return False
    if attrs.get("hidden", "until-found") != "until-found" or attrs.get("aria-hidden", "").strip().lower() == "true":
        return True
    return bool("style" in attrs and _UNSEEN.search(_ESCAPE.sub(_decode_escape, attrs["style"]))) or (
        tag == "dialog" and "open" not in attrs
    )


def _decode_escape(escape: re.Match[str]) -> str:
    code = int(escape[1], 16)
    return chr(code) if 0 < code < 0x110000 else ""
