"""The decisions of learning that a model takes; the first two name their fields as the team knowledge spec does."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from intern.core.records import FactCategory, NuggetStatus, Sentiment, Visibility
from intern.models.prompt import Choices, Prompt

_Name = Annotated[str, Meta(max_length=64)]
_Id = Annotated[str, Meta(max_length=64)]
# Of one of many: code leaves out what is too long, where a tighter bound would refuse all that was extracted.
_Short = Annotated[str, Meta(max_length=200)]
_Reason = Annotated[str, Meta(max_length=300)]
"""Written before the verdict, which small models get right more often then. For the log only."""
_CONCLUDED = re.compile(r"\bso (keep|add|skip)\W*\Z", re.IGNORECASE)
_SHOWN_ID = re.compile(r"^id:[ \t]*(\S+)[ \t]*$", re.MULTILINE)
# In what `facts/distilling.py` writes, a line that is not indented begins a message or a fact.
_FIRST_WORD = re.compile(r"^(\w+) ", re.MULTILINE)


class ClassifyIn(Struct, frozen=True, kw_only=True):
    """What the classifier sees."""

    index: str
    """The team index in its file format, or its best entries; empty when there is no topic yet."""
    pair: str
    """The pair in the format of a topic file."""


class ClassifyOut(Struct, frozen=True, kw_only=True):
    """Where the pair goes."""

    reason: Annotated[_Reason, Meta(description="What was asked and answered, then: so keep, or: so skip.")] = ""
    skip: Annotated[bool, Meta(description="True if the pair cannot guide a future answer.")]
    topic_name: Annotated[
        _Name, Meta(description="The topic's identifier, such as node-startup-issues; empty when skip is true.")
    ]

    @property
    def contradiction(self) -> str:
        """How the reply contradicts itself; empty if it does not."""
        if self.skip and self.topic_name.strip():
            return "it skips the pair and names a topic"
        return _against(self.reason, skip=self.skip)


class IntegrateIn(Struct, frozen=True, kw_only=True):
    """What the integrator sees."""

    topic: str
    """The topic's name."""
    blocks: str
    """The topic file, or its blocks most like the pair, oldest answer first."""
    pair: str
    """The pair in the format of a topic file."""


class IntegrateOut(Struct, frozen=True, kw_only=True):
    """What the pair changes in its topic."""

    reason: Annotated[_Reason, Meta(description="What is new in the pair, then: so add, or: so skip.")] = ""
    skip: Annotated[bool, Meta(description="True if the existing blocks already say all of it.")]
    remove_ids: Annotated[
        tuple[_Id, ...],
        Meta(max_length=64, description="Ids of existing blocks that the new pair makes wrong or pointless."),
    ]

    @property
    def contradiction(self) -> str:
        """How the reply contradicts itself; empty if it does not."""
        if self.skip and self.remove_ids:
            return "it skips the pair and removes blocks for it"
        return _against(self.reason, skip=self.skip)


class SplitIn(Struct, frozen=True, kw_only=True):
    """What is seen of a topic that has grown too long."""

    topic: str
    """The topic's name."""
    questions: str
    """One line for each block, oldest answer first: its id, then the beginning of its question."""


class SplitOut(Struct, frozen=True, kw_only=True):
    """Which blocks leave for a topic of their own."""

    topic_name: Annotated[_Name, Meta(description="The new topic's identifier, such as gpu-drivers.")]
    move_ids: Annotated[
        tuple[_Id, ...],
        Meta(max_length=1000, description="Ids of the blocks that move to the new topic; the others stay."),
    ]


class ImagePlace(Struct, frozen=True, kw_only=True):
    """Which image it is."""

    message_id: str
    image_index: int
    """Among the images of its message, from 0."""


class ImagesIn(Struct, frozen=True, kw_only=True):
    """What whoever looks at images sees beside them."""

    conversation: str
    """Oldest message first, each led by who spoke; lines mark where images stand."""
    images: tuple[ImagePlace, ...]
    """In the order in which the images are given."""


class ImageSummary(Struct, frozen=True, kw_only=True):
    """One image in words."""

    message_id: Annotated[_Id, Meta(description="Exactly as listed.")]
    image_index: Annotated[int, Meta(description="Exactly as listed.")]
    summary: Annotated[str, Meta(max_length=800, description="One paragraph of plain text.")]


class ImagesOut(Struct, frozen=True, kw_only=True):
    """The images in words."""

    summaries: Annotated[tuple[ImageSummary, ...], Meta(max_length=100, description="One for each listed image.")]


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
    # what is beyond is taken for the nearest (`learning.remembering`).
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


def _against(reason: str, *, skip: bool) -> str:
    """Whether a reason ends with the other verdict than the one given; a reason without a verdict agrees."""
    found = _CONCLUDED.search(reason)
    if found is None or (found[1].lower() == "skip") == skip:
        return ""
    return f"it concludes {found[1].lower()!r} and says skip={str(skip).lower()}"


def _removable(given: IntegrateIn) -> Choices:
    return {"remove_ids": _SHOWN_ID.findall(given.blocks)}


def _movable(given: SplitIn) -> Choices:
    return {"move_ids": [line.partition(" ")[0] for line in given.questions.split("\n") if line]}


def _pictured(given: ImagesIn) -> Choices:
    return {"message_id": [image.message_id for image in given.images]}


def _extractable(given: ExtractIn) -> Choices:
    facts = ["", *_FIRST_WORD.findall(given.existing_facts)]
    return {
        "source_message_ids": _FIRST_WORD.findall(given.transcript),
        "duplicate_of": facts,
        "supersedes": facts,
    }


CLASSIFY = Prompt("classify", takes=ClassifyIn, gives=ClassifyOut)
INTEGRATE = Prompt("integrate", takes=IntegrateIn, gives=IntegrateOut, offers=_removable)
SPLIT_TOPIC = Prompt("split_topic", takes=SplitIn, gives=SplitOut, offers=_movable)
SUMMARIZE_IMAGES = Prompt("summarize_images", takes=ImagesIn, gives=ImagesOut, offers=_pictured)
EXTRACT = Prompt(
    "extract", takes=ExtractIn, gives=ExtractOut, offers=_extractable, bounded_by=("extraction.existing_facts",)
)
