"""`intern doctor`: what it finds on a Discord of real sockets, and the one thing that it says to do next."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import struct
import subprocess
from collections.abc import AsyncGenerator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import apsw
import pytest
from aiohttp import web
from anyio import fail_after
from msgspec import structs

from intern.answering.prompts import GATE, GateIn
from intern.core.errors import ChatUnavailableError, ConfigError
from intern.core.ids import SourceId
from intern.core.install_hints import format_install_hint
from intern.core.search_documents import SearchDocument
from intern.core.text.secret_values import Secret
from intern.frontends.cli.health import doctor as doctor_command
from intern.models.options import EmbeddingOptions, LlmOptions
from intern.models.pricing import ModelPrice
from intern.models.request_forms import RequestForm
from intern.models.usage import UsageMeter
from intern.platforms.discord.permissions import CREATE_PUBLIC_THREADS, SEND_MESSAGES, SEND_MESSAGES_IN_THREADS
from intern.search.embedding_local import LOCAL_MODEL
from intern.service.doctor import WANTED, DoctorReport, examine
from intern.service.local_checks import check_folder, good
from intern.service.models import open_models
from intern.service.status import read_status
from intern.settings.settings import Settings
from intern.stores.archive import Archive
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.search_file.search_index import SqliteSearchStore
from intern.stores.tables.request_forms import RequestFormStore
from intern.stores.tables.skipped_sources import SkippedSourceStore
from intern.stores.tables.usage import UsageLog
from tests.double.discord import DiscordDouble
from tests.frontends.cli.conftest import Ended, Intern, environment
from tests.stores.full_text import check
from tests.wording import Wording
from tests.worlds import samples
from tests.worlds.clock import HandClock
from tests.worlds.discord import make_section
from tests.worlds.endpoint import EndpointDouble, Reply, drop, endpoint_double, junk, never, refuse, sensible
from tests.worlds.program import program
from tests.worlds.settings import OFFLINE, WORDS_ALONE, make_settings

EVERYTHING = WANTED
KEY = "sk-very-secret-0123456789"


pytestmark = pytest.mark.on_asyncio


@pytest.fixture
async def discord() -> AsyncGenerator[DiscordDouble]:
    """A server where the bot's own role lacks nothing."""
    with fail_after(60):  # a test starts two processes
        async with DiscordDouble() as double:
            give(double, EVERYTHING)
            yield double


def give(discord: DiscordDouble, bits: int) -> None:
    """Give the bot's own role these permissions."""
    role = next(role for role in discord.guild.roles.values() if role.managed_by == discord.bot_id)
    role.permissions = bits


def settings_for(discord: DiscordDouble, **over: Any) -> Settings:
    return make_settings(discord=make_section(discord, **over), llm=OFFLINE, embeddings=WORDS_ALONE)


def todos(report: DoctorReport) -> list[str]:
    return [finding.what for finding in report.findings if finding.level == "todo"]


async def test_where_nothing_is_wrong_nothing_is_to_do(discord: DiscordDouble) -> None:
    report = await examine(settings_for(discord))
    assert report.ok
    assert [finding.level for finding in report.findings] == ["ok"] * 9
    assert "intern run" in report.next
    assert {request.method for request in discord.requests} == {"GET"}


async def test_the_invite_link_asks_for_the_least(discord: DiscordDouble) -> None:
    link = urlsplit((await examine(settings_for(discord))).invite)
    asked = parse_qs(link.query)
    assert f"{link.scheme}://{link.netloc}/api/v10" == discord.rest_url
    assert asked["client_id"] == [discord.bot_id]
    assert asked["scope"] == ["bot applications.commands"]
    # View Channels, Send Messages, Read Message History, Create Public Threads, Send Messages in Threads.
    assert int(asked["permissions"][0]) == 1 << 10 | 1 << 11 | 1 << 16 | 1 << 35 | 1 << 38


async def test_too_few_shards_are_told_of_with_what_to_set(discord: DiscordDouble, wording: Wording) -> None:
    discord.world.shards = 3
    assert (await examine(settings_for(discord))).ok  # "auto" takes what Discord recommends
    report = await examine(settings_for(discord, shards={"ids": [0, 1], "of": 2}))
    wording(todos(report))
    assert "of = 3" in report.next


async def test_permissions_that_lack_everywhere_are_mended_by_the_link(discord: DiscordDouble) -> None:
    give(discord, EVERYTHING & ~CREATE_PUBLIC_THREADS)
    report = await examine(settings_for(discord))
    # A post in a forum is a thread already.
    assert todos(report) == ["Create Public Threads is missing in #help, #general"]
    assert report.invite in report.next


async def test_permissions_that_one_channel_takes_away_are_mended_there(discord: DiscordDouble) -> None:
    bits = str(SEND_MESSAGES_IN_THREADS)
    discord.general.overwrites = [{"id": discord.bot_id, "type": 1, "allow": "0", "deny": bits}]
    report = await examine(settings_for(discord))
    assert todos(report) == ["Send Messages in Threads is missing in #general"]
    assert "settings of #general" in report.next
    assert report.invite not in report.next


async def test_a_channel_that_takes_no_answers_needs_less_and_one_that_is_off_needs_nothing(
    discord: DiscordDouble,
) -> None:
    give(discord, 1 << 10 | 1 << 16)
    rules = [{"id": discord.help.id, "mode": "off"}, {"id": discord.general.id, "mode": "capture_only"}]
    report = await examine(settings_for(discord, channels=rules))
    assert todos(report) == ["Send Messages in Threads is missing in #forum"]


async def test_private_channels_count_only_where_they_are_listed(discord: DiscordDouble) -> None:
    staff = discord.world.new_channel("staff")
    staff.overwrites = [{"id": discord.guild.id, "type": 0, "allow": "0", "deny": str(1 << 10)}]
    assert (await examine(settings_for(discord))).ok
    report = await examine(settings_for(discord, listed_channel_ids=[staff.id]))
    assert todos(report) == ["View Channel is missing in #staff"]


async def test_sharing_is_a_nicety(discord: DiscordDouble, wording: Wording) -> None:
    give(discord, EVERYTHING & ~SEND_MESSAGES)
    report = await examine(settings_for(discord))
    assert report.ok
    wording([finding.what for finding in report.findings if finding.level == "note"])


async def test_a_server_that_the_bot_is_not_on_comes_first(discord: DiscordDouble, wording: Wording) -> None:
    report = await examine(settings_for(discord, guild_ids=["123456789012345678"], team_role_ids=["5"]))
    wording(todos(report))
    assert report.invite in report.next


async def test_no_server_at_all_is_told_with_the_link_that_leads_to_one(discord: DiscordDouble) -> None:
    report = await examine(settings_for(discord, guild_ids=[]))
    assert "discord.guild_ids" in report.next
    assert discord.bot_id in report.invite


async def test_a_host_names_no_servers_and_needs_no_team(discord: DiscordDouble) -> None:
    found = settings_for(discord)
    alone = structs.replace(found.discord, guild_ids=(), team_role_ids=(), team_member_ids=())
    report = await examine(structs.replace(found, discord=alone, hosting=structs.replace(found.hosting, enabled=True)))
    assert "each server that invites the bot is served" in " ".join(each.what for each in report.findings)
    assert report.ok


async def test_who_is_gone_is_named(discord: DiscordDouble) -> None:
    lost = "123456789012345678"
    report = await examine(
        settings_for(
            discord,
            team_role_ids=[lost, discord.team_role.id],
            team_member_ids=[lost, discord.tess.id],
            channels=[{"id": lost, "mode": "off"}, {"id": discord.help.id, "mode": "answer"}],
            handoff_role_id=lost,
        )
    )
    assert todos(report) == [
        f"the bot finds no role {lost} on its servers",
        f"the bot finds no member {lost} on its servers",
        f"the bot finds no channel {lost} on its servers",
        f"the bot finds no role {lost} on its servers",
    ]
    assert [finding.do.rpartition(" ")[2] for finding in report.findings if finding.level == "todo"] == [
        "discord.team_role_ids",
        "discord.team_member_ids",
        "discord.channels",
        "discord.handoff_role_id",
    ]


async def test_a_thread_may_have_a_mode_of_its_own(discord: DiscordDouble) -> None:
    thread = await discord.create_thread("How?", author=discord.alice, text="Well?")
    assert (await examine(settings_for(discord, channels=[{"id": thread.id, "mode": "off"}]))).ok


async def test_a_role_that_cannot_be_mentioned_takes_no_hand_off(discord: DiscordDouble, wording: Wording) -> None:
    told = settings_for(discord, handoff_role_id=discord.team_role.id)
    wording(todos(await examine(told)))
    give(discord, EVERYTHING | 1 << 17)
    assert (await examine(told)).ok


async def test_a_team_of_nobody_and_a_missing_model_are_told(discord: DiscordDouble, wording: Wording) -> None:
    told = make_settings(
        discord=make_section(discord, team_role_ids=[]),
        llm={"provider": "endpoint"},
    )
    report = await examine(told)
    wording(todos(report))
    assert report.next.startswith("llm.base_url is not set")


async def test_without_the_intent_that_is_the_first_thing_to_do() -> None:
    """The double always has it; this Discord only answers about its application."""

    async def application(_: web.Request) -> web.Response:
        return web.json_response({"id": "77", "flags": 1 << 23})

    async def own_user(_: web.Request) -> web.Response:
        return web.json_response({"id": "77"})

    app = web.Application()
    app.router.add_get("/applications/@me", application)
    app.router.add_get("/users/@me", own_user)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        token = "Nzc.double.token"
        told = {"token": token, "rest_url": f"http://{host}:{port}"}
        report = await examine(make_settings(discord=told))
    finally:
        await runner.cleanup()
    assert report.next.startswith("switch on the Message Content Intent")
    assert "/77/" in report.next


async def test_a_token_that_discord_refuses_is_a_matter_of_settings(discord: DiscordDouble) -> None:
    wrong = discord.token.replace(".double.", ".other.")
    with pytest.raises(ConfigError, match=r"^discord\.token") as error:
        await examine(settings_for(discord, token=wrong))
    assert wrong not in str(error.value)


async def test_a_token_as_other_servers_write_it_is_as_good(discord: DiscordDouble) -> None:
    discord.world.token = "eyJhbGciOiJIUzI1NiJ9.eyJpZCI6IjEwIn0.c2lnbmF0dXJl"
    report = await examine(settings_for(discord))
    assert report.ok
    assert "Discord accepts the token" in [finding.what for finding in report.findings]


async def test_a_discord_that_is_away_is_no_finding() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        told = {"token": Secret("Nzc.double.token").reveal(), "rest_url": f"http://127.0.0.1:{taken.getsockname()[1]}"}
        with pytest.raises(ChatUnavailableError):
            await examine(make_settings(discord=told))


async def called(discord: DiscordDouble, *arguments: str, **more: str) -> Ended:
    """The command as a process, on this Discord."""
    told = {
        "INTERN__DISCORD__TOKEN": discord.token,
        "INTERN__DISCORD__REST_URL": discord.rest_url,
        "INTERN__DISCORD__GUILD_IDS": json.dumps([discord.guild.id]),
        "INTERN__DISCORD__TEAM_ROLE_IDS": json.dumps([discord.team_role.id]),
        "INTERN__LLM__PROVIDER": "offline",
        **more,
    }
    done = await anyio.run_process(
        program("doctor", *arguments), env=environment(**told), stdin=subprocess.DEVNULL, check=False
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.rest
async def test_the_command_ends_with_0_where_all_is_well_and_with_1_where_something_is_to_do(
    discord: DiscordDouble,
) -> None:
    code, out, err = await called(discord)
    assert code == 0, err
    assert out.splitlines()[0].startswith(f"invite link: {discord.rest_url.removesuffix('/api/v10')}/oauth2/authorize?")
    assert out.splitlines()[1].startswith("next: nothing")
    assert "TODO" not in err
    give(discord, 0)
    code, out, err = await called(discord)
    assert code == 1
    assert "TODO" in err
    assert discord.token not in out + err


@pytest.mark.rest
async def test_scripts_get_one_object(discord: DiscordDouble) -> None:
    code, out, err = await called(discord, "--json", INTERN__DISCORD__GUILD_IDS="[]")
    assert (code, err) == (1, "")
    report = json.loads(out)
    assert set(report) == {"ok", "next", "invite", "findings"}
    assert report["ok"] is False


def test_without_a_token_the_folder_is_looked_at_and_discord_left_out(intern: Intern) -> None:
    assert doctor_command.name == "doctor"
    code, out, err = intern("doctor")
    assert code == 1
    assert "there is no data folder" in err
    assert "Discord was not looked at" in err
    assert "invite link" not in out


def offline(folder: Path) -> Settings:
    return make_settings(folder, llm=OFFLINE, embeddings=WORDS_ALONE)


async def test_a_sound_folder_is_told_as_sound_while_somebody_writes(tmp_path: Path, wording: Wording) -> None:
    settings = offline(tmp_path)
    async with await SqliteDatabase.open(settings.paths.database) as db:
        store = SqliteSearchStore(db, settings.paths.search)
        await store.replace_documents([listed_document()])
        report = await examine(settings)
        # Looked at, and not changed.
        await check(store)
    said = [finding.what for finding in report.findings if finding.level == "ok"]
    assert "the database is sound, and each row points to what is there" in said
    assert "the search file is sound" in said
    wording(todos(report))


async def test_a_full_text_table_that_tells_something_else_is_found(tmp_path: Path) -> None:
    settings = offline(tmp_path)
    async with await SqliteDatabase.open(settings.paths.database) as db:
        await SqliteSearchStore(db, settings.paths.search).replace_documents([listed_document()])
    raw: Any = apsw.Connection(str(settings.paths.search))
    with closing(raw):
        raw.execute("insert into search_words (search_words) values ('delete-all')")
    report = await examine(settings)
    assert todos(report)[0] == f"the search file {settings.paths.search} is damaged: search_words"
    assert "intern index --rebuild-search" in report.next


async def test_a_row_that_points_to_nothing_is_found(tmp_path: Path) -> None:
    settings = offline(tmp_path)
    async with await SqliteDatabase.open(settings.paths.database):
        pass
    raw: Any = apsw.Connection(str(settings.paths.database))
    with closing(raw):
        raw.pragma("foreign_keys", 0)
        raw.execute("insert into fact_beliefs (community, fact_id, since) values ('default', 'none', 1)")
    report = await examine(settings)
    assert "fact_beliefs points to nothing in facts" in todos(report)[0]


async def test_a_database_of_another_schema_is_refused_before_anything_else(tmp_path: Path) -> None:
    settings = offline(tmp_path)
    async with await SqliteDatabase.open(settings.paths.database):
        pass
    raw: Any = apsw.Connection(str(settings.paths.database))
    with closing(raw):
        raw.pragma("user_version", 4711)
    report = await examine(settings)
    assert "intern.db has schema 4711, and this intern knows schema 1 only" in todos(report)[0]
    assert "install the intern that wrote it" in report.next


async def test_what_is_no_database_is_told_as_damaged(tmp_path: Path) -> None:
    settings = offline(tmp_path)
    settings.paths.database.write_bytes(b"no database " * 1000)
    report = await examine(settings)
    assert any("damaged" in finding.what + finding.do for finding in report.findings)
    assert not report.ok


def asking(endpoint: EndpointDouble, folder: Path, **over: Any) -> Settings:
    llm = {"base_url": endpoint.base_url, "model": "double", "api_key": KEY, "max_retries": 0} | over
    return make_settings(folder, llm=llm, embeddings=WORDS_ALONE)


def said_of_the_model(report: DoctorReport) -> list[str]:
    """Return the lines about the model; without time and tokens, which every answer has."""
    told = [each.what for each in report.findings if "endpoint at" in each.what or "the model of" in each.what]
    assert all(re.search(_TOOK, each) for each in told if " answers as " in each)
    return [re.sub(_TOOK, "", each) for each in told]


_TOOK = r" \(one short question: \d+\.\d s, [1-9][\d,]* tokens\)"


async def test_an_endpoint_that_answers_is_told_by_address_and_model_and_its_tokens_are_counted(
    tmp_path: Path,
) -> None:
    with endpoint_double(api_key=KEY) as endpoint:
        settings = asking(endpoint, tmp_path)
        async with await SqliteDatabase.open(settings.paths.database) as db:
            report = await examine(settings)
            [counted] = (await UsageLog(db).read_since(datetime.now(UTC).date())).values()
    assert said_of_the_model(report) == [f"the endpoint at {endpoint.base_url} answers as double"]
    assert len(endpoint.requests) == 1
    assert [(each.prompt, each.calls) for each in counted] == [("gate", 1)]


@pytest.mark.rest
async def test_what_an_endpoint_refuses_is_told_and_remembered_until_it_takes_it(tmp_path: Path) -> None:
    plain = [refuse(400, says=f"unknown field {name}") for name in ("temperature", "stream", "maxLength")]
    with endpoint_double(api_key=KEY) as endpoint:
        settings = asking(endpoint, tmp_path)
        async with await SqliteDatabase.open(settings.paths.database) as db:
            endpoint.next(*plain)
            refusing = await examine(settings)
            clock = HandClock()
            async with open_models(settings, None, clock, forms=RequestFormStore(db, clock=clock)) as models:
                await models.answering.ask(GATE, GateIn(question="Which port?", history="", addressed=True))
            started = endpoint.requests[4:]
            taking = await examine(settings)
            kept = await RequestFormStore(db).find_form(endpoint.base_url, "double", "auto")
    (said,) = said_of_the_model(refusing)
    assert said.startswith(f"the endpoint at {endpoint.base_url} answers as double; it does not take ")
    assert "a temperature, streaming, bounds in schemas" in said
    (request,) = started
    assert not {"temperature", "stream"} & request.body.keys()
    assert "maxLength" not in json.dumps(request.body)
    assert said_of_the_model(taking) == [f"the endpoint at {endpoint.base_url} answers as double"]
    assert kept == RequestForm()


async def test_parts_are_won_back_where_a_server_told_no_reason_for_its_refusal(tmp_path: Path) -> None:
    def refuse_a_temperature(body: dict[str, Any]) -> Any:
        return refuse(400, says="Bad Request") if "temperature" in body else sensible(body)

    with endpoint_double(refuse_a_temperature, api_key=KEY) as endpoint:
        report = await examine(asking(endpoint, tmp_path))
    (said,) = said_of_the_model(report)
    assert said.endswith("it does not take a temperature, and is asked without")
    assert len(endpoint.requests) <= 2 + 10
    assert endpoint.requests[-2].body.keys() >= {"max_tokens", "stream", "response_format"}


@pytest.mark.parametrize(
    ("reply", "told", "mend"),
    [
        (refuse(401, says=f"wrong key {KEY}"), "answered 401", "check llm.api_key"),
        (refuse(404, says="no such model"), "answered 404", "check llm.model"),
        (refuse(503, says=f"overloaded, {KEY}"), "answered 503", "see that the endpoint runs"),
        (refuse(503, says="Loading model"), "answered 503", "wait until the server has loaded its model"),
        (junk(), "is not a chat completion", "try another llm.structured_output"),
        (drop(), "cannot be reached", "check llm.base_url"),
        (never(), "said nothing for 0.2 s", "raise llm.timeout_seconds"),
    ],
    ids=["key", "model", "overloaded", "loading", "unreadable", "broken off", "silent"],
)
async def test_an_endpoint_that_gives_no_answer_is_to_do_with_the_reason_and_no_key(
    tmp_path: Path, reply: Reply, told: str, mend: str
) -> None:
    with endpoint_double(api_key=KEY) as endpoint:
        endpoint.next(reply)
        settings = asking(endpoint, tmp_path, timeout_seconds=0.2 if reply.delay else 10)
        report = await examine(settings)
    (said,) = said_of_the_model(report)
    assert said.startswith("the model of [llm] gave no answer: ")
    assert told in said
    assert mend in report.next
    assert KEY not in str(report)
    assert not settings.paths.database.exists()


_LISTS: dict[str, dict[str, Any]] = {
    "llama.cpp": {"/v1/models": {"data": [{"id": "m.gguf", "owned_by": "llamacpp", "meta": {"n_ctx": 2048}}]}},
    "vLLM": {"/v1/models": {"data": [{"id": "double", "owned_by": "vllm", "max_model_len": 2048}]}},
    "Ollama": {
        "/v1/models": {"data": [{"id": "double:latest", "owned_by": "library"}]},
        "/api/ps": {"models": [{"name": "double:latest", "context_length": 2048}]},
    },
    "LM Studio": {
        "/v1/models": {"data": [{"id": "double", "owned_by": "organization_owner"}]},
        "/api/v0/models": {"data": [{"id": "double", "loaded_context_length": 2048}]},
    },
}


@pytest.mark.parametrize("server", _LISTS)
async def test_a_known_server_is_named_with_the_settings_that_it_needs(tmp_path: Path, server: str) -> None:
    with endpoint_double(api_key=KEY) as endpoint:
        endpoint.pages = _LISTS[server]
        report = await examine(asking(endpoint, tmp_path))
        roomy = {"max_tokens": 48, "timeout_seconds": 600}
        content = await examine(asking(endpoint, tmp_path, **roomy))
    (said,) = (each for each in report.findings if "serves the model" in each.what)
    assert said.level == "note"
    assert said.what.startswith(f"{server} serves the model of [llm], with 2,048 tokens of context; ")
    assert "prompt and reply need about 6,096 tokens of context" in said.what
    assert "set llm.timeout_seconds = 600" in said.what
    assert good(f"{server} serves the model of [llm], with 2,048 tokens of context") in content.findings


async def test_a_list_of_models_that_is_not_understood_is_told_and_names_no_server(tmp_path: Path) -> None:
    with endpoint_double(api_key=KEY) as endpoint:
        endpoint.pages = {"/v1/models": {"data": [{"id": 7, "owned_by": ["vllm"]}]}}
        report = await examine(asking(endpoint, tmp_path))
    assert not [each for each in report.findings if "serves the model" in each.what]
    [told] = [each.what for each in report.findings if each.level == "note" and "no list of models" in each.what]
    assert f"{endpoint.base_url}/models" in told


async def test_a_known_server_is_named_also_where_the_test_question_fails(tmp_path: Path) -> None:
    with endpoint_double(api_key=KEY) as endpoint:
        endpoint.pages = _LISTS["llama.cpp"]
        endpoint.next(refuse(503, says="Loading model"))
        report = await examine(asking(endpoint, tmp_path))
    assert "answered 503" in todos(report)[0]
    assert [each for each in report.findings if each.what.startswith("llama.cpp serves the model of [llm]")]


@pytest.mark.rest
@pytest.mark.parametrize(("turned", "said"), [(0, ""), (-300, "behind"), (300, "ahead of")])
async def test_a_clock_that_is_off_is_to_do(discord: DiscordDouble, turned: int, said: str) -> None:
    clock = HandClock(datetime.now(UTC) + timedelta(seconds=turned))
    report = await examine(settings_for(discord), clock)
    told = [each for each in report.findings if "the clock" in each.what]
    assert [each.level for each in told] == (["todo"] if said else ["ok"])
    assert f"{said} that of Discord" in told[0].what or not said


async def test_without_discord_the_clock_is_compared_with_the_endpoint_s(tmp_path: Path) -> None:
    with endpoint_double(api_key=KEY) as endpoint:
        report = await examine(asking(endpoint, tmp_path), HandClock(datetime.now(UTC) - timedelta(hours=1)))
    assert [each for each in todos(report) if each.endswith("behind that of the endpoint")]


async def test_an_endpoint_that_is_away_is_to_do(tmp_path: Path) -> None:
    with endpoint_double() as endpoint:
        settings = asking(endpoint, tmp_path)
    report = await examine(settings)
    assert "cannot be reached" in todos(report)[0]
    assert report.next.startswith("start the endpoint, or check host and port in llm.base_url")


async def test_an_answer_later_than_the_time_for_a_question_is_too_slow(tmp_path: Path) -> None:
    with endpoint_double(api_key=KEY) as endpoint:
        endpoint.next(never())
        settings = asking(endpoint, tmp_path)
        hasty = structs.replace(settings, ai=structs.replace(settings.ai, request_timeout_seconds=0.2))
        report = await examine(hasty)
    assert "no whole reply to one short question in 0.2 s" in todos(report)[0]
    assert "ai.request_timeout_seconds" in report.next


async def test_a_model_of_its_own_for_learning_is_asked_too_and_the_same_one_is_not(tmp_path: Path) -> None:
    with endpoint_double(api_key=KEY) as endpoint:
        same = await examine(asking(endpoint, tmp_path, kb={"timeout_seconds": 90}))
        assert len(endpoint.requests) == len(said_of_the_model(same)) == 1
        other = await examine(asking(endpoint, tmp_path, kb={"model": "larger"}))
    assert said_of_the_model(other) == [
        f"the endpoint at {endpoint.base_url} answers as double",
        f"the endpoint at {endpoint.base_url} answers as larger, for [llm.kb]",
    ]


async def test_a_spent_budget_is_noted_and_nothing_is_asked(tmp_path: Path) -> None:
    with endpoint_double(api_key=KEY) as endpoint:
        settings = asking(endpoint, tmp_path, daily_token_budget=20_000)
        async with await SqliteDatabase.open(settings.paths.database) as db:
            await UsageLog(db).add(datetime.now(UTC).date(), "gate", UsageMeter(1, 20_000))
            report = await examine(settings)
    assert [each.level for each in report.findings if each.what in said_of_the_model(report)] == ["note"]
    assert endpoint.requests == []


async def test_an_endpoint_is_asked_where_nothing_can_be_written_and_an_empty_database_is_left_alone(
    tmp_path: Path,
) -> None:
    empty, unwritable = tmp_path / "empty", tmp_path / "unwritable"
    with endpoint_double(api_key=KEY) as endpoint:
        settings = asking(endpoint, empty)
        await anyio.Path(empty).mkdir(parents=True)
        await anyio.Path(settings.paths.database).touch()
        report = await examine(settings)
        assert (await anyio.Path(settings.paths.database).stat()).st_size == 0
        assert f"the endpoint at {endpoint.base_url} answers as double" in said_of_the_model(report)
        settings = asking(endpoint, unwritable)
        await (await SqliteDatabase.open(settings.paths.database)).close()
        await anyio.Path(unwritable / "intern.db-wal").mkdir()  # where SQLite wants to write
        report = await examine(settings)
        assert said_of_the_model(report) == [f"the endpoint at {endpoint.base_url} answers as double"]


def listed_document() -> SearchDocument:
    at = datetime(2026, 2, 1, tzinfo=UTC)
    return SearchDocument(id="kb:a#0", source_id=SourceId("kb:a"), kind="source", text="keys", at=at)


def test_damage_of_the_archive_and_scan_paths_that_cannot_be_looked_at_are_to_do(intern: Intern, folder: Path) -> None:
    team, gone = folder / "data" / "team-knowledge", folder / "gone"
    Archive(team / "raw", clock=HandClock()).append(samples.capture(n=1))
    [week] = (team / "raw").iterdir()
    week.write_text("notes to self\n" + week.read_text()[:-5])
    (folder / "intern.toml").write_text(
        f'[llm]\nprovider = "offline"\n[discovery]\nscan_paths = ["{gone}", "{folder}"]\n'
    )
    code, out, _ = intern("doctor", "--json")
    damaged, unseen, _no_token = (each for each in json.loads(out)["findings"] if each["level"] == "todo")
    assert code == 1
    assert damaged["what"].startswith(f"2 damaged pieces of the archive are passed over: {week.name}, line 1: ")
    assert damaged["do"].startswith(f"mend data/team-knowledge/raw/{week.name} at line 1 with a text editor")
    assert unseen["what"] == f"discovery cannot look at {gone} (No such file or directory)"


async def test_documents_that_are_left_out_are_noted_with_the_reason(tmp_path: Path) -> None:
    settings = offline(tmp_path)
    async with await SqliteDatabase.open(settings.paths.database) as db:
        await SkippedSourceStore(db, clock=HandClock()).save("document", [("logo.png", "not a text")])
        report = await examine(settings)
    assert [each.what for each in report.findings if each.level == "note"] == [
        "1 document or link is left out: logo.png (not a text); `intern status --sources` lists all"
    ]


def test_a_folder_that_is_empty_is_not_reported_as_missing(tmp_path: Path) -> None:
    for folder, what in (
        (tmp_path, f"{tmp_path} holds nothing of intern's"),
        (tmp_path / "data", f"there is no data folder {tmp_path / 'data'}"),
    ):
        said = [each.what for each in check_folder(offline(folder))]
        assert f"{what}; `intern init` or the first start sets it up" in said


def test_a_file_in_the_place_of_the_data_folder_is_to_do(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    first = check_folder(offline(tmp_path / "data"))[0]
    assert (first.level, first.what) == ("todo", f"{tmp_path / 'data'} is not a folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_to_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    first = check_folder(offline(tmp_path))[0]
    assert (first.level, first.do) == ("todo", f"let the user that intern runs as write to {tmp_path}")


def test_a_disk_that_is_almost_full_is_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def almost_full(_: Path) -> SimpleNamespace:
        return SimpleNamespace(free=5 * 1024**2)

    monkeypatch.setattr(shutil, "disk_usage", almost_full)
    first = check_folder(offline(tmp_path))[0]
    assert (first.level, first.what) == ("todo", f"only 5 MB are free on the disk of {tmp_path}")


@pytest.mark.rest
async def test_texts_that_the_english_model_does_not_know_are_told_with_the_setting_to_change(
    discord: DiscordDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = settings_for(discord)
    local = structs.replace(settings, embeddings=EmbeddingOptions(provider="local"))
    german, english = "Wie kann ich den Port ändern, auf dem der Dienst läuft?", "How can I change the port of this?"
    async with await SqliteDatabase.open(settings.paths.database) as db:
        store = SqliteSearchStore(db, settings.paths.search)
        at = datetime(2026, 1, 1, tzinfo=UTC)
        texts = [german, english, "0x80070057", "Как изменить порт сервера?"]
        documents = [
            SearchDocument(id=f"kb:{n}#0", source_id=SourceId(f"kb:{n}"), kind="source", text=text, at=at)
            for n, text in enumerate(texts)
        ]
        await store.replace_documents(documents[:3])
        assert not [each for each in (await examine(local)).findings if "not in English" in each.what]
        await store.replace_documents(documents[3:])
        [note] = [each for each in (await examine(local)).findings if "not in English" in each.what]
        await db.run(
            "insert into answers (community, question_id, message_ids, author_id, channel_id, place_id, place, at,"
            " changed_at, outcome, reason, texts, seconds, tokens, cost, gap) values (:community, 'q', '[]', '1', '2',"
            " '2', '', '2026-01-01', '2026-01-01', 'silent', 'no_sources', json_array(?), 0.0, 0, 0.0, 'open')",
            (german,),
        )
        both = [each.what for each in (await examine(local)).findings if "not in English" in each.what]
    assert note.level == "note"
    assert note.what.startswith("most documents whose language can be told are not in English (another script, de)")
    assert 'embeddings.model = "multilingual"' in note.what
    assert [each.split()[1] for each in both] == ["documents", "questions"]
    other = structs.replace(settings, embeddings=EmbeddingOptions(provider="none"))
    assert not [each for each in (await examine(other)).findings if "not in English" in each.what]


async def test_a_model_of_ones_own_that_cannot_be_used_is_named(
    discord: DiscordDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    monkeypatch.chdir(tmp_path)
    options = EmbeddingOptions(provider="local", model=str(tmp_path / "model.onnx"))
    report = await examine(structs.replace(settings_for(discord), embeddings=options))
    [todo] = [each for each in report.findings if each.level == "todo"]
    wording(todo.what)
    assert todo.do == f"embeddings.model: there is no file {options.model}"


async def test_it_says_what_finds_the_sense_of_a_text_and_how_much_of_that_is_made(
    discord: DiscordDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = settings_for(discord)
    local = structs.replace(settings, embeddings=EmbeddingOptions(provider="local"))
    async with await SqliteDatabase.open(settings.paths.database) as db:
        store = SqliteSearchStore(db, settings.paths.search)
        at = datetime(2026, 1, 1, tzinfo=UTC)
        documents = [
            SearchDocument(id=f"kb:{n}#0", source_id=SourceId(f"kb:{n}"), kind="source", text="a", at=at)
            for n in range(3)
        ]
        await store.replace_documents(documents)
        await store.store_vectors(LOCAL_MODEL, [(documents[0], struct.pack("<2f", 0, 1))])
        await store.store_vectors("another", [(documents[1], struct.pack("<2f", 0, 1))])
    said = [finding.what for finding in (await examine(local)).findings]
    assert f"embeddings: {LOCAL_MODEL}; 1 of 3 documents have a vector" in said
    assert "1 documents have a vector of another model, and get new ones once the bot runs" in said
    unset = structs.replace(settings, embeddings=EmbeddingOptions())
    assert [each.what for each in (await examine(unset)).findings if each.level == "note"] == [
        f"search uses words alone; for paraphrases, see [embeddings], or {format_install_hint('embeddings')}"
    ]
    status = read_status(local, clock=HandClock())
    assert (status.embeddings, status.documents, status.unembedded) == (LOCAL_MODEL, 3, 2)
    with endpoint_double() as endpoint:
        misspelt = LlmOptions(base_url=endpoint.base_url, model="m", prices=(ModelPrice(model="M", input=1, output=2),))
        notes = [each.what for each in (await examine(structs.replace(settings, llm=misspelt))).findings]
    assert "[[llm.prices]] does not name the model of [llm]: its calls are counted as free" in notes
