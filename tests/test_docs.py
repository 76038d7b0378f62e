"""What people read is true: README, CHANGELOG, and the heads of the prompts."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

import intern.app
from intern.app.models import PROMPTS
from intern.cli import COMMANDS
from intern.llm.prompt import Prompt
from intern.llm.templates import Templates
from intern.settings import load_settings

SOURCE_TREE = Path(__file__).parents[1]
README = (SOURCE_TREE / "README.md").read_text(encoding="utf-8")
CHANGELOG = (SOURCE_TREE / "CHANGELOG.md").read_text(encoding="utf-8")


def _command(name: str) -> click.Command:
    command: click.Command = import_module(f"intern.cli.{name}_").command
    return command


def _parameters(command: click.Command) -> list[click.Parameter]:
    """Its own, and those of the commands below it."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return [*command.params, *(parameter for each in below for parameter in each.params)]


def _fenced(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


# README.


def test_the_readme_tells_of_every_command_as_it_is_called() -> None:
    rows = re.findall(r"^\| `intern (\w+)([^`]*)` \|", README, re.MULTILINE)
    assert [name for name, _ in rows] == list(COMMANDS)
    for name, arguments in rows:
        usage = {word.strip("[]") for word in arguments.split()}
        whole = _command(name)
        below: set[str] = set(whole.commands) if isinstance(whole, click.Group) else set()
        parameters = _parameters(whole)
        options = {option for each in parameters if isinstance(each, click.Option) for option in each.opts}
        positional = {each.human_readable_name for each in parameters if isinstance(each, click.Argument)} | below
        assert below <= usage, name
        assert {word for word in usage if word.startswith("-")} <= options, name
        assert {word for word in usage if not word.startswith("-")} <= positional, name


def test_every_option_that_the_readme_names_exists() -> None:
    known = {option for name in COMMANDS for each in _parameters(_command(name)) for option in each.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", README)) <= known | {"--help", "--version", "--config"}


def test_the_readme_s_python_is_the_example_of_the_door() -> None:
    assert intern.app.__doc__ is not None
    example = inspect.cleandoc(inspect.cleandoc(intern.app.__doc__).partition("Example:\n")[2])
    assert _fenced("python") == [example + "\n"]


def test_every_setting_that_the_readme_names_exists() -> None:
    variables = set(re.findall(r"\bINTERN__\w+", README))
    assert variables
    for variable in variables:
        load_settings(environ={variable: ""})
    known = (SOURCE_TREE / "intern.toml.example").read_text(encoding="utf-8")
    for section, key in re.findall(r"`(discord|llm|ai|kb|prompts|data|log)\.(\w+)`", README):
        assert re.search(rf"(?ms)^\[{section}\]$.*?^# {key} = ", known), f"{section}.{key}"


def test_every_make_target_and_file_that_the_readme_names_exists() -> None:
    makefile = (SOURCE_TREE / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"\bmake ([a-z-]+)$", README, re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for name in re.findall(r"`([\w./-]+\.(?:md|example|toml)|LICENSE|prompts/)`", README):
        assert (SOURCE_TREE / name).exists() or name == "intern.toml", name


def test_the_first_screen_holds_both_commands() -> None:
    first = "\n".join(README.splitlines()[:40])
    assert "make demo" in first
    assert "make test" in first


# CHANGELOG.


def test_the_changelog_has_a_place_for_what_is_not_released() -> None:
    headings = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert CHANGELOG.partition("## Unreleased\n")[2].strip()


def test_the_changelog_tells_of_every_command() -> None:
    for name in COMMANDS:
        assert f"`{name}`" in CHANGELOG or f"`intern {name}`" in CHANGELOG, name


# Prompts.


def test_every_prompt_has_a_template_and_every_template_a_prompt() -> None:
    assert Templates().names() == tuple(sorted(prompt.name for prompt in PROMPTS))
    assert [path.name for path in sorted((SOURCE_TREE / "prompts").glob("*")) if path.is_file()] == sorted(
        f"{prompt.name}.md.j2" for prompt in PROMPTS
    )


def test_every_template_is_sound() -> None:
    Templates().check(PROMPTS)


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.name)
def test_a_template_s_head_tells_who_uses_it_and_for_what(prompt: Prompt[Any, Any]) -> None:
    head, *_ = (SOURCE_TREE / "prompts" / f"{prompt.name}.md.j2").read_text(encoding="utf-8").splitlines()
    rooms = ("answering", "learning", "indexing", "discovery")
    (room,) = (name for name in rooms if prompt in vars(import_module(f"intern.{name}.prompts")).values())
    takes, gives = prompt.takes.__name__, prompt.gives.__name__
    assert head == f"{{# prompts/{prompt.name}.md.j2. Used by: {room}. In: {takes}. Out: {gives}. #}}"


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.name)
def test_a_template_names_every_field_of_what_it_asks_for(prompt: Prompt[Any, Any]) -> None:
    text = (SOURCE_TREE / "prompts" / f"{prompt.name}.md.j2").read_text(encoding="utf-8")
    fields = [field.name for field in msgspec.structs.fields(prompt.gives)]
    if len(fields) > 1:  # a single text needs no name
        assert [field for field in fields if field not in text] == []
