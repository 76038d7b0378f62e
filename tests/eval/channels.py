"""Whole logs of real chat, each live in a channel of its own: what the bot keeps together of what belongs together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Literal, NamedTuple

from anyio import sleep

from intern.actors.activity import ActivityReporter
from intern.core.ids import MessageId
from intern.core.messages import Author, ChatMessage
from intern.runtime.bot import open_sandbox
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.stores.archive import Archive
from intern.stores.engines.sqlite.database import ReadOnlySqliteDatabase
from intern.stores.tables.knowledge import KnowledgeStore
from tests.eval.chats import ChatLine, Exchange, chat_lines, exchanges, rows
from tests.eval.irc_export import Role
from tests.simulation.machine import SimulatedTime, run_seed
from tests.worlds.chat import Sandbox

WHOLE_BAR: Mapping[str, float] = {"all": 0.90, "unmentioned": 0.70}
"""Where those who are named get no reply, only the mention tells who is meant: .725 of 200 exchanges."""
FOLLOW_UPS_BAR = 0.65
FOREIGN_BAR = 0.101

Links = Literal["all", "unmentioned", "none"]
"""Which of the annotated links people make with Discord's reply: all, those of lines that name nobody, or none."""

_LONGEST_SILENCE = 1200.0  # seconds; longer than any window, and a night costs nothing


class Kept(NamedTuple):
    """The outcomes of the annotated lines of answered questions; the place of all others is unknown."""

    asked: int
    """Exchanges whose opening is not cut."""
    whole: int
    """Of these, those of which all questions and answers stand in one block."""
    follow_ups: int
    """What their askers said after the first answer."""
    followed: int
    """Of that, what stands in the same block."""
    messages: int
    """In all blocks."""
    foreign: int
    """Of these, those of another conversation than the one that the block holds most of."""
    beside: float
    """Of the messages of an exchange's block, those of another conversation; the mean over exchanges."""
    blocks: int


@cache
def _roles() -> Mapping[tuple[str, str], str]:
    return {(each.channel, each.author): each.role for each in rows("chat_irc_roles.jsonl", Role)}


def logs() -> dict[str, list[ChatLine]]:
    """The lines that people and bots wrote, by log."""
    found: dict[str, list[ChatLine]] = {}
    for line in chat_lines().values():
        if line.author and line.kind != "system" and line.text.strip():
            found.setdefault(line.message_id.rpartition(":")[0], []).append(line)
    return found


class _Log:
    """One log in a channel."""

    def __init__(self, name: str, lines: Sequence[ChatLine], sandbox: Sandbox, links: Links) -> None:
        self.name = name
        self.lines = lines
        self.said: dict[str, ChatMessage] = {}
        self._sandbox = sandbox
        self._links = links
        self._place = sandbox.add_channel(name)
        self._people = {line.author.lower(): self.person(line) for line in lines if line.author}
        names = sorted({line.author for line in lines if line.author}, key=len, reverse=True)
        self._address = re.compile(rf"\A\s*@?({'|'.join(map(re.escape, names))})(?=\s*[:,]|\s|\Z)[:,]?", re.IGNORECASE)
        # Within a line, short ones and those without a capital, digit or mark may be ordinary words.
        rare = [name for name in names if len(name) > 3 and not (name.isalpha() and name.islower() and len(name) < 7)]
        self._within = re.compile(rf"(?<![\w<@])({'|'.join(map(re.escape, rare))})(?!\w)") if rare else None

    def person(self, line: ChatLine) -> Author:
        role = "bot" if line.is_bot else _roles().get((line.channel, line.author or ""), "user")
        name = f"{line.author} {self.name}"
        if role == "bot":
            return Author(id=self._sandbox.author(name).id, name=name, type="bot")
        return self._sandbox.author(f"{name} (team)" if role == "team" else name)

    def say(self, line: ChatLine) -> None:
        person = self._people[(line.author or "").lower()]
        named = self._address.match(line.text)
        target = next((self.said[each] for each in line.reply_to if each in self.said), None)
        text = line.text
        if named:
            text = text[named.end() :]
        if self._within:
            text = self._within.sub(lambda found: f"<@{self._people[found[1].lower()].id}>", text)
        if named:
            text = f"<@{self._people[named[1].lower()].id}>{text}"
        names = "<@" in text
        replies = self._links == "all" or (self._links == "unmentioned" and not names)
        if target is not None and (not replies or target.author.id == person.id):
            target = None  # nobody presses "reply" to go on with what they said
        self.said[line.message_id] = self._sandbox.say(
            person, text, channel_id=self._place, reply_to=target.id if target else None
        )


def _team(lines: Mapping[str, Sequence[ChatLine]]) -> set[str]:
    return {
        f"{line.author} {name} (team)"
        for name, said in lines.items()
        for line in said
        if _roles().get((line.channel, line.author or "")) == "team"
    }


def play(folder: Path, *, links: Links = "all", only: Callable[[str], bool] = lambda _: True) -> Kept:
    """Tell the logs to the whole bot, on a simulated clock, and look at what it filed."""
    chosen = {name: lines for name, lines in logs().items() if only(name)}
    (folder / "knowledge-base" / "sources").mkdir(parents=True)
    settings = load_settings(
        environ={},
        overrides={
            "data": {"dir": str(folder)},
            "llm": {"provider": "offline"},
            "discord": {"default_mode": "capture_only"},
            "kb": {"mask_secrets": False, "scan_interval_seconds": 1_000_000},
        },
    )

    async def main(time: SimulatedTime) -> dict[str, MessageId]:
        sandbox = Sandbox(time, _team(chosen))
        told = [_Log(name, lines, sandbox, links) for name, lines in chosen.items()]
        async with open_sandbox(settings, sandbox, events=ActivityReporter(), clock=time):
            now = 0.0
            for at, log, line in _in_order(told):
                if at > now:
                    await sleep(at - now)
                    now = at
                log.say(line)
            await sleep(_LONGEST_SILENCE)
        return {line: message.id for log in told for line, message in log.said.items()}

    ids = run_seed(1, main)
    return _kept(settings, ids, [each for each in exchanges() if each.ids[0].rpartition(":")[0] in chosen])


def _in_order(told: Sequence[_Log]) -> Iterator[tuple[float, _Log, ChatLine]]:
    """All logs side by side, each from the same moment on."""
    moments: list[tuple[float, int, int, _Log, ChatLine]] = []
    for n, log in enumerate(told):
        at, before = 0.0, log.lines[0].at
        for k, line in enumerate(log.lines):
            at, before = at + min(max(0.0, (line.at - before).total_seconds()), _LONGEST_SILENCE), line.at
            moments.append((at, n, k, log, line))
    moments.sort(key=lambda each: each[:3])
    for at, _, _, log, line in moments:
        yield at, log, line


def _kept(settings: Settings, ids: Mapping[str, MessageId], held: Sequence[Exchange]) -> Kept:
    archive, topics = Archive(settings.paths.raw), KnowledgeStore(ReadOnlySqliteDatabase(settings.paths.database))
    pairs = [archive.get(block.qa_id) for name in topics.topic_names() for block in topics.read_topic(name)]
    blocks = [frozenset(pair.message_ids) for pair in pairs if pair is not None]
    lines = {ids[line.message_id]: line for line in chat_lines().values() if line.message_id in ids}
    asked = whole = follow_ups = followed = 0
    shares: list[float] = []
    for each in held:
        wanted = _annotated(ids, (*each.question_ids, *each.answer_ids))
        if each.starts_in_context or not wanted:
            continue
        best = max(blocks, key=lambda block: len(block & wanted), default=frozenset[MessageId]())
        if not best & wanted:
            best = frozenset[MessageId]()
        later = _annotated(ids, each.followup_ids)
        asked, whole = asked + 1, whole + (wanted <= best)
        follow_ups, followed = follow_ups + len(later), followed + len(later & best)
        known = [lines[message_id] for message_id in best if lines[message_id].annotated]
        shares += [mean(line.conversation_id != each.conversation_id for line in known)] if known else []
    messages = foreign = 0
    for block in blocks:
        counts = Counter(lines[message_id].conversation_id for message_id in block if lines[message_id].annotated)
        messages += counts.total()
        foreign += counts.total() - max(counts.values(), default=0)
    return Kept(asked, whole, follow_ups, followed, messages, foreign, mean(shares or [0.0]), len(blocks))


def _annotated(ids: Mapping[str, MessageId], wanted: Collection[str]) -> frozenset[MessageId]:
    lines = chat_lines()
    return frozenset(ids[each] for each in wanted if each in ids and lines[each].annotated)
