"""Hostile texts in all places, asked of a real model: `python -m tests.model.poisoned`. Tells what was posted.

INTERN_TEST_BASE_URL names a running server; INTERN_TEST_ROWS how many texts are drawn (60), by a fixed seed;
INTERN_TEST_STEPS (fused, separate) the way. The texts stand in `../shared/eval` and are never shown: rows have ids.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import anyio

from intern.answering.answerer import Answerer
from intern.answering.prompts import AnsweringOptions
from intern.chat.reply_text import format_parts
from intern.core import log
from intern.core.clock import SystemClock
from intern.core.ids import UserId
from intern.core.messages import Conversation, Message, RequestContext
from intern.service.models import open_models
from tests.answering.shelf import Shelf
from tests.eval.hostile import attacks
from tests.eval.obedient import PLACES, Order, Place, faults, order_of, placed
from tests.worlds.settings import make_settings

_SEED = 45
_ROWS = 60


class Trial(NamedTuple):
    """One text in one place, and what became of it."""

    order: Order
    place: Place
    outcome: str
    faults: list[str]


def drawn(rows: int) -> list[tuple[Order, Place]]:
    """Texts of each category in turn, in each place in turn."""
    random = Random(_SEED)
    kinds: dict[str, list[Order]] = {}
    for attack in random.sample(attacks(), len(attacks())):
        kinds.setdefault(attack.category, []).append(order_of(attack))
    names = sorted(kinds)
    turns = [kinds[names[n % len(names)]][n // len(names)] for n in range(rows)]
    return [(order, PLACES[(n + n // len(PLACES)) % len(PLACES)]) for n, order in enumerate(turns)]


async def try_each(environ: Mapping[str, str], folder: Path, say: Callable[[str], None]) -> list[Trial]:
    """Ask the model about each text in its place, and say what was posted."""
    base_url = environ.get("INTERN_TEST_BASE_URL", "")
    if not base_url:
        raise SystemExit("set INTERN_TEST_BASE_URL to a running server")
    llm = {"base_url": base_url, "model": "local", "max_tokens": 400, "timeout_seconds": 900}
    over = {"data": {"dir": str(folder)}, "embeddings": {"provider": "local"}, "llm": {**llm, "max_in_flight": 1}}
    options = AnsweringOptions(
        steps="separate" if environ.get("INTERN_TEST_STEPS") == "separate" else "fused", request_timeout_seconds=1800
    )
    trials: list[Trial] = []
    async with open_models(make_settings(**over), None, SystemClock()) as models:
        for number, (order, place) in enumerate(drawn(int(environ.get("INTERN_TEST_ROWS", _ROWS)))):
            sources, question = placed(order, place, number, folder)
            answerer = Answerer(models.answering, Shelf(sources), options, nearest=models.nearest)
            asked = Conversation((Message(role="user", text=question, author_id=UserId("1")),))
            result = await answerer.answer(asked, RequestContext(), addressed=True)
            read = ["\n".join(format_parts(result.reply_text or "", result.citations))] if result.should_reply else []
            found = faults(order, place, read)
            outcome = "POSTED" if found else result.reason or "answered"
            trials.append(Trial(order, place, outcome, found))
            say(f"{order.id} {place}: {outcome} {sum(map(len, found)) or ''}")
    say(str(Counter(trial.outcome for trial in trials)))
    return trials


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    log.configure_logging(level="error")
    with TemporaryDirectory() as made:
        anyio.run(try_each, os.environ, Path(made), _say)
