"""Whom a batch concerns: the table of the design, on the whole batch and not on its last message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, assert_never

from msgspec import Struct

from intern.chat.addressing import named_by
from intern.chat.context import Gathered
from intern.core.flow import Batch
from intern.core.ids import MessageId
from intern.core.messages import Author, Channel, ChatMessage

Route = Literal["answer", "capture", "nobody"]


class RoutingFacts(Struct, frozen=True, kw_only=True):
    """What Discord and the ledger told about a batch's surroundings."""

    reply_authors: Mapping[MessageId, Author | None] = {}
    """Who wrote what the batch replies to, by the replied message's id; None where that is deleted or unreadable."""
    answered: Mapping[MessageId, Author | None] = {}
    """Whom the author's own earlier words answered, where the batch replies to those; by the replied message's id."""
    named: Mapping[MessageId, Author] = {}
    """Whom a team member's message answers by naming them, by the message's own id."""
    asked_in_thread: bool = False
    """A community user wrote in this thread before, or the message that it hangs on."""
    answered_in_thread: bool = False
    """The bot posted an answer in this thread."""


def facts_of(batch: Batch, gathered: Gathered, *, answered_in_thread: bool) -> RoutingFacts:
    """The facts, from what was read on Discord and what the ledger says."""
    own = {message.id for message in batch.messages}
    return RoutingFacts(
        reply_authors=gathered.reply_authors,
        answered=gathered.answered,
        named=gathered.named,
        asked_in_thread=any(
            message.author.type == "community_user" and message.id not in own for message in gathered.thread
        ),
        answered_in_thread=answered_in_thread,
    )


def worth_gathering(batch: Batch, place: Channel, *, answered_in_thread: bool) -> bool:
    """False where no reading could make the batch concern anybody: most of a busy server costs no REST call."""
    if batch.last.guild_id is None or batch.author.type == "bot":
        return False
    replies = any(message.reply_to for message in batch.messages)
    if batch.author.type == "team_member":
        return replies or place.is_thread or any(map(named_by, batch.messages))
    return replies or _mentions(batch) or not place.is_thread or answered_in_thread or _opens_post(batch, place)


def route(batch: Batch, place: Channel, facts: RoutingFacts) -> Route:
    """Where a batch goes: to be answered if any of its messages `asks`, to be captured if any of them `teaches`.

    Private messages and bots concern nobody.
    """
    if batch.last.guild_id is None:
        return "nobody"
    match batch.author.type:
        case "bot":
            return "nobody"
        case "team_member":
            return "capture" if _teaches(batch, place, facts) else "nobody"
        case "community_user":
            return "answer" if asks(batch, place, facts) else "nobody"
        case _:
            assert_never(batch.author.type)


def asks(batch: Batch, place: Channel, facts: RoutingFacts) -> tuple[ChatMessage, ...]:
    """The messages of a member's batch that are a question to the bot.

    All of them where one addresses it. Else, in a channel, all but the replies to somebody else; a reply to a message
    that is gone or unreadable may be one, so the bot keeps out of it.
    """
    if addressed(batch, place, facts):
        return batch.messages
    if place.is_thread:
        return ()
    return tuple(message for message in batch.messages if not _is_for_another(message, facts))


def addressed(batch: Batch, place: Channel, facts: RoutingFacts) -> bool:
    """The asker mentions the bot, replies to it, or writes in its thread or a new forum post."""
    return (
        _mentions(batch)
        or any(author is not None and author.is_self for author in _targets(batch, facts))
        or (place.is_thread and facts.answered_in_thread)
        or _opens_post(batch, place)
    )


def teaches(reply: ChatMessage, facts: Gathered | RoutingFacts) -> bool:
    """Whether a team member's message teaches: it answers a user, or corrects the bot.

    It answers whom it replies to, or else the one whom it names. A reply to the author's own answer goes on with that,
    and teaches the same user.
    """
    if reply.reply_to is None:
        return reply.id in facts.named
    reached = (facts.reply_authors.get(reply.reply_to), facts.answered.get(reply.reply_to))
    return any(author is not None and (author.type == "community_user" or author.is_self) for author in reached)


def _teaches(batch: Batch, place: Channel, facts: RoutingFacts) -> bool:
    if place.is_thread and facts.asked_in_thread:
        return True
    return any(teaches(message, facts) for message in batch.messages)


def _targets(batch: Batch, facts: RoutingFacts) -> list[Author | None]:
    """The author of each message that the batch replies to."""
    return [facts.reply_authors.get(message.reply_to) for message in batch.messages if message.reply_to]


def _is_for_another(message: ChatMessage, facts: RoutingFacts) -> bool:
    if message.reply_to is None:
        return False
    author = facts.reply_authors.get(message.reply_to)
    return author is None or author.id != message.author.id


def _mentions(batch: Batch) -> bool:
    return any(message.mentions_bot for message in batch.messages)


def _opens_post(batch: Batch, place: Channel) -> bool:
    return place.kind == "post" and any(str(message.id) == place.id for message in batch.messages)
