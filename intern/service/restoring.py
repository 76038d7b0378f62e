"""The database made anew from the text files of a folder, the text files of any database, and edits that people made.

These are the only ways from files back into the database.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Set as AbstractSet
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import cast

from anyio.to_thread import run_sync
from msgspec import Struct

from intern.core.clock import Clock
from intern.core.errors import ConfigError, KnowledgeError
from intern.core.ids import QAId, TopicName
from intern.core.records import Decision, Filed, Forgotten, Moved, Removed, TopicBlock, Withdrawn
from intern.learning.prompts import block_of, left_of
from intern.service.projection import TextFiles, note_written
from intern.settings.loading import Paths
from intern.stores.archive import Archive
from intern.stores.blocks import bare, parse_blocks, qa_id_of, time_of
from intern.stores.database import Database
from intern.stores.decisions import read_decisions
from intern.stores.files import FileLayer, unreadable
from intern.stores.library import Index, IndexCache, is_slug
from intern.stores.sqlite.extractions import move_to
from intern.stores.sqlite.knowledge import Change, Knowledge, next_position


class Restored(Struct, frozen=True, kw_only=True):
    """What was read from a folder."""

    pairs: int
    """Of the archive."""
    decisions: int
    topics: int
    sources: int
    damaged: tuple[str, ...] = ()
    """What was passed over."""


async def restore(db: Database, paths: Paths, folder: Paths, clock: Clock, follower: str) -> Restored:
    """Make the knowledge of an empty database from the text files of a folder, be it its own; ask no model.

    The `follower` of the decisions has seen them all then: what they tell of costs no call. Raises ConfigError where
    the database, or the archive beside it, is not empty, and KnowledgeError.
    """
    knowledge = await run_sync(partial(Knowledge, db, clock=clock))
    if await run_sync(lambda: knowledge.after(0, 1) or knowledge.names()):
        raise ConfigError(f"{paths.database} holds decisions or topics already; move it away to have it made anew")
    if folder.raw != paths.raw:
        await run_sync(_copy_archive, folder.raw, paths.raw)
    archive = await run_sync(partial(Archive, paths.raw, clock=clock))
    # What is in this folder and was not read may be a person's.
    there = await run_sync(lambda: list(_there(paths)) if folder.topics == paths.topics else [])

    def work(change: Change) -> Restored:
        for label, data in there:
            note_written(change.db, label, data, data)
        restored = _restore(change, folder, archive, clock.now())
        move_to(change.db, follower, str(next_position(change.db)))
        return restored

    restored = await knowledge.change(work)
    await TextFiles(knowledge, paths, clock).catch_up()
    return restored


def _copy_archive(source: Path, to: Path) -> None:
    if to.is_dir() and any(to.iterdir()):
        raise ConfigError(f"the archive {to} is not empty; move it away to have it replaced by {source}")
    beside = to.with_name(f".{to.name}.tmp")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(source, beside)
        if to.is_dir():
            to.rmdir()
        beside.rename(to)
    except OSError as error:
        raise KnowledgeError(f"{source} cannot be copied to {to} ({error}); check rights and disk") from error


def _there(paths: Paths) -> Iterator[tuple[str, bytes]]:
    """Yield the files that will be written, as they are: they are no edits, for the database was made from them."""
    layer = FileLayer()
    for name, data in _topics_in(paths.topics):
        yield f"topics/{name}.txt", data
    for path in (paths.index, paths.index_cache, paths.team_index, paths.team_index_cache, paths.state):
        yield path.name, layer.read(path) or b""


def _restore(change: Change, folder: Paths, archive: Archive, now: datetime) -> Restored:
    decisions, damaged = read_decisions(folder.decisions)
    change.decide(*decisions)
    gone = {bare(each) for said in decisions if isinstance(said, Withdrawn | Forgotten) for each in said.message_ids}
    decided = {time_of(each.qa_id) for each in decisions if not isinstance(each, Withdrawn | Forgotten)}
    placed = _placed(decisions)
    # A line that is lost may have said of a pair that it stands no more: then only what a topic file holds stands.
    complete = not any(each.line <= _lines_of(folder.decisions) for each in damaged)
    blocks: dict[datetime, TopicBlock] = {}
    for name, data in _topics_in(folder.topics):
        parsed = parse_blocks(data, file=f"{name}.txt")
        damaged = (*damaged, *parsed.warnings)
        blocks |= {block.timestamp: block for block in parsed.blocks}
        for time in {block.timestamp for block in parsed.blocks} - decided:
            placed[time] = name
    adopted = {time_of(each.qa_id) for each in decisions if isinstance(each, Filed) and each.reason == _ADOPTED}
    for time, name in sorted(placed.items()):
        block = blocks.get(time)
        if block is not None or complete:
            block = _standing(time, block, archive, gone, own_words=time in adopted)
        left = block
        if left is not None:
            change.put(name, left)
            if time not in decided:
                change.decide(Filed(qa_id=left.qa_id, topic=name, at=now, reason="it stood in its topic"))
    sources = 0
    for index, cache in (("kb", folder.index_cache), ("team", folder.team_index_cache)):
        known = IndexCache.load(cache).sources
        change.put_sources(cast("Index", index), known)
        sources += len(known)
    return Restored(
        pairs=len(archive),
        decisions=len(decisions),
        topics=len(change.names()),
        sources=sources,
        damaged=tuple(map(str, (*damaged, *archive.damaged))),
    )


def _lines_of(path: Path) -> int:
    """Return the number of whole lines: the last one may be torn, and was acknowledged to none."""
    return (FileLayer().read(path) or b"").count(b"\n")


def _placed(decisions: list[Decision]) -> dict[datetime, TopicName]:
    """Return the topic of each pair that stands, by the decisions: a killed process may have left older files."""
    placed: dict[datetime, TopicName] = {}
    for said in decisions:
        if isinstance(said, Withdrawn | Forgotten):
            continue
        placed.pop(time_of(said.qa_id), None)
        if isinstance(said, Filed | Moved):
            placed[time_of(said.qa_id)] = said.topic
        for removed in said.removed if isinstance(said, Filed) else ():
            placed.pop(time_of(removed), None)
    return placed


def _standing(
    time: datetime, block: TopicBlock | None, archive: Archive, gone: AbstractSet[str], *, own_words: bool
) -> TopicBlock | None:
    """Return a pair as the archive has it: its file may be older than a withdrawal. A person's words stay."""
    pair = archive.get(qa_id_of(time))
    if pair is None or (block is not None and own_words and gone.isdisjoint(map(bare, pair.message_ids))):
        return block
    left = left_of(pair, lambda each: bare(each) in gone)
    return None if left is None else block_of(left)


def _topics_in(folder: Path) -> Iterator[tuple[TopicName, bytes]]:
    """Yield the topic files; hidden and foreign files, folders and links are none."""
    try:
        entries = sorted(folder.iterdir()) if folder.exists() else []
        for entry in entries:
            if entry.suffix == ".txt" and is_slug(entry.stem) and entry.is_file() and not entry.is_symlink():
                yield TopicName(entry.stem), entry.read_bytes()
    except OSError as error:
        raise unreadable(folder, error) from error


async def export(knowledge: Knowledge, paths: Paths, to: Paths, clock: Clock) -> tuple[str, ...]:
    """Write all text files and the archive into a folder that is empty or not there; return their names.

    Raises ConfigError where the folder holds something, and KnowledgeError.
    """
    folder = to.data
    if await run_sync(lambda: folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ConfigError(f"{folder} is not empty; name a folder that is empty or not there yet")
    files = TextFiles(knowledge, to, clock, tracked=False)
    await files.catch_up()
    while await run_sync(files.is_behind):  # a bot at work has written meanwhile
        files = TextFiles(await run_sync(partial(Knowledge, knowledge.db, clock=clock)), to, clock, tracked=False)
        await files.catch_up()
    # Last: a decision is about a pair that the archive holds.
    if await run_sync(paths.raw.is_dir):
        await run_sync(_copy_archive, paths.raw, to.raw)
    return await run_sync(
        lambda: tuple(sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()))
    )


class Adopted(Struct, frozen=True, kw_only=True):
    """What was taken in from a topic file that a person edited."""

    topic: TopicName
    changed: tuple[QAId, ...]
    """With other words."""
    removed: tuple[QAId, ...]
    left_out: tuple[QAId, ...] = ()
    """In the edit, and as they were: they stand in no topic, or a message of theirs was withdrawn or forgotten."""


_ADOPTED = "a person edited the topic"


def adopt(
    change: Change, *, name: TopicName, path: Path, knowledge: Knowledge, archive: Archive, now: datetime
) -> Adopted:
    """Take in an edited topic from the file that is kept beside, as a decision of the team. Blocks.

    A pair that was filed after the edit, which cannot know of it, stays. Raises ConfigError where there is no edit, or
    it has what cannot be taken in, and KnowledgeError.
    """
    data = FileLayer().read(path)
    if data is None:
        raise ConfigError(f"there is no edited topic {path}; `intern doctor` lists those that there are")
    edited_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    blocks, damaged = parse_blocks(data, file=path.name)
    if damaged:
        raise ConfigError(f"{damaged[0]}; mend the file {path}, then adopt it again")
    pairs = {block.qa_id: archive.get(block.qa_id) for block in blocks}
    if unknown := [qa_id for qa_id, pair in pairs.items() if pair is None]:
        raise ConfigError(f"{path} has {unknown[0]}, and the archive does not; take it out, then adopt it again")
    lasting = {
        qa_id
        for qa_id, pair in pairs.items()
        if pair and change.topic_of(qa_id) and not any(map(knowledge.is_withdrawn, pair.message_ids))
    }
    before = {block.qa_id: block for block in change.read(name)}
    changed = [block for block in blocks if block.qa_id in lasting and before.get(block.qa_id) != block]
    removed = [
        qa_id
        for qa_id in before
        if qa_id not in pairs and (decided := knowledge.of(qa_id)) is not None and decided.at <= edited_at
    ]
    change.remove(removed)
    change.put(name, *changed)
    change.decide(
        *(Removed(qa_id=qa_id, at=now, reason=_ADOPTED) for qa_id in removed),
        *(Filed(qa_id=block.qa_id, topic=name, at=now, reason=_ADOPTED) for block in changed),
    )
    return Adopted(
        topic=name,
        changed=tuple(block.qa_id for block in changed),
        removed=tuple(removed),
        left_out=tuple(qa_id for qa_id in pairs if qa_id not in lasting and before.get(qa_id) is None),
    )
