"""What the index tells about each source."""

from __future__ import annotations

from msgspec import Struct

from intern.domain.ids import SourceId


class IndexEntry(Struct, frozen=True):
    """One source and one paragraph on what it covers."""

    source_id: SourceId
    description: str


class SourceText(Struct, frozen=True, kw_only=True):
    """A source, loaded. `text` is whole here; the answering room cuts it to passages that fit."""

    source_id: SourceId
    text: str
    title: str
    url: str | None = None
    said: str | None = None
    """The team's own words, where the text is a model's account of them; None where the text is what was written."""


class Learned(Struct, frozen=True, kw_only=True):
    """What was distilled from conversations and fits a question."""

    nuggets: tuple[IndexEntry, ...] = ()
    """To choose from, the best first."""
    likeness: float | None = None
    """Of the nugget that is most like the question; None where nobody looked."""
    facts: tuple[SourceText, ...] = ()
    """Known to fit, the best first."""
