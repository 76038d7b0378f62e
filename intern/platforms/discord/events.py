"""Discord's payloads as events of ours. Pure.

Only the ids and the author are required. Any other field may be missing or null, and one of a wrong type is left out
by itself. A payload that cannot be read raises `msgspec.ValidationError`, which names the field and never its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from intern.core.flow import APPROVES, ApprovalReaction, MessageCreated, MessageEdited, MessageEvent, MessagesDeleted
from intern.core.messages import ChatMessage
from intern.platforms.discord import payloads
from intern.platforms.discord.gateway_cache import ChannelDeleted, ChannelEvent, ChannelsUpdated, GatewayCache
from intern.platforms.discord.messages import Team, build_message, is_team_member

_OfServer = TypeVar("_OfServer", payloads.RawMessage, payloads.RawDeletion)


def read_event(
    name: str, payload: Mapping[str, Any], team: Team, cache: GatewayCache | None = None
) -> MessageEvent | ApprovalReaction | ChannelEvent | None:
    """Read a gateway dispatch; None for the kinds that we do not use, and for Discord's notices.

    `cache` stores authors' roles, replaces a missing `member`, and tells edits from mere updates.
    Raises msgspec.ValidationError for a payload that cannot be read.
    """
    cache = cache or GatewayCache()
    match name:
        case "MESSAGE_CREATE":
            message = _read_message(payload, team, cache)
            return MessageCreated(message=message) if message else None
        case "MESSAGE_UPDATE":
            return _read_edit(payload, team, cache)
        case "MESSAGE_DELETE" | "MESSAGE_DELETE_BULK":
            return _read_deletion(payload)
        case "MESSAGE_REACTION_ADD":
            return _read_approval(payloads.parse_leniently(payload, payloads.RawReaction), team, cache)
        case _:
            return _read_channel_event(name, payload)


def _read_message(payload: Mapping[str, Any], team: Team, cache: GatewayCache) -> ChatMessage | None:
    raw = _check_guild_id(payloads.parse_leniently(payload, payloads.RawMessage), payload)
    if raw.guild_id is None:
        return build_message(raw, team)
    roles = raw.member.role_ids if raw.member else None
    if roles is not None and not raw.is_bots:
        cache.note_roles(raw.guild_id, raw.author.id, roles)
    return build_message(raw, team, cache.roles(raw.guild_id, raw.author.id), cache)


def _check_guild_id(raw: _OfServer, payload: Mapping[str, Any]) -> _OfServer:
    """Return the struct. Raises msgspec.ValidationError if it names its server, but not by an id."""
    if raw.guild_id is None and payload.get("guild_id") is not None:
        raise msgspec.ValidationError("Expected an id - at `$.guild_id`")
    return raw


def _read_edit(payload: Mapping[str, Any], team: Team, cache: GatewayCache) -> MessageEdited | None:
    # Discord sends MESSAGE_UPDATE also for an embed that was unfurled, a pin, a thread that was begun.
    # A time that cannot be read is the time of an edit all the same.
    told_at = payload.get("edited_timestamp")
    message = None if told_at is None else _read_message(payload, team, cache)
    if message is None or not cache.is_new_edit(message.id, message.edited_at or repr(told_at)[:100]):
        return None
    return MessageEdited(message=message)


def _read_deletion(payload: Mapping[str, Any]) -> MessagesDeleted | None:
    raw = _check_guild_id(payloads.parse_leniently(payload, payloads.RawDeletion), payload)
    named = raw.ids or ([] if raw.id is None else [raw.id])
    ids = tuple(sent.id for sent in payloads.parse_items([{"id": each} for each in named], payloads.RawMessageStub))
    if named and not ids:
        raise msgspec.ValidationError("Expected an id - at `$.id`")
    return MessagesDeleted(guild_id=raw.guild_id, channel_id=raw.channel_id, message_ids=ids) if ids else None


def _read_approval(raw: payloads.RawReaction, team: Team, cache: GatewayCache) -> ApprovalReaction | None:
    # A variation selector asks for the coloured picture, which this emoji has anyway.
    if raw.emoji.id is not None or (raw.emoji.name or "").rstrip("\ufe0f") != APPROVES or raw.guild_id is None:
        return None
    member = payloads.RawMember() if raw.member is None else payloads.parse_leniently(raw.member, payloads.RawMember)
    roles = cache.roles(raw.guild_id, raw.user_id) if member.role_ids is None else member.role_ids
    is_bot = raw.user_id == team.bot_id or (member.user is not None and member.user.is_bots)
    if is_bot or not is_team_member(raw.user_id, roles or (), team):
        return None
    return ApprovalReaction(guild_id=raw.guild_id, channel_id=raw.channel_id, message_id=raw.message_id, by=raw.user_id)


def _read_channel_event(name: str, payload: Mapping[str, Any]) -> ChannelEvent | None:
    match name:
        case "CHANNEL_CREATE" | "CHANNEL_UPDATE" | "THREAD_CREATE" | "THREAD_UPDATE":
            return ChannelsUpdated((payloads.parse_leniently(payload, payloads.RawChannel),))
        case "CHANNEL_DELETE" | "THREAD_DELETE":
            return ChannelDeleted(payloads.parse_leniently(payload, payloads.RawChannelStub).id)
        case "GUILD_CREATE" | "THREAD_LIST_SYNC":
            return _read_channels(payloads.parse_leniently(payload, payloads.RawGuild))
        case _:
            return None


def _read_channels(raw: payloads.RawGuild) -> ChannelsUpdated:
    guild_id = raw.guild_id or raw.id or None
    told = (each for named in (raw.channels, raw.threads) for each in payloads.parse_items(named, payloads.RawChannel))
    channels = tuple(msgspec.structs.replace(channel, guild_id=guild_id) for channel in told)
    # Only GUILD_CREATE lists channels, and then all of them, with all threads that are not archived.
    return ChannelsUpdated(channels, all_of=None if raw.channels is None else guild_id)
