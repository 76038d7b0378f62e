"""Find the lines nearest to a question, to point a model at."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from operator import mul

from msgspec import Struct
from msgspec.structs import replace

from intern.answering.prompts import MAX_LINE, ShownPassage
from intern.core.errors import ModelError
from intern.core.log import get_logger
from intern.core.messages import is_team_source
from intern.core.text.passages import find_blocks
from intern.core.text.words import WordRarity, split_sentences, stem_set
from intern.search.embedder import CachingEmbedder, Embedder

_log = get_logger(__name__)

CONFIDENCE = re.compile(r"\n\(confidence [^\n]*\)\Z")
"""The end of a fact's text, for a model to weigh."""
_TURN = re.compile(r"^(Team|User): (.*?)(?=^(?:User|Team): |\Z)", re.MULTILINE | re.DOTALL)
_REMEMBERED = 2000  # vectors, of 1.5 kB each
_MOST_EMBEDDED = 16  # lines that are compared by meaning, the best by words
_WORDS = 0.5  # the weight of the words that a line holds, beside its cosine


class RankedLine(Struct, frozen=True, kw_only=True):
    """A line of a passage, and its nearness to a question."""

    passage: ShownPassage
    text: str
    covered: float = 0.0
    """The share, 0 to 1, of the question's informative words that it contains."""
    like: float | None = None
    """Its cosine with the question; None without an embedder."""

    @property
    def rank(self) -> float:
        """The sort key: the largest is nearest."""
        return self.covered if self.like is None else self.like + _WORDS * self.covered


class LineRanker:
    """Ranks lines of passages; caches their vectors, because the same passages are shown again and again."""

    def __init__(self, embedder: Embedder | None = None) -> None:
        self._embedder = None if embedder is None else CachingEmbedder(embedder, _REMEMBERED)

    @property
    def embeds(self) -> bool:
        """Whether it also compares by meaning."""
        return self._embedder is not None

    async def compute_similarities(self, question: str, texts: Sequence[str]) -> Sequence[float] | None:
        """Return the cosine of each text and the question; None if that could not be computed."""
        if self._embedder is None:
            return None
        try:
            [asked] = await self._embedder.compute_vectors([question], asked=True)
            self._embedder.forget(question)
            vectors = await self._embedder.compute_vectors(texts)
        except ModelError as error:
            _log.warning("nearest_by_words_only", reason=str(error))
            return None
        return [round(sum(map(mul, memoryview(asked).cast("f"), memoryview(each).cast("f"))), 6) for each in vectors]

    async def rank_lines(self, question: str, shown: Iterable[ShownPassage]) -> list[RankedLine]:
        """Rank the lines, nearest first; of equals, shortest first. Only the best by words are compared by meaning."""
        lines = [RankedLine(passage=passage, text=line) for passage in shown for line in _split_lines(passage)]
        held = [stem_set(each.text) for each in lines]
        shares = WordRarity(held).compute_coverages(stem_set(question), held)
        lines = _sort_lines(replace(each, covered=share) for each, share in zip(lines, shares, strict=True))
        best = lines[:_MOST_EMBEDDED]
        likes = (
            await self.compute_similarities(question, [each.text for each in best]) if best and self.embeds else None
        )
        if likes is None:
            return lines
        return _sort_lines(replace(each, like=like) for each, like in zip(best, likes, strict=True))


def _sort_lines(lines: Iterable[RankedLine]) -> list[RankedLine]:
    return sorted(lines, key=lambda near: (-near.rank, len(near.text)))


def _split_lines(passage: ShownPassage) -> Iterator[str]:
    """Yield the quotable lines: sentences, items, rows, lines of code; from a team answer, its words."""
    text = (
        extract_team_words(passage.text)
        if is_team_source(passage.source_id)
        else CONFIDENCE.sub("", passage.trusted_text)
    )
    for span in find_blocks(text):
        block = text[span.start : span.end]
        lines = block.split("\n")[1:-1] if span.kind == "code" else split_sentences(block)
        yield from (line.strip()[:MAX_LINE] for line in lines if line.strip())


def extract_team_words(text: str) -> str:
    """Return the words of the team in a conversation."""
    return "\n\n".join(said.strip() for who, said in _TURN.findall(text) if who == "Team")
