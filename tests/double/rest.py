"""The routes of REST v10 that a bot uses, as plain functions from a call to a reply."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias, cast

from tests.double.acts import Acts, Refusal
from tests.double.payloads import (
    application_payload,
    channel_payload,
    guild_payload,
    member_payload,
    message_payload,
    own_user_payload,
    role_payloads,
    thread_member_payload,
    user_payload,
)
from tests.double.world import FORUM, Channel, Guild, Json, Message


def fields_of(body: object) -> Json:
    return cast("Json", body) if isinstance(body, dict) else {}


@dataclass(kw_only=True, slots=True)
class Call:
    """A request whose route is known."""

    ids: dict[str, str]  # what stands at the {names} of the route
    query: dict[str, str]
    body: Any
    gateway_url: str

    @property
    def fields(self) -> Json:
        return fields_of(self.body)


@dataclass(kw_only=True, slots=True)
class Reply:
    body: Any = None  # None: no body at all
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])


Route: TypeAlias = Callable[[Acts, Call], Reply]
_ROUTES: list[tuple[str, re.Pattern[str], Route]] = []


def _route(method: str, template: str) -> Callable[[Route], Route]:
    pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template))

    def register(function: Route) -> Route:
        _ROUTES.append((method, pattern, function))
        return function

    return register


def find_route(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """Find who answers, and the ids in the path."""
    for known, pattern, function in _ROUTES:
        match = pattern.fullmatch(path) if known == method else None
        if match is not None:
            return function, match.groupdict()
    return None


# The bot itself


@_route("GET", "/gateway/bot")
def _gateway_bot(acts: Acts, call: Call) -> Reply:
    limit = {
        "total": 1000,
        "remaining": acts.world.session_starts_left,
        "reset_after": int(acts.world.session_starts_reset_after * 1000),
        "max_concurrency": acts.world.max_concurrency,
    }
    return Reply(body={"url": call.gateway_url, "shards": acts.world.shards, "session_start_limit": limit})


@_route("GET", "/users/@me")
def _own_user(acts: Acts, call: Call) -> Reply:
    return Reply(body=own_user_payload(acts.world.bot))


@_route("GET", "/applications/@me")
@_route("GET", "/oauth2/applications/@me")
def _own_application(acts: Acts, call: Call) -> Reply:
    return Reply(body=application_payload(acts.world))


@_route("GET", "/users/{user_id}")
def _user(acts: Acts, call: Call) -> Reply:
    user = acts.world.users.get(call.ids["user_id"])
    if user is None:
        raise Refusal(404, 10013, "Unknown User")
    return Reply(body=user_payload(user))


# Guilds


def _guild_of(acts: Acts, call: Call) -> Guild:
    guild = acts.world.guilds.get(call.ids["guild_id"])
    if guild is None:
        raise Refusal(404, 10004, "Unknown Guild")
    return guild


@_route("GET", "/guilds/{guild_id}")
def _guild(acts: Acts, call: Call) -> Reply:
    return Reply(body=guild_payload(_guild_of(acts, call)))


@_route("GET", "/guilds/{guild_id}/channels")
def _guild_channels(acts: Acts, call: Call) -> Reply:
    guild = _guild_of(acts, call)
    inside = [c for c in acts.world.channels.values() if c.guild_id == guild.id and not c.is_thread]
    return Reply(body=[channel_payload(acts.world, channel) for channel in inside])


@_route("GET", "/guilds/{guild_id}/roles")
def _guild_roles(acts: Acts, call: Call) -> Reply:
    return Reply(body=role_payloads(_guild_of(acts, call)))


@_route("GET", "/guilds/{guild_id}/members/{user_id}")
def _guild_member(acts: Acts, call: Call) -> Reply:
    member = _guild_of(acts, call).members.get(call.ids["user_id"])
    if member is None:
        raise Refusal(404, 10007, "Unknown Member")
    return Reply(body=member_payload(member, with_user=True))


@_route("GET", "/guilds/{guild_id}/threads/active")
def _active_threads(acts: Acts, call: Call) -> Reply:
    guild = _guild_of(acts, call)
    active = [t for t in acts.world.threads() if t.guild_id == guild.id and not t.archived]
    return Reply(body=_threads(acts, active, has_more=False))


# Channels and threads


@_route("GET", "/channels/{channel_id}")
def _channel(acts: Acts, call: Call) -> Reply:
    return Reply(body=channel_payload(acts.world, acts.channel(call.ids["channel_id"])))


@_route("PATCH", "/channels/{channel_id}")
def _change_channel(acts: Acts, call: Call) -> Reply:
    channel = acts.channel(call.ids["channel_id"])
    acts.change_channel(channel, call.fields)
    return Reply(body=channel_payload(acts.world, channel))


@_route("DELETE", "/channels/{channel_id}")
def _delete_channel(acts: Acts, call: Call) -> Reply:
    channel = acts.channel(call.ids["channel_id"])
    reply = Reply(body=channel_payload(acts.world, channel))
    acts.delete_channel(channel)
    return reply


@_route("POST", "/channels/{channel_id}/typing")
def _type(acts: Acts, call: Call) -> Reply:
    acts.type_in(acts.channel(call.ids["channel_id"]), acts.world.bot)
    return Reply(status=204)


@_route("POST", "/channels/{channel_id}/messages/{message_id}/threads")
def _start_thread(acts: Acts, call: Call) -> Reply:
    message = acts.message(call.ids["channel_id"], call.ids["message_id"])
    thread = acts.start_thread(
        message,
        call.fields["name"],
        acts.world.bot,
        auto_archive_duration=call.fields.get("auto_archive_duration"),
    )
    return Reply(status=201, body=channel_payload(acts.world, thread))


@_route("POST", "/channels/{channel_id}/threads")
def _start_other_thread(acts: Acts, call: Call) -> Reply:
    parent, fields = acts.channel(call.ids["channel_id"]), call.fields
    duration = fields.get("auto_archive_duration")
    if parent.type == FORUM:
        thread = acts.start_forum_post(
            parent,
            fields["name"],
            acts.world.bot,
            fields["message"].get("content") or "",
            auto_archive_duration=duration,
            allowed_mentions=fields["message"].get("allowed_mentions"),
        )
    else:
        thread = acts.start_bare_thread(parent, fields["name"], acts.world.bot, auto_archive_duration=duration)
    return Reply(status=201, body=channel_payload(acts.world, thread))


@_route("GET", "/channels/{channel_id}/threads/archived/public")
def _archived_threads(acts: Acts, call: Call) -> Reply:
    """List by the time of archiving, newest first; `before` is such a time."""
    archived = [t for t in acts.world.threads(acts.channel(call.ids["channel_id"]).id) if t.archived]
    archived.sort(key=lambda thread: thread.archived_at, reverse=True)
    if "before" in call.query:
        before = datetime.fromisoformat(call.query["before"])
        archived = [t for t in archived if t.archived_at < before]
    limit = int(call.query.get("limit", "50"))
    return Reply(body=_threads(acts, archived[:limit], has_more=len(archived) > limit))


@_route("GET", "/channels/{channel_id}/threads/archived/private")
@_route("GET", "/channels/{channel_id}/users/@me/threads/archived/private")
def _private_threads(acts: Acts, call: Call) -> Reply:
    acts.channel(call.ids["channel_id"])
    return Reply(body=_threads(acts, [], has_more=False))  # nobody makes private threads here


@_route("PUT", "/channels/{channel_id}/thread-members/@me")
def _join_thread(acts: Acts, call: Call) -> Reply:
    thread = acts.channel(call.ids["channel_id"])
    if acts.world.bot.id not in thread.joined:
        thread.joined.append(acts.world.bot.id)
    return Reply(status=204)


def _threads(acts: Acts, threads: list[Channel], *, has_more: bool) -> Json:
    bot = acts.world.bot.id
    return {
        "threads": [channel_payload(acts.world, thread) for thread in threads],
        "members": [thread_member_payload(thread, bot) for thread in threads if bot in thread.joined],
        "has_more": has_more,
    }


# Messages


@_route("GET", "/channels/{channel_id}/messages")
def _messages(acts: Acts, call: Call) -> Reply:
    acts.channel(call.ids["channel_id"])
    page = _page(acts.world.messages(call.ids["channel_id"]), call.query)
    return Reply(body=[message_payload(acts.world, message) for message in reversed(page)])


def _page(messages: list[Message], query: dict[str, str]) -> list[Message]:
    """Pick from messages that are oldest first; `after` gives those that follow at once, not the newest."""
    limit = int(query.get("limit", "50"))
    if "after" in query:
        return [m for m in messages if int(m.id) > int(query["after"])][:limit]
    if "before" in query:
        return [m for m in messages if int(m.id) < int(query["before"])][-limit:]
    if "around" in query:
        older = [m for m in messages if int(m.id) < int(query["around"])]
        return (
            [*older[-(limit // 2) :], *messages[len(older) :][: limit - limit // 2]]
            if limit > 1
            else messages[len(older) :][:1]
        )
    return messages[-limit:]


@_route("GET", "/channels/{channel_id}/messages/{message_id}")
def _message(acts: Acts, call: Call) -> Reply:
    return Reply(body=message_payload(acts.world, acts.message(call.ids["channel_id"], call.ids["message_id"])))


@_route("POST", "/channels/{channel_id}/messages")
def _post(acts: Acts, call: Call) -> Reply:
    acts.channel(call.ids["channel_id"])
    fields = call.fields
    if not any(
        fields.get(field) for field in ("content", "embeds", "sticker_ids", "components", "attachments", "poll")
    ):
        raise Refusal(400, 50006, "Cannot send an empty message")
    message = acts.post(
        call.ids["channel_id"],
        acts.world.bot,
        fields.get("content") or "",
        reply_to=fields.get("message_reference"),
        allowed_mentions=fields.get("allowed_mentions"),
        embeds=fields.get("embeds") or (),
        components=fields.get("components") or (),
        flags=fields.get("flags") or 0,
        nonce=fields.get("nonce"),
        enforce_nonce=bool(fields.get("enforce_nonce")),
    )
    return Reply(body=message_payload(acts.world, message))


@_route("PATCH", "/channels/{channel_id}/messages/{message_id}")
def _edit(acts: Acts, call: Call) -> Reply:
    message = acts.message(call.ids["channel_id"], call.ids["message_id"])
    if message.author.id != acts.world.bot.id:
        raise Refusal(403, 50005, "Cannot edit a message authored by another user")
    return Reply(body=message_payload(acts.world, acts.edit(message, call.fields)))


@_route("DELETE", "/channels/{channel_id}/messages/{message_id}")
def _delete(acts: Acts, call: Call) -> Reply:
    acts.delete(acts.message(call.ids["channel_id"], call.ids["message_id"]))
    return Reply(status=204)


# Reactions


@_route("PUT", "/channels/{channel_id}/messages/{message_id}/reactions/{emoji_name}/@me")
def _react(acts: Acts, call: Call) -> Reply:
    message = acts.message(call.ids["channel_id"], call.ids["message_id"])
    acts.react(acts.world.bot, message, call.ids["emoji_name"])
    return Reply(status=204)


@_route("DELETE", "/channels/{channel_id}/messages/{message_id}/reactions/{emoji_name}/@me")
def _unreact(acts: Acts, call: Call) -> Reply:
    message = acts.message(call.ids["channel_id"], call.ids["message_id"])
    acts.unreact(acts.world.bot, message, call.ids["emoji_name"])
    return Reply(status=204)


@_route("GET", "/channels/{channel_id}/messages/{message_id}/reactions/{emoji_name}")
def _reactors(acts: Acts, call: Call) -> Reply:
    message = acts.message(call.ids["channel_id"], call.ids["message_id"])
    who = sorted(message.reactions.get(call.ids["emoji_name"], []), key=int)
    after = int(call.query.get("after", "0"))
    page = [acts.world.users[user] for user in who if int(user) > after][: int(call.query.get("limit", "25"))]
    return Reply(body=[user_payload(user) for user in page])


# Application commands


@_route("GET", "/applications/{application_id}/commands")
@_route("GET", "/applications/{application_id}/guilds/{guild_id}/commands")
def _commands(acts: Acts, call: Call) -> Reply:
    here = [c for c in acts.world.application.commands if c.get("guild_id") == call.ids.get("guild_id")]
    whole = call.query.get("with_localizations") == "true"
    return Reply(body=here if whole else [_without_localizations(command) for command in here])


def _without_localizations(command: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in command.items() if not name.endswith("_localizations")}
    return shown | ({"options": [*map(_without_localizations, shown["options"])]} if "options" in shown else {})


@_route("PUT", "/applications/{application_id}/commands")
@_route("PUT", "/applications/{application_id}/guilds/{guild_id}/commands")
def _set_commands(acts: Acts, call: Call) -> Reply:
    """Replace all commands of this reach; a command keeps its id while it keeps its name and type."""
    application, guild_id = acts.world.application, call.ids.get("guild_id")
    here = {(c["name"], c["type"]): c["id"] for c in application.commands if c.get("guild_id") == guild_id}
    elsewhere = [c for c in application.commands if c.get("guild_id") != guild_id]
    commands = [
        {
            "dm_permission": True,
            "nsfw": False,
            "description": "",
            "default_member_permissions": None,
            **wanted,
            "id": here.get((wanted["name"], wanted.get("type", 1))) or acts.world.ids.next(),
            "application_id": application.id,
            "version": acts.world.ids.next(),
            "type": wanted.get("type", 1),
            **({"guild_id": guild_id} if guild_id else {}),
        }
        for wanted in call.body
    ]
    application.commands = [*elsewhere, *commands]
    return Reply(body=commands)


def error_reply(refusal: Refusal) -> Reply:
    return Reply(status=refusal.status, body=refusal.body)
