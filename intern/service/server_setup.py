"""A server that invited the bot: its greeting, `/intern setup` and `/intern status`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from anyio.to_thread import run_sync

from intern.answering.wordings import Wordings
from intern.chat.phrases import ENGLISH, select_language
from intern.chat.platform import Outlet
from intern.core.clock import Clock
from intern.core.errors import ChatError, ConfigError
from intern.core.flow import GuildJoined, ServerCommand, SetupChanges, SetupCommand
from intern.core.ids import GuildId
from intern.core.log import get_logger
from intern.core.text.language import SPOKEN
from intern.service.community_registry import CommunityRegistry
from intern.service.sources import open_sources
from intern.service.status import FolderStatus, read_status
from intern.settings.communities import CommunityChoices
from intern.settings.settings import Settings

_log = get_logger(__name__)

_MOST_SHOWN = 10
_MODES: Final = {
    "answer": "answer and learn",
    "mention_only": "learn, and answer members who mention me",
    "capture_only": "learn only",
    "off": "nothing",
}


class ServerSetup:
    """Carries out the commands for the server of one community. A call does so and returns the reply."""

    def __init__(self, registry: CommunityRegistry, community: str, clock: Clock) -> None:
        self._registry, self._name, self._clock = registry, community, clock

    async def __call__(self, command: ServerCommand) -> str:
        """Do it for an authorised member. Raises KnowledgeError."""
        if isinstance(command, SetupCommand):
            return await self._set_up(command.wanted, command.interaction.guild_id)
        settings = await self._registry.settings(self._name)
        status = await run_sync(lambda: read_status(settings, clock=self._clock))
        sources = await run_sync(lambda: open_sources(settings, self._clock).list_all())
        pages = [each for each in sources if each.source_id.startswith("kb:")]
        troubles = [f"`{each.path}`: {each.last_error}" for each in sources if each.last_error]
        return "\n".join(
            [
                *_format_status(status, settings, len(pages)),
                *_format_lines("cannot be read", troubles),
                *_format_missing(settings),
            ]
        )

    async def _set_up(self, wanted: SetupChanges, guild_id: GuildId | None) -> str:
        if wanted.team_role is not None and str(wanted.team_role) == guild_id:  # the id of the role that everyone has
            return "Nothing was changed. The team cannot be everyone: then there would be no member to answer."
        try:
            if wanted != SetupChanges():
                await self._registry.choose(self._name, lambda chosen: _apply_setup(chosen, wanted))
        except ConfigError as error:
            return f"Nothing was changed. {error}"
        settings = await self._registry.settings(self._name)
        return "\n".join([*_format_setup(settings), *_format_missing(settings)])


def _apply_setup(chosen: CommunityChoices, wanted: SetupChanges) -> CommunityChoices:
    """Return the choices of a server with the requested changes. Raises ConfigError."""
    tables: dict[str, dict[str, Any]] = {section: dict(values) for section, values in chosen.items()}
    discord, kb = tables.setdefault("discord", {}), tables.setdefault("kb", {})
    _update_list(discord, "team_role_ids", add=wanted.team_role, remove=wanted.remove_team_role)
    if wanted.channel and not wanted.mode:
        raise ConfigError("A channel needs a mode: name both `channel` and `mode`.")
    if wanted.channel:
        rules = [rule for rule in discord.get("channels", ()) if rule["id"] != wanted.channel]
        own = [] if wanted.mode == "default" else [{"id": wanted.channel, "mode": wanted.mode}]
        discord["channels"] = [*rules, *own]
    elif wanted.mode and wanted.mode != "default":
        discord["default_mode"] = wanted.mode
    _update_list(kb, "links", add=wanted.document or None, remove=wanted.remove_document or None)
    if wanted.language:
        discord["language"] = wanted.language
    if wanted.review is not None:
        kb["review"] = wanted.review
    return {section: values for section, values in tables.items() if values}


def _update_list(table: dict[str, Any], key: str, *, add: str | None, remove: str | None) -> None:
    there = list(table.get(key, ()))
    if remove is not None and remove not in there:
        raise ConfigError(f"`{remove[:200]}` is not set, so it cannot be removed.")
    kept = [each for each in there if each not in {add, remove}]
    if add is not None or remove is not None:
        table[key] = [*kept, *([] if add is None else [add])]


def _format_setup(settings: Settings) -> Iterator[str]:
    discord, links = settings.discord, settings.kb.links
    yield "**Set up for this server**"
    yield f"- team: {', '.join(f'<@&{each}>' for each in discord.team_role_ids) or 'no role'}"
    yield f"- in channels: {_MODES[discord.default_mode]}"
    yield from _format_lines("but", [f"<#{rule.id}>: {_MODES[rule.mode]}" for rule in discord.channels])
    most = f" of {settings.hosting.sources}" if settings.hosting.sources else ""
    yield f"- documents: {len(links)}{most}"
    yield from _format_lines("page", [f"`{link}`" for link in links])
    yield f"- language: {discord.language}"
    yield f"- review: {'on: I learn what the team approved with a ✅' if settings.kb.review else 'off'}"


def _format_missing(settings: Settings) -> Iterator[str]:
    if not settings.discord.team_role_ids:
        yield "Missing: a team role. Until then I learn from no reply: `/intern setup team_role:`"
    if not settings.kb.links:
        yield "Missing: documents. Until then I answer from your team's replies only: `/intern setup document:`"


def _format_status(status: FolderStatus, settings: Settings, sources: int) -> Iterator[str]:
    counts, most = status.counts_today, settings.hosting.questions_per_day
    silent = counts.get("questions_silent", 0)
    yield "**Today (UTC)**"
    yield f"- {counts.get('questions_answered', 0)} questions answered, {silent} without an answer"
    if refused := status.refused_today:
        yield f"- {refused} questions beyond the limits" + (f" ({most} a day for this server)" if most else "")
    if settings.llm.daily_cost_budget and status.cost_today >= settings.llm.daily_cost_budget:
        yield "- the budget of the day is used up; it starts anew at 00:00 UTC"
    yield f"- waiting: {status.pending_posts} replies, {status.waiting} captures, {status.awaiting_review} for review"
    yield f"**Known**: {status.topics} topics from {status.archived} replies of the team, {sources} documents and pages"


def _format_lines(what: str, lines: list[str]) -> Iterator[str]:
    yield from (f"  - {what} {line}" for line in lines[:_MOST_SHOWN])
    if len(lines) > _MOST_SHOWN:
        yield f"  - and {len(lines) - _MOST_SHOWN} more"


def first_choice(joined: GuildJoined) -> CommunityChoices:
    """Return the first choices for a server, by its language on Discord."""
    language = joined.locale.partition("-")[0].lower()
    return {"discord": {"language": language}} if language in SPOKEN - {ENGLISH} else {}


async def greet_server(joined: GuildJoined, outlet: Outlet, wordings: Wordings) -> None:
    """Greet a server in the channel that Discord names for it, once, if the bot may write there."""
    if joined.greets_in is None:
        _log.info("server_not_greeted", guild_id=joined.guild_id, reason="it has no system channel")
        return
    language = first_choice(joined).get("discord", {}).get("language")
    try:
        await outlet.send(joined.greets_in, select_language(wordings, language).welcome, f"w{joined.guild_id}")
    except ChatError as error:
        _log.info("server_not_greeted", guild_id=joined.guild_id, reason=str(error))
