"""The prompts of learning. The first two name their fields as the team knowledge spec does."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from intern.models.prompt import Choices, Prompt

_Name = Annotated[str, Meta(max_length=64)]
_Id = Annotated[str, Meta(max_length=64)]
_Reason = Annotated[str, Meta(max_length=300)]
"""Comes before the verdict, because small models then decide better. For the log only."""
_CONCLUDED = re.compile(r"\bso (keep|add|skip)\W*\Z", re.IGNORECASE)
_SHOWN_ID = re.compile(r"^id:[ \t]*(\S+)[ \t]*$", re.MULTILINE)


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
    """The text beside the images."""

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


CLASSIFY = Prompt("classify", takes=ClassifyIn, gives=ClassifyOut)
INTEGRATE = Prompt("integrate", takes=IntegrateIn, gives=IntegrateOut, offers=_removable)
SPLIT_TOPIC = Prompt("split_topic", takes=SplitIn, gives=SplitOut, offers=_movable)
SUMMARIZE_IMAGES = Prompt("summarize_images", takes=ImagesIn, gives=ImagesOut, offers=_pictured)
