"""The bot learns of edits and deletions during its downtime after the next start, on real sockets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
from anyio import fail_after, sleep

from intern.core.ids import GuildId, MessageId
from intern.stores.engines.sqlite.database import ReadOnlySqliteDatabase, SqliteDatabase
from intern.stores.tables.checkpoints import CheckpointStore
from intern.stores.tables.knowledge import KnowledgeStore
from tests.double.discord import DiscordDouble
from tests.double.world import Channel, Message
from tests.runtime.test_on_discord import Stage
from tests.worlds.clock import HandClock

pytestmark = pytest.mark.anyio

MESSAGES = "/channels/*/messages"
ONE = "/channels/*/messages/*"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Stage]:
    monkeypatch.setattr("intern.actors.missed_changes.QUIET_AFTER_SESSION", 0.0)
    monkeypatch.setattr("intern.learning.missed_changes.PACE", 0.0)
    clock = HandClock()
    async with DiscordDouble(now=clock.now) as discord:
        yield Stage(tmp_path, discord, clock)


async def taught(stage: Stage, question: str, answer: str, channel: Channel | None = None) -> tuple[Message, Message]:
    asked = await stage.say(stage.discord.alice, question, channel=channel or stage.discord.help)
    told = await stage.say(stage.discord.tess, answer, reply_to=asked)
    await stage.captured(question, answer)
    return asked, told


def topics(stage: Stage) -> str:
    folder = stage.folder / "team-knowledge" / "topics"
    return "".join(path.read_text() for path in folder.glob("*.txt"))


def is_withdrawn(stage: Stage, message: Message) -> bool:
    return KnowledgeStore(ReadOnlySqliteDatabase(stage.folder / "intern.db")).is_withdrawn(MessageId(message.id))


async def until(met: Callable[[], object]) -> None:
    with fail_after(20):
        while not met():  # noqa: ASYNC110 files set no events
            await sleep(0.01)


@pytest.mark.rest
async def test_what_was_edited_or_deleted_while_it_was_down_is_learned_anew_or_withdrawn(stage: Stage) -> None:
    discord = stage.discord
    async with stage.up():
        _, edited = await taught(stage, "Which port do agents use?", "They use 7071.")
        _, deleted = await taught(stage, "Where do the logs go?", "Into /var/log/lumen.")
        await until(lambda: "They use 7071." in topics(stage) and "/var/log/lumen" in topics(stage))
    await discord.edit(edited, "They use 7072.")
    await discord.delete(deleted)
    asked = len(discord.requests)
    async with stage.up():
        await stage.captured("Which port do agents use?", "They use 7072.")
        await until(lambda: "They use 7072." in topics(stage) and "/var/log/lumen" not in topics(stage))
    assert "They use 7071." not in topics(stage)
    assert is_withdrawn(stage, deleted)
    assert not is_withdrawn(stage, edited)
    read = [request for request in discord.requests[asked:] if request.method == "GET" and "/messages" in request.path]
    assert len(read) <= 4, "a page, and one look for what is not on it; the others are of the start"


@pytest.mark.rest
@pytest.mark.parametrize("fault", ["403", "empty"])
async def test_what_it_may_not_read_after_it_was_down_is_not_taken_for_deleted(
    stage: Stage, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    discord = stage.discord
    async with stage.up():
        _, answer = await taught(stage, "Which port do agents use?", "They use 7071.")
        await until(lambda: "They use 7071." in topics(stage))
    if fault == "403":
        discord.fail_next("GET", MESSAGES, status=403, code=50001, times=99)
        discord.fail_next("GET", ONE, status=403, code=50001, times=99)
    else:
        discord.world.remove_message(discord.messages(discord.help)[0])
        discord.world.remove_message(answer)
    caplog.clear()
    caplog.set_level("INFO")
    async with stage.up():
        await until(lambda: "missed_changes_looked_for" in caplog.text)
        assert "missed_changes_unseen" in caplog.text
    assert not is_withdrawn(stage, answer)
    assert "They use 7071." in topics(stage)


@pytest.mark.rest
async def test_a_server_that_is_served_no_more_makes_no_look_go_further_back(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    discord = stage.discord
    async with stage.up():
        _, answer = await taught(stage, "Which port do agents use?", "They use 7071.")
        stage.clock.turn(days=30)
        await taught(stage, "Where do the logs go?", "Into /var/log/lumen.")
    await discord.edit(answer, "They use 7072.")
    async with await SqliteDatabase.open(stage.folder / "intern.db") as db:
        await CheckpointStore(db).load_or_create([GuildId("77")], MessageId("1"))
    caplog.set_level("INFO")
    async with stage.up():
        await until(lambda: "missed_changes_looked_for" in caplog.text)
    assert "missed_change_found" not in caplog.text
