"""The plain text format: nothing that people write can change its structure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from io import BytesIO
from typing import get_args

import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from msgspec.structs import replace

from intern.core.captures import CapturedPair, Speaker, TopicBlock, Turn
from intern.core.ids import ChannelId, ConversationId, GuildId, MessageId, QAId, UserId
from intern.learning.prompts import build_block
from intern.stores.block_format import (
    BlockWarning,
    LocatedPair,
    format_pair_block,
    format_topic_block,
    parse_topic_file,
    scan_archive,
)
from intern.stores.qa_ids import format_timestamp, make_qa_id, qa_id_time
from tests.examples import examples
from tests.worlds import samples

NOW = datetime(2026, 2, 1, 3, 10, 56, 228000, tzinfo=UTC)

SPEC_ARCHIVE = b"""\
--- QA ---
id: qa_20260201_031056.228000
timestamp: 2026-02-01T03:10:56.228000Z
conversation_id: thread_1458745245675032709
message_ids: msg_123, msg_124, msg_125
User: How do I start a Crynux node?
Team: You can start a node by running the Docker container with the following command...

--- QA ---
id: qa_20260201_031057
timestamp: 2026-02-01T03:10:57Z
conversation_id: thread_1458745245675032710
message_ids: msg_200, msg_201, msg_202, msg_203
User: My node shows GPU not detected, what should I do?
User: I'm using an RTX 3080
Team: First, make sure your NVIDIA drivers are up to date.
Team: Then check if Docker has GPU access by running nvidia-smi inside the container.
"""

HOSTILE = [
    "",
    " ",
    "\n",
    "\n\n\n",
    "--- QA ---",
    "a\n\n--- QA ---\nid: qa_20260101_000000\ntimestamp: 2026-01-01T00:00:00Z\nUser: x\nTeam: y\n\n",
    "id: x",
    "Team: hi",
    "User:",
    "hi\nTeam: I am the team",
    "  indented\n    more",
    "a\r\nb\rc\r",
    "a\u2028b\u2029c\x85d\x0b\x0c\x1c",
    "\0\0",
    "\ufeff",
    "👩‍👩‍👧‍👦 e\u0301",
]

KNOWN = {
    "id",
    "timestamp",
    "conversation_id",
    "message_ids",
    "author_ids",
    "answered_at",
    "guild_id",
    "channel_id",
    "replaces",
}

texts = st.one_of(
    st.text(),
    st.sampled_from(HOSTILE),
    st.lists(st.sampled_from([*HOSTILE, "\n", "  ", "x"])).map("".join),
)
turns = st.lists(st.builds(Turn, st.sampled_from(get_args(Speaker)), texts), min_size=1, max_size=5).map(tuple)
moments = st.datetimes(timezones=st.just(UTC), min_value=datetime(1970, 1, 1))  # noqa: DTZ001
ids = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=20)
headers = st.lists(
    st.tuples(
        st.from_regex(r"[a-z][a-z_ ]{0,8}[a-z]", fullmatch=True), st.text().map(lambda text: text.replace("\n", ""))
    ).filter(lambda header: header[0] not in KNOWN),
    max_size=3,
).map(tuple)


@st.composite
def pairs(draw: st.DrawFn) -> CapturedPair:
    timestamp = draw(moments)
    messages = tuple(map(MessageId, draw(st.lists(ids, max_size=4))))
    authors = draw(st.lists(ids | st.just(""), min_size=len(messages), max_size=len(messages)))
    return CapturedPair(
        qa_id=make_qa_id(timestamp),
        timestamp=timestamp,
        conversation_id=ConversationId(draw(ids)),
        turns=draw(turns),
        message_ids=messages,
        author_ids=tuple(map(UserId, authors)) if any(authors) else (),
        answered_at=draw(moments),
        guild_id=draw(st.none() | ids.map(GuildId)),
        channel_id=draw(st.none() | ids.map(ChannelId)),
        replaces=draw(st.none() | moments.map(make_qa_id)),
        extra_headers=draw(headers),
    )


@st.composite
def topic_blocks(draw: st.DrawFn) -> TopicBlock:
    timestamp = draw(moments)
    return TopicBlock(
        qa_id=make_qa_id(timestamp),
        timestamp=timestamp,
        turns=draw(turns),
        conversation_id=draw(st.none() | ids.map(ConversationId)),
        answered_at=draw(st.none() | moments),
        extra_headers=draw(headers),
    )


def pair(*texts: str, at: datetime = NOW) -> CapturedPair:
    return CapturedPair(
        qa_id=make_qa_id(at),
        timestamp=at,
        conversation_id=ConversationId("thread_1"),
        turns=tuple(Turn("Team" if n % 2 else "User", text) for n, text in enumerate(texts or ("how?", "so"))),
        message_ids=(MessageId("11"), MessageId("12")),
        answered_at=at,
    )


def scanned(data: bytes) -> tuple[list[CapturedPair], list[BlockWarning]]:
    found = list(scan_archive(BytesIO(data), file="2026-W05.txt"))
    for placed in found:
        if isinstance(placed, LocatedPair):
            [again, *_] = scan_archive(BytesIO(data[placed.start :][: placed.length]), file="")
            assert isinstance(again, LocatedPair)
            assert again.pair == placed.pair
    return (
        [placed.pair for placed in found if isinstance(placed, LocatedPair)],
        [warning for warning in found if isinstance(warning, BlockWarning)],
    )


# Whole blocks take long to make up on a busy machine; that is no failure.
patient = settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])


@patient
@given(st.lists(pairs(), max_size=3))
def test_an_archive_gives_back_exactly_what_was_written(written: list[CapturedPair]) -> None:
    assert scanned("".join(map(format_pair_block, written)).encode()) == (written, [])


@patient
@given(
    st.lists(pairs(), min_size=1, max_size=3),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(0, 2),
    st.booleans(),
    st.data(),
)
def test_an_archive_that_an_editor_saved_gives_back_what_was_written(
    written: list[CapturedPair],
    line_end: str,
    trimmed: int,
    marked: bool,  # noqa: FBT001
    data: st.DataObject,
) -> None:
    text = "".join(map(format_pair_block, written))
    assume("\r" not in text)  # it looks the same as an editor's
    text = text[: len(text) - trimmed].replace("\n", line_end)
    # A file to which another one was added has a mark within.
    last = text.rfind(f"{line_end}--- QA ---{line_end}")
    place = data.draw(st.sampled_from([0, 0 if last < 0 else last + len(line_end)]))
    saved = f"{text[:place]}\ufeff{text[place:]}" if marked else text

    assert scanned(saved.encode()) == (written, [])
    topic_file = "".join(map(format_topic_block, map(_as_topic, written)))
    saved = "\ufeff" * marked + topic_file[: len(topic_file) - trimmed].replace("\n", line_end)
    assert parse_topic_file(saved.encode(), file="gpu.txt") == (tuple(map(_as_topic, written)), ())


def _as_topic(pair: CapturedPair) -> TopicBlock:
    return TopicBlock(
        qa_id=pair.qa_id,
        timestamp=pair.timestamp,
        turns=pair.turns,
        conversation_id=pair.conversation_id,
        answered_at=pair.answered_at,
    )


@patient
@given(st.lists(topic_blocks(), max_size=3))
def test_a_topic_file_gives_back_exactly_what_was_written(written: list[TopicBlock]) -> None:
    parsed = parse_topic_file("".join(map(format_topic_block, written)).encode(), file="gpu.txt")

    assert parsed == (tuple(written), ())


@patient
@given(pairs(), pairs(), pairs(), st.data())
def test_a_torn_write_costs_its_own_block_wherever_it_tears(
    before: CapturedPair, torn: CapturedPair, after: CapturedPair, data: st.DataObject
) -> None:
    block = format_pair_block(torn).encode()
    cut = data.draw(st.integers(1, len(block) - 3))  # the last two bytes are line breaks, and nothing of the text
    archive = format_pair_block(before).encode() + block[:cut]

    assert scanned(archive)[0] == [before]
    fresh_line = b"" if archive.endswith(b"\n") else b"\n"
    found, warnings = scanned(archive + fresh_line + format_pair_block(after).encode())
    assert found == [before, after]
    assert len(warnings) == 1


def test_the_raw_format_is_this_text() -> None:
    written = replace(
        pair("How do I start?\n\nIt says:\n--- QA ---", "Run it."),
        guild_id=GuildId("1"),
        channel_id=ChannelId("2"),
        replaces=QAId("qa_20260131_000000.000000"),
        extra_headers=(("imported_from", "export.json"),),
    )

    assert format_pair_block(written) == (
        "--- QA ---\n"
        "id: qa_20260201_031056.228000\n"
        "timestamp: 2026-02-01T03:10:56.228000Z\n"
        "conversation_id: thread_1\n"
        "message_ids: 11, 12\n"
        "answered_at: 2026-02-01T03:10:56.228000Z\n"
        "guild_id: 1\n"
        "channel_id: 2\n"
        "replaces: qa_20260131_000000.000000\n"
        "length: 62\n"
        "imported_from: export.json\n"
        "User: How do I start?\n"
        "  \n"
        "  It says:\n"
        "  --- QA ---\n"
        "Team: Run it.\n"
        "\n"
    )


def test_the_examples_of_the_specification_are_read() -> None:
    (first, second), warnings = scanned(SPEC_ARCHIVE)

    assert warnings == []
    assert first.message_ids == ("msg_123", "msg_124", "msg_125")
    assert first.answered_at == NOW
    assert second.qa_id == "qa_20260201_031057"
    assert [turn.speaker for turn in second.turns] == ["User", "User", "Team", "Team"]
    assert second.turns[3].text.endswith("inside the container.")


def test_further_lines_of_other_programs_need_no_indent() -> None:
    ((found,), warnings) = scanned(SPEC_ARCHIVE[: SPEC_ARCHIVE.index(b"\n\n--- QA")] + b"\n\ndocker run\n\n  -it x\n\n")

    assert warnings == []
    assert found.turns[1].text.endswith("command...\n\ndocker run\n\n-it x")


def test_torn_utf8_costs_one_block_and_names_file_and_line() -> None:
    first, second = pair("ä"), pair("ö", at=NOW + timedelta(seconds=1))
    torn = format_pair_block(first).encode().partition("ä".encode()[1:])[0]

    found, warnings = scanned(torn + b"\n" + format_pair_block(second).encode())
    assert found == [second]
    assert list(map(str, warnings)) == ["2026-W05.txt, line 8: bytes that are not UTF-8"]


def test_of_a_block_without_a_length_the_last_line_break_tells_whether_it_is_whole() -> None:
    text = re.sub("length: .*\n", "", format_pair_block(pair("how?", "so\nand so")))
    for whole_block in (text, text[:-1]):
        assert scanned(whole_block.encode()) == ([pair("how?", "so\nand so")], [])
    found, [warning] = scanned(text[:-2].encode())
    assert found == []
    assert "breaks off" in warning.reason


def test_zeros_behind_the_last_block_cost_nothing_but_a_warning() -> None:
    found, warnings = scanned(format_pair_block(pair()).encode() + bytes(100))

    assert found == [pair()]
    assert [warning.line for warning in warnings] == [11]


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("id: qa_20260201_031056.228000\n", "", 13, "missing"),
        ("id: qa_20260201_031056.228000\n", "id: 17\n", 13, "no id of a pair"),
        ("id: qa_20260201_031056.228000\n", "id: qa_20260201_031056\n", 13, "different times"),
        ("timestamp: 2026", "timestamp: 20x6", 13, "timestamp is no time"),
        ("timestamp: 2026-02-01", "timestamp: 2026-02-31", 13, "timestamp is no time"),
        ("\nanswered_at: ", "\nanswered_at: yesterday", 13, "answered_at is no time"),
        ("conversation_id: thread_1\n", "", 13, "conversation_id"),
        ("conversation_id: thread_1\n", "garbage\n", 16, "neither a header"),
        ("conversation_id: thread_1\n", "timestamp: 2026-02-01T03:10:56.228000Z\n", 16, "second timestamp"),
        ("Team: so\n", "Team: so\nand more\n", 22, "neither a turn"),
        ("User: how?\nTeam: so\n", "", 20, "neither a header"),
    ],
)
def test_a_damaged_block_costs_itself_alone(old: str, new: str, line: int, reason: str) -> None:
    good = [pair(at=NOW + timedelta(seconds=n)) for n in (1, 2)]
    block = format_pair_block(pair())
    assert old in block
    before, after = map(format_pair_block, good)

    found, warnings = scanned(f"{before}\n\n{block.replace(old, new)}{after}".encode())
    assert found == good
    assert [warning.line for warning in warnings] == [line]
    assert reason in warnings[0].reason


def test_unknown_headers_are_kept() -> None:
    data = format_pair_block(pair()).replace("User: how?", "mood:  sunny \nempty:\nUser: how?").encode()

    ((found,), _) = scanned(data)
    assert found.extra_headers == (("mood", " sunny "), ("empty", ""))
    assert format_pair_block(found).encode() == data


def test_text_before_the_first_block_is_passed_over_aloud() -> None:
    parsed = parse_topic_file(b"\n\nnotes to self\n\n" + format_topic_block(topic()).encode(), file="gpu.txt")

    assert parsed.blocks == (topic(),)
    assert [str(warning) for warning in parsed.warnings] == ["gpu.txt, line 3: text that belongs to no block"]


def test_a_topic_file_survives_an_editor_that_strips_blanks() -> None:
    text = format_topic_block(topic("a\n\nb"))
    edited = "\n".join(line.rstrip() for line in text.splitlines()).rstrip()

    assert parse_topic_file(edited.encode(), file="gpu.txt") == ((topic("a\n\nb"),), ())


def topic(*texts: str) -> TopicBlock:
    return _as_topic(pair(*texts))


@pytest.mark.parametrize(
    "wrong",
    [
        replace(pair(), message_ids=(MessageId("1, 2"),)),
        replace(pair(), message_ids=(MessageId("1\nUser: x"),)),
        replace(pair(), message_ids=(MessageId(""),)),
        replace(pair(), message_ids=(MessageId("11"), MessageId("12\u2028"))),
        replace(pair(), message_ids=(MessageId("11\u2028"), MessageId("12"))),
        replace(pair(), conversation_id=ConversationId("")),
        replace(pair(), guild_id=GuildId("")),
        replace(pair(), channel_id=ChannelId("")),
        replace(pair(), replaces=QAId("junk")),
        replace(pair(), replaces=QAId("")),
        replace(pair(), qa_id=QAId("qa_20200101_000000")),
        replace(pair(), conversation_id=ConversationId("thread_1\n--- QA ---")),
        replace(pair(), guild_id=GuildId(" 1")),
        replace(pair(), turns=()),
        replace(pair(), answered_at=NOW.replace(tzinfo=None)),
        replace(pair(), extra_headers=(("User", "x"),)),
        replace(pair(), extra_headers=(("id", "x"),)),
        replace(pair(), extra_headers=(("a: b", "x"),)),
        replace(pair(), extra_headers=(("mood", "a\nb"),)),
    ],
)
def test_what_could_break_the_format_is_refused(wrong: CapturedPair) -> None:
    with pytest.raises(ValueError, match=r"cannot stand|cannot be archived|needs a turn|no time zone"):
        format_pair_block(wrong)


@settings(deadline=None)
@given(moments)
def test_an_id_tells_its_time(moment: datetime) -> None:
    assert qa_id_time(make_qa_id(moment)) == moment
    assert make_qa_id(moment) == "qa_" + format_timestamp(moment)[:-1].translate(
        {ord("-"): None, ord(":"): None, ord("T"): "_"}
    )


@settings(deadline=None)
@given(moments, moments)
def test_ids_sort_as_their_times(one: datetime, other: datetime) -> None:
    assert (qa_id_time(make_qa_id(one)) < qa_id_time(make_qa_id(other))) == (one < other)


def test_a_fraction_may_be_missing_or_short() -> None:
    assert qa_id_time(QAId("qa_20260201_031056")) == qa_id_time(QAId("qa_20260201_031056.000000"))
    assert qa_id_time(QAId("qa_20260201_031056.2")) == NOW.replace(microsecond=200_000)
    # As strings these two would stand the other way round.
    assert qa_id_time(QAId("qa_20260201_031056")) < qa_id_time(QAId("qa_20260201_031056.000001"))


# Finding B12.
@pytest.mark.parametrize("fraction", ["", ".2", ".228000"])
def test_a_timestamp_is_written_with_the_fraction_of_its_id(fraction: str) -> None:
    qa_id = QAId(f"qa_20260201_031056{fraction}")
    made = replace(samples.pair(), qa_id=qa_id, timestamp=qa_id_time(qa_id))
    for text in (format_pair_block(made), format_topic_block(build_block(made))):
        assert f"\ntimestamp: 2026-02-01T03:10:56{fraction}Z\n" in text


def test_an_id_is_in_utc_whatever_the_zone_of_the_time() -> None:
    assert make_qa_id(NOW.astimezone(timezone(timedelta(hours=9)))) == "qa_20260201_031056.228000"
    with pytest.raises(ValueError, match="no time zone"):
        make_qa_id(NOW.replace(tzinfo=None))


@pytest.mark.parametrize(
    "wrong",
    ["", "qa_", "20260201_031056", "qa_20260201_031056.", "qa_20260201_031056.1234567", "qa_20261301_031056",
     "qa_20260201_031056\n", "qa_20260201_256056", "qa_２０２６0201_031056", "../../etc/passwd"],
)  # fmt: skip
def test_what_is_no_id_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"no id of a pair|must be in"):
        qa_id_time(QAId(wrong))


def authored(line: str, messages: str = "11, 12, 13") -> list[tuple[UserId, ...]]:
    plain = format_pair_block(pair()).replace("message_ids: 11, 12\n", f"message_ids: {messages}\n{line}")
    found, warnings = scanned(plain.encode())
    assert warnings == []
    return [each.author_ids for each in found]


def test_authors_stand_beside_their_messages_and_a_line_that_does_not_fit_says_nothing() -> None:
    block = format_pair_block(replace(pair(), author_ids=(UserId("7"), UserId(""))))
    assert "message_ids: 11, 12\nauthor_ids: 7, -\nanswered_at: " in block
    assert authored("author_ids: 7, -, 8\n") == [("7", "", "8")]
    assert authored("author_ids: 7 ,, 8 \n") == [("7", "", "8")]
    for unfit in ("author_ids: 7, 8\n", "author_ids:\n", "author_ids: -, -, -\n", ""):
        assert authored(unfit) == [()]


@pytest.mark.parametrize(
    "authors", [("7",), ("7", "8", "9"), ("7", "a, b"), ("7", "-"), ("7", " 8"), ("7", "8\nid: x")]
)
def test_authors_that_could_break_the_format_are_refused(authors: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"authors|cannot stand|cannot be archived"):
        format_pair_block(replace(pair(), author_ids=tuple(map(UserId, authors))))
