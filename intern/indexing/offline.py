"""Descriptions without a model: titles, headings, questions, and the terms that a text is most about.

An entry is found by its words, so it holds as many telling ones as fit. Deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from intern.domain import TopicBlock
from intern.indexing.material import shortened, topic_material
from intern.indexing.prompts import SUMMARIZE_SOURCE, SUMMARIZE_TOPIC, SummarizeIn, SummarizeOut
from intern.indexing.provisional import describe_source
from intern.text.passages import passages
from intern.text.words import key_terms, word_set, words

_LENGTH = 600
"""Characters of a description."""
_LEAD = 200
_LIST = 200
_QUESTION = 100
_QUESTIONS = 400
_MATERIAL = 4000


def summarize_source(given: SummarizeIn) -> SummarizeOut:
    """The beginning of the document, its headings, and its key terms."""
    headings = [piece.heading.rpartition(" > ")[2] for piece in passages(given.text, _LENGTH)]
    lead = shortened(describe_source(given.text), _LEAD)
    covers = _listed((heading for heading in headings if heading and heading not in lead), _LIST)
    return SummarizeOut(description=_with_terms([lead, f"Covers: {covers}." if covers else ""], given.text))


def summarize_topic(given: SummarizeIn) -> SummarizeOut:
    """The questions, newest first, and the key terms of questions and answers."""
    conversations = given.text.split("\n\n")
    asked = [_first(conversation, "User: ") for conversation in conversations]
    questions = _listed((shortened(question, _QUESTION) for question in reversed(asked) if question), _QUESTIONS)
    said = "\n".join(line[len("User: ") :] for line in given.text.split("\n"))
    lead = f"Questions such as: {questions}" if questions else ""
    # The questions twice: later questions are more like them than like the answers.
    return SummarizeOut(description=_with_terms([lead], "\n".join([*asked, said])))


def describe_by_rules(blocks: Sequence[TopicBlock]) -> str:
    """What `summarize_topic` says of a topic with these blocks."""
    return summarize_topic(SummarizeIn(source_id="team:", text=topic_material(blocks, _MATERIAL))).description


RULES: dict[str, Callable[[Any], Any]] = {
    SUMMARIZE_SOURCE.name: summarize_source,
    SUMMARIZE_TOPIC.name: summarize_topic,
}
"""For `OfflineModel`."""


def _first(conversation: str, speaker: str) -> str:
    """The first line of that speaker."""
    lines = (line for line in conversation.split("\n") if line.startswith(speaker))
    return next(lines, "").removeprefix(speaker)


def _listed(items: Iterable[str], max_chars: int) -> str:
    """The distinct items that fit, in their order."""
    kept: list[str] = []
    for item in dict.fromkeys(items):
        if sum(len(other) + 2 for other in kept) + len(item) <= max_chars:
            kept.append(item)
    return "; ".join(kept)


def _with_terms(parts: Iterable[str], text: str) -> str:
    """The parts, and as many key terms of the text as fit that the parts do not hold yet."""
    said = " ".join(part for part in parts if part)
    held = word_set(said)
    terms = ""
    for term in key_terms(text, 200):
        if held.isdisjoint(words(term)) and len(said) + len(terms) + len(term) + len(" Key terms: , .") <= _LENGTH:
            terms += f", {term}" if terms else term
    return " ".join(part for part in (said, f"Key terms: {terms}." if terms else "") if part) or "No text."
