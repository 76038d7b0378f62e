"""What is asked of a model to describe a source or a topic in the index."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from intern.llm.prompt import Prompt


class SummarizeIn(Struct, frozen=True, kw_only=True):
    """What is to be described."""

    source_id: str
    text: str


class SummarizeOut(Struct, frozen=True, kw_only=True):
    """An entry of the index."""

    description: Annotated[str, Meta(max_length=800, description="One paragraph of plain English text.")]


SUMMARIZE_SOURCE = Prompt("summarize_source", takes=SummarizeIn, gives=SummarizeOut)
SUMMARIZE_TOPIC = Prompt("summarize_topic", takes=SummarizeIn, gives=SummarizeOut)
