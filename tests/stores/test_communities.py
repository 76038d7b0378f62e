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
from intern.models.usage import UsageMeter
from intern.stores.database import Row, Value
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables import (
    answered_threads,
    answers,
    checkpoints,
    citations,
    daily_counts,
    feedback,
    members,
    outbox,
    reply_cache,
    request_forms,
    usage,
    vector_cache,
)
from intern.stores.tables.knowledge import KnowledgeStore
from intern.stores.tables.store import Store
from tests.worlds import samples
from tests.worlds.clock import HandClock

MODULES = (
    *(answered_threads, answers, checkpoints, citations, daily_counts, feedback, members, outbox, reply_cache),
    *(request_forms, usage, vector_cache),
)
STORES = Path(intern.stores.__file__).parent
SCHEMA = (STORES / "schema.sql").read_text(encoding="utf-8")

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

Read = Callable[[SqliteDatabase], Awaitable[object]]

CLOCK = HandClock()
TODAY = CLOCK.now().date()
EVERY = answers.QuestionFilter()
CHANNEL, THREAD, GUILD = ChannelId("101"), ChannelId("102"), GuildId("9")
ASKED, MEMBER, SOURCE = samples.message("Where?", n=1), samples.author().id, SourceId("team:q1")
POSTED = MessageId("777")


async def loaded(db: SqliteDatabase) -> bool:
    threads = answered_threads.AnsweredThreads(db)
    await threads.load()
    return threads.holds(THREAD, ASKED.id)


READS: dict[str, Read] = {
    "CheckpointStore.load_or_create": lambda db: checkpoints.CheckpointStore(db).load_or_create([], MessageId("1")),
    "AnsweredThreads.next_due": lambda db: answered_threads.AnsweredThreads(db).next_due(),
    "AnsweredThreads.load": loaded,
    "AnsweredThreads.read_message_ids": lambda db: answered_threads.AnsweredThreads(db).read_message_ids(THREAD),
    "AnsweredThreads.find_threads": lambda db: answered_threads.AnsweredThreads(db).find_threads([ASKED.id]),
    "AnsweredThreads.find_messages_by": lambda db: answered_threads.AnsweredThreads(db).find_messages_by(MEMBER),
    "RoleStore.read_recent": lambda db: members.RoleStore(db, clock=CLOCK).read_recent(),
    "NameStore.read_team_ids": lambda db: members.NameStore(db).read_team_ids(),
    "NameStore.read_names": lambda db: members.NameStore(db).read_names([MEMBER]),
    "NameStore.find_in_text": lambda db: members.NameStore(db).find_in_text("Thanks, Alice Liddell."),
    "CitationStore.list_sources": lambda db: citations.CitationStore(db).list_sources(),
    "CitationStore.read_citations": lambda db: citations.CitationStore(db).read_citations([ASKED.id]),
    "CitationStore.find_citations": lambda db: citations.CitationStore(db).find_citations(SOURCE),
    "CitationStore.count_outdated": lambda db: citations.CitationStore(db).count_outdated(),
    "CitationStore.list_outdated": lambda db: citations.CitationStore(db).list_outdated(9),
    "CitationStore.list_to_retract": lambda db: citations.CitationStore(db).list_to_retract(CLOCK.now()),
    "Outbox.get": lambda db: outbox.Outbox(db, clock=CLOCK).get(ASKED.id),
    "Outbox.holds": lambda db: outbox.Outbox(db, clock=CLOCK).holds(POSTED),
    "Outbox.is_done": lambda db: outbox.Outbox(db, clock=CLOCK).is_done(ASKED.id),
    "Outbox.list_unfinished": lambda db: outbox.Outbox(db, clock=CLOCK).list_unfinished(),
    "Outbox.list_finished_after": lambda db: outbox.Outbox(db, clock=CLOCK).list_finished_after(None, 9),
    "Outbox.find_questions_in": lambda db: outbox.Outbox(db, clock=CLOCK).find_questions_in(THREAD),
    "Outbox.has_answer_in": lambda db: outbox.Outbox(db, clock=CLOCK).has_answer_in(THREAD),
    "AnswerStore.find": lambda db: answers.AnswerStore(db).find(ASKED.id),
    "AnswerStore.find_newest_in": lambda db: answers.AnswerStore(db).find_newest_in(ASKED.channel_id),
    "AnswerStore.list_open": lambda db: answers.AnswerStore(db, clock=CLOCK).list_open(),
    "AnswerStore.list_questions": lambda db: answers.AnswerStore(db, clock=CLOCK).list_questions(EVERY, 9),
    "AnswerStore.count_reasons": lambda db: answers.AnswerStore(db).count_reasons(),
    "AnswerStore.list_channels": lambda db: answers.AnswerStore(db).list_channels(),
    "AnswerStore.find_messages_by": lambda db: answers.AnswerStore(db).find_messages_by(MEMBER),
    "DailyCounts.read_day": lambda db: daily_counts.DailyCounts(db, clock=CLOCK).read_day(TODAY),
    "DailyCounts.read_since": lambda db: daily_counts.DailyCounts(db, clock=CLOCK).read_since(date.min),
    "FeedbackStore.read_votes_each": lambda db: feedback.FeedbackStore(db).read_votes_each([ASKED.id]),
    "FeedbackStore.read_votes": lambda db: feedback.FeedbackStore(db, clock=CLOCK).read_votes(),
    "UsageLog.read_spent": lambda db: usage.UsageLog(db).read_spent(TODAY),
    "UsageLog.read_since": lambda db: usage.UsageLog(db).read_since(TODAY),
    "VectorMemory.recall": lambda db: vector_cache.VectorMemory(db, clock=CLOCK).recall(["text"]),
    "ReplyStore.recall": lambda db: reply_cache.ReplyStore(db, clock=CLOCK).recall("request", None),
}
CHANGES = {
    *("CheckpointStore.save", "GreetedMembers.add", "GreetedMembers.drop", "RoleStore.save", "RoleStore.forget_author"),
    *("AnsweredThreads.store", "AnsweredThreads.add", "AnsweredThreads.reschedule", "AnsweredThreads.replace_messages"),
    *("AnsweredThreads.mark_unread", "AnsweredThreads.forget", "NameStore.add", "NameStore.forget_author"),
    *("CitationStore.save_comparisons", "CitationStore.save_retraction"),
    *(
        "Outbox.begin",
        "Outbox.replace_with_notice",
        "Outbox.save_thread",
        "Outbox.save_sent_part",
        "Outbox.mark_finished",
    ),
    *(
        "Outbox.mark_dropped",
        "Outbox.delete_unsent",
        "AnswerStore.save",
        "AnswerStore.save_outcome",
        "DailyCounts.store",
    ),
    *(
        "AnswerStore.store",
        "AnswerStore.close_gaps",
        "AnswerStore.withdraw",
        "AnswerStore.forget",
        "FeedbackStore.vote",
        "UsageLog.add",
        "VectorMemory.forget",
    ),
    *("VectorMemory.remember", "ReplyStore.save", "ReplyStore.drop", "ReplyStore.forget"),
    *("RequestFormStore.find_form", "RequestFormStore.save_form"),  # the same for all communities
}


async def plant(db: SqliteDatabase, word: str) -> None:
    """Write something with every store."""
    await checkpoints.CheckpointStore(db).load_or_create([GUILD], MessageId("5"))
    moved = {CHANNEL: checkpoints.Checkpoint(guild_id=GUILD, settled_to=MessageId("8"))}
    await checkpoints.CheckpointStore(db).save(checkpoints.StoredCheckpoints(channels=moved))
    threads = answered_threads.AnsweredThreads(db)
    await threads.add({THREAD: CLOCK.now()})
    await threads.replace_messages(THREAD, [answered_threads.ThreadMessage(id=ASKED.id, author_id=MEMBER)])
    await members.GreetedMembers(db, clock=CLOCK).add(MEMBER)
    await members.RoleStore(db, clock=CLOCK).save([MemberRoles(GUILD, MEMBER, (RoleId(word),))])
    await members.NameStore(db).add([(MEMBER, ["Alice", f"{word} Liddell", "Liddell"])], team=[MEMBER])
    await plant_posts(db, word)
    asked = [samples.message(word, n=1)]
    await samples.save_question(answers.AnswerStore(db, clock=CLOCK), asked, word, outcome="answer")
    counts = daily_counts.DailyCounts(db, clock=CLOCK)
    counts.add(word)
    await counts.store()
    await feedback.FeedbackStore(db, clock=CLOCK).vote(ASKED.id, MEMBER, up=True)
    await usage.UsageLog(db).add(TODAY, word, UsageMeter(calls=1, prompt_tokens=2))
    await vector_cache.VectorMemory(db, clock=CLOCK).remember({"text": word.encode()})
    await reply_cache.ReplyStore(db, clock=CLOCK).save("request", word.encode(), ASKED.id, 0)


async def plant_posts(db: SqliteDatabase, word: str) -> None:
    """Post an answer whose source has gone since, and begin another."""
    posts, cited = outbox.Outbox(db, clock=CLOCK), citations.CitationStore(db, clock=CLOCK)
    reply = samples.reply(
        ASKED.id, CHANNEL, "new_thread", asked=word, citations=(Citation(source_id=SOURCE, title=word, quote=word),)
    )
    await posts.begin(reply, [word])
    await posts.save_thread(ASKED.id, THREAD)
    await posts.save_sent_part(ASKED.id, 0, POSTED)
    await posts.mark_finished(ASKED.id)
    (citation,) = await cited.find_citations(SOURCE)
    await cited.save_comparisons([msgspec.structs.replace(citation, state="gone")])
    await posts.begin(samples.reply(MessageId("12"), CHANNEL, "in_place"), [word])


async def wipe(db: SqliteDatabase) -> None:
    """Delete all that a store can delete, with every store."""
    await checkpoints.CheckpointStore(db).save(checkpoints.StoredCheckpoints(attended={GUILD: MessageId("99")}))
    await answered_threads.AnsweredThreads(db).reschedule(THREAD, None)
    await answered_threads.AnsweredThreads(db).forget([ASKED.id])
    await members.GreetedMembers(db).drop(MEMBER)
    await members.RoleStore(db).forget_author(MEMBER)
    await members.NameStore(db).forget_author(MEMBER)
    await answers.AnswerStore(db).withdraw([ASKED.id])
    for each in (ASKED.id, MessageId("12")):
        await outbox.Outbox(db, clock=CLOCK).delete_unsent(each)
    await answers.AnswerStore(db).save([ASKED.id], ChannelId("0"), outcome="silent")
    await answers.AnswerStore(db).forget([ASKED.id])
    await feedback.FeedbackStore(db).vote(ASKED.id, MEMBER, up=False)
    await vector_cache.VectorMemory(db).forget([ASKED.id])
    await reply_cache.ReplyStore(db, clock=CLOCK).forget([ASKED.id])


@pytest.mark.anyio
async def test_rows_are_found_by_their_key_and_not_by_their_community_alone(tmp_path: Path) -> None:
    found = "from thread_messages where community = :community and message_id in (select value from json_each(?))"
    with anyio.fail_after(5):
        async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
            plan = await db.rows(f"explain query plan delete {found}", ("[]",))
            assert "thread_messages_by_id (community=? AND message_id=?)" in repr(plan)


class Planned(KnowledgeStore):
    """Keeps how SQLite would find what is asked for."""

    def _rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        self.plan = repr(super()._rows(f"explain query plan {statement}", values))
        return []


@pytest.mark.anyio
async def test_the_topics_of_an_answer_are_found_by_their_names(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
            knowledge = await run_sync(Planned, db)
            await run_sync(knowledge.read_texts, [TopicName("gpu"), TopicName("node")])
            assert "blocks_of_topic (community=? AND generation=? AND topic=?)" in knowledge.plan


# Finding G6.
@pytest.mark.anyio
async def test_the_blocks_of_a_conversation_are_found_by_it(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
            knowledge = await run_sync(Planned, db)
            await run_sync(knowledge.find_conversation_pairs, ConversationId("thread_1"))
            assert "blocks_of_conversation (community=? AND generation=? AND conversation_id=?)" in knowledge.plan


async def everything(db: SqliteDatabase) -> dict[str, object]:
    return {name: await read(db) for name, read in READS.items()}


def test_each_method_of_these_stores_is_looked_at() -> None:
    methods = {
        f"{store.__name__}.{name}"
        for module in MODULES
        for store in vars(module).values()
        if inspect.isclass(store) and issubclass(store, Store) and store is not Store
        for name, method in vars(store).items()
        if not name.startswith("_") and inspect.iscoroutinefunction(method)
    }
    assert methods == READS.keys() | CHANGES


@pytest.mark.anyio
async def test_a_community_reads_nothing_of_another_and_changes_nothing_there(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
            one, other = db.for_community("one"), db.for_community("other")
            empty = await everything(other)
            await plant(one, "4711")
            planted = await everything(one)
            assert [name for name in READS if planted[name] == empty[name]] == []
            assert await everything(other) == empty

            await plant(other, "815")
            assert not [name for name, found in (await everything(other)).items() if "4711" in repr(found)]
            assert await members.GreetedMembers(one, clock=CLOCK).add(MEMBER) is False
            await wipe(other)
            assert await members.GreetedMembers(other, clock=CLOCK).add(MEMBER) is True
            assert await everything(one) == planted
            assert await other.number("select count(*) from posts where community = :community") == 0
