"""Embedders, which turn texts into vectors, and the similarities at which their hits count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Protocol

from msgspec import Struct

from intern.search.embedding_local import ENGLISH, MULTILINGUAL


class SimilarityThresholds(Struct, frozen=True, kw_only=True):
    """The cosines below which a text is not found by likeness. They belong to a model."""

    beside_words: float = 0.0
    """If a document contains a word of the question."""
    alone: float = 0.0
    """If none does."""
    of_unknown: float = 0.0
    """If none does, and the model knows none of the words either: its vector says little then."""


LEAST_LIKENESS: Mapping[str, SimilarityThresholds] = {
    ENGLISH.name: SimilarityThresholds(beside_words=0.2, alone=0.3, of_unknown=0.45),
    MULTILINGUAL.name: SimilarityThresholds(beside_words=0.05, alone=0.1, of_unknown=0.1),
}
"""Without it, a search for a subject that no document has finds ten sources. A made-up word comes to .2 with one of 20
documents in 27% of cases, to .3 in 4%; with one of 3,000 to .45 in 5%. Synonyms of single words ("photo", "physician",
"automobile") came to .32 to .57. Of 120 to 302 real questions a set, all but two hold a word of some
document, so that only `beside_words` concerns them.

The multilingual model scores a question and its document in different languages like unrelated texts (.13 to .26 and
.1 to .25 in the sample). With .2 for those without a common word it lost a quarter of the
Japanese questions over English documents; made-up words find something with it."""


class Embedder(Protocol):
    """A model that turns texts into vectors, to compare texts. Vectors of different models cannot be compared."""

    @property
    def model(self) -> str:
        """The name of the vectors. It changes when new vectors cannot be compared with earlier ones."""
        ...

    async def compute_vectors(self, texts: Sequence[str], /, *, asked: bool = False) -> Sequence[bytes]:
        """Return the vector of each text: 32-bit floats, little-endian, of length 1. Raises the ModelError family.

        All are questions, where they are `asked`, or documents: some models have other vectors for these.
        """
        ...


class CachingEmbedder:
    """An embedder that knows the vectors of the last `most` texts. Of equal texts, it embeds one."""

    def __init__(self, embedder: Embedder, most: int) -> None:
        self.model = embedder.model
        self._embedder = embedder
        self._most = most
        self._vectors: dict[tuple[str, bool], bytes] = {}

    async def compute_vectors(self, texts: Sequence[str], /, *, asked: bool = False) -> Sequence[bytes]:
        """Return the vector of each text. Raises the ModelError family."""
        keys = [(text, asked) for text in texts]
        found = {key: self._vectors[key] for key in keys if key in self._vectors}
        if new := [key for key in dict.fromkeys(keys) if key not in found]:
            found |= zip(new, await self._embedder.compute_vectors([text for text, _ in new], asked=asked), strict=True)
        others = ((key, vector) for key, vector in self._vectors.items() if key not in found)
        self._vectors = dict([*others, *found.items()][-self._most :])
        return [found[key] for key in keys]

    def forget(self, *texts: str) -> None:
        """Forget these texts; without any, all."""
        for key in product(texts, (False, True)) if texts else tuple(self._vectors):
            self._vectors.pop(key, None)
