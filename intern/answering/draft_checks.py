"""Checks of a draft, and the silence where it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from intern.answering.addresses import find_strange_urls
from intern.answering.grounding import check_grounding, is_unfounded
from intern.answering.prompts import ShownPassage, ShownSource
from intern.answering.question_work import QuestionWork
from intern.core.messages import AnswerResult, SilenceReason
from intern.core.text.orders import has_prompt_injection
from intern.core.text.passages import remove_headings


class CheckedDraft(Struct, frozen=True, kw_only=True):
    """An answer, checked against its cited sources. With a `reason`, it must not be posted."""

    reason: SilenceReason
    text: str = ""
    cited: tuple[ShownSource, ...] = ()
    urls: tuple[str, ...] = ()
    """Addresses that no source with a found quote contains."""
    strange: tuple[str, ...] = ()
    """Commands and versions that no source with a found quote contains."""
    suspicions: tuple[str, ...] = ()
    """These commands and versions, and numbers and other code, for the verifying model."""
    quotes: tuple[tuple[ShownPassage, str], ...] = ()
    """The quoted lines behind it, each with its passage. Of `fused` only, as are the next fields."""
    quoted: float = 1.0
    """The share of the quotes that the passages hold."""
    unnamed: tuple[str, ...] = ()
    """Names in the question that no passage contains, for the second call."""
    is_near: bool = True
    """Whether its quotes are so near to the question that rules would answer with them, as far as is known."""


def check_draft(
    work: QuestionWork, text: str, cited: Sequence[ShownSource], vouching: Sequence[ShownSource], *, is_cited: bool
) -> CheckedDraft:
    """Check an answer as far as code can. It may take a while, because answers and sources are untrusted text.

    `vouching` are the sources of the found quotes: an answer may take links, commands and numbers from these.
    """
    texts = [remove_headings(source.trusted_text) for source in vouching]
    conversation = (work.asked.question, work.asked.history)
    urls = find_strange_urls(text, texts, [source.url for source in vouching if source.url])
    held = check_grounding(text, texts, conversation)
    shown = [f"{source.text}\n{source.said or ''}" for source in vouching or cited]
    is_own = bool(shown) and is_unfounded(text, shown, conversation)
    reason: SilenceReason = ""
    if not text:
        reason = "no_answer"
    elif len(text) > work.options.max_answer_chars:
        reason = "too_long"
    elif not is_cited:
        reason = "no_citations"
    elif urls or is_own or has_prompt_injection(text) or (work.options.strict_grounding and held.strange):
        reason = "ungrounded"
    return CheckedDraft(
        reason=reason,
        text=text,
        cited=tuple(cited),
        urls=tuple(urls),
        strange=held.strange,
        suspicions=(*held.strange, *held.suspicions),
    )


def has_strange_parts(text: str, texts: Sequence[str]) -> bool:
    """Return whether a text contains an address, a command or a version that none of these texts contains."""
    return bool(find_strange_urls(text, texts, ()) or check_grounding(text, texts, ()).strange)


REFUSALS: Mapping[str, SilenceReason] = {
    "chatter": "not_a_question",
    "out_of_scope": "not_answerable",
    "unclear": "not_answerable",
    "not_covered": "no_answer",
}
"""The reasons for silence by a model's kind of a message."""


def make_silence(reason: SilenceReason) -> AnswerResult:
    """Make a result without an answer, with the reason."""
    return AnswerResult(should_reply=False, reason=reason)
