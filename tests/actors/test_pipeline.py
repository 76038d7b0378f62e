"""The whole pipeline: its wiring, start and shutdown, with real parts, a Discord in memory, and rules as a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

import pytest
from anyio import Event, fail_after, get_running_tasks, sleep_forever, wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.actors import pipeline
from intern.actors.activity import ActivityReporter
from intern.actors.pipeline import ACTORS, SHUTDOWN_SECONDS, STREAMS, Stream
from intern.core.captures import CapturedPair
from intern.core.decisions import PairFiled
from intern.core.errors import ConfigError, InternError
from intern.core.messages import AnswerResult
from intern.runtime.bot import _LocalFiles, open_sandbox
from intern.runtime.parts import open_bot_parts
from intern.runtime.resources import PlatformPorts
from intern.settings.settings import Settings
from tests.worlds.actors import finishing
from tests.worlds.bot import Watching, at_work, settings_in
from tests.worlds.chat import Sandbox, SandboxCommands
from tests.worlds.clock import HandClock, all_quiet, leap
from tests.worlds.endpoint import endpoint_double, never

ENDS = (MemoryObjectReceiveStream, MemoryObjectSendStream)


pytestmark = pytest.mark.leaps


def on_page() -> dict[str, Stream[Any]]:
    return {name: each for name, each in vars(pipeline).items() if isinstance(each, Stream)}


def test_every_actor_is_given_the_ends_that_the_page_names_and_no_other() -> None:
    for stream in STREAMS:
        assert {name for name, actor in ACTORS.items() if stream in actor.streams} == {*stream.source, stream.to}


async def test_every_actor_takes_its_streams_in_the_order_of_the_table(tmp_path: Path) -> None:
    platform = PlatformPorts(Sandbox(HandClock()), SandboxCommands(), _LocalFiles())
    async with open_bot_parts(settings_in(tmp_path), platform, events=ActivityReporter(), clock=HandClock()) as parts:
        for name, actor in parts.actors.items():
            run = actor.func if isinstance(actor, partial) else actor
            hints = [each for each in get_type_hints(run).values() if get_origin(each) in ENDS]
            assert [get_args(each)[0] for each in hints] == [each.carries for each in ACTORS[name].streams], name


def test_no_message_can_come_back_to_where_it_came_from() -> None:
    behind: dict[str, set[str]] = {}
    for stream in STREAMS:
        for source in stream.source:
            behind.setdefault(source, set()).add(stream.to)

    def reached_from(actor: str, seen: frozenset[str] = frozenset()) -> set[str]:
        direct = behind.get(actor, set()) - seen
        return direct.union(*(reached_from(each, seen | direct) for each in direct))

    assert behind
    assert [actor for actor in behind if actor in reached_from(actor)] == []


def test_every_stream_is_on_the_page_and_bounded() -> None:
    assert list(on_page().values()) == list(STREAMS)
    assert all(0 <= stream.size <= 1000 for stream in STREAMS)


async def taught(folder: Path, events: Watching) -> None:
    """Post a question and the team's reply; then wait for ever."""
    sandbox = Sandbox(HandClock(), team={"mira"})
    async with at_work(folder, sandbox, events):
        asked = sandbox.say("bob", "How do I purge the spool?")
        sandbox.say("mira", "Use `lumen-relay spool purge`.", reply_to=asked.id)
        await Event().wait()


async def test_the_team_s_reply_answers_the_next_member(tmp_path: Path) -> None:
    sandbox, events = Sandbox(HandClock(), team={"mira"}), Watching()
    async with at_work(tmp_path, sandbox, events):
        asked = sandbox.say("bob", "My agents are rejected because of a clock skew on the Pi, what now?")
        silent = await events.one_of(AnswerResult)
        assert silent.reason == "no_answer"

        sandbox.say("mira", "Run `lumen-relay agents reset-skew` after chrony has set the clock.", reply_to=asked.id)
        filed = await events.one_of(PairFiled)

        again = sandbox.say("carol", "Agents rejected, clock skew on a Pi. How do I fix that?")
        post = await sandbox.posted()

    assert sandbox.threads()[0].parent_id == sandbox.general
    assert str(post.channel_id) == str(again.id)
    assert "reset-skew" in post.text
    assert f"team:{filed.topic}.txt#{filed.qa_id}" in post.text


@pytest.mark.rest
async def test_open_batches_reach_the_archive_and_the_topics_at_a_calm_shutdown(tmp_path: Path) -> None:
    sandbox, events = Sandbox(HandClock(), team={"mira"}), Watching()
    async with at_work(tmp_path, sandbox, events, message_batch_wait_seconds=600):
        asked = sandbox.say("bob", "How do I purge the spool without losing agents?")
        sandbox.say("mira", "Stop it first, then `lumen-relay spool purge`.", reply_to=asked.id)
        await wait_all_tasks_blocked()
        assert not any(isinstance(told, CapturedPair) for told in events.told)

    assert [type(told) for told in events.told if isinstance(told, CapturedPair | PairFiled)] == [
        CapturedPair,
        PairFiled,
    ]
    [week] = (tmp_path / "team-knowledge" / "raw").iterdir()
    assert "Stop it first, then `lumen-relay spool purge`." in week.read_text()


async def test_no_task_is_left_behind(tmp_path: Path) -> None:
    before = len(get_running_tasks())
    async with at_work(tmp_path, Sandbox(HandClock()), Watching()):
        assert len(get_running_tasks()) > before
    assert len(get_running_tasks()) == before


async def test_a_bug_in_one_actor_ends_all_of_them_loudly(tmp_path: Path) -> None:
    class Buggy(Watching):
        def report_capture(self, pair: CapturedPair) -> None:
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as raised:
        await taught(tmp_path, Buggy())
    assert raised.group_contains(ZeroDivisionError)


async def test_a_gateway_that_is_refused_ends_the_office_with_what_to_do(tmp_path: Path) -> None:
    class Refused(Sandbox):
        async def listen(self, deliver: Callable[..., None]) -> None:
            self._listeners.append(deliver)
            self._notify_waiters()
            raise ConfigError("discord.token is refused")

    with pytest.raises(ExceptionGroup) as raised, fail_after(10):
        async with open_sandbox(settings_in(tmp_path), Refused(HandClock()), events=ActivityReporter()):
            await Event().wait()
    assert raised.group_contains(ConfigError)


async def test_a_second_process_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    async with at_work(tmp_path, Sandbox(HandClock()), Watching()):
        with pytest.raises(InternError, match="in use by"):
            async with open_sandbox(settings_in(tmp_path), Sandbox(HandClock()), events=ActivityReporter()):
                pass


@pytest.mark.rest
async def test_what_was_archived_before_a_crash_is_filed_at_the_next_start(tmp_path: Path) -> None:
    class Dying(Watching):
        def report_capture(self, pair: CapturedPair) -> None:
            raise ZeroDivisionError  # after the archive, before the wakeup

    with pytest.raises(ExceptionGroup):
        await taught(tmp_path, Dying())

    events = Watching()
    async with at_work(tmp_path, Sandbox(HandClock()), events):
        filed = await events.one_of(PairFiled)
    assert (tmp_path / "team-knowledge" / "topics" / f"{filed.topic}.txt").read_text().count("--- QA ---") == 1


class Leaving:
    """A bot that has to stop as soon as it hangs, and whether it is gone."""

    def __init__(self, settings: Settings, sandbox: Sandbox) -> None:
        self._settings = settings
        self._sandbox = sandbox
        self.hangs, self.gone = Event(), Event()

    async def run(self) -> None:
        async with open_sandbox(self._settings, self._sandbox, events=ActivityReporter(), clock=HandClock()):
            await self.hangs.wait()
        self.gone.set()

    async def is_gone_at_the_deadline(self) -> None:
        """Check that it stays until the deadline after the stop, and no longer."""
        self.hangs.set()
        await all_quiet()
        await leap(SHUTDOWN_SECONDS - 5)
        await all_quiet()
        assert not self.gone.is_set()
        await leap(5)
        with fail_after(5):
            await self.gone.wait()


@pytest.mark.rest
async def test_a_discord_that_never_answers_holds_nobody_up_beyond_the_deadline(tmp_path: Path) -> None:
    class Hanging(Sandbox):
        async def send(self, *args: object, **more: object) -> NoReturn:
            asked.set()
            await sleep_forever()
            raise AssertionError

    asked, sandbox = Event(), Hanging(HandClock())
    async with at_work(tmp_path, sandbox, Watching()):
        pass  # wait until there is an index
    bot = Leaving(settings_in(tmp_path), sandbox)
    with fail_after(40):
        async with finishing(bot.run):
            await sandbox.wait_ready()
            sandbox.say("bob", "Which port does the relay listen on?")
            await asked.wait()
            await bot.is_gone_at_the_deadline()


@pytest.mark.rest
async def test_a_model_that_never_answers_holds_nobody_up_beyond_the_deadline(tmp_path: Path) -> None:
    with endpoint_double(lambda _: never()) as endpoint, fail_after(40):
        llm = {"base_url": endpoint.base_url, "model": "double", "max_retries": 0, "timeout_seconds": 600}
        bot = Leaving(settings_in(tmp_path, llm=llm), Sandbox(HandClock()))
        async with finishing(bot.run):
            while not endpoint.asked("summarize_source"):
                await checkpoint()
            await bot.is_gone_at_the_deadline()
