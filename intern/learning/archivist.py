"""Add captures to the archive, joined with the earlier versions of their conversations.

Secrets are masked, and mentions of people become their roles, so nothing that is learned holds the id of a member.
Deleted and forgotten messages are not archived again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain

from anyio import Lock, to_thread
from msgspec import structs

from intern.core import errors
from intern.core.captures import Capture, CapturedPair, Turn
from intern.core.ids import ConversationId, MessageId, UserId, parse_position
from intern.core.log import get_logger
from intern.core.text.masking import count_masks, mask_secrets
from intern.facts.segments import IsWithdrawn, has_user_and_team, remove_person_ids, remove_withdrawn
from intern.learning.rehearsal_archive import RehearsalArchive
from intern.stores.archive import Archive

_log = get_logger(__name__)


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


def iter_author_names(capture: Capture) -> Iterator[tuple[UserId, tuple[str, ...]]]:
    """Yield a capture's known authors with their names."""
    return ((author, names) for author, names in zip(capture.author_ids, capture.author_names, strict=False) if author)
