"""Captures that wait for texts of their attachments, and are not in the archive yet.

Each conversation has at most one, and later captures join it. Descriptions of images are kept, so that an image is not
described again when its conversation grows or its message is edited.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta

import msgspec
from anyio import CancelScope, Lock
from msgspec import Struct
from msgspec.structs import replace

from intern.core.clock import Clock
from intern.core.flow import CaptureRequest
from intern.core.ids import ConversationId, MessageId, parse_position
from intern.core.log import get_logger
from intern.core.messages import AuthorType, ChatMessage, FileDigest
from intern.core.text.encoding import encode_json, replace_surrogates
from intern.stores.database import Database, Transaction
from intern.stores.tables.store import IN, OURS, Store, keep_first, reads, text_array, writes

_log = get_logger(__name__)

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
        return [*map(int, await self.db.texts(f"select rid from pending_captures {OURS} order by rid"))]

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
        asked = text_array({message_id for message_id, _ in texts})
        waiting = set(db.texts(f"{_WAITING} and message_id {IN}", (asked,)))
        db.run_each(
            "insert into attachment_texts (community, message_id, attachment_id, text) values (:community, ?, ?, ?)"
            " on conflict (community, message_id, attachment_id) do update set text = excluded.text",
            [(*key, replace_surrogates(text)) for key, text in texts.items() if key[0] in waiting],
        )
        keep_first(db, "attachment_texts", "rid", "rid desc", _TEXTS_KEPT)

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
