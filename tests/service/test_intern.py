"""The application API: the operations of scripts, commands and evaluations on a data folder."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from anyio import Event, create_task_group, fail_after
from anyio.lowlevel import checkpoint

import intern.service
from intern.actors.activity import ActivityReporter
from intern.core.captures import CapturedPair
from intern.core.errors import ConfigError, KnowledgeError
from intern.core.messages import Conversation, Message
from intern.learning.filing import DecisionCounts
from intern.learning.regenerating import RegenerationResult
from intern.runtime.bot import open_sandbox
from intern.service.intern import Intern
from intern.service.opening import open_intern
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.sources.refresh import RefreshReport
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.folder_lock import FolderLock
from intern.stores.tables.jobs import Job, JobQueue
from tests.worlds import samples
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import endpoint_double, refuse

pytestmark = pytest.mark.anyio

PORTS = "# Ports\n\nThe relay listens on port 7480. Set `listen` to change the port.\n"
ANSWER = "Stop the relay, then run `lumen-relay spool purge`. The agents send again what they still hold."
QUESTION = "How do I purge the spool without losing agents?"
PARAPHRASE = "Can I purge the spool of the relay and keep my agents?"


def settings_in(folder: Path, **sections: dict[str, object]) -> Settings:
    sources = folder / "knowledge-base" / "sources"
    sources.mkdir(parents=True, exist_ok=True)
    (sources / "ports.md").write_text(PORTS)
    overrides = {"data": {"dir": str(folder)}, "kb": {"settle_seconds": 0}, **sections}
    return load_settings(environ={}, overrides=overrides)


def question(text: str) -> Conversation:
    return Conversation((Message(role="user", text=text),))


async def reply(intern: Intern, text: str) -> str:
    """Return the answer, or the reason for silence in brackets."""
    with fail_after(10):
        result = await intern.answer(question(text))
    return result.reply_text or f"({result.reason})"


def example() -> str:
    """Return the code in the docstring of the package."""
    assert intern.service.__doc__ is not None
    return textwrap.dedent(inspect.cleandoc(intern.service.__doc__).partition("Example:\n")[2])


async def test_the_example_in_the_docstring_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sources = tmp_path / "data" / "knowledge-base" / "sources"
    sources.mkdir(parents=True)
    (sources / "install.md").write_text("# Install\n\nInstall it with `apt install lumen-relay`, as root.\n")

    code = compile(example(), "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with fail_after(10):
        await eval(code, {})

    assert "apt install lumen-relay" in capsys.readouterr().out


async def test_a_question_is_answered_from_the_documents(tmp_path: Path) -> None:
    async with open_intern(settings_in(tmp_path)) as intern:
        assert await intern.entries() == ()
        assert (await intern.index()).changed == ("kb:ports.md",)
        assert [entry.source_id for entry in await intern.entries()] == ["kb:ports.md"]
        result = await intern.answer(question("How do I change the port that the relay listens on?"))
    assert result.should_reply
    assert [citation.source_id for citation in result.citations] == ["kb:ports.md"]


async def test_a_captured_answer_is_found_at_once(tmp_path: Path) -> None:
    async with open_intern(settings_in(tmp_path), clock=HandClock()) as intern:
        assert await reply(intern, PARAPHRASE) == "(no_sources)"
        pair = await intern.capture(samples.capture(QUESTION, ANSWER))
        assert pair is not None
        result = await intern.answer(question(PARAPHRASE))

    assert ANSWER in (result.reply_text or "")
    (citation,) = result.citations
    assert citation.source_id.startswith("team:")
    assert citation.source_id.endswith(f"#{pair.qa_id}")
    assert citation.url == f"https://discord.com/channels/{samples.GUILD}/{samples.CHANNEL}/{pair.message_ids[-1]}"


@pytest.mark.rest
async def test_a_captured_answer_is_found_at_once_among_many_documents(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    for n in range(9):
        (settings.paths.sources / f"spool{n}.md").write_text(
            f"# Agents {n}\n\nThe relay keeps a spool for agent {n}.\n"
        )
    async with open_intern(settings, clock=HandClock()) as intern:
        await intern.index()
        for n, answer in enumerate((ANSWER, "The spool of a relay in a cluster is purged by its leader."), 1):
            assert await intern.capture(samples.capture(QUESTION, answer, n=n)) is not None
            result = await intern.answer(question(PARAPHRASE if n == 1 else "Who purges the spool in a cluster?"))
            assert answer in (result.reply_text or "")


async def test_of_a_captured_answer_that_is_too_long_the_beginning_is_said(tmp_path: Path) -> None:
    steps = "\n".join(f"{n}. Purge the spool of agent number {n} with the relay stopped." for n in range(1, 90))
    async with open_intern(settings_in(tmp_path), clock=HandClock()) as intern:
        assert await intern.capture(samples.capture(QUESTION, f"{ANSWER}\n{steps}")) is not None
        said = await reply(intern, PARAPHRASE)
    assert said.partition("\n\n")[2].startswith(f"{ANSWER}\n1. Purge")
    assert "89. Purge" not in said


async def test_a_capture_that_is_there_already_is_none(tmp_path: Path) -> None:
    async with open_intern(settings_in(tmp_path), clock=HandClock()) as intern:
        assert await intern.capture(samples.capture(QUESTION, ANSWER)) is not None
        assert await intern.capture(samples.capture(QUESTION, ANSWER)) is None
    async with open_intern(settings_in(tmp_path), clock=HandClock()) as intern:
        assert await intern.capture(samples.capture(QUESTION, ANSWER)) is None
    topics = tmp_path / "team-knowledge" / "topics"
    assert sum(path.read_text().count("--- QA ---") for path in topics.iterdir()) == 1


async def test_half_a_surrogate_in_a_capture_costs_its_character_alone(tmp_path: Path) -> None:
    async with open_intern(settings_in(tmp_path), clock=HandClock()) as intern:
        pair = await intern.capture(samples.capture(f"{QUESTION} \ud83d", f"{ANSWER} \ude00!"))
        assert pair is not None
        assert [turn.text for turn in pair.turns] == [f"{QUESTION} \ufffd", f"{ANSWER} \ufffd!"]
        assert f"{ANSWER} \ufffd!" in await reply(intern, PARAPHRASE)


async def test_topics_are_rebuilt_from_the_archive(tmp_path: Path) -> None:
    async with open_intern(settings_in(tmp_path), clock=HandClock()) as intern:
        assert await intern.regenerate() == RegenerationResult(pairs=0, tally=DecisionCounts(), topics=0, parked=())
        await intern.capture(samples.capture(QUESTION, ANSWER))
        await intern.capture(samples.capture("Where are the logs?", "In /var/log/lumen.", n=2))
        knowledge = (await intern.acquire_writer()).stores.knowledge
        filed = [block.qa_id for name in knowledge.topic_names() for block in knowledge.read_topic(name)]
        await knowledge.change(lambda change: change.remove_blocks(filed))
        assert ANSWER not in await reply(intern, PARAPHRASE)

        done = await intern.regenerate()

        assert (done.pairs, done.topics, done.parked) == (2, 2, ())
        assert ANSWER in await reply(intern, PARAPHRASE)


async def test_nothing_that_goes_wrong_is_raised_by_an_answer(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with open_intern(settings) as intern:
        await intern.index()
        for path in settings.data.dir.glob("intern.db*"):
            path.write_bytes(b"?" * path.stat().st_size)
        assert await reply(intern, "Which port does the relay listen on?") == "(knowledge_failed)"


async def test_what_a_failing_model_could_not_describe_is_pending(tmp_path: Path) -> None:
    with endpoint_double(lambda _: refuse(400)) as endpoint:
        llm: dict[str, object] = {"base_url": endpoint.base_url, "model": "double", "max_retries": 0}
        async with open_intern(settings_in(tmp_path, llm=llm)) as intern:
            refreshed = await intern.index()
            assert [owed.source_id for owed in refreshed.pending] == ["kb:ports.md"]
            assert refreshed.changed == ()
            # It is listed all the same, by its own beginning.
            assert [entry.source_id for entry in await intern.entries()] == ["kb:ports.md"]
            assert await reply(intern, "Which port does the relay listen on?") == "(model_failed)"


async def test_settings_that_cannot_work_are_refused_on_opening(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"llm\.model"):
        async with open_intern(settings_in(tmp_path, llm={"base_url": "http://127.0.0.1:9/v1"})):
            pass


# A folder that another process holds.


@asynccontextmanager
async def bot(settings: Settings) -> AsyncGenerator[None]:
    """Run the bot on the folder."""

    class Indexed(ActivityReporter):
        def __init__(self) -> None:
            super().__init__()
            self.once = Event()

        def report_index_refresh(self, refreshed: RefreshReport) -> None:
            self.once.set()

    events = Indexed()
    async with open_sandbox(settings, Sandbox(HandClock()), events=events):
        await events.once.wait()
        yield


async def test_while_the_bot_holds_the_folder_it_does_the_work(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with fail_after(20):
        async with bot(settings), open_intern(settings) as intern:
            (settings.paths.sources / "ports.md").unlink()
            (settings.paths.sources / "logs.md").write_text("# Logs\n\nLogs are in /var/log/lumen.\n")
            refreshed = await intern.index()
            assert "kb:logs.md" in {entry.source_id for entry in await intern.entries()}
            assert refreshed.skipped == ()

            pair = await intern.capture(samples.capture(QUESTION, ANSWER))
            assert isinstance(pair, CapturedPair)
            assert await intern.capture(samples.capture(QUESTION, ANSWER)) is None
            result = await intern.answer(question(PARAPHRASE))
            assert ANSWER in (result.reply_text or "")
            assert [citation.url is not None for citation in result.citations] == [True]

            assert (await intern.regenerate()).pairs == 1
            assert ANSWER in await reply(intern, PARAPHRASE)


async def test_what_the_holder_cannot_do_is_raised_here(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with fail_after(20):
        async with bot(settings), open_intern(settings) as intern:
            settings.paths.sources.rename(tmp_path / "elsewhere")
            with pytest.raises(KnowledgeError, match="sources folder"):
                await intern.index()


async def test_when_the_holder_dies_in_the_middle_the_one_who_waits_takes_over(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    holder = FolderLock(tmp_path)
    refreshed: list[RefreshReport] = []
    async with await SqliteDatabase.open(settings.paths.database) as db, open_intern(settings) as intern:
        holder.acquire()

        async def wait_for_it() -> None:
            refreshed.append(await intern.index())

        with fail_after(10):
            async with create_task_group() as tg:
                tg.start_soon(wait_for_it)
                assert (await claimed(JobQueue(db))).kind == "index"
                assert not refreshed
                holder.release()
    assert refreshed[0].changed == ("kb:ports.md",)


async def claimed(jobs: JobQueue) -> Job:
    """Claim the next submitted job."""
    while (job := await jobs.claim()) is None:
        await checkpoint()
    return job


async def test_the_folder_is_free_again_when_the_door_is_closed(tmp_path: Path) -> None:
    async with open_intern(settings_in(tmp_path)) as intern:
        await intern.index()
        with pytest.raises(KnowledgeError, match="in use by"):
            FolderLock(tmp_path).acquire()
    with FolderLock(tmp_path) as lock:
        assert lock.is_held


# A folder that cannot be written to.


def unwritable(tmp_path: Path) -> Settings:
    """Return settings whose data folder cannot be made, even by root; the files to read are elsewhere."""
    readable = settings_in(tmp_path / "readable")
    (tmp_path / "file").write_text("")
    return load_settings(
        environ={},
        overrides={
            "data": {"dir": str(tmp_path / "file" / "data")},
            "kb": {
                "sources_dir": str(readable.paths.sources),
                "index_path": str(readable.paths.index),
                "team_index_path": str(readable.paths.team_index),
                "team_raw_dir": str(readable.paths.raw),
                "team_topics_dir": str(readable.paths.topics),
            },
        },
    )


async def test_a_folder_that_cannot_be_written_to_can_be_asked(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with open_intern(settings) as intern:
        await intern.index()
    # SQLite writes to this file of its own, except for an immutable database.
    settings.paths.database.with_name("intern.db-shm").mkdir()
    async with open_intern(settings) as intern:
        assert "7480" in await reply(intern, "Which port does the relay listen on?")


@pytest.mark.parametrize("what", ["index", "regenerate", "capture"])
async def test_what_writes_says_why_it_cannot(tmp_path: Path, what: str) -> None:
    async with open_intern(unwritable(tmp_path)) as intern:
        works: dict[str, Callable[[], Awaitable[object]]] = {
            "index": intern.index,
            "regenerate": intern.regenerate,
            "capture": partial(intern.capture, samples.capture()),
        }
        work = works[what]
        with pytest.raises(KnowledgeError, match=r"file/data cannot be made or opened \(Not a directory\)"):
            await work()
