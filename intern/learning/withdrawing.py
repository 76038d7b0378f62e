"""Deleted and forgotten messages, withdrawn from topics."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from functools import partial
from itertools import chain
from typing import NamedTuple

from msgspec import structs

from intern.core import decisions
from intern.core.ids import MessageId, QAId, TopicName
from intern.core.log import get_logger
from intern.learning import prompts
from intern.learning.filing import WITHDRAWN
from intern.stores.archive import Archive
from intern.stores.qa_ids import bare_message_id, qa_id_time
from intern.stores.tables.knowledge import KnowledgeChange, KnowledgeStore

_log = get_logger(__name__)
_AS_ARCHIVED = "a message was withdrawn or forgotten, so an edit of it counts no more"


class MessageRemoval(NamedTuple):
    """The effects of a withdrawal or a request to forget on the topics."""

    decision: decisions.MessagesWithdrawn | decisions.MessagesForgotten
    topics: tuple[TopicName, ...]
    """The changed topics."""


async def withdraw_messages(
    knowledge: KnowledgeStore, archive: Archive, message_ids: Collection[MessageId], now: datetime
) -> MessageRemoval | None:
    """Withdraw messages that were deleted; None if all of them were withdrawn before. Raises KnowledgeError.

    No pair that is filed or archived later has them, and no block holds them. Call it at any time.
    """
    fresh = tuple(each for each in dict.fromkeys(message_ids) if not knowledge.is_withdrawn(each))
    if not fresh:
        return None
    decision = decisions.MessagesWithdrawn(message_ids=fresh, reason="deleted on Discord", at=now)
    cleared = await knowledge.change(partial(remove_messages, knowledge, archive, decision, fresh))
    _log.info("messages_withdrawn", message_ids=list(fresh), topics=list(cleared.topics))
    return cleared


def remove_messages(
    knowledge: KnowledgeStore,
    archive: Archive,
    decision: decisions.MessagesWithdrawn | decisions.MessagesForgotten,
    message_ids: Collection[MessageId],
    change: KnowledgeChange,
) -> MessageRemoval:
    """Log a withdrawal or a tombstone, and take the messages out of all blocks, drafted ones, too.

    A block without a question or an answer is removed.
    """
    gone = frozenset(map(bare_message_id, message_ids))
    change.decide(decision)
    conversations = dict.fromkeys(chain.from_iterable(map(archive.find_conversations, message_ids)))
    topics: dict[TopicName, None] = {}
    for library in (change, drafted := change.as_draft()):
        doomed: list[QAId] = []
        for name, qa_id in [place for each in conversations for place in library.find_conversation_pairs(each)]:
            # Where the archive lacks this block's pair, it may have any message of its conversation.
            pair = archive.get(qa_id)
            if pair and gone.isdisjoint(map(bare_message_id, pair.message_ids)):
                continue
            before = pair and prompts.strip_withdrawn(pair, knowledge.is_withdrawn)
            left = before and prompts.strip_withdrawn(before, lambda each: bare_message_id(each) in gone)
            [block] = [block for block in library.read_topic(name) if qa_id_time(block.qa_id) == qa_id_time(qa_id)]
            if left is None:
                doomed.append(qa_id)
            elif block.turns != left.turns:
                library.file_blocks(name, structs.replace(block, turns=left.turns))
                if library is change and before and block.turns != before.turns:
                    # The person's words are gone; once the message is erased, only this record shows that.
                    change.decide(decisions.PairFiled(qa_id=qa_id, topic=name, at=decision.at, reason=_AS_ARCHIVED))
            else:
                continue
            if library is not drafted:
                topics[name] = None
        library.remove_blocks(doomed)
        if library is not drafted:
            reason = (
                "its question or its answer was forgotten"
                if isinstance(decision, decisions.MessagesForgotten)
                else WITHDRAWN
            )
            change.decide(*(decisions.PairRemoved(qa_id=qa_id, reason=reason, at=decision.at) for qa_id in doomed))
    return MessageRemoval(decision, tuple(topics))
