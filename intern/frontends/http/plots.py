"""Plots as geometry: where each bar stands, in the units of the picture. The template only draws."""

from __future__ import annotations

from datetime import date

from msgspec import Struct

from intern.service.views import Plot

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


class Mark(Struct, frozen=True, kw_only=True):
    """A date below the bars."""

    x: float
    text: str


class Drawing(Struct, frozen=True, kw_only=True):
    """A plot, ready to be drawn."""

    title: str
    said: str
    """All of it in a sentence, for who cannot see it."""
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    largest: int
    floor: float = _FLOOR
    width: int = WIDTH
    height: int = HEIGHT


def drawn(plot: Plot) -> Drawing:
    """Bars side by side for each day, all on one scale."""
    largest = max((value for series in plot.series for value in series.values), default=0)
    slot = WIDTH / max(len(plot.days), 1)
    width = slot * 0.8 / max(len(plot.series), 1)
    bars = tuple(
        Bar(
            x=round(n * slot + slot * 0.1 + place * width, 2),
            y=round(_FLOOR - height, 2),
            width=round(width * 0.9, 2),
            height=round(height, 2),
            series=place,
            label=f"{day:%Y-%m-%d}: {series.values[n]} {series.label}",
        )
        for place, series in enumerate(plot.series)
        for n, day in enumerate(plot.days)
        if (height := _height(series.values[n], largest))
    )
    return Drawing(
        title=plot.title,
        said=_said(plot),
        bars=bars,
        marks=tuple(Mark(x=round(n * slot + slot / 2, 2), text=_day(plot.days[n])) for n in _marked(len(plot.days))),
        largest=largest,
    )


def _height(value: int, largest: int) -> float:
    return max(value / largest * (_FLOOR - _TOP), _LEAST) if value else 0.0


def _marked(days: int) -> tuple[int, ...]:
    """The first, the middle one and the last."""
    return tuple(dict.fromkeys((0, days // 2, days - 1))) if days else ()


def _day(day: date) -> str:
    return f"{day.day} {day:%b}"


def _said(plot: Plot) -> str:
    if not plot.days:
        return "No days to show."
    parts = [f"{sum(series.values)} {series.label}" for series in plot.series]
    return f"{_day(plot.days[0])} to {_day(plot.days[-1])}: {', '.join(parts)}."
