"""The two decisions of learning that a model takes, as the team knowledge spec names their fields."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from intern.llm.prompt import Prompt


class ClassifyIn(Struct, frozen=True, kw_only=True):
    """What the classifier sees."""

    index: str
    """The team index in its file format, or its best entries; empty when there is no topic yet."""
    pair: str
    """The pair in the format of a topic file."""


class ClassifyOut(Struct, frozen=True, kw_only=True):
    """Where the pair goes."""

    skip: Annotated[bool, Meta(description="True if the pair cannot guide a future answer.")]
    topic_name: Annotated[
        str, Meta(description="The topic's identifier, such as node-startup-issues; empty when skip is true.")
    ]


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

    skip: Annotated[bool, Meta(description="True if the existing blocks already say all of it.")]
    remove_ids: Annotated[
        tuple[str, ...], Meta(description="Ids of existing blocks that the new pair makes wrong or pointless.")
    ]


CLASSIFY = Prompt("classify", takes=ClassifyIn, gives=ClassifyOut)
INTEGRATE = Prompt("integrate", takes=IntegrateIn, gives=IntegrateOut)
