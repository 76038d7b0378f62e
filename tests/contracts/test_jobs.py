"""Each kind of job has the same outcome whether this process holds the folder or another one does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from anyio import create_task_group, fail_after, sleep
from anyio.to_thread import run_sync
from msgspec.structs import replace

from intern.actors.job_worker import do_all_jobs
from intern.core.captures import Capture
from intern.core.errors import InternError, KnowledgeError, ModelUnavailableError
from intern.core.ids import FactId, MessageId, QAId, UserId
from intern.facts.reconciliation import FactRetirement
from intern.learning.forgetting import ForgetRequest
from intern.learning.prompts import CLASSIFY
from intern.learning.review import Review
from intern.models.prompt import Model, OfflineModel
from intern.service import job_kinds
from intern.service.extraction import NotesJob
from intern.service.intern import Intern
from intern.service.models import Models, collect_offline_rules
from intern.service.opening import open_intern
from intern.service.writer import Writer
from intern.settings.loading import load_settings
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.folder_lock import FolderLock
from intern.stores.tables.jobs import JobKind, JobQueue
from intern.stores.tables.personal_data import PersonalDataStore
from tests.service.writers import open_writer
from tests.worlds import samples
from tests.worlds.clock import HandClock
from tests.worlds.model import ScriptedModel

pytestmark = pytest.mark.anyio

Holder = Literal["this process", "another"]
KINDS: dict[str, JobKind[Any, Any]] = {
    each.name: each for each in vars(job_kinds).values() if isinstance(each, JobKind)
}
CAPTURE = samples.capture("How do I purge the spool?", "Run `lumen-relay spool purge`.")
FIRST = QAId("qa_20260101_000000")
STORY: Sequence[tuple[JobKind[Any, Any], object]] = [
    (job_kinds.INDEX, None),
    (job_kinds.REFRESH, None),
    (job_kinds.FRESHEN, ["/nowhere.md"]),
    (job_kinds.DISCOVER, None),
    (job_kinds.CAPTURE, CAPTURE),
    (job_kinds.CAPTURE, CAPTURE),
    (job_kinds.IMPORT, [samples.capture("Where are the logs?", "In /var/log\ud800.", n=2)]),
    (job_kinds.REVIEW, Review(action="reject", qa_ids=(FIRST,), by="77")),
    (job_kinds.REGENERATE, None),
    (job_kinds.RETRY, ()),
    (job_kinds.RETRY, [QAId("qa_19990101_000000")]),
    (job_kinds.ADOPT, "no-such-topic"),
    (job_kinds.EXTRACT, None),
    (job_kinds.IMPORT_NOTES, NotesJob()),
    (job_kinds.RETIRE_FACT, FactRetirement(fact_id=FactId("f_none"), why="it moved")),
    (job_kinds.CALIBRATE, []),
    (job_kinds.CLOSE_GAPS, job_kinds.GapClosing(question_ids=(MessageId("1"),), how="dismissed")),
    (job_kinds.FORGET, ForgetRequest(message_ids=CAPTURE.message_ids)),
    (job_kinds.FORGET, ForgetRequest(user_id=UserId("@mia"))),
    (job_kinds.REBUILD_SEARCH, None),
]


@asynccontextmanager
async def client_of(folder: Path, model: Model, holder: Holder) -> AsyncGenerator[Intern]:
    settings = load_settings(environ={}, overrides={"data": {"dir": str(folder)}})
    settings.paths.sources.mkdir(parents=True)
    (settings.paths.sources / "ports.md").write_text("# Ports\n\nThe relay listens on port 7480.\n")
    clock = HandClock()
    async with (
        await SqliteDatabase.open(settings.paths.database) as db,
        open_intern(settings, clock=clock, models=Models(model, model)) as intern,
        create_task_group() as tg,
    ):
        if holder == "another":
            with FolderLock(settings.data.dir):
                writer = await run_sync(open_writer, settings, db, model, clock)
                tg.start_soon(_do_jobs, writer)
                yield intern
                tg.cancel_scope.cancel()
        else:
            yield intern


async def _do_jobs(writer: Writer) -> None:
    while True:
        await do_all_jobs(writer.stores.jobs, writer.handlers)
        await sleep(0.01)


async def outcome(client: Intern, kind: JobKind[Any, Any], given: object, folder: Path) -> object:
    """Return the result of a job, or its error as far as it crosses."""
    try:
        return await client.run_job(kind, given)
    except InternError as error:
        return str(error).replace(str(folder), ""), error.exit_code


async def test_a_job_of_each_kind_has_one_outcome_whoever_does_it(tmp_path: Path) -> None:
    told: dict[Holder, list[object]] = {"this process": [], "another": []}
    for holder, outcomes in told.items():
        model = OfflineModel(collect_offline_rules())
        with fail_after(30):
            async with client_of(tmp_path / holder, model, holder) as client:
                for kind, given in STORY:
                    outcomes.append(await outcome(client, kind, given, tmp_path / holder))
    for (kind, given), here, there in zip(STORY, *told.values(), strict=True):
        assert (type(here), here) == (type(there), there), (kind.name, given)
    by_kind = dict(zip([kind.name for kind, _ in STORY], told["another"], strict=True))
    assert by_kind.keys() == KINDS.keys(), "the story has a job of each kind"


@pytest.mark.parametrize("holder", ["this process", "another"])
async def test_an_error_keeps_its_words_and_exit_code_whoever_met_it(tmp_path: Path, holder: Holder) -> None:
    model = ScriptedModel()
    model.always(CLASSIFY, ModelUnavailableError("the model is down"))
    with fail_after(20):
        async with client_of(tmp_path, model, holder) as client:
            with pytest.raises((ModelUnavailableError, KnowledgeError), match="the model is down") as raised:
                await client.run_job(job_kinds.CAPTURE, CAPTURE)
    assert raised.value.exit_code == 3


async def test_the_writer_does_each_declared_kind_and_no_other(tmp_path: Path) -> None:
    async with client_of(tmp_path, OfflineModel({}), "this process") as client, client._hold_folder() as writer:
        assert writer is not None
        assert {each.name: each for each in writer.handlers.kinds} == KINDS


async def test_a_job_that_takes_captures_is_forgotten_with_their_author(tmp_path: Path) -> None:
    takes_captures = [each for each in KINDS.values() if "Capture" in str(each.takes)]
    assert takes_captures
    async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
        for n, kind in enumerate(takes_captures, 1):
            author = UserId(f"{n}7")
            capture = replace(samples.capture(n=n), author_ids=(author, UserId("")))
            await JobQueue(db).submit(kind, capture if kind.takes is Capture else [capture])
            assert await PersonalDataStore(db).find_messages_by(author) == {capture.message_ids[0]}
