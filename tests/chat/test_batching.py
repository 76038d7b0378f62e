"""Batches: after a long enough pause, an author's messages come out once, in order."""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import UTC, datetime, timedelta

from hypothesis import given, strategies as st

from intern.chat.batching import OpenBatches
from intern.core.flow import Batch, ChannelCaughtUp, MessageBackfilled, MessageCreated, MessageEdited, MessagesDeleted
from intern.core.ids import ChannelId, GuildId, MessageId, UserId
from intern.core.messages import Author, ChatMessage

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)
ALICE = Author(id=UserId("1"), name="alice", type="community_user")
BOB = Author(id=UserId("2"), name="bob", type="community_user")
GENERAL, HELP = ChannelId("10"), ChannelId("11")


def message(
    n: int, *, author: Author = ALICE, channel: ChannelId = GENERAL, at: float | None = None, text: str = ""
) -> ChatMessage:
    """Message `n`, written at second `at` (or `n`)."""
    return ChatMessage(
        id=MessageId(str(1000 + n)),
        guild_id=GuildId("5"),
        channel_id=channel,
        author=author,
        text=text or f"line {n}",
        at=NOON + timedelta(seconds=n if at is None else at),
    )


def created(n: int, *, author: Author = ALICE, channel: ChannelId = GENERAL, at: float | None = None) -> MessageCreated:
    return MessageCreated(message=message(n, author=author, channel=channel, at=at))


def deleted(*ns: int) -> MessagesDeleted:
    return MessagesDeleted(
        guild_id=GuildId("5"), channel_id=GENERAL, message_ids=tuple(MessageId(str(1000 + n)) for n in ns)
    )


def was_read(
    n: int, *, author: Author = ALICE, channel: ChannelId = GENERAL, at: float | None = None
) -> MessageBackfilled:
    return MessageBackfilled(message=message(n, author=author, channel=channel, at=at))


def texts(batches: list[Batch]) -> list[list[str]]:
    return [[message.text for message in batch.messages] for batch in batches]


def test_each_message_of_the_author_restarts_the_wait() -> None:
    batches = OpenBatches(60)
    batches.add(created(0), 0)
    batches.add(created(50), 50)
    assert batches.take_due(60) == []
    assert batches.next_deadline() == 110
    assert texts(batches.take_due(110)) == [["line 0", "line 50"]]
    assert batches.next_deadline() == math.inf


def test_other_authors_and_other_channels_do_not_restart_it() -> None:
    batches = OpenBatches(60)
    batches.add(created(0), 0)
    batches.add(created(30, author=BOB), 30)
    batches.add(created(40, channel=HELP), 40)
    settled = batches.take_due(60)
    assert texts(settled) == [["line 0"]]
    assert settled[0].channel_id == GENERAL
    assert texts(batches.take_due(100)) == [["line 30"], ["line 40"]]


def test_an_edit_changes_the_batch_without_restarting_the_wait() -> None:
    batches = OpenBatches(60)
    batches.add(created(0), 0)
    assert batches.add(MessageEdited(message=message(0, text="better")), 59) is None
    assert texts(batches.take_due(60)) == [["better"]]


def test_an_edit_does_not_change_who_wrote() -> None:
    team = Author(id=UserId("1"), name="alice", type="team_member")
    batches = OpenBatches(60)
    batches.add(created(0, author=team), 0)
    batches.add(MessageEdited(message=message(0, author=ALICE, text="better")), 1)
    [batch] = batches.flush()
    assert batch.author == team
    assert batch.messages[0].author == team


def test_a_deleted_message_leaves_its_batch_and_an_emptied_batch_vanishes() -> None:
    batches = OpenBatches(60)
    for n in (0, 1):
        batches.add(created(n), n)
    batches.add(created(2, author=BOB), 2)
    assert batches.add(deleted(0, 2), 3) is None
    assert texts(batches.take_due(1000)) == [["line 1"]]
    assert batches.next_deadline() == math.inf
    assert batches.flush() == []


def test_what_concerns_settled_messages_is_given_back() -> None:
    batches = OpenBatches(60)
    batches.add(created(0), 0)
    batches.take_due(60)
    batches.add(created(70), 70)
    edit = MessageEdited(message=message(0, text="late"))
    assert batches.add(edit, 71) == edit
    assert batches.add(deleted(0, 70), 72) == deleted(0)


def test_a_message_told_twice_is_one_message() -> None:
    batches = OpenBatches(60)
    batches.add(created(0), 0)
    batches.add(created(0), 30)
    assert texts(batches.take_due(60)) == [["line 0"]]


def test_a_full_batch_settles_at_once_and_the_next_message_opens_another() -> None:
    batches = OpenBatches(60, max_messages=2)
    for n in range(3):
        batches.add(created(n), n)
    assert texts(batches.take_due(2)) == [["line 0", "line 1"]]
    assert texts(batches.take_due(62)) == [["line 2"]]


def test_a_full_batch_can_still_lose_a_message_until_it_is_handed_out() -> None:
    batches = OpenBatches(60, max_messages=2)
    for n in range(2):
        batches.add(created(n), n)
    assert batches.add(deleted(1), 1) is None
    assert texts(batches.take_due(1)) == [["line 0"]]


def test_who_never_pauses_is_heard_out_after_the_greatest_age() -> None:
    batches = OpenBatches(60, max_age=100)
    for n in (0, 50, 99):
        batches.add(created(n), n)
    assert batches.next_deadline() == 100
    assert texts(batches.take_due(100)) == [["line 0", "line 50", "line 99"]]


def test_messages_that_arrive_together_but_were_written_apart_are_two_batches() -> None:
    batches = OpenBatches(60)
    batches.add(created(0, at=0), 0)
    batches.add(created(1, at=3600), 0)
    assert texts(batches.take_due(0)) == [["line 0"]]
    assert texts(batches.take_due(60)) == [["line 1"]]


def test_a_message_after_the_window_opens_a_new_batch_even_if_nobody_looked_meanwhile() -> None:
    batches = OpenBatches(60)
    batches.add(created(0), 0)
    batches.add(created(60), 60)
    assert texts(batches.take_due(60)) == [["line 0"]]


def test_flushing_settles_everything_in_the_order_of_its_deadlines() -> None:
    batches = OpenBatches(60)
    batches.add(created(0), 0)
    batches.add(created(1, author=BOB), 1)
    batches.add(created(2), 2)
    assert texts(batches.flush()) == [["line 1"], ["line 0", "line 2"]]
    assert batches.take_due(math.inf) == []


def test_messages_come_out_in_the_order_of_their_ids_also_when_told_in_another() -> None:
    batches = OpenBatches(60)
    for n in (1, 0):
        batches.add(created(n, at=0), 0)
    assert texts(batches.flush()) == [["line 0", "line 1"]]


def test_what_was_written_long_ago_is_due_once_the_channel_is_read_to_its_end() -> None:
    batches = OpenBatches(60)
    batches.add(was_read(0), 0, age=3600)
    batches.add(was_read(20), 0, age=3580)
    assert batches.take_due(0) == [], "more may come on the next page"
    batches.add(ChannelCaughtUp(channel_id=HELP), 1)
    assert batches.take_due(1) == []
    batches.add(ChannelCaughtUp(channel_id=GENERAL), 1)
    assert texts(batches.take_due(1)) == [["line 0", "line 20"]]
    assert batches.next_deadline() == math.inf


def test_a_window_that_is_still_open_at_the_end_of_reading_stays_open_for_what_is_told_live() -> None:
    batches = OpenBatches(60)
    batches.add(was_read(0), 100, age=20)
    batches.add(ChannelCaughtUp(channel_id=GENERAL), 101)
    assert batches.next_deadline() == 140
    batches.add(created(50), 130)
    assert texts(batches.take_due(190)) == [["line 0", "line 50"]]


def test_what_is_told_live_says_that_reading_is_over() -> None:
    batches = OpenBatches(60)
    batches.add(was_read(0), 100, age=90)
    batches.add(created(95, author=BOB), 105)
    assert texts(batches.take_due(105)) == [["line 0"]]


def test_a_batch_is_due_as_soon_as_the_channel_is_read_past_its_window() -> None:
    batches = OpenBatches(60)
    batches.add(was_read(0), 0, age=1000)
    batches.add(was_read(59, author=BOB), 0, age=941)
    assert batches.take_due(0) == []
    batches.add(was_read(60, author=BOB), 0, age=940)
    assert texts(batches.take_due(0)) == [["line 0"]]


# Findings I5 and I6.
def test_a_batch_says_whether_some_of_it_was_read_from_history() -> None:
    batches = OpenBatches(60)
    batches.add(was_read(0), 100, age=100)
    batches.add(was_read(90), 100, age=10)
    batches.add(created(95, author=BOB), 100)
    batches.add(created(100), 100)
    assert [(texts([each]), each.from_history) for each in batches.flush()] == [
        ([["line 0"]], True),
        ([["line 90", "line 100"]], True),
        ([["line 95"]], False),
    ]


def test_who_never_paused_in_history_is_heard_out_after_the_greatest_age() -> None:
    batches = OpenBatches(60, max_age=100)
    for n in (0, 50, 99, 100):
        batches.add(was_read(n), 0, age=1000 - n)
    batches.add(ChannelCaughtUp(channel_id=GENERAL), 0)
    assert texts(batches.take_due(0)) == [["line 0", "line 50", "line 99"], ["line 100"]]


def test_what_was_read_is_not_held_for_ever_should_nobody_say_that_reading_is_over() -> None:
    batches = OpenBatches(60)
    batches.add(was_read(0), 10, age=1000)
    assert batches.next_deadline() == 70


def test_a_batch_that_was_emptied_while_its_channel_is_read_is_forgotten() -> None:
    batches = OpenBatches(60)
    batches.add(was_read(0), 10, age=1000)
    batches.add(deleted(0), 10)
    assert batches.next_deadline() == math.inf
    assert not batches._past
    assert not batches._open


def test_batches_are_full_at_so_many_messages_and_only_then() -> None:
    batches, full = OpenBatches(60, max_open=2), list[bool]()
    for n, who in enumerate((ALICE, BOB)):
        batches.add(created(n, author=who), n)
        full.append(batches.is_full)
    batches.take_due(60)
    assert [*full, batches.is_full] == [False, True, False]


@given(
    st.lists(
        st.tuples(st.integers(0, 90), st.sampled_from([ALICE, BOB]), st.sampled_from([GENERAL, HELP])), max_size=40
    ),
    st.integers(1, 40),
)
def test_history_forms_the_batches_that_it_would_have_formed_live(
    said: list[tuple[int, Author, ChannelId]], page: int
) -> None:
    live, late = OpenBatches(60, max_messages=5, max_age=200), OpenBatches(60, max_messages=5, max_age=200)
    heard: list[Batch] = []
    later: list[Batch] = []
    written: list[ChatMessage] = []
    now = 0
    for n, (pause, who, where) in enumerate(said):
        now += pause
        written.append(message(n, author=who, channel=where, at=now))
        heard += live.take_due(now)
        live.add(MessageCreated(message=written[-1]), now)
    heard += live.flush()
    # All channels at once, some messages a second.
    for n, each in enumerate(written):
        second = 10_000 + n // page
        age = second - (each.at - NOON).total_seconds()
        late.add(MessageBackfilled(message=each), second, age=age)
        later += late.take_due(second)
    for channel in (GENERAL, HELP):
        late.add(ChannelCaughtUp(channel_id=channel), 10_050)
    later += late.take_due(10_050)
    assert late.next_deadline() == math.inf
    assert not late._past
    assert sorted(texts(later)) == sorted(texts(heard))
    assert {each.from_history for each in later} <= {True}
    assert {each.from_history for each in heard} <= {False}


# A story: after some seconds, a member writes, an earlier message is deleted, or due batches are taken.
_STEPS = st.lists(
    st.tuples(
        st.integers(0, 70),
        st.one_of(
            st.tuples(st.just("say"), st.sampled_from([ALICE, BOB]), st.sampled_from([GENERAL, HELP])),
            st.tuples(st.just("delete"), st.integers(0, 40), st.none()),
            st.tuples(st.just("look"), st.none(), st.none()),
        ),
    ),
    max_size=60,
)


@given(_STEPS)
def test_every_message_comes_out_once_and_in_order_and_not_before_its_author_paused(
    steps: list[tuple[int, tuple[str, object, object]]],
) -> None:
    batches = OpenBatches(60, max_messages=5, max_age=200)
    now = 0
    said: dict[tuple[ChannelId, UserId], list[MessageId]] = defaultdict(list)
    written: dict[MessageId, float] = {}
    came: dict[tuple[ChannelId, UserId], list[MessageId]] = defaultdict(list)
    withdrawn: set[MessageId] = set()

    def take(settled: list[Batch], *, flushed: bool = False) -> None:
        for batch in settled:
            ids = [message.id for message in batch.messages]
            assert ids
            assert len(ids) <= 5
            came[batch.channel_id, batch.author.id] += ids
            lost = any(message_id in withdrawn for message_id in said[batch.channel_id, batch.author.id])
            quiet = now - written[ids[-1]] >= 60
            old = now - written[ids[0]] >= 200
            assert flushed or quiet or old or len(ids) == 5 or lost

    for n, (pause, (what, who, where)) in enumerate(steps):
        now += pause
        if what == "say":
            assert isinstance(who, Author)
            event = created(n, author=who, channel=GENERAL if where == GENERAL else HELP, at=now)
            written[event.message.id] = now
            said[event.message.channel_id, who.id].append(event.message.id)
            batches.add(event, now)
        elif what == "delete":
            assert isinstance(who, int)
            gone = deleted(who)
            if batches.add(gone, now) is None:
                withdrawn.update(gone.message_ids)
        else:
            assert batches.next_deadline() >= 0
            take(batches.take_due(now))
            assert batches.next_deadline() > now
    take(batches.flush(), flushed=True)
    for key, ids in said.items():
        assert came[key] == [message_id for message_id in ids if message_id not in withdrawn]
    assert batches.next_deadline() == math.inf
