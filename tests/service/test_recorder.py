"""The flight recorder of a bot at work stores enough to replay it, no secrets, and no forgotten messages."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from anyio import create_task_group, fail_after
from anyio.lowlevel import checkpoint
from msgspec.structs import replace
from structlog.testing import capture_logs

from intern.answering.answerer import Answerer
from intern.answering.prompts import AnsweringOptions
from intern.core.captures import CapturedPair
from intern.core.decisions import PairFiled
from intern.core.errors import ConfigError
from intern.core.flow import Reply
from intern.core.ids import MessageId, SourceId, UserId
from intern.core.knowledge import IndexEntry, LearnedMatches
from intern.core.messages import AnswerResult, Conversation, Message, RequestContext
from intern.learning.forgetting import ForgetRequest
from intern.models.prompt import OfflineModel
from intern.runtime.bot import open_sandbox
from intern.service.intern import Intern
from intern.service.job_kinds import FORGET
from intern.service.models import collect_offline_rules
from intern.service.opening import open_intern
from intern.settings.settings import Settings
from intern.sources.refresh import RefreshReport
from intern.stores.options import RecorderOptions
from tests.answering.shelf import Shelf
from tests.worlds.bot import Watching, settings_in
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import EndpointDouble, endpoint_double

pytestmark = pytest.mark.anyio

QUESTION = "@intern which port does the relay listen on?"


class Bot:
    """A bot with an endpoint, at work in a folder; each `open_intern` reads the folder afterwards."""

    def __init__(self, folder: Path, endpoint: EndpointDouble) -> None:
        self.endpoint = endpoint
        self.settings = settings_in(folder, llm={"base_url": endpoint.base_url, "model": "m", "max_retries": 0})
        self.sandbox, self.seen = Sandbox(HandClock(), team={"mira"}), Watching()
        self.places = [self.sandbox.add_channel(f"help-{n}") for n in range(3)]

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        with fail_after(30):
            async with open_sandbox(self.settings, self.sandbox, events=self.seen, clock=HandClock()):
                await self.seen.one_of(RefreshReport)
                yield

    @asynccontextmanager
    async def looked_into(self, settings: Settings | None = None) -> AsyncGenerator[Intern]:
        async with open_intern(settings or self.settings, clock=HandClock()) as intern:
            yield intern


@pytest.fixture
def bot(tmp_path: Path) -> Any:
    with endpoint_double() as endpoint:
        yield Bot(tmp_path / "data", endpoint)


async def test_an_answer_is_recorded_and_replays_to_the_byte_without_a_call(bot: Bot) -> None:
    async with bot.at_work():
        asked = bot.sandbox.say("bob", QUESTION, channel_id=bot.places[0])
        await bot.seen.one_of(Reply)
    calls = len(bot.endpoint.requests)
    async with bot.looked_into() as intern:
        (why,) = await intern.explain(asked.id)
        (again,) = await intern.replay(asked.id, offline=True)
    assert [line.text for line in why.heard] == [QUESTION]
    assert [said.prompt for said in why.said] == ["decide", "confirm"]
    assert "port 7480" in why.said[0].shown
    assert why.hits is not None
    assert why.hits[0].source_id == "kb:ports.md"
    assert why.reply is not None
    assert (again.is_same, again.changed, again.unfit, again.calls) == (True, (), "", 0)
    assert again.now == why.reply
    assert len(bot.endpoint.requests) == calls


async def test_a_capture_and_a_document_are_recorded_by_call_and_replay(bot: Bot) -> None:
    async with bot.at_work():
        asked = bot.sandbox.say("bob", "which port does the relay listen on?", channel_id=bot.places[0])
        bot.sandbox.say(
            "mira", "It is 7480, unless `listen` says otherwise.", reply_to=asked.id, channel_id=bot.places[0]
        )
        pair = await bot.seen.one_of(CapturedPair)
        await bot.seen.one_of(PairFiled)
    async with bot.looked_into() as intern:
        (classified,) = await intern.explain(pair.qa_id)
        assert classified.kind == "classify"
        assert "7480" in classified.said[0].shown
        assert [each.kind for each in await intern.explain(pair.conversation_id)] == ["extract"]
        (described,) = await intern.explain("kb:ports.md")
        assert described.kind == "summarize_source"
        for each in (*await intern.replay(pair.qa_id, offline=True), *await intern.replay("kb:ports.md", offline=True)):
            assert each.is_same, each


async def test_secrets_are_masked_before_they_are_recorded_so_it_can_be_replayed(bot: Bot) -> None:
    secret = "ghp_" + "a1B2" * 10
    async with bot.at_work():
        asked = bot.sandbox.say("bob", f"@intern which port? my token is {secret}", channel_id=bot.places[0])
        await bot.seen.one_of(AnswerResult)
    async with bot.looked_into() as intern:
        (why,) = await intern.explain(asked.id)
        (again,) = await intern.replay(asked.id, offline=True)
    assert (why.unfit, again.unfit, again.is_same) == ("", "", True)
    assert "[masked github_token]" in why.heard[0].text
    assert secret not in words_of(bot.settings)


# Finding A5.
@pytest.mark.parametrize("context", [False, True])
async def test_words_of_others_are_recorded_only_if_the_operator_wants_them(bot: Bot, *, context: bool) -> None:
    bot.settings = replace(bot.settings, recorder=RecorderOptions(context=context))
    async with bot.at_work():
        said = bot.sandbox.say("ann", "Mine listens to zebrafish.", channel_id=bot.places[0])
        asked = bot.sandbox.say("bob", QUESTION, reply_to=said.id, channel_id=bot.places[0])
        await bot.seen.one_of(AnswerResult)
    async with bot.looked_into() as intern:
        (why,) = await intern.explain(asked.id)
        (again,) = await intern.replay(asked.id, offline=True)
    assert any("zebrafish" in each.user for each in bot.endpoint.requests), "the model was shown it"
    assert ("zebrafish" in words_of(bot.settings)) == context
    assert [line.speaker for line in why.heard] == ["member", "asker"]
    assert why.heard[0].text == (said.text if context else "(not kept: recorder.context is off)")
    assert (again.is_same, again.changed, again.unfit) == (True, (), "")


async def test_secrets_in_descriptions_and_addresses_are_masked_too(bot: Bot) -> None:
    secret = "ghp_" + "a1B2" * 10
    known = Shelf({"kb:ports.md": "# Ports\n\nOurs is 7480."}, urls={"kb:ports.md": f"https://wiki.example/{secret}"})
    known.knows = LearnedMatches(nuggets=(IndexEntry(SourceId("nugget:1"), f"The token is {secret}"),))
    known.order = [SourceId("kb:ports.md")]
    async with bot.looked_into() as intern:
        recorder = (await intern.acquire_writer()).stores.recorder
        answers = recorder.wrap_answerer(
            Answerer(OfflineModel(collect_offline_rules()), known, AnsweringOptions()), "m"
        )
        asked = Message(role="user", text="which ports?", author_id=UserId("5"), id=MessageId("7"))
        await answers.answer(Conversation((asked,)), RequestContext(message_id=asked.id), addressed=True)
        await recorder.store()
    assert "which ports?" in words_of(bot.settings)
    assert secret not in words_of(bot.settings)


async def test_what_a_member_wrote_is_in_no_recording_once_they_are_forgotten(bot: Bot) -> None:
    """Record a member's question, its capture, and another member's answer that was shown the capture."""
    async with bot.at_work():
        place, other, elsewhere = bot.places
        plain = bot.sandbox.say("ann", QUESTION, channel_id=elsewhere)
        await bot.seen.one_of(Reply)
        asked = bot.sandbox.say("bob", f"{QUESTION} It feeds my zebrafish.", channel_id=place)
        await bot.seen.one_of(Reply, after=1)
        bot.sandbox.say("mira", "Ours listens on 7481.", reply_to=asked.id, channel_id=place)
        await bot.seen.one_of(PairFiled)
        await bot.seen.one_of(RefreshReport, after=1)
        later = bot.sandbox.say("ann", "@intern on which port does the relay listen?", channel_id=other)
        await bot.seen.one_of(AnswerResult, after=2)
    async with bot.looked_into() as intern:
        (why,) = await intern.explain(later.id)
        assert "zebrafish" in why.said[0].shown
        assert (await intern.run_job(FORGET, ForgetRequest(user_id=asked.author.id, erase=True))).found
        for each in (asked.id, later.id):
            with pytest.raises(ConfigError, match="nothing is recorded of"):
                await intern.explain(each)
        assert await intern.explain(plain.id)  # it drew on documents alone
    assert "zebrafish" not in words_of(bot.settings)
    data = bot.settings.paths.data
    assert [path for path in data.rglob("*") if path.is_file() and b"zebrafish" in path.read_bytes()] == []


@pytest.mark.rest
async def test_a_deleted_message_takes_its_recording_with_it(bot: Bot) -> None:
    async with bot.at_work():
        asked = bot.sandbox.say("bob", QUESTION, channel_id=bot.places[0])
        await bot.seen.one_of(Reply)
        bot.sandbox.delete(bot.places[0], asked.id)
    async with bot.looked_into() as intern:
        with pytest.raises(ConfigError, match="nothing is recorded of"):
            await intern.explain(asked.id)


async def test_a_withdrawn_message_is_in_no_recording_of_its_capture(bot: Bot) -> None:
    async with bot.at_work():
        place = bot.places[0]
        asked = bot.sandbox.say("bob", "which port feeds my zebrafish?", channel_id=place)
        bot.sandbox.say("mira", "It is 7480, unless `listen` says otherwise.", reply_to=asked.id, channel_id=place)
        await bot.seen.one_of(PairFiled)
    assert "zebrafish" in words_of(bot.settings)
    async with bot.looked_into() as intern:
        await (await intern.acquire_writer()).learning.withdraw([asked.id])
    assert "zebrafish" not in words_of(bot.settings)


async def test_an_end_while_recordings_are_stored_loses_none(bot: Bot) -> None:
    ends = range(8)
    async with bot.looked_into() as intern:
        recorder = (await intern.acquire_writer()).stores.recorder
        answers = recorder.wrap_answerer(
            Answerer(OfflineModel(collect_offline_rules()), Shelf({}), AnsweringOptions()), "m"
        )
        for steps in ends:
            asked = Message(role="user", text=f"port {steps}?", author_id=UserId("5"), id=MessageId(str(steps + 1)))
            await answers.answer(Conversation((asked,)), RequestContext(message_id=asked.id))
            with fail_after(5):
                async with create_task_group() as tg:
                    tg.start_soon(recorder.store)
                    for _ in range(steps):
                        await checkpoint()
                    tg.cancel_scope.cancel()
    assert [n for n in ends if f"port {n}?" not in words_of(bot.settings)] == []


class Meanwhile(Shelf):
    """Knowledge that triggers an event while it is read."""

    def __init__(self, happens: Callable[[], Awaitable[object]]) -> None:
        super().__init__({"kb:ports.md": "# Ports\n\nOurs is 7480."})
        self._happens = happens

    async def entries(self) -> Sequence[IndexEntry]:
        await self._happens()
        return await super().entries()


@pytest.mark.rest
@pytest.mark.parametrize("what", ["it is forgotten", "it is deleted", "nothing"])
async def test_words_that_go_while_they_are_answered_are_not_recorded(bot: Bot, what: str) -> None:
    asked = Message(role="user", text="zebrafish?", author_id=UserId("5"), id=MessageId("7"))
    async with bot.looked_into() as intern:
        recorder = (await intern.acquire_writer()).stores.recorder

        async def happen() -> None:
            if what == "it is forgotten":
                await recorder.forget([MessageId("7")])
            elif what == "it is deleted":
                recorder.drop([MessageId("7")])
                await recorder.store()

        model = OfflineModel(collect_offline_rules())
        answers = recorder.wrap_answerer(Answerer(model, Meanwhile(happen), AnsweringOptions()), "m")
        await answers.answer(Conversation((asked,)), RequestContext(message_id=asked.id))
        await recorder.store()
    assert ("zebrafish" in words_of(bot.settings)) == (what == "nothing")


@pytest.mark.rest
async def test_nothing_is_recorded_where_the_operator_wants_that(bot: Bot) -> None:
    bot.settings = replace(bot.settings, recorder=replace(bot.settings.recorder, enabled=False))
    async with bot.at_work():
        bot.sandbox.say("bob", QUESTION, channel_id=bot.places[0])
        await bot.seen.one_of(Reply)
    async with bot.looked_into() as intern:
        assert await intern.explain() == ()


async def test_a_recorder_that_fails_costs_no_answer_and_says_so_once(bot: Bot) -> None:
    with capture_logs() as logs:
        async with bot.at_work():
            db: Any = apsw.Connection(str(bot.settings.paths.database))
            with db:
                db.execute("create trigger full before insert on recordings begin select raise(abort, 'full'); end")
            for n in range(2):
                bot.sandbox.say("bob", QUESTION, channel_id=bot.places[n])
                await bot.seen.one_of(Reply, after=n)
    assert [each["event"] for each in logs].count("recordings_not_kept") == 1


def words_of(settings: Settings) -> str:
    """Return all texts in the tables of the recorder, unpacked."""
    db: Any = apsw.Connection(str(settings.paths.database))
    try:
        packed = db.execute("select recording from recordings union all select text from recorded_texts").fetchall()
        plain = db.execute("select about from recordings").fetchall()
    finally:
        db.close()
    return "\n".join([*(zlib.decompress(data).decode() for (data,) in packed), str(plain)])
