"""Names of topics."""

from __future__ import annotations

import re
import unicodedata

from intern.core.ids import TopicName

MAX_LENGTH = 64
"""Characters of a topic name."""

_PREFIX = "team:"
_SUFFIX = ".txt"

# Windows opens a device for these, with any extension.
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}


def make_topic_name(label: str) -> TopicName:
    """Return the slug (`[a-z0-9-]`, 1 to 64 characters) of a label; a slug is its own slug.

    `team:Node_Startup.txt` and `node startup` are one topic. Raises ValueError where nothing is left of the label.
    """
    text = unicodedata.normalize("NFKD", label).encode("ascii", "ignore").decode("ascii").lower().strip()
    text = text.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    slug = re.sub(r"[^a-z0-9]+", "-", text).strip("-")[:MAX_LENGTH].strip("-")
    if not slug:
        raise ValueError(f"no topic name can be made of {label[:80]!r}: it holds no Latin letter or digit")
    return TopicName(f"{slug}-topic" if slug in _DEVICES else slug)
