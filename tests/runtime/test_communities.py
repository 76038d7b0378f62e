"""The registry of communities: the events that open one, the events that it receives then, and its closing."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import Event, create_task_group, fail_after, wait_all_tasks_blocked
from msgspec.structs import asdict
from structlog.contextvars import get_contextvars

from intern.actors.pipeline import ACTORS, PipelineParts
from intern.chat.checkpoints import Checkpoints
from intern.chat.platform import ChatPlatform
from intern.core import flow
from intern.core.errors import ChatRefusedError, ConfigError, KnowledgeError
from intern.core.ids import GuildId, MessageId, RoleId, UserId, parse_position
from intern.core.messages import MemberRoles
from intern.platforms.discord.options import DiscordOptions
from intern.runtime.communities import Communities
from intern.settings.communities import Community, build_community_settings, change_chosen_value
from intern.settings.loading import load_settings
from intern.stores.tables.checkpoints import StoredCheckpoints
from tests.worlds.actors import finishing
from tests.worlds.chat import Town
from tests.worlds.clock import HandClock
from tests.worlds.settings import make_settings


class Street:
    """Communities whose actors only listen."""

    def __init__(self, **options: Any) -> None:
        self.town = Town(HandClock(), team={"mira"})
        self.heard: dict[str, list[flow.GatewayEvent]] = {}
        self.chats: dict[str, ChatPlatform] = {}
        self.stands: dict[str, StoredCheckpoints] = {}
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.logged: set[tuple[str, str]] = set()
        self.failures: list[str] = []
        self.gate = Event()
        self.gate.set()
        self.work = 0
        self.communities = Communities(self.town, opens=self.opens, stands=self.stand, **options)

    async def add(self, name: str, *channels: str) -> tuple[GuildId, Any]:
        guild_id, channel_id = self.town.add_server(*channels)
        await self.communities.add(Community(name=name, guild_ids=(guild_id,)))
        return guild_id, channel_id

    async def stand(self, communities: Sequence[Community]) -> list[StoredCheckpoints]:
        return [self.stands.get(each.name, StoredCheckpoints()) for each in communities]

    @asynccontextmanager
    async def opens(self, community: Community, chat: ChatPlatform) -> AsyncGenerator[PipelineParts]:
        name = community.name
        self.opened.append(name)
        if name in self.failures:
            self.failures.remove(name)
            raise KnowledgeError("its disk is gone")
        await self.gate.wait()
        self.chats[name] = chat
        heard = self.heard.setdefault(name, [])
        checkpoints = Checkpoints(StoredCheckpoints(), baseline=MessageId("0"))

        async def leave(*streams: Any, **_: Any) -> None:
            for stream in streams:
                stream.close()

        async def listener(*streams: Any) -> None:
            await leave(*streams)
            await chat.listen(take)

        def take(event: flow.GatewayEvent) -> None:
            heard.append(event)
            self.logged.add((name, get_contextvars().get("community", "")))

        async def keep(_: StoredCheckpoints) -> None: ...

        async def count() -> int:
            return self.work

        actors = {**dict.fromkeys(ACTORS, leave), "listener": listener}
        yield PipelineParts(actors=actors, checkpoints=checkpoints, keep_checkpoints=keep, count_jobs=count)
        self.closed.append(name)

    def texts(self, name: str) -> list[str]:
        return [event.message.text for event in self.heard.get(name, ()) if isinstance(event, flow.MessageCreated)]

    def sessions(self, name: str) -> list[flow.SessionStarted]:
        return [event for event in self.heard.get(name, ()) if isinstance(event, flow.SessionStarted)]

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        stop = Event()
        with fail_after(100_000):
            async with finishing(partial(self.communities.run, stop=stop)):
                await self.town.wait_ready()
                await wait_all_tasks_blocked()
                yield
                stop.set()

    async def until(self, met: Callable[[], bool]) -> None:
        with fail_after(5):
            while not met():
                await anyio.lowlevel.checkpoint()


async def test_a_session_opens_no_community_and_a_message_opens_its_own_alone() -> None:
    street = Street()
    _, here = await street.add("one")
    await street.add("other")
    async with street.at_work():
        assert street.opened == []
        street.town.say("bob", "Which port?", channel_id=here)
        await street.until(lambda: street.texts("one") == ["Which port?"])
        street.town.say("bob", "And which host?", channel_id=here)
        await street.until(lambda: len(street.texts("one")) == 2)
        assert street.opened == ["one"]
        assert [*street.communities.open] == ["one"]
    assert street.closed == ["one"]
    assert street.logged == {("one", "one")}
    first, *_ = street.heard["one"]
    # The session is as it was before the message, so that no channel is behind because of it.
    assert isinstance(first, flow.SessionStarted)
    assert [seen.last_message_id for seen in first.channels] == [None]


async def test_neither_a_bot_nor_a_closed_channel_opens_a_community() -> None:
    street = Street()
    guild_id, here = await street.add("one", "general", "staff")
    staff = next(
        each.id for each in street.town._channels.values() if each.name == "staff" and each.guild_id == guild_id
    )
    street.town.set_private(staff)
    async with street.at_work():
        street.town.say(street.town.bot, "An answer.", channel_id=here)
        street.town.say("mira", "Among us.", channel_id=staff)
        street.town.say("bob", "On a server that is no community.")
        await wait_all_tasks_blocked()
        assert street.opened == []


async def test_a_community_that_is_removed_while_it_waits_to_be_opened_is_not_opened() -> None:
    street = Street()
    street.gate = Event()
    names = {"one", "two", "three", "four", "five"}
    places = [(await street.add(name))[1] for name in names]
    waits = ""
    async with street.at_work(), create_task_group() as tg:
        for here in places:
            street.town.say("bob", "Which port?", channel_id=here)
        await wait_all_tasks_blocked()
        waits = (names - {*street.opened}).pop()
        assert len(street.opened) == 4
        tg.start_soon(street.communities.remove, waits)
        await wait_all_tasks_blocked()
        street.gate.set()
        await street.until(lambda: len(street.heard) == 4)
    assert {*street.opened} == names - {waits}


async def test_what_comes_while_a_community_opens_waits_for_it_in_order() -> None:
    street = Street()
    _, here = await street.add("one")
    street.gate = Event()
    async with street.at_work():
        for n in range(10):
            street.town.say("bob", f"{n}", channel_id=here)
        await wait_all_tasks_blocked()
        street.gate.set()
        await street.until(lambda: street.texts("one") == [f"{n}" for n in range(10)])


async def test_what_is_too_much_to_wait_is_found_by_the_session_instead() -> None:
    street = Street()
    _, here = await street.add("one")
    street.gate = Event()
    async with street.at_work():
        said = [street.town.say("bob", f"{n}", channel_id=here) for n in range(1001)]
        last = street.town.say("bob", "last", channel_id=here)
        street.gate.set()
        await street.until(lambda: street.texts("one") == ["last"])
    [session] = street.sessions("one")
    assert [seen.last_message_id for seen in session.channels] == [said[-1].id]
    assert not session.continues
    assert parse_position(last.id) > parse_position(said[-1].id)


async def test_a_community_that_missed_something_is_opened_at_the_start() -> None:
    street = Street()
    guild_id, here = await street.add("one")
    early, late = (street.town.say("bob", text, channel_id=here) for text in ("early", "late"))
    for name, until in (("behind", early), ("settled", late)):
        street.stands[name] = StoredCheckpoints(attended={guild_id: until.id})
    assert (await street_with(street, "behind", guild_id), await street_with(street, "settled", guild_id)) == (
        ["behind"],
        [],
    )


async def street_with(street: Street, name: str, guild_id: GuildId) -> list[str]:
    street.opened.clear()
    street.communities = Communities(street.town, opens=street.opens, stands=street.stand)
    await street.communities.add(Community(name=name, guild_ids=(guild_id,)))
    async with street.at_work():
        await wait_all_tasks_blocked()
    return street.opened.copy()


@pytest.mark.jumps
async def test_an_idle_community_is_closed_and_opened_again_where_it_was() -> None:
    street = Street()
    _, here = await street.add("one")
    async with street.at_work():
        first = street.town.say("bob", "first", channel_id=here)
        await anyio.sleep(300)
        street.town.say("bob", "second", channel_id=here)
        await anyio.sleep(590)
        assert [*street.communities.open] == ["one"]
        street.work = 1
        await anyio.sleep(3_600)
        assert street.communities.open, "a job is in work"
        street.work = 0
        await anyio.sleep(20)
        assert not street.communities.open
        street.town.say("bob", "third", channel_id=here)
        await anyio.sleep(1)
    assert street.texts("one") == ["first", "second", "third"]
    before, again = street.sessions("one")
    assert (before.continues, again.continues) == (False, True)
    assert again.channels[0].last_message_id not in {None, first.id}


@pytest.mark.jumps
async def test_beyond_the_limit_the_one_that_heard_nothing_for_longest_is_closed_once_it_has_no_work() -> None:
    street = Street(most_open=2)
    places = {name: (await street.add(name))[1] for name in ("one", "two", "three")}
    async with street.at_work():
        for name, here in places.items():
            street.town.say("bob", "hello", channel_id=here)
            await anyio.sleep(1)
            street.work = int(name == "two")  # before the third comes
        assert set(street.communities.open) == {"one", "two", "three"}, "there is work"
        street.work = 0
        await anyio.sleep(6)
        assert set(street.communities.open) == {"two", "three"}
        street.town.say("bob", "again", channel_id=places["one"])
        await anyio.sleep(1)
        assert set(street.communities.open) == {"one", "three"}
    assert street.texts("one") == ["hello", "again"]


@pytest.mark.jumps
async def test_a_session_that_began_meanwhile_is_no_continuation() -> None:
    street = Street()
    _, here = await street.add("one")
    async with street.at_work():
        street.town.say("bob", "first", channel_id=here)
        await anyio.sleep(700)
        assert street.communities.open == ()
        street.town.lose_session()
        street.town.say("bob", "second", channel_id=here)
        await anyio.sleep(1)
    assert [session.continues for session in street.sessions("one")] == [False, False]


@pytest.mark.jumps
async def test_a_community_that_cannot_be_opened_is_left_alone_for_a_while_and_harms_no_other() -> None:
    street = Street()
    _, here = await street.add("one")
    _, there = await street.add("other")
    street.failures = ["one", "one"]
    async with street.at_work():
        missed = street.town.say("bob", "missed", channel_id=here)
        street.town.say("bob", "heard", channel_id=there)
        await anyio.sleep(1)
        assert street.texts("other") == ["heard"]
        for _ in range(10):
            street.town.say("bob", "again", channel_id=here)
            street.communities.open_now("one")  # it has jobs waiting
        await anyio.sleep(50)
        assert street.opened.count("one") == 1
        await anyio.sleep(200)
    assert street.opened.count("one") == 3
    [session] = street.sessions("one")
    newest = session.channels[0].last_message_id
    assert newest is not None
    assert parse_position(newest) > parse_position(missed.id)


@pytest.mark.jumps
async def test_a_closed_community_is_opened_for_upkeep_now_and_then() -> None:
    street = Street(upkeep_seconds=7_200)
    await street.add("one")
    async with street.at_work():
        await anyio.sleep(7_300)
        assert street.opened == ["one"]
        await anyio.sleep(10_000)
        assert (street.opened, street.closed) == (["one", "one"], ["one", "one"])


async def test_a_community_sees_no_channel_of_another() -> None:
    street = Street()
    _, here = await street.add("one")
    _, there = await street.add("other")
    theirs = street.town.say("bob", "a secret", channel_id=there)
    async with street.at_work():
        street.town.say("bob", "Hello?", channel_id=here)
        await street.until(lambda: "one" in street.chats and bool(street.texts("one")))
        chat = street.chats["one"]
        assert not chat.admits(street.town._channels[there])
        looks: list[Callable[[], Any]] = [
            lambda: chat.channel(there),
            lambda: chat.message(there, theirs.id),
            lambda: chat.look_up(there, theirs.id),
            lambda: chat.before(there, None, 10),
            lambda: chat.after(there, MessageId("0"), 10),
            lambda: chat.page(there, MessageId("0"), 10),
            lambda: chat.list_archived_threads(there, MessageId("0")),
            lambda: chat.start_thread(there, theirs.id, "x"),
            lambda: chat.send(there, "x", "n"),
            lambda: chat.rewrite(there, theirs.id, "x"),
            lambda: chat.typing(there),
        ]
        for look in looks:
            with pytest.raises(ChatRefusedError, match="no server of this community"):
                await look()


async def test_only_open_communities_keep_the_roles_that_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    street = Street()
    one, here = await street.add("one")
    other, _ = await street.add("other")
    learned = [MemberRoles(guild_id, UserId("7"), (RoleId("8"),)) for guild_id in (one, other)]
    monkeypatch.setattr(street.town, "take_new_roles", lambda: learned)
    async with street.at_work():
        street.town.say("bob", "Hello?", channel_id=here)
        await street.until(lambda: bool(street.texts("one")))
        assert [*street.chats["one"].take_new_roles()] == learned[:1]
        assert not street.communities._known["other"].noted


async def test_a_community_remembers_no_message_of_threads_that_its_session_did_not_tell_of() -> None:
    street = Street()
    guild_id, here = await street.add("one")
    async with street.at_work():
        thread = street.town.add_channel_on(guild_id, "a thread")
        for n, place in enumerate((here, thread)):
            street.town.say("bob", f"Hello {n}?", channel_id=place)
        await street.until(lambda: len(street.texts("one")) == 2)
        assert [*street.communities._known["one"].newest] == [here]


def test_a_community_chooses_its_settings_over_those_of_the_process(tmp_path: Any) -> None:
    defaults = make_settings(
        tmp_path,
        kb={"team_raw_dir": "/elsewhere", "scan_interval_seconds": 60},
        discord={"guild_ids": ["1"], "team_member_ids": ["7"], "message_batch_wait_seconds": 5},
        llm={"base_url": "http://model.test/v1", "model": "m", "daily_token_budget": 1_000_000},
    )
    chosen: dict[str, Any] = {
        "ai": {"project_introduction": "Lumen"},
        "discord": {"team_role_ids": ["9"]},
        "llm": {"daily_token_budget": 50_000},
    }
    own = build_community_settings(Community(name="lumen", guild_ids=(GuildId("2"),), chosen=chosen), defaults)
    assert (own.ai.project_introduction, own.llm.daily_token_budget, own.llm.model) == ("Lumen", 50_000, "m")
    assert (own.discord.guild_ids, own.discord.team_member_ids, own.discord.team_role_ids) == (("2",), (), ("9",))
    assert own.discord.message_batch_wait_seconds == 5
    assert own.kb.scan_interval_seconds == 60
    assert own.paths.raw == tmp_path / "communities/lumen/team-knowledge/raw"


# Finding I4.
def test_what_the_host_sets_holds_for_each_community_or_the_start_says_that_it_does_not() -> None:
    changed: dict[str, Any] = {
        **{name: ["7"] for name in ("guild_ids", "team_member_ids", "team_role_ids", "listed_channel_ids")},
        "channels": [{"id": "7", "mode": "off"}],
        "handoff_role_id": "7",
        "language": "de",
        "default_mode": "capture_only",
        "token": "x",
        "rest_url": "http://discord.test",
        "shards": {"ids": [1], "of": 2},
    }
    refused: set[str] = set()
    for name, default in asdict(DiscordOptions()).items():
        value = changed.get(name, default + 1 if isinstance(default, int | float) else None)
        overrides: dict[str, Any] = {"discord": {name: value}, "hosting": {"enabled": True}}
        try:
            host = make_settings(**overrides)
        except ConfigError as error:
            refused.update(re.findall(r"discord\.(\w+): must be empty with hosting\.enabled", str(error)))
            continue
        own = build_community_settings(Community(name="lumen", guild_ids=(GuildId("2"),)), host)
        assert getattr(own.discord, name) == getattr(host.discord, name) != default
    assert refused == {name for name in changed if name.endswith(("_ids", "_role_id"))} | {"channels"}


@pytest.mark.parametrize(
    ("name", "chosen", "says"),
    [
        ("../x", {}, "no name of a community"),
        ("x", {"llm": {"base_url": "http://evil.test"}}, r"llm\.base_url can be set for the whole process only"),
        ("x", {"kb": {"sources_dir": "/etc"}}, r"kb\.sources_dir can be set for the whole process only"),
        ("x", {"discord": {"guild_ids": ["3"]}}, r"discord\.guild_ids can be set for the whole process only"),
        ("x", {"hosting": {"cost_per_day": 2}}, r"community x: hosting\.cost_per_day counts only what has a price"),
        ("x", {"page": {"token": "x"}}, r"page\.token can be set for the whole process only"),
        ("x", {"llm": {"daily_token_budget": -1}}, "community x: "),
    ],
)
def test_what_a_community_may_not_choose_is_named(name: str, chosen: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build_community_settings(
            Community(name=name, guild_ids=(GuildId("2"),), chosen=chosen), load_settings(environ={})
        )


def test_a_setting_of_a_community_is_written_as_in_the_environment() -> None:
    chosen = change_chosen_value({}, "discord.team_role_ids", "[9, '10']")
    chosen = change_chosen_value(chosen, "ai.answer_scope", "Rust")
    assert chosen == {"discord": {"team_role_ids": ["9", "10"]}, "ai": {"answer_scope": "Rust"}}
    assert change_chosen_value(chosen, "ai.answer_scope", None) == {"discord": {"team_role_ids": ["9", "10"]}}
    for key in ("discord.guild_ids", "llm.base_url", "nonsense", "hosting.enabled"):
        with pytest.raises(ConfigError, match=f"{key} is no setting of a community; these are: ai.answer_scope, "):
            change_chosen_value({}, key, "1")
    with pytest.raises(ConfigError, match=r"kb\.review is no string, so write it as in intern\.toml"):
        change_chosen_value({}, "kb.review", "yes")


def test_the_limit_of_costs_bounds_the_budgets_of_both_models() -> None:
    prices = [{"model": "m", "input": 1, "output": 2}]
    llm = {"base_url": "http://h", "model": "m", "prices": prices, "daily_cost_budget": 9, "kb": {"max_tokens": 100}}
    defaults = make_settings(llm=llm, hosting={"enabled": True, "cost_per_day": 5})
    for chosen, most in (({}, 5), ({"hosting": {"cost_per_day": 3}}, 3), ({"llm": {"daily_cost_budget": 2}}, 2)):
        own = build_community_settings(Community(name="x", guild_ids=(GuildId("2"),), chosen=chosen), defaults)
        assert (own.llm.daily_cost_budget, own.kb_model.daily_cost_budget) == (most, most)
