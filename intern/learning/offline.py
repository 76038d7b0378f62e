"""Learn without a model: rules name topics by key terms and notice repetitions. Deterministic.

They keep nearly everything: without understanding, a needless block costs less than a lost one.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from intern.core.records import IndexEntry, TopicBlock, question_of
from intern.core.text.words import key_terms, topic_name, word_set, words
from intern.facts.distilling import shortened
from intern.facts.prompts import EXTRACT, ExtractIn, ExtractOut, FactOut, NuggetOut
from intern.learning.material import age_of, answer_of
from intern.learning.prompts import (
    CLASSIFY,
    INTEGRATE,
    SPLIT_TOPIC,
    SUMMARIZE_IMAGES,
    ClassifyIn,
    ClassifyOut,
    ImagesIn,
    ImagesOut,
    IntegrateIn,
    IntegrateOut,
    SplitIn,
    SplitOut,
)
from intern.stores.blocks import parse_blocks
from intern.stores.library import parse_index

# Words without content, beside the stop words.
_PLEASANTRIES = frozenset(
    words(
        "hello hallo hola hey hi yo morning evening afternoon night day good nice great cool awesome perfect amazing "
        "bye goodbye cheers welcome sorry thank thanks thx ty np lol haha hmm ah oh wow ping question ask "
        "guys folks team everyone everybody dear sir mate friend problem worries pleasure happy glad love lovely"
    )
)
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
    r"\b(?:we(?:'ve| have)? (?:decided|agreed|settled on|will no longer|no longer|are dropping|dropped)|from now on"
    r"|as of (?:now|today|version)|(?:is|are|was|were) (?:now )?(?:deprecated|discontinued))\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_DECISION_CHARS = range(20, 300)


def classify(given: ClassifyIn) -> ClassifyOut:
    """Choose the topic whose entry has the question's words, else a new one. Skip pairs without content."""
    pair = _block(given.pair)
    question, answer = question_of(pair.turns), answer_of(pair.turns)
    if len({word for word in words(f"{question}\n{answer}") if word not in _PLEASANTRIES}) < 2 or not answer.strip():
        return ClassifyOut(skip=True, topic_name="")
    known = _topic_to_join(question, parse_index(given.index))
    return ClassifyOut(skip=False, topic_name=known or _new_name(question, answer))


def integrate(given: IntegrateIn) -> IntegrateOut:
    """Skip a known answer; remove an older answer to nearly the same question."""
    pair = _block(given.pair)
    alike = [
        block
        for block in parse_blocks(f"{given.blocks}\n\n".encode(), file=given.topic).blocks
        if _likeness(question_of(block.turns), question_of(pair.turns)) >= _SAME_QUESTION
    ]
    if any(_likeness(answer_of(block.turns), answer_of(pair.turns)) >= _SAME_ANSWER for block in alike):
        return IntegrateOut(skip=True, remove_ids=())
    if len(word_set(question_of(pair.turns))) < _TELLING_WORDS:
        return IntegrateOut(skip=False, remove_ids=())
    return IntegrateOut(skip=False, remove_ids=tuple(block.qa_id for block in alike if age_of(block) < age_of(pair)))


def split_topic(given: SplitIn) -> SplitOut:
    """Move the questions with the word that splits them most evenly; without such a word, the newer half."""
    questions = [(qa_id, text) for qa_id, _, text in (line.partition(" ") for line in given.questions.splitlines())]
    held = [word_set(text) for _, text in questions]
    counts = Counter(word for each in held for word in each)
    parting = [word for word, number in counts.items() if number < len(questions)]
    word = min(parting, key=lambda word: (abs(2 * counts[word] - len(questions)), word), default="")
    newer = len(questions) // 2
    moved = [each for n, each in enumerate(questions) if (word in held[n] if word else n >= newer)]
    text = "\n".join(text for _, text in moved)
    return SplitOut(topic_name=_new_name(text, given.topic), move_ids=tuple(qa_id for qa_id, _ in moved))


def summarize_images(given: ImagesIn) -> ImagesOut:
    """Return no descriptions: rules cannot see."""
    del given
    return ImagesOut(summaries=())


def extract(given: ExtractIn) -> ExtractOut:
    """Make one nugget of question and answer, and facts of sentences that state a decision."""
    said = _messages(given.transcript)
    first_answer = next((n for n, each in enumerate(said) if each.team), len(said))
    asked = [each for each in said[:first_answer] if not each.team] or [each for each in said if not each.team]
    answers = [each for each in said if each.team]
    question, answer = ("\n".join(each.text for each in part).strip() for part in (asked, answers))
    if len({word for word in words(answer) if word not in _PLEASANTRIES}) < _TELLING_WORDS:
        return ExtractOut(nuggets=(), facts=())
    terms = [term for term in key_terms(question or answer, 12) if not _PLEASANTRIES.issuperset(words(term))]
    nugget = NuggetOut(
        topic=" ".join((terms or key_terms(answer, _NAME_TERMS))[:_NAME_TERMS]) or "untitled",
        topic_summary=shortened(" ".join((question or answer).split()), _SUMMARY_CHARS),
        detailed_analysis=shortened(answer, _ANALYSIS_CHARS),
        status="FACT",
        keywords=tuple(key_terms(f"{question}\n{answer}", _KEYWORDS)),
        source_message_ids=tuple(each.id for each in (*asked, *answers)),
    )
    return ExtractOut(nuggets=(nugget,), facts=tuple(_decisions(answers, given.existing_facts)))


RULES: dict[str, Callable[[Any], Any]] = {
    CLASSIFY.name: classify,
    INTEGRATE.name: integrate,
    SPLIT_TOPIC.name: split_topic,
    SUMMARIZE_IMAGES.name: summarize_images,
    EXTRACT.name: extract,
}
"""The rules of `OfflineModel`."""


def _block(material: str) -> TopicBlock:
    [block] = parse_blocks(f"{material}\n\n".encode(), file="pair").blocks
    return block


def _topic_to_join(question: str, entries: Iterable[IndexEntry]) -> str:
    asked = word_set(question)
    best, best_share = "", 0.0
    for entry in entries:
        shared = asked & word_set(f"{entry.source_id[5:-4]}\n{entry.description}")
        share = len(shared) / len(asked) if asked else 0.0
        if len(shared) >= _JOIN_WORDS and share >= _JOIN_AT and share > best_share:
            best, best_share = entry.source_id, share
    return best


def _new_name(question: str, answer: str) -> str:
    terms = [term for term in key_terms(question, 12) if not _PLEASANTRIES.issuperset(words(term))]
    label = "-".join((terms or key_terms(answer, _NAME_TERMS))[:_NAME_TERMS])
    try:
        return topic_name(label)
    except ValueError:
        # Scripts without Latin letters: a hash, so that the same terms get the same name.
        return f"topic-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def _likeness(one: str, other: str) -> float:
    """Jaccard similarity: the share of common words. Without words, only equal texts are similar."""
    ours, theirs = word_set(one), word_set(other)
    if not ours or not theirs:
        return float(one.strip() == other.strip())
    return len(ours & theirs) / len(ours | theirs)


class _Message(NamedTuple):
    id: str
    role: str
    text: str

    @property
    def team(self) -> bool:
        return self.role == "team"


def _messages(transcript: str) -> list[_Message]:
    """Parse the messages of people, oldest first, with their continuation lines."""
    said: list[_Message] = []
    for line in transcript.split("\n"):
        if line.startswith("  ") and said:
            said[-1] = said[-1]._replace(text=f"{said[-1].text}\n{line[2:]}")
        elif found := _MESSAGE.fullmatch(line):
            said.append(_Message(found["id"], found["role"], found["text"]))
    return [each for each in said if each.role in {"team", "member"}]


def _decisions(answers: Iterable[_Message], existing: str) -> Iterable[FactOut]:
    known = [found for line in existing.split("\n") if (found := _EXISTING.fullmatch(line))]
    stated = [
        (message.id, sentence.strip())
        for message in answers
        for sentence in _SENTENCE_END.split(message.text)
        if len(sentence.strip()) in _DECISION_CHARS and _DECIDED.search(sentence)
    ]
    for message_id, sentence in stated[:_MOST_DECISIONS]:
        same = [found["id"] for found in known if _likeness(found["text"], sentence) >= _SAME_ANSWER]
        yield FactOut(
            category="decision",
            content=sentence,
            summary=shortened(sentence, 100),
            visibility="shared",
            confidence=0.5,
            sentiment="neutral",
            duplicate_of=same[0] if same else "",
            supersedes="",
            note="",
            source_message_ids=(message_id,),
        )
