"""Messages and channels as Discord holds them, reduced to what intern needs.

Also the types that the answering room takes and returns.

An answer cites a source by its id, and a team answer by the ids of its topic and its QA block. Pure.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from msgspec import Struct, structs

from intern.core.ids import ChannelId, GuildId, MessageId, RoleId, SourceId, UserId, parse_position
from intern.core.text.masking import mask_file, mask_secrets
from intern.core.text.words import collapse_whitespace

AuthorType = Literal["bot", "team_member", "community_user"]
"""`bot`: any bot or webhook, intern itself included."""

_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_MENTION = re.compile(r"<@!?([0-9]{1,20})>")

_LONGEST_FILENAME = 100

ChannelKind = Literal["channel", "thread", "post"]
"""`post`: a thread in a forum or media channel, whose first message has the thread's own id."""


class Author(Struct, frozen=True, kw_only=True):
    """The author of a message."""

    id: UserId
    name: str
    type: AuthorType
    is_self: bool = False
    """True for intern's own messages only."""
    handles: tuple[str, ...] = ()
    """Their other names, as far as Discord sends them: a member with a nickname has an account's name, too."""

    @property
    def names(self) -> tuple[str, ...]:
        """All their names."""
        return tuple(dict.fromkeys((self.name, *self.handles)))


MOST_FILE_BYTES = 256 * 1024
"""The largest attached text file that is read."""


class FileDigest(Struct, frozen=True, kw_only=True):
    """A text file in short, masked: nothing else of it reaches a model, a log or the disk."""

    telling: str = ""
    """The lines that say what went wrong, or in prose, the questions; its first lines where there is neither."""
    went_wrong: bool = False
    """Whether a line says what went wrong."""
    excerpt: str = ""
    """These lines, its beginning and its end."""
    problem: str = ""
    """Why it was not read; empty if it was."""


class Attachment(Struct, frozen=True, kw_only=True):
    """A file beside a message. Its `url` is signed and expires; read the message again for a fresh one."""

    id: str
    filename: str
    url: str
    size: int
    """Bytes."""
    content_type: str | None = None
    width: int | None = None
    height: int | None = None
    digest: FileDigest | None = None
    """Its text, once it was read; None for a file without text."""

    @property
    def masked_name(self) -> str:
        """Its name, masked and on one line, as its text is."""
        return mask_file(collapse_whitespace(self.filename))[:_LONGEST_FILENAME]

    @property
    def is_image(self) -> bool:
        """Whether Discord takes it for a picture, by its name; its bytes may say otherwise. SVG is text."""
        return (self.content_type or "").startswith("image/") and self.content_type != "image/svg+xml"

    @property
    def is_linked(self) -> bool:
        """Whether it is a link in the text, to a paste site: then its id is the link."""
        return self.id.startswith("https://")


Files: TypeAlias = tuple[Attachment, ...]
"""The files beside a message."""


class ChatMessage(Struct, frozen=True, kw_only=True):
    """One message of people or bots. System messages (joins, pins, thread starters) never become one."""

    id: MessageId
    guild_id: GuildId | None
    """None for a private message."""
    channel_id: ChannelId
    """The thread's id if the message is in a thread."""
    author: Author
    text: str
    at: datetime
    """When it was written; UTC, aware."""
    edited_at: datetime | None = None
    reply_to: MessageId | None = None
    reply_to_channel: ChannelId | None = None
    """The channel of `reply_to` where Discord names one."""
    reply_to_author: UserId | None = None
    """The author of `reply_to`, if the payload names them."""
    replies_to_other: bool = False
    """By the payload, neither its author nor intern wrote `reply_to`."""
    attachments: Files = ()
    is_voice: bool = False
    """It is a voice message, without text."""
    mentions_bot: bool = False
    """It mentions intern by `@name`; a reply's automatic ping does not count."""
    mentioned_staff: frozenset[UserId] = frozenset()
    """The bots and team members among the mentioned accounts, as far as known."""
    thread_id: ChannelId | None = None
    """The thread that hangs on this message, if the payload names it."""

    @property
    def mentions(self) -> frozenset[UserId]:
        """The accounts that its text mentions by `@name`, intern included; not those in code, and not its author."""
        if "<@" not in self.text:
            return frozenset()
        named = frozenset(map(UserId, _MENTION.findall(_CODE.sub("", self.text))))
        return named - {self.author.id}


class Channel(Struct, frozen=True, kw_only=True):
    """A channel, thread or post: a place for messages."""

    id: ChannelId
    guild_id: GuildId | None
    kind: ChannelKind
    name: str = ""
    parent_id: ChannelId | None = None
    """The channel that a thread or post hangs in."""
    private: bool = False
    """Only invited members can read the thread, even if its channel is public."""

    @property
    def is_thread(self) -> bool:
        """Threads and forum posts: messages there are answered in place."""
        return self.kind != "channel"


def find_message_index(messages: Sequence[ChatMessage], message_id: MessageId) -> int:
    """Return the index of a message, or the one it would have, in messages from the oldest to the newest."""
    return bisect_left(messages, parse_position(message_id), key=lambda message: parse_position(message.id))


class Page(Struct, frozen=True, kw_only=True):
    """A stretch of a channel's history. Discord's own messages count, though they are not among `messages`."""

    messages: tuple[ChatMessage, ...]
    """Oldest first; maybe none, though there is more."""
    read_to: MessageId
    """Everything up to here was read: the newest message of the page, system messages included."""
    more: bool
    """Discord may hold newer ones."""


class Button(Struct, frozen=True, kw_only=True):
    """A button under a message of ours; a label, an emoji, or both."""

    custom_id: str
    """The text that we receive when it is pressed; 1 to 100 characters."""
    label: str = ""
    """At most 80 characters."""
    emoji: str = ""
    """A Unicode emoji."""


class MemberRoles(Struct, frozen=True):
    """A member's roles on a server, as last seen."""

    guild_id: GuildId
    user_id: UserId
    roles: tuple[RoleId, ...]


class RoleLookupBudget:
    """A request's bound on looking up authors one by one: a message does not contain its author's roles.

    Authors beyond it count as community users; the next request looks them up.
    """

    def __init__(self, most: int) -> None:
        self.made = 0
        self.refused = False
        """An author was beyond the bound."""
        self._most = most

    def take(self) -> bool:
        """Return whether one more look-up is allowed, and count it."""
        allowed = self.made < self._most
        self.made += allowed
        self.refused = self.refused or not allowed
        return allowed


Role = Literal["user", "assistant"]

NoAnswerReason = Literal[
    "not_a_question",
    "not_answerable",
    "no_sources",
    "no_answer",
    "no_citations",
    "ungrounded",
    "too_long",
    "rejected",
    "unsure",
]
LookupFailureReason = Literal[
    "sources_unreadable",
    "images_unavailable",
    "timeout",
    "over_budget",
    "model_unavailable",
    "model_failed",
    "knowledge_failed",
]
SilenceReason = Literal["", NoAnswerReason, LookupFailureReason]
"""Why there is no reply; empty where there is one."""

LOOKUP_FAILURES: frozenset[SilenceReason] = frozenset(get_args(LookupFailureReason))
"""The reasons that say "could not look", as opposed to "found nothing"."""


class Silence(NamedTuple):
    """A reason in words, for each kind of reader."""

    words: str
    """For the team and operators, in a few words."""
    wording: str = ""
    """For the asker: a text of `Wording`; `unknown` where the team may know. Empty if they get none."""
    counter: str = ""
    """For monitoring, of a declined question."""


SILENCES: Final[Mapping[str, Silence]] = {
    "not_a_question": Silence("not taken for a question", "greeting"),
    "not_answerable": Silence("not for the bot to answer", "refused"),
    "no_sources": Silence("no source fits", "unknown"),
    "no_answer": Silence("the sources do not answer it", "unknown"),
    "no_citations": Silence("the answer named no source", "unknown"),
    "ungrounded": Silence("a command, a version or an address is in no cited source", "unknown"),
    "too_long": Silence("the answer was longer than ai.max_answer_chars", "unknown"),
    "rejected": Silence("the answer failed its check", "unknown"),
    "unsure": Silence("the answer was not sure enough", "unknown"),
    "sources_unreadable": Silence("the sources that fit cannot be read", "cannot_look"),
    "images_unavailable": Silence("its images could not be loaded", "cannot_look"),
    "timeout": Silence("it took longer than ai.request_timeout_seconds", "cannot_look"),
    "over_budget": Silence("the day's budget was spent", "over_budget"),
    "model_unavailable": Silence("the model was away", "cannot_look"),
    "model_failed": Silence("the model gave no usable reply", "cannot_look"),
    "knowledge_failed": Silence("the knowledge could not be read", "cannot_look"),
    "asked too much": Silence("its asker was over the hourly limit", "limit", "over_limit"),
    "day used up": Silence("the questions of the day were used up", "over_budget", "over_day_limit"),
    "shed": Silence("too many questions waited", "busy", "shed"),
    "too old": Silence("too old when it was read", "late", "too_old"),
    "voice": Silence("a voice message without text", "voice", "voice"),
    "too_old": Silence("Discord was away until it was too old", "late"),
    "question_deleted": Silence("the question was deleted"),
    "team_answered": Silence("the team answered first"),
    "not_public": Silence("not everyone can read the channel"),
    "refused": Silence("Discord refused the reply, or a thread for it", "unposted"),
    "source_changed": Silence("retracted, as its source changed", "retracted"),
}
"""Why a question has no answer, or its reply was not posted or was removed."""


class Image(Struct, frozen=True, kw_only=True):
    """A downloaded picture, ready for a model."""

    media_type: str
    data: bytes


class Message(Struct, frozen=True, kw_only=True):
    """One message of a conversation as the answering room gets it: without secrets, wherever it comes from."""

    role: Role
    text: str
    at: datetime | None = None
    author_id: UserId | None = None
    images: tuple[Image, ...] = ()
    attachments: Files = ()
    id: MessageId | None = None
    """On the chat platform."""

    def __post_init__(self) -> None:
        structs.force_setattr(self, "text", mask_secrets(self.text).text)


class Conversation(Struct, frozen=True):
    """Messages, oldest first; the last `user` messages of one author in a row are the question."""

    messages: tuple[Message, ...]

    @property
    def asked(self) -> slice:
        """The slice of messages that are the question; empty if there is none."""
        last = len(self.messages)
        while last > 0 and self.messages[last - 1].role != "user":
            last -= 1
        first = last
        authors = [(message.role, message.author_id) for message in self.messages]
        while first > 0 and authors[first - 1] == authors[last - 1]:
            first -= 1
        return slice(first, last)


class RequestContext(Struct, frozen=True, kw_only=True):
    """The place of a question; for logs and links, never for a prompt."""

    platform: str = "discord"
    guild_id: GuildId | None = None
    channel_id: ChannelId | None = None
    thread_id: ChannelId | None = None
    message_id: MessageId | None = None


class Citation(Struct, frozen=True, kw_only=True):
    """A source that supports an answer."""

    source_id: SourceId
    title: str
    url: str | None = None
    """The page of a web source, or the jump link of a team answer; None for a file."""
    quote: str | None = None
    """The sentence that supports the answer, cut from the source by code."""


class AnswerResult(Struct, frozen=True, kw_only=True):
    """An answer that can be posted, or silence with its reason. Never half of either."""

    should_reply: bool
    reply_text: str | None = None
    citations: tuple[Citation, ...] = ()
    """With silence: sources to look at, with `ai.unsure = "links"`."""
    reason: SilenceReason = ""
    debug: dict[str, Any] | None = None
    """Per step: decision, seconds, tokens. Never posted."""


MARKER = "--- QA ---"
"""The line that a block of a topic begins with."""
_TEAM = "Team: "
_ID = re.compile(r"id:[ \t]*(\S+)[ \t]*$")
_HEADER = re.compile(rf"^{MARKER}[^\S\n]*\n{_ID.pattern}", re.MULTILINE)


def is_team_source(source_id: str) -> bool:
    """Return whether a source is an answer of the team, as opposed to documentation."""
    return source_id.startswith("team:")


def is_distilled(source_id: str) -> bool:
    """Return whether a source is a nugget or a fact: a model's account of conversations."""
    return source_id.startswith(("nugget:", "fact:"))


def find_citation_ids(source_id: str, text: str) -> Iterator[str]:
    """Yield the ids that cite a source: its own, and of a topic `team:<topic>.txt#<qa id>` for each block."""
    yield source_id
    if is_team_source(source_id):
        yield from (f"{source_id}#{qa_id}" for qa_id in block_ids(text))


def block_lines(text: str, qa_id: str) -> Iterator[str]:
    """Yield the lines of the team in the QA block with that id; in all blocks if the id is empty."""
    block, of_team = "", False
    for line in text.split("\n"):
        if line.rstrip() == MARKER:
            block, of_team = "", False
        elif not block and (match := _ID.match(line)):
            block = match[1]
        elif not line.startswith("  "):
            of_team = line.startswith(_TEAM)
        if of_team and block and qa_id in {"", block}:
            yield line.removeprefix(_TEAM).removeprefix("  ")


def block_ids(text: str) -> Iterator[str]:
    """Yield the ids in the headers of a topic's QA blocks; the text of a turn is never a header.

    A turn may hold any text, the other kinds of line ends included, but after each line feed it is indented.
    """
    return (header[1] for header in _HEADER.finditer(text))
