"""Whether the process can do its work, checked from inside: for `/healthz`, `/readyz` and the status page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from anyio import Lock, current_time, move_on_after
from anyio.to_thread import run_sync

from intern.domain import Image
from intern.errors import InternError, ModelUnavailableError
from intern.knowledge.database import Database
from intern.knowledge.lock import FolderLock
from intern.llm.prompt import InT, Model, OutT, Prompt
from intern.observe.clock import Clock
from intern.page.views import Check, Health

_CHECKED_EVERY = 5.0  # seconds; whoever asks more often gets the last word on the disk
_WRITTEN_WITHIN = 3.0  # seconds; probes give up after five or ten


class ModelWatch:
    """Remembers whether a model was there when it was asked last; any reply, even a bad one, says that it is."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._away: tuple[str, datetime] | None = None

    @property
    def problem(self) -> str:
        """Why it could not be had, and since when; empty where it was there, or nobody asked yet."""
        if self._away is None:
            return ""
        reason, since = self._away
        return f"{reason} (since {since:%Y-%m-%d %H:%M} UTC)"

    def over(self, model: Model) -> Model:
        """The model, watched."""
        return _Watched(model, self)

    def there(self) -> None:
        """It answered."""
        self._away = None

    def away(self, error: ModelUnavailableError) -> None:
        """It did not."""
        self._away = (str(error), self._away[1] if self._away else self._clock.now())


class _Watched:
    def __init__(self, model: Model, watch: ModelWatch) -> None:
        self._model = model
        self._watch = watch

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        try:
            reply = await self._model.ask(prompt, given, images=images)
        except ModelUnavailableError as error:
            self._watch.away(error)
            raise
        except InternError:
            self._watch.there()
            raise
        self._watch.there()
        return reply


class HealthChecks:
    """Asks each part how it is. `model` says what keeps it from working; empty where nothing does."""

    def __init__(
        self,
        db: Database,
        lock: FolderLock,
        *,
        clock: Clock,
        is_open: Callable[[], bool],
        model: Callable[[], str],
    ) -> None:
        self._db = db
        self._lock = lock
        self._clock = clock
        self._is_open = is_open
        self._model = model
        self._writing = Lock()
        self._written: tuple[float, str] | None = None

    async def health(self) -> Health:
        """How all of it is; never waits longer than a probe does, and raises nothing."""
        is_open, model = self._is_open(), self._model()
        disk, stands = await self._disk(), await run_sync(lambda: self._lock.stands)
        away = "no session with Discord is open: see what the log says of discord_connection_lost"
        taken = "its lock file is gone or another: was the folder moved away under the running bot?"
        return Health(
            checks=(
                Check(name="discord", ok=is_open, detail="" if is_open else away),
                Check(name="database", ok=not disk, detail=disk),
                Check(name="folder", ok=stands, detail="" if stands else taken),
                Check(name="model", ok=not model, detail=model),
            )
        )

    async def _disk(self) -> str:
        """What is wrong with writing; empty where nothing is."""
        async with self._writing:
            if self._written is None or current_time() - self._written[0] >= _CHECKED_EVERY:
                self._written = (current_time(), await self._try_to_write())
            return self._written[1]

    async def _try_to_write(self) -> str:
        at = self._clock.now().isoformat()
        statement = "insert into heartbeat (one, at) values (1, ?) on conflict (one) do update set at = excluded.at"
        with move_on_after(_WRITTEN_WITHIN):
            try:
                await self._db.write(lambda db: db.run(statement, (at,)))
            except InternError as error:
                return str(error)
            return ""
        return f"the database has not taken a line within {_WRITTEN_WITHIN:.0f} seconds; see how busy the disk is"
