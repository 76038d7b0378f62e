"""The recorder of answers: it records everything that an answer is made from.

An answer reads three things from outside: the conversation, the results of the knowledge, and models' replies. The tape
has these, and the answer. Recordings share the texts of found and read passages; a recording has their names instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain

import msgspec
from msgspec import Struct, structs

from intern.answering.answerer import Answerer
from intern.answering.line_ranking import LineRanker
from intern.answering.prepared_question import prepare_question
from intern.answering.prompts import MOST_SHOWN
from intern.answering.steps import KnowledgeLookup
from intern.core.errors import KnowledgeError
from intern.core.ids import MessageId, SourceId
from intern.core.knowledge import IndexEntry, LearnedMatches, SourceText
from intern.core.messages import (
    LOOKUP_FAILURES,
    AnswerResult,
    Conversation,
    Message,
    RequestContext,
    is_distilled,
)
from intern.core.search_documents import PassageHit
from intern.core.text.encoding import encode_json
from intern.models.recorded_calls import (
    FinishedCall,
    Keep,
    RecordedCall,
    RecordingModel,
    make_digest,
)
from intern.models.templates import PromptTemplates
from intern.stores.qa_ids import bare_message_id

_MOST_INDEX = 64_000  # characters of the index, if an answer read its descriptions

ANYONE = "anyone"
"""The origin of words whose authors a recording does not name: those of earlier answers, nuggets and facts."""


class RecordedHit(PassageHit, frozen=True, kw_only=True, array_like=True):
    """A hit with the name of its text. It is stored without field names: a recording has many of them."""

    def restore(self, texts: Mapping[str, str]) -> PassageHit:
        """Return the hit with its text; empty if the text is lost."""
        told = structs.replace(self, text=texts.get(self.text, ""))
        return msgspec.convert(told, PassageHit, from_attributes=True)


class RecordedSearch(Struct, frozen=True, kw_only=True):
    """A search and its hits; None if it failed."""

    query: str
    limit: int
    hits: tuple[RecordedHit, ...] | None


class RecordedLearned(Struct, frozen=True, kw_only=True):
    """The nuggets and facts that fitted a query, the facts with the names of their shared texts."""

    query: str
    learned: LearnedMatches


class RecordedSimilarities(Struct, frozen=True, kw_only=True):
    """The cosines of a question and lines of passages."""

    texts: str
    """The digest of the question and the lines."""
    likes: Sequence[float] | None
    """None if they could not be computed."""


class AnswerRecording(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer, and everything that it was made from."""

    at: datetime
    conversation: Conversation
    """Without pictures; only with the words of the asker and the bot, unless others' words are to be kept."""
    context: RequestContext
    addressed: bool
    entries: int
    """The number of the index's entries."""
    index: tuple[IndexEntry, ...] = ()
    """Its entries, if they mattered: there were few of them, or the search found no text."""
    searched: tuple[RecordedSearch, ...] = ()
    recalled: tuple[RecordedLearned, ...] = ()
    sources: tuple[SourceText, ...] = ()
    """The sources that were read, with the names of their shared texts."""
    unreadable: Mapping[SourceId, str] = {}
    links: Mapping[SourceId, str | None] = {}
    likes: tuple[RecordedSimilarities, ...] = ()
    calls: tuple[RecordedCall, ...] = ()
    result: AnswerResult

    @property
    def origins(self) -> frozenset[str]:
        """The origins of its words: `message:<id>`, `user:<id>`, topics by their source ids, and ANYONE."""
        ids = [source.source_id for source in self.sources]
        ids += [entry.source_id for entry in self.index]
        ids += [hit.source_id for each in self.searched for hit in each.hits or ()]
        ids += [nugget.source_id for each in self.recalled for nugget in each.learned.nuggets]
        ids += [fact.source_id for each in self.recalled for fact in each.learned.facts]
        said = self.conversation.messages
        found = {f"user:{each.author_id}" for each in said if each.author_id and each.role == "user"}
        found |= {name_message(each) for each in (self.context.message_id, *(each.id for each in said)) if each}
        found |= {each for each in ids if each.startswith("team:")}
        if any(each.role == "assistant" for each in said) or any(map(is_distilled, ids)):
            found.add(ANYONE)
        return frozenset(found)


def name_message(message_id: MessageId) -> str:
    """Return the origin of a message's words."""
    return f"message:{bare_message_id(message_id)}"


_Read = dict[SourceId, SourceText | KnowledgeError]
_Searched = tuple[str, int, Sequence[PassageHit] | None]


@dataclass(kw_only=True)
class AnswerTape:
    """The results that one answer has read so far."""

    at: datetime
    conversation: Conversation
    context: RequestContext
    addressed: bool
    index: Sequence[IndexEntry] = ()
    searched: list[_Searched] = field(default_factory=list[_Searched])
    recalled: list[RecordedLearned] = field(default_factory=list[RecordedLearned])
    read: _Read = field(default_factory=_Read)
    links: dict[SourceId, str | None] = field(default_factory=dict[SourceId, "str | None"])
    likes: list[RecordedSimilarities] = field(default_factory=list[RecordedSimilarities])
    made: list[FinishedCall] = field(default_factory=list[FinishedCall])
    result: AnswerResult = AnswerResult(should_reply=False)  # noqa: RUF009 it is immutable

    @property
    def unfit_reason(self) -> str:
        """The reason why it cannot be replayed; empty if it can."""
        if any(message.images for message in self.conversation.messages):
            return "it had pictures, which are not kept"
        if self.result.reason in LOOKUP_FAILURES:
            return f"it could not look ({self.result.reason})"
        if self._reads_index and not self._index_fits:
            return "it read the whole index, which is too long to be kept"
        return ""

    def make_recording(self, templates: PromptTemplates, keep: Keep, *, context: bool = True) -> AnswerRecording:
        """Return the recording, without pictures. Raises ConfigError for a broken template.

        Without `context`, it has only the words of the asker and the bot, and the prompts are made from these.
        """
        if not context:
            return self.without_others().make_recording(templates, keep)

        def store_source(source: SourceText) -> SourceText:
            return structs.replace(source, text=keep(source.text), said=source.said and keep(source.said))

        def store_hit(hit: PassageHit) -> RecordedHit:
            return msgspec.convert(structs.replace(hit, text=keep(hit.text)), RecordedHit, from_attributes=True)

        matters = len(self.index) <= MOST_SHOWN or self._reads_index
        said = (structs.replace(each, images=()) if each.images else each for each in self.conversation.messages)
        return AnswerRecording(
            at=self.at,
            conversation=Conversation(tuple(said)),
            context=self.context,
            addressed=self.addressed,
            entries=len(self.index),
            index=tuple(self.index) if matters and self._index_fits else (),
            searched=tuple(
                RecordedSearch(query=query, limit=limit, hits=None if hits is None else tuple(map(store_hit, hits)))
                for query, limit, hits in self.searched
            ),
            recalled=tuple(
                structs.replace(
                    each, learned=structs.replace(each.learned, facts=(*map(store_source, each.learned.facts),))
                )
                for each in self.recalled
            ),
            sources=tuple(store_source(each) for each in self.read.values() if isinstance(each, SourceText)),
            unreadable={name: str(each) for name, each in self.read.items() if isinstance(each, KnowledgeError)},
            links=self.links,
            likes=tuple(self.likes),
            calls=tuple(made.make_recorded_call(templates, keep) for made in self.made),
            result=self.result,
        )

    def without_others(self) -> AnswerTape:
        """Return the tape with empty messages of other members; without any words if the message asked nothing."""
        is_chatter = self.result.reason == "not_a_question" and not self.addressed
        own = {each.author_id for each in self.conversation.messages[self.conversation.asked] if not is_chatter}

        def blank_foreign(said: Message) -> Message:
            is_own = said.role == "assistant" or said.author_id in own
            return said if is_own else structs.replace(said, text="", attachments=())

        conversation = Conversation(tuple(map(blank_foreign, self.conversation.messages)))
        if is_chatter:
            return replace(self, conversation=conversation, searched=[], recalled=[], made=[])
        history = prepare_question(conversation, addressed=self.addressed).history
        made = [replace(each, given=structs.replace(each.given, history=history), sent=None) for each in self.made]
        return replace(self, conversation=conversation, made=made)

    @property
    def _reads_index(self) -> bool:
        """Whether descriptions decided: the search found no text for an addressed question, or there was no search."""
        found = [hits for _, _, hits in self.searched]
        return bool(self.index) and not any(found) and (self.addressed or all(hits is None for hits in found))

    @property
    def _index_fits(self) -> bool:
        return sum(len(entry.source_id) + len(entry.description) for entry in self.index) <= _MOST_INDEX


@dataclass(frozen=True)
class TapedKnowledge:
    """A `KnowledgeLookup` that records its results."""

    knowledge: KnowledgeLookup
    tape: AnswerTape

    async def entries(self) -> Sequence[IndexEntry]:
        """Look up and record, as `KnowledgeLookup` describes; the other methods do the same."""
        self.tape.index = await self.knowledge.entries()
        return self.tape.index

    async def load_each(self, source_ids: Sequence[SourceId], /) -> Sequence[SourceText | KnowledgeError]:
        """See above."""
        read = await self.knowledge.load_each(source_ids)
        self.tape.read.update(zip(source_ids, read, strict=True))
        return read

    async def find_hits(self, query: str, limit: int, /) -> Sequence[PassageHit] | None:
        """See above."""
        hits = await self.knowledge.find_hits(query, limit)
        self.tape.searched.append((query, limit, hits))
        return hits

    async def find_distilled(self, query: str, /) -> LearnedMatches:
        """See above."""
        learned = await self.knowledge.find_distilled(query)
        self.tape.recalled.append(RecordedLearned(query=query, learned=learned))
        return learned

    async def citation_link(self, source_id: SourceId, /) -> str | None:
        """See above."""
        link = self.tape.links[source_id] = await self.knowledge.citation_link(source_id)
        return link


class TapedLineRanker(LineRanker):
    """Ranks lines as another ranker does, and records their similarities."""

    def __init__(self, nearest: LineRanker, tape: AnswerTape) -> None:
        super().__init__()
        self._nearest, self._tape = nearest, tape

    @property
    def embeds(self) -> bool:
        """The same as for `LineRanker`."""
        return self._nearest.embeds

    async def compute_similarities(self, question: str, texts: Sequence[str]) -> Sequence[float] | None:
        """See above."""
        likes = await self._nearest.compute_similarities(question, texts)
        self._tape.likes.append(RecordedSimilarities(texts=digest_texts(question, texts), likes=likes))
        return likes


def attach_tape(answerer: Answerer, tape: AnswerTape, model: str) -> Answerer:
    """Return an answerer that fills the tape. `model` is the name of its model."""
    return replace(
        answerer,
        model=RecordingModel(answerer.model, model, tape.made.append),
        knowledge=TapedKnowledge(answerer.knowledge, tape),
        nearest=answerer.nearest and TapedLineRanker(answerer.nearest, tape),
    )


def digest_texts(question: str, texts: Sequence[str]) -> str:
    """Return the digest of a question and texts that are compared with it."""
    return make_digest(encode_json((question, *texts)).decode())


def iter_texts(answered: AnswerRecording) -> Iterator[str]:
    """Yield the words of people and models: everything else is made from these and from shared texts."""
    for message in answered.conversation.messages:
        yield message.text
        for file in message.attachments:
            yield file.filename
            if file.digest:
                yield from (file.digest.telling, file.digest.excerpt)
    recalled = [each.learned for each in answered.recalled]
    for entry in chain(answered.index, *(each.nuggets for each in recalled)):
        yield entry.description
    for source in chain(answered.sources, *(each.facts for each in recalled)):
        yield from (source.title, source.url or "")
    yield from (hit.title for each in answered.searched for hit in each.hits or ())
    yield from (*answered.unreadable.values(), *(link or "" for link in answered.links.values()))
    yield from (call.reply for call in answered.calls)
    yield str((answered.result.debug or {}).get("error", ""))
