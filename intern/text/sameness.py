"""Whether two texts read the same, whatever their white space, typography and markup. Pure."""

from __future__ import annotations

import re
import unicodedata
from hashlib import blake2b

# Bullets, numbers and quote marks at the beginning of a line.
_LINE_START = re.compile(r"^[ \t]*(?:(?:[-+*]|\d{1,3}[.)])[ \t]+|>[ \t]?)+", re.MULTILINE)
_MARKUP = {ord(each): None for each in "*_`~#|>[]\\\"'“”„‘’‚«»"} | dict.fromkeys(map(ord, "‐‑‒–—−"), "-")
_SPACE = re.compile(r"[\s\u200b-\u200d\u2060\ufeff]+")


def reading(text: str) -> str:
    """The signs that make up how a text reads: equal for texts that differ in nothing else.

    A part of a text, cut anywhere between words, reads as a part of the whole, and so does a wrapped paragraph on one
    line.
    """
    plain = unicodedata.normalize("NFKC", _LINE_START.sub("", text))
    return _SPACE.sub("", plain.translate(_MARKUP)).casefold()


def digest(read_as: str) -> str:
    """A short digest of what `reading` gave."""
    return blake2b(read_as.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
