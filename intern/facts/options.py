"""Settings of extraction and facts."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from intern.core.records import Visibility


class VisibilityRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Decides who may read the matching facts. It overrides all other rules."""

    category: str = ""
    """Match facts of this category; empty: of any category."""
    contains: str = ""
    """Match facts with this text, in upper or lower case; empty: any text."""
    visibility: Visibility


class FactOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which facts are kept, and who may read them."""

    keep_secret: bool = False
    """Store secret facts, for `intern facts --secret` only. Otherwise they are not stored at all."""
    min_confidence: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Answers use no fact below this. `intern facts` and the search still show such facts."""
    overrides: tuple[VisibilityRule, ...] = ()
    """The first matching rule decides."""


class ExtractionOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What extraction reads, and how fast."""

    auto: bool = True
    """Extract nuggets and facts as conversations are filed. `intern index --extract` reads those filed before."""
    min_turns: Annotated[int, Meta(ge=1)] = 2
    """The fewest messages of a conversation that is read."""
    max_per_minute: Annotated[int, Meta(ge=1)] = 10
    """The most conversations that a model reads a minute, for commands and for the running bot."""
    existing_facts: Annotated[int, Meta(ge=0, le=60)] = 50
    """The most known facts in a prompt, those most like the conversation."""
    from_questions: bool = False
    """Read also threads where intern answered and no team member did."""
