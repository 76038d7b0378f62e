"""The results of an import: as if the captures were archived one after the other, but each conversation once."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from intern.core.captures import Capture, CapturedPair, Turn
from intern.core.ids import ConversationId, MessageId, UserId
from intern.learning.archivist import Archivist, iter_author_names
from intern.learning.importing import ImportCounts, ImportPlan, archive_imported, plan_import
from intern.learning.rehearsal_archive import RehearsalArchive
from intern.stores.archive import Archive
from tests.examples import examples
from tests.worlds.clock import HandClock


def capture(*ids: int) -> Capture:
    """Make a capture; odd messages are a user's, even ones the team's."""
    return Capture(
        conversation_id=ConversationId(f"reply_{min(ids)}"),
        turns=tuple(Turn("User" if each % 2 else "Team", f"text {each}") for each in sorted(ids)),
        message_ids=tuple(MessageId(str(each)) for each in sorted(ids)),
        answered_at=datetime(2026, 1, 1, 0, max(ids), tzinfo=UTC),
    )


def archivist(archive: Archive | RehearsalArchive) -> Archivist:
    return Archivist(archive, mask=False, is_withdrawn=lambda _: False)


async def rehearsed(captures: list[Capture], archive: Archive) -> ImportPlan:
    rehearsal = RehearsalArchive(archive)
    return await plan_import(captures, archive, rehearsal, archivist(rehearsal))


def conversations(archive: Archive) -> dict[ConversationId, CapturedPair]:
    return {pair.conversation_id: pair for pair in archive.pairs_after(None)}


async def test_what_authors_are_called_goes_with_the_captures_and_not_into_the_archive(tmp_path: Path) -> None:
    archive = Archive(tmp_path, clock=HandClock())
    mia, ann = UserId("71"), UserId("72")
    said = replace(capture(3, 4), author_ids=(mia, ann), author_names=(("mia", "m"), ("ann",)))
    plan = await rehearsed([said], archive)
    assert [each.author_names for each in plan.captures] == [(("mia", "m"), ("ann",))]
    assert dict(iter_author_names(plan.captures[0])) == {mia: ("mia", "m"), ann: ("ann",)}
    await archive_imported(plan.captures, archive, archivist(archive))
    assert [each.author_names for each in archive.pairs_after(None)] == [()]


async def test_two_conversations_that_share_a_message_stay_two(tmp_path: Path) -> None:
    archive = Archive(tmp_path, clock=HandClock())
    captures = [capture(3, 4), capture(5, 6), capture(5, 6, 4)]
    captures[2] = Capture(
        conversation_id=captures[1].conversation_id,
        turns=captures[2].turns,
        message_ids=captures[2].message_ids,
        answered_at=captures[2].answered_at,
    )
    plan = await rehearsed(captures, archive)
    assert plan.would == ImportCounts(archived=2)
    assert await archive_imported(plan.captures, archive, archivist(archive)) == ImportCounts(archived=2)
    assert {each: pair.message_ids for each, pair in conversations(archive).items()} == {
        "reply_3": ("3", "4"),
        "reply_5": ("4", "5", "6"),
    }
    assert await archive_imported(plan.captures, archive, archivist(archive)) == ImportCounts(known=2)


_WHOLE = st.lists(st.integers(1, 12), min_size=2, max_size=5, unique=True).filter(
    lambda ids: {each % 2 for each in ids} == {0, 1}
)
_CAPTURES = st.lists(_WHOLE.map(lambda ids: capture(*ids)), max_size=8)


@settings(max_examples=examples(100), deadline=None)
@given(history=_CAPTURES)
async def test_an_import_ends_where_one_capture_after_the_other_would_have_ended(
    tmp_path_factory: pytest.TempPathFactory, history: list[Capture]
) -> None:
    folded, step_by_step = (Archive(tmp_path_factory.mktemp("archive"), clock=HandClock()) for _ in range(2))
    plan = await rehearsed(history, folded)
    kept = await archive_imported(plan.captures, folded, archivist(folded))
    assert kept == ImportCounts(archived=plan.would.archived)
    for each in history:
        await archivist(step_by_step).archive_capture(each)
    ours, theirs = conversations(folded), conversations(step_by_step)
    assert {each: (pair.turns, pair.message_ids, pair.answered_at) for each, pair in ours.items()} == {
        each: (pair.turns, pair.message_ids, pair.answered_at) for each, pair in theirs.items()
    }


@pytest.mark.rest
@settings(max_examples=examples(100), deadline=None)
@given(live=_CAPTURES, history=_CAPTURES)
async def test_a_second_import_adds_nothing_whatever_was_captured_live_and_in_whatever_order(
    tmp_path_factory: pytest.TempPathFactory, live: list[Capture], history: list[Capture]
) -> None:
    archive = Archive(tmp_path_factory.mktemp("archive"), clock=HandClock())
    for each in live:
        await archivist(archive).archive_capture(each)
    plan = await rehearsed(history, archive)
    kept = await archive_imported(plan.captures, archive, archivist(archive))
    assert (kept.archived, kept.joined, kept.known) == (plan.would.archived, plan.would.joined, 0)
    held = {message_id for pair in conversations(archive).values() for message_id in pair.message_ids}
    assert held == {message_id for each in (*live, *history) for message_id in each.message_ids}
    assert (await rehearsed(history, archive)).captures == ()
