"""A quote stands in a text, or it does not, however a model spells it."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from intern.answering.quoting import around, line_of, unwrapped

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
    assert line_of(TEXT, quote) == line


@given(st.text(alphabet=st.sampled_from("ab *`\n-#>.|~"), max_size=200))
def test_each_line_that_says_anything_can_be_quoted(text: str) -> None:
    for line in unwrapped(text):
        if any(char.isalnum() for char in line):
            assert line_of(text, line) is not None


@given(st.integers(20, 400))
def test_what_is_shown_around_a_line_is_bounded_and_holds_its_beginning(most: int) -> None:
    text = "\n".join(f"Line {n} says that the answer is {n * n}." for n in range(60))
    shown = around(text, "Line 31 says that", most)
    assert len(shown) <= most
    assert shown in text
    assert most < 60 or "Line 31 says" in shown
