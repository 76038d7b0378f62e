"""The workshop: what it finishes when it opens, what it asks no model about, and who waits for whom."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anyio import Event, create_task_group, fail_after
from anyio.to_thread import run_sync

from intern.app.models import offline_rules
from intern.app.workshop import Workshop
from intern.domain import CapturedPair, Filing, Image, Topic, TopicName
from intern.errors import KnowledgeError
from intern.knowledge.database import Database
from intern.knowledge.jobs import Job
from intern.learning.prompts import CLASSIFY
from intern.learning.regenerating import COMPLETE
from intern.llm.offline import OfflineModel
from intern.llm.prompt import InT, Model, OutT, Prompt
from intern.settings import Settings, load_settings
from tests import samples
from tests.fakes import HandClock, ScriptedModel
from tests.leaping import all_quiet

pytestmark = pytest.mark.anyio

SPOOL = TopicName("spool")


class Gated:
    """Rules that do not answer CLASSIFY before the gate is open."""

    def __init__(self) -> None:
        self._rules = OfflineModel(offline_rules())
        self.begun, self.gate = Event(), Event()

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        if prompt.name == CLASSIFY.name:
            self.begun.set()
            await self.gate.wait()
        return await self._rules.ask(prompt, given)


def settings_in(folder: Path, **kb: object) -> Settings:
    return load_settings(environ={}, overrides={"data": {"dir": str(folder)}, "kb": kb})


@asynccontextmanager
async def workshop_in(settings: Settings, model: Model | None = None) -> AsyncGenerator[Workshop]:
    with fail_after(20):
        async with await Database.open(settings.paths.database) as db:
            yield await run_sync(Workshop, settings, db, model or OfflineModel(offline_rules()), HandClock())


async def kept(workshop: Workshop, n: int, question: str = "", *, conversation: str = "") -> CapturedPair:
    """The `n`th pair, in the archive."""
    question = question or f"How do I purge spool number {n}?"
    pair = await workshop.keep(samples.capture(question, f"Purge it {n} times.", n=n, conversation=conversation))
    assert pair is not None
    return pair


def filing(pair: CapturedPair) -> Filing:
    return Filing(pair=pair, choice=Topic(name=SPOOL))


async def test_a_regeneration_that_was_killed_before_its_last_step_is_finished_when_it_opens(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with workshop_in(settings) as workshop:
        await workshop.file(filing(await kept(workshop, 1)))
    topics = settings.paths.topics
    regenerated = topics.rename(topics.with_name("topics.next"))
    (regenerated / COMPLETE).touch()
    topics.mkdir()
    (topics / "old.txt").write_text((regenerated / "spool.txt").read_text())

    async with workshop_in(settings) as workshop:
        assert workshop.topics.names() == (SPOOL,)
    assert [path.name for path in topics.iterdir()] == ["spool.txt"]


async def test_no_model_is_asked_about_a_conversation_that_has_its_topic(tmp_path: Path) -> None:
    async with workshop_in(settings_in(tmp_path), ScriptedModel()) as workshop:
        await workshop.file(filing(await kept(workshop, 1, conversation="reply_1")))
        fuller = await kept(workshop, 2, conversation="reply_1")
        assert await workshop.choose_topic(fuller) == Topic(name=SPOOL)


async def test_what_the_operator_wants_passed_over_is_not_filed(tmp_path: Path) -> None:
    async with workshop_in(settings_in(tmp_path)) as workshop:
        assert workshop.archived_until() is None
        pairs = [await kept(workshop, n) for n in range(1, 5)]
        await workshop.file(filing(pairs[0]))
        assert workshop.archived_until() == pairs[0].qa_id

    passing_over = settings_in(tmp_path, qa_raw_last_processed_id=pairs[2].qa_id)
    async with workshop_in(passing_over) as workshop:
        assert workshop.archived_until() == pairs[2].qa_id
        tally = await workshop.catch_up()
        assert tally.filed == 1
        assert [workshop.topics.topic_of(pair.qa_id) is not None for pair in pairs] == [True, False, False, True]
        # From then on the setting is history.
        assert workshop.archived_until() == pairs[3].qa_id


async def test_nothing_is_asked_again_though_the_decisions_were_lost(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with workshop_in(settings) as workshop:
        pair = await kept(workshop, 1)
        await workshop.file(filing(pair))
    settings.paths.decisions.unlink()
    async with workshop_in(settings) as workshop:
        assert workshop.archived_until() == pair.qa_id


OTHERS: dict[str, Callable[[Workshop, CapturedPair], Awaitable[object]]] = {
    "file": lambda workshop, pair: workshop.file(filing(pair)),
    "clear_withdrawn": lambda workshop, _: workshop.clear_withdrawn(),
    "catch_up": lambda workshop, _: workshop.catch_up(),
    "regenerate": lambda workshop, _: workshop.regenerate(),
}


@pytest.mark.parametrize("first", ["regenerate", "catch_up"])
@pytest.mark.parametrize("second", list(OTHERS))
async def test_whoever_changes_topics_waits_for_who_is_at_it(tmp_path: Path, first: str, second: str) -> None:
    model, ended = Gated(), list[str]()

    async def run(what: str, pair: CapturedPair) -> None:
        await OTHERS[what](workshop, pair)
        ended.append(what)

    async with workshop_in(settings_in(tmp_path), model) as workshop:
        pair = await kept(workshop, 1)
        async with create_task_group() as tg:
            tg.start_soon(run, first, pair)
            await model.begun.wait()
            tg.start_soon(run, second, pair)
            await all_quiet()
            assert ended == []
            assert workshop.topics.names() == ()
            model.gate.set()
        assert sorted(ended) == sorted([first, second])
        [topic] = workshop.topics.names()
        assert [block.qa_id for block in workshop.topics.read(topic)] == [pair.qa_id]


async def test_a_deletion_is_written_down_whoever_is_filing(tmp_path: Path) -> None:
    model = Gated()
    async with workshop_in(settings_in(tmp_path), model) as workshop:
        pair = await kept(workshop, 1)
        async with create_task_group() as tg:
            tg.start_soon(workshop.catch_up)
            await model.begun.wait()
            assert await workshop.withdraw(pair.message_ids) is not None
            model.gate.set()
        assert workshop.topics.names() == ()


@pytest.mark.parametrize(("kind", "looks"), [("index", 0), ("regenerate", 1), ("capture", 1)])
async def test_a_job_says_once_that_there_is_something_to_see(tmp_path: Path, kind: str, looks: int) -> None:
    payload = msgspec.json.encode(samples.capture()) if kind == "capture" else b""
    settings = settings_in(tmp_path)
    settings.paths.sources.mkdir(parents=True)
    seen: list[Any] = []
    async with workshop_in(settings) as workshop:
        job = Job(id=1, kind=kind, key="", payload=payload)
        await workshop.do(job, lambda: seen.append(workshop.archived_until()))
        assert seen == [workshop.archived_until()] * looks
        assert (workshop.archived_until() is not None) == (kind == "capture")


async def test_a_job_that_this_version_does_not_know_is_refused(tmp_path: Path) -> None:
    async with workshop_in(settings_in(tmp_path)) as workshop:
        with pytest.raises(KnowledgeError, match="no job 'dance'"):
            await workshop.do(Job(id=1, kind="dance", key="", payload=b""))
