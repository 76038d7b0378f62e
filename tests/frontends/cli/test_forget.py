"""`intern forget`: what it says, what it asks before, and how it ends, with and without a bot at work."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from intern.core.ids import UserId
from intern.service.opening import open_intern
from intern.settings.loading import load_settings
from tests.frontends.cli.conftest import Intern, environment
from tests.frontends.cli.test_ask_and_index import bot
from tests.wording import Wording
from tests.worlds import samples
from tests.worlds.clock import HandClock
from tests.worlds.program import program

MEMBER = UserId("501")
QUESTION = "How do I purge the spool without losing agents?"


async def _taught() -> None:
    async with open_intern(load_settings(), clock=HandClock()) as door:
        capture = samples.capture(QUESTION, "Stop them with `lumen drain` first, then purge.")
        await door.capture(replace(capture, author_ids=(MEMBER, *(UserId("900") for _ in capture.message_ids[1:]))))
        await door.capture(samples.capture("Where does the relay keep its certificates?", "Below `/etc/lumen`.", n=5))


def holding(text: str) -> set[str]:
    return {str(path) for path in Path("data").rglob("*") if path.is_file() and text.encode() in path.read_bytes()}


def test_a_member_is_forgotten_and_who_may_be_them_is_named(intern: Intern) -> None:
    anyio.run(_taught)
    code, out, err = intern("forget", "--user", MEMBER)
    assert (code, out) == (0, "")
    assert err.startswith("1 messages in 1 captures; topics changed: 1\n1 captures do not say who wrote in them")
    assert {path for path in holding("spool without losing") if "intern.db" not in path} == {
        str(path) for path in Path("data/team-knowledge/raw").iterdir()
    }


def test_erased_it_is_nowhere_and_json_is_one_object(intern: Intern) -> None:
    anyio.run(_taught)
    code, out, _ = intern("forget", "--user", MEMBER, "--erase", "--yes", "--json")
    assert code == 0
    assert json.loads(out)["erased"] == {"captures": 1, "gone": 0, "messages": 1, "damaged": 0}
    assert holding("spool without losing") == set()
    # The other one is answered as before.
    assert "/etc/lumen" in intern("ask", "Where does the relay keep its certificates?").out


def test_nobody_s_id_was_not_found_and_that_is_1(intern: Intern, wording: Wording) -> None:
    anyio.run(_taught)
    code, out, err = intern("forget", "--message", "4711", "--message", "4712")
    assert (code, out) == (1, "")
    wording(err)


def test_what_cannot_be_looked_up_is_3(intern: Intern) -> None:
    anyio.run(_taught)
    [week] = Path("data/team-knowledge/raw").iterdir()
    week.rename(week.with_suffix(".kept"))
    week.symlink_to(week.name)  # leads nowhere but to itself
    Path("data/team-knowledge/decisions.jsonl").unlink()
    Path("data/team-knowledge/decisions.jsonl").mkdir()
    code, out, err = intern("forget", "--user", MEMBER)
    assert (code, out) == (3, "")
    assert "could not be read" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to forget"),
        (["--user", "1", "--message", "2"], "say what to forget"),
        (["--user", "@ann"], "is no id"),
        (["--user", "abc"], "'abc' is no id"),
        (["--message", "abc"], "'abc' is no id"),
        (["--user", "1", "--erase"], "--erase cannot be undone: without a terminal, confirm it with --yes"),
    ],
)
def test_wrong_use_is_2_and_changes_nothing(intern: Intern, arguments: list[str], said: str) -> None:
    code, out, err = intern("forget", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert not Path("data/team-knowledge/decisions.jsonl").exists()


@pytest.mark.rest
@pytest.mark.usefixtures("sources")
async def test_the_bot_that_holds_the_folder_does_it_and_goes_on_with_what_is_left() -> None:
    await _taught()
    async with bot():
        asked = program("forget", "--user", MEMBER, "--erase", "--yes")
        done = await anyio.run_process(asked, env=environment(), check=False)
        assert done.returncode == 0, done.stderr
        assert holding("spool without losing") == set()
        question = program("ask", "Where does the relay keep its certificates?")
        left = await anyio.run_process(question, env=environment(), check=False)
        assert b"/etc/lumen" in left.stdout
