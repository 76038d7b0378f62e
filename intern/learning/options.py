"""What an operator may set about learning."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from intern.core.records import Visibility


class LearningOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of a capture's prompts and effects: it costs no more than these, whatever the knowledge grows to."""

    review: bool = False
    """A pair that is new waits for somebody of the team before it is filed; no model sees it before."""
    max_removals: Annotated[int, Meta(ge=0)] = 3
    """Blocks that one new pair may make obsolete; the rest stays, so one bad reply cannot empty a topic."""
    max_index_chars: Annotated[int, Meta(ge=1)] = 1800
    """Characters of the team index that the classifier sees: the entries most like the pair."""
    max_blocks_chars: Annotated[int, Meta(ge=1)] = 1800
    """Characters of a topic file that the integrator sees: the blocks most like the pair."""
    max_pair_chars: Annotated[int, Meta(ge=1)] = 6000
    """Characters of the pair itself in either prompt."""
    max_topic_chars: Annotated[int, Meta(ge=1)] = 20_000
    """Characters of a topic file; one that outgrows them is split in two."""
    max_outline_chars: Annotated[int, Meta(ge=1)] = 8000
    """Characters of the questions that a model sees when it splits a topic."""


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
