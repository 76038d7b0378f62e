"""What can be done in the pretended Discord, by a bot over REST or by a test; each act tells the gateway."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime

from tests.double.payloads import (
    channel_payload,
    emoji_payload,
    member_payload,
    message_event,
    role_payload,
    user_payload,
)
from tests.double.world import (
    FORUM,
    HAS_THREAD,
    PUBLIC_THREAD,
    REPLY,
    TEXT,
    THREAD_CREATED,
    THREAD_STARTER,
    Channel,
    Guild,
    Json,
    Message,
    Role,
    User,
    World,
)

_USER_MENTION = re.compile(r"<@!?(\d+)>")
_ROLE_MENTION = re.compile(r"<@&(\d+)>")
_EVERYONE = re.compile(r"@everyone|@here")
_ARCHIVE_DURATIONS = {60, 1440, 4320, 10080}
_SUPPRESS_EMBEDS = 1 << 2


class Refusal(Exception):  # noqa: N818 - it is an answer, not a failure of the double
    """Discord says no: an HTTP status and one of its JSON error codes."""

    def __init__(self, status: int, code: int, message: str, errors: Json | None = None) -> None:
        super().__init__(f"{status} {code} {message}")
        self.status = status
        self.body: Json = {"message": message, "code": code}
        if errors is not None:
            self.body["errors"] = errors


def invalid_form(field: str, message: str) -> Refusal:
    # Discord names these inner codes by words; its OpenAPI file wants numbers.
    errors: Json = {field: {"_errors": [{"code": 0, "message": message}]}}
    return Refusal(400, 50035, "Invalid Form Body", errors=errors)


class Acts:
    """Each act checks what Discord checks, changes the world, and dispatches what Discord dispatches, in its order."""

    def __init__(self, world: World, dispatch: Callable[[str, Json], None]) -> None:
        self.world = world
        self._dispatch = dispatch
        self._nonces: dict[tuple[str, str, str], Message] = {}

    def forget_nonces(self) -> None:
        """Let the few minutes pass in which `enforce_nonce` remembers."""
        self._nonces.clear()

    # Lookups

    def channel(self, channel_id: str) -> Channel:
        channel = self.world.channels.get(channel_id)
        if channel is None:
            raise Refusal(404, 10003, "Unknown Channel")
        return channel

    def message(self, channel_id: str, message_id: str) -> Message:
        self.channel(channel_id)
        message = self.world.message(channel_id, message_id)
        if message is None:
            raise Refusal(404, 10008, "Unknown Message")
        return message

    # Messages

    def post(
        self,
        channel_id: str,
        author: User,
        content: str,
        *,
        reply_to: Json | None = None,
        allowed_mentions: Json | None = None,
        attachments: Sequence[Json] = (),
        embeds: Sequence[Json] = (),
        components: Sequence[Json] = (),
        flags: int = 0,
        nonce: str | int | None = None,
        enforce_nonce: bool = False,
        at: datetime | None = None,
        webhook_id: str | None = None,
        message_id: str | None = None,
    ) -> Message:
        """Write a message; with `enforce_nonce`, give back the earlier one of that nonce instead."""
        channel = self.channel(channel_id)
        self._check_room_for_messages(channel)
        key = (channel_id, author.id, str(nonce))
        if enforce_nonce and nonce is not None and key in self._nonces:
            return self._nonces[key]
        reference = self._reference(channel, reply_to)
        message = Message(
            id=message_id or self.world.ids.next(at),
            channel_id=channel_id,
            author=author,
            content=content,
            timestamp=at or self.world.now(),
            type=REPLY if reference else 0,
            flags=flags,
            reference=reference,
            attachments=list(attachments),
            embeds=list(embeds),
            components=list(components),
            nonce=nonce,
            webhook_id=webhook_id,
        )
        self._note_mentions(message, allowed_mentions)
        self._unarchive(channel)
        self.add(message)
        if nonce is not None:
            self._nonces[key] = message
        return message

    def add(self, message: Message) -> None:
        """Put a message where it belongs, and say so."""
        self.world.add_message(message)
        channel = self.world.channels[message.channel_id]
        # A post's first message, and the line that stands for the starter, do not count.
        if channel.is_thread and message.id != channel.id and message.type != THREAD_STARTER:
            channel.message_count += 1
        self._dispatch("MESSAGE_CREATE", message_event(self.world, message))

    def edit(self, message: Message, changes: Json, *, at: datetime | None = None) -> Message:
        if changes.get("content") is not None:
            message.content = changes["content"]
            self._note_mentions(message, changes.get("allowed_mentions"))
        if changes.get("embeds") is not None:
            message.embeds = list(changes["embeds"])
        if changes.get("components") is not None:
            message.components = list(changes["components"])
        if changes.get("flags") is not None:
            message.flags = (message.flags & ~_SUPPRESS_EMBEDS) | (changes["flags"] & _SUPPRESS_EMBEDS)
        message.edited_timestamp = at or self.world.now()
        self._dispatch("MESSAGE_UPDATE", message_event(self.world, message))
        return message

    def delete(self, message: Message) -> None:
        self.world.remove_message(message)
        channel = self.world.channels[message.channel_id]
        if channel.is_thread and channel.message_count:
            channel.message_count -= 1
        self._dispatch("MESSAGE_DELETE", {"id": message.id, "channel_id": channel.id, "guild_id": channel.guild_id})

    def delete_many(self, messages: Sequence[Message]) -> None:
        """Delete messages of one channel with one event."""
        for message in messages:
            self.world.remove_message(message)
        channel = self.world.channels[messages[0].channel_id]
        self._dispatch(
            "MESSAGE_DELETE_BULK",
            {"ids": [message.id for message in messages], "channel_id": channel.id, "guild_id": channel.guild_id},
        )

    def react(self, user: User, message: Message, emoji: str) -> None:
        who = message.reactions.setdefault(emoji, [])
        if user.id in who:
            return
        who.append(user.id)
        self._dispatch("MESSAGE_REACTION_ADD", self._reaction_event(user, message, emoji, added=True))

    def unreact(self, user: User, message: Message, emoji: str) -> None:
        who = message.reactions.get(emoji, [])
        if user.id not in who:
            raise Refusal(404, 10014, "Unknown Emoji")
        who.remove(user.id)
        if not who:
            del message.reactions[emoji]
        self._dispatch("MESSAGE_REACTION_REMOVE", self._reaction_event(user, message, emoji, added=False))

    # Threads

    def start_thread(
        self,
        message: Message,
        name: str,
        owner: User,
        *,
        auto_archive_duration: int | None = None,
        at: datetime | None = None,
    ) -> Channel:
        """Open the thread of a message; its id is the message's id."""
        parent = self.channel(message.channel_id)
        if message.id in self.world.channels:
            raise Refusal(400, 160004, "A thread has already been created for this message")
        if parent.type != TEXT:
            raise Refusal(400, 50024, "Cannot execute action on this channel type")
        thread = self._new_thread(message.id, parent, name, owner, auto_archive_duration=auto_archive_duration, at=at)
        message.flags |= HAS_THREAD
        self._dispatch("THREAD_CREATE", channel_payload(self.world, thread) | {"newly_created": True})
        # Not an edit: its content and edited_timestamp stay as they are.
        self._dispatch("MESSAGE_UPDATE", message_event(self.world, message))
        self.add(
            Message(
                id=self.world.ids.next(at),
                channel_id=thread.id,
                author=message.author,
                content="",
                timestamp=at or self.world.now(),
                type=THREAD_STARTER,
                reference={
                    "type": 0,
                    "channel_id": parent.id,
                    "message_id": message.id,
                    "guild_id": parent.guild_id,
                },
            )
        )
        return thread

    def start_bare_thread(
        self, parent: Channel, name: str, owner: User, *, auto_archive_duration: int | None = None
    ) -> Channel:
        """Open a thread that belongs to no message; the parent gets a line about it."""
        if parent.type != TEXT:
            raise Refusal(400, 50024, "Cannot execute action on this channel type")
        thread = self._new_thread(
            self.world.ids.next(), parent, name, owner, auto_archive_duration=auto_archive_duration
        )
        self._dispatch("THREAD_CREATE", channel_payload(self.world, thread) | {"newly_created": True})
        self.add(
            Message(
                id=self.world.ids.next(),
                channel_id=parent.id,
                author=owner,
                content=name,
                timestamp=self.world.now(),
                type=THREAD_CREATED,
                flags=HAS_THREAD,
                reference={"type": 0, "channel_id": thread.id, "guild_id": parent.guild_id},
            )
        )
        return thread

    def start_forum_post(
        self,
        parent: Channel,
        name: str,
        owner: User,
        text: str,
        *,
        auto_archive_duration: int | None = None,
        allowed_mentions: Json | None = None,
        at: datetime | None = None,
    ) -> Channel:
        """Open a forum post; its first message has the post's own id."""
        if parent.type != FORUM:
            raise Refusal(400, 50024, "Cannot execute action on this channel type")
        thread = self._new_thread(
            self.world.ids.next(at), parent, name, owner, auto_archive_duration=auto_archive_duration, at=at
        )
        parent.last_message_id = thread.id  # in a forum this field names the newest post
        self._dispatch("THREAD_CREATE", channel_payload(self.world, thread) | {"newly_created": True})
        self.post(thread.id, owner, text, allowed_mentions=allowed_mentions, at=at, message_id=thread.id)
        return thread

    def change_channel(self, channel: Channel, changes: Json) -> None:
        """Rename a channel; archive, lock or reopen a thread."""
        channel.name = changes.get("name") or channel.name
        channel.overwrites = changes.get("permission_overwrites", channel.overwrites)
        if channel.is_thread:
            archived = changes.get("archived")
            if archived is not None and archived != channel.archived:
                channel.archived = archived
                channel.archived_at = self.world.now()
            if changes.get("locked") is not None:
                channel.locked = changes["locked"]
        name = "THREAD_UPDATE" if channel.is_thread else "CHANNEL_UPDATE"
        self._dispatch(name, channel_payload(self.world, channel))

    def delete_channel(self, channel: Channel) -> None:
        payload = channel_payload(self.world, channel)
        del self.world.channels[channel.id]
        if channel.is_thread:
            fields = ("id", "guild_id", "parent_id", "type")
            self._dispatch("THREAD_DELETE", {field: payload[field] for field in fields})
        else:
            self._dispatch("CHANNEL_DELETE", payload)

    def announce_channel(self, channel: Channel) -> None:
        """Tell of a channel that was made in the world."""
        self._dispatch("CHANNEL_CREATE", channel_payload(self.world, channel))

    def change_role(self, guild: Guild, role: Role, permissions: int) -> None:
        role.permissions = permissions
        position = list(guild.roles).index(role.id)
        self._dispatch("GUILD_ROLE_UPDATE", {"guild_id": guild.id, "role": role_payload(role, position)})

    def type_in(self, channel: Channel, user: User) -> None:
        self._dispatch(
            "TYPING_START",
            {
                "channel_id": channel.id,
                "guild_id": channel.guild_id,
                "user_id": user.id,
                "timestamp": int(self.world.now().timestamp()),
                "member": member_payload(self.world.guilds[channel.guild_id].members[user.id], with_user=True),
            },
        )

    # Parts

    def _check_room_for_messages(self, channel: Channel) -> None:
        if channel.type not in {TEXT, PUBLIC_THREAD}:
            raise Refusal(400, 50008, "Cannot send messages in a non-text channel")
        if channel.archived and channel.locked:
            raise Refusal(400, 50083, "Thread is archived")

    def _unarchive(self, channel: Channel) -> None:
        if channel.archived:
            self.change_channel(channel, {"archived": False})

    def _reference(self, channel: Channel, reply_to: Json | None) -> Json | None:
        if reply_to is None:
            return None
        earlier = self.world.message(channel.id, reply_to["message_id"])
        if earlier is None:
            if reply_to.get("fail_if_not_exists") is False:
                return None
            raise invalid_form("message_reference", "Unknown message")
        return {"type": 0, "channel_id": channel.id, "message_id": earlier.id, "guild_id": channel.guild_id}

    def _note_mentions(self, message: Message, allowed: Json | None) -> None:
        """Work out who is notified. Without allowed_mentions everything in the text counts, and the replied user."""
        guild = self.world.guilds[self.world.channels[message.channel_id].guild_id]
        everything = allowed is None
        rules: Json = allowed or {}
        parse = {"users", "roles", "everyone"} if everything else set(rules.get("parse") or ())
        users = [u for u in _USER_MENTION.findall(message.content) if u in self.world.users]
        roles = [r for r in _ROLE_MENTION.findall(message.content) if r in guild.roles]
        if message.type == REPLY and message.reference is not None and (everything or rules.get("replied_user")):
            earlier = self.world.message(message.channel_id, message.reference["message_id"])
            if earlier is not None:
                users.insert(0, earlier.author.id)
                rules = {**rules, "users": [*(rules.get("users") or ()), earlier.author.id]}
        message.mentions = [u for u in dict.fromkeys(users) if "users" in parse or u in (rules.get("users") or ())]
        message.mention_roles = [r for r in dict.fromkeys(roles) if "roles" in parse or r in (rules.get("roles") or ())]
        message.mention_everyone = "everyone" in parse and _EVERYONE.search(message.content) is not None

    def _new_thread(
        self,
        thread_id: str,
        parent: Channel,
        name: str,
        owner: User,
        *,
        auto_archive_duration: int | None,
        at: datetime | None = None,
    ) -> Channel:
        if not 1 <= len(name) <= 100:
            raise invalid_form("name", "Must be between 1 and 100 in length.")
        if auto_archive_duration not in _ARCHIVE_DURATIONS | {None}:
            raise invalid_form("auto_archive_duration", "Value must be one of the choices.")
        now = at or self.world.now()
        thread = Channel(
            id=thread_id,
            guild_id=parent.guild_id,
            type=PUBLIC_THREAD,
            name=name,
            made_at=now,
            parent_id=parent.id,
            owner_id=owner.id,
            archived_at=now,
            auto_archive_duration=auto_archive_duration or 1440,
            joined=[owner.id],
        )
        self.world.add_channel(thread)
        return thread

    def _reaction_event(self, user: User, message: Message, emoji: str, *, added: bool) -> Json:
        channel = self.world.channels[message.channel_id]
        event: Json = {
            "user_id": user.id,
            "channel_id": channel.id,
            "message_id": message.id,
            "guild_id": channel.guild_id,
            "emoji": emoji_payload(emoji),
            "burst": False,
            "type": 0,
        }
        if added:
            member = self.world.guilds[channel.guild_id].members.get(user.id)
            event["message_author_id"] = message.author.id
            event["member"] = (
                member_payload(member, with_user=True) if member else {"user": user_payload(user), "roles": []}
            )
        return event
