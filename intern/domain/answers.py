"""What goes into answering and what comes out: the types at the door of the answering room."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from intern.domain.chat import Attachment
from intern.domain.ids import ChannelId, GuildId, MessageId, SourceId, UserId

Role = Literal["user", "assistant"]

SilenceReason = Literal[
    "",
    "not_a_question",
    "not_answerable",
    "no_sources",
    "sources_unreadable",
    "no_answer",
    "no_citations",
    "ungrounded",
    "too_long",
    "rejected",
    "images_unavailable",
    "timeout",
    "over_budget",
    "model_unavailable",
    "model_failed",
    "knowledge_failed",
]
"""Why there is no reply; empty where there is one. `not_a_question` to `rejected`: looked and found nothing to say.
`sources_unreadable` and `images_unavailable` to the end: could not look (see `COULD_NOT_LOOK`)."""

COULD_NOT_LOOK: frozenset[SilenceReason] = frozenset(
    {
        "sources_unreadable",
        "images_unavailable",
        "timeout",
        "over_budget",
        "model_unavailable",
        "model_failed",
        "knowledge_failed",
    }
)
"""The reasons that say "could not look", as opposed to "found nothing"."""


class Image(Struct, frozen=True, kw_only=True):
    """A downloaded picture, ready for a model."""

    media_type: str
    data: bytes


class Message(Struct, frozen=True, kw_only=True):
    """One message of a conversation as the answering room sees it."""

    role: Role
    text: str
    at: datetime | None = None
    author_id: UserId | None = None
    images: tuple[Image, ...] = ()
    attachments: tuple[Attachment, ...] = ()


class Conversation(Struct, frozen=True):
    """Messages, oldest first; the last `user` messages of one author in a row are the question."""

    messages: tuple[Message, ...]

    @property
    def asked(self) -> slice:
        """Where the question stands among the messages; empty where nobody asked anything."""
        last = len(self.messages)
        while last > 0 and self.messages[last - 1].role != "user":
            last -= 1
        first = last
        while first > 0 and _is_of(self.messages[first - 1], self.messages[last - 1]):
            first -= 1
        return slice(first, last)


def _is_of(message: Message, other: Message) -> bool:
    return message.role == other.role and message.author_id == other.author_id


class RequestContext(Struct, frozen=True, kw_only=True):
    """Where a question was asked; for logs and links, never for a prompt."""

    platform: str = "discord"
    guild_id: GuildId | None = None
    channel_id: ChannelId | None = None
    thread_id: ChannelId | None = None
    message_id: MessageId | None = None


class Citation(Struct, frozen=True, kw_only=True):
    """A source that an answer stands on."""

    source_id: SourceId
    title: str
    url: str | None = None
    """The page of a web source, or the jump link of a team answer; None for a file."""
    quote: str | None = None
    """The sentence that the answer stands on, cut from the source by code."""


class AIResult(Struct, frozen=True, kw_only=True):
    """An answer fit to post, or silence with its reason. Never half of either."""

    should_reply: bool
    reply_text: str | None = None
    citations: tuple[Citation, ...] = ()
    reason: SilenceReason = ""
    debug: dict[str, Any] | None = None
    """Per step: decision, seconds, tokens. Never posted."""
