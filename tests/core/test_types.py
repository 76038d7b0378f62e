"""One thread makes the types that all share."""

from __future__ import annotations

from threading import Event, Thread
from typing import Any

import pytest
from msgspec import Struct

from intern.core.captures import build_types
from intern.service import models
from intern.settings.settings import Settings


def test_all_types_of_ours_are_built_also_beside_one_that_cannot_be() -> None:
    before = build_types.__wrapped__()
    good, bad = (type(name, (Struct,), {"__module__": f"intern.{name}"}) for name in ("Good", "Bad"))
    bad.__annotations__ = {"of": "Nowhere"}
    assert build_types.__wrapped__() == before + 1  # the good one
    assert before > 100
    assert good is not bad


def test_templates_are_made_once_though_threads_ask_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    both = Event()
    templates_of = models.load_templates

    def made_slowly(settings: Settings) -> Any:
        made.append(settings)
        if len(made) == 2:
            both.set()
        both.wait(0.2)
        return templates_of(settings)

    monkeypatch.setattr(models, "load_templates", made_slowly)
    shared = models.SharedResources()
    threads = [Thread(target=shared.templates, args=(Settings(),)) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(made) == 1
