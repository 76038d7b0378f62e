"""The rules of learning without a model: they name topics by key terms and notice repetitions.

They are deterministic, and keep nearly everything: without understanding, a needless block costs less than a lost one.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from intern.core.captures import TopicBlock, extract_question
from intern.core.knowledge import IndexEntry
from intern.core.text.masking import remove_masks
from intern.core.text.topic_names import make_topic_name
from intern.core.text.words import (
    PLEASANTRIES,
    find_key_terms,
    split_sentences,
    stem_set,
    stem_words,
    truncate_text,
)
from intern.facts.prompts import EXTRACT, ExtractIn, ExtractOut, FactOut, NuggetOut
from intern.learning import prompts
from intern.stores.block_format import parse_topic_file
from intern.stores.source_cache import parse_index

_NAME_TERMS = 3  # enough to describe ("gpu-driver-docker"), and two questions about one thing still get one name
_JOIN_AT = 0.6  # the share of a question's words that a topic's entry must have…
_JOIN_WORDS = 2  # …and their number, or one word like "install" would join everything
_SAME_QUESTION = 0.85  # Jaccard of the words
_SAME_ANSWER = 0.85
_TELLING_WORDS = 4  # a shorter question ("does it work now?") may mean anything
_SUMMARY_CHARS = 300
_ANALYSIS_CHARS = 4000
_KEYWORDS = 8
_MOST_DECISIONS = 3

_MESSAGE = re.compile(r"(?P<id>\w+) \w+ \((?P<role>\w+)\): (?P<text>.*)")
_EXISTING = re.compile(r"(?P<id>\w+) \S+ \S+ (?P<text>.*)")
_DECIDED = re.compile(
    r"(?i)\b(?:we(?:'ve| have)? (?:decided|agreed|settled on|will no longer|no longer|are dropping|dropped)|from now on"
    r"|as of (?:now|today|version)|(?:is|are|was|were) (?:now )?(?:deprecated|discontinued))\b",
)
_DECISION_CHARS = range(20, 300)


def classify(given: prompts.ClassifyIn) -> prompts.ClassifyOut:
    """Choose the topic whose entry has the question's words, else a new one. Skip pairs without content."""
    pair = _parse_block(given.pair)
    question, answer = extract_question(pair.turns), prompts.team_text(pair.turns)
    if (
        len({word for word in stem_words(f"{question}\n{answer}") if word not in PLEASANTRIES}) < 2
        or not answer.strip()
    ):
        return prompts.ClassifyOut(skip=True, topic_name="")
    known = _find_topic(question, parse_index(given.index))
    return prompts.ClassifyOut(skip=False, topic_name=known or _make_topic_name(question, answer))


def integrate(given: prompts.IntegrateIn) -> prompts.IntegrateOut:
    """Skip a known answer; remove an older answer to nearly the same question."""
    pair = _parse_block(given.pair)
    question, answer = extract_question(pair.turns), prompts.team_text(pair.turns)
    blocks = parse_topic_file(f"{given.blocks}\n\n".encode(), file=given.topic).blocks
    alike = [
        block for block in blocks if _compute_similarity(extract_question(block.turns), question) >= _SAME_QUESTION
    ]
    if any(_compute_similarity(prompts.team_text(block.turns), answer) >= _SAME_ANSWER for block in alike):
        return prompts.IntegrateOut(skip=True, remove_ids=())
    is_telling, age = len(stem_set(question)) >= _TELLING_WORDS, prompts.answer_time(pair)
    older = [block.qa_id for block in alike if is_telling and prompts.answer_time(block) < age]
    return prompts.IntegrateOut(skip=False, remove_ids=tuple(older))


def split_topic(given: prompts.SplitIn) -> prompts.SplitOut:
    """Move the questions with the word that splits them most evenly; without such a word, the newer half."""
    questions = [(qa_id, text) for qa_id, _, text in (line.partition(" ") for line in given.questions.splitlines())]
    held = [stem_set(text) for _, text in questions]
    counts = Counter(word for each in held for word in each)
    parting = [word for word, number in counts.items() if number < len(questions)]
    word = min(parting, key=lambda word: (abs(2 * counts[word] - len(questions)), word), default="")
    newer = len(questions) // 2
    moved = [each for n, each in enumerate(questions) if (word in held[n] if word else n >= newer)]
    text = "\n".join(text for _, text in moved)
    return prompts.SplitOut(topic_name=_make_topic_name(text, given.topic), move_ids=tuple(qa_id for qa_id, _ in moved))


def summarize_images(given: prompts.ImagesIn) -> prompts.ImagesOut:
    """Return no descriptions: rules cannot see."""
    del given
    return prompts.ImagesOut(summaries=())


def extract(given: ExtractIn) -> ExtractOut:
    """Make one nugget of question and answer, and facts of sentences that state a decision."""
    said = _parse_transcript(given.transcript)
    first_answer = next((n for n, each in enumerate(said) if each.role == "team"), len(said))
    asked = said[:first_answer] or [each for each in said if each.role != "team"]
    answers = [each for each in said if each.role == "team"]
    question, answer = ("\n".join(each.text for each in part).strip() for part in (asked, answers))
    if len({word for word in stem_words(answer) if word not in PLEASANTRIES}) < _TELLING_WORDS:
        return ExtractOut(nuggets=(), facts=())
    terms = [term for term in find_key_terms(question or answer, 12) if not PLEASANTRIES.issuperset(stem_words(term))]
    nugget = NuggetOut(
        topic=" ".join((terms or find_key_terms(answer, _NAME_TERMS))[:_NAME_TERMS]) or "untitled",
        topic_summary=truncate_text(" ".join((question or answer).split()), _SUMMARY_CHARS),
        detailed_analysis=truncate_text(answer, _ANALYSIS_CHARS),
        status="FACT",
        keywords=tuple(find_key_terms(f"{question}\n{answer}", _KEYWORDS)),
        source_message_ids=tuple(each.id for each in (*asked, *answers)),
    )
    return ExtractOut(nuggets=(nugget,), facts=tuple(_find_decisions(answers, given.existing_facts)))


RULES: dict[str, Callable[[Any], Any]] = {
    prompts.CLASSIFY.name: classify,
    prompts.INTEGRATE.name: integrate,
    prompts.SPLIT_TOPIC.name: split_topic,
    prompts.SUMMARIZE_IMAGES.name: summarize_images,
    EXTRACT.name: extract,
}
"""The rules of `OfflineModel`, by prompt."""


def _parse_block(material: str) -> TopicBlock:
    [block] = parse_topic_file(f"{material}\n\n".encode(), file="pair").blocks
    return block


def _find_topic(question: str, entries: Iterable[IndexEntry]) -> str:
    asked = stem_set(question)
    best, best_share = "", 0.0
    for entry in entries:
        shared = asked & stem_set(f"{entry.source_id[5:-4]}\n{entry.description}")
        share = len(shared) / len(asked) if asked else 0.0
        if len(shared) >= _JOIN_WORDS and share >= _JOIN_AT and share > best_share:
            best, best_share = entry.source_id, share
    return best


def _make_topic_name(question: str, answer: str) -> str:
    terms = [
        term for term in find_key_terms(remove_masks(question), 12) if not PLEASANTRIES.issuperset(stem_words(term))
    ]
    label = "-".join((terms or find_key_terms(answer, _NAME_TERMS))[:_NAME_TERMS])
    try:
        return make_topic_name(label)
    except ValueError:
        # Scripts without Latin letters: a hash, so that the same terms get the same name.
        return f"topic-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def _compute_similarity(one: str, other: str) -> float:
    """Jaccard similarity: the share of common words. Without words, only equal texts are similar."""
    ours, theirs = stem_set(one), stem_set(other)
    if not ours or not theirs:
        return float(one.strip() == other.strip())
    return len(ours & theirs) / len(ours | theirs)


class _TranscriptMessage(NamedTuple):
    id: str
    role: str
    text: str


def _parse_transcript(transcript: str) -> list[_TranscriptMessage]:
    """Parse the messages of people, oldest first, with their continuation lines."""
    said: list[_TranscriptMessage] = []
    for line in transcript.split("\n"):
        if line.startswith("  ") and said:
            said[-1] = said[-1]._replace(text=f"{said[-1].text}\n{line[2:]}")
        elif found := _MESSAGE.fullmatch(line):
            said.append(_TranscriptMessage(found["id"], found["role"], found["text"]))
    return [each for each in said if each.role in {"team", "member"}]


def _find_decisions(answers: Iterable[_TranscriptMessage], existing: str) -> Iterable[FactOut]:
    known = [found for line in existing.split("\n") if (found := _EXISTING.fullmatch(line))]
    said = ((message.id, each) for message in answers for each in split_sentences(message.text))
    stated = [(each, text) for each, text in said if len(text) in _DECISION_CHARS and _DECIDED.search(text)]
    for message_id, sentence in stated[:_MOST_DECISIONS]:
        same = [found["id"] for found in known if _compute_similarity(found["text"], sentence) >= _SAME_ANSWER]
        yield FactOut(
            category="decision",
            content=sentence,
            summary=truncate_text(sentence, 100),
            visibility="shared",
            confidence=0.5,
            sentiment="neutral",
            duplicate_of=same[0] if same else "",
            supersedes="",
            note="",
            source_message_ids=(message_id,),
        )
