"""A quote is found in a text, or not, however a model spells it."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from intern.answering.quotes import excerpt_around, find_quoted_line, unwrap_lines

TEXT = """# Ports

The relay listens on **port 7480**; set `listen` in
`relay.toml` to change it.

- Open it for the agents’ network.

```sh
relay serve --port 7480
relay status
```
User: which port?
Team: 7480
"""
WRAPPED = "The relay listens on **port 7480**; set `listen` in `relay.toml` to change it."


@pytest.mark.parametrize(
    ("quote", "line"),
    [
        ("The relay listens on port 7480", WRAPPED),
        ("set listen in relay.toml to change it.", WRAPPED),
        ("... the relay   LISTENS on port 7480 …", WRAPPED),
        ('"Open it for the agents\'s network"', None),
        ("Open it for the agents' network.", "- Open it for the agents’ network."),
        ("relay serve --port 7480", "relay serve --port 7480"),
        ("7480", "Team: 7480"),
        ("Ports", "# Ports"),
        ("relay", None),
        ("relay serve --port 7480 relay status", None),
        ("The relay listens on port 7481", None),
        ("", None),
        ("...", None),
    ],
)
def test_a_quote_stands_in_one_line_whatever_its_markup(quote: str, line: str | None) -> None:
    assert find_quoted_line(TEXT, quote) == line


@given(st.text(alphabet=st.sampled_from("ab *`\n-#>.|~"), max_size=200))
def test_each_line_that_says_anything_can_be_quoted(text: str) -> None:
    for line in unwrap_lines(text):
        if any(char.isalnum() for char in line):
            assert find_quoted_line(text, line) is not None


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        ("默认端口是7480。可以在设置文件中修改。", "默认端口是7480"),
        ("使用 Docker 运行服务。端口是7480。", "使用Docker运行服务"),
        ("既定のポートは7480です。設定で変えられます。", "既定のポートは7480です。"),
        ("The agents\u200b cooperate with a relay.", "The agents cooperate with a relay."),
        ("Each relay\u2011node listens.\r", "Each relay-node listens."),
        ("| `listen` | 7480 | the port |", "listen 7480 the port"),
        ("See [the guide](https://docs.example/a) for keys.", "See the guide for keys."),
    ],
)
def test_a_quote_stands_in_any_script_and_typography(text: str, quote: str) -> None:
    assert find_quoted_line(text, quote) == text.strip()


@given(st.text(alphabet=st.sampled_from("ab *`_.- "), max_size=30))
def test_of_a_long_line_what_was_quoted_is_told(before: str) -> None:
    line = f"It is {before} The spool is **purged** after nine days." + " It is small." * 20
    told = find_quoted_line(line, "the spool is purged after nine days")
    assert told == "The spool is **purged** after nine days"


@given(st.integers(20, 400))
def test_what_is_shown_around_a_line_is_bounded_and_holds_its_beginning(most: int) -> None:
    text = "\n".join(f"Line {n} says that the answer is {n * n}." for n in range(60))
    shown = excerpt_around(text, ["Line 31 says that"], most)
    assert len(shown) <= most
    assert shown in text
    assert most < 60 or "Line 31 says" in shown


def test_what_is_shown_around_several_lines_holds_them_all() -> None:
    text = "\n".join(f"Set `relay.toml` key number {n}\n  to {n * n}." for n in range(60))
    wanted = [f"Set `relay.toml` key number {n} to {n * n}." for n in (2, 50, 51)]
    shown = excerpt_around(text, wanted, 200)
    assert len(shown) <= 3 * 200
    assert [" ".join(wanted[n].split()) in " ".join(shown.split()) for n in range(3)] == [True] * 3
    assert shown.count("[…]") == 1
