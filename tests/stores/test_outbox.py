"""The ledger: everything before the first POST, the same parts on every retry, one post for one question."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from hypothesis import given, strategies as st

from intern.core.ids import ChannelId, MessageId, RoleId
from intern.core.messages import Button
from intern.stores.database import Database
from intern.stores.tables.outbox import Outbox, Post, PostPart, make_nonce
from tests.engines import open_database
from tests.worlds import samples
from tests.worlds.clock import HandClock

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

QUESTION = MessageId("1400000000000000001")
CHANNEL = ChannelId("1400000000000000000")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def db(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Database]:
    async with await open_database(tmp_path / "intern.db") as opened:
        yield opened


@pytest.fixture
def ledger(db: Database, clock: HandClock) -> Outbox:
    return Outbox(db, clock=clock)


async def test_all_parts_are_on_disk_before_the_first_post(tmp_path: Path, clock: HandClock) -> None:
    with anyio.fail_after(5):
        async with await open_database(tmp_path / "intern.db") as db:
            begun = await Outbox(db, clock=clock).begin(
                samples.reply(QUESTION, CHANNEL, "new_thread"), ["one", "two\0\n``` ü"]
            )
        async with await open_database(tmp_path / "intern.db") as db:
            assert await Outbox(db, clock=clock).list_unfinished() == (begun,)
    assert begun == Post(
        question_id=QUESTION,
        channel_id=CHANNEL,
        target="new_thread",
        parts=(
            PostPart(n=0, text="one", nonce=make_nonce(QUESTION, 0)),
            PostPart(n=1, text="two\0\n``` ü", nonce=make_nonce(QUESTION, 1)),
        ),
        changed_at=clock.now(),
        covers=(QUESTION,),
    )


async def test_a_post_becomes_a_word_in_its_place_and_keeps_what_it_is_for(ledger: Outbox, clock: HandClock) -> None:
    earlier = MessageId("1399999999999999999")
    with anyio.fail_after(5):
        await ledger.begin(
            samples.reply(
                QUESTION,
                CHANNEL,
                "new_thread",
                covers=[earlier, QUESTION],
                called=True,
                buttons=[Button(custom_id="up", label="up")],
                mention_role=RoleId("5"),
            ),
            ["one", "two"],
        )
        clock.turn(minutes=7)
        word = await ledger.replace_with_notice(QUESTION, ["Not here."], reason="refused", in_place=True)
        assert await ledger.get(earlier) == word
    assert word == Post(
        question_id=QUESTION,
        channel_id=CHANNEL,
        target="in_place",
        parts=(PostPart(n=0, text="Not here.", nonce=make_nonce(QUESTION, 0)),),
        changed_at=clock.now(),
        thread_id=CHANNEL,
        reason="refused",
        covers=(earlier, QUESTION),
        called=True,
        notice=True,
    )


async def test_a_second_begin_gets_what_the_first_one_kept(ledger: Outbox, clock: HandClock) -> None:
    with anyio.fail_after(5):
        first = await ledger.begin(samples.reply(QUESTION, CHANNEL, "new_thread"), ["one", "two"])
        clock.turn(minutes=7)
        assert await ledger.begin(samples.reply(QUESTION, CHANNEL, "in_place"), ["quite another answer"]) == first
        assert await ledger.get(QUESTION) == first


async def test_progress_is_remembered_with_its_time(ledger: Outbox, clock: HandClock) -> None:
    with anyio.fail_after(5):
        await ledger.begin(samples.reply(QUESTION, CHANNEL, "new_thread"), ["one", "two"])
        clock.turn(seconds=1)
        await ledger.save_thread(QUESTION, ChannelId(QUESTION))
        clock.turn(seconds=1)
        await ledger.save_sent_part(QUESTION, 0, MessageId("7"))
        post = await ledger.get(QUESTION)
    assert post is not None
    assert post.thread_id == ChannelId(QUESTION)
    assert [part.message_id for part in post.parts] == ["7", None]
    assert post.changed_at == clock.now()
    assert post.state == "open"


async def test_a_reply_in_place_has_its_thread_from_the_start(ledger: Outbox) -> None:
    with anyio.fail_after(5):
        assert (await ledger.begin(samples.reply(QUESTION, CHANNEL, "in_place"), ["one"])).thread_id == CHANNEL


async def test_only_open_posts_are_unfinished_oldest_first(ledger: Outbox) -> None:
    with anyio.fail_after(5):
        for question in ("9", "10", "8", "11"):
            await ledger.begin(samples.reply(MessageId(question), CHANNEL, "new_thread"), ["one"])
        await ledger.mark_finished(MessageId("10"))
        await ledger.mark_dropped(MessageId("8"), "the team has answered")
        assert [post.question_id for post in await ledger.list_unfinished()] == ["9", "11"]
        dropped = await ledger.get(MessageId("8"))
        assert dropped is not None
        assert (dropped.state, dropped.reason) == ("dropped", "the team has answered")
        assert await ledger.begin(samples.reply(MessageId("8"), CHANNEL, "new_thread"), ["again"]) == dropped


async def test_a_thread_counts_as_answered_once_the_whole_reply_stands_in_it(ledger: Outbox) -> None:
    thread = ChannelId("77")
    with anyio.fail_after(5):
        await ledger.begin(samples.reply(QUESTION, CHANNEL, "new_thread"), ["one"])
        await ledger.save_thread(QUESTION, thread)
        await ledger.save_sent_part(QUESTION, 0, MessageId("7"))
        assert not await ledger.has_answer_in(thread)
        await ledger.mark_finished(QUESTION)
        assert await ledger.has_answer_in(thread)
        assert not await ledger.has_answer_in(CHANNEL), "the channel around the thread is not ours"


async def test_a_notice_does_not_make_a_thread_answered(ledger: Outbox) -> None:
    with anyio.fail_after(5):
        await ledger.begin(samples.reply(QUESTION, CHANNEL, "in_place", notice=True), ["I don't know"])
        await ledger.mark_finished(QUESTION)
        assert not await ledger.has_answer_in(CHANNEL)


async def test_all_that_a_resend_needs_is_on_disk(tmp_path: Path, clock: HandClock) -> None:
    buttons = (Button(custom_id="intern:up:1", emoji="👍"), Button(custom_id="intern:down:1", label="no"))
    with anyio.fail_after(5):
        async with await open_database(tmp_path / "intern.db") as db:
            await Outbox(db, clock=clock).begin(
                samples.reply(QUESTION, CHANNEL, "in_place", notice=True, buttons=buttons, mention_role=RoleId("42")),
                ["one"],
            )
        async with await open_database(tmp_path / "intern.db") as db:
            [post] = await Outbox(db, clock=clock).list_unfinished()
    assert (post.notice, post.buttons, post.mention_role) == (True, buttons, "42")


async def test_every_message_that_a_post_is_for_has_that_post(ledger: Outbox) -> None:
    other = MessageId("1399999999999999999")
    with anyio.fail_after(5):
        begun = await ledger.begin(samples.reply(QUESTION, CHANNEL, "new_thread", covers=[other, QUESTION]), ["one"])
        assert await ledger.get(other) == begun
        assert await ledger.begin(samples.reply(other, CHANNEL, "new_thread"), ["another"]) == begun
        assert not await ledger.is_done(other)
        await ledger.mark_finished(QUESTION)
        assert await ledger.is_done(other)
        assert await ledger.is_done(QUESTION)
        assert not await ledger.is_done(MessageId("7"))


async def test_a_post_that_is_recalled_never_began(ledger: Outbox) -> None:
    other = MessageId("1399999999999999999")
    with anyio.fail_after(5):
        await ledger.delete_unsent(QUESTION)
        await ledger.begin(samples.reply(QUESTION, CHANNEL, "new_thread", covers=[other]), ["one"])
        await ledger.delete_unsent(QUESTION)
        assert await ledger.get(QUESTION) is None
        assert await ledger.get(other) is None
        anew = await ledger.begin(samples.reply(other, CHANNEL, "new_thread", covers=[QUESTION, other]), ["both"])
        assert [part.text for part in anew.parts] == ["both"]
        assert await ledger.get(QUESTION) == anew


async def test_a_post_takes_the_place_of_those_for_a_part_of_its_question_that_nobody_has_seen(
    ledger: Outbox,
) -> None:
    first, second = MessageId("1399999999999999998"), MessageId("1399999999999999999")
    with anyio.fail_after(5):
        await ledger.begin(samples.reply(first, CHANNEL, "new_thread"), ["one"])
        await ledger.begin(samples.reply(second, CHANNEL, "in_place", covers=[first, second]), ["two"])
        begun = await ledger.begin(
            samples.reply(QUESTION, CHANNEL, "new_thread", covers=[first, second, QUESTION]), ["all"]
        )
        assert await ledger.list_unfinished() == (begun,)
        assert set(begun.covers) == {first, second, QUESTION}


@pytest.mark.parametrize("ending", ["thread made", "part sent", "finished", "dropped"])
async def test_a_post_that_somebody_may_have_seen_keeps_its_messages(ledger: Outbox, ending: str) -> None:
    first, second = MessageId("1399999999999999998"), MessageId("1399999999999999999")
    with anyio.fail_after(5):
        await ledger.begin(samples.reply(second, CHANNEL, "new_thread", covers=[first, second]), ["one"])
        match ending:
            case "thread made":
                await ledger.save_thread(second, ChannelId(second))
            case "part sent":
                await ledger.save_sent_part(second, 0, MessageId("7"))
            case "finished":
                await ledger.mark_finished(second)
            case _:
                await ledger.mark_dropped(second, "team_answered")
        older = await ledger.get(second)
        begun = await ledger.begin(
            samples.reply(QUESTION, CHANNEL, "new_thread", covers=[first, second, QUESTION]), ["all"]
        )
        assert begun.covers == (QUESTION,)
        assert await ledger.get(first) == await ledger.get(second) == older


async def test_what_never_began_cannot_go_on(ledger: Outbox) -> None:
    with anyio.fail_after(5):
        assert await ledger.get(QUESTION) is None
        with pytest.raises(LookupError):
            await ledger.mark_finished(QUESTION)
        await ledger.begin(samples.reply(QUESTION, CHANNEL, "new_thread"), ["one"])
        with pytest.raises(LookupError):
            await ledger.save_sent_part(QUESTION, 1, MessageId("7"))


@given(st.text(), st.integers(min_value=0, max_value=10_000))
def test_a_nonce_fits_discord_and_stays_the_same(question: str, n: int) -> None:
    nonce = make_nonce(MessageId(question.encode("utf-8", "replace").decode()), n)
    assert nonce == make_nonce(MessageId(question.encode("utf-8", "replace").decode()), n)
    assert 1 <= len(nonce) <= 25
    assert nonce.isascii()


def test_nonces_tell_parts_and_questions_apart() -> None:
    assert len({make_nonce(MessageId(q), n) for q in ("1", "11", "1/1") for n in (0, 1, 11)}) == 9
