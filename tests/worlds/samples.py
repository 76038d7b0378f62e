"""Sample values for tests; each call gives a plausible one, and takes the values that matter to the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import structs

from intern.core.captures import Capture, CapturedPair, Turn
from intern.core.flow import AnswerRequest, Batch, CaptureRequest, Reply, ReplyTarget
from intern.core.ids import ChannelId, ConversationId, GuildId, MessageId, QAId, UserId, position_at
from intern.core.messages import (
    Author,
    AuthorType,
    Channel,
    ChannelKind,
    ChatMessage,
    Conversation,
    Message,
    RequestContext,
)
from intern.stores.tables.answers import AnswerStore, QuestionWords

START = datetime(2026, 2, 1, 3, 10, 56, tzinfo=UTC)
GUILD = GuildId("100")
CHANNEL = ChannelId("200")


def author(name: str = "alice", kind: AuthorType = "community_user") -> Author:
    return Author(id=UserId(str(sum(map(ord, name)) + 5000)), name=name, type=kind)


def message(
    text: str = "How do I start a node?",
    *,
    n: int = 0,
    by: Author | None = None,
    channel: str = CHANNEL,
    reply_to: str | None = None,
) -> ChatMessage:
    """Return the `n`th message: ids and times grow with `n`, a second each."""
    at = START + timedelta(seconds=n)
    return ChatMessage(
        id=position_at(at).id,
        guild_id=GUILD,
        channel_id=ChannelId(channel),
        author=by or author(),
        text=text,
        at=at,
        reply_to=MessageId(reply_to) if reply_to else None,
    )


def batch(*messages: ChatMessage) -> Batch:
    messages = messages or (message(),)
    return Batch(channel_id=messages[0].channel_id, author=messages[0].author, messages=messages)


def channel(channel_id: str = CHANNEL, kind: ChannelKind = "channel") -> Channel:
    return Channel(id=ChannelId(channel_id), guild_id=GUILD, kind=kind)


def answer_request(*messages: ChatMessage, addressed: bool = False) -> AnswerRequest:
    asked = batch(*messages)
    return AnswerRequest(
        batch=asked,
        channel=channel(asked.channel_id),
        conversation=Conversation(tuple(Message(role="user", text=each.text, id=each.id) for each in asked.messages)),
        context=RequestContext(channel_id=asked.channel_id, message_id=asked.last.id),
        addressed=addressed,
    )


def reply(
    question: MessageId, place: ChannelId, target: ReplyTarget, *, covers: Sequence[MessageId] = (), **fields: Any
) -> Reply:
    """Return a reply to a question that also is for the messages in `covers`."""
    asked = structs.replace(message(), id=question, channel_id=place)
    return Reply(question=asked, target=target, text="", settles=tuple(covers), **fields)


def capture_request(*messages: ChatMessage, conversation: str = "reply_1") -> CaptureRequest:
    held = messages or (message("How?", n=1), message("Like this.", n=2, by=author("mira", "team_member")))
    return CaptureRequest(
        conversation_id=ConversationId(conversation), guild_id=GUILD, channel_id=held[0].channel_id, messages=held
    )


def capture(question: str = "How?", answer: str = "Like this.", *, n: int = 1, conversation: str = "") -> Capture:
    """Return the `n`th capture: two messages, ids and times growing with `n`."""
    at = START + timedelta(minutes=n)
    return Capture(
        conversation_id=ConversationId(conversation or f"reply_{n}"),
        turns=(Turn("User", question), Turn("Team", answer)),
        message_ids=(position_at(at).id, position_at(at, 1).id),
        answered_at=at,
        guild_id=GUILD,
        channel_id=CHANNEL,
    )


def pair(question: str = "How?", answer: str = "Like this.", *, n: int = 1, conversation: str = "") -> CapturedPair:
    """Return the `n`th archived pair, a minute after the one before."""
    made = capture(question, answer, n=n, conversation=conversation)
    return CapturedPair(
        conversation_id=made.conversation_id,
        turns=made.turns,
        message_ids=made.message_ids,
        answered_at=made.answered_at,
        guild_id=made.guild_id,
        channel_id=made.channel_id,
        qa_id=QAId(f"qa_{made.answered_at:%Y%m%d_%H%M%S}"),
        timestamp=made.answered_at,
    )


async def save_question(
    records: AnswerStore,
    messages: Sequence[ChatMessage],
    reason: str = "",
    channel: Channel | None = None,
    *,
    outcome: str = "answer",
    debug: Mapping[str, Any] | None = None,
    **figures: Any,
) -> None:
    """Save the record of a question with its words."""
    words = QuestionWords(messages=tuple(messages), channel=channel, **figures)
    ids, place = [each.id for each in messages], messages[-1].channel_id
    await records.save(ids, place, outcome=outcome, reason=reason, debug=debug, words=words)
