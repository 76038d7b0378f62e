"""Promise 1 of the design, checked on a data folder: acknowledged messages are stored once and integrated once.

`Told` holds the team's messages of a test; the functions below compare it with the disk, and report faults in
sentences, for they also run outside of pytest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import apsw
import msgspec

from intern.core.captures import Capture, CapturedPair, Speaker, Turn
from intern.core.decisions import Decision, PairFiled, PairMoved, PairParked
from intern.core.flow import CaptureRequest
from intern.core.ids import (
    ChannelId,
    ConversationId,
    GuildId,
    MessageId,
    QAId,
    UserId,
    parse_position,
    position_at,
)
from intern.core.messages import Author, ChatMessage
from intern.service.databases import open_read_only
from intern.settings.settings import Paths, Settings
from intern.sources.catalogue import Catalogue
from intern.stores.archive import Archive, encode_decision
from intern.stores.block_format import parse_topic_file
from intern.stores.qa_ids import qa_id_time
from intern.stores.source_cache import IndexCache, format_index
from intern.stores.tables.knowledge import KnowledgeStore
from tests.worlds.samples import CHANNEL, GUILD, START

_AUTHORS = {
    "User": Author(id=UserId("7001"), name="alice", type="community_user"),
    "Team": Author(id=UserId("7002"), name="mira", type="team_member"),
}


class Taught(NamedTuple):
    """A capture: messages of a conversation, all of them or the one that was edited."""

    conversation: ConversationId
    messages: tuple[tuple[MessageId, Turn], ...]
    imported: bool = False
    """Whether a command brings it in a job, instead of a live event."""

    def capture(self) -> Capture:
        """Return the capture as a command brings it."""
        return Capture(
            conversation_id=self.conversation,
            turns=tuple(turn for _, turn in self.messages),
            message_ids=tuple(message_id for message_id, _ in self.messages),
            author_ids=tuple(_AUTHORS[turn.speaker].id for _, turn in self.messages),
            answered_at=parse_position(self.messages[-1][0]).time,
            guild_id=GuildId(GUILD),
            channel_id=ChannelId(CHANNEL),
        )

    def request(self) -> CaptureRequest:
        """Return the request as the router sends it."""
        return CaptureRequest(
            conversation_id=self.conversation,
            guild_id=GuildId(GUILD),
            channel_id=ChannelId(CHANNEL),
            messages=tuple(
                ChatMessage(
                    id=message_id,
                    guild_id=GuildId(GUILD),
                    channel_id=ChannelId(CHANNEL),
                    author=_AUTHORS[turn.speaker],
                    text=turn.text,
                    at=parse_position(message_id).time,
                )
                for message_id, turn in self.messages
            ),
            settles=tuple(message_id for message_id, _ in self.messages),
        )


class Deleted(NamedTuple):
    """Messages that were deleted on Discord."""

    message_ids: tuple[MessageId, ...]


class Forgotten(NamedTuple):
    """Messages to forget; with `erase`, in the archive, too."""

    message_ids: tuple[MessageId, ...]
    erase: bool = False


class Asked(NamedTuple):
    """A job of a command; no process waits for it."""

    kind: str


Act = Taught | Deleted | Forgotten | Asked
Messages = dict[MessageId, Turn]
Version = tuple[ConversationId | None, tuple[Turn, ...]]
"""The text of a pair or a block about a conversation."""


@dataclass
class Told:
    """The required contents of archive and topics."""

    messages: dict[ConversationId, Messages] = field(default_factory=dict[ConversationId, Messages])
    deleted: set[MessageId] = field(default_factory=set[MessageId])
    captures: Counter[Version] = field(default_factory=Counter[Version])
    """The archive's contents of each conversation, version by version."""
    written: defaultdict[MessageId, set[Turn]] = field(default_factory=lambda: defaultdict[MessageId, set[Turn]](set))
    """All texts that a message ever had."""

    def hear(self, act: Act) -> None:
        """Record an acknowledged act."""
        match act:
            case Taught(conversation=conversation, messages=messages):
                before = self.block(conversation)
                self.messages.setdefault(conversation, {}).update(messages)
                for message_id, turn in messages:
                    self.written[message_id].add(turn)
                after = self.block(conversation)
                if after and after != before:
                    self.captures[conversation, after] += 1
            case Deleted(message_ids=ids):
                self.deleted.update(ids)
            case Forgotten(message_ids=ids, erase=erase):
                self.deleted.update(ids)
                if erase:
                    self._erase(set[Turn]().union(*(self.written[each] for each in ids)))
            case Asked():
                pass

    def _erase(self, gone: set[Turn]) -> None:
        left = Counter[Version]()
        for (conversation, turns), count in self.captures.items():
            kept = tuple(turn for turn in turns if turn not in gone)
            left[conversation, kept] += count if kept else 0
        self.captures = left

    def block(self, conversation: ConversationId) -> tuple[Turn, ...]:
        """Return a topic's final content about a conversation: none without a question or without an answer."""
        known = self.messages.get(conversation, {})
        turns = tuple(known[each] for each in sorted(known, key=parse_position) if each not in self.deleted)
        return turns if {turn.speaker for turn in turns} == {"User", "Team"} else ()

    def also(self, act: Act | None) -> Told:
        """Return the same, with this act acknowledged, too."""
        other = deepcopy(self)
        if act is not None:
            other.hear(act)
        return other


class Community:
    """Invents events on Discord, by a seed: new answers mostly, fuller ones, edits, deletions; and jobs."""

    def __init__(self, random: Random, jobs: Sequence[str] = ()) -> None:
        self._random = random
        self._jobs = jobs
        self._said = 0

    def acts_after(self, told: Told, count: int) -> list[Act]:
        """Yield the possible next acts."""
        future, acts = deepcopy(told), list[Act]()
        while len(acts) < count:
            act = self._act(future)
            future.hear(act)
            acts.append(act)
        return acts

    def _act(self, told: Told) -> Act:
        random = self._random
        standing = [conversation for conversation in told.messages if told.block(conversation)]
        odds = [20, 8, 4, 4, 2, 2 if self._jobs else 0] if standing else [1, 0, 0, 0, 0, 0]
        kind = random.choices(["new", "fuller", "edit", "delete", "forget", "job"], odds)[0]
        job = random.choice(self._jobs) if kind == "job" else ""
        if job not in {"", "import"}:
            return Asked(job)
        if job or kind == "new":
            question, answer = self._turn("User"), self._turn("Team")
            return Taught(ConversationId(f"reply_{question[0]}"), (question, answer), imported=bool(job))
        conversation = random.choice(standing)
        left = [(each, turn) for each, turn in told.messages[conversation].items() if each not in told.deleted]
        if kind == "fuller":
            return Taught(conversation, (*left, self._turn(random.choice(["User", "Team"]))))
        message_id, turn = random.choice(left)
        if kind == "edit":
            return Taught(conversation, ((message_id, self._turn(turn.speaker)[1]),))
        return Deleted((message_id,)) if kind == "delete" else Forgotten((message_id,))

    def _turn(self, speaker: Speaker) -> tuple[MessageId, Turn]:
        """Make a unique text, so that rules take no two for equal, about one of a few subjects, so that topics fill."""
        self._said += 1
        random = self._random
        text = f"{random.choice(_SUBJECTS)}: {' '.join(random.choices(_WORDS, k=random.randint(10, 40)))}."
        if random.random() < 0.2:
            text += "\n\n--- QA ---\nid: qa_20200101_000000\nTeam: forged\n"
        return position_at(START + timedelta(seconds=self._said)).id, Turn(speaker, f"{text} No. {self._said}")


_SUBJECTS = ["Gpu driver docker", "Relay certificate rotation", "Spool disk quota", "Tenant login limits"]
_WORDS = [
    begun + ended
    for begun in ["bam", "dor", "fel", "gis", "hup", "jit", "kol", "lum", "nar", "pev"]
    for ended in ["ani", "ebo", "iku", "olt", "umr", "ast", "eki"]
]


def faults(settings: Settings, told: Told, maybe: Act | None = None) -> list[str]:
    """Return the faults of any moment, with or without a running bot: lost, doubled or half written data.

    `maybe` was not acknowledged, and may have been done or not.
    """
    paths = settings.paths
    found = [f"half written: {each}" for each in _damaged(paths)]
    archive, knowledge = Archive(paths.raw), KnowledgeStore(open_read_only(settings))
    pairs = {qa_id_time(pair.qa_id): pair for pair in archive.pairs_after(None)}
    found += _captured(pairs.values(), told, maybe)
    last = {time: decision for decision in knowledge.read_decisions() if (time := _time(decision)) is not None}
    for name in knowledge.topic_names():
        for block in knowledge.read_topic(name):
            pair, decision = pairs.get(qa_id_time(block.qa_id)), last.get(qa_id_time(block.qa_id))
            if pair is None:
                found.append(f"{name} holds {block.qa_id}, which was never archived")
            elif not set(block.turns) <= set(pair.turns):
                found.append(f"{name} holds {block.qa_id} with a text of its own")
            if not isinstance(decision, PairFiled | PairMoved) or decision.topic != name:
                found.append(f"{name} holds {block.qa_id}, and it was decided: {decision}")
    found += [f"{decision} is about no pair" for time, decision in last.items() if time not in pairs]
    return found + _in_database(paths)


def faults_in_the_end(settings: Settings, told: Told) -> list[str]:
    """Return the faults after all work is done: also missing or doubled blocks."""
    found = faults(settings, told)
    archive, knowledge = Archive(settings.paths.raw), KnowledgeStore(open_read_only(settings))
    blocks = [(name, block) for name in knowledge.topic_names() for block in knowledge.read_topic(name)]
    standing = Counter[Version]((block.conversation_id, block.turns) for _, block in blocks)
    owed = Counter[Version](
        {(conversation, block): 1 for conversation in told.messages if (block := told.block(conversation))}
    )
    found += [f"no topic holds {conversation}: {_brief(turns)}" for conversation, turns in owed - standing]
    found += [f"too many topics hold {conversation}: {_brief(turns)}" for conversation, turns in standing - owed]
    filed = {qa_id_time(block.qa_id): name for name, block in blocks}
    for pair in archive.pairs_after(None):
        decision, place = knowledge.last_decision(pair.qa_id), filed.get(qa_id_time(pair.qa_id))
        topic = decision.topic if isinstance(decision, PairFiled | PairMoved) else None
        if decision is None or isinstance(decision, PairParked) or topic != place:
            found.append(f"{pair.qa_id} stands in {place}, and it was decided: {decision}")
    return found + [f"{path} is not as the database has it" for path in _outdated(settings.paths, knowledge)]


def _damaged(paths: Paths) -> Iterator[str]:
    """Name the text files that hold incomplete records. A torn line of decisions was never acknowledged."""
    for path in paths.topics.glob("[!.]*.txt"):
        yield from map(str, parse_topic_file(path.read_bytes(), file=path.name).warnings)
    for path, kind in ((paths.team_index_cache, IndexCache), (paths.state, dict)):
        try:
            msgspec.json.decode(path.read_bytes(), type=kind)
        except FileNotFoundError:
            continue
        except msgspec.DecodeError as error:
            yield f"{path.name}: {error}"


def _outdated(paths: Paths, knowledge: KnowledgeStore) -> Iterator[Path]:
    """List the text files that differ from the database."""
    names, entries = knowledge.topic_names(), Catalogue(knowledge, "team").entries().values()
    wanted = {paths.topics / f"{name}.txt": knowledge.read_topic_file(name) for name in names}
    wanted[paths.decisions] = b"".join(map(encode_decision, knowledge.read_decisions()))
    wanted[paths.team_index] = format_index(entries).encode()
    if (cursor := knowledge.cursor()) is not None:
        wanted[paths.state] = msgspec.json.encode({"last_processed_qa_id": cursor}) + b"\n"
    for path, data in wanted.items():
        if (path.read_bytes() if path.exists() else b"") != data:
            yield path
    yield from {*paths.topics.glob("[!.]*")} - {*wanted}
    listed = sorted(entry.source_id for entry in entries)
    if listed != sorted(f"team:{name}.txt" for name in names):
        yield paths.team_index


def _captured(pairs: Iterable[CapturedPair], told: Told, maybe: Act | None) -> Iterator[str]:
    held = Counter[Version]((pair.conversation_id, pair.turns) for pair in pairs)
    either, other = told.captures, told.also(maybe).captures
    for conversation, turns in (either & other) - held:
        yield f"lost from the archive: {conversation} {_brief(turns)}"
    for conversation, turns in held - (either | other):
        yield f"archived too often: {conversation} {_brief(turns)}"


def _brief(turns: Sequence[Turn]) -> str:
    return ", ".join(f"{turn.speaker} {turn.text.rpartition(' No. ')[2]}" for turn in turns)


def _in_database(paths: Paths) -> list[str]:
    if not paths.database.exists():
        return []
    db: Any = apsw.Connection(str(paths.database), flags=apsw.SQLITE_OPEN_READWRITE)  # a check writes to an index
    try:
        said = str(db.pragma("integrity_check"))
    finally:
        db.close()
    return [] if said == "ok" else [f"the database says {said}"]


def _time(decision: Decision) -> datetime | None:
    qa_id: QAId | None = getattr(decision, "qa_id", None)
    return None if qa_id is None else qa_id_time(qa_id)
