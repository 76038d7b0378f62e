"""The prompts of an answer, with their inputs, outputs and settings: two for `ai.steps = "fused"`, four for `separate`.

Fields of the inputs are the variables of `prompts/<name>.md.j2`. In the outputs, a reason comes before its decision: a
model writes in this order, and a small one decides better after giving a reason. Bounds stop runaway replies; the
workflow enforces the operator's settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, get_args

from msgspec import Meta, Struct

from intern.core.knowledge import IndexEntry
from intern.core.messages import find_citation_ids
from intern.models.prompt import Choices, Prompt

Kind = Literal["chatter", "out_of_scope", "unclear", "not_covered", "answer"]

MAX_LINE = 400
_Line = Annotated[str, Meta(max_length=MAX_LINE)]


Alias = Literal["S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8"]
"""The name of a passage in a reply. The schema is the same for every question, so it can be cached."""
ALIASES: tuple[Alias, ...] = get_args(Alias)
MOST_SHOWN = len(ALIASES)
"""The most passages of one question."""


class ShownSource(Struct, frozen=True, kw_only=True):
    """A source as a prompt shows it: cut to what fits the question."""

    source_id: str
    title: str
    text: str
    url: str | None = None
    said: str | None = None
    """The team's own words, whole, if a model wrote the text: only these vouch for commands and links."""

    @property
    def address(self) -> str | None:
        """The address of the page, if it is one."""
        return self.url

    @property
    def trusted_text(self) -> str:
        """The text that an answer may take commands, versions and addresses from."""
        return self.text if self.said is None else self.said


class ShownPassage(ShownSource, frozen=True, kw_only=True):
    """A passage as a prompt shows it. Its id is the one to cite; for a topic, `team:<topic>.txt#<qa id>`."""

    alias: Alias
    label: str
    """The name of its source and the headings above it, for the model: a path, or `team` and a day."""
    heading: str = ""
    """The headings above it, outermost first, joined by " > "; they must not be quoted."""
    anchor: str = ""
    """The anchor of the innermost heading, for the address of its source, behind `#`; may be unknown."""
    start: int = 0
    """Its start in its source."""
    hit: int | None = None
    """The place of its hit in the search results, from 0; None if its source has changed since."""

    @property
    def address(self) -> str | None:
        """The address of its page, with its heading."""
        if self.url is None or not self.anchor:
            return self.url
        return f"{self.url.partition('#')[0]}#{self.anchor}"


class ClosestPassage(Struct, frozen=True, kw_only=True):
    """The passage that a search finds closest to a question."""

    passage: ShownPassage
    text: str
    """Its text and the text after it, as it can be quoted."""
    surplus: float
    """The lead of its score over the threshold for quoting without a model; below 0, it must not be quoted so."""


class DecideIn(Struct, frozen=True, kw_only=True):
    """A message, and the passages that may answer it."""

    passages: tuple[ShownPassage, ...]
    history: str
    """The messages before, oldest first, each led by its speaker; may be empty."""
    question: str
    nearest: tuple[str, ...] = ()
    """The lines nearest to the question, best first, each after its passage's alias."""
    closest: ClosestPassage | None = None
    """The passage that rules answer with; no prompt shows it."""
    addressed: bool
    """It is meant for the bot: a mention, a reply to it, a message in its thread, or a new forum post."""


class Quote(Struct, frozen=True, kw_only=True):
    """A line of a passage."""

    source: Annotated[Alias, Meta(description="The passage.")]
    line: Annotated[_Line, Meta(description="One line or sentence of it, word for word.")]


class AnswerDecision(Struct, frozen=True, kw_only=True):
    """The kind of a message, and the answer where there is one."""

    quotes: Annotated[tuple[Quote, ...], Meta(max_length=3, description="The lines that come nearest to an answer.")]
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
    """The passage, or the part of it around the line."""


class ConfirmIn(Struct, frozen=True, kw_only=True):
    """An answer, and what it was made from."""

    quotes: tuple[Evidence, ...]
    question: str
    history: str
    answer: str
    suspicions: tuple[str, ...] = ()
    """Numbers that no cited source contains, and code that is not in the conversation either."""
    unnamed: tuple[str, ...] = ()
    """Names in the question that no shown passage contains."""


class Claim(Struct, frozen=True, kw_only=True):
    """One thing that an answer says."""

    claim: Annotated[str, Meta(max_length=300, description="In a few words.")]
    quote: Annotated[Literal[0, 1, 2, 3, 4, 5, 6, 7, 8], Meta(description="The quote that says it; 0 if none does.")]


class Confirmation(Struct, frozen=True, kw_only=True):
    """Whether an answer may be posted.

    The verdict comes before the claims: the other way round, a small model refuses fewer wrong answers.
    """

    asked: Annotated[str, Meta(max_length=200, description="What the question wants to know, in a few words.")]
    told: Annotated[str, Meta(max_length=200, description="What the answer tells, in a few words.")]
    verdict: Annotated[
        Literal["not_answered", "unsupported", "answered"], Meta(description="Whether what was told is what was asked.")
    ]
    claims: Annotated[tuple[Claim, ...], Meta(max_length=6, description="What the answer says.")]

    def list_unsupported(self, quotes: int) -> tuple[str, ...]:
        """Return the claims that none of so many quotes supports."""
        return tuple(each.claim for each in self.claims if not 1 <= each.quote <= quotes)

    def is_postable(self, quotes: int) -> bool:
        """Return whether the answer may be posted: not if the verdict contradicts its own claims."""
        return self.verdict == "answered" and bool(self.claims) and not self.list_unsupported(quotes)


_BOUNDED = ("ai.max_passage_chars", "discord.max_history_chars")

DECIDE = Prompt("decide", takes=DecideIn, gives=AnswerDecision, bounded_by=_BOUNDED)
CONFIRM = Prompt("confirm", takes=ConfirmIn, gives=Confirmation, bounded_by=_BOUNDED)


_Short = Annotated[str, Meta(max_length=300)]
_Remark = Annotated[str, Meta(max_length=1000)]
_Id = Annotated[str, Meta(max_length=2500)]  # an address of a page has up to 2,000 characters
_Ids = tuple[_Id, ...]


class GateIn(Struct, frozen=True, kw_only=True):
    """A message that may be a question."""

    question: str
    history: str
    """The messages before, oldest first, each led by its speaker; may be empty."""
    addressed: bool
    """It is meant for the bot: a mention, a reply to it, a message in its thread, or a new forum post."""


MessageKind: TypeAlias = Literal["question", "chatter", "out_of_scope", "unclear"]
"""The kind of a message; only a question is worth a search."""


class GateDecision(Struct, frozen=True, kw_only=True):
    """The kind of a message, and the question in it."""

    reason: Annotated[_Short, Meta(description="What the message is, in one short sentence; for the log only.")] = ""
    kind: MessageKind
    rewrite_query: Annotated[
        _Remark | None, Meta(description="The question by itself, with what the history adds; null if it is clear.")
    ] = None


class SelectIn(Struct, frozen=True, kw_only=True):
    """A question, and the sources that may answer it."""

    entries: tuple[IndexEntry, ...]
    """The index, or its best entries; ids and descriptions without line breaks."""
    max_sources: int
    history: str
    question: str
    query: str
    """The question by itself, where the gate has rewritten it already; else empty."""


class Selection(Struct, frozen=True, kw_only=True):
    """The sources to load, best first."""

    selected_source_ids: Annotated[
        _Ids, Meta(max_length=50, description="Ids exactly as listed, best first; empty if nothing fits.")
    ]


class AnswerIn(Struct, frozen=True, kw_only=True):
    """A question, and the sources to answer it from."""

    max_answer_chars: int
    sources: tuple[ShownSource, ...]
    """Team knowledge first; within a kind, best first."""
    history: str
    question: str
    query: str
    """The question by itself, where the gate has rewritten it; else empty."""


class AnswerDraft(Struct, frozen=True, kw_only=True):
    """An unchecked answer."""

    quotes: Annotated[
        tuple[_Short, ...],
        Meta(max_length=5, description="Lines of the sources that answer the question, word for word; empty if none."),
    ] = ()
    """Their sources vouch for links, commands and numbers. A model that looks for quotes first also strays less."""
    answer: Annotated[
        Annotated[str, Meta(max_length=20_000)] | None,
        Meta(description="The answer in Markdown; null if the sources do not answer the question."),
    ]
    citations: Annotated[
        _Ids, Meta(max_length=20, description="Ids of the sources that the answer stands on, exactly as shown.")
    ] = ()


class VerifyIn(Struct, frozen=True, kw_only=True):
    """An answer beside the sources that it was made from."""

    sources: tuple[ShownSource, ...]
    history: str
    question: str
    answer: str
    citations: tuple[str, ...]
    suspicions: tuple[str, ...] = ()
    """Code and numbers of the answer that neither its cited sources nor the conversation contains."""


class Verification(Struct, frozen=True, kw_only=True):
    """Whether an answer may be posted."""

    reason: Annotated[_Short, Meta(description="What the sources say of it, in one short sentence.")] = ""
    issues: Annotated[
        tuple[_Short, ...], Meta(max_length=10, description="What is wrong, each in one sentence; empty if nothing is.")
    ] = ()
    is_good_enough: Annotated[bool, Meta(description="The answer is right by the sources, clear, and safe to post.")]
    suggested_fix: Annotated[_Remark | None, Meta(description="What would mend it, for the log only.")] = None

    @property
    def is_postable(self) -> bool:
        """Whether the answer may be posted: a yes beside an issue is none."""
        return self.is_good_enough and not any(issue.strip() for issue in self.issues)


def _offer_source_ids(given: SelectIn) -> Choices:
    return {"selected_source_ids": [entry.source_id for entry in given.entries]}


def _offer_citations(given: AnswerIn) -> Choices:
    return {
        "citations": [known for source in given.sources for known in find_citation_ids(source.source_id, source.text)]
    }


_HISTORY = "discord.max_history_chars"

GATE = Prompt("gate", takes=GateIn, gives=GateDecision, bounded_by=(_HISTORY,))
SELECT = Prompt(
    "select", takes=SelectIn, gives=Selection, offers=_offer_source_ids, bounded_by=("ai.max_index_chars", _HISTORY)
)
ANSWER = Prompt(
    "answer", takes=AnswerIn, gives=AnswerDraft, offers=_offer_citations, bounded_by=("ai.max_source_chars", _HISTORY)
)
VERIFY = Prompt("verify", takes=VerifyIn, gives=Verification, bounded_by=("ai.max_source_chars", _HISTORY))


class AnsweringOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Exact bounds of answers, and the words that prompts insert."""

    request_timeout_seconds: Annotated[float, Meta(gt=0)] = 300.0
    """Seconds for one question, from the first model call to the last; a local model may need minutes."""
    max_sources: Annotated[int, Meta(ge=1)] = 5
    """The most sources to load, with `separate` only: `fused` shows at most eight passages."""
    max_answer_chars: Annotated[int, Meta(ge=1)] = 3000
    """A longer answer is not posted at all: half an answer misleads. With `fused`, a reply has room for 4,000."""
    require_citations: bool = True
    """Post no answer without citations, with `separate` only: `fused` always requires a quote from a passage."""
    strict_grounding: bool = True
    """Post no command line or version that no cited source contains. Off: the verifying model decides."""
    steps: Literal["fused", "separate"] = "fused"
    """`fused`: the search chooses the sources, one call decides and answers, one checks. `separate`: four calls."""
    verify: Literal["always", "unsure"] = "always"
    """`unsure`: no second call if code alone is sure of an answer. With `fused` only."""
    max_passage_chars: Annotated[int, Meta(ge=200)] = 5_000
    """Characters for all passages of one question together. With `fused` only."""
    max_index_chars: Annotated[int, Meta(ge=1)] = 12_000
    """Characters of the index in a prompt: whole if it fits, else its best entries. With `separate` only."""
    max_source_chars: Annotated[int, Meta(ge=1)] = 8_000
    """Characters for all loaded sources of one question together. With `separate` only."""
    repeat: bool = True
    """Reuse the model's reply to exactly the same request, for a week at most."""
    max_wrong: Annotated[float, Meta(ge=0, le=0.5)] = 0.05
    """The largest share of answers that may be wrong; `intern calibrate` finds the score for it. 0: no bound."""
    unsure: Literal["silent", "links"] = "silent"
    """Below that score: silence. `links`: an addressed question gets the best sources, if they are near enough."""
    retract: bool = False
    """Edit a posted answer to a note once a cited source has changed or was withdrawn."""
    project_introduction: str = ""
    answer_scope: str = ""
    refusal_policy: str = ""

    @property
    def without_effect(self) -> tuple[str, ...]:
        """The changed settings that only the other value of `steps` uses."""
        others, usual = _OF_OTHERS[self.steps], AnsweringOptions()
        return tuple(name for name in others if getattr(self, name) != getattr(usual, name))


_OF_OTHERS: Mapping[str, tuple[str, ...]] = {
    "fused": ("max_sources", "require_citations", "max_index_chars", "max_source_chars"),
    "separate": ("verify", "max_passage_chars"),
}
