"""Attachments, put into words once, before their capture is archived: images by a model, text files by a digest.

Both are untrusted: each becomes one masked line of bounded length. For an unusable image, the line says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import islice

from msgspec import Struct

from intern.core import errors
from intern.core.flow import CaptureRequest
from intern.core.ids import MessageId
from intern.core.log import get_logger
from intern.core.messages import Attachment, ChatMessage, Image
from intern.core.text.masking import mask_secrets
from intern.learning.attached_files import FileReader
from intern.learning.prompts import SUMMARIZE_IMAGES, ImagePlace, ImagesIn
from intern.models.prompt import Model
from intern.stores.tables.pending_captures import AttachmentTexts, PendingCaptures

_log = get_logger(__name__)

_SHORTEST_SHARE = 200  # characters of a message in the prompt of images, however long the conversation is


class CaptioningBounds(Struct, frozen=True, kw_only=True):
    """The bounds for the attachments of one capture."""

    images: int = 16
    """The most images of a conversation that are described, the oldest ones. More would not help to understand it."""
    files: int = 16
    images_a_call: int = 4
    bytes_a_call: int = 8 * 1024 * 1024
    """Does not bound the first image. While it is sent, each byte takes about four in memory."""
    conversation_chars: int = 12_000
    summary_chars: int = 800


class AttachmentPlace(Struct, frozen=True, kw_only=True):
    """An attachment and its place in a conversation."""

    message_id: MessageId
    index: int = 0
    """The number of an image among those of its message, from 0."""
    attachment: Attachment

    @property
    def key(self) -> tuple[MessageId, str]:
        """The key of its description."""
        return self.message_id, self.attachment.id


@dataclass
class AttachmentCaptioner:
    """Puts the attachments of captures into words. If `sees` is false, only the names of images are archived."""

    model: Model
    files: FileReader
    texts: PendingCaptures
    _: KW_ONLY
    sees: bool
    mask: bool = True
    bounds: CaptioningBounds = CaptioningBounds()  # noqa: RUF009 - frozen

    async def read_captions(self, request: CaptureRequest) -> AttachmentTexts | None:
        """Return the texts of its attachments, "" for one without text; None if `caption_missing` must run first.

        Makes no model call. Raises KnowledgeError.
        """
        images, files = list_images(request.messages), self._choose_files(request)
        if not (images or files):
            return {}
        known = await self.texts.read_texts({place.message_id for place in (*images, *files)})
        if any(place.key not in known for place in (*self._choose_images(images), *files)):
            return None
        unseen = f"(not looked at: there are over {self.bounds.images} images)" if self.sees else ""
        return {place.key: known.get(place.key, unseen) for place in (*images, *files)}

    async def find_uncaptioned(self, request: CaptureRequest) -> frozenset[MessageId]:
        """Return the messages with attachments that are not in words yet. Raises KnowledgeError."""
        return frozenset(place.message_id for place in await self._list_uncaptioned(request))

    async def caption_missing(self, request: CaptureRequest, *, fresh: bool, last_try: bool = False) -> None:
        """Put the remaining attachments into words, and store the texts. `read_captions` returns them afterwards.

        Each text is stored at once, even if a later one fails. `fresh`: the links are new, so an expired one means
        that the image is gone. `last_try`: give up images that the model does not describe. Raises LinkExpiredError if
        new links are needed, else ChatUnavailableError or the ModelError family. Raises ModelUnavailableError at once,
        because the next image would fail, too.
        """
        conversation = conversation_text(request, self.bounds.conversation_chars)
        work = _CaptioningAttempt(conversation=conversation, fresh=fresh, last_try=last_try)
        group: list[tuple[AttachmentPlace, Image]] = []
        for place in await self._list_uncaptioned(request):
            image = await self._fetch_attachment(place, work)
            if image is None:
                continue
            if group and not self._fits(group, image):
                await self._describe(group, work)
                group = []
            group.append((place, image))
        if group:
            await self._describe(group, work)
        if work.failure is not None:
            raise work.failure

    def _fits(self, group: Sequence[tuple[AttachmentPlace, Image]], image: Image) -> bool:
        size = sum(len(each.data) for _, each in group) + len(image.data)
        return len(group) < self.bounds.images_a_call and size <= self.bounds.bytes_a_call

    async def _list_uncaptioned(self, request: CaptureRequest) -> Sequence[AttachmentPlace]:
        places = (*self._choose_files(request), *self._choose_images(list_images(request.messages)))
        known = await self.texts.read_texts({place.message_id for place in places})
        return [place for place in places if place.key not in known]

    def _choose_images(self, images: Sequence[AttachmentPlace]) -> Sequence[AttachmentPlace]:
        return images[: self.bounds.images] if self.sees else ()

    def _choose_files(self, request: CaptureRequest) -> list[AttachmentPlace]:
        chosen = (
            AttachmentPlace(message_id=each.id, attachment=file)
            for each in request.messages
            for file in self.files.choose(each.author.id, each.at, each.text, each.attachments)
        )
        return [*islice(chosen, self.bounds.files)]

    async def _fetch_attachment(self, place: AttachmentPlace, work: _CaptioningAttempt) -> Image | None:
        try:
            if place.attachment.is_image:
                return await self.files.host.fetch_image(place.attachment)
            digest = await self.files.read(place.attachment)
            await self.texts.save_texts(
                {place.key: self._format_line(" / ".join(digest.telling.split("\n"))) if digest else ""}
            )
        except errors.UnusableFileError as error:
            await self._skip_attachment(place, str(error))
        except errors.LinkExpiredError as error:
            if work.fresh:
                await self._skip_attachment(place, "Discord does not have it any more")
            else:
                work.fail(error)
        except errors.ChatUnavailableError as error:
            work.fail(error)
        return None

    async def _describe(self, group: Sequence[tuple[AttachmentPlace, Image]], work: _CaptioningAttempt) -> None:
        """Describe a group of images; one by one if that fails, because one image may be the cause."""
        places = [place for place, _ in group]
        given = ImagesIn(
            conversation=work.conversation,
            images=tuple(ImagePlace(message_id=place.message_id, image_index=place.index) for place in places),
        )
        try:
            out = await self.model.ask(SUMMARIZE_IMAGES, given, images=[image for _, image in group])
            # If the reply describes an image twice, the first description counts.
            said = {(each.message_id.strip(), each.image_index): each.summary for each in reversed(out.summaries)}
            lines = {place.key: self._format_line(said.get((place.message_id, place.index), "")) for place in places}
            found = {key: line for key, line in lines.items() if line}
            await self.texts.save_texts(found)
            left = [each for each in group if each[0].key not in found]
            if not left:
                return
            said_less = f"{SUMMARIZE_IMAGES.name}: the reply leaves out {len(left)} images"
            error: errors.ModelError = errors.ModelReplyError(said_less)
        except errors.ModelUnavailableError:
            raise
        except errors.ModelError as refusal:
            left, error = list(group), refusal
        if len(group) > 1:
            for each in left:
                await self._describe([each], work)
        elif work.last_try:
            await self._skip_attachment(places[0], "the model gave no description")
        else:
            work.fail(error)

    async def _skip_attachment(self, place: AttachmentPlace, why: str) -> None:
        _log.warning("attachment_left_out", message_id=place.message_id, attachment_id=place.attachment.id, reason=why)
        await self.texts.save_texts({place.key: f"(not described: {why})" if place.attachment.is_image else ""})

    def _format_line(self, summary: str) -> str:
        """Make a safe line of a description."""
        said = "".join(char if char.isprintable() else " " for char in summary)
        line = " ".join((mask_secrets(said).text if self.mask else said).split())
        bound = self.bounds.summary_chars
        return line if len(line) <= bound else line[: bound - 1] + "…"


@dataclass(kw_only=True)
class _CaptioningAttempt:
    """One attempt at a request's images, and its most important failure."""

    conversation: str
    fresh: bool
    last_try: bool
    failure: errors.ChatUnavailableError | errors.ModelError | None = None

    def fail(self, error: errors.ChatUnavailableError | errors.ModelError) -> None:
        # An expired link is the most important failure, because new links are available at once.
        if self.failure is None or isinstance(error, errors.LinkExpiredError):
            self.failure = error


def list_images(messages: Iterable[ChatMessage]) -> Sequence[AttachmentPlace]:
    """List the images of messages, in order."""
    return [
        AttachmentPlace(message_id=message.id, index=n, attachment=image)
        for message in messages
        for n, image in enumerate(each for each in message.attachments if each.is_image)
    ]


def conversation_text(request: CaptureRequest, max_chars: int) -> str:
    """Render the conversation for the prompt. If it is too long, each long message is cut."""
    share = max(max_chars // max(len(request.messages), 1), _SHORTEST_SHARE)
    whole = sum(len(message.text) for message in request.messages) <= max_chars
    lines: list[str] = []
    for message in request.messages:
        speaker = "Team" if message.author.type == "team_member" else "User"
        text = message.text if whole or len(message.text) <= share else message.text[: share - 1] + "…"
        marks = [f"[image {place.index} of message {place.message_id}]" for place in list_images([message])]
        lines.append("\n".join([f"{speaker}: {text}", *marks]))
    # The marks of many short messages may not fit, but the list of images has them, too.
    return "\n".join(lines)[: 2 * max_chars]
