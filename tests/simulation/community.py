"""People around the whole bot: a Discord in memory and a model that fail now and then, a machine that dies any moment.

Beside what they write, its people use the bot's commands and press its buttons.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import TypeVar

import anyio
from anyio import CancelScope, Event, create_task_group, sleep
from anyio.abc import TaskGroup
from msgspec import Struct

from intern.core.errors import ChatRefusedError, ChatUnavailableError, ChatUnknownOutcomeError
from intern.core.flow import AskCommand, ButtonPressed, Interaction, InteractionTicket, LearnCommand, WhyCommand
from intern.core.ids import ChannelId, MessageId, RoleId, UserId
from intern.core.messages import Author, ChatMessage
from intern.core.text.secret_values import Secret
from intern.platforms.sandbox import Call
from intern.runtime.bot import open_sandbox
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from tests.simulation.machine import PAUSES, SimulatedTime
from tests.simulation.people import MEMBERS, TEAM, Act, Change, People, Said, write_documents
from tests.simulation.shaky import LATENCY, ShakyModels, ShakyResponses
from tests.worlds.chat import Sandbox

T = TypeVar("T")

WINDOW = 10.0  # seconds of silence that end a batch
HEARD = 110.0  # seconds after which each gateway event has had its effect
LAST_LOOK = 6.0  # seconds between the last look and the post: six calls at most, both ways
HANDOFF = RoleId("700000000000000001")


class Used(Struct, kw_only=True):
    """A command or button that a member used, and when a bot heard of it."""

    interaction: Interaction
    user: Author
    heard: Change

    @property
    def id(self) -> str:
        return self.interaction.interaction.id


class World(Sandbox):
    """Discord at a distance: what the bot asks for takes its time, both ways."""

    def __init__(self, clock: SimulatedTime, rng: Random) -> None:
        super().__init__(clock, TEAM)
        self.refused: set[ChannelId] = set()
        """Places whose history the bot may not read now."""
        self._rng = rng

    def ticket(self, channel_id: ChannelId) -> InteractionTicket:
        """Return a new interaction in that channel."""
        return InteractionTicket(
            id=self._next_id(),
            token=Secret("token"),
            application_id=self.bot.id,
            guild_id=self._channels[channel_id].guild_id,
            channel_id=channel_id,
        )

    def nonce_of(self, post: MessageId) -> str:
        """Return the nonce of a bot's message; empty if the bot sent that nonce again, minutes later."""
        return next((nonce for (_, nonce), (_, message_id) in self._nonces.items() if message_id == post), "")

    def _list_messages(self, channel_id: ChannelId) -> list[ChatMessage]:
        if channel_id in self.refused:
            raise ChatRefusedError("Discord refused: missing access")
        return super()._list_messages(channel_id)

    async def _travel(self) -> None:
        await sleep(self._rng.uniform(0, LATENCY))

    async def _call(self, call: Call, work: Callable[[], T]) -> T:
        await self._travel()
        try:
            return await super()._call(call, work)
        finally:
            await self._travel()


class Community(People):
    """One run."""

    handoff = HANDOFF
    thread_pauses: Sequence[float] = PAUSES
    """Seconds that work in a thread may take."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        time: SimulatedTime,
        *,
        length: int,
        url: str = "",
        world: type[World] = World,
    ) -> None:
        self.time = time
        self.length = length
        self.world = world(time, Random(seed + 1))
        self.models = ShakyModels(Random(seed + 2))
        self.responses = ShakyResponses(time, Random(seed + 3))
        self.used: list[Used] = []
        self._refused_until: dict[ChannelId, float] = {}
        self.crashes: dict[int, float] = {}
        """By life."""
        self._folder = folder
        self._url = url
        self._lives = 0
        self._tasks: TaskGroup
        self._scope: CancelScope | None = None
        self._stop = Event()
        self._over = Event()
        self._connection = AsyncExitStack()
        self._away = False
        self._untold: list[Change] = []
        self._resumes: int | None = None
        self.help = self.world.add_channel("help")
        self.direct = self.world.add_direct()
        secret = self.world.add_channel("staff")
        robot = Author(id=UserId("5"), name="robot", type="bot")
        super().__init__(seed, self.world, places=(self.world.general, self.help, secret), robot=robot)
        self.make_private(secret)

    @property
    def settings(self) -> Settings:
        return load_settings(
            environ={},
            overrides={
                "data": {"dir": str(self._folder), "url": self._url},
                "llm": {"provider": "offline"},
                "discord": {
                    "message_batch_wait_seconds": WINDOW,
                    "handoff_role_id": HANDOFF,
                    "max_questions_per_user_per_hour": 0,
                },
                "kb": {"settle_seconds": 0, "scan_interval_seconds": 100_000},
            },
        )

    async def live(self) -> None:
        """Run all that the dice choose; then give the bot time to finish, and end calmly."""
        write_documents(self._folder)
        async with create_task_group() as self._tasks, self._connection:
            await self._start()
            await sleep(1)
            for _ in range(self.length):
                await self._act()
                await sleep(self.rng.choice((0, 0, 0.05, 0.3, 1, 3, 6, 12)))
            await self._connect()
            await self._allow()
            if not self._is_up:
                await self._start()
            await sleep(HEARD)
            await self._end()

    # Questions of the laws.

    def seconds(self) -> float:
        return self.time.seconds()

    def had_effect(self, change: Change) -> bool:
        if change.heard is None:
            return False
        end = self.crashes.get(change.life)
        return end is None or end > change.heard + HEARD

    def came_too_late(self, post: ChatMessage, question: Said) -> bool:
        return question.deleted is not None and question.deleted < self.when(post) - LAST_LOOK

    def spoke_in_private(self, post: ChatMessage) -> bool:
        places = (post.channel_id, self.parent_of(post.channel_id) or post.channel_id)
        since = min((self.private_from[place] for place in places if place in self.private_from), default=None)
        return since is not None and self.when(post) > since + LAST_LOOK

    def pinged_by(self, post: ChatMessage) -> Sequence[str]:
        return self.world.sent[post.id].pings

    def is_beside_replies(self, post: ChatMessage) -> bool:
        return post.guild_id is None or self.world.nonce_of(post.id).startswith("s")

    def is_excused(self, said: Said) -> bool:
        places = {said.place, self.parent_of(said.place)}
        written = self.when(said.message)
        return any(written < self._refused_until.get(place, 0) for place in places if place)

    def crashes_after(self, said: Said) -> int:
        return sum(at > self.when(said.message) for at in self.crashes.values())

    def is_private(self, place: ChannelId) -> bool:
        return place == self.direct or super().is_private(place)

    def when(self, message: ChatMessage) -> float:
        """When it was written, in seconds since the beginning."""
        return self.seconds() - (self.time.now() - message.at).total_seconds()

    # The machine.

    @property
    def _is_up(self) -> bool:
        """Whether a bot is at work."""
        return self._scope is not None

    async def _start(self) -> None:
        self._lives += 1
        self.note(f"life {self._lives} begins")
        self._scope, self._stop, self._over = CancelScope(), Event(), Event()
        self._tasks.start_soon(self._bot, self._scope, self._stop, self._over)
        await self.world.wait_ready()

    async def _bot(self, scope: CancelScope, stop: Event, over: Event) -> None:
        try:
            with scope:
                async with open_sandbox(
                    self.settings,
                    self.world,
                    events=self.looking,
                    clock=self.time,
                    responses=self.responses,
                    models=self.models,
                ):
                    await stop.wait()
        finally:
            over.set()

    async def _end(self) -> None:
        self.note("ends calmly")
        self._stop.set()
        await self._over.wait()
        self._scope = None

    async def _crash(self) -> None:
        """Crash as in a power cut: only the data on disk at this moment remains."""
        for _ in range(self.rng.choice((0, 0, 1, 2, 3, 5, 8, 13, 21, 34))):
            await anyio.lowlevel.checkpoint()
        if self._scope is None:
            return
        self.note("crash")
        self.crashes[self._lives] = self.time.seconds()
        left = self._folder.with_name(f"life-{self._lives + 1}")
        shutil.copytree(self._folder, left)
        self._scope.cancel()
        await self._over.wait()
        self._scope, self._folder, self._resumes = None, left, None

    async def _lose_session(self) -> None:
        if not self._away:
            self.note("a new session")
            self.world.lose_session()

    async def _lose_connection(self) -> None:
        if self._away:
            return
        resumes = self.rng.random() < 0.5
        self.note(f"offline, {'resumes' if resumes else 'new session'}")
        await self._connection.enter_async_context(self.world.offline(resumes=resumes))
        self._away = True
        self._resumes = self._lives if resumes and self._is_up else None

    async def _connect(self) -> None:
        if not self._away:
            return
        self.note("online")
        if self._is_up and self._resumes == self._lives:
            for change in self._untold:
                change.heard, change.life = self.time.seconds(), self._lives
        self._away, self._resumes = False, None
        self._untold.clear()
        await self._connection.aclose()

    def _changed(self) -> Change:
        change = Change(at=self.time.seconds())
        if self._away:
            self._untold.append(change)
        elif self._is_up:
            change.heard, change.life = change.at, self._lives
        return change

    # Events.

    async def _act(self) -> None:
        if self._away and self.rng.random() < 0.25:
            await self._connect()
        elif self.world.refused and self.rng.random() < 0.25:
            await self._allow()
        elif not self._is_up and self.rng.random() < 0.4:
            await self._start()
        else:
            [act] = self.rng.choices(list(self.acts), list(self.acts.values()))
            await act()

    @property
    def acts(self) -> Mapping[Act, int]:
        return {
            **super().acts,
            self._fail: 6,
            self._close_channel: 1,
            self._write_privately: 1,
            self._refuse: 1,
            self._use_command: 4,
            self._press: 4,
            self._lose_session: 2,
            self._lose_connection: 4,
            self._crash: 5,
            self._talk_across_a_crash: 2,
        }

    async def _close_channel(self) -> None:
        """Make a channel private, maybe without an event, while an answer in it is not yet read to its end."""
        if self.help in self.private_from:
            return
        question, member = self.say(self.rng.choice(MEMBERS), self.question(), self.help), self.rng.choice(TEAM)
        thread = self.stage.open_thread(self.help, question.id, "a thread")
        self.say(member, self.text("You can take"), thread)
        await sleep(self.rng.uniform(0, 2))
        if self.rng.random() < 0.7:
            await self._lose_connection()
        self.note(f"{self.help} turns private")
        self.make_private(self.help)
        self.say(member, self.text("And then also"), thread)
        await sleep(WINDOW + self.rng.uniform(0, 5))

    async def _talk_across_a_crash(self) -> None:
        """Two members talk at once. One has just been handled, and the machine dies before the other one is.

        So the next life reads the end of what was handled once more, and a new message may join it.
        """
        place = self.world.general
        first, second = self.rng.sample(MEMBERS, 2)
        self.say(first, self.text("By the way"), place)
        self.say(second, self.text("By the way"), place)
        self.say(first, self.text("I also mean"), place)
        await sleep(WINDOW - 2)
        self.say(second, self.text("I also mean"), place)
        await sleep(self.rng.uniform(2, 4))
        self.say(first, self.text("I also mean"), place)
        await sleep(self.rng.uniform(4, WINDOW - 2))
        await self._crash()
        if not self._is_up:
            await self._start()

    async def _write_privately(self) -> None:
        self.say(self.rng.choice(MEMBERS), self.text("How do I use"), self.direct)

    async def _fail(self) -> None:
        call: Call = self.rng.choice(
            ("channel", "before", "after", "page", "list_archived_threads", "start_thread", "send")
        )
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            done = call in {"send", "start_thread"} and self.rng.random() < 0.5
            error = ChatUnknownOutcomeError if done else ChatUnavailableError
            self.note(f"fail {call}{' after its work' if done else ''}")
            self.world.fail(call, error("as the dice say"), done=done)

    async def _refuse(self) -> None:
        place = self.rng.choice(self.standing() or [None])
        if place is not None:
            self.note(f"no reading in {place.place}")
            self.world.refused.add(place.place)

    async def _allow(self) -> None:
        for place in self.world.refused:
            self.note(f"reading in {place} again")
            self._refused_until[place] = self.seconds()
        self.world.refused.clear()

    async def _use_command(self) -> None:
        member = self.world.author(self.rng.choice((*MEMBERS, *TEAM)))
        on = self.rng.choice(self.standing()[-10:] or [None])
        ticket = self.world.ticket(on.place if on else self.world.general)
        dice = self.rng.random()
        if dice < 0.35 or on is None:
            self._use(member, AskCommand(interaction=ticket, user=member, question=self.question()))
        elif dice < 0.5:
            self._use(member, AskCommand(interaction=ticket, user=member, question="", on=on.message))
        elif dice < 0.85:
            self._use(member, LearnCommand(interaction=ticket, user=member, on=on.message))
        else:
            self._use(member, WhyCommand(interaction=ticket, user=member, about=self.rng.choice(("", on.id))))

    async def _press(self) -> None:
        """Press a button under a message of the bot's, or under its message to one member."""
        shown = [
            (post.channel_id, post.id, button, self.world.author(self.rng.choice(MEMBERS)))
            for post in self.world.posts()
            for button in self.world.sent[post.id].buttons
        ]
        for used in self.used:
            if told := self.responses.told.get(used.id):
                place = used.interaction.interaction.channel_id
                shown += [(place, MessageId(used.id), button, used.user) for button in told.buttons]
        if shown:
            place, message_id, button, member = self.rng.choice(shown[-8:])
            ticket = self.world.ticket(place)
            self._use(
                member, ButtonPressed(interaction=ticket, user=member, button=button.custom_id, message_id=message_id)
            )

    def _use(self, user: Author, interaction: Interaction) -> None:
        used = Used(interaction=interaction, user=user, heard=self._changed())
        self.used.append(used)
        self.note(f"{used.id}: {interaction}")
        self.world.interact(interaction)
