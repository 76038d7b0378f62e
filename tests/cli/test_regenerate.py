"""`intern regenerate`: what it would cost, how far it is, and what is parked."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import anyio
import pytest

from intern.app import open_intern
from intern.cli.progress import ProgressTeller, bar, in_words
from intern.learning.regenerating import Progress
from intern.settings import load_settings
from tests import samples
from tests.cli.conftest import Intern
from tests.endpoint_double import endpoint_double, refuse
from tests.fakes import HandClock


async def _taught() -> None:
    async with open_intern(load_settings(environ={}), clock=HandClock()) as door:
        for n in range(4):
            await door.capture(samples.capture(f"How do I purge spool number {n}?", f"Purge it {n} times.", n=n))


def _everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_a_dry_run_says_what_it_costs_and_changes_nothing(intern: Intern, folder: Path) -> None:
    anyio.run(_taught)
    with endpoint_double() as endpoint:
        Path("intern.toml").write_text(f'[llm]\nbase_url = "{endpoint.base_url}"\nmodel = "double"\n')
        before = _everything(folder)
        code, out, err = intern("regenerate", "--dry-run")
        assert (code, out) == (0, "")
        assert err.startswith("4 captures of 4 conversations: about ")
        found = json.loads(intern("regenerate", "--dry-run", "--json").out)
        assert endpoint.requests == []
        assert _everything(folder) == before

        done = json.loads(intern("regenerate", "--json").out)
    assert (found["pairs"], found["conversations"], found["decided"]) == (4, 4, 0)
    assert abs(found["calls"] - done["calls"]) <= 2
    # The endpoint counts no schema, and we know no tokenizer.
    assert 0.7 < found["tokens"] / done["tokens"] < 2


def test_a_dry_run_of_nothing_makes_nothing(intern: Intern, made: Path) -> None:
    assert intern("regenerate", "--dry-run") == (0, "", "0 captures of 0 conversations: no model asked\n")
    assert list(made.rglob("*")) == [made / "team-knowledge"]


def test_a_refusing_model_keeps_the_old_library_and_says_what_to_do(intern: Intern, folder: Path) -> None:
    anyio.run(_taught)
    topics = _everything(folder / "data" / "team-knowledge" / "topics")
    with endpoint_double(lambda _: refuse(400, says="bad format")) as endpoint:
        Path("intern.toml").write_text(f'[llm]\nbase_url = "{endpoint.base_url}"\nmodel = "double"\n')
        code, out, err = intern("regenerate")
    assert (code, out) == (3, "")
    assert err.startswith("intern: 4 of 4 conversations failed, the last one so: ")
    assert "the model refused classify" in err
    assert "stays as it was. See to the model" in err
    assert err.count("\n") == 1
    assert _everything(folder / "data" / "team-knowledge" / "topics") == topics


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def _progress(classified: int, decided: int) -> Progress:
    return Progress(classified=classified, decided=decided, total=100, calls=classified + decided, tokens=9000)


@pytest.mark.parametrize(("stream", "told"), [(Terminal(), 4), (StringIO(), 1)])
def test_a_terminal_gets_a_bar_and_a_log_a_line_now_and_then(stream: StringIO, told: int) -> None:
    now = 0.0
    tell = ProgressTeller(stream, lambda: now)
    for n in range(5):
        now = n * 5.0
        tell(_progress(20 + n, n))
    tell.end()
    text = stream.getvalue()
    assert text.count("conversations") == told
    assert (
        text.startswith("\r[##")
        if told == 4
        else text == "3 of 100 conversations, 12 a minute, 26 calls, 9000 tokens\n"
    )
    assert text.endswith("\r\x1b[K" if told == 4 else "\n")


def test_half_of_the_bar_is_for_classifying() -> None:
    assert bar(_progress(100, 0)) == f"[{'#' * 12}{' ' * 12}]"
    assert bar(_progress(100, 100)) == f"[{'#' * 24}]"
    nothing = Progress(classified=0, decided=0, total=0, calls=0, tokens=0)
    assert in_words(nothing, nothing, 0) == "0 of 0 conversations"
