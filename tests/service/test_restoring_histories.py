"""After any history, the database can be made anew from the text files, and writes the same text files again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync
from hypothesis import HealthCheck, given, settings as bounded, strategies as st
from msgspec.structs import replace

from intern.core.captures import CapturedPair, TopicBlock
from intern.core.decisions import (
    MessagesForgotten,
    MessagesWithdrawn,
    PairFiled,
    PairMoved,
    PairRemoved,
    PairReplaced,
    PairSkipped,
)
from intern.core.ids import SourceId, TopicName
from intern.learning.prompts import build_block, strip_withdrawn
from intern.learning.withdrawing import remove_messages
from intern.service.extraction import FOLLOWER
from intern.service.hidden_files import find_edited_files
from intern.service.restoring import copy_archive, export, restore
from intern.service.text_files import TextFiles
from intern.settings.settings import Paths
from intern.sources.refresh import describe_provisionally
from intern.stores.archive import Archive
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.source_cache import CachedFile, content_hash, topic_id
from intern.stores.tables.knowledge import KnowledgeChange, KnowledgeDraft, KnowledgeStore
from tests.worlds import samples
from tests.worlds.clock import HandClock
from tests.worlds.disk import tree
from tests.worlds.knowledge import knowledge_in
from tests.worlds.samples import START

GPU, NODE, THIRD = TOPICS = tuple(map(TopicName, ("gpu", "node", "third")))
PAIRS = 5


def lose_database(folder: Path) -> None:
    for each in folder.glob("intern.db*"):
        each.unlink()


# A history of all kinds of decisions, restored and exported.


class History:
    """Pairs of three messages in an archive, and decisions about them."""

    def __init__(self, folder: Path, knowledge: KnowledgeStore) -> None:
        self.knowledge = knowledge
        self.archive = Archive(Paths(folder).raw, clock=knowledge.clock)
        self.pairs = [self.archive.append(self._capture(n)) for n in range(PAIRS)]

    @staticmethod
    def _capture(n: int) -> Any:
        more = samples.capture(f"And what of {n}?", "", n=10 * n + 5)
        one = samples.capture(f"How do I {n}?\n--- QA ---", f"Like {n}.", n=10 * n, conversation=f"thread_{n}")
        return replace(one, turns=(*one.turns, more.turns[0]), message_ids=(*one.message_ids, more.message_ids[0]))

    def left(self, n: int) -> CapturedPair | None:
        return strip_withdrawn(self.pairs[n], self.knowledge.is_withdrawn)

    async def act(self, kind: str, n: int, topic: TopicName, others: frozenset[int]) -> None:
        pair, now = self.pairs[n], self.knowledge.clock.now()
        if kind in ("withdraw", "forget"):
            gone = tuple(pair.message_ids[each] for each in others if each < 3)
            said = (MessagesWithdrawn if kind == "withdraw" else MessagesForgotten)(message_ids=gone, at=now)

            def out(change: KnowledgeChange) -> None:
                cleared = remove_messages(self.knowledge, self.archive, said, gone, change)
                describe_provisionally(change, cleared.topics, now)

            await self.knowledge.change(out)
        elif kind == "regenerate":
            await self._regenerate(topic, others)
        else:
            await self.knowledge.change(partial(self._decide, kind, n, topic, others))

    def _decide(self, kind: str, n: int, topic: TopicName, others: frozenset[int], change: KnowledgeChange) -> None:
        qa_id, now, left = self.pairs[n].qa_id, self.knowledge.clock.now(), self.left(n)
        if kind == "file" and left is not None:
            removed = [self.pairs[each].qa_id for each in others if each != n]
            change.remove_blocks(removed)
            change.file_blocks(topic, build_block(left))
            change.decide(PairFiled(qa_id=qa_id, topic=topic, removed=tuple(removed), at=now))
        elif kind == "move" and change.find_topic(qa_id) is not None and left is not None:
            change.file_blocks(topic, build_block(left))
            change.decide(PairMoved(qa_id=qa_id, topic=topic, at=now))
        elif kind == "skip" and change.find_topic(qa_id) is None:
            change.decide(PairSkipped(qa_id=qa_id, at=now, reason="ü\u2028"))
        elif kind == "replace" and change.remove_blocks([qa_id]):
            change.decide(PairReplaced(qa_id=qa_id, by=self.pairs[-1].qa_id, at=now))
        elif kind == "edit" and change.find_topic(qa_id) == topic and left is not None and left is self.pairs[n]:
            change.file_blocks(topic, replace(build_block(left), turns=left.turns[:2]))
            change.decide(PairFiled(qa_id=qa_id, topic=topic, at=now, reason="a person edited the topic"))

    async def _regenerate(self, topic: TopicName, others: frozenset[int]) -> None:
        draft, now = KnowledgeDraft(self.knowledge), self.knowledge.clock.now()
        for n in range(PAIRS):
            left = self.left(n)
            if left is None:
                await draft.change(partial(_drop, PairRemoved(qa_id=self.pairs[n].qa_id, at=now)))
            elif n in others:
                await draft.change(partial(_drop, PairSkipped(qa_id=self.pairs[n].qa_id, at=now)))
            else:
                await draft.change(partial(_file, build_block(left), topic))
        await self.knowledge.change(lambda change: change.switch_to_draft(draft.list_decisions()))

    async def index(self) -> None:
        """List all, as indexing does."""

        def work(change: KnowledgeChange) -> None:
            put = {topic_id(name): _entry(name, change.read_topic_file(name)) for name in change.topic_names()}
            gone = [topic_id(name) for name in TOPICS if name not in change.topic_names()]
            change.update_sources("team", put, gone)
            change.update_sources("kb", {SourceId("kb:a.md"): _entry("a", b"A document.")})

        await self.knowledge.change(work)


def _drop(decision: PairSkipped | PairRemoved, change: KnowledgeChange) -> None:
    change.decide(decision)


def _file(block: TopicBlock, topic: TopicName, change: KnowledgeChange) -> None:
    change.file_blocks(topic, block)
    change.decide(PairFiled(qa_id=block.qa_id, topic=topic, at=START))


def _entry(name: str, data: bytes) -> CachedFile:
    return CachedFile(
        content_hash=content_hash(data.decode()),
        summary_text=f"About {name}.",
        last_indexed_at=START,
        rel_path=f"{name}.txt",
        size_bytes=len(data),
        version=7,
    )


_KINDS = st.sampled_from(
    ["file", "file", "file", "move", "skip", "replace", "edit", "withdraw", "forget", "regenerate"]
)
_ACTS = st.tuples(_KINDS, st.integers(0, PAIRS - 1), st.sampled_from(TOPICS), st.frozensets(st.integers(0, PAIRS - 1)))


@pytest.mark.rest
@bounded(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(acts=st.lists(_ACTS, max_size=12), lost=st.frozensets(st.sampled_from(TOPICS)))
def test_whatever_was_decided_a_restore_and_an_export_give_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    acts: list[tuple[str, int, TopicName, frozenset[int]]],
    lost: frozenset[TopicName],
) -> None:
    base = tmp_path_factory.mktemp("team")
    home, first, second, third = (base / name for name in ("home", "first", "second", "third"))

    async def live() -> None:
        clock = HandClock()
        async with knowledge_in(home, clock) as knowledge:
            history = History(home, knowledge)
            for act in acts:
                clock.turn(seconds=1)
                await history.act(*act)
            await history.index()
            await TextFiles(knowledge, Paths(home)).catch_up()
            await export(knowledge, partial(copy_archive, Paths(home).raw), Paths(first))
            decisions, names = knowledge.read_decisions(), knowledge.topic_names()
            edited = any(kind == "edit" for kind, *_ in acts)
        # In its own place, with lost topic files: archive and decisions hold all but edited words.
        lose_database(home)
        for name in () if edited else lost:
            (Paths(home).topics / f"{name}.txt").unlink(missing_ok=True)
        before = tree(home)
        for folder, source, out in ((home, home, second), (base / "new", first, third)):
            async with await SqliteDatabase.open(folder / "intern.db") as db:
                done = await restore(db, Paths(folder), Paths(source), clock, follower=FOLLOWER)
                assert (done.pairs, done.decisions, done.topics) == (PAIRS, len(decisions), len(names))
                assert done.damaged == ()
                knowledge = await run_sync(partial(KnowledgeStore, db, clock=clock))
                assert knowledge.read_decisions() == decisions
                await export(knowledge, partial(copy_archive, Paths(folder).raw), Paths(out))
                await TextFiles(knowledge, Paths(folder)).catch_up()
            assert find_edited_files(Paths(folder)) == []
        assert {**tree(home), **before} == tree(home)
        assert tree(first) == tree(second) == tree(third)

    anyio.run(live)
