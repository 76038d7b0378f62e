from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from anyio import (
    create_memory_object_stream,
    create_task_group,
    fail_after,
    wait_all_tasks_blocked,
)
from anyio.abc import ObjectReceiveStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.actors.batcher import batcher
from intern.chat.batching import OpenBatches
from intern.core.flow import (
    Batch,
    BatcherEvent,
    ChannelCaughtUp,
    LateChange,
    MessageBackfilled,
    MessageCreated,
    MessageEdited,
    MessagesDeleted,
)
from intern.core.messages import ChatMessage
from tests.worlds.actors import Settlements, running
from tests.worlds.clock import HandClock
from tests.worlds.samples import CHANNEL, GUILD, author, message


def created(each: ChatMessage) -> MessageCreated:
    return MessageCreated(message=each)


def deleted(*gone: ChatMessage) -> MessagesDeleted:
    return MessagesDeleted(guild_id=GUILD, channel_id=CHANNEL, message_ids=tuple(each.id for each in gone))


async def run_batcher(
    inbox: MemoryObjectReceiveStream[BatcherEvent],
    batches: MemoryObjectSendStream[Batch | LateChange],
    open_batches: OpenBatches,
    settles: Settlements | None = None,
    flush: bool = False,  # noqa: FBT001, FBT002
) -> None:
    settle = (settles or Settlements()).settle
    await batcher(inbox, batches, open_batches=open_batches, settle=settle, clock=HandClock(), flush=flush)


async def batched(
    *events: BatcherEvent, wait: float = 60, flush: bool = True, settles: Settlements | None = None
) -> list[Batch | LateChange]:
    """Return the batches after all events went in."""
    taken, inbox = create_memory_object_stream[BatcherEvent](100)
    batches, sent = create_memory_object_stream[Batch | LateChange](100)
    with fail_after(5), taken, sent:
        for event in events:
            taken.send_nowait(event)
        taken.close()
        await run_batcher(inbox, batches, OpenBatches(wait), settles, flush)
        return await rest(sent)


async def rest(sent: ObjectReceiveStream[Batch | LateChange]) -> list[Batch | LateChange]:
    return [each async for each in sent]


def texts(sent: Sequence[Batch | LateChange]) -> list[list[str]]:
    return [[each.text for each in batch.messages] for batch in sent if isinstance(batch, Batch)]


LINES = tuple(message(f"line {n}", n=n) for n in range(3))


async def test_open_batches_are_flushed_at_the_end_where_no_history_would_bring_them_back() -> None:
    sent = await batched(*map(created, LINES), created(message("me too", n=5, by=author("bob"))))
    assert texts(sent) == [["line 0", "line 1", "line 2"], ["me too"]]


async def test_open_batches_stay_unsettled_at_the_end_where_history_brings_them_back() -> None:
    settles = Settlements()
    assert await batched(*map(created, LINES), flush=False, settles=settles) == []
    assert settles.ids == []


async def test_a_message_deleted_in_the_window_never_leaves_the_batcher_and_is_settled_by_it() -> None:
    settles = Settlements()
    kept, gone = LINES[:2]
    assert texts(await batched(created(kept), created(gone), deleted(gone), settles=settles)) == [["line 0"]]
    assert settles.ids == [gone.id]


async def test_changes_to_messages_that_were_sent_before_are_handed_on_after_them() -> None:
    settles = Settlements()
    first, second = LINES[:2]
    edit = MessageEdited(message=message("better", n=0))
    sent = await batched(created(first), edit, deleted(first), created(second), wait=0, settles=settles)
    assert sent == [
        Batch(channel_id=CHANNEL, author=first.author, messages=(first,)),
        edit,
        deleted(first),
        Batch(channel_id=CHANNEL, author=second.author, messages=(second,)),
    ]
    assert settles.ids == [], "whoever ends the batch settles it"


async def test_a_deletion_settles_what_is_held_and_is_told_whole_for_others_may_have_read_it() -> None:
    settles = Settlements()
    held, sent_before = LINES[:2]
    sent = await batched(created(held), deleted(sent_before, held), settles=settles)
    assert sent == [deleted(sent_before, held)]
    assert settles.ids == [held.id]


async def test_an_edit_changes_what_is_held_and_is_told_for_others_may_have_read_it() -> None:
    held = LINES[0]
    edit = MessageEdited(message=message("better", n=0))
    sent = await batched(created(held), edit)
    assert sent[0] == edit
    assert texts(sent[1:]) == [["better"]]


async def test_what_was_read_from_history_is_sent_when_its_channel_is_read() -> None:
    # By the fake clock, all of it was written just now, and its window is open.
    recent = [MessageBackfilled(message=message(f"line {n}", n=-n)) for n in (2, 1)]
    old = [MessageBackfilled(message=message(f"old {n}", n=n - 1000)) for n in (0, 1)]
    sent = await batched(*old, *recent, ChannelCaughtUp(channel_id=CHANNEL), flush=False)
    assert texts(sent) == [["old 0", "old 1"]]
    assert texts(await batched(*old, ChannelCaughtUp(channel_id=CHANNEL), flush=False)) == [["old 0", "old 1"]]


async def test_a_router_that_stalls_is_felt_by_whoever_sends() -> None:
    events, inbox = create_memory_object_stream[BatcherEvent](1)
    batches, sent = create_memory_object_stream[Batch | LateChange](0)
    with sent, events:
        async with running(run_batcher, inbox, batches, OpenBatches(0)):
            for n in range(2):
                await events.send(created(message(n=n, by=author(f"user {n}"))))
                await wait_all_tasks_blocked()
            # The first batch waits for the sequencer, the second message for the batcher.
            assert inbox.statistics().current_buffer_used == 1

            for n in range(2):
                batch = await sent.receive()
                assert isinstance(batch, Batch)
                assert batch.last.id == message(n=n).id


@pytest.mark.jumps
async def test_a_batch_settles_once_its_author_paused_for_the_window() -> None:
    settled_at: list[tuple[float, list[str]]] = []

    start = trio.current_time()
    events, inbox = create_memory_object_stream[BatcherEvent](0)
    batches, sent = create_memory_object_stream[Batch | LateChange](10)

    async def read() -> None:
        async for each in sent:
            [lines] = texts([each])
            settled_at.append((trio.current_time() - start, lines))

    async with sent, create_task_group() as tg:
        tg.start_soon(run_batcher, inbox, batches, OpenBatches(60))
        tg.start_soon(read)
        with events:
            await events.send(created(message("a", n=0)))
            await trio.sleep(40)
            await events.send(created(message("b", n=40)))
            await trio.sleep(10)
            await events.send(created(message("other", n=50, by=author("bob"))))
            await trio.sleep(100)
            assert settled_at == [(100.0, ["a", "b"]), (110.0, ["other"])]


@pytest.mark.jumps
async def test_when_too_many_messages_are_held_those_upstream_wait_until_some_are_due() -> None:
    start = trio.current_time()
    events, inbox = create_memory_object_stream[BatcherEvent](0)
    batches, sent = create_memory_object_stream[Batch | LateChange](10)
    async with sent, create_task_group() as tg:
        tg.start_soon(run_batcher, inbox, batches, OpenBatches(60, max_open=2))
        for n in range(3):
            await events.send(created(message(n=n, by=author(f"user {n}"))))
        assert trio.current_time() == start + 60
        # It also notices senders that leave while it is full.
        await events.send(created(message(n=4, by=author("user 4"))))
        events.close()
    assert trio.current_time() <= start + 61


@pytest.mark.jumps
async def test_a_late_change_waits_for_the_router_also_when_a_batch_is_due_meanwhile() -> None:
    events, inbox = create_memory_object_stream[BatcherEvent](10)
    batches, sent = create_memory_object_stream[Batch | LateChange](0)
    edit = MessageEdited(message=message("edited", n=9))
    async with sent, create_task_group() as tg:
        tg.start_soon(run_batcher, inbox, batches, OpenBatches(60))
        with events:
            await events.send(created(LINES[0]))
            await events.send(edit)
            await trio.sleep(100)
            assert await sent.receive() == edit
            assert texts([await sent.receive()]) == [["line 0"]]
