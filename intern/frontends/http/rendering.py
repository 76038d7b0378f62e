"""Pages as HTML. Templates escape all values, since all texts come from strangers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, datetime
from importlib.resources import files
from inspect import isfunction
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup, escape
from msgspec import Struct

from intern.core.text.words import stem_set, truncate_text
from intern.frontends import wording
from intern.frontends.wording import ago, excerpt, format_duration, mark_words
from intern.lab.plot import draw_curve
from intern.service.calibration import CalibrationStatus
from intern.service.figures import Figure, Plot, sum_by_prompt, sum_usage
from intern.service.knowledge_search import SearchResult

_SLOT, _BAR, HEIGHT = 10, 8, 100  # of a day, in the picture's own units: it is stretched to the available width
_LEAST = 1.5  # so that one of a thousand is still visible
_NICE = (1, 2, 4, 5, 10)


class BarChart(Struct, frozen=True, kw_only=True):
    """A plot, ready to be drawn: bars of all series, one on top of the other."""

    title: str
    said: str
    """The whole plot in a sentence, for people who cannot see it."""
    width: int
    bars: tuple[str, ...]
    """The path of each series."""
    days: tuple[str, ...]
    """The text of each day."""
    marks: tuple[str, ...]
    """Dates below the bars: the first, the middle one and the last."""
    top: str
    """The value at the upper edge, and half of it."""
    middle: str
    series: tuple[str, ...]


def draw_chart(plot: Plot) -> BarChart:
    """Draw bars for each day on one scale, which ends at a round number."""
    stacked = [sum(each[n] or 0 for each in plot.series.values()) for n in range(len(plot.days))]
    top = _round_above(max(stacked, default=0))
    bars, floor = list[str](), [float(HEIGHT)] * len(plot.days)
    for values in plot.series.values():
        path = ""
        for n, value in enumerate(values):
            if value:
                height = max(round(value / top * HEIGHT, 1), _LEAST)
                floor[n] = max(floor[n] - height, 0)
                path += f"M{n * _SLOT + 1} {floor[n]:g}h{_BAR}v{height:g}h-{_BAR}z"
        bars.append(path)
    marked = (0, len(plot.days) // 2, len(plot.days) - 1) if plot.days else ()
    return BarChart(
        title=plot.title,
        said=_describe_plot(plot),
        width=len(plot.days) * _SLOT,
        bars=tuple(bars),
        days=tuple(f"{_day(day)}: {_day_values(plot, n)}" for n, day in enumerate(plot.days)),
        marks=tuple(_day(plot.days[n]) for n in marked),
        top=amount(top),
        middle=amount(top / 2),
        series=tuple(plot.series),
    )


def _round_above(value: float) -> float:
    """Return the least of 1, 2, 4, 5, 10, 20, … that is not below a value; tenths and less, too."""
    if value <= 0:
        return 1
    power = 10.0 ** math.floor(math.log10(value))
    return next((each * power for each in _NICE if each * power >= value), 10 * power)


def _day(day: date) -> str:
    return f"{day.day} {day:%b}"


def _day_values(plot: Plot, n: int) -> str:
    known = [f"{amount(value)} {kind}" for kind, each in plot.series.items() if (value := each[n]) is not None]
    return ", ".join(known) or "none"


def _describe_plot(plot: Plot) -> str:
    if not plot.days:
        return "No days to show"
    parts = [_describe_series(kind, [each for each in values if each]) for kind, values in plot.series.items()]
    return f"{_day(plot.days[0])} to {_day(plot.days[-1])}: {', '.join(parts)}"


def _describe_series(kind: str, values: Sequence[float]) -> str:
    if kind.endswith("(median)"):  # a sum of these says nothing
        return f"{amount(min(values))} to {amount(max(values))} {kind}" if values else f"no {kind}"
    return f"{amount(sum(values))} {kind}"


class PageTemplates:
    """The pages' templates; `now` is the time from which "ago" is counted."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        folder = files("intern.frontends.http") / "templates"
        texts = {each.name: each.read_text(encoding="utf-8") for each in folder.iterdir() if each.name[-5:] == ".html"}
        self._now = now
        self._made = Environment(
            loader=DictLoader(texts), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        # All functions of this module and of the words for every front end; what they import is left out.
        ours = [each for each in (*vars(wording).values(), *globals().values()) if isfunction(each)]
        filters = {each.__name__: each for each in ours if each.__module__ in {wording.__name__, __name__}}
        known = cast("dict[str, Callable[..., Any]]", self._made.filters)
        known.update(filters, sum_by_prompt=sum_by_prompt, sum_usage=sum_usage, truncate_text=truncate_text)
        known["ago"] = self._ago
        cast("dict[str, Any]", self._made.globals)["percent"] = percent

    def render(self, name: str, **values: Any) -> bytes:
        """Return a page as bytes."""
        # A text from a log may hold half a character.
        return self._made.get_template(f"{name}.html").render(now=self._now(), **values).encode("utf-8", "replace")

    def _ago(self, moment: datetime) -> str:
        seconds = (self._now() - moment).total_seconds()
        return f"in {format_duration(-seconds)}" if seconds < -1 else ago(seconds)


def calibration_curve(stands: CalibrationStatus) -> Markup:
    """Draw the curve of a calibration, with the score in use."""
    score = None if stands.current is None else stands.current.score
    none, bound = stands.gives_none, stands.max_wrong
    return draw_curve(stands.curve, judged=stands.judged, max_wrong=bound, score=score, gives_none=none)


def amount(number: float | None) -> str:
    """Format a number with as many digits as people read; a dash if there is none."""
    if number is None:
        return "–"
    if number >= 100 or number == int(number):
        return group_digits(round(number))
    return f"{number:.3g}" if number >= 0.001 else f"{number:.1g}"


def format_figure(figure: Figure, of: Callable[[float], str] = amount) -> str:
    """Format a figure; a dash if there is none."""
    return "–" if figure.value is None else of(figure.value)


def compare_figure(figure: Figure, days: int, noun: str, of: Callable[[float], str] = amount) -> str:
    """Compare a figure with the previous period, and name its parts."""
    if figure.value is None:
        return f"no {noun} in these days"
    made_of = f"{group_digits(figure.count)} {noun}{'' if figure.count == 1 else 's'}"
    if figure.before is None:
        return made_of
    now, before = of(figure.value), of(figure.before)
    if now == before:
        return f"{made_of}; the same in the {days} days before"
    return f"{made_of}; {'up' if figure.value > figure.before else 'down'} from {before} in the {days} days before"


def percent(share: float) -> str:
    """Format a share."""
    return f"{100 * share:.0f}%"


def highlight_passage(result: SearchResult) -> Markup:
    """Return the two lines of a result that hold most of the words, with these marked."""
    asked = stem_set(" ".join(result.matched))
    mark = Markup("<mark>{}</mark>").format
    lines = (
        [mark(part) if is_asked else escape(part) for part, is_asked in mark_words(line, asked)]
        for line in excerpt(result.text, asked)
    )
    return Markup("<br>").join(Markup().join(line) for line in lines)


def humanize(word: str) -> str:
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


def format_json(value: object) -> str:
    """Format a value as readable JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def group_digits(number: float) -> str:
    """Format a large number with spaces between thousands."""
    return f"{number:,}".replace(",", "\u202f")
