"""Missed changes are looked for after each new session, not too often, and never override newer reports."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest
from anyio import Event, sleep_forever

from intern.actors.missed_changes import QUIET_AFTER_SESSION, SHORTEST_WAIT, MissedChangesGateway
from intern.core.errors import ConfigError, KnowledgeError
from intern.core.flow import GatewayEvent, LateChange, MessageEdited, MessagesDeleted, SessionStarted
from intern.core.ids import ChannelId, GuildId
from tests.worlds.actors import running
from tests.worlds.clock import HandClock, all_quiet, leap
from tests.worlds.samples import message

SESSION = SessionStarted(guild_id=GuildId("1"), channels=())


pytestmark = pytest.mark.leaps


def edited(text: str, n: int = 1) -> MessageEdited:
    return MessageEdited(message=message(text, n=n))


def deleted(n: int) -> MessagesDeleted:
    return MessagesDeleted(guild_id=None, channel_id=ChannelId("2"), message_ids=(message(n=n).id,))


class Gateway:
    """Reports the events that a test wants."""

    def __init__(self) -> None:
        self.deliver: Callable[[GatewayEvent], None] = lambda _: None
        self.refused: ConfigError | None = None

    async def listen(self, deliver: Callable[[GatewayEvent], None]) -> None:
        self.deliver = deliver
        if self.refused:
            raise self.refused
        await sleep_forever()


class Missed:
    """Finds the changes that a test wants."""

    def __init__(self) -> None:
        self.outages: list[datetime] = []
        self.finds: list[LateChange] = []
        self.fails: KnowledgeError | None = None
        self.goes_on = Event()
        self.goes_on.set()

    async def look(self, outage: datetime, tell: Callable[[LateChange], object]) -> int:
        self.outages.append(outage)
        await self.goes_on.wait()
        if self.fails:
            raise self.fails
        for change in self.finds:
            tell(change)
        return 1


class Stage:
    def __init__(self) -> None:
        self.gateway, self.missed, self.clock = Gateway(), Missed(), HandClock()
        self.attended = self.clock.now() - timedelta(days=2)
        self.heard: list[GatewayEvent] = []

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        rereading = MissedChangesGateway(self.gateway, self.missed.look, attended=self.attended, clock=self.clock)
        async with running(rereading.listen, self.heard.append):
            await all_quiet()
            yield


async def test_it_looks_once_the_session_has_settled_and_tells_what_it_finds_as_the_gateway_does() -> None:
    stage = Stage()
    stage.missed.finds = [edited("changed"), deleted(2)]
    async with stage.listening():
        stage.gateway.deliver(SESSION)
        await all_quiet()
        assert stage.missed.outages == []
        await leap(QUIET_AFTER_SESSION)
        await all_quiet()
    assert stage.missed.outages == [stage.attended], "the first look goes back to when an earlier run was there"
    assert stage.heard == [SESSION, *stage.missed.finds]


async def test_however_often_sessions_are_lost_it_looks_once_in_a_while() -> None:
    stage = Stage()
    async with stage.listening():
        for _ in range(5):
            stage.gateway.deliver(SESSION)
            await all_quiet()
            await leap(QUIET_AFTER_SESSION)
            await all_quiet()
        assert len(stage.missed.outages) == 1
        await leap(SHORTEST_WAIT)
        await all_quiet()
        await leap(QUIET_AFTER_SESSION)
        await all_quiet()
        assert stage.missed.outages[1:] == [stage.clock.now()]


async def test_what_the_gateway_tells_meanwhile_is_newer() -> None:
    stage = Stage()
    stage.missed.finds = [edited("as it was"), edited("other", n=2)]
    stage.missed.goes_on = Event()
    async with stage.listening():
        stage.gateway.deliver(SESSION)
        await all_quiet()
        await leap(QUIET_AFTER_SESSION)
        await all_quiet()
        stage.gateway.deliver(edited("as it is"))
        stage.missed.goes_on.set()
        await all_quiet()
    assert stage.heard[1:] == [edited("as it is"), edited("other", n=2)]


async def test_an_archive_that_cannot_be_read_ends_nothing() -> None:
    stage = Stage()
    stage.missed.fails = KnowledgeError("the disk is away")
    async with stage.listening():
        stage.gateway.deliver(SESSION)
        await all_quiet()
        await leap(QUIET_AFTER_SESSION)
        await all_quiet()
        stage.gateway.deliver(deleted(1))
    assert stage.heard == [SESSION, deleted(1)]


async def test_a_look_that_failed_is_made_up_for_by_the_next() -> None:
    stage = Stage()
    stage.missed.fails = KnowledgeError("the disk is away")
    async with stage.listening():
        for _ in range(2):
            stage.gateway.deliver(SESSION)
            await all_quiet()
            await leap(QUIET_AFTER_SESSION + SHORTEST_WAIT)
            await all_quiet()
            await leap(QUIET_AFTER_SESSION)
            await all_quiet()
    assert stage.missed.outages == [stage.attended] * 2


@pytest.mark.rest
async def test_what_the_gateway_tells_between_looks_costs_no_memory() -> None:
    stage = Stage()
    async with stage.listening():
        tracemalloc.start()
        for n in range(5000):
            stage.gateway.deliver(deleted(n))
            stage.heard.clear()
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert grown < 100_000


async def test_a_gateway_that_is_refused_says_so_itself() -> None:
    stage = Stage()
    stage.gateway.refused = ConfigError("discord.token: wrong")
    rereading = MissedChangesGateway(stage.gateway, stage.missed.look, attended=stage.attended, clock=stage.clock)
    with pytest.raises(ConfigError, match="token"):
        await rereading.listen(stage.heard.append)
