"""The conversation to answer: the asker's batch last, its context before it, within bounds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec import structs

from intern.chat.context import BatchContext
from intern.chat.conversations import build_answer_request, build_conversation, merge_questions
from intern.chat.options import ConversationOptions
from intern.core.flow import AnswerRequest, Batch
from intern.core.ids import ChannelId, GuildId, MessageId, UserId
from intern.core.messages import Author, Channel, ChatMessage, RequestContext

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)
ALICE = Author(id=UserId("1"), name="alice", type="community_user")
BOB = Author(id=UserId("2"), name="bob", type="community_user")
MAYA = Author(id=UserId("3"), name="maya", type="team_member")
BOT = Author(id=UserId("8"), name="intern", type="bot", is_self=True)
MUSIC = Author(id=UserId("9"), name="music", type="bot")
OPTIONS = ConversationOptions()
THREAD = Channel(id=ChannelId("70"), guild_id=GuildId("5"), kind="thread", parent_id=ChannelId("10"))
CHANNEL = Channel(id=ChannelId("10"), guild_id=GuildId("5"), kind="channel")


def message(n: int, author: Author, text: str, *, mentions_bot: bool = False) -> ChatMessage:
    return ChatMessage(
        id=MessageId(str(n)),
        guild_id=GuildId("5"),
        channel_id=ChannelId("70"),
        author=author,
        text=text,
        at=NOON + timedelta(seconds=n),
        mentions_bot=mentions_bot,
    )


def asked(*messages: ChatMessage) -> Batch:
    return Batch(channel_id=ChannelId("70"), author=messages[-1].author, messages=messages)


def said(batch: Batch, *context: ChatMessage, options: ConversationOptions = OPTIONS) -> list[tuple[str, str]]:
    conversation = build_conversation(batch, BatchContext(thread=context), options)
    return [(message.role, message.text) for message in conversation.messages]


def test_the_bots_own_words_are_the_assistants_and_other_bots_are_not_heard() -> None:
    question = asked(message(4, ALICE, "and on Windows?"))
    assert said(
        question,
        message(1, ALICE, "how do I start?"),
        message(2, BOT, "run it"),
        message(3, MUSIC, "now playing"),
        *question.messages,
    ) == [("user", "how do I start?"), ("assistant", "run it"), ("user", "and on Windows?")]


def test_the_askers_batch_comes_last_whatever_others_said_meanwhile() -> None:
    question = asked(message(2, ALICE, "how?"), message(4, ALICE, "on Windows"))
    assert said(question, message(1, BOB, "hi"), message(3, BOB, "hm"))[-2:] == [
        ("user", "how?"),
        ("user", "on Windows"),
    ]


def test_chains_are_context_too() -> None:
    gathered = BatchContext(chains={MessageId("3"): (message(1, MAYA, "see the wiki"),)})
    conversation = build_conversation(asked(message(3, ALICE, "where?")), gathered, OPTIONS)
    assert [message.text for message in conversation.messages] == ["see the wiki", "where?"]


def test_of_a_long_history_the_opening_and_the_newest_are_kept() -> None:
    context = [message(n, ALICE if n % 2 else BOT, f"line {n}") for n in range(1, 100)]
    options = ConversationOptions(max_history_messages=3)
    assert [text for _, text in said(asked(message(100, ALICE, "well?")), *context, options=options)] == [
        "line 1",
        "line 98",
        "line 99",
        "well?",
    ]
    none = ConversationOptions(max_history_messages=0)
    assert said(asked(message(100, ALICE, "well?")), *context, options=none) == [("user", "well?")]


def test_the_characters_are_bounded_and_the_question_has_precedence() -> None:
    context = [message(1, ALICE, "o" * 30), message(2, BOB, "x" * 50), message(3, BOB, "y" * 30)]
    options = ConversationOptions(max_history_chars=100)
    assert [text[0] for _, text in said(asked(message(4, ALICE, "q" * 30)), *context, options=options)] == list("oyq")
    assert [text[0] for _, text in said(asked(message(4, ALICE, "q" * 90)), *context, options=options)] == ["q"]
    assert [text[0] for _, text in said(asked(message(4, ALICE, "q" * 900)), *context, options=options)] == ["q"]


def test_the_address_is_not_part_of_the_question() -> None:
    assert said(asked(message(1, ALICE, "<@8>, how do I start?", mentions_bot=True))) == [("user", "how do I start?")]
    assert said(asked(message(1, ALICE, "ask <@8> how", mentions_bot=True))) == [("user", "ask <@8> how")]


def test_the_request_says_where_it_was_asked() -> None:
    batch = asked(message(4, ALICE, "how?"))
    in_thread = build_answer_request(batch, THREAD, BatchContext(), OPTIONS, addressed=True)
    assert in_thread.context == RequestContext(
        guild_id=GuildId("5"), channel_id=ChannelId("10"), thread_id=ChannelId("70"), message_id=MessageId("4")
    )
    assert in_thread.addressed
    in_channel = build_answer_request(batch, CHANNEL, BatchContext(), OPTIONS, addressed=False)
    assert in_channel.context.channel_id == "10"
    assert in_channel.context.thread_id is None


def test_who_mentions_the_bot_or_replies_to_it_calls_it() -> None:
    def called(message: ChatMessage, target: Author | None = None) -> bool:
        gathered = BatchContext(reply_authors={MessageId("1"): target})
        return build_answer_request(asked(message), THREAD, gathered, OPTIONS, addressed=True).called

    answering = structs.replace(message(4, ALICE, "how?"), reply_to=MessageId("1"))
    assert called(message(4, ALICE, "<@8> how?", mentions_bot=True))
    assert called(answering, BOT)
    assert not called(answering, BOB)
    assert not called(answering, None)
    assert not called(message(4, ALICE, "how?"))


def request(batch: Batch, *context: ChatMessage, addressed: bool = False) -> AnswerRequest:
    return build_answer_request(batch, THREAD, BatchContext(thread=context), OPTIONS, addressed=addressed)


def texts(request: AnswerRequest) -> list[str]:
    return [message.text for message in request.conversation.messages]


def test_two_questions_of_one_asker_become_one_the_older_in_front() -> None:
    older = request(asked(message(2, ALICE, "how?")), message(1, BOB, "hi"), addressed=True)
    newer = request(asked(message(5, ALICE, "on Windows")), message(2, ALICE, "how?"), message(4, BOB, "hm"))
    both = merge_questions(older, newer, OPTIONS)
    assert texts(both) == ["hi", "hm", "how?", "on Windows"]
    assert [m.id for m in both.batch.messages] == ["2", "5"]
    assert both.context == newer.context
    assert both.addressed
    assert not both.called
    three = merge_questions(both, request(asked(message(7, ALICE, "version 3"))), OPTIONS)
    assert texts(three) == ["hi", "hm", "how?", "on Windows", "version 3"]


def test_of_a_message_that_is_in_both_the_newer_version_counts_once() -> None:
    older = request(asked(message(2, ALICE, "how"), message(3, ALICE, "do I strat?")))
    newer = request(asked(message(3, ALICE, "do I start?"), message(4, ALICE, "on Windows")))
    both = merge_questions(older, newer, OPTIONS)
    assert texts(both) == ["how", "do I start?", "on Windows"]
    assert [m.text for m in both.batch.messages] == ["how", "do I start?", "on Windows"]


# Finding B1.
def test_an_edited_part_of_a_question_keeps_its_place() -> None:
    older = request(asked(message(5, ALICE, "it fails"), message(6, ALICE, "how do I start it?")))
    edited = request(asked(message(5, ALICE, "error 4711\nit fails")))
    for both in (merge_questions(older, edited, OPTIONS), merge_questions(edited, older, OPTIONS)):
        assert [each.id for each in both.batch.messages] == ["5", "6"]
        assert both.context.message_id == "6"
    assert texts(merge_questions(older, edited, OPTIONS))[-2:] == ["error 4711\nit fails", "how do I start it?"]


def test_joined_questions_keep_to_the_same_bounds() -> None:
    options = ConversationOptions(max_history_chars=100, max_history_messages=1)
    older = request(asked(message(2, ALICE, "o" * 30)), message(1, BOB, "x" * 10))
    newer = request(asked(message(5, ALICE, "n" * 30)), message(4, BOB, "y" * 10))
    assert [text[0] for text in texts(merge_questions(older, newer, options))] == ["x", "o", "n"]
    long = request(asked(message(2, ALICE, "o" * 90)))
    assert [text[0] for text in texts(merge_questions(long, newer, options))] == ["y", "n"]
