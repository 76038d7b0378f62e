from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from intern.core.captures import CapturedPair, Turn
from intern.core.errors import ChatUnavailableError
from intern.core.flow import Batch, CaptureRequest, MessageEdited, MessagesDeleted
from intern.core.ids import ChannelId, ConversationId, GuildId, MessageId
from intern.core.messages import ChatMessage
from intern.learning.message_changes import MessageChanges
from intern.stores.archive import Archive
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.answered_threads import AnsweredThreads, ThreadMessage
from intern.stores.tables.pending_captures import PendingCaptures
from tests.worlds.clock import HandClock
from tests.worlds.samples import CHANNEL, GUILD, answer_request, author, capture_request, message, pair

ASKED = message("How?", n=1)
TAUGHT = message("So.", n=2, by=author("mira", "team_member"))
CHATTER = message("lol", n=3)


class Captured(Archive):
    """Captured pairs; counts the look-ups."""

    def __init__(self, *pairs: CapturedPair) -> None:
        self.pairs = pairs
        self.looked = 0
        self.read = 0

    def find_conversations(self, message_id: MessageId) -> tuple[ConversationId, ...]:
        self.looked += 1
        return tuple(dict.fromkeys(each.conversation_id for each in self.pairs if message_id in each.message_ids))

    def latest_capture(self, conversation_id: ConversationId) -> CapturedPair | None:
        self.read += 1
        return [each for each in self.pairs if each.conversation_id == conversation_id][-1]


@asynccontextmanager
async def waiting(folder: Path, request: CaptureRequest) -> AsyncGenerator[PendingCaptures]:
    """Open pending captures with a request that waits for its images' texts, as after a restart."""
    async with await SqliteDatabase.open(folder / "intern.db") as db:
        pending = PendingCaptures(db, clock=HandClock(), conversations_of=lambda _: ())
        await pending.add(request)
        after = PendingCaptures(db, clock=HandClock(), conversations_of=lambda _: ())
        await after.load()
        yield after


class Door:
    """Knows which channels are open to us, and counts the calls."""

    def __init__(self, *, closed: str = "", away: bool = False) -> None:
        self.asked = 0
        self._closed = closed
        self._away = away

    async def admits(self, channel_id: ChannelId) -> bool:
        self.asked += 1
        if self._away:
            raise ChatUnavailableError("away")
        return channel_id != self._closed


def held(*messages: ChatMessage, conversation: str = "reply_1", channel: str = CHANNEL) -> CapturedPair:
    return replace(
        pair(conversation=conversation),
        message_ids=tuple(each.id for each in messages),
        turns=tuple(Turn("Team" if each.author.type == "team_member" else "User", each.text) for each in messages),
        channel_id=ChannelId(channel),
    )


def deleted(*messages: ChatMessage) -> MessagesDeleted:
    return MessagesDeleted(guild_id=GUILD, channel_id=CHANNEL, message_ids=tuple(each.id for each in messages))


def edited(before: ChatMessage, text: str) -> MessageEdited:
    """Make an edit as Discord may report it: without the roles that identify a team member."""
    return MessageEdited(message=replace(before, text=text, author=replace(before.author, type="community_user")))


def late(captured: Captured, door: Door | None = None) -> MessageChanges:
    return MessageChanges(captured, admits=(door or Door()).admits)


async def test_what_concerns_nothing_that_we_hold_costs_one_look_and_no_call() -> None:
    captured, door = Captured(held(ASKED, TAUGHT)), Door()
    changes = late(captured, door)
    assert changes.record_deletion(deleted(CHATTER)) == ((), ())
    assert captured.looked == 1
    assert not changes.record_edit(edited(CHATTER, "rofl"))
    assert (captured.looked, captured.read, door.asked) == (2, 0, 0)


async def test_a_deleted_message_that_was_captured_is_withdrawn_and_the_others_are_not() -> None:
    changes = late(Captured(held(ASKED, TAUGHT)))
    assert changes.record_deletion(deleted(CHATTER, TAUGHT)) == ((), (TAUGHT.id,))


async def test_a_deleted_message_on_its_way_to_the_archive_is_withdrawn() -> None:
    changes = late(Captured())
    changes.record_capture(capture_request(ASKED, TAUGHT))
    assert changes.record_deletion(deleted(ASKED, CHATTER)) == ((), (ASKED.id,))


async def test_a_deleted_question_that_was_handed_on_is_not_to_be_answered() -> None:
    changes = late(Captured())
    changes.record_question(answer_request(ASKED))
    assert changes.record_deletion(deleted(ASKED, CHATTER)) == ((ASKED.id,), ())


# Finding B1: so is a new title.
@pytest.mark.parametrize("known", ["nothing", "in work", "answered", "captured"])
async def test_an_edited_question_is_asked_anew_unless_it_is_in_work_or_has_an_answer(known: str) -> None:
    async def done_with(message_id: MessageId) -> bool:
        return known == "answered" and message_id == ASKED.id

    captured = Captured(held(ASKED, TAUGHT)) if known == "captured" else Captured()
    changes = MessageChanges(captured, admits=Door().admits, done_with=done_with)
    changes.record_question(answer_request(ASKED))
    if known != "in work":
        changes.mark_settled([ASKED.id])
    for changed, text in ((ASKED, "How, on arm64?"), (CHATTER, "rofl")):
        change = edited(changed, text)
        assert changes.record_edit(change) == (changed is ASKED)
        question = await changes.ask_again(change)
        if changed is ASKED and known == "nothing":
            assert question == Batch(
                channel_id=CHANNEL, author=ASKED.author, messages=(replace(ASKED, text="How, on arm64?"),)
            )
        else:
            assert question is None


async def test_an_edited_answer_is_captured_anew_as_the_team_s_in_the_place_where_it_was_captured() -> None:
    changes = late(Captured(held(ASKED, TAUGHT, conversation="thread_9", channel="9")))
    change = edited(TAUGHT, "So, but slowly.")
    assert changes.record_edit(change)
    [request] = await changes.capture_again(change)

    assert request == CaptureRequest(
        conversation_id=ConversationId("thread_9"),
        guild_id=GuildId(GUILD),
        channel_id=ChannelId("9"),
        messages=(replace(TAUGHT, text="So, but slowly."),),
    )


async def test_an_edited_message_is_captured_anew_for_each_conversation_that_holds_it() -> None:
    changes = late(Captured(held(ASKED, TAUGHT), held(ASKED, CHATTER, conversation="reply_2")))
    requests = await changes.capture_again(edited(ASKED, "How now?"))
    assert [request.conversation_id for request in requests] == ["reply_1", "reply_2"]


async def test_an_edit_of_what_is_on_its_way_to_the_archive_follows_it_there() -> None:
    changes = late(Captured())
    changes.record_capture(capture_request(ASKED, TAUGHT, conversation="reply_5"))
    change = edited(TAUGHT, "So, but slowly.")
    assert changes.record_edit(change)
    [request] = await changes.capture_again(change)
    assert (request.conversation_id, request.messages[0].author.type) == ("reply_5", "team_member")


async def test_what_waits_for_its_images_can_be_deleted_and_edited_also_after_a_restart(tmp_path: Path) -> None:
    waits = capture_request(ASKED, TAUGHT, conversation="reply_5")
    async with waiting(tmp_path, waits) as pending:
        changes = MessageChanges(Captured(), admits=Door().admits, pending=pending)
        assert changes.record_deletion(deleted(TAUGHT, CHATTER)) == ((), (TAUGHT.id,))
        change = edited(TAUGHT, "So, but slowly.")
        assert changes.record_edit(change)
        assert not changes.record_edit(edited(CHATTER, "rofl"))
        [request] = await changes.capture_again(change)
    assert request == replace(waits, messages=(replace(TAUGHT, text="So, but slowly."),))


async def test_a_message_that_is_archived_and_waits_in_one_conversation_is_captured_anew_once(tmp_path: Path) -> None:
    waits = capture_request(ASKED, TAUGHT)
    async with waiting(tmp_path, waits) as pending:
        changes = MessageChanges(Captured(held(ASKED, TAUGHT)), admits=Door().admits, pending=pending)
        changes.record_capture(waits)
        assert len(await changes.capture_again(edited(TAUGHT, "So, but slowly."))) == 1


async def test_nothing_is_captured_anew_from_a_channel_that_is_closed_by_now() -> None:
    changes = late(Captured(held(ASKED, TAUGHT)), Door(closed=CHANNEL))
    assert await changes.capture_again(edited(TAUGHT, "A secret.")) == ()


async def test_not_knowing_whether_a_channel_is_open_is_not_the_same_as_a_closed_one() -> None:
    changes = late(Captured(held(ASKED, TAUGHT)), Door(away=True))
    with pytest.raises(ChatUnavailableError):
        await changes.capture_again(edited(TAUGHT, "So."))


async def test_a_withdrawn_message_and_one_whose_turn_nobody_knows_are_not_captured_anew() -> None:
    stray = replace(held(ASKED, TAUGHT), turns=(Turn("User", "How?"),))
    newer = held(ASKED, CHATTER, conversation="reply_2")  # without the one of an older pair
    changes = late(Captured(stray, held(TAUGHT, conversation="reply_2"), newer))
    assert await changes.capture_again(edited(TAUGHT, "So.")) == ()


async def test_what_changes_while_a_batch_is_read_concerns_what_follows_from_it() -> None:
    changes = late(Captured())
    meanwhile = changes.start_collecting()
    changes.record_edit(edited(TAUGHT, "So, but slowly."))
    changes.record_deletion(deleted(CHATTER))
    changes.record_edit(edited(CHATTER, "too late"))

    now = meanwhile.update_capture(capture_request(ASKED, TAUGHT, CHATTER))
    assert now is not None
    assert now.messages == (ASKED, replace(TAUGHT, text="So, but slowly."))
    assert dict(meanwhile.find_changed([ASKED, CHATTER])) == {CHATTER.id: None}
    assert meanwhile.apply_changes([CHATTER]) == ()

    changes.record_deletion(deleted(ASKED))
    assert meanwhile.update_capture(capture_request(ASKED, TAUGHT)) is None


async def test_what_changed_before_or_after_a_reading_does_not_concern_it() -> None:
    changes = late(Captured())
    changes.record_deletion(deleted(ASKED))
    meanwhile = changes.start_collecting()
    changes.stop_collecting(meanwhile)
    changes.record_deletion(deleted(ASKED))
    assert meanwhile.apply_changes([ASKED]) == (ASKED,)


async def test_the_memory_of_what_was_handed_on_is_bounded() -> None:
    changes = late(Captured())
    changes.record_question(answer_request(ASKED))
    for n in range(4_000):
        changes.record_question(answer_request(replace(CHATTER, id=MessageId(str(n)))))
    assert changes.record_deletion(deleted(ASKED)).asked == ()
    assert changes.record_deletion(deleted(replace(CHATTER, id=MessageId("0")))).asked == (MessageId("0"),)


async def test_in_an_answered_thread_what_is_deleted_is_withdrawn_and_what_is_edited_is_read_anew(
    tmp_path: Path,
) -> None:
    thread = ChannelId("77")
    inside = replace(CHATTER, id=MessageId("770"), channel_id=thread)
    async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
        answered = AnsweredThreads(db)
        await answered.replace_messages(
            thread, [ThreadMessage(id=ASKED.id, author_id=ASKED.author.id, is_outside=True)]
        )
        changes = MessageChanges(Captured(), admits=Door().admits, answered=answered)
        assert changes.record_deletion(deleted(CHATTER)).taught == ()
        assert not answered.has_events(thread)
        assert changes.record_deletion(deleted(CHATTER, ASKED)).taught == (ASKED.id,)
        assert answered.has_events(thread)
        await answered.store()
        gone = MessagesDeleted(guild_id=GUILD, channel_id=thread, message_ids=(inside.id,))
        assert changes.record_deletion(gone).taught == (inside.id,)
        assert answered.has_events(thread)
        await answered.store()
        # It was not captured, so it is not captured again.
        assert not changes.record_edit(edited(ASKED, "How then?"))
        assert answered.has_events(thread)
