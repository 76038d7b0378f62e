"""Rules in place of a model: they answer offline, and find the messages that are not worth a model call.

Offline, word statistics choose the sources, and answers quote them word for word. Rules understand nothing, so they are
strict: they answer only if a passage holds most of the rare words of a question. Deterministic. Thresholds were set on
the questions in `tests/answering/test_offline.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

from msgspec import Struct, structs

from intern.answering import prompts
from intern.answering.nearest import (
    CONFIDENCE,
    Fit,
    Nearest,
    beginning,
    fit_each,
    is_english,
    kind_of,
    unnamed,
    without_mentions,
)
from intern.answering.selecting import entry_words
from intern.core.messages import is_team
from intern.core.records import Hit
from intern.core.text.passages import GAP, passages
from intern.core.text.patterns import regex
from intern.core.text.words import Rarity, one_line, word_set, words
from intern.search.finding import Embedder, split_question

NOTE = "(offline mode: quoted from the sources)"
"""Stands below each answer."""

# The least share of what is telling in a question that must stand in a description (a summary lacks much of its
# source), and in the passage that is quoted.
_DESCRIBED = 0.2
_ANSWERED = 0.42
# Of a source that the text search ranks, its place there counts for 1 and that by its description for this much.
_BY_DESCRIPTION = 0.6
_PLACE = 8  # the first two places of an order differ by a ninth
# How good documentation must be, beside a team answer that fits best, to be read as well; and the other way round.
_NEAR_BEST = 0.8
# Short enough to be read in a chat, long enough for a paragraph with its code.
_QUOTE_CHARS = 500

# Added to the threshold for a message that is not addressed to the bot, and for one with a name that no passage has.
_UNASKED = 0.05
_STRANGE = 0.15
_FENCE = "```"

_ASKING = regex(
    r"""(?imx)[?？؟]
    | (^|[.!,;:]\s)\W{0,5}(how|what|why|where|when|which|who|whose)\b
    | \b(how|what|why|where|when|which|who)\ (to|do|does|did|can|could|should|would|is|are|many|much|long|often)\b
    | ^\W{0,5}(is|are|was|were|do|does|did|can|could|would|should|will|has|have|may|any(one|body)?)\b
    | \b((can|could|does|do|did|is|are|was|wo|would|has)(n['’]?t|\ not|not)|unable\ to|fail(s|ed|ing)?)\b
    | \b(errors?|exception|traceback|crash(es|ed|ing)?|stuck|broken|refuse[sd]?|no\ idea|help|problems?|issues?)\b
    | \b(need|want|looking|trying|tried)\ (to|for)\b
    """,
)
_THANKS = regex(r"\W*(many\ )?(thanks|thank you|thx|ty|cheers|great|perfect|never ?mind|solved)\b", re.IGNORECASE)


def gate(given: prompts.GateIn) -> prompts.GateDecision:
    """Recognise a question by its mark or its words, or by two telling words if it is addressed to the bot."""
    telling = words(given.question)
    thanks = _THANKS.match(given.question) and "?" not in given.question
    asks = bool(_ASKING.search(given.question)) or (given.addressed and len(telling) > 1)
    if asks and telling and not thanks:
        return prompts.GateDecision(reason="it reads like a question", kind="question")
    return prompts.GateDecision(reason="it does not read like a question", kind="chatter")


_words_of = lru_cache(maxsize=1024)(entry_words)  # what is shown for one question is often shown for the next


def select(given: prompts.SelectIn) -> prompts.Selection:
    """Select the best source, and the best of the other kind (team answers, documentation) if it is nearly as good."""
    entries = given.entries
    fits = fit_each(
        given.query or given.question,
        [_words_of(entry) for entry in entries],
        [is_team(entry.source_id) for entry in entries],
    )
    scores = _scores(given, fits)
    order = sorted(scores, key=lambda n: (-scores[n], not is_team(entries[n].source_id), n))
    kept = [n for n in order if scores[n] >= scores[order[0]] * _NEAR_BEST]
    best_of_kind = {is_team(entries[n].source_id): n for n in reversed(kept)}
    chosen = sorted(best_of_kind.values(), key=kept.index)
    return prompts.Selection(selected_source_ids=tuple(entries[n].source_id for n in chosen[: given.max_sources]))


def _scores(given: prompts.SelectIn, fits: Sequence[Fit]) -> dict[int, float]:
    """Score the entries that may hold the answer. A text counts more than its description, if texts were searched."""
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


def answer(given: prompts.AnswerIn) -> prompts.Draft:
    """prompts.Quote the passage or the team answer that holds most of the rare words of the question.

    It is of the best source, or the best of its kind, or of a fact; what ranks below is not quoted.
    """
    room = given.max_answer_chars - len(NOTE) - 2
    best_of_kind = {kind_of(source.source_id): source for source in reversed(given.sources)}
    sources = [source for source in given.sources if source is best_of_kind[kind_of(source.source_id)]]
    quotes = [quote for source in sources for quote in _quotes(source, room)]
    fits = fit_each(
        given.query or given.question,
        [words(quote.about) for quote in quotes],
        [is_team(quote.citation) for quote in quotes],
    )
    fitting = [n for n, fit in enumerate(fits) if fit.covered >= _ANSWERED and 0 < len(quotes[n].text) <= room]
    if not fitting:
        return prompts.Draft(answer=None)
    # Of equals the later one: in a topic, it is the newer.
    best = quotes[max(fitting, key=lambda n: (fits[n].rank, is_team(quotes[n].citation), n))]
    lines = tuple(line[:300] for line in best.text.split("\n") if line.strip())[:5]
    return prompts.Draft(quotes=lines, answer=f"{best.text}\n\n{NOTE}", citations=(best.citation,))


def verify(given: prompts.VerifyIn) -> prompts.Verification:
    """Each paragraph of the answer must stand in a source, but for white space and markup."""
    quoted = given.answer.removesuffix(NOTE).strip()
    texts = [one_line(text) for source in given.sources for text in (source.text, source.said or "")]
    parts = [part for part in quoted.removesuffix(GAP.strip()).split("\n\n") if part.strip()]
    strange = [part for part in parts if not any(one_line(part.removesuffix(_FENCE)) in text for text in texts)]
    return prompts.Verification(
        is_good_enough=bool(quoted) and not strange,
        issues=tuple(f"this stands in no source: {one_line(part)[:200]}" for part in strange),
    )


async def decide(nearest: Nearest, given: prompts.DecideIn) -> prompts.Decision:
    """Decide whether it is a question, and quote the piece of the passages that comes nearest to an answer."""
    given = structs.replace(given, question=without_mentions(given.question))
    asked = prompts.GateIn(question=given.question, history=given.history, addressed=given.addressed)
    asks = gate(asked).kind == "question"
    found = await nearest.find(given.question, given.passages) if asks else []
    strange = _STRANGE if unnamed(given.question, given.passages) else 0
    if not found or found[0].surplus < (0 if given.addressed else _UNASKED) + strange:
        return prompts.Decision(quotes=(), kind="not_covered" if asks else "chatter", answer=None)
    best = found[0]
    return prompts.Decision(
        quotes=(prompts.Quote(source=best.passage.alias, line=best.line),),
        kind="answer",
        answer=f"{best.text}\n\n{NOTE}",
        citations=(best.passage.alias,),
    )


def confirm(given: prompts.ConfirmIn) -> prompts.Confirmation:
    """Accept the answer: it is a quote, and code has compared each quote with its passage."""
    claims = tuple(prompts.Claim(claim="as quoted", quote=1) for _ in given.quotes[:1])
    asked, told = given.question[:200], "A quote, word for word."
    return prompts.Confirmation(asked=asked, told=told, verdict="answered", claims=claims)


def rules(embedder: Embedder | None = None) -> dict[str, Callable[[Any], Any]]:
    """For `OfflineModel`. What is sure enough is known of the bundled embedder alone."""
    return {
        prompts.GATE.name: gate,
        prompts.SELECT.name: select,
        prompts.ANSWER.name: answer,
        prompts.VERIFY.name: verify,
        prompts.DECIDE.name: partial(decide, Nearest(embedder)),
        prompts.CONFIRM.name: confirm,
    }


class _Quote(Struct, frozen=True):
    text: str
    about: str
    """What it is matched by: the quote, and what stands above it."""
    citation: str


def _quotes(source: prompts.ShownSource, room: int) -> Iterable[_Quote]:
    if room < 1:
        return
    if is_team(source.source_id):
        for qa_id, turns in _blocks(source.text):
            said = "\n\n".join(text for speaker, text in turns if speaker == "Team")
            about = "\n".join(text for _, text in turns)
            yield _Quote(beginning(said, room), about, f"{source.source_id}#{qa_id}")
        return
    text = source.text
    if source.source_id.startswith("fact:"):
        text = CONFIDENCE.sub("", text)
    if source.source_id.startswith("nugget:"):
        # Its summary is mostly the question: it says what is matched, and what the team said is quoted.
        summary, _, account = text.partition("\n\n")
        yield _Quote(beginning(source.said or account or summary, room), f"{source.title}\n{text}", source.source_id)
        return
    for piece in passages(text, min(room, _QUOTE_CHARS)):
        yield _Quote(_without_heading(piece.text), f"{source.title}\n{piece.heading}\n{piece.text}", source.source_id)


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


# Thanks in languages whose questions `_ASKS` knows; they may stand behind "ah brilliant,".
_THANKED = regex(
    r"\b(?:thanks|thank you|thank u|thx|tysm|ty|cheers|never ?mind|danke|dankeschön|merci|gracias|obrigad[oa]|grazie"
    r"|bedankt|dank je|спасибо|благодарю)\b",
    re.IGNORECASE,
)
# Said by itself it asks nothing.
_ALONE = regex(
    r"\W*(?:hi|hello|hey|hallo|moin|salut|bonjour|hola|ciao|olá|good (?:morning|evening|night)|gm|gn|morning|evening"
    r"|lol|lmao|rofl|haha\w*|xd|\+1|same|this|nice|cool|wow|great|perfect|awesome|congrats|congratulations|welcome|gg|brb|ok(?:ay)?"
    r"|yes|yep|yeah|no|nope|np|yw|fixed|solved|works now|it works(?: now)?|that (?:worked|did it)|got it"
    r"|tack|takk|kiitos|dzięki|dziękuję|díky|děkuji|mulțumesc|köszönöm|teşekkürler|дякую"
    r"|谢谢|謝謝|感谢|ありがとう(?:ございま(?:す|した))?|감사합니다|고마워요?)"
    r"(?:\W+(?:all|everyone|everybody|guys|folks|there|team|again|now|man|mate))*\W*",
    re.IGNORECASE,
)
_SAID = regex(r"\w")
_MARK = regex(r"[?？؟]")
_ASKS = regex(
    r"\b(?:how|what|why|where|when|which|who|but|however|still|error|fail\w*|crash\w*|broken|stuck|problem\w*|issue\w*"
    r"|can(?:'|’)?t|cannot|doesn(?:'|’)?t|don(?:'|’)?t|won(?:'|’)?t|isn(?:'|’)?t|not|unable|need|help|advance|tried|trying"
    r"|(?:can|could|do|should) (?:i|you|we|it|they|this|that)|does|would|is (?:there|it|this)"
    r"|are there|any(?:one|body)?|possible"
    r"|aber|fehler|nicht|wie|warum|wo|hilfe|kann|könnte\w*|gibt es|geht das|wann|welche\w*|möglich"
    r"|mais|erreur|pas|comment|pourquoi|peu[txv]\w*|est-ce|quand|quel\w*|où"
    r"|pero|no funciona|cómo|por qué|ayuda|pued[eo]\w*|se puede|hay|cuándo|cuál\w*|dónde"
    r"|mas|erro|como|não|posso|pode\w*|dá|quando|qual|onde|ma|errore|non|come|perché|può|posso|dove|quale"
    r"|maar|fout|niet|hoe|kan|kunnen|waar|wanneer|welke|но|не|как|ошиб\w*|можно|где|когда|почему|а|если)\b",
    re.IGNORECASE,
)
_MOST_WORDS = 20  # of thanks that ask nothing; what is longer may have come to something else


def is_chatter(question: str) -> bool:
    """Thanks, greetings and the like; False says nothing."""
    if not question or _MARK.search(question):
        return False
    if not _SAID.search(question) or _ALONE.fullmatch(question):
        return True
    return len(question.split()) <= _MOST_WORDS and bool(_THANKED.search(question)) and not _ASKS.search(question)


WORTH_A_CALL = 0.49
"""The least `worth` of a message about which a model is asked.

Fitted on half of the logs of real chats (IRC and Gitter) and of the labelled questions, and measured on the other half
(`benchmarks.triage`), with vectors. There, a batch costs .54 first calls beside 603 factoids about the subject of most
chats, .54 beside 596 sections of a FAQ, and .04 beside the sample; none of 89 labelled questions is passed over. On the
fitted half: .54, .52 and .03, and 2 of 106. By words alone: .47, .59 and .22, and 7 of 89; the search found the answer
to one of these 7.
"""

# Weights, against 1 for likeness: by logistic regression, rounded. .2 to .4 and .05 to .15 did about as well.
_COVERED = 0.3
_ASKED = 0.12
# The mean by which one of several parts of a question is nearer to a document than the whole, on the first half.
_BY_CHANCE = 0.04
# The likeness of a passage without a vector. So without an embedder, words and signs must come to .165.
_UNKNOWN = 0.325
_BEST = 3  # passages whose words count
# The least number of texts that rarity is counted over: among one or two, each word that is held looks common.
_AMONG = 4

_URL = regex(r"\w+://\S+")
_TO_A_MEMBER = regex(r"^\s*<@!?\d+>.*$", re.MULTILINE)


def worth(question: str, query: str, hits: Sequence[Hit]) -> float | None:
    """Score an unaddressed message, comparable between messages; None where a score would say nothing.

    It is the largest likeness of a hit, plus weights for the share of the query's rare words that the best hits hold,
    and for a sign of a question. A word is rare if few of the hits hold it. `query` is what was searched for; `hits`
    (best first) must not be empty. None for a question in another language, which English sources may answer, and for
    an embedder whose cosines were not measured.
    """
    has_sign = asks(question)
    if (has_sign and not is_english(question)) or not all(hit.is_measured for hit in hits):
        return None
    alike = max(_UNKNOWN if hit.likeness is None else hit.likeness for hit in hits)
    return alike - _BY_CHANCE * (len(split_question(query)) > 1) + _COVERED * _covered(query, hits) + _ASKED * has_sign


def asks(question: str) -> bool:
    """Whether a line has a sign of a question. Lines that begin with the mention of a member do not count."""
    said = _URL.sub(" ", _TO_A_MEMBER.sub("", question))
    return bool(_MARK.search(said) or _ASKS.search(said))


def _covered(query: str, hits: Sequence[Hit]) -> float:
    texts = [word_set(f"{hit.title}\n{hit.text}") for hit in hits]
    best = {word for text in texts[:_BEST] for word in text}
    return Rarity([*texts, *[frozenset[str]()] * (_AMONG - len(texts))]).covered(word_set(query), best)
