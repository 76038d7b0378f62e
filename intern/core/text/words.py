"""Words of a text, made comparable: casefolded, without stop words, stemmed.

Two forms of one English word ("rotating", "rotation") become the same stem; other languages keep their words as
they are written, and scripts without spaces are taken in pairs of characters.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Set as AbstractSet
from functools import lru_cache
from typing import Generic, TypeVar, cast

from Stemmer import Stemmer  # type: ignore[import-not-found]  # pyright: ignore[reportUnknownVariableType]

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
"""English words that say nothing about a text's subject, and the small talk of questions in a chat."""

# An underscore joins words ("max_in_flight"); people ask for them one by one. Parts behind apostrophes are stop words.
_WORD = re.compile(r"[^\W_]+")
# The same for ASCII, by a table: four times as fast.
_ONLY_WORDS = bytes(code if code < 128 and chr(code).isalnum() else ord(" ") for code in range(256))
# Han, kana, Hangul and Thai are written without spaces (or with few): a run of them is no word.
_UNSPACED = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]+")
_ENGLISH = re.compile(r"[a-z]{3,}")


def stem_words(text: str) -> list[str]:
    """Return the stems of a text in order, without stop words, with repetitions."""
    if text.isascii():  # as most are: the same as below, in a third of the time
        return [_stem_english(word) for word in _split_ascii_words(text.lower()) if word not in STOP_WORDS]
    return [stem for _, stem in _find_word_stems(text)]


def stem_set(text: str) -> frozenset[str]:
    """Return the set of `words`, in half the time if a text repeats its words."""
    if text.isascii():
        return frozenset([_stem_english(word) for word in set(_split_ascii_words(text.lower())) - STOP_WORDS])
    return frozenset(stem_words(text))


_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+|\n+")


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, each line by itself."""
    return [sentence for part in _SENTENCE_END.split(text) if (sentence := part.strip())]


def split_words(text: str) -> list[str]:
    """Return the words of a text as written, in order, stop words included."""
    return _split_ascii_words(text) if text.isascii() else _WORD.findall(text)


def collapse_whitespace(text: str) -> str:
    """Make each stretch of white space one space."""
    return " ".join(text.split())


def truncate_text(text: str, most: int) -> str:
    """Cut a text to at most `most` characters."""
    return text if len(text) <= most else f"{text[: max(most - 1, 0)].rstrip()}…"


def shorten_to_line(text: str, max_chars: int) -> str:
    """Return the text on one line, cut at a word if it is longer than `max_chars`."""
    line = collapse_whitespace(text)
    if len(line) <= max_chars:
        return line
    kept = line[: max(max_chars - 1, 0)]
    return f"{kept.rpartition(' ')[0] or kept}…"[: max(max_chars, 0)]


def add_title(text: str, title: str) -> str:
    """Put the title of a thread above its first message, unless it only greets or asks for help, or is a part of it.

    It becomes one line without mentions. A name that was made of the message may end within a word. Where the message
    has the same words here and there, the title still says what it is about.
    """
    line = truncate_text(collapse_whitespace(_MARKUP.sub(" ", title)), _LONGEST_TITLE)
    said, named = (" ".join(["", *split_words(_MARKUP.sub(" ", each))]).casefold() for each in (text, line))
    if named in said or not stem_set(line) - PLEASANTRIES:
        return text
    return f"{line}\n{text}" if text else line


def normalise_wording(text: str) -> str:
    """Normalise a text to compare it word for word: case, Unicode forms, spaces, and full stops at the end."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).rstrip(".!… ")


def find_unspaced_runs(word: str) -> list[str]:
    """Return the parts of a word in scripts that are written without spaces."""
    return [] if word.isascii() else _UNSPACED.findall(word)


def find_key_terms(text: str, n: int) -> list[str]:
    """Return the at most `n` words that a text is most about, as it writes them (casefolded), one form of each stem.

    More frequent terms come first, then earlier ones. Numbers and single letters never count.
    """
    written: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for word, stem in _find_word_stems(text):
        if len(word) > 1 and not any(char.isdigit() for char in word):
            written.setdefault(stem, word)
            counts[stem] += 1
    return [written[stem] for stem, _ in counts.most_common(max(n, 0))]


def word_overlap(query: str, text: str) -> float:
    """Return the share (0 to 1) of the query's distinct words that the text contains; 0 without words."""
    wanted = stem_set(query)
    return len(wanted & stem_set(text)) / len(wanted) if wanted else 0.0


class WordRarity:
    """The weights of words among some texts: the fewer texts contain a word, the more it weighs."""

    def __init__(self, texts: Iterable[Collection[str]]) -> None:
        """Take the `words` of each text."""
        self._holding: Counter[str] = Counter()
        self._texts = 0
        for text in texts:
            self._texts += 1
            self._holding.update(text if isinstance(text, AbstractSet) else set(text))

    def weight(self, word: str) -> float:
        """Return a weight above 0: most for a word that no text contains, almost 0 for one that all contain."""
        return word_weight(self._holding[word], self._texts)

    def compute_coverage(self, query: Iterable[str], text: Collection[str]) -> float:
        """Return the share (0 to 1) of the query's weight that the text contains."""
        [share] = self.compute_coverages(query, [frozenset(text)])
        return share

    def compute_coverages(self, query: Iterable[str], texts: Iterable[AbstractSet[str]]) -> list[float]:
        """Return `compute_coverage` for each text."""
        # Sorted: floating point sums depend on the order, and sets have none that lasts from run to run.
        weights = {word: self.weight(word) for word in sorted(set(query))}
        total = sum(weights.values())
        if not total:
            return [0.0 for _ in texts]
        return [sum([weights[word] for word in sorted(weights.keys() & held)]) / total for held in texts]


def word_weight(holding: int, texts: int) -> float:
    """Return the weight of a word that so many of these texts contain: above 0, most for one that none contains."""
    return math.log((texts + 1) / (holding + 0.5))


def _split_ascii_words(text: str) -> list[str]:
    return text.encode().translate(_ONLY_WORDS).decode().split()


def _find_word_stems(text: str) -> Iterable[tuple[str, str]]:
    for word in _WORD.findall(unicodedata.normalize("NFKC", text).casefold()):
        if word in STOP_WORDS:
            continue
        if not word.isascii() and _UNSPACED.search(word):
            yield from ((part, part) for part in _split_unspaced(word))
        else:
            yield word, _stem_english(word)


def _split_unspaced(run: str) -> Iterable[str]:
    at = 0
    for match in _UNSPACED.finditer(run):
        if match.start() > at:
            yield run[at : match.start()]
        chars = match.group()
        yield from (chars[n : n + 2] for n in range(max(len(chars) - 1, 1)))
        at = match.end()
    if at < len(run):
        yield run[at:]


_STEMMED = {"de": "german", "fr": "french", "es": "spanish", "pt": "portuguese"}


def stem_foreign_words(text: str, language: str | None) -> list[str]:
    """Return the stems of a text in German, French, Spanish or Portuguese, in order; none for another language."""
    name = _STEMMED.get(language or "")
    if name is None:
        return []
    return [_stem_with_snowball(name, word) for word in _WORD.findall(unicodedata.normalize("NFKC", text).casefold())]


def _stem_with_snowball(algorithm: str, word: str) -> str:
    # A stemmer holds the word that it works on, so threads cannot share one. To make one takes as long as a word. Its
    # cache is off (0), for it would end with the stemmer.
    return cast("str", Stemmer(algorithm, 0).stemWord(word))  # pyright: ignore[reportUnknownMemberType]


@lru_cache(maxsize=65536)
def _stem_english(word: str) -> str:
    # Porter's own algorithm, as FTS5 has it.
    return _stem_with_snowball("porter", word) if _ENGLISH.fullmatch(word) else word


_LONGEST_TITLE = 100  # characters, as on Discord
_MARKUP = re.compile(r"<[^<>\s]*\d>")  # mentions of people, roles and channels, custom emoji, times
PLEASANTRIES = stem_set(
    "hello hallo hola hey hi yo morning evening afternoon night day good nice great cool awesome perfect amazing "
    "bye goodbye cheers welcome sorry thank thanks thx ty np lol haha hmm ah oh wow ping question ask urgent asap "
    "dumb stupid silly noob newbie newb apologies apologise apologize excuse please pls plz advance quick "
    "guys folks team everyone everybody dear sir mate friend problem issue worries pleasure happy glad love lovely"
)
"""Words without content, beside the stop words."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LastBatchCache(Generic[K, V]):
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
