from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from anyio import create_memory_object_stream, fail_after, sleep_forever, wait_all_tasks_blocked
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.actors import listener as actor
from intern.actors.listener import GatewayListener
from intern.chat.checkpoints import Checkpoints
from intern.core.errors import ConfigError
from intern.core.flow import (
    ApprovalReaction,
    BackfillNeeded,
    BatcherEvent,
    ChannelSnapshot,
    GatewayEvent,
    Interaction,
    InteractionTicket,
    LateChange,
    MessageCreated,
    MessageEdited,
    MessagesDeleted,
    SessionStarted,
    WhyCommand,
)
from intern.core.ids import ChannelId, MessageId, UserId, position_at
from intern.core.messages import Channel, ChatMessage, Page
from intern.core.text.secret_values import Secret
from intern.learning.approvals import ApprovalQueue
from intern.stores.tables.checkpoints import StoredCheckpoints
from tests.worlds.actors import running
from tests.worlds.chat import mark_of
from tests.worlds.clock import HandClock
from tests.worlds.samples import CHANNEL, GUILD, START, author, channel, message

BASELINE = position_at(START).id


class Gateway:
    """Delivers what it holds, then stays connected, or ends with an error; a test may deliver more."""

    def __init__(self, *events: GatewayEvent, error: Exception | None = None) -> None:
        self._events = events
        self._error = error
        self.deliver: Callable[[GatewayEvent], None] = lambda _: None

    async def listen(self, deliver: Callable[[GatewayEvent], None], /) -> None:
        self.deliver = deliver
        for event in self._events:
            deliver(event)
        if self._error:
            raise self._error
        await sleep_forever()


@dataclass
class Ends:
    """The streams of a listener, and its checkpoints."""

    checkpoints: Checkpoints
    events: MemoryObjectSendStream[BatcherEvent]
    heard: MemoryObjectReceiveStream[BatcherEvent]
    interactions: MemoryObjectSendStream[Interaction]
    asked: MemoryObjectReceiveStream[Interaction]
    behind: MemoryObjectSendStream[BackfillNeeded]
    woken: MemoryObjectReceiveStream[BackfillNeeded]
    approved: MemoryObjectSendStream[ApprovalReaction]
    to_review: MemoryObjectReceiveStream[ApprovalReaction]
    approvals: ApprovalQueue

    async def run(self, gateway: Gateway, admits: Callable[[Channel], bool] = lambda _: True) -> None:
        await GatewayListener(
            gateway=gateway, checkpoints=self.checkpoints, subscribers=(self.approvals.receive,), admits=admits
        ).run(self.events, self.interactions, self.behind, self.approved)

    async def rest(self) -> list[BatcherEvent]:
        with self.heard, self.asked, self.woken, self.to_review:
            return [event async for event in self.heard]


def ends(size: int = 10, *, interactions: int = 10) -> Ends:
    return Ends(
        Checkpoints(StoredCheckpoints(attended={GUILD: BASELINE}), baseline=BASELINE),
        *create_memory_object_stream[BatcherEvent](size),
        *create_memory_object_stream[Interaction](interactions),
        *create_memory_object_stream[BackfillNeeded](1),
        *create_memory_object_stream[ApprovalReaction](1),
        ApprovalQueue(clock=HandClock()),
    )


async def heard_by(
    *events: GatewayEvent, size: int = 10, admits: Callable[[Channel], bool] = lambda _: True
) -> tuple[Ends, list[BatcherEvent]]:
    """Run a listener on the events until it is stopped; return what it hands on."""
    all_ends = ends(size)
    with fail_after(5):
        async with running(all_ends.run, Gateway(*events), admits):
            await wait_all_tasks_blocked()
        return all_ends, await all_ends.rest()


def session(newest: MessageId | None = None) -> SessionStarted:
    # Threads need no listing, so the session is complete.
    thread = Channel(id=CHANNEL, guild_id=GUILD, kind="thread", parent_id=ChannelId("1"))
    return SessionStarted(guild_id=GUILD, channels=(ChannelSnapshot(channel=thread, last_message_id=newest),))


def created(*messages: ChatMessage) -> list[GatewayEvent]:
    return [MessageCreated(message=each) for each in messages]


def deleted(*messages: ChatMessage) -> MessagesDeleted:
    return MessagesDeleted(guild_id=GUILD, channel_id=CHANNEL, message_ids=tuple(each.id for each in messages))


def read(checkpoints: Checkpoints, *messages: ChatMessage) -> list[ChatMessage]:
    with checkpoints.open_page(CHANNEL) as reading:
        reading.accept_page(Page(messages=messages, read_to=messages[-1].id, more=False))
        begun = [each for each in messages if checkpoints.begin(each)]
        assert checkpoints.finish_page(reading)
    return begun


SAID = tuple(message(f"m{n}", n=n) for n in range(1, 4))


async def test_events_are_handed_on_in_order_and_the_streams_close_when_the_listener_is_stopped() -> None:
    all_ends, heard = await heard_by(session(), *created(*SAID), deleted(SAID[0]))
    assert heard == [*created(*SAID), deleted(SAID[0])]
    assert all_ends.checkpoints.count_unfinished().messages == 3


async def test_a_message_told_twice_is_handed_on_once() -> None:
    _, heard = await heard_by(session(), *created(SAID[0], SAID[0]))
    assert heard == created(SAID[0])


async def test_a_full_stream_never_makes_the_gateway_wait_and_what_did_not_fit_is_read_later() -> None:
    all_ends, heard = await heard_by(session(), *created(*SAID), size=1)
    assert heard == created(SAID[0])
    assert all_ends.checkpoints.channels_behind() == (CHANNEL,)
    assert read(all_ends.checkpoints, *SAID) == list(SAID[1:])


async def test_other_channels_stay_live_while_one_is_behind() -> None:
    elsewhere = message("elsewhere", n=9, channel=str(int(SAID[-1].id) + 1))
    all_ends, heard = await heard_by(session(SAID[1].id), *created(SAID[2], elsewhere))
    assert heard == created(elsewhere)
    assert read(all_ends.checkpoints, *SAID) == list(SAID)


async def test_a_session_with_something_untold_nudges_backfill() -> None:
    all_ends = ends()
    async with running(all_ends.run, Gateway(session(SAID[0].id))):
        assert await all_ends.woken.receive() == BackfillNeeded()
    await all_ends.rest()
    assert all_ends.checkpoints.channels_behind() == (CHANNEL,)


async def test_what_was_missed_where_intern_is_not_admitted_is_not_read() -> None:
    all_ends, _ = await heard_by(session(SAID[0].id), admits=lambda _: False)
    assert all_ends.checkpoints.channels_behind() == ()
    assert mark_of(all_ends.checkpoints, CHANNEL) == SAID[0].id


async def test_edits_of_what_is_still_to_be_read_are_left_to_the_reading_but_deletions_are_told() -> None:
    edit = MessageEdited(message=message("better", n=2))
    _, heard = await heard_by(session(SAID[2].id), edit, deleted(SAID[0]), deleted(SAID[0], message(n=-5)))
    # An unread message may be archived although its mark did not move, and REST no longer shows it.
    assert heard == [deleted(SAID[0]), deleted(SAID[0], message(n=-5))]


async def test_changes_that_find_no_room_wait_and_keep_their_order() -> None:
    all_ends, gateway = ends(1), Gateway(session(), *created(SAID[0]))
    changes: list[LateChange] = [
        MessageEdited(message=message("better", n=1)),
        deleted(SAID[0]),
        deleted(message(n=-1)),
    ]
    async with running(all_ends.run, gateway):
        await wait_all_tasks_blocked()
        for change in changes:
            gateway.deliver(change)
            await wait_all_tasks_blocked()
        assert [await all_ends.heard.receive() for _ in range(3)] == [*created(SAID[0]), *changes[:2]]
        # There is room again, but no event overtakes the waiting ones.
        gateway.deliver(deleted(message(n=-2)))
        assert [await all_ends.heard.receive() for _ in range(2)] == [changes[2], deleted(message(n=-2))]
        await wait_all_tasks_blocked()
        gateway.deliver(deleted(message(n=-3)))
        assert await all_ends.heard.receive() == deleted(message(n=-3))
    assert await all_ends.rest() == []


async def test_more_changes_than_may_wait_are_named_and_shed(caplog: pytest.LogCaptureFixture) -> None:
    many = [deleted(message(n=-n)) for n in range(actor.WAITING_CHANGES + 3)]
    await heard_by(session(), *many, size=1)
    assert [record.getMessage().count("change_shed") for record in caplog.records] == [1, 1]


def why(n: int) -> WhyCommand:
    ticket = InteractionTicket(
        id=str(n), token=Secret("t"), application_id="1", guild_id=GUILD, channel_id=channel().id
    )
    return WhyCommand(interaction=ticket, user=author(), about="")


async def test_interactions_go_their_own_way_and_are_shed_when_nobody_takes_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    all_ends, asked = ends(interactions=1), list[Interaction]()
    async with running(all_ends.run, Gateway(why(1), why(2))):
        await wait_all_tasks_blocked()
    asked = [each async for each in all_ends.asked]
    await all_ends.rest()
    assert asked == [why(1)]
    assert ["interaction_shed" in record.getMessage() for record in caplog.records] == [True]


async def test_approvals_are_held_and_nudge_and_a_thousand_more_make_nobody_wait() -> None:
    words = [
        ApprovalReaction(guild_id=GUILD, channel_id=CHANNEL, message_id=message(n=n).id, by=UserId("9"))
        for n in range(1001)
    ]
    all_ends, heard = await heard_by(session(), *words, *created(SAID[0]))
    assert heard == created(SAID[0])
    assert [held.approval for held in all_ends.approvals.list_waiting()] == words[1:]
    assert all_ends.approved.statistics().tasks_waiting_send == 0


@pytest.mark.parametrize("events", [(), created(SAID[0])])
async def test_a_refused_connection_ends_the_listener_and_closes_its_streams(events: Sequence[GatewayEvent]) -> None:
    all_ends = ends()
    with pytest.raises(ConfigError, match="token"):
        await all_ends.run(Gateway(session(), *events, error=ConfigError("discord.token is refused")))
    assert await all_ends.rest() == list(events)
