"""A run of the whole bot on either backend that can be repeated, and stopped before any step of any of its tasks.

Trio's clock jumps as in `machine`; so does that of the loop here. Work for threads is done in the loop, a moment later.
So the same steps come in the same order each time, up to the one that is chosen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from selectors import DefaultSelector, SelectorKey
from typing import Any, Literal, TypeVar

import anyio
import pytest
import sniffio
import trio
from anyio._backends import _asyncio

from tests.simulation.machine import SimulatedTime, Writer, run_seed

T = TypeVar("T")
Backend = Literal["asyncio", "trio"]

_A_MOMENT = 0.001  # seconds that work in a thread takes


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks while it is `counting`, and acts once, before the one that is chosen."""

    def __init__(self, backend: Backend, chosen: int | None = None) -> None:
        self.act: Callable[[], object] = lambda: None
        self.counting = False
        self.count = 0
        self.acted = False
        self.error: Exception | None = None
        self._backend, self._chosen = backend, chosen

    def before_task_step(self, task: object) -> None:
        if not self.counting:
            return
        if self.count == self._chosen:
            self.acted = True
            copy_context().run(self._act_here)
        self.count += 1

    def _act_here(self) -> None:
        sniffio.current_async_library_cvar.set(self._backend)
        try:
            self.act()
        except Exception as error:  # noqa: BLE001 - loops log what a hook raises, and go on
            self.error = error


class _Jumping(DefaultSelector):
    """Does not wait: the time has come at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if timeout is None:
            found = super().select(10)
            assert found, "everybody waits for ever"
            return found
        if not (found := super().select(0)):
            self.now += timeout
        return found


class SteppingLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop with a clock that jumps. It calls `steps` before each step of a task."""

    def __init__(self, steps: Steps) -> None:
        self._jumping = _Jumping()
        self.steps = steps
        self.wakes = 0
        self.writer = Writer(lambda: self.wakes, lambda: vars(self)["_ssock"])
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    current_time = time

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        return super().call_soon(self._call, callback, args, context=context)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        handle = super().call_soon_threadsafe(self._wake, callback, args, context=context)
        self.wakes += 1  # by one writer thread at a time, while the loop waits for it
        return handle

    def _wake(self, callback: Callable[..., object], args: Sequence[Any]) -> None:
        self.wakes -= 1
        self._call(callback, args)

    def _call(self, callback: Callable[..., object], args: Sequence[Any]) -> None:
        if isinstance(getattr(callback, "__self__", None), asyncio.Task):
            self.steps.before_task_step(callback)
        callback(*args)
        self.writer.wait()


async def _in_loop(func: Callable[..., T], args: Sequence[Any], *, abandon_on_cancel: bool, limiter: Any) -> T:
    """Replace anyio's `run_sync_in_worker_thread`, with the same points of cancellation."""
    backend = _asyncio.AsyncIOBackend
    await backend.checkpoint()
    async with limiter or backend.current_default_thread_limiter():
        with anyio.CancelScope(shield=not abandon_on_cancel):
            await asyncio.sleep(_A_MOMENT)
        return copy_context().run(func, *args)


def run_stepping(backend: Backend, main: Callable[[SimulatedTime], Awaitable[T]], steps: Steps, *, seed: int = 1) -> T:
    """Run `main`, always in the same way up to the step that is chosen."""
    if backend == "trio":
        return run_seed(seed, main, steps)
    loop = SteppingLoop(steps)

    async def begin() -> T:
        return await main(SimulatedTime(loop))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("intern.stores.engines.sqlite.database.SimpleQueue", loop.writer.queue)
        patch.setattr(_asyncio.AsyncIOBackend, "run_sync_in_worker_thread", _in_loop)
        return anyio.run(begin, backend="asyncio", backend_options={"loop_factory": lambda: loop})
