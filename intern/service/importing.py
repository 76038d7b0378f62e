"""Import of history: exports through the rules that the bot works by, with the clock of the messages.

Nothing is answered and nothing is posted. What is imported twice is archived once.
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

from intern.chat.addressing import Recent
from intern.chat.batching import Batches
from intern.chat.context import gather
from intern.chat.conversations import capture_of, capture_requests
from intern.chat.options import ConversationOptions
from intern.chat.routing import facts_of, route, worth_gathering
from intern.core import progress
from intern.core.errors import ConfigError
from intern.core.flow import Batch, ChannelRead, MessageRead
from intern.core.ids import RoleId, UserId
from intern.core.records import Capture
from intern.learning.archiving import Archivist, Kept, Rehearsal, Rehearsed, rehearse
from intern.learning.attempts import Tally
from intern.platforms.discord.exports import ExportedChannel, ExportedHistory, ExportedTeam, Exports, read_exports
from intern.service.intern import open_intern
from intern.settings.loading import Settings
from intern.stores.archive import Archive
from intern.stores.decisions import DecisionLog

Tell = Callable[[str], None]

# A job lies in the database and is done between others: none of them should take long.
_JOB_CAPTURES = 25
_JOB_BYTES = 256 * 1024


class Wanted(Struct, frozen=True, kw_only=True):
    """What to import."""

    files: tuple[Path, ...]
    team_ids: tuple[UserId, ...] = ()
    """Beside those of the settings."""
    team_role_ids: tuple[RoleId, ...] = ()
    since: datetime | None = None
    """Answers before this are context, and not captured."""


class Found(Struct, frozen=True, kw_only=True):
    """What the exports hold."""

    messages: int
    team_replies: int
    """Runs of messages that a team member wrote, as the bot would have taken them together."""
    captures: tuple[Capture, ...]
    """In the order in which they would have been captured."""
    skipped: dict[str, int]
    """What was passed over: messages and team replies by reason."""


class Imported(Struct, frozen=True, kw_only=True):
    """How an import went, or would go."""

    messages: int
    team_replies: int
    captured: int
    """Conversations with a question and an answer of the team's."""
    archived: int
    joined: int
    known: int
    skipped: dict[str, int]
    masked: dict[str, int]
    """Secrets that were kept out of the archive, by kind."""
    model_calls: int | None = None
    """What filing them would cost at most; of a dry run."""
    filed: Tally | None = None
    """What filing did; None where nothing was filed, or the process that holds the folder does it."""
    without_vectors: int = 0
    """Passages that have no vector yet; 0 where the process that holds the folder makes them."""


async def import_history(
    settings: Settings,
    wanted: Wanted,
    *,
    dry_run: bool = False,
    vectors_within: float = math.inf,
    tell: Tell = lambda _: None,
) -> Imported:
    """Import the files, archive first. A dry run changes nothing.

    `tell` gets a line after each step. Vectors are made for at most so many seconds; words can be searched before.
    Raises ConfigError for files that cannot be imported, and the KnowledgeError and ModelError families; what is
    archived by then stays so, and importing once more goes on from there.
    """
    exports = await run_sync(read_exports, wanted.files, team_of(settings, wanted))
    tell(f"read {exports.messages} messages in {len(exports.channels)} channels and threads")
    found = await find_captures(exports, settings, since=wanted.since)
    rehearsed = await rehearse_import(found.captures, settings)
    tell(f"{found.team_replies} team replies; {len(rehearsed.captures)} conversations to archive")
    would = rehearsed.would
    kept, tally, missing = (would, None, 0) if dry_run else await _import(rehearsed, settings, vectors_within)
    return Imported(
        messages=found.messages,
        team_replies=found.team_replies,
        captured=would.archived + would.joined + would.known,
        archived=kept.archived,
        joined=kept.joined,
        known=kept.known,
        skipped=found.skipped,
        masked=dict(rehearsed.masked),
        model_calls=would.model_calls if dry_run else None,
        filed=tally,
        without_vectors=missing,
    )


async def _import(rehearsed: Rehearsed, settings: Settings, vectors_within: float) -> tuple[Kept, Tally | None, int]:
    kept, whole, filed = Kept(known=rehearsed.would.known), len(rehearsed.captures), 0

    def tell_filed(decided: int) -> None:
        nonlocal filed
        filed = decided
        # What was archived before and waits is filed as well.
        progress.tell("Filing {total} conversations", decided, max(decided, kept.archived + kept.joined))

    def tell_read(conversations: int) -> None:
        if settings.extraction.auto:
            progress.tell("Learning from {total} conversations", conversations, max(conversations, filed))

    async with open_intern(settings) as intern:
        for done, captures in _chunks(rehearsed.captures):
            kept += await intern.keep_imported(captures)
            progress.tell("Archiving {total} conversations", done, whole)
        tally = await intern.file_archived(tell_filed, tell_read, vectors_within=vectors_within)
        return kept, tally, await intern.without_vectors() if tally else 0


async def rehearse_import(captures: Sequence[Capture], settings: Settings) -> Rehearsed:
    """What archiving the captures would add. Reads the data folder and changes nothing. Raises KnowledgeError."""
    archive, decisions = await run_sync(lambda: (Archive(settings.paths.raw), DecisionLog(settings.paths.decisions)))
    rehearsal, masked = Rehearsal(archive), Counter[str]()
    keeper = Archivist(
        rehearsal,
        # Masked here already: what is imported may wait in the database for the process that holds the folder.
        mask=settings.kb.mask_secrets,
        mask_emails=settings.kb.mask_emails,
        is_withdrawn=decisions.is_withdrawn,
        is_forgotten=decisions.is_forgotten,
        masked=masked.update,
    )
    return replace(await rehearse(captures, archive, rehearsal, keeper), masked=dict(masked))


def team_of(settings: Settings, wanted: Wanted) -> ExportedTeam:
    """Whose answers are the team's: those of the settings, and those named for this import. Raises ConfigError."""
    team = ExportedTeam(
        member_ids=frozenset((*settings.discord.team_member_ids, *wanted.team_ids)),
        role_ids=frozenset((*settings.discord.team_role_ids, *wanted.team_role_ids)),
    )
    if not team.member_ids and not team.role_ids:
        raise ConfigError(
            "no team is set, so there is nothing to learn: name its members with --team-id or --team-role-id, "
            "or set discord.team_member_ids or discord.team_role_ids"
        )
    return team


async def find_captures(exports: Exports, settings: Settings, *, since: datetime | None = None) -> Found:
    """The captures that the bot would have made. Raises ConfigError for the export of a server that is not served."""
    options, history = settings.conversations, ExportedHistory(exports)
    captures: list[Capture] = []
    skipped: dict[str, int] = {}
    replies = looked_at = 0

    def skip(reason: str, number: int = 1) -> None:
        if number:
            skipped[reason] = skipped.get(reason, 0) + number

    skip("notices of Discord's", exports.system)
    skip("messages that cannot be read", exports.unreadable)
    for place in exports.channels:
        check_server(place, settings)
        if reason := closed(place, settings):
            skip(reason, len(place.messages))
            continue
        recent = Recent(options.bounds)
        recent.look_back(place.channel.id, ())  # an export holds nothing older
        for batch in batches_of(place, options.message_batch_wait_seconds):
            looked_at += len(batch.messages)
            progress.tell("Looking through {total} messages", looked_at, max(looked_at, exports.messages))
            goes_on = recent.may_go_on(batch) and not place.channel.is_thread
            early = since is not None and batch.last.at < since
            if batch.author.type == "team_member":
                replies += 1
                made = [] if early else await _captures(batch, place, history, options)
                captures += made
                skip("team replies before --since" if early else "team replies that answer no member", not made)
            elif goes_on and not early:
                captures += await _follow_ups(batch, place, history, options)
    return Found(messages=exports.messages, team_replies=replies, captures=tuple(captures), skipped=skipped)


async def _captures(
    batch: Batch, place: ExportedChannel, history: ExportedHistory, options: ConversationOptions
) -> list[Capture]:
    channel = place.channel
    if not worth_gathering(batch, channel, answered_in_thread=False):
        return []
    gathered = await gather(batch, channel, history, options.bounds)
    if route(batch, channel, facts_of(batch, gathered, answered_in_thread=False)) != "capture":
        return []
    # The links to images in an export have mostly expired, so they are named and not looked at.
    return [capture_of(request) for request in capture_requests(batch, channel, gathered)]


async def _follow_ups(
    batch: Batch, place: ExportedChannel, history: ExportedHistory, options: ConversationOptions
) -> list[Capture]:
    gathered = await gather(batch, place.channel, history, options.bounds, follow_ups=True)
    return [capture_of(request) for request in capture_requests(batch, place.channel, gathered)]


def batches_of(place: ExportedChannel, wait: float) -> Iterator[Batch]:
    """The batches that would have formed, in the order in which they would have been settled."""
    if not place.messages:
        return
    batches = Batches(wait)
    written = [message.at.timestamp() for message in place.messages]
    now = max(written) + wait + 1  # long after
    for message, at in zip(place.messages, written, strict=True):
        batches.add(MessageRead(message=message), now, now - at)
        yield from batches.due(now)
    batches.add(ChannelRead(channel_id=place.channel.id), now)
    yield from batches.flush()


def check_server(place: ExportedChannel, settings: Settings) -> None:
    """Raises ConfigError for the export of a server that the settings do not list."""
    served = settings.discord.guild_ids
    guild_id = place.channel.guild_id
    if served and guild_id not in served and not place.direct:
        raise ConfigError(
            f"channel {place.channel.id} was exported from server {guild_id}, which discord.guild_ids does not list; "
            "one data folder serves one community: name another config or data folder, or add the server"
        )


def closed(place: ExportedChannel, settings: Settings) -> str | None:
    """Why nothing may be learned there, in words; None where it may be.

    An export does not say whether everybody can read the channel: the person who imports it vouches for that.
    """
    channel = place.channel
    if place.direct:
        return "private messages"
    if channel.private and channel.id not in settings.discord.listed_channel_ids:
        return "messages in private threads"
    return "messages where the mode is off" if settings.conversations.mode_of(channel) == "off" else None


def _chunks(captures: Sequence[Capture]) -> Iterator[tuple[int, Sequence[Capture]]]:
    """Parts that fit into a job, each with how many captures there are up to its end."""
    start = size = 0
    for end, capture in enumerate(captures):
        weight = len(json.encode(capture))
        if end > start and (end - start >= _JOB_CAPTURES or size + weight > _JOB_BYTES):
            yield end, captures[start:end]
            start, size = end, 0
        size += weight
    if start < len(captures):
        yield len(captures), captures[start:]
