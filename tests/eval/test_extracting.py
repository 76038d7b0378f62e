"""Extraction of real exchanges gives nobody away, be it by a model that names everybody everywhere."""

from __future__ import annotations

import pytest

from intern.facts.prompts import EXTRACT, ExtractIn, ExtractOut, FactOut, NuggetOut
from intern.facts.segments import Segment
from intern.models.prompt import OfflineModel
from intern.service.models import collect_offline_rules
from tests.eval.chats import EVAL
from tests.eval.extracting import Measured, measured_with, met_in, segments
from tests.worlds.model import ScriptedModel

pytestmark = [
    pytest.mark.on_asyncio,
    pytest.mark.anyio,
    pytest.mark.rest,
    pytest.mark.skipif(not EVAL.is_dir(), reason="the real chats are not part of the project"),
]


async def test_the_rules_learn_from_real_exchanges_and_give_nobody_away() -> None:
    found = await measured_with(OfflineModel(collect_offline_rules()), await segments())
    assert (found.valid, found.leaks, found.invalid_ids, found.dropped_ids) == (found.conversations, (), 0, 0)
    assert found.nuggets > found.conversations / 2


async def test_a_model_that_puts_every_name_mention_and_id_into_every_field_gives_nobody_away() -> None:
    for segment in (await segments())[::8]:
        told = [
            *sorted(met_in(segment)),
            *segment.author_ids[:9],
            *segment.message_ids[:9],
        ]
        told += [f"<@{each}>" for each in segment.author_ids[:9]] + [f"@{each}" for each in sorted(met_in(segment))]
        found = await _asked_of_a_hostile_model(segment, " ".join((*told, "and the relay restarts")))
        assert (found.leaks, found.invalid_ids, found.nuggets, found.facts) == ((), 0, 1, 1)
        assert found.dropped_ids > 0


async def _asked_of_a_hostile_model(segment: Segment, told: str) -> Measured:
    ids = ("m1", told[:400], "999999999999999999", *segment.message_ids)

    def hostile(given: ExtractIn) -> ExtractOut:
        del given
        return ExtractOut(
            nuggets=(
                NuggetOut(
                    topic=told,
                    topic_summary=told,
                    detailed_analysis=told,
                    status="FACT",
                    keywords=(told, *told.split()[:20]),
                    source_message_ids=ids,
                ),
            ),
            facts=(
                FactOut(
                    category="person",
                    content=told,
                    summary=told,
                    visibility="shared",
                    confidence=1.0,
                    sentiment="neutral",
                    duplicate_of=told,
                    supersedes=told,
                    note=told,
                    source_message_ids=ids,
                ),
            ),
        )

    model = ScriptedModel()
    model.always(EXTRACT, hostile)
    return await measured_with(model, [segment])
