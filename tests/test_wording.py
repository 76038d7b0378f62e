from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import wording
from tests.wording import Wording, read_sections

TESTS = Path(__file__).parent


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of its own with the words of one test."""
    monkeypatch.setattr(wording, "FILE", tmp_path / "wording.txt")
    record = Wording("one", {"/tmp/a": "folder"}, records=True)
    record(["/tmp/a is empty\n", "put documents into it"])
    record.end()


@pytest.mark.usefixtures("recorded")
def test_the_recorded_words_pass_and_others_fail() -> None:
    words = Wording("one", {"/tmp/b": "folder"}, records=False)
    assert words("/tmp/b is empty\n") == "/tmp/b is empty\n"
    assert words((0, "put documents into it")) == (0, "put documents into it")
    words.end()
    with pytest.raises(pytest.fail.Exception, match=r"-put documents into it\n\+delete them"):
        Wording("one", {}, records=False)(["<folder> is empty\n", "delete them"])


@pytest.mark.usefixtures("recorded")
def test_words_that_are_missing_or_new_fail() -> None:
    words = Wording("one", {}, records=False)
    words("<folder> is empty\n")
    with pytest.raises(AssertionError, match="before it said all"):
        words.end()
    for said in ("<folder> is empty", "<folder> is empty\n\n"):
        with pytest.raises(pytest.fail.Exception):
            Wording("one", {}, records=False)(said)
    with pytest.raises(pytest.fail.Exception):
        words(["put documents into it", "and read them"])


def test_each_section_is_of_a_test() -> None:
    for section in read_sections():
        path, _, name = section.partition("::")
        test = re.sub(r"\[.*", "", name).rpartition("::")[2]
        assert f"def {test}(" in (TESTS / path).read_text(encoding="utf-8"), section
