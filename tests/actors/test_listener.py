from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from anyio import create_memory_object_stream, create_task_group, fail_after, sleep_forever, wait_all_tasks_blocked

from intern.actors.listener import listener
from intern.domain import MessageCreated, MessageEvent
from intern.errors import ConfigError
from tests.samples import message

pytestmark = pytest.mark.anyio


class Gateway:
    """Delivers what it holds, then stays connected, or ends with an error."""

    def __init__(self, *events: MessageEvent, error: Exception | None = None) -> None:
        self._events = events
        self._error = error

    async def listen(self, deliver: Callable[[MessageEvent], None], /) -> None:
        for event in self._events:
            deliver(event)
        if self._error:
            raise self._error
        await sleep_forever()


EVENTS = tuple(MessageCreated(message=message(f"m{n}", n=n)) for n in range(3))


async def test_events_are_handed_on_in_order_and_the_stream_closes_when_the_listener_is_stopped() -> None:
    events, taken = create_memory_object_stream[MessageEvent](10)
    with fail_after(5), taken:
        async with create_task_group() as tg:
            tg.start_soon(listener, Gateway(*EVENTS), events)
            await wait_all_tasks_blocked()
            tg.cancel_scope.cancel()

        assert [event async for event in taken] == list(EVENTS)


async def test_a_full_stream_never_makes_the_gateway_wait(caplog: pytest.LogCaptureFixture) -> None:
    events, taken = create_memory_object_stream[MessageEvent](1)
    with fail_after(5), taken:
        async with create_task_group() as tg:
            tg.start_soon(partial(listener, Gateway(*EVENTS), events))
            await wait_all_tasks_blocked()
            tg.cancel_scope.cancel()

        assert [event async for event in taken] == [EVENTS[0]]
    assert [EVENTS[n].message.id in record.getMessage() for n, record in enumerate(caplog.records, 1)] == [True, True]


async def test_a_refused_connection_ends_the_listener_and_closes_its_stream() -> None:
    events, taken = create_memory_object_stream[MessageEvent](10)
    with fail_after(5), taken:
        with pytest.raises(ConfigError, match="token"):
            await listener(Gateway(*EVENTS, error=ConfigError("discord.token is refused")), events)

        assert [event async for event in taken] == list(EVENTS)
