from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from intern.core.text.topic_names import make_topic_name


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("node-startup-issues", "node-startup-issues"),
        ("Node Startup  Issues", "node-startup-issues"),
        ("NODE_STARTUP_ISSUES", "node-startup-issues"),
        ("team:node-startup-issues.txt", "node-startup-issues"),
        ("  Team:Node-Startup-Issues.TXT\n", "node-startup-issues"),
        ("../../etc", "etc"),
        ("/etc/passwd\x00.txt", "etc-passwd"),
        ("..\\..\\windows", "windows"),
        ("Crème brûlée", "creme-brulee"),
        ("...", None),
        ("", None),
        ("установка", None),
        ("nul", "nul-topic"),
        ("COM1.txt", "com1-topic"),
    ],
)
def test_a_label_becomes_a_slug_or_is_refused(label: str, name: str | None) -> None:
    if name is None:
        with pytest.raises(ValueError, match="no topic name"):
            make_topic_name(label)
    else:
        assert make_topic_name(label) == name


def test_a_long_label_is_cut_and_ends_in_a_letter() -> None:
    assert make_topic_name("abc " * 100) == "-".join(["abc"] * 16)


@given(st.text())
def test_every_slug_is_safe_and_is_its_own_slug(label: str) -> None:
    try:
        name = make_topic_name(label)
    except ValueError:
        return
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name)
    assert len(name) <= 64
    assert make_topic_name(name) == name
