"""From a batch to what the archive keeps: the conversation, message by message, exactly as written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from intern.conversations.addressing import named_by, split_by_target
from intern.conversations.context import Gathered, in_order
from intern.conversations.routing import teaches
from intern.domain import (
    Batch,
    Capture,
    CaptureRequest,
    Channel,
    ChatMessage,
    ConversationId,
    MessageId,
    Turn,
    reply_conversation,
    thread_conversation,
)


def capture_requests(batch: Batch, channel: Channel, gathered: Gathered) -> tuple[CaptureRequest, ...]:
    """The conversations that a team member's batch answers, or that an asker's batch goes on with.

    In a thread that is the whole thread. In a channel each reply belongs to the conversation that it points to, with
    the lines that follow it; lines before the first reply go with it. A message that replies to nothing, and names one
    account, is taken for a reply to what that account said. Parts that lead to one conversation are one.
    Bots' messages are left out: a correction leads through the bot's answer to the question. A conversation is kept
    only if both a user and the team say something in it.
    """
    if channel.is_thread:
        whole = in_order(gathered.messages, batch.messages)
        requests = [capture_request(batch, thread_conversation(channel.id), whole)]
    else:
        requests = [capture_request(batch, None, messages) for messages in _conversations(batch, gathered)]
    return tuple(request for request in requests if request is not None)


def capture_of(request: CaptureRequest, image_texts: Mapping[MessageId, Sequence[str]] | None = None) -> Capture:
    """What goes into the archive: one turn a message.

    `image_texts` are what a model saw in a message's images, in their order, "" where none looked; they follow the
    message's text.
    """
    texts = image_texts or {}
    return Capture(
        conversation_id=request.conversation_id,
        turns=tuple(
            Turn(
                "Team" if message.author.type == "team_member" else "User",
                text_of(message, texts.get(message.id, ())),
            )
            for message in request.messages
        ),
        message_ids=tuple(message.id for message in request.messages),
        author_ids=tuple(message.author.id for message in request.messages),
        author_names=tuple(message.author.names for message in request.messages),
        answered_at=max(message.at for message in request.messages),
        guild_id=request.guild_id,
        channel_id=request.channel_id,
    )


def text_of(message: ChatMessage, image_texts: Sequence[str] = ()) -> str:
    """The message's text as written; then its images in words, and its other files where it has no text."""
    images = [attachment for attachment in message.attachments if attachment.is_image]
    seen = {image.id: text for image, text in zip(images, image_texts, strict=False) if text}
    lines = [message.text] if message.text else []
    lines += [
        f"[{'image' if attachment.is_image else 'file'}: {_one_line(attachment.filename)}]"
        + (f" {seen[attachment.id]}" if attachment.id in seen else "")
        for attachment in message.attachments
        if attachment.is_image or not message.text.strip()
    ]
    return "\n".join(lines)


def _conversations(batch: Batch, gathered: Gathered) -> list[tuple[ChatMessage, ...]]:
    """The batch's parts, each with the chains of its replies; parts that share a message are joined."""
    chains = {chain.reply: chain.messages for chain in gathered.chains}
    joined: list[tuple[tuple[ChatMessage, ...], bool]] = []
    parts = _parts(batch)
    if batch.author.type == "community_user":
        parts = [[message for message in part if message.id in gathered.goes_on] for part in parts]
    for part in filter(None, parts):
        messages = in_order(*(chains.get(message.id, ()) for message in part), part)
        taught = any(teaches(message, gathered) or message.id in gathered.goes_on for message in part)
        ids = {message.id for message in messages}
        same = [other for other in joined if not ids.isdisjoint(message.id for message in other[0])]
        joined = [other for other in joined if other not in same]
        joined.append(
            (
                in_order(*(earlier for earlier, _ in same), messages),
                taught or any(teaching for _, teaching in same),
            )
        )
    return [messages for messages, taught in joined if taught]


def _parts(batch: Batch) -> list[list[ChatMessage]]:
    first, *others = split_by_target(batch.messages)
    if others and not any(message.reply_to or named_by(message) for message in first):
        others[0] = [*first, *others[0]]
        return others
    return [first, *others]


def capture_request(
    batch: Batch, conversation: ConversationId | None, messages: Sequence[ChatMessage]
) -> CaptureRequest | None:
    """The request to keep these messages, oldest first; None where not both a user and the team say something.

    Bots' messages and empty ones are left out. Without a `conversation` it is that of the oldest message.
    """
    kept = tuple(message for message in messages if message.author.type != "bot" and text_of(message).strip())
    if {message.author.type for message in kept} != {"community_user", "team_member"}:
        return None
    return CaptureRequest(
        # The oldest message is the root, however the chain branches and whoever replied to which of its lines.
        conversation_id=conversation or reply_conversation(kept[0].id),
        guild_id=batch.last.guild_id,
        channel_id=batch.channel_id,
        messages=kept,
    )


def _one_line(name: str) -> str:
    return " ".join(name.split())
