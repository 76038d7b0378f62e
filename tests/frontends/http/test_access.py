"""The gate by itself: sessions end, wrong tokens tire it, and a beyond-loopback page needs a token."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import intern.frontends.http
from intern.core.errors import ConfigError
from intern.core.text.secret_values import Secret
from intern.frontends.http.access import SESSION_SECONDS, AccessGuard
from intern.frontends.http.rendering import HEIGHT, draw_chart, web_link
from intern.service.figures import Plot
from intern.settings.settings import PageOptions, is_loopback
from tests.worlds.settings import make_settings

TOKEN = "a-token-of-the-operator"
HERE = "192.0.2.1"
STYLE = (Path(intern.frontends.http.__file__).parent / "static" / "style.css").read_text(encoding="utf-8")


class Hands:
    """A monotonic clock, turned by hand."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def __call__(self) -> float:
        return self.at


def gate(now: Hands, token: str = TOKEN) -> AccessGuard:
    return AccessGuard(PageOptions(enabled=True, token=Secret(token)), now=now)


def test_a_session_ends_by_itself() -> None:
    now = Hands()
    door = gate(now)
    session = door.log_in(TOKEN, HERE)
    assert session is not None
    assert door.has_session(session)
    now.at += SESSION_SECONDS
    assert not door.has_session(session)
    assert not door.has_session("")


def test_wrong_tokens_tire_it_for_a_minute() -> None:
    now = Hands()
    door = gate(now)
    assert [door.log_in("wrong", HERE) for _ in range(10)] == [None] * 10
    assert door.log_in(TOKEN, HERE) is None
    now.at += 60
    assert door.log_in(TOKEN, HERE) is not None


def test_wrong_tokens_of_a_form_and_of_a_program_count_together() -> None:
    door = gate(Hands())
    assert [door.log_in("wrong", HERE) for _ in range(5)] == [None] * 5
    assert not any(door.accepts_token("wrong", HERE) for _ in range(5))
    assert door.is_locked_out(HERE)
    assert not door.accepts_token(TOKEN, HERE)


@pytest.mark.parametrize(
    ("tired", "alike", "apart"),
    [
        ("192.0.2.7", "::ffff:192.0.2.7", "192.0.2.8"),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", "2001:db8:0:2::1"),
        ("fe80::1%eth0", "fe80::2", "::1"),
        ("", "", "127.0.0.1"),
    ],
)
def test_wrong_tokens_tire_it_of_their_own_network_only(tired: str, alike: str, apart: str) -> None:
    door = gate(Hands())
    for _ in range(10):
        door.accepts_token("wrong", tired)
    assert door.log_in(TOKEN, alike) is None
    assert door.log_in(TOKEN, apart) is not None


def test_of_the_addresses_that_wrong_tokens_came_from_the_last_thousand_are_kept() -> None:
    door = gate(Hands())
    for n in range(3_000):
        door.accepts_token("wrong", f"10.0.{n // 256}.{n % 256}")
    assert len(door._failures) == 1_000
    assert len(door._failures[f"10.0.{2_999 // 256}.{2_999 % 256}"]) == 1


@pytest.mark.parametrize("host", ["[", "[::1", "a]b", "\u2100.example"])
def test_a_host_that_is_none_is_no_name_of_this_machine(host: str) -> None:
    door = gate(Hands(), token="")
    assert not door.is_allowed_host(host)
    shown = door.form_token("one")
    assert not door.is_own_form("one", shown, {"Origin": f"http://{host}", "Host": "localhost"})


def test_without_a_token_nobody_has_one() -> None:
    door = gate(Hands(), token="")
    assert not door.is_token("")
    assert door.log_in("", HERE) is None


def test_a_form_s_token_is_good_for_its_session_and_its_process_only() -> None:
    door, other = gate(Hands()), gate(Hands())
    shown = door.form_token("one")
    assert door.is_own_form("one", shown, {})
    assert not door.is_own_form("two", shown, {})
    assert not other.is_own_form("one", shown, {})
    assert not door.is_own_form("one", "\ud800", {})


@given(st.text(max_size=30))
def test_no_other_text_is_the_token(text: str) -> None:
    assert gate(Hands()).is_token(text) is (text == TOKEN)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "LOCALHOST."])
def test_this_machine_is_known_by_all_its_names(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "127.1.nip.io", "2130706433"]
)
def test_nothing_else_is(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ({"host": "0.0.0.0"}, r"page\.token: must be set if page\.host is reachable from other machines"),
        ({"host": "::"}, r"page\.token: must be set"),
        ({"host": "relay.example.org"}, r"page\.token: must be set"),
        ({"token": "short"}, r"page\.token: must have at least 16 characters"),
        ({"port": 65_536}, r"page\.port: expected a whole number of at most 65535"),
    ],
)
def test_what_would_let_strangers_in_is_refused_at_the_start(page: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        make_settings(page={"enabled": True, **page})
    assert "short" not in str(refused.value)


def test_the_token_is_kept_out_of_logs_and_off_is_off() -> None:
    settings = make_settings(page={"host": "0.0.0.0", "token": TOKEN})
    assert TOKEN in settings.secrets
    assert TOKEN not in repr(settings)
    assert not make_settings(page={"host": "0.0.0.0"}).page.enabled


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "data:text/html,x", " javascript:x", "//evil", "", None, "http://[x"]
)
def test_only_the_web_is_linked(url: str | None) -> None:
    assert web_link(url) == ""
    assert web_link("https://a.example/b?c") == "https://a.example/b?c"


@given(
    st.integers(0, 30).flatmap(
        lambda days: st.lists(st.lists(st.integers(0, 10**9), min_size=days, max_size=days), max_size=3)
    )
)
def test_every_bar_stays_in_the_picture_and_those_of_a_day_are_on_top_of_each_other(values: list[list[int]]) -> None:
    days = tuple(date.fromordinal(740_000 + n) for n in range(len(values[0]) if values else 0))
    series = {f"s{n}": tuple(each) for n, each in enumerate(values)}
    picture = draw_chart(Plot(title="t", days=days, series=series))
    assert len(picture.days) == len(days)
    floors = [float(HEIGHT)] * len(days)
    for path, each in zip(picture.bars, values, strict=True):
        bars = re.findall(r"M(\d+) ([\d.e-]+)h8v([\d.e+-]+)h-8z", path)
        assert len(bars) == sum(value > 0 for value in each)
        for x, top, height in bars:
            day = int(x) // 10
            assert 0 <= float(top) <= floors[day]
            assert float(height) > 0
            floors[day] = float(top)


def test_texts_stand_out_from_their_ground_in_both_schemes() -> None:
    """WCAG's 4.5 to 1, for all that is read."""
    schemes = [dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", part)) for part in STYLE.split("prefers-color")[:2]]
    assert len(schemes) == 2
    for colours in schemes:
        for ground in ("ground", "raised", "sunken"):
            for ink in ("ink", "quiet", "accent", "good", "warn", "bad"):
                assert _contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
        for kind in ("accent", "good", "warn", "bad"):
            for ink in (kind, "ink"):
                assert _contrast(colours[ink], colours[f"{kind}-soft"]) >= 4.5, (ink, kind)
        assert _contrast(colours["on-accent"], colours["accent"]) >= 4.5
        for shape in ("series-0", "series-1", "edge"):
            assert _contrast(colours[shape], colours["raised"]) >= 3, shape


def _contrast(one: str, other: str) -> float:
    dark, bright = sorted((_luminance(one), _luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
