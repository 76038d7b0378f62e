"""Checks of a draft by code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from intern.answering.addresses import find_strange_urls
from intern.answering.grounding import check_grounding, is_unfounded
from intern.answering.prompts import ShownSource
from intern.answering.steps import CheckedDraft, QuestionWork
from intern.core.messages import SilenceReason
from intern.core.text.orders import has_prompt_injection
from intern.core.text.passages import remove_headings


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
    silence: SilenceReason = ""
    if not text:
        silence = "no_answer"
    elif len(text) > work.options.max_answer_chars:
        silence = "too_long"
    elif not is_cited:
        silence = "no_citations"
    elif urls or is_own or has_prompt_injection(text) or (work.options.strict_grounding and held.strange):
        silence = "ungrounded"
    return CheckedDraft(
        silence=silence,
        text=text,
        cited=tuple(cited),
        urls=tuple(urls),
        strange=held.strange,
        suspicions=(*held.strange, *held.suspicions),
    )


REFUSALS: Mapping[str, SilenceReason] = {
    "chatter": "not_a_question",
    "out_of_scope": "not_answerable",
    "unclear": "not_answerable",
    "not_covered": "no_answer",
}
"""The reasons for silence by a model's kind of a message."""
