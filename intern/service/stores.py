"""The stores of a data folder, opened by the process that holds its lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from pathlib import Path

from anyio import fail_after
from anyio.to_thread import run_sync

from intern.core.clock import Clock, Wakeup
from intern.core.decisions import Decision, MessagesForgotten, MessagesWithdrawn
from intern.core.errors import ConfigError, KnowledgeError
from intern.core.ids import ChannelId, GuildId, MessageId, QAId
from intern.core.memory import CacheBudget
from intern.learning.forgetting import collect_identifying_texts
from intern.models.templates import PromptTemplates
from intern.service.databases import open_archive, open_read_only
from intern.service.embedding import open_vector_copy
from intern.service.hidden_files import hidden_files
from intern.service.models import load_templates
from intern.service.recorder import Recorder
from intern.service.text_files import TextFiles
from intern.settings.settings import Paths, Settings
from intern.sources.library import PageCopies, message_link
from intern.sources.source_folder import SourceFolder
from intern.stores.database import Database
from intern.stores.files import FileLayer
from intern.stores.qa_ids import qa_id_time
from intern.stores.search_file.search_index import SqliteSearchStore
from intern.stores.tables.answers import AnswerStore
from intern.stores.tables.attempts import AttemptStore
from intern.stores.tables.citations import CitationStore
from intern.stores.tables.daily_counts import DailyCounts
from intern.stores.tables.jobs import JobQueue
from intern.stores.tables.judgements import JudgementStore
from intern.stores.tables.knowledge import KnowledgeStore
from intern.stores.tables.members import NameStore, RoleStore
from intern.stores.tables.outbox import Outbox
from intern.stores.tables.pending_captures import PendingCaptures
from intern.stores.tables.personal_data import PersonalDataStore
from intern.stores.tables.positions import read_position, save_position
from intern.stores.tables.reply_cache import ReplyStore
from intern.stores.tables.skipped_sources import SkippedSourceStore

ARCHIVE = "archive"
"""The follower whose position only shows that the archive belongs to this database."""
_COPIED_WITHIN = 10.0  # seconds; the bot or the next command copies the rest


def write_whole(file: Path, data: bytes) -> None:
    """Replace a file atomically. Raises KnowledgeError."""
    FileLayer().write_atomically(file, data)


def open_search(settings: Settings, db: Database, room: CacheBudget | None = None) -> SqliteSearchStore:
    """Open the search, with the vector engine of the settings, and the shared budget for vectors."""
    copy = open_vector_copy(settings, db)
    if copy is not None:
        db.close_with(copy.engine.aclose)
    return SqliteSearchStore(db, settings.paths.search, copy, room or CacheBudget(10**6 * settings.search.megabytes))


async def probe_vector_engine(settings: Settings) -> tuple[Sequence[str], str]:
    """Ask the vector engine, if there is one. Return a line about it, or the reason why it did not answer."""
    copy = open_vector_copy(settings, open_read_only(settings))
    if copy is None:
        return (), ""
    async with aclosing(copy.engine) as engine:
        try:
            held, there = await copy.count()
        except KnowledgeError as error:
            return (), str(error)
    return (f"the vector engine answers ({engine.where}); it holds {held} of {there} vectors",), ""


def build_message_link(
    settings: Settings, server: GuildId | None, channel: ChannelId | None, message: MessageId | None
) -> str:
    """Return the link to a message; empty if its server or channel is unknown."""
    servers = settings.discord.guild_ids
    known = server or (servers[0] if len(servers) == 1 else None)
    return message_link(known, channel, message, settings.discord.site) or ""


OpenTemplates = Callable[[Settings], PromptTemplates]


class Stores:
    """All stores of a data folder, for the process that holds the folder's lock, or for one that only reads."""

    def __init__(
        self,
        settings: Settings,
        db: Database,
        clock: Clock,
        files: FileLayer | None = None,
        *,
        holds: bool = True,
        templates: OpenTemplates = load_templates,
        room: CacheBudget | None = None,
    ) -> None:
        """Open the stores, and finish the work of a killed process, if this process `holds` the folder. Blocks.

        Raises KnowledgeError, and ConfigError if the setting of ignored pairs includes future pairs.
        """
        self.settings, self.db, self.clock = settings, db, clock
        paths = settings.paths
        self.archive = open_archive(settings, db, clock=clock, files=files)
        newest = self.archive.newest_time()  # reads it, in this thread
        if holds:
            _check_passed_over(settings, max(clock.now(), newest or clock.now()))
            _remove_unfinished_files(paths)
        changes = Wakeup()
        self.knowledge = KnowledgeStore(db, clock=clock, changed=changes.wake)
        if (cursor := self.knowledge.cursor()) is not None:
            self.archive.reserve_ids_up_to(cursor)
        traces = partial(collect_identifying_texts, self.archive, self.knowledge.is_withdrawn)
        self.files = TextFiles(self.knowledge, paths, files, traces=traces, kept=not settings.moves, changes=changes)
        if holds and not settings.moves:
            _check_not_lost(paths, self.knowledge, self.files)
        self.passed_over = QAId(settings.kb.qa_raw_last_processed_id) or None
        self.sources = SourceFolder(paths.sources, settings.kb.max_source_bytes)
        self.pages = PageCopies(paths.web_cache, files)
        self.posts = Outbox(db, clock=clock, emails=settings.kb.mask_emails)
        self.cited, self.replies = CitationStore(db, clock=clock), ReplyStore(db, clock=clock)
        self.jobs = JobQueue(db)
        self.attempts = AttemptStore(db)
        self.pending = PendingCaptures(
            db, clock=clock, conversations_of=self.archive.find_conversations, mask=settings.kb.mask_text
        )
        self.counts = DailyCounts(db, clock=clock)
        self.judgements = JudgementStore(db, clock=clock)
        self.remains = PersonalDataStore(db)
        self.left_out = SkippedSourceStore(db, clock=clock)
        self.names = NameStore(db)
        self.roles = RoleStore(db, clock=clock)
        self.answers = AnswerStore(db, clock=clock, emails=settings.kb.mask_emails)
        self.search = open_search(settings, db, room)
        opened = partial(templates, settings)
        self.recorder = Recorder(db, settings.recorder, opened, clock=clock, emails=settings.kb.mask_emails)
        self._version: object = None

    async def sync_vector_engine(self) -> str:
        """Bring the vector engine up to date; return the reason if that failed, or an empty text."""
        try:
            with fail_after(_COPIED_WITHIN):
                if self.search.engine is not None:
                    await self.search.engine.catch_up()
        except (TimeoutError, KnowledgeError) as error:
            return str(error) or f"it takes longer than {_COPIED_WITHIN:g} seconds"
        return ""

    def reload_if_changed(self) -> None:
        """Read archive and decisions again if another process changed them. Blocks."""
        before, self._version = self._version, (self.knowledge.position(), self.archive.file_stamps())
        if self._version != before:
            self.archive.reload()
            self.knowledge.reload()

    async def claim_archive(self) -> None:
        """Record in the database, before the first pair is archived, that the archive belongs to it."""
        if not len(self.archive):
            await self.knowledge.db.write(lambda db: save_position(db, ARCHIVE, ""))

    async def check_archive_owner(self) -> None:
        """Check that the archive is this database's own, or a bot would file another's again. Raises KnowledgeError."""
        own = await self.knowledge.db.read(lambda db: read_position(db, ARCHIVE))
        if len(self.archive) and own is None and not await run_sync(self.knowledge.decisions_after, 0, 1):
            raise _build_lost_error(self.knowledge.db.place, self.settings.paths)

    def find_last_decided(self) -> QAId | None:
        """Return the newest pair that was decided, or that the operator's setting ignores."""
        known = [each for each in (self.knowledge.cursor(), self.passed_over) if each is not None]
        return max(known, key=qa_id_time, default=None)


def _check_not_lost(paths: Paths, knowledge: KnowledgeStore, files: TextFiles) -> None:
    """Check that no newer database wrote the text files, above all its forget requests.

    Otherwise a database was lost, or replaced by an older one. Raises KnowledgeError.
    """
    foreign = files.foreign_decisions()
    if not knowledge.decisions_after(0, 1):
        if foreign or any(paths.topics.glob("[!.]*.txt")):
            raise _build_lost_error(knowledge.db.place, paths)
    elif foreign and _collect_forgotten(foreign) - _collect_forgotten(knowledge.read_decisions()):
        raise KnowledgeError(
            f"{knowledge.db.place} is older than {paths.decisions}, and does not know all that is forgotten: put a"
            f" newer backup in its place, or move it away and run: intern restore {paths.data}"
        )


def _collect_forgotten(decisions: Iterable[Decision]) -> set[tuple[object, ...]]:
    return {
        (each.at, each.message_ids) for each in decisions if isinstance(each, MessagesWithdrawn | MessagesForgotten)
    }


def _build_lost_error(place: str, paths: Paths) -> KnowledgeError:
    return KnowledgeError(
        f"{place} does not know the archive in {paths.raw} or the decisions beside it: put the database's"
        f" backup in its place, or run: intern restore {paths.data}"
    )


def _check_passed_over(settings: Settings, latest: datetime) -> None:
    """Check that the setting ignores only pairs that are archived. Raises ConfigError."""
    cursor = settings.kb.qa_raw_last_processed_id
    if cursor and qa_id_time(QAId(cursor)) > latest:
        raise ConfigError(
            f"kb.qa_raw_last_processed_id: {cursor} lies in the future, and nothing that new is archived, so all that"
            f" is captured until then would be passed over unseen; set it to an id that `intern archive` lists, or to"
            f' ""'
        )


def _remove_unfinished_files(paths: Paths) -> None:
    """Remove unfinished files of a killed process: they may contain messages withdrawn or forgotten since."""
    try:
        for left_behind in hidden_files(paths, "tmp"):
            left_behind.unlink(missing_ok=True)
    except OSError as error:
        place = error.filename or paths.data
        raise KnowledgeError(
            f"{place} cannot be cleared of unfinished files ({error.strerror}); check its rights"
        ) from error
