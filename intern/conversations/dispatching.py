"""Whom a batch concerns, and with what: the reading on Discord that routing needs, and no more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from intern.conversations.asking import answer_request
from intern.conversations.capturing import capture_requests
from intern.conversations.context import History, gather
from intern.conversations.options import ConversationOptions
from intern.conversations.routing import addressed, facts_of, route, worth_gathering
from intern.domain import AnswerRequest, Batch, CaptureRequest, ChannelId, GuildId


class AnsweredThreads(Protocol):
    """Remembers where the bot has answered; see `intern.knowledge.posts`."""

    async def answered_in(self, thread_id: ChannelId, /) -> bool:
        """Whether a reply of the bot's stands in this thread."""
        ...


class Dispatcher:
    """Routes one batch at a time; several may be under way at once."""

    def __init__(
        self,
        history: History,
        answered: AnsweredThreads,
        options: ConversationOptions,
        *,
        guild_ids: Collection[GuildId],
    ) -> None:
        self._history = history
        self._answered = answered
        self._options = options
        self._guild_ids = frozenset(guild_ids)

    async def dispatch(self, batch: Batch) -> Sequence[AnswerRequest | CaptureRequest]:
        """The question or the captures that a batch is; nothing where it concerns nobody.

        Raises DiscordUnavailableError where Discord could not be asked.
        """
        if batch.last.guild_id not in self._guild_ids or batch.author.type == "bot":
            return ()
        channel = await self._history.channel(batch.channel_id)
        answered = channel.is_thread and await self._answered.answered_in(channel.id)
        if not worth_gathering(batch, channel, answered_in_thread=answered):
            return ()
        gathered = await gather(batch, channel, self._history, self._options.bounds)
        facts = facts_of(batch, gathered, answered_in_thread=answered)
        match route(batch, channel, facts):
            case "capture":
                return capture_requests(batch, channel, gathered)
            case "answer":
                to_bot = addressed(batch, channel, facts)
                return (answer_request(batch, channel, gathered, self._options, addressed=to_bot),)
            case "nobody":
                return ()
