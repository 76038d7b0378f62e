"""A check of the settings and of the bot's permissions on its servers. It changes no knowledge. asyncio only.

The findings come in the order in which to correct them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

import anyio
import httpx
from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from intern.answering.prompts import GATE, GateIn
from intern.core import errors
from intern.core.clock import Clock, SystemClock
from intern.core.messages import Channel
from intern.core.progress import report_progress
from intern.models.clients import open_client
from intern.models.endpoint import EndpointModel
from intern.models.options import LlmOptions
from intern.models.request_forms import SMALLEST
from intern.models.usage import UsageCounter
from intern.platforms.discord import permissions, setup
from intern.platforms.discord.options import ShardChoice, shard_advice
from intern.service.databases import is_made, open_database
from intern.service.local_checks import NAMED_AT_MOST, Finding, check_folder, good, note, todo
from intern.service.model_servers import inspect_server
from intern.service.models import build_form_saver, load_templates, save_usage
from intern.service.stores import probe_vector_engine
from intern.settings.settings import Settings
from intern.stores.database import Database
from intern.stores.tables.request_forms import RequestFormStore
from intern.stores.tables.usage import UsageLog


async def _check_vector_engine(settings: Settings) -> Iterable[Finding]:
    told, error = await probe_vector_engine(settings)
    if error:
        mend = "see that it runs, and check search.url and search.api_key; until then, search uses local vectors"
        return [todo(f"the vector engine gave no answer: {error}", mend)]
    return map(good, told)


def _check_model_choice(settings: Settings) -> Finding:
    """Check whether questions can be answered."""
    try:
        settings.require_model()
    except errors.ConfigError as error:
        return todo("no model is chosen", str(error))
    return good("a model is chosen")


_QUESTION: Final = GateIn(question="How do I reset my password?", history="", addressed=True)
_RETRIES: Final = 1
_LOADING: Final = "loading model"
"""The text of llama.cpp's server with status 503 until it can answer."""


async def ask_endpoints(settings: Settings) -> list[Finding]:
    """Ask each model endpoint one question; return the results. Nothing is asked where a setting is missing.

    Each begins with the fullest form of requests, and replaces the form remembered for the endpoint: it may accept more
    than before. Without a writable database, neither that nor the tokens are stored.
    """
    try:
        settings.require_model()
    except errors.ConfigError:
        return []
    asked = [("llm", settings.llm)]
    if settings.llm_kb is not None and _endpoint_key(settings.llm_kb) != _endpoint_key(settings.llm):
        asked.append(("llm.kb", settings.llm_kb))
    asked = [(section, options) for section, options in asked if options.kind == "endpoint"]
    if not asked:
        return []
    findings: list[Finding] = []
    async with AsyncExitStack() as stack:
        db = await _open_writable_database(settings, stack)
        usage = UsageCounter(None if db is None else UsageLog(db), clock=SystemClock())
        stack.push_async_callback(save_usage, usage)
        for done, (section, options) in enumerate(asked):
            report_progress("Asking {total} model endpoints", done, len(asked))
            findings.extend(
                await _ask_endpoint(settings, section, options, usage, None if db is None else RequestFormStore(db))
            )
    return findings


def _endpoint_key(options: LlmOptions) -> tuple[object, ...]:
    return options.kind, options.base_url, options.api_key, options.model, options.structured_output


async def _open_writable_database(settings: Settings, stack: AsyncExitStack) -> Database | None:
    """Open the database, if there is one that can be written to."""
    try:
        made = await run_sync(is_made, settings)
        return await stack.enter_async_context(await open_database(settings)) if made else None
    except errors.KnowledgeError:
        return None  # the check of the folder reports the problem


async def _ask_endpoint(
    settings: Settings, section: str, options: LlmOptions, usage: UsageCounter, forms: RequestFormStore | None
) -> list[Finding]:
    # Learning may take its time.
    patience = settings.ai.request_timeout_seconds if section == "llm" else None
    try:
        async with EndpointModel(
            replace(options, max_retries=min(options.max_retries, _RETRIES)),
            templates=load_templates(settings),
            usage=usage,
            section=section,
            remember=build_form_saver(forms, options),
        ) as model:
            answered = await _ask_question(model, options, section, usage, patience)
            return [answered, *await inspect_server(model, options, section)]
    except errors.ConfigError as error:
        return [todo(_describe_no_answer(section, str(error)), _suggest_fix(section, error))]


async def _ask_question(
    model: EndpointModel, options: LlmOptions, section: str, usage: UsageCounter, patience: float | None
) -> Finding:
    began, before = anyio.current_time(), usage.sum_spending(usage.today()).tokens
    try:
        with anyio.fail_after(patience):
            await model.ask(GATE, _QUESTION)
            if model.form.system == SMALLEST.system and model.form.examples == SMALLEST.examples:
                await model.restore_fuller_form(GATE, _QUESTION)
    except TimeoutError:
        too_slow = f"no whole reply to one short question in {patience:g} s"
        return todo(_describe_no_answer(section, too_slow), "use a faster model, or raise ai.request_timeout_seconds")
    except errors.ModelBudgetError as error:
        return note(f"the model of [{section}] was not asked: {error}")
    except errors.ModelError as error:
        return todo(_describe_no_answer(section, str(error)), _suggest_fix(section, error))
    seconds, tokens = anyio.current_time() - began, usage.sum_spending(usage.today()).tokens - before
    by = "" if section == "llm" else f", for [{section}]"
    took = f" (one short question: {seconds:.1f} s, {tokens:,} tokens)"
    lacks = f"; it does not take {lost}, and is asked without" if (lost := model.form.describe()) else ""
    return good(f"the endpoint at {model.where} answers as {options.model}{by}{took}{lacks}")


def _describe_no_answer(section: str, reason: str) -> str:
    return f"the model of [{section}] gave no answer: {reason}"


def _suggest_fix(section: str, error: errors.ConfigError | errors.ModelError) -> str:
    match error:
        case errors.ModelReplyError():
            return (
                f"try another {section}.structured_output, a larger {section}.max_tokens or another {section}.model;"
                f" its reply could not be used: {error}"
            )
        case errors.ModelAccessError():
            return str(error)  # it names the settings to check
        case errors.ModelUnavailableError() if isinstance(error.__cause__, httpx.ConnectError):
            return f"start the endpoint, or check host and port in {section}.base_url: {error}"
        case errors.ModelUnavailableError() if _LOADING in str(error).lower():
            return f"wait until the server has loaded its model, then run `intern doctor` again: {error}"
        case errors.ModelUnavailableError():
            return (
                f"see that the endpoint runs, and check {section}.base_url; where it is only slow,"
                f" raise {section}.timeout_seconds: {error}"
            )
        case _:
            return str(error)


_NAMES: Final[Mapping[int, str]] = {
    permissions.VIEW_CHANNEL: "View Channel",
    permissions.READ_MESSAGE_HISTORY: "Read Message History",
    permissions.CREATE_PUBLIC_THREADS: "Create Public Threads",
    permissions.SEND_MESSAGES_IN_THREADS: "Send Messages in Threads",
    permissions.SEND_MESSAGES: "Send Messages",
    permissions.MENTION_EVERYONE: "Mention Everyone, Here, and All Roles",
}
_TO_LISTEN: Final = permissions.VIEW_CHANNEL | permissions.READ_MESSAGE_HISTORY
_TO_ANSWER: Final = _TO_LISTEN | permissions.SEND_MESSAGES_IN_THREADS
WANTED: Final = _TO_ANSWER | permissions.CREATE_PUBLIC_THREADS | permissions.SEND_MESSAGES
"""The fewest permissions that allow everything. Send Messages is only for sharing an answer to /ask."""


class DoctorReport(Struct, frozen=True, kw_only=True):
    """The findings of a check."""

    ok: bool
    """Nothing is left to do."""
    next: str
    """The one thing to do now."""
    invite: str
    """The link that puts intern on a server, with no more permissions than it needs."""
    findings: tuple[Finding, ...]


_OFF_AT_MOST: Final = 60
"""Seconds by which two clocks may differ."""


async def _check_clock(settings: Settings, clock: Clock) -> list[Finding]:
    """Compare this machine's clock with Discord's, or else with the endpoint's, if that gives a time."""
    whose, url = "the endpoint", settings.llm.base_url if settings.llm.kind == "endpoint" else ""
    if settings.discord.token:
        whose, url = "Discord", f"{settings.discord.rest_url.rstrip('/')}/gateway"
    try:
        async with open_client(url, timeout=_LONGEST_LOOK) as client:
            told = parsedate_to_datetime((await client.get(url)).headers["Date"])
    except (httpx.HTTPError, httpx.InvalidURL, KeyError, ValueError, errors.ConfigError):
        return []
    off = (clock.now() - told.replace(tzinfo=told.tzinfo or UTC)).total_seconds()
    if abs(off) <= _OFF_AT_MOST:
        return [good(f"the clock agrees with that of {whose}")]
    what = f"the clock of this machine is {abs(off):,.0f} s {'ahead of' if off > 0 else 'behind'} that of {whose}"
    return [todo(what, "set the clock, and keep it right with systemd-timesyncd, chrony or another NTP client")]


_LONGEST_LOOK: Final = 5.0  # seconds


async def examine(settings: Settings, clock: Clock | None = None) -> DoctorReport:
    """Check everything, ask each model one question, and ask Discord only with a token.

    Raises ConfigError for a wrong token, and ChatUnavailableError if Discord cannot be asked.
    """
    found = await setup.inspect_setup(settings.discord) if settings.discord.token else None
    asked = [*await ask_endpoints(settings), *await _check_vector_engine(settings)]
    times = await _check_clock(settings, clock or SystemClock())
    here = [
        _check_model_choice(settings),
        *asked,
        *map(note, settings.warnings),
        *times,
        *await run_sync(check_folder, settings),
    ]
    if found is None:
        invite, mend = "", "put the bot's token in INTERN__DISCORD__TOKEN or, as discord.token, in intern.toml"
        # Last: damage is worse than a missing setting.
        findings = [*here, todo("Discord was not looked at, for there is no token", mend)]
    else:
        invite = invite_link(found.application_id, settings.discord.site)
        servers = _ServerChecks(settings, found, invite)
        findings = [*servers.check_access(), *here, *servers.check_setup()]
    first = next((finding.do for finding in findings if finding.level == "todo"), "")
    following = first or "nothing; `intern run` can do its work"
    return DoctorReport(ok=not first, next=following, invite=invite, findings=tuple(findings))


def invite_link(application_id: str, site: str) -> str:
    """Return the link by which a server's manager adds intern."""
    return f"{site}/oauth2/authorize?client_id={application_id}&scope=bot+applications.commands&permissions={WANTED}"


class _ServerChecks:
    def __init__(self, settings: Settings, found: setup.PlatformSetup, invite: str) -> None:
        self._settings, self._discord = settings, settings.discord
        self._found, self._invite = found, invite

    def check_setup(self) -> Iterator[Finding]:
        joined, complete = self._found.joined, self._found.is_complete
        if self._settings.hosting.enabled:
            return  # servers set themselves up
        if complete:
            yield from self._check_team(joined)
        for server in joined:
            yield from self._check_permissions(server)
        if complete:
            yield from self._check_channels()
            yield from self._check_handoff(joined)

    def check_access(self) -> Iterator[Finding]:
        yield good("Discord accepts the token")
        if self._found.reads_messages:
            yield good("the Message Content Intent is on")
        else:
            yield todo(
                "the bot may not read messages",
                "switch on the Message Content Intent: https://discord.com/developers/applications/"
                f"{self._found.application_id}/bot, Privileged Gateway Intents",
            )
        choice = self._discord.shards
        if isinstance(choice, ShardChoice) and (mend := shard_advice(choice.of, self._found.shards)):
            yield todo("the bot has too few shards", mend)
        if self._settings.hosting.enabled:
            yield good("each server that invites the bot is served; `intern community` lists them")
        elif not self._discord.guild_ids:
            mend = 'set discord.guild_ids to the ids of your servers, as in guild_ids = ["123…"]'
            yield todo("no server is named", mend)
        for guild_id, server in self._found.servers.items():
            if server is None:
                yield todo(f"the bot is not on server {guild_id}", f"open this link and choose it: {self._invite}")
            else:
                yield good(f"the bot is on {server.name or guild_id}")

    def _check_team(self, servers: Sequence[setup.ServerSnapshot]) -> list[Finding]:
        if not (self._discord.team_role_ids or self._discord.team_member_ids):
            what = "no team is set"
            return [todo(what, "set discord.team_role_ids or discord.team_member_ids, or nothing is ever learned")]
        lost = [
            _report_unknown("role", role_id, "discord.team_role_ids")
            for role_id in self._discord.team_role_ids
            if not any(role_id in server.roles for server in servers)
        ]
        lost += [_report_unknown("member", user_id, "discord.team_member_ids") for user_id in self._found.lost_members]
        return lost or [good("the team is there")]

    def _check_channels(self) -> Iterator[Finding]:
        named = [(rule.id, "discord.channels") for rule in self._discord.channels]
        named += [(channel_id, "discord.listed_channel_ids") for channel_id in self._discord.listed_channel_ids]
        for channel_id, key in named:
            if channel_id in self._found.lost_channels:
                yield _report_unknown("channel", channel_id, key)

    def _check_handoff(self, servers: Sequence[setup.ServerSnapshot]) -> Iterator[Finding]:
        role_id = self._discord.handoff_role_id
        server = next((server for server in servers if role_id in server.roles), None)
        if server is not None:
            role = server.roles[role_id]
            mend = f"allow anyone to mention the role {role.name}, in the settings of {server.name}, Roles"
            may = role.mentionable or server.own_permissions() & permissions.MENTION_EVERYONE
            yield good(f"{role.name} can be mentioned") if may else todo(f"the bot may not mention {role.name}", mend)
        elif role_id:
            yield _report_unknown("role", role_id, "discord.handoff_role_id")

    def _check_permissions(self, server: setup.ServerSnapshot) -> Iterator[Finding]:
        lacking: dict[int, list[setup.NamedChannel]] = {}
        wishes: list[setup.NamedChannel] = []
        seen = 0
        for channel in server.channels:
            needed = self._permissions_for(server, channel)
            seen += bool(needed)
            ours = server.own_permissions(channel)
            if missing := needed & ~ours:
                lacking.setdefault(missing, []).append(channel)
            if (
                needed & permissions.SEND_MESSAGES_IN_THREADS
                and channel.is_text
                and not ours & permissions.SEND_MESSAGES
            ):
                wishes.append(channel)
        for missing, channels in lacking.items():
            everywhere = missing & ~server.own_permissions()
            mend = f"open this link again, and choose {server.name}: {self._invite}"
            if not everywhere:
                mend = f"allow it for the bot's role in the settings of {_list_channels(channels)}"
            yield todo(f"{_permission_names(missing)} is missing in {_list_channels(channels)}", mend)
        if wishes:
            yield note(f"Send Messages is missing in {_list_channels(wishes)}: answers to /ask cannot be shared there")
        if server.own_permissions() & permissions.ADMINISTRATOR:
            yield note(f"the bot is an administrator of {server.name}, and need not be")
        if not seen:
            mend = "open a channel to everyone, or name private ones in discord.listed_channel_ids"
            yield todo(f"no channel of {server.name} is open to everyone and not off", mend)
        elif not lacking:
            yield good(f"permissions suffice in {seen} channel{'s' if seen > 1 else ''} of {server.name}")

    def _permissions_for(self, server: setup.ServerSnapshot, channel: setup.NamedChannel) -> int:
        """Return the permissions that the bot needs in a channel; 0 for a channel that it ignores."""
        if not channel.holds_answers:
            return 0
        if not server.is_public(channel) and channel.id not in self._discord.listed_channel_ids:
            return 0
        mode = self._settings.conversations.channel_mode(Channel(id=channel.id, guild_id=server.id, kind="channel"))
        match mode:
            case "off":
                return 0
            case "capture_only":
                return _TO_LISTEN
            case "answer" | "mention_only":
                return _TO_ANSWER | (permissions.CREATE_PUBLIC_THREADS if channel.is_text else 0)


def _report_unknown(kind: str, lost_id: str, key: str) -> Finding:
    return todo(f"the bot finds no {kind} {lost_id} on its servers", f"correct or remove {lost_id} in {key}")


def _list_channels(channels: Sequence[setup.NamedChannel]) -> str:
    shown = ", ".join(f"#{channel.name or channel.id}" for channel in channels[:NAMED_AT_MOST])
    more = len(channels) - NAMED_AT_MOST
    return f"{shown} and {more} more" if more > 0 else shown


def _permission_names(bits: int) -> str:
    return ", ".join(name for bit, name in _NAMES.items() if bits & bit)
