"""The questions of members through the application: their stored data, and gaps that are answered and forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio import fail_after

from intern.core.captures import CapturedPair
from intern.core.errors import ConfigError
from intern.core.ids import GuildId, MessageId, RoleId, UserId
from intern.core.messages import AnswerResult, Conversation, MemberRoles, Message
from intern.learning.forgetting import ForgetRequest
from intern.service.databases import open_database
from intern.service.job_kinds import FORGET
from intern.service.opening import open_intern
from intern.service.questions import QuestionFilter
from intern.settings.settings import Settings
from intern.stores.tables.answers import AnswerStore
from intern.stores.tables.members import NameStore, RoleStore
from tests.worlds import samples
from tests.worlds.bot import Watching, at_work, settings_in
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock

pytestmark = pytest.mark.anyio

CLOCK = HandClock()
TESS = UserId("990")


def holding(folder: Path, word: bytes) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and word in path.read_bytes()]


async def asked(settings: Settings, *texts: str, reason: str = "no_sources") -> list[MessageId]:
    """Note questions as the bot does; the first message of each is a greeting of its own."""
    ids = list[MessageId]()
    async with await open_database(settings) as db:
        records = AnswerStore(db, clock=CLOCK)
        for n, text in enumerate(texts):
            both = samples.message("Hello numbats.", n=2 * n), samples.message(text, n=2 * n + 1)
            await samples.save_question(records, both, reason)
            ids.append(both[1].id)
    return ids


async def test_the_bot_keeps_what_it_answered_or_looked_for_and_what_called_it_but_no_chatter(tmp_path: Path) -> None:
    sandbox, events = Sandbox(CLOCK, team={"mira"}), Watching()
    said = (
        "Which port does the relay listen on?",
        "How are numbats groomed in a data centre?",
        "good morning all",
        f"<@{sandbox.bot.id}> thanks a lot!",
        f"<@{sandbox.bot.id}> the numbats and their spool",
    )
    async with at_work(tmp_path, sandbox, events):
        for n, text in enumerate(said):
            sandbox.say(f"member{n}", text)
            await events.one_of(AnswerResult, after=n)
    async with open_intern(settings_in(tmp_path), clock=CLOCK) as intern:
        found = await intern.questions.find(QuestionFilter())
    kept = {line.question.text: line.question for line in found.rows}
    assert set(kept) == {said[0], said[1], "@… the numbats and their spool"}
    assert [kept[text].reason == "" for text in said[:2]] == [True, False]
    assert kept[said[0]].seconds > 0
    assert kept[said[0]].place == "general"


async def test_an_answered_gap_answers_the_next_member_and_is_forgotten_with_its_asker(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, team_member_ids=[TESS])
    first, _, other = await asked(
        settings, "How do I groom a quokka?", "how is a quokka groomed", "Is there a dark mode?"
    )
    async with open_intern(settings, clock=CLOCK) as intern:
        with fail_after(20):
            await intern.questions.answer_gap(first, "Brush the quokka weekly.", TESS)
            left = await intern.questions.gaps(9)
            assert [[each.question_id for each in group] for group in left.groups] == [[other]]
            with pytest.raises(ConfigError, match="no gap any more"):
                await intern.questions.close_gap(first)
            result = await intern.answer(Conversation((Message(role="user", text="How do I groom a quokka?"),)))
            assert "Brush the quokka weekly." in (result.reply_text or "")
            await intern.questions.close_gap(other)
            assert (await intern.questions.gaps(9)).total == 0
            await intern.run_job(FORGET, ForgetRequest(user_id=samples.author().id, erase=True))
            assert (await intern.questions.find(QuestionFilter())).total == 0
            assert await intern.search("quokka") == ()
    assert holding(tmp_path, b"Hello numbats") == holding(tmp_path, b"groom a quokka") == []


# Finding B14.
async def test_a_gap_is_answered_by_name_where_the_team_is_known_by_its_role_only(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, team_role_ids=["7"])
    gap, *_ = await asked(settings, "How do I groom a quokka?", "Is there a dark mode?")
    now, last_week, new, other = (UserId(each) for each in ("991", "992", "993", "994"))
    async with await open_database(settings) as db:
        names = NameStore(db)
        await names.add([(now, ["Mira"]), (last_week, ["Tess"]), (other, ["Alice"])])
        await names.add([(now, ["Mira"]), (last_week, ["Tess"])], {now, last_week})
        seen = ((new, "7"), (other, "8"), (now, "7"))
        await RoleStore(db, clock=CLOCK).save([MemberRoles(GuildId("1"), who, (RoleId(role),)) for who, role in seen])
    async with open_intern(settings, clock=CLOCK) as intern:
        with fail_after(20):
            assert (await intern.questions.gaps(9)).team == {"993": new, "Mira": now, "Tess": last_week}
            await RoleStore(intern._db, clock=CLOCK).save([MemberRoles(GuildId("1"), now, (RoleId("8"),))])
            with pytest.raises(ConfigError, match="a member of the team"):
                await intern.questions.answer_gap(gap, "Brush it.", "Mira")
            await intern.questions.answer_gap(gap, "Brush the quokka weekly.", "Tess")
            result = await intern.answer(Conversation((Message(role="user", text="How do I groom a quokka?"),)))
            assert "Brush the quokka weekly." in (result.reply_text or "")


# Finding B14.
async def test_who_answered_as_the_team_on_discord_is_known_by_name(tmp_path: Path) -> None:
    sandbox, events = Sandbox(CLOCK, team={"mira", "tess"}), Watching()
    async with at_work(tmp_path, sandbox, events, team_role_ids=["7"]):
        question = sandbox.say("bob", "My quokkas are rejected because of a clock skew, what now?")
        sandbox.say("mira", "Run `lumen-relay agents reset-skew` first.", reply_to=question.id)
        await events.one_of(CapturedPair)
    async with open_intern(settings_in(tmp_path, team_role_ids=["7"]), clock=CLOCK) as intern:
        assert (await intern.questions.gaps(9)).team == {"mira": sandbox.author("mira").id}


async def test_a_gap_whose_question_was_deleted_meanwhile_is_not_captured(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, team_member_ids=[TESS])
    [question] = await asked(settings, "How do I groom a quokka?")
    async with open_intern(settings, clock=CLOCK) as intern:
        with fail_after(20):
            await intern.questions.gaps(9)
            await intern.run_job(FORGET, ForgetRequest(message_ids=(question,)))
            with pytest.raises(ConfigError, match="no gap any more"):
                await intern.questions.answer_gap(question, "Brush it.", TESS)


async def test_what_the_team_answers_on_discord_is_no_gap_any_more(tmp_path: Path) -> None:
    sandbox, events = Sandbox(CLOCK, team={"mira"}), Watching()
    async with at_work(tmp_path, sandbox, events):
        question = sandbox.say("bob", "My quokkas are rejected because of a clock skew, what now?")
        assert (await events.one_of(AnswerResult)).reason
        sandbox.say("mira", "Run `lumen-relay agents reset-skew` first.", reply_to=question.id)
    async with open_intern(settings_in(tmp_path), clock=CLOCK) as intern:
        assert (await intern.questions.gaps(9)).total == 0
        assert (await intern.questions.find(QuestionFilter(answered=False))).total == 1
