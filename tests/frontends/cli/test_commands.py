"""The command line as a whole: its help, its exit codes, and what becomes of its output."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import click
import pytest

from intern import __version__
from intern.frontends.cli import COMMANDS, cli
from intern.frontends.cli.output import printable
from tests.frontends.cli.conftest import Intern, environment, process
from tests.wording import Wording
from tests.worlds.program import program

HEAVY = ("anyio", "hikari", "httpx", "msgspec", "jinja2", "structlog", "apsw", "aiohttp", "asyncio", "prompt_toolkit")


def test_help_lists_every_command_and_imports_none_of_them() -> None:
    code = (
        "import sys\nfrom intern.frontends.cli import main\ntry: main()\nfinally:\n"
        "    print(*sorted(sys.modules), sep='\\n', file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=True,
    )
    imported = set(done.stderr.splitlines())
    assert "intern.frontends.cli" in imported
    assert imported.isdisjoint(HEAVY)
    assert imported.isdisjoint(f"intern.frontends.cli.{module}" for module, _ in COMMANDS.values())
    for name, (_, text) in COMMANDS.items():
        assert f"{name} " in done.stdout
        assert text in done.stdout


@pytest.mark.rest
def test_a_command_s_own_help_opens_no_database() -> None:
    code = (
        "import sys\nfrom intern.frontends.cli import main\ntry: main()\nfinally:\n"
        "    print('apsw' in sys.modules, file=sys.stderr)"
    )
    arguments = [sys.executable, "-c", code, "facts", "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment(), timeout=60, check=True)
    assert done.stderr.splitlines() == ["False"]


@pytest.mark.rest
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_s_own_help_begins_with_what_the_list_says(name: str) -> None:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    assert found.name == name
    assert found.help is not None
    assert found.help.splitlines()[0] == COMMANDS[name][1]


def test_the_version_is_told(intern: Intern) -> None:
    assert intern("--version") == (0, f"intern, version {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["frob"], "No such command 'frob'"),
        (["serach"], "No such command 'serach'. Did you mean 'search'?"),
        (["init_team_kb"], "No such command 'init_team_kb'. Here it is: intern regenerate"),
        (["topics", "lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["help", "serach"], "Did you mean 'search'?"),
        (["help", "index", "list"], "intern index has no commands of its own"),
        (["completion", "tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
        (["--frob"], "No such option"),
        (["ask"], "Missing argument 'QUESTION'"),
        (["ask", "  "], "the question is empty"),
        (["index", "more"], "unexpected extra argument"),
        (["try", "nowhere"], "'nowhere' does not exist"),
        ([], "Usage: intern"),
    ],
)
def test_wrong_use_ends_with_2(intern: Intern, arguments: list[str], said: str) -> None:
    code, out, err = intern(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("names", [(), ("search",), ("topics", "show")], ids=" ".join)
def test_help_is_a_command_too(intern: Intern, names: tuple[str, ...]) -> None:
    assert intern("help", *names) == intern(*names, "--help")


def test_a_part_of_a_group_names_the_exit_codes_of_its_group(intern: Intern) -> None:
    told = " ".join(intern("facts", "list", "--help").out.split())
    assert told.endswith("or the beginning of several; 3 where something cannot be read or written.")


@pytest.mark.rest
@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_tells_the_exit_codes(intern: Intern, name: str) -> None:
    shown = intern(name, "--help").out
    assert "Exit code 0" in " ".join(shown.split())
    assert "\\b" not in shown


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("group", ["topics", "archive", "facts", "nuggets", "review"])
def test_a_group_lists_by_default_and_says_on_stderr_that_its_list_is_empty(intern: Intern, group: str) -> None:
    code, out, err = intern(group)
    assert (code, out, err.count("\n")) == (0, "", 1)
    assert intern(group, "--json") == intern(group, "list", "--json") == (0, "[]\n", "")


def test_python_runs_the_package() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "intern", "--version"], capture_output=True, env=environment(), timeout=60, check=True
    )
    assert done.stdout.decode() == f"intern, version {__version__}\n"


def test_a_shell_completes_commands_by_what_completion_prints(intern: Intern, monkeypatch: pytest.MonkeyPatch) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert f"_INTERN_COMPLETE={shell}_complete" in intern("completion", shell).out
    for name, value in (("_INTERN_COMPLETE", "bash_complete"), ("COMP_WORDS", "intern topics h"), ("COMP_CWORD", "2")):
        monkeypatch.setenv(name, value)
    assert intern() == (0, "plain,history\n", "")


@pytest.mark.parametrize("arguments", [["run"], ["index"], ["ask", "How?"], ["regenerate"], ["try", "--play"]])
def test_a_wrong_setting_ends_with_2_and_one_line(intern: Intern, arguments: list[str]) -> None:
    Path("intern.toml").write_text("[llm]\nmax_retries = -1\n")
    line = "intern: intern.toml: llm.max_retries: expected a whole number of at least 0\n"
    assert intern(*arguments) == (2, "", line)


_MADE_BY = {"run", "try", "init", "index", "import", "import-notes", "restore"}
"""Commands that make a data folder."""
_WITHOUT = {"doctor", "models", "prompts", "backtest", "completion", "help"}
"""Commands that work without one: to say that there is none, or because they need none."""


@pytest.mark.rest
@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["status", "--sources"],
        ["backup", "copy.db"],
        ["export", "copy"],
        ["move", "data/intern.db", "other.db"],
        ["topics"],
        ["topics", "show", "ports"],
        ["topics", "adopt", "ports"],
        ["archive"],
        ["archive", "show", "qa_20260201_031056"],
        ["facts"],
        ["facts", "search", "port"],
        ["facts", "retire", "7", "--why", "old"],
        ["nuggets"],
        ["nuggets", "show", "7"],
        ["review"],
        ["review", "reject", "qa_20260201_031056"],
        ["ask", "Which port?"],
        ["search", "port"],
        ["eval", "questions.jsonl"],
        ["why"],
        ["replay", "--since", "2026-01-01"],
        ["calibrate"],
        ["discover"],
        ["discover", "--once"],
        ["regenerate"],
        ["regenerate", "--dry-run"],
        ["retry"],
        ["forget", "--user", "7"],
        ["index"],
        ["page"],
        ["community"],
        ["community", "delete", "rust", "--yes"],
    ],
    ids=" ".join,
)
def test_where_there_is_no_data_folder_a_command_ends_with_2_and_makes_nothing(
    intern: Intern, folder: Path, arguments: list[str]
) -> None:
    (folder / "questions.jsonl").write_text('{"question": "Which port?"}\n')
    (folder / "other").mkdir()
    for data in ("data", "other", "questions.jsonl"):
        (folder / "intern.toml").write_text(f'[data]\ndir = "{data}"\n')
        code, out, err = intern(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith(f"intern: there is no data folder here: {folder / data} is not there, or holds nothing")
        assert sorted(each.name for each in folder.rglob("*")) == ["intern.toml", "other", "questions.jsonl"]


def test_every_command_is_tried_without_a_data_folder() -> None:
    [tried] = (
        mark.args[1]
        for mark in test_where_there_is_no_data_folder_a_command_ends_with_2_and_makes_nothing.pytestmark  # type: ignore[attr-defined]
        if mark.name == "parametrize"
    )
    assert {name for name, *_ in tried} | _MADE_BY | _WITHOUT == set(COMMANDS)


def test_config_names_the_settings(intern: Intern) -> None:
    Path("other.toml").write_text("[llm]\nmax_retries = -1\n")
    assert intern("--config", "other.toml", "index").err.startswith("intern: other.toml: llm.max_retries")
    assert intern("--config", "gone.toml", "index").err.startswith("intern: gone.toml: there is no such file")


@pytest.mark.rest
@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({}, "discord.token"),
        pytest.param({"INTERN__DISCORD__TOKEN": "x.y.z"}, "discord.guild_ids", marks=pytest.mark.rest),
        pytest.param(
            {"INTERN__DISCORD__TOKEN": "x.y.z", "INTERN__DISCORD__GUILD_IDS": '["1"]'},
            "llm.base_url",
            marks=pytest.mark.rest,
        ),
    ],
)
def test_a_run_asks_for_what_it_cannot_guess(settings: dict[str, str], key: str) -> None:
    code, out, err = process("run", env=settings)
    assert (code, out) == (2, "")
    assert err.startswith(f"intern: {key} is not set: ")
    assert err.count("\n") == 1
    assert "x.y.z" not in err


@pytest.mark.rest
def test_a_model_that_no_price_names_is_warned_of_where_the_log_is_shown(folder: Path) -> None:
    (folder / "intern.toml").write_text(
        "[log]\nformat = 'json'\n[llm]\nbase_url = 'http://127.0.0.1:9/v1'\nmodel = 'm'\n"
        "prices = [{ model = 'M', input = 1, output = 2 }]"
    )
    warned, asked = process("run").err.splitlines()
    assert json.loads(warned)["event"] == "setting_without_effect"
    assert "[[llm.prices]] does not name the model of [llm]" in warned
    assert asked.startswith("intern: discord.token is not set")
    (folder / "data" / "team-knowledge").mkdir(parents=True)
    assert process("status").err == ""


# Finding B6.
@pytest.mark.rest
def test_a_setting_that_has_no_effect_is_warned_of_where_the_log_is_shown(folder: Path) -> None:
    (folder / "intern.toml").write_text("[ai]\nmax_sources = 2\nmax_passage_chars = 4000\n")
    assert re.findall(r"ai\.\w+", process("run").err) == ["ai.max_sources", "ai.steps"]


def test_a_broken_line_of_a_dotenv_file_ends_with_2_and_one_line(intern: Intern, folder: Path) -> None:
    (folder / ".env").write_text("\nINTERN__DISCORD__TOKEN='cAnArY\n")
    code, out, err = intern("run")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("intern: .env: line 2: expected NAME=value")
    assert "cAnArY" not in err


@pytest.mark.rest
def test_a_reader_that_has_seen_enough_is_no_error(sources: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" | head -n 1', "sh", *program("try", "--play")],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    assert done.stdout.startswith("#general")
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.rest
@pytest.mark.parametrize("arguments", [["try", "--play"], ["ask", "Which port does the relay use?", "--json"]])
def test_a_closed_pipe_ends_quietly_with_0(sources: Path, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            program(*arguments),
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            timeout=60,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.rest
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        *(pytest.param(each, marks=pytest.mark.rest) for each in (["try", "--play"], ["ask", "How?", "--json"])),
    ],
)
@pytest.mark.usefixtures("made")
def test_a_full_disk_behind_stdout_ends_with_3_and_one_line(arguments: list[str], wording: Wording) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            program(*arguments),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            timeout=60,
            check=False,
        )
    assert done.returncode == 3
    wording(done.stderr)


@pytest.mark.rest
def test_an_output_that_is_not_utf_8_gets_escapes_rather_than_a_traceback(intern: Intern, sources: Path) -> None:
    (sources / "cafe.md").write_text("# Café\n\nThe café “Lumen” closes at 18 o'clock – sharp.\n", encoding="utf-8")
    assert intern("index").code == 0
    code, out, err = process("ask", "When does the café Lumen close?", env={"PYTHONIOENCODING": "ascii"})
    assert code == 0, err
    assert r"caf\xe9" in out
    # Output for scripts is always UTF-8.
    code, out, err = process("ask", "When does the café Lumen close?", "--json", env={"PYTHONIOENCODING": "ascii"})
    assert code == 0, err
    assert "café" in out


def test_what_a_terminal_would_act_on_is_written_out() -> None:
    assert printable("a\x1b]0;title\x07b\r\x9b") == r"a\x1b]0;title\x07b\r\x9b"
    assert printable("\tline\nnext – “ok” 👩‍🔧\xa0") == "\tline\nnext – “ok” 👩‍🔧\xa0"


@pytest.mark.rest
@pytest.mark.parametrize("inherited", [signal.SIG_DFL, signal.SIG_IGN])
def test_ctrl_c_at_the_prompt_ends_at_once_with_130(inherited: signal.Handlers) -> None:
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGINT, inherited)
        os.execve(sys.executable, program("try"), environment(TMPDIR=str(Path.cwd())))
    try:
        shown = b""
        while b"/help" not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, b"/why\n")
        while b"there was no question yet" not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, b"\x03")
        with suppress(OSError):  # a terminal with its other end closed raises this
            while more := os.read(terminal, 4096):
                shown += more
        _, status = os.waitpid(child, 0)
        child = 0
    finally:
        os.close(terminal)
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert b"Traceback" not in shown
    assert [path for path in Path.cwd().iterdir() if path.name.startswith("intern-")] == []
