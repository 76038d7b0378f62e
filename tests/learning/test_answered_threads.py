"""Threads that intern answered in, with a Discord in memory: their results, when they come, and their withdrawal."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after
from msgspec.structs import replace

from intern.core.captures import CapturedPair
from intern.core.clock import Clock
from intern.core.errors import ChatRefusedError, ChatUnavailableError, ModelReplyError
from intern.core.flow import Batch, QuestionDeclined, Reply
from intern.core.ids import ChannelId, ConversationId, bot_answer_conversation, thread_conversation
from intern.core.knowledge import Fact, Nugget
from intern.core.messages import ChatMessage
from intern.facts.extraction import ExtractionOutcome
from intern.facts.prompts import EXTRACT, ExtractIn, ExtractOut, FactOut, NuggetOut
from intern.facts.segments import ExtractionOptions
from intern.learning.forgetting import ForgetRequest
from intern.models.prompt import InT, OfflineModel, OutT, Prompt
from intern.models.usage import UsageCounter
from intern.runtime.bot import open_sandbox
from intern.service.job_kinds import FORGET
from intern.service.models import Models, collect_offline_rules
from intern.service.opening import open_intern
from intern.settings.settings import Settings
from intern.sources.refresh import RefreshReport
from intern.stores.database import Transaction
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.answered_threads import AnsweredThreads
from intern.stores.tables.documents import DocumentStore
from intern.stores.tables.extractions import ExtractionLog
from intern.stores.tables.facts import FactFilter, FactStore
from intern.stores.tables.nuggets import NuggetStore
from tests.worlds.bot import Watching, settings_in
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock, all_quiet
from tests.worlds.model import ScriptedModel

ASKED = "@intern which port does the relay listen on?"
SOLVED = "For the record: behind the quokka proxy it only worked once I had set `listen` to 7999."
ALSO = "Same here, a restart of the quokka proxy was needed as well."


def parrot(given: ExtractIn) -> ExtractOut:
    """Repeat all messages as facts, with full confidence, and name every message as the source."""
    ids = tuple(line.split()[0] for line in given.transcript.splitlines() if line.startswith("m"))
    nugget = NuggetOut(
        topic="Quokka proxies",
        topic_summary="How to listen behind one.",
        detailed_analysis=given.transcript,
        status="FACT",
        keywords=("proxy",),
        source_message_ids=ids,
    )
    fact = FactOut(
        category="technical",
        content=given.transcript.replace("\n", " "),
        summary="about quokka proxies",
        visibility="shared",
        confidence=0.9,
        sentiment="neutral",
        duplicate_of="",
        supersedes="",
        note="",
        source_message_ids=ids,
    )
    return ExtractOut(nuggets=(nugget,), facts=(fact,))


class Learner(ScriptedModel):
    """Extraction as the test wants it; the rest by rules."""

    def __init__(self) -> None:
        super().__init__()
        self.always(EXTRACT, parrot)
        self._rules = OfflineModel(collect_offline_rules())

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, **more: Any) -> OutT:
        if prompt.name == EXTRACT.name:
            return await super().ask(prompt, given, **more)
        return await self._rules.ask(prompt, given, **more)

    @property
    def read(self) -> list[str]:
        return [each.transcript for each in self.calls(EXTRACT)]


class Seeing(Watching):
    """Also reports which messages are settled, and which calls were made."""

    def report_decline(self, declined: QuestionDeclined) -> None:
        super().report_decline(declined)
        self._tell(declined)

    def report_extraction(self, conversation_id: ConversationId, came: ExtractionOutcome) -> None:
        super().report_extraction(conversation_id, came)
        self._tell((conversation_id, came))

    async def done_with(self, message: ChatMessage) -> None:
        await self.one_of(object, where=lambda told: message.id in _ended(told))

    async def looked_at(self, conversation_id: ConversationId, came: str) -> None:
        await self.one_of(object, where=lambda told: told == (conversation_id, came))


def _ended(told: object) -> Collection[str]:
    """Return the messages that a report settles."""
    match told:
        case Batch():
            return [each.id for each in told.messages]
        case Reply():
            return (told.question.id, *told.settles)
        case CapturedPair():
            return told.message_ids
        case QuestionDeclined():
            return [each.id for each in told.request.batch.messages]
        case _:
            return ()


class Scene:
    """A folder and a Discord; the bot starts and stops."""

    def __init__(self, folder: Path, **extraction: Any) -> None:
        self.clock = HandClock()
        self.sandbox = Sandbox(self.clock, team={"mira"})
        self.model = Learner()
        self.events = Seeing()
        self.settings: Settings = replace(
            settings_in(folder), extraction=ExtractionOptions(**{"from_questions": True, **extraction})
        )

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[Seeing]:
        """Run the bot within the block; at the end, it finishes all due work."""

        @asynccontextmanager
        async def models(settings: Settings, usage: UsageCounter, clock: Clock) -> AsyncGenerator[Models]:
            del settings, usage, clock
            yield Models(self.model, self.model)

        events = self.events = Seeing()
        with fail_after(20):
            async with open_sandbox(self.settings, self.sandbox, events=events, clock=self.clock, models=models):
                await events.one_of(RefreshReport)
                yield events

    async def asked(self, events: Seeing) -> ChannelId:
        """Ask a question that is answered in a thread."""
        question = self.sandbox.say("bob", ASKED)
        await events.done_with(question)
        return ChannelId(question.id)

    def said_in(self, thread: ChannelId) -> ChatMessage:
        """Return the asker's last message there."""
        return [each for each in self.sandbox.messages(thread) if each.author.name == "bob"][-1]

    async def says(self, who: str, text: str, thread: ChannelId) -> ChatMessage:
        self.clock.turn(minutes=1)
        said = self.sandbox.say(who, text, channel_id=thread)
        await self.events.done_with(said)
        return said

    async def told(self) -> ChannelId:
        """Make a thread that was answered, continued by its asker, and read once it was quiet."""
        async with self.at_work() as events:
            thread = await self.asked(events)
            await self.says("bob", SOLVED, thread)
            self.clock.turn(hours=2)
        return thread

    async def learned(self) -> tuple[list[Nugget], list[Fact]]:
        async with await SqliteDatabase.open(self.settings.paths.database) as db:
            facts = await FactStore(db, clock=self.clock).all(FactFilter())
            nuggets = await NuggetStore(db).all()
            shown = await DocumentStore(db).stamps("nugget")
            assert sorted(shown) == sorted(f"nugget:{each.id}" for each in nuggets)
            return list(nuggets), list(facts)

    async def tables_with(self, word: str) -> list[str]:
        def work(db: Transaction) -> list[str]:
            names = [str(name) for (name,) in db.rows("select name from sqlite_schema where type = 'table'")]
            return [name for name in names if word in str(db.rows(f"select * from {name}"))]

        async with await SqliteDatabase.open(self.settings.paths.database) as db:
            return await db.read(work)

    def holding(self, word: str) -> list[str]:
        """Return the files of the folder that contain a word, even in unused space."""
        files = (path for path in Path(self.settings.data.dir).rglob("*") if path.is_file())
        return sorted(path.name for path in files if word.encode() in path.read_bytes())


async def test_an_answered_thread_becomes_a_nugget_and_a_fact_once_it_is_quiet(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    async with scene.at_work() as events:
        thread = await scene.asked(events)
        said = await scene.says("bob", SOLVED, thread)
        scene.clock.turn(minutes=30)
    assert await scene.learned() == ([], [])  # members may write more

    async with scene.at_work():
        scene.clock.turn(minutes=31)
    [nugget], [fact] = await scene.learned()
    assert "quokka" in nugget.detailed_analysis
    assert "quokka" in fact.content
    assert nugget.conversation_id == bot_answer_conversation(thread)
    assert nugget.channel_id == thread
    # Messages of intern are shown, but are not a source; and no member's message is a fact.
    [transcript] = scene.model.read
    assert "(assistant)" in transcript
    assert "bob" not in transcript
    assert set(nugget.source_message_ids) == {thread, said.id}
    assert nugget.status == "COMMUNITY_OPINION"


@pytest.mark.rest
async def test_nothing_is_read_where_it_is_off(tmp_path: Path) -> None:
    scene = Scene(tmp_path, from_questions=False)
    await scene.told()
    assert await scene.learned() == ([], [])
    assert scene.model.read == []

    # When turned on, it begins with the ledger's first reply.
    scene.settings = Scene(tmp_path).settings
    async with scene.at_work():
        pass
    assert len(scene.model.read) == 1


async def test_a_question_that_nobody_took_further_costs_no_call(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    async with scene.at_work() as events:
        await scene.asked(events)
        scene.clock.turn(hours=2)
    assert await scene.learned() == ([], [])
    assert scene.model.read == []


@pytest.mark.rest
async def test_a_restart_goes_on_where_the_ledger_was_left_and_reads_nothing_twice(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.told()
    before = await scene.learned()
    async with scene.at_work() as events:
        scene.clock.turn(hours=2)
        await all_quiet()
        other = await scene.asked(events)
        await scene.says("tom", ALSO, other)
        scene.clock.turn(hours=2)
    assert len(scene.model.read) == 2
    nuggets, facts = await scene.learned()
    assert {each.id for each in before[0]} < {each.id for each in nuggets}
    assert len(facts) == 2


async def test_what_is_said_later_in_the_thread_is_learned_too_and_takes_the_place_of_what_was(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    thread = await scene.told()
    async with scene.at_work():
        await scene.says("tom", ALSO, thread)
        scene.clock.turn(minutes=30)
    assert len(scene.model.read) == 1
    async with scene.at_work():
        scene.clock.turn(minutes=31)
    [nugget], _ = await scene.learned()
    assert "restart" in nugget.detailed_analysis
    assert "7999" in nugget.detailed_analysis


@pytest.mark.rest
async def test_a_deleted_message_takes_what_it_taught_with_it_and_the_rest_is_learned_anew(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    thread = await scene.told()
    async with scene.at_work():
        added = await scene.says("tom", ALSO, thread)
        scene.clock.turn(hours=2)
    async with scene.at_work():
        scene.sandbox.delete(thread, added.id)
        await all_quiet()
    [nugget], _ = await scene.learned()
    assert "7999" in nugget.detailed_analysis
    assert "restart" not in nugget.detailed_analysis


@pytest.mark.rest
@pytest.mark.parametrize("what", ["the follow-up", "the question"])
async def test_where_too_little_is_left_after_a_deletion_nothing_stands(tmp_path: Path, what: str) -> None:
    scene = Scene(tmp_path)
    thread = await scene.told()
    assert await scene.learned() != ([], [])
    async with scene.at_work():
        # The question is in the thread's parent channel.
        if what == "the question":
            scene.sandbox.delete(scene.sandbox.general, scene.sandbox.messages(scene.sandbox.general)[0].id)
        else:
            scene.sandbox.delete(thread, scene.said_in(thread).id)
        await all_quiet()
    assert await scene.learned() == ([], [])


async def test_a_deletion_withdraws_also_while_discord_shows_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    thread = await scene.told()
    async with scene.at_work() as events:
        scene.sandbox.fail("before", ChatUnavailableError("Discord is away"))
        scene.sandbox.delete(thread, scene.said_in(thread).id)
        await events.looked_at(bot_answer_conversation(thread), "unknown")
        assert await scene.learned() == ([], [])


@pytest.mark.rest
async def test_an_edited_message_is_learned_anew(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    thread = await scene.told()
    async with scene.at_work():
        scene.sandbox.edit(thread, scene.said_in(thread).id, SOLVED.replace("7999", "8123"))
        await all_quiet()
    [nugget], _ = await scene.learned()
    assert "8123" in nugget.detailed_analysis
    assert "7999" not in nugget.detailed_analysis


async def test_a_thread_in_which_the_team_answers_is_the_archive_s_alone(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    thread = await scene.told()
    async with scene.at_work() as events:
        await scene.says("mira", "We set `listen` to 7999 for all quokka proxies from now on.", thread)
        await events.looked_at(thread_conversation(thread), "extracted")
        nuggets, _ = await scene.learned()
        assert [each.conversation_id for each in nuggets] == [f"thread_{thread}"]
        scene.clock.turn(hours=2)
    nuggets, _ = await scene.learned()
    assert [each.conversation_id for each in nuggets] == [f"thread_{thread}"]
    assert [each.status for each in nuggets] == ["FACT"]


@pytest.mark.rest
async def test_one_that_was_captured_before_it_was_quiet_is_never_read(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    async with scene.at_work() as events:
        thread = await scene.asked(events)
        await scene.says("bob", SOLVED, thread)
        await scene.says("mira", "We set `listen` to 7999 for all quokka proxies from now on.", thread)
        scene.clock.turn(hours=2)
    nuggets, _ = await scene.learned()
    assert [each.conversation_id for each in nuggets] == [f"thread_{thread}"]


@pytest.mark.rest
@pytest.mark.parametrize(
    ("by", "running"),
    [
        ("user", True),
        ("message", False),
        *(pytest.param(*each, marks=pytest.mark.rest) for each in (("user", False), ("message", True))),
    ],
)
async def test_forgetting_reaches_what_a_thread_taught(tmp_path: Path, by: str, running: bool) -> None:  # noqa: FBT001
    scene = Scene(tmp_path)
    thread = await scene.told()
    async with scene.at_work():
        added = await scene.says("tom", ALSO, thread)
        scene.clock.turn(hours=2)
    assert scene.holding("restart of the quokka") == ["intern.db", "search.db"]
    asked = ForgetRequest(user_id=added.author.id) if by == "user" else ForgetRequest(message_ids=(added.id,))
    asked = replace(asked, erase=True)

    if running:
        async with scene.at_work(), open_intern(scene.settings) as intern:
            forgot = await intern.run_job(FORGET, asked)
    else:
        async with open_intern(scene.settings) as intern:
            forgot = await intern.run_job(FORGET, asked)
        assert await scene.learned() == ([], [])
    assert forgot.found
    assert forgot.messages == 1

    # Read once more, without the forgotten messages, although these are still on Discord.
    async with scene.at_work():
        pass
    [nugget], _ = await scene.learned()
    assert "7999" in nugget.detailed_analysis
    assert "restart" not in nugget.detailed_analysis
    assert scene.holding("restart of the quokka") == []
    assert "restart" not in scene.model.read[-1]


@pytest.mark.rest
@pytest.mark.parametrize("why", ["closed", "refused", "gone", "no history"])
async def test_a_thread_that_cannot_be_read_is_passed_over_and_the_next_one_is_read(tmp_path: Path, why: str) -> None:
    scene = Scene(tmp_path)
    async with scene.at_work() as events:
        elsewhere = scene.sandbox.add_channel("elsewhere")
        lost = scene.sandbox.say("ann", ASKED, channel_id=elsewhere)
        await events.done_with(lost)
        await scene.says("ann", SOLVED, ChannelId(lost.id))
        scene.clock.turn(minutes=5)
        other = await scene.asked(events)
        await scene.says("tom", ALSO, other)
    match why:
        case "closed":
            scene.sandbox.set_private(elsewhere)
        case "refused":
            scene.sandbox.fail("before", ChatRefusedError("Discord refused: missing access"))
        case "gone":
            del scene.sandbox._channels[ChannelId(lost.id)]
        case _:
            scene.sandbox._messages[ChannelId(lost.id)].clear()
    scene.clock.turn(hours=2)
    async with scene.at_work():
        pass
    [nugget], _ = await scene.learned()
    assert nugget.channel_id == other


@pytest.mark.rest
async def test_what_no_model_could_read_is_tried_again_when_its_time_has_come(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.model.next(EXTRACT, ModelReplyError("the reply is no JSON"))
    await scene.told()
    assert await scene.learned() == ([], [])
    async with scene.at_work():
        scene.clock.turn(minutes=9)
    assert len(scene.model.read) == 1
    async with scene.at_work():
        scene.clock.turn(minutes=2)
    assert len((await scene.learned())[0]) == 1


async def test_turned_off_what_changes_is_withdrawn_and_not_read(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    thread = await scene.told()
    scene.settings = Scene(tmp_path, from_questions=False).settings
    async with scene.at_work():
        pass
    assert await scene.learned() != ([], [])
    async with scene.at_work():
        scene.sandbox.edit(thread, scene.said_in(thread).id, "Never mind.")
        await all_quiet()
    assert await scene.learned() == ([], [])
    assert len(scene.model.read) == 1


@pytest.mark.rest
async def test_of_a_thread_only_ids_are_kept_beside_what_it_taught(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.model.always(EXTRACT, ExtractOut(nuggets=(), facts=()))
    thread = await scene.told()
    assert len(scene.model.read) == 1
    off = Scene(tmp_path / "off", from_questions=False)
    await off.told()
    # Reasons for silence, and such, are kept as before.
    assert await scene.tables_with("quokka") == await off.tables_with("quokka")
    async with await SqliteDatabase.open(scene.settings.paths.database) as db:
        threads = AnsweredThreads(db)
        assert await threads.find_messages_by(scene.sandbox.author("bob").id) == {thread, scene.said_in(thread).id}
        entry = await ExtractionLog(db, clock=scene.clock).read_entry(bot_answer_conversation(thread))
        assert entry is not None
        assert entry.error is None
