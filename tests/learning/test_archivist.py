from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from anyio import fail_after
from msgspec.structs import replace
from structlog.testing import capture_logs

from intern.core.captures import Capture, CapturedPair, Turn
from intern.core.errors import ConfigError
from intern.core.ids import ConversationId, MessageId, UserId
from intern.learning.archivist import Archivist
from intern.stores.archive import Archive
from tests.worlds.clock import HandClock
from tests.worlds.team import NOON

Said = dict[str, Turn]


def user(text: str) -> Turn:
    return Turn("User", text)


def team(text: str) -> Turn:
    return Turn("Team", text)


class Desk:
    """An archivist, its archive, and the withdrawn messages."""

    def __init__(self, folder: Path, *, mask: bool = True, mask_emails: bool = False) -> None:
        self.archive = Archive(folder, clock=HandClock())
        self.withdrawn: set[str] = set()
        self.forgotten: set[str] = set()
        self.masked = Counter[str]()
        self._archivist = Archivist(
            self.archive,
            mask=mask,
            mask_emails=mask_emails,
            is_withdrawn=lambda each: each in self.withdrawn,
            is_forgotten=lambda user, message: user in self.forgotten and int(message) < 100,
            masked=self.masked.update,
        )

    async def keep(
        self, conversation: str = "thread_1", *, answered_at: datetime = NOON, **said: Turn
    ) -> CapturedPair | None:
        """Archive messages by their ids, each with a leading underscore."""
        return await self.archived(
            Capture(
                conversation_id=ConversationId(conversation),
                turns=tuple(said.values()),
                message_ids=tuple(MessageId(each.removeprefix("_")) for each in said),
                answered_at=answered_at,
            )
        )

    async def archived(self, capture: Capture) -> CapturedPair | None:
        with fail_after(5):
            return await self._archivist.archive_capture(capture)


def held(pair: CapturedPair | None) -> Said:
    assert pair is not None
    return dict(zip(pair.message_ids, pair.turns, strict=True))


def all_text_in(folder: Path) -> str:
    return "".join(file.read_text() for file in folder.rglob("*.txt"))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


async def test_a_capture_joins_what_its_conversation_held(desk: Desk) -> None:
    first = await desk.keep(_1=user("How?"), _2=team("So."))
    joined = await desk.keep(_1=user("How?"), _3=team("And so."))

    assert first is not None
    assert held(joined) == {"1": user("How?"), "2": team("So."), "3": team("And so.")}
    assert joined is not None
    assert joined.replaces == first.qa_id
    assert await desk.keep(_1=user("How?"), _2=team("So.")) is None


async def test_an_edited_message_comes_by_itself_and_its_newer_text_wins(desk: Desk) -> None:
    first = await desk.keep(_1=user("How?"), _2=team("So."))
    edited = await desk.keep(_2=team("So, but slowly."))

    assert held(edited) == {"1": user("How?"), "2": team("So, but slowly.")}
    assert edited is not None
    assert first is not None
    assert edited.replaces == first.qa_id
    assert edited.answered_at == first.answered_at
    assert await desk.keep(_2=team("So, but slowly.")) is None


async def test_a_withdrawn_message_is_not_archived_again(desk: Desk) -> None:
    await desk.keep(_1=user("How?"), _2=team("So."), _3=team("My secret."))
    desk.withdrawn.add("3")

    assert await desk.keep(_1=user("How?"), _2=team("So."), _3=team("My secret.")) is None
    assert held(await desk.keep(_4=team("And so."))) == {"1": user("How?"), "2": team("So."), "4": team("And so.")}


async def test_a_delete_that_came_before_the_capture_was_kept_still_wins(desk: Desk) -> None:
    desk.withdrawn.add("2")
    assert await desk.keep(_1=user("How?"), _2=team("So.")) is None
    assert len(desk.archive) == 0
    assert held(await desk.keep(_1=user("How?"), _2=team("So."), _3=team("Thus."))) == {
        "1": user("How?"),
        "3": team("Thus."),
    }


async def test_a_conversation_that_lost_its_only_question_is_not_kept_until_somebody_asks_again(desk: Desk) -> None:
    await desk.keep(_1=user("How?"), _2=team("So."))
    desk.withdrawn.add("1")

    assert await desk.keep(_2=team("So, but slowly.")) is None
    again = await desk.keep(_2=team("So, but slowly."), _3=user("Why?"), _4=team("Thus."))
    assert held(again) == {"2": team("So, but slowly."), "3": user("Why?"), "4": team("Thus.")}


async def test_an_edit_of_what_was_never_kept_is_no_conversation(desk: Desk) -> None:
    assert await desk.keep(_1=user("How?")) is None
    assert len(desk.archive) == 0


async def test_a_message_of_two_conversations_is_edited_in_the_one_that_is_named(desk: Desk) -> None:
    await desk.keep("thread_1", _1=user("How?"), _2=team("So."))
    await desk.keep("thread_5", _5=user("Why?"), _6=team("Thus."))
    await desk.keep("thread_5", _1=user("How?"), _5=user("Why?"), _6=team("Thus."))

    assert held(await desk.keep("thread_5", _1=user("How now?"))) == {
        "1": user("How now?"),
        "5": user("Why?"),
        "6": team("Thus."),
    }
    assert held(await desk.keep("thread_1", _1=user("How now?"))) == {"1": user("How now?"), "2": team("So.")}
    # An unknown conversation joins the one that has its first known message.
    joined = await desk.keep("reply_6", _6=team("Thus."), _7=team("And thus."))
    assert joined is not None
    assert joined.conversation_id == "thread_5"


async def test_where_turns_and_ids_do_not_match_the_newer_capture_wins_and_an_edit_alone_is_not_enough(
    desk: Desk,
) -> None:
    desk.archive.append(
        Capture(
            conversation_id=ConversationId("thread_1"),
            turns=(user("How?"), team("So."), team("And so.")),
            message_ids=(MessageId("1"), MessageId("2")),
            answered_at=NOON,
        )
    )
    assert await desk.keep(_2=team("Thus.")) is None
    assert held(await desk.keep(_1=user("How?"), _2=team("Thus."))) == {"1": user("How?"), "2": team("Thus.")}


async def test_secrets_are_masked_in_an_edit_too(desk: Desk) -> None:
    await desk.keep(_1=user("How?"), _2=team("So."))
    edited = await desk.keep(_2=team("Use ghp_" + "a1B2" * 9 + " for it."))
    assert "ghp_" not in held(edited)["2"].text


TOKEN = "ghp_" + "a1B2" * 9


@pytest.mark.parametrize("mask", [True, False])
async def test_secrets_are_masked_on_disk_unless_the_operator_wants_them(tmp_path: Path, *, mask: bool) -> None:
    desk = Desk(tmp_path, mask=mask)
    with capture_logs() as logs:
        pair = await desk.keep(_1=user(f"Why is {TOKEN} refused?"), _2=team(f"Revoke {TOKEN} first."))

    on_disk = all_text_in(tmp_path)
    assert on_disk.count(TOKEN) == (0 if mask else 2)
    assert on_disk.count("[masked ") == (2 if mask else 0)
    assert [TOKEN in turn.text for turn in held(pair).values()] == [not mask] * 2
    told = [log for log in logs if log["event"] == "secrets_masked"]
    assert len(told) == int(mask)
    assert TOKEN not in str(told)


async def test_what_was_masked_is_counted_by_kind_once_for_each_message_that_is_archived(tmp_path: Path) -> None:
    desk = Desk(tmp_path, mask_emails=True)
    asked, answered = user(f"Why is {TOKEN} refused?"), team("Ask ann@example.org or bob@example.org.")
    with capture_logs() as logs:
        await desk.keep(_1=asked, _2=answered)
        await desk.keep(_1=asked, _2=answered)  # nothing is archived
        await desk.keep(_1=asked, _2=answered, _3=team("See above."))  # nothing new is masked
        await desk.keep(_2=team("Ask ann@example.org."))
        desk.withdrawn.add("4")
        await desk.keep(_4=user(TOKEN), _5=team("Oh."))
    assert desk.masked == {"github_token": 1, "email": 3}
    assert [log["kinds"] for log in logs] == [{"github_token": 1, "email": 2}, {"email": 1}]
    assert "example.org" not in all_text_in(tmp_path) + str(logs)


async def test_addresses_alone_are_masked_if_that_is_all_that_is_asked_for(tmp_path: Path) -> None:
    desk = Desk(tmp_path, mask=False, mask_emails=True)
    await desk.keep(_1=user(TOKEN), _2=team("Ask ann@example.org."))
    assert held(desk.archive.latest_capture(ConversationId("thread_1"))) == {
        "1": user(TOKEN),
        "2": team("Ask [masked email]."),
    }


def written(*messages: tuple[str, str, Turn]) -> Capture:
    """Make a capture of messages, given by id, author and turn."""
    return Capture(
        conversation_id=ConversationId("thread_1"),
        turns=tuple(turn for _, _, turn in messages),
        message_ids=tuple(MessageId(each) for each, _, _ in messages),
        author_ids=tuple(UserId(author) for _, author, _ in messages),
        answered_at=NOON,
    )


async def test_a_union_knows_who_wrote_what_as_far_as_any_capture_did(desk: Desk) -> None:
    await desk.keep(_1=user("How?"), _2=team("So."))  # by a version without authors
    joined = await desk.archived(written(("3", "53", user("And?")), ("2", "52", team("So."))))
    assert joined is not None
    assert joined.author_ids == ("", "52", "53")
    edited = await desk.keep(_3=user("And now?"))
    assert edited is not None
    assert edited.author_ids == ("", "52", "53")
    desk.withdrawn.add("2")
    left = await desk.keep(_4=team("Now thus."))
    assert left is not None
    assert (left.message_ids, left.author_ids) == (("1", "3", "4"), ("", "53", ""))


async def test_what_a_member_wants_forgotten_is_left_out_until_they_write_again(desk: Desk) -> None:
    first = written(("1", "51", user("How?")), ("2", "52", team("So.")), ("3", "53", user("Thanks!")))
    await desk.archived(first)
    desk.forgotten.add("53")
    assert await desk.archived(first) is None
    again = written(("4", "53", user("Once more!")), ("5", "52", team("Sure.")), ("100", "53", user("Later.")))
    assert held(await desk.archived(again)) == {
        "1": user("How?"),
        "2": team("So."),
        "5": team("Sure."),
        "100": user("Later."),
    }
    desk.forgotten.add("51")
    desk.withdrawn.add("100")
    assert await desk.archived(first) is None


async def test_a_union_is_in_the_order_of_its_messages_whatever_order_they_came_in(desk: Desk) -> None:
    await desk.keep(_10=user("How?"), _30=team("So."), answered_at=NOON + timedelta(days=1))
    # Sorted as text, 9 would come last.
    joined = await desk.keep(_20=user("Really?"), _9=user("Hello."), answered_at=NOON)

    assert joined is not None
    assert joined.message_ids == ("9", "10", "20", "30")
    assert [turn.text for turn in joined.turns] == ["Hello.", "How?", "Really?", "So."]
    assert joined.answered_at == NOON + timedelta(days=1)


async def test_a_message_keeps_its_conversation_as_its_reply_chain_grows(desk: Desk) -> None:
    first = await desk.keep("reply_2", _1=user("How?"), _2=team("So."))
    grown = await desk.keep("reply_4", _2=team("So."), _3=user("Why?"), _4=team("Thus."))
    longer = await desk.keep("reply_5", _4=team("Thus."), _5=team("And thus."))

    assert first is not None
    assert grown is not None
    assert longer is not None
    assert {first.conversation_id, grown.conversation_id, longer.conversation_id} == {"reply_2"}
    assert (grown.replaces, longer.replaces) == (first.qa_id, grown.qa_id)
    assert longer.message_ids == ("1", "2", "3", "4", "5")
    apart = await desk.keep("reply_7", _6=user("How?"), _7=team("So."))
    assert apart is not None
    assert (apart.conversation_id, apart.replaces) == ("reply_7", None)


async def test_two_conversations_that_meet_do_not_both_end_up_with_all_of_the_talk(desk: Desk) -> None:
    async def keep(root: int, *numbers: int) -> None:
        said = {MessageId(str(n)): team("So.") if n % 2 else user("How?") for n in numbers}
        home, turns = ConversationId(f"reply_{root}"), tuple(said.values())
        await desk.archived(Capture(conversation_id=home, turns=turns, message_ids=tuple(said), answered_at=NOON))

    await keep(20, *range(20, 26))
    await keep(10, 10, *range(28, 32))
    # The chain now reaches both, and sometimes one more line of before.
    await keep(20, *range(20, 34))
    await keep(10, 10, *range(20, 36))
    await keep(8, 8, 10, *range(20, 38))
    await keep(20, *range(20, 40))

    newest = {pair.conversation_id: pair.message_ids for pair in desk.archive.pairs_after(None)}
    assert newest.keys() == {"reply_10", "reply_20"}
    assert newest[ConversationId("reply_10")] == ("10", "28", "29", "30", "31")
    assert newest[ConversationId("reply_20")] == ("8", "10", *map(str, range(20, 40)))


GOOD = Capture(
    conversation_id=ConversationId("thread_1"),
    turns=(user("How?"), team("So.")),
    message_ids=(MessageId("1"), MessageId("2")),
    answered_at=NOON,
)


BROKEN = [
    replace(GOOD, message_ids=(MessageId("1"), MessageId("2\nid: forged"))),
    replace(GOOD, message_ids=(MessageId("1"),)),
    replace(GOOD, answered_at=NOON.replace(tzinfo=None)),
    replace(GOOD, author_ids=(UserId("7"),)),
    replace(GOOD, author_ids=(UserId("7, 8"), UserId("9"))),
]


OTHERWISE = replace(GOOD, turns=(user("How?"), team("Otherwise.")))


@pytest.mark.parametrize(
    ("broken", "before"),
    [
        (replace(GOOD, conversation_id=ConversationId("thread_1\n--- QA ---")), ()),
        *((broken, ()) for broken in BROKEN),
        *((broken, (OTHERWISE,)) for broken in BROKEN),
    ],
)
async def test_what_no_archive_can_hold_is_wrong_use_and_leaves_the_archive_alone(
    desk: Desk, broken: Capture, before: tuple[Capture, ...]
) -> None:
    for each in before:
        await desk.archived(each)
    with pytest.raises(ConfigError, match="cannot be archived") as refused:
        await desk.archived(broken)

    assert refused.value.exit_code == 2
    assert len(desk.archive) == len(before)
    assert held(await desk.archived(GOOD)) == {"1": user("How?"), "2": team("So.")}


MEMBER, HELPER = UserId("80351110224678912"), UserId("80351110224678999")


async def in_company(desk: Desk, **said: Turn) -> CapturedPair | None:
    """Archive a capture with authors."""
    authors = tuple(HELPER if turn.speaker == "Team" else MEMBER for turn in said.values())
    ids = tuple(MessageId(each.removeprefix("_")) for each in said)
    return await desk.archived(
        Capture(
            conversation_id=ConversationId("thread_1"),
            turns=tuple(said.values()),
            message_ids=ids,
            author_ids=authors,
            answered_at=NOON,
        )
    )


# Finding I3.
@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (f"<@{MEMBER}> the fuse of lantern-5 is in drawer 3", "the fuse of lantern-5 is in drawer 3"),
        (f"<@!{MEMBER}> <@777>: it is in drawer 3", "it is in drawer 3"),
        (f"Where the fuses are\n<@{MEMBER}> it is in drawer 3", "Where the fuses are\nit is in drawer 3"),
        (f"ask <@{HELPER}> or <@{MEMBER}>", "ask a team member or the member"),
        ("see what <@777> wrote in <#12345>", "see what the member wrote in <#12345>"),
        ("<@777>", "the member"),
        (f"@{HELPER} and {MEMBER} know", "a team member and the member know"),
        ("see 1458745245675032709, order 12345678901234567", "see 1458745245675032709, order 12345678901234567"),
    ],
)
async def test_nobody_is_named_by_an_id_in_what_is_learned(desk: Desk, said: str, kept: str) -> None:
    assert held(await in_company(desk, _1=user("Where?"), _2=team(said)))["2"].text == kept


async def test_an_edit_that_comes_by_itself_names_the_same_people(desk: Desk) -> None:
    first = {"_1": user(f"<@{HELPER}> Where does <@{HELPER}> keep it?"), "_2": team("In drawer 3.")}
    assert held(await in_company(desk, **first))["1"].text == "Where does a team member keep it?"
    assert await in_company(desk, _1=first["_1"]) is None, "and is no news where it says the same"
