"""Answers without a model: word statistics pick the sources, and what they say is quoted as it stands.

It understands nothing, so it is strict: it speaks where a passage holds most of what is telling in a question, and is
silent otherwise. Deterministic. Thresholds were set on the questions in `tests/answering/test_offline.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import mul
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from intern.answering.citable import is_team
from intern.answering.deciding import (
    CONFIRM,
    DECIDE,
    MAX_LINE,
    Claim,
    Confirmation,
    ConfirmIn,
    DecideIn,
    Decision,
    Quote,
)
from intern.answering.excerpts import Excerpt, excerpts
from intern.answering.prompts import (
    ANSWER,
    GATE,
    SELECT,
    VERIFY,
    AnswerIn,
    Draft,
    GateDecision,
    GateIn,
    SelectIn,
    Selection,
    ShownSource,
    Verification,
    VerifyIn,
)
from intern.answering.quoting import holds
from intern.answering.retrieving import Shown
from intern.answering.selecting import entry_words
from intern.errors import ModelError
from intern.observe.log import get_logger
from intern.search.finding import Embedder
from intern.text.markup import without_markup
from intern.text.passages import GAP, passages
from intern.text.words import Rarity, word_set, words

NOTE = "(offline mode: quoted from the sources)"
"""Stands below each answer."""

# The least share of what is telling in a question that must stand in a description (a summary lacks much of its
# source), and in the passage that is quoted.
_DESCRIBED = 0.2
_ANSWERED = 0.42
# What the team said is worth a little more than what fits as well.
_TEAM = 1.15
_UNSEEN = 10
# What any question about software may say.
_BLAND = frozenset(
    words(
        "add allow ask best change check correct create different enable error example explain find fine fix good idea "
        "issue log look make mean new possible problem question right run set show start stop support system "
        "turn work wrong"
    )
)
_BLAND_WEIGHT = 0.4
# Of a source that the text search ranks, its place there counts for 1 and that by its description for this much.
_BY_DESCRIPTION = 0.6
_PLACE = 8  # the first two places of an order differ by a ninth
# How good documentation must be, beside a team answer that fits best, to be read as well; and the other way round.
_NEAR_BEST = 0.8
# Short enough to be read in a chat, long enough for a paragraph with its code.
_QUOTE_CHARS = 500
_MOST_SAID = 2500  # characters of a team answer that is quoted
_TURN = re.compile(r"^(Team|User): (.*?)(?=^(?:User|Team): )", re.MULTILINE | re.DOTALL)
_CONFIDENCE = re.compile(r"\n\(confidence [^\n]*\)\Z")  # for a model to weigh

# What is quoted is what comes nearest to the question in meaning (a cosine of the bundled embedder) and words.
_WORDS = 0.5
_SURE_WORDS = 0.2
_ENOUGH = 0.57
_ENOUGH_WORDS = 0.62
# Added to the threshold for a message that is not addressed to the bot, and for one with a name that no passage has.
_UNASKED = 0.05
_STRANGE = 0.15
# A word with a capital that does not begin a sentence.
_NAME = re.compile(r"(?<![.!?:]\s)(?<!^)\b[^\W\d_]\w+")
# Whom a message calls tells nothing of what it asks.
_MENTION = re.compile(r"(?<!\w)@\w[\w.-]*")
_REMEMBERED = 2000  # vectors, of 1.5 kB each
_FENCE = "```"

_ASKING = re.compile(
    r"""[?？؟]
    | (^|[.!,;:]\s)\W{0,5}(how|what|why|where|when|which|who|whose)\b
    | \b(how|what|why|where|when|which|who)\ (to|do|does|did|can|could|should|would|is|are|many|much|long|often)\b
    | ^\W{0,5}(is|are|was|were|do|does|did|can|could|would|should|will|has|have|may|any(one|body)?)\b
    | \b((can|could|does|do|did|is|are|was|wo|would|has)(n['’]?t|\ not|not)|unable\ to|fail(s|ed|ing)?)\b
    | \b(errors?|exception|traceback|crash(es|ed|ing)?|stuck|broken|refuse[sd]?|no\ idea|help|problems?|issues?)\b
    | \b(need|want|looking|trying|tried)\ (to|for)\b
    """,
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)
_THANKS = re.compile(r"\W*(many\ )?(thanks|thank you|thx|ty|cheers|great|perfect|never ?mind|solved)\b", re.IGNORECASE)


def gate(given: GateIn) -> GateDecision:
    """A question by its mark, its words, or because somebody tells the bot something telling."""
    telling = words(given.question)
    thanks = _THANKS.match(given.question) and "?" not in given.question
    asks = bool(_ASKING.search(given.question)) or (given.addressed and len(telling) > 1)
    if asks and telling and not thanks:
        return GateDecision(reason="it reads like a question", kind="question")
    return GateDecision(reason="it does not read like a question", kind="chatter")


_log = get_logger(__name__)
_words_of = lru_cache(maxsize=1024)(entry_words)  # what is shown for one question is often shown for the next


def select(given: SelectIn) -> Selection:
    """The best source, and the best of the other kind (team answers, documentation) where it is nearly as good."""
    entries = given.entries
    fits = _fits(
        given.query or given.question,
        [_words_of(entry) for entry in entries],
        [is_team(entry.source_id) for entry in entries],
    )
    scores = _scores(given, fits)
    order = sorted(scores, key=lambda n: (-scores[n], not is_team(entries[n].source_id), n))
    kept = [n for n in order if scores[n] >= scores[order[0]] * _NEAR_BEST]
    best_of_kind = {is_team(entries[n].source_id): n for n in reversed(kept)}
    chosen = sorted(best_of_kind.values(), key=kept.index)
    return Selection(selected_source_ids=tuple(entries[n].source_id for n in chosen[: given.max_sources]))


def _scores(given: SelectIn, fits: Sequence[_Fit]) -> dict[int, float]:
    """The entries that may hold the answer. A text tells more than its description, where the texts were searched."""
    described = [n for n, fit in enumerate(fits) if fit.covered >= _DESCRIBED]
    if not given.ranked:
        return {n: fits[n].rank for n in described}
    described.sort(key=lambda n: -fits[n].rank)
    places = {source_id: place for place, source_id in enumerate(given.ranked)}
    scores = {n: _BY_DESCRIPTION / (_PLACE + place) for place, n in enumerate(described)}
    for n, entry in enumerate(given.entries):
        if entry.source_id in places:
            scores[n] = scores.get(n, 0.0) + 1 / (_PLACE + places[entry.source_id])
    return scores


def answer(given: AnswerIn) -> Draft:
    """The passage or the team answer that holds most of what is telling in the question, word for word.

    It is of the best source, or the best of its kind, or of a fact; what ranks below is not quoted.
    """
    room = given.max_answer_chars - len(NOTE) - 2
    best_of_kind = {_kind(source.source_id): source for source in reversed(given.sources)}
    sources = [source for source in given.sources if source is best_of_kind[_kind(source.source_id)]]
    quotes = [quote for source in sources for quote in _quotes(source, room)]
    fits = _fits(
        given.query or given.question,
        [words(quote.about) for quote in quotes],
        [is_team(quote.citation) for quote in quotes],
    )
    fitting = [n for n, fit in enumerate(fits) if fit.covered >= _ANSWERED and 0 < len(quotes[n].text) <= room]
    if not fitting:
        return Draft(answer=None)
    # Of equals the later one: in a topic, it is the newer.
    best = quotes[max(fitting, key=lambda n: (fits[n].rank, is_team(quotes[n].citation), n))]
    return Draft(answer=f"{best.text}\n\n{NOTE}", citations=(best.citation,))


def verify(given: VerifyIn) -> Verification:
    """Each paragraph of the answer must stand in a source, but for white space and markup."""
    quoted = given.answer.removesuffix(NOTE).strip()
    texts = [_flat(text) for source in given.sources for text in (*_readings(source), source.said or "")]
    parts = [part for part in quoted.removesuffix(GAP.strip()).split("\n\n") if part.strip()]
    strange = [part for part in parts if not any(_flat(part.removesuffix(_FENCE)) in text for text in texts)]
    return Verification(
        is_good_enough=bool(quoted) and not strange,
        issues=tuple(f"this stands in no source: {_flat(part)[:200]}" for part in strange),
    )


class Deciding:
    """Decides by rules: with an embedder by what is meant, without one by words alone."""

    def __init__(self, embedder: Embedder | None = None) -> None:
        self._embedder = embedder
        self._vectors: dict[str, memoryview[float]] = {}

    async def decide(self, given: DecideIn) -> Decision:
        """Whether it is a question, and what of the passages comes nearest to an answer, word for word."""
        given = replace(given, question=_MENTION.sub(" ", given.question).strip())
        if gate(GateIn(question=given.question, history=given.history, addressed=given.addressed)).kind != "question":
            return Decision(quotes=(), kind="chatter", answer=None)
        quotables = [each for passage in given.passages for each in _quotables(passage)]
        if not quotables:
            return Decision(quotes=(), kind="not_covered", answer=None)
        alike = await self._likeness(given.question, [each.meaning for each in quotables])
        # What stands above it is part of its meaning; counted as words, too, it outweighs what is said.
        texts = [words(each.text if alike else each.meaning) for each in quotables]
        # What is shown was chosen by its words, so most of it may hold them; beside likeness, these tell too little.
        covered = [fit.covered for fit in _fits(given.question, texts, drops_common=alike is not None)]
        if alike is None:
            ranks, sure, enough = covered, covered, _ENOUGH_WORDS
        else:
            ranks = [like + _WORDS * share for like, share in zip(alike, covered, strict=True)]
            sure = [like + _SURE_WORDS * share for like, share in zip(alike, covered, strict=True)]
            enough = _ENOUGH
        enough += (0 if given.addressed else _UNASKED) + (_STRANGE if _has_strange_name(given) else 0)
        best = max(range(len(quotables)), key=lambda n: (ranks[n], -len(quotables[n].text)))
        if sure[best] < enough:
            return Decision(quotes=(), kind="not_covered", answer=None)
        chosen = quotables[best]
        return Decision(
            quotes=(Quote(source=chosen.passage.alias, line=chosen.line),),
            kind="answer",
            answer=f"{chosen.text}\n\n{NOTE}",
            citations=(chosen.passage.alias,),
        )

    async def _likeness(self, question: str, texts: Sequence[str]) -> list[float] | None:
        """The cosine of each text and the question; None without an embedder."""
        if self._embedder is None:
            return None
        wanted = dict.fromkeys((question, *texts))
        known = {text: self._vectors[text] for text in wanted if text in self._vectors}
        new = [text for text in wanted if text not in known]
        try:
            vectors = await self._embedder.embed(new) if new else ()
        except ModelError as error:
            _log.warning("offline_by_words_only", reason=str(error))
            return None
        known |= {text: memoryview(vector).cast("f") for text, vector in zip(new, vectors, strict=True)}
        asked = known.pop(question)
        likeness = [sum(map(mul, asked, known.get(text, asked))) for text in texts]
        for text, vector in known.items():
            self._vectors.pop(text, None)
            self._vectors[text] = vector
        while len(self._vectors) > _REMEMBERED:
            del self._vectors[next(iter(self._vectors))]
        return likeness


class _Quotable(Struct, frozen=True):
    """What can be quoted of a passage."""

    passage: Shown
    text: str
    line: str
    """Stands in the passage."""
    meaning: str
    """It, and what stands above it."""


def _quotables(passage: Shown) -> Iterator[_Quotable]:
    for each in _sayings(passage):
        lines = (line[:MAX_LINE] for line in each.text.split("\n"))
        line = next((line for line in lines if holds(passage.text, line)), None)
        if line is not None:
            above = each.heading or passage.title
            yield _Quotable(passage, each.text, line, f"{above}: {each.core}" if above else each.core)


def _sayings(passage: Shown) -> Sequence[Excerpt]:
    """What can be quoted. What the team says stands below what the user said."""
    if is_team(passage.source_id):
        turns = _TURN.findall(f"{passage.text}\nUser: ")
        asked, said = ([text.strip() for who, text in turns if who == wanted] for wanted in ("User", "Team"))
        whole = "\n\n".join(said)
        return (Excerpt(_beginning(whole, _MOST_SAID), " ".join(asked), whole),)
    text = _CONFIDENCE.sub("", passage.text) if _kind(passage.source_id) == "fact" else passage.vouched
    return excerpts(text)


def _has_strange_name(given: DecideIn) -> bool:
    """Whether the question names what no passage names: what holds for other things answers nothing about it."""
    known = "\n".join(f"{passage.title}\n{passage.text}" for passage in given.passages)
    held, lower = word_set(known), known.lower()
    names = {name for name in _NAME.findall(given.question) if name != name.lower()}
    return any(name.lower() not in lower and not word_set(name) <= held for name in names)


def confirm(given: ConfirmIn) -> Confirmation:
    """What is quoted word for word needs no second look: code has held each quote against its passage."""
    claims = tuple(Claim(claim="as quoted", quote=1) for _ in given.quotes[:1])
    return Confirmation(asked=given.question[:200], told="A quote, word for word.", verdict="answered", claims=claims)


def rules(embedder: Embedder | None = None) -> dict[str, Callable[[Any], Any]]:
    """For `OfflineModel`. What is sure enough is known of the bundled embedder alone."""
    return {
        GATE.name: gate,
        SELECT.name: select,
        ANSWER.name: answer,
        VERIFY.name: verify,
        DECIDE.name: Deciding(embedder).decide,
        CONFIRM.name: confirm,
    }


class _Quote(Struct, frozen=True):
    text: str
    about: str
    """What it is matched by: the quote, and what stands above it."""
    citation: str


class _Fit(Struct, frozen=True):
    covered: float
    """How much (0 to 1) of what is telling in the question the text holds: decides whether it is good enough."""
    rank: float
    """Among those that are, the most is best: a short text, and one that says a word again, fit better."""


def _fits(
    query: str, texts: Sequence[Sequence[str]], team: Sequence[bool] = (), *, drops_common: bool = True
) -> list[_Fit]:
    wanted = word_set(query)
    held = [Counter(text) for text in texts]
    # The question is a text too, so a word that is nowhere weighs little more than one that is somewhere; and the
    # empty ones keep a handful of texts from looking like all that could be said.
    rarity = Rarity([*held, wanted, *[()] * _UNSEEN])
    weights = {word: rarity.weight(word) * (_BLAND_WEIGHT if word in _BLAND else 1) for word in sorted(wanted)}
    # The product's name stands everywhere and tells nothing, unless it is all that was asked for.
    common = {word for word in wanted if len(held) > 3 and sum(word in text for text in held) > len(held) / 2}
    if drops_common and wanted - common:
        weights = {word: weight for word, weight in weights.items() if word not in common}
    total = sum(weights.values()) or 1.0
    usual = sum(map(len, texts)) / (len(texts) or 1) or 1.0
    fits: list[_Fit] = []
    for text, counts, of_team in zip(texts, held, team or [False] * len(texts), strict=True):
        length = 0.25 + 0.75 * len(text) / usual
        found = {word: weight for word, weight in weights.items() if word in counts}
        # Okapi BM25 with its usual constants.
        rank = sum(weight * counts[word] * 2.2 / (counts[word] + 1.2 * length) for word, weight in found.items())
        fits.append(_Fit(sum(found.values()) / total, rank * (_TEAM if of_team else 1)))
    return fits


def _kind(source_id: str) -> str:
    kind = source_id.partition(":")[0]
    return kind if kind in {"team", "fact"} else ""


def _readings(source: ShownSource) -> tuple[str, ...]:
    """The text as it stands, and as a chat can show it."""
    return (source.text,) if is_team(source.source_id) else (source.text, without_markup(source.text))


def _quotes(source: ShownSource, room: int) -> Iterable[_Quote]:
    if room < 1:
        return
    if is_team(source.source_id):
        for qa_id, turns in _blocks(source.text):
            said = "\n\n".join(text for speaker, text in turns if speaker == "Team")
            about = "\n".join(text for _, text in turns)
            yield _Quote(_beginning(said, room), about, f"{source.source_id}#{qa_id}")
        return
    text = _readings(source)[-1]
    if source.source_id.startswith("fact:"):
        text = _CONFIDENCE.sub("", text)
    if source.source_id.startswith("nugget:"):
        # Its summary is mostly the question: it says what is matched, and what the team said is quoted.
        summary, _, account = text.partition("\n\n")
        yield _Quote(_beginning(source.said or account or summary, room), f"{source.title}\n{text}", source.source_id)
        return
    for piece in passages(text, min(room, _QUOTE_CHARS)):
        yield _Quote(_without_heading(piece.text), f"{source.title}\n{piece.heading}\n{piece.text}", source.source_id)


def _beginning(text: str, room: int) -> str:
    """The text, or what fits of its beginning, with a sign that more follows."""
    if len(text) <= room:
        return text
    room -= len(GAP.rstrip()) + len(f"\n{_FENCE}")
    if room < 1:
        return ""
    begun = text[:room]
    borders = (begun.rfind(mark) for mark in ("\n\n", "\n", " "))
    begun = begun[: next((at for at in borders if at >= room // 2), room)].rstrip()
    return f"{begun}\n{_FENCE}{GAP.rstrip()}" if begun.count(_FENCE) % 2 else f"{begun}{GAP.rstrip()}"


def _blocks(text: str) -> Iterable[tuple[str, list[tuple[str, str]]]]:
    """Id and turns of each QA block of a shown topic, which may lack what was cut from it."""
    for block in re.split(r"^--- QA ---$", text, flags=re.MULTILINE)[1:]:
        qa_id = ""
        turns: list[tuple[str, str]] = []
        for line in block.strip("\n").split("\n"):
            speaker, colon, said = line.partition(": ")
            if colon and speaker in {"User", "Team"}:
                turns.append((speaker, said))
            elif turns and line.startswith("  "):
                turns[-1] = (turns[-1][0], f"{turns[-1][1]}\n{line[2:]}")
            elif turns and line == GAP.strip():  # what people wrote is indented
                turns[-1] = (turns[-1][0], f"{turns[-1][1].rstrip()}{GAP.rstrip()}")
            elif not turns and speaker == "id":
                qa_id = said.strip()
        if qa_id:
            yield qa_id, turns


def _without_heading(text: str) -> str:
    lines = text.split("\n")
    while lines and (not lines[0].strip() or re.match(r"#{1,6}\s", lines[0])):
        lines.pop(0)
    return "\n".join(lines).strip("\n")


def _flat(text: str) -> str:
    return " ".join(text.split())
