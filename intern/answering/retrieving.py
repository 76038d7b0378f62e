"""Which passages a question is answered from: found by the search, cut from what stands in the sources now. Pure.

Which messages that are not addressed to the bot are not worth a call of a model. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from intern.core.ids import SourceId
from intern.core.messages import block_ids, is_team
from intern.core.records import Hit, SourceText
from intern.core.text.passages import best_passages
from intern.core.text.words import STOP_WORDS, Rarity, plain_words, word_set

Alias = Literal["S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8"]
"""What a reply calls a passage: a schema that is the same for every question can be cached."""
_ALIASES: tuple[Alias, ...] = get_args(Alias)
MOST_SHOWN = len(_ALIASES)
"""Passages of one question."""

# A passage of fewer characters is shown with what follows it: a heading's section often goes on.
_ENOUGH = 700
_LONGEST = 1500  # characters of a passage
_WHOLE = 1200  # a source as short as this is shown whole
# Of the best one's score: of 30 questions in other words than the sample's documents, none loses the right one.
_NEAR_BEST = 0.75
_LEAST_SHOWN = 3

_MARKER = "--- QA ---"
_MOST_SEARCHED = (
    30_000  # characters at the end of a topic, the newest, where its blocks are not those that were indexed
)
_BLOCK = re.compile(r"^--- QA ---[ \t]*$", re.MULTILINE)
_HEADER = re.compile(r"\A\s*(?:[a-z_]+:[^\n]*\n)+\n?")
# When it was archived, and behind that when it was answered: an import has years between them.
_ANSWERED = re.compile(r"^(?:answered_at|timestamp):[ \t]*(\d{4}-\d\d-\d\d)", re.MULTILINE)
_SPEAKER = re.compile(r"^(?:Team|User): ", re.MULTILINE)
# Of the further lines of a message; one that looks like the first line of a turn keeps it.
_INDENT = re.compile(r"^  (?!\s*(?:team|user)\s*:)", re.MULTILINE | re.IGNORECASE)


class Shown(Struct, frozen=True, kw_only=True):
    """A passage as a prompt shows it."""

    alias: Alias
    source_id: SourceId
    """By which it is cited: of a topic, `team:<topic>.txt#<qa id>`."""
    label: str
    """The name of its source, for the model: a path, or `team` and a day."""
    title: str
    text: str
    url: str | None = None
    said: str | None = None
    """The team's own words, whole, where the text is a model's account."""

    @property
    def vouched(self) -> str:
        """What an answer may take commands, versions and addresses from."""
        return self.text if self.said is None else self.said


def near_best(hits: Iterable[Hit]) -> list[Hit]:
    """The hits that are worth a look, best first; at equal score, what the team said before documents."""
    order = sorted(hits, key=lambda hit: (-round(hit.score, 2), not is_team(hit.source_id)))
    least = order[0].score * _NEAR_BEST if order else 0.0
    return [hit for n, hit in enumerate(order) if n < _LEAST_SHOWN or hit.score >= least]


def shown_passages(
    hits: Sequence[Hit], sources: Mapping[SourceId, SourceText], query: str, max_chars: int
) -> tuple[Shown, ...]:
    """The passages of the hits in at most `max_chars` characters, as many as fit, in an order of their own.

    The order depends on the ids alone, so that questions about the same sources share the beginning of a prompt.
    """
    room, kept = max_chars, dict[SourceId, Shown]()
    for hit in hits:
        source = sources.get(hit.source_id)
        passage = None if source is None else _passage(source, hit, query)
        if passage is not None and len(passage.text) > max_chars:
            passage = replace(passage, text=best_passages(passage.text, query, max_chars))
        if passage is None or passage.source_id in kept or len(kept) == MOST_SHOWN or len(passage.text) > room:
            continue
        kept[passage.source_id] = passage
        room -= len(passage.text)
    return aliased(kept.values())


def whole_sources(sources: Sequence[SourceText], max_chars: int) -> tuple[Shown, ...]:
    """All that is known, block by block, where it is little enough to be shown; else nothing."""
    if sum(len(source.text) for source in sources) > max_chars:
        return ()
    passages = [passage for source in sources if source.text.strip() for passage in _all(source)]
    return aliased(passages) if len(passages) <= MOST_SHOWN else ()


def aliased(passages: Iterable[Shown]) -> tuple[Shown, ...]:
    """What the team said first, then by id; each with its alias."""
    order = sorted(passages, key=lambda each: (not is_team(each.source_id), each.source_id))
    return tuple(
        replace(each, alias=alias, label=f"{alias}: {each.label}") for alias, each in zip(_ALIASES, order, strict=False)
    )


def _all(source: SourceText) -> Iterator[Shown]:
    if not is_team(source.source_id):
        yield _shown(source, source.source_id, source.text.strip())
        return
    for qa_id, block in _blocks(source.text):
        yield _of_team(source, qa_id, block, "")


def _passage(source: SourceText, hit: Hit, query: str) -> Shown | None:
    """What stands there now; where the passage was changed since it was indexed, what fits the question best."""
    if not is_team(source.source_id):
        text = source.text.strip()
        if len(text) > _WHOLE:
            text = _around(text, hit) or best_passages(text, query, _LONGEST)
        return _shown(source, source.source_id, text) if text.strip() else None
    found = _block_of(source.text, hit, query)
    return None if found is None else _of_team(source, *found, query)


def _block_of(text: str, hit: Hit, query: str) -> tuple[str, str] | None:
    """Id and text of the block that a hit is of: the one that begins with its words, else the one that holds most."""
    # A topic may hold thousands of blocks: those where the words stand are found without reading the others.
    first, wanted = hit.text.partition("\n")[0], _flat(hit.text)
    at = text.find(f": {first}\n") if first else -1
    while at >= 0:
        start = text.rfind(_MARKER, 0, at)
        end = text.find(f"\n{_MARKER}", at)
        for qa_id, block in _blocks(text[max(start, 0) : len(text) if end < 0 else end]):
            if _flat(_said(block)) == wanted:
                return qa_id, block
        at = text.find(f": {first}\n", at + 1)
    words, held = word_set(hit.text or query), dict(_blocks(text[-_MOST_SEARCHED:]))
    best = max(held, key=lambda qa_id: len(word_set(held[qa_id]) & words), default=None)
    return None if best is None else (best, held[best])


def _of_team(source: SourceText, qa_id: str, block: str, query: str) -> Shown:
    said, days = _said_by_whom(block), _ANSWERED.findall(block)
    passage = _shown(source, SourceId(f"{source.source_id}#{qa_id}"), _turns_cut(said, query))
    return replace(passage, label=f"team {days[-1]}" if days else "team")


def _turns_cut(said: str, query: str) -> str:
    """What of the turns fits a question best: a little of what was asked, and of what the team answered the most."""
    asked, answers, answered = said.partition("\nTeam: ")
    if len(said) <= _LONGEST or not answers:
        return best_passages(said, query, _LONGEST)
    asked = best_passages(asked, query, _LONGEST // 4)
    return asked + answers + best_passages(answered, query, _LONGEST - len(asked) - len(answers))


def _shown(source: SourceText, source_id: SourceId, text: str) -> Shown:
    kind, _, name = source_id.partition(":")
    return Shown(
        alias="S1",
        source_id=source_id,
        label=name if kind in {"kb", "file"} else source_id,
        title=" ".join(source.title.split()),
        text=text,
        url=source.url,
        said=source.said,
    )


def _around(text: str, hit: Hit) -> str:
    """The passage with its headings, and with what follows where it is short; empty where it stands there no more."""
    start = text.find(hit.text) if hit.text else -1
    if start < 0:
        return ""
    end = start + len(hit.text)
    while end - start < _ENOUGH and end < len(text):
        following = text.find("\n\n", end + 2)
        end_of_next = len(text) if following < 0 else following
        if end_of_next - start > _LONGEST:
            break
        end = end_of_next
    passage = text[start:end].strip()
    heading = " ".join(hit.title.split())
    return passage if not heading or heading in passage[:300] else f"{heading}\n\n{passage}"


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Each QA block's id and what follows it."""
    for part in _BLOCK.split(text)[1:]:
        for qa_id in block_ids(f"{_MARKER}{part}"):
            yield qa_id, part
            break


def _said_by_whom(block: str) -> str:
    """The turns of a block, each led by who spoke, without ids and times."""
    return _INDENT.sub("", _HEADER.sub("", block).strip())


def _said(block: str) -> str:
    return _SPEAKER.sub("", _said_by_whom(block))


def _flat(text: str) -> str:
    return " ".join(text.split())


# Thanks in languages whose questions `_ASKS` knows; they may stand behind "ah brilliant,".
_THANKS = re.compile(
    r"\b(?:thanks|thank you|thank u|thx|tysm|ty|cheers|never ?mind|danke|dankeschön|merci|gracias|obrigad[oa]|grazie"
    r"|bedankt|dank je|спасибо|благодарю)\b",
    re.IGNORECASE,
)
# Said by itself it asks nothing.
_ALONE = re.compile(
    r"\W*(?:hi|hello|hey|hallo|moin|salut|bonjour|hola|ciao|olá|good (?:morning|evening|night)|gm|gn|morning|evening"
    r"|lol|lmao|rofl|haha\w*|xd|\+1|same|this|nice|cool|wow|great|perfect|awesome|congrats|congratulations|welcome|gg|brb|ok(?:ay)?"
    r"|yes|yep|yeah|no|nope|np|yw|fixed|solved|works now|it works(?: now)?|that (?:worked|did it)|got it"
    r"|tack|takk|kiitos|dzięki|dziękuję|díky|děkuji|mulțumesc|köszönöm|teşekkürler|дякую"
    r"|谢谢|謝謝|感谢|ありがとう(?:ございま(?:す|した))?|감사합니다|고마워요?)"
    r"(?:\W+(?:all|everyone|everybody|guys|folks|there|team|again|now|man|mate))*\W*",
    re.IGNORECASE,
)
_SAID = re.compile(r"\w")
_MARK = re.compile(r"[?？؟]")
_ASKS = re.compile(
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
    return len(question.split()) <= _MOST_WORDS and bool(_THANKS.search(question)) and not _ASKS.search(question)


WORTH_A_CALL = 0.49
"""The least `worth` of a message about which a model is asked.

Fitted on half of the logs of real chats (IRC and Gitter) and of the labelled questions, and measured on the other half
(`benchmarks.triage`), with vectors. There, a batch costs .54 first calls beside 603 factoids about the subject of most
chats, .53 beside 596 sections of a FAQ, and .04 beside the sample; none of 89 labelled questions is passed over. On the
fitted half: .54, .52 and .03, and 2 of 106. By words alone: .47, .59 and .22, and 7 of 89; the search found the answer
to one of these 7.
"""

# Weights, against 1 for likeness: by logistic regression, rounded. .2 to .4 and .05 to .15 did about as well.
_COVERED = 0.3
_ASKED = 0.12
# The likeness of a passage without a vector. So without an embedder, words and signs must come to .165.
_UNKNOWN = 0.325
_BEST = 3  # passages whose words count
_AMONG = (
    4  # the least number of texts that rarity is counted over: among one or two, each word that is held looks common
)

_URL = re.compile(r"\w+://\S+")
_TO_A_MEMBER = re.compile(r"^\s*<@!?\d+>.*$", re.MULTILINE)
_FEW_WORDS = 4
_LEAST_ENGLISH = 0.15  # the least share of stop words in an English text; chat has about half


def worth(question: str, query: str, hits: Sequence[Hit]) -> float | None:
    """The score of an unaddressed message, comparable between messages; None where it would say nothing.

    It is the largest likeness of a hit, plus weights for the share of the query's rare words that the best hits hold,
    and for a sign of a question. A word is rare if few of the hits hold it. `query` is what was searched for; `hits`
    (best first) must not be empty. None for a question in another language, which English sources may answer, and for
    an embedder whose cosines were not measured.
    """
    has_sign = asks(question)
    if (has_sign and not is_english(question)) or not all(hit.is_measured for hit in hits):
        return None
    alike = max(_UNKNOWN if hit.likeness is None else hit.likeness for hit in hits)
    return alike + _COVERED * _covered(query, hits) + _ASKED * has_sign


def asks(question: str) -> bool:
    """Whether a line has a sign of a question. Lines that begin with the mention of a member do not count."""
    said = _URL.sub(" ", _TO_A_MEMBER.sub("", question))
    return bool(_MARK.search(said) or _ASKS.search(said))


def _covered(query: str, hits: Sequence[Hit]) -> float:
    texts = [word_set(f"{hit.title}\n{hit.text}") for hit in hits]
    best = {word for text in texts[:_BEST] for word in text}
    return Rarity([*texts, *[frozenset[str]()] * (_AMONG - len(texts))]).covered(word_set(query), best)


def is_english(text: str) -> bool:
    """Whether a text seems to be in English, the only language of the bundled embedder."""
    said = [word.lower() for word in plain_words(text) if word.isalpha()]
    if not all(word.isascii() for word in said):
        return False
    return len(said) < _FEW_WORDS or sum(word in STOP_WORDS for word in said) >= _LEAST_ENGLISH * len(said)
