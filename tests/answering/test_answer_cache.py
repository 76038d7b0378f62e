"""A question that is asked again costs no call, as long as its cached answer is valid."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

import msgspec
import pytest
from anyio import fail_after
from msgspec import structs
from structlog.contextvars import bound_contextvars

from intern.answering.model_cache import CachingModel, make_key_function, normalise_question
from intern.answering.prompts import ANSWER, GATE, AnswerDraft, AnswerIn, GateDecision, GateIn, ShownSource
from intern.core.captures import CapturedPair
from intern.core.errors import KnowledgeError
from intern.core.flow import Reply
from intern.core.ids import MessageId, SourceId, UserId
from intern.core.messages import ChatMessage, Image
from intern.models.options import LlmOptions
from intern.models.prompt import InT, OutT, Prompt
from intern.models.templates import PromptTemplates
from intern.runtime.bot import open_sandbox
from intern.sources.descriptions import SUMMARIZE_TOPIC
from intern.sources.refresh import RefreshReport
from intern.stores.database import Transaction
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.feedback import FeedbackStore
from intern.stores.tables.reply_cache import KEPT_REPLIES, MAX_AGE_REPLIES, ReplyStore
from tests.worlds.bot import Watching, settings_in
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import endpoint_double

pytestmark = pytest.mark.anyio

T = TypeVar("T")

OPTIONS = LlmOptions(base_url="https://models.example/v1", model="m")
PICTURE = Image(media_type="image/png", data=b"x")
ALICE = UserId("5")
ANSWERING = ("gate", "select", "answer", "verify", "decide", "confirm")


class Oracle:
    """Replies with its prompt and the time, so that a test notices a stale reply."""

    def __init__(self) -> None:
        self.calls = 0

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        del images
        self.calls += 1
        if prompt.gives is GateDecision:
            reply: Any = GateDecision(reason=str(self.calls), kind="question")
        elif prompt.gives is AnswerDraft:
            reply = AnswerDraft(answer=str(self.calls), citations=())
        else:
            reply = msgspec.convert({"description": str(self.calls)}, prompt.gives)
        return cast("OutT", reply)


class Disk(SqliteDatabase):
    """A database whose disk may be full."""

    is_full = False

    async def write(self, work: Callable[[Transaction], T]) -> T:
        if self.is_full:
            raise KnowledgeError("no space is left")
        return await super().write(work)


class World:
    def __init__(self, db: Disk) -> None:
        self.db = db
        self.clock = HandClock()
        self.store = ReplyStore(db, clock=self.clock)
        self.oracle = Oracle()
        self.options = OPTIONS
        self.templates = PromptTemplates()

    async def asked(
        self,
        question: str = "How do I start?",
        text: str = "Run it.",
        *,
        history: str = "",
        images: Sequence[Image] = (),
        message_id: str = "7",
        limit: int = 100,
    ) -> str:
        """Ask, and return the number of the call in the answer."""
        source = ShownSource(source_id=SourceId("kb:a.md"), title="A", text=text)
        given = AnswerIn(max_answer_chars=limit, sources=(source,), history=history, question=question, query="")
        model = CachingModel(self.oracle, self.store, make_key_function(self.options, self.templates))
        with bound_contextvars(message_id=message_id), fail_after(5):
            return (await model.ask(ANSWER, given, images=images)).answer or ""

    @property
    def feedback(self) -> FeedbackStore:
        return FeedbackStore(self.db, clock=self.clock)


@pytest.fixture
async def world(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[World]:
    async with await Disk.open(tmp_path / "intern.db") as db:
        yield World(db)


async def test_the_same_question_is_asked_once(world: World) -> None:
    assert [await world.asked(), await world.asked("how do  I\nstart?"), await world.asked(message_id="8")] == ["1"] * 3
    assert world.oracle.calls == 1


@pytest.mark.parametrize("change", ["forget", "drop", "vote"])
async def test_a_reply_is_not_kept_if_replies_were_dropped_while_it_was_made(world: World, change: str) -> None:
    class Interrupted(Oracle):
        async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
            reply = await super().ask(prompt, given, images=images)
            if self.calls == 1:
                match change:
                    case "forget":
                        await world.store.forget([MessageId("3")])
                    case "drop":
                        await world.store.drop([MessageId("7")])
                    case _:
                        await world.feedback.vote(MessageId("7"), ALICE, up=False)
            return reply

    world.oracle = Interrupted()
    assert [await world.asked(), await world.asked(), await world.asked()] == ["1", "2", "2"]


async def test_nothing_is_repeated_after_a_failed_drop_until_one_succeeds(world: World) -> None:
    await world.asked(message_id="7")
    await world.asked("How do I stop?", message_id="8")
    world.db.is_full = True
    with pytest.raises(KnowledgeError):
        await world.store.drop([MessageId("7")])
    assert [await world.asked("How do I stop?"), await world.asked("How do I stop?")] == ["3", "4"]
    world.db.is_full = False
    assert [await world.asked(), await world.asked("How do I stop?")] == ["5", "2"]


async def test_another_question_passage_setting_model_or_prompt_is_another_request(
    world: World, tmp_path: Path
) -> None:
    await world.asked()
    assert await world.asked("How do I stop?") == "2"
    assert await world.asked(text="Run it twice.") == "3"
    assert await world.asked(limit=50) == "4"
    for n, options in enumerate(
        (
            structs.replace(OPTIONS, model="other"),
            structs.replace(OPTIONS, temperature=0.5),
            structs.replace(OPTIONS, base_url="https://elsewhere.example/v1"),
        ),
        5,
    ):
        world.options = options
        assert await world.asked() == str(n)
    world.options = OPTIONS
    shipped = PromptTemplates().read_source(ANSWER)
    (tmp_path / "answer.md.j2").write_text(shipped.replace("{% block system %}", "{% block system %}Be brief."))
    world.templates = PromptTemplates(tmp_path)
    assert await world.asked() == "8"
    world.templates = PromptTemplates()
    assert await world.asked() == "1"


async def test_a_history_or_an_image_is_always_asked_about(world: World) -> None:
    assert [await world.asked(history="a: hi"), await world.asked(history="a: hi")] == ["1", "2"]
    assert [await world.asked(images=[PICTURE]), await world.asked(images=[PICTURE])] == ["3", "4"]


async def test_only_what_belongs_to_a_question_is_kept(world: World) -> None:
    model = CachingModel(world.oracle, world.store, make_key_function(OPTIONS, world.templates))
    topic = SUMMARIZE_TOPIC.takes(**dict.fromkeys(SUMMARIZE_TOPIC.takes.__struct_fields__, "x"))
    assert await model.ask(SUMMARIZE_TOPIC, topic) != await model.ask(SUMMARIZE_TOPIC, topic)
    gate = GateIn(question="How?", history="", addressed=False)
    assert await model.ask(GATE, gate) == await model.ask(GATE, gate)
    assert await model.ask(GATE, gate) != await model.ask(GATE, structs.replace(gate, addressed=True))


async def test_an_answer_that_somebody_found_unhelpful_is_not_repeated(world: World) -> None:
    await world.asked(message_id="7")
    await world.asked(message_id="8")
    await world.feedback.vote(MessageId("8"), ALICE, up=True)
    assert await world.asked(message_id="9") == "1"
    await world.feedback.vote(MessageId("8"), ALICE, up=False)
    assert await world.asked(message_id="9") == "2"


@pytest.mark.rest
async def test_replies_go_with_age_and_make_room(world: World) -> None:
    await world.asked()
    world.clock.turn(seconds=(MAX_AGE_REPLIES + timedelta(seconds=1)).total_seconds())
    assert await world.asked() == "2"
    for n in range(KEPT_REPLIES):
        await world.store.save(f"key {n}", b"{}", None, drops=0)
    assert await world.db.read(lambda db: db.row("select count(*) from model_replies")) == (KEPT_REPLIES,)


async def test_a_reply_that_cannot_be_read_is_asked_for_again(world: World) -> None:
    await world.asked()
    await world.db.write(lambda db: db.run("update model_replies set reply = ?", (b"{",)))
    assert [await world.asked(), await world.asked()] == ["2", "2"]


@pytest.mark.rest
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_changes_no_reply_is_stale(world: World, seed: int) -> None:
    """A reply is valid if the same request got it, and no vote was against a question that it was used for."""
    random = Random(seed)
    good: dict[tuple[object, ...], str] = {}
    used: dict[str, set[tuple[object, ...]]] = {}
    repeated = 0
    for n in range(700):
        message_id = MessageId(str(1_000 + n))
        older = MessageId(str(1_000 + random.randrange(n + 1)))
        match random.randrange(12):
            case 0:
                await world.feedback.vote(older, ALICE, up=False)
            case 1:
                await world.store.drop([older])
            case 2 if not random.randrange(5):
                await world.store.forget([older])
                good.clear()
                used.pop(older, None)
                continue
            case 3:
                world.options = structs.replace(OPTIONS, temperature=random.choice([0.0, 0.1]))
                continue
            case _:
                question, text = random.choice("ABC"), random.choice("xyz")
                request: tuple[object, ...] = (question, text, repr(world.options))
                told = await world.asked(question, text, message_id=message_id)
                if request in good:
                    assert told == good[request]
                    repeated += 1
                else:
                    assert told == str(world.oracle.calls)
                good[request] = told
                used.setdefault(message_id, set()).add(request)
                continue
        for each in used.get(older, ()):
            good.pop(each, None)
    assert repeated > 100


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("How do I start?", " how do\tI start??! ", True),
        ("Tell me.", "tell me!", True),
        ("You use Docker?", "You use Docker.", False),
        ("Is it US?", "Is it us?", False),
        ("", "  ", True),
    ],
)
def test_what_makes_no_other_question(one: str, other: str, same: bool) -> None:  # noqa: FBT001
    assert (normalise_question(one) == normalise_question(other)) is same


@pytest.mark.rest
async def test_the_bot_asks_once_and_again_where_the_team_says_otherwise(tmp_path: Path) -> None:
    sandbox, seen = Sandbox(HandClock(), team={"mira"}), Watching()
    places = [sandbox.add_channel(f"help-{n}") for n in range(3)]
    with endpoint_double() as endpoint, fail_after(30):
        settings = settings_in(tmp_path, llm={"base_url": endpoint.base_url, "model": "m", "max_retries": 0})

        async def ask(n: int) -> tuple[ChatMessage, int]:
            """Ask the question, and return the number of calls."""
            before = sum(len(endpoint.asked(each)) for each in ANSWERING)
            asked = sandbox.say("bob", "@intern which port does the relay listen on?", channel_id=places[n])
            assert not (await seen.one_of(Reply, after=n)).notice
            return asked, sum(len(endpoint.asked(each)) for each in ANSWERING) - before

        async with open_sandbox(settings, sandbox, events=seen, clock=HandClock()):
            await seen.one_of(RefreshReport)
            asked, calls = await ask(0)
            assert calls
            assert (await ask(1))[1] == 0
            sandbox.say("mira", "No, it is 7481 by now.", reply_to=asked.id, channel_id=places[0])
            await seen.one_of(CapturedPair)
            assert (await ask(2))[1]
