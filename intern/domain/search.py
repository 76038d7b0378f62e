"""What can be searched, what is asked of a search, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, NewType

from msgspec import Struct

from intern.domain.ids import SourceId
from intern.domain.nuggets import NuggetStatus

Match = NewType("Match", str)
"""An expression in the search engine's own language. Only `intern.search.query` makes one from anybody's text."""

SearchKind = Literal["source", "file", "nugget", "fact"]
"""`source`: of the index. `file`: discovered, and no source of answers unless the operator wants that. `nugget` and
`fact`: distilled from conversations."""

SearchPart = Literal["text", "description"]
"""What a source says, or what is said of it."""

SourceType = Literal["document", "page", "topic"]
"""What stands in an index, as a search tells it."""

FileType = Literal["documentation", "configuration", "source_code", "services"]
"""What kind of file was discovered, from the most to the least worth."""

SearchStatus = Literal[
    "ok",
    "pending",
    "summary_failed",
    "unsupported_type",
    "permission_denied",
    NuggetStatus,
    "active",
    "retired",
]
"""Of sources the first two, of files all but the second of those before a nugget's, of facts the last two."""

Scalar = str | int | float | bool | None


class SearchDocument(Struct, frozen=True, kw_only=True):
    """A piece of text that can be found. A long source is several documents, which all lead to it."""

    id: str
    source_id: SourceId
    """What a result leads to."""
    kind: SearchKind
    part: SearchPart = "text"
    type: str = ""
    """A `SourceType`; of a discovered file, its `FileType`; of a fact, its category; of a nugget none."""
    status: str = "ok"
    """A `SearchStatus`."""
    visibility: str = "shared"
    """Of a fact; `secret` ones are no documents."""
    guild_id: str = ""
    """The server that it comes from; empty where it comes from none."""
    path: str = ""
    title: str = ""
    text: str = ""
    meta: Mapping[str, Scalar] = {}
    stamp: str = ""
    """Changes with what the document was made from."""
    at: datetime
    """When its text was written, as far as that is known (UTC)."""


class SearchFilter(Struct, frozen=True, kw_only=True):
    """Which documents count; what is None or empty lets all pass."""

    kinds: tuple[SearchKind, ...] = ()
    part: SearchPart | None = None
    type: str | None = None
    status: str | None = None
    retired: bool = False
    """Also retired facts, where no status is asked for."""
    visibility: str | None = None
    guild_id: str | None = None
    after: datetime | None = None
    before: datetime | None = None


class Scored(Struct, frozen=True, kw_only=True):
    """A source that a search found, by the best of its documents."""

    rid: int
    """Of that document."""
    source_id: SourceId
    score: float
    """How well it fits, larger is better: bm25 of words, the cosine of a vector (1 says the same, 0 is unrelated)."""
    written: bool = False
    """It is a document, a page or a file, and not something that people said in a chat."""


class Hit(Struct, frozen=True, kw_only=True):
    """The passage of a source that fits a question best, and how well it does."""

    source_id: SourceId
    title: str
    """Of a document's passage, the headings above it; of a team answer, the question."""
    text: str
    """As it was indexed; of a team answer, what was said, without names and dates."""
    score: float
    """Orders the hits of one question; not comparable between questions."""
    likeness: float | None = None
    """From -1 to 1; None where nobody looked. Comparable between questions."""
    is_measured: bool = True
    """Whether the likeness comes from an embedder with measured cosines, so that a threshold makes sense."""
