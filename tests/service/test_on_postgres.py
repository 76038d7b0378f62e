"""The whole bot with its database on PostgreSQL, through the application API and as processes."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest
from anyio import create_task_group, fail_after, move_on_after, run_process
from anyio.to_thread import run_sync
from msgspec.structs import replace

from intern.core.captures import CapturedPair
from intern.core.clock import SystemClock
from intern.core.errors import ConfigError, FolderBusyError, KnowledgeError
from intern.core.flow import Reply
from intern.core.ids import GuildId
from intern.core.messages import AnswerResult
from intern.learning.forgetting import ForgetRequest
from intern.platforms.discord.options import HostingOptions
from intern.runtime.bot import open_sandbox
from intern.service.backups import back_up
from intern.service.community_registry import open_registry
from intern.service.databases import move_database
from intern.service.job_kinds import FORGET
from intern.service.local_checks import check_folder
from intern.service.opening import open_intern
from intern.service.sources import open_sources
from intern.service.status import read_status
from intern.settings.settings import Paths, Settings
from intern.sources.refresh import RefreshReport
from intern.stores.engines.postgres.connection import ServerAwayError, connect
from intern.stores.engines.postgres.database import PostgresDatabase
from tests.double.discord import DiscordDouble
from tests.engines import Server, pooling
from tests.process.running import Folder, Installed, answers_to, ended, started, variables
from tests.service.chatting import ALICE, MAYA, Town
from tests.service.test_intern import ANSWER, PARAPHRASE, QUESTION, bot, reply, settings_in
from tests.worlds import samples
from tests.worlds.bot import Watching
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock
from tests.worlds.program import program

pytestmark = [pytest.mark.anyio, pytest.mark.rest]


@pytest.fixture
def schema(postgres: Server) -> Generator[str]:
    with postgres.emptied() as name:
        yield name


@pytest.fixture
def settings(postgres: Server, schema: str, tmp_path: Path) -> Settings:
    return on_server(postgres, schema, tmp_path / "data")


def on_server(postgres: Server, schema: str, folder: Path) -> Settings:
    batches: dict[str, object] = {"message_batch_wait_seconds": 0}
    return settings_in(folder, data={"dir": str(folder), "url": postgres.url(schema)}, discord=batches)


def texts(settings: Settings) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(settings.paths.topics.glob("*.txt"))}


async def test_a_bot_learns_answers_regenerates_and_forgets(settings: Settings, tmp_path: Path) -> None:
    with fail_after(60):
        async with bot(settings), open_intern(settings) as intern:
            pair = await intern.capture(samples.capture(QUESTION, ANSWER))
            assert isinstance(pair, CapturedPair)
            assert await intern.capture(samples.capture(QUESTION, ANSWER)) is None
            assert ANSWER in await reply(intern, PARAPHRASE)
            assert (await intern.regenerate()).pairs == 1
            status = await run_sync(partial(read_status, settings, clock=SystemClock()))
            assert (status.archived, status.topics, status.running) == (1, 1, True)
            assert [each.state for each in await run_sync(open_sources(settings, SystemClock()).list_all)] == ["ok"] * 2
        assert not settings.paths.database.exists()
        assert [ANSWER in text for text in texts(settings).values()] == [True]
        for path in settings.data.dir.glob("search.db*"):
            path.unlink()
        async with open_intern(settings) as intern:
            assert ANSWER in await reply(intern, PARAPHRASE)
            await intern.export(tmp_path / "export")
            await intern.run_job(FORGET, ForgetRequest(message_ids=pair.message_ids))
            assert ANSWER not in await reply(intern, PARAPHRASE)
        assert texts(settings) == {}
        assert [path.name for path in (tmp_path / "export" / "team-knowledge" / "topics").iterdir()] != []


async def test_a_bot_in_another_folder_is_refused_and_commands_there_are_done_by_the_first(
    postgres: Server, schema: str, settings: Settings, tmp_path: Path
) -> None:
    other = on_server(postgres, schema, tmp_path / "other")
    with fail_after(60):
        async with bot(settings):
            with pytest.raises(FolderBusyError, match=r"PostgreSQL at .* is in use by process \d+ on .*; stop that"):
                async with bot(other):
                    pass
            async with open_intern(other) as intern:
                assert await intern.capture(samples.capture(QUESTION, ANSWER)) is not None
        assert [ANSWER in text for text in texts(settings).values()] == [True]
        assert texts(other) == {}


async def test_a_server_that_is_killed_and_comes_back_loses_nothing_and_doubles_nothing(
    postgres: Server, settings: Settings
) -> None:
    with fail_after(60):
        async with bot(settings), open_intern(settings) as intern:
            assert await intern.capture(samples.capture(QUESTION, ANSWER)) is not None
            postgres.kill()
            postgres.start()
            assert await intern.capture(samples.capture(QUESTION, ANSWER)) is None
            assert await intern.capture(samples.capture("Where are the logs?", "Below /var/log.", n=2)) is not None
            status = await run_sync(partial(read_status, settings, clock=SystemClock()))
            assert (status.archived, status.waiting, status.undecided) == (2, 0, 0)
            assert ANSWER in await reply(intern, PARAPHRASE)


class _Told(logging.Handler):
    """Notices the first line about an unavailable server, or about its cost."""

    def __init__(self) -> None:
        super().__init__()
        self.once = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if any(event in record.getMessage() for event in ("database_away", "message_failed")):
            self.once.set()


# Finding I2.
@pytest.mark.parametrize("teaches", [False, True])
async def test_while_the_server_is_away_questions_and_captures_wait_and_none_is_dropped(
    postgres: Server, settings: Settings, monkeypatch: pytest.MonkeyPatch, *, teaches: bool
) -> None:
    monkeypatch.setattr(PostgresDatabase, "patience", 0.2)
    sandbox, seen, told = Sandbox(HandClock(), team={"mira"}), Watching(), _Told()
    logging.getLogger("intern").addHandler(told)
    try:
        with fail_after(60):
            async with open_sandbox(settings, sandbox, events=seen, clock=HandClock()):
                await seen.one_of(RefreshReport)
                asked = sandbox.say("ann", "Where are the logs?")
                await seen.one_of(AnswerResult)
                postgres.kill()
                sandbox.say("bob", "@intern Which port does the relay listen on?")
                if teaches:
                    sandbox.say("mira", "Below /var/log.", reply_to=asked.id)
                try:
                    assert await run_sync(told.once.wait, 20)
                finally:
                    postgres.start()
                with move_on_after(20):
                    await seen.one_of(Reply, where=lambda reply: "7480" in reply.text)
                assert ["7480" in reply.text for reply in seen.all_of(Reply)][-1:] == [True]
                if teaches:
                    with move_on_after(20):
                        await seen.one_of(CapturedPair)
                    assert len(seen.all_of(CapturedPair)) == 1
    finally:
        logging.getLogger("intern").removeHandler(told)


def _advisory_locks(server: Server) -> object:
    return server.run("select count(*) from pg_locks where locktype = 'advisory'")[0][0]


def _behind(url: str, folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "INTERN__DATA__URL": url,
        "INTERN__DATA__DIR": str(folder),
        "INTERN__DISCORD__TOKEN": "MTIzNDU2Nzg5MDEyMzQ1Njc4.x.y",
        "INTERN__DISCORD__REST_URL": "http://127.0.0.1:1",
        "INTERN__DISCORD__GUILD_IDS": "[1]",
        "INTERN__LLM__PROVIDER": "offline",
    }


# Finding A10.
@pytest.mark.parametrize("mode", ["transaction", "statement"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_pooler_that_changes_connections_is_refused_in_one_line_and_nothing_stays_behind(
    postgres: Server, tmp_path: Path, mode: str
) -> None:
    settings_in(tmp_path / "data")
    with postgres.schema() as schema, pooling(postgres, mode, schema) as url, fail_after(120):
        environment = _behind(url, tmp_path / "data")
        for command in (["run"], ["index"], ["ask", QUESTION], ["status"]):
            done = await run_process(program(*command), check=False, env=environment, cwd=tmp_path)
            said = done.stderr.decode()
            assert (done.returncode, said.count("\n"), "set pool_mode = session" in said) == (3, 1, True), said
        found = check_folder(settings_in(tmp_path / "data", data={"dir": str(tmp_path / "data"), "url": url}))
        assert ["pooler" in each.what for each in found if each.level == "todo"] == [True]
        assert _advisory_locks(postgres) == 0
        assert postgres.run(f"select count(*) from pg_tables where schemaname = '{schema}'") == [(0,)]


async def test_a_pooler_that_lets_clients_in_while_its_server_is_away_is_waited_for(postgres: Server) -> None:
    with postgres.schema() as schema, pooling(postgres, "session", schema, query_wait=1) as url, fail_after(60):
        async with await PostgresDatabase.open(url) as db, create_task_group() as tg:
            postgres.kill()
            try:
                with pytest.raises(ServerAwayError):
                    await run_sync(connect, url)
                tg.start_soon(partial(db.read, lambda tx: tx.rows("select 1")))
            finally:
                postgres.start()


# Finding A10.
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_behind_a_pooler_with_sessions_it_indexes_answers_runs_is_killed_and_starts_again(
    postgres: Server, tmp_path: Path
) -> None:
    settings_in(tmp_path / "data")
    with postgres.schema() as schema, pooling(postgres, "session", schema) as url, fail_after(120):
        intern, folder = Installed(Path(sys.executable).with_name("intern")), Folder(tmp_path / "bot")
        async with DiscordDouble() as discord:
            settings = variables(discord, "", data__url=url, data__dir=str(tmp_path / "data"), llm__provider="offline")
            asked = "Which port does the relay listen on?"
            assert (await ended(intern, folder, settings, "index")).exit_code == 0
            assert "7480" in (await ended(intern, folder, settings, "ask", asked)).stdout
            async with started(intern, folder, settings) as bot:
                await discord.wait_ready()
                question = await discord.say(discord.alice, QUESTION)
                await discord.say(discord.tess, ANSWER, reply_to=question)
                await bot.until_logged("index_refreshed", changed=1)  # the topic; the documents were indexed before
                await bot.kill()
            async with started(intern, folder, settings) as bot:
                await discord.wait_ready(sessions=2)
                postgres.kill()
                question = await discord.say(discord.bob, f"{discord.bot.mention} {QUESTION}")
                postgres.start()
                await discord.until(lambda: len(answers_to(discord, question)) > 0)
                bot.ask_to_end()
                assert await bot.until_ended() == 0
            assert ANSWER in answers_to(discord, question)[0].content
            status = json.loads((await ended(intern, folder, settings, "status", "--json")).stdout)
            assert (status["archived"], status["topics"]) == (1, 1)
            assert (await ended(intern, folder, settings, "index")).exit_code == 0


async def test_moved_to_the_server_and_back_a_database_exports_the_same(settings: Settings, tmp_path: Path) -> None:
    on_file = settings_in(settings.data.dir)
    url, file = settings.data.url.reveal(), str(settings.paths.database)
    with fail_after(60):
        async with bot(on_file), open_intern(on_file) as intern:
            for n, (question, answer) in enumerate([(QUESTION, ANSWER), ("Where are the logs?", "Below /var/log.")]):
                await intern.capture(samples.capture(question, answer, n=n))
        first = await exported(on_file, tmp_path / "first")
        rows = (await move_database(settings, file, url)).rows
        assert await exported(settings, tmp_path / "second") == first
        async with bot(settings), open_intern(settings) as intern:
            assert ANSWER in await reply(intern, PARAPHRASE)
        settings.paths.database.rename(tmp_path / "old.db")
        assert (await move_database(settings, url, file)).rows >= rows
        assert await exported(on_file, tmp_path / "third") == first
        with pytest.raises(ConfigError, match="holds communities already"):
            await move_database(settings, str(tmp_path / "old.db"), url)


async def test_a_move_takes_the_archives_of_hosted_communities_to_the_server_and_back(
    settings: Settings, tmp_path: Path
) -> None:
    url, file, hosting = settings.data.url.reveal(), str(settings.paths.database), HostingOptions(enabled=True)
    there = replace(settings, hosting=hosting)
    on_file = replace(settings_in(settings.data.dir), hosting=hosting)
    with fail_after(60):
        async with open_registry(on_file) as registry:
            await registry._store.add_server(GuildId("7"), "Rust")
            here = await registry.settings("rust")
        async with open_intern(here) as intern:
            await intern.capture(samples.capture(QUESTION, ANSWER))
        kept = weeks(here.paths.raw)
        await move_database(settings, file, url)
        async with open_registry(there) as registry:
            await registry.export("rust", tmp_path / "copy")
            async with open_intern(await registry.settings("rust")) as intern:
                assert await intern.capture(samples.capture(QUESTION, ANSWER)) is None
        assert weeks(Paths(tmp_path / "copy").raw) == kept
        settings.paths.database.rename(tmp_path / "old.db")
        with pytest.raises(ConfigError, match="raw holds an archive already; move it"):
            await move_database(settings, url, file)
        here.paths.raw.rename(tmp_path / "old")
        await move_database(settings, url, file)
        assert weeks(here.paths.raw) == kept
        async with open_intern(here) as intern:
            assert await intern.capture(samples.capture(QUESTION, ANSWER)) is None


def weeks(folder: Path) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert found
    return found


async def exported(settings: Settings, folder: Path) -> dict[str, bytes]:
    async with open_intern(settings) as intern:
        return {name: (folder / name).read_bytes() for name in await intern.export(folder)}


async def test_without_its_server_a_folder_does_not_open_and_says_so(postgres: Server, settings: Settings) -> None:
    with fail_after(60):
        async with open_intern(settings):
            pass
        postgres.kill()
        try:
            with pytest.raises(KnowledgeError, match=r"PostgreSQL at .* cannot be reached .*; check that"):
                async with open_intern(settings):
                    pass
            [finding, *_] = await run_sync(check_folder, settings)
            assert (finding.level, "cannot be reached" in finding.what) == ("todo", True)
        finally:
            postgres.start()


async def test_the_doctor_looks_at_server_and_role(postgres: Server, schema: str, tmp_path: Path) -> None:
    mine = on_server(postgres, schema, tmp_path)
    [found, *_] = await run_sync(check_folder, mine)
    assert (found.level, found.what[:34]) == ("ok", "the database is PostgreSQL at /dev")
    administrator = settings_in(tmp_path, data={"dir": str(tmp_path), "url": postgres.url(schema, "postgres")})
    [found, note, *_] = await run_sync(check_folder, administrator)
    assert (found.level, note.level) == ("ok", "note")
    assert "postgres is a superuser" in note.what

    postgres.run(
        f"revoke all on {schema}.jobs, {schema}.facts from public", f"alter table {schema}.jobs owner to postgres"
    )
    [found, *_] = await run_sync(check_folder, mine)
    assert found.what.endswith(": jobs")
    assert found.do == f"run there, as their owner: grant all on all tables in schema {schema} to intern_tests"
    postgres.run(f"alter table {schema}.jobs owner to intern_tests")

    with postgres.schema() as empty:
        postgres.run(f"alter schema {empty} owner to postgres", f"grant usage on schema {empty} to intern_tests")
        [found, *_] = await run_sync(check_folder, on_server(postgres, empty, tmp_path))
        assert found.do == f"run there, as an administrator: grant usage, create on schema {empty} to intern_tests"


def test_its_backup_is_made_by_the_server_s_own_tools(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pg_dump"):
        back_up(settings, tmp_path / "backup.db")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # of the test; it starts processes
@pytest.mark.parametrize("asked", [("run",), ("status",), ("ask", QUESTION)])
async def test_a_process_with_a_wrong_password_ends_with_3_and_one_line(
    settings: Settings, tmp_path: Path, asked: tuple[str, ...]
) -> None:
    environment = {
        **os.environ,
        "INTERN__DATA__URL": settings.data.url.reveal().replace(":hush@", ":s3cret@"),
        "INTERN__DATA__DIR": str(settings.data.dir),
        "INTERN__DISCORD__TOKEN": "MTQ3Nzk1MzYxMTM2NjQwMDAwMg.GkT0ZQ.a-token-that-is-never-used",
        "INTERN__DISCORD__GUILD_IDS": "[1]",
        "INTERN__LLM__PROVIDER": "offline",
    }
    with fail_after(60):
        done = await run_process(program(*asked), check=False, env=environment, cwd=tmp_path)
    said = done.stderr.decode()
    assert (done.returncode, done.stdout, said.count("\n")) == (3, b"", 1), said
    assert "refuses the connection (password authentication failed for user" in said
    assert "s3cret" not in said


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_processes_file_a_pair_and_answer_from_it(
    postgres: Server, schema: str, settings: Settings, tmp_path: Path
) -> None:
    town = Town()
    asked = town.channel().say(ALICE, QUESTION)
    town.channel().say(MAYA, ANSWER, to=asked)
    [history] = town.save(tmp_path / "history")
    environment = {
        **os.environ,
        "INTERN__DATA__URL": postgres.url(schema),
        "INTERN__DATA__DIR": str(settings.data.dir),
        "INTERN__DISCORD__TEAM_MEMBER_IDS": json.dumps([MAYA]),
    }

    async def run(*arguments: str) -> str:
        done = await run_process(program(*arguments), check=False, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    with fail_after(60):
        await run("index")
        await run("import", str(history))
        assert ANSWER in await run("ask", QUESTION)
        status = json.loads(await run("status", "--json"))
        assert (status["archived"], status["topics"], status["waiting"]) == (1, 1, 0)
