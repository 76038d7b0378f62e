"""From a community member's batch to the conversation that the answering room takes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from intern.conversations.capturing import text_of
from intern.conversations.context import Gathered
from intern.conversations.options import ConversationOptions
from intern.domain import AnswerRequest, Batch, Channel, ChatMessage, Conversation, Message, RequestContext

_LEADING_MENTION = re.compile(r"\A\s*<@!?\d+>[\s,:]*")


def answer_request(
    batch: Batch, channel: Channel, gathered: Gathered, options: ConversationOptions, *, addressed: bool
) -> AnswerRequest:
    """The question that a batch asks, with its context."""
    return AnswerRequest(
        batch=batch,
        channel=channel,
        conversation=conversation_of(batch, gathered, options),
        context=RequestContext(
            guild_id=batch.last.guild_id,
            channel_id=(channel.parent_id or channel.id) if channel.is_thread else channel.id,
            thread_id=channel.id if channel.is_thread else None,
            message_id=batch.last.id,
        ),
        addressed=addressed,
    )


def conversation_of(batch: Batch, gathered: Gathered, options: ConversationOptions) -> Conversation:
    """The context, oldest first, then the asker's batch, which is what is to be answered.

    Bounded by `max_history_messages` of context and `max_history_chars` in all. The batch has precedence, then the
    question that opened the conversation, then the newest. Other bots' messages are left out.
    """
    asked = {message.id for message in batch.messages}
    context = [_said(m) for m in gathered.messages if m.id not in asked and _counts(m)]
    room = options.max_history_chars
    question = _newest((_said(m) for m in batch.messages), room) or [_said(batch.last)]
    room -= _size(question)
    opening = [message for message in context if message.role == "user"][:1]
    if not (options.max_history_messages and opening and _size(opening) <= room):
        opening = []
    later = context[context.index(opening[0]) + 1 :] if opening else context
    kept = _newest(later[max(0, len(later) - options.max_history_messages + len(opening)) :], room - _size(opening))
    return Conversation((*opening, *kept, *question))


def _counts(message: ChatMessage) -> bool:
    return bool(text_of(message).strip()) and (message.author.type != "bot" or message.author.is_self)


def _said(message: ChatMessage) -> Message:
    text = text_of(message)
    if message.mentions_bot:
        text = _LEADING_MENTION.sub("", text)  # the address on the letter is not part of it
    return Message(
        role="assistant" if message.author.is_self else "user",
        text=text,
        at=message.at,
        author_id=message.author.id,
        attachments=message.attachments,
    )


def _newest(messages: Iterable[Message], room: int) -> list[Message]:
    """As many of the newest as fit in `room` characters, oldest first."""
    kept: list[Message] = []
    for message in reversed(list(messages)):
        if len(message.text) > room:
            break
        kept.append(message)
        room -= len(message.text)
    return kept[::-1]


def _size(messages: Iterable[Message]) -> int:
    return sum(len(message.text) for message in messages)
