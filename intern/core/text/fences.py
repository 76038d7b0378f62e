"""Fences around untrusted text: markers that the text cannot contain."""

from __future__ import annotations

import re

_NOT_IN_A_LABEL = re.compile(r"[^\w.:/-]+")
_LONGEST_LABEL = 80  # characters; a marker is no place for a second text
# The signs of markers, and signs that look the same.
_EQUALS = "=\u02ed\u2261\u2263\u2550\u2a75\u2a76\u2e40\u3013\u30a0\ua78a\ufe66\uff1d"
_NO_EQUALS = dict.fromkeys(map(ord, _EQUALS))
# A line within such signs; one that begins with three or more, but for bullets, numbers and marks of code, and has
# three again; one that ends with a marker; two before the words of a closing marker, unless these are quoted. No piece
# of a text is read twice.
_MARK = rf"(?![\n\"'{_EQUALS}])[\W_]"
_MARKER = re.compile(
    rf"\A[{_EQUALS}][{_EQUALS} \t]*+[^{_EQUALS}].*[{_EQUALS}]\Z"
    rf"|\A(?:{_MARK}|\d{{1,3}}[.)])*+[{_EQUALS}]{{3}}[{_EQUALS} \t]*+\w.*[{_EQUALS}]{{3}}"
    rf"|(?<![{_EQUALS}])[{_EQUALS}]{{3,}}+[ \t]*+\w[^{_EQUALS}]*+[{_EQUALS}]{{3}}[{_EQUALS}]*+[^\w{_EQUALS}]*\Z"
    rf"|(?i:(?<!{_MARK})(?<![{_EQUALS}])(?:(?:{_MARK})*+[{_EQUALS}]){{2}}(?:{_MARK}|[{_EQUALS}])*+end\W{{1,9}}of\b)",
    re.DOTALL,
)
# The marks that begin a turn in a model's own format: servers obey them even in a member's text.
_TURN = re.compile(r"<(?=[|\uff5c]|/?s>|<?/?SYS>|(?:start|end)_of_turn>)|\[(?=/?INST\])")
_INVISIBLE = re.compile(
    "[\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0d\ufeff\ufff9-\ufffb\U000e0000-\U000e01ef]+"
)


def remove_invisible(text: str) -> str:
    """Remove characters that a model sees and readers do not: of no width, tags, and changes of direction."""
    return text if text.isascii() else _INVISIBLE.sub("", text)


def fence_text(text: str, label: str) -> str:
    """Put a text between two marker lines that name `label`.

    Nothing in the text looks like a marker or a model's own mark of a turn, nor is it invisible. The markers are always
    the same, so a prompt's prefix stays the same from call to call.
    """
    name = _NOT_IN_A_LABEL.sub(" ", label)[:_LONGEST_LABEL].strip() or "text"
    lines = _TURN.sub(r"\g<0> ", remove_invisible(text)).splitlines(keepends=True)
    return f"=== {name} ===\n{''.join(map(_strip_marks, lines))}\n=== end of {name} ==="


def _strip_marks(line: str) -> str:
    """Remove all equals signs of a line that looks like a marker, be it with text before or behind."""
    bare, unsigned = line.strip(), line.translate(_NO_EQUALS).strip()
    is_marker = unsigned != bare and (_MARKER.search(bare) or _MARKER.search(bare[::-1]))
    return line.replace(bare, unsigned) if is_marker else line
