"""`python -m tests.soak`: soak for SOAK_MINUTES (10), print the figures, and fail if there is any fault.

SOAK_SEED plays the same people and faults again; SOAK_RATE is in messages a second; SOAK_KILLS=0 leaves the process
alive, so that it can be judged whether memory, files, threads and tasks grow: for that, SOAK_MINUTES is 100 by itself,
and all rest for some seconds in each of them.
SOAK_FOLDER keeps everything there. SOAK_DATABASE=postgres soaks on PostgreSQL, which is away for 15 s five times.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import anyio
from anyio import create_task_group, open_signal_receiver

from tests.soak.soaking import Outcome, Plan, soak

_SHOWN = 40


def main() -> int:
    plan = plan_of(os.environ)
    chosen = os.environ.get("SOAK_FOLDER")
    folder = Path(chosen) if chosen else Path(tempfile.mkdtemp(prefix="intern-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"soaking for {plan.seconds / 60:g} min in {folder}, seed {plan.seed}", flush=True)
    outcome = anyio.run(_unless_told_to_leave, plan, folder)
    return 128 + signal.SIGTERM if outcome is None else _told(outcome)


def plan_of(environ: Mapping[str, str]) -> Plan:
    """Return the plan that the variables ask for."""
    kills = environ.get("SOAK_KILLS") != "0"
    return Plan(
        seconds=float(environ.get("SOAK_MINUTES") or ("10" if kills else "100")) * 60,
        seed=environ.get("SOAK_SEED") or secrets.token_hex(4),
        rate=float(environ.get("SOAK_RATE", "20")),
        kill_every=40.0 if kills else 0.0,
        trouble_every=0.0 if environ.get("SOAK_FAULTS") == "0" else 4.0,
        database=environ.get("SOAK_DATABASE") or "sqlite",
        log_level=environ.get("SOAK_LOG", "info"),
        embeddings=environ.get("SOAK_EMBEDDINGS", "none"),
    )


async def _unless_told_to_leave(plan: Plan, folder: Path) -> Outcome | None:
    """Return the outcome, or None if SIGTERM came first; the soaking process does not outlive us."""
    outcome: Outcome | None = None
    async with create_task_group() as tg:

        async def leave() -> None:
            with open_signal_receiver(signal.SIGTERM) as signals:
                async for _ in signals:
                    tg.cancel_scope.cancel()

        tg.start_soon(leave)
        outcome = await soak(plan, folder, _tell)
        tg.cancel_scope.cancel()
    return outcome


def _tell(line: str) -> None:
    print(line, flush=True)


def _told(outcome: Outcome) -> int:
    for name, value in outcome.figures.items():
        print(f"{name:18} {value}")
    for each in outcome.amiss[:_SHOWN]:
        print("AMISS:", each)
    print(f"{len(outcome.amiss)} things are amiss" if outcome.amiss else "nothing is amiss")
    if outcome.not_judged:
        print("NOT JUDGED:", outcome.not_judged)
    return 1 if outcome.amiss else 0


if __name__ == "__main__":
    sys.exit(main())
