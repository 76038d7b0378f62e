from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, strategies as st

from intern.core.ids import parse_position, position_at

# Discord's epoch is the first second of 2015; the ids last until 2154.
MOMENTS = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=50_000)).map(
    lambda since: datetime(2015, 1, 1, tzinfo=UTC) + since
)


@given(MOMENTS, st.integers(min_value=0, max_value=4095))
def test_a_position_tells_its_time_to_the_millisecond(moment: datetime, sequence: int) -> None:
    told = parse_position(position_at(moment, sequence).id).time
    assert timedelta(0) <= moment - told < timedelta(milliseconds=1)


@given(st.lists(st.integers(min_value=0, max_value=(1 << 63) - 1).map(str)))
def test_positions_sort_by_age_and_not_by_spelling(ids: list[str]) -> None:
    assert sorted(ids, key=parse_position) == [str(number) for number in sorted(map(int, ids))]


@given(st.text(), st.integers(min_value=0, max_value=(1 << 64) - 1))
def test_foreign_ids_come_after_all_positions(foreign: str, number: int) -> None:
    if not (foreign.isascii() and foreign.isdigit()):
        assert parse_position(str(number)) < parse_position(foreign)


def test_discord_s_own_example_is_read_as_discord_reads_it() -> None:
    # Discord's reference, "Snowflakes": 175928847299117063 was made at 1462015105796 ms.
    assert parse_position("175928847299117063").time == datetime.fromtimestamp(1462015105.796, UTC)


@given(MOMENTS, st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=400)))
def test_a_position_moves_by_its_time_and_keeps_its_place_in_the_millisecond(
    moment: datetime, duration: timedelta
) -> None:
    position = position_at(moment, 7)
    assert position.before(duration).after(duration) == position
    assert position.before(duration).time == position.time - (duration - duration % timedelta(milliseconds=1))
    assert position.previous < position < position.next
    assert parse_position(position.id) == position
