"""Values that one actor sends to another. They are immutable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from intern.core.captures import CapturedPair
from intern.core.ids import ChannelId, ConversationId, GuildId, MessageId, RoleId, TopicName, UserId
from intern.core.messages import Author, Button, Channel, ChatMessage, Citation, Conversation, Files, RequestContext
from intern.core.text.secret_values import Secret


class InteractionTicket(Struct, frozen=True, kw_only=True):
    """The means to answer an interaction. Discord wants a sign within 3 s; the token is valid for 15 minutes."""

    id: str
    token: Secret
    application_id: str
    guild_id: GuildId | None
    channel_id: ChannelId


class MessageCreated(Struct, frozen=True, kw_only=True):
    """A new message."""

    message: ChatMessage


class MessageEdited(Struct, frozen=True, kw_only=True):
    """An edited message (content or attachments; not an embed that arrived later)."""

    message: ChatMessage


class MessagesDeleted(Struct, frozen=True, kw_only=True):
    """Deleted messages; Discord sends only their ids."""

    guild_id: GuildId | None
    channel_id: ChannelId
    message_ids: tuple[MessageId, ...]


MessageEvent = MessageCreated | MessageEdited | MessagesDeleted


class MessageBackfilled(Struct, frozen=True, kw_only=True):
    """A message that the gateway did not deliver, maybe an old one: read over REST, in order within its channel."""

    message: ChatMessage


class ChannelCaughtUp(Struct, frozen=True, kw_only=True):
    """A channel was read to its end; the gateway delivers what follows."""

    channel_id: ChannelId


BatcherEvent = MessageEvent | MessageBackfilled | ChannelCaughtUp
"""The inbox of the batcher."""


class ChannelSnapshot(Struct, frozen=True, kw_only=True):
    """A channel or thread as a new session finds it."""

    channel: Channel
    last_message_id: MessageId | None = None
    """Its newest message, deleted or not; None where there never was one, or Discord does not say."""


class SessionStarted(Struct, frozen=True, kw_only=True):
    """A gateway session that continues no earlier one: events on this server before it were not delivered."""

    guild_id: GuildId
    channels: tuple[ChannelSnapshot, ...]
    """Text channels, forums and active threads that the bot can see."""
    continues: bool = False
    """No event was missed since the community was closed: it is only opened again."""


class GuildJoined(Struct, frozen=True, kw_only=True):
    """The bot is on a server that is not served yet, or was invited again. Its session follows."""

    guild_id: GuildId
    name: str = ""
    greets_in: ChannelId | None = None
    """The channel that Discord uses for greetings."""
    locale: str = ""
    """The server's language, as Discord names it: `de`, `pt-BR`."""


class GuildLeft(Struct, frozen=True, kw_only=True):
    """The bot was removed from a server, or the server was deleted. An outage is neither."""

    guild_id: GuildId


class _MemberInteraction(Struct, frozen=True, kw_only=True):
    interaction: InteractionTicket
    user: Author


class ButtonPressed(_MemberInteraction, frozen=True, kw_only=True):
    """A member pressed a button under a message of ours."""

    button: str
    """The `custom_id` that we gave it."""
    message_id: MessageId
    """The message that holds the button."""


class AskCommand(_MemberInteraction, frozen=True, kw_only=True):
    """`/ask`, or "Answer this" on a message: an answer that only the asker sees."""

    question: str
    on: ChatMessage | None = None
    """The message that the menu entry was used on."""
    attachments: Files = ()


class LearnCommand(_MemberInteraction, frozen=True, kw_only=True):
    """The menu entry "Learn from this" on a message."""

    on: ChatMessage


class WhyCommand(_MemberInteraction, frozen=True, kw_only=True):
    """`/intern why`: why was this answered, or not?"""

    about: str
    """A message id or jump link; empty for the newest question of the channel."""


class SetupChanges(Struct, frozen=True, kw_only=True):
    """The changes that `/intern setup` makes; None, or an empty text, changes nothing."""

    team_role: RoleId | None = None
    remove_team_role: RoleId | None = None
    channel: ChannelId | None = None
    mode: str = ""
    """The mode of the channel, or of all without one of their own; "default" removes the channel's own mode."""
    document: str = ""
    remove_document: str = ""
    language: str = ""
    review: bool | None = None


class SetupCommand(_MemberInteraction, frozen=True, kw_only=True):
    """`/intern setup`: change and show a server's settings."""

    manages: bool
    """The member may manage the server."""
    wanted: SetupChanges = SetupChanges()


class StatusCommand(_MemberInteraction, frozen=True, kw_only=True):
    """`/intern status`: the bot's state on this server."""

    manages: bool
    """The member may manage the server."""


class UnknownInteraction(Struct, frozen=True, kw_only=True):
    """An interaction that we cannot understand: an unknown command, a form, a broken payload."""

    interaction: InteractionTicket
    what: str
    """A description for the log."""


ServerCommand = SetupCommand | StatusCommand
"""Known where each server is a community by itself."""

Interaction = ButtonPressed | AskCommand | LearnCommand | WhyCommand | ServerCommand | UnknownInteraction


APPROVES: Final = "✅"
"""The reaction by which the team approves what was captured with a message."""


class ApprovalReaction(Struct, frozen=True, kw_only=True):
    """A team member put a ✅ on a message, to approve the pair that was captured with it."""

    guild_id: GuildId
    channel_id: ChannelId
    message_id: MessageId
    by: UserId


GatewayEvent = MessageEvent | SessionStarted | Interaction | ApprovalReaction | GuildJoined | GuildLeft
"""Servers are joined and left only where each server is a community by itself."""

LateChange = MessageEdited | MessagesDeleted
"""Changes to messages whose batch was sent before."""


class Batch(Struct, frozen=True, kw_only=True):
    """Consecutive messages of one author in one channel, oldest first, never empty; settled by a quiet window."""

    channel_id: ChannelId
    author: Author
    messages: tuple[ChatMessage, ...]
    from_history: bool = False
    """Some of it was read over REST, maybe long after it was written, and together with later batches."""

    @property
    def last(self) -> ChatMessage:
        """The newest message, to which a reply is attached."""
        return self.messages[-1]

    @property
    def text(self) -> str:
        """The texts of all messages, a line each."""
        return "\n".join(message.text for message in self.messages)


class AnswerRequest(Struct, frozen=True, kw_only=True):
    """A question to answer: the asker's batch with all the context that was gathered."""

    batch: Batch
    channel: Channel
    conversation: Conversation
    context: RequestContext
    addressed: bool
    """The asker mentions the bot, replies to it, or writes in its thread or a new forum post."""
    called: bool = False
    """The asker mentions the bot or replies to it, and so is owed a word, be it that there is no answer."""
    language: str = "en"
    """The language of a reply if that of the asker's words cannot be detected."""


DeclineReason = Literal["asked too much", "day used up", "shed", "too old", "voice"]


class QuestionDeclined(Struct, frozen=True, kw_only=True):
    """A question that the bot does not work on. A member who called the bot gets the reason."""

    request: AnswerRequest
    reason: DeclineReason


class MessageWithdrawal(Struct, frozen=True, kw_only=True):
    """Messages that their authors deleted: the bot learns nothing from them any more."""

    message_ids: tuple[MessageId, ...]


class MessageRevisions(Struct, frozen=True, kw_only=True):
    """Newer versions of messages that may be asked; None for those that their authors deleted."""

    versions: Mapping[MessageId, ChatMessage | None]


class CaptureRequest(Struct, frozen=True, kw_only=True, tag="CaptureRequest", tag_field="kind"):
    """A conversation that a team member answered; messages in time order, bots left out."""

    conversation_id: ConversationId
    guild_id: GuildId | None
    channel_id: ChannelId
    messages: tuple[ChatMessage, ...]
    settles: tuple[MessageId, ...] = ()
    """The batch that is settled once this is archived; on the last capture that followed from it."""


class BackfillNeeded(Struct, frozen=True, kw_only=True):
    """Wakeup: there may be channels to read over REST."""


class CaptureArchived(Struct, frozen=True, kw_only=True):
    """Wakeup: the archive has grown."""


class CapturePending(Struct, frozen=True, kw_only=True):
    """Wakeup: a capture waits for descriptions of its images."""


class DecisionRecorded(Struct, frozen=True, kw_only=True):
    """Wakeup: the decisions have grown."""


class SourceChanged(Struct, frozen=True, kw_only=True):
    """Wakeup: files, pages or topics may differ from their index."""


class TopicChoice(Struct, frozen=True, kw_only=True, tag="Topic", tag_field="kind"):
    """File the pair under this topic, which may be new."""

    name: TopicName


class SkipChoice(Struct, frozen=True, kw_only=True, tag="Skip", tag_field="kind"):
    """The pair cannot guide a future answer."""

    reason: str


class FailedChoice(Struct, frozen=True, kw_only=True, tag="Failed", tag_field="kind"):
    """The decision failed."""

    reason: str


class FilingDecision(Struct, frozen=True, kw_only=True):
    """The place for an archived pair."""

    pair: CapturedPair
    choice: TopicChoice | SkipChoice | FailedChoice


ReplyTarget = Literal["new_thread", "in_place"]
"""`new_thread`: in the thread of the question's message, made if need be. `in_place`: the question is in a thread."""


class Reply(Struct, frozen=True, kw_only=True):
    """An answer on its way to Discord. `question` is the batch's last message; one question gets one reply."""

    question: ChatMessage
    target: ReplyTarget
    text: str
    citations: tuple[Citation, ...] = ()
    called: bool = False
    """The asker mentions the bot or replies to it, and so is owed a word, be it that there is no answer."""
    notice: bool = False
    """A word on why there is no answer. Ours, not a model's, so its links are good; its thread stays unanswered."""
    settles: tuple[MessageId, ...] = ()
    """All messages that the reply is for: settled once it is posted or given up."""
    buttons: tuple[Button, ...] = ()
    """Under its last message."""
    mention_role: RoleId | None = None
    """The one role that its last message may ping: in a hand-off to the team, and nowhere else."""
    asked: str = ""
    """The question, in its asker's words."""
    language: str = "en"
    """The language of our own words in it (ISO 639-1)."""
