"""The two model calls of an answer where one decides and answers (`ai.steps = "fused"`), and one checks."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from intern.answering.retrieving import Alias, Shown
from intern.llm.prompt import Prompt

Kind = Literal["chatter", "out_of_scope", "unclear", "not_covered", "answer"]

MAX_LINE = 400
_Line = Annotated[str, Meta(max_length=MAX_LINE)]


class DecideIn(Struct, frozen=True, kw_only=True):
    """A message, and the passages that may answer it."""

    passages: tuple[Shown, ...]
    history: str
    """What was said before, oldest first, each message led by who spoke; may be empty."""
    question: str
    nearest: tuple[str, ...] = ()
    """What a search in the passages finds nearest to the question, each led by its passage's alias, best first."""
    addressed: bool
    """It is meant for the bot: a mention, a reply to it, a message in its thread, or a new forum post."""


class Quote(Struct, frozen=True, kw_only=True):
    """A line of a passage."""

    source: Annotated[Alias, Meta(description="The passage.")]
    line: Annotated[_Line, Meta(description="One line or sentence of it, word for word.")]


class Decision(Struct, frozen=True, kw_only=True):
    """What to make of a message, and the answer where there is one."""

    quotes: Annotated[
        tuple[Quote, ...],
        Meta(max_length=3, description="The lines that come nearest to an answer."),
    ]
    kind: Annotated[Kind, Meta(description="What to make of the message.")]
    answer: Annotated[
        Annotated[str, Meta(max_length=4000)] | None,
        Meta(description="The answer, from the quotes and their passages; null unless kind is answer."),
    ]
    citations: Annotated[
        tuple[Alias, ...], Meta(max_length=8, description="The passages that the answer stands on.")
    ] = ()


class Evidence(Struct, frozen=True, kw_only=True):
    """A quoted passage."""

    number: int
    text: str
    """The passage, or what of it stands around the line."""


class ConfirmIn(Struct, frozen=True, kw_only=True):
    """An answer, and what it was made from."""

    quotes: tuple[Evidence, ...]
    question: str
    history: str
    answer: str
    suspicions: tuple[str, ...] = ()
    """Numbers of the answer that were not found in what it cites, and code that is not in the conversation either."""
    unnamed: tuple[str, ...] = ()
    """What the question names and no passage that was shown does."""


class Claim(Struct, frozen=True, kw_only=True):
    """One thing that an answer says."""

    claim: Annotated[str, Meta(max_length=300, description="In a few words.")]
    quote: Annotated[Literal[0, 1, 2, 3], Meta(description="The quote that says it; 0 if none does.")]


class Confirmation(Struct, frozen=True, kw_only=True):
    """Whether an answer may be posted."""

    asked: Annotated[str, Meta(max_length=200, description="What the question wants to know, in a few words.")]
    told: Annotated[str, Meta(max_length=200, description="What the answer tells, in a few words.")]
    verdict: Annotated[
        Literal["not_answered", "unsupported", "answered"], Meta(description="Whether what was told is what was asked.")
    ]
    claims: Annotated[tuple[Claim, ...], Meta(max_length=6, description="What the answer says.")]

    def unquoted(self, quotes: int) -> tuple[str, ...]:
        """The claims that none of so many quotes bears."""
        return tuple(each.claim for each in self.claims if not 1 <= each.quote <= quotes)

    def holds(self, quotes: int) -> bool:
        """A verdict against its own claims counts as unsure, and what is unsure is not posted."""
        return self.verdict == "answered" and bool(self.claims) and not self.unquoted(quotes)


_BOUNDED = ("ai.max_passage_chars", "discord.max_history_chars")

DECIDE = Prompt("decide", takes=DecideIn, gives=Decision, bounded_by=_BOUNDED)
CONFIRM = Prompt("confirm", takes=ConfirmIn, gives=Confirmation, bounded_by=_BOUNDED)
