"""`intern backtest`: the summary on stdout, talk on stderr, reports in files; Ctrl-C leaves what there is."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.frontends.cli.conftest import Intern, environment, process
from tests.service.chatting import ALICE, BOB, MAYA, Town
from tests.worlds.program import program

QUESTION = "Which port does the relay listen on?"


def exported(folder: Path) -> Path:
    town = Town()
    asked = town.channel().say(ALICE, QUESTION)
    town.channel().say(MAYA, "The relay listens on port 7480.", to=asked)
    town.channel().say(BOB, QUESTION)
    [path] = town.save(folder / "exports")
    return path


def test_it_replays_a_file_and_writes_both_reports(intern: Intern, folder: Path) -> None:
    path = exported(folder)
    code, out, err = intern(
        "backtest", str(path), "--team-id", MAYA, "--result", "done.json", "--html", "done.html", "--no-documents"
    )
    assert (code, err) == (0, "read 3 messages in 1 channels and threads\nwrote done.json\nwrote done.html\n")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "questions asked 2 the team answered 1 of them" in lines
    assert "answered, the team never did 1" in lines
    assert "no_sources 1 the team answered 1" in lines
    done = json.loads((folder / "done.json").read_text())
    assert (done["version"], done["finished"], done["model"]) == (1, True, "offline")
    assert [outcome["verdict"] for outcome in done["outcomes"]] == ["silent", "team_silent"]
    assert "7480" in (folder / "done.html").read_text()
    assert not (folder / "data").exists()


def test_it_writes_both_reports_where_nobody_names_a_place_and_says_where(intern: Intern, folder: Path) -> None:
    code, _, err = intern("backtest", str(exported(folder)), "--team-id", MAYA)
    assert (code, err.splitlines()[-2:]) == (0, ["wrote backtest.json", "wrote backtest.html"])
    assert err.startswith("there are no documents: data/knowledge-base/sources is not there, so answers come from what")
    assert json.loads((folder / "backtest.json").read_text())["finished"] is True
    assert "7480" in (folder / "backtest.html").read_text()


def test_a_report_of_before_is_replaced_only_where_its_place_is_named(intern: Intern, folder: Path) -> None:
    arguments = ["backtest", str(exported(folder)), "--team-id", MAYA]
    for name, option in (("backtest.json", "--result"), ("backtest.html", "--html")):
        (folder / name).write_text("of last week")
        code, out, err = intern(*arguments)
        assert (code, out) == (2, "")
        assert err == f"intern: {name} is there already: move it away, or name a place with {option}\n"
        assert intern(*arguments, "--dry-run").code == 0, "that writes nothing"
        assert (folder / name).read_text() == "of last week"
        (folder / name).rename(folder / f"old-{name}")
    (folder / "backtest.html").write_text("of last week")
    assert intern(*arguments, "--html", "backtest.html").code == 0
    assert "7480" in (folder / "backtest.html").read_text()


@pytest.mark.rest
def test_reports_are_written_though_nobody_reads_the_summary(folder: Path) -> None:
    with subprocess.Popen(
        program("backtest", str(exported(folder)), "--team-id", MAYA),
        env=environment(INTERN__LLM__PROVIDER="offline"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as running:
        assert running.stdout is not None
        running.stdout.close()
        running.wait(timeout=50)
    assert json.loads((folder / "backtest.json").read_text())["finished"] is True
    assert (folder / "backtest.html").exists()


def test_a_folder_stands_for_its_files_and_a_dry_run_asks_nobody(intern: Intern, folder: Path) -> None:
    path = exported(folder)
    code, out, _ = intern("backtest", str(path.parent), "--team-id", MAYA, "--dry-run", "--result", "done.json")
    assert code == 0
    assert out.splitlines() == [
        "questions to ask: 2; the team answered 1 of them",
        "conversations to learn: 1",
        "no model calls: rules answer",
    ]
    assert not (folder / "done.json").exists()


# Finding E4.
def test_a_file_that_cannot_be_read_is_named_at_the_end_and_in_the_reports(intern: Intern, folder: Path) -> None:
    path = exported(folder)
    bad = path.parent / "more" / "cut-off.json"
    bad.parent.mkdir()
    bad.write_bytes(path.read_bytes()[:-30])
    asked = ("backtest", str(path.parent), "--team-id", MAYA)
    for arguments in (["--dry-run"], []):
        code, out, err = intern(*asked, *arguments)
        assert code == 3
        assert out
        assert err.splitlines()[-1].startswith(f"left out: {bad} is damaged")
    told = json.loads((folder / "backtest.json").read_text())
    assert (told["files"], len(told["refused"])) == ([path.name], 1)
    assert told["refused"][0].startswith(str(bad))
    assert f"Left out: {bad}" in (folder / "backtest.html").read_text()


def test_mistakes_are_told_in_a_line(intern: Intern, folder: Path) -> None:
    path = exported(folder)
    (folder / "empty").mkdir()
    for arguments, said in (
        ([str(path)], "no team is set"),
        ([str(folder / "empty"), "--team-id", MAYA], "holds no *.json"),
        ([str(folder / "nowhere.json"), "--team-id", MAYA], "cannot be read"),
        ([str(path), "--team-id", MAYA, "--html", "nowhere/done.html"], "there is no folder nowhere"),
        ([str(path), "--team-id", MAYA, "--html", "/proc/done.html"], "; name another place with --html"),
        ([str(path), "--team-id", MAYA, "--since", "2030-01-01"], "no question to replay"),
    ):
        code, out, err = intern("backtest", *arguments)
        assert (code, out) == (2, "")
        assert said in err
        assert "Traceback" not in err


def test_no_report_takes_the_place_of_the_other_or_of_what_is_read(intern: Intern, folder: Path) -> None:
    path = exported(folder)
    history = path.read_text()
    (folder / "link.json").symlink_to(path)
    for arguments, said in (
        (["--result", "same", "--html", "exports/../same"], "exports/../same: both reports would be written there"),
        (["--html", "backtest.json"], "backtest.json: both reports would be written there"),
        (["--result", str(path)], f"{path} is one of the exports that are read; name another place with --result"),
        (["--html", str(path)], f"{path} is one of the exports that are read; name another place with --html"),
        (["--result", "link.json"], "link.json is one of the exports that are read; name another place with --result"),
        (["--result", str(path.parent / ".." / "exports" / path.name)], "is one of the exports that are read"),
    ):
        for export in (path, path.parent, "link.json"):
            code, out, err = intern("backtest", str(export), "--team-id", MAYA, *arguments)
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert said in err
    assert path.read_text() == history
    assert sorted(each.name for each in folder.iterdir()) == ["exports", "link.json"]


@pytest.mark.rest
def test_both_reports_may_go_into_one_pipe(folder: Path) -> None:
    code, out, err = process(
        *("backtest", str(exported(folder)), "--team-id", MAYA, "--no-documents"),
        *("--result", "/dev/stdout", "--html", "/dev/stdout"),
        env={"INTERN__LLM__PROVIDER": "offline"},
    )
    assert code == 0, err
    assert '"finished":true' in out
    assert "</html>" in out


def test_what_is_no_id_of_discords_is_refused_and_not_repeated(intern: Intern, folder: Path) -> None:
    path = exported(folder)
    for option in ("--team-id", "--team-role-id"):
        for wrong in ("tess", "@tess", "<@21>", "", "1" * 21, "-5"):
            code, out, err = intern("backtest", str(path), "--team-id", MAYA, option, wrong, "--dry-run")
            assert (code, out) == (2, "")
            assert err.startswith(f"intern: {option} must hold Discord's ids, each of 17 to 20 digits; ")
            assert "tess" not in err


@pytest.mark.rest
@pytest.mark.usefixtures("sources")
def test_an_interrupt_leaves_a_report_that_says_so(folder: Path) -> None:
    path = exported(folder)
    with socket.create_server(("127.0.0.1", 0)) as endpoint:
        endpoint.settimeout(50)
        host, port = endpoint.getsockname()
        settings = {
            "INTERN__LLM__BASE_URL": f"http://{host}:{port}/v1",
            "INTERN__LLM__MODEL": "m",
            "INTERN__LLM__KB__PROVIDER": "offline",
        }
        arguments = ["backtest", str(path), "--team-id", MAYA, "--result", "done.json", "--html", "done.html"]
        with subprocess.Popen(
            program(*arguments), env=environment(**settings), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            asked, _ = endpoint.accept()  # the first question is under way, and no answer comes
            with asked:
                running.send_signal(signal.SIGINT)
                out, err = running.communicate(timeout=50)
    assert running.returncode == 130
    assert out.startswith("stopped after 0 of 2 questions\n")
    assert "stopping; the report has what was asked so far" in err
    assert json.loads((folder / "done.json").read_text())["finished"] is False
    assert "Stopped before its end" in (folder / "done.html").read_text()
