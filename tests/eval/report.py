"""`python -m tests.eval.report`: what intern does with real chat, one line a figure, each beside its bar."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import anyio

from intern.search.embedding_local import LocalEmbedder, is_english_installed
from tests.eval import backtesting, extracting, importing, retrieval, searching, superseding
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


def of_retrieval() -> Iterator[Figure]:
    """Retrieval by words, by likeness and by both, on each set; what both must reach goes by plain FTS5."""
    if not is_english_installed():
        print("retrieval by likeness was not measured: it needs the extra `embeddings`", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        measured = anyio.run(retrieval.measure, Path(folder), LocalEmbedder())
    for found in measured:
        name = f"{found.case.name} ({found.asked})"
        yield Figure(f"{name}: plain FTS5, nDCG@10", found.plain.ndcg)
        bars = {"words": found.plain.ndcg, "both": found.bar, "selected": found.searched.ndcg - retrieval.MOST_LOST}
        ways = {"words": found.words, "vectors": found.vectors, "both": found.both, "selected": found.selected}
        for way, scores in ways.items():
            for label, value in zip(retrieval.LABELS, scores, strict=True):
                yield Figure(f"{name}: {way}, {label}", value, bars.get(way) if label == "nDCG@10" else None)
    with tempfile.TemporaryDirectory() as folder:
        shown = anyio.run(searching.measure, Path(folder), LocalEmbedder())
    name = f"search by words and likeness: right entry among {searching.SHOWN} shown"
    yield Figure(name, shown.shown, searching.SHOWN_BY_BOTH_BAR)


def of_facts() -> Iterator[Figure]:
    """Updates of real entries through the fact store, with a model that always names the most alike fact."""
    with tempfile.TemporaryDirectory() as folder:
        found = anyio.run(superseding.measure, Path(folder))
    yield Figure("facts: updates that retire what they replace", found.right / found.updates, superseding.RIGHT_BAR)
    yield Figure("facts: the same, of", found.updates)
    yield Figure(
        "facts: proposals that spare all of another subject, share",
        1 - found.wrong / found.proposed,
        1 - superseding.WRONG_BAR,
    )
    yield Figure("facts: wrong retirements among them", found.wrong)
    yield Figure(
        "facts: unrelated facts that are spared, share", 1 - found.retired / found.unrelated, 1 - superseding.WRONG_BAR
    )
    yield Figure("facts: unrelated facts that are retired", found.retired)


def of_extraction() -> Iterator[Figure]:
    """Nuggets and facts of real exchanges, by the endpoint that is configured, or by rules."""
    found = anyio.run(extracting.measure)
    yield Figure("extraction: conversations", found.conversations)
    yield Figure("extraction: replies that fit the schema, share", found.valid / found.conversations, 0.95)
    yield Figure("extraction: texts that give nobody away, share", float(not found.leaks), 1.0)
    yield Figure("extraction: texts with an id, or a name of who wrote or is addressed, in them", len(found.leaks))
    yield Figure("extraction: texts with a name of who is addressed, and was never captured", found.strangers)
    yield Figure("extraction: texts with a word that anybody of the channel is called", found.named)
    yield Figure(
        "extraction: kept nuggets whose messages are the conversation's, all", float(not found.invalid_ids), 1.0
    )
    yield Figure("extraction: ids that were made up, and left out", found.dropped_ids)
    yield Figure("extraction: nuggets a conversation", found.nuggets / found.conversations)
    yield Figure("extraction: facts a conversation", found.facts / found.conversations)


def of_backtest() -> Iterator[Figure]:
    """A community's history, asked again question by question: IRC logs as exports, with rules and words alone."""
    with tempfile.TemporaryDirectory() as folder:
        found = anyio.run(backtesting.measure, Path(folder))
    totals, verdicts = found.done.totals, found.done.totals.verdicts
    yield Figure("backtest: questions asked", totals.questions)
    yield Figure("backtest: of these, answered by the team", totals.team_answered)
    for verdict in ("agreed", "differed", "not_comparable", "team_silent", "silent", "could_not_look"):
        yield Figure(f"backtest: {verdict.replace('_', ' ')}", verdicts.get(verdict, 0))
    yield Figure("backtest: conversations learned", found.done.learned.conversations)
    yield Figure("backtest: questions a second of CPU", totals.questions / found.cpu_seconds)
    yield Figure("backtest: CPU seconds", found.cpu_seconds)
    yield Figure(
        "backtest: answers to different questions that are told apart, share",
        found.unlike / found.unrelated,
        backtesting.UNRELATED_BAR,
    )


REPORTS: tuple[Callable[[], Iterator[Figure]], ...] = (
    of_import,
    of_search,
    of_retrieval,
    of_facts,
    of_extraction,
    of_backtest,
)


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
