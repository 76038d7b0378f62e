"""The sixty cases over the sample documents, asked of a real model: `python -m tests.model.answers`.

INTERN_TEST_GGUF names the weights to serve; INTERN_TEST_BASE_URL, instead, a server that runs already. What else can
be set: INTERN_TEST_STEPS (fused, separate), INTERN_TEST_VERIFY (always, unsure), INTERN_TEST_CASES (names with commas
between them, or n for each n-th), INTERN_TEST_THREADS (1), INTERN_TEST_REPORT (a file for the figures, as JSON).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from msgspec import Struct

from intern.core import log
from tests.model.serving import serving
from tests.sample.asking import Outcome, Say, ask_each, line_of, report_of, sample_settings, table_of
from tests.sample.cases import CASES, Case

CONTEXT = 8192


class Run(Struct, frozen=True, kw_only=True):
    """Which model is asked what, and how."""

    weights: Path | None
    base_url: str
    model: str
    threads: int
    cases: tuple[Case, ...]
    steps: str
    verify: str
    report: Path | None


def run_of(environ: Mapping[str, str]) -> Run:
    """What the environment asks for. Exits where it names no model."""
    named, base_url = environ.get("INTERN_TEST_GGUF", ""), environ.get("INTERN_TEST_BASE_URL", "")
    if not named and not base_url:
        raise SystemExit("set INTERN_TEST_GGUF to a file of weights, or INTERN_TEST_BASE_URL to a running server")
    report = environ.get("INTERN_TEST_REPORT", "")
    return Run(
        weights=Path(named).expanduser() if named else None,
        base_url=base_url,
        model=Path(named).stem if named else "local",
        threads=int(environ.get("INTERN_TEST_THREADS", "1")),
        cases=chosen(environ.get("INTERN_TEST_CASES", "")),
        steps=environ.get("INTERN_TEST_STEPS") or "fused",
        verify=environ.get("INTERN_TEST_VERIFY", "always"),
        report=Path(report).expanduser() if report else None,
    )


def chosen(wanted: str) -> tuple[Case, ...]:
    """The cases of these names, or each n-th; all where nothing is said. Exits where there is no such name."""
    if not wanted or wanted.isdecimal():
        return CASES[:: int(wanted or 1)]
    named = {case.name: case for case in CASES}
    names = [name.strip() for name in wanted.split(",")]
    if unknown := [name for name in names if name not in named]:
        raise SystemExit(f"INTERN_TEST_CASES: there is no {', '.join(unknown)}; there are {', '.join(named)}")
    return tuple(named[name] for name in names)


async def ask_model(run: Run, folder: Path, say: Say) -> list[Outcome]:
    """Ask, and say the figures. `folder` must be empty."""
    with _server(run, folder / "server.log") as base_url:
        options = {"steps": run.steps, "verify": run.verify}
        settings = sample_settings(
            folder / "data",
            ai={"request_timeout_seconds": 1200, **options},
            llm={
                "base_url": base_url,
                "model": run.model,
                "max_tokens": 800,
                "timeout_seconds": 600,
                "max_in_flight": 1,
                "max_retries": 1,
            },
        )
        say(f"\n{run.model}, {len(run.cases)} cases, steps: {run.steps}, verify: {run.verify}")

        def tell(outcomes: Sequence[Outcome]) -> None:
            say(line_of(outcomes[-1]))
            if run.report is not None:  # each time: a run may be stopped
                run.report.write_bytes(report_of(outcomes, model=run.model, **options))

        outcomes = await ask_each(run.cases, settings, tell)
    say(table_of(outcomes))
    return outcomes


def is_whole(outcomes: Sequence[Outcome]) -> bool:
    """Whether all cases were asked: the bars are for these."""
    return len(outcomes) == len(CASES)


@contextmanager
def _server(run: Run, errors: Path) -> Generator[str]:
    if run.base_url or run.weights is None:
        yield run.base_url
    else:
        with serving(run.weights, template=None, log=errors, threads=run.threads, context=CONTEXT) as base_url:
            yield base_url


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    log.configure_logging(level="warning")
    with TemporaryDirectory() as made:
        anyio.run(ask_model, run_of(os.environ), Path(made), _say)
