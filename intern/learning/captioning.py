"""Describe the images of a capture in words before it is archived. Each image is described once, and the text is kept.

A description is untrusted: it becomes one masked line of bounded length. For an unusable image, the line says why.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from intern.core.errors import (
    ChatUnavailableError,
    LinkExpiredError,
    ModelError,
    ModelReplyError,
    ModelUnavailableError,
    UnusableImageError,
)
from intern.core.flow import CaptureRequest
from intern.core.ids import MessageId
from intern.core.log import get_logger
from intern.core.messages import Attachment, ChatMessage, Image
from intern.core.text.masking import mask_secrets
from intern.learning.prompts import SUMMARIZE_IMAGES, ImagePlace, ImagesIn, ImagesOut
from intern.models.prompt import Model

_log = get_logger(__name__)

Texts = Mapping[tuple[MessageId, str], str]
"""The descriptions of images, by message and attachment id."""

_SHORTEST_SHARE = 200  # characters of a message in the prompt, at least, however long the conversation is


class Images(Protocol):
    """Fetches images; see `intern.platforms.discord.attachments`."""

    async def image(self, attachment: Attachment, /) -> Image:
        """Fetch an image. Raises LinkExpiredError, UnusableImageError or ChatUnavailableError."""
        ...


class ImageTexts(Protocol):
    """Stores descriptions; see `intern.stores.sqlite.work`. Raises KnowledgeError."""

    async def texts_of(self, message_ids: Collection[MessageId], /) -> Texts:
        """Return the descriptions of the images of these messages."""
        ...

    async def keep_texts(self, texts: Texts, /) -> None:
        """Store descriptions."""
        ...


class CaptioningBounds(Struct, frozen=True, kw_only=True):
    """The bounds for the images of one capture."""

    images: int = 16
    """The most images of a conversation that are described, the oldest ones. More would not help to understand it."""
    images_a_call: int = 4
    bytes_a_call: int = 8 * 1024 * 1024
    """Does not bound the first image. While it is sent, each byte takes about four in memory."""
    conversation_chars: int = 12_000
    summary_chars: int = 800


class Place(Struct, frozen=True, kw_only=True):
    """An image and its place in a conversation."""

    message_id: MessageId
    index: int
    """Its number among the images of its message, from 0."""
    attachment: Attachment

    @property
    def key(self) -> tuple[MessageId, str]:
        """The key of its description."""
        return self.message_id, self.attachment.id


class Captioning:
    """Describes the images of captures. If `sees` is false, it does not, and only their names are archived."""

    def __init__(
        self,
        model: Model,
        images: Images,
        texts: ImageTexts,
        *,
        sees: bool,
        mask: bool = True,
        bounds: CaptioningBounds | None = None,
    ) -> None:
        self._model = model
        self._images = images
        self._texts = texts
        self._sees = sees
        self._mask = mask
        self._bounds = bounds or CaptioningBounds()

    async def known(self, request: CaptureRequest) -> Mapping[MessageId, Sequence[str]] | None:
        """Return the descriptions of each message's images, in order, "" without one; None if `look` must run first.

        Makes no model call. Raises KnowledgeError.
        """
        places = images_of(request)
        if not places:
            return {}
        known = await self._texts.texts_of({place.message_id for place in places})
        if self._sees and any(place.key not in known for place in places[: self._bounds.images]):
            return None
        unseen = f"(not looked at: there are over {self._bounds.images} images)" if self._sees else ""
        texts: dict[MessageId, list[str]] = {}
        for place in places:
            texts.setdefault(place.message_id, []).append(known.get(place.key, unseen))
        return texts

    async def missing(self, request: CaptureRequest) -> frozenset[MessageId]:
        """Return the messages with images that lack a description. Raises KnowledgeError."""
        return frozenset(place.message_id for place in await self._unseen(request))

    async def look(self, request: CaptureRequest, *, fresh: bool, last_try: bool = False) -> None:
        """Describe the images without a description, and store the texts. `known` returns them afterwards.

        Each text is stored at once, even if a later image fails. `fresh`: the links are new, so an expired one means
        that the image is gone. `last_try`: give up images that the model does not describe. Raises LinkExpiredError if
        new links are needed, else ChatUnavailableError or the ModelError family. Raises ModelUnavailableError at once,
        because the next image would fail, too.
        """
        work = _Look(request, self._bounds, fresh=fresh, last_try=last_try)
        group: list[tuple[Place, Image]] = []
        for place in await self._unseen(request):
            image = await self._fetched(place, work)
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

    def _fits(self, group: Sequence[tuple[Place, Image]], image: Image) -> bool:
        size = sum(len(each.data) for _, each in group) + len(image.data)
        return len(group) < self._bounds.images_a_call and size <= self._bounds.bytes_a_call

    async def _unseen(self, request: CaptureRequest) -> Sequence[Place]:
        places = images_of(request)[: self._bounds.images] if self._sees else ()
        if not places:
            return ()
        known = await self._texts.texts_of({place.message_id for place in places})
        return [place for place in places if place.key not in known]

    async def _fetched(self, place: Place, work: _Look) -> Image | None:
        try:
            return await self._images.image(place.attachment)
        except UnusableImageError as error:
            await self._do_without(place, str(error))
        except LinkExpiredError as error:
            if work.fresh:
                await self._do_without(place, "Discord does not have it any more")
            else:
                work.fail(error)
        except ChatUnavailableError as error:
            work.fail(error)
        return None

    async def _describe(self, group: Sequence[tuple[Place, Image]], work: _Look) -> None:
        """Describe a group of images; one by one if that fails, because one image may be the cause."""
        places = [place for place, _ in group]
        given = ImagesIn(
            conversation=work.conversation,
            images=tuple(ImagePlace(message_id=place.message_id, image_index=place.index) for place in places),
        )
        try:
            out = await self._model.ask(SUMMARIZE_IMAGES, given, images=[image for _, image in group])
            found = {place.key: line for place in places if (line := self._line(summary_of(out, place)))}
            await self._texts.keep_texts(found)
            left = [each for each in group if each[0].key not in found]
            if not left:
                return
            error: ModelError = ModelReplyError(f"{SUMMARIZE_IMAGES.name}: the reply leaves out {len(left)} images")
        except ModelUnavailableError:
            raise
        except ModelError as refusal:
            left, error = list(group), refusal
        if len(group) > 1:
            for each in left:
                await self._describe([each], work)
        elif work.last_try:
            await self._do_without(places[0], "the model gave no description")
        else:
            work.fail(error)

    async def _do_without(self, place: Place, why: str) -> None:
        _log.warning("image_left_out", message_id=place.message_id, image_index=place.index, reason=why)
        await self._texts.keep_texts({place.key: f"(not described: {why})"})

    def _line(self, summary: str) -> str:
        """Make a safe line of a description."""
        said = "".join(char if char.isprintable() else " " for char in summary)
        line = " ".join((mask_secrets(said).text if self._mask else said).split())
        bound = self._bounds.summary_chars
        return line if len(line) <= bound else line[: bound - 1] + "…"


class _Look:
    """One attempt at a request's images, and its most important failure."""

    def __init__(self, request: CaptureRequest, bounds: CaptioningBounds, *, fresh: bool, last_try: bool) -> None:
        self.conversation = conversation_text(request, bounds.conversation_chars)
        self.fresh = fresh
        self.last_try = last_try
        self.failure: ChatUnavailableError | ModelError | None = None

    def fail(self, error: ChatUnavailableError | ModelError) -> None:
        # An expired link is the most important failure, because new links are available at once.
        if self.failure is None or isinstance(error, LinkExpiredError):
            self.failure = error


def images_of(request: CaptureRequest) -> Sequence[Place]:
    """List the images of a conversation, oldest message first."""
    return [place for message in request.messages for place in _images_of(message)]


def _images_of(message: ChatMessage) -> Sequence[Place]:
    images = [attachment for attachment in message.attachments if attachment.is_image]
    return [Place(message_id=message.id, index=n, attachment=image) for n, image in enumerate(images)]


def conversation_text(request: CaptureRequest, max_chars: int) -> str:
    """Render the conversation for the prompt. If it is too long, each long message is cut."""
    share = max(max_chars // max(len(request.messages), 1), _SHORTEST_SHARE)
    whole = sum(len(message.text) for message in request.messages) <= max_chars
    lines: list[str] = []
    for message in request.messages:
        speaker = "Team" if message.author.type == "team_member" else "User"
        text = message.text if whole or len(message.text) <= share else message.text[: share - 1] + "…"
        marks = [f"[image {place.index} of message {place.message_id}]" for place in _images_of(message)]
        lines.append("\n".join([f"{speaker}: {text}", *marks]))
    # The marks of many short messages may not fit; the list of images has them, too.
    return "\n".join(lines)[: 2 * max_chars]


def summary_of(out: ImagesOut, place: Place) -> str:
    """Return the reply's first description of an image; empty without one."""
    for summary in out.summaries:
        if (summary.message_id.strip(), summary.image_index) == (place.message_id, place.index):
            return summary.summary
    return ""
