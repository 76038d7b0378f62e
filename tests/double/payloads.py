"""How the structs look on the wire. Optional fields are absent rather than null."""

from __future__ import annotations

from datetime import datetime
from itertools import count

from tests.double.world import Channel, Guild, Json, Member, Message, Role, User, World


def stamp(at: datetime) -> str:
    """Discord's own form: microseconds and an offset, never `Z`."""
    return at.isoformat(timespec="microseconds")


def user_payload(user: User) -> Json:
    payload: Json = {
        "id": user.id,
        "username": user.username,
        "global_name": None,
        "avatar": None,
        "discriminator": "0",
        "public_flags": 0,
        "flags": 0,
        "primary_guild": None,
    }
    if user.bot:
        payload["bot"] = True
    return payload


def own_user_payload(user: User) -> Json:
    return user_payload(user) | {"mfa_enabled": True, "locale": "en-US", "verified": True, "email": None}


def member_payload(member: Member, *, with_user: bool) -> Json:
    payload: Json = {
        "avatar": None,
        "banner": None,
        "communication_disabled_until": None,
        "flags": 0,
        "joined_at": stamp(member.joined_at),
        "nick": None,
        "pending": False,
        "premium_since": None,
        "roles": list(member.roles),
        "mute": False,
        "deaf": False,
    }
    if with_user:
        payload["user"] = user_payload(member.user)
    return payload


def role_payload(role: Role, position: int) -> Json:
    payload: Json = {
        "id": role.id,
        "name": role.name,
        "permissions": str(role.permissions),
        "position": position,
        "color": 0,
        "colors": {"primary_color": 0, "secondary_color": None, "tertiary_color": None},
        "hoist": False,
        "managed": role.managed_by is not None,
        "mentionable": False,
        "icon": None,
        "unicode_emoji": None,
        "flags": 0,
    }
    if role.managed_by is not None:
        payload["tags"] = {"bot_id": role.managed_by}
    return payload


def role_payloads(guild: Guild) -> list[Json]:
    return [role_payload(role, position) for position, role in enumerate(guild.roles.values())]


def channel_payload(world: World, channel: Channel) -> Json:
    payload: Json = {
        "id": channel.id,
        "type": channel.type,
        "guild_id": channel.guild_id,
        "name": channel.name,
        "parent_id": channel.parent_id,
        "last_message_id": channel.last_message_id,
        "rate_limit_per_user": 0,
        "flags": 0,
    }
    return payload | (_thread_fields(world, channel) if channel.is_thread else _plain_channel_fields(channel))


def _plain_channel_fields(channel: Channel) -> Json:
    fields: Json = {
        "position": 0,
        "nsfw": False,
        "topic": None,
        "permission_overwrites": [dict(overwrite) for overwrite in channel.overwrites],
    }
    if channel.type == 15:
        fields |= {
            "available_tags": [],
            "default_reaction_emoji": None,
            "default_sort_order": None,
            "default_forum_layout": 0,
        }
    return fields


def _thread_fields(world: World, thread: Channel) -> Json:
    fields: Json = {
        "owner_id": thread.owner_id,
        "thread_metadata": {
            "archived": thread.archived,
            "archive_timestamp": stamp(thread.archived_at),
            "auto_archive_duration": thread.auto_archive_duration,
            "locked": thread.locked,
            "create_timestamp": stamp(thread.made_at),
        },
        "message_count": thread.message_count,
        "member_count": len(thread.joined),
        "total_message_sent": thread.message_count,
    }
    if world.bot.id in thread.joined:
        fields["member"] = thread_member_payload(thread, world.bot.id)
    return fields


def thread_member_payload(thread: Channel, user_id: str) -> Json:
    return {"id": thread.id, "user_id": user_id, "join_timestamp": stamp(thread.made_at), "flags": 0}


def message_payload(world: World, message: Message) -> Json:
    """Give a message as REST does: without guild_id and member, with what it answers and its thread."""
    payload = _bare_message(world, message)
    if message.reactions:
        payload["reactions"] = [_reaction(world, emoji, who) for emoji, who in message.reactions.items()]
    if message.reference is not None and message.type in {19, 21}:
        earlier = world.message(message.reference["channel_id"], message.reference["message_id"])
        payload["referenced_message"] = None if earlier is None else _bare_message(world, earlier)
    return payload


def _bare_message(world: World, message: Message) -> Json:
    payload: Json = {
        "id": message.id,
        "type": message.type,
        "channel_id": message.channel_id,
        "author": user_payload(message.author),
        "content": message.content,
        "timestamp": stamp(message.timestamp),
        "edited_timestamp": None if message.edited_timestamp is None else stamp(message.edited_timestamp),
        "tts": False,
        "mention_everyone": message.mention_everyone,
        "mentions": [user_payload(world.users[user_id]) for user_id in message.mentions],
        "mention_roles": list(message.mention_roles),
        "attachments": list(message.attachments),
        "embeds": list(message.embeds),
        "components": _numbered(message.components),
        "pinned": False,
        "flags": message.flags,
    }
    if message.nonce is not None:
        payload["nonce"] = message.nonce
    if message.webhook_id is not None:
        payload["webhook_id"] = message.webhook_id
    if message.application_id is not None:
        payload["application_id"] = message.application_id
    if message.reference is not None:
        payload["message_reference"] = dict(message.reference)
    thread = world.channels.get(message.id)
    if thread is not None and thread.parent_id == message.channel_id:
        payload["thread"] = channel_payload(world, thread)
    return payload


def _numbered(rows: list[Json]) -> list[Json]:
    """Discord gives each component a number."""
    numbers = count(1)
    return [
        {
            **row,
            "id": next(numbers),
            "components": [{**button, "id": next(numbers)} for button in row["components"]],
        }
        for row in rows
    ]


def _reaction(world: World, emoji: str, who: list[str]) -> Json:
    return {
        "emoji": emoji_payload(emoji),
        "count": len(who),
        "count_details": {"burst": 0, "normal": len(who)},
        "burst_colors": [],
        "me": world.bot.id in who,
        "me_burst": False,
    }


def emoji_payload(emoji: str) -> Json:
    """Give a unicode emoji, or `name:id`."""
    name, _, custom_id = emoji.partition(":")
    return {"id": custom_id or None, "name": name}


def message_event(world: World, message: Message) -> Json:
    """Give a message as the gateway does: with guild_id, and with the author's member unless a webhook wrote it."""
    payload = message_payload(world, message)
    guild = world.guilds[world.channels[message.channel_id].guild_id]
    payload["guild_id"] = guild.id
    member = guild.members.get(message.author.id)
    if member is not None and message.webhook_id is None:
        payload["member"] = member_payload(member, with_user=False)
    for mentioned in payload["mentions"]:
        if mentioned["id"] in guild.members:
            mentioned["member"] = member_payload(guild.members[mentioned["id"]], with_user=False)
    return payload


def guild_payload(guild: Guild) -> Json:
    return {
        "id": guild.id,
        "name": guild.name,
        "icon": None,
        "description": None,
        "home_header": None,
        "splash": None,
        "discovery_splash": None,
        "features": [],
        "banner": None,
        "owner_id": guild.owner_id,
        "application_id": None,
        "region": "deprecated",
        "afk_channel_id": None,
        "afk_timeout": 300,
        "system_channel_id": None,
        "system_channel_flags": 0,
        "widget_enabled": False,
        "widget_channel_id": None,
        "verification_level": 0,
        "roles": role_payloads(guild),
        "default_message_notifications": 0,
        "mfa_level": 0,
        "explicit_content_filter": 0,
        "max_presences": None,
        "max_members": 500000,
        "max_stage_video_channel_users": 50,
        "max_video_channel_users": 25,
        "vanity_url_code": None,
        "premium_tier": 0,
        "premium_subscription_count": 0,
        "preferred_locale": "en-US",
        "rules_channel_id": None,
        "safety_alerts_channel_id": None,
        "public_updates_channel_id": None,
        "premium_progress_bar_enabled": False,
        "nsfw": False,
        "nsfw_level": 0,
        "emojis": [],
        "stickers": [],
        "incidents_data": None,
    }


def guild_event(world: World, guild: Guild) -> Json:
    """Give GUILD_CREATE: the guild with its channels, its active threads, and the bot's own member."""
    inside = [channel for channel in world.channels.values() if channel.guild_id == guild.id]
    return guild_payload(guild) | {
        "joined_at": stamp(guild.members[world.bot.id].joined_at),
        "large": False,
        "unavailable": False,
        "member_count": len(guild.members),
        "members": [member_payload(guild.members[world.bot.id], with_user=True)],
        "channels": [channel_payload(world, channel) for channel in inside if not channel.is_thread],
        "threads": [
            channel_payload(world, channel) for channel in inside if channel.is_thread and not channel.archived
        ],
        "voice_states": [],
        "presences": [],
        "stage_instances": [],
        "guild_scheduled_events": [],
        "soundboard_sounds": [],
    }


def application_payload(world: World) -> Json:
    owner = next(iter(world.guilds.values())).owner_id
    return {
        "id": world.application.id,
        "name": world.bot.username,
        "icon": None,
        "description": "",
        "type": None,
        "bot": user_payload(world.bot),
        "bot_public": False,
        "bot_require_code_grant": False,
        "verify_key": "0" * 64,
        "flags": 1 << 19,  # GATEWAY_MESSAGE_CONTENT_LIMITED: the intent is switched on in the portal
        "flags_new": str(1 << 19),
        "redirect_uris": [],
        "interactions_endpoint_url": None,
        "role_connections_verification_url": None,
        "owner": user_payload(world.users[owner]),
        "approximate_guild_count": len(world.guilds),
        "approximate_user_install_count": 0,
        "approximate_user_authorization_count": 0,
        "explicit_content_filter": 0,
        "team": None,
        "eligible_oauth2_scopes": [],
    }
