from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, strategies as st

from intern.core.flow import ApprovalReaction, MessageCreated, MessageEdited, MessagesDeleted
from intern.core.ids import ChannelId, GuildId, MessageId, RoleId, UserId, parse_position
from intern.core.messages import Channel, ChatMessage, MemberRoles
from intern.platforms.discord.events import read_event
from intern.platforms.discord.gateway_cache import ChannelDeleted, ChannelsUpdated, GatewayCache, build_channel
from intern.platforms.discord.messages import Team, build_message
from intern.platforms.discord.options import DiscordOptions
from intern.platforms.discord.payloads import RawChannel, RawMessage, decode_json

Json = dict[str, Any]

BOT, ALICE, TESS = UserId("100"), UserId("201"), UserId("301")
TEAM_ROLE = RoleId("900")
NOW = "2026-02-01T03:11:00+00:00"
GUILD, HELP = GuildId("1000"), ChannelId("2000")
US = Team(bot_id=BOT, member_ids=frozenset({UserId("302")}), role_ids=frozenset({TEAM_ROLE}))


def payload(**over: Any) -> Json:
    told: Json = {
        "id": "1400000000000000000",
        "channel_id": HELP,
        "guild_id": GUILD,
        "type": 0,
        "author": {"id": ALICE, "username": "alice", "discriminator": "0", "avatar": None},
        "member": {"roles": [], "joined_at": "2024-01-01T00:00:00+00:00"},
        "content": "how?",
        "timestamp": "2026-02-01T03:10:56.228000+00:00",
        "edited_timestamp": None,
        "mentions": [],
        "attachments": [],
        "embeds": [],
        "tts": False,
        "pinned": False,
        "flags": 0,
    }
    told |= over
    return {key: value for key, value in told.items() if value is not ...}


def created(cache: GatewayCache | None = None, /, **over: Any) -> ChatMessage:
    event = read_event("MESSAGE_CREATE", payload(**over), US, cache)
    assert isinstance(event, MessageCreated)
    return event.message


def test_a_message_keeps_what_we_need() -> None:
    message = created(
        attachments=[{"id": "7", "filename": "a.png", "size": 5, "url": "https://x/a", "proxy_url": "", "width": 1}],
        edited_timestamp="2026-02-01T04:11:00+01:00",
    )

    assert message.id == "1400000000000000000"
    assert (message.guild_id, message.channel_id) == (GUILD, HELP)
    assert (message.author.id, message.author.name, message.author.type) == (ALICE, "alice", "community_user")
    assert message.text == "how?"
    assert message.at == datetime(2026, 2, 1, 3, 10, 56, 228000, UTC)
    assert message.edited_at == datetime(2026, 2, 1, 3, 11, tzinfo=UTC)
    assert message.edited_at is not None
    assert message.edited_at.tzinfo == UTC
    assert [(file.id, file.filename, file.size, file.width, file.height) for file in message.attachments] == [
        ("7", "a.png", 5, 1, None)
    ]
    assert message.reply_to is None
    assert not message.mentions_bot


def test_ids_and_an_author_are_enough() -> None:
    event = read_event("MESSAGE_CREATE", {"id": "5", "channel_id": "6", "author": {"id": "7"}}, US)

    assert isinstance(event, MessageCreated)
    message = event.message
    assert message.guild_id is None
    assert (message.text, message.author.name, message.author.type) == ("", "7", "community_user")
    assert message.at == parse_position("5").time


@pytest.mark.parametrize("absent", ["id", "channel_id", "author"])
def test_without_ids_or_author_there_is_no_message(absent: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=absent):
        read_event("MESSAGE_CREATE", payload(**{absent: ...}), US)


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": 5},
        {"id": "../../etc"},
        {"id": "5\n"},
        {"channel_id": None},
        {"guild_id": ["1000"]},
        {"author": "alice"},
        {"author": {"id": "<@1>"}},
    ],
)
def test_an_id_or_author_of_the_wrong_type_makes_the_payload_unreadable(wrong: Json) -> None:
    with pytest.raises(msgspec.ValidationError):
        read_event("MESSAGE_CREATE", payload(**wrong), US)


ODD: tuple[object, ...] = (-1.5, "odd", [], ["odd", 7, None], {}, {"id": 5, "odd": []}, "0001-01-01T00:00:00+14:00")
RICH = payload(
    member={"roles": [TEAM_ROLE], "nick": "Al"},
    author={"id": ALICE, "username": "alice", "global_name": "Alice", "bot": False, "system": False},
    webhook_id=None,
    type=19,
    edited_timestamp="2026-02-01T04:11:00+01:00",
    message_reference={"message_id": "5", "channel_id": HELP, "type": 0},
    mentions=[{"id": BOT, "username": "intern"}],
    mention_roles=[TEAM_ROLE],
    attachments=[{"id": "7", "filename": "a.png", "size": 5, "url": "https://x/a", "content_type": "image/png"}],
    sticker_items=[{"id": "8", "name": "wave"}],
    poll={"question": {"text": "which?"}},
    message_snapshots=[{"message": {"content": "said before", "attachments": []}}],
    thread={"id": "1400000000000000000"},
)


def _places(of: Json, within: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the path to each field, also to those of nested objects."""
    places = [(*within, name) for name in of if name not in {"id", "channel_id", "guild_id", "author"} or within]
    for name, value in of.items():
        first: Any = next(iter(cast("Iterable[Any]", value)), None) if isinstance(value, list) else value
        if isinstance(first, dict):
            places += _places(cast("Json", first), (*within, name))
    return [place for place in places if place != ("author", "id")]


def _with(of: Json, place: tuple[str, ...], value: object) -> Json:
    first, *rest = place
    held = of[first]
    if not rest:
        return {**of, first: value}
    if isinstance(held, list):
        return {**of, first: [_with(cast("Json", held[0]), tuple(rest), value)]}
    return {**of, first: _with(held, tuple(rest), value)}


# An edited message is read as a new one is, but for the time of the edit.
@pytest.mark.parametrize(
    ("name", "place"),
    [*(("MESSAGE_CREATE", each) for each in _places(RICH)), ("MESSAGE_UPDATE", ("edited_timestamp",))],
    ids=lambda value: value if isinstance(value, str) else ".".join(value),
)
def test_an_optional_field_of_a_wrong_type_costs_nothing_beside_it(place: tuple[str, ...], name: str) -> None:
    known = created(**RICH)
    for odd in ODD:
        event = read_event(name, _with(RICH, place, odd), US)
        assert isinstance(event, MessageCreated | MessageEdited), odd
        message = event.message
        assert (message.id, message.author.id) == (known.id, ALICE)
        if place[0] not in {"content", "sticker_items", "poll", "message_snapshots"}:
            assert message.text == known.text
        if place[0] not in {"attachments", "message_snapshots"}:
            assert message.attachments == known.attachments
        if place[0] not in {"member", "webhook_id"}:
            assert message.author.type == "team_member"
        if place[0] not in {"type", "message_reference"}:
            assert (message.reply_to, message.reply_to_channel) == ("5", HELP)


def test_roles_that_are_sent_as_objects_are_the_roles_and_an_edit_with_them_is_heard() -> None:
    cache = GatewayCache()
    told = payload(member={"roles": [{"id": TEAM_ROLE, "name": "Team"}, {"name": "no id"}]}, edited_timestamp=NOW)
    event = read_event("MESSAGE_UPDATE", told, US, cache)
    assert isinstance(event, MessageEdited)
    assert event.message.author.type == "team_member"
    assert cache.roles(GUILD, ALICE) == (TEAM_ROLE,)


def test_of_roles_that_cannot_be_read_what_was_seen_before_holds() -> None:
    cache = GatewayCache()
    created(cache, member={"roles": [TEAM_ROLE]})
    assert created(cache, member={"roles": "900"}).author.type == "team_member"


def test_an_edit_whose_time_cannot_be_read_is_told_once() -> None:
    cache = GatewayCache()
    told = payload(edited_timestamp="a while ago")
    assert isinstance(read_event("MESSAGE_UPDATE", told, US, cache), MessageEdited)
    assert read_event("MESSAGE_UPDATE", told, US, cache) is None


def test_numbers_and_truth_values_that_are_written_as_another_type_are_read() -> None:
    message = created(author={"id": ALICE, "bot": 1}, flags="32", attachments=[{"id": "7", "size": "5"}])
    assert (message.author.type, message.attachments[0].size) == ("bot", 5)
    assert message.thread_id == "1400000000000000000"


def test_a_message_of_a_webhook_is_a_bot_s_however_its_id_is_written() -> None:
    assert created(webhook_id=77).author.type == "bot"


def test_half_a_surrogate_becomes_a_sign_that_utf_8_can_carry() -> None:
    message = created(
        content="how\ud83d?", member={"nick": "\ude00Al"}, attachments=[{"id": "7", "filename": "\ud83d"}]
    )
    assert (message.text, message.author.name, message.attachments[0].filename) == ("how\ufffd?", "\ufffdAl", "\ufffd")
    assert created(content="\ud83d\ude00").text == "😀"


def test_of_deletions_that_cannot_be_read_the_others_are_heard() -> None:
    event = read_event("MESSAGE_DELETE_BULK", {"channel_id": HELP, "ids": ["5", 6, {}, "7"]}, US)
    assert isinstance(event, MessagesDeleted)
    assert event.message_ids == ("5", "7")
    with pytest.raises(msgspec.ValidationError, match="id"):
        read_event("MESSAGE_DELETE", {"channel_id": HELP, "id": 5}, US)


@pytest.mark.parametrize("wrong", [{"name": 5}, {"last_message_id": {}}, {"thread_metadata": "odd"}, {"parent_id": 7}])
def test_a_channel_with_an_odd_field_is_known_all_the_same(wrong: Json) -> None:
    event = read_event("CHANNEL_CREATE", {"id": HELP, "guild_id": GUILD, "type": 0, "name": "help", **wrong}, US)
    assert isinstance(event, ChannelsUpdated)
    assert [channel.id for channel in event.channels] == [HELP]


@pytest.mark.parametrize("field", ["member", "content", "mentions", "attachments", "flags", "type", "timestamp"])
def test_null_is_as_good_as_absent(field: str) -> None:
    assert created(**{field: None}) == created(**{field: ...})


def test_a_strange_attachment_costs_that_attachment_alone() -> None:
    message = created(attachments=[{"filename": "no id"}, "junk", {"id": "7", "size": None}, None])
    assert [file.id for file in message.attachments] == ["7"]
    assert message.text == "how?"


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["1", "2026-02-01T00:00:00Z"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_NAMES = st.sampled_from(
    [
        *("MESSAGE_CREATE", "MESSAGE_UPDATE", "MESSAGE_DELETE", "MESSAGE_DELETE_BULK", "GUILD_CREATE"),
        *("CHANNEL_CREATE", "CHANNEL_DELETE", "THREAD_CREATE", "THREAD_DELETE", "THREAD_LIST_SYNC", "TYPING_START"),
    ]
)
_FIELDS = st.sampled_from([*payload(), "ids", "channels", "threads", "parent_id", "thread", "message_reference"])


@given(_NAMES, st.dictionaries(_FIELDS, _JSON, max_size=4))
def test_junk_is_read_or_refused_and_nothing_else(name: str, junk: Json) -> None:
    for told in (junk, payload(**junk)):
        try:
            read_event(name, told, US)
        except msgspec.ValidationError:
            continue


def test_a_payload_that_is_no_object_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        read_event("MESSAGE_CREATE", cast("Json", ["junk"]), US)


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ({}, "community_user"),
        ({"member": {"roles": ["1", TEAM_ROLE]}}, "team_member"),
        ({"author": {"id": "302", "username": "tom"}}, "team_member"),
        ({"author": {"id": "302", "bot": True}}, "bot"),
        ({"member": {"roles": [TEAM_ROLE]}, "webhook_id": "9"}, "bot"),
        ({"author": {"id": "5", "system": True}}, "bot"),
        ({"author": {"id": BOT}}, "bot"),
    ],
)
def test_who_wrote_it(over: Json, expected: str) -> None:
    author = created(**over).author
    assert author.type == expected
    assert author.is_self == (author.id == BOT)


def test_without_team_roles_no_role_makes_a_team_member() -> None:
    raw = msgspec.convert(payload(member={"roles": []}), RawMessage)
    message = build_message(raw, Team(bot_id=BOT))
    assert message is not None
    assert message.author.type == "community_user"


@pytest.mark.parametrize(
    ("author", "member", "name"),
    [
        ({"username": "alice", "global_name": "Alice"}, {"nick": "Ali", "roles": []}, "Ali"),
        ({"username": "alice", "global_name": "Alice"}, {"nick": None, "roles": []}, "Alice"),
        ({"username": "alice", "global_name": None}, None, "alice"),
    ],
)
def test_people_are_called_what_the_server_calls_them(author: Json, member: Json | None, name: str) -> None:
    said = created(author={"id": ALICE, **author}, member=member).author
    assert said.name == name
    # Whoever writes of them may know any of these.
    assert said.names == tuple(
        dict.fromkeys(each for each in (name, author["global_name"], author["username"]) if each)
    )


@pytest.mark.parametrize("kind", [1, 6, 7, 18, 21, 24, 46, 9999])
def test_system_messages_are_no_messages(kind: int) -> None:
    assert read_event("MESSAGE_CREATE", payload(type=kind), US) is None


def test_a_reply_names_what_it_answers() -> None:
    message = created(type=19, message_reference={"type": 0, "message_id": "5", "channel_id": "6", "guild_id": GUILD})
    assert message.reply_to_author is None, "it was deleted, or nobody looked it up"
    reference, replied = {"message_id": "5", "channel_id": "6"}, {"id": "5", "author": {"id": "7"}}
    assert created(type=19, message_reference=reference, referenced_message=replied).reply_to_author == "7"
    for author, other in (("7", True), (ALICE, False), (US.bot_id, False)):
        replied = {"id": "5", "author": {"id": author}}
        assert created(type=19, message_reference=reference, referenced_message=replied).replies_to_other is other
    assert created(type=19, message_reference=reference, referenced_message={"author": 7}).reply_to_author is None
    assert (message.reply_to, message.reply_to_channel) == ("5", "6")


@pytest.mark.parametrize(
    "over",
    [
        {"type": 0, "message_reference": {"type": 1, "message_id": "5", "channel_id": "6"}},  # forwarded
        {"type": 0, "message_reference": {"message_id": "5", "channel_id": "6"}},  # crossposted
        {"type": 19, "message_reference": {"channel_id": "6"}},
        {"type": 19},
    ],
)
def test_no_other_reference_is_a_reply(over: Json) -> None:
    message = created(**over)
    assert message.reply_to is None
    assert message.reply_to_channel is None


@pytest.mark.parametrize(
    ("text", "mentions", "expected"),
    [
        (f"<@{BOT}> how?", [{"id": BOT}], True),
        (f"<@!{BOT}> how?", [{"id": BOT}], True),
        ("a reply pings its author", [{"id": BOT}], False),
        (f"`<@{BOT}>` in code", [], False),
        (f"<@{BOT}>", ..., True),
        (f"<@{ALICE}>", [{"id": ALICE}], False),
    ],
)
def test_a_mention_stands_in_the_text_and_counts_for_discord(text: str, mentions: Any, *, expected: bool) -> None:
    assert created(content=text, mentions=mentions).mentions_bot is expected


@pytest.mark.parametrize(
    ("text", "roles", "expected"),
    [("<@&77> how?", ["77"], True), ("`<@&77>` in code", [], False), ("<@&78> how?", ["78"], False)],
)
def test_the_role_that_discord_made_for_the_bot_is_a_name_of_it(text: str, roles: list[str], *, expected: bool) -> None:
    raw = msgspec.convert(payload(content=text, mention_roles=roles), RawMessage)
    message = build_message(raw, msgspec.structs.replace(US, bot_roles=frozenset({RoleId("77")})))
    assert message is not None
    assert message.mentions_bot is expected


def test_of_the_mentioned_it_is_told_who_is_a_bot_or_of_the_team() -> None:
    cache, mentioned = (
        GatewayCache(),
        [{"id": BOT}, {"id": "302"}, {"id": "6", "bot": True}, {"id": TESS}, {"id": ALICE}],
    )
    cache.note_roles(GUILD, TESS, [TEAM_ROLE])
    mentioned += [{"id": "8", "member": {"roles": [TEAM_ROLE]}}, {"id": "9", "member": {"roles": ["1"]}}, "strange"]
    message = build_message(msgspec.convert(payload(mentions=mentioned), RawMessage), US, cache=cache)
    assert message is not None
    assert message.mentioned_staff == {BOT, "302", "6", TESS, "8"}


def test_what_people_say_without_typing_it_is_said() -> None:
    picture = {"id": "1", "filename": "a.png", "url": "https://cdn.discordapp.com/a.png", "size": 1}
    forwarded = {"message": {"content": "It says error 7.", "attachments": [picture]}}
    message = created(
        content="",
        message_snapshots=[forwarded, "nonsense"],
        sticker_items=[{"id": "1", "name": "help\nme"}, 3],
        poll={"question": {"text": "Which port?"}},
    )
    assert message.text == "It says error 7.\n[sticker: help me]\n[poll: Which port?]"
    assert [file.filename for file in message.attachments] == ["a.png"]


# Finding B3.
def test_embeds_and_the_options_of_a_poll_are_text_also_of_a_forward() -> None:
    fields = [{"name": "Host", "value": "relay-3"}, 7, {"name": 7, "value": "port 7480"}]
    embed = {"type": "rich", "title": "Alert", "description": "disk 100%", "fields": fields, "footer": {"text": "bot"}}
    answers = [{"answer_id": 1, "poll_media": {"text": "7480"}}, "odd", {"poll_media": {"text": "80\n80"}}]
    message = created(
        webhook_id="5",
        content="See:",
        embeds=[embed, "odd", {"type": "rich", "title": 7, "description": "plain"}],
        poll={"question": {"text": "Which port?"}, "answers": answers},
        message_snapshots=[{"message": {"content": "E17", "embeds": [{"title": "Spool full"}]}}],
    )
    said = "See:\nE17\nAlert\ndisk 100%\nHost\nrelay-3\nport 7480\nplain\n[poll: Which port? | 7480 | 80 80]"
    assert message.text == said + "\nSpool full"


LINKED = "See https://a.example/x"


# Finding B3.
@pytest.mark.parametrize(
    ("embed", "text", "bots", "forwards"),
    [
        *(({"type": kind}, LINKED, False, False) for kind in ("link", "article", "video", "image", "gifv")),
        ({"type": "rich", "url": "https://a.example/x/"}, f"{LINKED}.", False, False),  # as some pages have it
        ({"type": "rich", "url": "https://b.example/alert"}, LINKED, True, False),  # or a link that is redirected
        ({"type": "rich"}, LINKED, True, True),
        ({"url": "https://a.example/x"}, LINKED, False, False),  # an export has no type
        ({"url": "https://b.example/alert"}, LINKED, True, False),
        ({"url": "https://a.example/alert"}, "See below", True, True),
        ({"url": ""}, LINKED, True, True),
    ],
)
def test_the_preview_of_a_link_is_no_text_and_people_write_no_embeds(
    embed: Json,
    text: str,
    bots: bool,  # noqa: FBT001
    forwards: bool,  # noqa: FBT001
) -> None:
    told: Json = {"content": text, "embeds": [{**embed, "title": "Alert"}]}
    for read, message in (
        (False, created(**told)),
        (False, created(**told, author={"id": TESS}, member={"roles": [TEAM_ROLE]})),
        (bots, created(**told, author={"id": ALICE, "bot": True})),
        (bots, created(**told, webhook_id="5")),
        (forwards, created(content="", message_snapshots=[{"message": told}])),
    ):
        assert message.text == (f"{text}\nAlert" if read else text)


# Finding B3.
def test_the_embeds_of_a_message_are_bounded_and_nothing_else_is_cut() -> None:
    long = {"type": "rich", "description": "word " * 5000, "fields": [{"name": "x", "value": "y"}] * 10_000}
    poll, sticker = {"question": {"text": "Which port?"}}, {"id": "1", "name": "help"}
    text = created(webhook_id="5", content="Look:", embeds=[long] * 10, poll=poll, sticker_items=[sticker]).text
    assert text.startswith("Look:\nword")
    assert text.endswith("\n[sticker: help]\n[poll: Which port?]")
    assert len(text) < 6100


# Finding B3.
@pytest.mark.parametrize(("question", "option", "read"), [("", " ", ""), (None, "80", "[poll: 80]"), ("\n", None, "")])
def test_a_poll_is_its_words_and_without_any_it_is_no_text(question: Any, option: Any, read: str) -> None:
    poll = {"question": {"text": question}, "answers": [{"poll_media": {"text": option}}]}
    assert created(content="", poll=poll).text == read


# Finding B3.
def test_a_voice_message_is_known_by_its_flag() -> None:
    assert created(content="", flags=1 << 13).is_voice
    assert created(content="", message_snapshots=[{"message": {"content": "", "flags": 1 << 13}}]).is_voice
    assert not created(content="", flags=1 << 5).is_voice


# Finding E3.
def test_no_two_messages_of_deleted_users_have_one_author_and_a_reply_to_one_is_to_another() -> None:
    deleted = {"id": "456226577798135808", "username": "Deleted User"}
    first, second = (created(id=f"{number}", author=deleted) for number in (7, 8))
    assert (first.author.id, second.author.id) == ("7", "8")
    reference = {"message_id": "7", "channel_id": HELP}
    reply = created(
        id="9", author=deleted, type=19, message_reference=reference, referenced_message={"author": deleted}
    )
    assert (reply.reply_to_author, reply.replies_to_other) == ("7", True)


def test_a_message_tells_of_its_thread() -> None:
    assert created(thread={"id": "77", "name": "x"}).thread_id == "77"
    assert created(flags=1 << 5).thread_id == "1400000000000000000"
    assert created().thread_id is None


def reaction(**over: Any) -> Json:
    told: Json = {
        "user_id": TESS,
        "channel_id": HELP,
        "message_id": "1400000000000000000",
        "guild_id": GUILD,
        "emoji": {"id": None, "name": "✅"},
        "member": {"roles": [TEAM_ROLE], "user": {"id": TESS}},
        "burst": False,
        "type": 0,
    }
    return {key: value for key, value in (told | over).items() if value is not ...}


def approved(cache: GatewayCache | None = None, **over: Any) -> Any:
    return read_event("MESSAGE_REACTION_ADD", reaction(**over), US, cache)


APPROVAL = ApprovalReaction(guild_id=GUILD, channel_id=HELP, message_id=MessageId("1400000000000000000"), by=TESS)


@pytest.mark.parametrize(
    "over",
    [
        {},
        {"burst": True, "type": 1, "more": [1]},
        {"emoji": {"name": "✅\ufe0f"}},
        {"member": {"roles": [TEAM_ROLE], "nick": None, "user": None}},
    ],
)
def test_a_team_member_s_check_mark_is_an_approval(over: Json) -> None:
    assert approved(**over) == APPROVAL


def test_a_thread_is_forgotten_as_it_is_archived_and_known_again_once_it_wakes() -> None:
    cache = GatewayCache()

    def told(name: str, **more: object) -> None:
        event = read_event(name, {"id": "70", "type": 11, "guild_id": GUILD, "parent_id": "60", **more}, US, cache)
        assert isinstance(event, ChannelsUpdated)
        cache.apply(event)

    cache.add_channel(RawChannel(id=ChannelId("60"), type=0, guild_id=GuildId(GUILD)))
    told("THREAD_CREATE", thread_metadata={"archived": False})
    assert cache.channel(ChannelId("70"))
    told("THREAD_UPDATE", thread_metadata={"archived": True})
    assert cache.channel(ChannelId("70")) is None
    told("THREAD_UPDATE", thread_metadata={"archived": False})
    assert cache.channel(ChannelId("70"))


def test_of_many_channels_those_stay_known_that_were_needed_last() -> None:
    cache = GatewayCache(limit=2)
    for n in ("1", "2"):
        cache.add_channel(RawChannel(id=ChannelId(n), type=0))
    assert cache.channel(ChannelId("1"))
    cache.add_channel(RawChannel(id=ChannelId("3"), type=0))
    assert cache.channel(ChannelId("1"))
    assert cache.channel(ChannelId("2")) is None


def test_archived_threads_push_nothing_else_out_and_the_last_that_were_asked_for_stay_known() -> None:
    cache = GatewayCache(limit=2, archived=2)
    cache.add_channel(RawChannel(id=ChannelId("60"), type=0))
    for n in ("70", "71", "72"):
        raw = {"id": n, "type": 11, "parent_id": "60", "thread_metadata": {"archived": True}}
        cache.add_channel(msgspec.convert(raw, RawChannel))
    assert [n for n in ("60", "70", "71", "72") if cache.channel(ChannelId(n))] == ["60", "71", "72"]
    cache.apply(ChannelDeleted(ChannelId("72")))
    assert cache.channel(ChannelId("72")) is None


def test_what_was_learned_of_roles_is_told_once_and_what_an_earlier_start_had_learned_is_believed() -> None:
    cache = GatewayCache(limit=2)
    cache.restore_roles([MemberRoles(GUILD, TESS, (TEAM_ROLE,))])
    assert cache.roles(GUILD, TESS) == (TEAM_ROLE,)
    assert cache.take_new_roles() == ()
    for n in range(3):
        cache.note_roles(GUILD, UserId(f"{n}"), [TEAM_ROLE])
    cache.note_roles(GUILD, UserId("2"), [])
    noted = (MemberRoles(GUILD, UserId("1"), (TEAM_ROLE,)), MemberRoles(GUILD, UserId("2"), ()))
    assert cache.take_new_roles() == noted
    assert cache.take_new_roles() == ()
    assert cache.roles(GUILD, UserId("2")) == ()


def test_the_team_is_known_by_id_and_by_what_was_told_of_its_roles_before() -> None:
    named = approved(user_id="302", member=...)
    assert isinstance(named, ApprovalReaction)
    assert named.by == "302"
    cache = GatewayCache()
    assert approved(cache, member=...) is None
    cache.note_roles(GUILD, TESS, [TEAM_ROLE])
    assert approved(cache, member=...) == APPROVAL
    assert approved(cache, member={"roles": []}) is None


@pytest.mark.parametrize(
    "over",
    [
        {"emoji": {"id": None, "name": "👍"}},
        {"emoji": {"id": "77", "name": "✅"}},
        {"emoji": {"id": None, "name": None}},
        {"emoji": {"name": "✅✅"}},
        {"emoji": {"name": "✔️"}},
        {"guild_id": ...},
        {"user_id": ALICE, "member": {"roles": ["901"], "user": {"id": ALICE}}},
        {"user_id": ALICE, "member": ...},
        {"user_id": BOT},
        {"user_id": "302", "member": {"roles": [], "user": {"id": "302", "bot": True}}},
        {"user_id": "302", "member": {"user": {"id": "302", "system": True}}},
    ],
)
def test_no_other_reaction_is_one(over: Json) -> None:
    assert approved(**over) is None


@pytest.mark.parametrize(
    "over",
    [{"emoji": "✅"}, {"emoji": ...}, {"message_id": "x"}, {"channel_id": None}, {"user_id": ...}, {"member": 5}],
)
def test_a_reaction_that_cannot_be_read_is_an_error_of_the_payload(over: Json) -> None:
    with pytest.raises(msgspec.ValidationError):
        approved(**over)


def test_a_reaction_that_says_nothing_to_us_may_have_any_member() -> None:
    assert approved(emoji={"name": "👀"}, member=5) is None


EDITED = "2026-02-01T03:12:00+00:00"


def test_an_edit_is_told_once() -> None:
    cache = GatewayCache()
    change = payload(content="how exactly?", edited_timestamp=EDITED)

    event = read_event("MESSAGE_UPDATE", change, US, cache)
    unfurled = read_event("MESSAGE_UPDATE", {**change, "embeds": [{"type": "link"}]}, US, cache)
    again = read_event("MESSAGE_UPDATE", {**change, "edited_timestamp": "2026-02-01T03:13:00+00:00"}, US, cache)

    assert isinstance(event, MessageEdited)
    assert event.message.text == "how exactly?"
    assert unfurled is None
    assert isinstance(again, MessageEdited)


@pytest.mark.parametrize("edited", [None, ...])
def test_an_embed_or_a_thread_that_came_to_a_message_is_no_edit(edited: Any) -> None:
    assert read_event("MESSAGE_UPDATE", payload(edited_timestamp=edited, embeds=[{}]), US) is None
    assert read_event("MESSAGE_UPDATE", {"id": "1", "channel_id": "2", "embeds": []}, US) is None


def test_an_edit_without_a_member_finds_the_roles_that_were_seen() -> None:
    cache = GatewayCache()
    created(cache, member={"roles": [TEAM_ROLE]})

    event = read_event("MESSAGE_UPDATE", payload(member=..., edited_timestamp=EDITED), US, cache)

    assert isinstance(event, MessageEdited)
    assert event.message.author.type == "team_member"


def test_deletes_name_each_message() -> None:
    one = read_event("MESSAGE_DELETE", {"id": "5", "channel_id": HELP, "guild_id": GUILD}, US)
    many = read_event("MESSAGE_DELETE_BULK", {"ids": ["5", "6"], "channel_id": HELP, "guild_id": GUILD}, US)
    private = read_event("MESSAGE_DELETE", {"id": "5", "channel_id": "8"}, US)

    five, six = MessageId("5"), MessageId("6")
    assert one == MessagesDeleted(guild_id=GUILD, channel_id=HELP, message_ids=(five,))
    assert many == MessagesDeleted(guild_id=GUILD, channel_id=HELP, message_ids=(five, six))
    assert private == MessagesDeleted(guild_id=None, channel_id=ChannelId("8"), message_ids=(five,))
    assert read_event("MESSAGE_DELETE_BULK", {"ids": [], "channel_id": HELP}, US) is None


def test_what_is_no_concern_of_ours_is_nothing() -> None:
    assert read_event("TYPING_START", {"channel_id": HELP}, US) is None


def seen(cache: GatewayCache, name: str, told: Json) -> None:
    event = read_event(name, told, US, cache)
    assert isinstance(event, ChannelsUpdated | ChannelDeleted)
    cache.apply(event)


def guild(**over: Any) -> Json:
    return {
        "id": GUILD,
        "channels": [
            {"id": HELP, "type": 0, "name": "help", "parent_id": "999"},
            {"id": "3000", "type": 15, "name": "forum"},
            {"broken": True},
        ],
        "threads": [
            {"id": "4000", "type": 11, "name": "t", "parent_id": HELP},
            {"id": "4001", "type": 11, "name": "p", "parent_id": "3000"},
        ],
        **over,
    }


def test_a_server_tells_its_channels_and_threads() -> None:
    cache = GatewayCache()
    seen(cache, "GUILD_CREATE", guild())

    assert cache.channel(HELP) == Channel(id=HELP, guild_id=GUILD, kind="channel", name="help")
    assert cache.channel(ChannelId("4000")) == Channel(
        id=ChannelId("4000"), guild_id=GUILD, kind="thread", name="t", parent_id=HELP
    )
    post = cache.channel(ChannelId("4001"))
    assert post is not None
    assert (post.kind, post.is_thread, post.parent_id) == ("post", True, "3000")
    assert cache.channel(ChannelId("5")) is None


def test_what_was_archived_or_deleted_while_no_session_was_there_is_forgotten_with_the_next() -> None:
    cache = GatewayCache()
    cache.add_channel(RawChannel(id=ChannelId("9"), type=0, guild_id=GuildId("elsewhere")))
    seen(cache, "GUILD_CREATE", guild())
    seen(cache, "CHANNEL_CREATE", {"id": "2001", "type": 0, "guild_id": GUILD, "name": "short-lived"})
    threads = [{"id": "4000", "type": 11, "name": "t", "parent_id": HELP}]
    seen(cache, "GUILD_CREATE", {"id": GUILD, "unavailable": True})
    seen(cache, "THREAD_LIST_SYNC", {"guild_id": GUILD, "channel_ids": [HELP], "threads": threads, "members": []})
    assert all(cache.channel(ChannelId(known)) for known in ("9", HELP, "2001", "4000", "4001"))
    seen(cache, "GUILD_CREATE", guild(threads=threads))
    assert all(cache.channel(ChannelId(known)) for known in ("9", HELP, "4000"))
    assert not any(cache.channel(ChannelId(gone)) for gone in ("2001", "4001"))


def test_an_unavailable_server_tells_nothing() -> None:
    assert read_event("GUILD_CREATE", {"id": GUILD, "unavailable": True}, US) == ChannelsUpdated(())


def test_threads_come_change_and_go() -> None:
    cache = GatewayCache()
    seen(cache, "GUILD_CREATE", guild(threads=None))
    thread = {"id": "4000", "type": 11, "guild_id": GUILD, "parent_id": HELP, "name": "t"}

    def name() -> str | None:
        channel = cache.channel(ChannelId("4000"))
        return channel.name if channel else None

    seen(cache, "THREAD_CREATE", {**thread, "newly_created": True})
    assert name() == "t"
    seen(cache, "THREAD_UPDATE", {**thread, "name": "renamed"})
    assert name() == "renamed"
    seen(cache, "THREAD_DELETE", {"id": "4000", "guild_id": GUILD, "parent_id": HELP, "type": 11})
    assert name() is None
    seen(cache, "THREAD_LIST_SYNC", {"guild_id": GUILD, "channel_ids": [HELP], "threads": [thread], "members": []})
    assert name() == "t"
    seen(cache, "CHANNEL_UPDATE", {"id": HELP, "type": 5, "guild_id": GUILD, "name": "news"})
    news = cache.channel(HELP)
    assert news is not None
    assert news.name == "news"
    seen(cache, "CHANNEL_CREATE", {"id": "2001", "type": 0, "guild_id": GUILD, "name": "new"})
    assert cache.channel(ChannelId("2001")) is not None
    seen(cache, "CHANNEL_DELETE", {"id": HELP, "type": 0, "guild_id": GUILD})
    assert cache.channel(HELP) is None


def test_a_thread_whose_parent_is_unknown_is_not_guessed_at() -> None:
    cache = GatewayCache()
    seen(cache, "THREAD_CREATE", {"id": "4000", "type": 11, "guild_id": GUILD, "parent_id": HELP})
    assert cache.channel(ChannelId("4000")) is None


def test_media_channels_hold_posts_too() -> None:
    raw = RawChannel(id=ChannelId("4"), type=11, parent_id=ChannelId("3"))
    assert build_channel(raw, {ChannelId("3"): 16}).kind == "post"
    assert build_channel(raw, {ChannelId("3"): 0}).kind == "thread"
    assert build_channel(raw, {}).kind == "thread"


@pytest.mark.parametrize(("kind", "private"), [(10, False), (11, False), (12, True)])
def test_a_thread_for_those_who_were_invited_is_private(kind: int, *, private: bool) -> None:
    assert build_channel(RawChannel(id=ChannelId("4"), type=kind, parent_id=ChannelId("3")), {}).private is private


def test_the_newest_of_a_forum_is_no_message() -> None:
    newest = MessageId("9")
    assert RawChannel(id=ChannelId("4"), type=0, last_message_id=newest).newest == newest
    assert RawChannel(id=ChannelId("4"), type=15, last_message_id=newest).newest is None


@pytest.mark.parametrize(("kind", "holds"), [(0, True), (5, True), (15, True), (16, True), (2, False), (11, False)])
def test_memory_knows_where_threads_can_hang(kind: int, *, holds: bool) -> None:
    cache = GatewayCache()
    assert cache.holds_threads(ChannelId("4")) is None
    cache.apply(ChannelsUpdated((RawChannel(id=ChannelId("4"), type=kind),)))
    assert cache.holds_threads(ChannelId("4")) is holds


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    cache = GatewayCache(limit=2)
    for n in "123":
        cache.note_roles(GUILD, UserId(n), [TEAM_ROLE])
        cache.apply(ChannelsUpdated((RawChannel(id=ChannelId(n), type=0),)))
    assert cache.roles(GUILD, UserId("1")) is None
    assert cache.roles(GUILD, UserId("3")) == (TEAM_ROLE,)
    assert cache.channel(ChannelId("1")) is None
    assert cache.channel(ChannelId("2")) is not None
    at = datetime(2026, 2, 1, tzinfo=UTC)
    assert cache.is_new_edit(MessageId("1"), at)
    assert not cache.is_new_edit(MessageId("1"), at)
    assert cache.is_new_edit(MessageId("1"), at + timedelta(seconds=1))


def test_roles_of_one_server_say_nothing_about_another() -> None:
    cache = GatewayCache()
    created(cache, member={"roles": [TEAM_ROLE]})
    assert cache.roles(GuildId("1001"), ALICE) is None


@pytest.mark.parametrize(
    "wrong", [{"guild_ids": ["MTE5.secret"]}, {"team_role_ids": ["１２"]}, {"rest_url": "discord"}]
)
def test_wrong_options_are_refused_without_repeating_them(wrong: Json) -> None:
    with pytest.raises(msgspec.ValidationError, match=next(iter(wrong))) as refused:
        msgspec.convert(wrong, DiscordOptions)
    assert "MTE5" not in str(refused.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec=None)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    )
)
def test_any_json_is_decoded_as_python_does_it_halves_of_surrogate_pairs_too(value: Any) -> None:
    assert decode_json(json.dumps(value)) == value
