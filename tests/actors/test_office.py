"""The office as a whole: its wiring, and how it opens and closes. Real verbs, a Discord in memory, rules as a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from anyio import Event, fail_after, get_running_tasks, wait_all_tasks_blocked

from intern.actors import office as office_module
from intern.actors.office import WIRES, Wire
from intern.actors.witness import Witness
from intern.app.bot import open_sandbox
from intern.discord.sandbox import Sandbox
from intern.domain import AIResult, AnswerRequest, CapturedPair, Decision, Filed
from intern.errors import ConfigError, InternError
from intern.indexing.refresh import Refreshed
from intern.settings import Settings, load_settings
from tests.fakes import HandClock

pytestmark = pytest.mark.anyio


def test_no_message_can_come_back_to_where_it_came_from() -> None:
    behind: dict[str, set[str]] = {}
    for wire in WIRES:
        for source in wire.source:
            behind.setdefault(source, set()).add(wire.to)

    def reached_from(actor: str, seen: frozenset[str] = frozenset()) -> set[str]:
        direct = behind.get(actor, set()) - seen
        return direct.union(*(reached_from(each, seen | direct) for each in direct))

    assert behind
    assert [actor for actor in behind if actor in reached_from(actor)] == []


def test_every_stream_is_on_the_page_and_bounded() -> None:
    on_page: list[object] = [each for each in vars(office_module).values() if isinstance(each, Wire)]
    assert on_page == list(WIRES)
    assert all(0 <= wire.size <= 1000 for wire in WIRES)


class Watching(Witness):
    """Keeps what it is told, and lets a test wait for it."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self._changed = Event()

    async def until(self, wanted: Callable[[object], bool]) -> object:
        while not (found := [each for each in self.told if wanted(each)]):
            await self._changed.wait()
        return found[0]

    def _tell(self, what: object) -> None:
        self.told.append(what)
        self._changed.set()
        self._changed = Event()

    def answered(self, request: AnswerRequest, result: AIResult) -> None:
        super().answered(request, result)
        self._tell(result)

    def captured(self, pair: CapturedPair) -> None:
        super().captured(pair)
        self._tell(pair)

    def decided(self, decision: Decision) -> None:
        super().decided(decision)
        self._tell(decision)

    def indexed(self, refreshed: Refreshed) -> None:
        super().indexed(refreshed)
        self._tell(refreshed)


def settings_in(folder: Path, **discord: float) -> Settings:
    sources = folder / "knowledge-base" / "sources"
    sources.mkdir(parents=True, exist_ok=True)
    (sources / "ports.md").write_text("# Ports\n\nThe relay listens on port 7480. Set `listen` to change it.\n")
    return load_settings(
        environ={},
        overrides={
            "data": {"dir": str(folder)},
            "llm": {"provider": "offline"},
            "discord": {"message_batch_wait_seconds": 0, **discord},
            "kb": {"settle_seconds": 0},
        },
    )


@asynccontextmanager
async def bot(folder: Path, sandbox: Sandbox, witness: Watching, **discord: float) -> AsyncGenerator[None]:
    with fail_after(20):
        async with open_sandbox(settings_in(folder, **discord), sandbox, witness=witness):
            await witness.until(lambda told: isinstance(told, Refreshed))
            yield


async def taught(folder: Path, witness: Watching) -> None:
    """A question and the team's reply; then nothing more happens."""
    sandbox = Sandbox(HandClock(), team={"mira"})
    async with bot(folder, sandbox, witness):
        asked = sandbox.say("bob", "How do I purge the spool?")
        sandbox.say("mira", "Use `lumen-relay spool purge`.", reply_to=asked.id)
        await Event().wait()


async def test_the_team_s_reply_answers_the_next_member(tmp_path: Path) -> None:
    sandbox, witness = Sandbox(HandClock(), team={"mira"}), Watching()
    async with bot(tmp_path, sandbox, witness):
        asked = sandbox.say("bob", "My agents are rejected because of a clock skew on the Pi, what now?")
        silent = await witness.until(lambda told: isinstance(told, AIResult))
        assert isinstance(silent, AIResult)
        assert silent.reason == "no_sources"

        sandbox.say("mira", "Run `lumen-relay agents reset-skew` after chrony has set the clock.", reply_to=asked.id)
        filed = await witness.until(lambda told: isinstance(told, Filed))
        assert isinstance(filed, Filed)

        again = sandbox.say("carol", "Agents rejected, clock skew on a Pi. How do I fix that?")
        post = await sandbox.posted()

    assert sandbox.threads()[0].parent_id == sandbox.general
    assert str(post.channel_id) == str(again.id)
    assert "reset-skew" in post.text
    assert f"team:{filed.topic}.txt#{filed.qa_id}" in post.text


async def test_open_batches_reach_the_archive_and_the_topics_at_a_calm_shutdown(tmp_path: Path) -> None:
    sandbox, witness = Sandbox(HandClock(), team={"mira"}), Watching()
    async with bot(tmp_path, sandbox, witness, message_batch_wait_seconds=600):
        asked = sandbox.say("bob", "How do I purge the spool without losing agents?")
        sandbox.say("mira", "Stop it first, then `lumen-relay spool purge`.", reply_to=asked.id)
        await wait_all_tasks_blocked()
        assert not any(isinstance(told, CapturedPair) for told in witness.told)

    assert [type(told) for told in witness.told if isinstance(told, CapturedPair | Filed)] == [CapturedPair, Filed]
    [week] = (tmp_path / "team-knowledge" / "raw").iterdir()
    assert "Stop it first, then `lumen-relay spool purge`." in week.read_text()


async def test_no_task_is_left_behind(tmp_path: Path) -> None:
    before = len(get_running_tasks())
    async with bot(tmp_path, Sandbox(HandClock()), Watching()):
        assert len(get_running_tasks()) > before
    assert len(get_running_tasks()) == before


async def test_a_bug_in_one_actor_ends_all_of_them_loudly(tmp_path: Path) -> None:
    class Buggy(Watching):
        def captured(self, pair: CapturedPair) -> None:
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as raised:
        await taught(tmp_path, Buggy())
    assert raised.group_contains(ZeroDivisionError)


async def test_a_gateway_that_is_refused_ends_the_office_with_what_to_do(tmp_path: Path) -> None:
    class Refused(Sandbox):
        async def listen(self, deliver: Callable[..., None]) -> None:
            self._listeners.append(deliver)
            self._tell()
            raise ConfigError("discord.token is refused")

    with pytest.raises(ExceptionGroup) as raised, fail_after(10):
        async with open_sandbox(settings_in(tmp_path), Refused(HandClock()), witness=Witness()):
            await Event().wait()
    assert raised.group_contains(ConfigError)


async def test_a_second_process_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    async with bot(tmp_path, Sandbox(HandClock()), Watching()):
        with pytest.raises(InternError, match="in use by"):
            async with open_sandbox(settings_in(tmp_path), Sandbox(HandClock()), witness=Witness()):
                pass


async def test_what_was_archived_before_a_crash_is_filed_at_the_next_start(tmp_path: Path) -> None:
    class Dying(Watching):
        def captured(self, pair: CapturedPair) -> None:
            raise ZeroDivisionError  # after the archive, before the nudge

    with pytest.raises(ExceptionGroup):
        await taught(tmp_path, Dying())

    witness = Watching()
    async with bot(tmp_path, Sandbox(HandClock()), witness):
        filed = await witness.until(lambda told: isinstance(told, Filed))
        assert isinstance(filed, Filed)
    assert (tmp_path / "team-knowledge" / "topics" / f"{filed.topic}.txt").read_text().count("--- QA ---") == 1
