"""Questions over other projects' real documentation, as a user asks: `intern index`, `ask` and `search`, offline.

Nothing was fitted on these sets (`answering.closest_passage.SURE`). The bars are goals, not the present figures.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks.figures import Figure
from intern.search.embedding_local import is_english_installed
from tests.eval.chats import EVAL

QUESTIONS = EVAL.parent / "questions"
CACHE = Path(__file__).parent.parent / ".cache" / "documents"
LEAST_RIGHT = {True: 24, False: 16}
"""Right answers of 48, with vectors and by words alone."""
MOST_WRONG = {True: 5, False: 4}
MOST_ANSWERED = 1
"""Wrong answers of the 12 questions that no document covers."""
LEAST_FOUND = {True: 44, False: 0}
"""The right file among the first three results, of 48."""


class Row(Struct):
    """The outcome of one question."""

    id: str
    verdict: str
    file_found: bool | None = None
    """Whether the right file was found; None for a question that no document covers."""


def measure() -> Iterator[Figure]:
    """Return the figures, or none without the questions or the embedder."""
    if not QUESTIONS.is_dir() or not is_english_installed():
        print(f"documents is not measured: it needs {QUESTIONS}, and the extra embeddings", file=sys.stderr)
        return
    for vectors, way in ((True, ""), (False, ", by words alone")):
        rows = _ask(*(["--vectors"] if vectors else []))
        covered = [row for row in rows if row.file_found is not None]
        verdicts = [row.verdict for row in covered]
        answered = sum(row.verdict == "answered" for row in rows if row.file_found is None)
        found = sum(row.file_found is True for row in covered)
        yield Figure(f"right of {len(covered)}{way}", verdicts.count("right"), "", least=LEAST_RIGHT[vectors])
        yield Figure(f"wrong of {len(covered)}{way}", verdicts.count("wrong"), "", MOST_WRONG[vectors])
        yield Figure(f"answered of {len(rows) - len(covered)} not covered{way}", answered, "", MOST_ANSWERED)
        yield Figure(f"right file in the first three of {len(covered)}{way}", found, "", least=LEAST_FOUND[vectors])


def _ask(*options: str) -> list[Row]:
    """Run the questions. Raises subprocess.CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        verdicts = Path(folder) / "verdicts.json"
        program = Path(sys.executable).parent / "intern"
        command = [sys.executable, QUESTIONS / "run_realdocs.py", program, QUESTIONS / "realdocs.json", *options]
        subprocess.run([*command, "--cache", CACHE, "--json", verdicts], check=True, stdout=sys.stderr)
        return [msgspec.json.decode(line, type=Row) for line in verdicts.read_bytes().splitlines()]
