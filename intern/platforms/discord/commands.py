"""Commands and buttons: reading their payloads, and answering them. REST is asyncio only.

An interaction is answered through its token, which is good for 15 minutes and appears in no log and no error. Answers
ping no one and preview no links.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final
from urllib.parse import quote

import hikari
import msgspec
from hikari.internal import routes
from msgspec import Struct

from intern.chat.phrases import get_phrases
from intern.core import flow
from intern.core.errors import ChatError, ChatRefusedError
from intern.core.ids import ChannelId, GuildId
from intern.core.log import get_logger
from intern.core.messages import Author, Button, ChatMessage
from intern.core.text.encoding import replace_surrogates
from intern.core.text.secret_values import Secret
from intern.platforms.discord import payloads
from intern.platforms.discord.gateway_cache import GatewayCache
from intern.platforms.discord.messages import Team, build_attachment, build_author, build_message
from intern.platforms.discord.rest import HikariRest

_log = get_logger(__name__)
_Ticket = flow.InteractionTicket

# Discord's reference, "Receiving and Responding": types of interactions, of commands and options, of answers.
_UNANSWERABLE: Final = {1, 4}  # a ping, which the gateway never sends, and auto-completion, which we never ask
_COMMAND, _COMPONENT = 2, 3
_SLASH, _ON_MESSAGE = 1, 3
_SUBCOMMAND, _STRING, _BOOLEAN, _CHANNEL, _ROLE, _ATTACHMENT = 1, 3, 5, 7, 8, 11
_MANAGES: Final = 1 << 3 | 1 << 5  # permissions: of an administrator, or to manage the server
_DEFER_MESSAGE, _DEFER_UPDATE = 5, 6

_ON_SERVERS: Final = 0  # a context of commands: neither in private messages, nor where the bot is not
_EPHEMERAL = 1 << 6  # message flag
_ACKNOWLEDGED, _MISSING_ACCESS = 40060, 50001  # Discord's JSON error codes
_INVITE: Final = "; invite the bot with the scope applications.commands: `intern doctor` prints the link"
_TOKEN_EXPIRED: Final = frozenset({10015, 50027})

_ASK, _ANSWER_THIS, _LEARN_FROM_THIS, _INTERN, _WHY = "ask", "Answer this", "Learn from this", "intern", "why"
_SETUP, _STATUS = "setup", "status"
_QUESTION, _MESSAGE, _FILE = "question", "message", "file"


def _build_definition(
    name: str, kind: int, description: str, *options: Mapping[str, Any], **more: object
) -> Mapping[str, Any]:
    inside = {"options": list(options)} if options else {}
    return {"name": name, "type": kind, "description": description, **inside, **more}


# Discord shows these by the locale of the member's client.
_LOCALES: Final = {"de": "de", "fr": "fr", "es-ES": "es", "es-419": "es", "pt-BR": "pt", "ja": "ja"}


def _localize(phrase: str) -> Mapping[str, str]:
    return {locale: getattr(get_phrases(language), phrase) for locale, language in _LOCALES.items()}


def _build_localized(
    name: str, kind: int, phrase: str, *options: Mapping[str, Any], **more: object
) -> Mapping[str, Any]:
    """Return a definition whose description is a phrase in all languages."""
    described = _build_definition(name, kind, getattr(get_phrases(), phrase), *options, **more)
    return {**described, "description_localizations": _localize(phrase)}


_WANTED = _build_localized(_QUESTION, _STRING, "ask_question", required=True, max_length=2000)
_ATTACHED = _build_localized(_FILE, _ATTACHMENT, "ask_file")
_ABOUT = _build_definition(_MESSAGE, _STRING, "A link to a message, or its id; without it, the newest question here")
COMMANDS: Final[Sequence[Mapping[str, Any]]] = (
    _build_localized(_ASK, _SLASH, "ask_command", _WANTED, _ATTACHED),
    {"name": _ANSWER_THIS, "type": _ON_MESSAGE, "name_localizations": _localize("answer_this")},
    {"name": _LEARN_FROM_THIS, "type": _ON_MESSAGE},
    _build_definition(
        *(_INTERN, _SLASH, "For the team: what intern did, and why"),
        _build_definition(_WHY, _SUBCOMMAND, "Why was this answered, or not?", _ABOUT),
    ),
)
"""The commands that we register: names and options as Discord wants them, without fields at their defaults."""


def _build_choices(**names: str) -> Mapping[str, Any]:
    return {"choices": [{"name": name, "value": value} for value, name in names.items()]}


_MODES: Final = _build_choices(
    answer="answer questions, learn from the team",
    mention_only="learn; answer only who mentions me",
    capture_only="learn only",
    off="off",
    default="as all other channels",
)
# Each by its own name.
_LANGUAGES: Final = _build_choices(en="English", de="Deutsch", es="Español", fr="Français", ja="日本語", pt="Português")
HOSTED_COMMANDS: Final[Sequence[Mapping[str, Any]]] = (
    *COMMANDS[:-1],
    {
        **COMMANDS[-1],
        "description": "For the team: what intern did, why, and how it is set up",
        "options": [
            *COMMANDS[-1]["options"],
            _build_definition(_STATUS, _SUBCOMMAND, "How things stand on this server"),
            _build_definition(
                *(_SETUP, _SUBCOMMAND, "Show or change what intern does here (for members who may manage the server)"),
                _build_definition("team_role", _ROLE, "Learn from the replies of members with this role"),
                _build_definition("remove_team_role", _ROLE, "Learn from this role no more"),
                _build_definition("channel", _CHANNEL, "The channel whose mode to change"),
                _build_definition(
                    "mode", _STRING, "What to do there; without a channel: in all that have no mode", **_MODES
                ),
                _build_definition("document", _STRING, "The public address of a page to answer from", max_length=2000),
                _build_definition("remove_document", _STRING, "An address to use no more", max_length=2000),
                _build_definition("language", _STRING, "Where the language of a message is unclear", **_LANGUAGES),
                _build_definition("review", _BOOLEAN, "Learn only what the team approved with a ✅"),
            ),
        ],
    },
)
"""The same, where each server is a community by itself."""


@dataclass(frozen=True)
class HikariCommands:
    """Answers interactions, and registers our commands. All methods raise the ChatError family."""

    rest: HikariRest
    guild_ids: Sequence[GuildId]
    _: KW_ONLY
    ready: Callable[[], Awaitable[object]] | None = None
    """Returns once Discord has welcomed us: commands are registered after that."""

    async def defer(self, ticket: _Ticket, *, update: bool = False) -> None:
        """Announce an answer to Discord, which must receive this within 3 s. Doing it again is harmless.

        With `update` (buttons only) the member sees no sign of waiting, and `follow_up` is the way to answer.
        """
        body: dict[str, Any] = {"type": _DEFER_UPDATE if update else _DEFER_MESSAGE}
        if not update:
            body["data"] = {"flags": _EPHEMERAL}
        ids = payloads.check_ids(interaction=ticket.id)
        route = routes.POST_INTERACTION_RESPONSE.compile(**ids, token=_token(ticket))
        # hikari asks again by itself where the confirmation got lost.
        await self._ask(ticket, "acknowledge", route, body, done=_ACKNOWLEDGED)

    async def reply(self, ticket: _Ticket, text: str, *, buttons: Sequence[Button] = ()) -> None:
        """Replace the waiting sign with the answer. Doing it again replaces the answer."""
        route = _compile_webhook_route(ticket, routes.PATCH_INTERACTION_RESPONSE)
        await self._ask(ticket, "answer", route, payloads.build_message_body(text, buttons, None))

    async def follow_up(self, ticket: _Ticket, text: str, *, buttons: Sequence[Button] = ()) -> None:
        """Post one more message. Doing it again posts it twice."""
        body = payloads.build_message_body(text, buttons, None)
        body["flags"] |= _EPHEMERAL
        await self._ask(ticket, "follow up", _compile_webhook_route(ticket, routes.POST_WEBHOOK_WITH_TOKEN), body)

    async def register(self) -> None:
        """Make our servers have our commands, and no others of this application; mostly, they have them already.

        Without servers: make all servers have them.
        """
        if self.ready is not None:
            await self.ready()
        what, route = "look up the application", routes.GET_MY_APPLICATION
        application = (await self.rest.send_and_parse(what, route, payloads.RawApplication)).id
        for guild_id in self.guild_ids:
            where, on = payloads.check_ids(application=application, guild=guild_id), f"server {guild_id}"
            there, put = routes.GET_APPLICATION_GUILD_COMMANDS, routes.PUT_APPLICATION_GUILD_COMMANDS
            await self._register(on, there.compile(**where), put.compile(**where), COMMANDS)
        if not self.guild_ids:
            where = payloads.check_ids(application=application)
            there, put = routes.GET_APPLICATION_COMMANDS, routes.PUT_APPLICATION_COMMANDS
            # In private messages there is no community that could answer.
            everywhere = [{**each, "contexts": [_ON_SERVERS]} for each in HOSTED_COMMANDS]
            await self._register("all servers", there.compile(**where), put.compile(**where), everywhere)

    async def _register(
        self, on: str, there: routes.CompiledRoute, put: routes.CompiledRoute, wanted: Sequence[Mapping[str, Any]]
    ) -> None:
        what, localized = f"read the commands of {on}", {"with_localizations": "true"}
        try:
            known = await self.rest.send_and_parse(what, there, list[dict[str, Any]], query=localized)
            if not same_commands(known, wanted):
                await self.rest.send_request(f"register the commands on {on}", put, body=wanted)
                _log.info("commands_registered", on=on)
        except ChatRefusedError as refusal:
            raise ChatRefusedError(f"{refusal}{_INVITE if _code(refusal) == _MISSING_ACCESS else ''}") from refusal

    async def _ask(
        self, ticket: _Ticket, act: str, route: routes.CompiledRoute, body: Mapping[str, Any], *, done: int = 0
    ) -> None:
        """Make a call. A refusal with the code `done` is success."""
        what = f"{act} interaction {ticket.id}"
        try:
            await self.rest.send_request(what, route, body=body)
        except ChatError as error:
            code = _code(error)
            if code in _TOKEN_EXPIRED:
                forgets = "Discord forgets it after 15 minutes, or after 3 s without a sign"
                raise ChatRefusedError(f"could not {what}: {forgets} (code {code})") from None
            if not code or code != done:
                # hikari's errors hold the address, which holds the token.
                raise type(error)(str(error).replace(_token(ticket), "***")) from None


class HostedCommands(HikariCommands):
    """Answers the interactions of a community; its process registers the commands of all."""

    async def register(self) -> None:
        """Do nothing."""


def read_interaction(
    payload: Mapping[str, Any], team: Team, cache: GatewayCache | None = None
) -> flow.Interaction | None:
    """Read the payload of an INTERACTION_CREATE, from any server or none; None where no answer is expected.

    A payload that can be answered but not understood becomes an UnknownInteraction. Raises msgspec.ValidationError
    for one that cannot even be answered.
    """
    raw = msgspec.convert(payload, _RawInteraction)
    if raw.type in _UNANSWERABLE:
        return None
    cache = cache or GatewayCache()
    token, ours = Secret(raw.token), raw.application_id
    ticket = _Ticket(id=raw.id, token=token, application_id=ours, guild_id=raw.guild_id, channel_id=raw.place)
    known: flow.Interaction | None = None
    try:
        user = _read_user(raw, team, cache)
        if raw.type == _COMMAND:
            known = _parse_command(raw, ticket, user, team, cache)
        elif raw.type == _COMPONENT:
            button = msgspec.convert(raw.data, _RawComponent).custom_id
            held = msgspec.convert(raw.message, payloads.RawMessageStub).id
            known = flow.ButtonPressed(interaction=ticket, user=user, button=button, message_id=held)
    except msgspec.ValidationError as error:
        return flow.UnknownInteraction(interaction=ticket, what=f"unreadable: {error}")
    return known or flow.UnknownInteraction(interaction=ticket, what=f"of type {raw.type}")


def same_commands(there: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether Discord has these commands and no others, ignoring fields that it adds (ids, defaults)."""
    return sorted(map(_essence, there), key=_key) == sorted(map(_essence, wanted), key=_key)


# Fields of commands and options that change what members see.
_TELLING: Final = (
    *("name", "type", "description", "required", "min_length", "max_length", "choices", "autocomplete"),
    *("default_member_permissions", "name_localizations", "description_localizations"),
)


def _essence(command: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce a command or option to its significant fields: null, empty and absent are the same."""
    essence = {name: command[name] for name in _TELLING if command.get(name)}
    return essence | {"options": [_essence(option) for option in command.get("options") or ()]}


def _key(essence: Mapping[str, Any]) -> tuple[str, int]:
    return str(essence.get("name")), int(essence.get("type", 0))


class _RawInteraction(Struct, frozen=True):
    """An interaction of any kind, with only the fields that answering it takes."""

    id: payloads.Snowflake
    application_id: payloads.Snowflake
    type: int
    token: str
    guild_id: payloads.GuildField | None = None
    channel_id: payloads.ChannelField | None = None
    channel: payloads.RawChannelStub | None = None
    # Read once we know that we can answer.
    member: Any = None
    user: Any = None
    data: Any = None
    message: Any = None

    def __post_init__(self) -> None:
        """Refuse an interaction without a token or a channel: it cannot be answered."""
        if not self.token or (self.channel_id is None and self.channel is None):
            raise ValueError("an interaction needs a token and a channel")

    @property
    def place(self) -> ChannelId:
        """The channel where it was used."""
        return self.channel_id or (self.channel.id if self.channel else ChannelId(""))


class _RawCommandOption(Struct, frozen=True):
    name: str
    type: int
    value: Any = None
    options: list[_RawCommandOption] = []


class _RawResolved(Struct, frozen=True):
    messages: dict[str, Any] = {}
    attachments: dict[str, Any] = {}


class _RawCommand(Struct, frozen=True):
    name: str
    type: int = _SLASH
    options: list[_RawCommandOption] = []
    target_id: str | None = None
    resolved: _RawResolved = _RawResolved()


class _RawComponent(Struct, frozen=True):
    custom_id: str


def _parse_command(
    raw: _RawInteraction, ticket: _Ticket, user: Author, team: Team, cache: GatewayCache
) -> flow.Interaction | None:
    command = msgspec.convert(raw.data, _RawCommand)
    on = _read_target(raw, command, team, cache)
    match command.type, command.name:
        case 1, "ask":
            found = command.resolved.attachments.get(_option_text(command.options, _FILE))
            files = (build_attachment(payloads.parse_leniently(found, payloads.RawAttachment)),) if found else ()
            question = _option_text(command.options, _QUESTION)
            return flow.AskCommand(interaction=ticket, user=user, question=question, attachments=files)
        case 1, "intern" if command.options:
            return _parse_subcommand(command.options[0], ticket, user, manages=_can_manage_server(raw))
        case 3, "Answer this" if on:
            return flow.AskCommand(interaction=ticket, user=user, question=on.text, on=on)
        case 3, "Learn from this" if on:
            return flow.LearnCommand(interaction=ticket, user=user, on=on)
        case _:
            return None


def _parse_subcommand(
    option: _RawCommandOption, ticket: _Ticket, user: Author, *, manages: bool
) -> flow.Interaction | None:
    match option.name:
        case "why":
            return flow.WhyCommand(interaction=ticket, user=user, about=_option_text(option.options, _MESSAGE))
        case "status":
            return flow.StatusCommand(interaction=ticket, user=user, manages=manages)
        case "setup":
            given = {each.name: each.value for each in option.options if each.value is not None}
            wanted = msgspec.convert(given, flow.SetupChanges)
            return flow.SetupCommand(interaction=ticket, user=user, manages=manages, wanted=wanted)
        case _:
            return None


def _can_manage_server(raw: _RawInteraction) -> bool:
    """Return whether Discord says that the member may manage the server."""
    member = payloads.parse_leniently(raw.member, payloads.RawMember) if raw.member is not None else None
    permissions = member.permissions if member else None
    return bool(permissions and permissions.isascii() and permissions.isdigit() and int(permissions) & _MANAGES)


def _option_text(options: Sequence[_RawCommandOption], name: str) -> str:
    value = next((option.value for option in options if option.name == name), None)
    return replace_surrogates(value.strip()) if isinstance(value, str) else ""


def _read_target(raw: _RawInteraction, command: _RawCommand, team: Team, cache: GatewayCache) -> ChatMessage | None:
    """Read the message that a menu entry was used on; None for a notice of Discord's, and where there is none."""
    if command.target_id not in command.resolved.messages:
        return None
    found = payloads.parse_leniently(command.resolved.messages[command.target_id], payloads.RawMessage)
    message = msgspec.structs.replace(found, guild_id=raw.guild_id)
    # Discord names no roles of its author here.
    return build_message(message, team, cache.roles(raw.guild_id, found.author.id) if raw.guild_id else None, cache)


def _read_user(raw: _RawInteraction, team: Team, cache: GatewayCache) -> Author:
    member = payloads.parse_leniently(raw.member, payloads.RawMember) if raw.member is not None else None
    user = payloads.parse_leniently(member.user if member else raw.user, payloads.RawUser)
    roles = member.role_ids if member else None
    if raw.guild_id and roles is not None:
        cache.note_roles(raw.guild_id, user.id, roles)
    return build_author(user, member, roles or (), team, is_bot=user.is_bots)


def _compile_webhook_route(ticket: _Ticket, route: routes.Route) -> routes.CompiledRoute:
    return route.compile(**payloads.check_ids(webhook=ticket.application_id), token=_token(ticket))


def _token(ticket: _Ticket) -> str:
    return quote(ticket.token.reveal(), safe="")


def _code(error: ChatError) -> int:
    cause = error.__cause__
    return int(cause.code) if isinstance(cause, hikari.HTTPResponseError) else 0
