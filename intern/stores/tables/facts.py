"""Facts: each with every conversation that said so, and in a chain with the fact that it replaced.

A fact that a newer one replaced or an operator retired stays; one that no conversation says any more goes. Of a chain
at most one fact is active, and then its newest. Past beliefs can be queried by time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
from msgspec import Struct

from intern.core.ids import ConversationId, FactId
from intern.core.knowledge import (
    UNSAID,
    AffectedKnowledge,
    DistilledConversation,
    Fact,
    FactCategory,
    FactOccurrence,
    KnownFacts,
    Visibility,
    is_retired_by_operator,
)
from intern.core.text.words import normalise_wording
from intern.stores.database import Transaction, Value
from intern.stores.search_file.word_matches import Match
from intern.stores.tables.store import (
    BEGINS,
    IN,
    NO_LIMIT,
    OURS,
    Store,
    Table,
    from_millis,
    join_conditions,
    json_array,
    prefix_values,
    reads,
    sanitize_text,
    text_array,
    to_millis,
    writes,
)

_FACTS = Table("facts", Fact, millis=("first_seen_at", "last_seen_at", "retired_at"))
_OCCURRENCES = Table("fact_occurrences", FactOccurrence, millis=("timestamp",))
_EVER_SAID = f"select fact_id from fact_occurrences {OURS} and conversation_id = ?"
_SAID = f"{_EVER_SAID} and is_withdrawn = 0"
_RETIRED = f"is_active = 0 and retired_why not in ('', '{UNSAID}')"
_RETIRED_OF = f"select id from facts {OURS} and {_RETIRED} and id in ({_EVER_SAID})"
_BELIEVED = f"id in (select fact_id from fact_beliefs {OURS} and since <= ? and (until is null or until > ?))"
_OF_ID = f"{OURS} and id = ?"
_OF_FACT = f"{OURS} and fact_id = ?"
# The newest facts first; of facts said in the same millisecond, the older first.
_NEWEST = "order by last_seen_at desc, rid desc"
_WHOLE_CHAIN = f"""
    with recursive
        older (id) as (
            select id from facts {_OF_ID}
            union select supersedes from facts join older using (id)
            where community = :community and supersedes is not null
        ),
        chain (id) as (
            select id from older
            union select facts.id from facts join chain on facts.supersedes = chain.id where community = :community
        )
    {_FACTS.select} where community = :community and id in (select id from chain)
"""


class FactFilter(Struct, frozen=True, kw_only=True):
    """A filter of facts; a field that is None lets all pass."""

    agent_id: str | None = None
    category: FactCategory | None = None
    active: bool | None = True
    as_of: datetime | None = None
    """Facts believed at that time, whether or not they still are: `active` is ignored."""
    secret: bool = False
    """Secret ones, too."""


class FactState(NamedTuple):
    """The part of a fact that can change."""

    is_active: bool
    visibility: Visibility
    last_seen_at: datetime


class FactChainLink(Struct, frozen=True, kw_only=True):
    """A fact in its chain, and where it was said, oldest first."""

    fact: Fact
    occurrences: tuple[FactOccurrence, ...]


class FactStore(Store):
    """All facts. `ExtractionLog` writes the facts of whole conversations."""

    @reads
    def all(self, db: Transaction, wanted: FactFilter, limit: int = NO_LIMIT) -> tuple[Fact, ...]:
        """Return facts, the last said first."""
        where, values = _build_conditions(wanted)
        return _FACTS.all(db, f"{OURS} and {where} {_NEWEST} limit ?", (*values, limit))

    @reads
    def count(self, db: Transaction, wanted: FactFilter) -> int:
        """Return how many facts there are."""
        where, values = _build_conditions(wanted)
        return db.number(f"select count(*) from facts {OURS} and {where}", values)

    @reads
    def read_states(self, db: Transaction) -> Mapping[FactId, FactState]:
        """Return the state of every fact that may be found: none is secret, each is said somewhere."""
        statement = (
            "select id, is_active, visibility, last_seen_at from facts"
            f" {OURS} and visibility <> 'secret' and occurrence_count > 0"
        )
        found = msgspec.convert(db.rows(statement), list[tuple[FactId, int, Visibility, int]])
        return {each: FactState(bool(active), visible, from_millis(seen)) for each, active, visible, seen in found}

    @reads
    def by_ids(self, db: Transaction, ids: Collection[FactId]) -> tuple[Fact, ...]:
        """Return those of these that exist, active or not, secret or not."""
        return _FACTS.all(db, f"{OURS} and id {IN} {_NEWEST}", (text_array(ids),))

    @reads
    def find_by_prefix(self, db: Transaction, prefix: str, *, secret: bool = False) -> tuple[Fact, ...]:
        """Return the facts, active or not, whose id begins with `prefix`, by id."""
        where, values = _build_conditions(FactFilter(active=None, secret=secret))
        return _FACTS.all(db, f"{OURS} and {where} and {BEGINS} order by id", (*values, *prefix_values(prefix)))

    @reads
    def read_for_conversation(self, db: Transaction, conversation_id: ConversationId) -> tuple[Fact, ...]:
        """Return all facts that a conversation says now, active or not, secret or not."""
        return _FACTS.all(db, f"{OURS} and id in ({_SAID}) {_NEWEST}", (conversation_id,))

    @reads
    def find_retired(self, db: Transaction, conversation_id: ConversationId) -> tuple[Fact, ...]:
        """Return facts that a conversation says or once said, and that an operator retired; none of them secret."""
        rest = f"{OURS} and id in ({_RETIRED_OF}) and visibility <> 'secret' {_NEWEST}"
        return _FACTS.all(db, rest, (conversation_id,))

    async def apply_rules(self, verdict: Callable[[Fact], Fact | None]) -> AffectedKnowledge:
        """Apply changed rules to all facts in one transaction; return the facts that differed.

        `verdict` returns None to remove a fact. A fact that is no longer secret loses the snippets beside it.
        """
        judged = await self._find_changed(verdict)
        return await self._apply_verdicts(judged) if judged else AffectedKnowledge()

    @reads
    def _find_changed(self, db: Transaction, verdict: Callable[[Fact], Fact | None]) -> list[tuple[Fact, Fact | None]]:
        judged = [(fact, verdict(fact)) for fact in _FACTS.all(db, OURS)]
        return [(fact, said) for fact, said in judged if said is None or _changeable(fact) != _changeable(said)]

    @writes
    def _apply_verdicts(self, db: Transaction, judged: Iterable[tuple[Fact, Fact | None]]) -> AffectedKnowledge:
        touched: list[FactId] = []
        for fact, said in judged:
            touched += remove_fact(db, fact.id, self.clock.now()) if said is None else _apply_verdict(db, said)
        return AffectedKnowledge(facts=tuple(dict.fromkeys(touched)))

    @reads
    def search_facts(
        self, db: Transaction, match: Match | None, wanted: FactFilter, limit: int, *, holding: Sequence[str] = ()
    ) -> tuple[Fact, ...]:
        """Return facts that match, best first; then those that hold one of `holding`, for scripts without spaces."""
        where, values = _build_conditions(wanted)
        facts = list[Fact]()
        if match is not None:
            statement = (
                f"select {_FACTS.columns} from facts join (select rowid as n, rank from facts_fts(?)) as hit on n = rid"
                f" {OURS} and {where} order by rank, last_seen_at desc, rid desc limit ?"
            )
            facts += map(_FACTS.from_row, db.rows(statement, (match, *values, limit)))
        if holding:
            inside = "exists (select 1 from json_each(?) where instr(content || ' ' || summary, value) > 0)"
            rest = f"{OURS} and {where} and {inside} {_NEWEST} limit ?"
            facts += _FACTS.all(db, rest, (*values, json_array(holding), limit))
        return tuple({fact.id: fact for fact in facts}.values())[:limit]

    @reads
    def read_chain(self, db: Transaction, fact_id: FactId) -> tuple[FactChainLink, ...]:
        """Return the whole chain of a fact, oldest first, with where each was said; empty for an unknown fact."""
        return tuple(
            FactChainLink(
                fact=fact, occurrences=_OCCURRENCES.all(db, f"{_OF_FACT} order by timestamp, rid", (fact.id,))
            )
            for fact in _read_facts_of_chain(db, fact_id)
        )

    @reads
    def read_known_facts(
        self, db: Transaction, conversation: DistilledConversation, contents: Iterable[str], ids: Iterable[str] = ()
    ) -> KnownFacts:
        """Return the facts needed to decide about proposals with these contents that name facts by these ids."""
        wordings, named = text_array(map(normalise_wording, contents)), text_array(ids)
        here = conversation.id
        before = f"select supersedes from facts {OURS} and id in ({_SAID})"
        rest = (
            f"{OURS} and (id in ({_SAID}) or id in ({before}) or id in ({_RETIRED_OF})"
            f" or id {IN} or (agent_id = ? and wording {IN})) order by rid"
        )
        elsewhere = f"select fact_id from fact_occurrences {OURS} and conversation_id <> ? and is_withdrawn = 0"
        return KnownFacts(
            facts=_FACTS.all(db, rest, (here, here, here, named, conversation.agent_id, wordings)),
            only_here=frozenset(_read_fact_ids(db, f"{_SAID} except {elsewhere}", (here, here))),
            retired_here=frozenset(_read_fact_ids(db, _RETIRED_OF, (here,))),
        )

    @writes
    def retire(self, db: Transaction, fact_id: FactId, why: str) -> Fact:
        """Mark a fact as outdated. A fact that is retired already stays unchanged.

        The older fact that it replaced is not restored. Raises LookupError where there is no such fact.
        """
        fact = find_fact(db, fact_id)
        if fact is None:
            raise LookupError(f"there is no fact {fact_id}")
        if fact.is_active:
            _end_belief(db, fact.id, self.clock.now(), why.strip() or "retired by the operator")
            recompute_beliefs(db, (fact.id,))
        return find_fact(db, fact_id) or fact


# From here on: steps of a transaction, for `ExtractionLog`, too.


def find_fact(db: Transaction, fact_id: FactId) -> Fact | None:
    """Return a fact by its whole id."""
    return _FACTS.first(db, _OF_ID, (fact_id,))


def add_fact(db: Transaction, fact: Fact, occurrence: FactOccurrence) -> None:
    """Add a fact that is believed from the time of its occurrence on."""
    values = (*_FACTS.to_row(fact), normalise_wording(sanitize_text(fact.content)))
    db.run(
        f"insert into facts (community, {_FACTS.columns}, wording) values (:community, {', '.join('?' * len(values))})",
        values,
    )
    add_occurrence(db, occurrence)


def add_update(db: Transaction, fact: Fact, occurrence: FactOccurrence) -> bool:
    """Add a fact that replaces another; do nothing and return False unless that one is active, older and of here."""
    old = find_fact(db, fact.supersedes) if fact.supersedes is not None else None
    if old is None or not old.is_active or old.agent_id != fact.agent_id:
        return False
    if not (old.first_seen_at < fact.first_seen_at and old.last_seen_at <= fact.first_seen_at):
        return False
    _end_belief(db, old.id, fact.first_seen_at, "")
    add_fact(db, fact, occurrence)
    return True


def add_occurrence(db: Transaction, occurrence: FactOccurrence) -> None:
    """Add an occurrence. A fact is believed since its first occurrence after those of the fact that it replaced."""
    values = (*_OCCURRENCES.to_row(occurrence), to_millis(occurrence.timestamp))
    db.run(
        f"insert into fact_occurrences (community, {_OCCURRENCES.columns}, first_at)"
        f" values (:community, {', '.join('?' * len(values))})",
        values,
    )
    there = (occurrence.fact_id, occurrence.conversation_id)
    where = f"{_OF_FACT} and conversation_id = ?"
    db.run(
        f"update fact_occurrences set first_at = (select min(first_at) from fact_occurrences {where}) {where}",
        (*there, *there),
    )
    recount_occurrences(db, (occurrence.fact_id,))
    recompute_beliefs(db, (occurrence.fact_id,))


def withdraw_occurrences(db: Transaction, conversation_id: ConversationId) -> tuple[FactId, ...]:
    """Withdraw all facts that a conversation said; return them."""
    return _read_fact_ids(
        db,
        "update fact_occurrences set is_withdrawn = 1, context_snippet = ''"
        f" {OURS} and conversation_id = ? and is_withdrawn = 0 returning fact_id",
        (conversation_id,),
    )


def prune_occurrences(db: Transaction, conversation_id: ConversationId) -> None:
    """Keep one withdrawn occurrence for each fact, and none of a fact that the conversation says again."""
    taken_back = f"from fact_occurrences {OURS} and conversation_id = ? and is_withdrawn = 1"
    db.run(
        f"delete {taken_back} and (rid not in (select min(rid) {taken_back} group by fact_id) or fact_id in ({_SAID}))",
        (conversation_id,) * 3,
    )


def delete_occurrences(db: Transaction, conversation_ids: Sequence[str]) -> tuple[FactId, ...]:
    """Delete all occurrences in these conversations; return their facts."""
    statement = f"delete from fact_occurrences {OURS} and conversation_id {IN} returning fact_id"
    return _read_fact_ids(db, statement, (text_array(conversation_ids),))


def retire_unsaid(db: Transaction, fact_ids: Iterable[FactId], now: datetime) -> None:
    """Retire those of these facts that no conversation says any more, and restore the facts that they replaced.

    Their chains close behind them.
    """
    for fact_id in fact_ids:
        fact = find_fact(db, fact_id)
        if fact is None or _is_said(db, fact_id):
            continue
        after = _remove_from_chain(db, fact)
        if fact.is_active:
            _end_belief(db, fact.id, now, UNSAID)
            _restore_fact(db, fact.supersedes)
        elif not fact.retired_why:  # a fact that stays has replaced it
            db.run(f"update facts set retired_why = ? {_OF_ID}", (UNSAID, fact.id))
        recompute_beliefs(db, [each for each in (fact.id, fact.supersedes, after) if each is not None])


def delete_unsaid(db: Transaction, fact_ids: Iterable[FactId]) -> None:
    """Delete those of these facts that no conversation says any more. Call `retire_unsaid` first.

    A fact that an operator retired stays until all conversations that ever said it are forgotten: read again in other
    words, it would come back.
    """
    for fact_id in dict.fromkeys(fact_ids):
        fact = find_fact(db, fact_id)
        if fact is None or _is_said(db, fact_id):
            continue
        ever = db.row(f"select 1 from fact_occurrences {_OF_FACT}", (fact_id,)) is not None
        if not (ever and is_retired_by_operator(fact)):
            db.run(f"delete from fact_occurrences {_OF_FACT}", (fact_id,))
            db.run(f"delete from fact_beliefs {_OF_FACT}", (fact_id,))
            db.run(f"delete from facts {_OF_ID}", (fact_id,))


def clean_up_facts(db: Transaction, fact_ids: Collection[FactId], now: datetime) -> None:
    """Retire and delete those of these facts that no conversation says any more, and recount the others."""
    retire_unsaid(db, fact_ids, now)
    delete_unsaid(db, fact_ids)
    recount_occurrences(db, fact_ids)


def remove_fact(db: Transaction, fact_id: FactId, now: datetime) -> tuple[FactId, ...]:
    """Delete a fact and its occurrences, and close its chain; return the changed facts."""
    fact = find_fact(db, fact_id)
    if fact is None:
        return ()
    db.run(f"delete from fact_occurrences {_OF_FACT}", (fact_id,))
    retire_unsaid(db, (fact_id,), now)
    delete_unsaid(db, (fact_id,))
    return tuple(each for each in (fact_id, fact.supersedes) if each is not None)


def set_visibility(db: Transaction, fact_id: FactId, visibility: Visibility) -> None:
    """Set who may read a fact."""
    db.run(f"update facts set visibility = ? {_OF_ID}", (visibility, fact_id))


def recompute_beliefs(db: Transaction, fact_ids: Iterable[FactId]) -> None:
    """Recompute since when, and until when, each fact in the chains of these was believed.

    It follows from the stored data alone: from the first time that a conversation said it after the fact that it
    replaced, until it was replaced itself, or retired. So nothing that was forgotten shows in it.
    """
    dated: set[FactId] = set()
    for fact_id in fact_ids:
        if fact_id not in dated:
            chain = _read_facts_of_chain(db, fact_id)
            dated.update(each.id for each in chain)
            _recompute_chain(db, chain)


def _recompute_chain(db: Transaction, chain: Sequence[Fact]) -> None:
    begun = list[int]()
    for fact in chain:
        said = db.texts(f"select first_at from fact_occurrences {_OF_FACT}", (fact.id,))
        times = [*map(int, said)] or [to_millis(fact.first_seen_at)]
        begun.append(min((time for time in times if not begun or time > begun[-1]), default=begun[-1] if begun else 0))
    for n, fact in enumerate(chain):
        last = n == len(chain) - 1
        ended = to_millis(fact.retired_at) if fact.retired_at is not None else None
        until = (max(ended, begun[n]) if ended is not None else None) if last else begun[n + 1]
        db.run(
            "insert into fact_beliefs (community, fact_id, since, until) values (:community, ?, ?, ?)"
            " on conflict (community, fact_id) do update set since = excluded.since, until = excluded.until",
            (fact.id, begun[n], until),
        )
        if not last:
            db.run(f"update facts set retired_at = ? {_OF_ID}", (until, fact.id))


def _changeable(fact: Fact) -> tuple[str, ...]:
    return fact.visibility, fact.content, fact.summary


def _apply_verdict(db: Transaction, said: Fact) -> tuple[FactId, ...]:
    was = find_fact(db, said.id)
    if was is None:
        return ()
    if was.visibility == "secret" != said.visibility:
        db.run(f"update fact_occurrences set context_snippet = '' {_OF_FACT}", (said.id,))
    content, summary = sanitize_text(said.content), sanitize_text(said.summary)
    db.run(
        f"update facts set visibility = ?, content = ?, summary = ?, wording = ? {_OF_ID}",
        (said.visibility, content, summary, normalise_wording(content), said.id),
    )
    return (said.id,)


def recount_occurrences(db: Transaction, fact_ids: Iterable[FactId]) -> None:
    """Set counts and times of facts from their occurrences; a fact without any keeps its times."""
    db.run_each(
        "update facts set (occurrence_count, first_seen_at, last_seen_at) ="
        " (select count(*), coalesce(min(timestamp), first_seen_at), coalesce(max(timestamp), last_seen_at)"
        f" from fact_occurrences {OURS} and fact_id = facts.id and is_withdrawn = 0)"
        f" {_OF_ID}",
        [(fact_id,) for fact_id in dict.fromkeys(fact_ids)],
    )


def _is_said(db: Transaction, fact_id: FactId) -> bool:
    return db.row(f"select 1 from fact_occurrences {_OF_FACT} and is_withdrawn = 0", (fact_id,)) is not None


def _end_belief(db: Transaction, fact_id: FactId, at: datetime, why: str) -> None:
    """End the belief in a fact at that time."""
    db.run(
        f"update facts set is_active = 0, retired_at = ?, retired_why = ? {_OF_ID}",
        (to_millis(at), sanitize_text(why), fact_id),
    )


def _restore_fact(db: Transaction, fact_id: FactId | None) -> None:
    if fact_id is not None:
        db.run(f"update facts set is_active = 1, retired_at = null, retired_why = '' {_OF_ID}", (fact_id,))


def _remove_from_chain(db: Transaction, fact: Fact) -> FactId | None:
    """Take a fact out of its chain: its successor now replaces its predecessor. Return the successor."""
    after = db.row(f"select id from facts {OURS} and supersedes = ?", (fact.id,))
    db.run(f"update facts set supersedes = null {_OF_ID}", (fact.id,))
    if after is not None:
        db.run(f"update facts set supersedes = ? {_OF_ID}", (fact.supersedes, after[0]))
    elif not fact.is_active and fact.retired_at is not None:  # the operator retired it, and with it the earlier facts
        values = (fact.retired_why, to_millis(fact.retired_at), fact.supersedes)
        db.run(f"update facts set retired_why = ?, retired_at = ? {_OF_ID}", values)
    return None if after is None else FactId(str(after[0]))


def _build_conditions(wanted: FactFilter) -> tuple[str, tuple[Value, ...]]:
    active = None if wanted.active is None or wanted.as_of is not None else int(wanted.active)
    believed = None if wanted.as_of is None else to_millis(wanted.as_of)
    where, values = join_conditions(
        ("agent_id = ?", wanted.agent_id),
        ("category = ?", wanted.category),
        ("is_active = ?", active),
        ("visibility <> ?", None if wanted.secret else "secret"),
        (_BELIEVED, believed),
    )
    return where, values if believed is None else (*values, believed)


def _read_facts_of_chain(db: Transaction, fact_id: FactId) -> tuple[Fact, ...]:
    """Return the chain of a fact from its oldest link on, by its links and not by times."""
    after = {fact.supersedes: fact for fact in map(_FACTS.from_row, db.rows(_WHOLE_CHAIN, (fact_id,)))}
    ordered, fact = list[Fact](), after.get(None)
    while fact is not None:
        ordered.append(fact)
        fact = after.get(fact.id)
    return tuple(ordered)


def _read_fact_ids(db: Transaction, statement: str, values: Sequence[Value]) -> tuple[FactId, ...]:
    return tuple(dict.fromkeys(map(FactId, db.texts(statement, values))))
