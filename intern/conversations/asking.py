"""From a community member's batch to the conversation that the answering room takes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from msgspec import structs

from intern.conversations.capturing import text_of
from intern.conversations.context import Gathered
from intern.conversations.options import ConversationOptions
from intern.domain import AnswerRequest, Batch, Channel, ChatMessage, Conversation, Message, MessageId, RequestContext

_LEADING_MENTION = re.compile(r"\A\s*<@[!&]?\d+>[\s,:]*")


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
        called=_calls(batch, gathered),
    )


def joined(older: AnswerRequest, newer: AnswerRequest, options: ConversationOptions) -> AnswerRequest:
    """One question out of two of the same asker in the same place: the older one's messages first, then the newer's.

    It hangs on the newer one's last message. Of a message that is in both, the newer version counts.
    """
    again = {message.id for message in newer.batch.messages}
    messages = (*(m for m in older.batch.messages if m.id not in again), *newer.batch.messages)
    said = {_key(m): m for m in (*older.conversation.messages, *newer.conversation.messages)}
    asked = [_key(_said(m)) for m in messages]
    known = {*asked, *(_key(_said(m)) for m in older.batch.messages)}
    context = sorted((m for key, m in said.items() if key not in known), key=lambda m: m.at or _LONG_AGO)
    question = [said[key] for key in dict.fromkeys(asked) if key in said]
    return structs.replace(
        newer,
        batch=structs.replace(newer.batch, messages=messages),
        conversation=_bounded(context, question, options),
        addressed=older.addressed or newer.addressed,
        called=older.called or newer.called,
    )


def without(
    request: AnswerRequest, message_ids: Collection[MessageId], options: ConversationOptions
) -> AnswerRequest | None:
    """What is left of a question once some of its messages are gone; None where nothing is."""
    left = tuple(each for each in request.batch.messages if each.id not in message_ids)
    if not left:
        return None
    gone = {_key(_said(each)) for each in request.batch.messages if each.id in message_ids}
    asked = [_said(each) for each in left]
    known = {_key(each) for each in asked} | gone
    context = [each for each in request.conversation.messages if _key(each) not in known]
    return structs.replace(
        request,
        batch=structs.replace(request.batch, messages=left),
        conversation=_bounded(context, asked, options),
    )


def conversation_of(batch: Batch, gathered: Gathered, options: ConversationOptions) -> Conversation:
    """The context, oldest first, then the asker's batch, which is what is to be answered.

    Bounded by `max_history_messages` of context and `max_history_chars` in all. The batch has precedence, then the
    question that opened the conversation, then the newest. Other bots' messages are left out.
    """
    asked = {message.id for message in batch.messages}
    context = [_said(m) for m in gathered.messages if m.id not in asked and _counts(m)]
    return _bounded(context, [_said(m) for m in batch.messages], options)


def _bounded(context: list[Message], asked: list[Message], options: ConversationOptions) -> Conversation:
    room = options.max_history_chars
    question = _newest(asked, room) or asked[-1:]
    room -= _size(question)
    opening = [message for message in context if message.role == "user"][:1]
    if not (options.max_history_messages and opening and _size(opening) <= room):
        opening = []
    later = context[context.index(opening[0]) + 1 :] if opening else context
    kept = _newest(later[max(0, len(later) - options.max_history_messages + len(opening)) :], room - _size(opening))
    return Conversation((*opening, *kept, *question))


def _calls(batch: Batch, gathered: Gathered) -> bool:
    targets = (gathered.reply_authors.get(m.reply_to) for m in batch.messages if m.reply_to)
    return any(m.mentions_bot for m in batch.messages) or any(author and author.is_self for author in targets)


_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def _key(message: Message) -> tuple[str, str | None, datetime | None, str]:
    """Which message it is; a conversation holds no ids."""
    return message.role, message.author_id, message.at, message.text


def _counts(message: ChatMessage) -> bool:
    return bool(text_of(message).strip()) and (message.author.type != "bot" or message.author.is_self)


def _said(message: ChatMessage) -> Message:
    text = message.text  # what is attached goes beside it
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
