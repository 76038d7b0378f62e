"""One history, live, read after an outage, and imported from an export: the same messages, the same archive.

Some parts differ: DiscordChatExporter writes no polls, no types of embeds, no flags, and names roles, channels and
times as people see them. It does not name the author of the message that a reply replies to. Archives differ in the
time of archiving, and in the versions of a conversation before its last, which an import leaves out.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from mimetypes import guess_type
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import anyio
import msgspec
from anyio import fail_after
from hypothesis import Phase, given, settings as hypothesis_settings, strategies as st
from msgspec import Struct, structs

from intern.actors.activity import ActivityReporter
from intern.core.captures import CapturedPair
from intern.core.flow import MessageCreated
from intern.core.ids import ChannelId, GuildId, RoleId, UserId, position_at
from intern.core.messages import ChatMessage
from intern.platforms.discord.events import read_event
from intern.platforms.discord.exports import ExportedTeam, read_exports
from intern.platforms.discord.gateway_cache import ChannelsUpdated, GatewayCache
from intern.platforms.discord.messages import Team, build_message
from intern.platforms.discord.payloads import RawMessage, parse_leniently
from intern.runtime.bot import open_sandbox
from intern.service.history_import import ImportRequest, import_history
from intern.settings.settings import Settings
from intern.stores.archive import Archive
from tests.examples import examples
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock
from tests.worlds.settings import OFFLINE, WORDS_ALONE, make_settings

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)
TEAM_ROLE = "77000000000000000"
LINK = "https://docs.example/ports"
BOT = UserId("31000000000000000")

Json = dict[str, Any]
Way = Literal["live", "caught up", "imported"]


class Person(Struct, frozen=True):
    id: str
    username: str
    name: str
    team: bool = False
    bot: bool = False


ALICE, BOB, BOBBY = (
    Person("11" * 9, "alice", "Alice"),
    Person("12" * 9, "bob7", "Bob"),
    Person("13" * 9, "bs", "Bob Smith"),
)
MIRA, ROBOT = Person("21" * 9, "mira", "Mira (team)", team=True), Person("22" * 9, "alerts", "Alerts", bot=True)
DELETED = Person("456226577798135808", "Deleted User", "Deleted User")
PEOPLE = (ALICE, BOB, BOBBY, MIRA, MIRA, ROBOT, DELETED)


class Parts(Struct, frozen=True):
    """The parts of a message, or of one that it forwards."""

    said: tuple[str | Person, ...] = ()
    embeds: tuple[Json, ...] = ()
    files: tuple[str, ...] = ()
    sticker: str = ""
    poll: tuple[str, ...] = ()
    has_link: bool = False
    glue: str = " "
    """Stands between words and mentions."""


class Sent(Struct, frozen=True):
    """A message; `replies` counts back from it, and `in_post` places it into the forum post."""

    by: Person
    parts: Parts
    forward: Parts | None = None
    replies: int = 0
    in_post: bool = False


_WORDS = st.lists(
    st.sampled_from(["How", "relay", "port?", "7480", "spool", "Grüße", "`drain`", "@nobody"]), max_size=4
)
_PEOPLE = st.lists(st.sampled_from([ALICE, BOB, BOBBY, MIRA]), max_size=2)
_LINES = st.sampled_from(["Disk full on relay-3", "E17", "Run `relay spool drain`"])


@st.composite
def _embeds(draw: st.DrawFn) -> Json:
    fields = draw(st.lists(st.tuples(_LINES, _LINES), max_size=2))
    told = [{"name": name, "value": value} for name, value in fields]
    address = draw(st.sampled_from([None, "https://alerts.example/7"]))
    return {"url": address, "title": draw(_LINES), "description": [draw(_LINES), *draw(_PEOPLE)], "fields": told}


@st.composite
def _parts(draw: st.DrawFn, *, polls: bool) -> Parts:
    words, people = draw(_WORDS), draw(_PEOPLE)
    return Parts(
        said=(*words, *people, *words[:1]),
        embeds=tuple(draw(st.lists(_embeds(), max_size=2))),
        files=tuple(draw(st.lists(st.sampled_from(["screen.png", "dump.zip"]), max_size=2))),
        sticker=draw(st.sampled_from(["", "", "wave"])),
        poll=tuple(draw(st.lists(_LINES, max_size=3 if polls else 0))),
        has_link=draw(st.booleans()),
        glue=draw(st.sampled_from([" ", "さん", "、", "_", "ß"])),
    )


def histories(*, polls: bool, most: int) -> st.SearchStrategy[list[Sent]]:
    sent = st.builds(
        Sent,
        by=st.sampled_from(PEOPLE),
        parts=_parts(polls=polls),
        forward=st.none() | _parts(polls=False),
        replies=st.integers(0, 3),
        in_post=st.booleans(),
    )
    return st.lists(sent, min_size=1, max_size=most)


class Scene:
    """A history with its places, and the three forms in which Discord and its exporter hand it out."""

    def __init__(self, history: Sequence[Sent], *, guild: str, channel: str, forum: str) -> None:
        self.guild, self.channel, self.forum = guild, channel, forum
        self.history = history
        self.times = [NOON + timedelta(minutes=5 * n) for n in range(len(history))]
        self.ids = [position_at(at, n).id for n, at in enumerate(self.times)]
        self.post = next((self.ids[n] for n, sent in enumerate(history) if sent.in_post), None)
        self.title = "Error 4711 in the tenant"

    def place(self, n: int) -> str:
        return str(self.post) if self.history[n].in_post else self.channel

    def target(self, n: int) -> int | None:
        sent = self.history[n]
        if sent.forward is not None or not sent.replies:  # a forward is no reply
            return None
        earlier = [m for m in range(n) if self.place(m) == self.place(n)]
        return earlier[-sent.replies] if len(earlier) >= sent.replies else None

    # Discord.

    def cache(self) -> GatewayCache:
        cache = GatewayCache()
        places: list[Json] = [{"id": self.channel, "type": 0, "name": "general"}, {"id": self.forum, "type": 15}]
        threads = [{"id": self.post, "type": 11, "parent_id": self.forum, "name": self.title}] if self.post else []
        seen = read_event("GUILD_CREATE", {"id": self.guild, "channels": places, "threads": threads}, US, cache)
        assert isinstance(seen, ChannelsUpdated)
        cache.apply(seen)
        return cache

    def live(self) -> list[ChatMessage]:
        cache = self.cache()
        heard: list[ChatMessage] = []
        for n, sent in enumerate(self.history):
            payload = {**self._payload(n), "guild_id": self.guild, **_member(sent.by)}
            if not sent.by.bot:
                payload["embeds"] = []  # Discord makes them of links, and later
            # REST leaves the members out.
            payload["mentions"] = [{**_user(person), **_member(person)} for person in _mentioned(sent)]
            event = read_event("MESSAGE_CREATE", payload, US, cache)
            assert isinstance(event, MessageCreated)
            heard.append(event.message)
        return heard

    def caught_up(self) -> list[ChatMessage]:
        cache = self.cache()
        read: list[ChatMessage] = []
        for person in PEOPLE:
            if person.team:
                cache.note_roles(GuildId(self.guild), UserId(person.id), [RoleId(TEAM_ROLE)])
        for n, sent in enumerate(self.history):
            raw = structs.replace(parse_leniently(self._payload(n), RawMessage), guild_id=GuildId(self.guild))
            message = build_message(raw, US, [RoleId(TEAM_ROLE)] if sent.by.team else [], cache)
            assert message is not None
            read.append(message)
        return read

    def _payload(self, n: int) -> Json:
        sent, target = self.history[n], self.target(n)
        payload: Json = {
            "id": self.ids[n],
            "channel_id": self.place(n),
            "type": 0 if target is None else 19,
            "author": _user(sent.by),
            "timestamp": self.times[n].isoformat(),
            "edited_timestamp": None,
            "mentions": [_user(person) for person in _mentioned(sent)],
            **_content(sent.parts),
        }
        if target is not None:
            payload["message_reference"] = {"type": 0, "message_id": self.ids[target], "channel_id": self.place(n)}
            payload["referenced_message"] = {"id": self.ids[target], "author": _user(self.history[target].by)}
        if sent.forward is not None:
            payload["message_reference"] = {"type": 1, "message_id": "5", "channel_id": "6"}
            payload["message_snapshots"] = [{"message": _content(sent.forward)}]
        return payload

    # The exporter.

    def exports(self) -> list[Json]:
        places = [(self.channel, "GuildTextChat", None, "general")]
        places += [(self.post, "GuildPublicThread", self.forum, self.title)] if self.post else []
        return [
            {
                "guild": {"id": self.guild, "name": "Lumen"},
                "channel": {"id": place, "type": kind, "categoryId": parent, "name": name},
                "messages": [self._exported(n) for n in range(len(self.history)) if self.place(n) == place],
            }
            for place, kind, parent, name in places
        ]

    def save(self, folder: Path) -> tuple[Path, ...]:
        paths = tuple(folder / f"{n}.json" for n, _ in enumerate(self.exports()))
        for path, export in zip(paths, self.exports(), strict=True):
            path.write_text(json.dumps(export))
        return paths

    def _exported(self, n: int) -> Json:
        sent, target = self.history[n], self.target(n)
        exported: Json = {
            "id": self.ids[n],
            "type": "Default" if target is None else "Reply",
            "timestamp": self.times[n].isoformat(),
            "timestampEdited": None,
            "author": _exported_user(sent.by),
            "mentions": [_exported_user(person) for person in _mentioned(sent)],
            **_exported_content(sent.parts),
        }
        if target is not None:
            exported["reference"] = {"type": "Default", "messageId": self.ids[target], "channelId": self.place(n)}
        if sent.forward is not None:
            exported["reference"] = {"type": "Forward", "messageId": "5", "channelId": "6"}
            exported["forwardedMessage"] = _exported_content(sent.forward)
        return exported


# Whom a forward or an embed mentions, an export knows by name only where they wrote or were mentioned, too.
_NAMED = Sent(ROBOT, Parts(said=(ALICE, BOB, BOBBY, MIRA)))
US = Team(bot_id=BOT, role_ids=frozenset({RoleId(TEAM_ROLE)}))


def _mentioned(sent: Sent) -> list[Person]:
    return list(dict.fromkeys(each for each in sent.parts.said if isinstance(each, Person)))


def _said(said: Sequence[str | Person], *, exported: bool) -> list[str]:
    return [each if isinstance(each, str) else f"@{each.name}" if exported else f"<@{each.id}>" for each in said]


def _words(parts: Parts, *, exported: bool) -> str:
    said = parts.glue.join(_said(parts.said, exported=exported))
    return " ".join(filter(None, [said, LINK * parts.has_link]))


def _embedded(parts: Parts, *, exported: bool) -> list[Json]:
    return [
        embed | {"description": " ".join(_said(embed.get("description", ()), exported=exported))}
        for embed in parts.embeds
    ]


def _user(person: Person) -> Json:
    return {"id": person.id, "username": person.username, "global_name": person.name, "bot": person.bot}


def _member(person: Person) -> Json:
    return {} if person.bot else {"member": {"roles": [TEAM_ROLE] if person.team else []}}


def _content(parts: Parts) -> Json:
    embeds = [{"type": "rich", **embed} for embed in _embedded(parts, exported=False)]
    if parts.has_link:
        embeds.append({"type": "article", "url": LINK, "title": "Ports of the relay"})
    question, *options = parts.poll or ("",)
    poll = {"question": {"text": question}, "answers": [{"poll_media": {"text": option}} for option in options]}
    return {
        "content": _words(parts, exported=False),
        "embeds": embeds,
        "attachments": [
            {"id": f"{n}", "filename": name, "size": 5, "url": "x", "content_type": guess_type(name)[0]}
            for n, name in enumerate(parts.files)
        ],
        "sticker_items": [{"id": "8", "name": parts.sticker}] if parts.sticker else [],
        **({"poll": poll} if parts.poll else {}),
    }


def _exported_user(person: Person) -> Json:
    roles = [{"id": TEAM_ROLE, "name": "Team"}] if person.team else []
    return {"id": person.id, "name": person.username, "nickname": person.name, "isBot": person.bot, "roles": roles}


def _exported_content(parts: Parts) -> Json:
    embeds = _embedded(parts, exported=True)
    if parts.has_link:
        embeds.append({"url": f"{LINK}/", "title": "Ports of the relay", "description": "", "fields": []})
    return {
        "content": _words(parts, exported=True),
        "embeds": embeds,
        "attachments": [
            {"id": f"{n}", "fileName": name, "fileSizeBytes": 5, "url": "x"} for n, name in enumerate(parts.files)
        ],
        "stickers": [{"id": "8", "name": parts.sticker}] if parts.sticker else [],
    }


def _comparable(message: ChatMessage) -> ChatMessage:
    """Leave out fields that an export does not have."""
    return structs.replace(message, reply_to_author=None, replies_to_other=False)


# Findings B3, E1, E2 and E3.
@given(history=histories(polls=False, most=6))
@hypothesis_settings(max_examples=examples(200))
def test_a_message_reads_alike_from_gateway_rest_and_export(history: list[Sent]) -> None:
    scene = Scene([_NAMED, *history], guild="5" * 18, channel="6" * 17, forum="7" * 17)
    live = scene.live()
    assert scene.caught_up() == live
    with TemporaryDirectory() as folder:
        read = read_exports(scene.save(Path(folder)), ExportedTeam(role_ids=US.role_ids))
    exported = {message.id: message for place in read.channels for message in place.messages}
    assert [_comparable(exported[message.id]) for message in live] == [_comparable(message) for message in live]


# Finding B3.
@given(history=histories(polls=True, most=4))
@hypothesis_settings(max_examples=examples(100))
def test_a_poll_reads_alike_from_gateway_and_rest(history: list[Sent]) -> None:
    scene = Scene(history, guild="5" * 18, channel="6" * 17, forum="7" * 17)
    live = scene.live()
    assert scene.caught_up() == live
    for sent, message in zip(history, live, strict=True):
        assert all(option in message.text for option in sent.parts.poll)


class Captures(ActivityReporter):
    """Tells when a conversation is archived."""

    def __init__(self) -> None:
        super().__init__()
        self.archived: set[str] = set()
        self.changed = anyio.Event()

    def report_capture(self, pair: CapturedPair) -> None:
        self.archived.add(pair.conversation_id)
        self.changed.set()
        self.changed = anyio.Event()


class Replaying(Sandbox):
    """A server on which others' messages appear as they are given."""

    def put(self, message: ChatMessage) -> None:
        self._messages[message.channel_id].append(message)
        self._last[message.channel_id] = message.id
        self._deliver_event(MessageCreated(message=message))

    def add_post(self, post: str, title: str, forum: str) -> None:
        self._add(ChannelId(post), "post", title, ChannelId(forum))


def _settings(folder: Path) -> Settings:
    sources = folder / "sources"
    sources.mkdir(exist_ok=True)
    return make_settings(
        folder / "data",
        kb={"sources_dir": str(sources), "settle_seconds": 0},
        llm=OFFLINE,
        embeddings=WORDS_ALONE,
        discord={"message_batch_wait_seconds": 0, "default_mode": "capture_only", "team_role_ids": [TEAM_ROLE]},
    )


@asynccontextmanager
async def _bot(folder: Path, sandbox: Sandbox, clock: HandClock) -> AsyncGenerator[Captures]:
    events = Captures()
    async with open_sandbox(_settings(folder), sandbox, events=events, clock=clock):
        yield events


async def _archive(scene_of: Callable[[Sandbox, ChannelId], Scene], way: Way, folder: Path) -> bytes:
    """Return the last version of each conversation, without what the time of archiving makes of it."""
    clock = HandClock(NOON - timedelta(hours=1))
    sandbox = Replaying(clock)
    forum = sandbox.add_channel("forum")
    scene = scene_of(sandbox, forum)
    if scene.post:
        sandbox.add_post(scene.post, scene.title, forum)
    if way == "imported":
        await import_history(_settings(folder), ImportRequest(files=scene.save(folder)))
    else:
        async with _bot(folder, sandbox, clock) as events:
            if way == "live":
                for message in scene.live():
                    clock.turn(seconds=300)
                    sandbox.put(message)
            else:
                async with sandbox.offline():
                    for message in scene.caught_up():
                        sandbox.put(message)
                clock.turn(days=1)
            last = f"reply_{scene.ids[-2]}"
            while last not in events.archived:
                await events.changed.wait()
    newest: dict[str, CapturedPair] = {}
    for pair in Archive(_settings(folder).paths.raw).pairs_after(None):
        newest[pair.conversation_id] = pair
    kept = [msgspec.to_builtins(newest[key]) for key in sorted(newest)]
    return msgspec.json.encode([{**pair, "qa_id": "", "timestamp": ""} for pair in kept])


_ASKED = Sent(Person("14" * 9, "carol", "Carol"), Parts(said=("Which port does the relay use?",)))
_HELPED = Sent(MIRA, Parts(said=("On 7480.",)), replies=1)


async def _archives(history: list[Sent]) -> list[bytes]:
    """Return the archives of the three ways."""

    def scene_of(sandbox: Sandbox, forum: ChannelId) -> Scene:
        whole = [_NAMED, *history, _ASKED, _HELPED]  # the last two show that all before them is done
        return Scene(whole, guild=sandbox.guild_id, channel=sandbox.general, forum=forum)

    found: list[bytes] = []
    for way in get_args(Way):
        with TemporaryDirectory() as folder, fail_after(30):
            found.append(await _archive(scene_of, way, Path(folder)))
    return found


RICH = [
    Sent(BOB, Parts(has_link=True), forward=Parts(said=("E17: spool full", MIRA), embeds=({"title": "Alert"},))),
    Sent(MIRA, Parts(said=(BOB, "E17 means that the quota is used up.")), replies=0),
    Sent(DELETED, Parts(said=("How do I change the port?",), files=("screen.png", "dump.zip"))),
    Sent(DELETED, Parts(said=("Why is my console blank?",))),
    Sent(MIRA, Parts(said=("Set `port`.",)), replies=2),
    Sent(MIRA, Parts(said=("Update the driver.",)), replies=2),
    Sent(BOBBY, Parts(said=("What am I doing wrong?",), sticker="help"), in_post=True),
    Sent(MIRA, Parts(said=("Renew it.",), embeds=({"title": "Steps"},)), in_post=True),
]


# Findings B3, E1, E2 and E3.
async def test_a_history_gives_one_archive_heard_live_read_later_or_imported() -> None:
    live, caught_up, imported = await _archives(RICH)
    assert caught_up == live
    assert imported == live
    turns = [[turn["text"] for turn in pair["turns"]] for pair in json.loads(live)]
    assert sorted(turns) == sorted(
        [
            [f"{LINK}\nE17: spool full a team member\nAlert", "E17 means that the quota is used up."],
            ["How do I change the port?\n[image: screen.png]\n[file: dump.zip]", "Set `port`."],
            ["Why is my console blank?", "Update the driver."],
            ["Error 4711 in the tenant\nWhat am I doing wrong?\n[sticker: help]", "Renew it."],
            ["Which port does the relay use?", "On 7480."],
        ]
    )


# Findings B3, E1, E2 and E3.
@given(history=histories(polls=False, most=8))
# To shrink a failure takes minutes; the test of messages above shrinks most of them.
@hypothesis_settings(max_examples=examples(40), phases=[Phase.generate])
def test_any_history_gives_one_archive(history: list[Sent]) -> None:
    live, caught_up, imported = anyio.run(_archives, history)
    assert json.loads(caught_up) == json.loads(live)
    assert json.loads(imported) == json.loads(live)
