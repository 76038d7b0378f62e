"""`python -m tests.hosting`: three processes for HOSTING_MINUTES (30), the figures, and a failure where any is amiss.

HOSTING_SEED plays the same people and trouble again; HOSTING_RATE is in messages a second; HOSTING_COMMUNITIES,
HOSTING_TROUBLE (seconds between two faults). HOSTING_FOLDER keeps everything there.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import anyio

from tests.hosting.soaking import Outcome, Plan, soak

_SHOWN = 60


def main() -> int:
    plan = plan_of(os.environ)
    chosen = os.environ.get("HOSTING_FOLDER")
    folder = Path(chosen) if chosen else Path(tempfile.mkdtemp(prefix="intern-hosting-"))
    folder.mkdir(parents=True, exist_ok=True)
    tell = partial(print, flush=True)
    tell(f"soaking for {plan.seconds / 60:g} min in {folder}, seed {plan.seed}")
    return _told(anyio.run(soak, plan, folder, tell))


def plan_of(environ: Mapping[str, str]) -> Plan:
    """What was asked for."""
    return Plan(
        seconds=float(environ.get("HOSTING_MINUTES", "30")) * 60,
        seed=environ.get("HOSTING_SEED") or secrets.token_hex(4),
        rate=float(environ.get("HOSTING_RATE", "20")),
        communities=int(environ.get("HOSTING_COMMUNITIES", "200")),
        trouble_every=float(environ.get("HOSTING_TROUBLE", "60")),
    )


def _told(outcome: Outcome) -> int:
    for name, value in outcome.figures.items():
        print(f"{name:18} {value}")
    for each in outcome.amiss[:_SHOWN]:
        print("AMISS:", each)
    for each in outcome.too_late[:_SHOWN]:
        print("TOO LATE:", each)
    print(f"{len(outcome.amiss)} things are amiss" if outcome.amiss else "nothing is amiss")
    return 1 if outcome.amiss or outcome.too_late else 0


if __name__ == "__main__":
    sys.exit(main())
