"""The whole bot at work in a folder: real verbs, a Discord in memory, rules as a model; and a witness for waiting."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from anyio import Event, fail_after

from intern.actors.activity import ActivityReporter
from intern.core.captures import CapturedPair
from intern.core.decisions import Decision
from intern.core.flow import AnswerRequest, Batch, FilingDecision, Reply
from intern.core.messages import AnswerResult
from intern.runtime.bot import open_sandbox
from intern.settings.settings import Settings
from intern.sources.refresh import RefreshReport
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock
from tests.worlds.settings import make_settings

T = TypeVar("T")


class Watching(ActivityReporter):
    """Records events, and lets a test wait for them."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[object] = []
        self._changed = Event()

    def all_of(self, kind: type[T]) -> list[T]:
        return [each for each in self.told if isinstance(each, kind)]

    async def one_of(self, kind: type[T], *, after: int = 0, where: Callable[[T], bool] = lambda _: True) -> T:
        """Return the first `wanted` event of its kind, except `after` of them."""
        while not (found := [each for each in self.all_of(kind)[after:] if where(each)]):
            await self._changed.wait()
        return found[0]

    def _tell(self, what: object) -> None:
        self.told.append(what)
        self._changed.set()
        self._changed = Event()

    def report_ignored_batch(self, batch: Batch) -> None:
        super().report_ignored_batch(batch)
        self._tell(batch)

    def report_answer(self, request: AnswerRequest, result: AnswerResult) -> None:
        super().report_answer(request, result)
        self._tell(result)

    def report_post(self, reply: Reply, outcome: str) -> None:
        super().report_post(reply, outcome)
        self._tell(reply)

    def report_capture(self, pair: CapturedPair) -> None:
        super().report_capture(pair)
        self._tell(pair)

    def report_classification(self, filing: FilingDecision) -> None:
        super().report_classification(filing)
        self._tell(filing)

    def report_decision(self, decision: Decision) -> None:
        super().report_decision(decision)
        self._tell(decision)

    def report_index_refresh(self, refreshed: RefreshReport) -> None:
        super().report_index_refresh(refreshed)
        self._tell(refreshed)


def settings_in(
    folder: Path,
    *,
    llm: dict[str, Any] | None = None,
    kb: dict[str, Any] | None = None,
    ai: dict[str, Any] | None = None,
    **discord: Any,
) -> Settings:
    sources = folder / "knowledge-base" / "sources"
    sources.mkdir(parents=True, exist_ok=True)
    (sources / "ports.md").write_text("# Ports\n\nThe relay listens on port 7480. Set `listen` to change it.\n")
    return make_settings(
        folder,
        llm=llm or {"provider": "offline"},
        discord={"message_batch_wait_seconds": 0, **discord},
        kb={"settle_seconds": 0, **(kb or {})},
        ai=ai or {},
    )


@asynccontextmanager
async def at_work(folder: Path, sandbox: Sandbox, events: Watching, **discord: Any) -> AsyncGenerator[None]:
    """Run the bot, once it has indexed its sources."""
    with fail_after(20):
        async with open_sandbox(settings_in(folder, **discord), sandbox, events=events, clock=HandClock()):
            await events.one_of(RefreshReport)
            yield
