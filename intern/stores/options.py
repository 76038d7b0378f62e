"""Settings of the search and of the flight recorder: the tables `[search]` and `[recorder]`. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from intern.core.text.secret_values import Secret, settings_repr


class SearchOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The engine that compares vectors, and its limits."""

    vectors: Literal["local", "qdrant", "chroma"] = "local"
    url: str = ""
    """The address of an engine, with its port."""
    api_key: Secret = Secret()
    collection: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$")] = "kloros_knowledge"
    """One for all communities. Each database needs its own."""
    megabytes: Annotated[int, Meta(ge=1, le=100_000)] = 256
    """The room for vectors in memory, for all communities of the process together."""

    def __repr__(self) -> str:
        return settings_repr(self)


class RecorderOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The extent of recording, for `intern why` and `intern replay`."""

    enabled: bool = True
    days: Annotated[float, Meta(gt=0, le=3_650)] = 7.0
    megabytes: Annotated[int, Meta(ge=1)] = 200
    """The most space in the database; the oldest recordings are deleted first."""
    context: bool = False
    """Also record the messages of other members before a question."""
