"""DiscordChatExporter's JSON: read leniently, refused clearly, and never more than data."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from intern.core.errors import ChatRefusedError, ConfigError
from intern.core.ids import ChannelId, MessageId, RoleId, UserId, position_at
from intern.platforms.discord.exports import (
    ExportedHistory,
    ExportedRole,
    ExportedTeam,
    Exports,
    list_exported_roles,
    read_exports,
)
from tests.examples import examples

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)
TEAM = ExportedTeam(member_ids=frozenset({UserId("3")}), role_ids=frozenset({RoleId("77")}))


def message(number: int, author: str = "1", content: str = "Hello", **more: Any) -> dict[str, Any]:
    user: dict[str, Any] = {
        "id": author,
        "name": f"u{author}",
        "nickname": f"U{author}",
        "isBot": author == "9",
        "roles": [],
    }
    return {
        "id": str(number),
        "type": "Default",
        "timestamp": (NOON + timedelta(seconds=number)).isoformat(),
        "timestampEdited": None,
        "content": content,
        "author": user,
        "attachments": [],
        "embeds": [],
        **more,
    }


def replying(number: int, to: int, author: str = "3", **more: Any) -> dict[str, Any]:
    return message(number, author, type="Reply", reference={"messageId": str(to), "channelId": "10"}, **more)


def export(
    *messages: Any,
    channel: str = "10",
    kind: str = "GuildTextChat",
    parent: str | None = "4",
    guild: str = "5",
    name: str = "",
) -> dict[str, Any]:
    return {
        "guild": {"id": guild, "name": "Lumen"},
        "channel": {"id": channel, "type": kind, "categoryId": parent, "name": name},
        "dateRange": {"after": None, "before": None},
        "messages": list(messages),
        "messageCount": len(messages),
    }


def read(folder: Path, *exports: dict[str, Any] | str | bytes, team: ExportedTeam = TEAM) -> Exports:
    paths: list[Path] = []
    for number, each in enumerate(exports):
        data = each if isinstance(each, bytes) else (each if isinstance(each, str) else json.dumps(each)).encode()
        paths.append(folder / f"{number}.json")
        paths[-1].write_bytes(data)
    return read_exports(paths, team)


def test_a_message_keeps_all_that_matters(tmp_path: Path) -> None:
    picture = {"id": "8", "url": "media/x.png", "fileName": "x.png", "fileSizeBytes": 12}
    told = replying(2, 1, content="Like so.", attachments=[picture], timestampEdited="2026-02-01T13:00:00+01:00")
    [place] = read(tmp_path, export(message(1), told)).channels
    first, second = place.messages
    assert first.author.names == ("U1", "u1")
    assert (first.author.type, first.author.name, first.at) == ("community_user", "U1", NOON + timedelta(seconds=1))
    assert (second.reply_to, second.reply_to_channel, second.author.type) == ("1", "10", "team_member")
    assert second.edited_at == NOON
    [file] = second.attachments
    assert (file.filename, file.content_type, file.size) == ("x.png", "image/png", 12)
    assert (place.channel.kind, place.channel.parent_id, place.channel.guild_id) == ("channel", None, "5")


def test_notices_are_no_messages_bots_are_bots_and_a_forward_is_no_reply(tmp_path: Path) -> None:
    forward = replying(4, 1, forwardedMessage={"content": "x"})
    typed = message(5, reference={"type": "Forward", "messageId": "1", "channelId": "10"})
    exports = read(
        tmp_path,
        export(message(1), message(2, type="ThreadCreated"), message(3, "9"), forward, typed, message(6, type="20")),
    )
    [place] = exports.channels
    assert [each.id for each in place.messages] == ["1", "3", "4", "5", "6"]
    assert place.messages[1].author.type == "bot"
    assert [each.reply_to for each in place.messages] == [None] * 5
    assert exports.system == 1


def test_a_role_makes_a_team_member_in_every_file(tmp_path: Path) -> None:
    with_role = message(1)
    with_role["author"]["roles"] = [{"id": "77", "name": "Support"}, "strange"]
    exports = read(tmp_path, export(message(2)), export(with_role, channel="11"))
    assert {each.author.type for place in exports.channels for each in place.messages} == {"team_member"}


def test_roles_are_listed_with_the_most_talkative_first_and_without_those_of_bots(tmp_path: Path) -> None:
    def said(number: int, author: str, *roles: Any) -> dict[str, Any]:
        told = message(number, author)
        return told | {"author": told["author"] | {"roles": list(roles)}}

    member, team = {"id": "70", "name": "Member"}, {"id": "77", "name": "Team"}
    odd = [{"id": "drop table", "name": "x"}, "no role", {"name": "no id"}]
    path = tmp_path / "0.json"
    spoken = [said(1, "1", member), said(2, "2", member), said(3, "3", member, team), said(4, "3", member, team, *odd)]
    path.write_text(json.dumps(export(*spoken, said(5, "9", {"id": "99"}), "no message")))
    assert list_exported_roles([path])[0] == [
        ExportedRole(RoleId("77"), "Team", 1, 2),
        ExportedRole(RoleId("70"), "Member", 3, 4),
    ]


def test_a_thread_hangs_in_its_category_and_a_forum_post_holds_its_own_opening(tmp_path: Path) -> None:
    exports = read(
        tmp_path,
        export(message(2), channel="1", kind="GuildPublicThread", parent="10"),
        export(message(20), message(21), channel="20", kind="GuildPublicThread", parent="12"),
        export(message(30), channel="29", kind="GuildPrivateThread", parent="10"),
        export(message(1)),
    )
    channels = [place.channel for place in exports.channels]
    assert [(each.id, each.kind, each.parent_id, each.private) for each in channels] == [
        ("10", "channel", None, False),
        ("1", "thread", "10", False),
        ("20", "post", "12", False),
        ("29", "thread", "10", True),
    ]


# Finding B1.
@pytest.mark.parametrize(
    ("name", "seconds", "author", "titled"),
    [
        ("Error 4711 in the tenant", 0, "1", True),  # a post, or what a thread hangs on
        ("Error 4711 in the tenant", 3, "1", True),  # a thread on no message, opened with these words
        ("Error 4711 in the tenant", 3600, "3", False),  # an answer to what is not in the exports
        ("Error 4711 in the tenant", 0, "9", False),  # a bot
        ("Help!", 0, "1", False),
        ("What am I doing", 0, "1", False),
    ],
)
def test_the_first_message_of_a_post_or_thread_begins_with_its_title(
    tmp_path: Path,
    name: str,
    seconds: int,
    author: str,
    titled: bool,  # noqa: FBT001
) -> None:
    born, asked = position_at(NOON), "What am I doing wrong?"
    first, second = (
        message(n, who, text) | {"id": str(born.after(timedelta(seconds=seconds + n)))}
        for n, who, text in ((0, author, asked), (4, "1", "I see nothing in the logs"))
    )
    thread = {"channel": str(born), "kind": "GuildPublicThread", "name": name}
    above = f"{name}\n" if titled else ""
    [alone] = read(tmp_path, export(first, **thread)).channels
    assert [each.text for each in alone.messages] == [above + asked]
    if not seconds:
        [post] = read(tmp_path, export(first, second, **thread)).channels
        assert [each.text for each in post.messages] == [above + asked, "I see nothing in the logs"]
        channel, hangs = read(tmp_path, export(first), export(second, **thread)).channels
        said = [[each.text for each in place.messages] for place in (channel, hangs)]
        assert said == [[above + asked], ["I see nothing in the logs"]]


def test_parts_of_a_channel_are_joined_and_a_repeated_message_counts_once(tmp_path: Path) -> None:
    exports = read(tmp_path, export(message(3), message(4)), export(message(1), message(3)))
    [place] = exports.channels
    assert [each.id for each in place.messages] == ["1", "3", "4"]
    assert exports.messages == 3


def test_a_strange_message_costs_itself_and_is_counted(tmp_path: Path) -> None:
    strange = [{"id": "2"}, message(3, timestamp="yesterday"), message(4, author="nobody"), "text", None, {}]
    odd_file = message(5, attachments=[7, {"fileName": "a.txt"}], reference={"messageId": "<@1>"})
    exports = read(tmp_path, export(message(1), *strange, odd_file))
    [place] = exports.channels
    assert [each.id for each in place.messages] == ["1", "5"]
    assert [file.filename for file in place.messages[1].attachments] == ["a.txt"]
    assert exports.unreadable == len(strange)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (json.dumps(export(message(1))).encode()[:-30], "it ends after byte"),
        (json.dumps(export(message(1))).encode().replace(b'"content":', b'"content" '), "byte"),
        (b"[]", "is no JSON export of DiscordChatExporter"),
        (b'{"messages": []}', "is no JSON export of DiscordChatExporter"),
        (json.dumps(export(message(1), guild="g")).encode(), r"\$.guild.id"),
        (json.dumps(export(message(1, id="msg-7"))).encode(), "message 'msg-7'.*Discord's"),
        (json.dumps(export(message(1, id="-7"))).encode(), "message '-7'.*Discord's"),
        (json.dumps(export({"id": 7}, {"author": "x"})).encode(), "none of its 2 messages"),
        (b"\xff\xfe{\x00}\x00", "is no JSON export"),
    ],
)
def test_what_is_no_export_is_refused_with_its_name_and_what_to_do(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        read(tmp_path, data)
    assert str(refused.value).startswith(str(tmp_path / "0.json"))


def test_however_deep_a_file_is_nested_it_is_read_counted_or_refused(tmp_path: Path) -> None:
    def nested(depth: int) -> bytes:
        whole = json.dumps(export(message(1), message(2, embeds="DEEP")))
        return whole.replace('"DEEP"', "[" * depth + "]" * depth).encode()

    assert read(tmp_path, nested(10)).messages == 2
    # About as deep as can be read: a message may lie below the bound of the file, and above its own.
    for depth in range(600, 1000, 5):
        with suppress(ConfigError):
            exports = read(tmp_path, nested(depth))
            assert exports.messages + exports.unreadable == 2
    with pytest.raises(ConfigError, match="it is nested too deeply"):
        read(tmp_path, nested(100_000))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_exports([tmp_path / "none.json"], TEAM)


def test_one_channel_on_two_servers_is_read_of_one(tmp_path: Path) -> None:
    exports = read(tmp_path, export(message(1)), export(message(2), guild="6"))
    assert (exports.messages, [place.channel.guild_id for place in exports.channels]) == (1, ["5"])
    [reason] = exports.refused
    for named in ("1.json", "channel 10", "server 6", "0.json", "server 5"):
        assert named in reason


# Finding E4.
def test_of_files_that_cannot_be_read_nothing_is_taken_and_each_is_named(tmp_path: Path) -> None:
    cut_off = json.dumps(export(message(5), message(6), channel="11")).encode()[:-90]
    # The malformed part is behind a readable one.
    foreign = json.dumps(export(message(7), message(8, id="msg-8"), channel="10"))
    exports = read(tmp_path, cut_off, export(message(1)), foreign, "<!doctype html><html>", export(message(2)))
    assert [each.id for place in exports.channels for each in place.messages] == ["1", "2"]
    assert [reason.partition(" ")[0] for reason in exports.refused] == [
        str(tmp_path / f"{number}.json") for number in (0, 2, 3)
    ]
    assert list_exported_roles([tmp_path / "0.json", tmp_path / "1.json"]) == ([], exports.refused[:1])
    with pytest.raises(ConfigError, match=r"(?s)0\.json is damaged.*3\.json is HTML"):
        list_exported_roles([tmp_path / "0.json", tmp_path / "3.json"])


# Finding E4.
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xef\xbb\xbf\r\n<!DOCTYPE html>", "is HTML: export with --format Json"),
        ("<html>".encode("utf-16"), "is HTML"),
        (b"AuthorID,Author,Date,Content,Attachments,Reactions\n", "is CSV: export with --format Json"),
        (b"=" * 62 + b"\nGuild: Lumen", "is plain text: export with --format Json"),
        (b"PK\x03\x04rest", "is a ZIP archive: unpack it"),
    ],
)
def test_another_format_is_told_for_what_it_is(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(tmp_path, data)


# Finding E4.
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_an_export_in_utf_16_is_read(tmp_path: Path, encoding: str) -> None:
    text = json.dumps(export(message(1, content="Grüße 👍")), ensure_ascii=False)
    [place] = read(tmp_path, text.encode(encoding)).channels
    assert [each.text for each in place.messages] == ["Grüße 👍"]
    with pytest.raises(ConfigError, match="damaged or cut off"):
        read(tmp_path, text.encode(encoding)[:-7])


# Finding E4.
def test_a_folder_stands_for_the_exports_below_it(tmp_path: Path) -> None:
    def put(name: str, number: int) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(export(message(number))))

    aside = ("notes.txt", ".old/c.json", "b.json_Files/config.json", "c.html_Files/log.csv", "a.json_Files/x/d.zip")
    for number, name in enumerate(("b.json", "2024/a.JSON", "Server_Files/e.json", *aside), 1):
        put(name, number)
    exports = read_exports([tmp_path, tmp_path / "b.json"], TEAM)
    assert [each.id for place in exports.channels for each in place.messages] == ["1", "2", "3"]
    assert exports.refused == ()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty holds no \*\.json: export with --format Json"):
        read_exports([tmp_path / "empty"], TEAM)
    # HTML is what the exporter writes by itself.
    others = {"c.html": "<html>", "d.HTM": "<p>", "x/e.csv": "AuthorID,", "f.zip": "PK\3\4"}
    for name, text in others.items():
        (tmp_path / "2024" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "2024" / name).write_text(text)
    exports = read_exports([tmp_path], TEAM)
    assert exports.messages == 3
    assert {reason.partition(" ")[0] for reason in exports.refused} == {
        str(tmp_path / "2024" / name) for name in others
    }


# Finding E1.
def test_a_forwarded_message_is_read_as_live(tmp_path: Path) -> None:
    forwarded = {
        "content": "E17: spool full",
        "embeds": [{"title": "Alert", "description": "disk 100%", "fields": [{"name": "Host", "value": "relay-3"}]}],
        "stickers": [{"id": "1", "name": "help\nme"}],
        "attachments": [{"id": "8", "fileName": "relay.log", "fileSizeBytes": 5}, 7],
    }
    own: dict[str, Any] = {"stickers": [{"name": "wave"}], "reference": {"type": "Forward", "messageId": "1"}}
    strange: list[Any] = [{"content": 7, "embeds": "odd", "stickers": [3, {}]}, "odd", ["odd"], 7]
    [place] = read(
        tmp_path,
        export(
            message(1, content="", forwardedMessage=forwarded, **own),
            *(message(n, content="See this", forwardedMessage=odd) for n, odd in enumerate(strange, 2)),
        ),
    ).channels
    first, *others = place.messages
    assert first.text == "E17: spool full\n[sticker: wave]\nAlert\ndisk 100%\nHost\nrelay-3\n[sticker: help me]"
    assert [file.filename for file in first.attachments] == ["relay.log"]
    assert [each.text for each in others] == ["See this"] * 4


# Finding E1.
def test_old_exporters_forward_without_words_and_that_is_no_reply(tmp_path: Path) -> None:
    forward = message(2, content="", type="Default", reference={"messageId": "1", "channelId": "10"})
    [place] = read(tmp_path, export(message(1), forward)).channels
    assert place.messages[1].reply_to is None


def _named(*names: tuple[str, str, str]) -> list[dict[str, Any]]:
    return [{"id": account, "name": name, "nickname": nickname} for account, name, nickname in names]


# Finding E2.
@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        ("@Bob try 7480", "<@1> try 7480"),
        ("@bob7: see (@Bob)", "<@1>: see (<@1>)"),  # the account's own name, and next to other signs
        ("@Bob Smith, like so", "<@2>, like so"),
        ("@Bob Smithson", "<@1> Smithson"),
        ("@Bobby @Bob's", "@Bobby <@1>'s"),
        ("me@Bob.example", "me@Bob.example"),
        ("@Ann or @Ann", "@Ann or @Ann"),  # two are called so
        ("@C++ (dev)! hm", "<@5>! hm"),
        ("@nobody", "@nobody"),
        ("@Bobさん お願い@Bob、_@Bob_", "<@1>さん お願い<@1>、_<@1>_"),
        ("@田中さん relay.toml の port を", "<@7>さん relay.toml の port を"),
    ],
)
def test_a_mention_by_name_is_one_of_the_accounts_that_the_export_lists(
    tmp_path: Path, text: str, read_as: str
) -> None:
    accounts = _named(("1", "bob7", "Bob"), ("2", "bs", "Bob Smith"), ("3", "Ann", "x"), ("4", "a", "Ann"))
    odd = [7, {"id": "none"}, {"id": "6", "name": None, "nickname": 3}, {"name": "nobody"}]
    told = message(1, content=text, mentions=[*accounts, *_named(("5", "c", "C++ (dev)"), ("7", "t", "田中")), *odd])
    [place] = read(tmp_path, export(told)).channels
    assert [each.text for each in place.messages] == [read_as]


# Findings E1 and E2.
def test_mentions_in_forwarded_words_and_embeds_are_of_accounts_that_stand_in_any_file(tmp_path: Path) -> None:
    forwarded = {"content": "@U1 and @Ann: spool full", "embeds": [{"title": "For @U3", "description": "@Bob"}]}
    accounts = _named(("4", "ann", "Ann"), ("5", "anna", "Ann"))
    told = [
        message(1, content="@U3 see", forwardedMessage=forwarded),
        message(2, "9", content="@U3", embeds=[{"title": "@U3 is on duty"}]),
        message(3, "2", content="See @Ann", mentions=accounts),
    ]
    exports = read(tmp_path, export(*told), export(message(4, "3"), channel="11"))
    first, second, third = exports.channels[0].messages
    # A member who types `@U3` mentions no one; two are called Ann; no one is called Bob.
    assert first.text == "@U3 see\n<@1> and @Ann: spool full\nFor <@3>\n@Bob"
    assert second.text == "@U3\n<@3> is on duty"
    assert third.text == "See @Ann"
    assert not any(each.mentioned_staff for each in (first, second))  # live, only what the message itself mentions


# Finding E2.
def test_of_the_mentioned_it_is_told_who_is_a_bot_or_of_the_team_in_any_file(tmp_path: Path) -> None:
    accounts = [*_named(("3", "mira", "Mira"), ("1", "bob", "Bob"), ("4", "tom", "Tom")), {"id": "9", "isBot": True}]
    later = message(2, "4")
    later["author"]["roles"] = [{"id": "77"}]
    exports = read(tmp_path, export(message(1, content="@Tom @Bob", mentions=accounts)), export(later, channel="11"))
    assert exports.channels[0].messages[0].mentioned_staff == {"3", "4", "9"}


# Finding E3.
def test_no_two_messages_of_deleted_users_have_one_author(tmp_path: Path) -> None:
    [place] = read(tmp_path, export(*(message(n, "456226577798135808") for n in (1, 2)), message(3, "11"))).channels
    assert [each.author.id for each in place.messages] == ["1", "2", "11"]


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    assert read(tmp_path, b"\xef\xbb\xbf" + json.dumps(export(message(1))).encode()).messages == 1


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@hypothesis_settings(max_examples=examples(150), deadline=None)
@given(changes=st.dictionaries(st.sampled_from([*message(1), "reference", "forwardedMessage"]), _JSON, max_size=3))
def test_whatever_stands_in_a_message_it_is_read_counted_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]
) -> None:
    data = msgspec.json.encode(export(message(1), {**message(2), **changes}))
    try:
        exports = read(tmp_path_factory.mktemp("export"), data)
    except ConfigError as refused:
        assert "ids of Discord's" in str(refused)  # noqa: PT017 both ends are fine
    else:
        assert exports.messages + exports.system + exports.unreadable >= 1


async def test_the_history_pages_as_discord_does(tmp_path: Path) -> None:
    history = ExportedHistory(read(tmp_path, export(*(message(n) for n in (9, 10, 11, 100)))))
    place = ChannelId("10")

    assert [each.id for each in await history.before(place, MessageId("100"), 2)] == ["10", "11"]
    assert [each.id for each in await history.before(place, None, 1)] == ["100"]
    assert [each.id for each in await history.after(place, MessageId("9"), 2)] == ["10", "11"]
    assert [each.id for each in await history.after(place, MessageId("8"), 1)] == ["9"]
    found = await history.message(place, MessageId("11"))
    assert found is not None
    assert await history.message(place, MessageId("12")) is None
    assert not await history.before(ChannelId("404"), None, 5)
    with pytest.raises(ChatRefusedError):
        await history.channel(ChannelId("404"))


@pytest.mark.parametrize("half", ["\\ud83d", "\\uDE00", "\\ud83d\\n", "\\\\\\ud83d"])
def test_half_a_surrogate_costs_its_character_and_no_export(tmp_path: Path, half: str) -> None:
    whole = "\\ud83d\\ude00 \\\\ud83d"
    text = json.dumps(export(message(1, content="BROKEN"), message(2, content="WHOLE")))
    exports = read(tmp_path, text.replace("BROKEN", half).replace("WHOLE", whole))
    [place] = exports.channels
    assert "\ufffd" in place.messages[0].text
    assert place.messages[1].text == "😀 \\ud83d"
    assert exports.unreadable == 0


def test_what_is_no_utf_8_costs_its_character_and_no_message(tmp_path: Path) -> None:
    text = json.dumps(export(message(1, content="BROKEN"), message(2))).encode()
    [place] = read(tmp_path, text.replace(b"BROKEN", b"caf\xe9")).channels
    assert [each.text for each in place.messages] == ["caf\ufffd", "Hello"]


def test_an_odd_field_is_left_out_and_costs_no_message(tmp_path: Path) -> None:
    odd: tuple[object, ...] = (-1.5, "odd", ["odd"], {"odd": 5})
    names = ("content", "timestampEdited", "attachments", "reference", "forwardedMessage")
    strange = [message(n) | {name: value} for n, (name, value) in enumerate(((a, b) for a in names for b in odd), 1)]
    authors = [
        {**message(1)["author"], name: value} for name in ("name", "nickname", "isBot", "roles") for value in odd
    ]
    strange += [message(100 + n) | {"author": each} for n, each in enumerate(authors)]
    exports = read(tmp_path, export(*strange))
    assert (exports.messages, exports.unreadable) == (len(strange), 0)
