"""Questions with pictures."""

from __future__ import annotations

import anyio
import pytest

from intern.answering import prepared_question
from intern.answering.answerer import MOST_IMAGES, AttachmentAwareAnswerer
from intern.core.errors import ChatError, ChatUnavailableError
from intern.core.ids import UserId
from intern.core.messages import AnswerResult, Attachment, Conversation, Image, Message, RequestContext
from intern.learning.attached_files import FileReader

pytestmark = pytest.mark.anyio

ALICE, BOB = UserId("1"), UserId("2")


class Gallery:
    """Pictures by file name; missing ones are unavailable."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.fetched: list[str] = []
        self.hangs = False

    async def fetch_image(self, attachment: Attachment, /) -> Image:
        self.fetched.append(attachment.filename)
        if self.hangs:
            await anyio.sleep_forever()
        if attachment.filename not in self.names:
            raise ChatUnavailableError(f"no {attachment.filename}")
        return Image(media_type="image/png", data=attachment.filename.encode())

    async def fetch(self, attachment: Attachment, most: int, /) -> bytes:
        self.fetched.append(attachment.filename)
        if attachment.filename not in self.names:
            raise ChatUnavailableError(f"no {attachment.filename}")
        text = "port = 7480" if attachment.filename.endswith(".conf") else f"ERROR: {attachment.filename} is broken"
        return text[:most].encode()


class Recorder:
    """Answers every question."""

    def __init__(self) -> None:
        self.asked: list[Conversation] = []

    async def answer(
        self, conversation: Conversation, context: RequestContext, *, addressed: bool = False
    ) -> AnswerResult:
        del context, addressed
        self.asked.append(conversation)
        return AnswerResult(should_reply=True, reply_text="yes")


def message(*files: str, by: UserId = ALICE, kind: str = "image/png") -> Message:
    attached = tuple(
        Attachment(id=name, filename=name, url=f"https://cdn.discordapp.com/{name}", content_type=kind, size=1)
        for name in files
    )
    return Message(role="user", text="what is this?", author_id=by, attachments=attached)


async def answered(gallery: Gallery, *messages: Message, sees: bool = True) -> tuple[AnswerResult, list[Conversation]]:
    recorder = Recorder()
    with anyio.fail_after(5):
        seeing = AttachmentAwareAnswerer(recorder, FileReader(gallery), sees=sees)
        return await seeing.answer(Conversation(messages), RequestContext()), recorder.asked


async def test_the_pictures_of_a_question_come_with_it() -> None:
    _, [asked] = await answered(Gallery("a", "b"), message("old", by=BOB), message("a"), message("b"))
    assert [[image.data for image in each.images] for each in asked.messages] == [[], [b"a"], [b"b"]]


async def test_earlier_pictures_and_sounds_are_not_fetched() -> None:
    gallery = Gallery("voice")
    result, _ = await answered(gallery, message("old", by=BOB), message("voice", kind="audio/ogg"))
    assert (result.should_reply, gallery.fetched) == (True, [])


async def test_a_picture_that_cannot_be_had_ends_in_no_reply() -> None:
    result, asked = await answered(Gallery("a"), message("a", "missing"))
    assert (result.should_reply, result.reason, asked) == (False, "images_unavailable", [])


async def test_of_many_pictures_the_newest_are_looked_at() -> None:
    names = [str(n) for n in range(MOST_IMAGES + 3)]
    gallery = Gallery(*names)
    await answered(gallery, message(*names))
    assert sorted(gallery.fetched) == names[-MOST_IMAGES:]


async def test_without_eyes_nothing_is_fetched() -> None:
    gallery = Gallery("a")
    result, [asked] = await answered(gallery, message("a"), sees=False)
    assert (result.should_reply, gallery.fetched, asked.messages[0].images) == (True, [], ())


async def test_a_download_can_be_given_up() -> None:
    gallery = Gallery("a")
    gallery.hangs = True
    with anyio.move_on_after(0.05) as scope:
        await AttachmentAwareAnswerer(Recorder(), FileReader(gallery), sees=True).answer(
            Conversation((message("a"),)), RequestContext()
        )
    assert scope.cancelled_caught
    assert issubclass(ChatUnavailableError, ChatError)


# Finding B2.
async def test_what_went_wrong_in_a_log_comes_with_the_question_and_leads_the_search() -> None:
    _, [asked] = await answered(Gallery("a.log"), message("a.log", "gone.log", kind="text/plain"))
    question = prepared_question.prepare_question(asked, addressed=True)
    assert question.question.splitlines() == [
        "what is this?",
        "[attached: a.log]",
        "  ERROR: a.log is broken",
        "[attached: gone.log, could not be read]",
    ]
    assert question.build_query().splitlines()[:2] == ["ERROR: a.log is broken", "what is this?"]
    assert question.build_query("rewritten").splitlines() == ["ERROR: a.log is broken", "rewritten"]


async def test_words_come_before_the_beginning_of_a_file_that_tells_of_no_error() -> None:
    _, [asked] = await answered(Gallery("a.log", "b.conf"), message("b.conf", "a.log", kind="text/plain"))
    found = prepared_question.prepare_question(asked, addressed=True).build_query("how?")
    assert found.splitlines() == ["ERROR: a.log is broken", "how?", "port = 7480"]
