"""Ask the model for the topic of a pair, or how to split a long topic; and the rules of learning without a model.

The replies are checked. A pair gets an existing topic, a new one, or none. A split moves some blocks of the topic, but
not all, to a topic with a valid name.

The rules name topics by key terms and notice repetitions. They are deterministic, and keep nearly everything: without
understanding, a needless block costs less than a lost one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol

import anyio.to_thread
from structlog.contextvars import bound_contextvars

from intern.core import errors
from intern.core.flow import FailedChoice, SkipChoice, TopicChoice
from intern.core.ids import QAId, SourceId, TopicName
from intern.core.log import get_logger
from intern.core.records import CapturedPair, IndexEntry, PairDecision, TopicBlock, extract_question
from intern.core.text.masking import remove_masks
from intern.core.text.patterns import regex
from intern.core.text.words import (
    MAX_LENGTH,
    PLEASANTRIES,
    collapse_whitespace,
    find_key_terms,
    make_topic_name,
    stem_set,
    stem_words,
    truncate_text,
)
from intern.facts.prompts import EXTRACT, ExtractIn, ExtractOut, FactOut, NuggetOut
from intern.learning import prompts
from intern.models.prompt import Model
from intern.stores.blocks import parse_topic_file, qa_id_time, qa_id_times
from intern.stores.library import parse_index, topic_id

_log = get_logger(__name__)

Choice = TopicChoice | SkipChoice | FailedChoice

OF_ONE_PAIR: tuple[type[errors.ModelError], ...] = (errors.ModelReplyError, errors.ModelRefusedError)
"""Errors that concern one pair, so the next pair may succeed. All other model errors are outages."""

# The first matching kind counts, so subclasses come first.
_FAILURES: tuple[tuple[type[errors.ModelError], str], ...] = (
    (
        errors.ModelPromptTooLongError,
        "the prompt of {} does not fit into what the model takes; the log says what to lower",
    ),
    (errors.ModelBudgetTooSmallError, "a call of {} fits into no day's budget; the log says what to raise"),
    (errors.ModelSchemaError, "the model cannot hold its reply to the form of {}; the log says what to set"),
    (errors.ModelRefusedError, "the model refused {}; the log holds its words"),
    (errors.ModelReplyCutError, "the model's reply to {} was cut off by length; the log says which setting bounds it"),
    (errors.ModelReplyError, "the model's reply did not fit {}; the log says how"),
    (errors.ModelError, "the model could not do {}; the log says why"),
)


class AttemptsExhausted(FailedChoice, frozen=True, kw_only=True):
    """All attempts at the pair crashed. It is parked without another attempt, even if its conversation has a topic."""


MOST_ATTEMPTS = 3  # a pair that crashed the process this often will do so again


class AttemptCounter(Protocol):
    """Counts unfinished attempts at pairs (see `intern.stores.sqlite.work`)."""

    def begin(self, qa_id: QAId, /) -> Awaitable[int]:
        """Count an attempt on disk, and return the number of attempts with this one."""
        ...

    def clear(self, qa_id: QAId, /) -> Awaitable[None]:
        """Delete a pair's attempts, because none of them failed. Harmless without any."""
        ...

    def end(self, decision: PairDecision, /, *, again: bool = True) -> Awaitable[None]:
        """Note a decision. A parked pair is retried later, unless `again` is false."""
        ...


async def count_attempt(attempts: AttemptCounter, qa_id: QAId) -> AttemptsExhausted | None:
    """Count an attempt. Return the choice to give up if too many attempts did not end."""
    if await attempts.begin(qa_id) <= MOST_ATTEMPTS:
        return None
    _log.error("qa_pair_given_up", qa_id=qa_id, attempts=MOST_ATTEMPTS)
    return AttemptsExhausted(reason=f"{MOST_ATTEMPTS} attempts to file it did not finish: the process ended each time")


async def choose_topic(
    model: Model, pair: CapturedPair, entries: Mapping[SourceId, IndexEntry], options: prompts.LearningOptions
) -> TopicChoice | SkipChoice:
    """Ask the model under which topic to file a pair. `entries` is the team's index.

    Topics are compared by their slugs, so the model's spelling does not matter. Raises the ModelError family;
    ModelReplyError for a reply that neither skips nor names a topic, or that contradicts itself.
    """
    topics = tuple(entries.values())
    # In a thread: ranking ten thousand topics would delay heartbeats.
    query = prompts.join_texts(pair.turns)
    index = await anyio.to_thread.run_sync(prompts.render_index, topics, query, options.max_index_chars)
    given = prompts.ClassifyIn(
        index=index, pair=prompts.render_block(prompts.build_block(pair), options.max_pair_chars)
    )
    with bound_contextvars(qa_id=pair.qa_id):
        choice = _parse_choice(await model.ask(prompts.CLASSIFY, given))
    topic: dict[str, object] = {}
    if isinstance(choice, TopicChoice):
        topic = {"topic_name": choice.name, "is_new": topic_id(choice.name) not in entries}
    _log.info("topic_classified", qa_id=pair.qa_id, skip=not topic, **topic)
    return choice


def _parse_choice(out: prompts.ClassifyOut) -> TopicChoice | SkipChoice:
    if out.contradiction:
        raise errors.ModelReplyError(f"classify contradicts itself: {out.contradiction}")
    if out.skip:
        return SkipChoice(reason="the classifier found nothing in it that could guide a future answer")
    try:
        return TopicChoice(name=make_topic_name(out.topic_name))
    except ValueError as error:
        raise errors.ModelReplyError(f"classify neither skips the pair nor names its topic: {error}") from error


# The beginning of a question needs no more characters than this…
_LONGEST_QUESTION = 160
# …and says nothing with fewer than this.
_SHORTEST_QUESTION = 40


class TopicSplit(NamedTuple):
    """The checked split of a topic."""

    name: TopicName
    """The proposed name of the new topic; see `free_name`."""
    moves: tuple[QAId, ...]
    """The blocks that move to it."""


async def choose_split(
    model: Model, topic: TopicName, blocks: Sequence[TopicBlock], options: prompts.LearningOptions
) -> TopicSplit:
    """Ask the model how to split a topic.

    The prompt is bounded: of too many blocks, only some are shown, and the others stay. Raises the ModelError family;
    ModelReplyError for a reply that moves nothing or everything, or that names no topic.
    """
    outline = await anyio.to_thread.run_sync(format_outline, blocks, options.max_outline_chars)
    reply = await model.ask(prompts.SPLIT_TOPIC, prompts.SplitIn(topic=topic, questions=outline))
    return _parse_split(reply, topic, blocks)


def free_name(name: TopicName, taken: Collection[TopicName]) -> TopicName:
    """Return the name. If it is taken, append the first free number from 2."""
    if name not in taken:
        return name
    numbered = (TopicName(f"{name[: MAX_LENGTH - len(f'-{n}')].strip('-')}-{n}") for n in count(2))
    return next(each for each in numbered if each not in taken)


def format_outline(blocks: Sequence[TopicBlock], max_chars: int) -> str:
    """List the blocks, one a line: the id and the beginning of the question, cut so that all fit.

    Of too many blocks, every nth is listed, and at least two if there are two.
    """
    overhead = max((len(block.qa_id) for block in blocks), default=0) + len(" \n")
    most = max(max_chars // (overhead + _SHORTEST_QUESTION), 2)
    shown = [blocks[n * len(blocks) // most] for n in range(most)] if len(blocks) > most else list(blocks)
    limit = max(min(max_chars // max(len(shown), 1) - overhead, _LONGEST_QUESTION), 1)
    return "\n".join(
        f"{block.qa_id} {truncate_text(collapse_whitespace(extract_question(block.turns)), limit)}" for block in shown
    )


def _parse_split(reply: prompts.SplitOut, topic: TopicName, blocks: Sequence[TopicBlock]) -> TopicSplit:
    try:
        name = make_topic_name(reply.topic_name)
    except ValueError as error:
        raise errors.ModelReplyError(f"split_topic names no topic: {error}") from error
    ours = {qa_id_time(block.qa_id): block.qa_id for block in blocks}
    moves = tuple(dict.fromkeys(ours[time] for time in qa_id_times(reply.move_ids) if time in ours))
    if not moves or len(moves) == len(ours):
        done = f"of {len(ours)}, it moves {len(moves)}"
        raise errors.ModelReplyError(f"split_topic must leave some blocks in {topic} and move others: {done}")
    return TopicSplit(name, moves)


def describe_failure(prompt_name: str, error: errors.ModelError) -> FailedChoice:
    """Return the lasting record of a failure: its kind only. The error's text goes into the log.

    An error may quote the reply, and a reply may quote messages. Decisions are never rewritten, so they must not hold
    texts that may have to be forgotten.
    """
    return FailedChoice(reason=next(words for kind, words in _FAILURES if isinstance(error, kind)).format(prompt_name))


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

_MESSAGE = regex(r"(?P<id>\w+) \w+ \((?P<role>\w+)\): (?P<text>.*)")
_EXISTING = regex(r"(?P<id>\w+) \S+ \S+ (?P<text>.*)")
_DECIDED = regex(
    r"(?i)\b(?:we(?:'ve| have)? (?:decided|agreed|settled on|will no longer|no longer|are dropping|dropped)|from now on"
    r"|as of (?:now|today|version)|(?:is|are|was|were) (?:now )?(?:deprecated|discontinued))\b",
)
_SENTENCE_END = regex(r"(?<=[.!?])\s+|\n+")
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
    said = ((message.id, each.strip()) for message in answers for each in _SENTENCE_END.split(message.text))
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
