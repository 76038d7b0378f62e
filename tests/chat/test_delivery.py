"""Posting: one reply for each question, despite failures."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest
from anyio import fail_after
from msgspec import structs

from intern.answering.replies import answer_buttons
from intern.chat.delivery import NO_LONGER, OutboxDelivery, PostOutcome, RecallableReplies
from intern.chat.platform import History, Outlet
from intern.chat.reply_text import reply_parts
from intern.core.errors import (
    ChatNotFoundError,
    ChatRefusedError,
    ChatUnavailableError,
    ChatUnknownOutcomeError,
    KnowledgeError,
)
from intern.core.flow import AnswerRequest, Reply
from intern.core.ids import ChannelId, MessageId, RoleId, SourceId
from intern.core.messages import Button, Channel, ChatMessage, Citation, Conversation, RequestContext
from intern.platforms.sandbox import Call
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.answers import AnswerStore
from intern.stores.tables.outbox import Outbox, Post
from tests.worlds.chat import PostDetails, Sandbox, make_delivery
from tests.worlds.clock import HandClock
from tests.worlds.samples import batch, channel, save_question

LOST = ChatUnknownOutcomeError("the reply was lost")
DOWN = ChatUnavailableError("down")
REFUSED = ChatRefusedError("Message was blocked by automatic moderation (code 200000)")
NO_THREAD = ChatRefusedError("Cannot execute action on this channel type (code 50024)")
FAQ = Citation(source_id=SourceId("kb:faq.md"), title="FAQ")


class PickyLedger(Outbox):
    """A ledger that does not note one question's thread."""

    count_question = ""

    async def save_thread(self, question_id: MessageId, thread_id: ChannelId) -> None:
        if question_id == self.count_question:
            raise KnowledgeError("database or disk is full")
        await super().save_thread(question_id, thread_id)


@dataclass
class World:
    clock: HandClock
    discord: Sandbox
    ledger: PickyLedger
    outgoing: RecallableReplies
    max_age: timedelta = timedelta(hours=1)

    async def admits(self, channel_id: ChannelId) -> bool:
        return self.discord.admits(await self.discord.channel(channel_id))

    def ask(self, text: str = "How do I start?") -> ChatMessage:
        self.clock.turn(seconds=5)
        return self.discord.say("alice", text)

    @property
    def posting(self) -> OutboxDelivery:
        outlet: Outlet = self.discord
        history: History = self.discord
        return make_delivery(
            outlet,
            self.ledger,
            history,
            outgoing=self.outgoing,
            clock=self.clock,
            admits=self.admits,
            max_age=self.max_age,
            late={"en": "Late.", "de": "Zu spät."},
            unposted={"en": "Not here.", "de": "Nicht hier."},
        )

    async def post(self, reply: Reply, *, waited_for: MessageId | None = None) -> PostOutcome:
        with fail_after(5):
            return await self.posting.post(reply, waited_for=waited_for)

    async def two_begun(self) -> tuple[ChatMessage, ChatMessage]:
        """Make two questions with replies that are only in the ledger."""
        first, second = self.ask("First?"), self.ask("Second?")
        for question in (first, second):
            self.discord.fail("start_thread", DOWN)
            with pytest.raises(ChatUnavailableError):
                await self.post(reply(question), waited_for=NO_LONGER)
        return first, second

    async def resume(self) -> int:
        """Finish half-posted replies; `ended` has the outcome of each."""
        self.ended: dict[MessageId, str] = {}
        with fail_after(5):
            return await self.posting.resume(self._keep)

    async def _keep(self, entry: Post, outcome: PostOutcome) -> None:
        self.ended[entry.question_id] = outcome.reason or outcome.status

    def said(self) -> list[str]:
        return [message.text for message in self.discord.posts()]


async def _tell_nobody(_entry: Post, _outcome: PostOutcome) -> None:
    """Ignore an outcome, in tests that check the ledger."""


class TurnsPrivate:
    """An outlet to a Discord that closes the channel after so many messages."""

    def __init__(self, discord: Sandbox, *, after: int) -> None:
        self._discord = discord
        self._left = after

    async def start_thread(self, channel_id: ChannelId, message_id: MessageId, name: str, /) -> ChannelId:
        return await self._discord.start_thread(channel_id, message_id, name)

    async def send(
        self,
        channel_id: ChannelId,
        text: str,
        nonce: str,
        /,
        *,
        buttons: Sequence[Button] = (),
        mention_role: RoleId | None = None,
    ) -> MessageId:
        sent = await self._discord.send(channel_id, text, nonce, buttons=buttons, mention_role=mention_role)
        self._left -= 1
        if not self._left:
            self._discord.set_private(self._discord.general)
        return sent

    async def remove_thread(self, thread_id: ChannelId, /) -> None:
        await self._discord.remove_thread(thread_id)

    async def rewrite(self, channel_id: ChannelId, message_id: MessageId, text: str, /) -> None:
        await self._discord.rewrite(channel_id, message_id, text)

    async def typing(self, channel_id: ChannelId, /) -> None:
        await self._discord.typing(channel_id)


@asynccontextmanager
async def world(folder: Path) -> AsyncGenerator[World]:
    clock = HandClock()
    async with await SqliteDatabase.open(folder / "intern.db") as db:
        yield World(clock, Sandbox(clock, team=["maya"]), PickyLedger(db, clock=clock), RecallableReplies())


def reply(question: ChatMessage, text: str = "Run it.", *, thread: bool = False) -> Reply:
    return Reply(question=question, target="in_place" if thread else "new_thread", text=text, citations=(FAQ,))


ANSWER = "Run it.\n\nSources:\n- FAQ (`kb:faq.md`)"


class TestPosting:
    async def test_nothing_is_posted_where_not_everybody_can_read_any_more(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            w.discord.set_private(w.discord.general)
            assert await w.post(reply(question)) == PostOutcome(status="dropped", reason="not_public")
            assert w.said() == []
            assert w.discord.threads() == ()

    async def test_an_answer_to_a_channel_message_goes_into_a_thread_named_after_it(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            outcome = await w.post(reply(question))
            [thread] = w.discord.threads()
            assert outcome == PostOutcome(status="posted", thread_id=thread.id)
            assert thread == Channel(
                id=ChannelId(question.id),
                guild_id=w.discord.guild_id,
                kind="thread",
                name="How do I start?",
                parent_id=w.discord.general,
            )
            assert [m.text for m in w.discord.messages(thread.id)] == [ANSWER]
            assert await w.ledger.has_answer_in(thread.id)

    async def test_an_answer_in_a_thread_stays_there(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            thread = w.discord.open_thread(w.discord.general, w.ask().id, "a thread")
            question = w.discord.say("alice", "And on Windows?", channel_id=thread)
            assert (await w.post(reply(question, thread=True))).thread_id == thread
            assert [m.text for m in w.discord.messages(thread)][-1] == ANSWER
            assert len(w.discord.threads()) == 1

    async def test_a_thread_that_exists_already_is_used(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            thread = w.discord.open_thread(w.discord.general, question.id, "by hand")
            assert (await w.post(reply(question))).thread_id == thread

    async def test_one_question_gets_one_reply_however_often_it_is_posted(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            await w.post(reply(question))
            assert (await w.post(reply(question, "Something else."))).status == "already_posted"
            assert w.said() == [ANSWER]

    async def test_a_question_that_is_gone_is_not_answered(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            w.ask("something after it")
            w.discord.delete(w.discord.general, question.id)
            assert await w.post(reply(question)) == PostOutcome(status="dropped", reason="question_deleted")
            assert (await w.post(reply(question))).status == "already_posted"
            assert w.said() == []
            assert w.discord.threads() == ()

    async def test_where_the_team_was_faster_the_bot_stays_silent(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            w.discord.say("maya", "In the portal.", reply_to=question.id)
            assert await w.post(reply(question)) == PostOutcome(status="dropped", reason="team_answered")

    async def test_a_team_member_who_talks_about_something_else_holds_nothing_up(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            w.discord.say("maya", "Morning!")
            assert (await w.post(reply(question))).status == "posted"

    async def test_all_parts_are_in_the_ledger_before_the_first_is_sent(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            w.discord.fail("start_thread", DOWN)
            long = reply(question, "\n\n".join(f"{n} " + "word " * 300 for n in range(3)))
            with pytest.raises(ChatUnavailableError):
                await w.post(long)
            [entry] = await w.ledger.list_unfinished()
            assert [part.text for part in entry.parts] == reply_parts(long)
            assert len(entry.parts) == 3

    async def test_a_second_try_sends_only_what_is_missing(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            long = reply(question, "\n\n".join(f"{n} " + "word " * 300 for n in range(3)))
            w.discord.fail("send", LOST, done=True)
            assert (await w.post(long)).status == "posted"
            assert [part.strip() for part in reply_parts(long)] == w.said()

    @pytest.mark.parametrize("minutes", [0, 60])
    @pytest.mark.parametrize("done", [False, True])
    @pytest.mark.parametrize("call", ["start_thread", "send"])
    async def test_whatever_breaks_when_a_later_try_posts_it_once(
        self, tmp_path: Path, call: str, minutes: int, *, done: bool
    ) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            w.discord.fail("send" if call == "send" else "start_thread", DOWN, done=done)
            with pytest.raises(ChatUnavailableError):
                await w.post(reply(question))
            w.clock.turn(minutes=minutes)
            assert (await w.post(reply(question))).status == "posted"
            assert w.said() == [ANSWER]

    @pytest.mark.parametrize("done", [False, True])
    async def test_an_unknown_outcome_is_looked_up_before_it_is_sent_again(self, tmp_path: Path, *, done: bool) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            w.discord.fail("start_thread", LOST, done=done)
            w.discord.fail("send", LOST, done=done)
            assert (await w.post(reply(question))).status == "posted"
            assert w.said() == [ANSWER]
            assert w.discord.calls["send"] == (1 if done else 2)

    async def test_another_reply_that_says_the_same_is_not_taken_for_its_own(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            thread = w.discord.open_thread(w.discord.general, w.ask().id, "a thread")
            first, second = (w.discord.say(who, "And on Windows?", channel_id=thread) for who in ("alice", "bob"))
            w.discord.fail("after", DOWN)
            with pytest.raises(ChatUnavailableError):
                await w.post(reply(first, thread=True))
            assert (await w.post(reply(second, thread=True))).status == "posted"
            assert await w.resume() == 1
            assert w.said() == [ANSWER, ANSWER]

    async def test_an_unknown_outcome_twice_is_for_the_caller_to_try_again(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            w.discord.fail("send", LOST)
            w.discord.fail("send", LOST, done=True)
            with pytest.raises(ChatUnknownOutcomeError):
                await w.post(reply(question))
            w.clock.turn(minutes=60)
            assert (await w.post(reply(question))).status == "posted"
            assert w.said() == [ANSWER]

    async def test_what_discord_refuses_is_dropped_with_its_reason(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            w.discord.fail("send", ChatRefusedError("no permission"))
            assert await w.post(reply(question)) == PostOutcome(status="dropped", reason="refused")
            entry = await w.ledger.get(question.id)
            assert entry is not None
            assert entry.reason == "refused"

    async def test_who_called_the_bot_where_no_thread_can_be_opened_is_told_in_place(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            w.discord.fail("start_thread", NO_THREAD)
            w.discord.fail("send", DOWN)
            called = structs.replace(reply(question), called=True, buttons=answer_buttons(question.id))
            with pytest.raises(ChatUnavailableError):
                await w.post(called)
            outcome = await w.post(called)
            assert outcome == PostOutcome(status="posted", reason="refused", notice=True, thread_id=question.channel_id)
            [word] = w.discord.posts()
            assert (word.text, word.channel_id) == ("Not here.", question.channel_id)
            assert w.discord.sent[word.id] == PostDetails()
            assert (await w.post(called)).status == "already_posted"
            assert not await w.ledger.has_answer_in(question.channel_id)

    async def test_a_word_is_said_in_the_language_of_the_reply_also_after_a_restart(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            german = structs.replace(reply(w.ask(), text="Starte das Relay neu."), called=True, language="de")
            w.discord.fail("start_thread", NO_THREAD)
            assert (await w.post(german)).reason == "refused"
            w.discord.fail("start_thread", DOWN)
            german = structs.replace(german, question=w.ask())
            with pytest.raises(ChatUnavailableError):
                await w.post(german)
            w.clock.turn(minutes=61)
            assert await w.resume() == 1
            assert w.said() == ["Nicht hier.", "Zu spät."]

    async def test_a_word_in_place_that_a_crash_cut_off_is_said_after_the_restart(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            w.discord.fail("start_thread", NO_THREAD)
            w.discord.fail("send", DOWN, done=True)
            with pytest.raises(ChatUnavailableError):
                await w.post(structs.replace(reply(w.ask()), called=True))
            assert await w.resume() == 1
            assert w.said() == ["Not here."]

    async def test_who_did_not_call_the_bot_is_told_nothing_where_no_thread_can_be_opened(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            w.discord.fail("start_thread", NO_THREAD)
            assert await w.post(reply(w.ask())) == PostOutcome(status="dropped", reason="refused")
            assert w.said() == []

    async def test_where_no_word_may_be_said_either_it_is_dropped(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            w.discord.fail("start_thread", NO_THREAD)
            w.discord.fail("send", ChatRefusedError("no permission"))
            called = structs.replace(reply(w.ask()), called=True)
            assert await w.post(called) == PostOutcome(status="dropped", reason="refused")

    async def test_no_thread_on_what_is_gone_is_nothing_to_tell_anybody(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            w.discord.fail("start_thread", ChatNotFoundError("unknown message"))
            called = structs.replace(reply(w.ask()), called=True)
            assert await w.post(called) == PostOutcome(status="dropped", reason="refused")
            assert w.said() == []

    # Finding A9.
    async def test_a_refused_reply_leaves_no_empty_thread_and_who_called_is_told_in_place(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            called = structs.replace(reply(w.ask()), called=True)
            w.discord.fail("send", REFUSED)
            outcome = await w.post(called)
            assert outcome == PostOutcome(
                status="posted", reason="refused", notice=True, thread_id=called.question.channel_id
            )
            w.discord.fail("send", REFUSED)
            assert await w.post(reply(w.ask())) == PostOutcome(status="dropped", reason="refused")
            assert [(word.text, word.channel_id) for word in w.discord.posts()] == [("Not here.", w.discord.general)]
            assert w.discord.threads() == ()

    # Finding A9.
    @pytest.mark.parametrize("called", [False, True])
    @pytest.mark.parametrize("restarts", [False, True])
    @pytest.mark.parametrize("done", [False, True])
    @pytest.mark.parametrize("breaks", ["start_thread", "send", "after", "remove_thread", "ledger"])
    async def test_whatever_breaks_around_a_refusal_one_word_is_said_and_no_thread_stays(
        self, tmp_path: Path, breaks: Call | Literal["ledger"], *, done: bool, restarts: bool, called: bool
    ) -> None:
        async with world(tmp_path) as w:
            asked = structs.replace(reply(w.ask()), called=called)
            if breaks == "ledger":  # as after a crash between the platform's answer and the note of it
                w.ledger.count_question = asked.question.id
            elif breaks != "send":
                w.discord.fail(breaks, DOWN, done=done)
            w.discord.fail("send", REFUSED)
            if called and breaks == "send":  # the notice, in place
                w.discord.fail("send", DOWN, done=done)
            if not called and breaks == "remove_thread":  # then the reply itself is tried once more
                w.discord.fail("send", REFUSED)
            for _ in range(2):
                with suppress(ChatUnavailableError, KnowledgeError):
                    await (w.resume() if restarts and await w.ledger.get(asked.question.id) else w.post(asked))
                w.ledger.count_question = ""
                w.clock.turn(minutes=5)  # no nonce protects any more
            entry = await w.ledger.get(asked.question.id)
            assert entry is not None
            assert (entry.state, entry.reason) == ("finished" if called else "dropped", "refused")
            assert w.said() == (["Not here."] if called else [])
            assert w.discord.threads() == ()

    # Finding A9.
    async def test_a_thread_in_which_someone_wrote_stays_when_the_reply_is_refused(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            thread = await w.discord.start_thread(question.channel_id, question.id, "how")
            w.discord.say("bob", "Same here.", channel_id=thread)
            w.discord.fail("send", REFUSED)
            assert (await w.post(reply(question))).reason == "refused"
            assert [message.text for message in w.discord.messages(thread)] == ["Same here."]

    # Finding A9.
    async def test_a_refused_reply_within_a_thread_is_replaced_by_a_word_there(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            thread = w.discord.open_thread(w.discord.general, w.ask().id, "a thread")
            question = w.discord.say("alice", "And on Windows?", channel_id=thread)
            w.discord.fail("send", REFUSED)
            outcome = await w.post(structs.replace(reply(question, thread=True), called=True))
            assert (outcome.reason, outcome.thread_id) == ("refused", thread)
            assert [message.text for message in w.discord.messages(thread)] == ["And on Windows?", "Not here."]

    async def test_a_refused_rest_of_a_reply_leaves_what_stands(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            long = reply(question, "\n\n".join(f"{n} " + "word " * 300 for n in range(2)))
            w.discord.fail("send", DOWN, done=True)
            with pytest.raises(ChatUnavailableError):
                await w.post(structs.replace(long, called=True))
            w.discord.fail("send", REFUSED)
            assert (await w.post(long)).reason == "refused"
            assert w.said() == [reply_parts(long)[0].strip()]
            assert len(w.discord.threads()) == 1

    async def test_a_reply_that_discord_kept_out_for_too_long_is_dropped_and_who_called_is_told(
        self, tmp_path: Path
    ) -> None:
        async with world(tmp_path) as w:
            silent, called = reply(w.ask("First?")), structs.replace(reply(w.ask("Second?")), called=True)
            for each in (silent, called):
                w.discord.fail("start_thread", DOWN)
                with pytest.raises(ChatUnavailableError):
                    await w.post(each, waited_for=NO_LONGER)
            w.clock.turn(minutes=61)
            # Without a notice to post, the platform need not be asked.
            w.discord.calls.clear()
            w.discord.fail("remove_thread", DOWN)
            assert await w.post(silent) == PostOutcome(status="dropped", reason="too_old")
            assert set(+w.discord.calls) <= {"remove_thread"}
            for _ in range(3):  # and the notice has a day
                w.discord.fail("start_thread", DOWN)
                with pytest.raises(ChatUnavailableError):
                    await w.post(called)
                w.clock.turn(hours=2)
            outcome = await w.post(called)
            assert (outcome.status, outcome.reason, outcome.notice) == ("posted", "too_old", True)
            assert w.said() == ["Late."]

    async def test_a_day_later_nobody_is_told_anything(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            called = structs.replace(reply(w.ask()), called=True)
            w.discord.fail("start_thread", DOWN)
            with pytest.raises(ChatUnavailableError):
                await w.post(called)
            w.clock.turn(hours=25)
            assert await w.post(called) == PostOutcome(status="dropped", reason="too_old")

    async def test_an_answer_that_stands_there_unconfirmed_gets_no_word_beside_it(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            called = structs.replace(reply(w.ask()), called=True)
            w.discord.fail("send", DOWN, done=True)
            with pytest.raises(ChatUnavailableError):
                await w.post(called)
            w.clock.turn(hours=2)
            assert (await w.post(called)).notice is False
            assert w.said() == [ANSWER]

    async def test_half_a_reply_goes_no_further_into_a_channel_that_turned_private(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            for restart in (False, True):
                question = w.ask()
                long = reply(question, "\n\n".join(f"{n} " + "word " * 300 for n in range(3)))
                posting = make_delivery(
                    TurnsPrivate(w.discord, after=1),
                    w.ledger,
                    w.discord,
                    outgoing=w.outgoing,
                    clock=w.clock,
                    admits=w.admits,
                )
                if restart:
                    w.discord.fail("send", DOWN)
                    with pytest.raises(ChatUnavailableError):
                        await posting.post(long, waited_for=NO_LONGER)
                if restart:
                    assert await posting.resume(_tell_nobody) == 1
                else:
                    outcome = await posting.post(long, waited_for=NO_LONGER)
                    assert outcome == PostOutcome(status="dropped", reason="not_public")
                entry = await w.ledger.get(question.id)
                assert entry is not None
                assert (entry.state, entry.reason) == ("dropped", "not_public")
                assert [bool(part.message_id) for part in entry.parts] == [True, False, False]
                w.discord.set_private(w.discord.general, private=False)

    async def test_a_restart_finishes_what_was_half_posted(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            first, second = w.ask("First?"), w.ask("Second?")
            w.discord.fail("start_thread", DOWN)
            w.discord.fail("send", DOWN, done=True)
            for question in (first, second):
                with pytest.raises(ChatUnavailableError):
                    await w.post(reply(question), waited_for=NO_LONGER)
            w.clock.turn(minutes=60)
            assert await w.resume() == 2
            assert w.ended == {first.id: "posted", second.id: "posted"}
            assert await w.resume() == 0
            assert w.ended == {}
            assert w.said() == [ANSWER, ANSWER]
            assert {thread.name for thread in w.discord.threads()} == {"First?", "Second?"}

    async def test_a_reply_that_is_half_posted_is_finished_even_if_the_team_speaks(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            long = reply(question, "\n\n".join(f"{n} " + "word " * 300 for n in range(2)))
            begun = await w.ledger.begin(long, reply_parts(long))
            thread = await w.discord.start_thread(question.channel_id, question.id, "name")
            await w.ledger.save_thread(question.id, thread)
            sent = await w.discord.send(thread, begun.parts[0].text, begun.parts[0].nonce)
            await w.ledger.save_sent_part(question.id, 0, sent)
            w.discord.say("maya", "In the portal.", reply_to=question.id)
            w.clock.turn(minutes=60)
            assert (await w.post(long)).status == "posted"
            assert len(w.said()) == 2

    async def test_a_reply_waits_while_its_asker_goes_on_and_for_no_older_message_twice(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            w.discord.say("bob", "same here")
            more = w.ask("On Windows, that is.")
            held = PostOutcome(status="held", reason="asker_goes_on", newest=more.id)
            assert await w.post(reply(question)) == held
            assert await w.post(reply(question), waited_for=question.id) == held
            even_more = w.ask("Version 3.")
            assert (await w.post(reply(question), waited_for=more.id)).newest == even_more.id
            assert w.said() == []
            assert (await w.post(reply(question), waited_for=even_more.id)).status == "posted"
            assert w.said() == [ANSWER]

    async def test_the_askers_own_batch_is_nothing_newer(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            first, last = w.ask(), w.ask("On Windows, that is.")
            both = structs.replace(reply(last), settles=(first.id, last.id))
            assert (await w.post(both)).status == "posted"

    async def test_the_team_answers_by_a_reply_to_any_message_of_the_question(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            first, last = w.ask(), w.ask("On Windows, that is.")
            w.discord.say("maya", "In the portal.", reply_to=first.id)
            both = structs.replace(reply(last), settles=(first.id, last.id))
            assert (await w.post(both)).reason == "team_answered"

    async def test_the_team_answers_by_a_mention_of_the_asker(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            w.discord.say("maya", f"<@{question.author.id}> in the portal.")
            assert (await w.post(reply(question))).reason == "team_answered"

    async def test_an_asker_who_turns_to_a_neighbour_is_not_waited_for(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            w.discord.say("alice", "me too", reply_to=w.discord.say("bob", "My node is slow").id)
            assert (await w.post(reply(question))).status == "posted"

    async def test_the_team_answers_before_the_asker_s_last_line(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            first = w.ask()
            w.discord.say("maya", "In the portal.", reply_to=first.id)
            last = w.ask("On Windows, that is.")
            both = structs.replace(reply(last), settles=(first.id, last.id))
            assert (await w.post(both)).reason == "team_answered"

    async def test_the_team_answers_in_between_however_much_others_say(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            first = w.ask()
            for n in range(120):
                w.discord.say("bob", f"chatter {n}")
            w.discord.say("maya", "In the portal.", reply_to=first.id)
            last = w.ask("On Windows, that is.")
            for n in range(120):
                w.discord.say("bob", f"chatter {n}")
            both = structs.replace(reply(last), settles=(first.id, last.id))
            assert (await w.post(both)).reason == "team_answered"

    async def test_a_question_far_behind_its_first_line_is_found(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            first = w.ask()
            for n in range(700):
                w.discord.say("bob", f"chatter {n}")
            last = w.ask("On Windows, that is.")
            both = structs.replace(reply(last), settles=(first.id, last.id))
            assert (await w.post(both)).status == "posted"

    async def test_the_team_answers_in_the_thread_before_the_asker_s_last_line(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            thread = w.discord.open_thread(w.discord.general, w.ask().id, "a thread")
            first = w.discord.say("alice", "And on Windows?", channel_id=thread)
            w.discord.say("maya", "The same.", channel_id=thread)
            last = w.discord.say("alice", "Version 3, that is.", channel_id=thread)
            both = structs.replace(reply(last, thread=True), settles=(first.id, last.id))
            assert (await w.post(both)).reason == "team_answered"

    async def test_what_the_bot_and_the_asker_say_in_between_is_no_answer(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            thread = w.discord.open_thread(w.discord.general, w.ask().id, "a thread")
            # A member of the team asks, too.
            first = w.discord.say("maya", "@intern and on Windows?", channel_id=thread)
            await w.discord.send(thread, "Something else.", "n-1")
            w.discord.say("maya", "hm", channel_id=thread)
            last = w.discord.say("maya", "Version 3, that is.", channel_id=thread)
            both = structs.replace(reply(last, thread=True), settles=(first.id, last.id))
            assert (await w.post(both)).status == "posted"

    async def test_after_a_restart_the_team_s_answer_to_an_earlier_line_is_seen_too(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            first = w.ask()
            w.discord.say("maya", "In the portal.", reply_to=first.id)
            last = w.ask("On Windows, that is.")
            w.discord.fail("after", DOWN)
            with pytest.raises(ChatUnavailableError):
                await w.post(structs.replace(reply(last), settles=(first.id, last.id)))
            assert await w.resume() == 1
            entry = await w.ledger.get(last.id)
            assert entry is not None
            assert entry.reason == "team_answered"
            assert w.said() == []

    async def test_the_team_answers_in_the_thread_that_hangs_on_an_earlier_line(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            first, last = w.ask(), w.ask("On Windows, that is.")
            thread = w.discord.open_thread(w.discord.general, first.id, "by hand")
            w.discord.say("maya", "In the portal.", channel_id=thread)
            both = structs.replace(reply(last), settles=(first.id, last.id))
            assert (await w.post(both)).reason == "team_answered"

    async def test_the_team_answers_in_the_thread_that_hangs_on_the_question(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            thread = w.discord.open_thread(w.discord.general, question.id, "by hand")
            w.discord.say("bob", "no idea", channel_id=thread)
            assert w.discord.messages(w.discord.general)[0].thread_id == thread
            w.discord.say("maya", "In the portal.", channel_id=thread)
            assert (await w.post(reply(question))).reason == "team_answered"
            assert w.said() == []

    async def test_a_reply_that_is_taken_back_leaves_no_trace_and_the_question_can_be_answered_anew(
        self, tmp_path: Path
    ) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            w.outgoing.add_reply(request(question))
            w.outgoing.recall("superseded", lambda _: True)
            assert await w.post(reply(question)) == PostOutcome(status="recalled", reason="superseded")
            assert w.discord.calls["after"] == 0, "there is nothing to look for"
            assert await w.ledger.get(question.id) is None
            assert w.said() == []
            assert w.discord.threads() == ()
            w.outgoing.remove_reply(question.id)
            assert (await w.post(reply(question, "Better."))).status == "posted"

    async def test_a_reply_that_is_taken_back_before_it_begins_takes_nothing_from_the_question_that_took_it_up(
        self, tmp_path: Path
    ) -> None:
        async with world(tmp_path) as w:
            question, addition = w.ask(), w.ask()
            records = AnswerStore(w.ledger.db, clock=w.clock)
            await save_question(records, [question, addition], "no_sources")
            w.outgoing.add_reply(request(question))
            w.outgoing.recall("superseded", lambda _: True)
            assert (await w.post(reply(question))).status == "recalled"
            [gap] = await records.list_open()
            assert gap.message_ids == (question.id, addition.id)

    async def test_what_an_earlier_run_posted_without_hearing_of_it_cannot_be_taken_back(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            w.discord.fail("send", DOWN, done=True)
            with pytest.raises(ChatUnavailableError):
                await w.post(reply(question))
            w.outgoing.add_reply(request(question))  # by the next run, which was asked again
            w.outgoing.recall("withdrawn", lambda _: True)
            assert (await w.post(reply(question))).status == "posted"
            [stands] = w.discord.posts()
            assert await w.ledger.holds(stands.id)

    async def test_what_is_taken_back_during_the_last_look_is_not_posted(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            w.outgoing.add_reply(request(question))
            look = w.discord.after

            class Meanwhile(Sandbox):
                async def after(
                    self, channel_id: ChannelId, message_id: MessageId, limit: int
                ) -> Sequence[ChatMessage]:
                    w.outgoing.recall("withdrawn", lambda _: True)
                    return await look(channel_id, message_id, limit)

            history: History = Meanwhile(w.clock)
            posting = make_delivery(w.discord, w.ledger, history, outgoing=w.outgoing, clock=w.clock)
            assert (await posting.post(reply(question))).reason == "withdrawn"
            assert w.said() == []

    async def test_what_an_earlier_run_held_is_not_posted_beside_the_reply_that_took_it_up(
        self, tmp_path: Path
    ) -> None:
        async with world(tmp_path) as w:
            first, second = w.ask(), w.ask("On Windows, that is.")
            assert (await w.post(reply(first))).status == "held"
            both = structs.replace(reply(second, "For both."), settles=(first.id, second.id))
            w.discord.fail("start_thread", DOWN)
            with pytest.raises(ChatUnavailableError):
                await w.post(both)
            assert await w.resume() == 1
            assert len(w.said()) == 1
            assert "For both." in w.said()[0]

    async def test_once_it_has_left_a_reply_cannot_be_taken_back(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            w.outgoing.add_reply(request(question))
            w.discord.fail("send", DOWN)
            with pytest.raises(ChatUnavailableError):
                await w.post(reply(question))
            assert w.outgoing.recall("superseded", lambda _: True) == ()
            assert (await w.post(reply(question))).status == "posted"

    async def test_buttons_and_the_mention_stand_under_the_last_part_also_after_a_restart(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question, buttons = w.ask(), answer_buttons(MessageId("7"))
            long = structs.replace(
                reply(question, "\n\n".join(f"{n} " + "word " * 300 for n in range(2)) + "\n\n<@&42>"),
                citations=(),
                buttons=buttons,
                mention_role=RoleId("42"),
            )
            w.discord.fail("send", DOWN)
            with pytest.raises(ChatUnavailableError):
                await w.post(long)
            assert await w.resume() == 1
            first, last = w.discord.posts()
            assert w.discord.sent[first.id] == PostDetails()
            assert w.discord.sent[last.id] == PostDetails(buttons=buttons, pings=(RoleId("42"),))

    async def test_a_message_that_was_answered_with_others_gets_no_reply_of_its_own(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            first, last = w.ask(), w.ask("On Windows, that is.")
            await w.post(structs.replace(reply(last), settles=(first.id, last.id)))
            assert (await w.post(reply(first), waited_for=NO_LONGER)).status == "already_posted"
            assert w.said() == [ANSWER]

    async def test_a_notice_leaves_its_thread_unanswered_and_keeps_its_links(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            question = w.ask()
            notice = Reply(question=question, target="new_thread", text="See https://help.example", notice=True)
            outcome = await w.post(notice)
            assert w.said() == ["See https://help.example"]
            assert outcome.thread_id is not None
            assert not await w.ledger.has_answer_in(outcome.thread_id)

    async def test_a_reply_without_words_opens_no_thread(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            empty = structs.replace(reply(w.ask(), " "), citations=())
            assert await w.post(empty) == PostOutcome(status="dropped", reason="empty")
            assert w.discord.threads() == ()

    async def test_one_post_that_cannot_be_finished_holds_up_no_other(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            first, second = await w.two_begun()
            w.discord.fail("start_thread", DOWN)
            with pytest.raises(ChatUnavailableError):
                await w.resume()
            assert [thread.name for thread in w.discord.threads()] == ["Second?"]
            assert w.ended == {second.id: "posted"}
            assert await w.resume() == 1
            assert w.ended == {first.id: "posted"}

    async def test_nor_does_one_that_the_ledger_takes_no_note_of(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            first, second = await w.two_begun()
            w.ledger.count_question = first.id
            with pytest.raises(KnowledgeError):
                await w.resume()
            assert w.ended == {second.id: "posted"}
            w.ledger.count_question = ""
            assert await w.resume() == 1
            assert w.said() == [ANSWER, ANSWER]

    async def test_what_was_begun_too_long_ago_is_dropped_unless_half_of_it_stands(self, tmp_path: Path) -> None:
        async with world(tmp_path) as w:
            w.max_age = timedelta(hours=1)
            first, second = w.ask("First?"), w.ask("Second?")
            w.discord.fail("start_thread", DOWN)
            with pytest.raises(ChatUnavailableError):
                await w.post(reply(first), waited_for=NO_LONGER)
            long = reply(second, "\n\n".join(f"{n} " + "word " * 300 for n in range(2)))
            begun = await w.ledger.begin(long, reply_parts(long))
            thread = await w.discord.start_thread(second.channel_id, second.id, "name")
            await w.ledger.save_thread(second.id, thread)
            sent = await w.discord.send(thread, begun.parts[0].text, begun.parts[0].nonce)
            await w.ledger.save_sent_part(second.id, 0, sent)
            w.clock.turn(hours=2)
            third = w.ask("Third?")
            w.discord.fail("start_thread", DOWN)
            with pytest.raises(ChatUnavailableError):
                await w.post(reply(third))
            assert await w.resume() == 3
            assert w.ended == {first.id: "too_old", second.id: "posted", third.id: "posted"}
            entry = await w.ledger.get(first.id)
            assert entry is not None
            assert entry.reason == "too_old"
            assert [message.channel_id for message in w.discord.posts()] == [thread, thread, ChannelId(third.id)]


def request(question: ChatMessage) -> AnswerRequest:
    return AnswerRequest(
        batch=batch(question),
        channel=channel(question.channel_id),
        conversation=Conversation(()),
        context=RequestContext(),
        addressed=False,
    )
