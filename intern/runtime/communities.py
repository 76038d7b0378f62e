"""Many communities in one process: the known ones, and the open ones.

The small state of all communities is here: servers with their channels, the checkpoint of each channel, and the time of
the next opening. The first event that needs stores, indices and actors opens them. They are closed when no event came
for a while and no work is left. A closed community has no task and no timer.

Events that come during opening wait, up to a bound. Later ones are in Discord's history, which is the inbox anyway: a
community that finds a channel ahead of its checkpoint reads on over REST.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set as AbstractSet
from contextlib import AbstractAsyncContextManager
from math import inf
from typing import Final, cast
from zlib import crc32

import structlog
from anyio import CancelScope, Event, current_time, move_on_after, sleep_forever
from anyio.abc import TaskGroup

from intern.actors.loops import exponential_backoff, listen_with_task
from intern.actors.pipeline import PipelineParts, run_pipeline
from intern.chat.platform import ChatPlatform, Deliver
from intern.core import flow
from intern.core.clock import Wakeup
from intern.core.errors import InternError
from intern.core.ids import GuildId
from intern.core.log import failure_level, get_logger
from intern.core.tasks import open_task_group
from intern.runtime.community_chat import CommunityChat
from intern.runtime.community_state import CommunityState, event_guild_id
from intern.settings.communities import Community
from intern.stores.tables.checkpoints import StoredCheckpoints

_log = get_logger(__name__)

IDLE_SECONDS: Final = 600.0
"""Seconds without events and work after which a community is closed."""
UPKEEP_SECONDS: Final = 6 * 3600.0
"""Seconds between openings of a closed community for work without events: changed pages, failed work."""
_LOOK_EVERY = 5.0  # seconds between two checks whether a community without events still has work
_OPENING_AT_ONCE = 4
_FIRST_RETRY, _LAST_RETRY = 60.0, 3600.0  # seconds until a community that could not be opened is tried again

Open = Callable[[Community, ChatPlatform], AbstractAsyncContextManager[PipelineParts]]
"""Opens the stores and puts the actors of a community together, around its own part of the platform."""
ReadCheckpoints = Callable[[Sequence[Community]], Awaitable[Sequence[StoredCheckpoints]]]
"""Reads the checkpoints of communities' channels, without opening the communities. Raises KnowledgeError."""


class Communities:
    """The communities of a process. `run` listens for all of them."""

    def __init__(
        self,
        chat: ChatPlatform,
        *,
        opens: Open,
        stands: ReadCheckpoints,
        elsewhere: Deliver = lambda _: None,
        most_open: int = 200,
        idle_seconds: float = IDLE_SECONDS,
        upkeep_seconds: float = UPKEEP_SECONDS,
    ) -> None:
        """Pass events without a community, and joined or left servers, to `elsewhere`.

        Beyond `most_open`, the communities without events for longest are closed as soon as they have no work.
        """
        self._chat, self._opens, self._stands, self._elsewhere = chat, opens, stands, elsewhere
        self._most_open, self._idle, self._upkeep = most_open, idle_seconds, upkeep_seconds
        self._known: dict[str, CommunityState] = {}
        self._of: dict[GuildId, CommunityState] = {}
        self._leaving: dict[str, CommunityState] = {}
        self._tasks: TaskGroup | None = None
        self._stop = Event()
        self._due = Event()
        self._opening = 0
        self._opened = Event()

    async def add(self, *communities: Community) -> None:
        """Add communities. Raises KnowledgeError, and ValueError for a server that belongs to another one."""
        for community in communities:
            if leaving := self._leaving.get(community.name):
                await leaving.closed.wait()
        for community, stands in zip(communities, await self._stands(communities), strict=True):
            known = CommunityState(community, stands)
            if taken := [each for each in community.guild_ids if each in self._of]:
                raise ValueError(f"server {taken[0]} belongs to {self._of[taken[0]].community.name} already")
            self._known[community.name] = known
            self._of.update(dict.fromkeys(community.guild_ids, known))
            # Spread, so that communities added together are not all opened in the same minute.
            known.due_at = current_time() + self._upkeep * (0.5 + crc32(community.name.encode()) / 2**33)
        self._due.set()

    def change(self, community: Community) -> None:
        """Change the settings of a community. If it is open, it is closed calmly, and opened with them."""
        known = self._known[community.name]
        known.community = community
        if known.is_open:
            known.reopens = True
            known.stop.set()
        elif known.retries is not None:
            self._schedule_now(known)

    def open_now(self, name: str) -> None:
        """Open a community now, unless it failed lately: there is work that no event announces."""
        known = self._known.get(name)
        if known is not None and (known.retries is None or known.is_open):
            self._schedule_now(known)

    def _schedule_now(self, known: CommunityState) -> None:
        self._start(known)
        known.jobs_came.wake()
        if not known.is_open:  # nothing is open yet
            known.due_at = current_time()
            self._due.set()

    async def remove(self, name: str, *, at_once: bool = False) -> None:
        """Remove a community, and return when it is closed: calmly, or by cancelling its work `at_once`."""
        if known := self._known.pop(name, None):
            known.is_removed = True
            for guild_id in known.community.guild_ids:
                del self._of[guild_id]
            if known.is_open:
                self._leaving[name] = known
        if known := self._leaving.get(name):
            (known.scope.cancel if at_once else known.stop.set)()
            await known.closed.wait()

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def get(self, name: str) -> Community | None:
        """Return a community, if it is known."""
        known = self._known.get(name)
        return None if known is None else known.community

    @property
    def names(self) -> AbstractSet[str]:
        """The names of all communities."""
        return self._known.keys()

    def is_done(self, name: str) -> bool:
        """Whether a closing community has no work left: else it was removed, or all are being closed."""
        return name in self._known and not self._stop.is_set()

    def describe_states(self) -> Mapping[str, str]:
        """Return the state of each community: `open`, `closed`, or the reason of its failure."""
        return {name: known.failure or ("open" if known.is_open else "closed") for name, known in self._known.items()}

    @property
    def open(self) -> tuple[str, ...]:
        """The names of the communities that are open, or being opened or closed."""
        return tuple(name for name, known in self._known.items() if known.is_open)

    async def run(self, *, stop: Event) -> None:
        """Hand each event to its community until `stop` is set or the gateway ends; then close all of them calmly."""
        async with open_task_group() as tasks:
            self._tasks = tasks
            async with open_task_group() as listening:
                listening.start_soon(self._open_due)
                listening.start_soon(self._listen, stop)
                await stop.wait()
                listening.cancel_scope.cancel()
            self._stop.set()
            for known in self._known.values():
                known.look.set()

    async def _listen(self, stop: Event) -> None:
        await listen_with_task(self._chat, self.receive, sleep_forever)
        stop.set()

    def receive(self, event: flow.GatewayEvent) -> None:
        """Pass an event to its community. Never waits."""
        known = self._of.get(event_guild_id(event) or GuildId(""))
        if known is None or isinstance(event, flow.GuildJoined | flow.GuildLeft):
            self._elsewhere(event)
        elif known.retries is not None and not known.is_open:
            known.note_missed(event)
        elif known.is_open or known.needs(event, self._chat):
            known.receive(event)
            self._start(known)
        elif isinstance(event, flow.SessionStarted):
            known.note_missed(event)

    def _start(self, known: CommunityState) -> None:
        if not known.is_open and not self._stop.is_set() and self._tasks is not None:
            known.is_open, known.due_at, known.closed = True, inf, Event()
            known.heard_at, known.hurries = current_time(), False
            staying = [each for each in self._known.values() if each.is_open and not each.hurries]
            if len(staying) > self._most_open:
                longest = min(staying, key=lambda each: each.heard_at)
                longest.hurries = True
                longest.look.set()
            self._tasks.start_soon(self._keep_open, known, name=f"community {known.community.name}")

    async def _open_due(self) -> None:
        while True:
            self._due = Event()
            closed = [known for known in self._known.values() if not known.is_open]
            for known in closed:
                if known.due_at <= current_time():
                    self._start(known)
            next_at = min((known.due_at for known in closed if not known.is_open), default=inf)
            with move_on_after(next_at - current_time()):
                await self._due.wait()

    async def _keep_open(self, known: CommunityState) -> None:
        """Keep a community open while it has work."""
        with structlog.contextvars.bound_contextvars(community=known.community.name), CancelScope() as known.scope:
            again = True
            while again:
                again = await self._open_once(known) and known.has_more and not self._stop.is_set()
        known.is_open = False
        if self._leaving.get(known.community.name) is known:
            del self._leaving[known.community.name]
        known.closed.set()
        self._due.set()

    async def _open_once(self, known: CommunityState) -> bool:
        """Open a community until it is closed; return False if it failed."""
        try:
            await self._run_community(known)
            [known.stands] = await self._stands((known.community,))
            known.retries, known.failure, known.due_at = None, "", current_time() + self._upkeep
        except* InternError as errors:
            self._note_failure(known, errors)
        return known.retries is None

    async def _run_community(self, known: CommunityState) -> None:
        while self._opening >= _OPENING_AT_ONCE:
            await self._opened.wait()
        if known.is_removed:
            return
        self._opening += 1
        is_ready, stop = False, Event()
        known.stop, known.reopens = stop, False

        def mark_ready() -> None:
            nonlocal is_ready
            if not is_ready:
                is_ready = True
                self._opening -= 1
                self._opened.set()
                self._opened = Event()

        try:
            chat = CommunityChat(self._chat, known, mark_ready, self._note_roles)
            async with self._opens(known.community, chat) as parts, open_task_group() as tg:
                known.jobs_came = parts.jobs_came or Wakeup()
                tg.start_soon(self._close_when_idle, known, parts, stop)
                await run_pipeline(parts, stop=stop)
                tg.cancel_scope.cancel()
            known.continues = True
            _log.info("community_closed")
        finally:
            mark_ready()
            known.deliver = None

    async def _close_when_idle(self, known: CommunityState, parts: PipelineParts, stop: Event) -> None:
        known.heard_at = current_time()
        while not self._stop.is_set():
            known.look = Event()
            left = 0.0 if known.hurries else known.heard_at + self._idle - current_time()
            if left <= 0 and not await _has_work(parts):
                break
            with move_on_after(max(left, _LOOK_EVERY)):
                await known.look.wait()
        stop.set()

    def _note_failure(self, known: CommunityState, errors: BaseExceptionGroup[InternError]) -> None:
        """Delay a community that could not be opened. The missed messages are in Discord's history."""
        error = _find_first_error(errors)
        known.retries = known.retries or exponential_backoff(_FIRST_RETRY, _LAST_RETRY)
        pause, known.failure = next(known.retries), str(error)
        known.note_missed(*known.waiting)
        known.due_at = current_time() + pause
        level = failure_level(error, logging.ERROR)
        _log.log(level, "community_failed", error=type(error).__name__, reason=str(error), again_in_seconds=pause)

    def _note_roles(self) -> None:
        """Give each open community the roles that were learned on its servers."""
        for each in self._chat.take_new_roles():
            # A closed one would store the roles of all authors, even in channels that it ignores.
            if (known := self._of.get(each.guild_id)) and known.is_open:
                known.noted[each.guild_id, each.user_id] = each


def _find_first_error(error: BaseException) -> BaseException:
    if isinstance(error, BaseExceptionGroup):
        return _find_first_error(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return error


async def _has_work(parts: PipelineParts) -> bool:
    rest = parts.checkpoints.count_unfinished()
    busy = any(each.waiting or each.taking == "busy" for each in parts.fill.read_fills())
    return bool(rest.messages or rest.channels or busy or await parts.count_jobs())
