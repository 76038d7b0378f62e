"""Work that is still to be done: jobs, captures that wait for their images, and pairs that were begun or parked.

A command submits a job and waits; only the holder of the folder's lock claims it. A job is done at least once, so the
work of each kind must bear repetition.

A pair that ends the process cannot do so for ever, and one that cannot be filed is tried again after growing pauses.

A pending capture is not in the archive yet. Each conversation has at most one, and later captures join it. Descriptions
of images are kept, so that an image is not described again when its conversation grows or its message is edited.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
from anyio import CancelScope, Lock
from msgspec import Struct
from msgspec.structs import replace

from intern.core.clock import Clock
from intern.core.flow import CaptureRequest
from intern.core.ids import ConversationId, MessageId, QAId, parse_position
from intern.core.log import get_logger
from intern.core.messages import AuthorType, ChatMessage, FileDigest
from intern.core.records import PairDecision, PairParked
from intern.core.text.masking import encode_json, replace_surrogates
from intern.stores.database import Database, Transaction
from intern.stores.sqlite.store import IN, OURS, Store, Table, keep_newest, reads, text_array, writes

_log = get_logger(__name__)

# A job that ended its process this often is to blame; without a bound it would end every process to come.
_MOST_CLAIMS = 3

# A command waits for its job, so only the latest outcomes are ever read again.
_OUTCOMES_KEPT = 1000


class Job(Struct, frozen=True, kw_only=True):
    """A piece of work for the process that holds the folder."""

    id: int
    kind: str
    key: str
    payload: bytes


class JobOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of a job; `error` is None if it succeeded."""

    result: bytes | None
    error: str | None
    exit_code: int
    """The exit code for the waiting command, as if it had done the job itself."""


_JOBS = Table("jobs", Job)
_OUTCOMES = Table("jobs", JobOutcome)
_EMPTIED = "payload = case when kind in ('capture', 'import', 'import_notes') then ? else payload end"


class JobQueue(Store):
    """The queue of jobs in the database, first in, first out but for kinds left waiting."""

    @writes
    def submit(self, db: Transaction, kind: str, payload: bytes, key: str) -> int:
        """Add a job and return its id; if one of the same kind and key waits unclaimed, return the id of that one."""
        return db.number(
            f"select id from jobs {OURS} and state = 'waiting' and kind = ? and key = ? order by id", (kind, key)
        ) or db.number(
            "insert into jobs (community, kind, key, payload, state) values (:community, ?, ?, ?, 'waiting')"
            " returning id",
            (kind, key, payload),
        )

    async def count_waiting(self) -> int:
        """Return how many jobs wait."""
        return await self.db.number(f"select count(*) from jobs {OURS} and state = 'waiting'")

    async def count_open(self) -> int:
        """Return how many jobs wait or are in work."""
        return await self.db.number(f"select count(*) from jobs {OURS} and state <> 'finished'")

    @writes
    def claim(self, db: Transaction, *, but: Collection[str] = ()) -> Job | None:
        """Claim the oldest waiting job that is of none of the kinds `but`, or None. No two claims ever get the same."""
        row = db.row(
            f"update jobs set state = 'claimed', claims = claims + 1 {OURS} and state = 'waiting' and id ="
            f" (select min(id) from jobs {OURS} and state = 'waiting' and kind not {IN}) returning {_JOBS.columns}",
            (text_array(but),),
        )
        return None if row is None else _JOBS.from_row(row)

    async def finish(
        self, job_id: int, *, result: bytes | None = None, error: str | None = None, exit_code: int = 0
    ) -> None:
        """Save the outcome of a claimed job. A job that has ended keeps its first outcome."""
        # The capture is in the archive by then, its secrets masked, so its original text need not stay here.
        await self.db.run(
            f"update jobs set state = 'finished', result = ?, error = ?, exit_code = ?, {_EMPTIED}"
            f" {OURS} and id = ? and state <> 'finished'",
            (result, error, exit_code, b"", job_id),
        )

    async def result(self, job_id: int) -> JobOutcome | None:
        """Return the outcome of a job; None while it waits or is in work. Raises LookupError for an unknown id."""
        row = await self.db.row(f"select state, {_OUTCOMES.columns} from jobs {OURS} and id = ?", (job_id,))
        if row is None:
            raise LookupError(f"there is no job {job_id}")
        return _OUTCOMES.from_row(row[1:]) if row[0] == "finished" else None

    @writes
    def reclaim(self, db: Transaction) -> int:
        """Put back jobs that a process claimed and did not finish; return how many. Only for a new holder of the lock.

        A job that was claimed three times without an end fails instead.
        """
        db.run(
            f"update jobs set state = 'finished', exit_code = 3, error = ?, {_EMPTIED}"
            f" {OURS} and state = 'claimed' and claims >= ?",
            (f"the job was begun {_MOST_CLAIMS} times, and each time the process ended before it", b"", _MOST_CLAIMS),
        )
        reclaimed = db.run(f"update jobs set state = 'waiting' {OURS} and state = 'claimed'")
        db.run(
            f"delete from jobs {OURS} and state = 'finished' and id <="
            f" (select id from jobs {OURS} order by id desc limit 1 offset ?)",
            (_OUTCOMES_KEPT,),
        )
        return reclaimed


PAUSES = (timedelta(minutes=10), timedelta(hours=1), timedelta(hours=6))
"""The pauses after the first, second and third time that a pair is parked. Then it waits for a person."""


class Retry(Struct, frozen=True):
    """The state of a parked pair."""

    tries: int
    """The number of times that it was tried and parked."""
    next_at: datetime | None
    """When it is tried again by itself; None if only a person can ask for that."""


class AttemptStore(Store):
    """Counts in the database."""

    @writes
    def begin(self, db: Transaction, qa_id: QAId) -> int:
        """Count an attempt, on disk before the work begins; return how many there were, this one included."""
        return db.number(
            "insert into attempts (community, qa_id, begun) values (:community, ?, 1)"
            " on conflict (community, qa_id) do update set begun = attempts.begun + 1 returning begun",
            (qa_id,),
        )

    async def clear(self, qa_id: QAId) -> None:
        """Forget that work was begun: it ended without a decision, but not by a crash. Harmless if it was not begun."""
        await self.db.run(_NOT_BEGUN, (qa_id,))

    @writes
    def end(self, db: Transaction, decision: PairDecision, *, again: bool = True) -> None:
        """Note that a pair was decided. A parked one is tried again by itself after a pause, unless not `again`."""
        db.run_each(_NOT_BEGUN, [(decision.qa_id,)])
        parked = f"from retries {OURS} and qa_id = ?"
        tries = db.number(f"select tries {parked}", (decision.qa_id,))
        db.run_each(f"delete {parked}", [(decision.qa_id,)])
        if isinstance(decision, PairParked):
            retry = _plan_retry(decision, tries + 1)
            next_at = retry.next_at.isoformat() if again and retry.next_at else None
            db.run(
                "insert into retries (community, qa_id, tries, next_at) values (:community, ?, ?, ?)",
                (decision.qa_id, retry.tries, next_at),
            )

    async def read_retries(self) -> Mapping[QAId, Retry]:
        """Return every pair that was parked, as far as it was counted."""
        return parse_retries(await self.db.rows(RETRIES))


_NOT_BEGUN = f"delete from attempts {OURS} and qa_id = ?"

RETRIES = f"select qa_id, tries, next_at from retries {OURS}"


def _plan_retry(parked: PairParked, tries: int) -> Retry:
    return Retry(tries, parked.at + PAUSES[tries - 1] if tries <= len(PAUSES) else None)


def parse_retries(rows: Iterable[Collection[object]]) -> Mapping[QAId, Retry]:
    """Return the pairs in rows of id, tries and time."""
    converted = msgspec.convert(list(rows), list[tuple[QAId, int, datetime | None]])
    return {qa_id: Retry(tries, next_at) for qa_id, tries, next_at in converted}


def find_retry(parked: PairParked, retries: Mapping[QAId, Retry]) -> Retry:
    """Return the state of a parked pair, also if it is not counted yet, after a crash or a regeneration."""
    known = retries.get(parked.qa_id)
    if known is None:
        return _plan_retry(parked, 1)
    if known.next_at is not None and known.next_at <= parked.at:
        return _plan_retry(parked, known.tries + 1)  # it was tried again since
    return known


# Attachments, the newest ones. After an edit of an older message, an attachment is described again.
_TEXTS_KEPT = 20_000

AttachmentTexts = Mapping[tuple[MessageId, str], str]
"""The texts of attachments, by message and the id of the attachment."""


class PendingCapture(Struct, frozen=True, kw_only=True):
    """A capture that waits."""

    id: int
    version: int
    """The version of the request; each change gives another one."""
    request: CaptureRequest
    attempts: int
    """The number of times that an available model could not describe its images."""


def trim_request(request: CaptureRequest, message_ids: Collection[MessageId]) -> CaptureRequest | None:
    """Return the request without these messages; None if that removes the question or the answer."""
    kept = tuple(message for message in request.messages if message.id not in message_ids)
    return replace(request, messages=kept) if _author_types(kept) == _author_types(request.messages) else None


class PendingCaptures(Store):
    """Pending captures in the database. Every method returns once its change is on disk."""

    def __init__(
        self,
        db: Database,
        *,
        clock: Clock,
        conversations_of: Callable[[MessageId], Collection[ConversationId]],
        mask: Callable[[str], str] = str,
    ) -> None:
        """Open the store. `conversations_of` returns from memory the conversations that a message was archived with."""
        super().__init__(db, clock=clock)
        self._mask = mask
        self._conversations_of = conversations_of
        self.digests: dict[str, list[FileDigest | None]] = {}
        """Digests of recently read text files, by their ids, until anything is forgotten. In memory."""
        self._held = frozenset[str]()
        self._changing = Lock()  # `_held` follows the database only if changes come back in order

    async def load(self) -> None:
        """Remember which messages wait, so that `holds` can tell. Once, before anything else is asked."""
        self._held = frozenset(await self.db.texts(_WAITING))

    def holds(self, message_id: MessageId) -> bool:
        """Return whether a capture with this message waits. From memory."""
        return message_id in self._held

    async def add(self, request: CaptureRequest) -> None:
        """Add a capture, joined with those of its conversation that wait already."""
        await self._write_and_refresh(lambda db: self._merge_waiting(db, request, always=True))

    async def join_waiting(self, request: CaptureRequest) -> bool:
        """Join a capture with those of its conversation that wait; return False if none waits, without a change."""
        return await self._write_and_refresh(lambda db: self._merge_waiting(db, request, always=False))

    async def list_waiting(self) -> Sequence[int]:
        """Return the ids of all that wait, oldest first."""
        return [*map(int, await self.db.texts(_PENDING))]

    @reads
    def get(self, db: Transaction, rid: int) -> PendingCapture | None:
        """Return a capture that waits; None if it no longer does, or cannot be decoded."""
        return _read_pending(db, rid)

    @reads
    def find_requests(self, db: Transaction, message_id: MessageId) -> Sequence[CaptureRequest]:
        """Return the captures that wait with this message in them."""
        found = (_read_pending(db, rid) for rid in _find_with_messages(db, [message_id]))
        return [each.request for each in found if each is not None]

    async def save_failure(self, rid: int, reason: str, *, again_in: timedelta, by_model: bool) -> None:
        """Note that its images could not be described; `by_model`: a model that is available failed to."""
        next_at = (self.clock.now() + again_in).isoformat()
        await self.db.run(
            f"update pending_captures set attempts = attempts + ?, reason = ?, next_at = ? {OURS} and rid = ?",
            (int(by_model), replace_surrogates(reason), next_at, rid),
        )

    async def update_messages(self, rid: int, messages: Iterable[ChatMessage]) -> None:
        """Replace waiting messages with newer versions."""
        newer = {message.id: message for message in messages}

        def work(db: Transaction) -> bool:
            found = _read_pending(db, rid)
            if found is not None:
                kept = tuple(newer.get(message.id, message) for message in found.request.messages)
                _replace_request(db, rid, replace(found.request, messages=kept))
            return found is not None

        if newer:
            await self._write_and_refresh(work)

    async def finish(self, rid: int, version: int) -> bool:
        """Remove a capture that is archived as that version; return False if it has changed since, and still waits."""
        done = f"delete from pending_captures {OURS} and rid = ? and version = ?"
        return await self._write_and_refresh(lambda db: bool(db.run(done, (rid, version))))

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Remove messages from all waiting captures, and the texts of their attachments.

        A capture that loses its question or its answer is deleted.
        """
        gone = frozenset(message_ids)
        self.digests.clear()

        def work(db: Transaction) -> bool:
            for rid in _find_with_messages(db, gone):
                found = _read_pending(db, rid)
                left = found and trim_request(found.request, gone)
                if left:
                    _replace_request(db, rid, left)
                else:
                    _delete_pending(db, rid)
                _log.info("capture_pending_cut", pending_id=rid, dropped=left is None)
            return bool(db.run(f"delete from attachment_texts {OURS} and message_id {IN}", (text_array(gone),)))

        await self._write_and_refresh(work)

    def drop(self, message_ids: Collection[MessageId]) -> None:  # noqa: ARG002 - any of them may be theirs
        """Free the memory."""
        self.digests.clear()

    async def read_texts(self, message_ids: Collection[MessageId]) -> AttachmentTexts:
        """Return the known texts of the attachments of these messages."""
        statement = f"select message_id, attachment_id, text from attachment_texts {OURS} and message_id {IN}"
        rows = await self.db.rows(statement, (text_array(message_ids),))
        found = msgspec.convert(rows, list[tuple[MessageId, str, str]])
        return {(message_id, attachment_id): text for message_id, attachment_id, text in found}

    async def save_texts(self, texts: AttachmentTexts) -> None:
        """Save texts of attachments, but not for messages that no longer wait: they may be deleted."""
        if texts:
            await self._save_texts(texts)

    @writes
    def _save_texts(self, db: Transaction, texts: AttachmentTexts) -> None:
        waiting = set(
            db.texts(f"{_WAITING} and message_id {IN}", (text_array({message_id for message_id, _ in texts}),))
        )
        db.run_each(
            "insert into attachment_texts (community, message_id, attachment_id, text) values (:community, ?, ?, ?)"
            " on conflict (community, message_id, attachment_id) do update set text = excluded.text",
            [(*key, replace_surrogates(text)) for key, text in texts.items() if key[0] in waiting],
        )
        keep_newest(db, "attachment_texts", _TEXTS_KEPT)

    def _merge_waiting(self, db: Transaction, request: CaptureRequest, *, always: bool) -> bool:
        known = self._find_same(db, request)
        if not known and not always:
            return False
        # Long before it is archived, its text is on disk, and in the prompt that describes its images.
        masked = tuple(replace(each, text=self._mask(each.text)) for each in request.messages)
        request = replace(request, messages=masked)
        earlier = [found.request for rid in known if (found := _read_pending(db, rid)) is not None]
        for rid in known[1:]:
            _delete_pending(db, rid)
        _replace_request(db, known[0] if known else self._insert(db, request), _merge_requests([*earlier, request]))
        return True

    def _find_same(self, db: Transaction, request: CaptureRequest) -> list[int]:
        """Return the captures of the same conversation, oldest first, as the archive would see it."""
        ids = [message.id for message in request.messages]
        same = f"select rid from pending_captures {OURS} and conversation_id = ?"
        found = set(map(int, db.texts(same, (request.conversation_id,))))
        # A conversation that is in the archive stays itself, though it shares a message with another one.
        if not any(request.conversation_id in self._conversations_of(message_id) for message_id in ids):
            found.update(_find_with_messages(db, ids))
        return sorted(found)

    def _insert(self, db: Transaction, request: CaptureRequest) -> int:
        return db.number(
            "insert into pending_captures (community, conversation_id, request, reason, attempts, next_at, since)"
            " values (:community, ?, ?, 'its attachments are to be read', 0, ?, ?) returning rid",
            (request.conversation_id, b"", self.now(), self.now()),
        )

    async def _write_and_refresh(self, work: Callable[[Transaction], bool]) -> bool:
        """Do the work, then note which messages wait. Return the result of the work."""
        changed = False
        # A write is done even if its caller was cancelled, and then memory must follow.
        with CancelScope(shield=True):
            async with self._changing:
                changed, held = await self.db.write(lambda db: (work(db), db.texts(_WAITING)))
                self._held = frozenset(held)
        return changed


_WAITING = f"select message_id from pending_messages {OURS}"
_PENDING = f"select rid from pending_captures {OURS} order by rid"


def _merge_requests(requests: Sequence[CaptureRequest]) -> CaptureRequest:
    """Join all requests into the first one, with the last version of each message."""
    held = {message.id: message for request in requests for message in request.messages}
    messages = tuple(held[message_id] for message_id in sorted(held, key=parse_position))
    # The caller settles the batches behind them.
    return replace(requests[0], messages=messages, settles=())


def _author_types(messages: Iterable[ChatMessage]) -> set[AuthorType]:
    return {message.author.type for message in messages}


def _read_pending(db: Transaction, rid: int) -> PendingCapture | None:
    row = db.row(f"select rid, version, request, attempts from pending_captures {OURS} and rid = ?", (rid,))
    if row is None:
        return None
    number, version, request, attempts = msgspec.convert(row, tuple[int, int, bytes, int])
    try:
        held = msgspec.json.decode(request, type=CaptureRequest)
    except msgspec.MsgspecError as error:
        # One that another version wrote; the others must not wait for it.
        _log.error("pending_capture_unreadable", pending_id=rid, reason=str(error))
        return None
    return PendingCapture(id=number, version=version, request=held, attempts=attempts)


def _find_with_messages(db: Transaction, message_ids: Collection[MessageId]) -> list[int]:
    holding = f"select distinct capture from pending_messages {OURS} and message_id {IN}"
    return [*map(int, db.texts(f"{holding} order by capture", (text_array(message_ids),)))]


def _replace_request(db: Transaction, rid: int, request: CaptureRequest) -> None:
    db.run(
        f"update pending_captures set request = ?, version = version + 1 {OURS} and rid = ?",
        (encode_json(request), rid),
    )
    db.run(f"delete from pending_messages {OURS} and capture = ?", (rid,))
    db.run_each(
        "insert into pending_messages (community, message_id, capture) values (:community, ?, ?)",
        [(each, rid) for each in {message.id for message in request.messages}],
    )


def _delete_pending(db: Transaction, rid: int) -> None:
    db.run(f"delete from pending_captures {OURS} and rid = ?", (rid,))
