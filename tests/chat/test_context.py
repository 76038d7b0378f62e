"""Gathering: threads, reply chains and their neighbours, within bounds, with few REST calls."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from anyio import fail_after
from msgspec import structs

from intern.chat.addressing import split_by_target
from intern.chat.context import BatchContext, gather_context
from intern.chat.options import ContextBounds
from intern.chat.platform import History
from intern.core.errors import (
    ChatNotFoundError,
    ChatRefusedError,
    ChatUnauthorizedError,
    ChatUnavailableError,
)
from intern.core.flow import Batch
from intern.core.ids import ChannelId, MessageId
from intern.core.messages import ChatMessage, RoleLookupBudget
from tests.worlds.chat import Sandbox, Talk


class World(Talk):
    def others_talk(self, count: int, *, after: float = 5) -> None:
        for n in range(count):
            self.say(f"passer-by {n % 7}", f"chatter {n}", after=after)

    async def gather(self, *messages: ChatMessage, follow_ups: bool = False, **bounds: float) -> BatchContext:
        """Gather the surroundings of these messages as one batch; count only the REST calls of this."""
        history: History = self.discord
        batch = Batch(channel_id=messages[0].channel_id, author=messages[-1].author, messages=messages)
        channel = await self.discord.channel(batch.channel_id)
        self.discord.calls.clear()
        with fail_after(5):
            return await gather_context(
                batch,
                channel,
                history,
                ContextBounds(**bounds),  # type: ignore[arg-type]
                follow_ups=follow_ups,
            )

    @property
    def calls(self) -> int:
        return self.discord.calls.total()


def texts(messages: Sequence[ChatMessage]) -> list[str]:
    return [message.text for message in messages]


async def test_a_message_without_context_costs_no_call() -> None:
    world = World()
    gathered = await world.gather(world.say("alice", "hello?"))
    assert gathered == BatchContext()
    assert world.calls == 0


async def test_a_question_in_several_messages_with_a_later_follow_up_is_one_chain() -> None:
    world = World()
    first = world.say("alice", "My node does not start.")
    world.say("bob", "nice weather")
    world.say("alice", "It says: no GPU.")
    answer = world.say("maya", "Install the driver.", to=first)
    world.others_talk(10, after=60)
    world.say("alice", "I did.", to=answer)
    follow_up = world.say("alice", "Same error.")
    final = world.say("maya", "Then reboot.", to=follow_up)
    gathered = await world.gather(final)
    assert texts(gathered.messages) == [
        "My node does not start.",
        "It says: no GPU.",
        "Install the driver.",
        "I did.",
        "Same error.",
    ]
    assert gathered.reply_authors == {follow_up.id: world.discord.author("alice")}
    assert not gathered.cut


async def test_an_asker_who_names_the_team_member_is_understood_as_long_after_the_answer_as_such_words_count() -> None:
    world = World()
    world.say("maya", "Use the portal.", to=world.say("alice", "How do I stake?"))
    world.others_talk(140, after=2)
    thanks = world.say("alice", f"<@{world.discord.author('maya').id}> that worked")
    gathered = await world.gather(thanks, follow_ups=True)
    assert gathered.goes_on == {thanks.id}
    assert texts(gathered.messages) == ["How do I stake?", "Use the portal."]


async def test_a_reply_to_the_middle_of_consecutive_messages_brings_both_sides() -> None:
    world = World()
    world.say("alice", "Hi all.")
    middle = world.say("alice", "How do I stake?")
    world.say("alice", "I am on testnet.")
    gathered = await world.gather(world.say("maya", "Like so.", to=middle))
    assert texts(gathered.messages) == ["Hi all.", "How do I stake?", "I am on testnet."]


async def test_an_old_topic_taken_up_again_leaves_out_what_was_said_in_between() -> None:
    world = World()
    old = world.say("alice", "How do I stake?", after=600)
    world.say("alice", "On testnet.")
    world.say("alice", "Something else entirely.", after=600)
    world.others_talk(30, after=60)
    again = world.say("bob", "I have this too.", to=old)
    world.say("bob", "Any news?")
    gathered = await world.gather(world.say("maya", "Use the portal.", to=again, after=600))
    assert texts(gathered.messages) == ["How do I stake?", "On testnet.", "I have this too.", "Any news?"]


async def test_a_neighbour_that_replies_to_somebody_else_is_another_conversation() -> None:
    world = World()
    elsewhere = world.say("bob", "What is your name?")
    question = world.say("alice", "How do I stake?")
    world.say("alice", "Alice.", to=elsewhere)
    world.say("alice", "And yours?")
    gathered = await world.gather(world.say("maya", "Like so.", to=question))
    assert texts(gathered.messages) == ["How do I stake?"]


async def test_what_is_said_after_the_batch_is_not_what_it_answers() -> None:
    world = World()
    question = world.say("alice", "How do I stake?")
    answer = world.say("maya", "Like so.", to=question)
    world.say("alice", "Thanks!")
    assert texts((await world.gather(answer)).messages) == ["How do I stake?"]


async def test_references_that_lead_nowhere_are_no_error() -> None:
    world = World()
    question = world.say("alice", "How do I stake?")
    elsewhere = world.discord.add_channel("secret")
    secret = world.say("alice", "A secret.", place=elsewhere)
    answer = world.say("maya", "Like so.", to=question)
    forward = world.discord.say(world.discord.author("maya"), "See there.", reply_to=secret.id)
    world.discord.delete(world.discord.general, question.id)
    gathered = await world.gather(answer, forward)
    assert gathered.messages == ()
    assert gathered.reply_authors == {question.id: None, secret.id: None}
    assert not gathered.cut


async def test_a_reference_into_a_foreign_channel_is_not_followed() -> None:
    world = World()
    elsewhere = world.discord.add_channel("secret")
    secret = world.say("alice", "A secret.", place=elsewhere)
    told = world.say("maya", "See there.")
    forward = structs.replace(told, reply_to=secret.id, reply_to_channel=elsewhere)
    gathered = await world.gather(forward)
    assert gathered.reply_authors == {secret.id: None}
    assert world.calls == 0


async def test_a_channel_that_is_gone_is_no_error_and_an_unreachable_discord_is() -> None:
    world = World()
    answer = world.say("maya", "Like so.", to=world.say("alice", "How?"))
    world.discord.fail("before", ChatNotFoundError("unknown channel"))
    assert (await world.gather(answer)).messages == ()
    for error in (ChatUnavailableError("down"), ChatUnauthorizedError("whose token is that?")):
        world.discord.calls.clear()
        world.discord.fail("before", error)
        with pytest.raises(ChatUnavailableError):
            await world.gather(answer)


async def test_what_discord_refuses_to_show_is_left_out_of_a_question_but_never_of_what_the_team_teaches() -> None:
    world = World()
    question = world.say("alice", "How?")
    for author in ("bob", "maya"):
        reply = world.say(author, "Like so.", to=question)
        for _ in range(2):
            world.discord.fail("before", ChatRefusedError("missing access"))
        if author == "bob":
            assert (await world.gather(reply)).messages == ()
        else:
            with pytest.raises(ChatRefusedError):
                await world.gather(reply)


async def test_a_channel_that_shows_nothing_at_all_is_no_empty_one() -> None:
    class Hidden(Sandbox):
        async def before(
            self,
            channel_id: ChannelId,
            message_id: MessageId | None,
            limit: int,
            *,
            lookups: RoleLookupBudget | None = None,
        ) -> Sequence[ChatMessage]:
            return ()  # as Discord does without the permission to read a channel's history

    world = World()
    world.discord = Hidden(world.clock, team=["maya"])
    answer = world.say("maya", "Like so.", to=world.say("alice", "How?"))
    with pytest.raises(ChatRefusedError, match="no history"):
        await world.gather(answer)


async def test_a_long_chain_in_a_busy_channel_costs_few_calls() -> None:
    world = World()
    turn = world.say("alice", "turn 0")
    for n in range(1, 12):
        world.others_talk(20, after=10)
        turn = world.say("alice" if n % 2 == 0 else "maya", f"turn {n}", to=turn)
    gathered = await world.gather(turn)
    assert texts(gathered.messages) == [f"turn {n}" for n in range(11)]
    assert world.calls <= 4


async def test_a_target_far_back_in_a_flood_is_found_beyond_the_first_page() -> None:
    world = World()
    question = world.say("alice", "How?")
    world.others_talk(300, after=0.1)
    gathered = await world.gather(world.say("maya", "Like so.", to=question))
    assert texts(gathered.messages) == ["How?"]
    assert world.calls <= 5


async def test_a_thread_is_read_with_the_question_that_it_hangs_on_and_its_neighbours() -> None:
    world = World()
    world.say("alice", "Hello!", after=600)
    question = world.say("alice", "How do I stake?")
    thread = world.discord.open_thread(question.channel_id, question.id, "staking")
    world.say("alice", "Anybody?")
    world.say("bob", "I wonder, too.", place=thread)
    world.say(world.discord.bot, "From the docs: no idea.", place=thread)
    answer = world.say("maya", "Like so.", place=thread)
    world.say("alice", "Later words.", place=thread)
    gathered = await world.gather(answer)
    assert texts(gathered.thread) == [
        "Hello!",
        "How do I stake?",
        "Anybody?",
        "I wonder, too.",
        "From the docs: no idea.",
        "Like so.",
        "Later words.",
    ]
    assert gathered.chains == {}


async def test_what_follows_a_question_in_a_thread_is_no_context_of_it() -> None:
    world = World()
    question = world.say("alice", "How do I stake?")
    thread = world.discord.open_thread(question.channel_id, question.id, "staking")
    asked = world.say("alice", "And unstake?", place=thread)
    world.say("bob", "Later words.", place=thread)
    gathered = await world.gather(asked)
    assert texts(gathered.thread) == ["How do I stake?", "And unstake?"]


async def test_replies_in_a_thread_that_point_out_of_it_bring_their_chains() -> None:
    world = World()
    aside = world.say("bob", "The faucet is empty.", after=600)
    question = world.say("alice", "How do I stake?", after=600)
    thread = world.discord.open_thread(question.channel_id, question.id, "staking")
    pointing = world.say("alice", "Because of this?", place=thread)
    listed = world.discord._messages[thread]
    listed[-1] = structs.replace(pointing, reply_to=aside.id, reply_to_channel=aside.channel_id)
    gathered = await world.gather(world.say("maya", "Yes.", place=thread))
    assert texts(gathered.messages) == ["The faucet is empty.", "How do I stake?", "Because of this?", "Yes."]


async def test_a_forum_post_is_its_own_opening() -> None:
    world = World()
    opening = world.discord.open_post("alice", "Staking", "How do I stake?")
    answer = world.say("maya", "Like so.", place=opening.channel_id)
    assert texts((await world.gather(answer)).thread) == ["Staking\nHow do I stake?", "Like so."]
    assert world.calls == 1


async def test_a_thread_of_a_hundred_replies_costs_at_most_ten_calls() -> None:
    world = World()
    world.others_talk(150)
    question = world.say("alice", "How do I stake?")
    thread = world.discord.open_thread(question.channel_id, question.id, "staking")
    said = question
    for n in range(100):
        said = world.say("alice" if n % 2 else "maya", f"reply {n}", place=thread, to=said if n else None)
    answer = world.say("maya", "Done.", to=said, place=thread)
    gathered = await world.gather(answer)
    assert texts(gathered.thread) == ["How do I stake?", *(f"reply {n}" for n in range(100)), "Done."]
    assert gathered.reply_authors[said.id] == said.author
    assert [*gathered.chains] == [answer.id]
    assert world.calls <= 10


async def test_a_thread_beyond_the_bound_keeps_its_newest_and_its_opening() -> None:
    world = World()
    question = world.say("alice", "How do I stake?")
    thread = world.discord.open_thread(question.channel_id, question.id, "staking")
    for n in range(250):
        world.say("bob", f"line {n}", place=thread)
    gathered = await world.gather(world.say("maya", "Done.", place=thread), max_messages=120)
    assert texts(gathered.thread) == ["How do I stake?", *(f"line {n}" for n in range(131, 250)), "Done."]
    assert gathered.cut


class WithoutSystemMessages(Sandbox):
    """Pages are shorter than requested, because joins and pins are left out of them."""

    async def before(
        self,
        channel_id: ChannelId,
        message_id: MessageId | None,
        limit: int,
        *,
        lookups: RoleLookupBudget | None = None,
    ) -> Sequence[ChatMessage]:
        page = await super().before(channel_id, message_id, limit, lookups=lookups)
        return [message for message in page if message.text != "(pinned a message)"]


async def test_a_page_that_lacks_system_messages_is_not_taken_for_the_last() -> None:
    world = World()
    world.discord = WithoutSystemMessages(world.clock, team=["maya"])
    question = world.say("alice", "How do I stake?")
    thread = world.discord.open_thread(question.channel_id, question.id, "staking")
    for n in range(150):
        world.say("bob", "(pinned a message)" if n % 50 == 7 else f"line {n}", place=thread)
    gathered = await world.gather(world.say("maya", "Done.", place=thread))
    assert len(gathered.thread) == 1 + 147 + 1


async def test_a_bots_message_stands_alone_in_a_chain() -> None:
    world = World()
    world.say(world.discord.bot, "Welcome, bob!")
    wrong = world.say(world.discord.bot, "You cannot.", to=world.say("alice", "How do I stake?"))
    world.say(world.discord.bot, "Anything else?")
    gathered = await world.gather(world.say("maya", "You can.", to=wrong))
    assert texts(gathered.messages) == ["How do I stake?", "You cannot."]


async def test_the_budget_of_calls_ends_the_search_and_says_so() -> None:
    world = World()
    turn = world.say("alice", "turn 0")
    for n in range(1, 12):
        world.others_talk(120, after=10)
        turn = world.say("alice" if n % 2 == 0 else "maya", f"turn {n}", to=turn)
    gathered = await world.gather(turn, max_calls=4)
    assert world.calls == 4
    assert gathered.cut
    assert texts(gathered.messages)[-1] == "turn 10"


async def test_hops_are_bounded() -> None:
    world = World()
    turn = world.say("alice", "turn 0")
    for n in range(1, 12):
        turn = world.say("alice" if n % 2 == 0 else "maya", f"turn {n}", to=turn, after=120)
    gathered = await world.gather(turn, max_hops=3)
    assert texts(gathered.messages) == ["turn 8", "turn 9", "turn 10"]
    assert gathered.cut


async def test_lines_follow_the_reply_before_them() -> None:
    world = World()
    alice, bob = world.say("alice", "a?"), world.say("bob", "b?")
    run = [
        world.say("maya", "hi"),
        hers := world.say("maya", "to alice", to=alice),
        world.say("maya", "more"),
        world.say("maya", "still to alice", to=alice),
        world.say("maya", "to myself", to=hers),
        world.say("maya", "to bob", to=bob),
        world.say("maya", "more to bob"),
    ]
    assert [texts(part) for part in split_by_target(run)] == [
        ["hi"],
        ["to alice", "more", "still to alice", "to myself"],
        ["to bob", "more to bob"],
    ]
    assert split_by_target([]) == []


@pytest.mark.rest
async def test_each_of_many_replies_in_one_batch_finds_what_it_answers() -> None:
    world = World()
    questions: list[ChatMessage] = []
    for n in range(20):
        questions.append(world.say(f"member {n}", f"question {n}"))
        world.others_talk(150, after=1)
    answers = [world.say("maya", f"answer {n}", to=question, after=1) for n, question in enumerate(questions)]
    gathered = await world.gather(*answers)
    assert [author.name if author else None for author in gathered.reply_authors.values()] == [
        f"member {n}" for n in range(20)
    ]
    assert world.calls <= 60


async def test_a_reply_to_ones_own_words_tells_whom_those_answered() -> None:
    world = World()
    question = world.say("alice", "My node does not start.")
    world.say("maya", "Install the driver.", to=question)
    more = world.say("maya", "And reboot.")
    later = world.say("maya", "The driver moved, by the way.", to=more, after=600)
    gathered = await world.gather(later)
    assert gathered.reply_authors[more.id] == world.discord.author("maya")
    assert gathered.answered == {more.id: world.discord.author("alice")}
    again = world.say("maya", "It is in the new package.", to=later, after=600)
    assert (await world.gather(again)).answered == {later.id: world.discord.author("alice")}


async def test_a_reply_to_ones_own_words_that_answered_nobody_leads_to_oneself_or_nowhere() -> None:
    world = World()
    remark = world.say("maya", "Release day!")
    gathered = await world.gather(world.say("maya", "It is out.", to=remark, after=600))
    assert gathered.answered == {remark.id: None}
    chat = world.say("maya", "Lunch?", to=world.say("tom", "Hungry.", after=600), after=600)
    gathered = await world.gather(world.say("maya", "At one.", to=chat, after=600))
    assert gathered.answered == {chat.id: world.discord.author("tom")}


async def test_a_team_members_chain_holds_what_passed_between_the_asker_and_others() -> None:
    world = World()
    question = world.say("alice", "My node does not start.")
    tried = world.say("bob", "Did you reboot?", to=question, after=100)
    world.say("alice", "Yes, twice.", to=tried, after=100)
    world.say("carol", "What is a node?", to=tried, after=100)
    world.say("bob", "Nice weather.", after=100)
    [chain] = (await world.gather(world.say("maya", "Install the driver.", to=question, after=100))).chains.values()
    assert texts(chain) == ["My node does not start.", "Did you reboot?", "Yes, twice."]


async def test_what_follows_the_batch_and_what_a_member_replies_to_brings_no_branches() -> None:
    world = World()
    question = world.say("alice", "My node does not start.")
    answer = world.say("maya", "Install the driver.", to=question, after=100)
    world.say("alice", "That worked.", to=question, after=100)
    [chain] = (await world.gather(answer)).chains.values()
    assert texts(chain) == ["My node does not start."]
    [chain] = (await world.gather(world.say("bob", "Mine neither.", to=question, after=100))).chains.values()
    assert texts(chain) == ["My node does not start."]


async def test_branches_are_looked_for_only_in_what_was_read_anyway() -> None:
    world = World()
    question = world.say("alice", "My node does not start.")
    world.others_talk(300)
    world.say("alice", "It says: no GPU.", to=question, after=100)
    await world.gather(world.say("maya", "Install the driver.", to=question))
    assert world.calls <= 3
