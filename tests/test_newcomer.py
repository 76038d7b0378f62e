"""The newcomer's check types the commands of the README, and fails if a command does."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.double.discord import DiscordDouble
from tests.newcomer import PATIENCE, FailedError, Stand, Step, _run, cloned, steps, variable
from tests.worlds.endpoint import EndpointDouble
from tests.worlds.program import program

README = Path(__file__).parents[1] / "README.md"


pytestmark = pytest.mark.on_asyncio


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path, DiscordDouble(check=False), EndpointDouble())


def test_it_types_every_line_of_the_sh_blocks_in_their_order_and_nothing_else() -> None:
    text = (
        "a\n```sh\nmake demo\n# comment\nintern init  # another\n```\n```python\nx = 1\n```\n```sh\nintern run\n```\n"
    )
    assert list(steps(text)) == [Step("make demo", 3), Step("intern init", 5), Step("intern run", 11)]


def test_the_readme_takes_a_newcomer_from_the_demo_to_a_running_bot() -> None:
    typed = [step.command for step in steps(README.read_text(encoding="utf-8"))]
    assert typed[0] == "make demo"
    assert typed[-1] == ".venv/bin/intern run"


async def test_a_command_that_fails_fails_the_check_and_says_where(stand: Stand) -> None:
    with pytest.raises(
        FailedError, match=r"line 7: `sh -c 'echo no such thing; exit 3'` ends with exit code 3:\nno such"
    ):
        await _run(Step("sh -c 'echo no such thing; exit 3'", 7), stand, {"PATH": "/usr/bin:/bin"})
    await _run(Step("true", 8), stand, {"PATH": "/usr/bin:/bin"})


async def test_a_command_that_ends_well_and_does_not_show_what_it_is_for_fails_the_check(stand: Stand) -> None:
    silent, at_work = (f"sh -c 'cat > typed; echo {said}' try" for said in ("it stays silent", '"(\\`kb:lamp.md\\`)"'))
    with pytest.raises(FailedError, match=r"line 7: .* does not show `kb:lamp\\.md`:\nit stays silent"):
        await _run(Step(silent, 7), stand, {"PATH": "/usr/bin:/bin"})
    await _run(Step(at_work, 8), stand, {"PATH": "/usr/bin:/bin"})
    assert "lamp" in (stand.clone / "typed").read_text()


async def test_a_command_that_does_not_end_fails_the_check(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PATIENCE, "tail", 0.05)
    with pytest.raises(FailedError, match="does not end"):
        await _run(Step("tail -f /dev/null", 7), stand, {"PATH": "/usr/bin:/bin"})


async def test_what_only_people_have_is_replaced_by_the_doubles(tmp_path: Path) -> None:
    async with DiscordDouble(check=False) as discord, EndpointDouble().serving() as endpoint:
        stand = Stand(tmp_path, discord, endpoint)
        token = variable("export INTERN__DISCORD__TOKEN=…", stand)
        address = variable("export INTERN__LLM__BASE_URL=http://localhost:8080/v1", stand)
        assert token == ("INTERN__DISCORD__TOKEN", discord.token)
        assert address == ("INTERN__LLM__BASE_URL", endpoint.base_url)
        assert variable("export INTERN__LLM__MODEL='my model'", stand) == ("INTERN__LLM__MODEL", "my model")
        assert variable("make demo", stand) is None


@pytest.mark.rest
@pytest.mark.skipif(not (README.parent / ".git").exists(), reason="there is nothing to clone outside of a repository")
def test_the_clone_holds_what_is_there_now_and_nothing_that_git_ignores(tmp_path: Path) -> None:
    cloned(tmp_path / "clone")
    assert (tmp_path / "clone" / "README.md").read_bytes() == README.read_bytes()
    assert (tmp_path / "clone" / "Makefile").is_file()
    assert not (tmp_path / "clone" / ".venv").exists()


# Finding B10.
@pytest.mark.rest
@pytest.mark.skipif(not (README.parent / ".git").exists(), reason="there is nothing to clone outside of a repository")
def test_a_bot_in_a_clone_keeps_its_data_there_unseen_by_git_and_reads_no_file_of_it(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    cloned(clone)
    assert [path.name for path in clone.glob("data/*")] == ["README.md"]
    git = partial(subprocess.run, ["git", "status", "--porcelain", "--ignored", "--untracked-files=all"])
    status = partial(git, cwd=clone, check=True, capture_output=True, text=True)
    before = status().stdout.splitlines()
    bare = {"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"}
    bare |= {"INTERN__LLM__PROVIDER": "offline", "INTERN__EMBEDDINGS__PROVIDER": "none"}
    for command in (["init"], ["index"], ["status", "--sources", "--json"]):
        done = subprocess.run(program(*command), cwd=clone, capture_output=True, text=True, env=bare, check=True)
    assert "README" not in done.stdout
    assert "sample" not in done.stdout
    new = {line.partition(" ") for line in status().stdout.splitlines() if line not in before}
    assert {(mark, path.partition("/")[0]) for mark, _, path in new} == {("!!", "data"), ("!!", "intern.toml")}
