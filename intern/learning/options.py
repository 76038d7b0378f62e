"""What an operator may set about learning."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


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
