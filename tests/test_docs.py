"""The documents for people are true: README, docs, CHANGELOG, and the heads of the prompts."""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from types import UnionType
from typing import Any, get_args

import click
import msgspec
import pytest
import tomli
from build.__main__ import main_parser

import intern.service
from docs import flow, map as package_map
from docs.chats import pictures as chats
from docs.generate import pages
from docs.screenshots import PAGES, PLAY, drawn, played
from intern.core.decisions import Decision
from intern.core.errors import ConfigError
from intern.frontends.cli import COMMANDS, cli
from intern.models.prompt import Prompt
from intern.models.templates import PromptTemplates
from intern.service.models import PROMPTS
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from tests.newcomer import steps
from tests.soak.__main__ import plan_of
from tests.soak.machine import minutes_to_judge

SOURCE_TREE = Path(__file__).parents[1]
README = (SOURCE_TREE / "README.md").read_text(encoding="utf-8")
CHANGELOG = (SOURCE_TREE / "CHANGELOG.md").read_text(encoding="utf-8")
PROJECT = tomli.loads((SOURCE_TREE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGING = SOURCE_TREE / "packaging"
DOCS = tuple(sorted((SOURCE_TREE / "docs").glob("*.md")))
DESIGN = SOURCE_TREE / "docs" / "design.md"
DECISIONS = tuple(sorted((SOURCE_TREE / "docs" / "decisions").glob("*.md")))
OLD_NAMES = SOURCE_TREE / "docs" / "decisions" / "names.md"  # lists names that are gone
EVERY_PAGE = (SOURCE_TREE / "README.md", *DOCS, *(page for page in DECISIONS if page != OLD_NAMES))
GUIDES = (
    "members.md",
    "team.md",
    "operators.md",
    "local-models.md",
    "quick-start.md",
    "server.md",
    "hosting.md",
    "scaling.md",
    "packaging.md",
)
every_page = pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: page.name)


def _command(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def _parameters(command: click.Command) -> list[click.Parameter]:
    """Return the parameters of a command, and of the commands below it."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return [*command.params, *(parameter for each in below for parameter in each.params)]


def _blocks(page: Path, language: str) -> list[str]:
    found = re.findall(rf"(?ms)^( *)```{language}\n(.*?)^\1```$", page.read_text(encoding="utf-8"))
    return [dedent(block) for _, block in found]


def _prose(page: Path) -> str:
    return re.sub(r"(?ms)^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"))


def _codes(page: Path) -> list[str]:
    """Return the texts between single backticks."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", _prose(page))]


def _options(command: click.Command) -> set[str]:
    return {option for each in _parameters(command) for option in (*each.opts, *each.secondary_opts)} | {"--help"}


# README.


def test_every_option_that_the_readme_names_exists() -> None:
    known = {option for name in COMMANDS for each in _parameters(_command(name)) for option in each.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", README)) <= known | {"--help", "--version", "--config"}


def test_the_readme_s_python_is_the_example_of_the_door() -> None:
    assert intern.service.__doc__ is not None
    example = inspect.cleandoc(inspect.cleandoc(intern.service.__doc__).partition("Example:\n")[2])
    assert _blocks(SOURCE_TREE / "README.md", "python") == [example + "\n"]


def test_the_first_screen_holds_a_picture_and_both_commands() -> None:
    first = "\n".join(README.splitlines()[:40])
    assert "](docs/images/" in first
    assert _steps_of(first)[:2] == ["make demo", ".venv/bin/intern try path/to/documents"]


def _steps_of(text: str) -> list[str]:
    return [step.command for step in steps(text)]


# README and docs.


@pytest.mark.parametrize("name", ["configuration.md", "commands.md", "intern.1"])
def test_a_generated_page_is_what_would_be_generated_now(name: str) -> None:
    committed = (SOURCE_TREE / "docs" / name).read_text(encoding="utf-8")
    assert committed == pages()[name], "`make docs` makes it anew"


@pytest.mark.rest
def test_the_picture_of_the_scene_shows_what_the_scene_shows_now() -> None:
    assert PLAY.read_text(encoding="utf-8") == drawn(played()), "`make screenshots` makes it anew"


@pytest.mark.rest
def test_the_map_shows_the_packages_and_streams_that_there_are_now() -> None:
    assert package_map.PICTURE.read_text(encoding="utf-8") == package_map.drawn(), "`make docs` draws it anew"


def test_the_picture_of_the_flow_is_what_its_script_draws() -> None:
    assert flow.PICTURE.read_text(encoding="utf-8") == flow.drawn(), "`make docs` draws it anew"


@pytest.mark.rest
def test_the_pictures_of_chats_show_what_the_bot_says_now() -> None:
    drawn_now = chats()
    assert {path.name for path in PLAY.parent.glob("chat-*")} == set(drawn_now)
    for name, svg in drawn_now.items():
        assert (PLAY.parent / name).read_text(encoding="utf-8") == svg, "`python -m docs.chats` makes it anew"


def test_the_docs_list_the_packages_in_their_order() -> None:
    (listed,) = [block for block in _blocks(SOURCE_TREE / "docs" / "developing.md", "text") if " > " in block]
    assert listed.replace(">", " ").split() == package_map.layers()
    layout = DESIGN.read_text(encoding="utf-8").partition("\nintern/\n")[2]
    assert re.findall(r"^  (\w+)/ ", layout.partition("\nprompts/")[0], re.MULTILINE) == package_map.layers()


@every_page
def test_every_picture_is_there_loads_soon_and_is_told_in_words(page: Path) -> None:
    for told, path in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        assert len(told.split()) > 10, path
        assert 0 < (page.parent / path).stat().st_size < 150_000, path


def test_every_picture_is_made_by_the_script_and_shown_somewhere() -> None:
    made = {PLAY.name, package_map.PICTURE.name, flow.PICTURE.name, *(name for name, _ in PAGES.values())}
    made |= {path.name for path in PLAY.parent.glob("chat-*.svg")}  # another test makes these
    shown = {
        Path(path).name for page in EVERY_PAGE for path in re.findall(r"\]\(([^)]*images/[^)]+)\)", page.read_text())
    }
    assert {path.name for path in PLAY.parent.iterdir()} == made == shown


@every_page
def test_every_command_line_of_a_block_could_be_typed(page: Path) -> None:
    for line in "".join(_blocks(page, "sh")).replace("\\\n", " ").splitlines():
        match shlex.split(line, comments=True):
            case ["make", target]:
                assert target in _targets(), line
            case ["export", setting]:
                _load(setting)
            case ["intern" | ".venv/bin/intern", *words]:
                _parse(cli, words)
            case ["python", "-m", "build", *words]:
                main_parser().parse_args(words)
            case ["pipx", "install", wheel]:
                _, _, extras = wheel.rstrip("]").rpartition("[")
                assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"]), line
            case ["install", *words]:
                _install(words)
            case ["chown", "-R", _, folder]:
                assert folder.rstrip("/") in (PACKAGING / "intern.service").read_text(encoding="utf-8"), line
            case ["systemctl" | "journalctl", *words]:
                assert "intern" in words, line
                assert (PACKAGING / "intern.service").is_file()
            case ["docker", "run", *words, image]:
                _run_in_docker(words, image)
            case _:
                pytest.fail(f"nobody knows how to check {line!r}")


def _load(setting: str) -> None:
    name, _, value = setting.partition("=")
    if value.startswith("/"):  # a place that the unit names
        assert f"{name}={value}" in (PACKAGING / "intern.service").read_text(encoding="utf-8"), setting
        return
    load_settings(environ={name: value.replace("…", "something")})


def _install(words: list[str]) -> None:
    """Return all present or future files, in the places where the unit expects them."""
    match words:
        case [*_, "/dev/stdin", target, "<<<", setting]:
            _load(setting)
        case [*_, source, target]:
            made = {"dist/intern", "intern.toml"}  # by `make binary` and `intern init`
            assert source in made or (SOURCE_TREE / source).is_file(), source
        case _:
            pytest.fail(f"install takes more than {words}")
    unit = (PACKAGING / "intern.service").read_text(encoding="utf-8")
    assert re.search(rf"{re.escape(target)}(?![\w/])", unit), target


def _run_in_docker(options: list[str], image: str) -> None:
    """Check the image of `make docker`: its volumes are in the expected places, and its settings exist."""
    assert f" -t {image} ." in (SOURCE_TREE / "Makefile").read_text(encoding="utf-8"), image
    dockerfile = (PACKAGING / "Dockerfile").read_text(encoding="utf-8")
    for option, value in pairwise(options):
        if option == "-v":
            _, inside, *_ = value.split(":")
            assert re.search(rf"(VOLUME |INTERN_CONFIG=){inside}\s", dockerfile), value
        elif option == "-e":
            assert _is_setting(value.partition("=")[0]), value


@every_page
def test_every_block_is_of_a_kind_that_is_looked_at(page: Path) -> None:
    kinds = re.findall(r"(?m)^ *```(\w+)$", page.read_text(encoding="utf-8"))
    assert set(kinds) <= {"sh", "toml", "json", "python", "text"}  # text is a program's output


def _parse(command: click.Command, words: list[str]) -> None:
    """Parse a command line. Raises UsageError for an invalid one; values of options and arguments are not checked."""
    # As in the program: a command remembers its help options, for all later tests.
    with click.Context(command, info_name="intern", **cli.context_settings) as ctx:
        _, rest, _ = command.make_parser(ctx).parse_args(list(words))
        if isinstance(command, click.Group) and rest:
            name, below, rest = command.resolve_command(ctx, rest)
            assert name is not None
            assert below is not None
            _parse(below, rest)
        else:
            taken = sum(1 for each in command.params if isinstance(each, click.Argument) and each.required)
            assert isinstance(command, click.Group) or taken <= len(words), f"{words} lacks an argument"


@every_page
def test_every_command_that_a_page_names_exists_with_its_options(page: Path) -> None:
    for code in _codes(page):
        words = re.sub(r"[\[\]]", "", code).split()
        if words[:1] != ["intern"] or len(words) == 1 or words[1].startswith("-"):
            continue
        assert words[1] in COMMANDS, code
        command = _command(words[1])
        named = {word for word in words if word.startswith("--")}
        assert named <= _options(command), code
        if isinstance(command, click.Group) and len(words) > 2 and words[2].isalpha() and words[2].islower():
            assert words[2] in command.commands, code


@every_page
def test_every_make_target_that_a_page_names_exists(page: Path) -> None:
    for code in _codes(page):
        if found := re.fullmatch(r"(?:\w+=\S+ )?make ([a-z-]+)", code):
            assert found[1] in _targets(), code


def _targets() -> set[str]:
    makefile = (SOURCE_TREE / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


@every_page
def test_every_setting_and_variable_that_a_page_names_exists(page: Path) -> None:
    tables = {
        name.replace("_", "."): getattr(Settings(), name) or Settings().llm for name in Settings.__struct_fields__
    }
    for code in _codes(page):
        if found := re.fullmatch(r"([a-z]+(?:\.kb)?)\.(\w+)(?: = .*)?", code):
            table, key = found[1], found[2]
            if table in tables and key not in {"kb", "py", "db"}:
                assert key in tables[table].__struct_fields__, code
    for variable in set(re.findall(r"\bINTERN__\w+", page.read_text(encoding="utf-8"))):
        assert _is_setting(variable), variable


def _is_setting(variable: str) -> bool:
    try:
        load_settings(environ={variable: ""})
    except ConfigError as error:  # lists and numbers are never empty
        return "there is no setting" not in str(error)
    return True


_FOLDERS = tuple(f"{name}/" for name in ("intern", "tests", "docs", "prompts", "packaging", "benchmarks"))


@every_page
def test_every_file_of_ours_that_a_page_names_exists(page: Path) -> None:
    roots = {path.name for path in SOURCE_TREE.iterdir() if path.is_file()}
    missing: list[str] = []
    for code in _codes(page):
        if code.startswith(_FOLDERS) and " " not in code:
            name, _, function = code.partition("::")
            path = SOURCE_TREE / name
            if not path.exists() or (function and f"def {function}(" not in path.read_text(encoding="utf-8")):
                missing.append(code)
        elif re.fullmatch(r"[A-Z]+\.md|LICENSE|Makefile|[\w.]+\.example", code) and code not in roots:
            missing.append(code)
    assert missing == []


def test_every_test_that_a_page_names_exists() -> None:
    named = {code for page in EVERY_PAGE for code in _codes(page) if re.fullmatch(r"test_\w+", code)}
    modules = [path.read_text(encoding="utf-8") for path in (SOURCE_TREE / "tests").rglob("test_*.py")]
    assert [name for name in named if not any(f"def {name}(" in module for module in modules)] == []


@every_page
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", _prose(page))
    for link in links:
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_file(), link
        assert not anchor or anchor in set(_anchors(target)), link


def _anchors(page: Path) -> Iterator[str]:
    """Return the anchors that GitHub makes of headings, and the written ones."""
    text = _prose(page)
    for heading in re.findall(r"(?m)^#+ (.*)$", text):
        yield re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-")
    yield from re.findall(r'<a id="([^"]+)">', text)


def test_every_page_can_be_reached_from_the_readme_or_the_design() -> None:
    linked = set(re.findall(r"\]\(docs/([\w-]+\.md)", README))
    assert linked == {page.name for page in DOCS}
    decisions = re.findall(r"\]\(decisions/([\w-]+\.md)", DESIGN.read_text(encoding="utf-8"))
    assert set(decisions) == {page.name for page in DECISIONS}


@every_page
def test_every_block_of_settings_can_be_loaded(page: Path, tmp_path: Path) -> None:
    for block in _blocks(page, "toml"):
        (tmp_path / "intern.toml").write_text(block, encoding="utf-8")
        load_settings(tmp_path / "intern.toml", environ={})


@every_page
def test_every_block_of_json_can_be_read(page: Path) -> None:
    for line in "".join(_blocks(page, "json")).splitlines():
        json.loads(line)


def test_the_code_that_the_docs_show_is_the_code_or_a_test_that_runs() -> None:
    paths = [*(SOURCE_TREE / "intern").rglob("*.py"), *(SOURCE_TREE / "tests").rglob("test_*.py")]
    sources = [path.read_text(encoding="utf-8") for path in paths]
    shown = [block for page in DOCS for block in _blocks(page, "python")]
    assert shown
    for block in shown:
        ast.parse(block)
        assert len(block.splitlines()) <= 25, block
        assert any(block.strip() in source for source in sources), block


def test_the_docs_say_how_long_a_soak_must_be_to_judge_and_how_long_it_is_by_itself() -> None:
    needed, chosen = math.ceil(minutes_to_judge()), plan_of({"SOAK_KILLS": "0"}).seconds / 60
    said = f"that takes {needed} minutes, so `SOAK_MINUTES` is {chosen:g} then unless set"
    assert said in " ".join(_prose(SOURCE_TREE / "docs" / "developing.md").split())


def test_the_docs_name_every_table_of_the_database() -> None:
    schema = (SOURCE_TREE / "intern" / "stores" / "schema.sql").read_text(encoding="utf-8")
    tables = re.findall(r"^create (?:virtual )?table (\w+)", schema, re.MULTILINE)
    section = _section("data.md", "intern.db")
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(tables)


def test_the_docs_name_every_decision() -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", _section("data.md", "Decisions"), re.MULTILINE)
    tags = [each.__struct_config__.tag for each in _members(Decision)]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(tags)


def _members(union: Any) -> Iterator[Any]:
    for each in get_args(union):
        yield from _members(each) if isinstance(each, UnionType) else (each,)


def _section(page: str, heading: str) -> str:
    text = (SOURCE_TREE / "docs" / page).read_text(encoding="utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_is_read_within_minutes(name: str) -> None:
    assert len((SOURCE_TREE / "docs" / name).read_text(encoding="utf-8").split()) < 900


def test_the_design_is_read_within_half_an_hour_and_the_changelog_at_a_glance() -> None:
    design = DESIGN.read_text(encoding="utf-8")
    assert len(design.splitlines()) <= 500, "history and figures belong into docs/decisions"
    assert len(design.split()) <= 6000, "history and figures belong into docs/decisions"
    assert len(CHANGELOG.splitlines()) <= 120


# CHANGELOG.


def test_the_changelog_has_a_place_for_what_is_not_released() -> None:
    headings = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert CHANGELOG.partition("## Unreleased\n")[2].strip()


def test_the_changelog_tells_of_every_command() -> None:
    for name in COMMANDS:
        assert re.search(rf"`(intern )?{name}[ `]", CHANGELOG), name


# Prompts.


def test_every_prompt_has_a_template_and_every_template_a_prompt() -> None:
    assert [path.name for path in sorted((SOURCE_TREE / "prompts").glob("*")) if path.is_file()] == sorted(
        f"{prompt.name}.md.j2" for prompt in PROMPTS
    )


def test_every_template_is_sound() -> None:
    PromptTemplates().check(PROMPTS)


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.name)
def test_a_template_s_head_tells_who_uses_it_and_for_what(prompt: Prompt[Any, Any]) -> None:
    head, *_ = (SOURCE_TREE / "prompts" / f"{prompt.name}.md.j2").read_text(encoding="utf-8").splitlines()
    _, room, *_ = prompt.takes.__module__.split(".")
    takes, gives = prompt.takes.__name__, prompt.gives.__name__
    assert head == f"{{# prompts/{prompt.name}.md.j2. Used by: {room}. In: {takes}. Out: {gives}. #}}"


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.name)
def test_a_template_names_every_field_of_what_it_asks_for(prompt: Prompt[Any, Any]) -> None:
    text = (SOURCE_TREE / "prompts" / f"{prompt.name}.md.j2").read_text(encoding="utf-8")
    fields = [field.name for field in msgspec.structs.fields(prompt.gives)]
    if len(fields) > 1:  # a single text needs no name
        assert [field for field in fields if field not in text] == []
