"""`intern eval`: a file of questions, asked as one would be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.frontends.cli.conftest import Intern, process
from tests.frontends.cli.test_ask_and_index import stamps
from tests.worlds.endpoint import Reply, endpoint_double, refuse, sensible, text_of

PORT = "Which port does the relay listen on?"
ROWS: list[dict[str, Any]] = [
    {"id": "port", "question": PORT, "expected_sources": ["kb:ports.md"]},
    {"id": "wrong", "question": "Where does the relay write its logs?", "expected_sources": ["kb:ports.md"]},
    {"id": "chess", "question": "Who won the chess game in 1972?", "should_reply": False},
    {"id": "lost", "question": "How do I paint the shed?", "expected_sources": ["kb:logs.md"]},
    {"question": "Does the relay change the port?"},
]


@pytest.fixture
def indexed(intern: Intern, sources: Path) -> Path:
    assert intern("index").code == 0
    return sources


def write(*rows: dict[str, Any], name: str = "q.jsonl") -> str:
    Path(name).write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return name


def test_each_question_is_told_with_its_verdict_and_the_sum_below(intern: Intern, indexed: Path) -> None:
    code, out, err = intern("eval", write(*ROWS))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("right source ")
    assert "port: Which port does the relay listen on?  [kb:ports.md]" in lines[0]
    assert lines[1].startswith("wrong source ")
    assert lines[1].endswith("[kb:logs.md, not kb:ports.md]")
    assert lines[2].startswith("silent, rightly ")
    assert lines[3].startswith("silent, wrongly ")
    assert lines[3].endswith("[no_answer; the right source was read]")
    assert lines[4].startswith("answered ")
    assert lines[6] == ("5 questions: 1 right source, 1 wrong source, 1 answered, 1 silent, rightly, 1 silent, wrongly")
    assert lines[7] == "tokens: 0, 0 a question"
    assert lines[8].startswith("seconds a question: ")


def test_json_is_the_whole_result_and_nothing_else(intern: Intern, indexed: Path) -> None:
    code, out, err = intern("eval", write(*ROWS), "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    result = json.loads(out)
    assert result["model"] == "offline"
    assert [each["id"] for each in result["outcomes"]] == ["port", "wrong", "chess", "lost", ROWS[4]["question"]]
    assert result["outcomes"][0]["verdict"] == "right_source"
    assert "7480" in result["outcomes"][0]["reply_text"]
    assert result["totals"]["verdicts"]["silent_right"] == 1


def test_a_comparison_shows_what_a_change_did(intern: Intern, indexed: Path) -> None:
    file = write(*ROWS)
    Path("old.json").write_text(intern("eval", file, "--json").out)
    assert "went differently" in intern("eval", file, "--compare", "old.json").out

    (indexed / "ports.md").unlink()
    (indexed / "shed.md").write_text("# Sheds\n\nPaint the shed with two layers of oil paint, in spring.\n")
    intern("index")
    code, out, _ = intern("eval", file, "--compare", "old.json")
    assert code == 0
    assert "worse   port: right source (kb:ports.md) → silent, wrongly (no_answer)" in out
    assert "other   lost: silent, wrongly (no_answer) → wrong source (kb:shed.md)" in out
    assert "of the 5 questions that both asked, " in out
    assert "right source: 1 → 0" in out

    code, out, _ = intern("eval", file, "--compare", "old.json", "--json")
    assert {change["id"] for change in json.loads(out)["comparison"]["changes"]} >= {"port", "lost"}


def test_a_model_s_tokens_are_told_by_prompt(intern: Intern, indexed: Path) -> None:
    def caching(body: dict[str, Any]) -> Reply:
        details = {"prompt_tokens_details": {"cached_tokens": 64}}
        return Reply(content=sensible(body), usage={"prompt_tokens": 100, "completion_tokens": 10, **details})

    with endpoint_double(caching) as endpoint:
        Path("intern.toml").write_text(f'[llm]\nbase_url = "{endpoint.base_url}"\nmodel = "m"\n')
        intern("index")
        code, out, _ = intern("eval", write(ROWS[0]), "--json")
        assert code == 0
        result = json.loads(out)
        spent = result["outcomes"][0]["tokens_by_prompt"]
        assert set(spent) == {"decide", "confirm"}
        assert sum(spent.values()) == result["totals"]["tokens"] > 0
        assert result["model"] == "m"
        table = intern("eval", "q.jsonl").out
        assert f"tokens: {result['totals']['tokens']}, " in table
        assert "(decide " in table
        assert result["totals"]["cached_tokens"] == 2 * 64
        assert "of these, from the endpoint's cache: 128" in table


@pytest.mark.rest
def test_where_some_could_not_be_looked_up_it_ends_with_3_and_says_why(sources: Path) -> None:
    def answer(body: dict[str, Any]) -> Any:
        return refuse(401) if "chess" in text_of(body, "user") else sensible(body)

    # As a process: in this one the double would log, too.
    with endpoint_double(answer) as endpoint:
        Path("intern.toml").write_text(
            f'[llm]\nbase_url = "{endpoint.base_url}"\nmodel = "m"\nmax_retries = 0\napi_key = "sk-canary-1234"\n'
        )
        assert process("index").code == 0
        code, out, err = process("eval", write(ROWS[0], ROWS[2]))
    assert (code, err) == (3, "")
    assert out.splitlines()[1].startswith("could not look ")
    assert "check llm.api_key" in out
    assert "sk-canary" not in out
    assert "2 questions: 1 right source, 1 could not look" in out


def test_a_bad_file_ends_with_2_before_anything_is_asked(intern: Intern, indexed: Path) -> None:
    Path("bad.jsonl").write_text('{"question": "Why?"}\n{"qestion": "Why?"}\n')
    code, out, err = intern("eval", "bad.jsonl")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("intern: bad.jsonl, line 2: ")
    Path("old.json").write_text("{}")
    code, out, err = intern("eval", write(*ROWS), "--compare", "old.json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("intern: old.json is not what `intern eval --json` writes")
    assert intern("eval", "nowhere.jsonl").code == 2
    assert intern("eval", "q.jsonl", "--concurrency", "0").code == 2


def test_sources_that_no_index_lists_are_pointed_out(intern: Intern, indexed: Path) -> None:
    row = {"question": PORT, "expected_sources": ["kb:port.md", "kb:ports.md"]}
    code, _, err = intern("eval", write(row))
    assert (code, err) == (0, "expected sources that no index lists: 1 (kb:port.md)\n")


@pytest.mark.usefixtures("made")
def test_before_the_first_indexing_it_says_what_to_do(intern: Intern) -> None:
    code, _, err = intern("eval", write(ROWS[0]))
    assert code == 0
    assert err.startswith("nothing is indexed yet")


@pytest.mark.rest
def test_nothing_is_written_but_what_models_cost(intern: Intern, folder: Path, indexed: Path) -> None:
    before = stamps(folder)
    file = write(*ROWS)
    intern("eval", file)
    assert stamps(folder) == before


def test_a_question_that_commands_a_terminal_is_shown_as_text(intern: Intern, indexed: Path) -> None:
    code, out, _ = intern("eval", write({"id": "\x1b]0;owned\x07", "question": f"{PORT} \x1b[2J"}))
    assert code == 0
    assert "\x1b" not in out
