from __future__ import annotations

import io
import json
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from anyio import (
    Event,
    create_memory_object_stream,
    create_task_group,
    fail_after,
    wait_all_tasks_blocked,
)
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.actors.interaction_worker import ANSWERS_AT_ONCE, TRIES, InteractionWorker
from intern.answering.interaction_handler import InteractionReply, make_text_reply
from intern.chat.phrases import get_phrases
from intern.core.errors import (
    ChatError,
    ChatRefusedError,
    ChatUnavailableError,
    ChatUnknownOutcomeError,
    KnowledgeError,
)
from intern.core.flow import (
    AskCommand,
    ButtonPressed,
    CaptureRequest,
    Interaction,
    InteractionTicket,
    LearnCommand,
    UnknownInteraction,
)
from intern.core.ids import MessageId
from intern.core.log import configure_logging
from intern.core.messages import Button
from intern.core.text.secret_values import Secret
from tests.worlds.actors import NO_PAUSES
from tests.worlds.samples import CHANNEL, GUILD, author, capture_request, message


class Desk:
    """Echoes the question; all but `quick` ones may wait for a gate; fails, or answers otherwise, as a test wants."""

    def __init__(self) -> None:
        self.gate: Event | None = None
        self.quick: set[str] = set()
        self.handled: list[Interaction] = []
        self.answers: dict[type[Interaction], InteractionReply | Exception] = {}

    async def handle(self, interaction: Interaction) -> InteractionReply:
        self.handled.append(interaction)
        if self.gate and not (isinstance(interaction, AskCommand) and interaction.question in self.quick):
            await self.gate.wait()
        answer = self.answers.get(type(interaction))
        if isinstance(answer, Exception):
            raise answer
        return answer or make_text_reply(
            f"echo: {interaction.question}" if isinstance(interaction, AskCommand) else "done"
        )


class Responses:
    """Records all replies, in order; a call fails as a test wants."""

    def __init__(self, desk: Desk, registry: Registry) -> None:
        self._desk = desk
        self.register = registry.register
        self.calls: list[tuple[str, str, str]] = []
        self.buttons: list[Sequence[Button]] = []
        self.failures: defaultdict[str, deque[ChatError]] = defaultdict(deque)
        self.handled_at_defer: list[int] = []

    async def defer(self, ticket: InteractionTicket, *, update: bool = False) -> None:
        self.handled_at_defer.append(len(self._desk.handled))
        self._call("defer", ticket, "update" if update else "ephemeral")

    async def reply(self, ticket: InteractionTicket, text: str, *, buttons: Sequence[Button] = ()) -> None:
        self._call("reply", ticket, text)
        self.buttons.append(buttons)

    async def follow_up(self, ticket: InteractionTicket, text: str, *, buttons: Sequence[Button] = ()) -> None:
        self._call("follow_up", ticket, text)
        self.buttons.append(buttons)

    def _call(self, name: str, ticket: InteractionTicket, text: str) -> None:
        self.calls.append((name, ticket.id, text))
        if self.failures[name]:
            raise self.failures[name].popleft()


class Registry:
    def __init__(self, *failures: ChatError) -> None:
        self.failures = deque(failures)
        self.tries = 0
        self.gate: Event | None = None

    async def register(self) -> None:
        self.tries += 1
        if self.gate:
            await self.gate.wait()
        if self.failures:
            raise self.failures.popleft()


class Room:
    """The actor at work; the test has its two stream ends."""

    def __init__(self, registry: Registry | None = None) -> None:
        self.desk = Desk()
        self.registry = registry or Registry()
        self.responses = Responses(self.desk, self.registry)
        self.inbox: MemoryObjectSendStream[Interaction]
        self.captured: MemoryObjectReceiveStream[CaptureRequest]
        self.stop: Callable[[], None]

    @asynccontextmanager
    async def open(self, captures: int = 10) -> AsyncGenerator[None]:
        self.inbox, inbox = create_memory_object_stream[Interaction](100)
        to_capture, self.captured = create_memory_object_stream[CaptureRequest](captures)
        with fail_after(5), self.inbox, self.captured:
            async with create_task_group() as tg:
                self.stop = tg.cancel_scope.cancel
                tg.start_soon(
                    InteractionWorker(
                        handle=self.desk.handle, teaches=lambda _: None, responses=self.responses, backoff=NO_PAUSES
                    ).run,
                    inbox,
                    to_capture,
                )
                yield
                self.inbox.close()

    def said_to(self, ticket_id: str) -> list[tuple[str, str]]:
        return [(name, text) for name, to, text in self.responses.calls if to == ticket_id]


def ticket(n: int) -> InteractionTicket:
    return InteractionTicket(id=str(n), token=Secret("t"), application_id="1", guild_id=GUILD, channel_id=CHANNEL)


def ask(question: str = "How?", n: int = 1) -> AskCommand:
    return AskCommand(interaction=ticket(n), user=author(), question=question)


def press(n: int = 1) -> ButtonPressed:
    return ButtonPressed(interaction=ticket(n), user=author(), button="intern:up:5", message_id=MessageId("5"))


def learn(n: int = 1) -> LearnCommand:
    return LearnCommand(interaction=ticket(n), user=author("mira", "team_member"), on=message("Like this."))


async def test_discord_hears_of_each_before_anything_is_done_and_while_the_model_takes_its_time() -> None:
    room = Room()
    room.desk.gate = Event()
    async with room.open():
        for n in range(ANSWERS_AT_ONCE):
            room.inbox.send_nowait(ask("slow", n))
        await wait_all_tasks_blocked()
        assert [name for name, _, _ in room.responses.calls] == ["defer"] * ANSWERS_AT_ONCE
        room.inbox.send_nowait(ask("one more", 50))
        room.inbox.send_nowait(press(51))
        room.inbox.send_nowait(ask("und noch eine Frage", 52))
        await wait_all_tasks_blocked()
        assert room.said_to("50") == [("defer", "ephemeral"), ("reply", get_phrases().busy)]
        assert room.said_to("52") == [("defer", "ephemeral"), ("reply", get_phrases("de").busy)]
        assert room.said_to("51") == [("defer", "update")]
        room.desk.gate.set()
    for n in range(ANSWERS_AT_ONCE):
        assert room.said_to(str(n)) == [("defer", "ephemeral"), ("reply", "echo: slow")]


async def test_a_question_that_is_done_makes_room_for_another() -> None:
    room = Room()
    room.desk.answers[AskCommand] = KnowledgeError("the disk is gone")
    async with room.open():
        for n in range(ANSWERS_AT_ONCE + 1):
            room.inbox.send_nowait(ask(n=n))
            await wait_all_tasks_blocked()
    assert room.said_to(str(ANSWERS_AT_ONCE))[1:] == [("reply", get_phrases().failed)]


async def test_a_quick_one_overtakes_a_slow_one() -> None:
    room = Room()
    room.desk.gate, room.desk.quick = Event(), {"quick"}
    async with room.open():
        room.inbox.send_nowait(ask("slow", 1))
        room.inbox.send_nowait(ask("quick", 2))
        await wait_all_tasks_blocked()
        assert room.said_to("1") == [("defer", "ephemeral")]
        assert room.said_to("2") == [("defer", "ephemeral"), ("reply", "echo: quick")]
        room.desk.gate.set()


async def test_each_is_acknowledged_before_it_is_handled() -> None:
    room = Room()
    async with room.open():
        room.inbox.send_nowait(ask())
        await wait_all_tasks_blocked()
    assert room.responses.handled_at_defer == [0]
    assert len(room.desk.handled) == 1


async def test_a_long_answer_follows_up_with_the_buttons_under_its_last_part() -> None:
    room = Room()
    button = Button(custom_id="intern:share:1", label="Share")
    room.desk.answers[AskCommand] = InteractionReply(parts=("one", "two"), buttons=(button,))
    async with room.open():
        room.inbox.send_nowait(ask())
    assert room.said_to("1") == [("defer", "ephemeral"), ("reply", "one"), ("follow_up", "two")]
    assert room.responses.buttons == [(), (button,)]


async def test_what_a_button_says_never_overwrites_the_message_that_holds_it() -> None:
    room = Room()
    async with room.open():
        room.inbox.send_nowait(press())
    assert room.said_to("1") == [("defer", "update"), ("follow_up", "done")]


async def test_what_is_not_understood_is_answered_too() -> None:
    room = Room()
    async with room.open():
        room.inbox.send_nowait(UnknownInteraction(interaction=ticket(1), what="of type 5"))
    assert room.said_to("1") == [("defer", "ephemeral"), ("reply", "done")]


async def test_a_conversation_to_learn_from_is_handed_on_before_the_teacher_is_told() -> None:
    room = Room()
    request = capture_request()
    room.desk.answers[LearnCommand] = InteractionReply(parts=("I learn",), captures=(request,))
    async with room.open(captures=0):
        room.inbox.send_nowait(learn())
        await wait_all_tasks_blocked()
        assert room.said_to("1") == [("defer", "ephemeral")]
        assert await room.captured.receive() == request
    assert room.said_to("1") == [("defer", "ephemeral"), ("reply", "I learn")]


async def test_where_nobody_captures_any_more_nothing_is_promised() -> None:
    room = Room()
    room.desk.answers[LearnCommand] = InteractionReply(parts=("I learn",), captures=(capture_request(),))
    async with room.open():
        room.captured.close()
        room.inbox.send_nowait(learn())
    assert room.said_to("1")[1:] == [("reply", get_phrases().restarting)]


async def test_a_failure_is_told_and_the_next_one_is_served(caplog: pytest.LogCaptureFixture) -> None:
    room = Room()
    room.desk.answers[AskCommand] = ChatUnavailableError("down")
    room.desk.answers[ButtonPressed] = KnowledgeError("the disk is gone")
    async with room.open():
        room.inbox.send_nowait(ask(n=1))
        room.inbox.send_nowait(press(2))
        room.inbox.send_nowait(learn(3))
    assert room.said_to("1")[1:] == [("reply", get_phrases().failed)]
    assert room.said_to("2")[1:] == [("follow_up", get_phrases().failed)]
    assert room.said_to("3")[1:] == [("reply", "done")]
    assert "the disk is gone" in caplog.text


async def test_whatever_is_logged_for_an_interaction_carries_its_id() -> None:
    out, room = io.StringIO(), Room()
    configure_logging(log_format="json", stream=out)
    room.desk.answers[ButtonPressed] = KnowledgeError("the disk is gone")
    room.responses.failures["reply"].append(ChatUnavailableError("down"))
    async with room.open():
        room.inbox.send_nowait(ask(n=1))
        room.inbox.send_nowait(press(2))
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert sorted((line["trace_id"], line["event"]) for line in lines) == [
        ("1", "interaction_delayed"),
        ("1", "interaction_done"),
        ("2", "interaction_done"),
        ("2", "interaction_failed"),
    ]


async def test_a_bug_is_not_swallowed() -> None:
    room = Room()
    room.desk.answers[AskCommand] = ZeroDivisionError()
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with room.open():
            room.inbox.send_nowait(ask())
            await wait_all_tasks_blocked()


async def test_who_was_missed_is_not_worked_for_but_their_vote_counts() -> None:
    room = Room()
    room.responses.failures["defer"].extend([ChatRefusedError("unknown interaction")] * 2)
    async with room.open():
        room.inbox.send_nowait(ask(n=1))
        room.inbox.send_nowait(press(2))
    assert [type(interaction) for interaction in room.desk.handled] == [ButtonPressed]
    assert [name for name, _, _ in room.responses.calls] == ["defer", "defer"]


@pytest.mark.parametrize("error", [ChatUnavailableError("down"), ChatUnknownOutcomeError("lost")])
async def test_an_acknowledgement_that_may_have_been_heard_is_worked_for(error: ChatError) -> None:
    room = Room()
    room.responses.failures["defer"].append(error)
    async with room.open():
        room.inbox.send_nowait(ask())
    assert room.said_to("1")[1:] == [("reply", "echo: How?")]


async def test_an_answer_that_discord_does_not_take_is_tried_again_and_then_given_up() -> None:
    room = Room()
    room.responses.failures["reply"].extend([ChatUnavailableError("down")] * (TRIES - 1))
    async with room.open():
        room.inbox.send_nowait(ask(n=1))
        await wait_all_tasks_blocked()
        assert [name for name, _ in room.said_to("1")] == ["defer", *["reply"] * TRIES]

        room.responses.failures["reply"].extend([ChatUnavailableError("down")] * TRIES)
        room.inbox.send_nowait(ask(n=2))
        await wait_all_tasks_blocked()
        assert len(room.said_to("2")) == 1 + TRIES

        room.responses.failures["reply"].append(ChatRefusedError("gone"))
        room.inbox.send_nowait(ask(n=3))
        await wait_all_tasks_blocked()
        room.inbox.send_nowait(ask(n=4))
    assert len(room.said_to("3")) == 2
    assert len(room.said_to("4")) == 2


async def test_the_last_ones_are_answered_after_the_inbox_ended() -> None:
    room = Room()
    room.desk.gate = Event()
    async with room.open():
        room.inbox.send_nowait(ask())
        room.inbox.close()
        await wait_all_tasks_blocked()
        assert room.said_to("1") == [("defer", "ephemeral")]
        room.desk.gate.set()
        assert [request async for request in room.captured] == []
    assert room.said_to("1")[1:] == [("reply", "echo: How?")]


async def test_who_still_waits_at_the_end_is_told() -> None:
    room = Room()
    room.desk.gate = Event()
    async with room.open():
        room.inbox.send_nowait(ask(n=1))
        room.inbox.send_nowait(learn(2))
        await wait_all_tasks_blocked()
        room.stop()
    assert room.said_to("1")[1:] == [("reply", get_phrases().restarting)]
    assert room.said_to("2")[1:] == [("reply", get_phrases().restarting)]


# Registration


async def test_commands_are_registered_while_interactions_are_served() -> None:
    registry = Registry(ChatUnavailableError("down"), ChatUnavailableError("down"))
    room = Room(registry)
    async with room.open():
        await wait_all_tasks_blocked()
        assert registry.tries == 3
    registry = Registry()
    registry.gate = Event()
    room = Room(registry)
    async with room.open():
        room.inbox.send_nowait(ask())
        await wait_all_tasks_blocked()
        assert len(room.said_to("1")) == 2


async def test_a_refused_registration_says_why_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    room = Room(Registry(ChatRefusedError("could not register: Missing Access")))
    async with room.open():
        await wait_all_tasks_blocked()
        room.inbox.send_nowait(ask())
    assert room.registry.tries == 1
    assert len(room.said_to("1")) == 2
    assert "could not register: Missing Access" in caplog.text
