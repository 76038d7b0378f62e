"""Documents of the search, filters, and what a search finds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from msgspec import Struct

from intern.core import ids
from intern.core.knowledge import NuggetStatus

SearchKind = Literal["source", "file", "nugget", "fact"]
"""`source`: of the index. `file`: discovered, and no source of answers unless the operator wants that. `nugget` and
`fact`: distilled from conversations."""

SearchPart = Literal["text", "description"]
"""A part of a source's text, or its description."""

SourceType = Literal["document", "page", "topic"]
"""The types of index entries, as a search names them."""

FileType = Literal["documentation", "configuration", "source_code", "services"]
"""The types of discovered files, from the most to the least useful."""

_FileStatus = Literal["summary_failed", "unsupported_type", "permission_denied"]
SearchStatus = Literal["ok", "pending", _FileStatus, NuggetStatus, "active", "retired"]
"""Sources have the first two, files all but the second before a nugget's, facts the last two."""

Scalar = str | int | float | bool | None


class SearchDocument(Struct, frozen=True, kw_only=True):
    """A piece of text that can be found. A long source is several documents, which all lead to it."""

    id: str
    source_id: ids.SourceId
    """The source that a result leads to."""
    kind: SearchKind
    part: SearchPart = "text"
    type: str = ""
    """A `SourceType`; of a discovered file, its `FileType`; of a fact, its category; of a nugget none."""
    status: str = "ok"
    """A `SearchStatus`."""
    visibility: str = "shared"
    """The visibility of a fact; `secret` ones are no documents."""
    guild_id: str = ""
    """The server that it comes from; empty where it comes from none."""
    path: str = ""
    title: str = ""
    text: str = ""
    meta: Mapping[str, Scalar | tuple[str, ...]] = {}
    stamp: str = ""
    """A stamp that changes with the material of the document."""
    at: datetime
    """When its text was written, as far as that is known (UTC)."""


class SearchFilter(Struct, frozen=True, kw_only=True):
    """A filter of documents; a field that is None or empty lets all pass."""

    per: Literal["source", "document"] = "source"
    """The kind of result: a source, by the best of its documents, or each document by itself."""
    kinds: tuple[SearchKind, ...] = ()
    part: SearchPart | None = None
    type: str | None = None
    keyword: str | None = None
    """A nugget's keyword, spelled as there."""
    status: str | None = None
    retired: bool = False
    """Include retired facts, if no status is given."""
    visibility: str | None = None
    guild_id: str | None = None
    after: datetime | None = None
    before: datetime | None = None


class ScoredMatch(Struct, frozen=True, kw_only=True):
    """A result of a search: a source, by the best of its documents, or a document."""

    key: str
    """The id of the source or of the document, as the filter asks for."""
    document_id: str
    source_id: ids.SourceId
    score: float
    """Its relevance, larger is better: bm25 of words, the cosine of a vector (1 says the same, 0 is unrelated)."""
    written: bool = False
    """It is a document, a page or a file, and not a text from a chat."""


class PassageHit(Struct, frozen=True, kw_only=True):
    """The passage of a source that fits a question best, and how well it does."""

    source_id: ids.SourceId
    title: str = ""
    """The title and the headings above a document's passage; the question of a team answer."""
    text: str = ""
    """As it was indexed; of a team answer, what was said, without names and dates."""
    score: float = 0.0
    """Orders the hits of one question; not comparable between questions."""
    by_words: float = 0.0
    """The match of its words, from 0 to 1; comparable between questions, and between communities of any size."""
    likeness: float | None = None
    """From -1 to 1; None if it was not compared. Comparable between questions."""
    is_measured: bool = True
    """Whether the likeness comes from an embedder with measured cosines, so that a threshold makes sense."""
