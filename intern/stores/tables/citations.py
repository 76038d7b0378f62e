"""Citations of posted answers, and the answers that became outdated.

They keep the quoted text, masked, and a digest of each source, to tell later whether the answer is outdated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Literal

import msgspec
from msgspec import Struct

from intern.core.flow import Reply
from intern.core.ids import ChannelId, GuildId, MessageId, SourceId
from intern.core.text.masking import mask_secrets
from intern.stores.database import Transaction, Value
from intern.stores.tables.answers import KEPT_CITED, MAX_AGE, ensure_record, expire_part
from intern.stores.tables.store import GIVEN, IN, OURS, Store, Table, reads, text_array, writes

_MAX_TEXT = 400  # characters; a quote is a sentence

CitationState = Literal["", "changed", "extended", "gone"]
"""`changed`: the source does not say it any more. `extended`: the source still says it, but its conversation went on.
`gone`: the source was withdrawn. Empty: the source still says it."""

RetractionState = Literal["", "open", "retracted", "dropped"]
"""`open`: its edit was begun. `dropped`: it could not be edited."""


class PostedCitation(Struct, frozen=True, kw_only=True):
    """One citation of a posted answer."""

    question_id: MessageId
    n: int
    source_id: SourceId
    title: str
    quote: str
    """The quoted text; empty if nothing was quoted, or the quote is forgotten."""
    digest: str
    """The digest of the source when the citation was first compared with it; empty before."""
    state: CitationState
    since: datetime | None
    """When it was first seen in that state (UTC); None while the source still says it."""


class OutdatedAnswer(Struct, frozen=True, kw_only=True):
    """A posted answer with citations that the sources no longer back."""

    question_id: MessageId
    guild_id: GuildId | None
    place: ChannelId
    """The channel or thread that holds the answer."""
    message_id: MessageId
    """The first message of the answer."""
    asked: str
    """Empty once the question is deleted."""
    at: datetime
    """When it was given (UTC)."""
    retracted: RetractionState
    citations: tuple[PostedCitation, ...]
    """The outdated ones."""


class CitationStore(Store):
    """The citations of the newest KEPT_CITED answers, for MAX_AGE."""

    async def list_sources(self) -> tuple[tuple[SourceId, bool], ...]:
        """Return every source that a posted answer cites, and whether some citation of it was never compared."""
        statement = (
            "select source_id, max(case when digest = '' then 1 else 0 end) from answer_citations"
            f" where {_POSTED} group by source_id"
        )
        return msgspec.convert(await self.db.rows(statement), tuple[tuple[SourceId, bool], ...], strict=False)

    @reads
    def find_citations(self, db: Transaction, source_id: SourceId) -> tuple[PostedCitation, ...]:
        """Return the citations of a source."""
        return _CITED.all(db, f"where {_POSTED} and source_id = ?", (source_id,))

    @reads
    def read_citations(
        self, db: Transaction, question_ids: Collection[MessageId]
    ) -> dict[MessageId, tuple[PostedCitation, ...]]:
        """Return the citations of the posted answers to these questions; answers without any are missing."""
        cited: dict[MessageId, tuple[PostedCitation, ...]] = {}
        for each in _CITED.all(
            db, f"where {_POSTED} and question_id {IN} order by question_id, n", (text_array(question_ids),)
        ):
            cited[each.question_id] = (*cited.get(each.question_id, ()), each)
        return cited

    @writes
    def save_comparisons(self, db: Transaction, results: Iterable[PostedCitation]) -> None:
        """Keep source, digest and state of citations that were compared with their source, and since when."""
        db.run_each(
            "update answer_citations set source_id = ?, digest = ?, state = ?,"
            " since = case when ? = '' then null when state = ? then since else ? end"
            f" {OURS} and question_id = ? and n = ?",
            [
                (each.source_id, each.digest, *[each.state] * 3, self.now(), each.question_id, each.n)
                for each in results
            ],
        )

    async def count_outdated(self) -> int:
        """Return how many answers have outdated citations."""
        return await self.db.number(COUNT_OUTDATED)

    @reads
    def list_outdated(self, db: Transaction, limit: int) -> tuple[OutdatedAnswer, ...]:
        """Return the answers with outdated citations, newest first."""
        return tuple(_build_outdated(db, row) for row in db.rows(_OUTDATED_ANSWERS, (limit,)))

    async def list_to_retract(self, before: datetime) -> tuple[MessageId, ...]:
        """Return answers whose retraction was begun, or that a source has not backed since `before`; oldest first.

        A conversation that merely went on is no reason.
        """
        statement = (
            "select question_id from answers join posts using (community, question_id)"
            f" {OURS} and {GIVEN} and (retracted = 'open' or (retracted = '' and exists"
            f" (select 1 from answer_citations {OURS} and answer_citations.question_id = answers.question_id"
            " and answer_citations.state in ('changed', 'gone') and since <= ?))) order by at"
        )
        return tuple(map(MessageId, await self.db.texts(statement, (before.isoformat(),))))

    async def save_retraction(self, question_id: MessageId, how: RetractionState) -> None:
        """Save the state of an answer's retraction."""
        await self.db.run(f"update answers set retracted = ? {OURS} and question_id = ?", (how, question_id))


def save_citations(db: Transaction, reply: Reply, *, now: datetime, emails: bool) -> None:
    """Save the citations of an answer, in the transaction of its post; the oldest answers are watched no more."""
    question_id = reply.question.id
    ensure_record(db, reply, at=now.isoformat(), emails=emails)
    for n, cited in enumerate(reply.citations):
        texts = (_redact_quote(each or "", emails=emails) for each in (cited.title, cited.quote))
        db.run(
            "insert into answer_citations (community, question_id, n, source_id, title, quote, digest, state)"
            " values (:community, ?, ?, ?, ?, ?, '', '')",
            (question_id, n, cited.source_id, *texts),
        )
    db.run(f"update answers set retracted = '' {OURS} and question_id = ?", (question_id,))
    expire_part(db, "retracted", KEPT_CITED, (now - MAX_AGE).isoformat())


def _redact_quote(text: str, *, emails: bool) -> str:
    # Cut without a sign of it, so that it still reads as a part of its source.
    return mask_secrets(text[:_MAX_TEXT].encode("utf-8", "replace").decode(), emails=emails).text


_POSTED = f"community = :community and question_id in (select question_id from posts {OURS} and {GIVEN})"

_OUTDATED = (
    f"from answers join posts using (community, question_id) {OURS} and retracted is not null and {GIVEN}"
    f" and exists (select 1 from answer_citations {OURS}"
    " and answer_citations.question_id = answers.question_id and answer_citations.state <> '')"
)

COUNT_OUTDATED = f"select count(*) {_OUTDATED}"
"""A retracted answer counts as long as it is watched."""

_OUTDATED_ANSWERS = (
    "select question_id, guild_id, coalesce(thread_id, posts.channel_id), coalesce((select message_id from post_parts"
    f" {OURS} and post_parts.question_id = posts.question_id and message_id is not null order by n limit 1),"
    f" question_id), texts, at, retracted {_OUTDATED} order by at desc, question_id desc limit ?"
)

_CITED = Table("answer_citations", PostedCitation)


def _build_outdated(db: Transaction, row: Sequence[Value]) -> OutdatedAnswer:
    fields = dict(zip(OutdatedAnswer.__struct_fields__, row, strict=False))
    texts = msgspec.json.decode(str(fields["asked"] or "[]"), type=list[str])
    cited = _CITED.all(db, f"{OURS} and question_id = ? and state <> '' order by n", (row[0],))
    return msgspec.convert({**fields, "asked": "\n".join(filter(None, texts)), "citations": cited}, OutdatedAnswer)
