"""Checkpoints: no message in Discord's history is skipped or begun twice, and no mark passes messages in work."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from intern.chat.checkpoints import DISORDER, LAG, PLENTY, BackfillPage, Checkpoints, PendingThreadListing
from intern.core.flow import ChannelSnapshot, SessionStarted
from intern.core.ids import ChannelId, GuildId, MessageId, UserId, position_at
from intern.core.messages import Author, Channel, ChannelKind, ChatMessage, Page
from intern.stores.tables.checkpoints import Checkpoint, StoredCheckpoints
from tests.worlds.chat import mark_of

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)
GUILD = GuildId("5")
ALICE = Author(id=UserId("1"), name="alice", type="community_user")
GENERAL, HELP, THREAD = ChannelId("10"), ChannelId("11"), ChannelId("12")
BASELINE = position_at(NOON).id


def snowflake(seconds: float) -> MessageId:
    return position_at(NOON + timedelta(seconds=seconds)).id


def message(
    seconds: float, *, channel: ChannelId = GENERAL, guild: GuildId | None = GUILD, text: str = ""
) -> ChatMessage:
    """Make a message written so many seconds after noon."""
    return ChatMessage(
        id=snowflake(seconds), guild_id=guild, channel_id=channel, author=ALICE, text=text, at=NOON
    )  # fmt: skip


def seen(channel_id: ChannelId, newest: MessageId | None, kind: ChannelKind = "channel") -> ChannelSnapshot:
    place = Channel(id=channel_id, guild_id=GUILD, kind=kind, parent_id=GENERAL if kind == "thread" else None)
    return ChannelSnapshot(channel=place, last_message_id=newest)


def session(*channels: ChannelSnapshot) -> SessionStarted:
    return SessionStarted(guild_id=GUILD, channels=channels)


def page(*messages: ChatMessage, more: bool = False, read_to: MessageId | None = None) -> Page:
    return Page(messages=messages, read_to=read_to or (messages[-1].id if messages else MessageId("0")), more=more)


def attending(*channels: ChannelSnapshot, marks: StoredCheckpoints | None = None) -> Checkpoints:
    """Return checkpoints in a session, with all archived threads listed."""
    checkpoints = Checkpoints(marks or StoredCheckpoints(attended={GUILD: BASELINE}), baseline=BASELINE)
    checkpoints.begin_session(session(*channels))
    for listing in checkpoints.find_unlisted():
        checkpoints.record_threads(listing, ())
    return checkpoints


def read(checkpoints: Checkpoints, channel_id: ChannelId, *pages: Page) -> list[ChatMessage]:
    """Read pages as backfill does, and return the begun messages."""
    begun: list[ChatMessage] = []
    for each in pages:
        with checkpoints.open_page(channel_id) as reading:
            reading.accept_page(each)
            begun += [one for one in each.messages if checkpoints.begin(one)]
            checkpoints.finish_page(reading)
    return begun


# Unfinished work.


def test_quiet_channels_leave_nothing_to_do_though_their_marks_stand_still() -> None:
    checkpoints = attending(seen(GENERAL, None), seen(HELP, snowflake(-100)))
    asked = message(3600)
    assert checkpoints.begin(asked)
    assert checkpoints.count_unfinished() == (1, asked.id, 0)
    checkpoints.settle(GENERAL, [asked.id])
    assert int(mark_of(checkpoints, HELP)) <= int(BASELINE)
    assert checkpoints.count_unfinished() == (0, None, 0)


def test_the_oldest_message_in_work_is_told_whatever_its_channel_and_server() -> None:
    checkpoints = attending()
    later, first, private = message(5), message(2, channel=HELP), message(9, guild=None, channel=ChannelId("77"))
    for each in (later, message(3, channel=HELP), first, private):
        assert checkpoints.begin(each)
    assert checkpoints.count_unfinished() == (4, first.id, 0)
    checkpoints.settle(HELP, [first.id, snowflake(3)])
    assert checkpoints.count_unfinished() == (2, later.id, 0)


def test_a_channel_that_is_behind_or_whose_threads_are_not_listed_may_hold_what_is_unread() -> None:
    checkpoints = Checkpoints(StoredCheckpoints(attended={GUILD: BASELINE}), baseline=BASELINE)
    assert checkpoints.count_unfinished() == (0, None, 0)
    checkpoints.begin_session(session(seen(GENERAL, snowflake(1)), seen(HELP, None)))
    assert checkpoints.count_unfinished() == (0, None, 2)
    for listing in checkpoints.find_unlisted():
        checkpoints.record_threads(listing, ())
    assert checkpoints.count_unfinished() == (0, None, 1)
    (missed,) = read(checkpoints, GENERAL, page(message(1)))
    assert checkpoints.count_unfinished() == (1, missed.id, 0)
    checkpoints.settle(GENERAL, [missed.id])
    assert checkpoints.count_unfinished() == (0, None, 0)


# Checkpoints.


def test_a_mark_stays_below_the_oldest_message_in_work_whatever_is_settled_above_it() -> None:
    checkpoints = attending()
    first, second, third = message(1), message(2), message(3)
    for each in (first, second, third):
        assert checkpoints.begin(each)
    assert int(mark_of(checkpoints, GENERAL)) < int(first.id)
    checkpoints.settle(GENERAL, [third.id])
    assert int(mark_of(checkpoints, GENERAL)) < int(first.id)
    checkpoints.settle(GENERAL, [first.id])
    assert int(first.id) <= int(mark_of(checkpoints, GENERAL)) < int(second.id)
    checkpoints.settle(GENERAL, [second.id])
    assert mark_of(checkpoints, GENERAL) == third.id


def test_only_marks_that_moved_are_told() -> None:
    checkpoints = attending()
    checkpoints.begin(message(1))
    checkpoints.collect_moved()
    assert checkpoints.collect_moved() == StoredCheckpoints()
    checkpoints.settle(GENERAL, [message(1).id])
    assert checkpoints.collect_moved() == StoredCheckpoints(
        channels={GENERAL: Checkpoint(guild_id=GUILD, settled_to=message(1).id)}
    )
    assert checkpoints.collect_moved() == StoredCheckpoints()


def test_a_message_is_begun_once_before_and_after_it_is_settled_and_after_a_restart() -> None:
    checkpoints = attending()
    assert checkpoints.begin(message(1))
    assert not checkpoints.begin(message(1))
    checkpoints.settle(GENERAL, [message(1).id])
    assert not checkpoints.begin(message(1))
    again = Checkpoints(
        StoredCheckpoints(attended={GUILD: BASELINE}).merge(checkpoints.collect_moved()), baseline=BASELINE
    )
    assert not again.begin(message(1))
    assert mark_of(again, GENERAL) == message(1).id
    assert again.collect_moved() == StoredCheckpoints()


def test_messages_out_of_order_are_begun_and_hold_the_mark() -> None:
    checkpoints = attending()
    checkpoints.begin(message(2))
    checkpoints.settle(GENERAL, [message(2).id])
    assert checkpoints.begin(message(1))
    assert int(mark_of(checkpoints, GENERAL)) < int(message(1).id)
    checkpoints.settle(GENERAL, [message(1).id])
    assert mark_of(checkpoints, GENERAL) == message(2).id


def test_a_mark_that_went_back_to_where_its_server_stands_is_told() -> None:
    checkpoints = attending()
    checkpoints.begin(message(1000))
    checkpoints.settle(GENERAL, [message(1000).id])
    kept = StoredCheckpoints(attended={GUILD: BASELINE}).merge(checkpoints.collect_moved())
    assert checkpoints.begin(message(999)), "told out of order"
    checkpoints.begin(message(1700, channel=HELP))
    checkpoints.settle(HELP, [message(1700, channel=HELP).id])
    kept = kept.merge(checkpoints.collect_moved())
    assert BASELINE < kept.attended[GUILD] < message(999).id
    again = Checkpoints(kept, baseline=BASELINE)
    assert again.begin(message(999)), "it was not settled"


def test_settling_what_is_not_in_work_does_no_harm() -> None:
    checkpoints = attending()
    checkpoints.settle(GENERAL, [message(1).id])
    assert checkpoints.begin(message(1))


# Memory.


@pytest.mark.rest
def test_what_is_remembered_does_not_grow_with_messages() -> None:
    checkpoints = attending()
    for second in range(10_000):
        place = ChannelId(str(100 + second // 10))
        checkpoints.begin(message(second, channel=place))
        checkpoints.settle(place, [message(second).id])
        checkpoints.collect_moved()
    assert len(checkpoints._channels) <= LAG.total_seconds() / 10 + 2
    assert max(len(channel.done) for channel in checkpoints._channels.values()) <= DISORDER.total_seconds() + 1


def test_channels_that_their_server_has_passed_are_told_no_more_and_stand_where_it_does() -> None:
    checkpoints = attending()
    for second in (1, 1000):
        checkpoints.begin(message(second))
        checkpoints.settle(GENERAL, [message(second).id])
    checkpoints.begin(message(2000, channel=HELP))
    checkpoints.settle(HELP, [message(2000).id])
    moved = checkpoints.collect_moved()
    assert list(moved.channels) == [HELP]
    assert int(message(1000).id) < int(moved.attended[GUILD]) < int(message(2000).id)
    assert not checkpoints.begin(message(1000))
    assert checkpoints.begin(message(2001))


def test_a_server_moves_on_only_when_nobody_can_wake_up_a_thread_unheard_any_more() -> None:
    checkpoints = attending()
    for second in (1000, 1001):
        checkpoints.begin(message(second))
    checkpoints.begin_session(session(seen(GENERAL, None)))
    [listing] = checkpoints.find_unlisted()
    checkpoints.record_threads(listing, ())
    checkpoints.begin(message(2000))
    checkpoints.settle(GENERAL, [message(second).id for second in (1000, 1001, 2000)])
    assert GUILD not in checkpoints.collect_moved().attended
    checkpoints.begin(message(2601))
    assert GUILD in checkpoints.collect_moved().attended


def test_a_server_moves_on_though_no_session_lasts_as_long_as_another_channel_may_be_silent() -> None:
    checkpoints = attending()
    for second in range(1, 3601, 100):
        if second % 300 == 1:
            checkpoints.begin_session(session(seen(GENERAL, None)))
            for listing in checkpoints.find_unlisted():
                checkpoints.record_threads(listing, ())
        checkpoints.begin(message(second))
        checkpoints.settle(GENERAL, [message(second).id])
        checkpoints.collect_moved()
    assert mark_of(checkpoints, HELP, GUILD) == snowflake(3501 - 600)


def test_a_server_does_not_pass_what_a_thread_missed_that_woke_up_untold_before_the_listing() -> None:
    checkpoints = attending(marks=StoredCheckpoints(attended={GUILD: BASELINE}))
    checkpoints.begin_session(session(seen(GENERAL, message(7200).id)))
    read(checkpoints, GENERAL, page(message(7200)))
    checkpoints.settle(GENERAL, [message(7200).id])
    missed, woke_up = message(3600, channel=THREAD), message(7201, channel=THREAD)
    for listing in checkpoints.find_unlisted():
        checkpoints.record_threads(listing, ())  # without the thread, which is not archived any more
    for second in (7202, 7203, 7262):
        checkpoints.begin(message(second))
        checkpoints.settle(GENERAL, [message(second).id])
        checkpoints.collect_moved()
    checkpoints.fall_behind(woke_up)
    assert read(checkpoints, THREAD, page(missed, woke_up)) == [missed, woke_up]


@pytest.mark.parametrize("hold", ["in work", "behind", "unlisted", "no session"])
def test_a_server_passes_nothing_that_is_not_done(hold: str) -> None:
    checkpoints = Checkpoints(StoredCheckpoints(attended={GUILD: BASELINE}), baseline=BASELINE)
    if hold != "no session":
        checkpoints.begin_session(session(seen(HELP, None), seen(GENERAL, message(1).id if hold == "behind" else None)))
    if hold != "unlisted":
        for listing in checkpoints.find_unlisted():
            checkpoints.record_threads(listing, ())
    if hold == "in work":
        checkpoints.begin(message(1))
    for second in (2000, 5000):
        checkpoints.begin(message(second, channel=HELP))
        checkpoints.settle(HELP, [message(second).id])
    assert int(checkpoints.collect_moved().attended.get(GUILD, BASELINE)) < int(message(1).id)


def test_what_rest_shows_tells_nothing_of_other_channels() -> None:
    checkpoints = attending(seen(GENERAL, message(5000).id))
    read(checkpoints, GENERAL, page(message(2000), message(5000)))
    checkpoints.settle(GENERAL, [message(2000).id, message(5000).id])
    assert GUILD not in checkpoints.collect_moved().attended
    assert checkpoints.begin(message(1, channel=HELP)), "the gateway tells of it late"


def test_private_messages_are_begun_once_and_not_written_down() -> None:
    checkpoints = attending()
    note = message(1, guild=None)
    assert checkpoints.is_live(note)
    assert checkpoints.begin(note)
    assert not checkpoints.begin(note)
    checkpoints.settle(GENERAL, [note.id])
    assert checkpoints.collect_moved() == StoredCheckpoints()


# Live and behind.


def test_a_new_session_puts_channels_behind_whose_newest_message_is_past_their_mark() -> None:
    marks = StoredCheckpoints(
        attended={GUILD: BASELINE}, channels={HELP: Checkpoint(guild_id=GUILD, settled_to=message(9).id)}
    )
    checkpoints = Checkpoints(marks, baseline=BASELINE)
    checkpoints.begin_session(
        session(seen(GENERAL, message(3).id), seen(HELP, message(9).id), seen(ChannelId("13"), None))
    )
    assert checkpoints.channels_behind() == (GENERAL,)


def test_a_live_event_while_the_last_page_is_in_flight_leaves_no_gap() -> None:
    checkpoints = attending(seen(GENERAL, message(1).id))
    with checkpoints.open_page(GENERAL) as reading:
        assert not checkpoints.is_live(message(2))
        assert not checkpoints.fall_behind(message(2)), "it was behind already"
        reading.accept_page(page(message(1)))
        checkpoints.begin(message(1))
        assert not checkpoints.finish_page(reading)
    assert read(checkpoints, GENERAL, page(message(2))) == [message(2)]
    assert checkpoints.is_live(message(3))


def test_a_newest_message_that_is_deleted_does_not_keep_a_channel_behind() -> None:
    checkpoints = attending(seen(GENERAL, message(5).id))
    assert read(checkpoints, GENERAL, page(message(1))) == [message(1)]
    assert not checkpoints.is_behind(GENERAL)
    checkpoints.settle(GENERAL, [message(1).id])
    assert mark_of(checkpoints, GENERAL) == message(5).id


def test_a_page_of_system_messages_is_not_the_end() -> None:
    checkpoints = attending(seen(GENERAL, message(5).id))
    read(checkpoints, GENERAL, page(read_to=message(4).id, more=True))
    assert checkpoints.is_behind(GENERAL)
    with checkpoints.open_page(GENERAL) as reading:
        assert reading.after == message(4).id


def test_a_page_that_leads_nowhere_is_the_last_whatever_it_says() -> None:
    checkpoints = attending(seen(GENERAL, message(5).id))
    read(checkpoints, GENERAL, page(more=True))
    assert not checkpoints.is_behind(GENERAL)


def test_a_message_without_room_comes_back_from_history_with_those_after_it() -> None:
    checkpoints = attending()
    checkpoints.begin(message(1))
    checkpoints.settle(GENERAL, [message(1).id])
    assert checkpoints.fall_behind(message(2))
    assert mark_of(checkpoints, GENERAL) == message(1).id
    assert not checkpoints.fall_behind(message(3))
    assert read(checkpoints, GENERAL, page(message(1), message(2), message(3))) == [message(2), message(3)]


def test_an_older_message_told_after_its_page_was_made_is_read_by_another_page() -> None:
    checkpoints = attending(seen(GENERAL, message(3).id))
    with checkpoints.open_page(GENERAL) as reading:
        reading.accept_page(page(message(1), message(3)))
        assert checkpoints.begin(message(1))
        checkpoints.fall_behind(message(2))
        assert checkpoints.begin(message(3))
        checkpoints.settle(GENERAL, [message(1).id, message(3).id])
        assert int(mark_of(checkpoints, GENERAL)) < int(message(2).id)
        assert not checkpoints.finish_page(reading)
    assert read(checkpoints, GENERAL, page(message(1), message(2), message(3))) == [message(2)]
    assert not checkpoints.is_behind(GENERAL)


def test_an_older_message_told_between_two_pages_is_gone_back_for() -> None:
    checkpoints = attending(seen(GENERAL, message(9).id))
    assert read(checkpoints, GENERAL, page(message(1), message(3), more=True)) == [message(1), message(3)]
    checkpoints.fall_behind(message(2))
    with checkpoints.open_page(GENERAL) as reading:
        assert int(reading.after) < int(message(2).id)


def test_an_older_message_is_begun_however_far_the_page_went_that_missed_it() -> None:
    checkpoints = attending(seen(GENERAL, message(1).id))
    read(checkpoints, GENERAL, page(message(1)))
    checkpoints.fall_behind(message(2))
    with checkpoints.open_page(GENERAL) as reading:
        checkpoints.fall_behind(message(0.9))
        reading.accept_page(page(message(1), message(2), message(100)))
        assert [checkpoints.begin(message(second)) for second in (2, 100)] == [True, True]
        checkpoints.finish_page(reading)
    missed = page(message(0.9), message(1), message(2), message(100))
    assert read(checkpoints, GENERAL, missed) == [message(0.9)]


def test_a_mark_stays_below_an_older_message_that_the_page_does_not_reach() -> None:
    checkpoints = attending(seen(GENERAL, message(1).id))
    read(checkpoints, GENERAL, page(message(1)))
    for second in (1, 4):
        checkpoints.begin(message(second))
        checkpoints.settle(GENERAL, [message(second).id])
    checkpoints.fall_behind(message(3))
    read(checkpoints, GENERAL, page(message(1), message(2), more=True))
    checkpoints.settle(GENERAL, [message(2).id])
    assert int(mark_of(checkpoints, GENERAL)) < int(message(3).id)
    assert read(checkpoints, GENERAL, page(message(3), message(4))) == [message(3)]


def test_what_changes_while_its_page_is_in_flight_is_read_again() -> None:
    checkpoints = attending(seen(GENERAL, message(2).id))
    with checkpoints.open_page(GENERAL) as reading:
        assert checkpoints.note_change(GENERAL, message(2).id)
        reading.accept_page(page(message(1), message(2)))
        assert not reading.is_stale(message(1))
        assert checkpoints.begin(message(1))
        assert reading.is_stale(message(2))
    assert not checkpoints.note_change(GENERAL, message(1).id), "it was begun, so its actor must receive the change"
    edited = message(2, text="better")
    assert read(checkpoints, GENERAL, page(message(1), edited)) == [edited]
    assert not checkpoints.note_change(GENERAL, message(2).id)


def test_a_new_session_looks_a_little_back_should_an_older_message_not_have_been_told() -> None:
    checkpoints = attending(seen(GENERAL, None))
    checkpoints.begin(message(2))
    checkpoints.begin_session(session(seen(GENERAL, message(2).id)))
    assert read(checkpoints, GENERAL, page(message(1), message(2))) == [message(1)]
    assert not checkpoints.is_behind(GENERAL)


def test_a_new_session_does_not_look_back_where_the_last_one_went_on_for_a_minute() -> None:
    checkpoints = attending(seen(GENERAL, None), seen(HELP, None))
    checkpoints.begin(message(2))
    checkpoints.begin(message(2 + PLENTY.total_seconds(), channel=HELP))
    checkpoints.begin_session(session(seen(GENERAL, message(2).id)))
    assert checkpoints.channels_behind() == ()
    checkpoints.begin_session(session(seen(GENERAL, message(3).id)))
    assert checkpoints.channels_behind() == (GENERAL,)
    assert read(checkpoints, GENERAL, page(message(1), message(2), message(3))) == [message(1), message(3)]


def test_an_old_message_that_no_session_told_of_is_read_however_much_was_told_since() -> None:
    checkpoints = attending(seen(HELP, None))
    checkpoints.begin(message(500, channel=HELP))
    checkpoints.begin_session(
        session(seen(HELP, message(500).id), seen(GENERAL, message(2).id))
    )  # it was hidden from us
    assert GENERAL in checkpoints.channels_behind()


def test_what_a_new_session_tells_is_no_word_of_what_the_last_one_left_out_of_an_archived_thread() -> None:
    checkpoints = attending(seen(GENERAL, None), seen(HELP, None), seen(THREAD, None, "thread"))
    checkpoints.begin(message(2, channel=THREAD))
    for seconds in (100, 200):  # the second session is lost, too, before its archived threads are listed
        checkpoints.begin_session(session(seen(GENERAL, None), seen(HELP, None)))
        checkpoints.begin(message(seconds, channel=HELP))
    [general] = [listing for listing in checkpoints.find_unlisted() if listing.channel_id == GENERAL]
    checkpoints.record_threads(general, [seen(THREAD, message(2).id, "thread")])
    assert checkpoints.channels_behind() == (THREAD,)


def test_a_change_to_a_message_that_was_missed_on_a_page_is_read_with_it() -> None:
    checkpoints = attending(seen(GENERAL, message(3).id))
    with checkpoints.open_page(GENERAL) as reading:
        reading.accept_page(page(message(3)))
        checkpoints.begin(message(3))
        checkpoints.fall_behind(message(2))
    with checkpoints.open_page(GENERAL) as reading:
        assert reading.after < message(2).id
        assert checkpoints.note_change(GENERAL, message(2).id)
        reading.accept_page(page(message(2), message(3)))
        assert reading.is_stale(message(2))


def test_a_channel_that_vanishes_is_given_up_and_holds_nothing_back() -> None:
    checkpoints = attending(seen(GENERAL, message(5).id))
    checkpoints.give_up(GENERAL)
    assert checkpoints.channels_behind() == ()
    assert mark_of(checkpoints, GENERAL) == message(5).id
    assert checkpoints.begin(message(6)), "should it come back"


def test_what_was_said_where_intern_is_not_admitted_is_passed_over() -> None:
    checkpoints = attending(seen(GENERAL, message(3).id))
    with checkpoints.open_page(GENERAL) as reading:
        checkpoints.begin_session(session(seen(GENERAL, message(5).id), seen(HELP, message(5).id)), lambda _: False)
        reading.accept_page(page(message(1)))
        assert reading.is_stale(message(1)), "closed while it was read"
    assert checkpoints.channels_behind() == ()
    assert mark_of(checkpoints, GENERAL) == mark_of(checkpoints, HELP) == message(5).id


def test_a_clock_that_runs_fast_at_the_first_start_hides_nothing() -> None:
    fast = Checkpoints(StoredCheckpoints(attended={GUILD: snowflake(600)}), baseline=snowflake(600))
    fast.begin_session(session(seen(GENERAL, message(-5).id)))
    assert fast.channels_behind() == ()
    assert fast.begin(message(1))


# Archived threads.


def test_archived_threads_with_news_fall_behind_once_they_are_listed() -> None:
    checkpoints = Checkpoints(StoredCheckpoints(attended={GUILD: BASELINE}), baseline=BASELINE)
    checkpoints.begin_session(session(seen(GENERAL, None)))
    [listing] = checkpoints.find_unlisted()
    assert (listing.channel_id, listing.after) == (GENERAL, BASELINE)
    old, news, unknown = (ChannelId(n) for n in ("20", "21", "22"))
    checkpoints.record_threads(
        listing,
        [seen(old, snowflake(-1), "thread"), seen(news, message(1).id, "thread"), seen(unknown, None, "thread")],
    )
    assert checkpoints.find_unlisted() == ()
    assert checkpoints.channels_behind() == (news, unknown)
    assert read(checkpoints, unknown, page(message(1, channel=unknown))) != []
    assert checkpoints.channels_behind() == (news,)


def test_an_unknown_thread_that_wakes_up_before_the_listing_is_read_from_its_mark() -> None:
    checkpoints = Checkpoints(StoredCheckpoints(attended={GUILD: BASELINE}), baseline=BASELINE)
    missed, live = message(1, channel=THREAD), message(2, channel=THREAD)
    assert not checkpoints.is_live(live), "no session yet"
    checkpoints.begin_session(session(seen(GENERAL, None)))
    assert not checkpoints.is_live(live)
    assert checkpoints.fall_behind(live)
    [listing] = checkpoints.find_unlisted()
    checkpoints.record_threads(listing, ())
    assert read(checkpoints, THREAD, page(missed, live)) == [missed, live]
    assert checkpoints.is_live(message(3, channel=THREAD))


def test_a_thread_that_the_session_did_not_tell_of_is_read_once_however_well_it_was_known() -> None:
    old, new = ChannelId(str(int(BASELINE) - 1)), ChannelId(message(100).id)
    checkpoints = attending(seen(GENERAL, message(1).id), seen(old, None, "thread"))
    assert checkpoints.is_live(message(1, channel=old))
    checkpoints.begin_session(session(seen(GENERAL, message(1).id)))
    assert not checkpoints.is_live(message(2, channel=old)), "it may have been archived and woken up meanwhile"
    assert checkpoints.is_live(message(101, channel=new)), "made in this session"
    [listing] = checkpoints.find_unlisted()
    checkpoints.record_threads(listing, [seen(old, message(2, channel=old).id, "thread")])
    read(checkpoints, old, page(message(2, channel=old)))
    assert checkpoints.is_live(message(3, channel=old))


def test_a_second_session_wants_the_archived_threads_listed_again() -> None:
    checkpoints = attending()
    checkpoints.begin_session(session(seen(GENERAL, None)))
    [first] = checkpoints.find_unlisted()
    checkpoints.begin_session(session(seen(GENERAL, None)))
    checkpoints.record_threads(first, ())
    assert len(checkpoints.find_unlisted()) == 1


# All together: a Discord that reorders, loses sessions, deletes and edits; a process that is killed.


class _Written:
    def __init__(self, number: int, *, system: bool) -> None:
        self.number = number
        self.system = system
        self.version = 0
        self.deleted = False

    def told(self, channel: ChannelId) -> ChatMessage:
        return ChatMessage(
            id=MessageId(str(self.number)),
            guild_id=GUILD,
            channel_id=channel,
            author=ALICE,
            text=str(self.version),
            at=NOON,
        )


class _Asked:
    """A page on its way: made by Discord some time after it was asked for, and taken message by message."""

    def __init__(self, reading: BackfillPage, scope: ExitStack) -> None:
        self.reading = reading
        self.scope = scope
        self.page: Page | None = None
        self.left: list[ChatMessage] | None = None


CHANNELS = (GENERAL, HELP, THREAD)
_LIMIT = 3  # messages on a page


class Discord:
    """One story: the events of a seed between Discord, listener, backfill, checkpointer and the settling."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = int(BASELINE)
        self.written: dict[ChannelId, list[_Written]] = {each: [] for each in CHANNELS}
        self.last: dict[ChannelId, int] = {}
        self.archived = False
        self.connected = False
        self.queue: list[tuple[str, ChannelId, _Written, ChatMessage]] = []
        self.kept = StoredCheckpoints(attended={GUILD: BASELINE})
        self.settled: set[int] = set()  # now or in an earlier process
        self.tardy: set[int] = set()  # reported out of order
        self.excused: set[int] = (
            set()
        )  # of them, those whose mark may have been behind them when the process was killed
        self.untold: set[int] = set()  # their changes are never reported
        self.start()

    def run(self, steps: int) -> None:
        acts = {
            self.write: 8,
            self.write_out_of_order: 2,
            self.an_older_message_appears: 2,
            self.change: 3,
            self.archive: 1,
            self.lose_session: 0.4,
            self.start_session: 3,
            self.deliver: 12,
            self.ask: 5,
            self.make_page: 5,
            self.take: 12,
            self.fail_page: 0.5,
            self.ask_for_archived_threads: 2,
            self.list_archived_threads: 2,
            self.settle: 6,
            self.keep: 4,
            self.be_killed: 0.2,
        }
        for act in self.random.choices(list(acts), list(acts.values()), k=steps):
            act()
        self.finish()

    def start(self) -> None:
        self.found = self.kept
        self.checkpoints = Checkpoints(self.kept, baseline=BASELINE)
        self.begun: dict[int, tuple[ChannelId, int]] = {}  # with the version that is known
        self.in_work: set[int] = set()
        self.asked: dict[ChannelId, _Asked] = {}
        self.listings: list[tuple[PendingThreadListing, list[ChannelSnapshot]]] = []

    # Discord.

    def publish(self, channel: ChannelId, number: int, *, system: bool = False) -> _Written:
        one = _Written(number, system=system)
        self.written[channel].append(one)
        self.written[channel].sort(key=lambda each: each.number)
        self.last[channel] = max(number, self.last.get(channel, 0))
        if channel == THREAD:
            self.archived = False
        return one

    def tell(self, what: str, channel: ChannelId, one: _Written) -> None:
        if self.connected and not one.system:
            self.queue.append((what, channel, one, one.told(channel)))
        elif what == "changed":
            self.untold.add(one.number)

    def later(self) -> int:
        pause = self.random.choices([1, 1500, 7_000, 70_000, 700_000], [16, 8, 4, 2, 2])[0]
        while pause > 5_000 and self.queue:  # the gateway is slow, but not that slow
            self.deliver()
        self.now += pause << 22
        return self.now

    def write(self) -> None:
        channel = self.random.choice(CHANNELS)
        # Only a message unarchives a thread, or at least between a session's start and the listing.
        system = self.random.random() < 0.15 and not self.archived
        self.tell("created", channel, self.publish(channel, self.later(), system=system))

    def write_out_of_order(self) -> None:
        channel = self.random.choice(CHANNELS)
        older = self.publish(channel, self.later())
        self.now += 2 << 22
        newer = self.publish(channel, self.now)
        self.tardy.add(older.number)
        self.tell("created", channel, newer)
        self.tell("created", channel, older)

    def an_older_message_appears(self) -> None:
        channel = self.random.choice(CHANNELS)
        number = self.last.get(channel, 0) - (1 << 21)
        if self.queue or not self.connected or number <= int(BASELINE) or self.now - number > 1500 << 22:
            return  # messages are only slightly out of order
        if number > self.stands(channel, self.found) and all(each.number != number for each in self.written[channel]):
            self.tardy.add(number)
            self.tell("created", channel, self.publish(channel, number))
            self.deliver()

    def change(self) -> None:
        channel = self.random.choice(CHANNELS)
        there = [each for each in self.written[channel] if not each.deleted and not each.system]
        if there:
            one = self.random.choice(there[-5:])
            one.version += 1
            one.deleted = self.random.random() < 0.5
            self.tell("changed", channel, one)

    def archive(self) -> None:
        self.archived = True

    def lose_session(self) -> None:
        self.connected = False
        self.untold |= {one.number for what, _, one, _ in self.queue if what == "changed"}
        self.queue.clear()

    def start_session(self) -> None:
        if not self.connected:
            there = [self.seen(each) for each in CHANNELS if each != THREAD or not self.archived]
            self.checkpoints.begin_session(session(*there))
            self.connected = True

    def seen(self, channel: ChannelId) -> ChannelSnapshot:
        newest = self.last.get(channel)
        return seen(channel, MessageId(str(newest)) if newest else None, "thread" if channel == THREAD else "channel")

    # The listener.

    def deliver(self) -> None:
        if not self.queue:
            return
        what, channel, one, told = self.queue.pop(0)
        room = self.random.random() < 0.7
        if what == "changed":
            if not self.checkpoints.note_change(channel, told.id) and one.number in self.begun:
                self.begun[one.number] = channel, int(told.text)
        elif not self.checkpoints.is_live(told) or (not room and not self.checkpoints.knows(told)):
            self.checkpoints.fall_behind(told)
        elif self.checkpoints.begin(told):
            self.note(told)

    def note(self, message: ChatMessage) -> None:
        number = int(message.id)
        assert number not in self.begun, "begun twice"
        self.begun[number] = message.channel_id, int(message.text)
        self.in_work.add(number)

    # Backfill.

    def ask(self) -> None:
        waiting = [channel for channel in self.checkpoints.channels_behind() if channel not in self.asked]
        if waiting:
            channel, scope = self.random.choice(waiting), ExitStack()
            self.asked[channel] = _Asked(scope.enter_context(self.checkpoints.open_page(channel)), scope)

    def make_page(self) -> None:
        channel = self.random.choice(CHANNELS)
        asked = self.asked.get(channel)
        if asked and asked.page is None:
            there = [one for one in self.written[channel] if one.number > int(asked.reading.after) and not one.deleted]
            there = there[:_LIMIT]
            asked.page = Page(
                messages=tuple(one.told(channel) for one in there if not one.system),
                read_to=MessageId(str(there[-1].number)) if there else asked.reading.after,
                more=len(there) == _LIMIT,
            )

    def take(self) -> None:
        channel = self.random.choice(CHANNELS)
        asked = self.asked.get(channel)
        if not asked or asked.page is None:
            return
        if asked.left is None:
            asked.reading.accept_page(asked.page)
            asked.left = list(asked.page.messages)
        if asked.left:
            message = asked.left.pop(0)
            if asked.reading.is_stale(message):
                self.leave(channel)
                return
            if self.checkpoints.begin(message):
                self.note(message)
        if not asked.left and self.random.random() < 0.7:
            self.checkpoints.finish_page(asked.reading)
            self.leave(channel)

    def fail_page(self) -> None:
        channel = self.random.choice(CHANNELS)
        if channel in self.asked:
            self.leave(channel)

    def leave(self, channel: ChannelId) -> None:
        self.asked.pop(channel).scope.close()

    def ask_for_archived_threads(self) -> None:
        for listing in self.checkpoints.find_unlisted():
            if all(listing is not known for known, _ in self.listings):
                hit = listing.channel_id == GENERAL and self.archived and self.last.get(THREAD, 0) > int(listing.after)
                self.listings.append((listing, [self.seen(THREAD)] if hit else []))

    def list_archived_threads(self) -> None:
        if self.listings:
            self.checkpoints.record_threads(*self.listings.pop(0))

    # The actors that settle begun messages, and the checkpointer.

    def settle(self) -> None:
        for number in self.random.sample(sorted(self.in_work), self.random.randint(0, len(self.in_work))):
            self.checkpoints.settle(self.begun[number][0], [MessageId(str(number))])
            self.in_work.discard(number)
            self.settled.add(number)

    def keep(self) -> None:
        self.kept = self.kept.merge(self.checkpoints.collect_moved())
        for channel, written in self.written.items():
            stands = self.stands(channel, self.kept)
            for one in written:
                if one.number <= stands and not one.deleted and not one.system and one.number not in self.settled:
                    # One that is reported out of order may be unknown yet.
                    assert one.number in self.tardy - self.begun.keys(), "the mark passes what is not settled"
        for each in self.checkpoints._channels.values():
            assert all(number > each.floor.before(DISORDER) for number in each.done), "too much is remembered"

    def stands(self, channel: ChannelId, marks: StoredCheckpoints) -> int:
        mark = marks.channels.get(channel)
        return max(int(marks.attended[GUILD]), int(mark.settled_to) if mark else 0)

    def be_killed(self) -> None:
        self.excused |= self.tardy - self.settled
        self.lose_session()
        self.start()

    # The end: all work is finished.

    def finish(self) -> None:
        self.start_session()
        for _ in range(10_000):
            if not (self.queue or self.checkpoints.channels_behind() or self.checkpoints.find_unlisted()):
                break
            for act in (self.deliver, self.ask_for_archived_threads, self.list_archived_threads, self.ask):
                act()
            for act in (self.make_page, self.take):
                act()
        assert not self.checkpoints.channels_behind(), "never comes to an end"
        for written in self.written.values():
            for one in written:
                if not (one.system or one.deleted or one.number in self.excused):
                    assert one.number in self.begun or one.number in self.settled, "skipped"
                if one.number in self.begun and one.number not in self.untold:
                    assert self.begun[one.number][1] == one.version, "a change was not told"
        while self.in_work:
            self.settle()
        self.keep()
        for channel, written in self.written.items():
            spoken = [one.number for one in written if not one.deleted and not one.system]
            assert int(mark_of(self.checkpoints, channel, GUILD)) >= max(spoken, default=0)


@pytest.mark.parametrize("seed", [0, 40, 80, *(pytest.param(n, marks=pytest.mark.rest) for n in range(120, 400, 40))])
def test_nothing_is_skipped_nothing_begun_twice_and_no_mark_passes_what_is_in_work(seed: int) -> None:
    for each in range(seed, seed + 40):
        try:
            Discord(each).run(300)
        except Exception as error:
            error.add_note(f"seed {each}")
            raise
