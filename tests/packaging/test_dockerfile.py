"""The Dockerfile, where no Docker runs: it installs what there is, hands over no secret, and does not run as root."""

from __future__ import annotations

import re
import shlex
from fnmatch import fnmatch
from pathlib import Path

import pytest
import tomli

from intern.settings.loading import load_settings
from intern.settings.settings import is_loopback

pytestmark = pytest.mark.rest

ROOT = Path(__file__).parents[2]
PROJECT = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def instructions() -> list[tuple[str, str]]:
    """Each instruction and what it is given; lines that go on are joined, comments are dropped."""
    text = (ROOT / "packaging" / "Dockerfile").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "VOLUME", "STOPSIGNAL", "ENTRYPOINT", "CMD"}


def test_each_line_is_an_instruction_and_each_command_parses() -> None:
    found = instructions()
    assert {word for word, _ in found} <= KNOWN
    assert found[0][0] == "FROM"
    for word, rest in found:
        assert rest
        if word == "RUN":
            assert shlex.split(rest)


def test_images_are_named_with_a_python_that_intern_runs_on() -> None:
    images = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    assert len(set(images)) == 1  # a virtual environment works with the Python that made it alone
    version = re.fullmatch(r"python:3\.(\d+)-slim", images[0])
    assert version is not None
    assert int(version[1]) >= int(PROJECT["requires-python"].removeprefix(">=3."))


def test_the_page_is_reached_as_the_docs_say() -> None:
    text = (ROOT / "docs" / "packaging.md").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if "-e INTERN__PAGE__ENABLED" in line]
    words = shlex.split(line)
    said = {name: value for name, _, value in (word.partition("=") for word in words if word.startswith("INTERN__"))}
    page = load_settings(environ={**said, "INTERN__PAGE__TOKEN": "a-token-of-the-operator"}).page
    assert (page.enabled, is_loopback(page.host), page.problem) == (True, False, "")
    assert words[words.index("-p") + 1] == f"127.0.0.1:{page.port}:{page.port}"


def test_the_extras_that_it_installs_exist_and_nothing_is_missing_of_them() -> None:
    (named,) = re.findall(r'"\.\[(.*?)\]"', " ".join(rest for word, rest in instructions() if word == "RUN"))
    assert set(named.split(",")) == set(PROJECT["optional-dependencies"])


def test_it_runs_the_program_as_somebody_without_rights_who_may_write_the_volume() -> None:
    last = dict(instructions())  # of each instruction the last one
    assert last["ENTRYPOINT"] == '["intern"]'
    assert "intern" in PROJECT["scripts"]
    assert last["CMD"] == '["run"]'
    assert int(last["USER"]) > 0
    words = [word for word, _ in instructions()]
    assert words.index("USER") < words.index("ENTRYPOINT")
    (added,) = [rest for word, rest in instructions() if word == "RUN" and rest.startswith("useradd")]
    assert f"--uid {last['USER']} --home-dir {last['VOLUME']} --create-home" in added
    assert f"INTERN__DATA__DIR={last['VOLUME']}" in last["ENV"]


@pytest.mark.parametrize(
    ("path", "goes"),
    [
        ("intern.toml", False),
        (".env", False),
        (".env.production", False),
        (".git/config", False),
        ("data/team-knowledge/raw/a.txt", False),
        ("data/intern.db", False),
        ("data/knowledge-base/index.txt", False),
        ("data/knowledge-base/sources/mine.md", False),
        ("sample/overview.md", True),
        ("prompts/answer.md.j2", True),
        ("intern.toml.example", True),
        ("intern/search/vocabulary.txt", True),
        ("intern/stores/schema.sql", True),
        ("constraints.txt", True),
        ("README.md", True),
        ("LICENSE", True),
    ],
)
def test_what_the_wheel_needs_goes_into_the_image_and_no_data_or_secret_does(path: str, *, goes: bool) -> None:
    assert (_ignored(path) is False) is goes
    if goes:
        assert (ROOT / path).exists()


def _ignored(path: str) -> bool:
    """As Docker reads .dockerignore: the last pattern that matches the path or a folder above it decides."""
    parents = [path, *map(str, list(Path(path).parents)[:-1])]
    ignored = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        kept = pattern.startswith("!")
        if any(_matches(each, pattern.removeprefix("!").removeprefix("**/")) for each in parents):
            ignored = not kept
    return ignored


def _matches(path: str, pattern: str) -> bool:
    return path.count("/") == pattern.count("/") and fnmatch(path, pattern)
