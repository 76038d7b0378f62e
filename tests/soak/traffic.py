"""The messages of a busy community: recorded chat, repeated and faster, or made-up chat of the same shape."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

RECORDED = Path(__file__).parents[3] / "shared" / "eval"
"""Public chat beside the source tree, if it is there."""
PLACES = 8  # channels that talk at the same time

Role = Literal["team", "user", "bot"]
_Log = Sequence[Mapping[str, Any]]


class Line(NamedTuple):
    """One message, before it is said."""

    place: int
    author: str
    role: Role
    text: str
    replies_to: int | None
    """The number of an earlier line, of another author, in the same place."""


def lines(random: Random, recorded: Path = RECORDED) -> Iterator[Line]:
    """Yield lines without end; the number of a line is the count of lines before it.

    A log is played in one place from its beginning to its end, several of them at the same time.
    """
    logs = logs_of(recorded) or made_up(Random(random.random()))
    numbers: dict[tuple[int, str], int] = {}
    lanes: list[Iterator[Mapping[str, Any]]] = [iter(()) for _ in range(PLACES)]
    told, waiting = 0, list[_Log]()
    while True:
        place = random.randrange(PLACES)
        row = next(lanes[place], None)
        if row is None:
            if not waiting:
                waiting = random.sample(logs, len(logs))
            lanes[place] = iter(waiting.pop())
            numbers = {key: number for key, number in numbers.items() if key[0] != place}
            continue
        numbers[place, str(row["message_id"])] = told
        told += 1
        yield Line(
            place=place,
            author=str(row["author"]),
            role=row["author_role"],
            text=str(row["text"]).strip(),
            replies_to=numbers.get((place, str(row.get("replies_to")))),
        )


def logs_of(recorded: Path) -> list[_Log]:
    """Return the recorded logs, as far as people and bots speak there; none without records."""
    file = recorded / "chat_irc.jsonl"
    if not file.is_file():
        return []
    roles = _roles(recorded / "chat_irc_roles.jsonl")
    logs: dict[str, list[Mapping[str, Any]]] = {}
    authors: dict[str, str] = {}
    for text in file.read_text(encoding="utf-8").splitlines():
        row: dict[str, Any] = json.loads(text)
        # Context without annotations does not say who replied to whom.
        if not str(row["text"]).strip() or row.get("kind") == "system" or not row.get("annotated"):
            continue
        row["author_role"] = row.get("author_role") or roles.get((row["channel"], row["author"]), "user")
        # Who is of the team in one channel may ask in another.
        row["author"] = f"{row['author']} {row['channel']}"
        authors[row["message_id"]] = row["author"]
        target: str = next(iter(row.get("reply_to", ())), "")
        # Members do not press "reply" to continue their own message.
        row["replies_to"] = target if authors.get(target, row["author"]) != row["author"] else ""
        logs.setdefault(row["message_id"].partition(":")[0], []).append(row)
    return list(logs.values())


def _roles(file: Path) -> dict[tuple[str, str], Role]:
    rows = [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []
    return {(row["channel"], row["author"]): row["role"] for row in rows}


_SUBJECTS = (
    *("spool", "relay", "agent", "quota", "tenant", "certificate", "backend", "dashboard", "collector", "pipeline"),
    *("exporter", "gateway", "token", "cluster", "snapshot", "retention", "replica", "scheduler", "mirror", "cache"),
    *("upgrade", "driver", "kernel", "package", "partition", "bootloader", "printer"),
)
_TROUBLES = ("stops", "is slow", "fails to start", "loses its settings", "fills the disk", "says permission denied")
_ASKING = (
    "How do I restart the {one} after the {two} {trouble}?",
    "My {one} {trouble} since the {two} was changed, any idea?",
    "Does anybody know where the {one} keeps its {two}?",
    "is there a way to move the {one} to another {two}",
)
_CHATTING = ("good morning all", "heh, same here", "the {one} is fine for me", "brb", "anyone at the {two} talk?")
_TEACHING = (
    "Set `{one}.{two}` and restart the {one}.",
    "Run `relay {one} --{two}`, then look into the log of the {two}.",
    "The {one} does that while the {two} is away; wait for it.",
)


def made_up(random: Random, *, logs: int = 10, length: int = 400) -> list[_Log]:
    """Return logs in the shape of recorded ones: many ask, few answer, most of it is chat."""
    return [_made_up_log(random, n, length) for n in range(logs)]


def _made_up_log(random: Random, n: int, length: int) -> _Log:
    members = [f"member{n}-{each}" for each in range(40)]
    team = [f"helper{n}-{each}" for each in range(4)]
    rows: list[dict[str, Any]] = []
    for number in range(length):
        dice = random.random()
        recent = [row for row in rows[-12:] if row["author_role"] == "user"]
        target = random.choice(recent) if recent and (dice < 0.18 or dice > 0.8) else None
        role: Role = "team" if dice < 0.23 else "bot" if dice < 0.26 else "user"
        author = random.choice(team) if role == "team" else f"robot{n}" if role == "bot" else random.choice(members)
        said = _TEACHING if role == "team" else _ASKING if dice < 0.55 else _CHATTING
        one, two = random.sample(_SUBJECTS, 2)
        text = random.choice(said).format(one=one, two=two, trouble=random.choice(_TROUBLES))
        rows.append(
            {
                "message_id": f"{n}:{number}",
                "author": author,
                "author_role": role,
                "text": text,
                "replies_to": target["message_id"] if target and target["author"] != author else "",
            }
        )
    return rows
