"""Reading the status of a data folder costs the same for each week of the archive, however many pairs it has."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from intern.service.captured_pairs import open_captures
from intern.service.status import read_status
from intern.service.topics import open_topics
from intern.settings.settings import Settings
from intern.stores.archive import Archive
from tests.worlds import samples
from tests.worlds.bot import settings_in
from tests.worlds.clock import HandClock

PAIRS = 40
_opened: list[str] = []
_watches = [False]


def _note(event: str, values: tuple[object, ...]) -> None:
    if _watches[0] and event == "open" and str(values[0]).endswith("-W05.txt"):
        _opened.append(str(values[0]))


sys.addaudithook(_note)


@contextmanager
def openings_of_the_week() -> Generator[list[str]]:
    """Return how often the week's file is opened."""
    _opened.clear()
    _watches[0] = True
    yield _opened
    _watches[0] = False


def archived(settings: Settings) -> int:
    return read_status(settings, clock=HandClock()).archived


def newest(settings: Settings) -> int:
    return len(open_captures(settings).list_all(newest=0))


def topics(settings: Settings) -> int:
    return len(open_topics(settings).list_all())


# Finding G3.
@pytest.mark.parametrize(("look", "expected"), [(archived, PAIRS), (newest, 0), (topics, 0)])
def test_a_look_at_the_folder_opens_a_week_of_the_archive_once(
    tmp_path: Path, look: Callable[[Settings], int], expected: int
) -> None:
    settings, clock = settings_in(tmp_path), HandClock()
    archive = Archive(settings.paths.raw, clock=clock)
    for n in range(PAIRS):
        archive.append(samples.capture(n=n))
        clock.turn(seconds=1)
    assert [each.name for each in settings.paths.raw.iterdir()] == ["2026-W05.txt"]
    with openings_of_the_week() as openings:
        assert look(settings) == expected
    assert len(openings) <= 1


# Finding G3.
@pytest.mark.parametrize("most", [0, 1, PAIRS - 1, PAIRS, PAIRS + 1])
def test_the_newest_pairs_are_the_end_of_all_pairs(tmp_path: Path, most: int) -> None:
    settings, clock = settings_in(tmp_path), HandClock()
    archive = Archive(settings.paths.raw, clock=clock)
    for n in range(PAIRS):
        archive.append(samples.capture(n=n))
    reading, databases = open_captures(settings), list[object]()
    apsw.connection_hooks.append(databases.append)
    with openings_of_the_week() as openings:
        found = reading.list_all(newest=most)
    apsw.connection_hooks.remove(databases.append)
    assert len(databases) <= 1
    assert found == open_captures(settings).list_all()[max(PAIRS - most, 0) :]
    assert len(openings) <= 1


def newest_pairs(settings: Settings) -> int:
    return len(open_captures(settings).list_all(newest=5))


# Finding G3.
@pytest.mark.parametrize("look", [archived, newest_pairs])
def test_a_look_at_the_folder_does_next_to_nothing_for_each_pair(
    tmp_path: Path, look: Callable[[Settings], int]
) -> None:
    calls = list[int]()
    for pairs in (PAIRS, 4 * PAIRS):
        settings, clock = settings_in(tmp_path / str(pairs)), HandClock()
        archive = Archive(settings.paths.raw, clock=clock)
        for n in range(pairs):
            archive.append(samples.capture(n=n))
            clock.turn(seconds=1)
        look(settings)
        calls.append(0)

        def count(_frame: object, event: str, _value: object) -> None:
            calls[-1] += event == "call"

        sys.setprofile(count)
        look(settings)
        sys.setprofile(None)
    assert calls[1] - calls[0] <= 10 * 3 * PAIRS
