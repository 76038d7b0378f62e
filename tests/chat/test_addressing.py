"""The addressee of a message that is no reply."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from msgspec.structs import replace

from intern.chat.addressing import ChannelTranscript, RecentLines, find_mentioned_account, split_by_target
from intern.chat.options import ContextBounds
from intern.core.flow import Batch
from intern.core.ids import ChannelId, MessageId, UserId
from intern.core.messages import Author, ChatMessage
from tests.worlds.chat import Talk

BOUNDS = ContextBounds()
ROBOT = Author(id=UserId("5"), name="robot", type="bot")


class Place(Talk):
    """A channel; `@name` at the beginning of a text is a mention, and each message comes 70 seconds after the last."""

    def say(self, who: str | Author, text: str, *, after: float = 70, **reply: Any) -> ChatMessage:
        for name in ("alice", "bob", "maya", "tom"):
            text = text.replace(f"@{name}", f"<@{self.discord.author(name).id}>")
        return super().say(who, text, after=after, **reply)

    @property
    def talk(self) -> ChannelTranscript:
        return ChannelTranscript(self.discord.messages(self.discord.general), BOUNDS)


# A team member's message that mentions a member.


def test_a_team_message_that_names_one_member_answers_the_newest_that_they_asked() -> None:
    place = Place()
    place.say("alice", "How do I stake?")
    more = place.say("alice", "With the wallet, I mean.")
    place.say("bob", "Lunch!")
    assert place.talk.find_answered_question(place.say("maya", "@alice in the portal")) == more


def test_it_answers_nothing_where_it_names_nobody_or_several_or_replies_to_somebody() -> None:
    place = Place()
    asked, bobs = place.say("alice", "How?"), place.say("bob", "How?")
    assert place.talk.find_answered_question(place.say("maya", "in the portal")) is None
    assert place.talk.find_answered_question(place.say("maya", "@alice @bob in the portal")) is None
    reply = place.say("maya", "@alice see what bob says", to=bobs)
    assert (place.talk.find_answered_question(reply), place.talk.find_target(reply)) == (None, bobs)
    assert place.talk.find_answered_question(place.say("maya", "`@alice` is how you call somebody")) is None
    assert place.talk.find_answered_question(place.say("maya", "@alice in the portal")) == asked


def test_team_members_who_name_each_other_and_members_who_name_members_answer_nothing() -> None:
    place = Place()
    for name in ("tom", "alice"):
        place.say(name, "How?")
    assert place.talk.find_answered_question(place.say("maya", "@tom in the portal")) is None
    assert place.talk.find_answered_question(place.say("bob", "@alice in the portal")) is None


def test_a_colleague_or_bot_who_is_named_beside_the_asker_hides_no_answer() -> None:
    place = Place()
    asked = place.say("alice", "How?")
    place.discord.author("bob")
    assert place.talk.find_answered_question(place.say("maya", "@alice as @tom said, in the portal")) == asked
    told = replace(place.say("maya", "@alice <@99> is wrong"), mentioned_staff=frozenset({UserId("99")}))
    assert place.talk.find_answered_question(told) == asked
    assert place.talk.find_answered_question(place.say("maya", "@alice @bob as @tom said")) is None
    assert place.talk.find_answered_question(place.say("maya", "@tom in the portal")) is None


def test_it_answers_what_was_asked_within_the_window_only() -> None:
    place = Place()
    asked = place.say("alice", "How?")
    assert place.talk.find_answered_question(place.say("maya", "@alice in the portal", after=900)) == asked
    assert place.talk.find_answered_question(place.say("maya", "@alice in the portal", after=1)) is None


def test_who_only_replied_to_other_members_lately_asked_nothing() -> None:
    place = Place()
    place.say("alice", "How?")
    bobs = place.say("bob", "Good morning")
    place.say("alice", "Morning!", to=bobs)
    assert place.talk.find_answered_question(place.say("maya", "@alice please no greetings here")) is None


def test_a_reply_to_a_neighbour_in_the_same_breath_hides_no_question() -> None:
    place = Place()
    bobs = place.say("bob", "My node is slow")
    asked = place.say("alice", "How do I restart mine?")
    place.say("alice", "me too", to=bobs, after=5)
    assert place.talk.find_answered_question(place.say("maya", "@alice with relay restart")) == asked


def test_who_goes_on_with_the_team_is_answered_again() -> None:
    place = Place()
    told = place.say("maya", "Which version?", to=place.say("alice", "How?"))
    version = place.say("alice", "1.2", to=told)
    assert place.talk.find_answered_question(place.say("tom", "@alice then upgrade")) == version


# An asker's follow-up.


def test_the_askers_next_words_for_that_team_member_or_for_nobody_go_on_with_the_answer() -> None:
    place = Place()
    told = place.say("maya", "In the portal.", to=place.say("alice", "How?"))
    plain, named = place.say("alice", "that worked"), place.say("alice", "@maya thank you")
    reply = place.say("alice", "and the rest?", to=told)
    assert [place.talk.find_followed_up(each) for each in (plain, named, reply)] == [told] * 3


def test_a_mention_is_gone_on_with_as_a_reply_is() -> None:
    place = Place()
    place.say("alice", "How?")
    told = place.say("maya", "@alice in the portal")
    more = place.say("maya", "under 'stake'", after=5)
    assert place.talk.find_followed_up(place.say("alice", "that worked")) == more
    assert place.talk.find_target(told) is not None


def test_words_for_nobody_add_to_the_askers_own_words_until_the_team_answers() -> None:
    place = Place()
    first = place.say("alice", "My node does not start.")
    place.say("bob", "Lunch?")
    second = place.say("alice", "anybody?", after=100)
    assert place.talk.find_target(second) == first
    told = place.say("maya", "Which one?", to=second)
    third = place.say("alice", "And how do I stop it?")
    assert place.talk.find_target(third) is None
    assert place.talk.find_target(place.say("alice", "hm", after=BOUNDS.question_seconds + 1)) is None
    assert place.talk.find_target(place.say(ROBOT, "beep")) is None
    assert place.talk.find_target(told) == second


def test_words_for_somebody_else_go_on_with_nothing() -> None:
    place = Place()
    place.say("maya", "In the portal.", to=place.say("alice", "How?"))
    bobs = place.say("bob", "Lunch?")
    for text, to in (("@tom and you?", None), ("@bob yes", None), ("yes", bobs), ("@maya @tom both of you?", None)):
        assert place.talk.find_followed_up(place.say("alice", text, to=to)) is None
    assert place.talk.find_followed_up(place.say("alice", "@intern and what do you say?")) is None
    assert place.talk.find_followed_up(place.say("bob", "me too")) is None
    assert place.talk.find_followed_up(place.say("tom", "right")) is None


@pytest.mark.parametrize("asked", ["And how do I stop?", "怎么停止？", "كيف؟"])
def test_a_new_question_for_nobody_goes_on_with_nothing_nor_does_what_follows_it(asked: str) -> None:
    place = Place()
    told = place.say("maya", "In the portal.", to=place.say("alice", "How?"))
    assert place.talk.find_followed_up(place.say("alice", asked)) is None
    assert place.talk.find_followed_up(place.say("alice", "I mean the node")) is None
    assert place.talk.find_followed_up(place.say("alice", f"@maya {asked}")) == told


def test_whom_the_team_named_unasked_goes_on_with_nothing() -> None:
    place = Place()
    place.say("bob", "Morning")
    place.say("maya", "@alice please no greetings here")
    assert place.talk.find_followed_up(place.say("alice", "sorry")) is None


@pytest.mark.parametrize(
    ("words", "longest"),
    [
        ("that worked", BOUNDS.named_follow_up_seconds),
        ("@maya that worked", BOUNDS.named_follow_up_seconds),
        ("that worked", BOUNDS.follow_up_seconds),
    ],
)
def test_who_pauses_for_long_goes_on_with_nothing(words: str, longest: float) -> None:
    place = Place()
    told = place.say("maya", "In the portal.", to=place.say("alice", "How?"))
    if longest == BOUNDS.follow_up_seconds:
        place.say("bob", "Lunch!", after=1)
        longest -= 1
    worked = place.say("alice", words, after=longest)
    assert place.talk.find_followed_up(worked) == told
    assert place.talk.find_followed_up(place.say("alice", words, after=BOUNDS.named_follow_up_seconds + 1)) is None


def test_what_names_the_team_member_leads_further_back_than_a_follow_up_does() -> None:
    place = Place()
    told = place.say("maya", "In the portal.", to=place.say("alice", "How?"))
    later = place.say("alice", "@maya and now?", after=BOUNDS.mention_seconds)
    assert (place.talk.find_followed_up(later), place.talk.find_target(later)) == (None, told)


def test_what_replies_to_itself_in_a_circle_is_for_nobody() -> None:
    place = Place()
    one, other = place.say("maya", "a"), place.say("maya", "b")
    said = [replace(one, reply_to=other.id), replace(other, reply_to=one.id)]
    said.append(place.say("alice", "that worked"))
    assert ChannelTranscript(said, BOUNDS).find_followed_up(said[-1]) is None


# Parts.


def test_lines_part_where_they_name_somebody_else() -> None:
    place = Place()
    lines = [place.say("maya", text) for text in ("hm", "@alice yes", "really", "@alice sure", "@bob no")]
    assert split_by_target(lines) == [lines[:1], lines[1:4], lines[4:]]
    assert [find_mentioned_account(line) for line in lines][:2] == [None, place.discord.author("alice").id]


# Cases without reading.


def batch_of(*messages: ChatMessage) -> Batch:
    return Batch(channel_id=messages[0].channel_id, author=messages[0].author, messages=messages)


def heard(place: Place, recent: RecentLines, who: str | Author, text: str, **how: Any) -> tuple[ChatMessage, bool]:
    message = place.say(who, text, **how)
    return message, recent.may_follow_up(batch_of(message))


def test_an_asker_is_read_about_where_what_was_heard_says_that_the_team_spoke_to_them() -> None:
    place, recent = Place(), RecentLines(BOUNDS)
    asked, first = heard(place, recent, "alice", "How?")
    assert first, "what was said before it came up is not known"
    recent.remember_history(asked.channel_id, ())
    assert not heard(place, recent, "bob", "hello")[1]
    heard(place, recent, "maya", "In the portal.", to=asked)
    assert not heard(place, recent, "bob", "nice weather", after=1)[1], "nobody spoke to bob"
    assert not heard(place, recent, ROBOT, "beep", after=1)[1]
    assert heard(place, recent, "alice", "that worked", after=1)[1]
    assert not heard(place, recent, "alice", "@intern how?", after=1)[1]
    assert not heard(place, recent, "alice", "hello again", after=BOUNDS.mention_seconds + 1)[1]


def test_what_the_team_replied_to_before_it_came_up_may_be_an_asker_of_now() -> None:
    place, recent = Place(), RecentLines(BOUNDS)
    asked = place.say("alice", "How?")  # before this process started
    before, _ = heard(place, recent, "bob", "hello")
    recent.remember_history(before.channel_id, ())
    heard(place, recent, "maya", "In the portal.", to=asked)
    assert heard(place, recent, "alice", "that worked", after=1)[1]


def test_what_was_read_once_after_a_start_need_not_be_read_again() -> None:
    place, recent = Place(), RecentLines(BOUNDS)
    asked = place.say("alice", "How?")
    told = place.say("maya", "In the portal.", to=asked)
    before, first = heard(place, recent, "bob", "hello", after=1)
    assert first
    assert heard(place, recent, "bob", "hello?", after=1)[1], "nobody has looked yet"
    recent.remember_history(before.channel_id, [asked, told, before])
    assert not heard(place, recent, "bob", "anybody?", after=1)[1]
    assert heard(place, recent, "alice", "that worked", after=1)[1]


@pytest.mark.rest
def test_what_is_remembered_of_channels_is_bounded_and_without_their_words() -> None:
    place, recent = Place(), RecentLines(BOUNDS)
    line = place.say("alice", "How? " + "x" * 4000)
    for channel in range(200):
        messages = [
            replace(line, id=MessageId(str(channel * 1000 + n)), channel_id=ChannelId(str(channel))) for n in range(200)
        ]
        recent.may_follow_up(batch_of(*messages))
        recent.remember_history(ChannelId(str(channel)), ())
    assert size_of(recent) < 20_000_000
    assert recent.may_follow_up(batch_of(replace(line, channel_id=ChannelId("0")))), "forgotten, so looked up again"


def size_of(recent: RecentLines) -> int:
    """Return the size in bytes, roughly: the length of its serialised form."""
    return len(pickle.dumps(recent))
