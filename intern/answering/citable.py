"""What an answer may cite: a source by its id, a team answer by its topic's and that of its QA block. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BLOCK = "--- QA ---"
_TEAM = "Team: "
_ID = re.compile(r"id:[ \t]*(\S+)[ \t]*$")


def is_team(source_id: str) -> bool:
    """What the team answered, as opposed to documentation."""
    return source_id.startswith("team:")


def citable(source_id: str, text: str) -> Iterator[str]:
    """The ids by which a source may be cited: its own, and of a topic `team:<topic>.txt#<qa id>` for each block."""
    yield source_id
    if is_team(source_id):
        yield from (f"{source_id}#{qa_id}" for qa_id in block_ids(text))


def block_lines(text: str, qa_id: str) -> Iterator[str]:
    """What the team said in the QA block of that id, line by line; in any block, where the id is empty."""
    block, of_team = "", False
    for line in text.split("\n"):
        if line.rstrip() == _BLOCK:
            block, of_team = "", False
        elif not block and (match := _ID.match(line)):
            block = match[1]
        elif not line.startswith("  "):
            of_team = line.startswith(_TEAM)
        if of_team and block and qa_id in {"", block}:
            yield line.removeprefix(_TEAM).removeprefix("  ")


def block_ids(text: str) -> Iterator[str]:
    """The ids in the headers of a topic's QA blocks; what a turn says is never a header.

    A turn may hold any text, the other kinds of line ends included, but after each line feed it is indented.
    """
    before = ""
    for line in text.split("\n"):
        if before.rstrip() == _BLOCK and (match := _ID.match(line)):
            yield match[1]
        before = line
