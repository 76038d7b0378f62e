"""The pieces of passages that come nearest to a question, ranked by meaning and by words.

A piece can be quoted by itself: up to three sentences, items or rows, or a code block with its lead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import mul
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from intern.answering.citing import holds, unwrapped
from intern.answering.prompts import MAX_LINE, Shown
from intern.core.errors import ModelError
from intern.core.log import get_logger
from intern.core.messages import is_team
from intern.core.text.passages import GAP, passages
from intern.core.text.patterns import regex
from intern.core.text.words import PLEASANTRIES, STOP_WORDS, Rarity, plain_words, word_set, words
from intern.search.finding import Embedder, Remembered

_log = get_logger(__name__)


_Kind = Literal["prose", "list", "table"]

_MOST_CHARS = 500  # short enough to be read at a glance
_MOST_CODE = 1000
_MOST_UNITS = 3
_SECTION = 100_000  # characters: a section is not to be cut

_FENCE = regex(r"[ \t]*(?:```|~~~)")
_ITEM = regex(r"[ \t]*(?:[*+-]|\d{1,3}[.)])[ \t]+")
_BULLET = regex(r"[ \t]*[*+-][ \t]+")
_ROW = regex(r"[ \t]*\|.*\|[ \t]*|[^|\n]*(?: \| [^|\n]*)+")  # without a frame, as documents are written
_OPENS_FENCE = regex(r"[ \t]*(`{3,}|~{3,})")
_RULE = regex(r"[\s|:=*_~+^#\"'.-]+")
# The next sentence begins with no small letter and no digit: neither "e.g. a" nor "No. 5" ends one.
_STOP = regex(r"(?<=[.!?…])[\"'”’)_]*\s+(?=[\"'“‘(*_`\[]*[^\W\d_a-z])|(?<=[。！？])(?!$)")
_TITLED = regex(r"\*\*[^*\n]{1,100}\*\*|__[^_\n]{1,100}__")
# What begins like this is only understood after what stands before it.
_LEANING = regex(
    r"(?:it|its|this|that|these|they|then|so|but|and|or|otherwise|instead|also|both|however|therefore)\b", re.IGNORECASE
)


class Excerpt(Struct, frozen=True):
    """A piece of a text, as a chat can show it."""

    text: str
    heading: str
    """What stands above it in its text, outermost first."""
    core: str
    """By what it is found: it, or of a paragraph with a title of its own, that and the first sentence."""


@lru_cache(maxsize=256)  # the same few passages are shown again and again
def excerpts(text: str) -> tuple[Excerpt, ...]:
    """All pieces that make sense by themselves; they overlap."""
    return tuple(
        Excerpt(piece, section.heading, core)
        for section in passages(text, _SECTION)
        for piece, core in _pieces(_below_heading(section.text, section.heading))
    )


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Each with its core."""
    lead = ""
    for is_code, part in _parts(text):
        if is_code:
            whole = f"{lead}\n{part}".strip("\n")
            is_closed = len(part.strip().splitlines()) > 1 and _FENCE.match(part.splitlines()[-1])
            if is_closed and len(whole) <= _MOST_CODE:
                yield whole, whole
            lead = ""
            continue
        for kind, units in _runs(part):
            title = _TITLED.match(units[0]) if kind == "prose" else None
            if title and len(whole := " ".join(units)) <= _MOST_CHARS:
                yield whole, units[0]  # what goes wrong, why, and what to do belong together
            else:
                windows = _windows(kind, units, lead if lead.endswith(":") else "")
                yield from ((window, window) for window in windows)
            lead = units[-1] if kind == "prose" else ""


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """Divide the text into fenced code blocks, with their fences, and the text between them."""
    held: list[str] = []
    fence = ""
    for line in text.splitlines(keepends=True):
        found = _OPENS_FENCE.match(line)
        if found and not fence:
            yield False, "".join(held)
            held, fence = [line], found[1]
        elif found and found[1].startswith(fence) and line.strip() == found[1]:
            yield True, "".join([*held, line])
            held, fence = [], ""
        else:
            held.append(line)
    yield bool(fence), "".join(held)


def _windows(kind: _Kind, units: Sequence[str], lead: str) -> Iterator[str]:
    for start in range(len(units)):
        if kind == "prose" and start and _LEANING.match(units[start]):
            continue
        for end in range(start + 1, min(start + _MOST_UNITS, len(units)) + 1):
            window = _shown(kind, units[start:end], "" if start else lead)
            # What ends in a colon leads to what follows it.
            if len(window) <= _MOST_CHARS and not window.endswith(":"):
                yield window


def _shown(kind: _Kind, units: Sequence[str], lead: str) -> str:
    if kind == "prose":
        return " ".join(units)
    if len(units) == 1 and not lead:
        return _BULLET.sub("", units[0], count=1)
    return "\n".join([lead, *units]).lstrip("\n")


def _runs(text: str) -> Iterator[tuple[_Kind, list[str]]]:
    """Yield the sentences of each paragraph, the items of each list, the rows of each table."""
    for paragraph in re.split(r"\n[ \t]*\n", text):
        for kind, lines in groupby(unwrapped(paragraph), _kind):
            if kind == "table":
                units = [_cells(row) for row in [*lines][1:] if not _RULE.fullmatch(row)]  # the first one names columns
            elif kind == "list":
                units = [*lines]
            else:
                units = [part.strip() for line in lines for part in _sentences(line) if part.strip()]
            if units:
                yield kind, units


def _kind(line: str) -> _Kind:
    if _ROW.fullmatch(line):
        return "table"
    return "list" if _ITEM.match(line) else "prose"


def _cells(row: str) -> str:
    return " | ".join(cell.strip() for cell in row.strip().strip("|").split("|"))


def _sentences(line: str) -> Iterator[str]:
    start = 0
    for stop in _STOP.finditer(line):
        yield line[start : stop.end()]
        start = stop.end()
    yield line[start:]


def _below_heading(text: str, heading: str) -> str:
    title = heading.rpartition(" > ")[2]
    first, _, rest = text.partition("\n")
    if not title or title not in first:
        return text
    underline, _, below = rest.partition("\n")
    return below if underline.strip() and _RULE.fullmatch(underline) else rest


# The share of the telling words that are held counts for so much beside the cosine of the bundled embedder.
_WORDS = 0.5
# What is sure enough to be an answer: the cosine, with little for the words; or the words alone.
_SURE_WORDS = 0.2
_ENOUGH = 0.57
_ENOUGH_WORDS = 0.62
# What the team said is worth a little more than what fits as well.
_TEAM = 1.15
_UNSEEN = 10
# What any question about software may say.
_BLAND = word_set(
    "add allow ask best change check correct create different enable error example explain find fine fix good idea "
    "issue log look make mean new possible problem question right run set show start stop support system "
    "turn work wrong"
)
_BLAND_WEIGHT = 0.4
_MOST_SAID = 2500  # characters of a team answer that is quoted
_TURN = regex(r"^(Team|User): (.*?)(?=^(?:User|Team): )", re.MULTILINE | re.DOTALL)
CONFIDENCE = regex(r"\n\(confidence [^\n]*\)\Z")
"""The end of a fact's text, for a model to weigh."""
# Whom a message calls tells nothing of what it asks.
_MENTION = regex(r"(?<!\w)@\w[\w.-]*")
# A word with a capital that does not begin a sentence.
_NAME = regex(r"(?<![.!?:]\s)(?<!^)(?<![¿¡])\b[^\W\d_]\w+")
_REMEMBERED = 2000  # vectors, of 1.5 kB each
# Pieces whose meaning is compared, the best by words: for all 30 questions in other words than the sample, the
# nearest of all pieces is among them. With 12, it is for 29.
_MOST_EMBEDDED = 16
_TICKS = "```"


class Near(Struct, frozen=True, kw_only=True):
    """What can be quoted of a passage, and how near it comes."""

    passage: Shown
    text: str
    line: str
    """Stands in the passage."""
    meaning: str
    """It, and what stands above it."""
    covered: float = 0.0
    """The share, 0 to 1, of what is telling in the question that it holds."""
    like: float | None = None
    """The cosine of its meaning and the question; None without an embedder."""

    @property
    def rank(self) -> float:
        """The sort key: the largest is nearest."""
        return self.covered if self.like is None else self.like + _WORDS * self.covered

    @property
    def surplus(self) -> float:
        """By how much it is surer than what may be an answer without a model's judgement; below 0, it is not."""
        by_words = self.covered - _ENOUGH_WORDS
        return by_words if self.like is None else self.like + _SURE_WORDS * self.covered - _ENOUGH


class Nearest:
    """Ranks pieces of passages; remembers their vectors, as the same passages are shown again and again."""

    def __init__(self, embedder: Embedder | None = None) -> None:
        self._embedder = None if embedder is None else Remembered(embedder, _REMEMBERED)

    @property
    def embeds(self) -> bool:
        """Whether it compares meanings, too."""
        return self._embedder is not None

    async def likes(self, question: str, texts: Sequence[str]) -> Sequence[float] | None:
        """Return the cosine of each text and the question; None where that could not be computed."""
        if self._embedder is None:
            return None
        try:
            [asked] = await self._embedder.embed([question], asked=True)
            self._embedder.forget(question)
            vectors = await self._embedder.embed(texts)
        except ModelError as error:
            _log.warning("nearest_by_words_only", reason=str(error))
            return None
        return [round(sum(map(mul, memoryview(asked).cast("f"), memoryview(each).cast("f"))), 6) for each in vectors]

    async def find(self, question: str, shown: Iterable[Shown]) -> list[Near]:
        """Rank the pieces, nearest first; of equals the shortest. They overlap. Only the best by words are compared."""
        pieces = [piece for passage in shown for piece in _quotable(passage)]
        if pieces and self.embeds:
            # Beside likeness, what stands above a piece outweighs what it says if it is counted as words, too. The
            # passages were chosen by their words, so those that most pieces hold tell too little.
            fits = fit_each(question, [words(each.text) for each in pieces])
            order = sorted(range(len(pieces)), key=lambda n: (-fits[n].covered, -fits[n].rank, len(pieces[n].text)))
            best = [replace(pieces[n], covered=fits[n].covered) for n in order[:_MOST_EMBEDDED]]
            likes = await self.likes(question, [each.meaning for each in best])
            if likes is not None:
                return _sorted(replace(each, like=like) for each, like in zip(best, likes, strict=True))
        # What stands above it is part of its meaning.
        fits = fit_each(question, [words(each.meaning) for each in pieces], drops_common=False)
        return _sorted(replace(each, covered=fit.covered) for each, fit in zip(pieces, fits, strict=True))


def _sorted(pieces: Iterable[Near]) -> list[Near]:
    return sorted(pieces, key=lambda near: (-near.rank, len(near.text)))


def without_mentions(question: str) -> str:
    """Remove the names that a question mentions with @."""
    return _MENTION.sub(" ", question).strip()


def unnamed(question: str, shown: Iterable[Shown]) -> list[str]:
    """Return the names in a question that no passage has: it says nothing about them.

    Of English questions only: other languages have other words for what passages name, and German has capitals for all
    nouns.
    """
    if not is_english(question):
        return []
    known = "\n".join(f"{passage.title}\n{passage.text}" for passage in shown)
    held, lower = word_set(known), known.lower()
    names = dict.fromkeys(name for name in _NAME.findall(without_mentions(question)) if name != name.lower())
    return [name for name in names if name.lower() not in lower and not word_set(name) <= held]


def apart(found: Iterable[Near], most: int) -> list[Near]:
    """Return the first pieces, at most so many, that share no line with each other."""
    kept: list[Near] = []
    for near in found:
        if len(kept) == most:
            break
        own = (other for other in kept if other.passage == near.passage)
        if not any(near.line in other.text or other.line in near.text for other in own):
            kept.append(near)
    return kept


def _quotable(passage: Shown) -> Iterator[Near]:
    for each in _sayings(passage):
        lines = (line[:MAX_LINE] for line in each.text.split("\n"))
        line = next((line for line in lines if holds(passage.text, line)), None)
        if line is not None:
            above = each.heading or passage.title
            meaning = f"{above}: {each.core}" if above else each.core
            yield Near(passage=passage, text=each.text, line=line, meaning=meaning)


def _sayings(passage: Shown) -> Sequence[Excerpt]:
    """Return what can be quoted. The team's words follow those of the user."""
    if is_team(passage.source_id):
        turns = _TURN.findall(f"{passage.text}\nUser: ")
        asked, said = ([text.strip() for who, text in turns if who == wanted] for wanted in ("User", "Team"))
        whole = "\n\n".join(said)
        # "Yes, please." answers its own question only.
        tells = word_set(whole) - PLEASANTRIES
        return (Excerpt(beginning(whole, _MOST_SAID), " ".join(asked), whole),) if tells else ()
    text = CONFIDENCE.sub("", passage.text) if kind_of(passage.source_id) == "fact" else passage.vouched
    return excerpts(text)


class Fit(Struct, frozen=True):
    """How well a text fits a question by words."""

    covered: float
    """How much (0 to 1) of what is telling in the question the text holds: decides whether it is good enough."""
    rank: float
    """Among those that are, the most is best: a short text, and one that says a word again, fit better."""


def fit_each(
    query: str, texts: Sequence[Sequence[str]], team: Sequence[bool] = (), *, drops_common: bool = True
) -> list[Fit]:
    """How each text fits. `team` says which are the team's words."""
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
    found: list[Fit] = []
    for text, counts, of_team in zip(texts, held, team or [False] * len(texts), strict=True):
        length = 0.25 + 0.75 * len(text) / usual
        shared = {word: weight for word, weight in weights.items() if word in counts}
        # Okapi BM25 with its usual constants.
        rank = sum(weight * counts[word] * 2.2 / (counts[word] + 1.2 * length) for word, weight in shared.items())
        found.append(Fit(sum(shared.values()) / total, rank * (_TEAM if of_team else 1)))
    return found


def kind_of(source_id: str) -> str:
    """`team`, `fact`, or nothing for documentation."""
    kind = source_id.partition(":")[0]
    return kind if kind in {"team", "fact"} else ""


def beginning(text: str, room: int) -> str:
    """Return the text, or what fits of its beginning, with a sign that more follows."""
    if len(text) <= room:
        return text
    room -= len(GAP.rstrip()) + len(f"\n{_TICKS}")
    if room < 1:
        return ""
    begun = text[:room]
    borders = (begun.rfind(mark) for mark in ("\n\n", "\n", " "))
    begun = begun[: next((at for at in borders if at >= room // 2), room)].rstrip()
    return f"{begun}\n{_TICKS}{GAP.rstrip()}" if begun.count(_TICKS) % 2 else f"{begun}{GAP.rstrip()}"


_FEW_WORDS = 4
_LEAST_ENGLISH = 0.15  # the least share of stop words in an English text; chat has about half


def is_english(text: str) -> bool:
    """Whether a text seems to be in English, the only language of the bundled embedder."""
    said = [word.lower() for word in plain_words(text) if word.isalpha()]
    if not all(word.isascii() for word in said):
        return False
    return len(said) < _FEW_WORDS or sum(word in STOP_WORDS for word in said) >= _LEAST_ENGLISH * len(said)
