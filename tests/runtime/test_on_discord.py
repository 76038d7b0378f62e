"""The whole bot and Discord's double on real sockets, as members and the team meet it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from anyio import Event, create_task_group, fail_after

from intern.actors.pipeline import ANSWERS, run_pipeline
from intern.actors.responder import ROOM
from intern.answering.wordings import load_wordings
from intern.chat.phrases import get_phrases
from intern.core.captures import CapturedPair
from intern.core.decisions import MessagesWithdrawn
from intern.core.flow import Batch, QuestionDeclined, Reply
from intern.core.ids import position_at
from intern.core.messages import AnswerResult
from intern.runtime.bot import open_discord_parts
from intern.service.status import FolderStatus, read_status
from intern.sources.refresh import RefreshReport
from tests.double import interactions as double
from tests.double.discord import DiscordDouble
from tests.double.world import Channel, Message, User
from tests.worlds.bot import Watching, settings_in
from tests.worlds.clock import HandClock
from tests.worlds.discord import make_section
from tests.worlds.endpoint import endpoint_double, never

MESSAGES = "/channels/*/messages"
WORDING = load_wordings()["en"]
KNOWN = "On which port does the relay listen?"  # the documents contain the answer
UNKNOWN = "Why is my tenant blocked?"  # the documents lack the answer


pytestmark = pytest.mark.on_asyncio


class Ended(NamedTuple):
    """The outcome of a reply."""

    question_id: str
    outcome: str


class Seeing(Watching):
    """Sees replies leave, and questions declined."""

    def report_post(self, reply: Reply, outcome: str) -> None:
        super().report_post(reply, outcome)
        self._tell(Ended(reply.question.id, outcome))

    def report_decline(self, declined: QuestionDeclined) -> None:
        super().report_decline(declined)
        self._tell(declined)


class Stage:
    """A community, whose bot comes and goes."""

    def __init__(self, folder: Path, discord: DiscordDouble, clock: HandClock) -> None:
        self.folder, self.discord, self.clock = folder, discord, clock
        self.seen = Seeing()

    async def say(self, author: User, text: str, **how: Any) -> Message:
        self.clock.turn(seconds=1)
        return await self.discord.say(author, text, **how)

    async def answered(self, question: Message) -> str:
        return (await self.discord.wait_for_answer(question)).content

    def said_to(self, question: Message) -> list[str]:
        thread = self.discord.thread_of(question)
        said = self.discord.messages(thread) if thread else []
        return [message.content for message in said if message.author.id == self.discord.bot_id]

    async def over(self, question: Message) -> str:
        """Return the outcome of the reply to a question."""

        return (await self.seen.one_of(Ended, where=lambda ended: ended.question_id == question.id)).outcome

    async def captured(self, *texts: str) -> CapturedPair:
        """Return the first pair whose turns are, or end with, these."""

        def holds(pair: CapturedPair) -> bool:
            return [turn.text for turn in pair.turns][-len(texts) :] == list(texts)

        return await self.seen.one_of(CapturedPair, where=holds)

    def status(self) -> FolderStatus:
        return read_status(settings_in(self.folder), clock=self.clock)

    @asynccontextmanager
    async def up(self, *, llm: dict[str, Any] | None = None, **options: Any) -> AsyncGenerator[None]:
        """Run the bot, once it has indexed its documents; end it calmly."""
        discord, self.seen, stop = self.discord, Seeing(), Event()
        settings = settings_in(self.folder, llm=llm, **make_section(discord, **options))
        sessions = len(discord.gateway.identifies) + 1
        with fail_after(60):
            async with (
                open_discord_parts(settings, events=self.seen, clock=self.clock, first_pause=0.1) as parts,
                create_task_group() as tg,
            ):
                tg.start_soon(partial(run_pipeline, parts, stop=stop))
                await discord.wait_ready(sessions)
                if llm is None:
                    await self.seen.one_of(RefreshReport)
                yield
                stop.set()
                if llm is not None:  # an unresponsive model would delay a calm end
                    tg.cancel_scope.cancel()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncGenerator[Stage]:
    clock = HandClock()
    async with DiscordDouble(now=clock.now) as discord:
        # As Discord does: until it has seen a route's headers, hikari sends no second request there.
        discord.bucket("POST", MESSAGES, limit=50, per=1)
        yield Stage(tmp_path, discord, clock)


# If addressed, always an answer or a reason.


@pytest.mark.rest
async def test_who_calls_the_bot_beyond_the_limit_is_told_so_once_and_why_says_it(stage: Stage) -> None:
    discord = stage.discord
    async with stage.up(max_questions_per_user_per_hour=1):
        first = await stage.say(discord.alice, f"{discord.bot.mention} {KNOWN}")
        assert "7480" in await stage.answered(first)
        second = await stage.say(discord.alice, f"{discord.bot.mention} {UNKNOWN}")
        assert await stage.answered(second) == WORDING.limit
        assert await stage.over(second) == "posted"
        third = await stage.say(discord.alice, f"{discord.bot.mention} And now?")
        await stage.seen.one_of(QuestionDeclined, after=1)
        asked = await double.why(discord, discord.tess, third.id)
        await discord.until(lambda: double.shown(asked))
        assert "**passed over**" in double.shown(asked)[0]
        assert "over the hourly limit" in double.shown(asked)[0]
        told = await double.why(discord, discord.tess, second.id)
        await discord.until(lambda: double.shown(told))
        assert "**notice posted**" in double.shown(told)[0]
        alone = await double.ask(discord, discord.alice, KNOWN)
        await discord.until(lambda: double.shown(alone))
        assert double.shown(alone) == [WORDING.limit]
    assert stage.said_to(third) == []
    assert stage.status().counts_today["questions_over_limit"] == 3


@pytest.mark.rest
async def test_who_calls_the_bot_when_it_has_no_room_is_told_so_and_status_counts_it(stage: Stage) -> None:
    discord, stalled = stage.discord, {"model": "stalled", "base_url": ""}
    with endpoint_double(lambda _: never()) as endpoint:
        async with stage.up(llm={**stalled, "base_url": endpoint.base_url}, max_questions_per_user_per_hour=0):
            for n in range(ROOM + ANSWERS.size + 3):
                await stage.say(discord.world.new_member(f"member{n}"), KNOWN)
            await stage.seen.one_of(QuestionDeclined)
            loud = await stage.say(discord.alice, f"{discord.bot.mention} {KNOWN}")
            assert await stage.answered(loud) == WORDING.busy
            again = await stage.say(discord.alice, f"{discord.bot.mention} {KNOWN}")
            await stage.seen.one_of(QuestionDeclined, where=lambda each: each.request.batch.last.id == again.id)
            asked = await double.why(discord, discord.tess, again.id)
            await discord.until(lambda: double.shown(asked))
            assert "**shed**. Too many questions waited." in double.shown(asked)[0]
            shed = len(stage.seen.all_of(QuestionDeclined))
    assert [message.content for message in discord.said_by_bot()] == [WORDING.busy]
    assert stage.status().shed == shed


@pytest.mark.rest
async def test_who_called_the_bot_while_it_was_away_too_long_is_told_once_and_nobody_else(stage: Stage) -> None:
    discord = stage.discord
    async with stage.up():
        before = await stage.say(discord.alice, f"{discord.bot.mention} {KNOWN}")
        answer = await discord.wait_for_answer(before)
        assert await stage.over(before) == "posted"
    stage.clock.turn(seconds=60)
    called = await stage.say(discord.alice, f"{discord.bot.mention} {UNKNOWN}")
    replied = await stage.say(discord.bob, "And how do I change it?", reply_to=answer)
    chatter = await stage.say(discord.bob, KNOWN, channel=discord.general)
    stage.clock.turn(hours=2)
    async with stage.up():
        assert await stage.answered(called) == WORDING.late
        assert (await discord.wait_for_message(answer.channel_id, _says(WORDING.late))).channel_id == replied.channel_id
        await stage.seen.one_of(QuestionDeclined, where=lambda each: each.request.batch.last.id == chatter.id)
    assert stage.said_to(chatter) == []
    assert sum(message.content == WORDING.late for message in discord.said_by_bot()) == 2
    assert stage.status().counts_today["questions_too_old"] == 3


def _says(text: str) -> Callable[[Message], bool]:
    def says(message: Message) -> bool:
        return message.content == text

    return says


@pytest.mark.rest
async def test_the_hand_off_role_is_all_that_is_ever_mentioned_and_only_there(stage: Stage) -> None:
    discord = stage.discord
    async with stage.up(handoff_role_id=discord.team_role.id):
        everybody = f"@everyone {discord.bob.mention} {discord.bot.mention}"
        handed = await stage.say(discord.alice, f"{everybody} {UNKNOWN}")
        assert await stage.answered(handed) == f"{WORDING.handoff} <@&{discord.team_role.id}>"
        known = await stage.say(discord.alice, f"{everybody} {KNOWN}")
        assert "7480" in await stage.answered(known)
        thanks = await stage.say(discord.alice, discord.bot.mention)
        assert await stage.answered(thanks) == WORDING.greeting
    mentioned = [(post.mention_roles, bool(post.mentions), post.mention_everyone) for post in discord.said_by_bot()]
    assert sorted(mentioned) == [([], False, False), ([], False, False), ([discord.team_role.id], False, False)]


@pytest.mark.rest
async def test_private_messages_get_one_note_over_all_starts(stage: Stage) -> None:
    discord = stage.discord
    for _ in range(3):
        async with stage.up():
            stage.clock.turn(seconds=1)
            told = {
                "id": position_at(stage.clock.now()).id,
                "channel_id": "7",
                "author": {"id": "5"},
                "content": "Hello?",
            }
            discord.gateway.dispatch("MESSAGE_CREATE", told)
            await stage.seen.one_of(Batch, where=lambda batch: batch.channel_id == "7")
    # The double knows no private channels and refuses; asking again would change nothing.
    assert [request.body["content"] for request in discord.requests_to("POST", "/channels/7/messages")] == [
        get_phrases().private_note
    ]


# Routing, where the network is part of it.


@pytest.mark.rest
async def test_a_reply_and_a_second_line_a_correction_and_a_forum_answer_are_captured_and_a_webhook_is_nobody(
    stage: Stage,
) -> None:
    discord = stage.discord
    async with stage.up(message_batch_wait_seconds=0.2):
        question = await stage.say(discord.alice, UNKNOWN)
        await stage.say(discord.tess, "Raise its quota,", reply_to=question)
        await discord.say(discord.tess, "then wait a minute.", channel=discord.help)
        await stage.captured(UNKNOWN, "Raise its quota,", "then wait a minute.")

        asked = await stage.say(discord.alice, KNOWN, channel=discord.general)
        wrong = await discord.wait_for_answer(asked)
        await stage.say(discord.tess, "7481 since May.", reply_to=wrong)
        await stage.captured(KNOWN, "7481 since May.")

        post = await discord.create_thread("The port", author=discord.bob, text=f"{KNOWN} Anybody?")
        assert "7481 since May." in (await discord.wait_for_message(post)).content  # it has learned meanwhile
        discord.acts.post(discord.help.id, discord.bob, f"{discord.bot.mention} {KNOWN}", webhook_id="77")
        last = await stage.say(discord.alice, f"{discord.bot.mention} {KNOWN}")
        await stage.answered(last)
    assert len(discord.said_by_bot()) == 3  # no request to the webhook
    assert not any("webhook" in turn.text for pair in stage.seen.all_of(CapturedPair) for turn in pair.turns)


@pytest.mark.rest
async def test_a_mode_silences_a_channel_and_not_the_learning(stage: Stage) -> None:
    discord = stage.discord
    modes = [{"id": discord.help.id, "mode": "capture_only"}, {"id": discord.general.id, "mode": "off"}]
    async with stage.up(channels=modes, default_mode="mention_only"):
        question = await stage.say(discord.alice, f"{discord.bot.mention} {KNOWN}")
        await stage.say(discord.tess, "On 7480.", reply_to=question)
        await stage.captured("On 7480.")
        ignored = await stage.say(discord.alice, f"{discord.bot.mention} {KNOWN}", channel=discord.general)
        await stage.say(discord.tess, "Not here.", reply_to=ignored)
        await discord.create_thread("The port", author=discord.bob, text=KNOWN)
        post = await discord.create_thread("The port?", author=discord.bob, text=f"{discord.bot.mention} {KNOWN}")
        assert "7480" in (await discord.wait_for_message(post)).content
    assert len(discord.said_by_bot()) == 1
    assert [pair.turns[-1].text for pair in stage.seen.all_of(CapturedPair)] == ["On 7480."]


@pytest.mark.rest
async def test_an_answer_in_work_when_its_channel_turns_private_is_not_posted(stage: Stage) -> None:
    discord = stage.discord
    async with stage.up():
        looking = discord.hold_next("GET", MESSAGES, times=1)
        question = await stage.say(discord.alice, KNOWN)
        await looking.arrived.wait()  # the poster's last look
        looking.release()
        assert await stage.over(question) == "posted"
        typing = discord.hold_next("POST", "/channels/*/typing")
        gathering = discord.hold_next("GET", MESSAGES)
        second = await stage.say(discord.bob, KNOWN, reply_to=await _own(stage, discord.bob))
        await gathering.arrived.wait()
        await discord.make_private(discord.help)
        gathering.release()
        typing.release()
        public = await stage.say(discord.bob, KNOWN, channel=discord.general)
        await stage.answered(public)
    assert stage.said_to(second) == []


async def _own(stage: Stage, author: User) -> Message:
    """Return a message of this author that needs no answer."""
    return stage.discord.acts.post(stage.discord.help.id, author, "…")


# Posting.


@pytest.mark.rest
async def test_an_answer_goes_into_the_thread_that_is_there_and_nowhere_where_the_team_was_faster(stage: Stage) -> None:
    discord = stage.discord
    async with stage.up():
        looking = discord.hold_next("GET", MESSAGES)
        question = await stage.say(discord.alice, KNOWN)
        await looking.arrived.wait()
        thread: Channel = await discord.create_thread("Ports", author=discord.bob, message=question)
        looking.release()
        assert "7480" in (await discord.wait_for_message(thread)).content

        looking = discord.hold_next("GET", MESSAGES)
        slow = await stage.say(discord.bob, KNOWN)
        await looking.arrived.wait()
        await stage.say(discord.tess, "On 7480.", reply_to=slow)
        looking.release()
        assert await stage.over(slow) == "team_answered"

        looking = discord.hold_next("GET", MESSAGES)
        deleted = await stage.say(discord.bob, KNOWN)
        await looking.arrived.wait()
        await discord.delete(deleted)
        looking.release()
        await stage.answered(await stage.say(discord.alice, KNOWN, channel=discord.general))
    assert stage.said_to(slow) == stage.said_to(deleted) == []


# Catching up.


@pytest.mark.rest
async def test_what_was_said_while_it_was_down_is_handled_once_within_the_rate_limits_though_a_page_fails(
    stage: Stage,
) -> None:
    discord = stage.discord
    async with stage.up():
        assert await stage.over(await stage.say(discord.alice, KNOWN)) == "posted"
    asked = await stage.say(discord.alice, UNKNOWN, channel=discord.general)
    thread = await discord.create_thread("Quota", author=discord.bob, message=await stage.say(discord.bob, UNKNOWN))
    await stage.say(discord.tess, "Raise it.", channel=thread)
    await stage.say(discord.tess, "Wait for it.", reply_to=asked)
    question = await stage.say(discord.bob, KNOWN, channel=discord.general)
    await discord.archive(thread)
    discord.bucket("GET", MESSAGES, limit=1, per=0.2)
    discord.fail_next("GET", MESSAGES, status=200, times=2)  # junk: hikari itself does not ask again
    discord.violations.clear()
    async with stage.up():
        assert "7480" in await stage.answered(question)
        await stage.captured("Raise it.")
        await stage.captured("Wait for it.")
        captured = len(stage.seen.all_of(CapturedPair))
    assert captured == 2
    assert not [request for request in discord.requests if request.status == 429]
    answers = len(discord.said_by_bot())
    stage.seen = Seeing()
    async with stage.up():
        await stage.answered(await stage.say(discord.bob, KNOWN, channel=discord.general))
    assert len(discord.said_by_bot()) == answers + 1
    assert stage.seen.all_of(CapturedPair) == []
    discord.violations.clear()  # the junk


@pytest.mark.rest
@pytest.mark.parametrize("strangers", [2, 40])
async def test_a_reply_in_a_thread_of_a_hundred_replies_costs_ten_calls_at_most(stage: Stage, strangers: int) -> None:
    discord = stage.discord
    # Authors with unknown roles: each costs a look-up.
    people = [discord.world.new_member(f"stranger {n}") for n in range(strangers)]
    old = [discord.acts.post(discord.help.id, people[n % strangers], f"Before {n}.") for n in range(120)]
    thread = await discord.create_thread("Long", author=discord.alice, message=old[60])
    said = [discord.acts.post(thread.id, discord.alice, UNKNOWN)]
    for n in range(100):
        place = {"message_id": (said if n % 3 else old)[n % len(said) if n % 3 else n].id}
        if not n % 3:
            place["channel_id"] = discord.help.id
        stage.clock.turn(seconds=70)
        said.append(
            discord.acts.post(thread.id, people[n % strangers], f"Like {n}?", reply_to=place if n % 3 else None)
        )
    async with stage.up():
        before = len(discord.requests)
        await stage.say(discord.tess, "Raise the quota.", channel=thread, reply_to=said[50])
        pair = await stage.captured("Raise the quota.")
        read = [request.path for request in discord.requests[before:] if request.method == "GET"]
        read = [path for path in read if not path.endswith("/archived/public")]  # the start's own, which takes its time
        assert len(pair.turns) > 100
        assert 0 < len(read) <= 10, read


@pytest.mark.rest
async def test_a_restart_knows_the_team_again_however_many_wrote_in_a_thread(stage: Stage) -> None:
    discord = stage.discord
    team = [discord.world.new_member(f"helper {n}", roles=[discord.team_role.id]) for n in range(20)]
    thread = await discord.create_thread("Quota", author=discord.alice, message=await stage.say(discord.alice, UNKNOWN))
    async with stage.up():
        for n, helper in enumerate(team):
            await stage.say(helper, f"Step {n}.", channel=thread)
        await stage.captured("Step 19.")
    async with stage.up():
        before = len(discord.requests)
        await stage.say(discord.tess, "Raise the quota.", channel=thread)
        pair = await stage.captured("Raise the quota.")
        looked_up = [each.path for each in discord.requests[before:] if "/members/" in each.path]
    assert [turn.speaker for turn in pair.turns] == ["User", *["Team"] * 21]
    assert len(looked_up) <= 1, looked_up  # people who asked before the first start


# Edits and deletions after the fact.


async def test_a_captured_message_that_is_edited_is_captured_anew_and_one_that_is_deleted_is_withdrawn(
    stage: Stage,
) -> None:
    discord = stage.discord
    async with stage.up():
        question = await stage.say(discord.alice, UNKNOWN)
        answer = await stage.say(discord.tess, "Raise the qota.", reply_to=question)
        first = await stage.captured("Raise the qota.")
        stage.clock.turn(seconds=5)
        await discord.edit(answer, "Raise the quota.")
        second = await stage.captured("Raise the quota.")
        assert second.replaces == first.qa_id
        await discord.delete(answer)
        await stage.seen.one_of(MessagesWithdrawn, where=lambda withdrawn: str(answer.id) in withdrawn.message_ids)
    decisions = (stage.folder / "team-knowledge" / "decisions.jsonl").read_text()
    assert f'"{answer.id}"' in decisions
    assert "Raise the qota." in "".join(p.read_text() for p in (stage.folder / "team-knowledge/raw").iterdir())


# Refusals of Discord.


@pytest.mark.rest
@pytest.mark.parametrize("status", [401, 403])
async def test_a_team_reply_whose_question_discord_refuses_to_show_for_a_while_is_captured_then(
    stage: Stage, status: int
) -> None:
    discord = stage.discord
    async with stage.up():
        question = await stage.say(discord.alice, UNKNOWN)
        await stage.seen.one_of(AnswerResult)
        discord.fail_next("GET", MESSAGES, status=status, code=50001, message="as the test asked")
        await stage.say(discord.tess, "Ask the billing team to lift it.", reply_to=question)
        captured = await stage.seen.one_of(CapturedPair)
    assert [turn.text for turn in captured.turns] == [UNKNOWN, "Ask the billing team to lift it."]


@pytest.mark.rest
async def test_who_calls_the_bot_where_no_thread_can_be_opened_is_told_so_in_place(stage: Stage) -> None:
    discord = stage.discord
    async with stage.up():
        for text in (f"{discord.bot.mention} {KNOWN}", KNOWN):
            discord.fail_next(
                "POST", "/channels/*/messages/*/threads", status=400, code=50024, message="Cannot execute action"
            )
            question = await stage.say(discord.bob, text)
            outcome = await stage.over(question)
            assert outcome == "refused"
        asked = await double.why(discord, discord.tess, question.id)
        await discord.until(lambda: double.shown(asked))
        assert "refused the reply, or a thread" in double.shown(asked)[0]
    assert [(said.content, said.channel_id) for said in discord.said_by_bot()] == [(WORDING.unposted, discord.help.id)]
    assert discord.threads() == []


# Finding A9.
@pytest.mark.rest
async def test_a_refusal_that_passes_by_itself_only_delays_the_answer(stage: Stage) -> None:
    discord = stage.discord
    async with stage.up():
        discord.fail_next("POST", MESSAGES, status=403, code=40333, message="internal network error")
        question = await stage.say(discord.bob, f"{discord.bot.mention} {KNOWN}")
        assert await stage.over(question) == "posted"
        assert "7480" in await stage.answered(question)


# Finding A9.
@pytest.mark.rest
async def test_who_calls_the_bot_whose_reply_is_refused_is_told_so_in_place(stage: Stage) -> None:
    discord = stage.discord
    async with stage.up():
        for text in (f"{discord.bot.mention} {KNOWN}", KNOWN):
            discord.fail_next("POST", MESSAGES, status=400, code=200000, message="blocked by automatic moderation")
            question = await stage.say(discord.bob, text)
            assert await stage.over(question) == "refused"
    assert discord.threads() == []
    assert [(said.content, said.channel_id) for said in discord.said_by_bot()] == [(WORDING.unposted, discord.help.id)]


@pytest.mark.rest
async def test_an_answer_whose_document_changed_is_edited_to_a_note(stage: Stage) -> None:
    async with stage.up(kb={"scan_interval_seconds": 1}, ai={"retract": True}):
        question = await stage.say(stage.discord.alice, KNOWN)
        assert "7480" in await stage.answered(question)
        assert await stage.over(question) == "posted"
        document = stage.folder / "knowledge-base" / "sources" / "ports.md"
        document.write_text("# Ports\n\nThe relay listens on port 9000 from now on.\n")
        looks = len(stage.seen.all_of(RefreshReport))
        while stage.said_to(question) != [WORDING.retracted]:
            await stage.seen.one_of(RefreshReport, after=looks)
            looks += 1
            stage.clock.turn(minutes=3)
        assert stage.status().outdated_answers == 1
