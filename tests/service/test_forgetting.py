"""Forgotten messages and members are deleted from every place, and do not come back."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from anyio import Event, create_task_group, fail_after, sleep
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync
from msgspec.structs import replace
from structlog.testing import capture_logs

from intern.actors.job_worker import do_jobs_forever
from intern.core.captures import Capture, CapturedPair, Speaker, Turn
from intern.core.decisions import MessagesForgotten, PairFiled, PairRemoved
from intern.core.errors import ConfigError, ModelUnavailableError
from intern.core.flow import CaptureRequest, FilingDecision, TopicChoice
from intern.core.ids import ChannelId, ConversationId, GuildId, MessageId, RoleId, TopicName, UserId, position_at
from intern.core.messages import Author, ChatMessage, Image, MemberRoles
from intern.learning.forgetting import ForgetRequest, ForgetResult
from intern.learning.prompts import CLASSIFY, INTEGRATE, ClassifyOut, IntegrateOut
from intern.models.prompt import InT, Model, OfflineModel, OutT, Prompt
from intern.service.databases import open_database
from intern.service.job_kinds import CAPTURE, FORGET, IMPORT, REGENERATE
from intern.service.models import collect_offline_rules
from intern.service.writer import Writer
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.sources.catalogue import Catalogue
from intern.stores.archive import Archive
from intern.stores.tables.feedback import FeedbackStore
from intern.stores.tables.jobs import JobQueue
from intern.stores.tables.knowledge import KnowledgeDraft
from intern.stores.tables.outbox import Outbox
from tests.engines import Schemas
from tests.service.writers import open_writer
from tests.worlds import samples
from tests.worlds.clock import HandClock
from tests.worlds.model import ScriptedModel

pytestmark = pytest.mark.anyio

SPOOL = TopicName("spool")
MIA, TOM, ANN = UserId("501"), UserId("502"), UserId("900")  # two members, and one of the team
CLOCK = HandClock()


def message(n: int) -> MessageId:
    """Return the id of the nth message, a minute after the one before, all of them long ago."""
    return position_at(CLOCK.now() - timedelta(days=30) + timedelta(minutes=n)).id


class Shop:
    """A writer that can be closed and opened again."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self.settings: Settings = load_settings(environ={}, overrides={"data": {"dir": str(folder), "url": url}})
        self.settings.paths.sources.mkdir(parents=True)
        self.folder = folder
        self.clock = HandClock()

    @asynccontextmanager
    async def open(self, model: Model | None = None) -> AsyncGenerator[Writer]:
        with fail_after(30):
            async with await open_database(self.settings) as self.db:
                self.work = await run_sync(
                    open_writer, self.settings, self.db, model or OfflineModel(collect_offline_rules()), self.clock
                )
                yield self.work

    async def taught(self, thread: str, *said: tuple[int, UserId, str]) -> CapturedPair | None:
        """Capture and file a conversation: number, author and text of each message."""
        self.clock.turn(seconds=1)
        pair = await self.work.learning.keep(capture(thread, *said))
        if pair is not None:
            await self.work.learning.file(FilingDecision(pair=pair, choice=TopicChoice(name=SPOOL)))
        return pair

    def holding(self, word: str) -> list[str]:
        """Return the files below the folder that contain a word, even those that no code reads."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.folder)) for path in files if word.encode() in path.read_bytes())


def capture(thread: str, *said: tuple[int, UserId, str]) -> Capture:
    speakers: list[Speaker] = ["Team" if author == ANN else "User" for _, author, _ in said]
    return Capture(
        conversation_id=ConversationId(f"thread_{thread}"),
        turns=tuple(Turn(speaker, text) for speaker, (_, _, text) in zip(speakers, said, strict=True)),
        message_ids=tuple(message(n) for n, _, _ in said),
        author_ids=tuple(author for _, author, _ in said),
        answered_at=CLOCK.now(),
    )


def waiting(thread: str, *said: tuple[int, UserId, str]) -> CaptureRequest:
    """Capture and file a conversation that waits for the description of its images."""
    return CaptureRequest(
        conversation_id=ConversationId(f"thread_{thread}"),
        guild_id=None,
        channel_id=ChannelId("7"),
        messages=tuple(
            ChatMessage(
                id=message(n),
                guild_id=None,
                channel_id=ChannelId("7"),
                author=Author(id=author, name="", type="team_member" if author == ANN else "community_user"),
                text=text,
                at=CLOCK.now(),
            )
            for n, author, text in said
        ),
    )


QUESTION = (1, MIA, "How do I purge the spool of my quokka farm?")
ANSWER = (2, ANN, "Run purge and wait a minute.")
THANKS = (3, TOM, "That helped me, too, thanks.")
LATER = (4, MIA, "My quokka thanks you.")
OTHER = (11, TOM, "How do I rotate the spool and its logs every night?")
ITS_ANSWER = (12, ANN, "Set rotate to daily in the file.")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "data")


async def everything(shop: Shop) -> None:
    """Put Mia's word into every place that can hold it."""
    await shop.taught("1", QUESTION, ANSWER, THANKS)
    await shop.taught("1", LATER)
    await shop.taught("2", OTHER, ITS_ANSWER)
    await shop.work.indexing.refresh()
    topics = shop.settings.paths.topics
    await shop.work.stores.files.catch_up()
    (topics / ".spool.txt.edited").write_bytes((topics / "spool.txt").read_bytes())
    jobs = JobQueue(shop.db)
    for state in ("finished", "waiting"):
        job_id = await jobs.submit(CAPTURE, capture("1", QUESTION, ANSWER, THANKS))
        if state == "finished":
            await jobs.claim()
            pair = next(iter(shop.work.stores.archive.pairs_after(None)))
            await jobs.finish(job_id, msgspec.json.encode(pair))
    await jobs.submit(IMPORT, [capture("5", QUESTION, ANSWER), capture("2", OTHER)])
    await shop.work.stores.pending.add(waiting("1", QUESTION, ANSWER))
    await shop.work.stores.pending.add(
        waiting("7", (31, MIA, "My quokka again?"), (32, TOM, "Mine too?"), (33, ANN, "Yes."))
    )
    await shop.work.stores.pending.save_texts({(message(n), "9"): "ERROR: the quokka is locked" for n in (1, 31)})
    ledger = Outbox(shop.db, clock=shop.clock)
    for question, ending in ((QUESTION, "open"), (OTHER, "finished")):
        await ledger.begin(
            samples.reply(message(question[0]), ChannelId("7"), "in_place"), [f"As you said: {QUESTION[2]}"]
        )
        if ending == "finished":
            await ledger.mark_finished(message(question[0]))
    records = shop.work.stores.answers
    said = {
        "answer": QUESTION[2],
        "quotes": [QUESTION[2]],
        "told": QUESTION[2],
        "asked": QUESTION[2],
        "error": QUESTION[2],
    }
    debug = {"gate": {"reason": QUESTION[2]}, "generation": {**said, "quotes_count": 1}, "error": QUESTION[2]}
    await records.save([message(11)], ChannelId("7"), outcome="answered", debug=debug)
    await FeedbackStore(shop.db, clock=shop.clock).vote(message(11), MIA, up=True)
    hers = replace(samples.message(QUESTION[2]), id=message(1), author=samples.author("mia"))
    hers = replace(hers, author=replace(hers.author, id=MIA))
    await samples.save_question(records, [hers], QUESTION[2], outcome="silent")
    await samples.save_question(records, [replace(hers, id=message(4))], "no_answer")


async def test_a_member_is_forgotten_everywhere_but_in_the_archive(shop: Shop) -> None:
    async with shop.open() as work:
        await everything(shop)
        await work.stores.roles.save([MemberRoles(GuildId("1"), member, (RoleId("7"),)) for member in (MIA, TOM)])
        assert {"team-knowledge/index-team.txt", "team-knowledge/topics/spool.txt"} <= set(shop.holding("quokka"))
        done = await work.forget(ForgetRequest(user_id=MIA))

        assert done == ForgetResult(found=True, messages=3, captures=2, topics=(SPOOL,))
        [raw, *others] = [each for each in shop.holding("quokka") if not each.startswith(("intern.db", "search.db"))]
        assert (raw.startswith("team-knowledge/raw/"), others) == (True, [])
        said = [[turn.text for turn in block.turns] for block in work.stores.knowledge.read_topic(SPOOL)]
        assert said == [[ANSWER[2], THANKS[2]], [OTHER[2], ITS_ANSWER[2]]]
        ledger = Outbox(shop.db, clock=shop.clock)
        [dropped, finished] = [await ledger.get(message(n)) for n in (1, 11)]
        assert dropped is not None
        assert finished is not None
        assert (dropped.state, finished.state) == ("dropped", "finished")
        assert [part.text for post in (dropped, finished) for part in post.parts] == ["", ""]
        records = shop.work.stores.answers
        assert await records.find(message(1)) is None
        assert await records.find(message(11)) is not None
        assert await shop.db.read(lambda db: db.rows("select * from feedback")) == []
        assert [each.user_id for each in await work.stores.roles.read_recent()] == [TOM]
        jobs = JobQueue(shop.db)
        left, imports = await jobs.claim(), await jobs.claim()
        assert left is not None
        assert imports is not None
        assert msgspec.json.decode(left.payload, type=Capture).message_ids == (message(2), message(3))
        imported = msgspec.json.decode(imports.payload, type=list[Capture])
        assert [each.message_ids for each in imported] == [(message(2),), (message(11),)]
        [pending] = [await work.stores.pending.get(rid) for rid in await work.stores.pending.list_waiting()]
        assert pending is not None
        assert [each.id for each in pending.request.messages] == [message(32), message(33)]


async def dump_of(shop: Shop) -> AsyncGenerator[tuple[str, str]]:
    """Return all rows of all tables, with their compressed contents."""
    on_server = shop.settings.data.url
    schema = "information_schema.tables where table_schema = current_schema()"
    listed = f"select table_name from {schema}" if on_server else "select name from sqlite_schema where type = 'table'"
    for (table,) in await shop.db.rows(listed):
        for row in await shop.db.rows(f"select * from {table}"):
            yield str(table), " ".join(readable(value) for value in row)


def readable(value: object) -> str:
    if not isinstance(value, bytes):
        return str(value)
    try:
        return zlib.decompress(value).decode()
    except (zlib.error, UnicodeDecodeError):
        return value.decode("utf-8", "replace")


# Finding I1.
@pytest.mark.parametrize(
    "asked", [ForgetRequest(user_id=MIA), ForgetRequest(message_ids=tuple(message(n) for n in (1, 4, 31)), erase=True)]
)
async def test_a_whole_dump_holds_no_word_of_what_is_forgotten(
    server: Schemas | None, tmp_path: Path, asked: ForgetRequest
) -> None:
    with server.emptied() if server else nullcontext("") as schema:
        shop = Shop(tmp_path / "data", server.url(schema) if server else "")
        async with shop.open() as work:
            await everything(shop)
            assert "answers" in {table async for table, _ in dump_of(shop)}
            assert [each async for each in dump_of(shop) if "quokka" in each[1]]
            await work.forget(asked)
            assert [each async for each in dump_of(shop) if "quokka" in each[1]] == []


async def test_erased_it_stands_in_no_byte_of_the_folder_and_all_else_is_as_it_was(shop: Shop) -> None:
    async with shop.open() as work:
        await everything(shop)
        before = [pair.qa_id for pair in work.stores.archive.pairs_after(None)]
        with capture_logs() as logs:
            done = await work.forget(ForgetRequest(user_id=MIA, erase=True))

        assert shop.holding("quokka") == []
        assert done.erased is not None
        assert (done.erased.captures, done.erased.gone, done.erased.messages) == (2, 0, 3)
        [told] = [log for log in logs if log["event"] == "archive_erased"]
        assert (told["captures"], told["messages"]) == (2, 3)
        assert "quokka" not in str(logs)
        for archive in (work.stores.archive, Archive(shop.settings.paths.raw)):
            pairs = list(archive.pairs_after(None))
            assert [pair.qa_id for pair in pairs] == before
            assert [pair.author_ids for pair in pairs] == [(ANN, TOM), (ANN, TOM), (TOM, ANN)]
        # And the archive goes on as ever.
        assert await shop.taught("3", (21, TOM, "And why is that so?"), (22, ANN, "By design of it."))
    async with shop.open() as work:
        assert len(work.stores.archive) == 4


@pytest.mark.rest
@pytest.mark.parametrize("erase", [False, True])
async def test_it_does_not_come_back_by_a_regeneration_nor_when_the_thread_is_read_again(
    shop: Shop, *, erase: bool
) -> None:
    async with shop.open() as work:
        await everything(shop)
        await work.forget(ForgetRequest(user_id=MIA, erase=erase))
        never_seen = (5, MIA, "Is there a quokka in the house?")
        again = await shop.taught("1", QUESTION, ANSWER, THANKS, never_seen, (6, ANN, "No, there is not."))
        assert again is not None
        assert again.message_ids == (message(2), message(3), message(6))
        await work.learning.regenerate()
        assert all(
            "quokka" not in work.stores.knowledge.read_text(name) for name in work.stores.knowledge.topic_names()
        )
    async with shop.open() as work:
        await work.learning.catch_up()
        assert await shop.taught("1", QUESTION) is None
        # What she writes from now on is hers to write.
        now = position_at(shop.clock.now() + timedelta(hours=1)).id
        new = replace(capture("1", QUESTION), message_ids=(now,))
        pair = await work.learning.keep(new)
        assert pair is not None
        assert pair.message_ids[-1] == now


async def test_one_message_is_forgotten_and_the_others_of_its_author_stay(shop: Shop) -> None:
    async with shop.open() as work:
        await shop.taught("1", QUESTION, ANSWER, (3, MIA, "What does the quokka say?"))
        done = await work.forget(ForgetRequest(message_ids=(message(3),)))
        assert (done.found, done.messages, done.captures, done.topics) == (True, 1, 1, (SPOOL,))
        [block] = work.stores.knowledge.read_topic(SPOOL)
        assert [turn.text for turn in block.turns] == [QUESTION[2], ANSWER[2]]
        # Of a thread that is read again, only that message is left out.
        again = await shop.taught("1", QUESTION, ANSWER, (3, MIA, "What does the quokka say?"), THANKS)
        assert again is None or message(3) not in again.message_ids


async def test_a_pair_whose_only_question_is_forgotten_is_removed_and_its_topic_is_listed_no_more(shop: Shop) -> None:
    async with shop.open() as work:
        pair = await shop.taught("1", QUESTION, ANSWER)
        await work.indexing.refresh()
        await work.forget(ForgetRequest(user_id=MIA, erase=True))
        assert work.stores.knowledge.topic_names() == ()
        assert not Catalogue(work.stores.knowledge, "team").entries()
        assert pair is not None
        assert isinstance(work.stores.knowledge.last_decision(pair.qa_id), PairRemoved)


async def test_forgetting_twice_changes_nothing_more(shop: Shop) -> None:
    async with shop.open() as work:
        await everything(shop)
        await work.forget(ForgetRequest(user_id=MIA, erase=True))
        files = {path: path.read_bytes() for path in shop.folder.rglob("*.txt")}
        for asked in (ForgetRequest(user_id=MIA, erase=True), ForgetRequest(message_ids=(message(1),), erase=True)):
            again = await work.forget(asked)
            assert again.found
            assert again.topics == ()
            assert again.erased is not None
            assert again.erased.captures == 0
        assert {path: path.read_bytes() for path in shop.folder.rglob("*.txt")} == files


async def test_what_nobody_knows_is_said_to_be_unknown_and_would_be_left_out(shop: Shop) -> None:
    async with shop.open() as work:
        await shop.taught("2", OTHER, ITS_ANSWER)
        for asked in (ForgetRequest(user_id=MIA), ForgetRequest(message_ids=(message(2),), erase=True)):
            assert not (await work.forget(asked)).found
        assert await shop.taught("1", QUESTION, ANSWER) is None
        assert [type(each) for each in work.stores.knowledge.read_decisions()] == [
            PairFiled,
            MessagesForgotten,
            MessagesForgotten,
        ]


@pytest.mark.parametrize(
    "asked",
    [
        ForgetRequest(),
        ForgetRequest(user_id=MIA, message_ids=(message(1),)),
        ForgetRequest(user_id=UserId("@mia")),
        ForgetRequest(message_ids=(MessageId("1\n2"),)),
    ],
)
async def test_what_can_be_nobody_s_id_is_wrong_use(shop: Shop, asked: ForgetRequest) -> None:
    async with shop.open() as work:
        with pytest.raises(ConfigError):
            await work.handlers.run(FORGET, asked)
        assert list(work.stores.knowledge.read_decisions()) == []


async def test_captures_that_do_not_say_who_wrote_in_them_are_named(shop: Shop) -> None:
    async with shop.open() as work:
        old = [
            work.stores.archive.append(replace(capture(str(n), (n, MIA, "How?"), (n + 1, ANN, "So.")), author_ids=()))
            for n in (1, 3)
        ]
        await shop.taught("3", (3, MIA, "How?"), (4, ANN, "So."), (5, TOM, "Thanks for that."))
        done = await work.forget(ForgetRequest(user_id=MIA))
        # A newer capture tells about the other one.
        assert (done.messages, done.nameless, done.nameless_count) == (1, (old[0].qa_id,), 1)
        by_hand = await work.forget(ForgetRequest(message_ids=(message(1),)))
        assert (by_hand.found, by_hand.captures) == (True, 1)


class Away:
    """A model that is unavailable."""

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        del prompt, given, images
        raise ModelUnavailableError("it is down")


async def test_a_description_that_was_made_of_it_goes_at_once_though_the_model_is_away(shop: Shop) -> None:
    async with shop.open():
        await shop.taught("1", QUESTION, ANSWER, THANKS)
        await shop.taught("2", OTHER, ITS_ANSWER)
        await shop.work.indexing.refresh()
        assert shop.holding("quokka")
    async with shop.open(Away()) as work:
        done = await work.forget(ForgetRequest(user_id=MIA))
        assert done.found
        [entry] = Catalogue(work.stores.knowledge, "team").entries().values()
        assert "quokka" not in entry.description
        assert "quokka" not in shop.settings.paths.team_index_cache.read_text()
    async with shop.open() as work:
        refreshed = await work.indexing.refresh()
        assert refreshed.changed == ("team:spool.txt",)


@pytest.mark.rest
@pytest.mark.parametrize("back", [1, 3600])
async def test_a_description_that_was_made_of_it_goes_though_the_clock_went_back(shop: Shop, back: int) -> None:
    async with shop.open():
        await shop.taught("1", QUESTION, ANSWER, THANKS)
        await shop.taught("2", OTHER, ITS_ANSWER)
        await shop.work.indexing.refresh()
    shop.clock.turn(seconds=-back)
    async with shop.open(Away()) as work:
        await work.forget(ForgetRequest(user_id=MIA, erase=True))
        assert shop.holding("quokka") == []


class Pondering:
    """Files all in one topic, but waits with the second pair until it may go on."""

    def __init__(self) -> None:
        self.stalled, self.may_go_on = Event(), Event()
        self._rules = ScriptedModel()
        self._rules.always(CLASSIFY, ClassifyOut(skip=False, topic_name=SPOOL))
        self._rules.always(INTEGRATE, IntegrateOut(skip=False, remove_ids=()))
        self._offline = OfflineModel(collect_offline_rules())

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        if prompt.name == INTEGRATE.name:
            self.stalled.set()
            await self.may_go_on.wait()
        rules = self._rules if prompt.name in (CLASSIFY.name, INTEGRATE.name) else self._offline
        return await rules.ask(prompt, given, images=images)


async def until(met: Callable[[], bool]) -> None:
    """Wait for threads, and leave them the interpreter in between: constant polling would keep them from it."""
    while not met():  # noqa: ASYNC110 (a thread sets no events)
        await sleep(0.01)


async def test_what_is_forgotten_while_the_library_is_rebuilt_is_nowhere_once_that_ends(shop: Shop) -> None:
    async with shop.open():
        await shop.taught("1", QUESTION, ANSWER, THANKS)
        await shop.taught("2", OTHER, ITS_ANSWER)
        await shop.work.indexing.refresh()
    model = Pondering()
    async with shop.open(model) as work:
        jobs = work.stores.jobs
        ids = [await jobs.submit(REGENERATE, None)]
        async with create_task_group() as tg:
            tg.start_soon(do_jobs_forever, jobs, work.handlers)
            await model.stalled.wait()
            # It is archived, and then waits to be filed; requested sooner, it might be filed before the rebuild begins.
            third = capture("3", (21, MIA, "And a quokka at sea?"), (22, ANN, "No."))
            ids += [await jobs.submit(CAPTURE, third)]
            await until(lambda: len(work.stores.archive) == 3)
            await until(lambda: bool(work.stores.knowledge.read_journal()))
            ids += [await jobs.submit(FORGET, ForgetRequest(user_id=MIA, erase=True))]
            await until(lambda: work.stores.knowledge.is_withdrawn(message(21)))
            assert [await jobs.result(each) for each in ids] == [None] * 3

            model.may_go_on.set()
            while None in [await jobs.result(each) for each in ids]:
                await checkpoint()
            tg.cancel_scope.cancel()
        said = [[turn.text for turn in block.turns] for block in work.stores.knowledge.read_topic(SPOOL)]
        assert said == [[ANSWER[2], THANKS[2]], [OTHER[2], ITS_ANSWER[2]]]
        assert shop.holding("quokka") == []


async def test_what_is_forgotten_is_in_no_draft_of_a_rebuild_that_was_interrupted(
    server: Schemas | None, tmp_path: Path
) -> None:
    with server.emptied() if server else nullcontext("") as schema:
        shop = Shop(tmp_path / "data", server.url(schema) if server else "")
        async with shop.open():
            await shop.taught("1", QUESTION, ANSWER, THANKS)
            await shop.taught("2", OTHER, ITS_ANSWER)
        model = Pondering()
        async with shop.open(model) as work:
            async with create_task_group() as tg:
                tg.start_soon(work.learning.regenerate)
                await model.stalled.wait()
                tg.cancel_scope.cancel()
            draft = KnowledgeDraft(work.stores.knowledge)
            assert "quokka" in draft.read_text(SPOOL)

            await work.forget(ForgetRequest(user_id=MIA))
            written = "select count(*) from blocks where community = :community and generation = ?"
            assert [await shop.db.number(written, (generation,)) for generation in (0, 1)] == [2, 1]
            assert draft.read_text(SPOOL).count("--- QA ---") == 1
            assert "quokka" not in draft.read_text(SPOOL) + work.stores.knowledge.read_text(SPOOL)
            assert not any("quokka" in line for line in work.stores.knowledge.read_journal())

            model.may_go_on.set()
            assert (await work.learning.regenerate()).topics == 1
            assert "quokka" not in work.stores.knowledge.read_text(SPOOL)


async def test_a_capture_that_is_archived_while_it_is_forgotten_does_not_slip_through(shop: Shop) -> None:
    async with shop.open() as work:
        await shop.taught("1", QUESTION, ANSWER)
        pair = await work.learning.keep(capture("1", QUESTION, ANSWER, THANKS, LATER))
        assert pair is not None
        await work.forget(ForgetRequest(user_id=MIA))
        # It was handed to the filer before.
        await work.learning.file(FilingDecision(pair=pair, choice=TopicChoice(name=SPOOL)))
        assert all(
            "quokka" not in work.stores.knowledge.read_text(name) for name in work.stores.knowledge.topic_names()
        )


async def test_the_newest_id_is_not_given_again_after_its_pair_was_erased(shop: Shop) -> None:
    async with shop.open() as work:
        first = await shop.taught("1", QUESTION, ANSWER)
        await work.forget(ForgetRequest(message_ids=(message(1), message(2)), erase=True))
        assert len(work.stores.archive) == 0
        assert list(shop.settings.paths.raw.iterdir()) == []
    shop.clock.turn(days=-1)
    async with shop.open() as work:
        second = await work.learning.keep(capture("2", OTHER, ITS_ANSWER))
        assert first is not None
        assert second is not None
        assert second.qa_id > first.qa_id
        assert [pair.qa_id for pair in await work.learning.read_pairs_after(work.stores.find_last_decided())] == [
            second.qa_id
        ]


async def test_questions_that_nobody_could_answer_are_forgotten_with_their_member(tmp_path: Path) -> None:
    asked = [
        ChatMessage(
            id=message(n),
            guild_id=None,
            channel_id=ChannelId("200"),
            author=Author(id=member, name="m", type="community_user"),
            text=f"Who is {member}?",
            at=CLOCK.now(),
        )
        for n, member in ((1, MIA), (2, TOM), (3, MIA))
    ]
    shop = Shop(tmp_path)
    async with shop.open() as work:
        for each in asked:
            await samples.save_question(work.stores.answers, [each], "no_sources")
        assert (await work.forget(ForgetRequest(user_id=MIA))).messages == 2
        assert [each.text for each in await work.stores.answers.list_open()] == [f"Who is {TOM}?"]
        await work.learning.withdraw([message(2)])
        assert await work.stores.answers.list_open() == ()
