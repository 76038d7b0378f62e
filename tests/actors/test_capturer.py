from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import pytest
from anyio import Event, create_memory_object_stream, wait_all_tasks_blocked
from msgspec.structs import replace

from intern.actors.activity import ActivityReporter
from intern.actors.capturer import capturer
from intern.core.captures import Capture, CapturedPair
from intern.core.errors import KnowledgeError
from intern.core.flow import CaptureArchived, CapturePending, CaptureRequest
from intern.core.ids import ConversationId, MessageId
from intern.stores.tables.pending_captures import AttachmentTexts, PendingCaptures
from tests.worlds.actors import Settlements, running
from tests.worlds.samples import author, capture_request, message, pair


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


class Pictures:
    """Knows the texts of all images, except those of some conversations."""

    def __init__(self, *unseen: str) -> None:
        self._unseen = unseen

    async def known(self, request: CaptureRequest, /) -> AttachmentTexts | None:
        return None if request.conversation_id in self._unseen else {}


class Pending(PendingCaptures):
    """The waiting captures, in order."""

    def __init__(self, error: Exception | None = None) -> None:
        self.held: list[CaptureRequest] = []
        self._error = error

    async def add(self, request: CaptureRequest) -> None:
        if self._error:
            raise self._error
        self.held.append(request)

    async def join_waiting(self, request: CaptureRequest) -> bool:
        if request.conversation_id not in {each.conversation_id for each in self.held}:
            return False
        self.held.append(request)
        return True


class Desk:
    """The capturer at work on its streams, with all its parts."""

    def __init__(self, keeper: Keeper | None = None, *, unseen: Sequence[str] = (), room: int = 10) -> None:
        self.requests, self._inbox = create_memory_object_stream[CaptureRequest](room)
        self._archived, self.woken = create_memory_object_stream[CaptureArchived](1)
        self._waiting, self.woken_to_look = create_memory_object_stream[CapturePending](1)
        self.keeper, self.settled, self.pending = keeper or Keeper(), Settlements(), Pending()
        self._captions = Pictures(*unseen)

    async def run(self) -> None:
        await capturer(
            self._inbox,
            self._archived,
            self._waiting,
            keep=self.keeper.keep,
            known=self._captions.known,
            pending=self.pending,
            settle=self.settled.settle,
            events=ActivityReporter(),
        )

    async def take(self, *requests: CaptureRequest) -> None:
        """Capture all of these, to the end."""
        for each in requests:
            self.requests.send_nowait(each)
        self.requests.close()
        await self.run()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.requests, self.woken, self.woken_to_look):
            stream.close()


def request(question: str) -> CaptureRequest:
    return capture_request(message(question, n=1), message("So.", n=2, by=author("mira", "team_member")))


async def test_captures_are_kept_in_order_and_the_nudge_streams_close_at_the_end() -> None:
    with Desk() as desk:
        await desk.take(*map(request, "abc"))

        assert desk.keeper.kept == ["a", "b", "c"]
        assert [each async for each in desk.woken] == [CaptureArchived()]
        assert [each async for each in desk.woken_to_look] == []


async def test_a_classifier_that_stalls_never_holds_up_the_archive() -> None:
    with Desk() as desk:
        async with running(desk.run):
            for question in "abcdef":
                desk.requests.send_nowait(request(question))
            await wait_all_tasks_blocked()
            assert desk.keeper.kept == list("abcdef")


async def test_what_the_archive_holds_already_nudges_nobody() -> None:
    with Desk(Keeper(known="known")) as desk:
        await desk.take(request("known"))

        assert [each async for each in desk.woken] == []


async def test_a_batch_is_settled_once_its_last_capture_is_kept_or_was_known() -> None:
    gate = Event()
    with Desk(Keeper(known="known", gate=gate)) as desk:
        async with running(desk.run):
            desk.requests.send_nowait(request("a"))
            desk.requests.send_nowait(replace(request("b"), settles=(MessageId("2"), MessageId("3"))))
            desk.requests.send_nowait(replace(request("known"), settles=(MessageId("4"),)))
            await wait_all_tasks_blocked()
            assert desk.settled.places == []
            gate.set()
            await wait_all_tasks_blocked()
            assert desk.settled.places == ["200:2", "200:3", "200:4"]


async def test_a_slow_disk_is_felt_by_the_router() -> None:
    gate = Event()
    with Desk(Keeper(gate=gate), room=1) as desk:
        async with running(desk.run):
            await desk.requests.send(request("a"))
            await wait_all_tasks_blocked()
            desk.requests.send_nowait(request("b"))
            assert desk.requests.statistics().current_buffer_used == 1
            gate.set()
            await wait_all_tasks_blocked()
            assert desk.requests.statistics().current_buffer_used == 0


async def test_a_failing_disk_ends_the_capturer_loudly() -> None:
    with Desk(Keeper(error=KnowledgeError("the disk is full"))) as desk:
        with pytest.raises(KnowledgeError, match="disk is full"):
            await desk.take(replace(request("a"), settles=(MessageId("2"),)))
        assert desk.settled.places == []


async def test_a_capture_whose_images_nobody_has_seen_waits_settled_and_unarchived_while_others_pass() -> None:
    pictured = replace(request("a"), conversation_id=ConversationId("pictured"), settles=(MessageId("2"),))
    with Desk(unseen=["pictured"]) as desk:
        await desk.take(pictured, request("b"))

        assert desk.keeper.kept == ["b"]
        assert desk.pending.held == [pictured]
        assert desk.settled.places == ["200:2"]
        assert [each async for each in desk.woken_to_look] == [CapturePending()]


async def test_what_follows_in_a_conversation_that_waits_waits_with_it() -> None:
    pictured = replace(request("a"), conversation_id=ConversationId("pictured"))
    later = replace(request("b"), conversation_id=ConversationId("later"), settles=(MessageId("9"),))
    with Desk(unseen=["pictured"]) as desk:
        desk.pending.held.append(later)
        await desk.take(later, pictured)

        assert desk.keeper.kept == []
        assert desk.pending.held == [later, later, pictured]
        assert desk.settled.places == ["200:9"]


async def test_a_capture_is_not_settled_before_it_waits_safely() -> None:
    pictured = replace(request("a"), conversation_id=ConversationId("pictured"), settles=(MessageId("2"),))
    with Desk(unseen=["pictured"]) as desk:
        desk.pending = Pending(KnowledgeError("the disk is full"))
        with pytest.raises(KnowledgeError):
            await desk.take(pictured)
        assert desk.settled.places == []
