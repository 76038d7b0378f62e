from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from anyio import Event, create_memory_object_stream, create_task_group, fail_after, wait_all_tasks_blocked
from msgspec.structs import replace

from intern.actors.capturer import capturer
from intern.actors.witness import Witness
from intern.domain import Archived, Capture, CapturedPair, CaptureRequest, ChannelId, MessageId
from intern.errors import KnowledgeError
from tests.samples import author, capture_request, message, pair

pytestmark = pytest.mark.anyio


class Keeper:
    """Keeps questions; knows some already; may wait for a gate or fail."""

    def __init__(self, known: str = "", gate: Event | None = None, error: Exception | None = None) -> None:
        self.kept: list[str] = []
        self._known = known
        self._gate = gate
        self._error = error

    async def keep(self, capture: Capture, /) -> CapturedPair | None:
        if self._gate:
            await self._gate.wait()
        if self._error:
            raise self._error
        if capture.question == self._known:
            return None
        self.kept.append(capture.question)
        return pair(capture.question)


class Settled:
    """Remembers what was settled."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def settle(self, channel_id: ChannelId, message_ids: Sequence[MessageId], /) -> None:
        self.ids += [f"{channel_id}:{each}" for each in message_ids]


def request(question: str) -> CaptureRequest:
    return capture_request(message(question, n=1), message("So.", n=2, by=author("mira", "team_member")))


async def test_captures_are_kept_in_order_and_the_nudge_stream_closes_at_the_end() -> None:
    requests, inbox = create_memory_object_stream[CaptureRequest](10)
    archived, nudged = create_memory_object_stream[Archived](1)
    keeper = Keeper()
    with fail_after(5), requests, nudged:
        for question in "abc":
            requests.send_nowait(request(question))
        requests.close()
        await capturer(inbox, archived, keeper=keeper, settles=Settled(), witness=Witness())

        assert keeper.kept == ["a", "b", "c"]
        assert [each async for each in nudged] == [Archived()]


async def test_a_classifier_that_stalls_never_holds_up_the_archive() -> None:
    requests, inbox = create_memory_object_stream[CaptureRequest](10)
    archived, nudged = create_memory_object_stream[Archived](1)
    keeper = Keeper()
    with fail_after(5), requests, nudged:
        async with create_task_group() as tg:
            tg.start_soon(partial(capturer, inbox, archived, keeper=keeper, settles=Settled(), witness=Witness()))
            for question in "abcdef":
                requests.send_nowait(request(question))
            await wait_all_tasks_blocked()
            assert keeper.kept == list("abcdef")
            tg.cancel_scope.cancel()


async def test_what_the_archive_holds_already_nudges_nobody() -> None:
    requests, inbox = create_memory_object_stream[CaptureRequest](10)
    archived, nudged = create_memory_object_stream[Archived](1)
    with fail_after(5), requests, nudged:
        requests.send_nowait(request("known"))
        requests.close()
        await capturer(inbox, archived, keeper=Keeper(known="known"), settles=Settled(), witness=Witness())

        assert [each async for each in nudged] == []


async def test_a_batch_is_settled_once_its_last_capture_is_kept_or_was_known() -> None:
    requests, inbox = create_memory_object_stream[CaptureRequest](10)
    archived, nudged = create_memory_object_stream[Archived](1)
    gate, settled = Event(), Settled()
    keeper = Keeper(known="known", gate=gate)
    with fail_after(5), requests, nudged:
        async with create_task_group() as tg:
            tg.start_soon(partial(capturer, inbox, archived, keeper=keeper, settles=settled, witness=Witness()))
            requests.send_nowait(request("a"))
            requests.send_nowait(replace(request("b"), settles=(MessageId("2"), MessageId("3"))))
            requests.send_nowait(replace(request("known"), settles=(MessageId("4"),)))
            await wait_all_tasks_blocked()
            assert settled.ids == []
            gate.set()
            await wait_all_tasks_blocked()
            assert settled.ids == ["200:2", "200:3", "200:4"]
            tg.cancel_scope.cancel()


async def test_a_slow_disk_is_felt_by_the_router() -> None:
    requests, inbox = create_memory_object_stream[CaptureRequest](1)
    archived, nudged = create_memory_object_stream[Archived](1)
    gate = Event()
    with fail_after(5), requests, nudged:
        async with create_task_group() as tg:
            tg.start_soon(
                partial(capturer, inbox, archived, keeper=Keeper(gate=gate), settles=Settled(), witness=Witness())
            )
            await requests.send(request("a"))
            await wait_all_tasks_blocked()
            requests.send_nowait(request("b"))
            assert requests.statistics().current_buffer_used == 1
            gate.set()
            await wait_all_tasks_blocked()
            assert requests.statistics().current_buffer_used == 0
            tg.cancel_scope.cancel()


async def test_a_failing_disk_ends_the_capturer_loudly() -> None:
    requests, inbox = create_memory_object_stream[CaptureRequest](10)
    archived, nudged = create_memory_object_stream[Archived](1)
    settled = Settled()
    with fail_after(5), requests, nudged:
        requests.send_nowait(replace(request("a"), settles=(MessageId("2"),)))
        with pytest.raises(KnowledgeError, match="disk is full"):
            await capturer(
                inbox,
                archived,
                keeper=Keeper(error=KnowledgeError("the disk is full")),
                settles=settled,
                witness=Witness(),
            )
    assert settled.ids == []
