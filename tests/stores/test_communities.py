"""Communities share tables: keys lead with `community`, each statement binds it, and no store reads another's rows."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import apsw
import msgspec
import pytest
from anyio.to_thread import run_sync

import intern.stores
from intern.core.ids import ChannelId, ConversationId, GuildId, MessageId, RoleId, SourceId, TopicName
from intern.core.messages import Citation, MemberRoles
from intern.models.usage import Meter
from intern.stores.database import Row, Value
from intern.stores.sqlite import chat, outbox, questions, traces, usage
from intern.stores.sqlite.database import Database
from intern.stores.sqlite.knowledge import Knowledge
from intern.stores.sqlite.store import Store
from tests import samples
from tests.fakes import HandClock

STORES = Path(intern.stores.__file__).parent
SCHEMA = (STORES / "sqlite/schema.sql").read_text(encoding="utf-8")

WITHOUT_COMMUNITY = {
    "endpoint_forms": "what an endpoint accepts is the same, whichever community asks",
    "facts_fts.*": "the words of facts, by their numbers, are read together with the facts of a community",
    "hosted_communities": "the registry lists all communities",
    "search_.*": "the search is a projection in a file of its own",
}


@pytest.fixture(scope="module")
def schema() -> Any:
    db: Any = apsw.Connection(":memory:")
    db.execute(SCHEMA)
    return db


def tables(schema: Any) -> set[str]:
    found = schema.execute("select name from sqlite_schema where type = 'table' and name not like 'sqlite%'").fetchall()
    return {name for (name,) in found}


def without_reason(names: set[str]) -> set[str]:
    return {name for name in names if not any(re.fullmatch(each, name) for each in WITHOUT_COMMUNITY)}


def keys(schema: Any, table: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the columns of each key of a table: the primary key, indexes, foreign keys.

    Of rows that SQLite numbers, the number is the whole primary key; so only the column `community` is asked for.
    """
    info = schema.execute(f"pragma table_info({table})").fetchall()
    primary = [name for _, name in sorted((row[5], row[1]) for row in info if row[5])]
    is_numbered = [row[2].lower() for row in info if row[5]] == ["integer"]
    yield "the primary key", [row[1] for row in info if row[1] == "community"] if is_numbered else primary
    for _, index, *_ in schema.execute(f"pragma index_list({table})").fetchall():
        yield index, [row[2] for row in schema.execute(f"pragma index_info({index})").fetchall()]
    for _, place, parent, here, there, *_ in schema.execute(f"pragma foreign_key_list({table})").fetchall():
        if place == 0:
            yield f"a key of {parent}", [here] if here == there else []


def test_a_community_leads_each_key(schema: Any) -> None:
    wrong = [
        f"{table}: {name} begins with {', '.join(found[:1])}"
        for table in sorted(without_reason(tables(schema)))
        for name, found in keys(schema, table)
        if found[:1] != ["community"]
    ]
    assert wrong == []


# Statements.

_TOUCHED = re.compile(r"\b(?:from|join|into|update)\s+([a-z_]+|\{\})")
_BOUND = re.compile(r":community\b|\busing \(community\b|\bcommunity = \w+\.community\b|\bselect community\b")


def unbound(text: str, shared: set[str]) -> list[str]:
    """Return the tables of communities that a text of SQL touches, where it binds fewer communities than tables."""
    touched = [name for name in _TOUCHED.findall(text) if name in shared or name == "{}"]
    return touched if len(touched) > len(_BOUND.findall(text)) else []


class Statements(ast.NodeVisitor):
    """The strings of a module that are no docstrings, with what is put into them, as far as that is known."""

    def __init__(self, module: ModuleType) -> None:
        self.found: list[tuple[int, str]] = []
        self._known: dict[str, Any] = dict(vars(module))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outside = self._known
        given = (*node.args.args, *node.args.kwonlyargs)
        self._known = {name: value for name, value in outside.items() if name not in {each.arg for each in given}}
        self.generic_visit(node)
        self._known = outside

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 the name is given

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        if isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant | ast.JoinedStr):
            self._known[node.targets[0].id] = self._text(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        self.found.append((node.lineno, self._text(node)))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self.found.append((node.lineno, self._text(node)))

    def visit_Call(self, node: ast.Call) -> None:
        """Take the statement that `Table.all` and `Table.first` make of the table and their argument."""
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(value=ast.Name(id=name), attr="all" | "first") if name.isupper():
                rest = self._text(node.args[1]) if len(node.args) > 1 else ""
                self.found.append((node.lineno, f"{self._known[name].select} {rest}"))
            case _:
                pass

    def _text(self, node: ast.expr) -> str:
        match node:
            case ast.Constant():
                return str(node.value)
            case ast.JoinedStr():
                return "".join(map(self._text, node.values))
            case ast.FormattedValue():
                return self._text(node.value)
            case _:
                try:
                    return str(eval(ast.unparse(node), self._known))
                except (NameError, AttributeError):
                    return "{}"


def statements() -> Iterator[tuple[str, str, str]]:
    """Yield the place and the text of each string in the stores, and the name of its module."""
    for path in sorted(STORES.rglob("*.py")):
        name = ".".join(("intern.stores", *path.relative_to(STORES).with_suffix("").parts))
        visitor = Statements(importlib.import_module(name))
        visitor.visit(ast.parse(path.read_text(encoding="utf-8")))
        yield from ((f"{path.stem}.py:{line}", text, path.stem) for line, text in visitor.found)


OF_NO_TABLE = re.compile(
    r"select \{\} from \{\}|insert into \{\} \(\{\}, rank\) .*|delete from (?:identities|record\w+)|select setval.*"
    r"|select distinct community from jobs .*"
    r"|(?:create function .*)?select \{\}, -ts_rank.*"
)
"""`Table.select`, since the test looks at the statements that are made of it; orders to a full-text index; what is
taken out of the copy of a whole file; the counter of a table's rows, which all communities share; the one look at
the jobs of all; and what finds words on PostgreSQL, to be read together with the facts of a community."""


def test_each_statement_binds_the_community_of_each_table(schema: Any) -> None:
    shared = without_reason(tables(schema))
    found = [each for each in statements() if _TOUCHED.search(each[1])]
    assert len(found) > 200
    assert [
        f"{place} touches {', '.join(touched)}"
        for place, text, module in found
        if module != "store" and not OF_NO_TABLE.fullmatch(text) and (touched := unbound(text, shared))
    ] == []


@pytest.mark.parametrize(
    "statement",
    [
        "select 1 from posts",
        "delete from {} where rid = ?",
        "select 1 from posts join post_parts using (question_id) where community = :community",
        "select 1 from posts where community = :community and n in (select n from post_parts)",
    ],
)
def test_a_table_without_its_community_is_found(statement: str) -> None:
    assert unbound(statement, {"posts", "post_parts"})


# Rows.

Read = Callable[[Database], Awaitable[object]]

CLOCK = HandClock()
TODAY = CLOCK.now().date()
CHANNEL, THREAD, GUILD = ChannelId("101"), ChannelId("102"), GuildId("9")
ASKED, MEMBER, SOURCE = samples.message("Where?", n=1), samples.author().id, SourceId("team:q1")
POSTED = MessageId("777")


async def loaded(db: Database) -> bool:
    threads = chat.AnsweredThreads(db)
    await threads.load()
    return threads.holds(THREAD, ASKED.id)


READS: dict[str, Read] = {
    "CheckpointStore.open": lambda db: chat.CheckpointStore(db).open([], MessageId("1")),
    "AnsweredThreads.next": lambda db: chat.AnsweredThreads(db).next(),
    "AnsweredThreads.load": loaded,
    "AnsweredThreads.held": lambda db: chat.AnsweredThreads(db).held(THREAD),
    "AnsweredThreads.holding": lambda db: chat.AnsweredThreads(db).holding([ASKED.id]),
    "AnsweredThreads.written_by": lambda db: chat.AnsweredThreads(db).written_by(MEMBER),
    "RoleStore.known": lambda db: chat.RoleStore(db, clock=CLOCK).known(),
    "NameStore.team": lambda db: chat.NameStore(db).team(),
    "NameStore.of": lambda db: chat.NameStore(db).of([MEMBER]),
    "NameStore.in_text": lambda db: chat.NameStore(db).in_text("Thanks, Alice Liddell."),
    "CitedStore.sources": lambda db: outbox.CitedStore(db).sources(),
    "CitedStore.of": lambda db: outbox.CitedStore(db).of([ASKED.id]),
    "CitedStore.citing": lambda db: outbox.CitedStore(db).citing(SOURCE),
    "CitedStore.count": lambda db: outbox.CitedStore(db).count(),
    "CitedStore.outdated": lambda db: outbox.CitedStore(db).outdated(9),
    "CitedStore.to_retract": lambda db: outbox.CitedStore(db).to_retract(CLOCK.now()),
    "CitedStore.written_by": lambda db: outbox.CitedStore(db).written_by(MEMBER),
    "Outbox.get": lambda db: outbox.Outbox(db, clock=CLOCK).get(ASKED.id),
    "Outbox.holds": lambda db: outbox.Outbox(db, clock=CLOCK).holds(POSTED),
    "Outbox.done_with": lambda db: outbox.Outbox(db, clock=CLOCK).done_with(ASKED.id),
    "Outbox.unfinished": lambda db: outbox.Outbox(db, clock=CLOCK).unfinished(),
    "Outbox.finished_after": lambda db: outbox.Outbox(db, clock=CLOCK).finished_after(None, 9),
    "Outbox.asked_in": lambda db: outbox.Outbox(db, clock=CLOCK).asked_in(THREAD),
    "Outbox.answered_in": lambda db: outbox.Outbox(db, clock=CLOCK).answered_in(THREAD),
    "TraceStore.of": lambda db: traces.TraceStore(db, clock=CLOCK).of(ASKED.id),
    "TraceStore.newest_in": lambda db: traces.TraceStore(db, clock=CLOCK).newest_in(CHANNEL),
    "Counts.of": lambda db: traces.Counts(db, clock=CLOCK).of(TODAY),
    "Counts.since": lambda db: traces.Counts(db, clock=CLOCK).since(date.min),
    "Questions.open": lambda db: questions.Questions(db, clock=CLOCK).open(),
    "Questions.find": lambda db: questions.Questions(db, clock=CLOCK).find(questions.QuestionFilter(), 9),
    "Questions.reasons": lambda db: questions.Questions(db, clock=CLOCK).reasons(),
    "Questions.places": lambda db: questions.Questions(db, clock=CLOCK).places(),
    "Questions.of": lambda db: questions.Questions(db, clock=CLOCK).of(ASKED.id),
    "Questions.votes": lambda db: questions.Questions(db, clock=CLOCK).votes([ASKED.id]),
    "Questions.written_by": lambda db: questions.Questions(db, clock=CLOCK).written_by(MEMBER),
    "FeedbackStore.of": lambda db: traces.FeedbackStore(db, clock=CLOCK).of(),
    "UsageLog.spent": lambda db: usage.UsageLog(db).spent(TODAY),
    "UsageLog.of": lambda db: usage.UsageLog(db).of(TODAY),
    "VectorMemory.recall": lambda db: usage.VectorMemory(db, clock=CLOCK).recall(["text"]),
    "ReplyStore.recall": lambda db: usage.ReplyStore(db, clock=CLOCK).recall("request", None),
}
CHANGES = {
    *("CheckpointStore.keep", "Greeted.add", "Greeted.drop", "RoleStore.keep", "RoleStore.forget_author"),
    *("AnsweredThreads.store", "AnsweredThreads.add", "AnsweredThreads.looked", "AnsweredThreads.keep"),
    *("AnsweredThreads.let_go", "AnsweredThreads.forget", "NameStore.note", "NameStore.forget_author"),
    *("CitedStore.compared", "CitedStore.retract", "CitedStore.drop", "CitedStore.forget"),
    *("Outbox.begin", "Outbox.replaced", "Outbox.thread_made", "Outbox.part_sent", "Outbox.finished"),
    *("Outbox.dropped", "Outbox.recalled", "TraceStore.keep", "TraceStore.ended", "Counts.store"),
    *(
        "Questions.store",
        "Questions.settle",
        "Questions.forget",
        "FeedbackStore.vote",
        "UsageLog.add",
        "VectorMemory.forget",
    ),
    *("VectorMemory.remember", "ReplyStore.keep", "ReplyStore.drop", "ReplyStore.forget"),
    *("FormLog.of", "FormLog.keep"),  # the same for all communities
}


async def plant(db: Database, word: str) -> None:
    """Write something with every store."""
    await chat.CheckpointStore(db).open([GUILD], MessageId("5"))
    moved = {CHANNEL: chat.Checkpoint(guild_id=GUILD, settled_to=MessageId("8"))}
    await chat.CheckpointStore(db).keep(chat.StoredCheckpoints(channels=moved))
    threads = chat.AnsweredThreads(db)
    await threads.add({THREAD: CLOCK.now()})
    await threads.keep(THREAD, [chat.ThreadMessage(id=ASKED.id, author_id=MEMBER)])
    await chat.Greeted(db, clock=CLOCK).add(MEMBER)
    await chat.RoleStore(db, clock=CLOCK).keep([MemberRoles(GUILD, MEMBER, (RoleId(word),))])
    await chat.NameStore(db).note([(MEMBER, ["Alice", f"{word} Liddell", "Liddell"])], team=[MEMBER])
    await plant_posts(db, word)
    await traces.TraceStore(db, clock=CLOCK).keep([ASKED.id], CHANNEL, outcome="answer", reason=word)
    counts = traces.Counts(db, clock=CLOCK)
    counts.add(word)
    await counts.store()
    asked = questions.Questions(db, clock=CLOCK)
    asked.add([samples.message(word, n=1)], "no_sources")
    await asked.store()
    await traces.FeedbackStore(db, clock=CLOCK).vote(ASKED.id, MEMBER, up=True)
    await usage.UsageLog(db).add(TODAY, word, Meter(calls=1, prompt_tokens=2))
    await usage.VectorMemory(db, clock=CLOCK).remember({"text": word.encode()})
    await usage.ReplyStore(db, clock=CLOCK).keep("request", word.encode(), ASKED.id, 0)


async def plant_posts(db: Database, word: str) -> None:
    """Post an answer whose source has gone since, and begin another."""
    posts, cited = outbox.Outbox(db, clock=CLOCK), outbox.CitedStore(db, clock=CLOCK)
    reply = samples.reply(
        ASKED.id, CHANNEL, "new_thread", asked=word, citations=(Citation(source_id=SOURCE, title=word, quote=word),)
    )
    await posts.begin(reply, [word])
    await posts.thread_made(ASKED.id, THREAD)
    await posts.part_sent(ASKED.id, 0, POSTED)
    await posts.finished(ASKED.id)
    (citation,) = await cited.citing(SOURCE)
    await cited.compared([msgspec.structs.replace(citation, state="gone")])
    await posts.begin(samples.reply(MessageId("12"), CHANNEL, "in_place"), [word])


async def wipe(db: Database) -> None:
    """Delete with every store what it lets one delete."""
    await chat.CheckpointStore(db).keep(chat.StoredCheckpoints(attended={GUILD: MessageId("99")}))
    await chat.AnsweredThreads(db).looked(THREAD, None)
    await chat.AnsweredThreads(db).forget([ASKED.id])
    await chat.Greeted(db).drop(MEMBER)
    await chat.RoleStore(db).forget_author(MEMBER)
    await chat.NameStore(db).forget_author(MEMBER)
    await outbox.CitedStore(db).forget([ASKED.id])
    for each in (ASKED.id, MessageId("12")):
        await outbox.Outbox(db, clock=CLOCK).recalled(each)
    await traces.TraceStore(db).keep([ASKED.id], ChannelId("0"), outcome="silent")
    await questions.Questions(db, clock=CLOCK).forget([ASKED.id])
    await traces.FeedbackStore(db).vote(ASKED.id, MEMBER, up=False)
    await usage.VectorMemory(db).forget([ASKED.id])
    await usage.ReplyStore(db, clock=CLOCK).forget([ASKED.id])


@pytest.mark.anyio
async def test_rows_are_found_by_their_key_and_not_by_their_community_alone(tmp_path: Path) -> None:
    found = "from thread_messages where community = :community and message_id in (select value from json_each(?))"
    with anyio.fail_after(5):
        async with await Database.open(tmp_path / "intern.db") as db:
            plan = await db.rows(f"explain query plan delete {found}", ("[]",))
            assert "thread_messages_by_id (community=? AND message_id=?)" in repr(plan)


class Planned(Knowledge):
    """Keeps how SQLite would find what is asked for."""

    def _rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        self.plan = repr(super()._rows(f"explain query plan {statement}", values))
        return []


@pytest.mark.anyio
async def test_the_topics_of_an_answer_are_found_by_their_names(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        async with await Database.open(tmp_path / "intern.db") as db:
            knowledge = await run_sync(Planned, db)
            await run_sync(knowledge.texts, [TopicName("gpu"), TopicName("node")])
            assert "blocks_of_topic (community=? AND generation=? AND topic=?)" in knowledge.plan


# Finding G6.
@pytest.mark.anyio
async def test_the_blocks_of_a_conversation_are_found_by_it(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        async with await Database.open(tmp_path / "intern.db") as db:
            knowledge = await run_sync(Planned, db)
            await run_sync(knowledge.of_conversation, ConversationId("thread_1"))
            assert "blocks_of_conversation (community=? AND generation=? AND conversation_id=?)" in knowledge.plan


async def everything(db: Database) -> dict[str, object]:
    return {name: await read(db) for name, read in READS.items()}


def test_each_method_of_these_stores_is_looked_at() -> None:
    methods = {
        f"{store.__name__}.{name}"
        for module in (chat, outbox, questions, traces, usage)
        for store in vars(module).values()
        if inspect.isclass(store) and issubclass(store, Store) and store is not Store
        for name, method in vars(store).items()
        if not name.startswith("_") and inspect.iscoroutinefunction(method)
    }
    assert methods == READS.keys() | CHANGES


@pytest.mark.anyio
async def test_a_community_reads_nothing_of_another_and_changes_nothing_there(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with await Database.open(tmp_path / "intern.db") as db:
            one, other = db.of("one"), db.of("other")
            empty = await everything(other)
            await plant(one, "4711")
            planted = await everything(one)
            assert [name for name in READS if planted[name] == empty[name]] == []
            assert await everything(other) == empty

            await plant(other, "815")
            assert not [name for name, found in (await everything(other)).items() if "4711" in repr(found)]
            assert await chat.Greeted(one, clock=CLOCK).add(MEMBER) is False
            await wipe(other)
            assert await chat.Greeted(other, clock=CLOCK).add(MEMBER) is True
            assert await everything(one) == planted
            assert await other.number("select count(*) from posts where community = :community") == 0
