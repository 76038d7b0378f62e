"""Gateway sessions: what a new one begins with, and how often one may be begun."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import takewhile
from typing import Any, Final

import msgspec
from msgspec import Struct

from intern.discord.audience import RawPermissions, RawRole, may_read, permissions
from intern.discord.reading import fitted, readable
from intern.discord.wire import RawChannel, RawMember, channel_of
from intern.domain import ChannelId, ChannelSeen, GuildId, RoleId, SessionStarted, UserId

# Discord resets the token of a bot that begins more than 1,000 sessions within 24 hours (its reference, "Gateway",
# "Session Start Limit").
_A_DAY: Final = 24 * 3600.0  # seconds
_OURS: Final = 0.9  # the share of them that we use
_MOST: Final = 900
_LATELY: Final = 3600.0  # sessions begun within these seconds make the next one wait longer
_LONGEST_PAUSE: Final = 96.0  # seconds: as many sessions as a day has


class _User(Struct, frozen=True):
    id: UserId


class _Member(RawMember, frozen=True, kw_only=True):
    user: _User


class _Tags(Struct, frozen=True):
    bot_id: UserId | None = None


class _TaggedRole(Struct, frozen=True):
    id: RoleId
    tags: _Tags = _Tags()


class _GuildCreated(Struct, frozen=True):
    id: GuildId
    unavailable: bool | None = None
    roles: list[Any] | None = None
    members: list[Any] | None = None
    channels: list[Any] | None = None
    threads: list[Any] | None = None


def session_of(payload: Mapping[str, Any], bot_id: UserId) -> SessionStarted | None:
    """What a GUILD_CREATE tells: the channels and active threads that the bot can read; None for an outage.

    Discord sends one for each server at the start of a session, and when a server comes back or is joined: always,
    what happened there before was not told. Never after a resume. Raises msgspec.ValidationError.
    """
    told = fitted(payload, _GuildCreated)
    if told.unavailable:
        return None
    open_to_us = _readable_by(told, bot_id)
    channels = [raw for raw in readable(told.channels, RawChannel) if raw.id in open_to_us and raw.holds_messages]
    threads = [raw for raw in readable(told.threads, RawChannel) if raw.is_thread and raw.parent_id in open_to_us]
    seen = [msgspec.structs.replace(raw, guild_id=told.id) for raw in (*channels, *threads)]
    kinds = {raw.id: raw.type for raw in channels}
    return SessionStarted(
        guild_id=told.id,
        channels=tuple(ChannelSeen(channel=channel_of(raw, kinds), last_message_id=raw.newest) for raw in seen),
    )


def own_roles(payload: Mapping[str, Any], bot_id: UserId) -> frozenset[RoleId]:
    """The roles that a GUILD_CREATE tells to be the bot's own. Raises msgspec.ValidationError."""
    told = fitted(payload, _GuildCreated)
    return frozenset(role.id for role in readable(told.roles, _TaggedRole) if role.tags.bot_id == bot_id)


def _readable_by(told: _GuildCreated, bot_id: UserId) -> set[ChannelId]:
    roles = {role.id: role.bits for role in readable(told.roles, RawRole)}
    channels = list(readable(told.channels, RawPermissions))
    ours = next((member.role_ids or () for member in readable(told.members, _Member) if member.user.id == bot_id), None)
    if ours is None or not roles:
        return {channel.id for channel in channels}  # Discord will say itself what we may not read
    return {
        channel.id
        for channel in channels
        if may_read(permissions(told.id, roles, channel.overwrites, held=ours, member=bot_id), channel.type)
    }


class SessionStarts:
    """When the next session may be begun: after pauses that grow with how many there were lately; at most 900 a day.

    Times are seconds of any clock that only goes forward. Pure: somebody else waits.
    """

    def __init__(self, first_pause: float = 1.0) -> None:
        self._first_pause = first_pause
        self._begun: deque[float] = deque()
        self._most = _MOST
        self._earlier = 0
        self._earlier_count_until = 0.0

    def told(self, *, total: int, remaining: int, reset_after: float, now: float) -> None:
        """Discord's own count, which knows of sessions that were begun before this process."""
        self._forget(now)
        self._most = min(_MOST, int(_OURS * total))
        self._earlier = max(0, total - remaining - len(self._begun))
        self._earlier_count_until = now + reset_after

    def begun(self, now: float) -> None:
        """A session is begun."""
        self._begun.append(now)

    @property
    def count(self) -> int:
        """Sessions that count against today's, as far as we know."""
        return len(self._begun) + self._earlier

    def pause(self, now: float) -> float:
        """Seconds to wait before the next session."""
        self._forget(now)
        lately = sum(1 for _ in takewhile(lambda at: at > now - _LATELY, reversed(self._begun)))
        pause = 0.0
        if lately:
            grown = self._first_pause * 2.0 ** min(lately - 1, 30)
            pause = self._begun[-1] + min(grown, _LONGEST_PAUSE) - now
        return max(0.0, pause, self.wait_for_a_day(now))

    def wait_for_a_day(self, now: float) -> float:
        """Seconds until one of today's sessions counts no more; 0 while there are any left."""
        self._forget(now)
        if self.count < self._most:
            return 0.0
        ends = [self._begun[0] + _A_DAY] if self._begun else []
        ends += [self._earlier_count_until] if self._earlier else []
        return min(ends, default=now) - now

    def _forget(self, now: float) -> None:
        while self._begun and self._begun[0] + _A_DAY <= now:
            self._begun.popleft()
        if self._earlier_count_until <= now:
            self._earlier = 0
