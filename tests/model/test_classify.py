"""How many of 40 labelled pairs of real chat the model that `INTERN_TEST_GGUF` names keeps or skips as people would."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from intern.core.captures import CapturedPair, Turn
from intern.core.clock import SystemClock
from intern.core.errors import ModelError
from intern.core.flow import SkipChoice
from intern.core.ids import MessageId, SourceId
from intern.core.knowledge import IndexEntry
from intern.learning.classifying import choose_topic
from intern.learning.prompts import LearningOptions
from intern.models.prompt import Model
from intern.service.models import open_models
from tests.eval.chats import EVAL, Exchange, chat_lines, exchanges
from tests.model.serving import serving
from tests.worlds import samples
from tests.worlds.settings import make_settings

pytestmark = [pytest.mark.anyio, pytest.mark.model, pytest.mark.timeout(3600)]

LABELS = Path(__file__).with_name("labels.txt")
"""`keep` or `skip` and the conversation's id, a line each. The prompt's examples were written with an eye on the first
half; the second half was only counted."""
LEAST = 32

_TOPICS = {
    "package-installation": "Installing, removing and finding packages and programs.",
    "network-connections": "Wireless and wired connections, drivers and addresses.",
    "failed-payments": "Payments that were declined or failed, and how to retry them.",
    "disk-partitions": "Mounting, resizing and checking disks and partitions.",
}
INDEX = {id_: IndexEntry(id_, text) for name, text in _TOPICS.items() if (id_ := SourceId(f"team:{name}.txt"))}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_most_labelled_pairs_are_kept_or_skipped_as_people_would(
    better_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not EVAL.is_dir():
        pytest.skip(f"there are no real chats in {EVAL}")
    labels = [line.split() for line in LABELS.read_text(encoding="utf-8").splitlines()]
    held = {each.conversation_id: each for each in exchanges()}
    with serving(better_model, template=None, log=tmp_path / "log.txt", threads=os.cpu_count() or 1) as base_url:
        llm = {"base_url": base_url, "model": better_model.stem, "max_tokens": 600, "timeout_seconds": 300}
        settings = make_settings(tmp_path, llm=llm)
        async with open_models(settings, None, SystemClock()) as models:
            said = [await verdict(models.learning, held[name]) for _, name in labels]
    right = [verdict == label for verdict, (label, _) in zip(said, labels, strict=True)]
    half = len(labels) // 2
    with capsys.disabled():
        print(f"\n\n{better_model.name}: {sum(right)} of {len(labels)} pairs as labelled")
        print(f"  the first half {sum(right[:half])}, the second {sum(right[half:])} of {half}")
        for one, other in (("keep", "skip"), ("skip", "keep")):
            wrong = [name for v, (label, name) in zip(said, labels, strict=True) if label == one and v == other]
            print(f"  {one} taken for {other}: {', '.join(wrong) or 'none'}")
    assert sum(right) >= LEAST


async def verdict(model: Model, exchange: Exchange) -> str:
    """`keep`, `skip`, or the error of a reply that says neither."""
    try:
        choice = await choose_topic(model, pair_of(exchange), INDEX, LearningOptions())
    except ModelError as error:
        return str(error)
    return "skip" if isinstance(choice, SkipChoice) else "keep"


def pair_of(exchange: Exchange) -> CapturedPair:
    """The exchange as it would be captured."""
    lines = [chat_lines()[each] for each in exchange.ids]
    turns = tuple(Turn("Team" if line.author in exchange.team else "User", line.text) for line in lines)
    start = samples.pair()
    ids = tuple(MessageId(str(n)) for n in range(len(turns)))
    return CapturedPair(
        conversation_id=start.conversation_id,
        turns=turns,
        message_ids=ids,
        answered_at=start.answered_at,
        qa_id=start.qa_id,
        timestamp=start.timestamp,
    )
