from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from anyio import create_task_group, fail_after
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from intern.core.flow import CaptureRequest
from intern.core.ids import ConversationId, MessageId
from intern.core.messages import Attachment, ChatMessage
from intern.settings.loading import load_settings
from intern.stores.tables.pending_captures import PendingCapture, PendingCaptures, trim_request
from tests.engines import open_database
from tests.examples import examples
from tests.worlds.clock import HandClock
from tests.worlds.samples import author, capture_request, message
from tests.worlds.secrets import SECRETS

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

SHOT = Attachment(id="7", filename="shot.png", url="https://cdn/1", size=10, content_type="image/png")
ASKED = replace(message("What is this?", n=1), attachments=(SHOT,))
TAUGHT = message("A driver.", n=2, by=author("mira", "team_member"))
LATER = message("And now?", n=3)
AGAIN = message("Reboot.", n=4, by=author("mira", "team_member"))


class Archive:
    """Which conversations messages were archived with."""

    def __init__(self) -> None:
        self.known: dict[MessageId, tuple[ConversationId, ...]] = {}

    def conversations_of(self, message_id: MessageId) -> Sequence[ConversationId]:
        return self.known.get(message_id, ())


@asynccontextmanager
async def opened(folder: Path, archive: Archive | None = None) -> AsyncGenerator[PendingCaptures]:
    with fail_after(10):
        async with await open_database(folder / "intern.db") as db:
            pending = PendingCaptures(db, clock=HandClock(), conversations_of=(archive or Archive()).conversations_of)
            await pending.load()
            yield pending


async def all_of(pending: PendingCaptures) -> list[PendingCapture]:
    found = [await pending.get(rid) for rid in await pending.list_waiting()]
    return [each for each in found if each is not None]


async def requests(pending: PendingCaptures) -> list[CaptureRequest]:
    return [each.request for each in await all_of(pending)]


# Finding A3.
async def test_what_waits_is_kept_without_secrets(tmp_path: Path) -> None:
    secret = SECRETS["ghp"]
    asked, taught = (replace(each, text=f"{each.text} {secret.text}") for each in (ASKED, TAUGHT))
    async with await open_database(tmp_path / "intern.db") as db:
        mask = load_settings(environ={}).kb.mask_text
        pending = PendingCaptures(db, clock=HandClock(), conversations_of=Archive().conversations_of, mask=mask)
        await pending.add(capture_request(asked, taught))
        assert [f"{each.text} [masked github_token]" for each in (ASKED, TAUGHT)] == [
            each.text for request in await requests(pending) for each in request.messages
        ]
        assert not any(secret.secret[0] in repr(row) for row in await db.rows("select * from pending_captures"))


async def test_a_capture_waits_across_a_restart_without_what_it_settles(tmp_path: Path) -> None:
    asked = capture_request(ASKED, TAUGHT)
    async with opened(tmp_path) as pending:
        await pending.add(replace(asked, settles=(TAUGHT.id,)))
        assert pending.holds(ASKED.id)
    async with opened(tmp_path) as pending:
        assert await requests(pending) == [asked]
        assert pending.holds(TAUGHT.id)
        assert not pending.holds(LATER.id)
        assert await pending.find_requests(TAUGHT.id) == [asked]
        assert await pending.find_requests(LATER.id) == []


async def test_a_newer_capture_joins_the_one_of_its_conversation_and_its_messages_win(tmp_path: Path) -> None:
    edited = replace(TAUGHT, text="A driver of yours.")
    async with opened(tmp_path) as pending:
        await pending.add(capture_request(ASKED, TAUGHT))
        [first] = await all_of(pending)
        assert await pending.join_waiting(capture_request(edited, AGAIN, LATER))
        [second] = await all_of(pending)
    assert second.request.messages == (ASKED, edited, LATER, AGAIN)
    assert (second.id, second.version > first.version) == (first.id, True)


async def test_what_belongs_to_nothing_that_waits_does_not_join(tmp_path: Path) -> None:
    async with opened(tmp_path) as pending:
        assert not await pending.join_waiting(capture_request(LATER, AGAIN))
        await pending.add(capture_request(ASKED, TAUGHT))
        assert not await pending.join_waiting(capture_request(LATER, AGAIN, conversation="reply_3"))
        assert len(await requests(pending)) == 1


async def test_a_chain_that_grew_upwards_joins_by_its_messages_and_keeps_the_first_conversation(tmp_path: Path) -> None:
    root = message("Hello?", n=0)
    async with opened(tmp_path) as pending:
        await pending.add(capture_request(ASKED, TAUGHT, conversation="reply_1"))
        await pending.add(capture_request(LATER, AGAIN, conversation="reply_3"))
        await pending.add(capture_request(root, ASKED, AGAIN, conversation="reply_0"))
        [joined] = await requests(pending)
    assert joined == capture_request(root, ASKED, TAUGHT, LATER, AGAIN, conversation="reply_1")


async def test_an_archived_conversation_that_shares_a_message_stays_itself(tmp_path: Path) -> None:
    archive = Archive()
    archive.known[ASKED.id] = (ConversationId("reply_0"),)
    async with opened(tmp_path, archive) as pending:
        await pending.add(capture_request(ASKED, TAUGHT, conversation="thread_9"))
        assert not await pending.join_waiting(capture_request(ASKED, conversation="reply_0"))
        assert len(await requests(pending)) == 1


async def test_a_capture_that_changed_while_it_was_archived_goes_on_waiting(tmp_path: Path) -> None:
    async with opened(tmp_path) as pending:
        await pending.add(capture_request(ASKED, TAUGHT))
        [waits] = await all_of(pending)
        await pending.join_waiting(capture_request(LATER, AGAIN))
        assert not await pending.finish(waits.id, waits.version)
        [waits] = await all_of(pending)
        assert await pending.finish(waits.id, waits.version)
        assert await all_of(pending) == []
        assert not pending.holds(ASKED.id)


async def test_an_id_is_never_used_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as pending:
        await pending.add(capture_request(ASKED, TAUGHT))
        [first] = await all_of(pending)
        await pending.finish(first.id, first.version)
        await pending.add(capture_request(ASKED, TAUGHT))
        [second] = await all_of(pending)
        assert second.id != first.id
        assert not await pending.finish(first.id, first.version)


async def test_only_failures_of_the_model_itself_are_counted(tmp_path: Path) -> None:
    async with opened(tmp_path) as pending:
        await pending.add(capture_request(ASKED, TAUGHT))
        [waits] = await all_of(pending)
        await pending.save_failure(waits.id, "away\ud800", again_in=timedelta(minutes=1), by_model=False)
        await pending.save_failure(waits.id, "nonsense", again_in=timedelta(minutes=1), by_model=True)
        [failed] = await all_of(pending)
        assert (failed.attempts, failed.version) == (1, waits.version)


async def test_a_forgotten_message_leaves_what_waits_and_what_its_image_shows(tmp_path: Path) -> None:
    async with opened(tmp_path) as pending:
        await pending.add(capture_request(ASKED, TAUGHT, LATER))
        await pending.save_texts({(ASKED.id, "7"): "An error.", (LATER.id, "8"): "A cat."})
        await pending.forget([LATER.id, MessageId("999")])
        assert await requests(pending) == [capture_request(ASKED, TAUGHT)]
        assert not pending.holds(LATER.id)
        assert await pending.read_texts([ASKED.id, LATER.id]) == {(ASKED.id, "7"): "An error."}
        await pending.save_texts({(LATER.id, "8"): "A cat.", (TAUGHT.id, "9"): "A log."})  # they were being read
        assert await pending.read_texts([TAUGHT.id, LATER.id]) == {(TAUGHT.id, "9"): "A log."}
        await pending.forget([TAUGHT.id])  # no message of the team is left
        assert await requests(pending) == []
        assert not pending.holds(ASKED.id)


async def test_forgetting_works_in_a_folder_where_nobody_loaded_anything(tmp_path: Path) -> None:
    async with opened(tmp_path) as pending:
        await pending.add(capture_request(ASKED, TAUGHT))
    async with await open_database(tmp_path / "intern.db") as db:
        await PendingCaptures(db, clock=HandClock(), conversations_of=Archive().conversations_of).forget([ASKED.id])
    async with opened(tmp_path) as pending:
        assert await requests(pending) == []


async def test_fresh_messages_take_the_place_of_those_that_wait_and_no_other_comes_in(tmp_path: Path) -> None:
    fresh = replace(ASKED, attachments=(replace(SHOT, url="https://cdn/2"),))
    async with opened(tmp_path) as pending:
        await pending.add(capture_request(ASKED, TAUGHT))
        [waits] = await all_of(pending)
        await pending.update_messages(waits.id, [fresh, LATER])
        await pending.update_messages(waits.id + 1, [fresh])
        assert await requests(pending) == [capture_request(fresh, TAUGHT)]


async def test_half_a_surrogate_can_wait(tmp_path: Path) -> None:
    broken = replace(ASKED, text="half \ud83d", attachments=(replace(SHOT, filename="\udc00.png"),))
    async with opened(tmp_path) as pending:
        await pending.add(capture_request(broken, TAUGHT))
        [held] = await requests(pending)
    assert held.messages[0].text == "half �"


async def test_what_cannot_be_understood_holds_nobody_up(tmp_path: Path) -> None:
    async with opened(tmp_path) as pending:
        await pending.add(capture_request(ASKED, TAUGHT))
    async with await open_database(tmp_path / "intern.db") as db:
        await db.write(lambda tx: tx.run("update pending_captures set request = cast('{}' as blob)"))
    async with opened(tmp_path) as pending:
        await pending.add(capture_request(LATER, AGAIN, conversation="reply_3"))
        assert len(await pending.list_waiting()) == 2
        assert await requests(pending) == [capture_request(LATER, AGAIN, conversation="reply_3")]
        assert await pending.find_requests(ASKED.id) == []


async def test_memory_follows_the_disk_whoever_is_cancelled(tmp_path: Path) -> None:
    async with opened(tmp_path) as pending:
        async with create_task_group() as tg:
            tg.start_soon(pending.add, capture_request(ASKED, TAUGHT))
            tg.cancel_scope.cancel()
        assert pending.holds(ASKED.id) == bool(await pending.list_waiting())


MESSAGES: list[ChatMessage] = [
    message(f"m{n}", n=n, by=author("mira", "team_member") if n % 2 else author()) for n in range(6)
]
PARTS = st.lists(st.sets(st.integers(0, 5), min_size=1).map(sorted), min_size=1, max_size=6)


@settings(deadline=None, max_examples=examples(50))
@given(parts=PARTS, conversations=st.data())
def test_no_two_captures_that_wait_share_a_message(parts: list[list[int]], conversations: st.DataObject) -> None:
    async def run() -> None:
        async with await open_database(Path(":memory:")) as db:
            pending = PendingCaptures(db, clock=HandClock(), conversations_of=Archive().conversations_of)
            for part in parts:
                name = conversations.draw(st.sampled_from(["a", "b", "c"]))
                await pending.add(capture_request(*(MESSAGES[n] for n in part), conversation=name))
            shared = "select message_id from pending_messages group by 1 having count(*) > 1"
            assert await db.write(lambda tx: tx.rows(shared)) == []

    anyio.run(run)


def test_a_request_less_messages_is_none_once_its_question_or_its_answer_is_gone() -> None:
    request = capture_request(ASKED, TAUGHT, LATER)
    assert trim_request(request, [LATER.id]) == capture_request(ASKED, TAUGHT)
    assert trim_request(request, [TAUGHT.id]) is None
    assert trim_request(request, [ASKED.id, LATER.id]) is None
    # An edit by itself has one voice from the start.
    assert trim_request(capture_request(ASKED), [TAUGHT.id]) == capture_request(ASKED)
    assert trim_request(capture_request(ASKED), [ASKED.id]) is None
