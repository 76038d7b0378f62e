"""Add captures to the archive, joined with the earlier versions of their conversations, and with secrets masked.

Deleted and forgotten messages are not archived again. Only `erase` rewrites the archive.

An import archives each conversation once, in its fullest version: each further version would cost a model call. So an
import is rehearsed first: the captures go through the same rules with an archive in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain

from anyio import Lock
from anyio.to_thread import run_sync
from msgspec import Struct, structs

from intern.core.errors import ConfigError
from intern.core.ids import ConversationId, MessageId, UserId, position_of
from intern.core.log import get_logger
from intern.core.progress import tell
from intern.core.records import Capture, CapturedPair, Turn
from intern.core.text.masking import mask_secrets
from intern.facts.segments import IsWithdrawn, is_whole, without_withdrawn
from intern.stores.archive import Archive, Erased
from intern.stores.blocks import qa_id_of

_log = get_logger(__name__)

_CALLS_FOR_NEW = 2  # a topic is chosen, and the topic's blocks are looked at
_CALLS_FOR_JOINED = 1  # the conversation has its topic already

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

IsForgotten = Callable[[UserId, MessageId], bool]
"""Whether a member asked to forget this message."""


class Archivist:
    """The one writer of the archive in this process."""

    def __init__(
        self,
        archive: Archive | Rehearsal,
        *,
        mask: bool,
        is_withdrawn: IsWithdrawn,
        is_forgotten: IsForgotten = lambda _user, _message: False,
        mask_emails: bool = False,
        masked: Callable[[Mapping[str, int]], object] = lambda _kinds: None,
    ) -> None:
        """Remember the parts. `masked` hears the kinds of masked secrets and their numbers, never the secrets."""
        self._archive = archive
        self._mask = mask
        self._mask_emails = mask_emails
        self._is_withdrawn = is_withdrawn
        self._is_forgotten = is_forgotten
        self._masked = masked
        self._writing = Lock()

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """Let nothing be archived meanwhile, so that a search of the archive is complete."""
        async with self._writing:
            yield

    async def erase(self, message_ids: Collection[MessageId]) -> Erased:
        """Delete messages from the archive. Raises KnowledgeError; a repetition continues."""
        async with self._writing:
            return await run_sync(self._archive.erase, message_ids)

    def home_of(self, capture: Capture) -> ConversationId:
        """Return the conversation of a capture: its own, unless another one has one of its messages."""
        known = list(chain.from_iterable(map(self._archive.conversations_of, capture.message_ids)))
        return capture.conversation_id if not known or capture.conversation_id in known else known[0]

    async def keep(self, capture: Capture, *, imported: bool = False) -> CapturedPair | None:
        """Archive a capture, and return the pair; None if the archive gains nothing by it. Raises KnowledgeError.

        A message that was captured before keeps its conversation, so a growing reply chain stays one conversation. The
        pair holds all captured messages of its conversation in time order, without the withdrawn and forgotten ones.
        The newer text of a message wins, so an edited message may come by itself. A conversation without a question or
        an answer is not archived. Raises ConfigError for an invalid capture: times without a zone, ids that would break
        the format, or turns, ids and authors that do not match.

        An export may be older than the archive, so with `imported` the archived text of a message wins. The caller has
        chosen the conversation before (`home_of`).
        """
        async with self._writing:
            try:
                return await run_sync(self._keep, _checked(capture), imported)
            except ValueError as error:
                raise ConfigError(
                    f"the capture of conversation {capture.conversation_id[:80]!r} cannot be archived: {error}"
                ) from error

    def _keep(self, capture: Capture, imported: bool) -> CapturedPair | None:  # noqa: FBT001 - run in a thread
        capture, masked = self._without_secrets(structs.replace(capture, author_names=()))
        home = capture.conversation_id if imported else self.home_of(capture)
        before = self._archive.latest_of(home)
        if before is not None and imported:
            capture = _with_texts_of(before, capture)
        joined = structs.replace(capture, conversation_id=home) if before is None else _union(before, capture)
        joined = self._left_of(joined)
        if not is_whole(joined.turns):
            return None
        if before is not None:
            held = self._left_of(before)
            if joined.message_ids == held.message_ids and joined.turns == held.turns:
                return None
        pair = self._archive.append(joined)
        self._tell(pair, before, masked)
        return pair

    def _left_of(self, capture: Capture) -> Capture:
        return _without_forgotten(without_withdrawn(capture, self._is_withdrawn), self._is_forgotten)

    def _without_secrets(self, capture: Capture) -> tuple[Capture, Mapping[MessageId, Mapping[str, int]]]:
        """Return the capture with secrets masked, and the kinds of secrets in each message."""
        if not self._mask and not self._mask_emails:
            return capture, {}
        masked = [mask_secrets(turn.text, secrets=self._mask, emails=self._mask_emails) for turn in capture.turns]
        turns = tuple(Turn(turn.speaker, found.text) for turn, found in zip(capture.turns, masked, strict=True))
        kinds = {message_id: found.kinds for message_id, found in zip(capture.message_ids, masked, strict=True)}
        return structs.replace(capture, turns=turns), kinds

    def _tell(
        self, pair: CapturedPair, before: CapturedPair | None, masked: Mapping[MessageId, Mapping[str, int]]
    ) -> None:
        """Report masked secrets, except those of messages that were archived before."""
        known: set[tuple[MessageId, Turn]] = set()
        if before is not None:
            known.update(zip(before.message_ids, before.turns, strict=False))
        kinds: Counter[str] = Counter()
        for message_id, turn in zip(pair.message_ids, pair.turns, strict=True):
            if (message_id, turn) not in known:
                kinds.update(masked.get(message_id, {}))
        if kinds:
            _log.warning("secrets_masked", conversation_id=pair.conversation_id, kinds=dict(kinds))
            self._masked(kinds)


def _checked(capture: Capture) -> Capture:
    """Return the capture. Raises ValueError if its parts do not match."""
    if len(capture.turns) != len(capture.message_ids):
        raise ValueError(f"it has {len(capture.turns)} turns and {len(capture.message_ids)} message ids")
    if capture.author_ids and len(capture.author_ids) != len(capture.message_ids):
        raise ValueError(f"it has {len(capture.message_ids)} message ids and {len(capture.author_ids)} authors")
    if capture.answered_at.tzinfo is None:
        raise ValueError(f"answered_at {capture.answered_at} has no time zone")
    return capture


def _with_texts_of(before: CapturedPair, capture: Capture) -> Capture:
    """Return the capture with the archived text of each message that was archived before."""
    if len(before.turns) != len(before.message_ids):
        return capture
    held = dict(zip(before.message_ids, before.turns, strict=True))
    turns = zip(capture.message_ids, capture.turns, strict=True)
    return structs.replace(capture, turns=tuple(held.get(message_id, turn) for message_id, turn in turns))


def _union(before: CapturedPair, capture: Capture) -> Capture:
    # Our archives match turns to ids. If another program's archive does not, the new capture wins.
    aligned = len(before.turns) == len(before.message_ids)
    known = dict(zip(before.message_ids, before.turns, strict=True)) if aligned else {}
    known.update(zip(capture.message_ids, capture.turns, strict=True))
    ids = tuple(sorted(known, key=position_of))
    authors = {**(_authors_of(before) if aligned else {}), **_authors_of(capture)}
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


def _authors_of(capture: Capture) -> dict[MessageId, UserId]:
    """Map its messages to their known authors."""
    if not capture.author_ids:
        return {}
    return {each: author for each, author in zip(capture.message_ids, capture.author_ids, strict=True) if author}


def _without_forgotten(capture: Capture, is_forgotten: IsForgotten) -> Capture:
    """Return the capture without the forgotten messages."""
    written = zip(capture.message_ids, capture.author_ids, strict=True) if capture.author_ids else ()
    gone = {message_id for message_id, author in written if author and is_forgotten(author, message_id)}
    return without_withdrawn(capture, gone.__contains__)


class Kept(Struct, frozen=True, kw_only=True):
    """The results of an import, in conversations."""

    archived: int = 0
    """New to the archive."""
    joined: int = 0
    """Known in part before."""
    known: int = 0
    """Known before, or withdrawn."""

    def __add__(self, other: Kept) -> Kept:
        return Kept(
            archived=self.archived + other.archived, joined=self.joined + other.joined, known=self.known + other.known
        )

    @property
    def model_calls(self) -> int:
        """The most model calls for filing them. Each topic that changes costs a description besides."""
        return _CALLS_FOR_NEW * self.archived + _CALLS_FOR_JOINED * self.joined


class Rehearsed(Struct, frozen=True, kw_only=True):
    """The results of a rehearsal."""

    captures: tuple[Capture, ...]
    """The captures to archive, one for each conversation, oldest answer first."""
    would: Kept
    masked: Mapping[str, int] = {}
    """How many secrets would be masked, by kind."""


class Rehearsal:
    """An archive in memory on top of the real one, which it only reads."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._newest: dict[ConversationId, CapturedPair] = {}
        self._conversations: dict[MessageId, dict[ConversationId, None]] = {}
        self._serial = 0

    def append(self, capture: Capture) -> CapturedPair:
        """Keep a pair in memory."""
        self._serial += 1
        timestamp = _EPOCH + timedelta(seconds=self._serial)
        pair = CapturedPair(
            qa_id=qa_id_of(timestamp),
            timestamp=timestamp,
            conversation_id=capture.conversation_id,
            turns=capture.turns,
            message_ids=capture.message_ids,
            author_ids=capture.author_ids,
            answered_at=capture.answered_at,
            guild_id=capture.guild_id,
            channel_id=capture.channel_id,
        )
        self._newest[pair.conversation_id] = pair
        for message_id in pair.message_ids:
            self._conversations.setdefault(message_id, {})[pair.conversation_id] = None
        return pair

    def latest_of(self, conversation_id: ConversationId) -> CapturedPair | None:
        """Return the newest pair of a conversation, rehearsed or real."""
        return self._newest.get(conversation_id) or self._archive.latest_of(conversation_id)

    def conversations_of(self, message_id: MessageId) -> tuple[ConversationId, ...]:
        """Return the conversations of a message, the real ones first."""
        rehearsed = self._conversations.get(message_id, {})
        return tuple(dict.fromkeys((*self._archive.conversations_of(message_id), *rehearsed)))

    def erase(self, message_ids: Collection[MessageId]) -> Erased:
        """Raise AssertionError: a rehearsal erases nothing."""
        raise AssertionError(f"a rehearsal was asked to erase {len(message_ids)} messages")

    def added(self) -> Sequence[CapturedPair]:
        """Return the newest pair of each conversation that gained something."""
        return tuple(self._newest.values())


async def rehearse(captures: Sequence[Capture], archive: Archive, rehearsal: Rehearsal, keeper: Archivist) -> Rehearsed:
    """Find out what the captures, in their order, would add to the archive. `keeper` writes into the `rehearsal`.

    Raises KnowledgeError where the archive cannot be read.
    """
    homes: dict[ConversationId, None] = {}
    for n, capture in enumerate(captures):
        tell("Comparing {total} conversations with the archive", n, len(captures))
        holder = await run_sync(_holder_of, capture, archive)
        home = holder or keeper.home_of(capture)
        homes[home] = None
        if holder is None:
            await keeper.keep(_with_home(capture, home), imported=True)
    names = dict(chain.from_iterable(map(names_of, captures)))
    added = sorted(rehearsal.added(), key=lambda pair: (pair.answered_at, pair.timestamp))
    joined = sum(archive.latest_of(pair.conversation_id) is not None for pair in added)
    return Rehearsed(
        captures=tuple(_with_home(pair, pair.conversation_id, names) for pair in added),
        would=Kept(archived=len(added) - joined, joined=joined, known=len(homes) - len(added)),
    )


async def keep_imported(captures: Sequence[Capture], archive: Archive, keeper: Archivist) -> Kept:
    """Archive rehearsed captures. A repetition archives nothing. Raises KnowledgeError."""
    counts: Mapping[str, int] = {"archived": 0, "joined": 0, "known": 0}
    for capture in captures:
        name = "archived" if archive.latest_of(capture.conversation_id) is None else "joined"
        pair = await keeper.keep(capture, imported=True)
        counts = {**counts, (name if pair else "known"): counts[name if pair else "known"] + 1}
    return Kept(**counts)


def _holder_of(capture: Capture, archive: Archive) -> ConversationId | None:
    """Return the conversation that already holds all of the capture; None without one.

    If conversations share messages, the home of a capture depends on the order of capturing, and an import has another
    order. Because of this check, a second import finds all conversations where the first one put them.
    """
    ids = set(capture.message_ids)
    for conversation in archive.conversations_of(capture.message_ids[0]):
        pair = archive.latest_of(conversation)
        if pair is not None and ids.issubset(pair.message_ids):
            return conversation
    return None


def names_of(capture: Capture) -> Iterator[tuple[UserId, tuple[str, ...]]]:
    """Yield its known authors with their names."""
    return ((author, names) for author, names in zip(capture.author_ids, capture.author_names, strict=False) if author)


def _with_home(
    capture: Capture, home: ConversationId, names: Mapping[UserId, tuple[str, ...]] | None = None
) -> Capture:
    return Capture(
        conversation_id=home,
        turns=capture.turns,
        message_ids=capture.message_ids,
        author_ids=capture.author_ids,
        author_names=tuple(names.get(each, ()) for each in capture.author_ids) if names else (),
        answered_at=capture.answered_at,
        guild_id=capture.guild_id,
        channel_id=capture.channel_id,
    )
