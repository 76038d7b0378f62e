"""Discord's messages and channels as ours."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain

import msgspec
from msgspec import Struct

from intern.core.ids import ChannelId, MessageId, RoleId, UserId, parse_position
from intern.core.messages import Attachment, Author, AuthorType, ChatMessage
from intern.core.text.encoding import replace_surrogates
from intern.core.text.words import add_title
from intern.platforms.discord import payloads
from intern.platforms.discord.gateway_cache import GatewayCache
from intern.platforms.discord.message_text import identify_author, read_text

# Message flags.
_HAS_THREAD = 1 << 5  # the thread's id is the message's
_IS_VOICE = 1 << 13


class Team(Struct, frozen=True):
    """The team of a server: intern's own id, and the members and roles whose answers are the team's."""

    bot_id: UserId
    member_ids: frozenset[UserId] = frozenset()
    role_ids: frozenset[RoleId] = frozenset()
    bot_roles: frozenset[RoleId] = frozenset()
    """The roles that are intern's own: Discord makes one with the invitation, and offers it beside the name."""


def build_message(
    raw: payloads.RawMessage, team: Team, roles: Collection[RoleId] | None = None, cache: GatewayCache | None = None
) -> ChatMessage | None:
    """Return the message; None for a notice of Discord's. `roles` are the author's, if the payload has no `member`.

    `cache` says which mentioned accounts are team members, if the payload does not.
    """
    if not raw.is_written:
        return None
    told = raw.member.role_ids if raw.member else None
    held = roles if told is None else told
    contents = (raw, *(shot.message for shot in payloads.parse_items(raw.message_snapshots, payloads.RawSnapshot)))
    files = chain.from_iterable(content.attachments or () for content in contents)
    author = build_author(raw.author, raw.member, held or (), team, is_bot=raw.is_bots)
    author_id, text = identify_author(author.id, raw.id), read_text(*contents, is_bots=author.type == "bot")
    reference = raw.reply
    replied = raw.referenced_message.author if reference and raw.referenced_message else None
    to = identify_author(replied.id, reference.message_id) if reference and replied else None
    return ChatMessage(
        id=raw.id,
        guild_id=raw.guild_id,
        channel_id=raw.channel_id,
        author=msgspec.structs.replace(author, id=author_id),
        text=add_title(text, _find_title(raw, team, cache) if cache else ""),
        at=_utc(raw.timestamp) or parse_position(raw.id).time,
        edited_at=_utc(raw.edited_timestamp),
        reply_to=reference.message_id if reference else None,
        reply_to_channel=reference.channel_id if reference and reference.message_id else None,
        reply_to_author=to,
        replies_to_other=to not in {None, author_id, team.bot_id},
        attachments=tuple(build_attachment(file) for file in payloads.parse_items(list(files), payloads.RawAttachment)),
        is_voice=any((content.flags or 0) & _IS_VOICE for content in contents),
        mentions_bot=_mentions_bot(raw, raw.content or "", team),
        mentioned_staff=frozenset(_find_mentioned_staff(raw, team, cache)),
        thread_id=_thread_id(raw),
    )


def build_author(
    user: payloads.RawUser, member: payloads.RawMember | None, held: Collection[RoleId], team: Team, *, is_bot: bool
) -> Author:
    """Return the author, who has the roles `held`; a bot or webhook is no team member."""
    is_self = user.id == team.bot_id
    kind: AuthorType = "team_member" if is_team_member(user.id, held, team) else "community_user"
    return Author(
        id=user.id,
        name=replace_surrogates((member and member.nick) or (*user.handles, user.id)[0]),
        type="bot" if is_bot or is_self else kind,
        is_self=is_self,
        handles=user.handles,
    )


def is_team_member(user_id: UserId, roles: Collection[RoleId], team: Team) -> bool:
    """Whether a member is on the team, by id or by role."""
    return user_id in team.member_ids or not team.role_ids.isdisjoint(roles)


def _mentions_bot(raw: payloads.RawMessage, text: str, team: Team) -> bool:
    # The lists hold a reply's automatic ping too, the text also names in code: both must name us.
    bot_id = team.bot_id
    if bot_id and (f"<@{bot_id}>" in text or f"<@!{bot_id}>" in text):
        users = payloads.parse_items(raw.mentions, payloads.RawUser)
        return raw.mentions is None or any(user.id == bot_id for user in users)
    roles = team.bot_roles.intersection(payloads.read_role_ids(raw.mention_roles or ()))
    return any(f"<@&{role}>" in text for role in roles)


def _find_mentioned_staff(raw: payloads.RawMessage, team: Team, cache: GatewayCache | None) -> Iterator[UserId]:
    for user in payloads.parse_items(raw.mentions, payloads.RawMention):
        roles = user.member.role_ids if user.member else None
        if roles is None and cache and raw.guild_id:
            roles = cache.roles(raw.guild_id, user.id)
        if user.bot or user.id == team.bot_id or is_team_member(user.id, roles or (), team):
            yield user.id


_BEGINS_WITHIN = timedelta(seconds=10)


def opens_thread(message_id: MessageId, thread_id: ChannelId) -> bool:
    """Return whether a message is so near to the beginning of a thread that it was written with it."""
    return parse_position(message_id) <= parse_position(thread_id).after(_BEGINS_WITHIN)


def _find_title(raw: payloads.RawMessage, team: Team, cache: GatewayCache) -> str:
    """Return the title of the post or thread that a person's message opens; empty without one.

    A thread without a message of its own is opened by its owner's first words. A thread of intern's has the question as
    its name.
    """
    thread = cache.find(ChannelId(raw.id)) or raw.thread
    if thread is None and opens_thread(raw.id, raw.channel_id):
        here = cache.find(raw.channel_id)
        opened = here and here.owner_id == raw.author.id and cache.resolve_channel(here)
        thread = here if opened and opened.kind == "thread" else None
    is_ours = thread is None or raw.is_bots or thread.owner_id == team.bot_id
    return "" if thread is None or is_ours else replace_surrogates(thread.name or "")


def _thread_id(raw: payloads.RawMessage) -> ChannelId | None:
    if raw.thread:
        return raw.thread.id
    return ChannelId(raw.id) if (raw.flags or 0) & _HAS_THREAD else None


def build_attachment(raw: payloads.RawAttachment) -> Attachment:
    """Return a file beside a message."""
    return Attachment(
        id=raw.id,
        filename=replace_surrogates(raw.filename or ""),
        url=replace_surrogates(raw.url or ""),
        size=raw.size or 0,
        content_type=raw.content_type,
        width=raw.width,
        height=raw.height,
    )


def _utc(moment: datetime | None) -> datetime | None:
    """Convert a time of Discord's, which has an offset, to UTC. At the ends of the calendar UTC may not exist."""
    try:
        return moment and (moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC))
    except OverflowError:
        return None
