"""All kinds of jobs, each with what it takes and gives. The writer does them; front ends request them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from intern.core.captures import Capture, CapturedPair
from intern.core.decisions import PairDecision
from intern.core.ids import MessageId, QAId
from intern.facts.extraction import ExtractionOutcome
from intern.facts.reconciliation import FactRetirement
from intern.learning.forgetting import ForgetRequest, ForgetResult
from intern.learning.importing import ImportCounts
from intern.learning.regenerating import RegenerationResult
from intern.learning.review import Review
from intern.service.calibration import CalibrationStatus
from intern.service.extraction import NotesJob
from intern.service.restoring import TopicAdoption
from intern.sources.discovery import DiscoveryReport
from intern.sources.refresh import RefreshReport
from intern.stores.tables.answers import GapState
from intern.stores.tables.jobs import JobKind
from intern.stores.tables.judgements import Judgement


class GapClosing(Struct, frozen=True, kw_only=True):
    """Questions that are closed as a gap."""

    question_ids: tuple[MessageId, ...]
    how: GapState


INDEX = JobKind(name="index", takes=None, gives=RefreshReport)
"""Bring the indices up to date, with pages."""
REFRESH = JobKind(name="refresh", takes=None, gives=RefreshReport)
"""Bring the indices up to date for a search, without a model call."""
FRESHEN = JobKind(name="freshen", takes=Sequence[str], gives=DiscoveryReport)
"""Read discovered files again."""
DISCOVER = JobKind(name="discover", takes=None, gives=DiscoveryReport)
"""Process the weightiest questions of discovery's feed."""
REBUILD_SEARCH = JobKind(name="rebuild_search", takes=None, gives=None)

CAPTURE = JobKind(name="capture", takes=Capture, gives=CapturedPair | None, wakes=True)
"""Archive and file a team answer. Gives nothing where the archive holds all of it already."""
IMPORT = JobKind(name="import", takes=Sequence[Capture], gives=ImportCounts, wakes=True)
REGENERATE = JobKind(name="regenerate", takes=None, gives=RegenerationResult, wakes=True)
REVIEW = JobKind(name="review", takes=Review, gives=tuple[PairDecision, ...], wakes=True)
"""Approve or reject captures; gives the last decision about each."""
RETRY = JobKind(name="retry", takes=Sequence[QAId], gives=tuple[PairDecision, ...], wakes=True)
"""File parked pairs, all if none is named; gives the last decision about each."""
ADOPT = JobKind(name="adopt", takes=str, gives=TopicAdoption)
"""Take in an edited topic, by its label."""
# A tombstone must be saved at once, even while an earlier forget job waits for its topics. So several run.
FORGET = JobKind(name="forget", takes=ForgetRequest, gives=ForgetResult, at_once=8, wakes=True)

EXTRACT = JobKind(name="extract", takes=None, gives=Mapping[ExtractionOutcome, int])
"""Read the conversations that were never read; gives their number by outcome."""
IMPORT_NOTES = JobKind(name="import_notes", takes=NotesJob, gives=Mapping[ExtractionOutcome, int])
RETIRE_FACT = JobKind(name="retire_fact", takes=FactRetirement, gives=FactRetirement)
CALIBRATE = JobKind(name="calibrate", takes=Sequence[Judgement], gives=CalibrationStatus)
"""Store judgements, and calibrate by all."""
CLOSE_GAPS = JobKind(name="close_gaps", takes=GapClosing, gives=None)
