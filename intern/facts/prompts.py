"""The extraction prompt, with its input and its reply."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from intern.core.records import FactCategory, NuggetStatus, Sentiment, Visibility
from intern.models.prompt import Choices, Prompt

# Of one of many: code leaves out what is too long, where a tighter bound would refuse all that was extracted.
_Short = Annotated[str, Meta(max_length=200)]
# In what `facts/distilling.py` writes, a line that is not indented begins a message or a fact.
_FIRST_WORD = re.compile(r"^(\w+) ", re.MULTILINE)


class ExtractIn(Struct, frozen=True, kw_only=True):
    """What the extractor sees."""

    transcript: str
    """Oldest message first, each led by its id and by who wrote it."""
    existing_facts: str = ""
    """One line for each of those most like the conversation: its id, date and category, then what it says."""


class NuggetOut(Struct, frozen=True, kw_only=True):
    """A nugget as a model proposes it."""

    topic: Annotated[str, Meta(max_length=200, description="A short title.")]
    topic_summary: Annotated[str, Meta(max_length=600, description="One sentence.")]
    detailed_analysis: Annotated[str, Meta(max_length=4000, description="Several sentences.")]
    status: NuggetStatus
    keywords: Annotated[tuple[_Short, ...], Meta(max_length=30)]
    source_message_ids: Annotated[
        tuple[_Short, ...], Meta(max_length=200, description="Ids of the messages that it comes from.")
    ]


class FactOut(Struct, frozen=True, kw_only=True):
    """A fact as a model proposes it; code decides what becomes of it."""

    category: FactCategory
    content: Annotated[str, Meta(max_length=800)]
    summary: Annotated[str, Meta(max_length=300, description="One line of at most 100 characters.")]
    visibility: Visibility
    # No bound that a reply is refused for: a server's grammar cannot hold a number to one (llama.cpp's does not), and
    # what is beyond is taken for the nearest (`facts.reconciling`).
    confidence: Annotated[float, Meta(description="From 0 to 1.", extra_json_schema={"minimum": 0, "maximum": 1})]
    sentiment: Sentiment
    duplicate_of: Annotated[_Short, Meta(description="Id of the existing fact that says the same, or empty.")]
    supersedes: Annotated[_Short, Meta(description="Id of the existing fact that it updates, or empty.")]
    note: Annotated[str, Meta(max_length=300, description="What changed, or that it comes up again; or empty.")]
    source_message_ids: Annotated[
        tuple[_Short, ...], Meta(max_length=200, description="Ids of the messages that say it.")
    ]


class ExtractOut(Struct, frozen=True, kw_only=True):
    """What is worth knowing of a conversation."""

    nuggets: Annotated[tuple[NuggetOut, ...], Meta(max_length=20)]
    facts: Annotated[tuple[FactOut, ...], Meta(max_length=50)]


def _extractable(given: ExtractIn) -> Choices:
    facts = ["", *_FIRST_WORD.findall(given.existing_facts)]
    return {
        "source_message_ids": _FIRST_WORD.findall(given.transcript),
        "duplicate_of": facts,
        "supersedes": facts,
    }


EXTRACT = Prompt(
    "extract", takes=ExtractIn, gives=ExtractOut, offers=_extractable, bounded_by=("extraction.existing_facts",)
)
