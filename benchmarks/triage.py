"""Calls of a model for each unaddressed batch of real chat, and labelled questions that get no call.

The knowledge is a set of real documents on the subject of most chats, or the sample, which is about something else.
Messages form batches and are routed as in a channel, each log in one of its own; a name at the start of a line becomes
a mention. The constants of `answering.offline` were fitted on one half of the logs and questions ("chosen on").
The model is the offline rules: they answer what comes near enough, and each of these answers costs a second call.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import anyio

from benchmarks.figures import Figure
from intern.answering.answerer import Answerer
from intern.answering.offline_rules import RULES
from intern.answering.prompts import AnsweringOptions, DecideIn
from intern.chat.batching import OpenBatches
from intern.chat.context import BatchContext
from intern.chat.options import ConversationOptions
from intern.chat.routing import find_question_messages
from intern.core.flow import Batch, MessageCreated
from intern.core.ids import MessageId, UserId
from intern.core.messages import Author, AuthorType, ChatMessage, Conversation, Image, Message, RequestContext
from intern.core.search_documents import PassageHit
from intern.models.prompt import InT, OfflineModel, OutT, Prompt
from intern.search.embedder import Embedder, SimilarityThresholds
from intern.search.embedding_local import LocalEmbedder, is_english_installed
from intern.search.hybrid_search import HybridSearch
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.search_file.search_index import SqliteSearchStore
from tests.answering.shelf import Shelf as Known
from tests.eval import retrieval
from tests.eval.chats import EVAL, ChatLine, rows
from tests.eval.irc_export import Role
from tests.eval.retrieval import Remembering, Shelf
from tests.sample.cases import CASES as SAMPLE_CASES, SAMPLE
from tests.worlds import samples

MOST_CALLS = {"factoids": 0.6, "faq": 0.6, "sample": 0.1}
"""The bar for each batch, with vectors."""
MOST_CALLS_BY_WORDS = {"factoids": 0.65, "faq": 0.65, "sample": 0.25}
MOST_PASSED_OVER = 0.02
"""The bar for questions that a document answers. In the half of one set, there are too few for 2%."""
MOST_PASSED_OVER_BY_WORDS = 0.1
CACHE = Path(__file__).parent.parent / ".cache"
_CASES = {"factoids": "factoids all kinds, title+aliases+text", "faq": "faq"}
_CHATS = ("chat_irc.jsonl", "chat_gitter.jsonl")
_HALVES = ("chosen on", "measured on")
_BY_WORDS = ", by words alone"
_WAYS = {"": True, _BY_WORDS: False}
"""Whether there are vectors."""


class _Said(NamedTuple):
    """A text for the bot."""

    text: str
    half: str
    known: tuple[str, ...] = ()
    """The sources that answer it; none if it has no known answer."""


def measure() -> Iterator[Figure]:
    """Return the figures, or none without the real chats or the embedder."""
    if not EVAL.is_dir() or not is_english_installed():
        print(f"triage is not measured: it needs the chats in {EVAL}, and the extra embeddings", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield from anyio.run(_measured, Path(folder))


async def _measured(folder: Path) -> list[Figure]:
    figures: list[Figure] = []
    asked: dict[str, list[int]] = {}
    CACHE.mkdir(exist_ok=True)
    said = list(_batches())
    async with (
        await SqliteDatabase.open(CACHE / "vectors.db") as known,
        await SqliteDatabase.open(folder / "triage.db") as db,
    ):
        shelf = Shelf(db, folder, Remembering(LocalEmbedder(), known))
        for name, most in MOST_CALLS.items():
            questions = await _put(shelf, name)
            texts = sorted({each.text for each in (*said, *questions)})
            for n in range(0, len(texts), 64):
                await shelf.embedder.compute_vectors(texts[n : n + 64])
            for way, embedder in _WAYS.items():
                bot = _Bot(shelf.texts(), shelf.store, shelf.embedder if embedder else None)
                for half in _HALVES:
                    told, calls = await _figures(
                        f"{name}, {half}{way}",
                        bot,
                        [each.text for each in said if each.half == half],
                        [each for each in questions if each.half == half],
                        most if embedder else MOST_CALLS_BY_WORDS[name],
                    )
                    figures += told
                    if name != "sample":
                        asked.setdefault(f"{half}{way}", []).extend(calls)
    for where, calls in asked.items():
        bar = MOST_PASSED_OVER_BY_WORDS if where.endswith(_BY_WORDS) else MOST_PASSED_OVER
        figures.append(Figure(f"factoids and faq, {where}: {_share(calls)}", calls.count(0) / len(calls), "", bar))
    return figures


async def _figures(
    name: str, bot: _Bot, said: Sequence[str], questions: Sequence[_Said], most: float
) -> tuple[list[Figure], list[int]]:
    """Return them, and the calls of each question."""
    calls = [await bot.calls(text) for text in said]
    asked = [await bot.calls(each.text) for each in questions]
    found = [count for each, count in zip(questions, asked, strict=True) if await bot.finds(each)]
    return [
        Figure(f"{name}: calls a batch, of {len(calls)}", sum(calls) / len(calls), "", most),
        Figure(f"{name}: of these, first calls", (len(calls) - calls.count(0)) / len(calls), ""),
        Figure(f"{name}: {_share(asked)}", asked.count(0) / len(asked), ""),
        Figure(f"{name}: {_share(found)} whose answer is found", found.count(0) / len(found), ""),
    ], asked


def _share(asked: Sequence[int]) -> str:
    return f"passed over, of {len(asked)} questions"


class _Bot(Known):
    """Answers with its documents, and counts its model calls."""

    def __init__(self, texts: Mapping[str, str], store: SqliteSearchStore, embedder: Embedder | None) -> None:
        super().__init__(texts)
        self._finder = HybridSearch(store, embedder)
        self._model = OfflineModel(RULES)
        self._asked: list[object] = []
        self._answerer = Answerer(self, self, AnsweringOptions())

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        self._asked.append(given)
        return await self._model.ask(prompt, given, images=images)

    async def calls(self, text: str, *, addressed: bool = False) -> int:
        """Return the number of calls for a batch of this text."""
        self._asked.clear()
        said = Conversation((Message(role="user", text=text, author_id=UserId("1")),))
        await self._answerer.answer(said, RequestContext(), addressed=addressed)
        return len(self._asked)

    async def finds(self, question: _Said) -> bool:
        """Return whether a call would show a source that answers the question."""
        await self.calls(question.text, addressed=True)
        decided = [given for given in self._asked if isinstance(given, DecideIn)]
        shown = {passage.source_id for given in decided for passage in given.passages}
        return not shown.isdisjoint(question.known)

    async def find_hits(self, query: str, limit: int, /) -> Sequence[PassageHit]:
        return await self._finder.find_passages(query, limit, least=SimilarityThresholds())


async def _put(shelf: Shelf, name: str) -> list[_Said]:
    """Put the documents of a set on the shelf, and return the questions that they answer."""
    if name == "sample":
        paths = sorted(SAMPLE.rglob("*.md"))
        await shelf.hold_texts({f"kb:{path.relative_to(SAMPLE)}": path.read_text(encoding="utf-8") for path in paths})
        return [_Said(case.text, _half(case.name), case.sources) for case in SAMPLE_CASES if case.kind == "answerable"]
    case = next(case for case in retrieval.CASES if case.name == _CASES[name])
    await shelf.hold(case)
    return [
        _Said(text, _half(row.query_id), tuple(row.relevant))
        for row, text in retrieval.questions(case)
        if row.relevant and row.kind in {"", "technical"}
    ]


def _half(name: str) -> str:
    return _HALVES[sha256(name.encode()).digest()[0] % 2]


def _batches() -> Iterator[_Said]:
    """Yield members' messages without an addressee, batch by batch, each log in a channel."""
    roles = {(each.channel, each.author): each.role for each in rows("chat_irc_roles.jsonl", Role)}
    logs: dict[str, list[ChatLine]] = {}
    for file in _CHATS:
        for line in rows(file, ChatLine):
            if line.author and line.kind != "system" and line.text.strip():
                logs.setdefault(line.message_id.rpartition(":")[0], []).append(line)
    for log, lines in logs.items():
        for text in _asked(lines, roles):
            yield _Said(text, _half(log))


def _asked(lines: Sequence[ChatLine], roles: Mapping[tuple[str, str], str]) -> Iterator[str]:
    members = {line.author: _member(n, line, roles) for n, line in enumerate(lines, 1) if line.author}
    names = "|".join(map(re.escape, sorted(members, key=len, reverse=True)))
    named = re.compile(rf"\A(@)?({names})(?(1)[:,]?|[:,])(?=\s)", re.IGNORECASE)
    ids = {name.lower(): member.id for name, member in members.items()}
    wrote = {MessageId(line.message_id): members[line.author] for line in lines if line.author}
    batches, settled = OpenBatches(ConversationOptions().message_batch_wait_seconds), list[Batch]()
    for line in sorted(lines, key=lambda line: (line.at, line.number)):
        now = line.at.timestamp()
        settled += batches.take_due(now)
        replies = [each for each in line.reply_to if MessageId(each) in wrote and each != line.message_id]
        message = ChatMessage(
            id=MessageId(line.message_id),
            guild_id=samples.GUILD,
            channel_id=samples.channel().id,
            author=members[line.author or ""],
            text=named.sub(lambda name: f"<@{ids[name[2].lower()]}>", line.text.strip()),
            at=line.at,
            reply_to=MessageId(replies[0]) if replies else None,
        )
        batches.add(MessageCreated(message=message), now)
    for batch in (*settled, *batches.flush()):
        facts = BatchContext(reply_authors={each: wrote.get(each) for each in wrote})
        if batch.author.type == "community_user" and (asked := find_question_messages(batch, samples.channel(), facts)):
            yield "\n".join(message.text for message in asked)


def _member(n: int, line: ChatLine, roles: Mapping[tuple[str, str], str]) -> Author:
    role = "bot" if line.is_bot else roles.get((line.channel, line.author or ""), "user")
    kind: AuthorType = "bot" if role == "bot" else "team_member" if role == "team" else "community_user"
    return Author(id=UserId(str(n)), name=line.author or "", type=kind)
