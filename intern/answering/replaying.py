"""Recorded answers, asked again without search or model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec import Struct, structs

from intern.answering.answer_tape import AnswerRecording, RecordedSimilarities, digest_texts
from intern.answering.answerer import Answerer
from intern.answering.line_ranking import LineRanker
from intern.core.errors import KnowledgeError, ModelError, ModelReplyError
from intern.core.ids import SourceId
from intern.core.knowledge import IndexEntry, LearnedMatches, SourceText
from intern.core.messages import (
    AnswerResult,
    Image,
)
from intern.core.search_documents import PassageHit
from intern.core.text.encoding import encode_json
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.models.recorded_calls import (
    RecordedCall,
    split_shared_text,
)
from intern.models.templates import PromptTemplates


class NotRecordedError(ModelReplyError):
    """Today's code asks for something that the recording lacks."""


class AnswerReplayResult(Struct, frozen=True, kw_only=True):
    """A replayed answer."""

    result: AnswerResult
    changed: tuple[str, ...]
    """The differences from the recording: names of prompts, or lookups in the knowledge."""
    calls: int
    """The prompts among these that were sent to a model again."""
    is_same: bool
    """Whether the answer is the same, to the byte, with its citations and its reason."""


@dataclass(frozen=True, kw_only=True)
class AnswerReplayer:
    """Replays recorded answers, with the options of an answerer and today's templates."""

    answerer: Answerer
    templates: PromptTemplates
    model: Model | None = None
    """The model for prompts that have changed; without it, there is no answer then."""
    only: str = ""
    """The model whose recorded replies are used; empty: any."""

    async def replay(self, answered: AnswerRecording, texts: Mapping[str, str]) -> AnswerReplayResult:
        """Replay an answer with its shared texts. Raises no `InternError`."""
        kept = _RecordedKnowledge(answered, texts)
        calls = [each for each in answered.calls if self.only in {"", each.model}]
        replies = ReplayingModel(calls, texts, self.templates, self.model)
        nearest = self.answerer.nearest and RecordedLineRanker(self.answerer.nearest, answered.likes)
        answerer = replace(self.answerer, model=replies, knowledge=kept, nearest=nearest)
        result = await answerer.answer(answered.conversation, answered.context, addressed=answered.addressed)
        return AnswerReplayResult(
            result=result,
            changed=tuple(dict.fromkeys((*kept.lacking, *replies.changed))),
            calls=len(replies.changed) if self.model is not None else 0,
            is_same=strip_debug(result) == strip_debug(answered.result),
        )


def strip_debug(result: AnswerResult) -> AnswerResult:
    """Return an answer without times and figures, as in a recording."""
    return msgspec.json.decode(encode_json(structs.replace(result, debug=None)), type=AnswerResult)


class ReplayingModel:
    """Gives the recorded replies to the same prompts; sends other prompts to a model, if there is one."""

    def __init__(
        self, calls: Iterable[RecordedCall], texts: Mapping[str, str], templates: PromptTemplates, model: Model | None
    ) -> None:
        self._calls = {(each.prompt, texts.get(each.shared), each.user): each for each in calls}
        self._templates, self._model = templates, model
        self.changed: list[str] = []
        """The prompts that were not recorded, by name."""

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        """Return the recorded reply, or ask. Raises the ModelError family."""
        shared, user = split_shared_text(prompt, self._templates.render(prompt, given))
        call = self._calls.get((prompt.name, shared, user))
        if call is not None and call.reply:
            return msgspec.json.decode(call.reply, type=prompt.gives)
        if call is not None and self._model is None:
            raise ModelError(call.error)
        self.changed.append(prompt.name)
        if self._model is None:
            raise NotRecordedError(f"the prompt {prompt.name} is another one by now")
        return await self._model.ask(prompt, given, images=images)


class RecordedLineRanker(LineRanker):
    """Ranks lines by their recorded similarities; uses another ranker for other lines."""

    def __init__(self, nearest: LineRanker, recorded: Iterable[RecordedSimilarities]) -> None:
        super().__init__()
        self._nearest = nearest
        self._recorded = {each.texts: each.likes for each in recorded}

    @property
    def embeds(self) -> bool:
        """See above."""
        return bool(self._recorded) or self._nearest.embeds

    async def compute_similarities(self, question: str, texts: Sequence[str]) -> Sequence[float] | None:
        """See above."""
        digest = digest_texts(question, texts)
        return (
            self._recorded[digest]
            if digest in self._recorded
            else await self._nearest.compute_similarities(question, texts)
        )


class _RecordedKnowledge:
    """The knowledge as it was recorded."""

    def __init__(self, answered: AnswerRecording, texts: Mapping[str, str]) -> None:
        self._answered, self._texts = answered, texts
        self._sources = {each.source_id: self._restore_source(each) for each in answered.sources}
        self.lacking: list[str] = []

    async def entries(self) -> Sequence[IndexEntry]:
        kept = self._answered.index
        # Only the number of the others mattered.
        others = range(self._answered.entries - len(kept))
        return (*kept, *(IndexEntry(SourceId(f"unrecorded:{n}"), "") for n in others))

    async def load_each(self, source_ids: Sequence[SourceId], /) -> Sequence[SourceText | KnowledgeError]:
        return [self._sources.get(each) or self._make_unread_error(each) for each in source_ids]

    async def find_hits(self, query: str, limit: int, /) -> Sequence[PassageHit] | None:
        for each in self._answered.searched:
            if each.query == query and limit <= each.limit:
                return each.hits and [hit.restore(self._texts) for hit in each.hits[:limit]]
        raise self._note_missing("a search")

    async def find_distilled(self, query: str, /) -> LearnedMatches:
        for each in self._answered.recalled:
            if each.query == query:
                return structs.replace(each.learned, facts=tuple(map(self._restore_source, each.learned.facts)))
        raise self._note_missing("a search for facts")

    async def citation_link(self, source_id: SourceId, /) -> str | None:
        return self._answered.links.get(source_id)

    def _restore_source(self, source: SourceText) -> SourceText:
        said = source.said and self._texts[source.said]
        return structs.replace(source, text=self._texts[source.text], said=said)

    def _make_unread_error(self, source_id: SourceId) -> KnowledgeError:
        if source_id in self._answered.unreadable:
            return KnowledgeError(self._answered.unreadable[source_id])
        return self._note_missing(f"the source {source_id}")

    def _note_missing(self, what: str) -> KnowledgeError:
        self.lacking.append(what)
        return KnowledgeError(f"{what} is not in the recording")
