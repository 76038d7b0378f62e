"""The outbox stores a reply before it is posted, so that nothing is posted twice.

One question has at most one post, and so has each message that the post is for. Its parts and their nonces never
change once begun, also when parts are sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from hashlib import blake2s
from typing import Literal

import msgspec
from msgspec import Struct

from intern.core.clock import Clock
from intern.core.flow import Reply, ReplyTarget
from intern.core.ids import ChannelId, MessageId, RoleId
from intern.core.messages import Button
from intern.stores.database import Database, Transaction, Value
from intern.stores.tables.answers import unwatch_answer
from intern.stores.tables.citations import save_citations
from intern.stores.tables.store import OURS, Store, Table, json_array, reads, writes

PostState = Literal["open", "finished", "dropped"]
"""`open`: still to be posted, wholly or in part. `dropped`: given up, with a reason."""


class PostPart(Struct, frozen=True, kw_only=True):
    """One message of a reply."""

    n: int
    """From 0, in reading order."""
    text: str
    nonce: str
    """At most 25 characters, as Discord allows; always the same for the same question and `n`."""
    message_id: MessageId | None = None
    """None until Discord confirmed the message."""


class Post(Struct, frozen=True, kw_only=True):
    """A reply as the outbox holds it."""

    question_id: MessageId
    channel_id: ChannelId
    """The channel of the question."""
    target: ReplyTarget
    parts: tuple[PostPart, ...]
    changed_at: datetime
    """When the outbox last learned something about the post (UTC). The next unconfirmed part was never sent before
    that; its nonce protects for as long as Discord's few minutes have not passed since."""
    thread_id: ChannelId | None = None
    """The thread for the parts; None while the thread may still have to be made."""
    state: PostState = "open"
    reason: str = ""
    covers: tuple[MessageId, ...] = ()
    """All messages that it answers, with the question's own."""
    called: bool = False
    """Its asker called the bot."""
    notice: bool = False
    """It says why there is no answer."""
    buttons: tuple[Button, ...] = ()
    """The buttons under the last part."""
    mention_role: RoleId | None = None
    """The role that the last part pings."""


class Outbox(Store):
    """Posts in the database. Every method returns once its change is on disk."""

    def __init__(self, db: Database, *, clock: Clock, emails: bool = False) -> None:
        """Open the outbox. With `emails`, addresses are masked in citations."""
        super().__init__(db, clock=clock)
        self._emails = emails

    @writes
    def begin(self, db: Transaction, reply: Reply, parts: Sequence[str]) -> Post:
        """Save all parts of the reply to a question, the messages that it answers, and its citations.

        A question that has a post already, of its own or with others, gets that one, unchanged. It takes the place of
        posts that the messages it settles have of their own, as if these had never begun. A post that may have been
        seen stays, and so does its message with it.
        """
        question_id, channel_id = reply.question.id, reply.question.channel_id
        known = _find_post(db, question_id)
        if known is not None:
            return known
        db.run(
            "insert into posts (community, question_id, channel_id, target, thread_id, changed_at, called, notice,"
            " buttons, mention_role, state, reason) values (:community, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'open', '')",
            (
                question_id,
                channel_id,
                reply.target,
                channel_id if reply.target == "in_place" else None,
                self.now(),
                int(reply.called),
                int(reply.notice),
                json_array(reply.buttons),
                reply.mention_role,
            ),
        )
        _add_parts(db, question_id, parts)
        unwatch_answer(db, question_id)
        if reply.citations and not reply.notice:
            save_citations(db, reply, now=self.clock.now(), emails=self._emails)
        # Mostly the older reply was recalled. One that an earlier process left would be posted beside this one.
        for each in reply.settles:
            if each != question_id and db.run(_DROP_UNSEEN, (each,)):
                unwatch_answer(db, each)
        db.run_each(
            "insert into post_messages (community, message_id, question_id) values (:community, ?, ?)"
            " on conflict do nothing",
            [(message_id, question_id) for message_id in (*reply.settles, question_id)],
        )
        return _read_posts(db, "question_id = ?", question_id)[0]

    @writes
    def replace_with_notice(
        self, db: Transaction, question_id: MessageId, parts: Sequence[str], *, reason: str, in_place: bool = False
    ) -> Post:
        """Replace an unsent reply with a notice and its reason."""
        place = ", target = 'in_place', thread_id = channel_id" if in_place else ""
        notice = f", notice = 1, buttons = '[]', mention_role = null, reason = ?{place}"
        self._update_post(db, question_id, notice, reason)
        db.run(f"delete from post_parts {OURS} and question_id = ?", (question_id,))
        unwatch_answer(db, question_id)
        _add_parts(db, question_id, parts)
        return _read_posts(db, "question_id = ?", question_id)[0]

    @writes
    def save_thread(self, db: Transaction, question_id: MessageId, thread_id: ChannelId) -> None:
        """Keep the thread that the parts go to."""
        self._update_post(db, question_id, ", thread_id = ?", thread_id)

    @writes
    def save_sent_part(self, db: Transaction, question_id: MessageId, n: int, message_id: MessageId) -> None:
        """Save the id of the message of part `n`."""
        sent = f"update post_parts set message_id = ? {OURS} and question_id = ? and n = ?"
        _run_update(db, sent, (message_id, question_id, n))
        self._update_post(db, question_id)

    @writes
    def mark_finished(self, db: Transaction, question_id: MessageId) -> None:
        """Note that the whole reply is posted."""
        self._update_post(db, question_id, ", state = 'finished'")

    @writes
    def mark_dropped(self, db: Transaction, question_id: MessageId, reason: str) -> None:
        """Drop a reply, with a reason. It is not tried again."""
        self._update_post(db, question_id, ", state = 'dropped', reason = ?", reason)

    @writes
    def delete_unsent(self, db: Transaction, question_id: MessageId) -> None:
        """Delete a post before any of it was sent, as if it had never begun. Harmless where it did not."""
        # Parts and messages go with it.
        db.run(f"delete from posts {OURS} and question_id = ?", (question_id,))
        unwatch_answer(db, question_id)

    @reads
    def get(self, db: Transaction, question_id: MessageId) -> Post | None:
        """Return the post that answers a message, alone or with others, in any state."""
        return _find_post(db, question_id)

    async def holds(self, message_id: MessageId) -> bool:
        """Return whether a message of ours is known as a part of any reply."""
        return await self.db.row(f"select 1 from post_parts {OURS} and message_id = ?", (message_id,)) is not None

    async def is_done(self, question_id: MessageId) -> bool:
        """Return whether the reply to a message is posted or was dropped: then nothing is left to do."""
        found = await self.get(question_id)
        return found is not None and found.state != "open"

    @reads
    def list_unfinished(self, db: Transaction) -> tuple[Post, ...]:
        """Return the posts that are still open, oldest first."""
        return _read_posts(db, "state = 'open'")

    @reads
    def list_finished_after(self, db: Transaction, position: str | None, limit: int) -> tuple[tuple[Post, str], ...]:
        """Return answers that were finished after a position (None: all), each with its own, oldest end first."""
        at, _, rid = (position or "").partition(" ")
        values = (at, int(rid) if rid.isascii() and rid.isdigit() else 0, limit)
        ends = db.rows(
            f"select question_id, changed_at, rid from posts {OURS} and state = 'finished' and notice = 0"
            " and (changed_at, rid) > (?, ?) order by changed_at, rid limit ?",
            values,
        )
        posts = ((_read_posts(db, "question_id = ?", str(each))[0], ended, rid) for each, ended, rid in ends)
        return tuple((post, f"{ended!s} {rid!s}") for post, ended, rid in posts)

    async def find_questions_in(self, thread_id: ChannelId) -> tuple[tuple[ChannelId, MessageId], ...]:
        """Return the messages that were answered in a thread, each with its channel, oldest answer first."""
        statement = (
            "select posts.channel_id, post_messages.message_id from posts join post_messages"
            f" using (community, question_id) {OURS} and thread_id = ? and state = 'finished' and notice = 0"
            " order by posts.rid, post_messages.message_id"
        )
        return msgspec.convert(await self.db.rows(statement, (thread_id,)), tuple[tuple[ChannelId, MessageId], ...])

    async def has_answer_in(self, thread_id: ChannelId) -> bool:
        """Return whether an answer of ours was finished in this thread (not merely in the channel around it)."""
        statement = f"select 1 from posts {OURS} and state = 'finished' and thread_id = ? and notice = 0"
        return await self.db.row(statement, (thread_id,)) is not None

    def _update_post(self, db: Transaction, question_id: MessageId, more: str = "", *values: str) -> None:
        statement = f"update posts set changed_at = ?{more} {OURS} and question_id = ?"
        _run_update(db, statement, (self.now(), *values, question_id))


def make_nonce(question_id: MessageId, n: int) -> str:
    """Return the nonce of part `n`: 24 characters that two parts share by accident once in 2**48 posts."""
    return blake2s(f"{question_id}/{n}".encode(), digest_size=12).hexdigest()


def _add_parts(db: Transaction, question_id: MessageId, parts: Sequence[str]) -> None:
    db.run_each(
        "insert into post_parts (community, question_id, n, text, nonce) values (:community, ?, ?, ?, ?)",
        [(question_id, n, text, make_nonce(question_id, n)) for n, text in enumerate(parts)],
    )


def _run_update(db: Transaction, statement: str, values: Sequence[Value]) -> None:
    if not db.run(statement, values):
        raise LookupError("the outbox was told about a post or part that never began")


# An existing thread may contain an unconfirmed part; but far more likely, the reply was held back.
_DROP_UNSEEN = (
    f"delete from posts {OURS} and question_id = ? and state = 'open'"
    " and (thread_id is null or target = 'in_place') and not exists (select 1 from post_parts"
    f" {OURS} and post_parts.question_id = posts.question_id and message_id is not null)"
)


def _find_post(db: Transaction, message_id: MessageId) -> Post | None:
    covering = f"question_id = (select question_id from post_messages {OURS} and message_id = ?)"
    found = _read_posts(db, "question_id = ?", message_id) or _read_posts(db, covering, message_id)
    return found[0] if found else None


_COVERS = f"select message_id from post_messages {OURS} and question_id = ? order by message_id"
_PARTS = Table("post_parts", PostPart)
_OF_POSTS = tuple(each for each in Post.__struct_fields__ if each not in {"parts", "covers"})


def _read_posts(db: Transaction, condition: str, *values: str) -> tuple[Post, ...]:
    rows = db.rows(f"select {', '.join(_OF_POSTS)} from posts {OURS} and {condition} order by rid", values)
    return tuple(_build_post(db, dict(zip(_OF_POSTS, row, strict=True))) for row in rows)


def _build_post(db: Transaction, row: dict[str, Value]) -> Post:
    question = (row["question_id"],)
    decoded = {
        **row,
        "covers": db.texts(_COVERS, question),
        "buttons": msgspec.json.decode(str(row["buttons"])),
        "parts": _PARTS.all(db, f"{OURS} and question_id = ? order by n", question),
    }
    return msgspec.convert(decoded, Post, strict=False)  # SQLite's booleans are numbers
