"""A burst of twenty thousand questions on a bot whose model is stalled, each process on its own, on real sockets."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.socket_to_batch import BEAT, TEAM_REPLIES, flooded

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


def test_in_a_flood_without_limits_the_heart_beats_memory_stays_the_team_is_heard_and_what_was_shed_is_told() -> None:
    assert TEAM_REPLIES > 0
    flood = asyncio.run(flooded(hourly=0))
    assert (flood.untaught, flood.reconnects) == (0, 0), flood
    assert flood.pause < 1.5 * BEAT, flood
    assert flood.growth < 20, flood
    assert flood.shed > 0, flood
