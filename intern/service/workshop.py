"""All that changes a data folder, put together: what the actors, the jobs and the door do to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence, Set as AbstractSet
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, count, islice

import msgspec
from anyio import CancelScope, Lock
from anyio.to_thread import run_sync

from intern.actors.wakeups import Due
from intern.core import progress
from intern.core.clock import Clock
from intern.core.errors import ConfigError, KnowledgeError, ModelError
from intern.core.flow import Failed, Filing, Skip, Topic
from intern.core.ids import MessageId, QAId, TopicName, UserId, in_channel
from intern.core.log import get_logger
from intern.core.records import Approved, Capture, CapturedPair, Filed, PairDecision, Parked, Withdrawn
from intern.facts.reconciling import Retirement
from intern.learning.archiving import Archivist, Kept, keep_imported, names_of
from intern.learning.attempts import Again, Tally, again, catch_up, choice_for, try_once
from intern.learning.classifying import choose_topic
from intern.learning.draft import awaiting_review, finish_swap
from intern.learning.filing import Filer
from intern.learning.forgetting import Forget, Forgets, Forgot, Search, bury, clear, removed, search, told
from intern.learning.material import left_of
from intern.learning.regenerating import Progress, Regenerated, regenerate
from intern.learning.review import Review, pair_of, reviewed, waiting_with
from intern.models.prompt import Model
from intern.search.finding import Embedder
from intern.service.extraction import Extraction, NotesJob
from intern.service.models import what_decides_topics
from intern.service.searching import Searchable, never_discovered
from intern.service.status import MASKED
from intern.settings.loading import Paths, Settings
from intern.sources.addresses import Policy
from intern.sources.catalogue import Catalogue, unasked
from intern.sources.descriptions import add_topic_provisionally, describe_by_rules, describe_provisionally
from intern.sources.discovery.investigating import Discovered, Discovery
from intern.sources.discovery.scanning import Scanner
from intern.sources.fetching import PageFetcher
from intern.sources.files import SourceFolder, noteworthy
from intern.sources.library import Library
from intern.sources.page_copies import PageCopies
from intern.sources.pages import OpenWeb, refresh_pages
from intern.sources.refresh import Refreshed, refresh_sources, refresh_topics
from intern.sources.searchable import Embedding
from intern.stores.archive import Archive, Erased
from intern.stores.blocks import time_of
from intern.stores.decisions import DecisionLog, recover_state
from intern.stores.files import FileLayer
from intern.stores.sqlite.database import Database
from intern.stores.sqlite.jobs import Job, Jobs
from intern.stores.sqlite.left_out import LeftOutStore
from intern.stores.sqlite.maintenance import Remains
from intern.stores.sqlite.members import NameStore, RoleStore
from intern.stores.sqlite.outbox import PostLedger
from intern.stores.sqlite.pending import PAUSES, Attempts, PendingCaptures, Retry
from intern.stores.sqlite.replies import CitedStore, ReplyStore
from intern.stores.sqlite.search_index import SqliteSearchStore
from intern.stores.sqlite.traces import Counts, Unanswered
from intern.stores.sqlite.vector_memory import VectorMemory
from intern.stores.topics import TopicLibrary

_log = get_logger(__name__)

_READ_AHEAD = 32  # pairs; a follower asks again when it is through


class Workshop:
    """All that changes the data folder. Only the process that holds the folder's lock has one."""

    def __init__(
        self,
        settings: Settings,
        db: Database,
        model: Model,
        clock: Clock,
        files: FileLayer | None = None,
        *,
        web: OpenWeb | None = None,
        policy: Policy | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        """Open the stores, and finish what a killed process left half done. Blocks.

        Raises KnowledgeError, and ConfigError where the setting of what is passed over would swallow what is to come.
        `web` fetches pages and `policy` says which; both are for tests.
        """
        paths = settings.paths
        self._files = files
        self.archive = Archive(paths.raw, clock=clock, files=files)
        latest = max(clock.now(), self.archive.newest() or clock.now())
        _check_passed_over(settings, latest)
        _sweep(paths)
        self.decisions = DecisionLog(paths.decisions, files)
        finish_swap(paths.topics, self.decisions, files)
        self._settings = settings
        self._model = model
        self._clock = clock
        self._recovered = recover_state(paths.state, self.decisions, files, latest=latest)
        if self._recovered is not None:
            self.archive.rise_above(self._recovered)
        self.topics = TopicLibrary(paths.topics, files)
        self.sources = SourceFolder(paths.sources, settings.kb.max_source_bytes)
        self.posts = PostLedger(db, clock=clock, emails=settings.kb.mask_emails)
        self.cited, self.replies = CitedStore(db, clock=clock), ReplyStore(db, clock=clock)
        self.jobs = Jobs(db)
        self.attempts = Attempts(db)
        self.pending = PendingCaptures(db, clock=clock, conversations_of=self.archive.conversations_of)
        self._db = db
        self._counts = Counts(db, clock=clock)
        self._archivist = Archivist(
            self.archive,
            mask=settings.kb.mask_secrets,
            mask_emails=settings.kb.mask_emails,
            is_withdrawn=self.decisions.is_withdrawn,
            is_forgotten=self.decisions.is_forgotten,
            masked=self._count_masked,
        )
        self._remains = Remains(db)
        self._left_out = LeftOutStore(db, clock=clock)
        self.names = NameStore(db)
        self.roles = RoleStore(db, clock=clock)
        self.unanswered = Unanswered(db, clock=clock, emails=settings.kb.mask_emails)
        self._derived: list[Forgets] = [self.pending, self._remains, self.unanswered, self.cited, self.replies]
        self._filer = Filer(
            model=model,
            topics=self.topics,
            decisions=self.decisions,
            state_path=paths.state,
            clock=clock,
            options=settings.learning,
            files=files,
            newest_of=self.archive.newest_of,
        )
        self._filer.mend()
        self.pages = PageCopies(paths.web_cache, files)
        self._open_web: OpenWeb = web or partial(PageFetcher, settings.web)
        self._policy = policy
        self._kb_catalogue = Catalogue(cache_path=paths.index_cache, index_path=paths.index, clock=clock, files=files)
        self._team_catalogue = Catalogue(
            cache_path=paths.team_index_cache, index_path=paths.team_index, clock=clock, files=files
        )
        self.search = SqliteSearchStore(db)
        self.embedding = None if embedder is None else Embedding(self.search, embedder)
        self._searchable = Searchable(
            self.search,
            library=Library(
                kb_index=paths.index,
                team_index=paths.team_index,
                sources=self.sources,
                topics=self.topics,
                archive=self.archive,
                files=files,
                pages=self.pages,
            ),
            topics=self.topics,
            catalogues=(self._kb_catalogue, self._team_catalogue),
        )
        self.extraction = Extraction(
            settings,
            db,
            model,
            clock,
            archive=self.archive,
            pending=self.pending,
            posts=self.posts,
            decisions=self.decisions,
            documents=self.search,
            names=self.names,
        )
        self._derived.append(self.extraction)
        self._derived.append(VectorMemory(db, clock=clock))
        self._discovery = discovery_of(settings, self.search, model, clock)
        # Regeneration replaces the library as a whole, so nobody may file meanwhile.
        self._filing = Lock()
        self._indexing = Lock()
        # Apart from the others: slow sites hold up neither topics nor documents.
        self._fetching = Lock()
        self._reviewing = Lock()
        self._discovering = Lock()

    async def after(self, position: QAId | None) -> Sequence[CapturedPair]:
        """Some of the archived pairs after `position`, oldest first: the log that the classifier follows."""
        return await run_sync(lambda: list(islice(self.archive.after(position), _READ_AHEAD)))

    async def keep(self, capture: Capture) -> CapturedPair | None:
        """Archive a capture; None where the archive holds all of it already."""
        await self._note_names((capture,))
        pair = await self._archivist.keep(capture)
        try:
            # The team answered these questions, so nothing that was replied to them is repeated.
            await self.replies.drop(capture.message_ids)
            await self._counts.store()
        except KnowledgeError as error:
            # The capture is safe; the counts go with the next one.
            _log.warning("counts_not_stored", reason=str(error))
        return pair

    def settles_in(self, pair: CapturedPair) -> float:
        """In how many seconds a pair is to be filed.

        A conversation in a channel may go on for a while after it was captured. What waits for the team's word costs no
        call, and an older version of a conversation none either.
        """
        if self._settings.kb.review or not in_channel(pair.conversation_id):
            return 0.0
        if self.archive.newest_of(pair.conversation_id) != pair.qa_id:
            return 0.0
        bounds = self._settings.conversations.bounds
        # It is captured a batch wait after its last word, or long after that where it was caught up with or imported.
        pause = bounds.window_seconds + bounds.settle_seconds
        # Whatever clocks say, nothing waits longer than that.
        return min(pause, max(0.0, pause - (self._clock.now() - pair.answered_at).total_seconds()))

    async def choose_topic(self, pair: CapturedPair) -> Topic | Skip | Failed:
        """Where a pair belongs: the topic of its conversation, else what the model says of the topics listed now."""
        return await choice_for(pair, filer=self._filer, choose=self._choose)

    async def file(self, filing: Filing) -> PairDecision:
        """File a pair; a new topic is in the index when this returns."""
        async with self._filing:
            decision = await self._filer.file(filing)
            await self._filed(filing.pair, decision)
            return decision

    async def due(self, handed: AbstractSet[Hashable]) -> Due[CapturedPair]:
        """The next pair to be filed after all: approved, or parked for long enough. Its decision is the key."""
        retries = await self.attempts.retries()
        return await run_sync(self._due, retries, handed)

    async def waiting_with(self, message_id: MessageId) -> Sequence[CapturedPair]:
        """The pairs with this message that wait for somebody of the team, newest first. Raises KnowledgeError."""
        return await run_sync(waiting_with, message_id, self.decisions, self.archive)

    async def review(self, review: Review) -> tuple[PairDecision, ...]:
        """Write down what somebody says of pairs that wait for it, and return the last decision about each.

        What is approved is due from then on. Raises ConfigError for an id that is unknown or of a pair that does not
        wait, and KnowledgeError; nothing is written down then.
        """
        async with self._reviewing:  # a reaction and a command may come at once
            return await run_sync(self._review, review)

    async def retry(self, qa_ids: Sequence[QAId] = ()) -> tuple[PairDecision, ...]:
        """File parked pairs now, all or these, and return the last decision about each.

        One that fails is parked again, with the new reason, and the next one goes on. A pair that has its end by now
        keeps it. Raises ConfigError for an id that is unknown or of a pair that nobody has decided yet, and the
        KnowledgeError and ModelError families while nothing can be filed; what is filed by then stays so.
        """
        pairs = await run_sync(self._to_retry, qa_ids)
        decisions: list[PairDecision] = []
        for done, pair in enumerate(pairs):
            progress.tell("Filing {total} parked pairs", done, len(pairs))
            # One by one, so that others are filed in between.
            async with self._filing:
                decided = self.decisions.of(pair.qa_id)
                if decided is None or isinstance(decided, Parked):
                    decided = await self._try(pair)
                decisions.append(decided)
        return tuple(decisions)

    async def withdraw(self, message_ids: Sequence[MessageId]) -> Withdrawn | None:
        """Write down that messages teach nothing any more, whoever is filing meanwhile."""
        withdrawn = await self._filer.withdraw(message_ids)
        await self.pending.forget(message_ids)
        await self.unanswered.forget(message_ids)
        await self.cited.drop(message_ids)
        await self.replies.drop(message_ids)
        return withdrawn

    async def clear_withdrawn(self) -> Sequence[TopicName]:
        """Take what was withdrawn out of the topics, and say which changed; waits for a filing or a regeneration."""
        async with self._filing:
            return await self._filer.clear_withdrawn(self.archive)

    async def keep_imported(self, captures: Sequence[Capture]) -> Kept:
        """Archive what an import was rehearsed to add."""
        await self._note_names(captures)
        return await keep_imported(captures, self.archive, self._archivist)

    async def catch_up(self, tell: Callable[[int], None] = lambda _: None) -> Tally:
        """File all that was archived and not decided yet, and what is due again; `tell` hears how many pairs are."""
        decided = count(1)

        async def filed(pair: CapturedPair, decision: PairDecision) -> None:
            await self._filed(pair, decision, behind=True)
            tell(next(decided))

        async with self._filing:
            retries = await self.attempts.retries()
            due = (await run_sync(self._again, retries)).due
            try:
                await self._list_all()
                return await catch_up(
                    self.archive,
                    self.archived_until(),
                    filer=self._filer,
                    choose=self._choose,
                    filed=filed,
                    due=await run_sync(self._pairs, due),
                    attempts=self.attempts,
                )
            finally:
                with CancelScope(shield=True):
                    await run_sync(self._team_catalogue.write)

    def archived_until(self) -> QAId | None:
        """The newest pair that was decided, or that the operator wants passed over."""
        known = [each for each in (self._recovered, self.decisions.cursor(), self._passed_over) if each is not None]
        return max(known, key=time_of, default=None)

    @property
    def _passed_over(self) -> QAId | None:
        return QAId(self._settings.kb.qa_raw_last_processed_id) or None

    async def refresh(self, *, describe: bool = True) -> Refreshed:
        """Bring both indices up to date with topics and files; without `describe`, no model is asked."""
        async with self._indexing:
            topics = await self._refresh_topics(describe=describe)
            sources = await refresh_sources(
                self._model,
                self.sources,
                self._kb_catalogue,
                clock=self._clock,
                options=self._settings.indexing,
                describe=describe,
            )
            await self._keep_searchable()
            await self._left_out.keep("document", noteworthy(sources.skipped))
        return _joined(topics, sources)

    async def refresh_pages(self) -> Refreshed:
        """Bring the index up to date with the listed pages. A big site takes minutes, and nobody waits for it."""
        settings, paths = self._settings, self._settings.paths
        async with self._fetching:
            refreshed = await refresh_pages(
                self._model,
                paths.links,
                self.pages,
                self._kb_catalogue,
                web=self._open_web,
                clock=self._clock,
                interval=timedelta(hours=settings.kb.url_refresh_min_interval_hours),
                options=settings.indexing,
                policy=self._policy,
                renders=bool(settings.kb.render_command),
            )
            # Pages that could not be had are listed, each with its error; a line that holds no address is not.
            lines = [each for each in refreshed.skipped if each.rel_path.startswith(f"{paths.links.name}:")]
            await self._left_out.keep("link", lines)
        if refreshed.changed or refreshed.removed or refreshed.pending:
            async with self._indexing:
                await self._keep_searchable()
        return refreshed

    async def regenerate(self, progress: Callable[[Progress], None] | None = None) -> Regenerated:
        """Rebuild the topics from the archive, and the team index from them; or go on with that."""
        basis = await run_sync(what_decides_topics, self._settings)
        async with self._filing:
            reviews = self._settings.kb.review
            if reviews:
                for pair in await run_sync(self._overlooked):
                    # With review, this asks no model: what stands in a topic counts as filed, the rest waits.
                    await self._filer.file(Filing(pair=pair, choice=Skip(reason="nobody came to it")))
            unreviewed = awaiting_review(self.decisions, self._passed_over, self._stands)
            try:
                done = await regenerate(
                    self._model,
                    self.archive,
                    self.decisions,
                    topics_dir=self._settings.paths.topics,
                    state_path=self._settings.paths.state,
                    describe=describe_by_rules,
                    clock=self._clock,
                    options=self._settings.learning,
                    files=self._files,
                    concurrency=self._settings.kb.regenerate_concurrency,
                    basis=basis,
                    awaits_review=unreviewed if reviews else lambda _: False,
                    progress=progress,
                )
            finally:
                # Even where it failed, the new library may stand already.
                with CancelScope(shield=True):
                    await run_sync(self.topics.reload)
        async with self._indexing:
            await self._refresh_topics()
            await self._keep_searchable()
        return done

    async def forget(self, asked: Forget) -> Forgot:
        """Take a member's messages, or single ones, out of all that is held; `erase`: also out of the archive.

        Killed in between, asking again does the rest. Raises ConfigError for what can be no id, and KnowledgeError.
        """
        user_id = asked.checked().user_id
        also = await self._written_by(user_id) if user_id is not None else frozenset[MessageId]()
        async with self._archivist.held():
            found = await run_sync(search, asked, self.archive, self.decisions, also)
            await run_sync(bury, asked, found, self.decisions, self._clock)
        held = (
            bool(also) or await self._remains.held(found.message_ids) or await self.extraction.holds(found.message_ids)
        )
        # At once: who waits below waits for whoever is filing.
        await self.extraction.forget(found.message_ids)
        async with self._filing, self._indexing:
            changed = {*await self._filer.clear_withdrawn(self.archive), *await run_sync(self._clear_libraries, found)}
            await describe_provisionally(
                self.topics,
                self._settings.paths.topics,
                {*found.topics, *changed},
                catalogue=self._team_catalogue,
                clock=self._clock,
            )
            # What stands in them now can be found again once they are described.
            await self._searchable.forget({*found.topics, *changed})
        # A thread that was being read just then may have brought messages that nobody knew of.
        late = frozenset[MessageId]() if user_id is None else await self.extraction.written_by(user_id)
        for store in self._derived:
            await store.forget({*found.message_ids, *late})
        if user_id is not None:
            await self._remains.forget_member(user_id)
            await self.names.forget_author(user_id)
            await self.roles.forget_author(user_id)
        erased = await self._erase(found) if asked.erase else None
        done = told(found, held=held, topics=changed, erased=erased)
        _log.info("messages_forgotten", messages=done.messages, captures=done.captures, topics=list(done.topics))
        async with self._indexing:
            await self._refresh_topics()
            await self._keep_searchable()
        return done

    async def _note_names(self, captures: Sequence[Capture]) -> None:
        """Know what people are called; the archive does not. Not of those who are forgotten, also just now."""

        def forgotten(capture: Capture) -> set[UserId]:
            written = zip(capture.message_ids, capture.author_ids, strict=False)
            return {author for each, author in written if author and self.decisions.is_forgotten(author, each)}

        told = [(capture, forgotten(capture)) for capture in captures]
        await self.names.note(
            (author, names) for capture, gone in told for author, names in names_of(capture) if author not in gone
        )
        for capture, gone in told:
            for author in forgotten(capture) - gone:
                await self.names.forget_author(author)

    async def _written_by(self, user_id: UserId) -> frozenset[MessageId]:
        """A member's messages that stand in no archive."""
        kept = await self._remains.written_by(user_id) | await self.unanswered.written_by(user_id)
        return kept | await self.extraction.written_by(user_id) | await self.cited.written_by(user_id)

    async def discover(self) -> Discovered:
        """Work off the weightiest questions of discovery's feed. Raises KnowledgeError."""
        async with self._discovering:
            return await self._discovery.work()

    async def freshen(self, paths: Sequence[str]) -> Discovered:
        """Look at these discovered files again, since somebody found them. Raises KnowledgeError."""
        async with self._discovering:
            return await self._discovery.freshen(paths)

    async def do(self, job: Job, look: Callable[[], None] = lambda: None) -> bytes:
        """Do what a command asked for, and encode what it gave. `look` is called once there is something to see."""
        result: object
        match job.kind:
            case "index":
                result = _joined(await self.refresh(), await self.refresh_pages())
            case "refresh":  # for a search, which costs no call that nobody asked for
                with unasked():
                    result = await self.refresh(describe=self._settings.kb_model.kind == "offline")
            case "regenerate":
                done = await self.regenerate()
                look()
                result = done
            case "capture":
                pair = await self.keep(msgspec.json.decode(job.payload, type=Capture))
                await self.catch_up()
                await self._let_topics_be_found()
                look()
                result = self._unforgotten(pair)
            case "import":
                kept = await self.keep_imported(msgspec.json.decode(job.payload, type=list[Capture]))
                look()
                result = kept
            case "forget":
                forgot = await self.forget(msgspec.json.decode(job.payload, type=Forget))
                look()
                result = forgot
            case "review":
                said = await self._have_reviewed(msgspec.json.decode(job.payload, type=Review))
                look()
                result = said
            case "retry":
                try:
                    retried = await self.retry(msgspec.json.decode(job.payload or b"[]", type=tuple[QAId, ...]))
                finally:
                    look()
                result = retried
            case _:
                result = await self._do_quietly(job)
        return msgspec.json.encode(result)

    async def _do_quietly(self, job: Job) -> object:
        """Jobs that leave nothing to look at."""
        match job.kind:
            case "discover":
                return await self.discover()
            case "freshen":
                return await self.freshen(msgspec.json.decode(job.payload, type=tuple[str, ...]))
            case "extract":
                return await self.extraction.take_up()
            case "import_notes":
                return await self.extraction.read_notes(msgspec.json.decode(job.payload, type=NotesJob))
            case "retire_fact":
                return await self.extraction.retire(msgspec.json.decode(job.payload, type=Retirement))
            case unknown:
                raise KnowledgeError(f"this version of intern knows no job {unknown!r}; update the one that is running")

    def _clear_libraries(self, found: Search) -> set[TopicName]:
        """The topics, and the libraries that stand beside them: the one before, and one that is being built."""
        folder = self._settings.paths.topics
        gone = self.decisions.is_withdrawn
        changed = clear(self.topics, folder, found, self.archive, gone)
        removed(changed.values(), self.decisions, self._clock)
        for beside in (folder.with_name(f"{folder.name}.prev"), folder.with_name(f"{folder.name}.next")):
            if beside.is_dir():
                clear(TopicLibrary(beside, self._files), beside, found, self.archive, gone)
        return set(changed)

    async def _erase(self, found: Search) -> Erased:
        erased = await self._archivist.erase(found.message_ids)
        await self._db.scrub()
        _log.warning("archive_erased", **msgspec.structs.asdict(erased))
        return erased

    def _count_masked(self, kinds: Mapping[str, int]) -> None:
        for kind, number in kinds.items():
            self._counts.add(f"{MASKED}{kind}", number)

    async def embed(self, within: float = math.inf) -> None:
        """Give every document its vector, as far as that goes `within` so many seconds.

        Raises KnowledgeError; where none is to be had, words alone must do.
        """
        if self.embedding is None:
            return
        try:
            await self.embedding.all(within)
        except ModelError as error:
            _log.warning("documents_not_embedded", reason=str(error))

    async def _keep_searchable(self) -> None:
        await self._searchable.keep()
        if self.embedding is not None:
            self.embedding.nudge()

    async def _let_topics_be_found(self) -> None:
        """Bring the search up to date with the topics; their descriptions stay owed to the next refresh."""
        async with self._indexing:
            await self._refresh_topics(describe=False)
            await self._keep_searchable()

    async def _refresh_topics(self, *, describe: bool = True) -> Refreshed:
        return await refresh_topics(
            self._model,
            self.topics,
            self._settings.paths.topics,
            self._team_catalogue,
            clock=self._clock,
            options=self._settings.indexing,
            describe=describe,
        )

    async def _choose(self, pair: CapturedPair) -> Topic | Skip:
        entries = await run_sync(self._team_catalogue.entries)
        return await choose_topic(self._model, pair, entries, self._settings.learning)

    async def _try(self, pair: CapturedPair) -> PairDecision:
        decision = await try_once(pair, filer=self._filer, choose=self._choose, attempts=self.attempts)
        await self._filed(pair, decision)
        return decision

    async def _filed(self, pair: CapturedPair, decision: PairDecision, *, behind: bool = False) -> None:
        """See to the topic that a pair was filed in."""
        if not isinstance(decision, Filed):
            return
        await self._list(decision.topic, behind=behind)
        try:
            opened = await self._filer.split_outgrown(decision.topic)
        except ModelError as error:
            # The pair is filed, whatever comes of this; the next one in the topic brings it up again.
            _log.warning("topic_split_delayed", topic_name=decision.topic, qa_id=pair.qa_id, reason=str(error))
        else:
            if opened is not None:
                await self._list(opened, behind=behind)

    async def _list_all(self) -> None:
        """List the topics that no index lists. A process that was killed may not have come to it."""
        listed = await run_sync(self._team_catalogue.sources)
        for name in self.topics.names():
            if f"team:{name}.txt" not in listed:
                await self._list(name, behind=True)

    async def _list(self, topic: TopicName, *, behind: bool = False) -> None:
        """`behind` is for many of them; see `Catalogue.add`."""
        await add_topic_provisionally(
            self.topics,
            self._settings.paths.topics,
            topic,
            catalogue=self._team_catalogue,
            clock=self._clock,
            behind=behind,
        )

    def _unforgotten(self, pair: CapturedPair | None) -> CapturedPair | None:
        """A pair to tell of. While it waited to be filed, its author may have been forgotten."""
        if pair is None or not any(map(self.decisions.is_withdrawn, pair.message_ids)):
            return pair
        return left_of(pair, self.decisions.is_withdrawn)

    async def _have_reviewed(self, review: Review) -> tuple[PairDecision, ...]:
        """What a command asks for: the word written down, and what was approved filed, if a model is there."""
        said = await self.review(review)
        for n, decision in enumerate(said):
            if isinstance(decision, Approved):
                progress.tell("Filing {total} reviewed pairs", n, len(said))
                try:
                    async with self._filing:
                        await self._try(await run_sync(pair_of, decision.qa_id, self.archive))
                except ModelError as error:
                    _log.warning("filing_delayed", qa_id=decision.qa_id, approved=len(said) - n, reason=str(error))
                    break
        return tuple(self.decisions.of(each.qa_id) or each for each in said)

    # From here on: worker threads.

    def _review(self, review: Review) -> tuple[PairDecision, ...]:
        self.decisions.extend(reviewed(review, self.decisions, self.archive, self._clock.now()))
        return tuple(each for qa_id in dict.fromkeys(review.qa_ids) if (each := self.decisions.of(qa_id)) is not None)

    def _overlooked(self) -> list[CapturedPair]:
        """Pairs without a decision that nobody comes to any more, since newer ones have theirs: the log was damaged."""
        until = self.archived_until()
        return [
            pair
            for pair in self.archive.after(self._passed_over)
            if until is not None and time_of(pair.qa_id) <= time_of(until) and self.decisions.of(pair.qa_id) is None
        ]

    def _stands(self, qa_id: QAId) -> bool:
        return self.topics.topic_of(qa_id) is not None

    def _due(self, retries: Mapping[QAId, Retry], handed: AbstractSet[Hashable]) -> Due[CapturedPair]:
        waiting = self._again(retries)
        for decision in waiting.due:
            if decision not in handed and (pair := self.archive.get(decision.qa_id)) is not None:
                return Due(record=pair, key=decision)
        if waiting.due or next(self.archive.after(self.archived_until()), None) is not None:
            # What is in work may be parked, and comes again after this pause at the earliest.
            return Due(seconds=min(PAUSES[0].total_seconds(), waiting.seconds or math.inf))
        return Due(seconds=waiting.seconds)

    def _again(self, retries: Mapping[QAId, Retry]) -> Again:
        return again(
            self.decisions.due(),
            self.decisions.parked(),
            retries,
            now=self._clock.now(),
            passed_over=self._passed_over,
        )

    def _pairs(self, decisions: Sequence[PairDecision]) -> list[CapturedPair]:
        return [pair for each in decisions if (pair := self.archive.get(each.qa_id)) is not None]

    def _to_retry(self, qa_ids: Sequence[QAId]) -> list[CapturedPair]:
        if not qa_ids:
            return self._pairs(self.decisions.parked())
        pairs = [pair_of(qa_id, self.archive) for qa_id in dict.fromkeys(qa_ids)]
        for pair in pairs:
            if self.decisions.of(pair.qa_id) is None:
                raise ConfigError(f"{pair.qa_id} is not parked: nobody has looked at it yet; it comes by itself")
        return pairs


def _check_passed_over(settings: Settings, latest: datetime) -> None:
    """Raises ConfigError where the operator wants pairs passed over that nobody has archived yet."""
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


def _joined(*refreshed: Refreshed) -> Refreshed:
    return Refreshed(
        changed=tuple(chain.from_iterable(each.changed for each in refreshed)),
        removed=tuple(chain.from_iterable(each.removed for each in refreshed)),
        pending=tuple(chain.from_iterable(each.pending for each in refreshed)),
        skipped=tuple(chain.from_iterable(each.skipped for each in refreshed)),
    )


def discovery_of(settings: Settings, store: SqliteSearchStore, model: Model, clock: Clock) -> Discovery:
    """Discovery as the operator wants it."""
    return Discovery(
        settings.discovery,
        store=store,
        scanner=Scanner(settings.discovery, never=never_discovered(settings)),
        model=model,
        clock=clock,
        secrets=settings.secrets,
    )
