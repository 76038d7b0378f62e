"""Pages as HTML. Templates escape all values, since all texts are strangers'."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import msgspec
from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup
from msgspec import Struct

from intern.frontends.words import ago, became, calibration, long, minute, silence, source, steps
from intern.lab.plot import plot_of
from intern.service.calibration import Calibrated
from intern.service.running import Plot

WIDTH, HEIGHT = 420, 120
_FLOOR = HEIGHT - 18  # below it stand the dates
_TOP = 14  # above it stands the largest number
_LEAST = 1.5  # so that one of a thousand is still seen


class Bar(Struct, frozen=True, kw_only=True):
    """One day of one series."""

    x: float
    y: float
    width: float
    height: float
    series: int
    label: str


class Drawing(Struct, frozen=True, kw_only=True):
    """A plot, ready to be drawn."""

    title: str
    said: str
    """The whole plot in a sentence, for people who cannot see it."""
    bars: tuple[Bar, ...]
    marks: tuple[tuple[float, str], ...]
    """Dates below the bars, each with its place."""
    largest: int
    floor: float = _FLOOR
    width: int = WIDTH
    height: int = HEIGHT


def drawn(plot: Plot) -> Drawing:
    """Draw bars side by side for each day, all on one scale."""
    largest = max((value for counted in plot.series.values() for value in counted), default=0)
    slot = WIDTH / max(len(plot.days), 1)
    width = slot * 0.8 / max(len(plot.series), 1)
    bars = tuple(
        Bar(
            x=round(n * slot + slot * 0.1 + place * width, 2),
            y=round(_FLOOR - height, 2),
            width=round(width * 0.9, 2),
            height=round(height, 2),
            series=place,
            label=f"{day:%Y-%m-%d}: {counted[n]} {kind}",
        )
        for place, (kind, counted) in enumerate(plot.series.items())
        for n, day in enumerate(plot.days)
        if (height := _height(counted[n], largest))
    )
    return Drawing(
        title=plot.title,
        said=_said(plot),
        bars=bars,
        marks=tuple((round(n * slot + slot / 2, 2), _day(plot.days[n])) for n in _marked(len(plot.days))),
        largest=largest,
    )


def _height(value: int, largest: int) -> float:
    return max(value / largest * (_FLOOR - _TOP), _LEAST) if value else 0.0


def _marked(days: int) -> tuple[int, ...]:
    """Return the first day, the middle one and the last."""
    return tuple(dict.fromkeys((0, days // 2, days - 1))) if days else ()


def _day(day: date) -> str:
    return f"{day.day} {day:%b}"


def _said(plot: Plot) -> str:
    if not plot.days:
        return "No days to show."
    parts = [f"{sum(counted)} {kind}" for kind, counted in plot.series.items()]
    return f"{_day(plot.days[0])} to {_day(plot.days[-1])}: {', '.join(parts)}."


class Templates:
    """The pages' templates; `now` is what "ago" is counted from."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        folder = files("intern.frontends.http") / "templates"
        texts = {each.name: each.read_text(encoding="utf-8") for each in folder.iterdir() if each.name[-5:] == ".html"}
        self._now = now
        self._made = Environment(
            loader=DictLoader(texts), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        filters: dict[str, Callable[..., Any]] = {"ago": self._ago}
        shown = (calibration, curve, minute, spoken, web_link, pretty, drawn, grouped_digits, became)
        for each in (*shown, first_words, silence, source, steps):
            filters[each.__name__] = each
        self._made.filters.update(filters)

    def render(self, name: str, **values: Any) -> bytes:
        """Return a page as bytes."""
        # A text from a log may hold half a character.
        return self._made.get_template(f"{name}.html").render(now=self._now(), **values).encode("utf-8", "replace")

    def _ago(self, moment: datetime) -> str:
        seconds = (self._now() - moment).total_seconds()
        return f"in {long(-seconds)}" if seconds < -1 else ago(seconds)


def curve(stands: Calibrated) -> Markup:
    """Draw the curve of a calibration, with the score in use."""
    score = None if stands.current is None else stands.current.score
    return plot_of(stands.curve, judged=stands.judged, max_wrong=stands.max_wrong, score=score)


def spoken(word: str) -> str:
    """Return a reason or an outcome as people write it."""
    return word.replace("_", " ")


def first_words(said: str, most: int) -> str:
    """Return the beginning of a text on one line, cut between words."""
    line = " ".join(said.split())
    return line if len(line) <= most else f"{line[:most].rpartition(' ')[0] or line[:most]} …"


def web_link(url: str | None) -> str:
    """Return an address if it is one of the web, no `javascript:`; else nothing."""
    try:
        scheme = urlsplit(url or "").scheme
    except ValueError:
        return ""
    return url or "" if scheme in {"http", "https"} else ""


def pretty(value: object) -> str:
    """Format a value as readable JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def grouped_digits(number: float) -> str:
    """Format a large number with spaces between thousands."""
    return f"{number:,}".replace(",", "\u202f")
