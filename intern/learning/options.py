"""Settings of learning."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class LearningOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of the prompts and effects of one capture. They hold even if the knowledge grows."""

    review: bool = False
    """New pairs wait for the team's approval. Before it, no model sees them."""
    max_removals: Annotated[int, Meta(ge=0)] = 3
    """The most blocks that one new pair may remove, so that one bad reply cannot empty a topic."""
    max_index_chars: Annotated[int, Meta(ge=1)] = 1800
    """Characters of the team index in the classifier's prompt; the entries most like the pair are chosen."""
    max_blocks_chars: Annotated[int, Meta(ge=1)] = 1800
    """Characters of a topic in the integrator's prompt; the blocks most like the pair are chosen."""
    max_pair_chars: Annotated[int, Meta(ge=1)] = 6000
    """Characters of the pair in either prompt."""
    max_topic_chars: Annotated[int, Meta(ge=1)] = 20_000
    """The most characters of a topic file. Longer topics are split in two."""
    max_outline_chars: Annotated[int, Meta(ge=1)] = 8000
    """Characters of the questions in the prompt that splits a topic."""
