"""Whatever changes, a question is never answered by what was true or wanted before."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from anyio import fail_after

from intern.answering.answer_cache import RepeatingModel, request_key
from intern.answering.prompts import CONFIRM, DECIDE, Claim, Confirmation, DecideIn, Decision, Quote
from intern.answering.retrieving import Alias
from intern.core.ids import MessageId, UserId
from intern.core.messages import Conversation, Image, Message, RequestContext
from intern.learning.prompts import CLASSIFY, INTEGRATE, ClassifyIn, ClassifyOut, IntegrateIn, IntegrateOut
from intern.models.prompt import InT, OutT, Prompt
from intern.service.intern import Intern, open_intern
from intern.service.models import Models, templates_of
from intern.settings.loading import Paths, load_settings
from intern.sources.descriptions import SummarizeOut
from intern.stores.sqlite.database import Database
from intern.stores.sqlite.replies import FeedbackStore, ReplyStore
from tests import samples
from tests.fakes import HandClock

pytestmark = [pytest.mark.anyio]

SUBJECTS = ("anchor", "beacon", "cable", "dynamo", "engine", "ferry")
_VALUE = re.compile(r"The (\w+) takes (\d+) volts\.")
_ID = re.compile(r"qa_[0-9_.]+")
SECONDS_A_CHANGE = 1.0


class Oracle:
    """Answers with the newest value that a passage gives, and with how it was told to answer and when."""

    def __init__(self, style: str = "") -> None:
        self.style = style
        self.calls = 0

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        del images
        self.calls += 1
        reply: Any = SummarizeOut(description="What takes how many volts.")
        if prompt is cast("Any", DECIDE):
            reply = self._decided(cast("DecideIn", given))
        elif prompt is cast("Any", CLASSIFY):
            reply = ClassifyOut(skip=False, topic_name=_subject(cast("ClassifyIn", given).pair))
        elif prompt is cast("Any", INTEGRATE):
            reply = IntegrateOut(skip=False, remove_ids=tuple(_ID.findall(cast("IntegrateIn", given).blocks)))
        elif prompt is cast("Any", CONFIRM):
            claims = (Claim(claim="volts", quote=1),)
            reply = Confirmation(asked="volts", told="volts", verdict="answered", claims=claims)
        return cast("OutT", reply)

    def _decided(self, given: DecideIn) -> Decision:
        values: list[tuple[int, Alias, str]] = [
            (int(found[2]), passage.alias, found[0])
            for passage in given.passages
            for found in _VALUE.finditer(passage.text)
            if found[1] in given.question
        ]
        if not values:
            return Decision(quotes=(), kind="not_covered", answer=None)
        value, alias, line = max(values)
        answer = f"It takes {value} volts{self.style}, told at call {self.calls}."
        return Decision(quotes=(Quote(source=alias, line=line),), kind="answer", answer=answer, citations=(alias,))


def _subject(text: str) -> str:
    found = _VALUE.search(text)
    assert found
    return found[1]


class World:
    """A data folder whose documents and team answers say how many volts something takes."""

    def __init__(self, paths: Paths, db: Database, interns: Sequence[Intern], oracles: Sequence[Oracle]) -> None:
        self.sources = paths.sources
        self.interns = interns
        self.oracles = oracles
        self.votes = FeedbackStore(db, clock=HandClock())
        self.replies = ReplyStore(db, clock=HandClock())
        self.values: dict[str, int] = {}
        self.told: dict[MessageId, str] = {}
        """Which answer each question got."""
        self.spoken_against: set[str] = set()

    async def change(self, random: Random, n: int) -> None:
        """Do something that makes answers another, or says that they should be."""
        subject, older = random.choice(SUBJECTS), MessageId(str(1_000 + n - random.randint(1, 12)))
        match random.randrange(8):
            case 0:
                (self.sources / f"{subject}.md").write_text(f"# The {subject}\n\nThe {subject} takes {n} volts.\n")
                self.values[subject] = n
                await self.interns[0].index()
            case 1:
                answer = f"The {subject} takes {n} volts."
                made = samples.capture(f"How many volts for the {subject}?", answer, n=n)
                assert await self.interns[0].capture(made)
                self.values[subject] = n
                await self.interns[0].index()
            case 2:
                await self.votes.vote(older, UserId("5"), up=False)
                self._speak_against(older)
            case 3:
                await self.replies.drop([older])
                self._speak_against(older)
            case 4 if not random.randrange(4):
                await self.replies.forget([older])
                self.spoken_against.update(self.told.values())
            case _:
                pass

    def _speak_against(self, message_id: MessageId) -> None:
        if message_id in self.told:
            self.spoken_against.add(self.told[message_id])

    async def ask(self, random: Random, n: int) -> bool:
        """Ask of something, hold the answer against what is true now, and say whether it was repeated."""
        at = random.randrange(len(self.interns))
        subject, message_id = random.choice(SUBJECTS), MessageId(str(1_000 + n))
        asked = Message(role="user", text=f"How many volts does the {subject} take?")
        before = self.oracles[at].calls
        context = RequestContext(message_id=message_id)
        result = await self.interns[at].answer(Conversation((asked,)), context)
        if subject not in self.values:
            assert result.reply_text is None
            return False
        told = result.reply_text or ""
        assert told.startswith(f"It takes {self.values[subject]} volts{self.oracles[at].style}, told at call ")
        assert told not in self.spoken_against
        self.told[message_id] = told
        return self.oracles[at].calls == before


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(300),
        pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(3_600)]),
    ],
)
async def test_no_answer_is_stale_after_any_change(tmp_path: Path, changes: int) -> None:
    seed = os.environ.get("INTERN_TEST_SEED", "1")
    print(f"INTERN_TEST_SEED={seed}")
    random = Random(seed)
    settings = [
        load_settings(
            environ={},
            overrides={
                "data": {"dir": str(tmp_path)},
                "llm": {"base_url": "https://models.example/v1", "model": "m"},
                "extraction": {"auto": False},
                "embeddings": {"provider": "none"},
                "ai": {"project_introduction": style},
            },
        )
        for style in ("", " by its plate")
    ]
    settings[0].paths.sources.mkdir(parents=True)
    with fail_after(30 + changes * SECONDS_A_CHANGE):
        async with await Database.open(settings[0].paths.database) as db:
            oracles = [Oracle(each.ai.project_introduction) for each in settings]
            models = [
                RepeatingModel(oracle, ReplyStore(db, clock=HandClock()), request_key(each.llm, templates_of(each)))
                for oracle, each in zip(oracles, settings, strict=True)
            ]
            async with AsyncExitStack() as stack:
                interns = [
                    await stack.enter_async_context(open_intern(each, models=Models(model, model)))
                    for each, model in zip(settings, models, strict=True)
                ]
                world = World(settings[0].paths, db, interns, oracles)
                repeated = 0
                for n in range(changes):
                    await world.change(random, n)
                    repeated += await world.ask(random, n)
    assert repeated > changes // 10
