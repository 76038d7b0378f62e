from __future__ import annotations

from functools import partial

import pytest
import trio
import trio.testing
from anyio import create_memory_object_stream, create_task_group, fail_after, wait_all_tasks_blocked

from intern.actors.batcher import batcher
from intern.conversations.batching import Batches
from intern.domain import Batch, MessageCreated, MessageEvent, MessagesDeleted
from tests.samples import CHANNEL, GUILD, author, message

pytestmark = pytest.mark.anyio


async def test_open_batches_are_flushed_when_the_listener_leaves() -> None:
    events, inbox = create_memory_object_stream[MessageEvent](10)
    batches, settled = create_memory_object_stream[Batch](10)
    with fail_after(5), events, settled:
        for n in range(3):
            events.send_nowait(MessageCreated(message=message(f"line {n}", n=n)))
        events.send_nowait(MessageCreated(message=message("me too", n=5, by=author("bob"))))
        events.close()
        await batcher(inbox, batches, open_batches=Batches(60))

        assert [[m.text for m in each.messages] async for each in settled] == [
            ["line 0", "line 1", "line 2"],
            ["me too"],
        ]


async def test_a_deleted_message_never_leaves_the_batcher() -> None:
    events, inbox = create_memory_object_stream[MessageEvent](10)
    batches, settled = create_memory_object_stream[Batch](10)
    kept, gone = message("kept", n=0), message("gone", n=1)
    with fail_after(5), events, settled:
        events.send_nowait(MessageCreated(message=kept))
        events.send_nowait(MessageCreated(message=gone))
        events.send_nowait(MessagesDeleted(guild_id=GUILD, channel_id=CHANNEL, message_ids=(gone.id,)))
        events.close()
        await batcher(inbox, batches, open_batches=Batches(60))

        assert [each.messages async for each in settled] == [(kept,)]


async def test_a_router_that_stalls_is_felt_by_whoever_sends() -> None:
    events, inbox = create_memory_object_stream[MessageEvent](1)
    batches, settled = create_memory_object_stream[Batch](0)
    with fail_after(5), settled, events:
        async with create_task_group() as tg:
            tg.start_soon(partial(batcher, inbox, batches, open_batches=Batches(0)))
            for n in range(2):
                await events.send(MessageCreated(message=message(n=n, by=author(f"user {n}"))))
                await wait_all_tasks_blocked()
            # The first batch waits for the router, the second message for the batcher.
            assert inbox.statistics().current_buffer_used == 1

            assert (await settled.receive()).last.id == message(n=0).id
            assert (await settled.receive()).last.id == message(n=1).id
            tg.cancel_scope.cancel()


def test_a_batch_settles_once_its_author_paused_for_the_window(autojump_clock: trio.testing.MockClock) -> None:
    settled_at: list[tuple[float, list[str]]] = []

    async def story() -> None:
        start = trio.current_time()
        events, inbox = create_memory_object_stream[MessageEvent](0)
        batches, settled = create_memory_object_stream[Batch](10)

        async def read() -> None:
            async for each in settled:
                texts = [m.text for m in each.messages]
                settled_at.append((trio.current_time() - start, texts))

        async with settled, create_task_group() as tg:
            tg.start_soon(partial(batcher, inbox, batches, open_batches=Batches(60)))
            tg.start_soon(read)
            with events:
                await events.send(MessageCreated(message=message("a", n=0)))
                await trio.sleep(40)
                await events.send(MessageCreated(message=message("b", n=40)))
                await trio.sleep(10)
                await events.send(MessageCreated(message=message("other", n=50, by=author("bob"))))
                await trio.sleep(100)
                assert settled_at == [(100.0, ["a", "b"]), (110.0, ["other"])]

    trio.run(story, clock=autojump_clock)


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)
