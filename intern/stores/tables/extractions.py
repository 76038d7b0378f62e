"""The facts and nuggets learned from each conversation.

All that a conversation taught is written, replaced, withdrawn or forgotten at once, in one transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from intern.core import knowledge
from intern.core.ids import ConversationId, FactId, MessageId, NuggetId
from intern.stores.database import Transaction
from intern.stores.qa_ids import bare_message_id
from intern.stores.tables import facts
from intern.stores.tables.nuggets import replace_nuggets
from intern.stores.tables.positions import read_position, save_position
from intern.stores.tables.store import IN, OURS, Store, Table, bare_id_array, json_items, reads, text_array, writes

_HOLDING = (
    f"select id from conversations {OURS} and exists"
    f" (select 1 from {json_items('message_ids')} as held where value {IN})"
)


class ExtractionEntry(knowledge.ExtractionCounts, frozen=True, kw_only=True):
    """A conversation in the log. With an `error` it could not be read; without facts it taught nothing."""

    conversation_id: ConversationId
    content_hash: str
    """The hash of the conversation in its last version that was read, or could not be."""
    extracted_at: datetime
    model_used: str
    facts_secret: int = 0
    """The number of facts that were not kept because they look secret."""
    attempts: int = 0
    """The number of attempts that failed in a row, with this content."""
    next_at: datetime | None = None
    """When to try again; None if never."""
    error: str | None = None


_KIND = knowledge.DistilledConversation
_CONVERSATIONS = Table("conversations", _KIND, millis=("last_message_at",), json=("message_ids",))
_OF_ID = f"{OURS} and id = ?"
_LOG = Table("extraction_log", ExtractionEntry, millis=("extracted_at", "next_at"))


class ExtractionLog(Store):
    """The conversations that were read, their results, and positions."""

    @writes
    def apply(self, db: Transaction, outcome: knowledge.ExtractionResult) -> knowledge.AppliedExtraction:
        """Replace everything learned from a conversation with this outcome.

        Facts that it alone had said are retired. Decisions that no longer hold are refused, and reported.
        """
        conversation, now = outcome.conversation, outcome.extracted_at
        _save_conversation(db, conversation)
        before = facts.withdraw_occurrences(db, conversation.id)
        facts.recount_occurrences(db, before)
        repeated = {each.occurrence.fact_id for each in outcome.facts if isinstance(each, knowledge.RepeatedFact)}
        # First the facts that are no longer said, since the facts that they replaced may be replaced again now.
        facts.retire_unsaid(db, (each for each in before if each not in repeated), now)
        reasons: list[knowledge.FactRefusal | None] = [
            _apply_decision(db, conversation.agent_id, each, now) for each in outcome.facts
        ]
        facts.clean_up_facts(db, before, now)
        facts.prune_occurrences(db, conversation.id)
        replace_nuggets(db, conversation.id, outcome.nuggets)
        kinds = [type(each) for each, reason in zip(outcome.facts, reasons, strict=True) if reason is None]
        learned: dict[str, Any] = {
            "facts_extracted": kinds.count(knowledge.NewFact),
            "facts_updated": kinds.count(knowledge.UpdatedFact),
            "facts_deduplicated": kinds.count(knowledge.RepeatedFact),
            "nuggets_extracted": len(outcome.nuggets),
        }
        entry = ExtractionEntry(
            conversation_id=conversation.id,
            content_hash=conversation.content_hash,
            extracted_at=now,
            model_used=outcome.model_used,
            facts_secret=reasons.count("secret"),
            **learned,
        )
        _write_entry(db, entry, _LOG.names)
        return knowledge.AppliedExtraction(refused=tuple(reason for reason in reasons if reason is not None), **learned)

    @writes
    def log_failure(
        self,
        db: Transaction,
        conversation: knowledge.DistilledConversation,
        *,
        model_used: str,
        error: str,
        next_at: datetime | None,
    ) -> None:
        """Log that a conversation could not be read. Earlier facts and nuggets stay until it can be."""
        before = _read_entry(db, conversation.id)
        again = before is not None and before.error is not None and before.content_hash == conversation.content_hash
        _save_conversation(db, conversation)
        entry = ExtractionEntry(
            conversation_id=conversation.id,
            content_hash=conversation.content_hash,
            extracted_at=self.clock.now(),
            model_used=model_used,
            attempts=(before.attempts if before is not None and again else 0) + 1,
            next_at=next_at,
            error=error,
        )
        # The counts remain those of the last success.
        _write_entry(db, entry, ("content_hash", "extracted_at", "model_used", "attempts", "next_at", "error"))

    @reads
    def read_entry(self, db: Transaction, conversation_id: ConversationId) -> ExtractionEntry | None:
        """Return the log's entry about a conversation; None where it was never read, or was withdrawn."""
        return _read_entry(db, conversation_id)

    @reads
    def list_entries(self, db: Transaction) -> tuple[ExtractionEntry, ...]:
        """Return the whole log, oldest first."""
        return _LOG.all(db, f"{OURS} order by extracted_at, conversation_id")

    @reads
    def list_failed(self, db: Transaction) -> tuple[ExtractionEntry, ...]:
        """Return the entries of captures that are to be tried again, in the order in which they are due."""
        captured = f"select id from conversations {OURS} and origin = 'capture'"
        return _LOG.all(
            db,
            f"{OURS} and error is not null and next_at is not null"
            f" and conversation_id in ({captured}) order by next_at, conversation_id",
        )

    @reads
    def read_conversation(
        self, db: Transaction, conversation_id: ConversationId
    ) -> knowledge.DistilledConversation | None:
        """Return a conversation as it was read last, with the ids of all messages it ever had; None if it was not."""
        return _CONVERSATIONS.first(db, f"{_OF_ID} and is_withdrawn = 0", (conversation_id,))

    async def withdraw(self, conversation_ids: Collection[ConversationId]) -> None:
        """Withdraw all that was learned from these conversations. Facts that only they had said go."""
        if conversation_ids:
            await self._withdraw(conversation_ids)

    @writes
    def _withdraw(self, db: Transaction, conversation_ids: Collection[ConversationId]) -> None:
        for conversation_id in conversation_ids:
            replace_nuggets(db, conversation_id, ())
            said = facts.withdraw_occurrences(db, conversation_id)
            facts.prune_occurrences(db, conversation_id)
            facts.clean_up_facts(db, said, self.clock.now())
            db.run(f"delete from extraction_log {OURS} and conversation_id = ?", (conversation_id,))
            db.run(f"update conversations set is_withdrawn = 1 {_OF_ID}", (conversation_id,))

    @writes
    def forget(self, db: Transaction, message_ids: Collection[MessageId]) -> None:
        """Delete conversations that hold one of these messages, and the facts that no other conversation says.

        The rest of such a conversation counts as never read, and is due until `clear_due` is called: a follower of the
        decisions may have passed it, and would not come back.
        """
        now = self.clock.now()
        conversations = db.texts(_HOLDING, (bare_id_array(message_ids),))
        said = facts.delete_occurrences(db, conversations)
        facts.clean_up_facts(db, said, now)
        facts.recompute_beliefs(db, said)
        db.run(
            "insert into extractions_due (community, conversation_id) select community, id from conversations"
            f" {OURS} and id {IN} and origin = 'capture' on conflict do nothing",
            (text_array(conversations),),
        )
        for table in ("nuggets", "extraction_log"):
            db.run(f"delete from {table} {OURS} and conversation_id {IN}", (text_array(conversations),))
        db.run(f"delete from conversations {OURS} and id {IN}", (text_array(conversations),))

    @reads
    def find_distilled(self, db: Transaction, message_ids: Collection[MessageId]) -> knowledge.AffectedKnowledge:
        """Return the nuggets and facts from conversations with these messages, and the facts that those replaced."""
        held = f"{OURS} and conversation_id in ({_HOLDING})"
        said = f"select fact_id from fact_occurrences {held}"
        replaced = f"select supersedes from facts {OURS} and supersedes is not null and id in ({said})"
        gone = (bare_id_array(message_ids),)
        nuggets = db.texts(f"select id from nuggets {held}", gone)
        known = dict.fromkeys(db.texts(said, gone) + db.texts(replaced, gone))
        return knowledge.AffectedKnowledge(nuggets=tuple(map(NuggetId, nuggets)), facts=tuple(map(FactId, known)))

    async def next_due(self) -> ConversationId | None:
        """Return the first conversation that became due, independent of the decisions."""
        due = await self.db.texts(f"select conversation_id from extractions_due {OURS} order by rid limit 1")
        return ConversationId(due[0]) if due else None

    async def clear_due(self, conversation_id: ConversationId) -> None:
        """Note that a conversation was looked at; it is not due any more."""
        where = f"from extractions_due {OURS} and conversation_id = ?"
        if await self.db.row(f"select 1 {where}", (conversation_id,)) is not None:
            await self.db.run(f"delete {where}", (conversation_id,))

    async def find_conversations(self, message_ids: Collection[MessageId]) -> tuple[ConversationId, ...]:
        """Return the conversations that hold, or once held, one of these messages."""
        found = await self.db.texts(f"{_HOLDING} order by rid", (bare_id_array(message_ids),))
        return tuple(map(ConversationId, found))

    async def read_position(self, follower: str) -> str | None:
        """Return how far a follower has read; None where it has not begun."""
        return await self.db.read(lambda db: read_position(db, follower))

    async def save_position(self, follower: str, position: str) -> None:
        """Keep how far a follower has read."""
        await self.db.write(lambda db: save_position(db, follower, position))


def _apply_decision(
    db: Transaction, agent_id: str, decision: knowledge.FactDecision, now: datetime
) -> knowledge.FactRefusal | None:
    """Store a decision about a fact; return why not, where it is refused or no longer holds."""
    match decision:
        case knowledge.RefusedFact(reason=reason, gone=gone):
            if gone is not None:
                facts.remove_fact(db, gone, now)
            return reason
        case knowledge.NewFact(fact=fact, occurrence=occurrence):
            facts.add_fact(db, fact, occurrence)
        case knowledge.UpdatedFact(fact=fact, occurrence=occurrence):
            if not facts.add_update(db, fact, occurrence):
                return "retired_id"
        case knowledge.RepeatedFact():
            return _add_repetition(db, agent_id, decision)
    return None


def _add_repetition(db: Transaction, agent_id: str, decision: knowledge.RepeatedFact) -> knowledge.FactRefusal | None:
    occurrence = decision.occurrence
    known = facts.find_fact(db, occurrence.fact_id)
    if known is None:
        return "unknown_id"
    if known.agent_id != agent_id:
        return "other_agent"
    if not knowledge.can_accept_statement(known, occurrence.timestamp):
        return "retired_id"
    facts.add_occurrence(db, occurrence)
    if decision.visibility is not None:
        facts.set_visibility(db, known.id, decision.visibility)
    return None


def _save_conversation(db: Transaction, conversation: knowledge.DistilledConversation) -> None:
    """Save a conversation, with the ids of messages that it once had: facts and nuggets may repeat their words."""
    known = _CONVERSATIONS.first(db, _OF_ID, (conversation.id,))
    ids = dict.fromkeys([*(known.message_ids if known else ()), *map(bare_message_id, conversation.message_ids)])
    kept = replace(conversation, message_ids=tuple(map(MessageId, ids)))
    db.run(f"{_CONVERSATIONS.upsert('id')}, is_withdrawn = 0", _CONVERSATIONS.to_row(kept))


def _write_entry(db: Transaction, entry: ExtractionEntry, names: Sequence[str]) -> None:
    changed = ", ".join(f"{each} = excluded.{each}" for each in names)
    db.run(f"{_LOG.insert} on conflict (community, conversation_id) do update set {changed}", _LOG.to_row(entry))


def _read_entry(db: Transaction, conversation_id: ConversationId) -> ExtractionEntry | None:
    return _LOG.first(db, f"{OURS} and conversation_id = ?", (conversation_id,))
