"""The library built anew from the archive, beside the old one, and swapped in when it is whole.

Killed at any moment, it goes on where it was when it is asked for again, and asks no model twice; meanwhile the old
library stands. What comes out is the same at any concurrency (see `intern.learning.epochs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec
from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from intern.core.clock import Clock
from intern.core.errors import (
    KnowledgeError,
    ModelAccessError,
    ModelBudgetError,
    ModelBudgetTooSmallError,
    ModelUnavailableError,
)
from intern.core.ids import ConversationId, MessageId, QAId
from intern.core.log import get_logger
from intern.core.messages import Image
from intern.core.records import CapturedPair, Filed, Moved, PairDecision, Parked, Removed, Replaced, Skipped
from intern.learning.draft import Draft, Finished, Journal, discard, finish_swap, opened, swap_in, upcoming
from intern.learning.epochs import Building, Describe, Parts
from intern.learning.filing import Decisions, Filer, Tally
from intern.learning.options import LearningOptions
from intern.learning.rounds import EPOCH, Round, in_order, is_held_back, planned
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.models.usage import Meter, metered
from intern.stores.blocks import qa_id_of, time_of
from intern.stores.decisions import write_state
from intern.stores.files import FileLayer
from intern.stores.topics import TopicLibrary

_log = get_logger(__name__)

CONCURRENCY = 8


class ArchivedPairs(Protocol):
    """What can be read again (see `intern.stores.archive`)."""

    def after(self, qa_id: QAId | None) -> Iterator[CapturedPair]:
        """The pairs archived later, oldest first; None: all."""
        ...

    def get(self, qa_id: QAId) -> CapturedPair | None:
        """The pair of that id."""
        ...

    def conversations_of(self, message_id: MessageId) -> tuple[ConversationId, ...]:
        """All conversations that a message was captured with."""
        ...


class Progress(Struct, frozen=True, kw_only=True):
    """How far a regeneration came, what was done before it was stopped included."""

    classified: int
    decided: int
    total: int
    """Conversations; more than at first, where some were captured meanwhile."""
    calls: int
    """Of the model."""
    tokens: int


class Regenerated(Struct, frozen=True, kw_only=True):
    """What a regeneration did."""

    pairs: int
    """Pairs in the archive, older captures of the same conversations included."""
    tally: Tally
    topics: int
    parked: tuple[QAId, ...]
    calls: int = 0
    """Of the model, those before it was stopped and resumed included."""
    tokens: int = 0


async def regenerate(
    model: Model,
    archive: ArchivedPairs,
    decisions: Decisions,
    *,
    topics_dir: Path,
    state_path: Path,
    describe: Describe,
    clock: Clock,
    options: LearningOptions | None = None,
    concurrency: int = CONCURRENCY,
    basis: str = "",
    awaits_review: Callable[[QAId], bool] = lambda _: False,
    files: FileLayer | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Regenerated:
    """Classify and integrate every conversation again, its most complete capture, oldest answer first.

    One that was begun before and did not come to its end goes on, if it has the same `options` and `basis` (prompts
    and whatever else decides the result), and the archive still holds what was read; else it is begun anew.

    `describe` gives the index entries that the classifier sees meanwhile. The caller keeps everybody else from filing
    until this returns; what is archived meanwhile is filed, too. What was withdrawn, be it meanwhile, is left out, and
    so is what the team has not approved or has rejected; `awaits_review` tells of pairs about which that is not
    written down yet. A pair whose replies make no sense, or that the model refuses, is parked.
    Afterwards libraries that were open are stale, and the team index is to be refreshed.

    Raises ModelUnavailableError when the model is down or the budget has no room, and KnowledgeError, also where hardly
    anything would be left of a library that holds something; the old library then still stands. (Only where the log
    takes no more decisions, the new one does; the next `finish_swap` writes them down. So open libraries are stale
    after a KnowledgeError, too.)
    """
    layer = files or FileLayer()
    # Who may be filed is settled before, by the plan.
    bounds = replace(options or LearningOptions(), review=False)
    await run_sync(finish_swap, topics_dir, decisions, layer)
    journal = await run_sync(lambda: opened(topics_dir, archive, basis=fingerprint(basis, bounds), files=layer))
    library = await run_sync(TopicLibrary, upcoming(topics_dir), layer)
    draft = await run_sync(Draft, upcoming(topics_dir), decisions, layer)
    model = _Payable(model)
    filer = Filer(model=model, topics=library, decisions=draft, state_path=None, clock=clock, options=bounds)
    await run_sync(filer.mend)
    parts = Parts(model, archive, library, journal, draft, filer, describe, bounds, concurrency)
    with metered() as meter:
        run = await run_sync(lambda: _Run(parts, meter, topics_dir=topics_dir, clock=clock, layer=layer, tell=progress))
        _log.info("regeneration_started", decided_before=run.so_far().decided)
        try:
            await run.rounds(lambda after: planned(archive, after, decisions, awaits_review))
        except ModelUnavailableError as error:
            raise _resumable(error, run.so_far()) from error
        await filer.clear_withdrawn(archive)
        drafted = await run_sync(run.finished, decisions)
        await run_sync(swap_in, topics_dir, drafted, decisions, layer)
        await run_sync(write_state, state_path, decisions.cursor(), layer)
        result = run.result(drafted)
    _log.info("regeneration_completed", pairs=result.pairs, topics=result.topics, calls=result.calls)
    return result


class _Payable:
    """The model; a call that fits into no day's budget ends the regeneration.

    If it parked its pair, a library without most of its biggest topics would take the place of the one that stands.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        try:
            return await self._model.ask(prompt, given, images=images)
        except ModelBudgetTooSmallError as error:
            raise ModelBudgetError(str(error)) from error


class _Run:
    """A regeneration at work, new or resumed."""

    def __init__(
        self,
        parts: Parts,
        meter: Meter,
        *,
        topics_dir: Path,
        clock: Clock,
        layer: FileLayer,
        tell: Callable[[Progress], None] | None,
    ) -> None:
        self._parts = parts
        self._meter = meter
        self._topics_dir = topics_dir
        self._clock = clock
        self._layer = layer
        self._calls_before, self._tokens_before = parts.journal.calls, parts.journal.tokens
        self._building = Building(parts, lambda: tell(self.so_far()) if tell is not None else None)
        self._replaces_topics = bool(TopicLibrary(topics_dir).names())

    def so_far(self) -> Progress:
        """Where it stands."""
        return Progress(
            classified=self._building.classified,
            decided=self._building.decided,
            total=sum(len(each.order) for each in self._parts.journal.rounds),
            calls=self._calls_before + self._meter.calls,
            tokens=self._tokens_before + self._meter.tokens,
        )

    async def rounds(self, plan: Callable[[QAId | None], Round]) -> None:
        """Decide all that is archived, then what was archived meanwhile, until nothing is left."""
        journal = self._parts.journal
        while True:
            for number, qa_ids in list(enumerate(journal.epochs))[journal.finished :]:
                await self._building.epoch(number, qa_ids)
                spent = self.so_far()
                await run_sync(journal.write, Finished(epoch=number, calls=spent.calls, tokens=spent.tokens))
                if self._building.decided >= EPOCH:
                    await run_sync(self._refuse_if_most_failed)
            await run_sync(self._replace)
            following = await run_sync(plan, journal.rounds[-1].last if journal.rounds else None)
            if not following.pairs:
                return
            await run_sync(journal.write, following)

    def finished(self, decisions: Decisions) -> list[PairDecision]:
        """Make the library fit to stand, and give the decisions that belong to it, as of now. Raises KnowledgeError."""
        library, journal = self._parts.library, self._parts.journal
        held_back = {time_of(qa_id) for qa_id in chain(*journal.epochs) if is_held_back(qa_id, decisions)}
        for qa_id in map(qa_id_of, sorted(held_back)):
            topic = library.topic_of(qa_id)
            if topic is not None:
                library.update(topic, None, [qa_id])
        self._say_what_was_forgotten()
        if self._replaces_topics:
            self._refuse_if_most_failed()
            self._refuse_if_nothing_is_left()
        drafted = in_order(self._parts.draft.taken(), journal.epochs)
        known = (decisions.of(each.qa_id) for each in drafted)
        # They hold from now on, whatever was decided about the old library meanwhile, be it by a clock that was ahead.
        now = max(chain([self._clock.now()], (each.at for each in known if each is not None)))
        return [replace(each, at=now) for each in drafted if time_of(each.qa_id) not in held_back]

    def result(self, drafted: Iterable[PairDecision]) -> Regenerated:
        """What was done."""
        last = {time_of(each.qa_id): each for each in drafted}
        return Regenerated(
            pairs=sum(each.pairs for each in self._parts.journal.rounds),
            tally=Tally.of(last.values()),
            topics=len(self._parts.library.names()),
            parked=tuple(each.qa_id for each in last.values() if isinstance(each, Parked)),
            calls=self.so_far().calls,
            tokens=self.so_far().tokens,
        )

    def _say_what_was_forgotten(self) -> None:
        """While this library lay unfinished, somebody may have been forgotten, whose blocks were taken out at once."""
        parts = self._parts
        for qa_id in chain(*parts.journal.epochs):
            if isinstance(parts.draft.of(qa_id), Filed | Moved) and parts.library.topic_of(qa_id) is None:
                pair = parts.archive.get(qa_id)
                if pair is not None and parts.filer.left_of(pair) is None:
                    reason = "its question or its answer was withdrawn"
                    parts.draft.append(Removed(qa_id=qa_id, reason=reason, at=self._clock.now()))

    def _replace(self) -> None:
        """Say of the older captures which ones stand for them."""
        draft, now = self._parts.draft, self._clock.now()
        pairs = chain(*(each.replaced for each in self._parts.journal.rounds))
        draft.extend(Replaced(qa_id=qa_id, by=by, at=now) for qa_id, by in pairs if draft.of(qa_id) is None)

    def _refuse_if_most_failed(self) -> None:
        """A model that refuses nearly everything must not cost what another one has learned."""
        parked, decided = self._building.parked, self._building.decided
        if parked * 2 > decided:
            reasons = (each.reason for each in reversed(self._parts.draft.taken()) if isinstance(each, Parked))
            self._refuse(f"{parked} of {decided} conversations failed, the last one so: {next(reasons)}")

    def _refuse_if_nothing_is_left(self) -> None:
        """No topic at all is right only where nothing could be filed: all of it was withdrawn, or is held back."""
        skipped = sum(isinstance(each, Skipped) for each in self._parts.draft.taken())
        if not self._parts.library.names() and skipped:
            self._refuse(f"the model skipped all {skipped} conversations")
        if not self._parts.journal.rounds:
            self._refuse("the archive holds no pairs", "Put the archive back, or move that folder away to begin anew")

    def _refuse(
        self, why: str, what_to_do: str = "See to the model and its prompts, then regenerate again"
    ) -> NoReturn:
        # What is kept would be gone on with, and would end here again.
        discard(self._topics_dir, self._layer)
        raise KnowledgeError(f"{why}; {self._topics_dir} stays as it was. {what_to_do}")


def fingerprint(basis: str, options: LearningOptions) -> str:
    """Tells whether a regeneration that was begun may go on. Who may be filed is settled by its plan, not by this."""
    return sha256(msgspec.json.encode([basis, replace(options, review=False), EPOCH])).hexdigest()


def progress_of(topics_dir: Path) -> Progress | None:
    """How far the regeneration came that is at work or was stopped, to an epoch; None where there is none. Blocks.

    Anybody may look, at any time. Raises KnowledgeError.
    """
    journal = Journal(upcoming(topics_dir), FileLayer())
    if not journal.rounds:
        return None
    decided = sum(map(len, journal.epochs[: journal.finished]))
    return Progress(
        classified=decided + len(journal.first),
        decided=decided,
        total=sum(len(each.order) for each in journal.rounds),
        calls=journal.calls,
        tokens=journal.tokens,
    )


def _resumable(error: ModelUnavailableError, so_far: Progress) -> ModelUnavailableError:
    # As the family has it: what the endpoint's own class holds beside the message helps nobody any more.
    kind = next(
        (kind for kind in (ModelAccessError, ModelBudgetError) if isinstance(error, kind)), ModelUnavailableError
    )
    kept = f"{so_far.decided} of {so_far.total} conversations are done and kept; regenerate again to go on from there"
    return kind(f"{error}; {kept}")
