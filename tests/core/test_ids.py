from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, strategies as st

from intern.core.ids import by_age, snowflake_at, snowflake_time

# Discord's epoch is the first second of 2015; the ids last until 2154.
MOMENTS = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=50_000)).map(
    lambda since: datetime(2015, 1, 1, tzinfo=UTC) + since
)


@given(MOMENTS, st.integers(min_value=0, max_value=4095))
def test_a_snowflake_tells_its_time_to_the_millisecond(moment: datetime, sequence: int) -> None:
    told = snowflake_time(snowflake_at(moment, sequence))
    assert timedelta(0) <= moment - told < timedelta(milliseconds=1)


@given(st.lists(st.integers(min_value=0, max_value=(1 << 63) - 1).map(str)))
def test_snowflakes_sort_by_age_and_not_by_spelling(ids: list[str]) -> None:
    assert sorted(ids, key=by_age) == [str(number) for number in sorted(map(int, ids))]


@given(st.text(), st.integers(min_value=0, max_value=(1 << 64) - 1))
def test_foreign_ids_come_after_all_snowflakes(foreign: str, number: int) -> None:
    if not (foreign.isascii() and foreign.isdigit()):
        assert by_age(str(number)) < by_age(foreign)


def test_discord_s_own_example_is_read_as_discord_reads_it() -> None:
    # Discord's reference, "Snowflakes": 175928847299117063 was made at 1462015105796 ms.
    assert snowflake_time("175928847299117063") == datetime.fromtimestamp(1462015105.796, UTC)
