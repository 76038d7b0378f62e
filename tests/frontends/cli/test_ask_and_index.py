"""`intern index`, `intern ask` and `intern regenerate`, without any settings unless a test makes some."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import Event

from intern.actors.activity import ActivityReporter
from intern.runtime.bot import open_sandbox
from intern.service.opening import open_intern
from intern.settings.loading import load_settings
from intern.sources.refresh import RefreshReport
from tests.frontends.cli.conftest import Intern, environment, process
from tests.wording import Wording
from tests.worlds import samples
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import Reply, endpoint_double, prompt_of, refuse, sensible
from tests.worlds.program import program
from tests.worlds.settings import OFFLINE, WORDS_ALONE, make_settings

PORT = "Which port does the relay listen on?"
TEAM_ANSWER = "Stop the relay, then run `lumen-relay spool purge`. The agents send again what they still hold."


def stamps(folder: Path) -> dict[str, int]:
    """When each file was written."""
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for path in (folder / "data").rglob("*")
        if path.is_file() and not path.name.startswith((".lock", "intern.db"))
    }


def test_documents_alone_are_enough_to_index_and_ask(intern: Intern, sources: Path) -> None:
    assert intern("index") == (0, "", "2 described, 0 removed\n")
    code, out, err = intern("ask", PORT)
    assert (code, err) == (0, "")
    assert "The relay listens on port 7480." in out
    assert out.endswith("\n\nSource: kb:ports.md\n  “The relay listens on port 7480.”\n")


def test_what_did_not_change_is_neither_described_nor_written(intern: Intern, folder: Path, sources: Path) -> None:
    intern("index")
    before = stamps(folder)
    assert "data/knowledge-base/index.txt" in before
    assert intern("index") == (0, "", "0 described, 0 removed\n")
    assert stamps(folder) == before


def test_a_changed_a_new_and_a_removed_document_are_told_apart(intern: Intern, sources: Path) -> None:
    intern("index")
    (sources / "ports.md").write_text("# Ports\n\nThe relay listens on port 9000 now.\n")
    (sources / "new.rst").write_text("Backups\n=======\n\nBackups run at night.\n")
    (sources / "logs.md").unlink()
    (sources / "picture.png").write_bytes(b"\x89PNG")
    code, out, err = intern("index")
    assert (code, out) == (0, "")
    assert err == "left out picture.png: .png files are no documents\n2 described, 1 removed\n"
    assert "9000" in intern("ask", PORT).out


def test_json_is_one_object_and_nothing_else(intern: Intern, sources: Path) -> None:
    code, out, err = intern("index", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out) == {"changed": ["kb:logs.md", "kb:ports.md"], "removed": [], "pending": [], "skipped": []}

    code, out, err = intern("ask", PORT, "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    answer = json.loads(out)
    assert answer["should_reply"] is True
    assert answer["citations"][0]["source_id"] == "kb:ports.md"
    assert answer["citations"][0]["quote"] == "The relay listens on port 7480."

    code, out, err = intern("ask", "Who won the chess game in 1972?", "--json", "--trace")
    assert (code, err, out.count("\n")) == (1, "", 1)
    assert json.loads(out)["reason"] == "no_answer"

    code, out, err = intern("regenerate", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out)["pairs"] == 0


def test_no_answer_ends_with_1_and_the_reason(intern: Intern, sources: Path, wording: Wording) -> None:
    intern("index")
    code, out, err = intern("ask", "Who won the chess game in 1972?")
    assert (code, out) == (1, "")
    wording(err)


def test_the_trace_goes_to_stderr_step_by_step(intern: Intern, sources: Path) -> None:
    intern("index")
    code, out, err = intern("ask", PORT, "--trace")
    assert code == 0
    assert "7480" in out
    assert "gate" not in out
    steps = json.loads(err)
    assert [*steps] == ["gate", "selection", "loading", "generation", "verification", "confidence", "seconds"]
    assert steps["gate"]["kind"] == "answer"
    assert steps["loading"]["shown"] == ["kb:logs.md", "kb:ports.md"]
    assert steps["generation"]["quotes"] == ["The relay listens on port 7480."]
    assert steps["verification"]["verdict"] == "answered"


@pytest.mark.rest
def test_the_trace_tells_the_time_and_the_tokens_of_each_step(intern: Intern, sources: Path) -> None:
    with endpoint_double() as endpoint:
        Path("intern.toml").write_text(f'[llm]\nbase_url = "{endpoint.base_url}"\nmodel = "m"\n')
        intern("index")
        code, _, err = intern("ask", PORT, "--trace")
    assert code == 0
    steps = json.loads(err)
    assert [step for step in steps if step != "seconds" and "tokens" in steps[step]] == ["generation", "verification"]
    assert all(steps[step]["tokens"] > 0 for step in ("generation", "verification"))
    assert all(steps[step]["seconds"] >= 0 for step in ("gate", "selection", "loading", "generation", "verification"))
    assert steps["seconds"] >= steps["generation"]["seconds"]


@pytest.mark.rest
@pytest.mark.parametrize(
    ("instead", "ends", "reason", "told"),
    [
        ({"decide": {"answer": "See http://x.test/"}}, 1, "is in no cited source", "http://x.test/"),
        (
            {"decide": {"kind": "not_covered", "answer": None}},
            1,
            "the sources do not answer it",
            '"The relay listens on port 7480',
        ),
        ({"confirm": {"verdict": "unsupported", "asked": "it is wrong"}}, 1, "failed its check", "it is wrong"),
        ({"decide": refuse(401)}, 3, "llm.api_key", "check llm.api_key"),
    ],
)
def test_the_trace_of_a_silence_tells_its_reason_and_what_led_to_it(
    intern: Intern,
    sources: Path,
    *,
    instead: dict[str, Any],
    ends: int,
    reason: str,
    told: str,
) -> None:
    def answer(body: dict[str, Any]) -> Any:
        said = instead.get(prompt_of(body), {})
        return said if isinstance(said, Reply) else sensible(body) | said

    with endpoint_double(answer) as endpoint:
        Path("intern.toml").write_text(f'[llm]\nbase_url = "{endpoint.base_url}"\nmodel = "m"\nmax_retries = 0\n')
        intern("index")
        done = intern("ask", PORT, "--trace")
    assert (done.code, done.out) == (ends, "")
    line, _, trace = done.err.partition("\n{")
    assert reason in line
    assert told in trace


@pytest.mark.usefixtures("made")
def test_before_the_first_indexing_it_says_what_to_do(intern: Intern, wording: Wording) -> None:
    code, out, err = intern("ask", PORT)
    assert (code, out) == (1, "")
    wording(err.splitlines())


@pytest.mark.usefixtures("made")
def test_a_missing_sources_folder_is_told_with_what_to_do(intern: Intern) -> None:
    code, out, err = intern("index")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert err.startswith("intern: the sources folder data/knowledge-base/sources cannot be read (No such file or dire")
    assert "kb.sources_dir" in err


def test_a_file_in_the_place_of_the_sources_folder_cannot_be_looked_at(intern: Intern, folder: Path) -> None:
    (folder / "data" / "knowledge-base").mkdir(parents=True)
    (folder / "data" / "knowledge-base" / "sources").write_text("")
    code, out, err = intern("index")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "cannot be read (Not a directory)" in err


def test_a_document_that_was_indexed_and_is_gone_could_not_be_looked_at(intern: Intern, sources: Path) -> None:
    intern("index")
    shutil.rmtree(sources)
    code, out, err = intern("ask", PORT)
    assert (code, out) == (3, "")
    assert err.startswith("intern: could not look: ")


def without_progress(err: str) -> list[str]:
    """The lines of stderr, but those that come every ten seconds on a machine with much to do."""
    return [line for line in err.splitlines() if " … " not in line]


@pytest.mark.rest
def test_an_endpoint_that_refuses_ends_with_3(sources: Path) -> None:
    # As processes: in this one the double would log, too.
    with endpoint_double(lambda _: refuse(401)) as endpoint:
        Path("intern.toml").write_text(
            f'[llm]\nbase_url = "{endpoint.base_url}"\nmodel = "m"\nmax_retries = 0\napi_key = "sk-canary-1234"\n'
        )
        code, out, err = process("index")
        (line,) = without_progress(err)
        assert (code, out) == (3, "")
        assert line.startswith("intern: 2 documents have no description yet; fix this and run it again: ")
        assert "sk-canary" not in err
        assert process("status", "--sources")[1].count("not described yet, looked at every 600 seconds: ") == 2
        code, out, err = process("ask", PORT)
        (line,) = without_progress(err)
        assert (code, out) == (3, "")
        assert line.startswith("intern: could not look: ")
        assert "sk-canary" not in err


@pytest.mark.rest
def test_an_endpoint_answers_if_there_is_one(intern: Intern, sources: Path) -> None:
    with endpoint_double() as endpoint:
        Path("intern.toml").write_text(f'[llm]\nbase_url = "{endpoint.base_url}"\nmodel = "m"\n')
        assert intern("index") == (0, "", "2 described, 0 removed\n")
        assert intern("index") == (0, "", "0 described, 0 removed\n")
        assert len(endpoint.asked("summarize_source")) == 2
        code, out, _ = intern("ask", PORT)
        assert code == 0
        assert "7480" in out


@pytest.mark.rest
def test_a_question_that_is_no_utf_8_is_a_question_all_the_same(intern: Intern, sources: Path) -> None:
    assert intern("index").code == 0
    for more in ([], ["--json"]):
        done = subprocess.run(
            [*map(os.fsencode, program("ask")), b"Which port does the \xff relay listen on?", *map(os.fsencode, more)],
            capture_output=True,
            env=environment(),
            timeout=60,
            check=False,
        )
        assert b"Traceback" not in done.stderr
        assert done.returncode == 0, done.stderr


def test_text_that_commands_a_terminal_is_shown_as_text(intern: Intern, sources: Path) -> None:
    (sources / "ports.md").write_text("# Ports\n\nThe relay listens on port 7480 \x1b]0;owned\x07 by default.\n")
    intern("index")
    code, out, _ = intern("ask", PORT)
    assert code == 0
    assert "\x1b" not in out


async def _taught(clock: HandClock) -> None:
    async with open_intern(load_settings(environ={}), clock=clock) as door:
        await door.capture(samples.capture("How do I purge the spool without losing agents?", TEAM_ANSWER))
        await door.capture(samples.capture("Where does the relay keep its certificates?", "Below `/etc/lumen`.", n=2))


@pytest.mark.usefixtures("made")
def test_regeneration_of_nothing_gives_nothing(intern: Intern) -> None:
    line = "0 captures: 0 filed under 0 topics, 0 skipped, 0 replaced by fuller ones, 0 parked\n"
    assert intern("regenerate") == (0, "", line)


def test_lost_topics_are_regenerated_from_the_archive(intern: Intern, folder: Path) -> None:
    anyio.run(_taught, HandClock())
    topics = folder / "data" / "team-knowledge" / "topics"
    before = {path.name: path.read_text() for path in topics.glob("*.txt")}
    assert len(before) == 2
    shutil.rmtree(topics)

    code, out, err = intern("regenerate")

    assert (code, out) == (0, "")
    assert err == "2 captures: 2 filed under 2 topics, 0 skipped, 0 replaced by fuller ones, 0 parked\n"
    assert {path.name: path.read_text() for path in topics.glob("*.txt")} == before
    assert TEAM_ANSWER in intern("ask", "How do I purge the spool?").out


# While another process holds the folder, and without permission to write.


@asynccontextmanager
async def bot() -> AsyncGenerator[None]:
    """The bot at work in the working folder, in this process."""

    class Indexed(ActivityReporter):
        def __init__(self) -> None:
            super().__init__()
            self.once = Event()

        def report_index_refresh(self, refreshed: RefreshReport) -> None:
            self.once.set()

    events = Indexed()
    settings = make_settings(kb={"settle_seconds": 0})
    async with open_sandbox(settings, Sandbox(HandClock()), events=events):
        await events.once.wait()
        yield


@pytest.mark.rest
async def test_while_the_bot_runs_it_does_what_commands_ask_for(sources: Path) -> None:
    async with bot():
        (sources / "new.md").write_text("# Backups\n\nBackups of the relay run at night, at 3 o'clock.\n")
        done = await anyio.run_process(program("index"), env=environment(), check=False)
        assert done.returncode == 0, done.stderr
        assert done.stderr == b"1 described, 0 removed\n"

        done = await anyio.run_process(program("ask", "When do backups run?"), env=environment(), check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"3 o'clock" in done.stdout

        await anyio.Path(sources).rename("elsewhere")
        done = await anyio.run_process(program("index"), env=environment(), check=False)
        assert done.returncode == 3
        assert done.stderr.startswith(b"intern: the sources folder")
        assert done.stderr.count(b"\n") == 1


_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


def _heed_permissions() -> None:
    """Make permissions hold for root, too, in a program that is started now (Linux)."""
    for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def permitted(*arguments: str) -> tuple[int, str, str]:
    """The command line as a process that heeds permissions."""
    done = subprocess.run(
        program(*arguments),
        preexec_fn=_heed_permissions,
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def read_only(intern: Intern, sources: Path) -> None:
    """An indexed data folder without permission to write, if this system can be made to heed that."""
    assert intern("index").code == 0
    data = Path("data")
    for path in [*data.rglob("*"), data]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    probe = subprocess.run(["touch", "data/probe"], preexec_fn=_heed_permissions, capture_output=True, check=False)
    if probe.returncode == 0:
        pytest.skip("permissions do not bind us here")


def test_where_the_database_cannot_be_opened_a_question_could_not_be_looked_up(intern: Intern, sources: Path) -> None:
    del sources
    assert intern("index").code == 0
    Path("data/intern.db").write_bytes(b"no database at all, but long enough to be taken for one" * 50)
    code, out, err = intern("ask", PORT)
    assert (code, out) == (3, "")
    assert err.startswith(
        "intern: data/intern.db is damaged (file is not a database); put its backup in its place, or "
    )


@pytest.mark.rest
@pytest.mark.usefixtures("read_only")
def test_a_folder_that_may_only_be_read_can_be_asked() -> None:
    code, out, err = permitted("ask", PORT)
    assert (code, err) == (0, "")
    assert "7480" in out


@pytest.mark.rest
@pytest.mark.usefixtures("read_only")
def test_a_folder_that_may_only_be_read_cannot_be_indexed() -> None:
    code, out, err = permitted("index")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert err.startswith("intern: data")
    assert "rights" in err or "may write to" in err


@pytest.mark.rest
def test_a_sources_folder_without_permission_is_told_so(read_only: None) -> None:
    for path in [Path("data"), *Path("data").rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    Path("data/knowledge-base/sources").chmod(0)
    code, out, err = permitted("index")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "cannot be read (Permission denied)" in err
    # Indexed documents are still known: no scan has found them gone.
    assert "kb:ports.md" in Path("data/knowledge-base/index.txt").read_text()


def test_conversations_that_were_filed_while_extraction_was_off_are_read_when_asked_for(
    intern: Intern, folder: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERN__EXTRACTION__AUTO", "false")
    settings = make_settings(folder / "data", llm=OFFLINE, extraction={"auto": False}, embeddings=WORDS_ALONE)

    async def teach() -> None:
        async with open_intern(settings) as door:
            await door.capture(samples.capture("How do I purge the spool of the relay?", TEAM_ANSWER, n=1))

    anyio.run(teach)
    assert "extract" not in intern("index").err
    code, out, err = intern("index", "--extract")
    assert (code, out) == (0, "")
    assert err.endswith("conversations: 1 read now\n")
    code, out, _ = intern("index", "--extract", "--json")
    assert (code, json.loads(out)["conversations"]) == (0, {"unchanged": 1})
