"""The flight recorder: stores the inputs of answers, captures and descriptions for some days.

No answer waits for it, and its failures cost nothing but recordings: a recording is in memory first, and `store` writes
it to disk soon after. Secrets are masked. A forgotten message or word deletes each recording that contains it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec
from anyio import CancelScope, Lock
from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace
from structlog.contextvars import get_contextvars

from intern.answering.answer_tape import ANYONE, AnswerTape, attach_tape, iter_texts, name_message
from intern.answering.answerer import Answerer
from intern.core.clock import Clock
from intern.core.errors import LeaseLostError
from intern.core.ids import MessageId, TopicName, UserId
from intern.core.log import get_logger, redact_text
from intern.core.messages import AnswerResult, Conversation, Image, RequestContext
from intern.core.text.encoding import encode_json, replace_surrogates
from intern.core.text.masking import mask_nested, mask_secrets
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.models.recorded_calls import FinishedCall, RecordedCall, RecordingModel, make_digest
from intern.models.templates import PromptTemplates
from intern.sources.descriptions import SUMMARIZE_FILE, SUMMARIZE_SOURCE
from intern.stores.database import Database
from intern.stores.options import RecorderOptions
from intern.stores.tables.recordings import ROW, RecordingStore, StoredRecording, compress_data

_log = get_logger(__name__)

ANSWER = "answer"
"""The kind of a recorded answer; that of another call is the name of its prompt."""

_OF_DOCUMENTS = (SUMMARIZE_SOURCE, SUMMARIZE_FILE)

_MOST_WAITING = 256  # recordings that are not on disk yet; of more, the oldest are lost
_MOST_KNOWN = 20_000  # digests of texts that are on disk already
_MOST_DELETED = 1_000  # messages that answers in work may still hold
_MASKED = "secrets in it were masked"


class StandaloneCall(Struct, frozen=True, kw_only=True):
    """A call of a model that was not part of an answer."""

    call: RecordedCall
    material: Any
    """The input of its prompt as JSON."""


class Recorder:
    """Records the model calls of a data folder. `record` never waits."""

    def __init__(
        self,
        db: Database,
        options: RecorderOptions,
        templates: Callable[[], PromptTemplates],
        *,
        clock: Clock,
        emails: bool = False,
    ) -> None:
        """With `emails`, addresses are masked, too. `templates` are opened when they are needed."""
        self._keeps = RecordingStore(db, clock=clock)
        self._options, self.clock, self._emails, self._open = options, clock, emails, templates
        self._templates: PromptTemplates | None = None
        self._waiting: deque[Callable[[], StoredRecording]] = deque(maxlen=_MOST_WAITING)
        self._gone: set[str] = set()
        self._deleted: deque[str] = deque(maxlen=_MOST_DELETED)
        self._known: dict[str, str] = {}
        self._turn = Lock()
        self._failed = False
        self.forgets = 0
        """The number of forget requests, for `record`: a recording begun before may contain forgotten words."""

    def wrap_answerer(self, answerer: Answerer, model: str) -> Answerer | TapedAnswerer:
        """Record the answers of the answerer. `model` is the name of its model."""
        return TapedAnswerer(answerer, self, model) if self._options.enabled else answerer

    def wrap_model(self, model: Model, name: str) -> Model:
        """Record each call of a model for capture and indexing."""
        return _TapedLearningModel(model, self, name) if self._options.enabled else model

    def record(self, recording: Callable[[], StoredRecording], begun: int) -> None:
        """Take a recording, to be made in a thread, unless something was forgotten since it began; never waits."""
        if begun == self.forgets:
            self._waiting.append(recording)

    def drop(self, message_ids: Collection[MessageId]) -> None:
        """Delete the recordings that hold any of these messages, with the next `store`; never waits."""
        names = [name_message(each) for each in message_ids]
        self._gone.update(names)
        self._deleted.extend(names)

    async def make_room(self) -> None:
        """Store the waiting recordings, if there are many."""
        if len(self._waiting) > _MOST_WAITING // 2:
            await self.store()

    async def store(self) -> None:
        """Write new recordings to disk. Raises nothing: a recording is not worth a failure."""
        if not (self._waiting or self._gone):
            return
        # The bot may end in the middle.
        with CancelScope(shield=True):
            await self._store()

    async def _store(self) -> None:
        async with self._turn:
            waiting, gone = list(self._waiting), frozenset(self._gone)
            self._waiting.clear()
            try:
                if waiting:
                    recordings, texts = await run_sync(self._pack_recordings, waiting)
                    await self._keeps.save(recordings, texts)
                if gone:
                    self._known.clear()
                    await self._keeps.forget(gone)
                    self._gone -= gone
                self._failed = False
            except LeaseLostError:  # as a kill, it costs a second of recordings
                self._known.clear()
            except Exception as error:  # noqa: BLE001 a bug, too: answers go on
                self._known.clear()
                if not self._failed:
                    _log.warning("recordings_not_kept", recordings=len(waiting), reason=str(error))
                self._failed = True

    async def trim(self) -> None:
        """Delete recordings that are too old or too many. Raises KnowledgeError."""
        oldest = self.clock.now() - timedelta(days=self._options.days)
        async with self._turn:
            self._known.clear()
            await self._keeps.trim(oldest.isoformat(), self._options.megabytes * 1_000_000)

    async def forget(
        self, message_ids: Collection[MessageId], *, topics: Collection[TopicName] = (), user_id: UserId | None = None
    ) -> bool:
        """Delete all recordings of these messages, of this member's words, or that may quote them.

        Return whether any contained the messages or words of the member. Raises KnowledgeError.
        """
        named = [*map(name_message, message_ids), *([f"user:{user_id}"] if user_id else [])]
        self.forgets += 1
        self._waiting.clear()
        async with self._turn:
            self._known.clear()
            found = await self._keeps.forget(named)
            await self._keeps.forget([ANYONE, *(f"team:{name}.txt" for name in topics)])
        return found

    # From here on: worker threads.

    def _pack_recordings(
        self, waiting: Sequence[Callable[[], StoredRecording]]
    ) -> tuple[list[StoredRecording], dict[str, bytes]]:
        self._templates = self._templates or self._open()
        self._fresh: dict[str, bytes] = {}
        deleted = set(self._deleted)
        recordings = [each for each in (make() for make in waiting) if deleted.isdisjoint(each.about)]
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        return recordings, self._fresh

    def build_answer_recording(self, tape: AnswerTape) -> StoredRecording:
        """Make the recording of an answer."""
        shelf = SharedTexts(self)
        answered = tape.make_recording(self.templates, shelf, context=self._options.context)
        row = StoredRecording(
            kind=ANSWER,
            subject=tape.context.message_id or "",
            at=tape.at.isoformat(),
            outcome="answered" if tape.result.should_reply else tape.result.reason,
            unfit=tape.unfit_reason,
            about=tuple(sorted(answered.origins)),
        )
        return self._fill_row(row, answered, iter_texts(answered), shelf)

    def build_call_recording(self, made: FinishedCall, subject: str, at: datetime) -> StoredRecording:
        """Make the recording of a call for a capture or a description."""
        shelf = SharedTexts(self)
        noted = StandaloneCall(
            call=made.make_recorded_call(self.templates, shelf), material=msgspec.to_builtins(made.given)
        )
        row = StoredRecording(
            kind=made.prompt.name,
            subject=subject,
            at=at.isoformat(),
            outcome="failed" if made.error else "done",
            unfit="the call failed" if made.error else "it had pictures, which are not kept" if made.images else "",
            # A prompt about a capture also shows descriptions of other topics.
            about=() if made.prompt in _OF_DOCUMENTS else (ANYONE,),
        )
        return self._fill_row(row, noted, (noted.call.user, noted.call.reply), shelf)

    def _fill_row(
        self, row: StoredRecording, value: Struct, said: Iterable[str], shelf: SharedTexts
    ) -> StoredRecording:
        """Return a row with its recording, secrets masked. All texts in it come from `said` and from the shelf."""
        if shelf.masked or self.mask("\n\0\n".join(said))[1]:
            row = replace(row, unfit=row.unfit or _MASKED)
            plain = mask_nested(msgspec.to_builtins(value), lambda text: self.mask(text)[0])
            value = msgspec.convert(plain, type(value))
        held, texts = compress_data(encode_json(value)), tuple(shelf.numbers)
        size = len(held) + sum(map(len, (*row.about, *texts))) + ROW
        return replace(row, texts=texts, size=size, recording=held)

    @property
    def templates(self) -> PromptTemplates:
        """The templates of the prompts."""
        assert self._templates is not None, "opened by `_pack_recordings`"
        return self._templates

    def shelve(self, text: str) -> tuple[str, bool]:
        """Keep a text that recordings share. Return its digest, and whether secrets in it were masked."""
        plain = replace_surrogates(text)
        digest = make_digest(plain)
        known = self._known.get(digest)
        if known is None:
            masked, changed = self.mask(plain)
            self._fresh[digest] = compress_data(masked.encode())
            known = self._known[digest] = "masked" if changed else "plain"
        return digest, known == "masked"

    def mask(self, text: str) -> tuple[str, bool]:
        """Return a text as a log would show it, and whether it was changed."""
        masked = mask_secrets(redact_text(text), secrets=False, emails=self._emails).text
        return masked, masked != text


@dataclass
class SharedTexts:
    """The shared texts of one recording."""

    recorder: Recorder
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    """By digest."""
    masked: bool = False

    def __call__(self, text: str) -> str:
        """Keep a text, and return its number in this recording."""
        digest, masked = self.recorder.shelve(text)
        self.masked = self.masked or masked
        return str(self.numbers.setdefault(digest, len(self.numbers)))


class TapedAnswerer:
    """Answers and records the answers."""

    def __init__(self, answerer: Answerer, recorder: Recorder, model: str) -> None:
        self._answerer, self._recorder, self._model = answerer, recorder, model

    async def answer(
        self, conversation: Conversation, context: RequestContext, *, addressed: bool = False
    ) -> AnswerResult:
        """Return an answer, or silence with its reason. Raises no `InternError`."""
        begun = self._recorder.forgets
        tape = AnswerTape(
            at=self._recorder.clock.now(), conversation=conversation, context=context, addressed=addressed
        )
        tape.result = await attach_tape(self._answerer, tape, self._model).answer(
            conversation, context, addressed=addressed
        )
        self._recorder.record(partial(self._recorder.build_answer_recording, tape), begun)
        return tape.result


class _TapedLearningModel:
    """A model whose calls are recorded one by one. Where many wait to be stored, the next call waits for that."""

    def __init__(self, model: Model, recorder: Recorder, name: str) -> None:
        self._model, self._recorder, self._name = model, recorder, name

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        """Ask the model. Raises the ModelError family."""
        recorder, begun, subject = self._recorder, self._recorder.forgets, _find_subject(given)
        await recorder.make_room()

        def note(made: FinishedCall) -> None:
            recorder.record(partial(recorder.build_call_recording, made, subject, recorder.clock.now()), begun)

        return await RecordingModel(self._model, self._name, note).ask(prompt, given, images=images)


def _find_subject(given: Any) -> str:
    """Return the subject of a call: a source, a pair, a conversation, a message, or a topic."""
    around = get_contextvars()
    named = (getattr(given, "source_id", ""), *(around.get(name) for name in ("qa_id", "conversation_id", "trace_id")))
    return str(next(filter(None, (*named, getattr(given, "file_path", ""), getattr(given, "topic", ""))), ""))
