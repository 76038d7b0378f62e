"""Queries of the full-text tables: which documents hold words, and which of these are worth a score.

Text of others reaches the engine only as quoted terms.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Literal, NewType

from intern.stores.database import Transaction
from intern.stores.tables.documents import DESCRIPTIONS

WordTable = Literal["words", "trigrams"]
Match = NewType("Match", str)
"""An expression in the search engine's own language. Nothing else makes one from anybody's text."""

# Documents that are scored for one question. Where more hold one of its words, those that hold none but the commonest
# are not: among 100,000, the best 50 of questions with 14 words stayed the same but for .4%, in half the time. Where
# each word is in more, all are scored.
_WEIGHED = 8_000
_HOLDING = "select count(*) from (select 1 from search_{table} where search_{table} match ? limit {most})"
# Terms that are counted also where no more documents than these can match: it takes longer than it spares with more.
_COUNTED = 16
AT_MOST = (
    f"select ifnull((select max(rid) from search_documents where rid < {DESCRIPTIONS}), 0)"
    f" + max(ifnull((select max(rid) from search_documents), 0) - {DESCRIPTIONS}, 0)"
)
"""An upper bound for the number of documents, from the first and the last of their numbers."""


def quote_term(term: str) -> Match:
    """Quote one term, so that `"`, `*`, `NEAR`, `:`, `-` and `^` have no special meaning to the engine."""
    return Match('"' + term.replace("\0", " ").replace('"', '""') + '"')


def match_any(terms: Iterable[str]) -> Match | None:
    """Return a query for documents with at least one of the terms; None without terms, which FTS5 cannot express."""
    return Match(" OR ".join(map(quote_term, terms))) or None


def choose_matches(db: Transaction, table: WordTable, terms: Sequence[Match]) -> Sequence[Match]:
    """Return matches for the documents worth a score: all with a term, or only those with one of the rarer terms.

    These get their whole score: bm25 is of the terms that a match names, so those that hold some of the commoner ones,
    too, are matched again with these. A term that more than half of all documents hold scores nothing in FTS5.
    """
    documents = db.number(AT_MOST)
    if documents <= _WEIGHED and len(terms) > _COUNTED:
        return [join_matches(terms)]
    half = documents // 2
    counts = [db.number(_HOLDING.format(table=table, most=half + 1), (term,)) for term in terms]
    telling = [n for n in sorted(range(len(terms)), key=counts.__getitem__) if 0 < counts[n] <= half]
    together = [*accumulate(counts[n] for n in telling)]
    some = bisect_right(together, _WEIGHED)
    # Not one is rare enough, or none is left out.
    if not some or some == sum(map(bool, counts)):
        return [join_matches(terms)]
    rarer, commoner = (join_matches([terms[n] for n in each]) for each in (telling[:some], telling[some:]))
    return [rarer, Match(f"({rarer}) AND ({commoner})")] if commoner else [rarer]


def join_matches(matches: Sequence[Match]) -> Match:
    """Return a query for documents that match one of these."""
    return Match(" OR ".join(matches))
