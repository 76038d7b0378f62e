"""Benchmarks: the stored data of a run, the comparison of two, and the handling of one that fails."""

from __future__ import annotations

import subprocess
import sys
from math import inf
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, RESULTS, reason
from benchmarks.compare import main as compare
from benchmarks.figures import Figure, Run, change, load, save, table

FIGURES = (
    Figure("a question, CPU", 8.5, "ms", 10),
    Figure("a question, calls", 4, "", inf),
    Figure("memory", 120, "MB", 100),
    Figure("right answers, share", 0.842, "", least=0.8),
    Figure("right sources, share", 0.7, "", least=0.75),
)


def run_of(*figures: Figure, at: str = "2026-02-01T03:10", **missing: str) -> Run:
    return Run.of(
        figures,
        at=at,
        machine={"processor": "a plain one"},
        versions={"Python": "3.11"},
        load=0.5,
        commit="abc",
        missing=missing,
    )


def test_a_run_that_is_kept_is_the_same_when_it_is_read(tmp_path: Path) -> None:
    run = run_of(*FIGURES, searching="it took longer than 5 s")
    path = save(run, tmp_path / "results")
    assert path.name == "2026-02-01T0310.json"
    assert load(path) == run
    assert load(path).all == list(FIGURES)


def test_two_figures_of_one_name_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="same name"):
        run_of(FIGURES[0], FIGURES[0])


def test_the_table_shows_every_figure_with_its_bar_and_names_what_is_over() -> None:
    lines = list(table(run_of(*FIGURES, searching="it took longer than 5 s")))
    assert "a plain one" in lines[0]
    assert any(line.split() == ["a", "question,", "CPU", "8.50", "ms", "bar", "10"] for line in lines)
    assert any(line.split() == ["right", "answers,", "share", "0.842", "at", "least", "0.800"] for line in lines)
    assert [line for line in lines if "OVER" in line] == [line for line in lines if line.startswith("memory")]
    assert [line for line in lines if "UNDER" in line] == [line for line in lines if line.startswith("right sources")]
    assert [figure.name for figure in FIGURES if not figure.holds] == ["memory", "right sources, share"]
    assert lines[-1] == "searching: not measured: it took longer than 5 s"


def test_the_change_of_each_figure_is_told_and_what_came_and_went() -> None:
    old = run_of(Figure("a", 10, "ms", 20), Figure("b", 1, "", inf), Figure("c", 5, "s", inf))
    new = run_of(
        Figure("a", 25, "ms", 20), Figure("b", 1, "", least=2), Figure("d", 2, "s", inf), at="2026-03-01T03:10"
    )
    lines = [line.split() for line in change(old, new)]
    assert ["a", "10", "25", "ms", "+150%", "OVER"] in lines
    assert ["b", "1", "1", "=", "UNDER"] in lines
    assert ["d", "2", "s", "new"] in lines
    assert ["c", "5", "gone"] in lines


def test_runs_are_compared_by_name_and_by_default_the_last_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare([], tmp_path) == 2
    for month, value in enumerate((1.0, 2.0, 4.0), 1):
        save(run_of(Figure("a", value, "s", inf), at=f"2026-0{month}-01T03:10"), tmp_path)
    assert compare([], tmp_path) == 0
    assert "+100%" in capsys.readouterr().out
    assert compare(["2026-01", "2026-03"], tmp_path) == 0
    assert "+300%" in capsys.readouterr().out
    assert compare(["2026"], tmp_path) == 2
    assert "names 3 of" in capsys.readouterr().err


def test_why_a_benchmark_gave_no_figures_is_told_in_a_line() -> None:
    command = [sys.executable, "-c", "raise SystemExit(7)", "searching", "--bare"]
    with pytest.raises(subprocess.CalledProcessError) as broken:
        subprocess.run(command, check=True)
    assert reason(broken.value) == "it ended with exit code 7; `python -m benchmarks searching` shows the error"
    assert reason(subprocess.TimeoutExpired(command, 5)) == "it took longer than 5 s"


def test_every_benchmark_is_a_module_and_every_module_that_measures_is_run() -> None:
    modules = {
        path.stem for path in RESULTS.parent.glob("*.py") if "\ndef measure(" in path.read_text(encoding="utf-8")
    }
    assert modules == set(BENCHMARKS)


def test_every_run_that_is_kept_can_be_read() -> None:
    for path in RESULTS.glob("*.json"):
        assert load(path).figures, path.name
