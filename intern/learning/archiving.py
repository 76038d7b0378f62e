"""Add captures to the archive, joined with the earlier versions of their conversations.

Secrets are masked, and mentions of people become their roles, so nothing that is learned holds the id of a member.

Deleted and forgotten messages are not archived again. Attachments are put into words before, once: images by a model,
text files by a digest. Both are untrusted: each becomes one masked line of bounded length. For an unusable image, the
line says why.

An import archives each conversation once, in its fullest version: each further version would cost a model call. So an
import is rehearsed first: the captures go through the same rules with an archive in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain, islice

from anyio import Lock, to_thread
from msgspec import Struct, structs

from intern.core import errors
from intern.core.flow import CaptureRequest
from intern.core.ids import ConversationId, MessageId, UserId, parse_position
from intern.core.log import get_logger
from intern.core.messages import Attachment, ChatMessage, Image
from intern.core.progress import report_progress
from intern.core.records import Capture, CapturedPair, Turn, copy_capture
from intern.core.text.masking import count_masks, mask_secrets
from intern.facts.segments import IsWithdrawn, has_user_and_team, remove_person_ids, remove_withdrawn
from intern.learning.attached_files import FileReader
from intern.learning.prompts import SUMMARIZE_IMAGES, ImagePlace, ImagesIn
from intern.models.prompt import Model
from intern.stores.archive import Archive
from intern.stores.blocks import make_qa_id
from intern.stores.sqlite.work import AttachmentTexts, PendingCaptures

_log = get_logger(__name__)

_SHORTEST_SHARE = 200  # characters of a message in the prompt of images, however long the conversation is


@dataclass
class Archivist:
    """The one writer of the archive in this process."""

    archive: Archive | RehearsalArchive
    _: KW_ONLY
    mask: bool
    is_withdrawn: IsWithdrawn
    is_forgotten: Callable[[UserId, MessageId], bool] = lambda _user, _message: False
    """Whether a member asked to forget this message."""
    mask_emails: bool = False
    masked: Callable[[Mapping[str, int]], object] = lambda _kinds: None
    """Called with the kinds of masked secrets and their numbers, never with the secrets."""
    writing: Lock = field(default_factory=Lock, init=False)
    """The lock of the archive. Hold it to prevent archiving, so that a search of the archive is complete."""

    def choose_conversation(self, capture: Capture) -> ConversationId:
        """Return the conversation that has most of a capture's messages; of equals its own, or else the first.

        Bounds and deletions limit the reading of a chain, so captures of one conversation may name different roots. If
        each kept its own root, two conversations would end up with all of the messages.
        """
        known = Counter(chain.from_iterable(map(self.archive.find_conversations, capture.message_ids)))
        own = capture.conversation_id
        return max(known, key=lambda each: (known[each], each == own), default=own)

    async def archive_capture(self, capture: Capture, *, imported: bool = False) -> CapturedPair | None:
        """Archive a capture, and return the pair; None if the archive gains nothing by it. Raises KnowledgeError.

        Messages that were captured before keep their conversation, so a growing reply chain stays one conversation. The
        pair holds all captured messages of its conversation in time order, without the withdrawn and forgotten ones.
        The newer text of a message wins, so an edited message may come by itself. A conversation without a question or
        an answer is not archived. Raises ConfigError for an invalid capture: times without a zone, ids that would break
        the format, or turns, ids and authors that do not match.

        An export may be older than the archive, so with `imported` the archived text of a message wins. The caller has
        chosen the conversation before (`choose_conversation`).
        """
        async with self.writing:
            try:
                return await to_thread.run_sync(self._archive_capture, _check_capture(capture), imported)
            except ValueError as error:
                what = f"the capture of conversation {capture.conversation_id[:80]!r}"
                raise errors.ConfigError(f"{what} cannot be archived: {error}") from error

    def _archive_capture(self, capture: Capture, imported: bool) -> CapturedPair | None:  # noqa: FBT001 - run in a thread
        capture = structs.replace(capture, turns=tuple(map(self._mask_turn, capture.turns)), author_names=())
        home = capture.conversation_id if imported else self.choose_conversation(capture)
        before = self.archive.latest_capture(home)
        joined = (
            structs.replace(capture, conversation_id=home)
            if before is None
            else _merge_captures(before, capture, imported)
        )
        # Only after merging: an edited message comes by itself, and may mention the author of another one.
        joined = structs.replace(joined, turns=remove_person_ids(joined.turns, joined.author_ids))
        joined, held = self._strip_removed(joined), before and self._strip_removed(before)
        if not has_user_and_team(joined.turns):
            return None
        if held is not None and (joined.message_ids, joined.turns) == (held.message_ids, held.turns):
            return None
        pair = self.archive.append(joined)
        self._report_masked(pair, before)
        return pair

    def _strip_removed(self, capture: Capture) -> Capture:
        """Return the capture without the withdrawn and forgotten messages."""
        written = zip(capture.message_ids, capture.author_ids, strict=True) if capture.author_ids else ()
        gone = {message_id for message_id, author in written if author and self.is_forgotten(author, message_id)}
        return remove_withdrawn(capture, lambda message_id: message_id in gone or self.is_withdrawn(message_id))

    def _mask_turn(self, turn: Turn) -> Turn:
        return Turn(turn.speaker, mask_secrets(turn.text, secrets=self.mask, emails=self.mask_emails).text)

    def _report_masked(self, pair: CapturedPair, before: CapturedPair | None) -> None:
        """Report masked secrets, except those of messages that were archived before."""
        known = {} if before is None else _map_turns(before)
        said = zip(pair.message_ids, pair.turns, strict=True)
        kinds = sum((count_masks(turn.text) for each, turn in said if known.get(each) != turn), Counter[str]())
        if kinds:
            _log.warning("secrets_masked", conversation_id=pair.conversation_id, kinds=dict(kinds))
            self.masked(kinds)


def _check_capture(capture: Capture) -> Capture:
    """Return the capture. Raises ValueError if its parts do not match."""
    if len(capture.turns) != len(capture.message_ids):
        raise ValueError(f"it has {len(capture.turns)} turns and {len(capture.message_ids)} message ids")
    if capture.author_ids and len(capture.author_ids) != len(capture.message_ids):
        raise ValueError(f"it has {len(capture.message_ids)} message ids and {len(capture.author_ids)} authors")
    if capture.answered_at.tzinfo is None:
        raise ValueError(f"answered_at {capture.answered_at} has no time zone")
    return capture


def _map_turns(capture: Capture) -> dict[MessageId, Turn]:
    """Map a capture's messages to their turns; empty if they do not match, as in archives of other programs."""
    ids, turns = capture.message_ids, capture.turns
    return dict(zip(ids, turns, strict=True)) if len(ids) == len(turns) else {}


def _merge_captures(before: CapturedPair, capture: Capture, imported: bool) -> Capture:  # noqa: FBT001 - as in `_keep`
    """Join a capture with the pair before it. The newer text of a message wins; of an import, the archived one."""
    old, new = _map_turns(before), _map_turns(capture)
    known = new | old if imported else old | new
    ids = tuple(sorted(known, key=parse_position))
    authors = _map_authors(before) | _map_authors(capture)
    return Capture(
        conversation_id=before.conversation_id,
        turns=tuple(known[message_id] for message_id in ids),
        message_ids=ids,
        author_ids=tuple(authors.get(message_id, UserId("")) for message_id in ids) if authors else (),
        answered_at=max(capture.answered_at, before.answered_at),
        guild_id=capture.guild_id or before.guild_id,
        channel_id=capture.channel_id or before.channel_id,
        replaces=before.qa_id,
    )


def _map_authors(capture: Capture) -> dict[MessageId, UserId]:
    """Map a capture's messages to their known authors."""
    if not capture.author_ids:
        return {}
    return {each: author for each, author in zip(capture.message_ids, capture.author_ids, strict=True) if author}


class ImportCounts(Struct, frozen=True, kw_only=True):
    """The results of an import, in conversations."""

    archived: int = 0
    """Conversations that are new to the archive."""
    joined: int = 0
    """Conversations that were known in part before."""
    known: int = 0
    """Conversations that were known before, or withdrawn."""

    def __add__(self, other: ImportCounts) -> ImportCounts:
        return ImportCounts(**{each: getattr(self, each) + getattr(other, each) for each in self.__struct_fields__})

    @property
    def model_calls(self) -> int:
        """The most model calls for filing them. Each topic that changes costs a description besides."""
        # For a new conversation, a topic is chosen, and its blocks are looked at. A known one has its topic.
        return 2 * self.archived + self.joined


class ImportPlan(Struct, frozen=True, kw_only=True):
    """The results of a rehearsal."""

    captures: tuple[Capture, ...]
    """The captures to archive, one for each conversation, oldest answer first."""
    would: ImportCounts
    masked: Mapping[str, int] = {}
    """The numbers of secrets to mask, by kind."""


class RehearsalArchive:
    """An archive in memory on top of the real one, which it only reads."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.newest: dict[ConversationId, CapturedPair] = {}
        """The newest pair of each conversation that gained something."""
        self._conversations: dict[MessageId, dict[ConversationId, None]] = {}
        self._serial = 0

    def append(self, capture: Capture) -> CapturedPair:
        """Keep a pair in memory."""
        self._serial += 1
        timestamp = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=self._serial)
        pair = CapturedPair(qa_id=make_qa_id(timestamp), timestamp=timestamp, **structs.asdict(capture))
        self.newest[pair.conversation_id] = pair
        for message_id in pair.message_ids:
            self._conversations.setdefault(message_id, {})[pair.conversation_id] = None
        return pair

    def latest_capture(self, conversation_id: ConversationId) -> CapturedPair | None:
        """Return the newest pair of a conversation, rehearsed or real."""
        return self.newest.get(conversation_id) or self._archive.latest_capture(conversation_id)

    def find_conversations(self, message_id: MessageId) -> tuple[ConversationId, ...]:
        """Return the conversations of a message, the real ones first."""
        rehearsed = self._conversations.get(message_id, {})
        return tuple(dict.fromkeys((*self._archive.find_conversations(message_id), *rehearsed)))


async def plan_import(
    captures: Sequence[Capture], archive: Archive, rehearsal: RehearsalArchive, keeper: Archivist
) -> ImportPlan:
    """Plan an import: archive the captures, in their order, in memory. `keeper` writes into the `rehearsal`.

    Raises KnowledgeError if the archive cannot be read.
    """
    homes: dict[ConversationId, None] = {}
    for n, capture in enumerate(captures):
        report_progress("Comparing {total} conversations with the archive", n, len(captures))
        holder = await to_thread.run_sync(_find_holder, capture, archive)
        home = holder or keeper.choose_conversation(capture)
        homes[home] = None
        if holder is None:
            await keeper.archive_capture(_assign_conversation(capture, home), imported=True)
    names = dict(chain.from_iterable(map(iter_author_names, captures)))
    added = sorted(rehearsal.newest.values(), key=lambda pair: (pair.answered_at, pair.timestamp))
    joined = sum(archive.latest_capture(pair.conversation_id) is not None for pair in added)
    return ImportPlan(
        captures=tuple(_assign_conversation(pair, pair.conversation_id, names) for pair in added),
        would=ImportCounts(archived=len(added) - joined, joined=joined, known=len(homes) - len(added)),
    )


async def archive_imported(captures: Sequence[Capture], archive: Archive, keeper: Archivist) -> ImportCounts:
    """Archive rehearsed captures. A repetition archives nothing. Raises KnowledgeError."""
    counts = Counter[str]()
    for capture in captures:
        joins = archive.latest_capture(capture.conversation_id) is not None
        pair = await keeper.archive_capture(capture, imported=True)
        counts["known" if pair is None else "joined" if joins else "archived"] += 1
    return ImportCounts(**counts)


def _find_holder(capture: Capture, archive: Archive) -> ConversationId | None:
    """Return the conversation that already holds all of the capture; None without one.

    If conversations share messages, the home of a capture depends on the order of capturing, and an import has another
    order. Because of this check, a second import finds all conversations where the first one put them.
    """
    ids = set(capture.message_ids)
    for conversation in archive.find_conversations(capture.message_ids[0]):
        pair = archive.latest_capture(conversation)
        if pair is not None and ids.issubset(pair.message_ids):
            return conversation
    return None


def iter_author_names(capture: Capture) -> Iterator[tuple[UserId, tuple[str, ...]]]:
    """Yield a capture's known authors with their names."""
    return ((author, names) for author, names in zip(capture.author_ids, capture.author_names, strict=False) if author)


def _assign_conversation(
    capture: Capture, home: ConversationId, names: Mapping[UserId, tuple[str, ...]] | None = None
) -> Capture:
    author_names = tuple(names.get(each, ()) for each in capture.author_ids) if names else ()
    return copy_capture(capture, conversation_id=home, author_names=author_names, replaces=None)


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
