"""`intern try`: the scene of the README, and people at a keyboard."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from intern.answering.closest_passage import CLOSEST
from intern.answering.wordings import load_wordings
from intern.service import model_servers
from intern.stores.folder_lock import FolderLock
from tests.frontends.cli.conftest import Intern, environment, process
from tests.wording import Wording
from tests.worlds.endpoint import endpoint_double, never, prompt_of, refuse
from tests.worlds.program import program

ESCAPE = "\x1b"
WITH_PAGE = "Add --page to see the status page beside it.\n"


@pytest.fixture(autouse=True)
def temporary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of temporary folders, apart from those that the tests examine."""
    path = folder / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def test_the_scene_shows_the_main_job_on_stdout(intern: Intern) -> None:
    code, out, err = intern("try", "--play")
    assert code == 0, err
    assert err == f"\nThat was all of it. Now with your own documents: intern try FOLDER\n{WITH_PAGE}"
    documented, unknown, lesson, again = out.split("\n\n")[1:2] + _after(out, "bob: ", "mira (team", "carol: ")
    assert documented.startswith("alice: How do I change the port")
    assert "stays silent: the sources do not answer it" in unknown
    assert "intern │" not in unknown
    assert "mira (team, replying): " in lesson
    assert (
        lesson.index("captured as qa_") < lesson.index("filed under the topic ") < lesson.index("index updated: team:")
    )
    assert "in the thread “My agents get rejected" in again
    assert "chronyc makestep" in again
    assert "`team:" in again
    first = out[: out.index("bob: ")]
    assert "in the thread “How do I change the port" in first
    assert "`kb:" in first


def _after(out: str, *marks: str) -> list[str]:
    """Return the texts from each mark to the next one."""
    starts = [out.index(mark) for mark in marks]
    return [out[start:end] for start, end in zip(starts, [*starts[1:], len(out)], strict=True)]


@pytest.mark.rest
def test_no_machine_word_is_shown_and_no_topic_is_named_after_a_pleasantry(intern: Intern) -> None:
    typed = (
        "alice: Sorry if dumb, but what is a detached head in the lamp?",
        "@mira: A detached head in the lamp follows no branch of wires. Attach it with `lamp attach`.",
        "bob: What is a detached head in the lamp?",
        "bob: thanks, that was it",
        "/why",
        "/topics",
    )
    code, out, err = intern("try", typed="\n".join(typed) + "\n")
    assert code == 0
    [topic] = re.findall(r"filed under the topic (\S+)", out)
    assert "dumb" not in topic
    assert "lamp attach" in out[out.index("index updated") :]
    assert not re.search(r"\b[a-z]+_[a-z_]+\b|nugget:|FACT", re.sub(r"qa_\d+", "", out + err))


@pytest.mark.rest
def test_the_scene_names_a_program_that_is_not_on_the_path_as_it_was_started(folder: Path) -> None:
    program = folder / "bin" / "intern"
    program.parent.mkdir()
    program.write_text("from intern.frontends.cli import main; main()")
    done = subprocess.run(
        [sys.executable, program, "try", "--play"], capture_output=True, env=environment(), timeout=60, check=True
    )
    assert done.stderr.decode().endswith(f"documents: {program} try FOLDER\n{WITH_PAGE}")


def test_a_scene_that_goes_wrong_ends_with_1(intern: Intern) -> None:
    Path("docs").mkdir()
    Path("docs/tea.md").write_text("# Tea\n\nGreen tea is brewed at 75 degrees.\n")
    code, _, err = intern("try", "docs", "--play")
    assert (code, "the scene did not go as it should" in err) == (1, True)


@pytest.mark.rest
def test_the_scene_leaves_nothing_behind(intern: Intern, folder: Path, temporary: Path) -> None:
    assert intern("try", "--play").code == 0
    assert list(temporary.iterdir()) == []
    assert list(folder.iterdir()) == [temporary]


@pytest.mark.rest
def test_a_data_folder_keeps_what_was_learned(intern: Intern, temporary: Path) -> None:
    assert intern("try", "--play", "--data", "kept").code == 0
    assert list(temporary.iterdir()) == []
    assert [path.suffix for path in Path("kept/team-knowledge/topics").iterdir()] == [".txt"]
    code, out, _ = intern("try", "--data", "kept", typed="dave: Why are my agents rejected with clock skew?\n")
    assert code == 0
    assert "chronyc makestep" in out


@pytest.mark.rest
def test_whatever_the_settings_say_nothing_is_written_outside(intern: Intern, folder: Path) -> None:
    keys = ("index_path", "index_cache_path", "team_raw_dir", "team_topics_dir", "team_index_path")
    outside = "\n".join(f'{key} = "{folder}/outside/{key}"' for key in (*keys, "team_index_cache_path"))
    Path("intern.toml").write_text(f'[data]\ndir = "outside"\n[kb]\n{outside}\nsources_dir = "outside/sources"\n')
    assert intern("try", "--play").code == 0
    assert not Path("outside").exists()


def test_documents_of_one_s_own_are_used(intern: Intern) -> None:
    Path("docs").mkdir()
    Path("docs/tea.md").write_text("# Tea\n\nGreen tea is brewed at 75 degrees, for two minutes.\n")
    code, out, _ = intern("try", "docs", typed="alice: How long is green tea brewed?\n")
    assert code == 0
    assert "`kb:tea.md`" in out
    assert list(Path("docs").iterdir()) == [Path("docs/tea.md")]


def test_the_documents_of_a_data_folder_are_used(intern: Intern) -> None:
    sources = Path("kept/knowledge-base/sources")
    sources.mkdir(parents=True)
    (sources / "tea.md").write_text("# Tea\n\nGreen tea is brewed at 75 degrees, for two minutes.\n")
    out = intern("try", "--data", "kept", typed="alice: How long is green tea brewed?\n").out
    assert "`kb:tea.md`" in out


def test_people_talk_and_the_bot_learns(intern: Intern, wording: Wording) -> None:
    code, out, err = intern(
        "try",
        typed=(
            "/why\n/topics\n"
            "@mira: too early\n"
            "alice: How do I change the port that the relay listens on?\n/why\n"
            "bob: Does the relay run on a toaster oven?\n/why\n"
            "@mira: On a toaster oven, set `heat = 0` in lumen.toml.\n/topics\n"
            "carol: What do I set to run the relay on a toaster oven?\n"
            "/quit\n"
            "dave: Never asked?\n"
        ),
    )
    assert code == 0, err
    wording(err.splitlines())
    assert "`kb:reference/configuration.md`" in out
    silent, captured, topics, learned = (
        out.index(part)
        for part in ("stays silent: ", "captured as qa_", "  Does the relay run on a toaster oven?", "set `heat = 0`")
    )
    assert silent < captured < topics < learned
    assert "`team:" in out[learned:]
    assert "Never asked" not in out + err


# Finding B5.
def test_the_word_that_is_owed_to_who_calls_the_bot_is_always_shown(
    intern: Intern, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERN__DISCORD__MAX_QUESTIONS_PER_USER_PER_HOUR", "2")
    calls = "".join(f"alice: @intern Does the relay run on a toaster oven, model {n}?\n" for n in range(4))
    code, out, err = intern("try", typed=f"{calls}alice: Does it?\nbob: @intern How hot is it on Mars?\n")
    assert (code, "nothing came of it" in err) == (0, False)
    words = [line.partition("│ ")[2].strip() for line in out.splitlines() if "intern │" in line]
    unknown, limit = load_wordings()["en"].unknown, load_wordings()["en"].limit
    owed = [unknown] * 2 + [limit] + [unknown]  # and once an hour, that she asked too much
    assert len(words) == len(owed)
    assert all(said.startswith(word) for said, word in zip(owed, words, strict=True))


def test_a_line_that_nobody_says_is_told_how_to_write_one(intern: Intern) -> None:
    lines = ["hello", ":", "alice:", "@:", "@ : hi", "  :hi", "/a b", "@mira"]
    code, out, err = intern("try", typed="\n\n".join([*lines, ""]))
    assert (code, out) == (0, "")
    assert err.splitlines()[1:] == ["write  NAME: what they say"] * len(lines)


def test_a_command_that_there_is_not_gets_a_suggestion(intern: Intern, wording: Wording) -> None:
    code, out, err = intern("try", typed="/frob\n/topisc\n/WHY\n/help\n")
    assert (code, out) == (0, "")
    wording(err.splitlines()[1:5])


@pytest.mark.rest
def test_what_is_no_question_and_what_is_no_utf_8_are_bad_news_for_nobody() -> None:
    typed = (
        b"alice: \xff\xfe\x00 thanks\n\x80\nmira: I talk to myself\nalice: " + b"x" * 5000 + b"\nlast: how? no newline"
    )
    for encoding in ("utf-8:strict", "ascii:strict"):
        code, out, err = process("try", typed=typed, env={"PYTHONIOENCODING": encoding})
        assert code == 0, err
        assert "Traceback" not in err
        assert "not for the bot" in out
        assert "\0" not in out


def test_the_end_of_input_is_the_end(intern: Intern) -> None:
    assert intern("try").code == 0


TEA = "alice: How hot is green tea brewed?\n"


@pytest.fixture
def tea() -> None:
    """A folder with one document."""
    Path("docs").mkdir()
    Path("docs/tea.md").write_text("# Tea\n\nGreen tea is brewed at 75 degrees.\n")


def name_endpoint(base_url: str) -> None:
    Path("intern.toml").write_text(f'[llm]\nbase_url = "{base_url}"\nmodel = "m"\nmax_retries = 0\n')


# Finding C8.
@pytest.mark.usefixtures("tea")
def test_an_endpoint_that_refuses_is_told_at_the_start_and_in_the_margin(intern: Intern) -> None:
    with endpoint_double(lambda _: refuse(401)) as endpoint:
        name_endpoint(endpoint.base_url)
        code, out, err = intern("try", "docs", typed=TEA)
    assert code == 0
    assert f"no model answers: m at {endpoint.base_url} answered 401: check llm.api_key" in err
    assert "`intern doctor`" in err
    assert "stays silent: the model was away" in out


# Finding C8.
@pytest.mark.usefixtures("tea")
def test_a_mistyped_endpoint_is_told_with_its_reason_and_with_a_server_that_runs_here(
    intern: Intern, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_endpoint("http://127.0.0.1:9/v1")
    with endpoint_double() as here:
        here.pages = {"/v1/models": {"data": [{"id": "good-7b", "owned_by": "vllm"}]}}
        port = int(here.base_url.rpartition(":")[2].removesuffix("/v1"))
        monkeypatch.setattr(model_servers, "LOCAL_PORTS", {"vLLM": port})
        err = intern("try", "docs", typed=TEA).err
    assert "no model answers: m at http://127.0.0.1:9/v1 cannot be reached: " in err
    assert f'vLLM answers here; to use it, put into intern.toml:\n[llm]\nbase_url = "{here.base_url}"' in err
    assert 'model = "good-7b"' in err


# Finding C8.
@pytest.mark.usefixtures("tea")
def test_the_model_that_answers_is_named_after_one_tiny_call(intern: Intern) -> None:
    with endpoint_double() as endpoint:
        name_endpoint(endpoint.base_url)
        err = intern("try", "docs", typed=TEA).err
    assert f"m at {endpoint.base_url} answers" in err
    [tiny] = [request for request in endpoint.requests if not request.prompt]
    assert tiny.body == {"model": "m", "messages": [{"role": "user", "content": "Say OK."}]}


@pytest.mark.usefixtures("tea")
def test_a_session_does_not_wait_for_the_word_of_its_model(intern: Intern) -> None:
    with endpoint_double(lambda asked: None if prompt_of(asked) else never()) as endpoint:
        name_endpoint(endpoint.base_url)
        code, out, err = intern("try", "docs", typed=TEA)
    assert code == 0
    assert "75 degrees" in out
    assert "answers" not in err


@pytest.mark.rest
def test_an_endpoint_is_asked_if_there_is_one(intern: Intern) -> None:
    with endpoint_double() as endpoint:
        Path("intern.toml").write_text(f'[llm]\nbase_url = "{endpoint.base_url}"\nmodel = "m"\n')
        out = intern("try", "--play").out
        assert len(endpoint.asked("confirm")) >= 2
    assert "`team:" in out
    assert CLOSEST not in out


def test_an_endpoint_without_a_model_is_asked_for_one(intern: Intern, wording: Wording) -> None:
    Path("intern.toml").write_text('[llm]\nbase_url = "http://127.0.0.1:9/v1"\n')
    code, out, err = intern("try", "--play")
    assert (code, out) == (2, "")
    wording(err)


def test_a_folder_that_somebody_else_holds_is_refused(intern: Intern) -> None:
    with FolderLock(Path("held")):
        code, out, err = intern("try", "--play", "--data", "held")
    assert (code, err.count("\n")) == (3, 1)
    assert err.startswith("intern: held is in use by process ")
    assert "intern │" not in out


@pytest.mark.rest
@pytest.mark.parametrize("colour", ["NO_COLOR", "TERM"])
def test_colours_are_for_terminals_whose_owner_wants_them(colour: str) -> None:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        program("try", "--play"), stdout=theirs, stderr=theirs, stdin=theirs, env=environment(**{colour: "1"})
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # a terminal with its other end closed raises this
        while more := os.read(ours, 4096):
            shown += more
    os.close(ours)
    assert child.wait(60) == 0
    assert "carol" in shown.decode()
    assert (ESCAPE in shown.decode()) == (colour != "NO_COLOR")


# Finding B2.
def test_a_file_goes_with_the_next_message(intern: Intern, folder: Path, temporary: Path) -> None:
    log, large = folder / "latest.log", folder / "large file.log"
    large.write_bytes(bytes(262_145))
    log.write_text("INFO: starting\nERROR: agent rejected: clock skew too large in /home/annsmith/relay\n")
    code, out, err = intern(
        *("try", "--data", str(temporary / "kept")),
        typed=(
            f"/file\n/file {folder}/none.log\n/file ~nosuch/x\n/file /{'x' * 300}\n/file '{large}'\n/file {log}\n"
            "@bob: hi\n"
            "bob: My agent does not come up, what is wrong?\n"
            "@mira: Run `lumen-relay agents reset-skew` on it.\n/quit\n"
        ),
    )
    assert code == 0, err
    assert [line for line in err.splitlines() if re.search("/file PATH|no file|goes with|team is", line)] == [
        "write  /file PATH",
        f"there is no file {folder}/none.log",
        "there is no file ~nosuch/x",
        f"there is no file /{'x' * 300}",
        "large file.log goes with the next message, by its name only: it has more than 256 kB",
        "latest.log goes with the next message",
        "the team is @mira here",
    ]
    assert "captured as" in out
    [archive] = (temporary / "kept" / "team-knowledge" / "raw").iterdir()
    said = "[file latest.log: ERROR: agent rejected: clock skew too large in /home/[masked user_name]/relay]"
    assert said in archive.read_text()
