"""Several processes that share one database, many communities, and trouble; then all of it is reconciled."""

from __future__ import annotations

import itertools
import os
import resource
import signal
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from subprocess import DEVNULL
from typing import Any, NamedTuple

import anyio
from anyio import create_task_group, current_time, fail_after, move_on_after, open_process, sleep, sleep_until
from anyio.abc import Process
from anyio.to_thread import run_sync

from intern.core.ids import GuildId
from intern.platforms.discord.options import shard_index
from intern.stores.engines.postgres.database import PostgresDatabase
from intern.stores.tables.communities import CommunityStore
from intern.stores.tables.database_archive import DatabaseArchive
from tests.double.discord import DiscordDouble
from tests.double.world import Channel, Message, Role, User
from tests.engines import Server, serving
from tests.process.running import API_KEY
from tests.soak.books import Account, Posted, Said, accounts_of, books_of, faults, lessons, questions
from tests.soak.machine import Sample, sample
from tests.soak.soaking import became_of, entries, shorten
from tests.soak.traffic import Line, made_up
from tests.soak.trouble import Weather
from tests.worlds.endpoint import EndpointDouble, endpoint_double
from tests.worlds.program import program

WINDOW = timedelta(seconds=2)  # of silence, that ends a batch
LEASED_WITHIN = 15.0  # seconds from the loss of a process to the last lease of its shards
IDENTIFY_EVERY = 5.0  # seconds, as Discord has it: the shards of a bucket come one after another, of all processes
LIVE_WITHIN = 5.0  # seconds during which Discord would have taken an IDENTIFY, and a leased shard was not live
_SEEN_LATE = 1.0  # seconds until a lease that was taken is seen here
_READY_WITHIN = 180.0
_END_WITHIN = 60.0
_DONE_WITHIN = 900.0  # a machine that all of it shares falls behind, and catches up
_TREE = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do."""

    seconds: float
    seed: str
    rate: float = 20.0  # messages a second
    communities: int = 200
    shards: int = 12
    processes: int = 3
    trouble_every: float = 60.0  # seconds, about
    max_concurrency: int = 1
    check: bool = False
    """Hold every request and reply against Discord's OpenAPI file."""
    patience: float = 1.0
    """A factor of the time that a take-over may last."""


@dataclass
class Life:
    """One run of one process."""

    number: int
    process: Process
    log: Path
    samples: list[Sample] = field(default_factory=list[Sample])
    meant_to_end: bool = False


class Loss(NamedTuple):
    """A process that ended or paused without a word, with shards."""

    what: str
    at: float
    tokens: Mapping[int, int]


class Taken(NamedTuple):
    """A lease as the watcher first saw it."""

    at: float
    shard: int
    token: int
    holder: str


@dataclass
class Place:
    """A community: its server, and who is there."""

    name: str
    shard: int
    channels: tuple[Channel, ...]
    role: Role
    lines: Iterator[Line]
    said: list[Said] = field(default_factory=list[Said])
    users: dict[str, User] = field(default_factory=dict[str, User])
    messages: dict[int, Message] = field(default_factory=dict[int, Message])
    roles: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class Outcome:
    """What came of it: what is amiss, and figures in the order of printing."""

    amiss: list[str]
    too_late: list[str]
    """Take-overs that took longer than they may: a machine that is busy with other things makes them slow, too."""
    figures: dict[str, str]
    said: int
    accounted_for: int
    captures: int
    losses: int


async def soak(plan: Plan, folder: Path, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """Do it in an empty folder, which keeps each life's log. asyncio only."""
    with serving() as server, server.schema() as schema:
        weather = Weather(Random(f"{plan.seed} weather"))
        with endpoint_double(weather, api_key=API_KEY) as endpoint:
            async with DiscordDouble(check=plan.check) as discord:
                run = Soak(plan, folder, Around(discord, endpoint, weather, server, schema), tell)
                try:
                    return await run.live()
                finally:
                    run.kill_all()


class Around(NamedTuple):
    """What the processes live among."""

    discord: DiscordDouble
    endpoint: EndpointDouble
    weather: Weather
    server: Server
    schema: str


class Soak:
    """One run."""

    def __init__(self, plan: Plan, folder: Path, around: Around, tell: Callable[[str], None]) -> None:
        self.plan, self.folder = plan, folder
        self.discord, self.endpoint, self.weather, self.server, self.schema = around
        self.places: list[Place] = []
        self.lives: list[Life] = []
        self.amiss: list[str] = []
        self.too_late: list[str] = []
        self.losses: list[Loss] = []
        self.taken: dict[tuple[int, int], Taken] = {}
        self.database_down: list[tuple[float, float]] = []
        self.made = Counter[str]()
        self.statuses = Counter[str]()
        self.late = 0.0
        self._tell = tell
        self._random = Random(f"{plan.seed} people")
        self._said = 0
        self._began = current_time()

    # The whole of it.

    async def live(self) -> Outcome:
        """Talk amid trouble for the time of the plan, then quiet until everything is done, a calm end, the books."""
        plan, gateway = self.plan, self.discord.gateway
        self.discord.world.shards, self.discord.world.max_concurrency = plan.shards, plan.max_concurrency
        gateway.least_shards, gateway.identify_every = plan.shards, IDENTIFY_EVERY
        talked = waited = 0.0
        self._settle()
        await self._register()
        await run_sync(self._audit)
        async with create_task_group() as tg:
            tg.start_soon(self._watch)
            tg.start_soon(self._look_on)
            for n in range(plan.processes):
                await self._begin(n)
            with fail_after(_READY_WITHIN):
                await self._until_all_live()
            self._began = current_time()
            self._tell(f"all {plan.shards} shards are live; {plan.communities} communities begin to talk")
            async with create_task_group() as busy:
                busy.start_soon(self._make_trouble)
                await self._talk()
                busy.cancel_scope.cancel()
            talked = current_time() - self._began
            self._tell("all is said; waiting until everything is done")
            await self._all_up()
            waited = await self._until_done()
            await self._end()
            tg.cancel_scope.cancel()
        books = await self._reconcile()
        self._judge_losses()
        await self._judge_audit()
        await self._judge_logs()
        return self._outcome(books, talked, waited)

    def kill_all(self) -> None:
        """Kill what is still alive."""
        for life in self.lives:
            with suppress(ProcessLookupError):
                life.meant_to_end = True
                life.process.send_signal(signal.SIGKILL)

    # Communities.

    def _settle(self) -> None:
        world = self.discord.world
        world.guilds.clear()  # the one that other tests use
        world.channels.clear()
        for n in range(self.plan.communities):
            guild = world.new_guild(f"Town {n}")
            channels = tuple(world.new_channel(f"talk-{each}", guild=guild) for each in range(2))
            lines = _lines(Random(f"{self.plan.seed} lines {n}"))
            shard = shard_index(GuildId(guild.id), self.plan.shards)
            self.places.append(Place(f"town-{n}", shard, channels, world.new_role("Team", guild), lines))

    async def _register(self) -> None:
        async with await self._database() as db:
            registry = CommunityStore(db)
            for place in self.places:
                guild_id = GuildId(place.channels[0].guild_id)
                chosen = {"discord": {"team_role_ids": [place.role.id]}}
                known, _ = await registry.add_server(guild_id, place.name, chosen)
                assert known.name == place.name

    async def _database(self) -> PostgresDatabase:
        return await PostgresDatabase.open(self.server.url(self.schema))

    # People.

    async def _talk(self) -> None:
        began = current_time()
        for n in range(round(self.plan.seconds * self.plan.rate)):
            due = began + n / self.plan.rate
            await sleep_until(due)
            self.late = max(self.late, current_time() - due)
            self._say(self._random.choice(self.places))

    def _say(self, place: Place) -> None:
        number, line = len(place.said), next(place.lines)
        replied = place.messages.get(line.replies_to) if line.replies_to is not None else None
        author = self._user(place, line)
        where = replied.channel_id if replied else place.channels[line.place % 2].id
        message = self.discord.acts.post(
            where, author, line.text, reply_to={"message_id": replied.id} if replied else None
        )
        place.messages[number] = message
        place.roles[author.id] = line.role
        place.said.append(
            Said(
                id=message.id,
                place=where,
                author=author.id,
                role=line.role,
                text=line.text,
                at=message.timestamp,
                replies_to=replied.id if replied else None,
                replies_to_role=place.roles[replied.author.id] if replied else None,
            )
        )
        self._said += 1

    def _user(self, place: Place, line: Line) -> User:
        key = f"{line.role} {line.author}"
        if key not in place.users:
            guild = self.discord.world.guilds[place.channels[0].guild_id]
            roles = [place.role.id] if line.role == "team" else []
            place.users[key] = self.discord.world.new_member(
                line.author, roles=roles, bot=line.role == "bot", guild=guild
            )
        return place.users[key]

    # Processes.

    def _environment(self, number: int) -> dict[str, str]:
        return {
            "INTERN__HOSTING__ENABLED": "true",
            "INTERN__DATA__DIR": str(self.folder / f"data-{number}"),
            "INTERN__DATA__URL": self.server.url(self.schema),
            "INTERN__DISCORD__TOKEN": self.discord.token,
            "INTERN__DISCORD__REST_URL": self.discord.rest_url,
            "INTERN__DISCORD__MESSAGE_BATCH_WAIT_SECONDS": str(WINDOW.total_seconds()),
            "INTERN__DISCORD__MAX_QUESTIONS_PER_USER_PER_HOUR": "0",
            "INTERN__LLM__PROVIDER": "endpoint",
            "INTERN__LLM__BASE_URL": self.endpoint.base_url,
            "INTERN__LLM__MODEL": "double",
            "INTERN__LLM__API_KEY": API_KEY,
            "INTERN__LLM__MAX_RETRIES": "2",
            "INTERN__LLM__TIMEOUT_SECONDS": "10",
            "INTERN__EMBEDDINGS__PROVIDER": "none",
            "INTERN__LOG__FORMAT": "json",
        }

    async def _begin(self, number: int) -> None:
        log = self.folder / f"life-{len(self.lives) + 1:03}-of-{number}.log"
        # What a service manager gives (packaging/intern.service), and the tree that this file stands in.
        here = {
            "PATH": os.defpath,
            "HOME": os.devnull,
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(_TREE),
        }
        command = program("run")
        environment = {**here, **self._environment(number)}
        with log.open("wb") as errors:
            process = await open_process(
                command, stdin=DEVNULL, stdout=DEVNULL, stderr=errors, cwd=self.folder, env=environment
            )
        self.lives.append(Life(number, process, log))

    @property
    def _up(self) -> list[Life]:
        """The newest life of each process that is alive."""
        newest = {life.number: life for life in self.lives}
        return [life for life in newest.values() if life.process.returncode is None and not life.meant_to_end]

    async def _all_up(self) -> None:
        for number in set(range(self.plan.processes)) - {life.number for life in self._up}:
            await self._begin(number)

    async def _end(self) -> None:
        """Ask all to end, as service managers do, one after the other: their shards go to those that are left."""
        for life in self._up:
            life.meant_to_end = True
            life.process.terminate()
            code = None
            with move_on_after(_END_WITHIN):
                code = await life.process.wait()
            if code != 0:
                self.amiss.append(f"asked to end, it ended with {code}; see {life.log}")

    # Trouble.

    async def _make_trouble(self) -> None:
        every = self.plan.trouble_every
        acts = {"killed": self._kill_one, "paused": self._pause_one, "database killed": self._restart_database}
        # Each of them once at least, at even distances; then by chance.
        order = deque(self._random.sample(list(acts), len(acts)))
        while True:
            wait = every if order else self._random.uniform(0.6, 1.4) * every
            await sleep(wait)
            name = order.popleft() if order else self._random.choice(list(acts))
            self.made[name] += 1
            with anyio.CancelScope(shield=True):
                self._tell(f"{current_time() - self._began:5.0f} s: {name}")
                await acts[name]()

    async def _kill_one(self) -> None:
        life = self._random.choice(self._up)
        life.meant_to_end = True
        await self._lose("killed", life)
        life.process.send_signal(signal.SIGKILL)
        await life.process.wait()
        await sleep(self._random.uniform(2, 12))
        await self._begin(life.number)

    async def _pause_one(self) -> None:
        """Stop a process for longer than a lease, then let it wake up."""
        life = self._random.choice(self._up)
        await self._lose("paused", life)
        life.process.send_signal(signal.SIGSTOP)
        await sleep(self._random.uniform(12, 25))
        life.process.send_signal(signal.SIGCONT)

    async def _restart_database(self) -> None:
        began = current_time()
        await run_sync(self.server.kill)
        await sleep(self._random.uniform(0.5, 3))
        await run_sync(self.server.start)
        self.database_down.append((began, current_time()))

    async def _lose(self, what: str, life: Life) -> None:
        name = f"process {life.process.pid} on "
        held = {
            shard: token
            for shard, token, holder, lives in await run_sync(self._leases)
            if lives and str(holder).startswith(name)
        }
        self.losses.append(Loss(what, current_time(), held))

    # What the test observes.

    def _leases(self) -> list[tuple[int, int, str, bool]]:
        rows = self.server.run(
            f"select shard, token, coalesce(holder, ''), ends_at > clock_timestamp() from {self.schema}.leases"
        )
        return [(int(shard), int(token), str(holder), bool(lives)) for shard, token, holder, lives in rows]

    async def _watch(self) -> None:
        """Note when each lease is taken."""
        while True:
            with suppress(Exception):  # the database may be away
                for shard, token, holder, lives in await run_sync(self._leases):
                    if lives and (shard, token) not in self.taken:
                        self.taken[shard, token] = Taken(current_time(), shard, token, holder)
            await sleep(0.2)

    async def _look_on(self) -> None:
        for looks in itertools.count(1):
            await sleep(2)
            for life in self._up:
                if (seen := sample(life.process.pid, current_time() - self._began)) is not None:
                    life.samples.append(seen)
            for life in self.lives:
                if life.process.returncode is not None and not life.meant_to_end:
                    life.meant_to_end = True
                    self.amiss.append(f"it ended by itself, with {life.process.returncode}; see {life.log}")
                    await self._begin(life.number)
            self._forget()
            if looks % 15 == 0:
                memory = ", ".join(f"{life.samples[-1].rss:.0f} MB" for life in self._up if life.samples)
                self._tell(
                    f"{current_time() - self._began:5.0f} s: {self._said} said, {memory}, late {self.late:.2f} s, "
                    f"{len(self._live_shards())} shards live"
                )

    def _live_shards(self) -> set[int]:
        sessions = self.discord.gateway.sessions.values()
        return {session.shard[0] for session in sessions if session.socket is not None}

    async def _until_all_live(self) -> None:
        await self.discord.until(lambda: len(self._live_shards()) == self.plan.shards or self._none_left())
        assert not self._none_left(), self.lives[-1].log.read_text(encoding="utf-8", errors="replace")[-3000:]

    def _none_left(self) -> bool:
        return bool(self.lives) and not self._up

    def _forget(self) -> None:
        """Drop what the doubles remember for tests that are over in seconds."""
        done = [request for request in self.discord.requests if request.done]
        self.statuses.update(map(became_of, done))
        self.discord.requests[:] = [request for request in self.discord.requests if not request.done]
        del self.endpoint.requests[:]
        sessions = self.discord.gateway.sessions
        gone = [each for each, session in sessions.items() if session.socket is None]
        for old in gone[: -2 * self.plan.shards]:
            del sessions[old]
        for session in sessions.values():
            shorten(session)
        self.discord.world.session_starts_left = 1000

    # The books.

    async def _until_done(self) -> float:
        """Wait until nothing is left to do, or until that takes too long; say how long it took."""
        began, calm = current_time(), 0
        with move_on_after(_DONE_WITHIN):
            while calm < 2:
                await sleep(3)
                left = await run_sync(self._left)
                self._tell("left to do: " + ", ".join(f"{n} {what}" for what, n in left.items()))
                is_calm = not any(left.values()) and len(self._live_shards()) == self.plan.shards
                calm = calm + 1 if is_calm else 0
        return current_time() - began

    def _left(self) -> dict[str, int]:
        """What is not done yet, as one look at the whole database tells."""
        run = self._rows
        traced = {(name, message) for name, message in run("select community, message_id from answer_messages")}
        traced |= {(name, message) for name, message in run("select community, message_id from post_messages")}
        traced |= {(name, message) for name, message in run("select community, question_id from posts")}
        asked = [(place.name, each.id) for place in self.places for each in questions(place.said, WINDOW, {})]
        [(is_open,)] = run("select count(*) from posts where state = 'open'")
        [(undecided,)] = run(_UNDECIDED)
        archived = defaultdict[str, str](str)
        for name, block in run("select community, convert_from(block, 'UTF8') from captures"):
            archived[name] += block
        taught = [(place.name, each.id) for place in self.places for each in lessons(place.said)]
        return {
            "questions": len(set(asked) - traced),
            "open replies": int(is_open),
            "lessons": sum(each not in archived[name] for name, each in taught),
            "pairs": max(0, int(undecided)),
        }

    def _rows(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.run(f"set search_path = {self.schema}", statement)

    async def _reconcile(self) -> Counter[str]:
        figures = Counter[str]()
        posted = defaultdict[str, list[Posted]](list)
        for message in self.discord.said_by_bot():
            guild_id = self.discord.world.channels[message.channel_id].guild_id
            pings = (*message.mentions, *message.mention_roles, *(["everyone"] if message.mention_everyone else []))
            posted[guild_id].append(Posted(message.id, message.channel_id, message.content, pings))
        async with await self._database() as db:
            for place in self.places:
                own = db.for_community(place.name)
                accounts: dict[str, Account] = await run_sync(accounts_of, own)
                books = await run_sync(lambda each=own: books_of(each, DatabaseArchive(each)))  # type: ignore[misc]
                here = posted[place.channels[0].guild_id]
                for each in faults(place.said, here, accounts, books, window=WINDOW):
                    self.amiss.append(f"{place.name} on shard {place.shard}: {each}")
                figures.update(
                    questions=len(questions(place.said, WINDOW, books.answered)),
                    accounts=len(accounts),
                    captures=len(books.pairs),
                    lessons=len(lessons(place.said)),
                    posted=len(here),
                    decisions=len(books.decisions),
                )
        return figures

    # What no process may do.

    def _audit(self) -> None:
        """Have the database note each write to a community by a process that has no lease on its shard."""
        tables = self._rows(
            "select table_name from information_schema.columns"
            f" where table_schema = '{self.schema}' and column_name = 'community'"
        )
        self._rows(_AUDIT.format(schema=self.schema, shards=self.plan.shards))
        for (table,) in tables:
            self._rows(
                f"create trigger audited after insert or update or delete on {table}"
                " for each statement execute function audited()"
            )

    async def _judge_audit(self) -> None:
        rows = await run_sync(self._rows, "select tab, community, app, holder, shard from audit")
        for tab, community, app, holder, shard in rows:
            self.amiss.append(f"{app} wrote {tab} of {community} on shard {shard}, whose lease {holder} had")
        [[number]] = await run_sync(self._rows, "select last_value from audit_seen")
        self.made["audited writes"] = int(number)
        if int(number) < self._said:
            self.amiss.append(f"only {number} writes were audited, of {self._said} messages: the audit is blind")

    # How fast another process takes over.

    def _judge_losses(self) -> None:
        self.lease_seconds, self.live_seconds = list[float](), list[float]()
        patience = self.plan.patience
        for loss in self.losses:
            for shard, token in loss.tokens.items():
                lease = self._next(loss, shard, token)
                if lease is None:
                    self.amiss.append(f"shard {shard} of the process {loss.what} was never taken")
                    continue
                self.lease_seconds.append(seconds := lease.at - loss.at)
                if seconds > LEASED_WITHIN * patience:
                    self.too_late.append(f"the lease on shard {shard} was taken only after {seconds:.1f} s")
                live = min((at for at in self._identified(shard) if at > lease.at - _SEEN_LATE), default=None)
                if live is None:
                    self.amiss.append(f"shard {shard} of the process {loss.what} was never live again")
                    continue
                self.live_seconds.append(seconds := self._unused(lease, live))
                if seconds > LIVE_WITHIN * patience:
                    self.too_late.append(f"shard {shard} was live only {seconds:.1f} s after its turn")

    def _next(self, loss: Loss, shard: int, token: int) -> Taken | None:
        later = [each for (n, mark), each in self.taken.items() if n == shard and mark > token and each.at >= loss.at]
        return min(later, default=None)

    def _identified(self, *shards: int) -> list[float]:
        return [at for at, shard in self.discord.gateway.identified if shard in shards]

    def _unused(self, lease: Taken, live: float) -> float:
        """Return for how long a leased shard was not live although Discord would have taken its IDENTIFY.

        Any shard of its bucket may use a turn. While the database is away, no process knows whose turn it is.
        """
        concurrency = self.plan.max_concurrency
        bucket = range(lease.shard % concurrency, self.plan.shards, concurrency)
        unused, free_at = 0.0, 0.0
        for at in self._identified(*bucket):
            if lease.at < at <= live:
                began = max(lease.at, free_at)
                away = sum(max(0.0, min(at, up) - max(began, down)) for down, up in self.database_down)
                unused += max(0.0, at - began - away)
            free_at = at + IDENTIFY_EVERY
        return unused

    async def _judge_logs(self) -> None:
        self.warnings, errors = Counter[str](), Counter[str]()
        for life in self.lives:
            for entry in await run_sync(lambda log=life.log: list(entries(log, errors))):  # type: ignore[misc]
                if entry["level"] in {"warning", "error", "critical"}:
                    self.warnings[f"{entry['level']} {entry['event']}"[:90]] += 1
        self.amiss += [f"{n} times in the logs: {what}" for what, n in errors.items()]

    def _outcome(self, books: Counter[str], talked: float, waited: float) -> Outcome:
        lived = [life for life in self.lives if life.samples]
        samples = [each for life in lived for each in life.samples]
        cpu = sum(life.samples[-1].cpu for life in lived)
        mine = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        plan = self.plan
        figures = {
            "seed": plan.seed,
            "messages": f"{self._said} in {talked:.0f} s in {plan.communities} communities, "
            f"{self.late:.2f} s late at worst",
            "quiet after": f"{waited:.0f} s",
            "books": _counted(books),
            "trouble": _counted(self.made),
            "lives": f"{len(self.lives)}, at most {max((each.rss for each in samples), default=0):.0f} MB, "
            f"{max((each.files for each in samples), default=0)} files, "
            f"{max((each.threads for each in samples), default=0)} threads",
            "lease after": _spread(self.lease_seconds),
            "live after that": _spread(self.live_seconds),
            "IDENTIFY": f"{len(self.discord.gateway.identifies)}, {self.discord.gateway.too_early} too early",
            "Discord requests": _counted(self.statuses),
            "over 50 a second": str(self.discord.over_the_limit),
            "database away": f"{sum(up - down for down, up in self.database_down):.1f} s",
            "CPU": f"{cpu:.0f} s; the doubles' {mine:.0f} s",
            "warnings": _counted(dict(self.warnings.most_common(20))),
        }
        return Outcome(
            amiss=self.amiss,
            too_late=self.too_late,
            figures=figures,
            said=self._said,
            accounted_for=books["accounts"],
            captures=books["captures"],
            losses=len(self.losses),
        )


_UNDECIDED = """
    select (select count(*) from captures)
        - (select count(distinct (community, decision::json ->> 'qa_id')) from decisions where draft = 0)
"""

_AUDIT = """
    create sequence audit_seen;
    create table audit (at timestamptz, tab text, community text, app text, holder text, shard bigint);
    create function audited() returns trigger language plpgsql security definer set search_path = {schema} as $$
    declare
        whose text := current_setting('intern.community', true);
        guild text;
        lease record;
    begin
        select guild_ids::json ->> 0 into guild from hosted_communities where name = whose;
        if guild is not null then
            perform nextval('audit_seen');
            select * into lease from leases where shard = (guild::bigint >> 22) % {shards};
            -- Where there is no holder, the transaction began with the lease, and none can take it until it ends.
            if not starts_with(lease.holder, current_setting('application_name') || ' ') then
                insert into audit values (
                    clock_timestamp(), tg_table_name, whose, current_setting('application_name'), lease.holder,
                    lease.shard
                );
            end if;
        end if;
        return null;
    end $$
"""


def _lines(random: Random) -> Iterator[Line]:
    """What one small community says: a log, again and again."""
    number = 0
    while True:
        [log] = made_up(random, logs=1, length=60)
        numbers = {row["message_id"]: number + n for n, row in enumerate(log)}
        for row in log:
            replies_to = numbers.get(row["replies_to"])
            place = numbers[row["message_id"]] // 7
            yield Line(place, row["author"], row["author_role"], row["text"], replies_to)
        number += len(log)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {what}" for what, n in counts.items()) or "none"


def _spread(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    return f"{ordered[len(ordered) // 2]:.1f} s in the median, {ordered[-1]:.1f} s at worst, of {len(ordered)}"
