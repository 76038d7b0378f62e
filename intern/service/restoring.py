"""The ways from files back into the database: a restore from text files, and the adoption of people's edits.

The text files of any database can be written to a folder, too.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Set as AbstractSet
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from anyio.to_thread import run_sync
from msgspec import Struct

from intern.core.captures import CapturedPair, TopicBlock
from intern.core.clock import Clock
from intern.core.decisions import Decision, MessagesForgotten, MessagesWithdrawn, PairFiled, PairMoved, PairRemoved
from intern.core.errors import ConfigError, KnowledgeError
from intern.core.ids import QAId, SourceId, TopicName
from intern.learning.forgetting import collect_identifying_texts
from intern.learning.prompts import build_block, strip_withdrawn
from intern.service.stores import ARCHIVE
from intern.service.text_files import FILES_OF, TextFiles
from intern.settings.settings import Paths
from intern.sources.refresh import describe_provisionally
from intern.stores.archive import Archive, parse_decisions
from intern.stores.block_format import BlockWarning, TopicFileContent, parse_topic_file
from intern.stores.database import Database
from intern.stores.files import FileLayer, unreadable_error
from intern.stores.qa_ids import bare_message_id, make_qa_id, qa_id_time
from intern.stores.source_cache import CachedSource, Index, IndexCache, content_hash, is_slug, topic_id
from intern.stores.tables.change_log import next_position
from intern.stores.tables.knowledge import KnowledgeChange, KnowledgeStore
from intern.stores.tables.positions import save_position
from intern.stores.tables.projected_files import record_projected_files


class RestoreResult(Struct, frozen=True, kw_only=True):
    """The contents read from a folder."""

    pairs: int
    """The number of pairs in the archive."""
    decisions: int
    topics: int
    sources: int
    damaged: tuple[str, ...] = ()
    """The damaged parts that were skipped."""


async def restore(db: Database, paths: Paths, folder: Paths, clock: Clock, *, follower: str) -> RestoreResult:
    """Fill an empty database with the knowledge from the text files of a folder, even its own; ask no model.

    All of it is one transaction: after a kill, running it again completes it. The `follower` has then seen all
    decisions: they cost no call. Raises ConfigError if the database, or the archive beside it, is not empty, and
    KnowledgeError.
    """
    knowledge = await run_sync(partial(KnowledgeStore, db, clock=clock))
    if await run_sync(lambda: knowledge.decisions_after(0, 1) or knowledge.topic_names()):
        raise ConfigError(f"{db.place} holds decisions or topics already; move it away to have it made anew")
    if folder.raw != paths.raw:
        await run_sync(copy_archive, folder.raw, paths.raw)
    archive = await run_sync(partial(Archive, paths.raw, clock=clock))
    files = TextFiles(knowledge, paths, traces=partial(collect_identifying_texts, archive, knowledge.is_withdrawn))
    read = await run_sync(_read_folder, folder, paths, files.layer)
    whole = [name for name, parsed in read.topics.items() if not parsed.warnings]
    # Files of this folder that were not read completely may be a person's, so they are kept beside.
    ours = await run_sync(files.read_file_states, whole) if folder.topics == paths.topics else {}

    def work(change: KnowledgeChange) -> RestoreResult:
        record_projected_files(change.db, ours)
        restored = _restore(change, read, archive, clock.now())
        save_position(change.db, follower, str(next_position(change.db)))
        save_position(change.db, ARCHIVE, "")
        return restored

    restored = await knowledge.change(work)
    await files.catch_up(*read.topics)
    return restored


def copy_archive(source: Path, to: Path) -> None:
    """Copy an archive's folder, if there is one, to an empty or a new one. Blocks."""
    if not source.is_dir():
        return
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


class _FolderContents(NamedTuple):
    """The contents of a folder's text files."""

    decisions: list[Decision]
    complete: bool
    """Whether the decisions lack no line, except a torn last one, which was never reported as saved."""
    topics: Mapping[TopicName, TopicFileContent]
    sources: Mapping[Index, Mapping[SourceId, CachedSource]]
    damaged: tuple[BlockWarning, ...]


def _read_folder(folder: Paths, own: Paths, layer: FileLayer) -> _FolderContents:
    """Read the text files of a folder; messages withdrawn or forgotten here stay so, however old that folder is."""
    data = layer.read(folder.decisions) or b""
    decisions, damaged = parse_decisions(data, folder.decisions.name)
    known = set(decisions)
    here = parse_decisions(layer.read(own.decisions) or b"", "")[0]
    decisions += [
        each for each in here if isinstance(each, MessagesWithdrawn | MessagesForgotten) and each not in known
    ]
    topics = {name: parse_topic_file(text, file=f"{name}.txt") for name, text in _read_topic_files(folder.topics)}
    return _FolderContents(
        decisions,
        all(each.line > data.count(b"\n") for each in damaged),
        topics,
        {index: IndexCache.load(getattr(folder, cache), files=layer).sources for index, (_, cache) in FILES_OF.items()},
        (*damaged, *chain.from_iterable(parsed.warnings for parsed in topics.values())),
    )


def _restore(change: KnowledgeChange, read: _FolderContents, archive: Archive, now: datetime) -> RestoreResult:
    decisions, damaged = read.decisions, read.damaged
    change.decide(*decisions)
    gone = {
        bare_message_id(each)
        for said in decisions
        if isinstance(said, MessagesWithdrawn | MessagesForgotten)
        for each in said.message_ids
    }
    last = {qa_id_time(each.qa_id): each for each in decisions if isinstance(each, PairFiled)}
    decided = {
        qa_id_time(each.qa_id) for each in decisions if not isinstance(each, MessagesWithdrawn | MessagesForgotten)
    }
    placed = _place_pairs(decisions)
    blocks: dict[datetime, TopicBlock] = {}
    for name, parsed in read.topics.items():
        blocks |= {block.timestamp: block for block in parsed.blocks}
        placed |= {block.timestamp: name for block in parsed.blocks if block.timestamp not in decided}
    unsure: list[str] = []
    for time, name in sorted(placed.items()):
        block, pair = blocks.get(time), archive.get(make_qa_id(time))
        # A lost line may have removed the pair or a message, also from the archive: then only the content of both is
        # valid.
        if not read.complete and (block is None or pair is None):
            if block is not None:
                unsure.append(f"{name}.txt: {block.qa_id} is not in the archive; a damaged decision may have erased it")
            continue
        own_words = time in last and last[time].reason == _ADOPTED and (read.complete or not _is_longer(block, pair))
        left = _current_block(block, pair, gone, own_words=own_words)
        if left is not None:
            change.file_blocks(name, left)
            if time not in decided:
                change.decide(PairFiled(qa_id=left.qa_id, topic=name, at=now, reason="it stood in its topic"))
    for index, sources in read.sources.items():
        change.update_sources(index, sources)
    team = read.sources["team"]
    names = {each.topic for each in decisions if isinstance(each, PairFiled | PairMoved)} | {*change.topic_names()}
    # A description may be of an earlier text, with messages that are deleted by now.
    outdated = [name for name in names if not _is_described(team.get(topic_id(name)), change.read_topic_file(name))]
    describe_provisionally(change, outdated, now)
    return RestoreResult(
        pairs=len(archive),
        decisions=len(decisions),
        topics=len(change.topic_names()),
        sources=sum(map(len, read.sources.values())),
        damaged=tuple(map(str, (*damaged, *unsure, *archive.damaged))),
    )


def _is_longer(block: TopicBlock | None, pair: CapturedPair | None) -> bool:
    return block is not None and pair is not None and len(block.turns) > len(pair.turns)


def _is_described(entry: CachedSource | None, data: bytes) -> bool:
    """Whether a topic's description belongs to exactly this text."""
    return entry is not None and not entry.summary_pending and entry.content_hash == content_hash(data.decode())


def _place_pairs(decisions: list[Decision]) -> dict[datetime, TopicName]:
    """Return the topic of each filed pair, by the decisions: a killed process may have left older files."""
    placed: dict[datetime, TopicName] = {}
    for said in decisions:
        if isinstance(said, MessagesWithdrawn | MessagesForgotten):
            continue
        placed.pop(qa_id_time(said.qa_id), None)
        if isinstance(said, PairFiled | PairMoved):
            placed[qa_id_time(said.qa_id)] = said.topic
        for removed in said.removed if isinstance(said, PairFiled) else ():
            placed.pop(qa_id_time(removed), None)
    return placed


def _current_block(
    block: TopicBlock | None, pair: CapturedPair | None, gone: AbstractSet[str], *, own_words: bool
) -> TopicBlock | None:
    """Return a pair as the archive has it, since its file may be older than a withdrawal. A person's words stay."""
    if pair is None or (block is not None and own_words and gone.isdisjoint(map(bare_message_id, pair.message_ids))):
        return block
    left = strip_withdrawn(pair, lambda each: bare_message_id(each) in gone)
    return None if left is None else build_block(left)


def _read_topic_files(folder: Path) -> Iterator[tuple[TopicName, bytes]]:
    """Yield the topic files; skip hidden and foreign files, folders and links."""
    try:
        entries = sorted(folder.iterdir()) if folder.exists() else []
        for entry in entries:
            if entry.suffix == ".txt" and is_slug(entry.stem) and entry.is_file() and not entry.is_symlink():
                yield TopicName(entry.stem), entry.read_bytes()
    except OSError as error:
        raise unreadable_error(folder, error) from error


async def export(knowledge: KnowledgeStore, copy: Callable[[Path], None], to: Paths) -> tuple[str, ...]:
    """Write all text files and the archive into an empty or a new folder; return their names.

    Raises ConfigError if the folder is not empty, and KnowledgeError.
    """
    folder = to.data
    if await run_sync(lambda: folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ConfigError(f"{folder} is not empty; name a folder that is empty or not there yet")
    await TextFiles(knowledge, to, tracked=False).catch_up()
    # Last, so that the copy holds the pair of every decision.
    await run_sync(copy, to.raw)
    return await run_sync(
        lambda: tuple(sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()))
    )


class TopicAdoption(Struct, frozen=True, kw_only=True):
    """The changes taken from a topic file that a person edited."""

    topic: TopicName
    changed: tuple[QAId, ...]
    """The pairs with other words."""
    removed: tuple[QAId, ...]
    left_out: tuple[QAId, ...] = ()
    """Ignored pairs of the edit: they are in no topic, or one of their messages was withdrawn or forgotten."""


_ADOPTED = "a person edited the topic"


def adopt(
    change: KnowledgeChange, *, name: TopicName, path: Path, data: bytes, knowledge: KnowledgeStore, archive: Archive
) -> TopicAdoption:
    """Apply an edited topic as a decision of the team. Blocks.

    A pair that was filed after the edit, which cannot contain it, stays. Raises ConfigError if the edit cannot be
    applied, and KnowledgeError.
    """
    now, edited_at = knowledge.clock.now(), datetime.fromtimestamp(path.stat().st_mtime, UTC)
    blocks, damaged = parse_topic_file(data, file=path.name)
    if damaged:
        raise ConfigError(f"{damaged[0]}; mend the file {path}, then adopt it again")
    pairs = {block.qa_id: archive.get(block.qa_id) for block in blocks}
    if unknown := [qa_id for qa_id, pair in pairs.items() if pair is None]:
        raise ConfigError(f"{path} has {unknown[0]}, and the archive does not; take it out, then adopt it again")

    lasting = {
        qa_id
        for qa_id, pair in pairs.items()
        if pair and change.find_topic(qa_id) and not any(map(knowledge.is_withdrawn, pair.message_ids))
    }
    before = {block.qa_id: block for block in change.read_topic(name)}
    changed = [block for block in blocks if block.qa_id in lasting and before.get(block.qa_id) != block]
    removed = [
        qa_id
        for qa_id in before
        if qa_id not in pairs and (decided := knowledge.last_decision(qa_id)) is not None and decided.at <= edited_at
    ]
    change.remove_blocks(removed)
    change.file_blocks(name, *changed)
    change.decide(
        *(PairRemoved(qa_id=qa_id, at=now, reason=_ADOPTED) for qa_id in removed),
        *(PairFiled(qa_id=block.qa_id, topic=name, at=now, reason=_ADOPTED) for block in changed),
    )
    return TopicAdoption(
        topic=name,
        changed=tuple(block.qa_id for block in changed),
        removed=tuple(removed),
        left_out=tuple(qa_id for qa_id in pairs if qa_id not in lasting and before.get(qa_id) is None),
    )
