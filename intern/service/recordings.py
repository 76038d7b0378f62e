"""Recordings, for people: the reason for an answer, and whether today's code would give the same one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, count
from typing import Any, cast

import msgspec
from anyio.to_thread import run_sync
from msgspec import Struct, structs

from intern.answering.answer_tape import AnswerRecording
from intern.answering.answerer import Answerer
from intern.answering.replaying import AnswerReplayer, ReplayingModel
from intern.core.errors import ConfigError, InternError
from intern.core.ids import MessageId, SourceId
from intern.core.messages import LOOKUP_FAILURES, AnswerResult, Citation
from intern.core.progress import report_progress
from intern.core.search_documents import PassageHit
from intern.core.tasks import run_each
from intern.core.text.encoding import encode_json
from intern.models.prompt import Model
from intern.models.recorded_calls import RecordedCall
from intern.models.templates import PromptTemplates
from intern.service.models import PROMPTS
from intern.service.recorder import ANSWER, StandaloneCall
from intern.stores.archive import Archive
from intern.stores.database import Database
from intern.stores.tables.feedback import FeedbackStore, Votes
from intern.stores.tables.knowledge import KnowledgeStore
from intern.stores.tables.recordings import RecordingStore, StoredRecording

_AT_ONCE = 8  # answers that are replayed together; an endpoint's own limits hold, too
_FORGOTTEN = "texts of it were forgotten"


class RecordedMessage(Struct, frozen=True):
    """A message of the conversation."""

    speaker: str
    """`asker`, `member` or `bot`."""
    text: str


class CallDetails(Struct, frozen=True, kw_only=True):
    """A call of a model."""

    prompt: str
    model: str
    tokens: int
    """0: by rules, or reused from the same request before."""
    seconds: float
    instructions: str
    """The part that all calls of the prompt share, with examples and schema; empty if it is lost."""
    shown: str
    """The rest of the prompt."""
    reply: str
    """The reply as JSON; empty where the call failed."""
    error: str


class RecordingDetails(Struct, frozen=True, kw_only=True):
    """A recording, to be read."""

    kind: str
    """`answer`, or the prompt of another call."""
    subject: str
    at: str
    outcome: str
    unfit: str
    """The reason why it cannot be replayed; empty if it can."""
    heard: tuple[RecordedMessage, ...] = ()
    addressed: bool = False
    entries: int = 0
    """The number of entries of the index."""
    searched: str | None = None
    """The query of the search; None where nothing was searched."""
    hits: tuple[PassageHit, ...] | None = ()
    """The passages that the search proposed; None where it failed."""
    learned: tuple[SourceId, ...] = ()
    """The nuggets and facts that matched."""
    read: tuple[SourceId, ...] = ()
    unreadable: Mapping[SourceId, str] = {}
    said: tuple[CallDetails, ...] = ()
    checks: Mapping[str, Mapping[str, Any]] = {}
    """The decision of each step, with its figures."""
    error: str = ""
    """The parts that failed, if the answer could not search everything."""
    reply: str | None = None
    citations: tuple[Citation, ...] = ()


class ReplayedRecording(Struct, frozen=True, kw_only=True):
    """A recording that was replayed."""

    kind: str
    subject: str
    at: str
    question: str
    """The question of an answer."""
    then: str
    """The answer, or the reason for silence in brackets; of another call, the reply."""
    now: str
    """The new result; empty if it could not be replayed."""
    answered_then: bool = True
    answered_now: bool = True
    is_same: bool
    """Whether both are equal to the byte, with citations."""
    changed: tuple[str, ...] = ()
    """The prompts that changed since, and the parts that the recording lacks."""
    calls: int = 0
    """The number of new calls."""
    unfit: str = ""
    """The reason why it could not be replayed."""
    votes: Votes = Votes()
    team: str | None = None
    """The team's answer to it, if it was captured."""


class Recordings:
    """The recordings of a database. Methods raise KnowledgeError."""

    def __init__(self, db: Database, archive: Archive, knowledge: KnowledgeStore) -> None:
        self._store, self._feedback = RecordingStore(db), FeedbackStore(db)
        self._archive, self._knowledge = archive, knowledge

    async def explain(self, name: str) -> tuple[RecordingDetails, ...]:
        """Return the recordings of a question, a reply, a pair or a source, oldest first.

        Raises ConfigError if there are none.
        """
        return tuple([await self._build_details(each) for each in await self._find_recorded(name)])

    async def find_for_question(self, question_id: MessageId) -> RecordingDetails | None:
        """Return the newest recording of an answer, or of the silence, to a question."""
        found = [each for each in await self._store.find_recordings(question_id) if each.kind == ANSWER]
        return await self._build_details(found[-1]) if found else None

    async def list_newest(self, limit: int) -> tuple[RecordingDetails, ...]:
        """Return the newest recordings, newest first."""
        return tuple([await self._build_details(each) for each in await self._store.list_newest(limit)])

    async def replay(
        self,
        wanted: str | datetime,
        *,
        answerer: Answerer,
        learning: Model,
        templates: PromptTemplates,
        offline: bool,
        only: str = "",
    ) -> tuple[ReplayedRecording, ...]:
        """Replay the recordings of a name, or all answers since a time; oldest first.

        Recorded replies are reused if the prompt is the same and, with `only`, if that model gave them. Other prompts
        call the model again, unless `offline`. Raises ConfigError if there are none.
        """
        if isinstance(wanted, str):
            found = await self._find_recorded(wanted)
        else:
            found = await self._store.list_since(wanted.isoformat(), ANSWER)
            if not found:
                raise ConfigError(f"no answer was recorded since {wanted:%Y-%m-%d %H:%M} UTC")
        replay = AnswerReplayer(
            answerer=answerer, templates=templates, model=None if offline else answerer.model, only=only
        )

        async def replay_one(recorded: StoredRecording) -> ReplayedRecording:
            if recorded.kind == ANSWER:
                return await self._replay_answer(recorded, replay)
            texts = await self._store.read_texts(recorded)
            return await _replay_call(recorded, texts, templates, None if offline else learning, only)

        return await _replay_all(found, replay_one)

    async def _find_recorded(self, name: str) -> tuple[StoredRecording, ...]:
        # A link to a message ends with its id; a page's source id holds an address, too.
        found = await self._store.find_recordings(name.rpartition("/")[2] if "/channels/" in name else name)
        if not found:
            raise ConfigError(
                f"nothing is recorded of {name[:80]!a}: name a message, its link, a captured pair or a source of the"
                " last days (see [recorder]); `intern why` lists the newest recordings"
            )
        return found

    async def _build_details(self, recorded: StoredRecording) -> RecordingDetails:
        texts = await self._store.read_texts(recorded)
        head = {name: getattr(recorded, name) for name in ("kind", "subject", "at", "outcome", "unfit")}
        if recorded.kind != ANSWER:
            return RecordingDetails(**head, said=(_build_call_details(recorded.unpack(StandaloneCall).call, texts),))
        answered = recorded.unpack(AnswerRecording)
        debug = answered.result.debug or {}
        steps = {step: cast("dict[str, Any]", fields) for step, fields in debug.items() if isinstance(fields, dict)}
        search = next(iter(answered.searched), None)
        hits = () if search is None else search.hits
        nuggets = chain.from_iterable(each.learned.nuggets for each in answered.recalled)
        facts = chain.from_iterable(each.learned.facts for each in answered.recalled)
        return RecordingDetails(
            **head,
            heard=tuple(_read_messages(answered)),
            addressed=answered.addressed,
            entries=answered.entries,
            searched=None if search is None else search.query,
            hits=None if hits is None else tuple(hit.restore(texts) for hit in hits),
            learned=(*(nugget.source_id for nugget in nuggets), *(fact.source_id for fact in facts)),
            read=tuple(each.source_id for each in answered.sources),
            unreadable=answered.unreadable,
            said=tuple(_build_call_details(call, texts) for call in answered.calls),
            checks=steps,
            error=str(debug.get("error", "")),
            reply=answered.result.reply_text,
            citations=answered.result.citations,
        )

    async def _replay_answer(self, recorded: StoredRecording, replay: AnswerReplayer) -> ReplayedRecording:
        answered = recorded.unpack(AnswerRecording)
        asked = answered.conversation.messages[answered.conversation.asked]
        again = ReplayedRecording(
            kind=recorded.kind,
            subject=recorded.subject,
            at=recorded.at,
            question="\n".join(message.text for message in asked),
            then=_format_outcome(answered.result),
            now="",
            answered_then=answered.result.should_reply,
            answered_now=False,
            is_same=False,
            unfit=recorded.unfit,
        )
        texts = await self._store.read_texts(recorded)
        if recorded.unfit or len(texts) < len(recorded.texts):
            return structs.replace(again, unfit=recorded.unfit or _FORGOTTEN)
        replayed = await replay.replay(answered, texts)
        if replay.model is not None and replayed.result.reason in LOOKUP_FAILURES:
            return structs.replace(again, unfit=f"it could not look ({replayed.result.reason})")
        return structs.replace(
            again,
            # Without the reply to a changed prompt, there is neither an answer nor a silence.
            now="" if replayed.changed and replay.model is None else _format_outcome(replayed.result),
            answered_now=replayed.result.should_reply,
            is_same=replayed.is_same,
            changed=replayed.changed,
            calls=replayed.calls,
            votes=await self._feedback.read_votes(MessageId(recorded.subject)) if recorded.subject else Votes(),
            team=await run_sync(self._find_team_answer, MessageId(recorded.subject)),
        )

    def _find_team_answer(self, question_id: MessageId) -> str | None:
        for conversation_id in self._archive.find_conversations(question_id):
            pair = self._archive.latest_capture(conversation_id)
            if pair is None or question_id not in pair.message_ids or len(pair.turns) != len(pair.message_ids):
                continue
            after = pair.message_ids.index(question_id)
            said = [
                turn.text
                for turn, each in list(zip(pair.turns, pair.message_ids, strict=True))[after:]
                if turn.speaker == "Team" and not self._knowledge.is_withdrawn(each)
            ]
            if said:
                return "\n".join(said)
        return None


async def _replay_all(
    found: Sequence[StoredRecording], again: Callable[[StoredRecording], Awaitable[ReplayedRecording]]
) -> tuple[ReplayedRecording, ...]:
    done = count(1)

    async def work(recorded: StoredRecording) -> ReplayedRecording:
        replayed = await again(recorded)
        report_progress("Replaying {total} recordings", next(done), len(found))
        return replayed

    return tuple(await run_each(work, found, _AT_ONCE))


async def _replay_call(
    recorded: StoredRecording, texts: Mapping[str, str], templates: PromptTemplates, model: Model | None, only: str
) -> ReplayedRecording:
    """Render the call's input with today's template of its prompt, and ask again."""
    noted = recorded.unpack(StandaloneCall)
    call, unfit, now = noted.call, recorded.unfit, ""
    replies = ReplayingModel([call] if only in {"", call.model} else [], texts, templates, model)
    prompt = next((each for each in PROMPTS if each.name == call.prompt), None)
    try:
        if prompt is None:
            unfit = f"there is no prompt {call.prompt} any more"
        elif not unfit:
            given = msgspec.convert(noted.material, prompt.takes)
            now = encode_json(await replies.ask(prompt, given)).decode()
    except msgspec.ValidationError as error:
        unfit = f"the prompt takes something else by now ({error})"
    except InternError as error:
        unfit = "" if replies.changed and model is None else str(error)
    return ReplayedRecording(
        kind=recorded.kind,
        subject=recorded.subject,
        at=recorded.at,
        question="",
        then=call.reply,
        now=now,
        is_same=now == call.reply and not unfit,
        changed=tuple(replies.changed),
        calls=len(replies.changed) if model is not None else 0,
        unfit=unfit,
    )


def _format_outcome(result: AnswerResult) -> str:
    return result.reply_text or "" if result.should_reply else f"[{result.reason}]"


def _read_messages(answered: AnswerRecording) -> Iterable[RecordedMessage]:
    messages = answered.conversation.messages
    asker = messages[-1].author_id if messages else None
    for message in messages:
        speaker = "bot" if message.role == "assistant" else "asker" if message.author_id == asker else "member"
        files = (f"[attached: {file.masked_name}]" for file in message.attachments)
        yield RecordedMessage(
            speaker, "\n".join(filter(None, (message.text, *files))) or "(not kept: recorder.context is off)"
        )


def _build_call_details(call: RecordedCall, texts: Mapping[str, str]) -> CallDetails:
    return CallDetails(
        prompt=call.prompt,
        model=call.model,
        tokens=call.tokens,
        seconds=call.seconds,
        instructions=texts.get(call.shared, ""),
        shown=call.user,
        reply=call.reply,
        error=call.error,
    )
