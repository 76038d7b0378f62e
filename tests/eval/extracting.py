"""Extraction over real exchanges: what fits the schema, what gives people away, and how much is learned."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from intern.core.captures import Capture, Turn
from intern.core.clock import SystemClock
from intern.core.errors import ModelReplyError
from intern.core.ids import ChannelId, ConversationId, MessageId, UserId
from intern.core.text.words import STOP_WORDS
from intern.facts.prompts import EXTRACT, CheckedExtraction, ExtractOut, build_extraction_input
from intern.facts.segments import LABEL, NAMELESS, Pseudonyms, Segment, add_known_names as with_names, build_segment
from intern.learning.archivist import iter_author_names
from intern.learning.rehearsal_archive import RehearsalArchive
from intern.models.prompt import Model
from intern.service.models import open_models
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.stores.archive import Archive
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.members import NameStore
from tests.eval.chats import Exchange, chat_lines, exchanges

ASKED_OF_AN_ENDPOINT = 40
"""Conversations: each is a call that costs something."""


class Measured(NamedTuple):
    """The results of extraction."""

    conversations: int
    valid: int
    """Replies that fit their type."""
    leaks: tuple[str, ...]
    """Texts in which an id stands, or the name of somebody who wrote in the conversation, or who is addressed there and
    wrote in another one."""
    strangers: int
    """Texts in which somebody's name stands who is addressed there, and never wrote what was captured."""
    named: int
    """Texts in which a word stands that anybody of the whole channel is called; many are words besides."""
    invalid_ids: int
    """Of messages, in what is kept: that are none of the conversation's."""
    dropped_ids: int
    """That a model made up, and nobody kept."""
    nuggets: int
    facts: int


def settings_of_here() -> Settings:
    """Those of the environment and ./intern.toml; rules where no endpoint is named."""
    settings = load_settings()
    return settings if settings.kb_model.base_url else load_settings(overrides={"llm": {"provider": "offline"}})


async def measure(settings: Settings | None = None) -> Measured:
    """Ask the configured model, or the rules."""
    settings = settings or settings_of_here()
    most = ASKED_OF_AN_ENDPOINT if settings.kb_model.kind == "endpoint" else None
    async with open_models(settings, None, SystemClock()) as models:
        return await measured_with(models.learning, (await segments())[:most])


async def measured_with(model: Model, asked: Sequence[Segment]) -> Measured:
    """Ask this model of these conversations."""
    valid = dropped = strangers = named = 0
    leaks: list[str] = []
    readings: list[tuple[Segment, CheckedExtraction]] = []
    for segment in asked:
        pseudonyms = Pseudonyms(segment)
        shown = build_extraction_input(segment, pseudonyms, ())
        met, channel = met_in(segment), set(_nicks()[segment.channel_id or ""])
        theirs, strange, anybodys = (_names(segment, each) for each in (met & _captured(), met, channel))
        texts = [shown.transcript]
        try:
            reply = await model.ask(EXTRACT, shown)
        except ModelReplyError:
            reply = ExtractOut(nuggets=(), facts=())
            valid -= 1
        valid += 1
        reading = CheckedExtraction(reply, segment, pseudonyms, ())
        dropped += reading.unknown_ids
        texts += _texts(reading)
        given_away = [text for text in texts if _gives_away(text, theirs)]
        leaks += given_away
        strangers += sum(_gives_away(text, strange) for text in texts) - len(given_away)
        named += sum(_gives_away(text, anybodys) for text in texts)
        readings.append((segment, reading))
    made = [(segment, nugget) for segment, reading in readings for nugget in reading.nuggets]
    return Measured(
        conversations=len(asked),
        valid=valid,
        leaks=tuple(leaks),
        strangers=strangers,
        named=named,
        invalid_ids=sum(not set(nugget.source_message_ids) <= set(segment.message_ids) for segment, nugget in made),
        dropped_ids=dropped,
        nuggets=len(made),
        facts=sum(len(reading.proposals) for _, reading in readings),
    )


async def segments() -> list[Segment]:
    """Every exchange as the extractor sees it, once all were captured: names are those of who wrote in one of them."""
    captures = [_capture(each) for each in exchanges()]
    found: list[Segment] = []
    with TemporaryDirectory() as folder:
        async with await SqliteDatabase.open(Path(folder) / "intern.db") as db:
            names = NameStore(db)
            await names.add(each for capture in captures for each in iter_author_names(capture))
            rehearsal = RehearsalArchive(Archive(Path(folder) / "qa-raw"))
            for pair in map(rehearsal.append, captures):
                segment = build_segment(pair, lambda _: False)
                if segment is not None:
                    found.append(await with_names(segment, names))
    return found


def _capture(exchange: Exchange) -> Capture:
    lines = [line for line in (chat_lines()[each] for each in exchange.ids) if line.author]
    nicks = _nicks()[exchange.channel]
    return Capture(
        conversation_id=ConversationId(exchange.conversation_id),
        turns=tuple(Turn("Team" if line.author in exchange.team else "User", line.text) for line in lines),
        message_ids=tuple(MessageId(str(910_000_000_000_000_000 + line.number)) for line in lines),
        author_ids=tuple(nicks[line.author or ""] for line in lines),
        author_names=tuple((line.author or "",) for line in lines),
        answered_at=lines[-1].at,
        channel_id=ChannelId(exchange.channel),
    )


@cache
def _nicks() -> dict[str, dict[str, UserId]]:
    """Everybody of each channel, by name."""
    nicks: dict[str, dict[str, UserId]] = {}
    for line in chat_lines().values():
        if line.author:
            known = nicks.setdefault(line.channel, {})
            known.setdefault(line.author, UserId(str(900_000_000_000_000_000 + sum(map(len, nicks.values())))))
    return nicks


@cache
def _captured() -> frozenset[str]:
    """Return the authors of all exchanges."""
    return frozenset(chat_lines()[each].author or "" for exchange in exchanges() for each in exchange.ids)


def met_in(segment: Segment) -> set[str]:
    """Return the authors of a conversation, and people of its channel who are addressed there by name."""
    nicks = _nicks()[segment.channel_id or ""]
    wrote = {nick for nick, author in nicks.items() if author in segment.author_ids}
    firsts = [turn.text.split(maxsplit=1)[0] for turn in segment.turns if turn.text.strip()]
    called = {first.rstrip(":,").casefold() for first in firsts if first[-1] in ":,"}
    return wrote | {nick for nick in nicks if nick.casefold() in called}


def _names(segment: Segment, nicks: set[str]) -> re.Pattern[str]:
    telling = [nick for nick in nicks if len(nick) > 2 and nick.casefold() not in STOP_WORDS]
    ids = {*segment.author_ids, *segment.message_ids}
    loose = "|".join(map(re.escape, sorted(telling, key=len, reverse=True)))
    strict = "|".join(map(re.escape, sorted({nick for nick in nicks if len(nick) > 1} - {*telling} | ids)))
    return re.compile(rf"(?<!\w)(?:(?i:{loose})|{strict})(?!\w)|<[@#]")


def _texts(reading: CheckedExtraction) -> list[str]:
    texts = [
        text
        for nugget in reading.nuggets
        for text in (
            *(nugget.topic, nugget.topic_summary, nugget.detailed_analysis),
            *nugget.keywords,
            *nugget.user_ids_involved,
        )
    ]
    return texts + [text for each in reading.proposals for text in (each.content, each.summary, each.context_snippet)]


def _gives_away(text: str, named: re.Pattern[str]) -> bool:
    # What stands in a name's place is ours, whoever is called so.
    ours = re.compile(rf"\b(?:m[0-9]+|a (?:team )?member|{NAMELESS}|an id|a role|a channel|\(team\)|\(member\))\b")
    return named.search(ours.sub(" ", LABEL.sub(" ", text).replace("(team)", " ").replace("(member)", " "))) is not None
