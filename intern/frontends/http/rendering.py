"""Pages as HTML. Templates escape all values, since all texts are strangers'."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import msgspec
from jinja2 import DictLoader, Environment, StrictUndefined

from intern.frontends.http.plots import drawn
from intern.frontends.words import became, minute

_UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60))


class Templates:
    """The pages' templates; `now` is what "ago" is counted from."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        folder = files("intern.frontends.http") / "templates"
        texts = {each.name: each.read_text(encoding="utf-8") for each in folder.iterdir() if each.name[-5:] == ".html"}
        self._now = now
        self._made = Environment(
            loader=DictLoader(texts),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters: dict[str, Callable[..., Any]] = {
            "minute": minute,
            "ago": self._ago,
            "spoken": spoken,
            "web_link": web_link,
            "pretty": pretty,
            "drawn": drawn,
            "grouped_digits": grouped_digits,
            "became": became,
        }
        self._made.filters.update(filters)

    def render(self, name: str, **values: Any) -> bytes:
        """A page, ready to be sent."""
        # A text from a log may hold half a character.
        return self._made.get_template(f"{name}.html").render(values).encode("utf-8", "replace")

    def _ago(self, moment: datetime) -> str:
        seconds = (self._now() - moment).total_seconds()
        return f"in {_long(-seconds)}" if seconds < -1 else f"{_long(seconds)} ago"


def _long(seconds: float) -> str:
    for unit, length in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} seconds"


def spoken(word: str) -> str:
    """A reason or an outcome as people write it."""
    return word.replace("_", " ")


def web_link(url: str | None) -> str:
    """An address that may be followed: of the web only, no `javascript:`; else nothing."""
    try:
        scheme = urlsplit(url or "").scheme
    except ValueError:
        return ""
    return url or "" if scheme in {"http", "https"} else ""


def pretty(value: object) -> str:
    """A value as JSON that can be read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def grouped_digits(number: float) -> str:
    """A large number with spaces between thousands."""
    return f"{number:,}".replace(",", "\u202f")
