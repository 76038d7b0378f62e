"""Questions with images: the bot fetches the attachments before it answers.

Without its image a question is another question, so there is no reply if one cannot be fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from anyio import create_task_group, move_on_after
from msgspec.structs import replace

from intern.core.errors import ChatError
from intern.core.log import get_logger
from intern.core.messages import AIResult, Attachment, Conversation, Image, RequestContext

_log = get_logger(__name__)

# Endpoints take few; the newest show what the question is about.
MOST_IMAGES = 4
_SECONDS = 30.0


class Images(Protocol):
    """Fetches pictures; see `intern.platforms.discord.attachments`."""

    async def image(self, attachment: Attachment, /) -> Image:
        """The picture. Raises the ChatError family."""
        ...


class Answers(Protocol):
    """Answers questions."""

    async def answer(self, conversation: Conversation, context: RequestContext, *, addressed: bool = False) -> AIResult:
        """An answer, or silence with its reason. Raises no `InternError`."""
        ...


class Seeing:
    """Answers questions with their pictures, or without them where `sees` is false."""

    def __init__(self, answers: Answers, images: Images, *, sees: bool) -> None:
        self._answers = answers
        self._images = images
        self._sees = sees

    async def answer(self, conversation: Conversation, context: RequestContext, *, addressed: bool = False) -> AIResult:
        """As `Answers.answer`; `images_unavailable` if an image of the question cannot be fetched."""
        if self._sees:
            try:
                conversation = await self._seen(conversation)
            except ChatError as error:
                _log.warning("question_image_failed", message_id=context.message_id, reason=str(error))
                return AIResult(should_reply=False, reason="images_unavailable", debug={"error": str(error)})
        return await self._answers.answer(conversation, context, addressed=addressed)

    async def _seen(self, conversation: Conversation) -> Conversation:
        place = conversation.asked
        wanted = [
            (n, each)
            for n in range(place.start, place.stop)
            for each in conversation.messages[n].attachments
            if each.is_image
        ]
        if not wanted:
            return conversation
        fetched = await self._fetched([attachment for _, attachment in wanted[-MOST_IMAGES:]])
        messages = list(conversation.messages)
        for (n, _), image in zip(wanted[-MOST_IMAGES:], fetched, strict=True):
            messages[n] = replace(messages[n], images=(*messages[n].images, image))
        return Conversation(tuple(messages))

    async def _fetched(self, attachments: Sequence[Attachment]) -> list[Image]:
        """Fetch them in parallel. Raises the error of the first that failed."""
        got: dict[int, Image | ChatError] = {}

        async def fetch(n: int, attachment: Attachment) -> None:
            try:
                got[n] = await self._images.image(attachment)
            except ChatError as error:  # a value here, or the group would wrap it
                got[n] = error

        with move_on_after(_SECONDS):
            async with create_task_group() as tg:
                for n, attachment in enumerate(attachments):
                    tg.start_soon(fetch, n, attachment)
        images: list[Image] = []
        for n in range(len(attachments)):
            found = got.get(n) or ChatError(f"an image was not there within {_SECONDS:g} s")
            if isinstance(found, ChatError):
                raise found
            images.append(found)
        return images
