"""A soak: the whole process for minutes or hours, busy people, trouble and SIGKILL; then all of it is reconciled."""

from __future__ import annotations

import json
import os
import re
import resource
import secrets
import signal
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from subprocess import DEVNULL
from typing import Any, Literal, NamedTuple

import anyio
import httpx
from anyio import Lock, create_task_group, current_time, fail_after, move_on_after, open_process, sleep, sleep_until
from anyio.abc import Process
from anyio.to_thread import run_sync

from intern.core.errors import InternError
from intern.core.ids import MessageId, parse_position
from intern.core.memory import EVERY_SECONDS
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from tests.double.discord import DiscordDouble, Request
from tests.double.gateway import Session
from tests.double.world import Message, User
from tests.engines import Server, serving
from tests.process.running import API_KEY
from tests.soak.books import (
    Account,
    Books,
    Posted,
    Said,
    Shed,
    accounts_in,
    books_in,
    faults,
    in_two_conversations,
    lessons,
    questions,
    unaccounted,
    undecided,
)
from tests.soak.machine import TEACHING, WARM_UP, Sample, can_be_judged, growth, leaks, minutes_to_judge, sample
from tests.soak.traffic import PLACES, RECORDED, Line, Role, lines
from tests.soak.trouble import Trouble, Weather
from tests.worlds.endpoint import EndpointDouble, endpoint_double
from tests.worlds.program import program

WINDOW = timedelta(seconds=2)  # of silence, that ends a batch
READY_WITHIN = 120.0  # seconds from a start to a session, on a machine that has other things to do
END_WITHIN = 60.0
_LOOK = 2.0  # seconds between two samples
_AT_REST = EVERY_SECONDS + 2  # seconds without a request: then it has also given back what it does not need
_REST_WITHIN = 180.0
_ASKED_EVERY = 5  # samples: reading the metrics is work for the bot
_ASKED_WITHIN = 10.0  # seconds
_LOST_WITH_A_KILL = timedelta(seconds=5)  # counts are written down every second, where the disk lets them
_HARVEST = 10.0  # seconds; the bot keeps the traces of the newest 5,000 questions, and no others
_REMEMBERED = 3_000  # events that a session can still resume with
_DOCUMENTS = 60
_THREADS_REST_AFTER = timedelta(minutes=3)  # without a message; on Discord an hour at least
_ROUTES = (
    ("GET", "/channels/*"),
    ("GET", "/channels/*/messages"),
    ("GET", "/channels/*/messages/*"),
    ("GET", "/channels/*/threads/archived/public"),
    ("GET", "/guilds/*/members/*"),
    ("POST", "/channels/*/messages"),
    ("POST", "/channels/*/messages/*/threads"),
    ("POST", "/channels/*/typing"),
)
_TREE = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a soak: its length, people and trouble."""

    seconds: float
    seed: str
    rate: float = 20.0  # messages a second
    kill_every: float = 40.0  # seconds between two lives, about; 0: no kills
    trouble_every: float = 4.0  # seconds, about; 0: all is well
    busy: float = 60.0  # seconds from a rest to the next, without kills
    recorded: Path = RECORDED
    embeddings: str = "none"
    database: str = "sqlite"
    away: int = 5  # times, over its length, that PostgreSQL is taken away
    away_seconds: float = 15.0
    log_level: str = "info"
    check: bool = True
    """Hold every request and reply against Discord's OpenAPI file."""


@dataclass
class Life:
    """One run of the process."""

    process: Process
    log: Path
    samples: list[Sample] = field(default_factory=list[Sample])
    meant_to_end: bool = False


@dataclass
class Outcome:
    """The result of a soak: its faults, and figures in the order of printing."""

    amiss: list[str]
    figures: dict[str, str]
    not_judged: str
    """The reason why growth could not be judged; empty if it was, or was not to be."""
    said: int
    accounted_for: int
    captures: int
    faults: int
    lives: int


async def soak(plan: Plan, folder: Path, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """Do it in an empty folder, which keeps the data, each life's log and the samples. asyncio only."""
    weather = Weather(Random(f"{plan.seed} weather"))
    with ExitStack() as stack, endpoint_double(weather, api_key=API_KEY) as endpoint:
        server, url = None, ""
        if plan.database == "postgres":
            server = stack.enter_context(serving())
            url = server.url(stack.enter_context(server.schema()))
        async with DiscordDouble(check=plan.check) as discord:
            run = Soak(plan, folder, Around(discord, endpoint, weather, server, url), tell)
            try:
                return await run.live()
            finally:
                run.kill()


class Around(NamedTuple):
    """The bot's surroundings."""

    discord: DiscordDouble
    endpoint: EndpointDouble
    weather: Weather
    server: Server | None = None
    """PostgreSQL; None for a file."""
    url: str = ""


class Soak:
    """One run."""

    def __init__(self, plan: Plan, folder: Path, around: Around, tell: Callable[[str], None]) -> None:
        self.plan = plan
        self.folder = folder
        self.discord, self.endpoint, self.weather, self.server, self.url = discord, _, weather, *_ = around
        self._starting = Lock()  # no life begins while the database is away: that ends it, as faults.md says
        self.trouble = Trouble(Random(f"{plan.seed} trouble"), discord, weather)
        self.said: list[Said] = []
        self.accounts: dict[str, Account] = {}
        self.lives: list[Life] = []
        self.amiss: list[str] = []
        self.not_judged = ""
        self.at_rest: list[Sample] = []
        self.late = 0.0
        self.page_port = _free_port()
        self.statuses: Counter[str] = Counter()
        self._tell = tell
        self._random = Random(f"{plan.seed} people")
        self._users: dict[str, User] = {}
        self._messages: dict[int, Message] = {}
        self._asked: deque[Message] = deque(maxlen=200)
        self._taught_in: deque[str] = deque(maxlen=100)
        self._roles: dict[str, Role] = {}
        world = discord.world
        self._places = [world.help, world.general, *(world.new_channel(f"place-{n}") for n in range(PLACES - 2))]
        for method, route in _ROUTES:
            # As Discord does: until hikari has seen a route's headers, it sends no second request there.
            discord.bucket(method, route, limit=50, per=1)
        self._began = current_time()

    # The whole of it.

    async def live(self) -> Outcome:
        """Talk and trouble for the time of the plan, then quiet until everything is done, a calm end, the books."""
        self._write_documents()
        await self._begin()
        self._began = current_time()
        talked = waited = 0.0
        async with create_task_group() as tg:
            tg.start_soon(self._look_on)
            talked = await self._talk_and_rest()
            self._tell("all is said; waiting until the bot has done everything")
            if self.life.meant_to_end:
                await self._begin()
            waited = await self._until_done()
            tg.cancel_scope.cancel()
        await self._end()
        await self._harvest()
        books = await run_sync(books_in, self._settings)
        logged = await run_sync(_logged, [life.log for life in self.lives])
        tells = self.plan.log_level in {"debug", "info", "warning"}
        shed = Shed(logged.shed, late=logged.shed_late, kills=len(self.lives) - 1) if tells else None
        self.amiss += faults(self.said, self._posted(), self.accounts, books, window=WINDOW, shed=shed)
        self.amiss += self.discord.violations
        self.discord.violations.clear()
        self.amiss += [f"{n} times in the logs: {what}" for what, n in logged.errors.items()]
        await run_sync(self._write_samples)
        figures = {**self._figures(books, talked, waited), "warnings": _counted(dict(logged.warnings.most_common(12)))}
        return Outcome(
            amiss=self.amiss,
            figures=figures,
            not_judged=self.not_judged,
            said=len(self.said),
            accounted_for=len(self.accounts),
            captures=len(books.pairs),
            faults=sum(self.trouble.made.values()),
            lives=len(self.lives),
        )

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def kill(self) -> None:
        """Kill what is still alive."""
        for life in self.lives[-1:]:
            life.meant_to_end = True
            with suppress(ProcessLookupError):
                life.process.send_signal(signal.SIGKILL)

    # People.

    async def _talk_and_rest(self) -> float:
        """Talk amid trouble for the time of the plan. Where growth is judged, all rest now and then: what is held then
        is kept. Gives the seconds of talk.
        """
        told: Iterator[Line] = lines(Random(f"{self.plan.seed} lines"), self.plan.recorded)
        talked = 0.0
        while (left := self.plan.seconds - (current_time() - self._began)) > 0 or not talked:
            seconds = left if self.plan.kill_every else min(left, self.plan.busy)
            async with create_task_group() as busy:
                if self.plan.trouble_every:
                    busy.start_soon(self.trouble.make, self.plan.trouble_every)
                if self.plan.kill_every:
                    busy.start_soon(self._kill_now_and_then)
                if self.server is not None:
                    busy.start_soon(self._take_database_away, self.server, seconds)
                talked += await self._talk(seconds, told)
                busy.cancel_scope.cancel()
            if self.plan.kill_every:
                break
            await self._rest()
        return talked

    async def _talk(self, seconds: float, told: Iterator[Line]) -> float:
        began = current_time()
        for n in range(round(seconds * self.plan.rate)):
            due = began + n / self.plan.rate
            await sleep_until(due)
            self.late = max(self.late, current_time() - due)
            self._say(len(self.said), next(told))
        return current_time() - began

    async def _rest(self) -> None:
        """Wait until the bot has sent no request for a while, and take a sample then."""
        asked, since = -1, current_time()
        with move_on_after(_REST_WITHIN) as patience:
            while current_time() - since < _AT_REST:
                now = self.statuses.total() + len(self.discord.requests) + self.weather.asked
                if now != asked:
                    asked, since = now, current_time()
                await sleep(0.5)
        if patience.cancelled_caught:
            self.amiss.append(f"left alone, it went on asking for something for {_REST_WITHIN:g} s")
            return
        seen = sample(self.life.process.pid, current_time() - self._began)
        if seen is not None:
            async with _client() as client:
                seen = seen._replace(tasks=await self._tasks(client))
            self.at_rest.append(seen)
            self._tell(f"{seen.at:5.0f} s: at rest, {seen.rss:.1f} MB, {seen.files} files, {seen.tasks} tasks")

    def _say(self, number: int, line: Line) -> None:
        if self._team_rests and line.role == "team":
            line = line._replace(role="user")
        replied = self._messages.get(line.replies_to) if line.replies_to is not None else None
        author = self._user(line)
        text, mentions = line.text[:1900], False
        thread = self._thread(line) if replied is None and self._random.random() < 0.06 else None
        asked_by: Role | None = None
        place = self._places[line.place].id
        if replied is not None and replied.channel_id != place:
            place, asked_by = replied.channel_id, "user"  # whom it replies to went on in a thread
        elif thread is not None:
            place, asked_by = thread, "user"
            if line.role == "team" and self._random.random() < 0.5:
                replied = self._bot_message_in(thread)
        if line.role == "user" and replied is None and self._random.random() < 0.04:
            text, mentions = f"{self.discord.bot.mention} {text}", True
        message = self.discord.acts.post(
            place, author, text, reply_to={"message_id": replied.id} if replied is not None else None
        )
        if line.role == "user" and thread is None and replied is None:
            self._asked.append(message)
        self._messages[number] = message
        self._messages.pop(number - 5_000, None)
        self._roles[author.id] = line.role
        self.said.append(
            Said(
                id=message.id,
                place=place,
                author=author.id,
                role=line.role,
                text=text,
                at=message.timestamp,
                replies_to=replied.id if replied is not None else None,
                replies_to_role=self._role_of(replied),
                mentions_bot=mentions,
                asked_by=asked_by,
            )
        )

    @property
    def _team_rests(self) -> bool:
        """Whether the team rests: where memory is judged, nothing is taught meanwhile."""
        return not self.plan.kill_every and current_time() - self._began > self.plan.seconds * TEACHING

    def _thread(self, line: Line) -> str | None:
        """Return a thread that the bot opened lately; its asker or the team goes on there."""
        if line.role == "bot":
            return None
        open_now = [message.id for message in self._asked if message.id in self.discord.world.channels]
        return self._random.choice(open_now) if open_now else None

    def _bot_message_in(self, thread: str) -> Message | None:
        return next((m for m in self.discord.messages(thread) if m.author.id == self.discord.bot_id), None)

    def _role_of(self, message: Message | None) -> Role | Literal["intern"] | None:
        if message is None:
            return None
        return "intern" if message.author.id == self.discord.bot_id else self._roles[message.author.id]

    def _user(self, line: Line) -> User:
        # Who is of the team in one of the logs is not always so in another.
        key = f"{line.role} {line.author}"
        if key not in self._users:
            roles = [self.discord.team_role.id] if line.role == "team" else []
            name = line.author.partition(" ")[0][:30]
            self._users[key] = self.discord.world.new_member(name, roles=roles, bot=line.role == "bot")
        return self._users[key]

    # The process.

    @property
    def _environment(self) -> dict[str, str]:
        discord = self.discord
        return {
            "INTERN__DATA__DIR": str(self.folder / "data"),
            "INTERN__DATA__URL": self.url,
            "INTERN__DISCORD__TOKEN": discord.token,
            "INTERN__DISCORD__REST_URL": discord.rest_url,
            "INTERN__DISCORD__GUILD_IDS": json.dumps([discord.guild.id]),
            "INTERN__DISCORD__TEAM_ROLE_IDS": json.dumps([discord.team_role.id]),
            "INTERN__DISCORD__MESSAGE_BATCH_WAIT_SECONDS": str(WINDOW.total_seconds()),
            "INTERN__DISCORD__MAX_QUESTIONS_PER_USER_PER_HOUR": "0",
            "INTERN__LLM__PROVIDER": "endpoint",
            "INTERN__LLM__BASE_URL": self.endpoint.base_url,
            "INTERN__LLM__MODEL": "double",
            "INTERN__LLM__API_KEY": API_KEY,
            "INTERN__LLM__MAX_RETRIES": "2",
            "INTERN__LLM__TIMEOUT_SECONDS": "10",
            "INTERN__EMBEDDINGS__PROVIDER": self.plan.embeddings,
            "INTERN__PAGE__ENABLED": "true",
            "INTERN__PAGE__PORT": str(self.page_port),
            "INTERN__LOG__FORMAT": "json",
            "INTERN__LOG__LEVEL": self.plan.log_level,
        }

    @property
    def _settings(self) -> Settings:
        return load_settings(environ=self._environment)

    async def _begin(self) -> None:
        """Begin a life, up to its first session."""
        async with self._starting:
            await self._begin_now()

    async def _begin_now(self) -> None:
        sessions = len(self.discord.gateway.identifies)
        log = self.folder / f"life-{len(self.lives) + 1:03}.log"
        command = program("run")
        # The variables of a service manager (packaging/intern.service), and the tree of this file.
        here = {
            "PATH": os.defpath,
            "HOME": os.devnull,
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(_TREE),
        }
        with log.open("wb") as errors:
            process = await open_process(
                command,
                stdin=DEVNULL,
                stdout=DEVNULL,
                stderr=errors,
                cwd=self.folder,
                env={**here, **self._environment},
            )
        life = Life(process, log)
        self.lives.append(life)
        with fail_after(READY_WITHIN):
            async with create_task_group() as tg:
                tg.start_soon(_fail_once_over, life)
                await self.discord.wait_ready(sessions=sessions + 1)
                tg.cancel_scope.cancel()

    async def _kill_now_and_then(self) -> None:
        while True:
            # Never in the last moment: the last life shall be as long as it takes to be done.
            await sleep(min(self._random.expovariate(1 / self.plan.kill_every), 3 * self.plan.kill_every) + 3)
            self.kill()
            await self.life.process.wait()
            await sleep(self._random.uniform(0.2, 3))
            with anyio.CancelScope(shield=True):
                await self._begin()

    async def _take_database_away(self, server: Server, seconds: float) -> None:
        times = round(self.plan.away * seconds / self.plan.seconds)
        for n in range(times):
            await sleep(max(0.0, seconds / times - self.plan.away_seconds) * (0.3 if n == 0 else 1))
            how = self._random.choice(("killed", "stopped", "paused"))
            with anyio.CancelScope(shield=True):
                async with self._starting:
                    self._tell(f"the database is {how} for {self.plan.away_seconds:g} s")
                    back = await run_sync(server.take_away, how)
                    await sleep(self.plan.away_seconds)
                    await run_sync(back)
            self.trouble.made[f"database {how}"] += 1

    async def _end(self) -> None:
        """Ask it to end, as service managers do."""
        self.life.meant_to_end = True
        self.life.process.terminate()
        code = None
        with move_on_after(END_WITHIN):
            code = await self.life.process.wait()
        if code != 0:
            self.amiss.append(f"asked to end, it ended with {code}; see {self.life.log}")

    # Observations.

    async def _look_on(self) -> None:
        async with _client() as client:
            await self._look_on_with(client)

    async def _look_on_with(self, client: httpx.AsyncClient) -> None:
        looks = 0
        while True:
            await sleep(_LOOK)
            looks += 1
            life = self.life
            seen = sample(life.process.pid, current_time() - self._began)
            if seen is not None:
                if len(life.samples) % _ASKED_EVERY == 0:
                    seen = seen._replace(tasks=await self._tasks(client))
                life.samples.append(seen)
            if life.process.returncode is not None and not life.meant_to_end:
                life.meant_to_end = True
                self.amiss.append(f"it ended by itself, with {life.process.returncode}; see {life.log}")
                await self._begin()
            self._forget()
            self._archive_threads()
            if looks % round(_HARVEST / _LOOK) == 0:
                await self._harvest()
            if looks % round(30 / _LOOK) == 0 and seen is not None:
                self._tell(
                    f"{seen.at:5.0f} s: {len(self.said)} said, {len(self.accounts)} accounted for, "
                    f"{sum(self.trouble.made.values())} faults, life {len(self.lives)}, {seen.rss:.1f} MB, "
                    f"{seen.files} files, {seen.threads} threads, {self._last_tasks()} tasks, "
                    f"cpu {seen.cpu:.1f} s, late {self.late:.2f} s"
                )

    async def _tasks(self, client: httpx.AsyncClient) -> int | None:
        """Return the number of tasks, by the metrics of the life; None if they are not available now."""
        try:
            text = (await client.get(f"http://127.0.0.1:{self.page_port}/metrics")).text
        except httpx.HTTPError:  # it is starting, or was killed
            return None
        told = re.search(r"^intern_tasks (\S+)$", text, re.MULTILINE)
        return int(float(told[1])) if told else None

    def _last_tasks(self) -> int | None:
        return next((each.tasks for each in reversed(self.life.samples) if each.tasks is not None), None)

    async def _harvest(self) -> None:
        with suppress(InternError):  # the database is away
            self.accounts |= await run_sync(accounts_in, self._settings)

    def _archive_threads(self) -> None:
        """Archive threads without new messages as Discord does, only sooner: an hour here is weeks there."""
        idle = datetime.now(UTC) - _THREADS_REST_AFTER
        for thread in self.discord.world.threads():
            newest = thread.last_message_id or thread.id
            if not thread.archived and parse_position(MessageId(newest)).time < idle:
                self.discord.acts.change_channel(thread, {"archived": True})

    def _forget(self) -> None:
        """Drop what the doubles remember for tests that are over in seconds."""
        done = [request for request in self.discord.requests if request.done]
        self.statuses.update(map(became_of, done))
        self.discord.requests[:] = [request for request in self.discord.requests if not request.done]
        del self.endpoint.requests[:]
        sessions = self.discord.gateway.sessions
        for old in list(sessions)[:-5]:
            if sessions[old].socket is None:
                del sessions[old]
        for session in sessions.values():
            shorten(session)
        self.discord.world.session_starts_left = 1000

    # The end.

    async def _until_done(self) -> float:
        """Wait until nothing is left to do, or until that takes too long; say how long it took."""
        began = current_time()
        with move_on_after(180 + self.plan.seconds):
            while True:
                looked = current_time()
                if not await self._left():
                    break
                # Reading all messages of an hour takes seconds, in which no one serves the bot.
                await sleep(max(3.0, 5 * (current_time() - looked)))
        return current_time() - began

    async def _left(self) -> int:
        await self._harvest()
        try:
            books = await run_sync(books_in, self._settings)
        except InternError:  # a file was exchanged while it was read
            return 1
        known = {message_id for pair in books.pairs for message_id in pair.message_ids}
        left = {
            "questions": len(unaccounted(questions(self.said, WINDOW, books.answered), self.accounts, books)),
            "open replies": sum(part.state == "open" for part in books.parts),
            "lessons": sum(each.id not in known for each in lessons(self.said)),
            "pairs": len(undecided(books)),
        }
        self._tell("left to do: " + ", ".join(f"{n} {what}" for what, n in left.items()))
        return sum(left.values())

    def _posted(self) -> list[Posted]:
        return [
            Posted(
                id=message.id,
                place=message.channel_id,
                text=message.content,
                pings=(
                    *message.mentions,
                    *message.mention_roles,
                    *(["everyone"] if message.mention_everyone else []),
                ),
            )
            for message in self.discord.said_by_bot()
        ]

    def _write_documents(self) -> None:
        sources = self.folder / "data" / "knowledge-base" / "sources"
        sources.mkdir(parents=True)
        file = self.plan.recorded / "retrieval_factoids_corpus.jsonl"
        rows = file.read_text(encoding="utf-8").splitlines()[:_DOCUMENTS] if file.is_file() else []
        for n, row in enumerate(map(json.loads, rows)):
            (sources / f"factoid-{n}.md").write_text(f"# {row['title']}\n\n{row['text']}\n", encoding="utf-8")
        text = (
            "# Relay\n\nThe relay keeps its spool on disk. Move the spool with `spool.path`, and restart the relay.\n"
        )
        (sources / "relay.md").write_text(text, encoding="utf-8")

    def _write_samples(self) -> None:
        rows = [
            f"{n},{each.at:.1f},{each.rss:.3f},{each.files},{each.threads},{each.cpu:.2f}"
            f",{'' if each.tasks is None else each.tasks},{int(each in self.at_rest)}"
            for n, life in enumerate(self.lives, 1)
            for each in sorted({*life.samples, *(self.at_rest if life is self.life else ())})
        ]
        text = "\n".join(["life,seconds,megabytes,files,threads,cpu_seconds,tasks,at_rest", *rows, ""])
        (self.folder / "samples.csv").write_text(text, encoding="utf-8")

    def _figures(self, books: Books, talked: float, waited: float) -> dict[str, str]:
        outcomes = Counter(account.outcome for account in self.accounts.values())
        reasons = Counter(map(str, self.accounts.values()))
        posted, taught = self._posted(), lessons(self.said)
        cpu = sum(life.samples[-1].cpu for life in self.lives if life.samples)
        lasted = current_time() - self._began
        mine = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        kinds = Counter(type(decision).__name__.lower() for decision in books.decisions)
        figures = {
            "seed": self.plan.seed,
            "messages": f"{len(self.said)} in {talked:.0f} s: {len(self.said) / talked:.1f} a second, "
            f"{self.late:.2f} s late at worst",
            "rests": str(len(self.at_rest)),
            "quiet after": f"{waited:.0f} s",
            "questions for sure": str(len(questions(self.said, WINDOW, books.answered))),
            "accounted for": _counted(outcomes),
            "most usual": _counted(dict(reasons.most_common(8))),
            "counts": _counted(books.counts),
            "bot's messages": f"{len(posted)}, of {len({part.question_id for part in books.parts})} replies",
            "team's replies": f"{len(taught)} to capture, {len(books.pairs)} captures, "
            f"{in_two_conversations(taught, books)} of them context of another conversation, too",
            "decisions": _counted(kinds),
            "faults made": f"{sum(self.trouble.made.values())}: {_counted(self.trouble.made)}",
            "lives": f"{len(self.lives)}, {len(self.lives) - 1} of them killed",
            "Discord requests": _counted(self.statuses),
            "model requests": f"{self.weather.asked}, {self.weather.failed} of them failed",
            "CPU of the bot": f"{cpu:.0f} s, {cpu / lasted:.0%} of one core; the doubles' {mine:.0f} s",
        }
        return figures | self._grown()

    def _grown(self) -> dict[str, str]:
        """Judge whether the last life grew, if there were no kills and it was long enough."""
        last = self.life.samples
        grown = growth(self.at_rest, warm_up=self.plan.seconds * WARM_UP)
        most = max((each.rss for each in last), default=0.0)
        figures = {"memory": f"{most:.1f} MB at most in the last life"}
        if grown is not None:
            figures["growth"] = str(grown)
        if self.plan.kill_every:
            self.not_judged = "whether memory, files, threads or tasks grow; for that, SOAK_KILLS=0"
            return figures
        if grown is not None and can_be_judged(grown):
            self.amiss += leaks(grown)
        elif self.plan.seconds / 60 >= minutes_to_judge():
            self.amiss.append(f"nobody can say whether it grows, of {len(self.at_rest)} rests: {grown}")
        else:
            self.not_judged = (
                "whether memory, files, threads or tasks grow; that takes"
                f" {minutes_to_judge():.0f} minutes in one life (SOAK_MINUTES)"
            )
        return figures


def became_of(request: Request) -> str:
    """Return a reply's status, with Discord's own code for a refusal: 160004 is a thread that exists already."""
    if request.status == 400:
        return f"400 ({request.reply['code']})"
    return str(request.status or "broken off")


def _client() -> httpx.AsyncClient:
    # Without any proxy, and without certificates, which are not needed here.
    return httpx.AsyncClient(timeout=_ASKED_WITHIN, verify=False, trust_env=False)


async def _fail_once_over(life: Life) -> None:
    await life.process.wait()
    said = life.log.read_text(encoding="utf-8", errors="replace")[-2_000:]
    raise AssertionError(f"it ended before it had a session, with {life.process.returncode}:\n{said}")


class Logged(NamedTuple):
    """The output of all lives except lines of level info."""

    warnings: Counter[str]
    errors: Counter[str]
    """Errors, also asyncio's reports of tasks that were never awaited."""
    shed: list[str]
    """The questions that were shed, each as often as it was named."""
    shed_late: int
    """The number of them in the last moments of a killed life."""


def _logged(logs: Sequence[Path]) -> Logged:
    warnings, errors, shed, late = Counter[str](), Counter[str](), list[str](), 0
    for n, log in enumerate(logs, 1):
        shed_at: list[datetime] = []
        ended: datetime | None = None
        for entry in entries(log, errors):
            ended = datetime.fromisoformat(entry["timestamp"])
            what = re.sub(r"\d[\d.]*", "N", str(entry["event"]))[:80]
            # Of trouble that was made for it, hikari tells as it likes, and so loudly.
            if entry["level"] == "warning" or (entry["level"] == "error" and _of_hikari(entry)):
                warnings[what] += 1
            elif entry["level"] not in {"debug", "info"}:
                errors[what] += 1
            if entry["event"] == "question_declined" and entry["reason"] == "shed":
                shed.append(str(entry["message_id"]))
                shed_at.append(ended)
        if ended and n < len(logs):
            late += sum(ended - at <= _LOST_WITH_A_KILL for at in shed_at)
    return Logged(warnings, errors, shed, late)


def entries(log: Path, errors: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a life's log; lines in another format are errors."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                if line.endswith("\n"):  # else it is what a life was saying when it was killed
                    errors[line.strip()[:200]] += 1


def _free_port() -> int:
    """For all lives of a run: below those that connections get, or one of these might have it at the next start."""
    while True:
        port = secrets.choice(range(20_000, 32_000))
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port


def _of_hikari(entry: Mapping[str, Any]) -> bool:
    # When a socket goes, both of its tasks may fail, and hikari waits for the first of them only.
    unwaited = entry["logger"] == "asyncio" and "exception=Gateway" in entry["event"]
    return unwaited or entry["logger"].startswith("hikari")


def shorten(session: Session) -> None:
    """Remove old events that no client resumes from; the session's length stays."""
    for n in range(len(session.events) - _REMEMBERED - 1, -1, -1):
        if not session.events[n]:
            break
        session.events[n] = ""


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {what}" for what, n in sorted(counts.items(), key=lambda item: -item[1])) or "none"
