"""Documents and the words in the code are plain English: docs/developing.md has the rules.

A sentence names its actor and its subject. The phrases below never do, so a reader has to guess.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from intern.frontends.cli import cli

TREE = Path(__file__).parents[1]
PACKAGES = tuple(sorted(path.parent.name for path in (TREE / "intern").glob("*/__init__.py")))

TEMPLATES = ("intern/frontends/http/templates/*.html", "intern/lab/templates/*", "prompts/messages/*.j2")
PAGES = (
    *(TREE / name for name in ("README.md", "CHANGELOG.md", "intern.toml.example")),
    *sorted(path for path in (TREE / "docs").rglob("*.md") if path.name != "names.md"),  # a list of names, no prose
    *sorted(path for each in TEMPLATES for path in TREE.glob(each)),
)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)

RIDDLES = (
    "nobody",
    "somebody",
    "whoever",
    "whomever",
    "whatever",
    "of which",
    "is told",
    "are told",
    "goes by",
    "is had",
    "be had",
)
_RIDDLE = re.compile(rf"\b(?:{'|'.join(RIDDLES)})\b".replace(" ", r"[\s#]+"), re.IGNORECASE)
# The same, with the characters that may separate two words of one text in a source: to parse those without any would
# take seconds.
_PERHAPS = re.compile(rf"\b(?:{'|'.join(RIDDLES)})\b".replace(" ", r"[\s#\"'()\\fr]+"), re.IGNORECASE)
# A sentence that has a clause for its subject: "What is found is summarised."
_CLAUSE = re.compile(r"(?:What|Who|Whose|Whom) [^?]*\.")
MOST_WORDS = 25


def riddles(text: str) -> Iterator[tuple[int, str]]:
    """Find the phrases, each with its line; a phrase may continue on the next line."""
    for found in _RIDDLE.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, " ".join(found[0].replace("#", " ").split())


def words_of(source: str) -> Iterator[tuple[int, str]]:
    """Find a module's comments, and its texts of three words or more, each with its line. Word lists are no texts."""
    begins, last, comment = 0, 0, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if last == token.start[0] - 1:
            comment += "\n" + token.string
        else:
            yield begins, comment
            begins, comment = token.start[0], token.string
        last = token.start[0]
    yield begins, comment
    tree = ast.parse(source)
    lists = set(_word_lists(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in lists and len(text.split()) >= 3:
                yield node.lineno, text
            case _:
                pass


def _word_lists(tree: ast.Module) -> Iterator[int]:
    """Find the texts that are split into words, by themselves or under a name."""
    split = [
        call.func.value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "split"
    ]
    yield from map(id, split)
    names = {each.id for each in split if isinstance(each, ast.Name)}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in names:
            yield id(node.value)


def prose(page: Path) -> str:
    """Return the sentences of a page, each on its line: no code, and of the changelog only what is not released yet."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".example":
        return re.sub(r"(?m)^(?:\[.*|# \w+ = .*|#  .*)$|^# ?", "", text)
    if page.suffix in {".html", ".j2"}:
        text = re.sub(r"(?s)\{%.*?%\}|\{#.*?#\}", _lines, text)
        text = re.sub(r"(?s)\{\{.*?\}\}", _blank, re.sub(r"(?s)<style.*?</style>", _lines, text))
        blocks = r"</?(?:p|h\d|li|td|th|dt|dd|div|section|option|button|label|summary|title|desc|a|head)\b[^>]*>"
        return re.sub(r"(?s)<[^>]*>", _lines, re.sub(blocks, "\n\n", text))
    if page.name == "CHANGELOG.md":
        head, unreleased, rest = text.partition("## Unreleased\n")
        text = head + unreleased + rest.partition("\n## ")[0]
    text = re.sub(r"(?ms)^( *)```.*?^\1```$|<!--.*?-->|<[^>]*>|`[^`]*`", _blank, text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def _blank(code: re.Match[str]) -> str:
    return "code" + "\n" * code[0].count("\n")


def _lines(tag: re.Match[str]) -> str:
    return "\n" * tag[0].count("\n")


def sentences(text: str) -> Iterator[str]:
    """Take a page apart: paragraphs, rows' cells and points of a list into their sentences."""
    for paragraph in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) |\n#+ |\n\||\|", text):
        yield from re.split(r"(?<=[.!?:;])\s", " ".join(paragraph.replace("*", "").split()))


@pytest.mark.parametrize("package", PACKAGES)
def test_the_words_of_a_package_are_no_riddles(package: str) -> None:
    found = [
        f"{path.relative_to(TREE)}:{line + below - 1}: {phrase}"
        for path in sorted((TREE / "intern" / package).rglob("*.py"))
        if _PERHAPS.search(source := path.read_text(encoding="utf-8"))
        for line, text in words_of(source)
        for below, phrase in riddles(text)
    ]
    assert not found, "\n".join(found)


@every_page
def test_a_page_has_no_riddles(page: Path) -> None:
    found = [f"{page.name}:{line}: {phrase}" for line, phrase in riddles(prose(page))]
    assert not found, "\n".join(found)


@every_page
def test_a_page_has_short_sentences_with_a_subject(page: Path) -> None:
    said = list(sentences(prose(page)))
    long = [f"{len(each.split())} words: {each}" for each in said if len(each.split()) > MOST_WORDS]
    clauses = [f"subject: {each}" for each in said if _CLAUSE.fullmatch(each)]
    assert not long + clauses, "\n".join(long + clauses)


def _helps(command: click.Command) -> Iterator[str]:
    """Give the help of a command, of its options and of the commands below it."""
    yield command.help or ""
    yield from (each.help or "" for each in command.params if isinstance(each, click.Option))
    if isinstance(command, click.Group):
        for name in command.list_commands(context := click.Context(command)):
            below = command.get_command(context, name)
            assert below is not None
            yield from _helps(below)


def test_the_help_of_commands_has_short_sentences_with_a_subject() -> None:
    said = [each for text in _helps(cli) for each in sentences(re.sub(r"`[^`]*`", "code", text.replace("\b", "")))]
    assert len(said) > 200
    assert [each for each in said if len(each.split()) > MOST_WORDS or _CLAUSE.fullmatch(each)] == []


@pytest.mark.parametrize("phrase", RIDDLES)
def test_each_phrase_is_found_where_it_was_written(phrase: str, tmp_path: Path) -> None:
    first, _, rest = f"It knows what {phrase} there.".rpartition(" there")
    told = f'# One line,\n# {first}{rest}\nraise ValueError("{first} here")\n'
    planted = f'"""A module."""\n\n{told}x = "{phrase} so".split()\n_Y = "{phrase} so"\ny = _Y.split()\n'
    found = {line + below - 1: said for line, text in words_of(planted) for below, said in riddles(text)}
    assert found == {4: phrase, 5: phrase}

    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\nCode is left alone: `{phrase}`.\n{first.replace(' ', chr(10))}.\n", encoding="utf-8")
    assert [said for _, said in riddles(prose(page))] == [phrase]


def test_long_sentences_and_clauses_are_found() -> None:
    said = list(sentences("What is found is kept. Short: yes.\n- " + "word " * 26 + "\n- What is it?"))
    assert [each for each in said if _CLAUSE.fullmatch(each)] == ["What is found is kept."]
    assert [len(each.split()) for each in said if len(each.split()) > MOST_WORDS] == [26]
