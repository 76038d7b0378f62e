"""What an operator may set about extraction and facts."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from intern.core.records import Visibility


class VisibilityRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Decides who may read the facts that it fits, whatever all else says."""

    category: str = ""
    """Fits facts of this category; empty: of any."""
    contains: str = ""
    """Fits facts with this in their text, upper case or lower; empty: any text."""
    visibility: Visibility


class FactOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of facts, and who may read them."""

    keep_secret: bool = False
    """Secret facts are stored, for `intern facts --secret` alone; otherwise nothing of them is kept."""
    min_confidence: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Answers draw on no fact below it; `intern facts` and the search still show it."""
    overrides: tuple[VisibilityRule, ...] = ()
    """The first that fits a fact decides."""


class ExtractionOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is distilled from conversations, and how fast."""

    auto: bool = True
    """Nuggets and facts are made as conversations are filed. `intern index --extract` reads what was filed before."""
    min_turns: Annotated[int, Meta(ge=1)] = 2
    """Messages that a conversation must have."""
    max_per_minute: Annotated[int, Meta(ge=1)] = 10
    """Conversations that a model reads in any minute, for a command as for the running bot."""
    existing_facts: Annotated[int, Meta(ge=0, le=60)] = 50
    """Facts that a model is shown beside a conversation, those most like it."""
    from_questions: bool = False
    """Also from threads that intern answered in and nobody of the team did."""
