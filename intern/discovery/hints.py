"""What the structure of a file tells: classes and functions, headings, top-level keys, sections. Pure."""

from __future__ import annotations

import ast
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator

import msgspec
import tomli

MOST_CHARS = 600
_HEADING = re.compile(r"#{1,6}[ \t]+(\S.*?)(?:[ \t]+#+)?[ \t]*$")
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_YAML_KEY = re.compile(r"""(?P<quote>["']?)(?P<key>[\w.$/][\w.$/ -]{0,100})(?P=quote)[ \t]*:(?:[ \t]|$)""")
_SECTION = re.compile(r"\[([^\[\]\n]{1,100})\]\s*$")
_WARNINGS = threading.Lock()


def file_type_of(path: str, kind: str) -> str:
    """The type as files are told apart by their endings: `markdown_doc`, `python_file`, `service_file` and so on."""
    ending = path.rpartition("/")[2].rpartition(".")[2].lower()
    return _TYPES.get(ending, {"documentation": "text_doc", "configuration": "config"}.get(kind, f"{ending}_file"))


def structure_of(path: str, text: str) -> str:
    """One or two sentences on what the file consists of; empty where nothing can be told."""
    ending = path.rpartition(".")[2].lower()
    tell = _TELLERS.get(ending)
    return "" if tell is None else " ".join(tell(text))


def _python(text: str) -> Iterator[str]:
    try:
        # Parsing warns of other people's escapes. The filters are the process's, so one at a time.
        with _WARNINGS, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    # What others may call comes first.
    functions.sort(key=lambda name: name.startswith("_"))
    yield from _sentence("Lists classes", classes)
    yield from _sentence("Main functions", functions)


def _markdown(text: str) -> Iterator[str]:
    headings: list[str] = []
    fence = ""
    for line in text.splitlines():
        if mark := _FENCE.match(line):
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        elif not fence and (heading := _HEADING.match(line)):
            headings.append(heading[1])
    yield from _sentence("Sections", headings)


def _yaml(text: str) -> Iterator[str]:
    # Keys at the beginning of a line: no parser, since a file from anywhere may expand without end.
    keys = [found["key"].strip() for line in text.splitlines() if (found := _YAML_KEY.match(line))]
    yield from _sentence("Top-level keys", keys)


def _json(text: str) -> Iterator[str]:
    try:
        data = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return
    yield from _sentence("Top-level keys", data)


def _toml(text: str) -> Iterator[str]:
    try:
        data = tomli.loads(text)
    except (tomli.TOMLDecodeError, RecursionError):
        return
    yield from _sentence("Top-level keys", data)


def _sections(text: str) -> Iterator[str]:
    yield from _sentence("Sections", (found[1] for line in text.splitlines() if (found := _SECTION.match(line))))


def _sentence(what: str, names: Iterable[str]) -> Iterator[str]:
    kept = ""
    for name in dict.fromkeys(" ".join(name.split()) for name in names):
        more = f"{kept}, {name}" if kept else name
        if len(more) > MOST_CHARS:
            kept += ", …"
            break
        kept = more
    if kept:
        yield f"{what}: {kept}."


_TELLERS: dict[str, Callable[[str], Iterator[str]]] = {
    "py": _python,
    "md": _markdown,
    "yaml": _yaml,
    "yml": _yaml,
    "json": _json,
    "toml": _toml,
    "service": _sections,
    "ini": _sections,
    "cfg": _sections,
}
_TYPES = {
    "md": "markdown_doc",
    "txt": "text_doc",
    "yaml": "yaml_config",
    "yml": "yaml_config",
    "json": "json_config",
    "toml": "toml_config",
    "py": "python_file",
    "service": "service_file",
}
