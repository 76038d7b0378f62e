"""The contract of every adapter of `intern.chat.platform`. `test_chat_platform.py` runs it for each.

A `Community` is the hands of the people there; its platform is connected and listens, and `heard` holds its events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Literal, NamedTuple

import anyio
import pytest

from intern.chat.platform import ChatPlatform
from intern.core.errors import (
    ChatError,
    ChatNotFoundError,
    ChatRefusedError,
    ChatUnavailableError,
    ChatUnknownOutcomeError,
)
from intern.core.flow import GatewayEvent, MessageCreated, MessageEdited, MessagesDeleted, SessionStarted
from intern.core.ids import ChannelId, MessageId
from intern.core.messages import Button, ChatMessage

Call = Literal["send", "read", "start_thread"]
Trouble = Literal["refused", "down", "unheard"]
"""`unheard`: the call does its work, and the answer is lost."""


class Said(NamedTuple):
    """A message, by what every platform names it with."""

    channel_id: ChannelId
    id: MessageId


class Community(ABC):
    """People on a platform: alice of the community, tess of the team, and one public channel."""

    platform: ChatPlatform
    channel: ChannelId

    def __init__(self) -> None:
        self.heard: list[GatewayEvent] = []
        self._told = anyio.Event()

    def hear(self, event: GatewayEvent) -> None:
        """Take an event from the platform."""
        self.heard.append(event)
        self._told.set()

    async def until(self, met: Callable[[], object]) -> None:
        """Wait until the platform's events fulfil the condition."""
        while not met():
            self._told = anyio.Event()
            await self._told.wait()

    def told(self, kind: type[MessageCreated]) -> list[ChatMessage]:
        """Return the messages of all events of a kind, in the order of arrival."""
        return [event.message for event in self.heard if isinstance(event, kind)]

    @abstractmethod
    async def say(self, who: str, text: str, *, reply_to: Said | None = None, place: ChannelId | None = None) -> Said:
        """Write in the channel, or elsewhere."""

    @abstractmethod
    async def edit(self, said: Said, text: str) -> None:
        """Change a message."""

    @abstractmethod
    async def delete(self, *said: Said) -> None:
        """Delete messages."""

    @abstractmethod
    async def open_thread(self, said: Said) -> ChannelId:
        """Open a thread on a message."""

    @abstractmethod
    async def archive(self, thread: ChannelId) -> None:
        """Archive a thread."""

    @abstractmethod
    async def set_private(self, private: bool) -> None:  # noqa: FBT001 it is the point
        """Hide the channel from everyone, or show it again."""

    @abstractmethod
    def away(self) -> AbstractAsyncContextManager[None]:
        """Disconnect for the time of the block, so that no event arrives."""

    @abstractmethod
    def fail(self, call: Call, trouble: Trouble) -> None:
        """Make the next call fail."""

    @abstractmethod
    def forget_nonces(self) -> None:
        """Let the time pass for which a nonce is remembered."""

    @abstractmethod
    def buttons_of(self, said: Said) -> int:
        """Return the number of buttons on a message of the bot's."""


class ChatPlatformContract:
    """The promises. A subclass has a fixture `community` that gives one, connected."""

    # Each change is an event.

    async def test_messages_edits_and_deletions_are_told_in_order(self, community: Community) -> None:
        question = await community.say("alice", "how?")
        answer = await community.say("tess", "so!", reply_to=question)
        await community.edit(question, "how exactly?")
        lines = [await community.say("alice", str(n)) for n in range(5)]
        await community.delete(answer)
        await community.delete(*lines)
        await community.until(lambda: sum(isinstance(event, MessagesDeleted) for event in community.heard) == 2)

        session, first, second, edited, *more = community.heard
        assert isinstance(session, SessionStarted)
        assert community.channel in {seen.channel.id for seen in session.channels}
        assert isinstance(first, MessageCreated)
        assert (first.message.text, first.message.author.type, first.message.edited_at) == (
            "how?",
            "community_user",
            None,
        )
        assert isinstance(second, MessageCreated)
        assert (second.message.author.type, second.message.reply_to) == ("team_member", question.id)
        assert isinstance(edited, MessageEdited)
        assert (edited.message.id, edited.message.text) == (question.id, "how exactly?")
        assert edited.message.edited_at is not None
        assert [event.message.text for event in more[:5] if isinstance(event, MessageCreated)] == list("01234")
        one, all_lines = more[5:]
        assert isinstance(one, MessagesDeleted)
        assert one.message_ids == (answer.id,)
        assert isinstance(all_lines, MessagesDeleted)
        assert set(all_lines.message_ids) == {line.id for line in lines}

    async def test_what_happens_while_it_is_away_is_history_and_later_words_are_told(
        self, community: Community
    ) -> None:
        before = await community.say("alice", "before")
        await community.until(lambda: community.told(MessageCreated))
        async with community.away():
            missed = [await community.say("alice", f"missed {n}") for n in range(3)]
        await community.until(lambda: community.platform.is_open)
        await community.until(lambda: sum(isinstance(event, SessionStarted) for event in community.heard) == 2)
        await community.say("alice", "after")
        await community.until(lambda: community.told(MessageCreated)[-1].text == "after")
        page = await community.platform.page(before.channel_id, before.id, limit=100)
        assert [message.id for message in page.messages][:3] == [each.id for each in missed]

    # History.

    async def test_history_comes_in_pages_from_either_end_oldest_first(self, community: Community) -> None:
        said = [await community.say("alice", str(n)) for n in range(7)]
        place, platform = community.channel, community.platform

        newest = await platform.before(place, None, 3)
        assert [message.text for message in newest] == ["4", "5", "6"]
        assert [message.text for message in await platform.before(place, said[4].id, 3)] == ["1", "2", "3"]
        assert [message.text for message in await platform.after(place, said[0].id, 2)] == ["1", "2"]
        assert not await platform.after(place, said[-1].id, 2)
        assert not await platform.before(place, said[0].id, 2)

        page = await platform.page(place, said[3].id, 2)
        assert [message.text for message in page.messages] == ["4", "5"]
        assert (page.read_to, page.more) == (said[5].id, True)
        rest = await platform.page(place, page.read_to, 2)
        assert ([message.text for message in rest.messages], rest.more) == (["6"], False)
        nothing = await platform.page(place, rest.read_to, 2)
        assert (nothing.messages, nothing.read_to, nothing.more) == ((), said[6].id, False)

    async def test_history_shows_messages_as_they_are_now(self, community: Community) -> None:
        kept, gone = await community.say("alice", "one"), await community.say("alice", "two")
        await community.edit(kept, "uno")
        await community.delete(gone)
        platform = community.platform

        assert [message.text for message in await platform.before(community.channel, None, 10)] == ["uno"]
        for read in (platform.message, platform.look_up):
            found = await read(community.channel, kept.id)
            assert found is not None
            assert (found.text, found.author.type) == ("uno", "community_user")
            assert await read(community.channel, gone.id) is None

    async def test_archived_threads_are_listed_where_they_hold_something_newer(self, community: Community) -> None:
        question = await community.say("alice", "how?")
        thread = await community.platform.start_thread(question.channel_id, question.id, "how")
        inside = await community.say("alice", "more", place=thread)
        await community.archive(thread)

        listed = await community.platform.list_archived_threads(community.channel, question.id)
        assert [(seen.channel.id, seen.last_message_id) for seen in listed] == [(thread, inside.id)]
        assert not await community.platform.list_archived_threads(community.channel, inside.id)

    # The way out.

    async def test_a_thread_is_opened_once_however_often_it_is_asked_for(self, community: Community) -> None:
        question = await community.say("alice", "how?")
        threads = [
            await community.platform.start_thread(question.channel_id, question.id, name) for name in ("how", "again")
        ]
        assert threads[0] == threads[1]
        place = await community.platform.channel(threads[0])
        assert (place.kind, place.parent_id, place.name) == ("thread", community.channel, "how")
        sent = await community.platform.send(threads[0], "so", "n-1")
        assert [message.id for message in await community.platform.before(threads[0], None, 10)] == [sent]

    # Finding A9.
    async def test_only_an_empty_thread_of_ours_is_removed(self, community: Community) -> None:
        platform, place = community.platform, community.channel
        ours, used, theirs = [await community.say("alice", f"how {n}?") for n in range(3)]
        threads = [await platform.start_thread(place, each.id, "how") for each in (ours, used)]
        await community.say("alice", "more", place=threads[1])
        threads.append(await community.open_thread(theirs))
        for thread in threads:
            await platform.remove_thread(thread)
        with pytest.raises(ChatNotFoundError):
            await platform.remove_thread(threads[0])
        for thread in threads[1:]:
            assert (await platform.channel(thread)).id == thread
        assert await platform.start_thread(place, ours.id, "again") == threads[0]

    async def test_a_nonce_posts_once_while_it_is_remembered(self, community: Community) -> None:
        platform, place = community.platform, community.channel
        first = await platform.send(place, "so", "n-1")
        assert await platform.send(place, "so", "n-1") == first
        assert await platform.send(place, "so", "n-2") != first
        community.forget_nonces()
        assert await platform.send(place, "so", "n-1") != first
        assert len(await platform.before(place, None, 10)) == 3

    async def test_a_message_of_ours_can_be_rewritten_which_takes_its_buttons(self, community: Community) -> None:
        platform, place = community.platform, community.channel
        sent = await platform.send(place, "so", "n-1", buttons=[Button(custom_id="a", label="A")])
        assert community.buttons_of(Said(place, sent)) == 1
        await platform.rewrite(place, sent, "not so")
        found = await platform.message(place, sent)
        assert found is not None
        assert (found.text, found.author.is_self) == ("not so", True)
        assert community.buttons_of(Said(place, sent)) == 0

        others = await community.say("alice", "mine")
        with pytest.raises(ChatRefusedError):
            await platform.rewrite(place, others.id, "yours")

    async def test_a_message_may_be_as_long_as_it_says_and_no_longer(self, community: Community) -> None:
        platform, place = community.platform, community.channel
        longest = "x" * platform.capabilities.message_limit
        sent = await platform.send(place, longest, "n-1")
        found = await platform.message(place, sent)
        assert found is not None
        assert found.text == longest
        with pytest.raises(ChatRefusedError):
            await platform.send(place, longest + "x", "n-2")

    async def test_typing_leaves_no_trace(self, community: Community) -> None:
        await community.platform.typing(community.channel)
        assert not await community.platform.before(community.channel, None, 10)

    # Failures.

    @pytest.mark.parametrize(("trouble", "raised"), [("refused", ChatRefusedError), ("down", ChatUnavailableError)])
    async def test_a_refusal_and_an_outage_are_told_apart(
        self, community: Community, trouble: Trouble, raised: type[ChatError]
    ) -> None:
        question = await community.say("alice", "how?")
        platform, place = community.platform, community.channel
        calls: dict[Call, Callable[[], Awaitable[object]]] = {
            "read": lambda: platform.page(place, question.id, 10),
            "start_thread": lambda: platform.start_thread(place, question.id, "how"),
        }
        for call, ask in calls.items():
            community.fail(call, trouble)
            with pytest.raises(raised):
                await ask()
            await ask()  # the next one is answered

    async def test_a_post_that_nobody_confirmed_is_there_once(self, community: Community) -> None:
        platform, place = community.platform, community.channel
        community.fail("send", "unheard")
        with pytest.raises(ChatUnknownOutcomeError):
            await platform.send(place, "so", "n-1")
        again = await platform.send(place, "so", "n-1")
        assert [message.id for message in await platform.before(place, None, 10)] == [again]

    async def test_what_is_not_there_is_not_found(self, community: Community) -> None:
        question = await community.say("alice", "how?")
        nowhere = ChannelId("404")
        for ask in (
            lambda: community.platform.channel(nowhere),
            lambda: community.platform.page(nowhere, question.id, 10),
            lambda: community.platform.send(nowhere, "so", "n-1"),
            lambda: community.platform.look_up(nowhere, question.id),
        ):
            with pytest.raises(ChatNotFoundError):
                await ask()
        assert await community.platform.message(nowhere, question.id) is None

    # Readers of a channel.

    async def test_a_channel_is_closed_as_soon_as_it_turns_private(self, community: Community) -> None:
        platform = community.platform
        await platform.wait_for_permissions(platform.guild_ids[0])
        place = await platform.channel(community.channel)
        assert platform.admits(place)
        await community.set_private(True)
        await community.say("alice", "hidden")
        await community.until(lambda: community.told(MessageCreated))
        assert not platform.admits(place)
        await community.set_private(False)
        await community.say("alice", "open")
        await community.until(lambda: len(community.told(MessageCreated)) == 2)
        assert platform.admits(place)

    # Finding A1.
    async def test_what_is_read_after_a_lost_session_waits_until_it_is_known_who_may_read_it(
        self, community: Community
    ) -> None:
        platform, question = community.platform, await community.say("alice", "in public")
        await community.until(lambda: community.told(MessageCreated))
        place = await platform.channel(community.channel)
        async with community.away():
            await community.set_private(True)
            hidden = await community.say("tess", "in private")
        page = await platform.page(community.channel, question.id, limit=100)
        assert [message.id for message in page.messages] == [hidden.id]
        assert not platform.admits(place)
