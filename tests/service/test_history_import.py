"""Import of history: the rules of live messages over exports, once, and never over newer knowledge."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after

from intern.actors.activity import ActivityReporter
from intern.core.captures import Capture, CapturedPair, Turn
from intern.core.decisions import MessagesWithdrawn, PairFiled
from intern.core.errors import ConfigError
from intern.core.ids import ConversationId, MessageId, UserId, position_at
from intern.core.messages import ChatMessage
from intern.core.progress import send_progress_to
from intern.runtime.bot import open_sandbox
from intern.service.history_import import ImportRequest, ImportResult, import_history
from intern.service.opening import open_intern
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.stores.archive import Archive
from intern.stores.engines.sqlite.database import ReadOnlySqliteDatabase, SqliteDatabase
from intern.stores.tables.knowledge import KnowledgeStore
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import endpoint_double
from tests.worlds.knowledge import knowledge_in

pytestmark = pytest.mark.anyio

NOON = datetime(2025, 2, 1, 12, tzinfo=UTC)
ALICE, BOB, MAYA, TOM, BOT = "11", "12", "21", "22", "31"
QUESTION = "Which port does the relay listen on behind the proxy?"


class Chat:
    """A channel or thread to be exported, in which time passes as people write."""

    def __init__(
        self, channel: str = "100", *, kind: str = "GuildTextChat", parent: str | None = None, name: str = ""
    ) -> None:
        self.channel = {"id": channel, "type": kind, "categoryId": parent, "name": name}
        self.guild = "5"
        self.now = NOON
        self.messages: list[dict[str, Any]] = []

    def say(
        self, who: str, text: str, *, to: str | None = None, after: float = 5, own_id: str | None = None, **more: Any
    ) -> str:
        self.now += timedelta(seconds=after)
        message_id = own_id or position_at(self.now, len(self.messages)).id
        message: dict[str, Any] = {
            "id": message_id,
            "type": "Reply" if to else "Default",
            "timestamp": self.now.isoformat(),
            "content": text,
            "author": {"id": who, "name": f"u{who}", "isBot": who == BOT, "roles": []},
            **({"reference": {"messageId": to, "channelId": self.channel["id"]}} if to else {}),
            **more,
        }
        self.messages.append(message)
        return message_id

    def save(self, folder: Path) -> Path:
        path = folder / f"{self.channel['id']}.json"
        path.write_text(json.dumps({"guild": {"id": self.guild}, "channel": self.channel, "messages": self.messages}))
        return path


def settings_in(folder: Path, **sections: Mapping[str, object]) -> Settings:
    overrides = {"data": {"dir": str(folder / "data")}, "llm": {"provider": "offline"}, **sections}
    return load_settings(environ={}, overrides=overrides)


async def imported(
    folder: Path,
    *chats: Chat,
    dry_run: bool = False,
    since: datetime | None = None,
    tell: Callable[[str], None] = lambda _: None,
    vectors_within: float = 5,
    **sections: Mapping[str, object],
) -> ImportResult:
    files = tuple(chat.save(folder) for chat in chats)
    wanted = ImportRequest(files=files, team_ids=(UserId(MAYA), UserId(TOM)), since=since)
    with fail_after(30):
        return await import_history(
            settings_in(folder, **sections), wanted, dry_run=dry_run, vectors_within=vectors_within, tell=tell
        )


def archived(folder: Path) -> list[CapturedPair]:
    return list(Archive(settings_in(folder).paths.raw).pairs_after(None))


def texts(pair: CapturedPair) -> list[str]:
    return [f"{turn.speaker}: {turn.text}" for turn in pair.turns]


def blocks(folder: Path) -> list[str]:
    topics = KnowledgeStore(ReadOnlySqliteDatabase(settings_in(folder).paths.database))
    return [turn.text for name in topics.topic_names() for block in topics.read_topic(name) for turn in block.turns]


def files_of(folder: Path) -> dict[str, bytes]:
    data = folder / "data"
    return {str(path.relative_to(data)): path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file()}


def answered(chat: Chat, question: str = QUESTION, answer: str = "On 7480.") -> tuple[str, str]:
    asked = chat.say(ALICE, question)
    return asked, chat.say(MAYA, answer, to=asked, after=600)


async def test_an_answered_question_is_archived_and_filed_with_the_times_of_its_messages(tmp_path: Path) -> None:
    chat, told = Chat(), list[str]()
    asked, answer = answered(chat)
    chat.say(MAYA, "Or on 80 behind the proxy.")
    steps: list[str] = []

    def hear(what: str, done: int, total: int, note: str = "") -> None:
        steps.append(f"{what.format(total=total)}: {done}{note}")

    with send_progress_to(hear):
        done = await imported(tmp_path, chat, tell=told.append)
    [pair] = archived(tmp_path)
    assert texts(pair) == [f"User: {QUESTION}", "Team: On 7480.", "Team: Or on 80 behind the proxy."]
    assert pair.message_ids[:2] == (asked, answer)
    assert pair.author_ids == (ALICE, MAYA, MAYA)
    assert (pair.conversation_id, pair.guild_id, pair.channel_id) == (f"reply_{asked}", "5", "100")
    assert pair.answered_at == chat.now
    assert (done.messages, done.team_replies, done.captured, done.archived) == (3, 1, 1, 1)
    assert done.filed is not None
    assert done.filed.filed == 1
    assert QUESTION in blocks(tmp_path)
    assert any("read 3 messages" in line for line in told)
    assert list(dict.fromkeys(steps)) == [
        "Reading 1 files: 0",
        "Looking through 3 messages: 1",
        "Looking through 3 messages: 3",
        "Comparing 1 conversations with the archive: 0",
        "Archiving 1 conversations: 1",
        "Filing 1 conversations: 1",
        "Learning from 1 conversations: 1",
    ]


@pytest.mark.rest
async def test_words_can_be_searched_while_most_passages_have_no_vector(tmp_path: Path) -> None:
    chat = Chat()
    for n in range(65):  # more passages than are embedded together
        answered(chat, f"What does the gauge number {n} of the boiler show?", f"It shows the pressure of pipe {n}.")
    with endpoint_double() as endpoint:
        embeddings = {"provider": "endpoint", "base_url": endpoint.base_url, "model": "double"}
        done = await imported(tmp_path, chat, vectors_within=0, embeddings=embeddings)
        assert (done.archived, done.filed and done.filed.filed) == (65, 65)
        async with open_intern(settings_in(tmp_path, embeddings=embeddings)) as intern:
            assert done.without_vectors == await intern.count_without_vectors() > 0
            assert "57" in (await intern.search("gauge number 57"))[0].matched


@pytest.mark.rest
async def test_what_grows_for_years_is_archived_once_in_its_fullest_version(tmp_path: Path) -> None:
    chat = Chat()
    _, answer = answered(chat)
    for n in range(10):
        further = chat.say(ALICE, f"And on node {n}?", to=answer, after=4000)
        answer = chat.say(TOM, f"The same on node {n}.", to=further, after=4000)
    done = await imported(tmp_path, chat)
    [pair] = archived(tmp_path)
    assert len(pair.turns) == 22
    assert (done.team_replies, done.captured, done.archived) == (11, 1, 1)


# Finding B1.
@pytest.mark.parametrize(("name", "above"), [("Behind haproxy 2.8", "Behind haproxy 2.8\n"), (QUESTION[:20], "")])
async def test_a_thread_is_captured_whole_with_the_question_that_it_hangs_on(
    tmp_path: Path, name: str, above: str
) -> None:
    channel = Chat()
    asked = channel.say(ALICE, QUESTION)
    thread = Chat(asked, kind="GuildPublicThread", parent="100", name=name)
    thread.say(MAYA, "Which version?", after=60)
    thread.say(BOT, "I may be wrong.", after=60)
    thread.say(ALICE, "2.1", after=600)
    thread.say(TOM, "On 7480.", after=60)
    thread.say(ALICE, "Thanks!", after=60)
    await imported(tmp_path, thread, channel)
    [pair] = archived(tmp_path)
    said = [f"User: {above}{QUESTION}", "Team: Which version?", "User: 2.1", "Team: On 7480.", "User: Thanks!"]
    assert texts(pair) == said
    assert pair.conversation_id == f"thread_{asked}"


async def test_a_forum_post_opens_with_its_own_question(tmp_path: Path) -> None:
    post = Chat("700", kind="GuildPublicThread", parent="99", name="Haproxy in front")
    post.say(ALICE, QUESTION, own_id="700")
    post.say(MAYA, "On 7480.", after=60)
    await imported(tmp_path, post)
    [pair] = archived(tmp_path)
    assert texts(pair) == [f"User: Haproxy in front\n{QUESTION}", "Team: On 7480."]
    assert f"Haproxy in front\n{QUESTION}" in blocks(tmp_path)


async def test_files_are_named_and_never_fetched(tmp_path: Path) -> None:
    chat = Chat()
    picture = {"id": "1", "url": "http://169.254.169.254/", "fileName": "error.png", "fileSizeBytes": 1}
    asked = chat.say(ALICE, "", attachments=[picture])
    chat.say(MAYA, "Install the driver.", to=asked)
    await imported(tmp_path, chat)
    assert texts(archived(tmp_path)[0]) == ["User: [image: error.png]", "Team: Install the driver."]


@pytest.mark.rest
async def test_a_second_import_archives_nothing_and_asks_no_model(tmp_path: Path) -> None:
    chat = Chat()
    for n in range(30):
        answered(chat, f"{QUESTION} And on node{n}?", f"On {7000 + n}.")
    await imported(tmp_path, chat)
    before = files_of(tmp_path)
    again = await imported(tmp_path, chat)
    assert (again.captured, again.archived, again.joined, again.known) == (30, 0, 0, 30)
    assert again.filed is not None
    assert sum((again.filed.filed, again.filed.skipped, again.filed.parked, again.filed.replaced)) == 0
    assert {name: data for name, data in files_of(tmp_path).items() if not name.startswith("intern.db")} == {
        name: data for name, data in before.items() if not name.startswith("intern.db")
    }


async def test_a_dry_run_says_what_it_would_cost_and_makes_no_file(tmp_path: Path) -> None:
    chat = Chat()
    answered(chat)
    answered(chat, "Where do the logs go on a read-only disk?", "To the journal.")
    dry = await imported(tmp_path, chat, dry_run=True)
    assert (dry.captured, dry.archived, dry.model_calls, dry.filed) == (2, 2, 4, None)
    assert not (tmp_path / "data").exists()
    wet = await imported(tmp_path, chat)
    assert (wet.archived, wet.model_calls) == (2, None)
    assert (await imported(tmp_path, chat, dry_run=True)).model_calls == 0


async def test_answers_before_a_date_are_context_and_no_captures(tmp_path: Path) -> None:
    chat = Chat()
    answered(chat)
    since = chat.now + timedelta(days=1)
    answer = chat.messages[-1]["id"]
    other = chat.say(BOB, "Also with TLS?", to=answer, after=2 * 86_400)
    chat.say(MAYA, "On 7481.", to=other)
    answered(chat, "Where do the logs go?", "To the journal.")
    done = await imported(tmp_path, chat, since=since)
    assert [len(pair.turns) for pair in archived(tmp_path)] == [4, 2]
    assert done.skipped["team replies before --since"] == 1


async def test_what_is_passed_over_is_told_with_its_reason(tmp_path: Path) -> None:
    chat = Chat()
    chat.say(TOM, "Joined", type="GuildMemberJoin")
    chat.say(MAYA, "Release day!", after=600)
    chat.messages.append({"id": "77"})
    private = Chat("200", kind="GuildPrivateThread", parent="100")
    answered(private)
    direct = Chat("300", kind="DirectTextChat")
    direct.guild = "0"
    answered(direct)
    off = Chat("400")
    answered(off)
    off_here = {"guild_ids": ["5"], "channels": [{"id": "400", "mode": "off"}]}
    done = await imported(tmp_path, chat, private, direct, off, discord=off_here)
    assert done.skipped == {
        "notices of Discord's": 1,
        "messages that cannot be read": 1,
        "team replies that answer no member": 1,
        "messages in private threads": 2,
        "private messages": 2,
        "messages where the mode is off": 2,
    }
    assert archived(tmp_path) == []
    listed = await imported(tmp_path, private, discord={"listed_channel_ids": ["200"]})
    assert listed.archived == 1


async def test_another_servers_export_is_refused(tmp_path: Path) -> None:
    chat = Chat()
    answered(chat)
    with pytest.raises(ConfigError, match=r"server 5, which discord\.guild_ids does not list"):
        await imported(tmp_path, chat, discord={"guild_ids": ["6"]})
    assert archived(tmp_path) == []


async def test_without_a_team_there_is_nothing_to_learn(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no team is set"):
        await import_history(settings_in(tmp_path), ImportRequest(files=()))


async def test_the_settings_team_counts_too(tmp_path: Path) -> None:
    chat = Chat()
    answered(chat)
    settings = settings_in(tmp_path, discord={"team_member_ids": [MAYA]})
    assert (await import_history(settings, ImportRequest(files=(chat.save(tmp_path),)))).archived == 1


async def test_secrets_are_masked_and_counted_by_kind(tmp_path: Path) -> None:
    chat = Chat()
    key = "sk-proj-" + "a1B2" * 12
    answered(chat, f"Why is {key} refused by the relay?")
    done = await imported(tmp_path, chat)
    assert sum(done.masked.values()) == 1
    assert not [name for name, data in files_of(tmp_path).items() if key.encode() in data]


async def test_what_was_withdrawn_is_not_brought_back(tmp_path: Path) -> None:
    chat = Chat()
    _, answer = answered(chat)
    kept = chat.say(TOM, "On 80 behind the proxy.", to=chat.messages[0]["id"], after=600)
    async with knowledge_in(settings_in(tmp_path).paths.data) as knowledge:
        await knowledge.change(
            lambda change: change.decide(MessagesWithdrawn(message_ids=(MessageId(answer),), at=NOON))
        )
    await imported(tmp_path, chat)
    [pair] = archived(tmp_path)
    assert pair.message_ids == (chat.messages[0]["id"], kept)


def live(asked: str, answer: str, *turns: str, at: datetime) -> Capture:
    return Capture(
        conversation_id=ConversationId(f"reply_{asked}"),
        turns=(Turn("User", turns[0]), Turn("Team", turns[1])),
        message_ids=(MessageId(asked), MessageId(answer)),
        author_ids=(UserId(ALICE), UserId(MAYA)),
        answered_at=at,
    )


@pytest.mark.rest
async def test_an_imported_answer_makes_no_newer_live_one_obsolete(tmp_path: Path) -> None:
    now = datetime(2026, 5, 1, tzinfo=UTC)
    newer = live(position_at(now).id, position_at(now, 1).id, QUESTION, "On 9000 since version 3.", at=now)
    async with open_intern(settings_in(tmp_path)) as intern:
        await intern.capture(newer)
    chat = Chat()
    answered(chat, QUESTION, "Always on 7480.")
    await imported(tmp_path, chat)
    assert "On 9000 since version 3." in blocks(tmp_path)
    [first, second] = archived(tmp_path)
    assert (first.turns, second.turns[1].text) == (newer.turns, "Always on 7480.")
    removed = {
        qa_id
        for each in KnowledgeStore(ReadOnlySqliteDatabase(settings_in(tmp_path).paths.database)).read_decisions()
        if isinstance(each, PairFiled)
        for qa_id in each.removed
    }
    assert first.qa_id not in removed


@pytest.mark.rest
async def test_a_live_answer_makes_an_older_imported_one_obsolete(tmp_path: Path) -> None:
    chat = Chat()
    answered(chat, QUESTION, "Always on 7480.")
    await imported(tmp_path, chat)
    now = datetime(2026, 5, 1, tzinfo=UTC)
    async with open_intern(settings_in(tmp_path)) as intern:
        await intern.capture(
            live(position_at(now).id, position_at(now, 1).id, QUESTION, "On 9000 since version 3.", at=now)
        )
    assert "Always on 7480." not in blocks(tmp_path)


async def test_a_conversation_that_was_captured_live_is_joined_and_keeps_its_newer_text(tmp_path: Path) -> None:
    chat = Chat()
    asked, answer = answered(chat, QUESTION, "On 7408.")
    chat.say(TOM, "And 7481 with TLS.", to=asked, after=600)
    async with open_intern(settings_in(tmp_path)) as intern:
        # Edited on Discord after the export was made.
        await intern.capture(live(asked, answer, QUESTION, "On 7480, sorry.", at=NOON + timedelta(days=1)))
    done = await imported(tmp_path, chat)
    assert (done.archived, done.joined, done.known) == (0, 1, 0)
    newest = archived(tmp_path)[-1]
    assert texts(newest) == [f"User: {QUESTION}", "Team: On 7480, sorry.", "Team: And 7481 with TLS."]
    assert newest.answered_at == NOON + timedelta(days=1)
    assert blocks(tmp_path).count(QUESTION) == 1
    assert (await imported(tmp_path, chat)).known == 1


@pytest.mark.rest
async def test_beside_a_running_bot_it_archives_and_the_bot_files(tmp_path: Path) -> None:
    chat = Chat()
    for n in range(20):
        answered(chat, f"{QUESTION} On node{n}?", f"On {7000 + n}.")
    settings = settings_in(tmp_path, kb={"settle_seconds": 0})
    sandbox = Sandbox(HandClock())
    async with open_sandbox(settings, sandbox, events=ActivityReporter()):
        done = await imported(tmp_path, chat)
        assert (done.archived, done.filed) == (20, None)
        assert sandbox.posts() == ()
    # Leaving the block waits for the end of the bot's work.
    knowledge = KnowledgeStore(ReadOnlySqliteDatabase(settings.paths.database))
    assert [pair.qa_id for pair in archived(tmp_path) if knowledge.last_decision(pair.qa_id) is None] == []
    assert len(archived(tmp_path)) == 20
    async with await SqliteDatabase.open(settings.paths.database) as db:
        left = await db.read(lambda books: books.rows("select payload from jobs where length(payload) > 0"))
    assert left == []


def world_of(sandbox: Sandbox, chat: Chat, messages: list[ChatMessage]) -> None:
    """Return the same conversation as an export."""
    for message in messages:
        chat.messages.append(
            {
                "id": message.id,
                "timestamp": message.at.isoformat(),
                "content": message.text,
                "author": {"id": message.author.id, "name": message.author.name},
                **({"reference": {"messageId": message.reply_to}} if message.reply_to else {}),
            }
        )
    chat.channel["id"] = sandbox.general
    chat.guild = sandbox.guild_id


@pytest.mark.rest
async def test_what_was_captured_live_and_is_imported_later_changes_nothing(tmp_path: Path) -> None:
    clock = HandClock(NOON)
    sandbox = Sandbox(clock, team=["maya"])
    wait = {"message_batch_wait_seconds": 0}
    settings = settings_in(tmp_path, kb={"settle_seconds": 0}, discord=wait)
    said: list[ChatMessage] = []
    async with open_sandbox(settings, sandbox, events=ActivityReporter(), clock=clock):
        for n in range(3):
            said.append(sandbox.say("alice", f"{QUESTION} On node{n}?"))
            clock.turn(seconds=100)
            said.append(sandbox.say("maya", f"On {7000 + n}.", reply_to=said[-1].id))
            clock.turn(seconds=100)
    before = archived(tmp_path)
    assert len(before) == 3
    chat = Chat()
    world_of(sandbox, chat, said)
    wanted = ImportRequest(files=(chat.save(tmp_path),), team_ids=(sandbox.author("maya").id,))
    done = await import_history(settings, wanted)
    assert (done.known, done.archived, done.joined) == (3, 0, 0)
    assert archived(tmp_path) == before


# Finding B1.
async def test_a_title_is_the_first_line_and_a_renamed_post_is_imported_once(tmp_path: Path) -> None:
    born = position_at(NOON).id
    chat = Chat(born, kind="GuildPublicThread", parent="200", name="Error 4711 in the tenant")
    asked = chat.say(ALICE, "What am I doing wrong?", own_id=born)
    chat.say(MAYA, "Renew the certificate.", to=asked, after=60)
    assert (await imported(tmp_path, chat)).archived == 1
    before = archived(tmp_path)
    assert texts(before[0]) == [
        "User: Error 4711 in the tenant\nWhat am I doing wrong?",
        "Team: Renew the certificate.",
    ]
    chat.channel["name"] = "Solved: certificate of the tenant"
    done = await imported(tmp_path, chat)
    assert (done.archived, done.joined, done.known) == (0, 0, 1)
    assert archived(tmp_path) == before
