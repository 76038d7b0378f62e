"""Exports read as they stood at a moment of theirs: what was written or edited later is not there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from anyio.lowlevel import checkpoint

from intern.discord.exports import Exports
from intern.discord.ordering import position
from intern.domain import Channel, ChannelId, ChatMessage, Lookups, MessageId
from intern.errors import DiscordRefusedError


class Moment(NamedTuple):
    """A time, and the message by which it is told apart from others of the same time."""

    at: datetime
    number: int


def known_from(message: ChatMessage) -> Moment:
    """When a message was first known as the export has it.

    An export holds the last text alone. What stood there before an edit is lost, and the edit must not be known before
    it was made.
    """
    written = message.at if message.edited_at is None else max(message.at, message.edited_at)
    return Moment(written, int(message.id))


class Archives:
    """Exports, to be read as of any moment."""

    def __init__(self, exports: Exports) -> None:
        self.channels: Mapping[ChannelId, Channel] = {place.channel.id: place.channel for place in exports.channels}
        self.messages: Mapping[ChannelId, Sequence[ChatMessage]] = {
            place.channel.id: place.messages for place in exports.channels
        }
        self._in_order = {place.channel.id: _is_in_order(place.messages) for place in exports.channels}

    def written_by(self, channel_id: ChannelId, at: datetime) -> int:
        """How many of a channel's messages may have been written by then; the others come behind them."""
        here = self.messages.get(channel_id, ())
        return bisect_right(here, at, key=_at) if self._in_order.get(channel_id) else len(here)


class HistoryUntil:
    """What Discord would have shown at a moment; the same methods as its own history has."""

    def __init__(self, archives: Archives, until: Moment) -> None:
        self._archives = archives
        self._until = until
        self.edited_later: set[Moment] = set()
        """When what was passed over, though it was written by then, can be known."""

    async def channel(self, channel_id: ChannelId) -> Channel:
        """A channel or thread. Raises DiscordRefusedError for one that was not exported."""
        await checkpoint()
        if channel_id not in self._archives.channels:
            raise DiscordRefusedError(f"channel {channel_id} is in none of the exports")
        return self._archives.channels[channel_id]

    async def message(self, channel_id: ChannelId, message_id: MessageId) -> ChatMessage | None:
        """A message; None where there was none yet."""
        await checkpoint()
        here = self._archives.messages.get(channel_id, ())
        at = position(here, message_id)
        return here[at] if at < len(here) and here[at].id == message_id and self._shows(here[at]) else None

    async def before(
        self, channel_id: ChannelId, message_id: MessageId | None, limit: int, *, lookups: Lookups | None = None
    ) -> Sequence[ChatMessage]:
        """The newest messages older than `message_id` (None: of all), oldest first. Here, authors cost no `lookups`."""
        del lookups
        await checkpoint()
        here = self._archives.messages.get(channel_id, ())
        end = self._archives.written_by(channel_id, self._until.at)
        if message_id is not None:
            end = min(end, position(here, message_id))
        return self._shown((here[at] for at in range(end - 1, -1, -1)), limit)[::-1]

    async def after(self, channel_id: ChannelId, message_id: MessageId, limit: int) -> Sequence[ChatMessage]:
        """The oldest messages newer than `message_id`, oldest first."""
        await checkpoint()
        here = self._archives.messages.get(channel_id, ())
        start = position(here, message_id)
        start += start < len(here) and here[start].id == message_id
        end = self._archives.written_by(channel_id, self._until.at)
        return self._shown((here[at] for at in range(start, end)), limit)

    def _shown(self, messages: Iterable[ChatMessage], limit: int) -> list[ChatMessage]:
        shown: list[ChatMessage] = []
        for message in messages:
            if len(shown) >= limit:
                break
            if self._shows(message):
                shown.append(message)
        return shown

    def _shows(self, message: ChatMessage) -> bool:
        moment = known_from(message)
        if moment <= self._until:
            return True
        if (message.at, int(message.id)) <= self._until:
            self.edited_later.add(moment)
        return False


def _at(message: ChatMessage) -> datetime:
    return message.at


def _is_in_order(messages: Sequence[ChatMessage]) -> bool:
    """Whether times go up with ids, as on Discord; a file may say anything."""
    return all(one.at <= other.at for one, other in pairwise(messages))
