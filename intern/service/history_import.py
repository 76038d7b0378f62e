"""Exported history, imported by the bot's own rules.

Nothing is answered or posted. A second import of the same messages archives nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from anyio.to_thread import run_sync
from msgspec import Struct, json
from msgspec.structs import replace

from intern.chat.addressing import RecentLines
from intern.chat.conversations import format_message
from intern.chat.options import ConversationOptions
from intern.chat.reply_text import plain_line
from intern.chat.routing import is_worth_gathering
from intern.core import progress
from intern.core.captures import Capture
from intern.core.errors import ConfigError
from intern.core.ids import RoleId, UserId
from intern.learning.archivist import Archivist
from intern.learning.filing import DecisionCounts
from intern.learning.importing import ImportCounts, ImportPlan, plan_import
from intern.learning.rehearsal_archive import RehearsalArchive
from intern.platforms.discord.exports import (
    ExportedChannel,
    ExportedHistory,
    ExportedTeam,
    Exports,
    list_exported_roles,
    list_exports,
    read_exports,
)
from intern.service.databases import open_archive, open_read_only
from intern.service.history_batches import find_batch_captures, find_exclusion_reason, form_batches
from intern.service.job_kinds import IMPORT
from intern.service.opening import open_intern
from intern.settings.settings import Settings
from intern.stores.tables.knowledge import KnowledgeStore

# For the lab, which replays imported history here.
__all__ = [
    "ConversationOptions",
    "ExportedChannel",
    "ExportedHistory",
    "Exports",
    "format_message",
    "is_worth_gathering",
]
__all__ += ["list_exports", "read_exports"]

Report = Callable[[str], None]

# A job lies in the database and is done between others: none of them should take long.
_JOB_CAPTURES = 25
_JOB_BYTES = 256 * 1024
_ROLES_SAID = 10


class ImportRequest(Struct, frozen=True, kw_only=True):
    """The options of an import."""

    files: tuple[Path, ...]
    """Files and folders with files."""
    team_ids: tuple[UserId, ...] = ()
    """Team members in addition to those of the settings."""
    team_role_ids: tuple[RoleId, ...] = ()
    since: datetime | None = None
    """Answers before this are context, and not captured."""


class ExportContents(Struct, frozen=True, kw_only=True):
    """The contents of the exports."""

    messages: int
    team_replies: int
    """Runs of a team member's messages, in the batches that the bot would have formed."""
    captures: tuple[Capture, ...]
    """In the order in which they would have been captured."""
    skipped: dict[str, int]
    """The number of skipped messages and team replies by reason."""


class ImportResult(Struct, frozen=True, kw_only=True):
    """The outcome of an import or of its rehearsal."""

    messages: int
    team_replies: int
    captured: int
    """Conversations with a question and a team answer."""
    archived: int
    joined: int
    known: int
    skipped: dict[str, int]
    refused: tuple[str, ...]
    """Files that were left out, each with the reason."""
    masked: dict[str, int]
    """Secrets that were not archived, by kind."""
    model_calls: int | None = None
    """The upper bound of the cost of filing them; of a dry run."""
    filed: DecisionCounts | None = None
    """The outcome of filing; None where nothing was filed, or the process that holds the folder does it."""
    without_vectors: int = 0
    """Passages that have no vector yet; 0 where the process that holds the folder makes them."""


async def import_history(
    settings: Settings,
    wanted: ImportRequest,
    *,
    dry_run: bool = False,
    vectors_within: float = math.inf,
    tell: Report = lambda _: None,
) -> ImportResult:
    """Import the files, archive first. A dry run changes nothing.

    `tell` gets a line after each step. Making vectors is limited to these seconds; words can be searched before. Raises
    ConfigError where none of the files can be imported, and the KnowledgeError and ModelError families; captures
    archived by then stay, and the next import continues there.
    """
    exports = await run_sync(read_exports, wanted.files, resolve_team(settings, wanted))
    tell(f"read {exports.messages} messages in {len(exports.channels)} channels and threads")
    found = await find_captures(exports, settings, since=wanted.since)
    rehearsed = await rehearse_import(found.captures, settings)
    tell(f"{found.team_replies} team replies; {len(rehearsed.captures)} conversations to archive")
    would = rehearsed.would
    kept, tally, missing = (would, None, 0) if dry_run else await _import_captures(rehearsed, settings, vectors_within)
    return ImportResult(
        messages=found.messages,
        team_replies=found.team_replies,
        captured=would.archived + would.joined + would.known,
        archived=kept.archived,
        joined=kept.joined,
        known=kept.known,
        skipped=found.skipped,
        refused=exports.refused,
        masked=dict(rehearsed.masked),
        model_calls=would.model_calls if dry_run else None,
        filed=tally,
        without_vectors=missing,
    )


async def _import_captures(
    rehearsed: ImportPlan, settings: Settings, vectors_within: float
) -> tuple[ImportCounts, DecisionCounts | None, int]:
    kept, whole, filed = ImportCounts(known=rehearsed.would.known), len(rehearsed.captures), 0

    def report_filed(decided: int) -> None:
        nonlocal filed
        filed = decided
        # Pairs that were archived before and wait are filed as well.
        progress.report_progress("Filing {total} conversations", decided, max(decided, kept.archived + kept.joined))

    def report_read(conversations: int) -> None:
        if settings.extraction.auto:
            progress.report_progress("Learning from {total} conversations", conversations, max(conversations, filed))

    async with open_intern(settings) as intern:
        for done, captures in _split_into_jobs(rehearsed.captures):
            kept += await intern.run_job(IMPORT, captures)
            progress.report_progress("Archiving {total} conversations", done, whole)
        tally = await intern.file_archived(report_filed, report_read, vectors_within=vectors_within)
        return kept, tally, await intern.count_without_vectors() if tally else 0


async def rehearse_import(captures: Sequence[Capture], settings: Settings) -> ImportPlan:
    """Find the additions that archiving the captures would make. Changes nothing. Raises KnowledgeError."""
    archive = await run_sync(lambda: open_archive(settings, open_read_only(settings)))
    await run_sync(archive.newest_time)  # reads it
    knowledge = await run_sync(lambda: KnowledgeStore(open_read_only(settings)))
    rehearsal, masked = RehearsalArchive(archive), Counter[str]()
    keeper = Archivist(
        rehearsal,
        # Masked here already: imported text may wait in the database for the process that holds the folder.
        mask=settings.kb.mask_secrets,
        mask_emails=settings.kb.mask_emails,
        is_withdrawn=knowledge.is_withdrawn,
        is_forgotten=knowledge.is_forgotten,
        masked=masked.update,
    )
    return replace(await plan_import(captures, archive, rehearsal, keeper), masked=dict(masked))


def resolve_team(settings: Settings, wanted: ImportRequest) -> ExportedTeam:
    """Find the team's ids: those of the settings, and those named for this import. Raises ConfigError."""
    team = ExportedTeam(
        member_ids=frozenset((*settings.discord.team_member_ids, *wanted.team_ids)),
        role_ids=frozenset((*settings.discord.team_role_ids, *wanted.team_role_ids)),
    )
    if not team.member_ids and not team.role_ids:
        raise ConfigError(
            "no team is set, so there is nothing to learn: name its members with --team-id or --team-role-id, "
            f"or set discord.team_member_ids or discord.team_role_ids. {_list_export_roles(wanted.files)}"
        )
    return team


def _list_export_roles(files: Sequence[Path]) -> str:
    found, refused = list_exported_roles(files)
    roles = [
        f"{role.id} {plain_line(role.name)} (members: {role.members}, messages: {role.messages})"
        for role in found[:_ROLES_SAID]
    ]
    said = f"Roles in the export: {', '.join(roles)}" if roles else "The export names no roles"
    return "\n".join((said, *(f"left out: {reason}" for reason in refused)))


async def find_captures(exports: Exports, settings: Settings, *, since: datetime | None = None) -> ExportContents:
    """Find the captures that the bot would have made. Raises ConfigError for a server that is not served."""
    options, history = settings.conversations, ExportedHistory(exports)
    captures: list[Capture] = []
    skipped = Counter({"notices of Discord's": exports.system, "messages that cannot be read": exports.unreadable})
    replies = looked_at = 0
    for place in exports.channels:
        check_exported_guild(place, settings)
        if reason := find_exclusion_reason(place, settings):
            skipped[reason] += len(place.messages)
            continue
        recent = RecentLines(options.bounds)
        recent.remember_history(place.channel.id, ())  # an export holds nothing older
        for batch in form_batches(place, options.message_batch_wait_seconds):
            looked_at += len(batch.messages)
            progress.report_progress("Looking through {total} messages", looked_at, max(looked_at, exports.messages))
            goes_on = recent.may_follow_up(batch) and not place.channel.is_thread
            early = since is not None and batch.last.at < since
            if batch.author.type == "team_member":
                replies += 1
                made = [] if early else await find_batch_captures(batch, place.channel, history, options)
                captures += made
                if not made:
                    skipped["team replies before --since" if early else "team replies that answer no member"] += 1
            elif goes_on and not early:
                captures += await find_batch_captures(batch, place.channel, history, options, follow_ups=True)
    left_out = {reason: number for reason, number in skipped.items() if number}
    return ExportContents(messages=exports.messages, team_replies=replies, captures=tuple(captures), skipped=left_out)


def check_exported_guild(place: ExportedChannel, settings: Settings) -> None:
    """Raise ConfigError for the export of a server that the settings do not list."""
    served = settings.discord.guild_ids
    guild_id = place.channel.guild_id
    if served and guild_id not in served and not place.direct:
        raise ConfigError(
            f"channel {place.channel.id} was exported from server {guild_id}, which discord.guild_ids does not list; "
            "one data folder serves one community: name another config or data folder, or add the server"
        )


def _split_into_jobs(captures: Sequence[Capture]) -> Iterator[tuple[int, Sequence[Capture]]]:
    """Split captures into parts that fit into a job, each with the number of captures up to its end."""
    start = size = 0
    for end, capture in enumerate(captures):
        weight = len(json.encode(capture))
        if end > start and (end - start >= _JOB_CAPTURES or size + weight > _JOB_BYTES):
            yield end, captures[start:end]
            start, size = end, 0
        size += weight
    if start < len(captures):
        yield len(captures), captures[start:]
