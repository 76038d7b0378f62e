"""What was distilled from a conversation: the nugget, richer than a question and its answer."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from typing import Literal

import msgspec
from msgspec import Struct

from intern.domain.ids import ChannelId, ConversationId, GuildId, MessageId, NuggetId

NuggetStatus = Literal["FACT", "SPECULATION", "COMMUNITY_OPINION"]


class Nugget(Struct, frozen=True, kw_only=True):
    """A piece of knowledge and how far it can be trusted. No text field holds a name, an id or a mention."""

    id: NuggetId
    conversation_id: ConversationId
    topic: str
    timestamp: datetime
    """Of the last message of its conversation (UTC)."""
    topic_summary: str
    """One sentence."""
    detailed_analysis: str
    status: NuggetStatus
    keywords: tuple[str, ...] = ()
    source_message_ids: tuple[MessageId, ...] = ()
    """Messages of the conversation that it was made from."""
    user_ids_involved: tuple[str, ...] = ()
    """`User_1` and so on, the same person the same number within a conversation."""
    guild_id: GuildId | None = None
    channel_id: ChannelId | None = None

    @property
    def stamp(self) -> str:
        """Another one whenever anything of it is another."""
        return sha256(msgspec.json.encode(self)).hexdigest()[:32]
