"""Discovered files: the files worth reading, as questions, and their answers: read, summarise, store.

The feed holds the weightiest question first. Each question has its end in the store, so a cycle that was cut short is
simply begun again. Errors are stored with their file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from anyio import to_thread
from msgspec import Struct, structs

from intern.core.clock import Clock
from intern.core.errors import ModelError, ModelReplyError
from intern.core.ids import SourceId
from intern.core.log import get_logger
from intern.core.progress import report_progress
from intern.core.search_documents import Scalar, SearchDocument
from intern.core.tasks import run_each
from intern.core.text.passages import GAP
from intern.core.text.words import collapse_whitespace, truncate_text
from intern.models.prompt import Model
from intern.sources import scanning
from intern.sources.descriptions import SUMMARIZE_FILE, SummarizeFileIn, describe_structure, detect_file_type
from intern.sources.options import DiscoveryOptions
from intern.stores.search_file.search_index import SqliteSearchStore

_log = get_logger(__name__)


IndexReason = Literal["new", "changed", "summary_failed", "unreadable", "gone"]

_ORDER = tuple(kind for kind, _ in DiscoveryOptions().patterns)
# Unknown files come first, and failed ones after those that did not fail yet.
_URGENCY: Mapping[IndexReason, int] = {"new": 0, "changed": 1, "summary_failed": 2, "unreadable": 3, "gone": 4}


class DiscoveryQuestion(Struct, frozen=True, kw_only=True):
    """An item of the feed."""

    question: str
    hypothesis: str
    evidence: tuple[str, ...]
    priority: Literal["medium", "low"]
    why: IndexReason
    path: str
    type: str


def file_source_id(path: str) -> SourceId:
    """Return the source id of a file, for search results: the SHA-256 of its path."""
    return SourceId(f"file:{hashlib.sha256(path.encode('utf-8', 'surrogateescape')).hexdigest()}")


def build_questions(scanned: scanning.ScanResult, known: Iterable[SearchDocument]) -> tuple[DiscoveryQuestion, ...]:
    """Return every question: documentation first, then configuration, source code, services; what is gone last."""
    by_path = {document.path: document for document in known}
    asked: list[tuple[scanning.FoundFile, IndexReason]] = [
        (file, why) for file in scanned.files if (why := _find_reason(file, by_path.get(file.path))) is not None
    ]
    asked.sort(key=lambda each: _priority_key(each[0], each[1], by_path.get(each[0].path)))
    gone = by_path.keys() - {file.path for file in scanned.files}
    lost = (path for path in sorted(gone) if not scanning.is_below(path, scanned.troubles))
    found = (_build_file_question(file, why) for file, why in asked)
    return (*found, *(_build_question(path, by_path[path].type, "gone") for path in lost))


def select_due_questions(questions: Iterable[DiscoveryQuestion], max_items: int) -> tuple[DiscoveryQuestion, ...]:
    """Choose the questions of one cycle: at most `max_items` that read a file, and all gone files, which come last."""
    return tuple(question for n, question in enumerate(questions) if n < max_items or question.why == "gone")


def is_stale(document: SearchDocument, mtime: float) -> bool:
    """Return whether the file was written to since; `mtime` is the version of a topic."""
    return document.meta.get("version" if document.type == "topic" else "indexed_mtime") != mtime


def _find_reason(file: scanning.FoundFile, known: SearchDocument | None) -> IndexReason | None:
    if known is None:
        return "new"
    # Other than in the specification, any other time counts: a restored backup is older.
    if is_stale(known, file.mtime):
        return "changed"
    if known.status == "summary_failed":
        return "summary_failed"
    return "unreadable" if known.status == "permission_denied" else None


def _build_question(path: str, kind: str, why: IndexReason, *evidence: str) -> DiscoveryQuestion:
    name = re.sub(r"[^A-Za-z0-9]+", "_", path.rpartition("/")[2]).strip("_")
    return DiscoveryQuestion(
        question=f"What knowledge does {path} contain?",
        hypothesis=f"UNINDEXED_KNOWLEDGE_{name}",
        evidence=(f"file_path: {path}", f"file_type: {kind}", *evidence),
        priority="medium" if why == "new" else "low",
        why=why,
        path=path,
        type=kind,
    )


def _build_file_question(file: scanning.FoundFile, why: IndexReason) -> DiscoveryQuestion:
    mtime = datetime.fromtimestamp(file.mtime, UTC).isoformat(timespec="seconds")
    return _build_question(file.path, file.type, why, f"size: {file.size}", f"mtime: {mtime}")


def _priority_key(
    file: scanning.FoundFile, why: IndexReason, known: SearchDocument | None
) -> tuple[int, int, str, str]:
    """Return the sort key of a file. Of equals, the one tried longest ago comes first, so bad files block no other."""
    tried_at = "" if known is None else str(known.meta.get("indexed_at") or "")
    return _URGENCY[why], _ORDER.index(file.type), tried_at, file.path


SUMMARY_FAILED = "[Summary generation failed]"

# 500 tokens, as the specification has it.
_MOST_SUMMARY_CHARS = 2000
_SIDE_BY_SIDE = 4


class DiscoveryReport(Struct, frozen=True, kw_only=True):
    """The results of a cycle, by path."""

    indexed: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    """No summary; a later cycle asks again."""
    passed_over: tuple[str, ...] = ()
    """Could not be read; a later cycle tries again once they changed or became readable."""
    dropped: tuple[str, ...] = ()
    """Gone, and forgotten."""
    left: int = 0
    """Questions for later cycles."""
    unreadable: Mapping[str, str] = {}
    """Paths that could not be read, and why: earlier documents of them and below stay."""
    nowhere: bool = False
    """None of the scan paths could be read."""


class DiscoveryFeed(NamedTuple):
    """The questions of a cycle, and the paths that could not be read."""

    questions: tuple[DiscoveryQuestion, ...]
    """The weightiest first."""
    unreadable: Mapping[str, str]
    """Paths that could not be read, and why."""
    nowhere: bool
    """None of the scan paths could be read."""


@dataclass
class Discovery:
    """Discovery over some scan paths."""

    options: DiscoveryOptions
    store: SqliteSearchStore
    scanner: scanning.Scanner
    model: Model
    clock: Clock
    secrets: Collection[str] = ()
    """Masked before anything reaches the model or the store."""
    read: Callable[[str, Collection[str]], scanning.FileText] = scanning.read_file
    _told: frozenset[str] = frozenset()

    async def find_questions(self) -> DiscoveryFeed:
        """Return all questions, and the paths that could not be read. Writes nothing; raises KnowledgeError."""
        known = await self.store.list_documents("file")
        scanned = await to_thread.run_sync(self.scanner.scan)
        return DiscoveryFeed(build_questions(scanned, known), scanned.troubles, scanned.nowhere)

    async def run_cycle(self) -> DiscoveryReport:
        """Answer the weightiest questions. Raises KnowledgeError; errors of the model are stored."""
        questions, unreadable, nowhere = await self.find_questions()
        self._log_unreadable(unreadable)
        chosen = select_due_questions(questions, self.options.max_items)
        done = await self._answer_questions(chosen)
        return structs.replace(done, left=len(questions) - len(chosen), unreadable=unreadable, nowhere=nowhere)

    async def refresh_files(self, paths: Collection[str]) -> DiscoveryReport:
        """Look at requested files again: index changed ones, forget gone ones."""
        wanted = {file_source_id(path): path for path in paths}
        known = await self.store.list_documents("file", sorted(wanted))
        scanned = await to_thread.run_sync(self._check_files, sorted(wanted.values()))
        return await self._answer_questions(build_questions(scanned, known))

    def _log_unreadable(self, unreadable: Mapping[str, str]) -> None:
        """Log unreadable paths that are new."""
        for path in sorted(unreadable.keys() - self._told):
            _log.warning("scan_path_unreadable", path=path, reason=unreadable[path])
        self._told = frozenset(unreadable)

    def _check_files(self, paths: Sequence[str]) -> scanning.ScanResult:
        files: list[scanning.FoundFile] = []
        troubles: dict[str, str] = {}
        for path in paths:
            try:
                file = self.scanner.check_file(path)
            except OSError as error:
                troubles[path] = error.strerror or "it cannot be read"
            else:
                files += [] if file is None else [file]
        return scanning.ScanResult(files=tuple(files), troubles=troubles)

    async def _answer_questions(self, questions: Sequence[DiscoveryQuestion]) -> DiscoveryReport:
        made: dict[str, SearchDocument | None] = {}

        async def answer(question: DiscoveryQuestion) -> None:
            document = None if question.why == "gone" else await self._summarise_file(question)
            if document is not None:
                # At once: a summary that was paid for is not lost with the process.
                await self.store.replace_documents([document])
            made[question.path] = document
            report_progress("Summarising {total} files", len(made), len(questions))

        if questions:
            report_progress("Summarising {total} files", 0, len(questions))
        await run_each(answer, questions, _SIDE_BY_SIDE)
        gone = [path for path, document in made.items() if document is None]
        await self.store.delete_sources([file_source_id(path) for path in gone])
        if questions:
            _log.info("discovery_cycle", questions=len(questions), dropped=len(gone))
        return _build_report(questions, made)

    async def _summarise_file(self, question: DiscoveryQuestion) -> SearchDocument | None:
        """Make the document of a file; None if the file is gone."""
        try:
            read = await to_thread.run_sync(self.read, question.path, self.secrets)
        except scanning.FileUnreadableError as error:
            if error.trouble == "gone":
                return None
            _log.warning("file_unread", path=question.path, trouble=error.trouble, reason=str(error))
            return await to_thread.run_sync(self._describe_unreadable, question, error)
        structure = await to_thread.run_sync(describe_structure, question.path, read.text)
        file_type = detect_file_type(question.path, question.type)
        names = await to_thread.run_sync(scanning.shorten_paths, [question.path], self.options.scan_paths)
        given = SummarizeFileIn(
            file_path=names[question.path],
            file_type=file_type,
            structure=structure,  # it describes the whole file
            text=_keep_ends(read.text, self.options.max_chars),
        )
        summary, failure = await self._request_summary(given)
        return self._build_document(
            question,
            status="summary_failed" if failure else "ok",
            text=f"{summary}\n{structure}".strip(),
            mtime=read.mtime,
            meta={
                "file_size": read.size,
                "file_type": file_type,
                "summary": summary,
                "truncated": read.original_size is not None or len(read.text) > self.options.max_chars,
                "original_size": read.original_size,
                "summary_failed": bool(failure),
                "reason": failure,
            },
        )

    async def _request_summary(self, given: SummarizeFileIn) -> tuple[str, str]:
        """Return a summary, or the error. One retry, besides those of the endpoint."""
        failure = ""
        for _ in range(2):
            try:
                out = await self.model.ask(SUMMARIZE_FILE, given)
                said = collapse_whitespace(scanning.mask_text_secrets(out.summary, self.secrets))
                summary = truncate_text(said, _MOST_SUMMARY_CHARS)
                if summary:
                    return summary, ""
                raise ModelReplyError(f"{SUMMARIZE_FILE.name} gave no summary of {given.file_path}")
            except ModelError as error:
                failure = str(error) or type(error).__name__
        _log.warning("summary_failed", path=given.file_path, reason=failure)
        return SUMMARY_FAILED, failure

    def _describe_unreadable(
        self, question: DiscoveryQuestion, error: scanning.FileUnreadableError
    ) -> SearchDocument | None:
        try:
            found = self.scanner.check_file(question.path)
        except OSError:  # it may well exist
            mtime, size = 0.0, 0
        else:
            if found is None:
                return None
            mtime, size = found.mtime, found.size
        meta: dict[str, Scalar] = {"file_size": size, "file_type": question.type, "summary": "", "reason": str(error)}
        return self._build_document(question, status=error.trouble, text="", mtime=mtime, meta=meta)

    def _build_document(
        self, question: DiscoveryQuestion, *, status: str, text: str, mtime: float, meta: dict[str, Scalar]
    ) -> SearchDocument:
        source_id = file_source_id(question.path)
        return SearchDocument(
            id=source_id,
            source_id=source_id,
            kind="file",
            type=question.type,
            status=status,
            path=question.path,
            title=question.path.rpartition("/")[2],
            text=text,
            meta={
                "file_path": question.path,
                "doc_id": source_id.removeprefix("file:"),
                "indexed_mtime": mtime,
                "indexed_at": self.clock.now().isoformat(),
                **meta,
            },
            stamp=str(mtime),
            at=datetime.fromtimestamp(mtime, UTC),
        )


def _build_report(questions: Sequence[DiscoveryQuestion], made: Mapping[str, SearchDocument | None]) -> DiscoveryReport:
    status = {each.path: document.status if (document := made[each.path]) else "gone" for each in questions}
    return DiscoveryReport(
        indexed=tuple(path for path, each in status.items() if each == "ok"),
        failed=tuple(path for path, each in status.items() if each == "summary_failed"),
        passed_over=tuple(path for path, each in status.items() if each not in {"ok", "summary_failed", "gone"}),
        dropped=tuple(path for path, each in status.items() if each == "gone"),
    )


def _keep_ends(text: str, max_chars: int) -> str:
    """Return the text, or three quarters from its head and one from its tail."""
    if len(text) <= max_chars:
        return text
    room = max_chars - len(GAP)
    return f"{text[: room * 3 // 4]}{GAP}{text[len(text) - room // 4 :]}"
