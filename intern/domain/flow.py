"""Anything one actor hands to another. Nobody edits it once it is sent."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from intern.domain.answers import Citation, Conversation, RequestContext
from intern.domain.chat import Author, Channel, ChatMessage
from intern.domain.ids import ChannelId, ConversationId, GuildId, MessageId, TopicName
from intern.domain.learning import CapturedPair


class _Flow(Struct, frozen=True, kw_only=True, tag=True, tag_field="kind"):
    pass


class MessageCreated(_Flow, frozen=True, kw_only=True):
    """Somebody wrote."""

    message: ChatMessage


class MessageEdited(_Flow, frozen=True, kw_only=True):
    """Somebody changed what they wrote (content or attachments; not an embed that arrived later)."""

    message: ChatMessage


class MessagesDeleted(_Flow, frozen=True, kw_only=True):
    """Messages are gone; Discord tells no more than their ids."""

    guild_id: GuildId | None
    channel_id: ChannelId
    message_ids: tuple[MessageId, ...]


MessageEvent = MessageCreated | MessageEdited | MessagesDeleted


class Batch(_Flow, frozen=True, kw_only=True):
    """Consecutive messages of one author in one channel, oldest first, never empty; settled by a quiet window."""

    channel_id: ChannelId
    author: Author
    messages: tuple[ChatMessage, ...]

    @property
    def last(self) -> ChatMessage:
        """The newest message: the one a reply hangs on."""
        return self.messages[-1]


class AnswerRequest(_Flow, frozen=True, kw_only=True):
    """A question to answer: the asker's batch with all the context that was gathered."""

    batch: Batch
    channel: Channel
    conversation: Conversation
    context: RequestContext
    addressed: bool
    """The asker mentions the bot, replies to it, or writes in its thread or a new forum post."""


class CaptureRequest(_Flow, frozen=True, kw_only=True):
    """A conversation that a team member answered; messages in time order, bots left out."""

    conversation_id: ConversationId
    guild_id: GuildId | None
    channel_id: ChannelId
    messages: tuple[ChatMessage, ...]


class Archived(_Flow, frozen=True, kw_only=True):
    """Nudge: the archive has grown."""


class Decided(_Flow, frozen=True, kw_only=True):
    """Nudge: the decisions have grown."""


class SourceChanged(_Flow, frozen=True, kw_only=True):
    """Nudge: files, pages or topics may differ from their index."""


class Topic(_Flow, frozen=True, kw_only=True):
    """File the pair under this topic, which may be new."""

    name: TopicName


class Skip(_Flow, frozen=True, kw_only=True):
    """The pair cannot guide a future answer."""

    reason: str


class Failed(_Flow, frozen=True, kw_only=True):
    """No decision could be had."""

    reason: str


class Filing(_Flow, frozen=True, kw_only=True):
    """Where an archived pair should go."""

    pair: CapturedPair
    choice: Topic | Skip | Failed


ReplyTarget = Literal["new_thread", "in_place"]
"""`new_thread`: in the thread of the question's message, made if need be. `in_place`: the question is in a thread."""


class Reply(_Flow, frozen=True, kw_only=True):
    """An answer on its way to Discord. `question` is the batch's last message; one question gets one reply."""

    question: ChatMessage
    target: ReplyTarget
    text: str
    citations: tuple[Citation, ...] = ()
