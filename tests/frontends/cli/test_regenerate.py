"""`intern regenerate`: what it would cost, how far it is, and what is parked."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from intern.service.opening import open_intern
from intern.settings.loading import load_settings
from tests.frontends.cli.conftest import Intern
from tests.worlds import samples
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import endpoint_double, refuse


async def _taught() -> None:
    async with open_intern(load_settings(environ={}), clock=HandClock()) as door:
        for n in range(4):
            await door.capture(samples.capture(f"How do I purge spool number {n}?", f"Purge it {n} times.", n=n))


def _everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.rest
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
    assert "the topics stay as they were. See to the model" in err
    assert err.count("\n") == 1
    assert _everything(folder / "data" / "team-knowledge" / "topics") == topics
