"""Words of a text, made comparable: casefolded, without stop words, stemmed.

Two forms of one English word ("rotating", "rotation") become the same stem; other languages keep their words as
they are written, and scripts without spaces are taken in pairs of characters.

Topic names: a model gives a label, and only its slug becomes a file name.

A cache for lists that change little from call to call.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Set as AbstractSet
from functools import lru_cache
from typing import Generic, TypeVar, cast

from intern.core.ids import TopicName

_SMALL_TALK = """
a about after again all also am an and any anybody anyone anything are as at be because been before being both but
by can cannot could did do does doing done each either else ever every few for from further get gets getting go
goes going got had has have having he hello help her here hers hey hi him his how i if in instead into is it its
just know let like lot many may maybe me might mine more most much must my need needs no nor not now of off ok okay
on once one only or other otherwise our ours out over own please pls quite really same seem seems shall she should
since so some somebody somehow someone something still such sure tell than thank thanks that the their theirs them
then there these they thing things this those though through thx to too try trying under until up us use used uses
using very via want wants was way we well were what when where whether which while who whom whose why will wish
with within without would yes yet you your yours
im ive id youre dont doesnt didnt cant couldnt isnt arent wasnt wont wouldnt shouldnt whats hows theres thats lets
d ll m re s t ve ain aren couldn didn doesn don hadn hasn haven isn mustn shouldn wasn weren won wouldn
"""
STOP_WORDS: frozenset[str] = frozenset(_SMALL_TALK.split())
"""English words that say nothing about what a text is about, and the small talk of questions in a chat."""

# An underscore joins words ("max_in_flight"); people ask for them one by one. What apostrophes cut off are stop words.
_WORD = re.compile(r"[^\W_]+")
# What it finds in ASCII, by a table: four times as fast.
_ONLY_WORDS = bytes(code if code < 128 and chr(code).isalnum() else ord(" ") for code in range(256))
# Han, kana, Hangul and Thai are written without spaces (or with few): a run of them is no word.
_UNSPACED = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]+")
_ENGLISH = re.compile(r"[a-z]{3,}")


def words(text: str) -> list[str]:
    """Return the stems of a text in order, without stop words, with repetitions."""
    if text.isascii():  # as most are: the same as below, in a third of the time
        return [_stem(word) for word in _ascii_words(text.lower()) if word not in STOP_WORDS]
    return [stem for _, stem in _pairs(text)]


def word_set(text: str) -> frozenset[str]:
    """Return the set of `words`, in half the time if a text repeats its words."""
    if text.isascii():
        return frozenset([_stem(word) for word in set(_ascii_words(text.lower())) - STOP_WORDS])
    return frozenset(words(text))


def plain_words(text: str) -> list[str]:
    """Return the words of a text as written, in order, stop words included."""
    return _ascii_words(text) if text.isascii() else _WORD.findall(text)


def wording(text: str) -> str:
    """Normalise a text to compare it word for word: case, Unicode forms, spaces, and full stops at the end."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).rstrip(".!… ")


def unspaced_runs(word: str) -> list[str]:
    """Return the parts of a word in scripts that are written without spaces."""
    return [] if word.isascii() else _UNSPACED.findall(word)


def key_terms(text: str, n: int) -> list[str]:
    """Return the at most `n` words that a text is most about, as it writes them (casefolded), one form of each stem.

    What is said more often comes first, then what is said earlier. Numbers and single letters never count.
    """
    written: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for word, stem in _pairs(text):
        if len(word) > 1 and not any(char.isdigit() for char in word):
            written.setdefault(stem, word)
            counts[stem] += 1
    return [written[stem] for stem, _ in counts.most_common(max(n, 0))]


def overlap(query: str, text: str) -> float:
    """Return the share (0 to 1) of the query's distinct words that the text contains; 0 without words."""
    wanted = word_set(query)
    return len(wanted & word_set(text)) / len(wanted) if wanted else 0.0


class Rarity:
    """The weights of words among some texts: the fewer texts contain a word, the more it weighs."""

    def __init__(self, texts: Iterable[Collection[str]]) -> None:
        """Take the `words` of each text."""
        self._holding: Counter[str] = Counter()
        self._texts = 0
        for text in texts:
            self._texts += 1
            self._holding.update(set(text))

    def weight(self, word: str) -> float:
        """Return a weight above 0: most for a word that no text contains, almost 0 for one that all contain."""
        return weight_of(self._holding[word], self._texts)

    def covered(self, query: Iterable[str], text: Collection[str]) -> float:
        """Return the share (0 to 1) of the query's weight that the text contains."""
        [share] = self.shares(query, [text if isinstance(text, (set, frozenset)) else set(text)])
        return share

    def shares(self, query: Iterable[str], texts: Iterable[AbstractSet[str]]) -> list[float]:
        """Return `covered` for each text."""
        # Sorted: floating point sums depend on the order, and sets have none that lasts from run to run.
        weights = [(word, self.weight(word)) for word in sorted(set(query))]
        total = sum(weight for _, weight in weights)
        if not total:
            return [0.0 for _ in texts]
        return [sum([weight for word, weight in weights if word in held]) / total for held in texts]


def weight_of(holding: int, texts: int) -> float:
    """Return the weight of a word that so many of these texts contain: above 0, most for one that none contains."""
    return math.log((texts + 1) / (holding + 0.5))


def _ascii_words(text: str) -> list[str]:
    return text.encode().translate(_ONLY_WORDS).decode().split()


def _pairs(text: str) -> Iterable[tuple[str, str]]:
    for word in _WORD.findall(unicodedata.normalize("NFKC", text).casefold()):
        if word in STOP_WORDS:
            continue
        if not word.isascii() and _UNSPACED.search(word):
            yield from ((part, part) for part in _unspaced(word))
        else:
            yield word, _stem(word)


def _unspaced(run: str) -> Iterable[str]:
    at = 0
    for match in _UNSPACED.finditer(run):
        if match.start() > at:
            yield run[at : match.start()]
        chars = match.group()
        yield from (chars[n : n + 2] for n in range(max(len(chars) - 1, 1)))
        at = match.end()
    if at < len(run):
        yield run[at:]


@lru_cache(maxsize=65536)
def _stem(word: str) -> str:
    if not _ENGLISH.fullmatch(word):
        return word
    # Lazily: loading the package takes 10 ms, and many commands stem nothing.
    from snowballstemmer.porter_stemmer import PorterStemmer  # type: ignore[import-untyped]  # noqa: PLC0415

    # Porter's own algorithm, as FTS5 has it. A stemmer holds the word that it works on, so threads cannot share one; to
    # make one takes 0.2 µs of the 14 µs for a word.
    return cast("str", PorterStemmer().stemWord(word))  # pyright: ignore[reportUnknownMemberType]


MAX_LENGTH = 64
"""Characters of a topic name."""

_PREFIX = "team:"
_SUFFIX = ".txt"

# Windows opens a device for these, with any extension.
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul"} | {f"{port}{number}" for port in ("com", "lpt") for number in range(10)}
)


def topic_name(label: str) -> TopicName:
    """Return the slug (`[a-z0-9-]`, 1 to 64 characters) of a label; a slug is its own slug.

    `team:Node_Startup.txt` and `node startup` are one topic. Raises ValueError where nothing is left of the label.
    """
    text = unicodedata.normalize("NFKD", label).encode("ascii", "ignore").decode("ascii").lower().strip()
    text = text.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    slug = re.sub(r"[^a-z0-9]+", "-", text).strip("-")[:MAX_LENGTH].strip("-")
    if not slug:
        raise ValueError(f"no topic name can be made of {label[:80]!r}: it holds no Latin letter or digit")
    return TopicName(f"{slug}-topic" if slug in _DEVICES else slug)


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembering(Generic[K, V]):
    """A function of single items that is called with lists, and caches the items of the last list.

    A cache of a fixed size keeps old items, and is useless for longer lists. Threads may share it.
    """

    def __init__(self, of: Callable[[K], V]) -> None:
        self._of = of
        self._last: dict[K, V] = {}

    def __call__(self, items: Iterable[K]) -> list[V]:
        """Return the function's result for each item, in order."""
        asked, last = list(items), self._last
        now = {item: last[item] if item in last else self._of(item) for item in dict.fromkeys(asked)}
        self._last = now
        return [now[item] for item in asked]
