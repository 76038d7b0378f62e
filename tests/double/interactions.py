"""Commands and buttons in the pretended Discord: what people do with them, and the routes by which a bot answers.

Import it, and the double knows the routes. What only one member sees is kept with the interaction, not in the channel.
"""

from __future__ import annotations

from datetime import timedelta

from tests.double.acts import Acts, Refusal
from tests.double.discord import DiscordDouble
from tests.double.payloads import channel_payload, member_payload, message_payload, user_payload
from tests.double.rest import Call, Reply, _route
from tests.double.world import Channel, Guild, Interaction, Json, Message, User

EPHEMERAL, LOADING = 1 << 6, 1 << 7  # message flags
COMMAND, COMPONENT = 2, 3
SLASH, ON_MESSAGE = 1, 3

_FIRST_ANSWER = timedelta(seconds=3)
_TOKEN_LIFE = timedelta(minutes=15)

# What people do; each returns once the event is on the wire


async def ask(discord: DiscordDouble, user: User, question: str, *, channel: Channel | None = None) -> Interaction:
    """`/ask question:…`, in `help` unless said otherwise."""
    options = [{"type": 3, "name": "question", "value": question}]
    return await use(discord, user, _slash("ask", options), channel=channel)


async def why(discord: DiscordDouble, user: User, about: str = "", *, channel: Channel | None = None) -> Interaction:
    """`/intern why`, with or without a message."""
    options = [{"type": 3, "name": "message", "value": about}] if about else []
    return await use(discord, user, _slash("intern", [{"type": 1, "name": "why", "options": options}]), channel=channel)


async def set_up(
    discord: DiscordDouble, user: User, *, permissions: int, at: Channel | None = None, **wanted: str | bool
) -> Interaction:
    """`/intern setup` with these options, used `at` a channel."""
    types = {"team_role": 8, "remove_team_role": 8, "channel": 7, "review": 5}
    options = [{"type": types.get(name, 3), "name": name, "value": value} for name, value in wanted.items()]
    data = _slash("intern", [{"type": 1, "name": "setup", "options": options}])
    return await use(discord, user, data, channel=at, permissions=permissions)


async def use_on(discord: DiscordDouble, user: User, name: str, message: Message) -> Interaction:
    """An entry of a message's menu."""
    data = {
        "id": "1",
        "name": name,
        "type": ON_MESSAGE,
        "target_id": message.id,
        "resolved": {"messages": {message.id: message_payload(discord.world, message)}},
    }
    return await use(discord, user, data, channel=discord.world.channels[message.channel_id])


async def press(discord: DiscordDouble, user: User, message: Message, custom_id: str) -> Interaction:
    """A button under a message, be it one that only this member sees."""
    shown = [button["custom_id"] for row in message.components for button in row["components"]]
    assert custom_id in shown, f"the message has the buttons {shown}"
    data = {"custom_id": custom_id, "component_type": 2, "id": 2}
    return await use(
        discord, user, data, kind=COMPONENT, message=message, channel=discord.world.channels[message.channel_id]
    )


async def use(
    discord: DiscordDouble,
    user: User,
    data: Json,
    *,
    kind: int = COMMAND,
    channel: Channel | None = None,
    message: Message | None = None,
    private: bool = False,
    permissions: int = 0,
) -> Interaction:
    """Whatever else there is; with `private`, from where there is no server."""
    world = discord.world
    place = channel or discord.help
    interaction_id = world.ids.next()
    payload: Json = {
        "id": interaction_id,
        "application_id": world.application.id,
        "type": kind,
        "token": f"token.of-interaction_{interaction_id}",
        "version": 1,
        "data": data,
        "channel_id": place.id,
        "channel": channel_payload(world, place),
        "locale": "en-US",
        "app_permissions": "0",
        "entitlements": [],
        "authorizing_integration_owners": {},
        "attachment_size_limit": 10_485_760,
    }
    if private:
        payload |= {"context": 1, "user": user_payload(user)}
    else:
        payload |= {"context": 0, "guild_id": place.guild_id, "guild_locale": "en-US"}
        payload["member"] = _member(world.guilds[place.guild_id], user) | {"permissions": str(permissions)}
    if message is not None:
        payload["message"] = message_payload(world, message)
    used = Interaction(
        id=interaction_id,
        token=payload["token"],
        user=user,
        channel_id=place.id,
        at=world.now(),
        payload=payload,
        original=message,
    )
    world.interactions[used.token] = used
    discord.gateway.dispatch("INTERACTION_CREATE", payload)
    await discord.gateway.flushed()
    return used


def buttons_of(message: Message) -> list[str]:
    """What stands on the buttons under a message."""
    return [
        button.get("label") or button["emoji"]["name"] for row in message.components for button in row["components"]
    ]


def shown(used: Interaction) -> list[str]:
    """What the member was told, in order; a message that says "thinking…" is nothing yet."""
    own = used.original if used.payload["type"] == COMMAND else None
    messages = ([own] if own and not own.flags & LOADING else []) + used.follow_ups
    return [message.content for message in messages]


def _slash(name: str, options: list[Json]) -> Json:
    return {"id": "1", "name": name, "type": SLASH, "options": options}


def _member(guild: Guild, user: User) -> Json:
    return member_payload(guild.members[user.id], with_user=True)


# How a bot answers


@_route("POST", "/interactions/{interaction_id}/{token}/callback")
def _callback(acts: Acts, call: Call) -> Reply:
    used = acts.world.interactions.get(call.ids["token"])
    if used is None or used.id != call.ids["interaction_id"] or _is_over(acts, used, _FIRST_ANSWER):
        raise Refusal(404, 10062, "Unknown interaction")
    if used.callback is not None:
        raise Refusal(400, 40060, "Interaction has already been acknowledged.")
    used.callback = call.fields
    if call.fields["type"] in {4, 5}:
        data: Json = call.fields.get("data") or {}
        used.original = _new(acts, used, data, flags=0 if call.fields["type"] == 4 else LOADING)
    return Reply(status=204)


@_route("PATCH", "/webhooks/{application_id}/{token}/messages/@original")
def _edit_original(acts: Acts, call: Call) -> Reply:
    used = _answered(acts, call)
    if used.original is None:
        raise Refusal(404, 10008, "Unknown Message")
    if acts.world.message(used.channel_id, used.original.id) is not None:
        acts.edit(used.original, call.fields)
    else:
        used.original.content = call.fields.get("content", used.original.content)
        used.original.components = call.fields.get("components", used.original.components)
    used.original.flags &= ~LOADING
    return Reply(body=message_payload(acts.world, used.original))


@_route("POST", "/webhooks/{application_id}/{token}")
def _follow_up(acts: Acts, call: Call) -> Reply:
    used = _answered(acts, call)
    if not call.fields.get("content"):
        raise Refusal(400, 50006, "Cannot send an empty message")
    message = _new(acts, used, call.fields)
    used.follow_ups.append(message)
    return Reply(body=message_payload(acts.world, message))


def _answered(acts: Acts, call: Call) -> Interaction:
    used = acts.world.interactions.get(call.ids["token"])
    if used is None or call.ids["application_id"] != acts.world.application.id:
        raise Refusal(404, 10015, "Unknown Webhook")
    if _is_over(acts, used, _TOKEN_LIFE):
        raise Refusal(401, 50027, "Invalid Webhook Token")
    if used.callback is None:
        raise Refusal(404, 10015, "Unknown Webhook")
    return used


def _is_over(acts: Acts, used: Interaction, life: timedelta) -> bool:
    return acts.world.now() - used.at > life


def _new(acts: Acts, used: Interaction, fields: Json, *, flags: int = 0) -> Message:
    """A message to the member; one that is not ephemeral stands in the channel, too."""
    message = Message(
        id=acts.world.ids.next(),
        channel_id=used.channel_id,
        author=acts.world.bot,
        content=fields.get("content") or "",
        timestamp=acts.world.now(),
        flags=flags | (fields.get("flags") or 0),
        components=fields.get("components") or [],
    )
    if not message.flags & EPHEMERAL:
        acts.add(message)
    return message
