from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import repeat

import pytest
from anyio import (
    Event,
    create_memory_object_stream,
    create_task_group,
    fail_after,
    get_running_tasks,
    wait_all_tasks_blocked,
)
from anyio.streams.memory import MemoryObjectReceiveStream

from intern.actors.backfill import AT_ONCE, Backfill
from intern.actors.listener import GatewayListener
from intern.actors.loops import Backoff
from intern.chat.checkpoints import Checkpoints
from intern.chat.platform import PagedHistory
from intern.core.errors import (
    ChatError,
    ChatNotFoundError,
    ChatRefusedError,
    ChatUnauthorizedError,
    ChatUnavailableError,
)
from intern.core.flow import (
    ApprovalReaction,
    BackfillNeeded,
    BatcherEvent,
    ChannelCaughtUp,
    ChannelSnapshot,
    Interaction,
    MessageBackfilled,
    MessageCreated,
)
from intern.core.ids import ChannelId, MessageId
from intern.core.messages import ChatMessage, Page
from intern.stores.tables.checkpoints import StoredCheckpoints
from tests.worlds.actors import NO_PAUSES
from tests.worlds.chat import Sandbox, mark_of
from tests.worlds.clock import HandClock

DOWN = ChatUnavailableError("Discord is out of order")


class Desk:
    """A sandbox, a listener and backfill; the test plays the actors behind them."""

    def __init__(self) -> None:
        self.sandbox = Sandbox(HandClock())
        self.checkpoints = Checkpoints(
            StoredCheckpoints(attended={self.sandbox.guild_id: MessageId(self.sandbox.general)}),
            baseline=MessageId("0"),
        )

    @asynccontextmanager
    async def open(
        self, *, size: int = 1000, pages: PagedHistory | None = None, backoff: Backoff = NO_PAUSES
    ) -> AsyncGenerator[MemoryObjectReceiveStream[BatcherEvent]]:
        events, heard = create_memory_object_stream[BatcherEvent](size)
        behind, woken = create_memory_object_stream[BackfillNeeded](1)
        interactions, asked = create_memory_object_stream[Interaction](1)
        approved, reviewed = create_memory_object_stream[ApprovalReaction](1)
        with fail_after(5), heard, asked, reviewed:
            async with create_task_group() as tg:
                tg.start_soon(
                    Backfill(checkpoints=self.checkpoints, pages=pages or self.sandbox, backoff=backoff).run,
                    woken,
                    events.clone(),
                )
                tg.start_soon(
                    GatewayListener(gateway=self.sandbox, checkpoints=self.checkpoints).run,
                    events,
                    interactions,
                    behind,
                    approved,
                )
                await wait_all_tasks_blocked()
                yield heard
                tg.cancel_scope.cancel()


async def taken(heard: MemoryObjectReceiveStream[BatcherEvent]) -> list[BatcherEvent]:
    """Return the items that are there once all tasks wait."""
    await wait_all_tasks_blocked()
    return [heard.receive_nowait() for _ in range(heard.statistics().current_buffer_used)]


def texts(events: Sequence[BatcherEvent]) -> list[str]:
    return [event.message.text for event in events if isinstance(event, MessageBackfilled | MessageCreated)]


class Gated:
    """Discord's answers, each held back until the test releases it."""

    def __init__(self, pages: PagedHistory) -> None:
        self._pages = pages
        self._gates: list[Event] = []

    @property
    def waiting(self) -> int:
        return len(self._gates)

    async def let_go(self) -> None:
        self._gates.pop(0).set()
        await wait_all_tasks_blocked()

    async def page(self, channel_id: ChannelId, after: MessageId, /, limit: int) -> Page:
        page = await self._pages.page(channel_id, after, limit)
        gate = Event()
        self._gates.append(gate)
        await gate.wait()
        return page

    async def list_archived_threads(self, channel_id: ChannelId, after: MessageId, /) -> Sequence[ChannelSnapshot]:
        return await self._pages.list_archived_threads(channel_id, after)


class Refusing:
    """Refuses one channel's pages; lists archived threads at the third request."""

    def __init__(self, pages: PagedHistory, refused: ChannelId, *errors: ChatError) -> None:
        self._pages = pages
        self._refused = refused
        self._errors = list(errors)
        self._asked: Counter[ChannelId] = Counter()

    async def page(self, channel_id: ChannelId, after: MessageId, /, limit: int) -> Page:
        if channel_id == self._refused and self._errors:
            raise self._errors.pop(0)
        return await self._pages.page(channel_id, after, limit)

    async def list_archived_threads(self, channel_id: ChannelId, after: MessageId, /) -> Sequence[ChannelSnapshot]:
        self._asked[channel_id] += 1
        if self._asked[channel_id] < 3:
            raise DOWN
        if channel_id == self._refused:
            raise ChatRefusedError("you may not")
        return await self._pages.list_archived_threads(channel_id, after)


async def test_what_was_said_while_nobody_listened_is_read_in_order_and_the_channel_is_live_then() -> None:
    desk = Desk()
    said = [desk.sandbox.say("alice", f"line {n}") for n in range(250)]
    async with desk.open() as heard:
        assert await taken(heard) == [
            *(MessageBackfilled(message=each) for each in said),
            ChannelCaughtUp(channel_id=desk.sandbox.general),
        ]
        live = desk.sandbox.say("alice", "live")
        assert await taken(heard) == [MessageCreated(message=live)]
        assert desk.checkpoints.count_unfinished().messages == 251


async def test_what_a_lost_session_did_not_tell_is_read_and_nothing_twice() -> None:
    desk = Desk()
    async with desk.open() as heard:
        desk.sandbox.say("alice", "before")
        async with desk.sandbox.offline():
            desk.sandbox.say("alice", "meanwhile")
        desk.sandbox.say("alice", "after")
        assert sorted(texts(await taken(heard))) == ["after", "before", "meanwhile"]


async def test_a_page_that_fails_is_asked_for_again() -> None:
    desk = Desk()
    desk.sandbox.say("alice", "line")
    for _ in range(3):
        desk.sandbox.fail("page", DOWN)
    async with desk.open() as heard:
        assert texts(await taken(heard)) == ["line"]


async def test_a_channel_that_is_gone_is_given_up_and_the_others_are_read() -> None:
    desk = Desk()
    elsewhere = desk.sandbox.add_channel("elsewhere")
    desk.sandbox.say("alice", "gone")
    desk.sandbox.say("alice", "read", channel_id=elsewhere)
    gone = ChatNotFoundError("unknown channel")
    async with desk.open(pages=Refusing(desk.sandbox, desk.sandbox.general, gone)) as heard:
        assert texts(await taken(heard)) == ["read"]
        assert desk.checkpoints.channels_behind() == ()
        desk.sandbox.say("alice", "live")
        assert texts(await taken(heard)) == ["live"]


@pytest.mark.parametrize("error", [ChatRefusedError("missing access"), ChatUnauthorizedError("whose token?")])
async def test_a_page_that_is_refused_for_a_while_is_not_counted_as_read(error: ChatError) -> None:
    desk = Desk()
    elsewhere = desk.sandbox.add_channel("elsewhere")
    desk.sandbox.say("maya", "taught meanwhile")
    desk.sandbox.say("alice", "read", channel_id=elsewhere)
    async with desk.open(pages=Refusing(desk.sandbox, desk.sandbox.general, *[error] * 20)) as heard:
        assert sorted(texts(await taken(heard))) == ["read", "taught meanwhile"]
        assert desk.checkpoints.channels_behind() == ()


async def test_a_channel_that_is_refused_holds_up_no_other_and_its_mark_stays() -> None:
    desk = Desk()
    elsewhere = desk.sandbox.add_channel("elsewhere")
    desk.sandbox.say("alice", "refused")
    desk.sandbox.say("alice", "read", channel_id=elsewhere)
    refused = Refusing(desk.sandbox, desk.sandbox.general, *[ChatRefusedError("missing access")] * 9)
    async with desk.open(pages=refused, backoff=partial(repeat, 1e9)) as heard:
        assert texts(await taken(heard)) == ["read"]
        assert desk.checkpoints.channels_behind() == (desk.sandbox.general,)
        assert int(mark_of(desk.checkpoints, desk.sandbox.general, desk.sandbox.guild_id)) <= int(desk.sandbox.general)


async def test_a_channel_that_stays_refused_longer_than_patience_lasts_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("intern.actors.backfill.REFUSED_FOR_SECONDS", 0.5)
    desk = Desk()
    desk.sandbox.say("alice", "refused")
    refused = Refusing(desk.sandbox, desk.sandbox.general, *[ChatRefusedError("missing access")] * 9)
    async with desk.open(pages=refused, backoff=partial(repeat, 0.1)) as heard:
        assert await heard.receive() == ChannelCaughtUp(channel_id=desk.sandbox.general)
        assert desk.checkpoints.channels_behind() == ()


async def test_backfill_waits_for_room_and_what_was_not_taken_stays_unsettled() -> None:
    desk = Desk()
    said = [desk.sandbox.say("alice", f"line {n}") for n in range(5)]
    async with desk.open(size=0) as heard:
        assert await heard.receive() == MessageBackfilled(message=said[0])
        desk.checkpoints.settle(desk.sandbox.general, [said[0].id])
    assert int(said[0].id) <= int(mark_of(desk.checkpoints, desk.sandbox.general)) < int(said[1].id)


async def test_archived_threads_are_listed_and_read() -> None:
    desk = Desk()
    post = desk.sandbox.open_post("alice", "Ports", "which port?")
    desk.sandbox.archive(post.channel_id)
    quiet = desk.sandbox.add_channel("quiet")
    async with desk.open(pages=Refusing(desk.sandbox, quiet)) as heard:
        assert await taken(heard) == [MessageBackfilled(message=post), ChannelCaughtUp(channel_id=post.channel_id)]
        desk.sandbox.lose_session()
        assert texts(await taken(heard)) == []
        assert desk.checkpoints.find_unlisted() == ()
    assert not desk.checkpoints.is_behind(quiet)


async def test_a_live_message_while_the_last_page_is_in_flight_is_read_by_another_page() -> None:
    desk = Desk()
    gated = Gated(desk.sandbox)
    desk.sandbox.say("alice", "missed")
    async with desk.open(pages=gated) as heard:
        desk.sandbox.say("bob", "meanwhile")
        assert await taken(heard) == []
        await gated.let_go()
        assert texts(await taken(heard)) == ["missed"]
        await gated.let_go()
        desk.sandbox.say("bob", "live")
        assert texts(await taken(heard)) == ["meanwhile", "live"]


async def test_what_is_edited_or_deleted_while_its_page_is_in_flight_is_read_as_it_is_then() -> None:
    desk = Desk()
    gated = Gated(desk.sandbox)
    first, second, third = (desk.sandbox.say("alice", text) for text in ("one", "two", "three"))
    async with desk.open(pages=gated) as heard:
        desk.sandbox.edit(second.channel_id, second.id, "two, but better")
        desk.sandbox.delete(third.channel_id, third.id)
        await gated.let_go()
        # The deletion is still reported: an unread message may have been archived before a crash.
        change, read = await taken(heard)
        assert getattr(change, "message_ids", ()) == (third.id,)
        assert read == MessageBackfilled(message=first)
        await gated.let_go()
        assert texts(await taken(heard)) == ["two, but better"]
        assert desk.checkpoints.channels_behind() == ()


async def test_a_deletion_comes_after_the_message_that_waits_for_room() -> None:
    desk = Desk()
    said = [desk.sandbox.say("alice", f"line {n}") for n in range(2)]
    async with desk.open(size=0) as heard:
        # The first message is begun and waits; the second one is still to be read.
        for each in said:
            desk.sandbox.delete(each.channel_id, each.id)
        assert texts([await heard.receive()]) == ["line 0"]
        for each in said:
            change = await heard.receive()
            assert getattr(change, "message_ids", ()) == (each.id,)
        assert await heard.receive() == ChannelCaughtUp(channel_id=said[0].channel_id)


async def test_only_so_many_pages_are_asked_for_at_once() -> None:
    desk = Desk()
    gated = Gated(desk.sandbox)
    for n in range(AT_ONCE + 2):
        desk.sandbox.say("alice", "hello", channel_id=desk.sandbox.add_channel(f"c{n}"))
    async with desk.open(pages=gated) as heard:
        assert gated.waiting == AT_ONCE
        for _ in range(AT_ONCE + 2):
            await gated.let_go()
        assert len(texts(await taken(heard))) == AT_ONCE + 2


async def test_of_many_channels_that_are_behind_only_those_in_work_take_a_task() -> None:
    desk = Desk()
    gated = Gated(desk.sandbox)
    async with desk.open():
        without = len(get_running_tasks())
    for n in range(40):
        desk.sandbox.say("alice", "hello", channel_id=desk.sandbox.add_channel(f"c{n}"))
    async with desk.open(pages=gated) as heard:
        assert len(get_running_tasks()) <= without + AT_ONCE
        while gated.waiting:
            await gated.let_go()
        assert len(texts(await taken(heard))) == 40


async def test_a_channel_that_falls_behind_again_and_again_is_read_to_its_end_each_time() -> None:
    desk = Desk()
    read: list[ChatMessage] = []
    async with desk.open(size=1) as heard:
        said = [desk.sandbox.say("alice", f"line {n}") for n in range(20)]
        while len(read) < 40:
            event = await heard.receive()
            if isinstance(event, MessageBackfilled | MessageCreated):
                read.append(event.message)
            if len(read) == 20 and len(said) == 20:
                said += [desk.sandbox.say("alice", f"more {n}") for n in range(20)]
    assert read == said


async def test_its_streams_close_once_nobody_nudges_any_more() -> None:
    events, heard = create_memory_object_stream[BatcherEvent](1)
    behind, woken = create_memory_object_stream[BackfillNeeded](1)
    behind.close()
    with heard:
        await Backfill(checkpoints=Desk().checkpoints, pages=Desk().sandbox).run(woken, events)
        assert [each async for each in heard] == []
