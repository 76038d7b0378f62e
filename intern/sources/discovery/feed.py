"""The feed: what is worth looking into, as questions, the weightiest first, and why each is there. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct

from intern.core.ids import SourceId
from intern.core.records import SearchDocument
from intern.sources.discovery.scanning import FoundFile, Scanned, is_below
from intern.sources.options import DiscoveryOptions

Why = Literal["new", "changed", "summary_failed", "unreadable", "gone"]

_ORDER = tuple(kind for kind, _ in DiscoveryOptions().patterns)
# What is not known at all comes before what is known a little; what failed waits for whatever did not fail yet.
_URGENCY: Mapping[Why, int] = {"new": 0, "changed": 1, "summary_failed": 2, "unreadable": 3, "gone": 4}


class Question(Struct, frozen=True, kw_only=True):
    """An item of the feed."""

    question: str
    hypothesis: str
    evidence: tuple[str, ...]
    priority: Literal["medium", "low"]
    why: Why
    path: str
    type: str


def doc_id_of(path: str) -> str:
    """The id of a file: SHA-256 of its path."""
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()


def source_id_of(path: str) -> SourceId:
    """What search results lead to."""
    return SourceId(f"file:{doc_id_of(path)}")


def feed(scanned: Scanned, known: Iterable[SearchDocument]) -> tuple[Question, ...]:
    """Every question there is: documentation first, then configuration, source code, services; what is gone last."""
    by_path = {document.path: document for document in known}
    questions = [
        (_URGENCY[why], _place(file.type), _tried_at(by_path.get(file.path)), file.path, _question(file, why))
        for file in scanned.files
        if (why := _why(file, by_path.get(file.path))) is not None
    ]
    questions.sort(key=lambda each: each[:4])
    return (*(each[-1] for each in questions), *_gone(scanned, by_path))


def due(questions: Iterable[Question], max_items: int) -> tuple[Question, ...]:
    """What one cycle takes on: so many that cost a look at a file, and all that is gone, which costs nothing."""
    listed = tuple(questions)
    return (
        *[question for question in listed if question.why != "gone"][:max_items],
        *(question for question in listed if question.why == "gone"),
    )


def is_stale(document: SearchDocument, mtime: float) -> bool:
    """Whether the file was written to since."""
    return document.meta.get("indexed_mtime") != mtime


def _why(file: FoundFile, known: SearchDocument | None) -> Why | None:
    if known is None:
        return "new"
    # Other than in the specification, any other time counts: a restored backup is older.
    if is_stale(known, file.mtime):
        return "changed"
    if known.status == "summary_failed":
        return "summary_failed"
    return "unreadable" if known.status == "permission_denied" else None


def _question(file: FoundFile, why: Why) -> Question:
    mtime = datetime.fromtimestamp(file.mtime, UTC).isoformat(timespec="seconds")
    return Question(
        question=f"What knowledge does {file.path} contain?",
        hypothesis=_hypothesis(file.path),
        evidence=(f"file_path: {file.path}", f"file_type: {file.type}", f"size: {file.size}", f"mtime: {mtime}"),
        priority="medium" if why == "new" else "low",
        why=why,
        path=file.path,
        type=file.type,
    )


def _gone(scanned: Scanned, known: Mapping[str, SearchDocument]) -> Iterator[Question]:
    there = {file.path for file in scanned.files}
    for path, document in sorted(known.items()):
        if path not in there and not is_below(path, scanned.unreadable):
            yield Question(
                question=f"What knowledge does {path} contain?",
                hypothesis=_hypothesis(path),
                evidence=(f"file_path: {path}", f"file_type: {document.type}"),
                priority="low",
                why="gone",
                path=path,
                type=document.type,
            )


def _hypothesis(path: str) -> str:
    name = path.rpartition("/")[2]
    return "UNINDEXED_KNOWLEDGE_" + re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")


def _place(kind: str) -> int:
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)


def _tried_at(known: SearchDocument | None) -> str:
    """Who failed longest ago comes first, so that ten bad files do not keep the eleventh waiting for ever."""
    return "" if known is None else str(known.meta.get("indexed_at") or "")
