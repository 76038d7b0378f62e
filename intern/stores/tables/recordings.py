"""Recordings of answers and of other model calls, compressed, and the texts that they share.

A recording is deleted as a whole: by age, for room, or with any of its words that are forgotten. A shared text is
deleted with the last recording that names it.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct

from intern.core.errors import KnowledgeError
from intern.stores.database import Transaction
from intern.stores.tables.store import IN, OURS, Store, Table, reads, text_array, writes

_LEVEL = 3  # of zlib: half the time of the usual one, for a few percent more bytes
ROW = 300
"""About the bytes of a row, with those of its indices, beside its longest columns."""


S = TypeVar("S", bound=Struct)


class StoredRecording(Struct, frozen=True, kw_only=True):
    """A recording in the database."""

    kind: str
    """`answer`, or the prompt of a capture or a description."""
    subject: str
    """The id of the question, of the captured pair, or of the source; empty where there is none."""
    at: str
    outcome: str
    unfit: str
    """Why it cannot be replayed; empty if it can."""
    about: tuple[str, ...]
    """The messages and members with words in it: `message:ID`, `user:ID`, topics, and `anyone`."""
    texts: tuple[str, ...] = ()
    """The digests of its shared texts; it calls these by their numbers."""
    size: int = 0
    """Its size in bytes, without the shared texts."""
    recording: bytes = b""
    """Packed JSON."""

    def unpack(self, kind: type[S]) -> S:
        """Unpack the recording. Raises KnowledgeError if it cannot be read."""
        try:
            return msgspec.json.decode(zlib.decompress(self.recording), type=kind)
        except (msgspec.MsgspecError, zlib.error) as error:
            raise self._damage_error(error) from error

    def unpack_text(self, shared: bytes) -> str:
        """Unpack a text that it shares. Raises KnowledgeError if it cannot be read."""
        try:
            return zlib.decompress(shared).decode()
        except (UnicodeDecodeError, zlib.error) as error:
            raise self._damage_error(error) from error

    def _damage_error(self, error: Exception) -> KnowledgeError:
        what = f"the recording of {self.subject or self.at} cannot be read ({error})"
        return KnowledgeError(f"{what}; check the disk, and the database with: intern doctor")


def compress_data(data: bytes) -> bytes:
    """Compress data, in a thread, since it takes a while."""
    return zlib.compress(data, _LEVEL)


_RECORDINGS = Table("recordings", StoredRecording, json=("about", "texts"))
_UNUSED = f"""
    delete from recorded_texts {OURS} and digest not in (
        select each.value from recordings, json_each(recordings.texts) as each
        where recordings.community = :community
    )
"""
# The messages that are asked together with a message, and the question that it is a reply to.
_ASKED = (
    f"select message_id from answer_messages {OURS}"
    f" and question_id in (select question_id from answer_messages {OURS} and message_id = ?)"
    f" union select question_id from post_parts {OURS} and message_id = ?"
)


class RecordingStore(Store):
    """All recordings of a community."""

    @writes
    def save(self, db: Transaction, recordings: Collection[StoredRecording], texts: Mapping[str, bytes]) -> None:
        """Keep recordings, and the shared texts that may be new, packed."""
        db.run_each(_RECORDINGS.insert, map(_RECORDINGS.to_row, recordings))
        db.run_each(
            "insert into recorded_texts (community, digest, text) values (:community, ?, ?) on conflict do nothing",
            texts.items(),
        )

    @reads
    def find_recordings(self, db: Transaction, name: str) -> tuple[StoredRecording, ...]:
        """Return the recordings about a question (by its messages or those of its reply), a pair or a source."""
        found = f"{OURS} and (subject = ? or subject in ({_ASKED})) order by rid"
        return _RECORDINGS.all(db, found, (name, name, name))

    @reads
    def list_since(self, db: Transaction, at: str, kind: str) -> tuple[StoredRecording, ...]:
        """Return all recordings of a kind from a time on, oldest first."""
        return _RECORDINGS.all(db, f"{OURS} and at >= ? and kind = ? order by rid", (at, kind))

    @reads
    def list_newest(self, db: Transaction, limit: int) -> tuple[StoredRecording, ...]:
        """Return the newest recordings, newest first."""
        return _RECORDINGS.all(db, f"{OURS} order by rid desc limit ?", (limit,))

    @reads
    def read_texts(self, db: Transaction, recorded: StoredRecording) -> dict[str, str]:
        """Return the shared texts of a recording by their numbers in it; those that were forgotten are missing.

        Raises KnowledgeError if one cannot be read.
        """
        statement = f"select digest, text from recorded_texts {OURS} and digest {IN}"
        found = dict(msgspec.convert(db.rows(statement, (text_array(recorded.texts),)), list[tuple[str, bytes]]))
        return {
            str(n): recorded.unpack_text(found[digest]) for n, digest in enumerate(recorded.texts) if digest in found
        }

    @writes
    def forget(self, db: Transaction, about: Collection[str]) -> bool:
        """Delete each recording that holds words of one of those that `about` names. Return whether there were any."""
        held = f"exists (select 1 from json_each(recordings.about) as each where each.value {IN})"
        gone = db.run(f"delete from recordings {OURS} and {held}", (text_array(about),))
        if gone:
            db.run(_UNUSED)
        return bool(gone)

    @writes
    def trim(self, db: Transaction, oldest: str, most_bytes: int) -> None:
        """Delete the recordings from before a time, and the oldest ones beyond a number of bytes."""
        if db.run(f"delete from recordings {OURS} and at < ?", (oldest,)):
            db.run(_UNUSED)
        shared = db.number(f"select sum(length(text) + ?) from recorded_texts {OURS}", (ROW,))
        newer = f"select rid, sum(size) over (order by rid desc) as newer from recordings {OURS}"
        beyond = f"select rid from ({newer}) as sized where newer > ?"
        if db.run(f"delete from recordings {OURS} and rid in ({beyond})", (max(0, most_bytes - shared),)):
            db.run(_UNUSED)
