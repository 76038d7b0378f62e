"""Notes in Markdown, imported through the extractor as nuggets and facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from intern.core.captures import Turn
from intern.core.errors import ConfigError
from intern.core.ids import ConversationId, MessageId
from intern.core.progress import report_progress
from intern.core.text.masking import mask_secrets
from intern.core.text.passages import split_passages
from intern.facts.prompts import EXTRACT, MAX_CONVERSATION_CHARS, build_extraction_input
from intern.facts.segments import Pseudonyms, Segment
from intern.service.databases import is_made
from intern.service.job_kinds import IMPORT_NOTES, NotesJob
from intern.service.opening import open_intern
from intern.service.regeneration_estimate import build_token_counter
from intern.settings.settings import Settings
from intern.stores.tables.extractions import ExtractionEntry

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
            known = {entry.conversation_id: entry for entry in await intern.facts.extractions.list_entries()}
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
            read = await intern.run_job(IMPORT_NOTES, NotesJob(notes=tuple(news[start : start + _JOB_NOTES])))
            done.update(read)
        if lost:
            await intern.run_job(IMPORT_NOTES, NotesJob(withdrawn=tuple(lost)))
    return replace(
        planned, tokens=None, read=NotesReadCounts(**{end: done[end] for end in NotesReadCounts.__struct_fields__})
    )


def _needs_reading(segment: Segment, known: dict[ConversationId, ExtractionEntry]) -> bool:
    entry = known.get(segment.id)
    return entry is None or entry.content_hash != segment.content_hash or entry.error is not None


def _estimate_tokens(settings: Settings, segments: Sequence[Segment]) -> int:
    tokens_of = build_token_counter(settings, settings.kb_model)
    beside = _REPLY + _FACT * settings.extraction.existing_facts
    return sum(tokens_of(EXTRACT, build_extraction_input(each, Pseudonyms(each), ())) + beside for each in segments)


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
