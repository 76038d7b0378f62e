"""Unreported edits and deletions: they are found if Discord shows them, and only then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from anyio import fail_after
from msgspec.structs import replace

from intern.chat.conversations import build_capture
from intern.core.captures import CapturedPair
from intern.core.errors import ChatNotFoundError, ChatRefusedError, ChatUnavailableError
from intern.core.flow import CaptureRequest, LateChange, MessageEdited, MessagesDeleted
from intern.core.ids import ChannelId, ConversationId, MessageId
from intern.core.messages import ChatMessage, RoleLookupBudget
from intern.learning import missed_changes as missed_module
from intern.learning.missed_changes import DAYS, MissedChangeFinder
from intern.platforms.sandbox import Call
from intern.stores.archive import Archive
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missed_module, "PACE", 0.0)
    monkeypatch.setattr(missed_module, "FIRST_PAUSE", 0.0)


class Blind(Sandbox):
    """A Discord that shows the history of some channels as empty, as it does without the right to read it."""

    hidden: ChannelId | None = None

    async def before(
        self,
        channel_id: ChannelId,
        message_id: MessageId | None,
        limit: int,
        *,
        lookups: RoleLookupBudget | None = None,
    ) -> Sequence[ChatMessage]:
        shown = await super().before(channel_id, message_id, limit, lookups=lookups)
        return () if channel_id == self.hidden else shown


class Down:
    """A community, its captures, and a bot that checks once it is back."""

    def __init__(self, folder: Path) -> None:
        self.clock = HandClock()
        self.discord = Blind(self.clock, team=["tess"])
        self.archive = Archive(folder / "raw", clock=self.clock)
        self.withdrawn: set[MessageId] = set()
        self.told: list[LateChange] = []
        self.closed: set[ChannelId] = set()

    def say(self, who: str, text: str, channel_id: ChannelId | None = None) -> ChatMessage:
        self.clock.turn(seconds=1)
        return self.discord.say(who, text, channel_id=channel_id)

    def capture(
        self, *messages: ChatMessage, channel_id: ChannelId | None = None, replaces: CapturedPair | None = None
    ) -> CapturedPair:
        request = CaptureRequest(
            conversation_id=replaces.conversation_id if replaces else ConversationId(f"reply:{messages[0].id}"),
            guild_id=self.discord.guild_id,
            channel_id=channel_id or messages[-1].channel_id,
            messages=messages,
        )
        return self.archive.append(replace(build_capture(request), replaces=replaces.qa_id if replaces else None))

    def answered(self, channel_id: ChannelId | None = None) -> tuple[ChatMessage, ChatMessage]:
        question = self.say("ann", "How?", channel_id)
        answer = self.say("tess", "So.", channel_id)
        self.capture(question, answer)
        return question, answer

    async def admits(self, channel_id: ChannelId) -> bool:
        return channel_id not in self.closed

    async def look(self, requests: int = 300) -> int:
        missed = MissedChangeFinder(
            self.archive,
            self.discord,
            is_withdrawn=self.withdrawn.__contains__,
            admits=self.admits,
            mask=lambda text: text.replace("hunter2", "[secret]"),
            requests=requests,
        )
        self.told.clear()
        with fail_after(5):
            return await missed.check(self.clock.now(), self.told.append)

    @property
    def deleted(self) -> list[MessageId]:
        gone = [change.message_ids for change in self.told if isinstance(change, MessagesDeleted)]
        return [each for ids in gone for each in ids]

    @property
    def edited(self) -> list[str]:
        return [change.message.text for change in self.told if isinstance(change, MessageEdited)]


@pytest.fixture
def down(tmp_path: Path) -> Down:
    return Down(tmp_path)


async def test_what_was_edited_or_deleted_is_told_and_nothing_else(down: Down) -> None:
    place = down.discord.general
    (question, _), (_, answer), _ = down.answered(), down.answered(), down.answered()
    assert await down.look() == 2, "the channel, and a page"
    assert down.told == []
    down.discord.edit(place, question.id, "How exactly?")
    down.discord.delete(place, answer.id)
    assert await down.look() == 3, "and one for what is not on it"
    assert (down.edited, down.deleted) == (["How exactly?"], [answer.id])


# Finding I7.
async def test_an_edit_that_was_captured_is_no_news_and_a_later_one_is(down: Down) -> None:
    place, (question, answer) = down.discord.general, down.answered()
    before = down.archive.latest_capture(down.archive.find_conversations(answer.id)[0])
    edited = down.discord.edit(place, answer.id, f"So, <@{question.author.id}> has hunter2.")
    await down.look()
    assert down.edited == [edited.text]
    down.capture(question, replace(edited, text="So, the member has [secret]."), replaces=before)
    await down.look()
    assert down.told == []
    down.discord.edit(place, answer.id, "So, without it.")
    await down.look()
    assert down.edited == ["So, without it."]


# Finding B1.
async def test_a_post_or_thread_that_was_renamed_is_told_as_edited(down: Down) -> None:
    asked = down.say("ann", "How?")
    thread = down.discord.open_thread(down.discord.general, asked.id, "Error 4711")
    opening = down.discord.open_post("ann", "Error 4712", "And this?")
    for question, place in ((asked, thread), (opening, ChannelId(opening.id))):
        answer = down.say("tess", "So.", place)
        down.capture(replace(question, text=f"Old\n{question.text}"), answer, channel_id=place)
    await down.look()
    assert sorted(down.edited) == ["Error 4712\nAnd this?", "How?"]


async def test_what_is_withdrawn_already_is_not_looked_at(down: Down) -> None:
    _, answer = down.answered()
    down.discord.delete(down.discord.general, answer.id)
    down.withdrawn.add(answer.id)
    assert await down.look() == 2
    assert down.told == []


async def test_what_is_older_than_the_bound_is_not_looked_at(down: Down) -> None:
    question, _ = down.answered()
    down.clock.turn(days=DAYS, minutes=1)
    down.discord.delete(down.discord.general, question.id)
    assert await down.look() == 0
    assert down.told == []


async def test_a_channel_that_shows_nothing_tells_of_no_deletion(down: Down) -> None:
    question, answer = down.answered()
    down.discord.delete(down.discord.general, question.id, answer.id)
    down.discord.hidden = down.discord.general
    await down.look()
    assert down.told == []


@pytest.mark.parametrize("refusal", [ChatRefusedError("403 Missing Access"), ChatNotFoundError("404 Unknown Channel")])
@pytest.mark.parametrize("call", ["before", "look_up", "channel"])
async def test_what_discord_refuses_to_show_is_not_deleted(down: Down, refusal: ChatRefusedError, call: Call) -> None:
    question, _ = down.answered()
    other = down.discord.add_channel("other")
    edited, _ = down.answered(other)
    down.discord.delete(down.discord.general, question.id)
    down.discord.edit(other, edited.id, "How now?")
    down.discord.delete(other, down.discord.messages(other)[-1].id)
    down.discord.fail(call, refusal)
    down.discord.fail(call, refusal)
    await down.look()
    assert down.deleted == []
    await down.look()
    assert len(down.deleted) == 2, "once it may be read again"


async def test_a_channel_that_is_closed_to_us_is_not_read(down: Down) -> None:
    question, _ = down.answered()
    down.discord.delete(down.discord.general, question.id)
    down.closed.add(down.discord.general)
    await down.look()
    assert down.discord.calls["before"] == 0
    assert down.told == []


async def test_while_discord_is_away_it_waits(down: Down) -> None:
    question, _ = down.answered()
    down.discord.delete(down.discord.general, question.id)
    down.discord.fail("before", ChatUnavailableError("502"))
    down.discord.fail("before", ChatUnavailableError("502"))
    down.discord.fail("look_up", ChatUnavailableError("502"))
    await down.look()
    assert down.deleted == [question.id]


async def test_what_a_thread_hangs_on_is_looked_for_where_it_stands(down: Down) -> None:
    question = down.say("ann", "How?")
    thread = down.discord.open_thread(down.discord.general, question.id, "How?")
    more = down.say("ann", "Anybody?")  # beside the thread
    answer = down.say("tess", "So.", thread)
    down.capture(question, more, answer, channel_id=thread)
    await down.look()
    assert down.told == []
    down.discord.edit(down.discord.general, question.id, "How, really?")
    down.discord.delete(down.discord.general, more.id)
    await down.look()
    assert (down.edited, down.deleted) == (["How, really?"], [more.id])


async def test_what_was_captured_in_another_place_before_is_looked_for_there(down: Down) -> None:
    thread = down.discord.open_thread(down.discord.general, down.say("ann", "How?").id, "How?")
    inside = down.say("ann", "Why?", thread)
    first = down.capture(inside, down.say("tess", "So.", thread))
    other = down.discord.add_channel("other")
    later = down.capture(inside, down.say("tess", "And so.", other), channel_id=other, replaces=first)
    await down.look()
    assert down.told == []
    down.discord.delete(thread, inside.id)
    await down.look()
    assert down.deleted == [inside.id]

    down.capture(inside, down.say("tess", "Or so.", other), channel_id=other, replaces=later)
    lost = [each for each in (down.archive.get(first.qa_id),) if each]
    down.archive.get = lambda qa_id: None if lost and qa_id == first.qa_id else later  # type: ignore[method-assign]
    await down.look()
    assert down.deleted == [], "nobody knows all the places it can stand in"


async def test_no_more_requests_are_made_than_the_bound_and_the_newest_come_first(down: Down) -> None:
    places = [down.discord.add_channel(f"c{n}") for n in range(5)]
    asked = [down.answered(place)[0] for place in places]
    for place, question in zip(places, asked, strict=True):
        down.discord.delete(place, question.id)
    assert await down.look(requests=6) == 6
    assert down.deleted == [asked[4].id, asked[3].id]


async def test_of_a_busy_channel_the_newest_is_told_where_the_bound_ends_the_look(down: Down) -> None:
    old, _ = down.answered()
    for _ in range(200):
        down.say("ann", "…")
    new, _ = down.answered()
    down.discord.delete(down.discord.general, old.id)
    down.discord.delete(down.discord.general, new.id)
    await down.look(requests=3)
    assert down.deleted == [new.id]


async def test_many_captured_messages_of_a_channel_cost_a_request_a_hundred(down: Down) -> None:
    for _ in range(150):
        down.answered()
    assert await down.look() == 4
    assert down.told == []
