"""A newcomer at the terminal of `intern try`: what they type, and what the screen shows."""

from __future__ import annotations

import pytest

from docs.terminal import PASTED, drawn, walk
from tests.frontends.cli.conftest import environment
from tests.frontends.cli.screen import ENTER, Terminal, pasted, terminal
from tests.worlds.program import program

pytestmark = pytest.mark.rest


@pytest.mark.parametrize("columns", [80, 120])
def test_a_newcomer_s_path_shows_whole_words_behind_the_gutter(columns: int) -> None:
    with terminal(program("try"), environment(), columns=columns, rows=400) as shown:
        lines: dict[str, list[str]] = {}
        for moment in walk(shown):
            lines[moment] = shown.lines
            assert "<text " in drawn(shown, moment)
        assert shown.code == 130
    helped = "\n".join(lines["helped"])
    assert "\n    intern │ To change the port, set" in helped
    assert "\nbob: Since the relay runs on a Raspberry Pi, agents are rejected with `clock" in helped
    assert f"carol: {PASTED.splitlines()[0]}\n   --> src/main.rs:3:5\n" in helped
    assert "\n  hint: agents are rejected with clock skew too large\n" in helped
    assert "error:" not in helped
    answers = [line for line in lines["helped"] if "intern │" in line]
    assert all(len(line) < columns and line.startswith("    intern │") for line in answers)
    assert max(map(len, lines["narrower"][-12:])) <= columns - 20
    assert "    intern │   <https://discord.com/channels/" in helped
    assert '"event"' not in helped


def _said(shown: Terminal, keys: str, said: str) -> None:
    shown.type(keys + ENTER)
    shown.wait(said)
    shown.wait(" ›")


def test_names_are_introduced_by_typing_and_never_by_a_paste() -> None:
    with terminal(program("try"), environment(), columns=80, rows=100) as shown:
        shown.wait("alice ›")
        for keys, said in (
            (pasted("E0432: unresolved import\nhint: use it"), "alice: E0432: unresolved import\n  hint: use it"),
            ("error: no such file", "alice: error: no such file"),
            ("http://example.org is down", "alice: http://example.org is down"),
            (pasted("alice: thanks"), "alice: thanks"),
            (pasted(f"a table\n{' ' * 200}\nthat ends"), "alice: a table\n\n  that ends"),
            ("erin: thanks a lot", "erin: thanks a lot"),
            ("and thanks again", "erin: and thanks again"),
            (pasted("erin: one more thanks"), "\nerin: one more thanks"),
        ):
            _said(shown, keys, said)
        shown.type("\x04")
        assert shown.ended() == 0


def test_notes_that_come_while_a_line_is_typed_stand_above_it() -> None:
    with terminal(program("try"), environment(), columns=80, rows=100) as shown:
        shown.wait("alice ›")
        _said(shown, "What is a flux capacitor?", "stays silent")
        _said(shown, "@mira: It stores flux.", "index updated")
        shown.type("thanks" + ENTER)
        shown.wait("\nalice: thanks")
        shown.wait("\nalice ›")
        shown.type("and half a line")
        shown.wait("skipped: it adds nothing but thanks or the like\nalice › and half a line")
        assert sum("· captured as" in line for line in shown.lines) == 2
        assert all(line.startswith("    · ") for line in shown.lines if "· " in line)
