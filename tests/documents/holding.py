"""The places of a document's words."""

from __future__ import annotations

import re
from collections import defaultdict

from intern.documents.blocks import Block, Document

_WORD = re.compile(r"word\d+x")


def held_words(document: Document) -> dict[str, list[Block]]:
    """Return the blocks that contain each word `word7x`, one entry for each time."""
    held: defaultdict[str, list[Block]] = defaultdict(list)
    for block in document.blocks:
        for word in _WORD.findall(f"{block.text}\n{block.term}"):
            held[word].append(block)
    return held
