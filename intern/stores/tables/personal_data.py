"""People's words in jobs and posts, removed for forgetting. Other stores do so themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set as AbstractSet
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from intern.core.captures import Capture
from intern.core.flow import CaptureRequest
from intern.core.ids import MessageId, UserId
from intern.stores.block_format import select_messages
from intern.stores.database import Transaction
from intern.stores.qa_ids import bare_message_id
from intern.stores.tables.store import IN, OURS, Store, reads, text_array, writes

S = TypeVar("S", bound=Struct)

_CAPTURES = f"select id, kind, state, payload, result from jobs {OURS} and kind in ('capture', 'import') order by id"

_NOTHING = b"null"


class PersonalDataStore(Store):
    """Posts, jobs, votes and greetings."""

    @reads
    def find_messages_by(self, db: Transaction, user_id: UserId) -> frozenset[MessageId]:
        """Return a member's messages that are on their way to the archive, or were brought there by a command."""
        requests = _decode_rows(db, f"select request from pending_captures {OURS}", CaptureRequest)
        waiting = {each.id for request in requests for each in request.messages if each.author.id == user_id}
        captures = [each for job in _read_capture_jobs(db) for each in _decode_captures(job.payload) or ()]
        written = (pair for each in captures for pair in zip(each.message_ids, each.author_ids, strict=False))
        return frozenset(waiting.union(message_id for message_id, author in written if author == user_id))

    @reads
    def holds(self, db: Transaction, message_ids: Collection[MessageId]) -> bool:
        """Return whether anything here is about these messages."""
        gone = frozenset(map(bare_message_id, message_ids))
        return any(db.row(statement, (text_array(gone),) * statement.count("?")) for statement in _ABOUT) or any(
            _is_about(job.payload, gone) for job in _read_capture_jobs(db)
        )

    @writes
    def forget(self, db: Transaction, message_ids: Collection[MessageId]) -> None:
        """Remove messages.

        Replies to them are dropped if they are not on Discord yet. Of all replies that are posted or given
        up only the ids stay: they may quote any message, and their text is not needed any more.
        """
        gone = frozenset(map(bare_message_id, message_ids))
        for statement in _FORGETTING:
            db.run(statement, (text_array(gone),) * statement.count("?"))
        for job in _read_capture_jobs(db):
            if _is_about(job.payload, gone) or _is_about(job.result, gone):
                payload = _NOTHING if job.state == "finished" else _strip_payload(job, gone)
                # Of an import, the result is numbers; of a capture, it is the pair.
                result = job.result if job.kind == "import" else _NOTHING
                db.run(
                    f"update jobs set payload = ?, result = ? {OURS} and id = ?",
                    (payload, result if job.state == "finished" else None, job.id),
                )

    @writes
    def forget_member(self, db: Transaction, user_id: UserId) -> None:
        """Remove a member's votes, and the note that they were greeted."""
        for table in ("feedback", "greeted_members"):
            db.run(f"delete from {table} {OURS} and user_id = ?", (user_id,))


_POSTS = (
    f"community = :community and (question_id {IN} or question_id in"
    f" (select question_id from post_messages {OURS} and message_id {IN}))"
)

_ABOUT = (
    f"select 1 from answer_messages {OURS} and message_id {IN}",
    f"select 1 from posts where {_POSTS}",
    f"select 1 from pending_messages {OURS} and message_id {IN}",
)

_ENDED = f"select question_id from posts {OURS} and state <> 'open'"

_FORGETTING = (
    f"update posts set state = 'dropped', reason = 'forgotten' where state = 'open' and {_POSTS}",
    f"update post_parts set text = '' {OURS} and question_id in ({_ENDED})",
)


def _decode_rows(db: Transaction, statement: str, kind: type[S]) -> Iterator[S]:
    """Yield the values of a column of JSON; skip those that cannot be decoded, since their authors are unknown."""
    for (data,) in msgspec.convert(db.rows(statement), list[tuple[bytes]]):
        try:
            yield msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError:
            continue


class _CaptureJob(NamedTuple):
    """A job that holds captures."""

    id: int
    kind: str
    state: str
    payload: bytes
    result: bytes | None


def _read_capture_jobs(db: Transaction) -> list[_CaptureJob]:
    return msgspec.convert(db.rows(_CAPTURES), list[_CaptureJob])


_DECODER: msgspec.json.Decoder[Capture | list[Capture] | None] = msgspec.json.Decoder(Capture | list[Capture] | None)


def _decode_captures(data: bytes | None) -> Sequence[Capture] | None:
    """Return the captures in a payload or result; None where it cannot be decoded."""
    try:
        found = _DECODER.decode(data or b"[]")
    except msgspec.MsgspecError:
        return None
    return found if isinstance(found, list) else [found] if found else ()


def _is_about(data: bytes | None, gone: AbstractSet[str]) -> bool:
    """Return whether one of these messages is in a job's payload or result."""
    captures = _decode_captures(data)
    if captures is None:
        return data is not None and any(each.encode() in data for each in gone)
    return any(not gone.isdisjoint(map(bare_message_id, capture.message_ids)) for capture in captures)


def _strip_payload(job: _CaptureJob, gone: AbstractSet[str]) -> bytes:
    """Return a payload without these messages; none of a payload that cannot be decoded, since no one could do it."""
    captures = [_strip_capture(capture, gone) for capture in _decode_captures(job.payload) or ()]
    return msgspec.json.encode(captures if job.kind == "import" else captures[0] if captures else None)


def _strip_capture(capture: Capture, gone: AbstractSet[str]) -> Capture:
    aligned = len(capture.turns) == len(capture.message_ids)
    kept = [
        n for n, message_id in enumerate(capture.message_ids) if aligned and bare_message_id(message_id) not in gone
    ]
    return select_messages(capture, kept)
