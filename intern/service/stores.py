"""The stores of a data folder, opened by the process that holds its lock."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from intern.core.clock import Clock
from intern.core.errors import ConfigError, KnowledgeError
from intern.core.ids import QAId
from intern.learning.draft import finish_swap
from intern.settings.loading import Paths, Settings
from intern.sources.files import SourceFolder
from intern.sources.library import PageCopies
from intern.stores.archive import Archive
from intern.stores.blocks import time_of
from intern.stores.decisions import DecisionLog, recover_state
from intern.stores.files import FileLayer
from intern.stores.sqlite.database import Database
from intern.stores.sqlite.jobs import Jobs, Remains
from intern.stores.sqlite.left_out import LeftOutStore
from intern.stores.sqlite.members import NameStore, RoleStore
from intern.stores.sqlite.outbox import PostLedger
from intern.stores.sqlite.pending import Attempts, PendingCaptures
from intern.stores.sqlite.replies import CitedStore, ReplyStore
from intern.stores.sqlite.search_index import SqliteSearchStore
from intern.stores.sqlite.traces import Counts, Unanswered
from intern.stores.topics import TopicLibrary


def write_whole(file: Path, data: bytes) -> None:
    """Replace a file at once. Raises KnowledgeError."""
    FileLayer().write_atomically(file, data)


class Stores:
    """All stores of a data folder, for the process that holds the folder's lock."""

    def __init__(self, settings: Settings, db: Database, clock: Clock, files: FileLayer | None = None) -> None:
        """Open the stores, and finish what a killed process left half done. Blocks.

        Raises KnowledgeError, and ConfigError where the setting of what is passed over would swallow what is to come.
        """
        paths = settings.paths
        self.archive = Archive(paths.raw, clock=clock, files=files)
        latest = max(clock.now(), self.archive.newest() or clock.now())
        _check_passed_over(settings, latest)
        _sweep(paths)
        self.decisions = DecisionLog(paths.decisions, files)
        finish_swap(paths.topics, self.decisions, files)
        self._recovered = recover_state(paths.state, self.decisions, files, latest=latest)
        if self._recovered is not None:
            self.archive.rise_above(self._recovered)
        self.passed_over = QAId(settings.kb.qa_raw_last_processed_id) or None
        self.topics = TopicLibrary(paths.topics, files)
        self.sources = SourceFolder(paths.sources, settings.kb.max_source_bytes)
        self.pages = PageCopies(paths.web_cache, files)
        self.posts = PostLedger(db, clock=clock, emails=settings.kb.mask_emails)
        self.cited, self.replies = CitedStore(db, clock=clock), ReplyStore(db, clock=clock)
        self.jobs = Jobs(db)
        self.attempts = Attempts(db)
        self.pending = PendingCaptures(db, clock=clock, conversations_of=self.archive.conversations_of)
        self.counts = Counts(db, clock=clock)
        self.remains = Remains(db)
        self.left_out = LeftOutStore(db, clock=clock)
        self.names = NameStore(db)
        self.roles = RoleStore(db, clock=clock)
        self.unanswered = Unanswered(db, clock=clock, emails=settings.kb.mask_emails)
        self.search = SqliteSearchStore(db)

    def archived_until(self) -> QAId | None:
        """The newest pair that was decided, or that the operator wants passed over."""
        known = [each for each in (self._recovered, self.decisions.cursor(), self.passed_over) if each is not None]
        return max(known, key=time_of, default=None)


def _check_passed_over(settings: Settings, latest: datetime) -> None:
    """Check that the setting ignores only pairs that are archived. Raises ConfigError."""
    cursor = settings.kb.qa_raw_last_processed_id
    if cursor and time_of(QAId(cursor)) > latest:
        raise ConfigError(
            f"kb.qa_raw_last_processed_id: {cursor} lies in the future, and nothing that new is archived, so all that"
            f" is captured until then would be passed over unseen; set it to an id that `intern archive` lists, or to"
            f' ""'
        )


def _sweep(paths: Paths) -> None:
    """Clear away what a killed process had begun to write: it may hold what was withdrawn or forgotten since."""
    written = (paths.state, paths.decisions, paths.index, paths.index_cache, paths.team_index, paths.team_index_cache)
    for folder in {paths.raw, paths.topics, *(path.parent for path in written)}:
        try:
            for left_behind in folder.glob(".*.tmp"):
                left_behind.unlink(missing_ok=True)
        except OSError as error:
            raise KnowledgeError(
                f"{folder} cannot be cleared of unfinished files ({error.strerror}); check its rights"
            ) from error
