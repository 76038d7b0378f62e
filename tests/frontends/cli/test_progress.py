"""The progress of long work is shown on one line of a terminal, and every ten seconds elsewhere."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from intern.core.log import ProgressLogger, configure_logging
from intern.core.progress import report_progress, send_progress_to
from intern.frontends.cli.output import ProgressLine, clear_progress_line, set_progress_line
from tests.frontends.cli.conftest import Intern, environment
from tests.frontends.cli.test_retry import parked
from tests.worlds.program import program

READING = "Reading {total} documents"


class Terminal(StringIO):
    """A stream that people look at."""

    def isatty(self) -> bool:
        return True


class Now:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_terminal_shows_count_total_and_time_left_on_one_line() -> None:
    terminal, now = Terminal(), Now()
    line = ProgressLine(terminal, now)
    for second in (0, 4, 8):
        now.seconds = float(second)
        line(READING, second * 10, 400, "30 tokens" if second else "")
    line.end()
    line(READING, 400, 400)
    last = f"[####{' ' * 20}] Reading 400 documents … 80, 32 s left, 30 tokens"
    assert terminal.getvalue().split("\r")[1:] == [
        f"[{' ' * 24}] Reading 400 documents … 0",
        f"[##{' ' * 22}] Reading 400 documents … 40, 36 s left, 30 tokens",
        last,
        " " * len(last),
        "",
    ]


def test_a_shorter_line_covers_the_one_before() -> None:
    terminal, now = Terminal(), Now()
    line = ProgressLine(terminal, now)
    line(READING, 1, 400, "30 tokens")
    now.seconds = 0.5
    line(READING, 2, 400)
    _, longer, shorter = terminal.getvalue().split("\r")
    assert len(longer) == len(shorter)


def test_elsewhere_much_work_is_told_of_at_once_then_every_ten_seconds_and_little_work_only_then() -> None:
    for total, told in ((400, ["1", "110", "210"]), (99, ["110", "210"])):
        stream, now = StringIO(), Now()
        line = ProgressLine(stream, now)
        for second in range(21):
            now.seconds = float(second)
            line(READING, 1 + second * 10 + (9 if second else 0), total)
        assert re.findall(r"… (\d+)", stream.getvalue()) == told
        assert "\r" not in stream.getvalue()


@pytest.mark.parametrize(
    ("columns", "shown"),
    [(60, f"[{' ' * 24}] Reading 400 documents … 1"), (50, "Reading 400 documents … 1"), (10, "Reading 4")],
)
def test_a_line_is_cut_to_the_width_of_the_terminal_and_loses_its_bar_first(columns: int, shown: str) -> None:
    terminal = Terminal()
    ProgressLine(terminal, Now(), lambda _: columns)(READING, 1, 400)
    assert terminal.getvalue() == f"\r{shown}"


def test_a_window_that_was_narrowed_is_not_filled_beyond_its_width() -> None:
    terminal, now, columns = Terminal(), Now(), [80]
    line = ProgressLine(terminal, now, lambda _: columns[0])
    line(READING, 1, 400)
    columns[0], now.seconds = 30, 1.0
    line(READING, 2, 400)
    line.end()
    assert [len(each) for each in terminal.getvalue().split("\r")[2:]] == [29, 29, 0]


def test_other_output_takes_the_place_of_the_line() -> None:
    terminal = Terminal()
    line = ProgressLine(terminal, Now())
    set_progress_line(line)
    try:
        line(READING, 1, 400)
        clear_progress_line()
        clear_progress_line()
        shown, blank, end = terminal.getvalue().removeprefix("\r").split("\r")
        assert (shown.endswith("1"), blank.strip(), end) == (True, "", "")
    finally:
        set_progress_line(None)


def test_a_log_gets_one_event_in_ten_seconds() -> None:
    stream, now = StringIO(), Now()
    configure_logging(log_format="json", stream=stream)
    with send_progress_to(ProgressLogger(now)):
        for second in range(25):
            now.seconds = float(second)
            report_progress(READING, second, 100)
    lines = stream.getvalue().splitlines()
    assert [re.findall(r'"(?:done|seconds_left)": (\d+)', line) for line in lines] == [["10", "90"], ["20", "80"]]
    assert '"work": "Reading 100 documents"' in lines[0]


def test_a_reader_who_has_gone_ends_no_work() -> None:
    class Gone(StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    line = ProgressLine(Gone(), Now())
    line(READING, 1, 400)
    line(READING, 2, 400)


@pytest.mark.rest
def test_indexing_many_documents_tells_how_far_it_is(intern: Intern, sources: Path) -> None:
    for n in range(120):
        (sources / f"{n}.md").write_text(f"# Document {n}\n\nAbout the relay.\n")
    code, _, err = intern("index")
    assert code == 0
    assert "Reading 122 documents … 1" in err
    assert "Describing 122 documents … 1" in err


@pytest.mark.rest
@pytest.mark.parametrize(
    ("arguments", "works"),
    [
        (["discover"], ["Looking through 1 scan paths and folders"]),
        (["discover", "--once"], ["Looking through 1 scan paths and folders", "Summarising 2 files"]),
        (["import-notes", "notes"], ["Reading 2 files", "Reading 2 conversations"]),
        (["backup", "copy.db"], ["Copying {} database pages", "Checking {} database pages"]),
        (["doctor"], ["Checking {} database pages"]),
        (["ask", "Which port?"], ["Answering the question"]),
        (["status"], ["Reading 1 weeks of the archive"]),
        (["retry"], ["Filing 1 parked pairs"]),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)
def test_each_command_whose_work_may_last_shows_it_on_a_terminal(
    intern: Intern, sources: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], works: list[str]
) -> None:
    folder = sources.parents[2]
    shutil.copytree(sources, folder / "notes")
    (folder / "intern.toml").write_text('[discovery]\nscan_paths = ["notes"]\n')
    assert intern("index").code == 0
    parked(1)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    intern(*arguments)
    shown = re.findall(r"\] (.*?) … ", terminal.getvalue())
    for work in works:
        assert any(re.fullmatch(work.format(r"\d+"), each) for each in shown), shown


@pytest.mark.rest
def test_a_command_that_waits_for_the_process_that_holds_the_folder_says_so(folder: Path, sources: Path) -> None:
    del sources
    lock = os.open(folder / "data" / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, b"20719\n")
    process = subprocess.Popen(program("index"), cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said == "intern: process 20719 works on this folder; waiting (Ctrl-C to stop)\n"
    finally:
        os.close(lock)
        process.kill()
        process.communicate()


@pytest.mark.rest
@pytest.mark.parametrize("folder_name", ["documents"])
def test_trying_many_documents_tells_how_far_it_is_and_keeps_the_chat_free_of_it(
    intern: Intern, folder: Path, folder_name: str
) -> None:
    documents = folder / folder_name
    documents.mkdir()
    for n in range(120):
        (documents / f"{n}.md").write_text(f"# Document {n}\n\nThe relay number {n} listens on port {7000 + n}.\n")
    code, out, err = intern("try", str(documents), typed="alice: which port does relay number 7 listen on?\n/quit\n")
    assert code == 0
    assert "Reading 120 documents … 1" in err
    assert "documents …" not in out
    assert "passages …" not in err
    assert '"event"' not in out + err
