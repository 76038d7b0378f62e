"""People around the bot as it is run: hikari, real sockets and the machine's clock, against a Discord that misbehaves.

Its lives are lived in this event loop or in processes of their own. Real time is never the same twice, so a seed gives
the same deeds in the same order, and nearly the same run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from subprocess import DEVNULL
from typing import Literal

from anyio import CancelScope, Event, create_task_group, current_time, fail_after, open_process, sleep
from anyio.abc import Process, TaskGroup

from intern.actors.pipeline import PipelineParts, run_pipeline
from intern.core.clock import SystemClock
from intern.core.ids import ChannelId, GuildId, MessageId, RoleId, UserId
from intern.core.messages import Author, Channel, ChatMessage
from intern.runtime.bot import open_discord_parts
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from tests.double.discord import DiscordDouble
from tests.double.gateway import Session
from tests.double.world import FORUM, Channel as RawChannel, Message, User
from tests.simulation.people import MEMBERS, TEAM, Act, Change, People, Said, write_documents
from tests.worlds.program import program

WINDOW = 0.3  # seconds of silence that end a batch
PATIENCE = 90.0  # seconds, for certain events on a busy machine
_SOURCE_TREE = Path(__file__).parents[2]
_ENDS = ("calm", "calm", "rough")
_ROUTES = (
    ("GET", "/channels/*"),
    ("GET", "/channels/*/messages"),
    ("GET", "/channels/*/messages"),
    ("GET", "/channels/*/threads/archived/public"),
    ("GET", "/guilds/*/members/*"),
    ("POST", "/channels/*/messages"),
    ("POST", "/channels/*/messages"),
    ("POST", "/channels/*/messages/*/threads"),
)


class DoubleStage:
    """The double as people see it. Their acts are on their way to the bot at once; no one waits for the arrival."""

    def __init__(self, discord: DiscordDouble) -> None:
        self.discord = discord
        world = discord.world
        self.users: dict[str, User] = {"alice": world.alice, "bob": world.bob, "intern": world.bot}
        for name in (*MEMBERS, *TEAM):
            if name not in self.users:
                self.users[name] = world.new_member(name, roles=[world.team_role.id] if name in TEAM else [])
        self.users["robot"] = world.new_member("robot", bot=True)
        self._names = {user.id: name for name, user in self.users.items()}

    def say(
        self,
        author: Author | str,
        text: str,
        *,
        channel_id: ChannelId | None = None,
        reply_to: MessageId | None = None,
    ) -> ChatMessage:
        reference = {"message_id": reply_to} if reply_to else None
        place = channel_id or self.discord.general.id
        return self._seen(self.discord.acts.post(place, self._user(author), text, reply_to=reference))

    def open_post(self, author: Author | str, title: str, text: str) -> ChatMessage:
        post = self.discord.acts.start_forum_post(self.discord.forum, title, self._user(author), text)
        return self._seen(self._message(ChannelId(post.id), MessageId(post.id)))

    def open_thread(self, channel_id: ChannelId, message_id: MessageId, name: str) -> ChannelId:
        message = self._message(channel_id, message_id)
        return ChannelId(self.discord.acts.start_thread(message, name, message.author).id)

    def edit(self, channel_id: ChannelId, message_id: MessageId, text: str) -> ChatMessage:
        return self._seen(self.discord.acts.edit(self._message(channel_id, message_id), {"content": text}))

    def delete(self, channel_id: ChannelId, *message_ids: MessageId) -> None:
        for message_id in message_ids:
            self.discord.acts.delete(self._message(channel_id, message_id))

    def archive(self, thread: ChannelId) -> None:
        self.discord.acts.change_channel(self.discord.world.channels[thread], {"archived": True})

    def set_private(self, channel_id: ChannelId) -> None:
        channel = self.discord.world.channels[channel_id]
        hidden = self.discord.world.hiding_overwrites(channel.guild_id)
        self.discord.acts.change_channel(channel, {"permission_overwrites": hidden})

    def threads(self, parent_id: ChannelId | None = None) -> Sequence[Channel]:
        return [self._channel(raw) for raw in self.discord.world.threads(parent_id)]

    def posts(self) -> Sequence[ChatMessage]:
        return [self._seen(message) for message in self.discord.said_by_bot()]

    def sent(self, post: ChatMessage) -> Message:
        return self._message(post.channel_id, post.id)

    def _message(self, channel_id: ChannelId, message_id: MessageId) -> Message:
        message = self.discord.world.message(channel_id, message_id)
        assert message is not None
        return message

    def _user(self, author: Author | str) -> User:
        return self.users[author if isinstance(author, str) else author.name]

    def _channel(self, raw: RawChannel) -> Channel:
        parent = self.discord.world.channels[raw.parent_id] if raw.parent_id else None
        kind: Literal["thread", "post"] = "post" if parent and parent.type == FORUM else "thread"
        return Channel(
            id=ChannelId(raw.id),
            guild_id=GuildId(raw.guild_id),
            kind=kind,
            name=raw.name,
            parent_id=ChannelId(parent.id) if parent else None,
        )

    def _seen(self, message: Message) -> ChatMessage:
        name = self._names[message.author.id]
        kind: Literal["bot", "team_member", "community_user"] = "team_member" if name in TEAM else "community_user"
        return ChatMessage(
            id=MessageId(message.id),
            guild_id=GuildId(self.discord.guild.id),
            channel_id=ChannelId(message.channel_id),
            author=Author(
                id=UserId(message.author.id),
                name=name,
                type="bot" if message.author.bot else kind,
                is_self=name == "intern",
            ),
            text=message.content,
            at=message.timestamp,
            edited_at=message.edited_timestamp,
            reply_to=MessageId(message.reference["message_id"]) if message.reference else None,
            mentions_bot=self.discord.bot.mention in message.content,
        )


@dataclass(kw_only=True)
class Life:
    """One run of the bot: in this loop, or in a process of its own."""

    first_session: int
    stop: Event = field(default_factory=Event)
    scope: CancelScope = field(default_factory=CancelScope)
    over: Event = field(default_factory=Event)
    parts: PipelineParts | None = None
    process: Process | None = None


class Town(People):
    """One run. The last life is lived here, hears everything to its end, and does all that it takes."""

    def __init__(self, seed: int, folder: Path, discord: DiscordDouble, *, length: int) -> None:
        self.town = DoubleStage(discord)
        self.discord = discord
        self.length = length
        self.handoff = RoleId(discord.world.new_role("helpers").id)
        self.mention = discord.bot.mention
        self._folder = folder
        self._data = folder / "data"
        self._began = current_time()
        self._life: Life | None = None
        self._outage = AsyncExitStack()
        self._last_session = ""
        staff = ChannelId(discord.world.new_channel("staff", hidden=True).id)
        places = (ChannelId(discord.general.id), ChannelId(discord.help.id), staff)
        super().__init__(seed, self.town, places=places, robot="robot")
        self.private_from[staff] = 0.0
        self._known_private = {staff: 0.0}
        self._pause = Random(seed + 1)
        for method, route in dict.fromkeys(_ROUTES):
            # As Discord does: until hikari has seen a route's headers, it sends no second request there.
            discord.bucket(method, route, limit=50, per=1)

    @property
    def settings(self) -> Settings:
        return load_settings(environ=self._environment)

    @property
    def _environment(self) -> dict[str, str]:
        return {
            "INTERN__DATA__DIR": str(self._data),
            "INTERN__LLM__PROVIDER": "offline",
            "INTERN__DISCORD__TOKEN": self.discord.token,
            "INTERN__DISCORD__REST_URL": self.discord.rest_url,
            "INTERN__DISCORD__GUILD_IDS": f'["{self.discord.guild.id}"]',
            "INTERN__DISCORD__TEAM_ROLE_IDS": f'["{self.discord.team_role.id}"]',
            "INTERN__DISCORD__HANDOFF_ROLE_ID": self.handoff,
            "INTERN__DISCORD__MESSAGE_BATCH_WAIT_SECONDS": str(WINDOW),
            "INTERN__DISCORD__MAX_QUESTIONS_PER_USER_PER_HOUR": "0",
            "INTERN__KB__SETTLE_SECONDS": "0.05",
        }

    async def live(self) -> None:
        """Run all that the dice choose; then end calmly, once the bot has finished."""
        write_documents(self._data)
        async with create_task_group() as tg, self._outage:
            await self._begin(tg, in_process=False)
            await self._ready()
            for _ in range(2 * self.length // 3):
                if self._life is None and self.rng.random() < 0.4:
                    await self._begin(tg, in_process=self.rng.random() < 0.4)
                    if self.rng.random() < 0.5:
                        await self._ready()
                await self._act(may_end=True)
            await self._end("calm")
            await self._begin(tg, in_process=False, last=True)
            await self._ready()
            for _ in range(self.length // 3):
                await self._act(may_end=False)
            await self._see_off()

    # Questions of the laws.

    def seconds(self) -> float:
        return current_time() - self._began

    def had_effect(self, change: Change) -> bool:
        return change.session == self._last_session != ""

    def came_too_late(self, post: ChatMessage, question: Said) -> bool:
        if question.deleted is None:
            return False
        written = self._when(post)
        # A look begins at the first message of what was asked together.
        together = [
            each
            for each in self.said.values()
            if (each.author.id, each.place) == (question.author.id, question.place) and int(each.id) <= int(question.id)
        ]
        looks = [
            (request.query.get("after"), request.at - self._began)
            for request in self.discord.requests_to("GET", f"/channels/{question.place}/messages")
            if request.status == 200 and request.at - self._began < written
        ]
        for first in sorted(together, key=lambda each: int(each.id), reverse=True):
            if at := [at for after, at in looks if after == str(int(first.id) - 1)]:
                return question.deleted < max(at)
        return question.deleted < written

    def spoke_in_private(self, post: ChatMessage) -> bool:
        place, question = self.parent_of(post.channel_id), self.said.get(MessageId(post.channel_id))
        known = self._known_private.get(place) if place else None
        return known is not None and question is not None and self._when(question.message) > known

    def pinged_by(self, post: ChatMessage) -> Sequence[str]:
        sent = self.town.sent(post)
        return [*sent.mentions, *sent.mention_roles, *(["everyone"] if sent.mention_everyone else [])]

    def _when(self, message: ChatMessage) -> float:
        return self.seconds() - (SystemClock().now() - message.at).total_seconds()

    def _changed(self) -> Change:
        session = self._session()
        return Change(at=self.seconds(), session=session.id if session else "")

    # The machine.

    async def _begin(self, tg: TaskGroup, *, in_process: bool, last: bool = False) -> None:
        life = self._life = Life(first_session=len(self.discord.gateway.identifies) + 1)
        self.note(f"a life begins{' in a process' if in_process else ''}")
        if in_process:
            here = {"PATH": os.defpath, "HOME": os.devnull, "LANG": "C.UTF-8", "PYTHONPATH": str(_SOURCE_TREE)}
            settings = {**here, **self._environment}
            with (self._folder / "stderr").open("ab") as log:
                life.process = await open_process(
                    program("run"), stdin=DEVNULL, stdout=DEVNULL, stderr=log, cwd=self._folder, env=settings
                )
        else:
            tg.start_soon(partial(self._live_here, life, drain=last))

    async def _live_here(self, life: Life, *, drain: bool) -> None:
        try:
            with life.scope:
                async with open_discord_parts(
                    self.settings, events=self.looking, clock=SystemClock(), first_pause=0.05
                ) as parts:
                    life.parts = parts
                    await run_pipeline(parts, stop=life.stop, drain=drain)
        finally:
            life.over.set()

    async def _end(self, how: str) -> None:
        life, self._life = self._life, None
        if life is None:
            return
        with fail_after(PATIENCE):
            if life.process is not None:
                self.note(f"process {'asked to end' if how == 'calm' else 'killed'}")
                assert life.process.returncode is None, f"it ended by itself:\n{(self._folder / 'stderr').read_text()}"
                (life.process.terminate if how == "calm" else life.process.kill)()
                await life.process.wait()
                await life.process.aclose()
            else:
                self.note(f"{how} end")
                (life.stop.set if how == "calm" else life.scope.cancel)()
                await life.over.wait()

    def _session(self) -> Session | None:
        """Return the newest session of the present bot, which it may resume."""
        if self._life is None:
            return None
        numbers = {
            int(name.removeprefix("session")): session for name, session in self.discord.gateway.sessions.items()
        }
        newest = max(numbers, default=0)
        return numbers[newest] if newest >= self._life.first_session else None

    async def _ready(self) -> None:
        await self._connect()
        with fail_after(PATIENCE):
            await self._heard()
        for place in self.private_from:
            self._known_private.setdefault(place, self.seconds())

    async def _heard(self) -> None:
        """Wait until the bot has read all that the gateway sent: a heartbeat names the last event of its session."""
        asked, since = None, 0
        while True:
            session = self._session()
            beats = self.discord.gateway.heartbeats
            if session is not asked:
                asked, since = session, len(beats)
            if session and session.socket:
                if any((beat.seq or 0) >= len(session.events) for beat in beats[since:]):
                    return
                session.socket.send({"op": 1, "d": None})
            # No event says when hikari is back, and it may have missed our request.
            await sleep(0.05)

    async def _see_off(self) -> None:
        """Stop all failures, and wait until every message is handled."""
        assert self._life is not None
        self.note("calm")
        self.discord.forget_faults()
        await self._ready()
        with fail_after(PATIENCE):
            while not self._is_done_with_all():  # noqa: ASYNC110 checkpoints tells nobody
                await sleep(0.05)
            session = self._session()
            assert session is not None
            self._last_session = session.id
        await self._end("calm")

    def _is_done_with_all(self) -> bool:
        assert self._life is not None
        if self._life.parts is None:
            return False
        checkpoints = self._life.parts.checkpoints
        return not (
            checkpoints.channels_behind() or checkpoints.find_unlisted() or checkpoints.count_unfinished().messages
        )

    # Events.

    async def _act(self, *, may_end: bool) -> None:
        if self._away and self.rng.random() < 0.3:
            await self._connect()
        else:
            [act] = self.rng.choices(list(self.acts), list(self.acts.values()))
            if may_end or act != self._die:
                await act()
        await sleep(self._pause.choice((0, 0, 0.01, 0.05, 0.15, 0.4)))

    @property
    def acts(self) -> Mapping[Act, int]:
        return {
            **super().acts,
            self._fail: 8,
            self._limit: 2,
            self._disturb: 6,
            self._lose_connection: 3,
            self._close_channel: 1,
            self._die: 4,
        }

    async def _fail(self) -> None:
        method, route = self.rng.choice(_ROUTES)
        done, drop = self.rng.random() < 0.5, self.rng.random() < 0.5
        times = self.rng.choice((1, 1, 2, 5))  # hikari itself asks four times
        self.note(f"fail {times} {method} {route}{' after its work' if done else ''}{', unanswered' if drop else ''}")
        self.discord.fail_next(
            method,
            route,
            status=self.rng.choice((500, 502, 503)),
            when="after" if done else "before",
            drop=drop,
            times=times,
        )

    async def _limit(self) -> None:
        method, route = self.rng.choice(_ROUTES)
        scope: Literal["user", "shared", "global"] = self.rng.choice(("user", "shared", "global"))
        self.note(f"limit {method} {route}, {scope}")
        self.discord.rate_limit(method, route, retry_after=self.rng.uniform(0.2, 0.8), scope=scope)

    async def _disturb(self) -> None:
        gateway = self.discord.gateway
        disturbances: dict[str, Callable[[], None]] = {
            "the line breaks": gateway.drop,
            "asked to reconnect": gateway.ask_to_reconnect,
            "session invalid, resumable": partial(gateway.invalidate, resumable=True),
            "session invalid": partial(gateway.invalidate, resumable=False),
            "closed with 4000": partial(gateway.close, 4000),
            "closed with 4009": partial(gateway.close, 4009),
            "sessions forgotten": self._forget_sessions,
        }
        what = self.rng.choice(list(disturbances))
        self.note(what)
        disturbances[what]()

    def _forget_sessions(self) -> None:
        self.discord.gateway.forget_sessions()
        self.discord.gateway.drop()

    async def _lose_connection(self) -> None:
        if not self._away:
            self.note("Discord is away")
            await self._outage.enter_async_context(self.discord.outage())

    async def _connect(self) -> None:
        if self._away:
            self.note("Discord is back")
            await self._outage.aclose()

    @property
    def _away(self) -> bool:
        return self.discord.is_away

    async def _close_channel(self) -> None:
        place = self.places[1]
        if place not in self.private_from:
            self.note(f"{place} turns private")
            self.make_private(place)

    async def _die(self) -> None:
        how = self.rng.choice(_ENDS)
        if self._life is not None:
            await self._end(how)
