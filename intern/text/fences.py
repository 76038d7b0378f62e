"""Fences around untrusted text: markers that the text cannot contain, so a prompt can say what is material."""

from __future__ import annotations

import re

_NOT_IN_A_LABEL = re.compile(r"[^\w.:/-]+")
_LONGEST_LABEL = 80  # characters; a marker is no place for a second text


def fenced(text: str, label: str) -> str:
    """`text`, untouched, between two marker lines that name `label`.

    The markers are the plain ones wherever the text allows it, so a prompt's prefix stays the same from call to call;
    a text that holds them, in whatever case, gets numbered ones that it does not hold.
    """
    name = _NOT_IN_A_LABEL.sub(" ", label)[:_LONGEST_LABEL].strip() or "text"
    number = _first_free_number(text, name)
    suffix = f" #{number}" if number > 1 else ""
    return f"=== {name}{suffix} ===\n{text}\n=== end of {name}{suffix} ==="


def _first_free_number(text: str, name: str) -> int:
    if "==" not in text:  # as in almost all
        return 1
    # Wider than the markers themselves: "==End of x==" would fool a reader as well.
    words = rf"(?:end of\s{{1,3}})?{re.escape(name.casefold())}"
    lookalike = rf"==\s{{0,3}}{words}\s{{0,3}}(?:#\s{{0,3}}([0-9]{{1,9}})\s{{0,3}})?=="
    taken = {int(number or 1) for number in re.findall(lookalike, text.casefold())}
    number = 1
    while number in taken:
        number += 1
    return number
