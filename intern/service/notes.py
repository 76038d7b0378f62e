"""Notes as conversations: each file is one in which the team speaks, and the same rules hold. Pure.

A file is known by its folder and its path in there. One that is too long for a call is several conversations.

Import of notes: a folder of Markdown files through the extractor, so that a community starts warm.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from pathlib import Path

from anyio.to_thread import run_sync
from msgspec import Struct

from intern.core.errors import ConfigError
from intern.core.ids import ConversationId, MessageId
from intern.core.progress import tell
from intern.core.records import Turn
from intern.core.text.masking import mask_secrets
from intern.core.text.passages import passages
from intern.facts.distilling import MAX_CONVERSATION_CHARS, given
from intern.facts.prompts import EXTRACT
from intern.facts.segments import Segment
from intern.service.costs import measure
from intern.service.extraction import NotesRead
from intern.service.intern import open_intern
from intern.settings.loading import Settings
from intern.stores.sqlite.extractions import Extraction

# Characters of a section, and of a part of a note: it has to fit into a prompt, with what stands around each section.
_SECTION = 2000
_PART = MAX_CONVERSATION_CHARS - 2000


class Note(Struct, frozen=True, kw_only=True):
    """A file of notes as it stands on disk."""

    path: str
    """In its folder, with `/` between folders."""
    text: str
    at: datetime
    """When it was last written (UTC)."""


def folder_prefix(folder: str) -> str:
    """How the ids of a folder's notes begin."""
    return f"note_{_hash(folder, 8)}"


def segments_of(note: Note, folder: str) -> tuple[Segment, ...]:
    """The conversations that a note is, none where it says nothing; secrets are masked."""
    text = mask_secrets(note.text.replace("\r\n", "\n")).text
    parts: list[list[str]] = []
    for passage in passages(text, _SECTION):
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


def gone(known: Iterable[ConversationId], folder: str, present: Collection[ConversationId]) -> list[ConversationId]:
    """Of the conversations that something was learned from, those of this folder's notes that are no more."""
    prefix = folder_prefix(folder)
    return [each for each in known if each.startswith(prefix) and each not in present]


def _hash(text: str, digits: int) -> str:
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:digits]


_MAX_BYTES = 1_000_000
# A call of a model each, so that a job ends soon.
_JOB_NOTES = 5
_REPLY = 600  # tokens of a reply, and
_FACT = 40  # of each existing fact beside it, generously


class ImportedNotes(Struct, frozen=True, kw_only=True):
    """How an import of notes went, or would go."""

    files: int
    new: int
    """Conversations that were not read before; a long file is several."""
    changed: int
    unchanged: int
    withdrawn: int
    """Conversations of files that are no more, or no longer say so much."""
    skipped: dict[str, str]
    """Files that cannot be read, and why."""
    model_calls: int
    """What it takes, at most."""
    tokens: int | None = None
    """Of prompts and replies, about; of a dry run."""
    read: NotesRead | None = None
    """None in a dry run."""


async def import_notes(settings: Settings, folder: Path, *, dry_run: bool = False) -> ImportedNotes:
    """Learn from the `*.md` files below a folder; a dry run changes nothing.

    Importing the same again costs nothing, a changed file takes the place of what it said, and what a deleted one
    taught is withdrawn. Raises ConfigError where there is no such folder, and the KnowledgeError and ModelError
    families; what was read by then stays so.
    """
    notes, skipped = await run_sync(_read_folder, folder)
    name = str(await run_sync(folder.resolve))
    segments = [segment for note in notes for segment in await run_sync(segments_of, note, name)]
    present = {segment.id for segment in segments}
    if dry_run and not await run_sync(settings.paths.database.exists):
        return await _planned(settings, segments, {}, files=len(notes), lost=(), skipped=skipped)
    async with open_intern(settings) as intern:
        known = {entry.conversation_id: entry for entry in await intern.extractions.entries()}
        # A file that is there and cannot be read has said nothing else yet.
        lost = gone(known, name, present) if not skipped else []
        planned = await _planned(settings, segments, known, files=len(notes), lost=lost, skipped=skipped)
        if dry_run:
            return planned
        done = NotesRead(unchanged=planned.unchanged)
        to_read = [segment for segment in segments if _is_news(segment, known)]
        for n, chunk in enumerate(_chunks(to_read)):
            tell("Reading {total} conversations", n * _JOB_NOTES, len(to_read))
            done += await intern.read_notes(chunk)
        if lost:
            await intern.read_notes((), withdrawn=lost)
    return ImportedNotes(
        files=planned.files,
        new=planned.new,
        changed=planned.changed,
        unchanged=planned.unchanged,
        withdrawn=planned.withdrawn,
        skipped=skipped,
        model_calls=planned.model_calls,
        read=done,
    )


def _is_news(segment: Segment, known: dict[ConversationId, Extraction]) -> bool:
    entry = known.get(segment.id)
    return entry is None or entry.content_hash != segment.content_hash or entry.error is not None


async def _planned(
    settings: Settings,
    segments: Sequence[Segment],
    known: dict[ConversationId, Extraction],
    *,
    files: int,
    lost: Sequence[ConversationId],
    skipped: dict[str, str],
) -> ImportedNotes:
    news = [segment for segment in segments if _is_news(segment, known)]
    asks = settings.kb_model.kind == "endpoint"
    return ImportedNotes(
        files=files,
        new=sum(segment.id not in known for segment in news),
        changed=sum(segment.id in known for segment in news),
        unchanged=len(segments) - len(news),
        withdrawn=len(lost),
        skipped=skipped,
        model_calls=len(news) if asks else 0,
        tokens=await run_sync(_tokens, settings, news) if asks else 0,
    )


def _tokens(settings: Settings, segments: Sequence[Segment]) -> int:
    tokens_of = measure(settings)
    beside = _REPLY + _FACT * settings.extraction.existing_facts
    return sum(tokens_of(EXTRACT, given(each, each.pseudonyms(), ())) + beside for each in segments)


def _read_folder(folder: Path) -> tuple[list[Note], dict[str, str]]:
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; name one with *.md files")
    notes: list[Note] = []
    skipped: dict[str, str] = {}
    paths = sorted(folder.rglob("*.md"))
    for n, path in enumerate(paths):
        tell("Reading {total} files", n, len(paths))
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
            notes.append(Note(path=name, text=path.read_text(encoding="utf-8-sig"), at=at))
        except UnicodeDecodeError:
            skipped[name] = "it is not UTF-8 text"
        except OSError as error:
            skipped[name] = f"it cannot be read ({error.strerror})"
    return notes, skipped


def _chunks(segments: Sequence[Segment]) -> Iterator[tuple[Segment, ...]]:
    left = iter(segments)
    while chunk := tuple(islice(left, _JOB_NOTES)):
        yield chunk
