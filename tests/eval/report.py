"""`python -m tests.eval.report`: what intern does with real chat, one line a figure, each beside its bar."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import anyio

from tests.eval import importing, searching
from tests.eval.chats import EVAL


class Figure(NamedTuple):
    """Something measured; with a bar it must reach, or else only worth knowing."""

    name: str
    value: float
    bar: float | None = None

    def __str__(self) -> str:
        if self.bar is None:
            return f"{self.name:<66} {self.value:>9.3f}"
        return f"{self.name:<66} {self.value:>9.3f}  bar {self.bar:g}{'' if self.value >= self.bar else '   UNDER'}"


def of_import() -> Iterator[Figure]:
    """Import of history: IRC logs as exports, with the rules instead of a model."""
    with tempfile.TemporaryDirectory() as folder:
        found = anyio.run(importing.measure, Path(folder))
    yield Figure(
        "import: exchanges that stand whole in one block, share", found.whole / found.asked, importing.WHOLE_BAR
    )
    yield Figure("import: a block's messages of one conversation, mean share", found.share, importing.SHARE_BAR)
    yield Figure(
        "import: messages of an exchange's block that belong to it, mean share",
        found.exchange_share,
        importing.SHARE_BAR,
    )
    yield Figure("import: messages read", found.done.messages)
    yield Figure("import: conversations archived", found.done.archived)
    yield Figure("import: blocks that survive", found.blocks)
    yield Figure("import: CPU seconds", found.cpu_seconds)


def of_search() -> Iterator[Figure]:
    """Search by words: 120 real questions over 596 documents, beside SQLite's full-text search by itself."""
    with tempfile.TemporaryDirectory() as folder:
        found = anyio.run(searching.measure, Path(folder))
    yield Figure(f"search: right entry among {searching.SHOWN} shown", found.shown, searching.SHOWN_BAR)
    yield Figure("search: the same, by the descriptions alone", found.shown_by_descriptions)
    for depth in searching.DEPTHS:
        bar = searching.SHOWN_BAR if depth == searching.SHOWN else None
        yield Figure(f"search: recall at {depth}", found.ours[depth], bar)
        yield Figure(f"search: recall at {depth}, plain FTS5", found.plain[depth])


REPORTS: tuple[Callable[[], Iterator[Figure]], ...] = (of_import, of_search)


def main() -> int:
    """Print all figures; 1 where one is under its bar."""
    if not EVAL.is_dir():
        print(f"the real chats are not part of the project; put them into {EVAL}", file=sys.stderr)
        return 3
    held = True
    for report in REPORTS:
        for figure in report():
            print(figure, flush=True)
            held = held and (figure.bar is None or figure.value >= figure.bar)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
