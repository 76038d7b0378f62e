"""The routing table of the design, row by row, on whole batches."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import pytest
from msgspec import structs

from intern.chat.context import BatchContext
from intern.chat.routing import find_question_messages, is_addressed_to_bot, is_teaching, is_worth_gathering
from intern.core.flow import Batch
from intern.core.ids import ChannelId, GuildId, MessageId, UserId
from intern.core.messages import Author, Channel, ChannelKind, ChatMessage

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)
GUILD = GuildId("5")
USER = Author(id=UserId("1"), name="alice", type="community_user")
OTHER = Author(id=UserId("2"), name="bob", type="community_user")
TEAM = Author(id=UserId("3"), name="maya", type="team_member")
TEAMMATE = Author(id=UserId("4"), name="tom", type="team_member")
BOT = Author(id=UserId("8"), name="intern", type="bot", is_self=True)
OTHER_BOT = Author(id=UserId("9"), name="music", type="bot")
WRITERS = {"USER": USER, "OTHER": OTHER, "TEAM": TEAM, "TEAMMATE": TEAMMATE, "BOT": BOT, "OTHER_BOT": OTHER_BOT}
Route = Literal["answer", "capture", "nothing"]
PLAIN = "plain"
MENTION = "mention"


def place(kind: ChannelKind = "channel") -> Channel:
    parent = None if kind == "channel" else ChannelId("10")
    return Channel(id=ChannelId("700"), guild_id=GUILD, kind=kind, parent_id=parent)


def batch(
    author: Author, *lines: str, guild_id: GuildId | None = GUILD, first_id: int = 900, told: bool = False
) -> Batch:
    """Make a batch. A line is `plain`, `mention`, or the name of an author it replies to (`GONE`: an unknown one).

    `told`: the payloads contain the authors of their reply targets.
    """
    messages = tuple(
        ChatMessage(
            id=MessageId(str(first_id + n)),
            guild_id=guild_id,
            channel_id=ChannelId("700"),
            author=author,
            text="…",
            at=NOON,
            reply_to=None if line in {PLAIN, MENTION} else MessageId(f"to-{line}"),
            replies_to_other=told and line in WRITERS and WRITERS[line] not in {author, BOT},
            mentions_bot=line == MENTION,
        )
        for n, line in enumerate(lines)
    )
    return Batch(channel_id=ChannelId("700"), author=author, messages=messages)


def route(said: Batch, where: Channel, known: BatchContext, *, answered_in_thread: bool = False) -> Route:
    """Return the router's decision about a batch."""
    if not is_worth_gathering(said, where, answered_in_thread=answered_in_thread):
        return "nothing"
    if said.author.type == "team_member":
        return "capture" if is_teaching(said, where, known) else "nothing"
    return "answer" if find_question_messages(said, where, known, answered_in_thread=answered_in_thread) else "nothing"


def facts(*, asked: bool = False) -> BatchContext:
    authors: dict[MessageId, Author | None] = {MessageId(f"to-{name}"): author for name, author in WRITERS.items()}
    thread = batch(USER, PLAIN, first_id=800).messages if asked else ()
    return BatchContext(reply_authors=authors | {MessageId("to-GONE"): None}, thread=thread)


@pytest.mark.parametrize(
    ("author", "lines", "goes_to"),
    [
        (BOT, [PLAIN], "nothing"),
        (OTHER_BOT, ["USER"], "nothing"),
        (OTHER_BOT, [MENTION], "nothing"),
        (USER, [PLAIN], "answer"),
        (USER, [PLAIN, PLAIN], "answer"),
        (USER, ["USER"], "answer"),
        (USER, ["BOT"], "answer"),
        (USER, ["OTHER"], "nothing"),
        (USER, ["TEAM"], "nothing"),
        (USER, ["OTHER_BOT"], "nothing"),
        (USER, ["GONE"], "nothing"),
        (USER, ["OTHER", PLAIN], "answer"),
        (USER, [PLAIN, "OTHER"], "answer"),
        (USER, ["OTHER", "TEAM", "GONE"], "nothing"),
        (USER, ["OTHER", "BOT"], "answer"),
        (USER, ["OTHER", MENTION], "answer"),
        (USER, [MENTION], "answer"),
        (TEAM, [PLAIN], "nothing"),
        (TEAM, [MENTION], "nothing"),
        (TEAM, ["USER"], "capture"),
        (TEAM, ["USER", PLAIN], "capture"),
        (TEAM, [PLAIN, "USER", PLAIN], "capture"),
        (TEAM, ["BOT"], "capture"),
        (TEAM, ["OTHER_BOT"], "nothing"),
        (TEAM, ["TEAMMATE"], "nothing"),
        (TEAM, ["TEAM"], "nothing"),
        (TEAM, ["TEAMMATE", "USER"], "capture"),
        (TEAM, ["GONE"], "nothing"),
        (TEAM, ["GONE", "USER"], "capture"),
    ],
)
def test_in_a_channel(author: Author, lines: list[str], goes_to: Route) -> None:
    for told in (False, True):
        assert route(batch(author, *lines, told=told), place(), facts()) == goes_to


@pytest.mark.parametrize("kind", ["thread", "post"])
@pytest.mark.parametrize(
    ("author", "lines", "asked", "answered", "goes_to"),
    [
        (USER, [PLAIN], False, True, "answer"),
        (USER, ["OTHER"], False, True, "answer"),
        (USER, [PLAIN], False, False, "nothing"),
        (USER, ["USER"], False, False, "nothing"),
        (USER, [MENTION], False, False, "answer"),
        (USER, ["BOT"], False, False, "answer"),
        (TEAM, [PLAIN], True, False, "capture"),
        (TEAM, ["TEAMMATE"], True, False, "capture"),
        (TEAM, [PLAIN], False, False, "nothing"),
        (TEAM, ["TEAMMATE"], False, False, "nothing"),
        (TEAM, ["BOT"], False, False, "capture"),
        (BOT, [PLAIN], True, True, "nothing"),
    ],
)
def test_in_a_thread(
    kind: ChannelKind, author: Author, lines: list[str], *, asked: bool, answered: bool, goes_to: Route
) -> None:
    for told in (False, True):
        said = batch(author, *lines, told=told)
        assert route(said, place(kind), facts(asked=asked), answered_in_thread=answered) == goes_to


@pytest.mark.parametrize(
    ("lines", "asked"),
    [
        ([PLAIN, "OTHER"], [0]),
        (["OTHER", PLAIN], [1]),
        ([PLAIN, "GONE", "USER", PLAIN], [0, 2, 3]),
        (["OTHER", "OTHER"], []),
        (["OTHER", MENTION], [0, 1]),
        (["OTHER", "BOT", PLAIN], [0, 1, 2]),
    ],
)
def test_a_reply_to_somebody_else_is_left_out_of_a_question_that_does_not_address_the_bot(
    lines: list[str], asked: list[int]
) -> None:
    said = batch(USER, *lines)
    assert find_question_messages(said, place(), facts()) == tuple(said.messages[n] for n in asked)


def test_a_new_forum_post_is_a_question_and_what_others_add_to_it_is_not() -> None:
    opening = batch(USER, PLAIN, PLAIN, first_id=700)
    assert route(opening, place("post"), facts()) == "answer"
    assert is_addressed_to_bot(opening, place("post"), facts())
    assert route(batch(OTHER, PLAIN), place("post"), facts(asked=True)) == "nothing"


def test_a_team_members_own_forum_post_is_no_capture() -> None:
    assert route(batch(TEAM, PLAIN, first_id=700), place("post"), facts()) == "nothing"


def test_a_team_members_reply_within_the_batch_teaches_nobody() -> None:
    said = batch(TEAM, PLAIN, "901")
    first, second = said.messages
    own = structs.replace(said, messages=(first, structs.replace(second, reply_to=first.id)))
    assert route(own, place(), BatchContext(reply_authors={first.id: TEAM})) == "nothing"


def test_private_messages_concern_nobody() -> None:
    assert not is_worth_gathering(batch(USER, MENTION, guild_id=None), place(), answered_in_thread=False)


@pytest.mark.parametrize(
    ("author", "kind"), [(OTHER_BOT, "channel"), (TEAM, "channel"), (USER, "thread"), (USER, "post")]
)
def test_what_can_concern_nobody_costs_no_reading(author: Author, kind: ChannelKind) -> None:
    assert not is_worth_gathering(batch(author, PLAIN), place(kind), answered_in_thread=False)


@pytest.mark.parametrize("lines", [["OTHER"], ["TEAM", "OTHER_BOT"]])
@pytest.mark.parametrize("kind", ["channel", "thread"])
def test_replies_to_others_cost_no_reading_where_the_payload_names_them(lines: list[str], kind: ChannelKind) -> None:
    assert not is_worth_gathering(batch(USER, *lines, told=True), place(kind))
    assert is_worth_gathering(batch(USER, *lines, MENTION, told=True), place(kind))
    assert is_worth_gathering(batch(USER, *lines, "GONE", told=True), place(kind))


@pytest.mark.parametrize(("lines", "to_bot"), [([PLAIN], False), (["USER"], False), (["BOT"], True), ([MENTION], True)])
def test_who_mentions_the_bot_or_replies_to_it_addresses_it(lines: list[str], *, to_bot: bool) -> None:
    assert is_addressed_to_bot(batch(USER, *lines), place(), facts()) is to_bot


def test_who_writes_in_the_bots_thread_addresses_it() -> None:
    assert is_addressed_to_bot(batch(USER, PLAIN), place("thread"), facts(), answered_in_thread=True)
    assert not is_addressed_to_bot(batch(USER, PLAIN), place("thread"), facts())


@pytest.mark.parametrize(
    ("answered", "goes_to"), [(USER, "capture"), (BOT, "capture"), (TEAMMATE, "nothing"), (TEAM, "nothing")]
)
def test_who_replies_to_their_own_words_goes_on_with_what_those_answered(answered: Author, goes_to: Route) -> None:
    said = batch(TEAM, "TEAM")
    known = structs.replace(facts(), answered={MessageId("to-TEAM"): answered})
    assert route(said, place(), known) == goes_to
    assert is_worth_gathering(said, place(), answered_in_thread=False)
