from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from intern.core.ids import GuildId, UserId
from intern.platforms.discord.channel_visibility import read_own_roles, read_session_start
from intern.platforms.discord.permissions import CONNECT, READ, VIEW_CHANNEL
from intern.platforms.discord.sessions import SessionStarts
from tests.examples import examples

Json = dict[str, Any]

GUILD, BOT = GuildId("1"), UserId("100")
BOT_ROLE = "5"
DAY = 24 * 3600.0


def raw(channel_id: str, kind: int = 0, *, denied_to: str = "", **over: Any) -> Json:
    overwrites = [{"id": denied_to, "type": 0, "allow": "0", "deny": str(VIEW_CHANNEL)}] if denied_to else []
    fields: Json = {"id": channel_id, "type": kind, "name": channel_id, "permission_overwrites": overwrites}
    return fields | over


def guild(*channels: Json, threads: tuple[Json, ...] = (), **over: Any) -> Json:
    fields: Json = {
        "id": GUILD,
        "roles": [{"id": GUILD, "permissions": str(READ | CONNECT)}, {"id": BOT_ROLE, "permissions": "0"}],
        "members": [{"user": {"id": BOT}, "roles": [BOT_ROLE]}],
        "channels": list(channels),
        "threads": list(threads),
    }
    return fields | over


def seen(payload: Json) -> list[tuple[str, str, str | None]]:
    started = read_session_start(payload, BOT)
    assert started is not None
    assert started.guild_id == GUILD
    assert all(one.channel.guild_id == GUILD for one in started.channels)
    return [(one.channel.id, one.channel.kind, one.last_message_id) for one in started.channels]


def test_a_session_begins_with_channels_forums_and_active_threads() -> None:
    payload = guild(
        raw("10", last_message_id="900"),
        raw("11", 4),  # a category
        raw("12", 15, last_message_id="902"),  # a forum: that is a post, no message
        raw("13", 2, last_message_id=None),  # a voice channel has a chat
        raw("14", 5, last_message_id="904"),
        threads=(
            {"id": "20", "type": 11, "parent_id": "10", "last_message_id": "905"},
            {"id": "21", "type": 11, "parent_id": "12", "last_message_id": "906"},
        ),
    )
    assert seen(payload) == [
        ("10", "channel", "900"),
        ("12", "channel", None),
        ("13", "channel", None),
        ("14", "channel", "904"),
        ("20", "thread", "905"),
        ("21", "post", "906"),
    ]


def test_a_voice_channel_that_one_may_see_but_not_enter_has_a_closed_chat() -> None:
    payload = guild(raw("13", 2), raw("14"), roles=[{"id": GUILD, "permissions": str(READ)}])
    assert [channel_id for channel_id, _, _ in seen(payload)] == ["14"]


def test_the_role_that_discord_made_for_the_bot_is_its_own() -> None:
    roles = [
        {"id": GUILD, "permissions": str(READ)},
        {"id": "8", "permissions": "0", "tags": {"bot_id": BOT}},
        {"id": "9", "permissions": "0", "tags": {"bot_id": "77"}},
        {"id": "10", "permissions": "0", "tags": None},
        "nonsense",
    ]
    assert read_own_roles(guild(roles=roles), BOT) == {"8"}


def test_what_the_bot_cannot_read_is_not_among_them() -> None:
    private = {"id": "22", "type": 12, "parent_id": "10", "last_message_id": None}
    payload = guild(
        raw("10"),
        raw("11", denied_to=GUILD),
        raw("12", denied_to=BOT_ROLE),
        raw("13", denied_to=BOT),
        raw("14", denied_to="6"),
        threads=({"id": "20", "type": 11, "parent_id": "11"}, private),
    )
    assert [channel_id for channel_id, _, _ in seen(payload)] == ["10", "14", "22"]
    started = read_session_start(payload, BOT)
    assert started
    assert [one.channel.private for one in started.channels] == [False, False, True]


def test_a_bot_that_does_not_find_itself_leaves_the_refusing_to_discord() -> None:
    assert [one[0] for one in seen(guild(raw("10", denied_to=GUILD), members=None))] == ["10"]


def test_an_outage_begins_nothing() -> None:
    assert read_session_start({"id": GUILD, "unavailable": True}, BOT) is None


def test_strange_items_cost_themselves_alone() -> None:
    payload = guild(raw("10"), {"id": 11}, threads=({"id": "x"}, {"id": "20", "type": 0}), roles=[{"id": GUILD}, 5])
    payload["members"] = [None, {"user": {"id": BOT}}]
    payload["roles"].append({"id": GUILD, "permissions": str(READ)})
    assert [one[0] for one in seen(payload)] == ["10"]


# Frequency


def begin(starts: SessionStarts, now: float) -> float:
    """Begin the next session as soon as it is allowed."""
    while (pause := starts.pause(now)) > 0:
        now += pause
    starts.add_start(now)
    return now


def test_the_first_session_does_not_wait_and_the_pauses_then_grow() -> None:
    starts, now = SessionStarts(1.0), 5.0
    moments = [now := begin(starts, now) for _ in range(12)]
    gaps = [round(later - earlier, 6) for earlier, later in pairwise(moments)]
    assert moments[0] == 5.0
    assert gaps == [1, 2, 4, 8, 16, 32, 64, 96, 96, 96, 96]


def test_a_session_that_held_is_followed_at_once() -> None:
    starts = SessionStarts(1.0)
    starts.add_start(0.0)
    assert starts.pause(0.4) == pytest.approx(0.6)
    assert starts.pause(60.0) == 0.0
    starts.add_start(60.0)
    assert starts.pause(60.0 + 3600.0) == 0.0


@settings(max_examples=examples(10), deadline=None)
@given(st.lists(st.floats(0, 120), max_size=40), st.sampled_from([0.0, 0.001, 1.0]))
def test_nobody_begins_more_than_900_sessions_within_a_day(held: list[float], first_pause: float) -> None:
    starts, now = SessionStarts(first_pause), 0.0
    moments: list[float] = []
    for n in range(1900):
        now = begin(starts, now)
        moments.append(now)
        now += held[n % len(held)] if held else 0.0
    assert all(later - first >= DAY - 0.001 for first, later in zip(moments, moments[900:], strict=False))
    assert starts.count <= 900


def test_a_shard_that_was_elsewhere_begins_without_a_pause_and_its_sessions_still_count() -> None:
    starts, now = SessionStarts(1.0), 0.0
    for _ in range(8):
        now = begin(starts, now)
    assert starts.pause(now) == pytest.approx(96.0)
    starts.reset_shard(0)
    assert starts.pause(now) == 0.0
    assert starts.count == 8


def test_what_discord_counted_before_us_counts() -> None:
    starts = SessionStarts(0.0)
    starts.set_start_limit(total=1000, remaining=101, reset_after=100.0, now=0.0)
    assert starts.pause(0.0) == 0.0
    starts.add_start(0.0)
    assert starts.wait_for_a_day(1.0) == pytest.approx(99.0)
    # Its next word counts our own session, too.
    starts.set_start_limit(total=1000, remaining=100, reset_after=98.0, now=2.0)
    assert starts.count == 900
    assert starts.pause(2.0) == pytest.approx(98.0)
    assert starts.pause(100.0) == 0.0
    assert starts.count == 1


def test_a_smaller_allowance_is_not_used_up_either() -> None:
    starts = SessionStarts(0.0)
    starts.set_start_limit(total=10, remaining=1, reset_after=50.0, now=0.0)
    assert starts.pause(0.0) == pytest.approx(50.0)
