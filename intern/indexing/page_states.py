"""How the listed web pages stand. Pure, and without anything that fetches: `intern status` asks it, too."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, NamedTuple

from intern.domain import SourceId
from intern.knowledge.indices import NEEDS_SCRIPTS, RENDERED, CachedPage, CachedSource

MOST_MISSING = 4
"""Times in a row, over three and a half hours at least, that a site may say "no such page" before it is believed."""


class PageState(NamedTuple):
    """How a page stands, for people."""

    url: str
    state: Literal["fresh", "pending", "failing", "gone", "unseen"]
    """`pending`: its summary is owed. `failing`: the index holds an older text, or none yet, and `error` says why."""
    error: str
    note: str
    """How it was read, where that is worth knowing: `NEEDS_SCRIPTS`, `RENDERED`."""
    next_check_at: datetime | None


def page_states(sources: Mapping[SourceId, CachedSource]) -> tuple[PageState, ...]:
    """How each page of a catalogue stands, by address."""
    return tuple(sorted(page_state(page) for page in sources.values() if isinstance(page, CachedPage)))


def page_state(page: CachedPage) -> PageState:
    """How a page stands."""
    failing = page.failures > 0
    state: Literal["fresh", "pending", "failing", "gone", "unseen"]
    if page.missing >= MOST_MISSING:
        state = "gone"
    elif failing:
        state = "failing"
    elif page.next_check_at is None:
        state = "unseen"
    else:
        state = "pending" if page.summary_pending else "fresh"
    said = page.fetch_status or ""
    note = said if said in {NEEDS_SCRIPTS, RENDERED} else ""
    return PageState(page.url, state, said if failing else "", note, page.next_check_at)
