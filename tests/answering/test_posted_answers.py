"""Posted answers and their sources: which answers are outdated, and how they are retracted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from anyio import fail_after
from anyio.to_thread import run_sync
from msgspec.structs import replace

from intern.answering.posted_answers import SETTLED, AnswerRetractor, PostedAnswers
from intern.chat.delivery import RecallableReplies
from intern.core.captures import CapturedPair, TopicBlock, Turn
from intern.core.errors import ChatRefusedError, ChatUnavailableError, KnowledgeError
from intern.core.flow import FilingDecision, Reply, TopicChoice
from intern.core.ids import SourceId, TopicName
from intern.core.messages import ChatMessage, Citation
from intern.core.search_documents import PassageHit
from intern.learning.forgetting import ForgetRequest
from intern.models.prompt import OfflineModel
from intern.service.local_checks import check_folder
from intern.service.models import collect_offline_rules
from intern.service.status import read_status
from intern.sources.catalogue import Catalogue
from intern.sources.library import Library
from intern.stores.engines.sqlite.database import SqliteDatabase
from tests.service.writers import open_writer
from tests.worlds import samples
from tests.worlds.bot import settings_in
from tests.worlds.chat import Sandbox, make_delivery
from tests.worlds.clock import HandClock

pytestmark = pytest.mark.anyio

PORTS = SourceId("kb:ports.md")
QUOTE = "The relay listens on port 7480."
NOTE = "Taken back."
GERMAN_NOTE = "Zurückgezogen."
SPOOL = TopicName("spool")


class Ranks:
    """Finds the sources that a test names."""

    def __init__(self) -> None:
        self.found: list[SourceId] = []

    async def hits(self, text: str, limit: int, /) -> Sequence[PassageHit]:
        del text
        return [PassageHit(source_id=each) for each in self.found[:limit]]


class World:
    """A folder with a document and a topic, a Discord in memory, and answers that were posted there."""

    def __init__(self, folder: Path) -> None:
        self.settings = settings_in(folder)
        self.clock = HandClock()
        self.discord = Sandbox(self.clock, team=["maya"])
        self.ranks = Ranks()
        self.ports = self.settings.paths.sources / "ports.md"

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[World]:
        settings = self.settings
        with fail_after(30):
            async with await SqliteDatabase.open(settings.paths.database) as self.db:
                self.work = work = await run_sync(
                    open_writer, settings, self.db, OfflineModel(collect_offline_rules()), self.clock
                )
                await work.indexing.refresh()
                self.knowledge = work.stores.knowledge
                library = Library(
                    indices=(Catalogue(self.knowledge, "kb"), Catalogue(self.knowledge, "team")),
                    sources=work.stores.sources,
                    topics=self.knowledge,
                    archive=work.stores.archive,
                    rank=self.ranks.hits,
                )
                self.posting = make_delivery(
                    self.discord,
                    work.stores.posts,
                    self.discord,
                    outgoing=RecallableReplies(),
                    clock=self.clock,
                    retracted={"en": NOTE, "de": GERMAN_NOTE},
                )
                self.posted = PostedAnswers(work.stores.cited, library, self.knowledge)
                records = work.stores.answers
                self.retractions = AnswerRetractor(work.stores.cited, self.posting.retract, records, clock=self.clock)
                yield self

    async def answered(
        self, source_id: SourceId = PORTS, quote: str | None = QUOTE, asked: str = "Which port?", text: str = "7480."
    ) -> ChatMessage:
        """Post an answer to a question, and compare it with its source once."""
        self.clock.turn(seconds=5)
        question = self.discord.say("alice", asked)
        cited = Citation(source_id=source_id, title="Ports", quote=quote)
        reply = Reply(question=question, target="new_thread", text=text, citations=(cited,), asked=asked)
        assert (await self.posting.post(reply)).status == "posted"
        await self.check()
        return question

    async def check(self) -> None:
        """Check as the checker does, after some time."""
        self.clock.turn(minutes=1)
        await self.work.indexing.refresh()
        await self.posted.check()

    async def outdated(self) -> list[tuple[str, str, str]]:
        """Return for each outdated citation its state, its quote, and the source's current text."""
        found = await self.posted.list_outdated(50)
        return [(change.cited.state, change.cited.quote, change.now) for each in found for change in each.changes]

    async def filed(self, *said: str, conversation: str = "thread_7") -> CapturedPair:
        """File a conversation in the topic: a question, and the team's answer."""
        self.clock.turn(minutes=1)
        capture = samples.capture(said[0], said[1], n=int(conversation[-1]), conversation=conversation)
        more = tuple(Turn("Team", each) for each in said[2:])
        ids = tuple(samples.message(n=5_000 + len(self.work.stores.archive) + n).id for n in range(len(more)))
        pair = await self.work.learning.keep(
            replace(capture, turns=(*capture.turns, *more), message_ids=(*capture.message_ids, *ids))
        )
        assert pair is not None
        await self.work.learning.file(FilingDecision(pair=pair, choice=TopicChoice(name=SPOOL)))
        return pair

    async def put(self, block: TopicBlock) -> None:
        """Put a block into the topic."""
        await self.knowledge.change(lambda change: change.file_blocks(SPOOL, block))

    def said(self) -> list[str]:
        return [message.text for message in self.discord.posts()]


@pytest.fixture
async def world(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[World]:
    async with World(tmp_path).open() as opened:
        yield opened


async def test_a_document_that_says_something_else_is_shown_beside_what_was_quoted(world: World) -> None:
    question = await world.answered()
    assert await world.outdated() == []
    world.ports.write_text("# Ports\n\nThe relay listens on port 9000. Set `listen` to change it.\n")
    await world.check()
    [(state, before, now)] = await world.outdated()
    assert (state, before) == ("changed", QUOTE)
    assert "port 9000" in now
    [found] = await world.posted.list_outdated(50)
    [post] = world.discord.posts()
    assert (found.answer.question_id, found.answer.asked) == (question.id, "Which port?")
    assert (found.answer.place, found.answer.message_id) == (post.channel_id, post.id)


async def test_white_space_markup_and_what_was_not_quoted_are_no_change(world: World) -> None:
    await world.answered()
    world.ports.write_text("# All ports\n\n* The *relay*\n  listens on port `7480`.\n\nSomething else.\n")
    await world.check()
    assert await world.outdated() == []


async def test_a_document_that_is_gone_is_withdrawn_until_it_comes_back(world: World) -> None:
    await world.answered()
    await world.answered(quote=None, asked="And now?")
    text = world.ports.read_text()
    world.ports.unlink()
    (world.ports.with_name("other.md")).write_text("# Other\n\nSomething else.\n")
    await world.check()
    assert await world.outdated() == [("gone", "", ""), ("gone", QUOTE, "")]
    world.ports.write_text(text)
    await world.check()
    assert await world.outdated() == []


async def test_where_no_document_is_listed_at_all_nothing_is_taken_for_withdrawn(world: World) -> None:
    await world.answered()
    world.ports.unlink()
    await world.check()
    assert await world.outdated() == []


async def test_a_document_that_was_renamed_is_followed(world: World) -> None:
    await world.answered()
    renamed = world.ports.rename(world.ports.with_name("listening.md"))
    world.ranks.found = [SourceId("kb:listening.md")]
    await world.check()
    assert await world.outdated() == []
    renamed.write_text("# Ports\n\nNothing.\n")
    await world.check()
    assert [state for state, _, _ in await world.outdated()] == ["changed"]


async def test_a_secret_in_a_document_is_not_kept_and_no_change(world: World) -> None:
    secret = "xoxb-123456789012-abcdefABCDEF123456789012"
    world.ports.write_text(f"# Token\n\nThe token is {secret} here.\n")
    await world.check()
    await world.answered(quote=f"The token is {secret} here.", asked=f"Is {secret} right?")
    assert await world.outdated() == []
    rows = await world.db.read(lambda db: db.rows("select texts, quote from answers, answer_citations"))
    assert secret not in str(rows)
    assert "[masked" in str(rows)


async def test_a_team_answer_stands_wherever_its_block_stands_and_as_long_as_it_is_the_same(world: World) -> None:
    pair = await world.filed("How do I purge the spool?", "Run purge.")
    await world.filed("How do I rotate?", "Set rotate.", conversation="thread_8")
    block = SourceId(f"team:spool.txt#{pair.qa_id}")
    await world.answered(block, "Run purge.")
    await world.answered(SourceId("team:spool.txt"), "Run purge.", asked="How to purge?")

    [kept] = [each for each in world.knowledge.read_topic(SPOOL) if each.qa_id == pair.qa_id]
    await world.knowledge.change(lambda change: change.file_blocks(TopicName("purging"), kept))
    await world.check()
    assert await world.outdated() == []

    await world.knowledge.change(lambda change: change.remove_blocks([pair.qa_id]))
    await world.check()
    assert await world.outdated() == [("gone", "Run purge.", "")] * 2


async def test_what_members_said_in_a_conversation_may_change(world: World) -> None:
    pair = await world.filed("How do I purge the spool?", "Run purge.")
    await world.answered(SourceId(f"team:spool.txt#{pair.qa_id}"), "Team: Run purge.")
    await world.answered(SourceId(f"team:spool.txt#{pair.qa_id}"), None, asked="Without a quote?")
    [kept] = world.knowledge.read_topic(SPOOL)
    await world.put(replace(kept, turns=(Turn("User", "Purge?"), kept.turns[1])))
    await world.check()
    assert await world.outdated() == []


async def test_a_conversation_that_went_on_is_told_from_one_that_says_something_else(world: World) -> None:
    pair = await world.filed("How do I purge the spool?", "Run purge.")
    block = SourceId(f"team:spool.txt#{pair.qa_id}")
    await world.answered(block, "Run purge.")
    await world.filed("How do I purge the spool?", "Run purge.", "Wait, not on Tuesdays!")
    await world.check()
    assert await world.outdated() == [("extended", "Run purge.", "Run purge.\nWait, not on Tuesdays!")]
    await world.answered(block, "Team: Run purge.", asked="With the speaker?")
    assert [state for state, _, _ in await world.outdated()] == ["extended"] * 2
    [newer] = world.knowledge.read_topic(SPOOL)
    await world.put(replace(newer, turns=(Turn("User", "How?"), Turn("Team", "Never do."))))
    await world.check()
    assert await world.outdated() == [
        ("changed", "Team: Run purge.", "Never do."),
        ("changed", "Run purge.", "Never do."),
    ]


async def changed(world: World, text: str = "7480. " + "Like this. " * 250) -> ChatMessage:
    """Post an answer, and change its document long enough ago."""
    question = await world.answered(text=text)
    world.ports.write_text("# Ports\n\nThe relay listens on port 9000.\n")
    await world.check()
    await world.retractions.retract()
    assert NOTE not in world.said()
    world.clock.turn(seconds=SETTLED.total_seconds())
    return question


async def test_an_answer_is_edited_once_with_all_its_parts_and_buttons(world: World) -> None:
    question = await changed(world)
    assert len(world.said()) > 1
    await world.retractions.retract()
    assert set(world.said()) == {NOTE}
    assert all(not world.discord.sent[post.id].buttons for post in world.discord.posts())
    edits = world.discord.calls["rewrite"]
    world.ports.write_text("# Ports\n\nSomething else again.\n")
    await world.check()
    world.clock.turn(hours=1)
    await world.retractions.retract()
    assert world.discord.calls["rewrite"] == edits
    [found] = await world.posted.list_outdated(50)
    assert (found.answer.question_id, found.answer.retracted) == (question.id, "retracted")


# Finding A7.
async def test_after_a_check_that_failed_no_answer_is_retracted(world: World) -> None:
    async def away() -> None:
        raise KnowledgeError("the disk is gone")

    await changed(world)
    with pytest.raises(KnowledgeError):
        await world.retractions.check_and_retract(away)
    assert NOTE not in world.said()
    await world.retractions.check_and_retract(world.check)
    assert set(world.said()) == {NOTE}


async def test_the_note_is_in_the_language_of_the_answer(world: World) -> None:
    await changed(world, text="Das Relay hört auf Port 7480. " + "Mehr steht dazu nicht in den Quellen. " * 80)
    parts = len(world.said())
    assert parts > 1
    world.discord.fail("rewrite", ChatUnavailableError("down"), done=True)
    with pytest.raises(ChatUnavailableError):
        await world.retractions.retract()
    await world.retractions.retract()
    assert set(world.said()) == {GERMAN_NOTE}
    assert world.discord.calls["rewrite"] == parts


@pytest.mark.rest
@pytest.mark.parametrize("done", [False, True])
async def test_an_edit_that_failed_is_made_once(world: World, done: bool) -> None:  # noqa: FBT001
    await changed(world)
    parts = len(world.said())
    world.discord.fail("rewrite", ChatUnavailableError("down"), done=done)
    with pytest.raises(ChatUnavailableError):
        await world.retractions.retract()
    world.ports.write_text(f"# Ports\n\n{QUOTE}\n")  # half an answer is of no use
    await world.check()
    await world.retractions.retract()
    assert set(world.said()) == {NOTE}
    assert world.discord.calls["rewrite"] == parts + (not done)


async def test_what_cannot_be_edited_is_left_alone(world: World) -> None:
    await changed(world)
    world.discord.fail("rewrite", ChatRefusedError("no permission"))
    await world.retractions.retract()
    calls = world.discord.calls["rewrite"]
    world.clock.turn(hours=1)
    await world.retractions.retract()
    assert world.discord.calls["rewrite"] == calls
    [found] = await world.posted.list_outdated(50)
    assert found.answer.retracted == "dropped"


async def test_a_conversation_that_went_on_edits_nothing(world: World) -> None:
    pair = await world.filed("How do I purge the spool?", "Run purge.")
    await world.answered(SourceId(f"team:spool.txt#{pair.qa_id}"), "Run purge.")
    await world.filed("How do I purge the spool?", "Run purge.", "You are welcome.")
    await world.check()
    world.clock.turn(hours=1)
    await world.retractions.retract()
    assert NOTE not in world.said()


async def test_forgetting_takes_questions_and_quotes_of_people_out_and_leaves_the_rest_watched(world: World) -> None:
    pair = await world.filed("How do I purge the spool?", "Run quokka purge.")
    block = SourceId(f"team:spool.txt#{pair.qa_id}")
    await world.answered(block, "Run quokka purge.", asked="What of the wombat?")
    await world.answered(asked="Which port?")
    alice = world.discord.author("alice")
    await world.work.forget(ForgetRequest(message_ids=(pair.message_ids[0],)))
    assert await world.db.read(lambda db: db.rows("select quote from answer_citations order by quote")) == [
        ("",),
        (QUOTE,),
    ]
    await world.check()
    assert await world.outdated() == [("gone", "", "")]
    await world.work.forget(ForgetRequest(user_id=alice.id))
    assert await world.db.read(lambda db: db.rows("select 1 from answers, answer_citations")) == []


async def test_a_question_that_is_deleted_is_not_kept(world: World) -> None:
    question = await world.answered()
    await world.work.learning.withdraw([question.id])
    assert await world.db.read(lambda db: db.rows("select texts, retracted from answers")) == []
    assert await world.db.read(lambda db: db.rows("select quote from answer_citations")) == []


async def test_answers_are_watched_for_90_days(world: World) -> None:
    await world.answered()
    world.clock.turn(days=91)
    await world.answered(asked="Again?")
    assert await world.db.read(lambda db: db.rows("select texts from answers where retracted = ''")) == [
        ('["Again?"]',)
    ]
    assert await world.db.number("select count(*) from answer_citations where community = :community") == 1


async def test_status_and_doctor_count_them(world: World) -> None:
    await world.answered()
    await world.answered(asked="Again?")
    assert (await run_sync(lambda: read_status(world.settings, clock=world.clock))).outdated_answers == 0
    world.ports.write_text("# Ports\n\nNothing.\n")
    await world.check()
    assert (await run_sync(lambda: read_status(world.settings, clock=world.clock))).outdated_answers == 2
    findings = await run_sync(check_folder, world.settings)
    [found] = [each for each in findings if "posted answers" in each.what]
    assert (found.level, found.what[:23]) == ("note", "2 posted answers cite w")
