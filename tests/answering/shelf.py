"""Knowledge in memory, which can fail on demand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from intern.core.errors import InternError, KnowledgeError, SourceError
from intern.core.ids import SourceId
from intern.core.knowledge import IndexEntry, LearnedMatches, SourceText
from intern.core.search_documents import PassageHit
from intern.core.text.passages import PASSAGE, split_passages


def indexed(text: str) -> str:
    """Return the last passage of a source as it is indexed: for a topic, the words without the speakers."""
    size = len(text) if text.startswith("--- QA ---") else PASSAGE
    last = next(reversed(split_passages(text, size) if text else []), None)
    if last is None or not last.text.startswith("--- QA ---"):
        return "" if last is None else last.text
    said = re.split(r"^(?:User|Team): ", last.text, flags=re.MULTILINE)[1:]
    return re.sub(r"^  ", "", "".join(said), flags=re.MULTILINE).strip()


class Shelf:
    """Holds sources by id; the first line of each is its description and title."""

    def __init__(
        self,
        sources: Mapping[str, str],
        *,
        urls: Mapping[str, str] | None = None,
        links: Mapping[str, str] | None = None,
    ) -> None:
        self.sources = dict(sources)
        self.urls = dict(urls or {})
        self.links = dict(links or {})
        self.broken: dict[str, InternError] = {}
        """The errors to raise, by source id; `index` for the index, `links` for the links."""
        self.loaded: list[str] = []
        self.order: list[SourceId] | None = None
        """The results of a search in the texts; None: it fails."""
        self.said: dict[str, str] = {}
        """The found passages by source, as they were indexed; for other sources, the last passage."""
        self.likeness: float | None = None
        """The similarity of the found passages; None: by words alone."""
        self.fit = 1.0
        """The fit of the first found passage, by words and as a whole."""
        self.step = 0.1
        """The decrease of the fit for each further passage."""
        self.ranked: list[str] = []
        self.knows = LearnedMatches()
        """The nuggets and facts that fit every question; a nugget is loaded like any other source."""
        self.asked: list[str] = []

    async def entries(self) -> Sequence[IndexEntry]:
        self._fail("index")
        return [IndexEntry(SourceId(key), text.split("\n")[0].lstrip("# ")) for key, text in self.sources.items()]

    async def load_each(self, source_ids: Sequence[SourceId], /) -> Sequence[SourceText | KnowledgeError]:
        return [self._load(source_id) for source_id in source_ids]

    def _load(self, source_id: SourceId) -> SourceText | KnowledgeError:
        self.loaded.append(source_id)
        if isinstance(why := self.broken.get(source_id), KnowledgeError):
            return why
        self._fail(source_id)
        if source_id not in self.sources:
            return SourceError(f"{source_id} is not in the index")
        text = self.sources[source_id]
        return SourceText(
            source_id=source_id, text=text, title=text.split("\n")[0].lstrip("# "), url=self.urls.get(source_id)
        )

    async def find_hits(self, query: str, limit: int, /) -> Sequence[PassageHit] | None:
        """Return the first lines of the sources in their order, each a little worse than the one before."""
        self.ranked.append(query)
        if self.order is None:
            return None
        texts = ((each, indexed(self.sources.get(each, ""))) for each in self.order[:limit])
        return [
            PassageHit(
                source_id=each,
                text=self.said.get(each, text),
                score=self.fit - n * self.step,
                by_words=self.fit - n * self.step,
                likeness=self.likeness,
            )
            for n, (each, text) in enumerate(texts)
        ]

    async def find_distilled(self, query: str, /) -> LearnedMatches:
        self.asked.append(query)
        return self.knows

    async def citation_link(self, source_id: SourceId, /) -> str | None:
        self._fail("links")
        return self.links.get(source_id)

    def _fail(self, what: str) -> None:
        if what in self.broken:
            raise self.broken[what]
