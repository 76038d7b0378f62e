"""Which entries of the index a model sees, and which of the ids that it returns count. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from msgspec import Struct

from intern.domain import IndexEntry, SourceId
from intern.text.words import Rarity, words


class Chosen(Struct, frozen=True, kw_only=True):
    """The sources to load, and how many ids were dropped on the way."""

    source_ids: tuple[SourceId, ...]
    shown: int
    """Entries that the model could choose from."""
    unknown: int
    """Ids that were not in what was shown: invented, or pointing elsewhere. Never opened, never fetched."""


def shown_entries(entries: Iterable[IndexEntry], query: str, max_chars: int) -> tuple[IndexEntry, ...]:
    """The index whole while it fits `max_chars`, else the entries that fit the query best; always in its own order.

    An id that would break a line is left out, and a description is made one line: none can forge an entry.
    """
    listed = [
        IndexEntry(entry.source_id, " ".join(entry.description.split()))
        for entry in entries
        if str(entry.source_id).isprintable()
    ]
    sizes = [_size(entry) for entry in listed]
    if sum(sizes) <= max_chars:
        return tuple(listed)
    kept: list[int] = []
    room = max_chars
    for n in _ranked(listed, query):
        if sizes[n] <= room:
            kept.append(n)
            room -= sizes[n]
    return tuple(listed[n] for n in sorted(kept))


def chosen(ids: Sequence[str], shown: Sequence[IndexEntry], max_sources: int) -> Chosen:
    """The first `max_sources` of the ids that were shown, each once, in the model's order."""
    known = {str(entry.source_id): entry.source_id for entry in shown}
    kept: dict[SourceId, None] = {}
    unknown = 0
    for asked_for in map(str.strip, ids):
        if asked_for in known:
            kept[known[asked_for]] = None
        else:
            unknown += 1
    return Chosen(source_ids=tuple(kept)[:max_sources], shown=len(shown), unknown=unknown)


# An index changes seldom and is read for each question.
@lru_cache(maxsize=8192)
def entry_words(entry: IndexEntry) -> tuple[str, ...]:
    """The words of an entry; file names and addresses say much about what stands in them."""
    return tuple(words(f"{entry.source_id.partition(':')[2]}\n{entry.description}"))


def _size(entry: IndexEntry) -> int:
    # Two line ends and the blank line between entries.
    return len(entry.source_id) + len(entry.description) + 3


def _ranked(entries: Sequence[IndexEntry], query: str) -> list[int]:
    held = [set(entry_words(entry)) for entry in entries]
    rarity = Rarity(held)
    wanted = words(query)
    scores = [rarity.covered(wanted, have) for have in held]
    return sorted(range(len(entries)), key=lambda n: (-scores[n], n))
