"""The calibration curve as a picture without scripts and links, for the status page and the report of a backtest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from intern.service.calibration import ThresholdPoint

_WIDTH, _HEIGHT = 480, 260
_LEFT, _RIGHT, _TOP, _FLOOR = 44.0, _WIDTH - 20.0, 20.0, _HEIGHT - 40.0
_LEAST_TOP = 0.1  # of the wrong share: with less, a low curve looks like the axis


def draw_curve(
    curve: Sequence[ThresholdPoint], *, judged: int, max_wrong: float, score: float | None, gives_none: bool = False
) -> Markup:
    """Draw a curve with its table, and the point of a score; None: all answers are given, or none at all.

    Empty without a curve.
    """
    if not curve:
        return Markup()
    most = max(_LEAST_TOP, max_wrong * 1.5, *(point.wrong for point in curve))
    top = math.ceil(most * 25) / 25  # so that each quarter is a whole number
    now = next((point for point in reversed(curve) if score is None or point.score >= score), curve[0])
    now = ThresholdPoint(score=1, answered=0, wrong=0) if gives_none else now
    shares = f"{100 * now.answered:.0f}% answered, {100 * now.wrong:.1f}% of these wrong"
    mark = f"With a score of {score:.3f}: {shares}." if score is not None else f"Without a least score: {shares}."
    mark = "No answers are given: no score keeps to ai.max_wrong." if gives_none else mark
    bound = f"ai.max_wrong is {100 * max_wrong:g}%. " if max_wrong else ""
    strictest = f"The strictest score: {100 * curve[0].answered:.0f}% and {100 * curve[0].wrong:.1f}%."

    def to_point(point: ThresholdPoint) -> tuple[float, float]:
        return round(_LEFT + point.answered * (_RIGHT - _LEFT), 1), _height(point.wrong, top)

    return Markup(  # noqa: S704 the template escapes
        _load_template().render(
            width=_WIDTH,
            height=_HEIGHT,
            left=_LEFT,
            right=_RIGHT,
            floor=_FLOOR,
            said=f"{bound}{mark} {strictest}",
            rows=[(_height(top * n / 4, top), f"{100 * top * n / 4:.3g}%") for n in range(5)],
            columns=[(_LEFT + n / 4 * (_RIGHT - _LEFT), f"{25 * n}%") for n in range(5)],
            bound=_height(max_wrong, top) if max_wrong else None,
            line=[to_point(point) for point in curve],
            now=to_point(now),
            mark=mark,
            curve=curve,
            judged=judged,
        )
    )


def _height(wrong: float, top: float) -> float:
    return round(_FLOOR - wrong / top * (_FLOOR - _TOP), 1)


@cache
def _load_template() -> Template:
    text = (files("intern.lab") / "templates" / "curve.html").read_text(encoding="utf-8")
    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return made.from_string(text)
