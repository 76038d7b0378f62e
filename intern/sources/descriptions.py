"""Descriptions of sources, topics and discovered files: the prompts, their material, and rules without a model.

A model sees the whole text if it fits, or else a part that represents it. Until its summary is there, the beginning of
the text is the provisional description. The rules take titles, headings, questions, and the terms that a text is most
about: an entry is found by its words, so it has as many significant ones as fit. Deterministic.
"""

from __future__ import annotations

import ast
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
import tomli
from msgspec import Meta, Struct

from intern.core.captures import TopicBlock, Turn
from intern.core.text.passages import GAP, find_blocks
from intern.core.text.words import find_key_terms, shorten_to_line, stem_set, stem_words
from intern.models.prompt import Prompt

# A conversation cut to less says nothing.
_LEAST_BLOCK = 160


def source_excerpt(text: str, max_chars: int) -> str:
    """Return the text, or three quarters from its head and one from its tail, cut at lines if there are any."""
    if len(text) <= max_chars:
        return text
    room = max(max_chars - len(GAP), 2)
    head, tail = text[: room * 3 // 4], text[len(text) - room // 4 :]
    return f"{head.rpartition(chr(10))[0] or head}{GAP}{tail.partition(chr(10))[2] or tail}"


def topic_excerpt(blocks: Sequence[TopicBlock], max_chars: int) -> str:
    """Return the conversations, a line for each turn and an empty line after each, without ids and dates.

    If that is too long: each question and the beginning of its answer; of very many, some evenly spread.
    """
    whole = "\n\n".join("\n".join(map(_format_turn, block.turns)) for block in blocks)
    if len(whole) <= max_chars:
        return whole
    most = max(max_chars // _LEAST_BLOCK, 1)
    # The newest always, the others evenly spread.
    shown = blocks if len(blocks) <= most else [blocks[-1 - n * len(blocks) // most] for n in reversed(range(most))]
    room = max_chars // len(shown)
    return "\n\n".join(_shorten_block(block, room - len("\n\n")) for block in shown)


def first_question(turns: Sequence[Turn]) -> str:
    """Return the first turn of a user; the first turn if no user spoke."""
    return next((turn.text for turn in turns if turn.speaker == "User"), turns[0].text if turns else "")


def _format_turn(turn: Turn) -> str:
    return f"{turn.speaker}: {' '.join(turn.text.split())}"


def _shorten_block(block: TopicBlock, room: int) -> str:
    question = shorten_to_line(f"User: {first_question(block.turns)}", room // 2)
    answer = " ".join(turn.text for turn in block.turns if turn.speaker == "Team")
    return "\n".join(line for line in (question, shorten_to_line(f"Team: {answer}", room - len(question) - 1)) if line)


class SummarizeIn(Struct, frozen=True, kw_only=True):
    """A source or topic to describe."""

    source_id: str
    text: str


class SummarizeOut(Struct, frozen=True, kw_only=True):
    """An entry of the index."""

    description: Annotated[str, Meta(max_length=800, description="One paragraph of plain English text.")]


SUMMARIZE_SOURCE = Prompt("summarize_source", takes=SummarizeIn, gives=SummarizeOut)
SUMMARIZE_TOPIC = Prompt("summarize_topic", takes=SummarizeIn, gives=SummarizeOut)


class SummarizeFileIn(Struct, frozen=True, kw_only=True):
    """The file."""

    file_path: str
    file_type: str
    structure: str
    """Its structure in a sentence; may be empty."""
    text: str


class SummarizeFileOut(Struct, frozen=True, kw_only=True):
    """The summary of a file."""

    summary: Annotated[str, Meta(max_length=2000, description="3 to 6 sentences of plain English text.")]


SUMMARIZE_FILE = Prompt("summarize_file", takes=SummarizeFileIn, gives=SummarizeFileOut)


BLANK = "No text."
"""The description of an empty text."""
_LENGTH = 300
"""Characters of a provisional description."""
# Enough for a heading and a paragraph; a document may have megabytes.
_BEGINNING = 4000


def describe_source(text: str) -> str:
    """Return a document's first heading and first paragraph."""
    begun = text[:_BEGINNING]
    spans = [*find_blocks(begun)]
    heading = next((span.path[0] for span in spans if span.kind == "heading"), "")
    first = next((begun[span.start : span.end] for span in spans if span.kind != "heading"), "")
    lead = ". ".join(part for part in (heading, first) if part)
    return shorten_to_line(lead or begun, _LENGTH) or BLANK


def describe_topic(blocks: Sequence[TopicBlock]) -> str:
    """Return a topic's first question."""
    asked = (first_question(block.turns).strip() for block in blocks)
    return shorten_to_line(next((question for question in asked if question), ""), _LENGTH) or BLANK


_FILE_LEAD = 241
_FILE_TERMS = 20
_LENGTH_OFFLINE = 600
"""Characters of a description."""
_LEAD = 200
_LIST = 200
_QUESTION = 100
_QUESTIONS = 400
_MATERIAL = 4000


def summarize_source(given: SummarizeIn) -> SummarizeOut:
    """Describe a document by its beginning, its headings, and its key terms."""
    headings = [span.path[-1] for span in find_blocks(given.text) if span.kind == "heading"]
    lead = shorten_to_line(describe_source(given.text), _LEAD)
    covers = _join_fitting((heading for heading in headings if heading and heading not in lead), _LIST)
    return SummarizeOut(description=_append_key_terms([lead, f"Covers: {covers}." if covers else ""], given.text))


def summarize_topic(given: SummarizeIn) -> SummarizeOut:
    """Describe a topic by its questions, newest first, and the key terms of questions and answers."""
    conversations = given.text.split("\n\n")
    asked = [_first_line_by(conversation, "User: ") for conversation in conversations]
    questions = _join_fitting(
        (shorten_to_line(question, _QUESTION) for question in reversed(asked) if question), _QUESTIONS
    )
    said = "\n".join(line[len("User: ") :] for line in given.text.split("\n"))
    lead = f"Questions such as: {questions}" if questions else ""
    # The questions twice: later questions are more like them than like the answers.
    return SummarizeOut(description=_append_key_terms([lead], "\n".join([*asked, said])))


def describe_by_rules(blocks: Sequence[TopicBlock]) -> str:
    """Describe a topic with these blocks as `summarize_topic` does."""
    return summarize_topic(SummarizeIn(source_id="team:", text=topic_excerpt(blocks, _MATERIAL))).description


def summarize_file(given: SummarizeFileIn) -> SummarizeFileOut:
    """Describe a file by its beginning, its structure, and its key terms."""
    lead = shorten_to_line(given.text, _FILE_LEAD)
    terms = ", ".join(find_key_terms(given.text, _FILE_TERMS))
    parts = (lead, given.structure, f"Key terms: {terms}." if terms else "")
    return SummarizeFileOut(summary=" ".join(part for part in parts if part) or "It is empty.")


RULES: dict[str, Callable[[Any], Any]] = {
    SUMMARIZE_SOURCE.name: summarize_source,
    SUMMARIZE_TOPIC.name: summarize_topic,
    SUMMARIZE_FILE.name: summarize_file,
}
"""For `OfflineModel`."""


def _first_line_by(conversation: str, speaker: str) -> str:
    """Return the first line of a speaker."""
    lines = (line for line in conversation.split("\n") if line.startswith(speaker))
    return next(lines, "").removeprefix(speaker)


def _join_fitting(items: Iterable[str], max_chars: int) -> str:
    """Join the distinct items that fit, in order."""
    kept: list[str] = []
    for item in dict.fromkeys(items):
        if sum(len(other) + 2 for other in kept) + len(item) <= max_chars:
            kept.append(item)
    return "; ".join(kept)


def _append_key_terms(parts: Iterable[str], text: str) -> str:
    """Append as many new key terms of the text to the parts as fit."""
    said = " ".join(part for part in parts if part)
    held = stem_set(said)
    terms, room = "", _LENGTH_OFFLINE - len(said) - len(" Key terms: , .")
    for term in find_key_terms(text, 200):
        if held.isdisjoint(stem_words(term)) and len(terms) + len(term) <= room:
            terms += f", {term}" if terms else term
    return " ".join(part for part in (said, f"Key terms: {terms}." if terms else "") if part) or "No text."


MOST_CHARS = 600


_HEADING = re.compile(r"#{1,6}[ \t]+(\S.*?)(?:[ \t]+#+)?[ \t]*$")


_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")


_YAML_KEY = re.compile(r"""(?P<quote>["']?)(?P<key>[\w.$/][\w.$/ -]{0,100})(?P=quote)[ \t]*:(?:[ \t]|$)""")


_SECTION = re.compile(r"\[([^\[\]\n]{1,100})\]\s*$")


_WARNINGS = threading.Lock()


def detect_file_type(path: str, kind: str) -> str:
    """Return the type of a file by its ending: `markdown_doc`, `python_file`, `service_file` and so on."""
    ending = path.rpartition("/")[2].rpartition(".")[2].lower()
    usual = {"documentation": "text_doc", "configuration": "config"}.get(kind, f"{ending}_file")
    return _BY_ENDING.get(ending, _UNKNOWN)[0] or usual


def describe_structure(path: str, text: str) -> str:
    """Describe the structure of a file in one or two sentences; empty if it has none."""
    _, tell = _BY_ENDING.get(path.rpartition(".")[2].lower(), _UNKNOWN)
    return " ".join(tell(text))


def _describe_python(text: str) -> Iterator[str]:
    try:
        # Parsing warns of other people's escapes. The filters are the process's, so one at a time.
        with _WARNINGS, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    # Public names come first.
    functions.sort(key=lambda name: name.startswith("_"))
    yield from _format_names("Lists classes", classes)
    yield from _format_names("Main functions", functions)


def _describe_markdown(text: str) -> Iterator[str]:
    headings: list[str] = []
    fence = ""
    for line in text.splitlines():
        if mark := _FENCE.match(line):
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        elif not fence and (heading := _HEADING.match(line)):
            headings.append(heading[1])
    yield from _format_names("Sections", headings)


def _describe_yaml(text: str) -> Iterator[str]:
    # Keys at the beginning of a line: no parser, since a file from anywhere may expand without end.
    keys = [found["key"].strip() for line in text.splitlines() if (found := _YAML_KEY.match(line))]
    yield from _format_names("Top-level keys", keys)


def _describe_keys(decode: Callable[[str], Iterable[str]], text: str) -> Iterator[str]:
    try:
        data = decode(text)
    except (msgspec.DecodeError, tomli.TOMLDecodeError, RecursionError):
        return
    yield from _format_names("Top-level keys", data)


def _describe_sections(text: str) -> Iterator[str]:
    yield from _format_names("Sections", (found[1] for line in text.splitlines() if (found := _SECTION.match(line))))


def _format_names(what: str, names: Iterable[str]) -> Iterator[str]:
    kept = ""
    for name in dict.fromkeys(" ".join(name.split()) for name in names):
        more = f"{kept}, {name}" if kept else name
        if len(more) > MOST_CHARS:
            kept += ", …"
            break
        kept = more
    if kept:
        yield f"{what}: {kept}."


_UNKNOWN: tuple[str, Callable[[str], Iterable[str]]] = "", lambda _: ()
_BY_ENDING: dict[str, tuple[str, Callable[[str], Iterable[str]]]] = {
    "py": ("python_file", _describe_python),
    "md": ("markdown_doc", _describe_markdown),
    "txt": ("text_doc", lambda _: ()),
    "yaml": ("yaml_config", _describe_yaml),
    "yml": ("yaml_config", _describe_yaml),
    "json": ("json_config", partial(_describe_keys, msgspec.json.Decoder(dict[str, msgspec.Raw]).decode)),
    "toml": ("toml_config", partial(_describe_keys, tomli.loads)),
    "service": ("service_file", _describe_sections),
    "ini": ("", _describe_sections),
    "cfg": ("", _describe_sections),
}
"""The type of a file by its ending, if that determines it, and the function that describes its structure."""
