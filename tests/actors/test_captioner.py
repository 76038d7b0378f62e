"""The captioner with the real table of pending captures and the real archivist; host, model and Discord are doubles."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio import Event, create_memory_object_stream, create_task_group, fail_after, sleep
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec.structs import replace

from intern.actors.activity import ActivityReporter
from intern.actors.captioner import LAST_TRY, Captioner
from intern.core.captures import Capture, CapturedPair
from intern.core.errors import (
    ChatRefusedError,
    ChatUnavailableError,
    InternError,
    LinkExpiredError,
    ModelUnavailableError,
)
from intern.core.flow import CaptureArchived, CapturePending, CaptureRequest
from intern.core.ids import ChannelId, ConversationId, MessageId
from intern.core.log import configure_logging
from intern.core.messages import Attachment, ChatMessage, Image
from intern.learning.attached_files import FileReader
from intern.learning.captioning import AttachmentCaptioner
from intern.learning.prompts import SUMMARIZE_IMAGES, ImagesIn, ImagesOut, ImageSummary
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.pending_captures import PendingCaptures
from tests.worlds.actors import finishing, running
from tests.worlds.clock import HandClock, leap
from tests.worlds.model import ScriptedModel, refused
from tests.worlds.samples import author, capture_request, message, pair

pytestmark = pytest.mark.leaps


def shot(link: str = "stale", name: str = "a.png") -> Attachment:
    return Attachment(id=name, filename=name, url=link, size=10, content_type="image/png")


ASKED = replace(message("What is this?", n=1), attachments=(shot(),))
TAUGHT = message("A driver.", n=2, by=author("mira", "team_member"))
REQUEST = capture_request(ASKED, TAUGHT)
OTHER = capture_request(
    replace(message("And this?", n=11), attachments=(shot(name="b.png"),)),
    message("A cable.", n=12, by=author("mira", "team_member")),
    conversation="reply_11",
)


def told(given: ImagesIn) -> ImagesOut:
    return ImagesOut(
        summaries=tuple(
            ImageSummary(message_id=place.message_id, image_index=place.image_index, summary="An error.")
            for place in given.images
        )
    )


class Shore:
    """Discord: serves files under links that may be expired, and messages that may be gone."""

    def __init__(self) -> None:
        self.messages: dict[MessageId, ChatMessage] = {}
        self.expired = {"expired"}
        self.closed = set[ChannelId]()
        self.away: InternError | None = None
        self.fetched: list[str] = []
        self.asked: list[MessageId] = []

    async def fetch(self, attachment: Attachment, most: int, /) -> bytes:
        return (await self.fetch_image(attachment)).data[:most]

    async def fetch_image(self, attachment: Attachment, /) -> Image:
        self.fetched.append(attachment.url)
        if attachment.url in self.expired:
            raise LinkExpiredError("cdn answered 404")
        if self.away is not None:
            raise self.away
        return Image(media_type="image/png", data=b"png")

    async def message(self, channel_id: ChannelId, message_id: MessageId, /) -> ChatMessage | None:
        self.asked.append(message_id)
        if channel_id in self.closed:
            raise ChatRefusedError("closed")
        return self.messages.get(message_id)


class Keeper:
    """Keeps the given captures."""

    def __init__(self) -> None:
        self.kept: list[Capture] = []
        self.while_keeping: Callable[[], Any] | None = None

    async def keep(self, capture: Capture, /) -> CapturedPair | None:
        self.kept.append(capture)
        if self.while_keeping is not None:
            hook, self.while_keeping = self.while_keeping, None
            await hook()
        return pair(capture.question, conversation=capture.conversation_id)

    @property
    def texts(self) -> list[list[str]]:
        return [[turn.text for turn in capture.turns] for capture in self.kept]


class Scene:
    def __init__(self, db: SqliteDatabase, *, sees: bool = True) -> None:
        self.model, self.shore, self.keeper = ScriptedModel(), Shore(), Keeper()
        self.pending = PendingCaptures(db, clock=HandClock(), conversations_of=lambda _: ())
        self.captioning = AttachmentCaptioner(self.model, FileReader(self.shore), self.pending, sees=sees)
        self.backoff: list[float] = []
        self._inbox: MemoryObjectReceiveStream[CapturePending] | None = None

    async def work(self, inbox: Any, archived: MemoryObjectSendStream[CaptureArchived]) -> None:
        await Captioner(
            pending=self.pending,
            captions=self.captioning,
            keep=self.keeper.keep,
            look_up=self.shore.message,
            events=ActivityReporter(),
            backoff=self._backoff,
        ).run(inbox, archived)

    def _backoff(self) -> Iterator[float]:
        for pause in (10.0, 20.0, 40.0):
            self.backoff.append(pause)
            yield pause

    async def run(self) -> list[CaptureArchived]:
        """Process the due captures once."""
        waiting, inbox = create_memory_object_stream[CapturePending](1)
        archived, woken = create_memory_object_stream[CaptureArchived](1)
        with fail_after(10), waiting, woken:
            waiting.close()
            await self.work(inbox, archived)
            return [each async for each in woken]

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[MemoryObjectSendStream[CapturePending]]:
        waiting, inbox = create_memory_object_stream[CapturePending](1)
        archived, woken = create_memory_object_stream[CaptureArchived](1)
        self._inbox = inbox
        with fail_after(100_000), waiting, woken:  # by the leaping clock
            async with running(self.work, inbox, archived):
                yield waiting

    async def quiet(self) -> None:
        """Wait until the captioner waits for a wakeup, or for a time."""
        for _ in range(5):  # due tasks wake up first
            await checkpoint()
        assert self._inbox is not None
        # Without a rest, this loop would keep the database's thread from its turn for 5 ms each time.
        while not self._inbox.statistics().tasks_waiting_receive:  # noqa: ASYNC110 a stream tells of no waiter
            await sleep(0.0005)

    async def waiting(self) -> list[ConversationId]:
        found = [await self.pending.get(rid) for rid in await self.pending.list_waiting()]
        return [each.request.conversation_id for each in found if each is not None]


@asynccontextmanager
async def scene(folder: Path, *requests: CaptureRequest, sees: bool = True) -> AsyncGenerator[Scene]:
    async with await SqliteDatabase.open(folder / "intern.db") as db:
        made = Scene(db, sees=sees)
        await made.pending.load()
        for request in requests:
            await made.pending.add(request)
            for each in request.messages:
                fresh = tuple(replace(file, url=f"fresh {file.filename}") for file in each.attachments)
                made.shore.messages[each.id] = replace(each, attachments=fresh)
        yield made


async def test_what_waits_at_the_start_is_looked_at_under_fresh_links_and_archived(tmp_path: Path) -> None:
    async with scene(tmp_path, REQUEST) as at:
        at.model.next(SUMMARIZE_IMAGES, told)
        assert await at.run() == [CaptureArchived()]
        assert at.keeper.texts == [["What is this?\n[image: a.png] An error.", "A driver."]]
        assert at.shore.fetched == ["fresh a.png"]
        assert await at.waiting() == []


async def test_each_capture_is_told_with_the_id_of_its_own_last_message(tmp_path: Path) -> None:
    out = io.StringIO()
    async with scene(tmp_path, REQUEST, OTHER) as at:
        configure_logging(log_format="json", stream=out)
        at.model.next(SUMMARIZE_IMAGES, refused())
        at.model.next(SUMMARIZE_IMAGES, told)
        await at.run()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["event"], line["trace_id"]) for line in lines] == [
        ("capture_pending", TAUGHT.id),
        ("qa_pair_captured", OTHER.messages[-1].id),
    ]


async def test_a_new_capture_is_looked_at_under_the_link_at_hand(tmp_path: Path) -> None:
    async with scene(tmp_path) as at:
        at.model.next(SUMMARIZE_IMAGES, told)
        async with at.at_work() as waiting:
            await at.quiet()
            await at.pending.add(REQUEST)
            waiting.send_nowait(CapturePending())
            await at.quiet()
            assert len(at.keeper.kept) == 1
        assert (at.shore.fetched, at.shore.asked) == (["stale"], [])


async def test_an_expired_link_is_replaced_at_once(tmp_path: Path) -> None:
    async with scene(tmp_path) as at:
        at.shore.expired.add("stale")
        at.shore.messages[ASKED.id] = replace(ASKED, text="edited in private", attachments=(shot("fresh"),))
        at.model.next(SUMMARIZE_IMAGES, told)
        async with at.at_work() as waiting:
            await at.quiet()
            await at.pending.add(REQUEST)
            waiting.send_nowait(CapturePending())
            await at.quiet()
        assert at.shore.fetched == ["stale", "fresh"]
        # Only its files: an unreported edit may be in a channel that is closed to us by now.
        assert at.keeper.texts == [["What is this?\n[image: a.png] An error.", "A driver."]]


async def test_an_image_that_is_gone_for_ever_leaves_a_word_on_why(tmp_path: Path) -> None:
    async with scene(tmp_path, REQUEST) as at:
        at.shore.expired.add("fresh a.png")
        await at.run()
        assert at.keeper.texts[0][0] == (
            "What is this?\n[image: a.png] (not described: Discord does not have it any more)"
        )


async def test_an_image_that_was_taken_out_of_its_message_is_gone_without_a_word(tmp_path: Path) -> None:
    async with scene(tmp_path, REQUEST) as at:
        at.shore.messages[ASKED.id] = replace(ASKED, attachments=())
        await at.run()
        assert at.keeper.texts == [["What is this?", "A driver."]]


async def test_a_message_that_is_gone_meanwhile_drops_out_and_takes_the_capture_with_it_where_it_was_the_question(
    tmp_path: Path,
) -> None:
    thanks = replace(message("Like so", n=3), attachments=(shot(name="c.png"),))
    async with scene(tmp_path, REQUEST, replace(OTHER, messages=(*OTHER.messages, thanks))) as at:
        del at.shore.messages[ASKED.id], at.shore.messages[thanks.id]
        at.model.next(SUMMARIZE_IMAGES, told)
        await at.run()
        assert at.keeper.texts == [["And this?\n[image: b.png] An error.", "A cable."]]
        assert await at.waiting() == []


@pytest.mark.parametrize(
    ("expired", "text"), [(set[str](), "An error."), ({"stale"}, "(not described: Discord does not have it any more)")]
)
async def test_a_channel_that_was_closed_loses_no_answer(tmp_path: Path, expired: set[str], text: str) -> None:
    async with scene(tmp_path, REQUEST) as at:
        at.shore.messages.clear()
        at.shore.closed.add(REQUEST.channel_id)
        at.shore.expired |= expired
        at.model.next(SUMMARIZE_IMAGES, told)
        await at.run()
        assert at.keeper.texts == [[f"What is this?\n[image: a.png] {text}", "A driver."]]


async def test_on_failure_nothing_is_archived_and_the_others_pass(tmp_path: Path) -> None:
    async with scene(tmp_path, REQUEST, OTHER) as at:
        at.model.next(SUMMARIZE_IMAGES, refused(), told)
        await at.run()
        assert [capture.conversation_id for capture in at.keeper.kept] == ["reply_11"]
        assert await at.waiting() == ["reply_1"]


async def test_a_capture_is_tried_again_after_growing_pauses(tmp_path: Path) -> None:
    async with scene(tmp_path, REQUEST) as at:
        at.shore.away = ChatUnavailableError("503")
        async with at.at_work():
            for seconds, tries in ((0, 1), (59, 1), (1, 2), (239, 2), (1, 3), (959, 3), (1, 4), (3599, 4), (1, 5)):
                await leap(seconds)
                await at.quiet()
                assert len(at.shore.fetched) == tries
            at.shore.away = None
            at.model.next(SUMMARIZE_IMAGES, told)
            await leap(3600)
            await at.quiet()
            assert len(at.keeper.kept) == 1


async def test_a_model_that_is_away_is_asked_for_one_capture_at_a_time_and_gives_up_none(tmp_path: Path) -> None:
    async with scene(tmp_path, REQUEST, OTHER) as at:
        at.model.always(SUMMARIZE_IMAGES, ModelUnavailableError("away"))
        async with at.at_work() as waiting:
            await at.quiet()
            assert len(at.model.asked) == 1
            waiting.send_nowait(CapturePending())  # later captures wait, too
            await at.quiet()
            assert len(at.model.asked) == 1
            for seconds, asked in ((10, 2), (20, 2), (30, 3)):
                await leap(seconds)
                await at.quiet()
                assert len(at.model.asked) == asked
            at.model.always(SUMMARIZE_IMAGES, told)
            await leap(239)  # the first one is due after 40 more, the second after 240
            await at.quiet()
            assert len(at.keeper.kept) == 2


async def test_an_image_that_the_model_never_describes_goes_without_after_some_tries(tmp_path: Path) -> None:
    async with scene(tmp_path, REQUEST) as at:
        at.model.always(SUMMARIZE_IMAGES, refused())
        for _ in range(LAST_TRY - 1):
            await at.run()
            assert at.keeper.kept == []
        await at.run()
        assert "(not described: the model gave no description)" in at.keeper.texts[0][0]
        assert len(at.model.asked) == LAST_TRY


async def test_a_model_that_was_away_for_long_has_all_its_tries_once_it_is_back(tmp_path: Path) -> None:
    async with scene(tmp_path, REQUEST) as at:
        for _ in range(2 * LAST_TRY):
            at.model.next(SUMMARIZE_IMAGES, ModelUnavailableError("away"))
            await at.run()
        at.model.next(SUMMARIZE_IMAGES, refused(), told)
        await at.run()
        assert at.keeper.kept == []
        await at.run()
        assert len(at.keeper.kept) == 1


async def test_what_joins_while_an_image_is_looked_at_is_archived_with_it(tmp_path: Path) -> None:
    looking, gate = Event(), Event()

    async def slowly(given: ImagesIn) -> ImagesOut:
        looking.set()
        await gate.wait()
        return told(given)

    async with scene(tmp_path, REQUEST) as at:
        at.model.next(SUMMARIZE_IMAGES, slowly)
        with fail_after(10):
            async with finishing(at.run):
                await looking.wait()
                assert await at.pending.join_waiting(capture_request(replace(TAUGHT, text="A cable, sorry.")))
                gate.set()
        assert at.keeper.texts == [["What is this?\n[image: a.png] An error.", "A cable, sorry."]]
        assert await at.waiting() == []


async def test_what_joins_while_a_capture_is_archived_is_archived_after_it(tmp_path: Path) -> None:
    async with scene(tmp_path, REQUEST) as at:
        at.model.next(SUMMARIZE_IMAGES, told)
        at.keeper.while_keeping = lambda: at.pending.join_waiting(
            capture_request(replace(TAUGHT, text="A cable, sorry."))
        )
        await at.run()
        assert [texts[-1] for texts in at.keeper.texts] == ["A driver.", "A cable, sorry."]
        assert await at.waiting() == []


async def test_what_is_forgotten_while_its_image_is_looked_at_is_not_archived(tmp_path: Path) -> None:
    looking, gate = Event(), Event()

    async def slowly(given: ImagesIn) -> ImagesOut:
        looking.set()
        await gate.wait()
        return told(given)

    async with scene(tmp_path, REQUEST) as at:
        at.model.next(SUMMARIZE_IMAGES, slowly)
        with fail_after(10):
            async with finishing(at.run):
                await looking.wait()
                await at.pending.forget([ASKED.id])
                gate.set()
        assert at.keeper.kept == []


@pytest.mark.parametrize("after", range(1, 12))
async def test_ended_anywhere_it_loses_nothing_and_pays_no_image_twice(tmp_path: Path, after: int) -> None:
    """As after SIGKILL: it is cancelled at one of the steps, then started again."""
    async with scene(tmp_path, REQUEST, OTHER) as at:
        at.model.always(SUMMARIZE_IMAGES, told)
        steps = 0
        with fail_after(10):
            async with create_task_group() as tg:

                def ending(work: Callable[..., Any]) -> Callable[..., Any]:
                    async def step(*args: Any, **more: Any) -> Any:
                        nonlocal steps
                        steps += 1
                        if steps >= after:
                            tg.cancel_scope.cancel()
                        return await work(*args, **more)

                    return step

                for thing, name in (
                    (at.pending, "update_messages"),
                    (at.pending, "save_texts"),
                    (at.pending, "finish"),
                    (at.keeper, "keep"),
                    (at.shore, "fetch_image"),
                ):
                    setattr(thing, name, ending(getattr(thing, name)))
                tg.start_soon(at.run)
        kept = {capture.conversation_id for capture in at.keeper.kept}
        assert kept | set(await at.waiting()) == {"reply_1", "reply_11"}
    async with scene(tmp_path) as again:
        for request in (REQUEST, OTHER):
            again.shore.messages |= {each.id: each for each in request.messages}
        again.model.always(SUMMARIZE_IMAGES, told)
        await again.run()
        kept |= {capture.conversation_id for capture in again.keeper.kept}
        assert kept == {"reply_1", "reply_11"}
        assert await again.waiting() == []
        assert len(at.shore.fetched) + len(again.shore.fetched) <= 3


async def test_where_images_are_off_by_now_what_waits_is_archived_without_them(tmp_path: Path) -> None:
    async with scene(tmp_path, REQUEST, sees=False) as at:
        await at.run()
        assert at.keeper.texts == [["What is this?\n[image: a.png]", "A driver."]]
        assert (at.shore.fetched, at.shore.asked) == ([], [])


@pytest.mark.rest
async def test_what_cannot_be_read_holds_nobody_up(tmp_path: Path) -> None:
    async with scene(tmp_path, REQUEST, OTHER) as at:
        async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
            await db.write(
                lambda tx: tx.run("update pending_captures set request = x'7b7d' where conversation_id = 'reply_1'")
            )
        at.model.next(SUMMARIZE_IMAGES, told)
        async with at.at_work():
            await at.quiet()
            assert [capture.conversation_id for capture in at.keeper.kept] == ["reply_11"]
