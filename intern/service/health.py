"""The health of a running bot: checks for probes and the page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Final

from anyio import CapacityLimiter, Lock, current_time, move_on_after
from anyio.to_thread import run_sync
from msgspec import Struct

from intern.actors.poster import StuckReplies
from intern.core import errors
from intern.core.clock import Clock
from intern.core.messages import Image
from intern.core.tasks import open_task_group
from intern.models.circuit_breaker import CircuitBreaker, CircuitState
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.service.calibration import check_calibration
from intern.service.metrics import Counters, classify_outcome
from intern.settings.settings import Settings
from intern.stores.database import Database
from intern.stores.folder_lock import FolderLock
from intern.stores.search_file.vector_copy import VectorCopy
from intern.stores.tables.figures_at_rest import write_heartbeat

_CHECKED_EVERY = 5.0  # seconds; more frequent probes get the last result
_LOOKED_WITHIN = 3.0  # seconds; probes of readiness give up after five or ten
_EMBEDDINGS = "embeddings"
STUCK_AFTER: Final = 60.0
"""Seconds without a successful reply while some wait. A short rate limit is over by then."""
USELESS_FROM: Final = 5  # different calls in a row: fewer may concern one capture that no model understands
_MOST_USELESS = 1_000  # that are counted
_MINUTE, _SECOND = "%Y-%m-%d %H:%M UTC", "%Y-%m-%d %H:%M:%S UTC"
_NONE: Final[Mapping[str, CircuitBreaker]] = MappingProxyType({})


class ModelWatch:
    """Remembers the outcomes of calls: whether a model was available last time, and which work exceeded the budget.

    Any reply, even a bad one, shows that a model is available, but a row of bad replies means that it does not work. A
    call without room in the day's budget shows nothing, and the bot stays ready. The circuits know by themselves when
    they let a call through again.
    """

    def __init__(
        self, clock: Clock, breakers: Mapping[str, CircuitBreaker] = _NONE, counters: Counters | None = None
    ) -> None:
        """Take the breakers of the endpoints, by the table of the settings."""
        self.counters, self._clock, self._breakers = counters, clock, breakers
        self._away: dict[str, tuple[str, datetime]] = {}
        self._unpaid: dict[str, tuple[str, date]] = {}
        self._useless: dict[str, set[int]] = {}  # the prompts since the last good reply

    def wrap_model(self, model: Model, *, work: str = "answers", section: str = "llm") -> Model:
        """Return the model, watched and counted; `section` is its table of the settings."""
        return _WatchedModel(model, self, work, section)

    def note_outcome(self, work: str, section: str, error: BaseException | None, asked: str = "") -> None:
        """Note the outcome of a call. Without `asked`, a useless reply does not count."""
        match error:
            case errors.ModelBudgetError():
                self._unpaid[work] = (str(error), self._today())
            case errors.ModelUnavailableError():
                _, since = self._away.get(section, ("", self._clock.now()))
                self._away[section] = (str(error), since)
            case errors.ModelBudgetTooSmallError():  # no model was asked
                pass
            case None | errors.InternError():
                self._away.pop(section, None)
                self._unpaid.pop(work, None)
                if error is None:
                    self._useless.pop(section, None)
                elif asked and len(seen := self._useless.setdefault(section, set())) < _MOST_USELESS:
                    seen.add(hash(asked))  # the same question counts once
            case _:
                pass

    def checks(self) -> tuple[HealthCheck, ...]:
        """Return the checks of the models, and of the embedder where that is an endpoint."""
        now, at = current_time(), self._clock.now()
        held = {
            name: _describe_circuit(name, each, now, at)
            for name, breaker in self._breakers.items()
            if (each := breaker.held)
        }
        vectors = held.pop(_EMBEDDINGS, None)
        checks = [self._check_models(held)]
        if _EMBEDDINGS in self._breakers:
            # Search by words replaces the search by meaning.
            note, detail = vectors or ("", "")
            checks.append(HealthCheck(name=_EMBEDDINGS, ok=True, note=note, detail=detail))
        return tuple(checks)

    def _check_models(self, held: Mapping[str, tuple[str, str]]) -> HealthCheck:
        # A circuit has more and newer facts than the calls that it refused.
        away = [f"{why} (since {since:{_MINUTE}})" for name, (why, since) in self._away.items() if name not in held]
        unpaid = {work: why for work, (why, day) in self._unpaid.items() if day == self._today()}
        broke = f"the daily budget leaves no room for {' and '.join(sorted(unpaid))}; a new day begins at 00:00 UTC"
        row = {name: len(asked) for name, asked in self._useless.items() if len(asked) >= USELESS_FROM}
        useless = [f"none of the last {number} things that {name} said could be used" for name, number in row.items()]
        notes = [note for note, _ in held.values()] + useless + ([broke] if unpaid else [])
        details = [*(detail for _, detail in held.values()), *away, *(f"{each}; the log says why" for each in useless)]
        if unpaid:
            details.append(f"{broke}. The last that was refused: {'; '.join(dict.fromkeys(unpaid.values()))}")
        return HealthCheck(
            name="model", ok=not (held or away or useless), note="; ".join(notes), detail="; ".join(details)
        )

    def _today(self) -> date:
        return self._clock.now().astimezone(UTC).date()


def _describe_circuit(name: str, held: CircuitState, now: float, at: datetime) -> tuple[str, str]:
    """Describe a circuit that is not closed: for anyone, and for the page."""

    def moment(then: float) -> datetime:
        return at + timedelta(seconds=then - now)

    then = f"it is tried next at {moment(held.probed_at):{_SECOND}}"
    tried = then if held.probed_at > now else "the next call tries it"
    note = f"{name} failed too often and is left alone since {moment(held.since):{_SECOND}}; {tried}"
    return note, f"{note}. The last failure: {held.reason}"


def posting_check(stuck: StuckReplies | None, clock: Clock) -> HealthCheck:
    """Check whether replies reach Discord; it fails if some wait and none got through for a minute."""
    if stuck is None or current_time() - stuck.since < STUCK_AFTER:
        return HealthCheck(name="posting", ok=True)
    since = clock.now() - timedelta(seconds=current_time() - stuck.since)
    waiting = "1 reply waits" if stuck.replies == 1 else f"{stuck.replies} replies wait"
    note = f"{waiting} for Discord, which has taken none since {since:{_SECOND}}"
    why = f"The last failure: {stuck.problem}" if stuck.problem else "Discord has not answered yet"
    return HealthCheck(name="posting", ok=False, note=note, detail=f"{note}. {why}")


def connection_checks(advice: str) -> Iterator[HealthCheck]:
    """Return the platform's advice about the connection, if any."""
    if advice:
        yield HealthCheck(name="connection", ok=True, note=advice)


def vector_checks(copy: VectorCopy | None) -> Iterator[HealthCheck]:
    """Return the checks of the vector engine, if there is one. Without it, local vectors are used."""
    if copy is not None:
        since = copy.away_since
        note = f"the vector engine fails since {since:{_SECOND}}; search compares local vectors" if since else ""
        yield HealthCheck(name="vectors", ok=True, note=note, detail=f"{note}. {copy.trouble}" if note else "")


class CalibrationWatch:
    """Remembers whether the calibration held at the last check."""

    def __init__(self, db: Database, settings: Settings) -> None:
        self._db, self._settings, self._problem = db, settings, ""

    async def check(self) -> None:
        """Check again. Raises KnowledgeError."""
        self._problem = (await check_calibration(self._db, self._settings)).problem

    def checks(self) -> Iterator[HealthCheck]:
        """Return the problem of the calibration; nothing while all is well, or nothing is calibrated."""
        if self._problem:
            yield HealthCheck(name="calibration", ok=True, note=self._problem, detail=self._problem)


@dataclass(frozen=True)
class _WatchedModel:
    model: Model
    watch: ModelWatch
    work: str
    section: str

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        began, error = current_time(), None
        try:
            return await self.model.ask(prompt, given, images=images)
        except BaseException as failure:
            error = failure
            raise
        finally:
            if self.watch.counters is not None:
                self.watch.counters.count_call(prompt.name, classify_outcome(error), current_time() - began)
            # A model that cannot read a picture may well read the words beside it.
            useless = isinstance(error, errors.ModelReplyError | errors.ModelRefusedError) and not images
            self.watch.note_outcome(self.work, self.section, error, f"{prompt.name} {given!r}" if useless else "")


@dataclass
class HealthMonitor:
    """Collects the health of each part."""

    db: Database
    lock: FolderLock | None
    """None where this process does not hold the folder."""
    _: KW_ONLY
    clock: Clock
    is_open: Callable[[], bool] | None
    """Whether a session with Discord is open; None where there is no Discord."""
    elsewhere: Callable[[], Sequence[HealthCheck]]
    """Return the checks of other parts."""
    within: float = _LOOKED_WITHIN
    """A check that takes more seconds counts as failed."""

    def __post_init__(self) -> None:
        self._writing = Lock()
        self._written: tuple[float, HealthCheck] | None = None
        # A hanging disk blocks one thread however often it is checked, and no other work waits for that thread.
        self._looking = Lock()
        self._one_thread = CapacityLimiter(1)
        self._hangs = False
        self._looked: dict[str, HealthCheck] = {}
        self._looked_at: float | None = None

    async def health(self) -> Health:
        """Return the health of all parts. Never waits longer than a probe does, and raises nothing."""
        async with open_task_group() as tg:
            tg.start_soon(self._run_check, "database", self._check_disk)
            if self.lock is not None:
                tg.start_soon(self._run_check, "folder", partial(self._check_lock_file, self.lock))
        self._looked_at = current_time()
        return self.latest_health()

    def latest_health(self) -> Health:
        """Return the health of all parts, with the disk as of the last check. Does not wait."""
        disk = (self._looked[name] for name in ("database", "folder") if name in self._looked)
        looked = None if self._looked_at is None else current_time() - self._looked_at
        return Health(checks=(*self._check_connection(), *disk, *self.elsewhere()), looked_seconds_ago=looked)

    def _check_connection(self) -> Iterator[HealthCheck]:
        if self.is_open is not None:
            is_open = self.is_open()
            away = "no session with Discord is open: see what the log says of discord_connection_lost"
            yield HealthCheck(name="discord", ok=is_open, detail="" if is_open else away)

    async def _run_check(self, name: str, look: Callable[[], Awaitable[HealthCheck]]) -> None:
        found = self._timeout_result(name)
        with move_on_after(self.within):
            found = await look()
        self._looked[name] = found

    def _timeout_result(self, name: str) -> HealthCheck:
        note = f"it could not be looked at within {self.within:g} seconds"
        return HealthCheck(name=name, ok=False, note=note, detail=f"{note}; see how busy the disk is")

    async def _check_lock_file(self, lock: FolderLock) -> HealthCheck:
        async with self._looking:
            if self._hangs:
                return self._timeout_result("folder")
            stands = await run_sync(self._is_lock_in_place, lock, abandon_on_cancel=True, limiter=self._one_thread)
        taken = "its lock file is gone or another: was the folder moved away under the running bot?"
        return HealthCheck(name="folder", ok=stands, detail="" if stands else taken)

    def _is_lock_in_place(self, lock: FolderLock) -> bool:
        """Run on a worker thread, which may outlive the caller."""
        self._hangs = True
        try:
            return lock.is_valid
        finally:
            self._hangs = False

    async def _check_disk(self) -> HealthCheck:
        async with self._writing:
            if self._written is None or current_time() - self._written[0] >= _CHECKED_EVERY:
                # If this takes too long, the next probe need not wait as long again.
                self._written = (current_time(), self._timeout_result("database"))
                self._written = (current_time(), await self._write_heartbeat())
            return self._written[1]

    async def _write_heartbeat(self) -> HealthCheck:
        try:
            await write_heartbeat(self.db, self.clock.now())
        except errors.InternError as error:
            return HealthCheck(name="database", ok=False, detail=str(error))
        return HealthCheck(name="database", ok=True)


class HealthCheck(Struct, frozen=True, kw_only=True):
    """The health of one part."""

    name: str
    ok: bool
    note: str = ""
    """The public text, also where all is well: it names no path and no address."""
    detail: str = ""
    """The problem and the remedy; for people with access."""


class Health(Struct, frozen=True, kw_only=True):
    """The health of the process. It is live if it can answer at all."""

    checks: tuple[HealthCheck, ...]
    looked_seconds_ago: float | None
    """Since the last check of the disk and the folder; None if there was none: then their checks are left out."""

    @property
    def ready(self) -> bool | None:
        """Whether it can work; waiting work continues by itself. None before the first check if none fails."""
        if not all(check.ok for check in self.checks):
            return False
        return None if self.looked_seconds_ago is None else True

    @property
    def notes(self) -> dict[str, str]:
        """The public texts, by the name of the check."""
        return {check.name: check.note for check in self.checks if check.note}
