"""The flight recorder of answers: tape all that an answer is made from, and work it out again from the tape.

An answer reads three things from outside: the conversation, what the knowledge gives, and what models say. The tape
holds these, and the answer. The passages that were searched and read are texts that recordings share; a recording holds
names in their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain

import msgspec
from msgspec import Struct, structs

from intern.answering.nearest import Nearest
from intern.answering.prompts import MOST_SHOWN
from intern.answering.workflow import Answerer
from intern.answering.working import Knowledge, asked
from intern.core.errors import KnowledgeError, ModelError, ModelReplyError
from intern.core.ids import MessageId, SourceId
from intern.core.messages import COULD_NOT_LOOK, AIResult, Conversation, Image, Message, RequestContext, is_distilled
from intern.core.records import Hit, IndexEntry, Learned, SourceText
from intern.core.text.masking import encoded
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.models.recording import Call, Keep, Made, TapedModel, digest_of, parts_of
from intern.models.templates import Templates

_MOST_INDEX = 64_000  # characters of the index, where an answer read its descriptions

ANYONE = "anyone"
"""Words of people whom a recording does not name: of earlier answers, nuggets and facts."""


class KeptHit(Hit, frozen=True, kw_only=True, array_like=True):
    """A hit with the name of its text, and without those of its fields: there are sixteen in each recording."""

    def whole(self, texts: Mapping[str, str]) -> Hit:
        """Return it with its text; empty where that is lost."""
        told = structs.replace(self, text=texts.get(self.text, ""))
        return msgspec.convert(told, Hit, from_attributes=True)


class Searched(Struct, frozen=True, kw_only=True):
    """A search and its hits; None where it failed."""

    query: str
    limit: int
    hits: tuple[KeptHit, ...] | None


class Recalled(Struct, frozen=True, kw_only=True):
    """The nuggets and facts that fitted a query. The texts of the facts are names of shared texts."""

    query: str
    learned: Learned


class Liked(Struct, frozen=True, kw_only=True):
    """The cosines of a question and lines of passages."""

    texts: str
    """The digest of the question and the lines."""
    likes: Sequence[float] | None
    """None where they could not be computed."""


class Answered(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer, and all that it was made from."""

    at: datetime
    conversation: Conversation
    """Without pictures; without the words of others than the asker and the bot, unless they are to be kept."""
    context: RequestContext
    addressed: bool
    entries: int
    """Of the index."""
    index: tuple[IndexEntry, ...] = ()
    """Its entries, where they mattered: there were few of them, or no text was found."""
    searched: tuple[Searched, ...] = ()
    recalled: tuple[Recalled, ...] = ()
    sources: tuple[SourceText, ...] = ()
    """Those that were read; their texts are names of shared texts."""
    unreadable: Mapping[SourceId, str] = {}
    links: Mapping[SourceId, str | None] = {}
    likes: tuple[Liked, ...] = ()
    calls: tuple[Call, ...] = ()
    result: AIResult

    @property
    def named(self) -> frozenset[str]:
        """Whose words it holds: `user:<id>`, topics by their source ids, and ANYONE."""
        ids = [source.source_id for source in self.sources]
        ids += [entry.source_id for entry in self.index]
        ids += [hit.source_id for each in self.searched for hit in each.hits or ()]
        ids += [nugget.source_id for each in self.recalled for nugget in each.learned.nuggets]
        ids += [fact.source_id for each in self.recalled for fact in each.learned.facts]
        said = self.conversation.messages
        found = {f"user:{each.author_id}" for each in said if each.author_id and each.role == "user"}
        found |= {each for each in ids if each.startswith("team:")}
        if any(each.role == "assistant" for each in said) or any(map(is_distilled, ids)):
            found.add(ANYONE)
        return frozenset(found)

    @property
    def asked(self) -> frozenset[MessageId]:
        """The messages of the question."""
        question = self.conversation.messages[self.conversation.asked]
        return frozenset(each for each in (self.context.message_id, *(said.id for said in question)) if each)

    @property
    def heard(self) -> frozenset[MessageId]:
        """All messages that it holds."""
        return self.asked.union(each.id for each in self.conversation.messages if each.id)


_Read = dict[SourceId, SourceText | KnowledgeError]


@dataclass(kw_only=True)
class Tape:
    """What one answer has read so far."""

    at: datetime
    conversation: Conversation
    context: RequestContext
    addressed: bool
    index: Sequence[IndexEntry] = ()
    searched: list[tuple[str, int, Sequence[Hit] | None]] = field(
        default_factory=list[tuple[str, int, "Sequence[Hit] | None"]]
    )
    recalled: list[Recalled] = field(default_factory=list[Recalled])
    read: _Read = field(default_factory=_Read)
    links: dict[SourceId, str | None] = field(default_factory=dict[SourceId, "str | None"])
    likes: list[Liked] = field(default_factory=list[Liked])
    made: list[Made] = field(default_factory=list[Made])
    result: AIResult = AIResult(should_reply=False)  # noqa: RUF009 it is immutable

    @property
    def unfit(self) -> str:
        """Why it cannot be replayed; empty if it can."""
        if any(message.images for message in self.conversation.messages):
            return "it had pictures, which are not kept"
        if self.result.reason in COULD_NOT_LOOK:
            return f"it could not look ({self.result.reason})"
        if self._reads_index and not self._index_fits:
            return "it read the whole index, which is too long to be kept"
        return ""

    def answered(self, templates: Templates, keep: Keep, *, context: bool = True) -> Answered:
        """Return all of it, without pictures. Raises ConfigError for a broken template.

        Without `context`, only what the asker and the bot said is in it, and the prompts are made from that.
        """
        if not context:
            return self.without_others().answered(templates, keep)

        def shelved(source: SourceText) -> SourceText:
            return structs.replace(source, text=keep(source.text), said=source.said and keep(source.said))

        def kept(hit: Hit) -> KeptHit:
            return msgspec.convert(structs.replace(hit, text=keep(hit.text)), KeptHit, from_attributes=True)

        said = (structs.replace(each, images=()) if each.images else each for each in self.conversation.messages)
        return Answered(
            at=self.at,
            conversation=Conversation(tuple(said)),
            context=self.context,
            addressed=self.addressed,
            entries=len(self.index),
            index=tuple(self.index) if self._index_matters and self._index_fits else (),
            searched=tuple(
                Searched(query=query, limit=limit, hits=None if hits is None else tuple(map(kept, hits)))
                for query, limit, hits in self.searched
            ),
            recalled=tuple(
                structs.replace(each, learned=structs.replace(each.learned, facts=(*map(shelved, each.learned.facts),)))
                for each in self.recalled
            ),
            sources=tuple(shelved(each) for each in self.read.values() if isinstance(each, SourceText)),
            unreadable={name: str(each) for name, each in self.read.items() if isinstance(each, KnowledgeError)},
            links=self.links,
            likes=tuple(self.likes),
            calls=tuple(made.call(templates, keep) for made in self.made),
            result=self.result,
        )

    def without_others(self) -> Tape:
        """Return it with empty messages of other members; of what asked nothing, by itself, no words are left."""
        is_chatter = self.result.reason == "not_a_question" and not self.addressed
        own = {each.author_id for each in self.conversation.messages[self.conversation.asked] if not is_chatter}

        def kept(said: Message) -> Message:
            is_own = said.role == "assistant" or said.author_id in own
            return said if is_own else structs.replace(said, text="", attachments=())

        conversation = Conversation(tuple(map(kept, self.conversation.messages)))
        if is_chatter:
            return replace(self, conversation=conversation, searched=[], recalled=[], made=[])
        history = asked(conversation, addressed=self.addressed).history
        made = [replace(each, given=structs.replace(each.given, history=history), sent=None) for each in self.made]
        return replace(self, conversation=conversation, made=made)

    @property
    def _index_matters(self) -> bool:
        return len(self.index) <= MOST_SHOWN or self._reads_index

    @property
    def _reads_index(self) -> bool:
        """Whether descriptions decided: no text was found for who addressed the bot, or none was searched for."""
        found = [hits for _, _, hits in self.searched]
        return bool(self.index) and not any(found) and (self.addressed or all(hits is None for hits in found))

    @property
    def _index_fits(self) -> bool:
        return sum(len(entry.source_id) + len(entry.description) for entry in self.index) <= _MOST_INDEX


@dataclass(frozen=True)
class TapedKnowledge:
    """Knowledge that notes what it gives."""

    knowledge: Knowledge
    tape: Tape

    async def entries(self) -> Sequence[IndexEntry]:
        """As `Knowledge`; so are the others."""
        self.tape.index = await self.knowledge.entries()
        return self.tape.index

    async def load_each(self, source_ids: Sequence[SourceId], /) -> Sequence[SourceText | KnowledgeError]:
        """See above."""
        read = await self.knowledge.load_each(source_ids)
        self.tape.read.update(zip(source_ids, read, strict=True))
        return read

    async def hits(self, query: str, limit: int, /) -> Sequence[Hit] | None:
        """See above."""
        hits = await self.knowledge.hits(query, limit)
        self.tape.searched.append((query, limit, hits))
        return hits

    async def learned(self, query: str, /) -> Learned:
        """See above."""
        learned = await self.knowledge.learned(query)
        self.tape.recalled.append(Recalled(query=query, learned=learned))
        return learned

    async def citation_link(self, source_id: SourceId, /) -> str | None:
        """See above."""
        link = self.tape.links[source_id] = await self.knowledge.citation_link(source_id)
        return link


class TapedNearest(Nearest):
    """Ranks lines as another does, and notes their likeness."""

    def __init__(self, nearest: Nearest, tape: Tape) -> None:
        super().__init__()
        self._nearest, self._tape = nearest, tape

    @property
    def embeds(self) -> bool:
        """As `Nearest`."""
        return self._nearest.embeds

    async def likes(self, question: str, texts: Sequence[str]) -> Sequence[float] | None:
        """See above."""
        likes = await self._nearest.likes(question, texts)
        self._tape.likes.append(Liked(texts=_digest(question, texts), likes=likes))
        return likes


def taped(answerer: Answerer, tape: Tape, model: str) -> Answerer:
    """Return an answerer that fills the tape. `model` is the name of its model."""
    return replace(
        answerer,
        model=TapedModel(answerer.model, model, tape.made.append),
        knowledge=TapedKnowledge(answerer.knowledge, tape),
        nearest=answerer.nearest and TapedNearest(answerer.nearest, tape),
    )


class NotRecordedError(ModelReplyError):
    """Today's code asks something that the recording does not hold."""


class Replayed(Struct, frozen=True, kw_only=True):
    """An answer that was worked out again."""

    result: AIResult
    changed: tuple[str, ...]
    """What is no longer as it was recorded: the names of prompts, or what the knowledge was asked."""
    calls: int
    """Of these prompts, those that a model was asked anew."""
    is_same: bool
    """The answer is as it was, to the byte, with its citations and its reason."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Works recorded answers out again, with the options of an answerer and today's templates."""

    answerer: Answerer
    templates: Templates
    model: Model | None = None
    """Asked where a prompt is another one by now; without it, there is no answer then."""
    only: str = ""
    """The model whose recorded replies serve; empty: any."""

    async def again(self, answered: Answered, texts: Mapping[str, str]) -> Replayed:
        """Work out an answer, from its shared texts. Raises no `InternError`."""
        kept = _Kept(answered, texts)
        calls = [each for each in answered.calls if self.only in {"", each.model}]
        replies = RecordedModel(calls, texts, self.templates, self.model)
        nearest = self.answerer.nearest and RecordedNearest(self.answerer.nearest, answered.likes)
        answerer = replace(self.answerer, model=replies, knowledge=kept, nearest=nearest)
        result = await answerer.answer(answered.conversation, answered.context, addressed=answered.addressed)
        return Replayed(
            result=result,
            changed=tuple(dict.fromkeys((*kept.lacking, *replies.changed))),
            calls=len(replies.changed) if self.model is not None else 0,
            is_same=plain(result) == plain(answered.result),
        )


def plain(result: AIResult) -> AIResult:
    """Return an answer without the times and figures of its making, as a recording holds it."""
    return msgspec.json.decode(encoded(structs.replace(result, debug=None)), type=AIResult)


class RecordedModel:
    """Gives recorded replies to the same prompts; asks a model, if there is one, about others."""

    def __init__(
        self, calls: Iterable[Call], texts: Mapping[str, str], templates: Templates, model: Model | None
    ) -> None:
        self._calls = {(each.prompt, texts.get(each.shared), each.user): each for each in calls}
        self._templates, self._model = templates, model
        self.changed: list[str] = []
        """The prompts that were not recorded, by name."""

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        """Return the recorded reply, or ask. Raises the ModelError family."""
        shared, user = parts_of(prompt, self._templates.render(prompt, given))
        call = self._calls.get((prompt.name, shared, user))
        if call is not None and call.reply:
            return msgspec.json.decode(call.reply, type=prompt.gives)
        if call is not None and self._model is None:
            raise ModelError(call.error)
        self.changed.append(prompt.name)
        if self._model is None:
            raise NotRecordedError(f"the prompt {prompt.name} is another one by now")
        return await self._model.ask(prompt, given, images=images)


class RecordedNearest(Nearest):
    """Ranks lines by their recorded likeness; asks another about that of others."""

    def __init__(self, nearest: Nearest, recorded: Iterable[Liked]) -> None:
        super().__init__()
        self._nearest = nearest
        self._recorded = {each.texts: each.likes for each in recorded}

    @property
    def embeds(self) -> bool:
        """See above."""
        return bool(self._recorded) or self._nearest.embeds

    async def likes(self, question: str, texts: Sequence[str]) -> Sequence[float] | None:
        """See above."""
        digest = _digest(question, texts)
        return self._recorded[digest] if digest in self._recorded else await self._nearest.likes(question, texts)


class _Kept:
    """The knowledge as it was."""

    def __init__(self, answered: Answered, texts: Mapping[str, str]) -> None:
        self._answered, self._texts = answered, texts
        self._sources = {each.source_id: self._whole(each) for each in answered.sources}
        self.lacking: list[str] = []

    async def entries(self) -> Sequence[IndexEntry]:
        kept = self._answered.index
        # The others did not matter but by their number.
        others = range(self._answered.entries - len(kept))
        return (*kept, *(IndexEntry(SourceId(f"unrecorded:{n}"), "") for n in others))

    async def load_each(self, source_ids: Sequence[SourceId], /) -> Sequence[SourceText | KnowledgeError]:
        return [self._sources.get(each) or self._unread(each) for each in source_ids]

    async def hits(self, query: str, limit: int, /) -> Sequence[Hit] | None:
        for each in self._answered.searched:
            if each.query == query and limit <= each.limit:
                return each.hits and [hit.whole(self._texts) for hit in each.hits[:limit]]
        raise self._lacks("a search")

    async def learned(self, query: str, /) -> Learned:
        for each in self._answered.recalled:
            if each.query == query:
                return structs.replace(each.learned, facts=tuple(map(self._whole, each.learned.facts)))
        raise self._lacks("a search for facts")

    async def citation_link(self, source_id: SourceId, /) -> str | None:
        return self._answered.links.get(source_id)

    def _whole(self, source: SourceText) -> SourceText:
        said = source.said and self._texts[source.said]
        return structs.replace(source, text=self._texts[source.text], said=said)

    def _unread(self, source_id: SourceId) -> KnowledgeError:
        if source_id in self._answered.unreadable:
            return KnowledgeError(self._answered.unreadable[source_id])
        return self._lacks(f"the source {source_id}")

    def _lacks(self, what: str) -> KnowledgeError:
        self.lacking.append(what)
        return KnowledgeError(f"{what} is not in the recording")


def _digest(question: str, texts: Sequence[str]) -> str:
    return digest_of(encoded((question, *texts)).decode())


def texts_of(answered: Answered) -> Iterator[str]:
    """Yield what people and models said: all else in a recording is made from that and from shared texts."""
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
