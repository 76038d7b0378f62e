"""The four model calls of an answer: what each is given and what it must give back.

Fields of the inputs are the variables of `prompts/<name>.md.j2`. In the outputs a reason comes before what it is for:
a model writes in this order, and a small one decides better when it has said why. Bounds stop a reply that has run
wild; the workflow enforces what the operator has set.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from intern.answering.citable import citable
from intern.domain import IndexEntry
from intern.llm.prompt import Choices, Prompt

_Line = Annotated[str, Meta(max_length=300)]
_Remark = Annotated[str, Meta(max_length=1000)]
_Id = Annotated[str, Meta(max_length=2500)]  # an address of a page has up to 2,000 characters


class GateIn(Struct, frozen=True, kw_only=True):
    """A message that may be a question."""

    question: str
    history: str
    """What was said before, oldest first, each message led by who spoke; may be empty."""
    addressed: bool
    """It is meant for the bot: a mention, a reply to it, a message in its thread, or a new forum post."""


MessageKind: TypeAlias = Literal["question", "chatter", "out_of_scope", "unclear"]
"""What a message is; only a question is worth looking for an answer."""


class GateDecision(Struct, frozen=True, kw_only=True):
    """What a message is, and what it asks."""

    reason: Annotated[_Line, Meta(description="What the message is, in one short sentence; for the log only.")] = ""
    kind: MessageKind
    rewrite_query: Annotated[
        _Remark | None,
        Meta(description="The question by itself, with what the history adds; null if it is clear."),
    ] = None


class SelectIn(Struct, frozen=True, kw_only=True):
    """A question, and the sources that may answer it."""

    entries: tuple[IndexEntry, ...]
    """The index, or its entries that fit best; ids and descriptions without line breaks."""
    max_sources: int
    history: str
    question: str
    query: str
    """The question by itself, where the gate has rewritten it already; else empty."""
    ranked: tuple[str, ...] = ()
    """What the search in the texts found, best first; empty where the index is shown whole. For the offline model."""


class Selection(Struct, frozen=True, kw_only=True):
    """The sources to load, best first."""

    selected_source_ids: Annotated[
        tuple[_Id, ...],
        Meta(max_length=50, description="Ids exactly as listed, best first; empty if nothing fits."),
    ]


class ShownSource(Struct, frozen=True, kw_only=True):
    """A loaded source as a prompt shows it: cut to what fits the question."""

    source_id: str
    title: str
    text: str
    said: str | None = None
    """The team's own words, whole, where the text is a model's account: only these vouch for commands and links."""

    @property
    def vouched(self) -> str:
        """What an answer may take commands, versions and addresses from."""
        return self.text if self.said is None else self.said


class AnswerIn(Struct, frozen=True, kw_only=True):
    """A question, and the sources to answer it from."""

    max_answer_chars: int
    sources: tuple[ShownSource, ...]
    """Team knowledge first; within a kind, best first."""
    history: str
    question: str
    query: str
    """The question by itself, where the gate has rewritten it; else empty."""


class Draft(Struct, frozen=True, kw_only=True):
    """An answer that nobody has checked yet."""

    quotes: Annotated[
        tuple[_Line, ...],
        Meta(max_length=5, description="Lines of the sources that answer the question, word for word; empty if none."),
    ] = ()
    """Nothing is made of them: a model that has to look for them first answers less from what is beside the point."""
    answer: Annotated[
        Annotated[str, Meta(max_length=20_000)] | None,
        Meta(description="The answer in Markdown; null if the sources do not answer the question."),
    ]
    citations: Annotated[
        tuple[_Id, ...],
        Meta(max_length=20, description="Ids of the sources that the answer stands on, exactly as shown."),
    ] = ()


class VerifyIn(Struct, frozen=True, kw_only=True):
    """An answer beside the sources that it was made from."""

    sources: tuple[ShownSource, ...]
    history: str
    question: str
    answer: str
    citations: tuple[str, ...]
    suspicions: tuple[str, ...] = ()
    """Code and numbers of the answer that were found neither in what it cites nor in the conversation."""


class Verification(Struct, frozen=True, kw_only=True):
    """Whether an answer may be posted."""

    reason: Annotated[_Line, Meta(description="What the sources say of it, in one short sentence.")] = ""
    issues: Annotated[
        tuple[_Line, ...],
        Meta(max_length=10, description="What is wrong, each in one sentence; empty if nothing is."),
    ] = ()
    is_good_enough: Annotated[bool, Meta(description="The answer is right by the sources, clear, and safe to post.")]
    suggested_fix: Annotated[_Remark | None, Meta(description="What would mend it, for the log only.")] = None

    @property
    def lets_it_out(self) -> bool:
        """Whether the answer may be posted: a yes beside an issue is none."""
        return self.is_good_enough and not any(issue.strip() for issue in self.issues)


def _listed(given: SelectIn) -> Choices:
    return {"selected_source_ids": [entry.source_id for entry in given.entries]}


def _shown(given: AnswerIn) -> Choices:
    return {"citations": [known for source in given.sources for known in citable(source.source_id, source.text)]}


_HISTORY = "discord.max_history_chars"

GATE = Prompt("gate", takes=GateIn, gives=GateDecision, bounded_by=(_HISTORY,))
SELECT = Prompt("select", takes=SelectIn, gives=Selection, offers=_listed, bounded_by=("ai.max_index_chars", _HISTORY))
ANSWER = Prompt("answer", takes=AnswerIn, gives=Draft, offers=_shown, bounded_by=("ai.max_source_chars", _HISTORY))
VERIFY = Prompt("verify", takes=VerifyIn, gives=Verification, bounded_by=("ai.max_source_chars", _HISTORY))
