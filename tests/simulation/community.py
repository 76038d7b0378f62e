"""A community that lives by dice around the whole bot: people, a shaky Discord, a machine that dies at any moment."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import TypeVar

import anyio
from anyio import CancelScope, Event, create_task_group, sleep
from anyio.abc import TaskGroup
from msgspec import Struct

from intern.actors.witness import Witness
from intern.app.bot import open_sandbox
from intern.discord.sandbox import Call, Sandbox
from intern.domain import Author, ChannelId, ChatMessage, MessageId, Reply, RoleId, UserId
from intern.errors import DiscordUnavailableError, DiscordUnknownOutcomeError
from intern.settings import Settings, load_settings
from tests.simulation.machine import SimulatedTime

T = TypeVar("T")

WINDOW = 10.0  # seconds of silence that end a batch
LATENCY = 0.4  # seconds, at most, on each way of a REST call
HEARD = 80.0  # seconds after which whatever the gateway told has had its effect
HANDOFF = RoleId("700000000000000001")
MEMBERS = ("alice", "bob", "carol", "dave")
TEAM = ("mira", "noor")
_DOCUMENTS = {
    "ports.md": "# Ports\n\nThe relay listens on port 7480. Set `listen` in relay.toml to change the port.\n",
    "spool.md": "# Spool\n\nPurge the spool with `lumen-relay spool purge`. Agents keep their queue meanwhile.\n",
}
_DOCUMENTED = (
    "How do I change the port that the relay listens on?",
    "How do I purge the spool?",
)
_WORDS = (
    "anchor barrel candle dagger ember falcon garnet harbor island jacket kettle lantern magnet needle orchid pepper "
    "quartz rocket saddle timber umbrella velvet walnut yonder zephyr bishop cobalt dragon fiddle goblet hammer igloo"
)


class Said(Struct, kw_only=True):
    """What we know of a message that a person wrote."""

    message: ChatMessage
    texts: list[str]
    """All it ever said, the newest last."""
    goes_on: Said | None = None
    """It follows the same author's message there at once."""
    deleted: float | None = None
    changes: list[Change] = []
    while_private: bool = False

    @property
    def id(self) -> MessageId:
        return self.message.id

    @property
    def author(self) -> Author:
        return self.message.author

    @property
    def place(self) -> ChannelId:
        return self.message.channel_id


class Change(Struct, kw_only=True):
    """An edit or a deletion, and when a bot heard of it; it may have died before it could do anything."""

    at: float
    heard: float | None = None
    life: int = 0


class World(Sandbox):
    """Discord at a distance: what the bot asks for takes its time, both ways."""

    def __init__(self, clock: SimulatedTime, rng: Random) -> None:
        super().__init__(clock, TEAM)
        self._rng = rng

    async def _call(self, call: Call, work: Callable[[], T]) -> T:
        await sleep(self._rng.uniform(0, LATENCY))
        try:
            return await super()._call(call, work)
        finally:
            await sleep(self._rng.uniform(0, LATENCY))


class Looking(Witness):
    """Remembers which messages each reply was for, over all of the bot's lives."""

    def __init__(self) -> None:
        super().__init__()
        self.replied: dict[MessageId, tuple[MessageId, ...]] = {}

    def posted(self, reply: Reply, outcome: str) -> None:
        super().posted(reply, outcome)
        if outcome == "posted":
            self.replied[reply.question.id] = reply.settles


class Community:
    """One run. `settings.paths` is what the last life left."""

    def __init__(self, seed: int, folder: Path, time: SimulatedTime, *, length: int) -> None:
        self.rng = Random(seed)
        self.time = time
        self.length = length
        self.looking = Looking()
        self.world = World(time, Random(seed + 1))
        self.said: dict[MessageId, Said] = {}
        self.private_from: dict[ChannelId, float] = {}
        self.begun: dict[int, float] = {}
        """By life, as are the crashes."""
        self.crashes: dict[int, float] = {}
        self.transcript: list[str] = []
        self._folder = folder
        self._lives = 0
        self._scope: CancelScope | None = None
        self._stop = Event()
        self._over = Event()
        self._connection = AsyncExitStack()
        self._away = False
        self._untold: list[Change] = []
        self._resumes: int | None = None
        self._serial = 0
        self.help = self.world.add_channel("help")
        self.direct = self.world.add_direct()
        self.secret = self.world.add_channel("staff")
        self._make_private(self.secret)
        self.places: list[ChannelId] = [self.world.general, self.help, self.secret]

    @property
    def settings(self) -> Settings:
        """As the bot in this folder has them."""
        return load_settings(
            environ={},
            overrides={
                "data": {"dir": str(self._folder)},
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
        """Everything that the dice say; then time for the bot to be done with it, and a calm end."""
        sources = self._folder / "knowledge-base" / "sources"
        sources.mkdir(parents=True)
        for name, text in _DOCUMENTS.items():
            (sources / name).write_text(text)
        async with create_task_group() as tg, self._connection:
            await self._start(tg)
            await sleep(1)
            for _ in range(self.length):
                await self._act(tg)
                await sleep(self.rng.choice((0, 0, 0.05, 0.3, 1, 3, 6, 12)))
            await self._connect()
            if self._scope is None:
                await self._start(tg)
            await sleep(HEARD)
            await self._end()

    def _note(self, what: str) -> None:
        self.transcript.append(f"{self.time.seconds():9.3f} {what}")

    # The machine.

    async def _start(self, tg: TaskGroup) -> None:
        self._lives += 1
        self._note(f"life {self._lives} begins")
        self.begun[self._lives] = self.time.seconds()
        self._scope, self._stop, self._over = CancelScope(), Event(), Event()
        tg.start_soon(self._bot, self._scope, self._stop, self._over)
        await self.world.wait_ready()

    async def _bot(self, scope: CancelScope, stop: Event, over: Event) -> None:
        try:
            with scope:
                async with open_sandbox(self.settings, self.world, witness=self.looking, clock=self.time):
                    await stop.wait()
        finally:
            over.set()

    async def _end(self) -> None:
        self._note("ends calmly")
        self._stop.set()
        await self._over.wait()
        self._scope = None

    async def _crash(self) -> None:
        """As a power cut has it: what was on disk at this moment is all there is."""
        for _ in range(self.rng.choice((0, 0, 1, 2, 3, 5, 8, 13, 21, 34))):
            await anyio.lowlevel.checkpoint()
        if self._scope is None:
            return
        self._note("crash")
        self.crashes[self._lives] = self.time.seconds()
        left = self._folder.with_name(f"life-{self._lives + 1}")
        shutil.copytree(self._folder, left)
        self._scope.cancel()
        await self._over.wait()
        self._scope, self._folder, self._resumes = None, left, None

    async def _lose_session(self) -> None:
        if not self._away:
            self._note("a new session")
            self.world.lose_session()

    async def _lose_connection(self) -> None:
        if self._away:
            return
        resumes = self.rng.random() < 0.5
        self._note(f"offline, {'resumes' if resumes else 'new session'}")
        await self._connection.enter_async_context(self.world.offline(resumes=resumes))
        self._away = True
        self._resumes = self._lives if resumes and self._scope else None

    async def _connect(self) -> None:
        if not self._away:
            return
        self._note("online")
        if self._scope and self._resumes == self._lives:
            for change in self._untold:
                change.heard, change.life = self.time.seconds(), self._lives
        self._away, self._resumes = False, None
        self._untold.clear()
        await self._connection.aclose()

    def _changed(self) -> Change:
        change = Change(at=self.time.seconds())
        if self._away:
            self._untold.append(change)
        elif self._scope:
            change.heard, change.life = change.at, self._lives
        return change

    def had_effect(self, change: Change) -> bool:
        """Whether a bot heard of a change, and lived long enough to do what it takes."""
        if change.heard is None:
            return False
        end = self.crashes.get(change.life)
        return end is None or end > change.heard + HEARD

    # People.

    async def _act(self, tg: TaskGroup) -> None:
        if self._away and self.rng.random() < 0.25:
            await self._connect()
        elif self._scope is None and self.rng.random() < 0.4:
            await self._start(tg)
        else:
            [act] = self.rng.choices(list(self._acts), list(self._acts.values()))
            await act()

    @property
    def _acts(self) -> dict[Callable[[], Awaitable[None]], int]:
        """What may happen, and how often of a hundred times."""
        return {
            self._ask: 24,
            self._teach: 24,
            self._go_on: 10,
            self._chat: 6,
            self._edit: 7,
            self._delete: 8,
            self._fail: 6,
            self._sleep_in: 2,
            self._close_channel: 1,
            self._write_privately: 1,
            self._lose_session: 2,
            self._lose_connection: 4,
            self._crash: 5,
        }

    def text(self, beginning: str, *, words: int = 6) -> str:
        """A text that nobody said before."""
        self._serial += 1
        some = " ".join(self.rng.sample(_WORDS.split(), words))
        return " ".join(filter(None, (beginning, some, f"word{self._serial}x")))

    def _say(self, author: str | Author, text: str, place: ChannelId, reply_to: Said | None = None) -> Said:
        message = self.world.say(author, text, channel_id=place, reply_to=reply_to.id if reply_to else None)
        return self._keep(message)

    def _keep(self, message: ChatMessage) -> Said:
        said = Said(
            message=message, texts=[message.text], changes=[], while_private=self.is_private(message.channel_id)
        )
        self.said[message.id] = said
        to = f" to {message.reply_to}" if message.reply_to else ""
        self._note(f"{message.author.name} in {message.channel_id}: {message.id}{to} {message.text!r}")
        return said

    def is_private(self, place: ChannelId) -> bool:
        """Whether not everybody may read there now."""
        closed = {self.direct, *self.private_from}
        return place in closed or self.parent_of(place) in closed

    def parent_of(self, place: ChannelId) -> ChannelId | None:
        """What a thread hangs in."""
        return next((thread.parent_id for thread in self.world.threads() if thread.id == place), None)

    def _make_private(self, place: ChannelId) -> None:
        self.private_from[place] = self.time.seconds()
        self.world.set_private(place)

    def standing(self, wanted: Callable[[Said], bool] = lambda _: True) -> list[Said]:
        """What people said and did not delete, oldest first."""
        return [said for said in self.said.values() if said.deleted is None and wanted(said)]

    async def _ask(self) -> None:
        author = self.rng.choice(MEMBERS)
        known = self.rng.random() < 0.5
        text = self.text(self.rng.choice(_DOCUMENTED), words=0) if known else self.text("How do I use")
        if self.rng.random() < 0.3:
            text = f"@intern {text}"
        dice = self.rng.random()
        threads = [thread.id for thread in self.world.threads()]
        if dice < 0.15:
            said = self._keep(self.world.open_post(author, "a post", text))
        elif dice < 0.35 and threads:
            said = self._say(author, text, self.rng.choice(threads))
        else:
            said = self._say(author, text, self.rng.choice(self.places))
        if self.rng.random() < 0.2 and not self.parent_of(said.place):
            self.world.open_thread(said.place, said.id, "a thread")

    async def _teach(self) -> None:
        asked = self.standing(lambda said: said.author.type == "community_user")[-12:]
        if not asked:
            return
        question = self.rng.choice(asked)
        place, member = question.place, self.rng.choice(TEAM)
        thread = ChannelId(question.id)
        if thread in {each.id for each in self.world.threads()} and self.rng.random() < 0.5:
            first = self._say(member, self.text("You can take"), thread)
        else:
            first = self._say(member, self.text("You can take"), place, question)
        if self.rng.random() < 0.3:
            self._say(member, self.text("And then also"), first.place).goes_on = first

    async def _go_on(self) -> None:
        recent = self.standing(lambda said: said.author.type != "bot")[-4:]
        if recent:
            before = self.rng.choice(recent)
            self._say(before.author, self.text("I also mean"), before.place)

    async def _chat(self) -> None:
        author: str | Author = self.rng.choice((*MEMBERS, *TEAM, Author(id=UserId("5"), name="robot", type="bot")))
        earlier = self.standing()[-6:]
        target = self.rng.choice(earlier) if earlier and self.rng.random() < 0.6 else None
        place = target.place if target else self.rng.choice(self.places)
        self._say(author, self.text("By the way"), place, target)

    async def _edit(self) -> None:
        recent = self.standing(lambda said: said.author.type != "bot")[-10:]
        if recent:
            said = self.rng.choice(recent)
            said.texts.append(self.text("Rather I say"))
            said.changes.append(self._changed())
            self._note(f"edit {said.id} {said.texts[-1]!r}")
            said.message = self.world.edit(said.place, said.id, said.texts[-1])

    async def _delete(self) -> None:
        recent = self.standing(lambda said: said.author.type != "bot")[-10:]
        if recent:
            said = self.rng.choice(recent)
            change = self._changed()
            said.deleted = change.at
            said.changes.append(change)
            self._note(f"delete {said.id}")
            self.world.delete(said.place, said.id)

    async def _sleep_in(self) -> None:
        if threads := self.world.threads():
            thread = self.rng.choice(threads)
            self._note(f"{thread.id} is archived")
            self.world.archive(thread.id)

    async def _close_channel(self) -> None:
        if self.help not in self.private_from:
            self._note(f"{self.help} turns private")
            self._make_private(self.help)

    async def _write_privately(self) -> None:
        self._say(self.rng.choice(MEMBERS), self.text("How do I use"), self.direct)

    async def _fail(self) -> None:
        call: Call = self.rng.choice(("channel", "before", "after", "page", "archived_since", "start_thread", "send"))
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            done = call in {"send", "start_thread"} and self.rng.random() < 0.5
            error = DiscordUnknownOutcomeError if done else DiscordUnavailableError
            self._note(f"fail {call}{' after its work' if done else ''}")
            self.world.fail(call, error("as the dice say"), done=done)
