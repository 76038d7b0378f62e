"""Each exit code that a command's help promises is the one that it ends with."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import pytest

from intern.frontends.cli import COMMANDS, cli
from tests.frontends.cli.conftest import Intern
from tests.frontends.cli.test_import import export
from tests.worlds.endpoint import endpoint_double, refuse

PORT, CHESS = "Which port does the relay listen on?", "Who won the chess game in 1972?"
SETTINGS = '[llm]\nprovider = "offline"\n[embeddings]\nprovider = "none"\n'

Trouble = Callable[[], object]


def no_database() -> None:
    Path("data/intern.db").write_bytes(b"no database at all, but long enough to be taken for one" * 50)


def lost_database() -> None:
    for path in Path("data").glob("intern.db*"):
        path.unlink()


def no_data() -> None:
    shutil.rmtree("data")


def no_sources() -> None:
    Path("data/knowledge-base/sources").rename("away")


def instead_of(path: str) -> Trouble:
    """Put a file in the place of a folder, or a folder in that of a file."""

    def work() -> None:
        there = Path("data/team-knowledge") / path
        if there.is_dir():
            shutil.rmtree(there)
            there.touch()
        else:
            there.unlink()
            there.mkdir()

    return work


def no_scan_path() -> None:
    Path("intern.toml").write_text(f'{SETTINGS}[discovery]\nscan_paths = ["nowhere"]\n')


def fine() -> None:
    """Nothing is wrong."""


ENDS: Mapping[tuple[str, int], tuple[list[str], Trouble]] = {
    ("ask", 0): ([PORT], fine),
    ("ask", 1): ([CHESS], fine),
    ("ask", 3): ([PORT], no_sources),
    ("search", 0): (["port"], fine),
    ("search", 1): (["xylophone"], fine),
    ("search", 3): (["port"], no_database),
    ("try", 0): (["--play"], fine),
    ("try", 2): (["nowhere"], fine),
    ("index", 0): ([], fine),
    ("index", 2): (["more"], fine),
    ("init", 0): ([], fine),
    ("completion", 0): (["bash"], fine),
    ("completion", 2): (["tcsh"], fine),
    ("help", 0): (["topics", "show"], fine),
    ("help", 2): (["frob"], fine),
    ("regenerate", 0): ([], fine),
    ("retry", 0): ([], fine),
    ("why", 0): ([], fine),
    ("why", 2): (["qa_20000101_000000"], fine),
    ("replay", 2): (["qa_20000101_000000"], fine),
    ("calibrate", 0): ([], fine),
    ("forget", 0): (["--user", "21"], fine),
    ("import-notes", 0): (["no-notes"], fine),
    ("import", 0): (["general.json", "--team-id", "21"], fine),
    ("discover", 0): ([], fine),
    ("discover", 3): ([], no_scan_path),
    ("import", 2): (["questions.jsonl", "--team-id", "21"], fine),
    ("import-notes", 3): (["notes"], fine),
    ("doctor", 1): ([], fine),
    ("backup", 0): (["copy.db"], fine),
    ("backup", 2): (["questions.jsonl"], fine),
    ("backup", 3): (["copy.db"], no_database),
    ("community", 0): (["list"], fine),
    ("community", 2): (["show", "nobody"], fine),
    ("community", 3): (["list"], no_database),
    ("export", 0): (["copy"], fine),
    ("export", 2): (["data"], fine),
    ("export", 3): (["copy"], no_database),
    ("move", 0): (["data/intern.db", "other.db"], fine),
    ("move", 2): (["data/none.db", "other.db"], fine),
    ("move", 3): (["data/intern.db", "data/intern.toml/other.db"], no_database),
    ("restore", 0): (["data"], lost_database),
    ("restore", 2): (["data"], fine),
    ("restore", 3): (["data"], no_database),
    ("status", 0): ([], fine),
    ("status", 3): ([], no_database),
    ("topics", 0): ([], fine),
    ("topics", 2): (["show", "chess"], fine),
    ("topics", 3): ([], no_database),
    ("archive", 0): ([], fine),
    ("archive", 2): (["show", "qa_20000101_000000"], fine),
    ("archive", 3): ([], instead_of("raw")),
    ("facts", 0): ([], fine),
    ("facts", 1): (["search", "xylophone"], fine),
    ("facts", 2): (["show", "7"], fine),
    ("facts", 3): ([], no_database),
    ("nuggets", 0): ([], fine),
    ("nuggets", 2): (["show", "7"], fine),
    ("nuggets", 3): ([], no_database),
    ("page", 2): ([], no_data),
    ("page", 3): ([], no_database),
    ("prompts", 0): ([], fine),
    ("prompts", 2): (["show", "poem"], fine),
    ("eval", 0): (["questions.jsonl"], fine),
    ("eval", 2): (["general.json"], fine),
    ("eval", 3): (["questions.jsonl"], no_sources),
    ("review", 0): ([], fine),
    ("review", 2): (["reject", "qa_20000101_000000"], fine),
    ("review", 3): ([], no_database),
    ("retry", 2): (["qa_20000101_000000"], fine),
    ("forget", 1): (["--user", "7"], fine),
    ("forget", 3): (["--user", "7"], instead_of("decisions.jsonl")),
}
ELSEWHERE: Mapping[tuple[str, int], str] = {
    ("run", 0): (
        "../../process/test_ending.py"
        "::test_sigterm_leaves_an_open_batch_to_discord_s_history_and_the_next_start_captures_it"
    ),
    ("page", 0): "test_page.py::test_the_page_stands_beside_the_sandbox_and_alone_on_its_folder",
    ("replay", 0): "test_recordings.py::test_a_replay_makes_no_call_where_nothing_changed",
    ("replay", 3): "test_recordings.py::test_a_replay_without_the_model_ends_with_3",
    ("replay", 1): "test_recordings.py::test_a_replay_with_other_templates_lists_or_asks_what_they_change",
    ("run", 2): "test_commands.py::test_a_run_asks_for_what_it_cannot_guess",
    ("run", 3): "../../process/test_bad_start.py::test_a_second_bot_on_the_same_folder_is_refused",
    ("try", 1): "test_try.py::test_a_scene_that_goes_wrong_ends_with_1",
    ("try", 3): "test_try.py::test_a_folder_that_somebody_else_holds_is_refused",
    ("try", 130): "test_commands.py::test_ctrl_c_at_the_prompt_ends_at_once_with_130",
    ("index", 3): "test_ask_and_index.py::test_an_endpoint_that_refuses_ends_with_3",
    ("init", 3): "test_init.py::test_where_nothing_can_be_written_it_says_so",
    ("import", 3): "test_exit_codes.py::test_an_import_of_which_a_pair_is_parked_ends_with_3",
    ("regenerate", 3): "test_regenerate.py::test_a_refusing_model_keeps_the_old_library_and_says_what_to_do",
    ("doctor", 0): "test_doctor.py::test_the_command_ends_with_0_where_all_is_well_and_with_1_where_something_is_to_do",
    ("doctor", 3): "test_doctor.py::test_a_discord_that_is_away_is_no_finding",
    **{("models", code): "test_models.py::test_the_models_of_the_endpoint_are_listed" for code in range(4)},
    ("backtest", 0): "test_backtest.py::test_it_replays_a_file_and_writes_both_reports",
    (
        "backtest",
        3,
    ): "test_backtest_endpoint.py::test_an_endpoint_that_is_away_half_way_ends_it_with_a_report_of_what_was_asked",
    ("backtest", 130): "test_backtest.py::test_an_interrupt_leaves_a_report_that_says_so",
    ("retry", 3): "test_retry.py::test_a_pair_that_is_parked_again_says_why_and_ends_with_3_after_the_others",
}
"""Errors that take more preparation."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which something was indexed and something learned; made once."""
    return tmp_path_factory.mktemp("world")


@pytest.fixture
def prepared(world: Path, folder: Path, intern: Intern) -> None:
    """A copy of it to work in."""
    if not (world / "data").exists():
        sources = folder / "data" / "knowledge-base" / "sources"
        sources.mkdir(parents=True)
        (sources / "ports.md").write_text(
            "# Ports\n\nThe relay listens on port 7480. Set `listen` to change the port.\n"
        )
        (folder / "intern.toml").write_text(SETTINGS)
        (folder / "questions.jsonl").write_text(f'{{"question": "{PORT}"}}\n')
        (folder / "notes").mkdir()
        (folder / "no-notes").mkdir()
        (folder / "notes" / "latin.md").write_bytes(b"Gr\xfc\xdfe")
        assert intern("import", str(export(folder)), "--team-id", "21").code == 0
        assert intern("index").code == 0
        shutil.copytree(folder, world, dirs_exist_ok=True)
    else:
        shutil.copytree(world, folder, dirs_exist_ok=True)


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize(("command", "code"), ENDS, ids=str)
def test_a_command_ends_with_the_code_that_its_help_promises(intern: Intern, command: str, code: int) -> None:
    arguments, trouble = ENDS[command, code]
    trouble()
    ended = intern(command, *arguments)
    assert ended.code == code, ended.err
    assert "Traceback" not in ended.err


@pytest.mark.usefixtures("prepared")
def test_an_import_of_which_a_pair_is_parked_ends_with_3(intern: Intern, folder: Path) -> None:
    shutil.rmtree(folder / "data")
    with endpoint_double(lambda _: refuse(400, says="bad format")) as endpoint:
        Path("intern.toml").write_text(f'[llm]\nbase_url = "{endpoint.base_url}"\nmodel = "double"\n')
        assert intern("import", "general.json", "--team-id", "21").code == 3


def test_every_exit_code_that_a_help_promises_is_tried() -> None:
    promised = {(name, code) for name in COMMANDS for code in _codes(name)}
    assert promised == ENDS.keys() | ELSEWHERE.keys()
    for place in ELSEWHERE.values():
        file, _, test = place.partition("::")
        assert f"def {test}" in (Path(__file__).parent / file).read_text(encoding="utf-8")


def _codes(name: str) -> set[int]:
    """The numbers of the sentences on exit codes, which are the last ones of a help."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    _, _, told = " ".join((command.help or "").split()).partition("Exit code")
    return set(map(int, re.findall(r"(?<![\w.])\d+(?=[:; ]|$)", told)))
