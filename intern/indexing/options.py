"""What an operator may set about indexing."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class IndexingOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of indexing."""

    concurrency: Annotated[int, Meta(ge=1)] = 4
    """Sources that are summarised at the same time."""
    max_source_chars: Annotated[int, Meta(ge=1)] = 8000
    """Characters of a source that the model sees; of a longer one its head and its tail."""
    max_topic_chars: Annotated[int, Meta(ge=1)] = 4000
    """Characters of a topic file that the model sees; of a longer one each question, and what fits of the answers."""
    max_description_chars: Annotated[int, Meta(ge=1, le=800)] = 800
    """Longer descriptions are cut at a word. A model's reply of more than 800 is refused, and asked for again later."""
