"""Imports: exported history through the bot's own rules, and notes through the extractor.

Nothing is answered or posted. A second import of the same messages archives nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from anyio.to_thread import run_sync
from msgspec import Struct, json
from msgspec.structs import replace

from intern.chat.addressing import RecentLines
from intern.chat.batching import OpenBatches
from intern.chat.context import gather_context
from intern.chat.conversations import build_answer_request, build_capture, build_capture_requests, format_message
from intern.chat.dispatching import find_question_messages, is_addressed_to_bot, is_teaching, is_worth_gathering
from intern.chat.options import ConversationOptions
from intern.chat.platform import History
from intern.chat.reply_text import plain_line
from intern.core import progress
from intern.core.errors import ConfigError
from intern.core.flow import AnswerRequest, Batch, ChannelCaughtUp, MessageBackfilled
from intern.core.ids import ConversationId, MessageId, RoleId, UserId
from intern.core.messages import Channel
from intern.core.progress import report_progress
from intern.core.records import Capture, Turn
from intern.core.text.masking import mask_secrets
from intern.core.text.passages import split_passages
from intern.facts.prompts import EXTRACT, MAX_CONVERSATION_CHARS, build_extraction_input
from intern.facts.segments import Segment
from intern.learning.archiving import Archivist, ImportCounts, ImportPlan, RehearsalArchive, plan_import
from intern.learning.filing import DecisionCounts
from intern.platforms.discord.exports import (
    ExportedChannel,
    ExportedHistory,
    ExportedTeam,
    Exports,
    list_exported_roles,
    list_exports,
    read_exports,
)
from intern.service.databases import is_made, open_archive, open_read_only
from intern.service.intern import open_intern
from intern.service.models import build_token_counter
from intern.service.writer import NotesJob
from intern.settings.loading import Settings
from intern.stores.sqlite.extractions import ExtractionEntry
from intern.stores.sqlite.knowledge import KnowledgeStore

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

Tell = Callable[[str], None]

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
    tell: Tell = lambda _: None,
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
            kept += await intern.keep_imported(captures)
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
        check_server(place, settings)
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


async def find_batch_captures(
    batch: Batch, channel: Channel, history: History, options: ConversationOptions, *, follow_ups: bool = False
) -> list[Capture]:
    """Return the captures that the bot would have made of a batch of the team; with `follow_ups` of a member's."""
    if not (follow_ups or is_worth_gathering(batch, channel)):
        return []
    gathered = await gather_context(batch, channel, history, options.bounds, follow_ups=follow_ups)
    if not (follow_ups or is_teaching(batch, channel, gathered)):
        return []
    # The links to images in an export have mostly expired, so they are named and not described.
    return [build_capture(request) for request in build_capture_requests(batch, channel, gathered)]


async def find_batch_question(
    batch: Batch, channel: Channel, history: History, options: ConversationOptions
) -> AnswerRequest | None:
    """Return the question that the bot would have seen in a member's batch; None where it would stay silent."""
    if not is_worth_gathering(batch, channel):
        return None
    gathered = await gather_context(batch, channel, history, options.bounds)
    if not find_question_messages(batch, channel, gathered):
        return None
    return build_answer_request(
        batch, channel, gathered, options, addressed=is_addressed_to_bot(batch, channel, gathered)
    )


def form_batches(place: ExportedChannel, wait: float) -> Iterator[Batch]:
    """Yield the batches that would have formed, in the order in which they would have ended."""
    if not place.messages:
        return
    batches = OpenBatches(wait)
    written = [message.at.timestamp() for message in place.messages]
    now = max(written) + wait + 1  # long after
    for message, at in zip(place.messages, written, strict=True):
        batches.add(MessageBackfilled(message=message), now, now - at)
        yield from batches.take_due(now)
    batches.add(ChannelCaughtUp(channel_id=place.channel.id), now)
    yield from batches.flush()


def check_server(place: ExportedChannel, settings: Settings) -> None:
    """Raise ConfigError for the export of a server that the settings do not list."""
    served = settings.discord.guild_ids
    guild_id = place.channel.guild_id
    if served and guild_id not in served and not place.direct:
        raise ConfigError(
            f"channel {place.channel.id} was exported from server {guild_id}, which discord.guild_ids does not list; "
            "one data folder serves one community: name another config or data folder, or add the server"
        )


def find_exclusion_reason(place: ExportedChannel, settings: Settings) -> str | None:
    """Return the reason in words why nothing may be learned there; None if it may be.

    An export does not say whether everybody can read the channel: the person who imports it vouches for that.
    """
    channel = place.channel
    if place.direct:
        return "private messages"
    if channel.private and channel.id not in settings.discord.listed_channel_ids:
        return "messages in private threads"
    return "messages where the mode is off" if settings.conversations.channel_mode(channel) == "off" else None


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


# Characters of a section, and of a part of a note: it has to fit into a prompt, with the text around each section.
_SECTION = 2000
_PART = MAX_CONVERSATION_CHARS - 2000


class NoteFile(Struct, frozen=True, kw_only=True):
    """A file of notes on disk."""

    path: str
    """Its path in its folder, with `/` between folders."""
    text: str
    at: datetime
    """The time of its last change (UTC)."""


def folder_prefix(folder: str) -> str:
    """Return the beginning of the ids of a folder's notes."""
    return f"note_{_hash(folder, 8)}"


def split_note(note: NoteFile, folder: str) -> tuple[Segment, ...]:
    """Split a note into conversations, none if it is empty; secrets are masked."""
    text = mask_secrets(note.text.replace("\r\n", "\n")).text
    parts: list[list[str]] = []
    for passage in split_passages(text, _SECTION):
        if not parts or sum(map(len, parts[-1])) + len(passage.text) > _PART:
            parts.append([])
        parts[-1].append(passage.text)
    name = f"{folder_prefix(folder)}{_hash(note.path, 16)}"
    ids = [name if n == 0 else f"{name}_{n + 1}" for n in range(len(parts))]
    return tuple(
        Segment(
            id=ConversationId(part_id),
            origin="note",
            turns=tuple(Turn("Team", section) for section in sections),
            message_ids=tuple(MessageId(f"{part_id}_s{n + 1}") for n in range(len(sections))),
            last_message_at=note.at,
        )
        for part_id, sections in zip(ids, parts, strict=True)
    )


def find_removed_notes(
    known: Iterable[ConversationId], folder: str, present: Collection[ConversationId]
) -> list[ConversationId]:
    """Return the learned conversations of this folder that its notes no longer contain."""
    prefix = folder_prefix(folder)
    return [each for each in known if each.startswith(prefix) and each not in present]


def _hash(text: str, digits: int) -> str:
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:digits]


_MAX_BYTES = 1_000_000
# One model call each, so that a job ends soon.
_JOB_NOTES = 5
_REPLY = 600  # tokens of a reply, and
_FACT = 40  # of each existing fact beside it, generously


class NotesReadCounts(Struct, frozen=True, kw_only=True):
    """The number of conversations of notes by outcome."""

    extracted: int = 0
    """Read, and something was learned."""
    nothing: int = 0
    """Read, with nothing to learn."""
    unchanged: int = 0
    failed: int = 0
    """The model failed to read them; the next import tries again."""


class NotesImportResult(Struct, frozen=True, kw_only=True):
    """The outcome of an import of notes or of its rehearsal."""

    files: int
    new: int
    """Conversations that were not read before; a long file is several."""
    changed: int
    unchanged: int
    withdrawn: int
    """Conversations of files that were deleted or no longer contain them."""
    skipped: dict[str, str]
    """Unreadable files with their reasons."""
    model_calls: int
    """The upper bound of the calls."""
    tokens: int | None = None
    """The estimated tokens of prompts and replies; of a dry run."""
    read: NotesReadCounts | None = None
    """The outcome by conversation; None in a dry run."""


async def import_notes(settings: Settings, folder: Path, *, dry_run: bool = False) -> NotesImportResult:
    """Learn from the `*.md` files below a folder; a dry run changes nothing.

    Importing the same again costs nothing, a changed file replaces its old content, and the lessons of a deleted one
    are withdrawn. Raises ConfigError if the folder is missing, and the KnowledgeError and ModelError families;
    conversations read by then stay read.
    """
    notes, skipped = await run_sync(_read_folder, folder)
    name = str(await run_sync(folder.resolve))
    segments = [segment for note in notes for segment in await run_sync(split_note, note, name)]
    present = {segment.id for segment in segments}
    async with AsyncExitStack() as stack:
        known: dict[ConversationId, ExtractionEntry] = {}
        intern = None
        if not dry_run or await run_sync(is_made, settings):
            intern = await stack.enter_async_context(open_intern(settings))
            known = {
                entry.conversation_id: entry for entry in await intern.learned_knowledge.extractions.list_entries()
            }
        news = [segment for segment in segments if _needs_reading(segment, known)]
        # An existing file that cannot be read has not changed its content yet.
        lost = find_removed_notes(known, name, present) if not skipped else []
        asks = settings.kb_model.kind == "endpoint"
        planned = NotesImportResult(
            files=len(notes),
            new=sum(segment.id not in known for segment in news),
            changed=sum(segment.id in known for segment in news),
            unchanged=len(segments) - len(news),
            withdrawn=len(lost),
            skipped=skipped,
            model_calls=len(news) if asks else 0,
            tokens=await run_sync(_estimate_tokens, settings, news) if asks else 0,
        )
        if dry_run or intern is None:
            return planned
        done = Counter(unchanged=planned.unchanged)
        for start in range(0, len(news), _JOB_NOTES):
            report_progress("Reading {total} conversations", start, len(news))
            done.update(await intern.read_notes(NotesJob(notes=tuple(news[start : start + _JOB_NOTES]))))
        if lost:
            await intern.read_notes(NotesJob(withdrawn=tuple(lost)))
    return replace(
        planned, tokens=None, read=NotesReadCounts(**{end: done[end] for end in NotesReadCounts.__struct_fields__})
    )


def _needs_reading(segment: Segment, known: dict[ConversationId, ExtractionEntry]) -> bool:
    entry = known.get(segment.id)
    return entry is None or entry.content_hash != segment.content_hash or entry.error is not None


def _estimate_tokens(settings: Settings, segments: Sequence[Segment]) -> int:
    tokens_of = build_token_counter(settings, settings.kb_model)
    beside = _REPLY + _FACT * settings.extraction.existing_facts
    return sum(
        tokens_of(EXTRACT, build_extraction_input(each, each.make_pseudonyms(), ())) + beside for each in segments
    )


def _read_folder(folder: Path) -> tuple[list[NoteFile], dict[str, str]]:
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; name one with *.md files")
    notes: list[NoteFile] = []
    skipped: dict[str, str] = {}
    paths = sorted(folder.rglob("*.md"))
    for n, path in enumerate(paths):
        report_progress("Reading {total} files", n, len(paths))
        relative = path.relative_to(folder)
        if any(part.startswith(".") for part in relative.parts):
            continue
        name = relative.as_posix()
        try:
            # A link may lead to files outside of the notes.
            if path.is_symlink() or not path.is_file():
                continue
            stat = path.stat()
            if stat.st_size > _MAX_BYTES:
                skipped[name] = f"it is longer than {_MAX_BYTES} bytes"
                continue
            at = min(datetime.fromtimestamp(stat.st_mtime, UTC), datetime.now(UTC))
            notes.append(NoteFile(path=name, text=path.read_text(encoding="utf-8-sig"), at=at))
        except UnicodeDecodeError:
            skipped[name] = "it is not UTF-8 text"
        except OSError as error:
            skipped[name] = f"it cannot be read ({error.strerror})"
    return notes, skipped
