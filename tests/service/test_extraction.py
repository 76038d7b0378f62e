"""Nuggets and facts in a folder: they come with filed conversations, change with them, and are deleted with them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from anyio import fail_after, move_on_after
from anyio.to_thread import run_sync

from intern.core.captures import Capture, CapturedPair, Speaker, Turn
from intern.core.decisions import Decision, PairApproved, PairMoved, PairRejected, PairSkipped
from intern.core.errors import ModelReplyError, ModelUnavailableError
from intern.core.flow import FailedChoice, FilingDecision, SkipChoice, TopicChoice
from intern.core.ids import ConversationId, MessageId, TopicName, UserId
from intern.core.search_documents import SearchFilter, SearchKind
from intern.facts.extraction import PAUSES
from intern.facts.prompts import EXTRACT, ExtractIn, ExtractOut, FactOut, NuggetOut
from intern.facts.reconciliation import FactRetirement
from intern.learning.forgetting import ForgetRequest
from intern.learning.prompts import CLASSIFY, INTEGRATE, ClassifyOut, IntegrateOut
from intern.search.hybrid_search import HybridSearch
from intern.service.writer import Writer
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.sources.descriptions import SUMMARIZE_TOPIC
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.documents import DocumentStore
from intern.stores.tables.facts import FactFilter
from tests.service.writers import open_writer
from tests.worlds.clock import HandClock
from tests.worlds.model import ScriptedModel

pytestmark = pytest.mark.anyio

MIA, ANN = UserId("100000000000000501"), UserId("100000000000000900")
TOM = UserId("100000000000000777")
KINDS: tuple[SearchKind, ...] = ("nugget", "fact")
QUOKKA = ConversationId("thread_1")
SPOOL = TopicName("spool")


def nugget(text: str, *sources: str) -> NuggetOut:
    return NuggetOut(
        topic="Purging the spool",
        topic_summary="How the spool is purged.",
        detailed_analysis=text,
        status="FACT",
        keywords=("spool", "purge"),
        source_message_ids=sources or ("m1", "m2"),
    )


def fact(content: str, **more: Any) -> FactOut:
    said: dict[str, Any] = {
        "category": "decision",
        "content": content,
        "summary": content[:100],
        "visibility": "shared",
        "confidence": 0.9,
        "sentiment": "neutral",
        "duplicate_of": "",
        "supersedes": "",
        "note": "",
        "source_message_ids": ("m2",),
    }
    return FactOut(**{**said, **more})


def learned(*nuggets: str, facts: tuple[FactOut, ...] = ()) -> ExtractOut:
    return ExtractOut(nuggets=tuple(nugget(each) for each in nuggets), facts=facts)


def parrot(given: ExtractIn) -> ExtractOut:
    """Repeat the whole conversation."""
    return learned(given.transcript, facts=(fact(given.transcript.replace("\n", " ")),))


async def decided(work: Writer, decision: Decision) -> None:
    await work.stores.knowledge.change(lambda change: change.decide(decision))


class Shop:
    """A writer that can be closed and opened again."""

    def __init__(self, folder: Path, **extraction: Any) -> None:
        self.settings: Settings = load_settings(
            environ={}, overrides={"data": {"dir": str(folder)}, "extraction": extraction}
        )
        self.settings.paths.sources.mkdir(parents=True)
        self.folder = folder
        self.clock = HandClock()
        self.model = ScriptedModel()
        self.model.always(EXTRACT, parrot)
        self.model.always(INTEGRATE, IntegrateOut(skip=False, remove_ids=()))

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Writer]:
        with fail_after(30):
            async with await SqliteDatabase.open(self.settings.paths.database) as self.db:
                self.work = await run_sync(open_writer, self.settings, self.db, self.model, self.clock)
                yield self.work

    async def captured(
        self,
        *said: tuple[int, UserId, str],
        conversation: str = QUOKKA,
        at: datetime | None = None,
        named: Mapping[UserId, tuple[str, ...]] | None = None,
    ) -> CapturedPair:
        self.clock.turn(seconds=1)
        speakers: list[Speaker] = ["Team" if author == ANN else "User" for _, author, _ in said]
        pair = await self.work.learning.keep(
            Capture(
                conversation_id=ConversationId(conversation),
                turns=tuple(Turn(speaker, text) for speaker, (_, _, text) in zip(speakers, said, strict=True)),
                message_ids=tuple(MessageId(str(n)) for n, _, _ in said),
                author_ids=tuple(author for _, author, _ in said),
                author_names=tuple((named or {}).get(author, ()) for _, author, _ in said),
                answered_at=at or self.clock.now(),
            )
        )
        assert pair is not None
        return pair

    async def taught(
        self, *said: tuple[int, UserId, str], conversation: str = QUOKKA, at: datetime | None = None
    ) -> CapturedPair:
        """Capture, file and read a conversation."""
        pair = await self.captured(*said, conversation=conversation, at=at)
        await self.work.learning.file(FilingDecision(pair=pair, choice=TopicChoice(name=SPOOL)))
        await self.work.extraction.catch_up()
        return pair

    async def nuggets(self) -> list[str]:
        return [each.detailed_analysis for each in await self.work.extraction.nuggets.all()]

    async def facts(self, *, active: bool | None = True) -> list[str]:
        return [each.content for each in await self.work.extraction.facts.all(FactFilter(active=active))]

    async def found(self, text: str) -> list[str]:
        finds = await HybridSearch(self.work.stores.search).find(text, SearchFilter(kinds=("nugget", "fact")), 10)
        return [each.document.kind for each in finds]

    def calls(self) -> int:
        return len(self.model.calls(EXTRACT))

    def holding(self, word: str) -> list[str]:
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.folder)) for path in files if word.encode() in path.read_bytes())


ASKED = (1, MIA, "How do I purge the spool of my quokka farm?")
ANSWERED = (2, ANN, "Run purge and wait a minute for the wombats.")
MORE = (3, MIA, "And the numbats?")
ANSWERED_MORE = (4, ANN, "They purge themselves.")


async def test_names_of_who_wrote_and_of_who_is_addressed_reach_no_model_and_nothing_that_is_learned(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path)
    async with shop.open() as work:
        shop.model.always(EXTRACT, lambda given: learned(f"Zoe, Max and Anna Berg say: {given.transcript}"))
        named = {MIA: ("Anna Berg", "anna"), ANN: ("Zoë",), TOM: ("Max",)}
        await shop.captured(
            (7, TOM, "Max says: how to feed?"), (8, ANN, "Zoe feeds them."), conversation="c2", named=named
        )
        pair = await shop.captured((1, MIA, "Max, Zoe: how to purge?"), (2, ANN, "Anna Berg, run purge"), named=named)
        assert pair.author_names == ()
        assert all(
            name not in each.read_text() for each in shop.settings.paths.raw.iterdir() for name in ("Zoë", "anna")
        )
        await work.learning.file(FilingDecision(pair=pair, choice=TopicChoice(name=SPOOL)))
        await work.extraction.catch_up()
        [call] = shop.model.calls(EXTRACT)
        [kept] = await shop.nuggets()
        for text in (call.transcript, kept):
            assert not any(name in text for name in ("Max", "Zoe", "Anna", "Berg")), text
        assert "somebody, User_2: how to purge?" in call.transcript


async def test_the_model_is_shown_no_fact_for_a_part_of_a_word(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open():
        shop.model.always(EXTRACT, lambda given: learned(facts=(fact("Certificates expire quarterly."),)))
        await shop.taught(ASKED, ANSWERED)
        await shop.taught((7, MIA, "How is tif opened?"), (8, ANN, "Tif opens in gimp."), conversation="reply_7")
        last = shop.model.calls(EXTRACT)[-1]
        assert last.existing_facts == ""


async def test_who_is_forgotten_is_known_by_no_name(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open() as work:
        await shop.captured(ASKED, ANSWERED, named={MIA: ("mia_the_quokka",), ANN: ("ann",)})
        assert await work.stores.names.read_names((MIA,)) == {MIA: ("mia_the_quokka",)}
        await work.forget(ForgetRequest(user_id=MIA, erase=True))
        assert await work.stores.names.read_names((MIA, ANN)) == {ANN: ("ann",)}
        # Lessons on their way come too late.
        await work.learning.keep(
            Capture(
                conversation_id=QUOKKA,
                turns=(Turn("User", ASKED[2]), Turn("Team", ANSWERED[2])),
                message_ids=(MessageId("1"), MessageId("2")),
                author_ids=(MIA, ANN),
                author_names=(("mia_the_quokka",), ("ann",)),
                answered_at=shop.clock.now(),
            )
        )
        assert await work.stores.names.read_names((MIA, ANN)) == {ANN: ("ann",)}
    assert shop.holding("mia_the_quokka") == []


async def test_what_is_filed_becomes_nuggets_and_facts_and_is_found(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open() as work:
        await shop.taught(ASKED, ANSWERED)
        [made] = await work.extraction.nuggets.all()
        assert (made.conversation_id, made.source_message_ids) == (QUOKKA, ("1", "2"))
        assert made.user_ids_involved == ("User_1", "User_2")
        assert len(await shop.facts()) == 1
        assert sorted(await shop.found("quokka wombats")) == ["fact", "nugget"]


THANKS = (3, MIA, "thanks a lot!")


# Finding B8.
@pytest.mark.parametrize("kept", [False, True])
async def test_thanks_that_join_a_conversation_ask_no_model_and_a_regeneration_does_not_either(
    tmp_path: Path,
    kept: bool,  # noqa: FBT001
) -> None:
    shop = Shop(tmp_path)
    shop.model.always(CLASSIFY, ClassifyOut(skip=not kept, topic_name="spool" if kept else ""))
    async with shop.open() as work:
        first = await shop.captured(ASKED, ANSWERED)
        await work.learning.file(FilingDecision(pair=first, choice=await work.learning.choose_topic(first)))
        await work.extraction.catch_up()
        asked = len(shop.model.calls(CLASSIFY)), shop.calls()
        assert asked == (1, int(kept))
        for said in ((THANKS,), (THANKS, (4, MIA, "🎉"))):
            fuller = await shop.captured(ASKED, ANSWERED, *said)
            decision = await work.learning.file(
                FilingDecision(pair=fuller, choice=await work.learning.choose_topic(fuller))
            )
            assert isinstance(decision, PairSkipped)
            await work.extraction.catch_up()
        assert (len(shop.model.calls(CLASSIFY)), shop.calls()) == asked
        assert work.stores.knowledge.find_topic(first.qa_id) == (SPOOL if kept else None)
        if kept:
            await work.learning.regenerate()
            await work.extraction.catch_up()
            assert shop.calls() == asked[1]
            assert work.stores.knowledge.find_topic(first.qa_id) == SPOOL
        else:
            approved = await shop.captured(ASKED, ANSWERED, THANKS, (5, MIA, "👍"))
            await decided(work, PairApproved(qa_id=approved.qa_id, at=shop.clock.now()))
            await work.learning.choose_topic(approved)
            assert len(shop.model.calls(CLASSIFY)) == 2  # a person's word counts


# Finding B8.
@pytest.mark.parametrize(
    "edited", [(ASKED, (2, ANN, "thanks")), (ASKED, (2, ANN, "Run purge twice.")), (ASKED, ANSWERED, MORE)]
)
async def test_what_changes_a_conversation_is_filed_whatever_it_says(
    tmp_path: Path, edited: tuple[tuple[int, UserId, str], ...]
) -> None:
    shop = Shop(tmp_path)
    async with shop.open() as work:
        await shop.taught(ASKED, ANSWERED)
        await shop.taught(*edited)
        [block] = work.stores.knowledge.read_topic(SPOOL)
        assert [turn.text for turn in block.turns] == [text for _, _, text in edited]
        assert shop.calls() == 2


# Finding B7: archives of other programs, as the specification shows them.
@pytest.mark.parametrize("ids", ["msg_123, msg_124, msg_125", "msg_123", ""])
async def test_a_conversation_whose_messages_are_not_its_turns_is_read_and_goes_with_any_of_its_messages(
    tmp_path: Path, ids: str
) -> None:
    shop = Shop(tmp_path)
    sample = (
        "--- QA ---\nid: qa_20260201_031056.228000\ntimestamp: 2026-02-01T03:10:56.228000Z\n"
        f"conversation_id: thread_1458745245675032709\nmessage_ids: {ids}\n"
        "User: How do I start a quokka node?\nTeam: Run the Docker container.\n\n"
    )
    shop.settings.paths.raw.mkdir(parents=True)
    (shop.settings.paths.raw / "2026-W05.txt").write_text(sample)
    async with shop.open() as work:
        [pair] = await work.learning.read_pairs_after(None)
        assert await work.extraction.extract_unread() == {"unknown": 1}
        await work.learning.file(FilingDecision(pair=pair, choice=TopicChoice(name=SPOOL)))
        assert await work.extraction.extract_unread() == {"extracted": 1}
        [made] = await work.extraction.nuggets.all()
        assert made.source_message_ids == pair.message_ids
        assert sorted(await shop.found("quokka docker")) == ["fact", "nugget"]
        if pair.message_ids:
            await work.learning.withdraw(pair.message_ids[-1:])
            await work.extraction.catch_up()
            assert (await shop.nuggets(), await shop.facts()) == ([], [])


async def test_nothing_that_was_read_is_read_again_after_a_restart_or_repeated_decisions(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open():
        await shop.taught(ASKED, ANSWERED)
    async with shop.open() as work:
        await work.extraction.catch_up()
        await work.extraction.save_position(0)
        assert await work.extraction.catch_up() == 1
        assert shop.calls() == 1
        assert len(await shop.nuggets()) == 1


async def test_what_was_filed_while_extraction_was_off_or_was_too_short_is_read_when_that_is_asked_for(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path, auto=False)
    async with shop.open() as work:
        await shop.taught(ASKED, ANSWERED)
        assert (shop.calls(), await shop.nuggets()) == (0, [])
        told: list[tuple[int, int]] = []
        assert await work.extraction.extract_unread(lambda done, of: told.append((done, of))) == {"extracted": 1}
        assert told == [(1, 1)]
        assert len(await shop.nuggets()) == 1
        assert await work.extraction.extract_unread() == {"unchanged": 1}
        assert await work.extraction.catch_up() == 0
        assert len(await shop.nuggets()) == 1

    shop.settings = _with(shop, min_turns=3)
    async with shop.open() as work:
        await shop.taught((21, MIA, "Where is the spool of the quokkas?"), (22, ANN, "There."), conversation="thread_8")
        assert shop.calls() == 1
    shop.settings = _with(shop, min_turns=2)
    async with shop.open() as work:
        await work.extraction.catch_up()
        assert shop.calls() == 1
        assert await work.extraction.extract_unread() == {"unchanged": 1, "extracted": 1}


def _with(shop: Shop, **extraction: Any) -> Settings:
    return load_settings(environ={}, overrides={"data": {"dir": str(shop.folder)}, "extraction": extraction})


async def test_a_command_reads_no_more_conversations_in_a_minute_than_wanted(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    model = {"base_url": "http://localhost:9/v1", "model": "m"}
    shop.settings = load_settings(
        environ={},
        overrides={"data": {"dir": str(tmp_path)}, "llm": model, "extraction": {"max_per_minute": 2}},
    )
    async with shop.open() as work:
        for n in range(1, 6):
            pair = await shop.captured((10 * n, MIA, "Why?"), (10 * n + 1, ANN, "So."), conversation=f"thread_{n}")
            await work.learning.file(FilingDecision(pair=pair, choice=TopicChoice(name=SPOOL)))
        for read in (work.extraction.catch_up, work.extraction.extract_unread):
            with move_on_after(1):
                await read()
            assert shop.calls() == 2


async def test_nothing_skipped_parked_waiting_or_rejected_gets_in(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open() as work:
        choices: list[SkipChoice | FailedChoice] = [SkipChoice(reason="chatter"), FailedChoice(reason="no idea")]
        for n, choice in enumerate(choices):
            pair = await shop.captured(
                (50 + 10 * n, MIA, "Why?"), (51 + 10 * n, ANN, "So."), conversation=f"thread_{n + 5}"
            )
            await work.learning.file(FilingDecision(pair=pair, choice=choice))
        await shop.captured(ASKED, ANSWERED)  # there is no decision about it yet
        await work.extraction.catch_up()
    shop.settings = load_settings(environ={}, overrides={"data": {"dir": str(tmp_path)}, "kb": {"review": True}})
    async with shop.open() as work:
        waiting = await shop.captured((21, MIA, "Where?"), (22, ANN, "There."), conversation="thread_8")
        await work.learning.file(FilingDecision(pair=waiting, choice=TopicChoice(name=SPOOL)))
        await work.extraction.catch_up()
        await decided(work, PairRejected(qa_id=waiting.qa_id, at=shop.clock.now()))
        await work.extraction.catch_up()
        assert shop.calls() == 0
        assert await shop.nuggets() == []


async def test_what_was_approved_is_read_once_it_is_filed(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.settings = load_settings(environ={}, overrides={"data": {"dir": str(tmp_path)}, "kb": {"review": True}})
    async with shop.open() as work:
        pair = await shop.captured(ASKED, ANSWERED)
        await work.learning.file(FilingDecision(pair=pair, choice=TopicChoice(name=SPOOL)))
        await decided(work, PairApproved(qa_id=pair.qa_id, at=shop.clock.now()))
        await work.extraction.catch_up()
        assert shop.calls() == 0
        await work.learning.file(FilingDecision(pair=pair, choice=TopicChoice(name=SPOOL)))
        await work.extraction.catch_up()
        assert len(await shop.nuggets()) == 1


async def test_a_fuller_version_takes_the_place_of_what_the_older_one_taught(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open():
        await shop.taught(ASKED, ANSWERED)
        [before] = await shop.nuggets()
        await shop.taught(ASKED, ANSWERED, MORE, ANSWERED_MORE)
        [now] = await shop.nuggets()
        assert "numbats" in now
        assert "numbats" not in before
        assert len(await shop.facts()) == 1


async def test_a_newer_version_that_waits_leaves_the_one_that_stands(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open() as work:
        await shop.taught(ASKED, ANSWERED)
        await shop.captured(ASKED, ANSWERED, MORE, ANSWERED_MORE)
        await work.extraction.save_position(0)
        await work.extraction.catch_up()
        assert len(await shop.nuggets()) == 1
        assert shop.calls() == 1


async def test_a_late_edit_is_learned_anew(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open():
        await shop.taught(ASKED, ANSWERED)
        await shop.taught((2, ANN, "Run scrub instead of that."))
        [now] = await shop.nuggets()
        assert "scrub" in now
        assert "wombats" not in now
        assert await shop.found("wombats") == []


async def test_a_deleted_answer_takes_its_nuggets_and_facts_along(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open() as work:
        await shop.taught(ASKED, ANSWERED)
        await work.learning.withdraw([MessageId("2")])
        await work.extraction.catch_up()
        assert await shop.nuggets() == []
        assert await shop.facts() == []
        assert await shop.found("quokka wombats") == []


async def test_of_a_deleted_message_beside_others_only_the_others_are_learned_from(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open() as work:
        await shop.taught(ASKED, ANSWERED, MORE, ANSWERED_MORE)
        await work.learning.withdraw([MessageId("3")])
        await work.extraction.catch_up()
        [now] = await shop.nuggets()
        assert "numbats" not in now
        assert "wombats" in now


async def test_a_split_of_topics_costs_no_call(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open() as work:
        pair = await shop.taught(ASKED, ANSWERED)
        await decided(work, PairMoved(qa_id=pair.qa_id, topic=TopicName("elsewhere"), at=shop.clock.now()))
        assert await work.extraction.catch_up() == 1
        assert shop.calls() == 1
        assert len(await shop.nuggets()) == 1


@pytest.mark.rest
async def test_a_regeneration_costs_no_call_and_takes_along_what_it_skips(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.model.always(CLASSIFY, ClassifyOut(skip=False, topic_name="spool"))
    shop.model.always(SUMMARIZE_TOPIC, ModelReplyError("no words"))
    async with shop.open() as work:
        await shop.taught(ASKED, ANSWERED)
        await shop.taught((11, MIA, "Which port?"), (12, ANN, "7480"), conversation="thread_2")
        await work.learning.regenerate()
        await work.extraction.catch_up()
        assert shop.calls() == 2
        assert len(await shop.nuggets()) == 2
        shop.model.always(
            CLASSIFY,
            lambda given: ClassifyOut(
                skip="quokka" in given.pair, topic_name="" if "quokka" in given.pair else "spool"
            ),
        )
        shop.clock.turn(days=1)
        await work.learning.regenerate()
        await work.extraction.catch_up()
        assert shop.calls() == 2
        [left] = await shop.nuggets()
        assert "7480" in left
        assert await shop.found("quokka") == []


async def test_a_failure_is_told_from_nothing_to_learn_tried_again_and_parked_at_last(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.model.always(EXTRACT, ModelReplyError("it sang"))
    async with shop.open() as work:
        await shop.taught(ASKED, ANSWERED)
        entry = await work.extraction.log.read_entry(QUOKKA)
        assert entry is not None
        assert (entry.error, entry.attempts, entry.next_at) == ("it sang", 1, shop.clock.now() + PAUSES[0])
        due = await work.extraction.find_next_due(frozenset())
        assert (due.record, due.seconds) == (None, PAUSES[0].total_seconds())
        for pause in PAUSES:
            shop.clock.turn(seconds=pause.total_seconds())
            due = await work.extraction.find_next_due(frozenset())
            assert due.record is not None
            assert due.record.conversations == (QUOKKA,)
            assert await work.extraction.extract(QUOKKA) == "failed"
        parked = await work.extraction.log.read_entry(QUOKKA)
        assert parked is not None
        assert (parked.attempts, parked.next_at) == (3, None)
        assert (await work.extraction.find_next_due(frozenset())).seconds is None
        shop.clock.turn(days=30)
        assert await work.extraction.extract(QUOKKA) == "failed"
        assert shop.calls() == 3
        shop.model.always(EXTRACT, learned())
        await shop.taught(ASKED, ANSWERED, MORE)
        nothing = await work.extraction.log.read_entry(QUOKKA)
        assert nothing is not None
        assert (nothing.error, nothing.nuggets_extracted) == (None, 0)


async def test_an_absent_model_changes_nothing_and_the_log_goes_on_from_there(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.model.next(EXTRACT, ModelUnavailableError("asleep"))
    async with shop.open() as work:
        with pytest.raises(ModelUnavailableError):
            await shop.taught(ASKED, ANSWERED)
        assert await work.extraction.log.read_entry(QUOKKA) is None
    async with shop.open() as work:
        await work.extraction.catch_up()
        assert len(await shop.nuggets()) == 1


async def test_too_short_a_conversation_is_passed_over(tmp_path: Path) -> None:
    shop = Shop(tmp_path, min_turns=3)
    async with shop.open() as work:
        await shop.taught(ASKED, ANSWERED)
        assert shop.calls() == 0
        assert await work.extraction.extract(QUOKKA) == "too short"
        await shop.taught(ASKED, ANSWERED, MORE)
        assert shop.calls() == 1


async def test_without_auto_nothing_is_read_and_what_was_learned_still_goes(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open():
        await shop.taught(ASKED, ANSWERED)
    shop.settings = load_settings(environ={}, overrides={"data": {"dir": str(tmp_path)}, "extraction": {"auto": False}})
    async with shop.open() as work:
        await shop.taught((11, MIA, "Which port?"), (12, ANN, "7480"), conversation="thread_2")
        assert shop.calls() == 1
        await work.extraction.save_position(0)
        await work.extraction.catch_up()
        assert len(await shop.nuggets()) == 1
        await shop.taught((2, ANN, "Something else."))
        assert await shop.nuggets() == []


@pytest.mark.rest
async def test_facts_that_share_its_words_are_shown_beside_a_conversation_and_not_the_latest(tmp_path: Path) -> None:
    shop = Shop(tmp_path, existing_facts=2)
    async with shop.open():
        shop.model.always(EXTRACT, learned("x", facts=(fact("The spool is purged every night by decree."),)))
        await shop.taught(ASKED, ANSWERED)
        for n in range(4):
            shop.model.always(EXTRACT, learned(facts=(fact(f"Gate number {n} opens at dawn."),)))
            ids = (20 + 10 * n, 21 + 10 * n)
            await shop.taught((ids[0], MIA, "The gates?"), (ids[1], ANN, "Dawn."), conversation=f"thread_1{n}")
        shop.model.always(EXTRACT, learned())
        await shop.taught((91, MIA, "Is the spool purged?"), (92, ANN, "Every night."), conversation="thread_9")
        shown = shop.model.calls(EXTRACT)[-1].existing_facts
        assert "f1 2026-02-01 decision The spool is purged every night by decree." in shown


async def test_a_fact_that_is_updated_is_found_as_retired_only(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open():
        shop.model.next(EXTRACT, learned(facts=(fact("The relay listens on port 7480 by default."),)))
        await shop.taught(ASKED, ANSWERED)
        shop.clock.turn(days=1)
        update = fact("The relay listens on port 9000 by default.", supersedes="f1")
        shop.model.next(EXTRACT, learned(facts=(update,)))
        await shop.taught((11, MIA, "Which port does the relay use?"), (12, ANN, "9000 now"), conversation="thread_2")
        assert await shop.facts() == ["The relay listens on port 9000 by default."]
        assert len(await shop.facts(active=None)) == 2
        finds = await HybridSearch(shop.work.stores.search).find(
            "relay port", SearchFilter(kinds=("fact",), retired=True), 10
        )
        assert sorted(each.document.status for each in finds) == ["active", "retired"]
        [found] = await HybridSearch(shop.work.stores.search).find("relay port", SearchFilter(kinds=("fact",)), 10)
        assert found.document.status == "active"


async def test_an_answer_of_the_model_that_comes_after_a_deletion_is_dropped(tmp_path: Path) -> None:
    shop = Shop(tmp_path)

    async def slow(given: ExtractIn) -> ExtractOut:
        await shop.work.learning.withdraw([MessageId("2")])
        return parrot(given)

    shop.model.always(EXTRACT, slow)
    async with shop.open():
        await shop.taught(ASKED, ANSWERED)
        assert await shop.nuggets() == []
        assert await shop.facts() == []


@pytest.mark.parametrize("erase", [False, True])
async def test_what_was_forgotten_stands_in_no_nugget_fact_or_search_row(tmp_path: Path, *, erase: bool) -> None:
    shop = Shop(tmp_path)
    async with shop.open() as work:
        await shop.taught(ASKED, ANSWERED)
        await shop.taught((11, ANN, "The numbats."), (12, MIA, "Who?"), conversation="thread_2")
        assert "intern.db-wal" in shop.holding("wombats")
        await work.forget(ForgetRequest(user_id=ANN, erase=erase))
        await work.extraction.catch_up()
        assert await shop.nuggets() == []
        assert await shop.facts(active=None) == []
        assert await shop.found("wombats quokka numbats") == []
        rows = await shop.db.read(lambda db: db.rows("select text from documents where text like '%wombats%'"))
        assert rows == []
        if erase:
            assert shop.holding("wombats") == []


async def test_the_search_is_made_true_after_a_kill_between_two_writes(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open():
        await shop.taught(ASKED, ANSWERED)
        documents = DocumentStore(shop.db)
        for kind in KINDS:
            await documents.delete_sources([each.source_id for each in await documents.list_documents(kind)])
        assert await shop.found("wombats") == []
    async with shop.open() as work:
        assert await work.extraction.extractor.repair_search() == 2
        assert sorted(await shop.found("wombats")) == ["fact", "nugget"]
        assert await work.extraction.extractor.repair_search() == 0


async def test_what_others_said_is_learned_anew_though_it_was_read_between_tombstone_and_forgetting(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path)
    async with shop.open() as work:
        await shop.taught(ASKED, ANSWERED, (3, UserId("100000000000000777"), "And the numbats?"), ANSWERED_MORE)
        shop.model.always(SUMMARIZE_TOPIC, ModelReplyError("no words"))
        forgetting, nudges = work.extraction.extractor.forget, iter([work.extraction.catch_up])

        async def late(message_ids: Collection[MessageId]) -> None:
            for catch_up in nudges:  # another filing woke the followers of the decisions
                assert await catch_up() > 0
            await forgetting(message_ids)

        work.extraction.extractor.forget = late  # type: ignore[method-assign]
        await work.forget(ForgetRequest(user_id=MIA))
        due = await work.extraction.find_next_due(frozenset())
        assert due.record is not None
        assert due.record.conversations == (QUOKKA,)
    async with shop.open() as work:  # a restart does not lose it
        await work.extraction.catch_up()
        [left] = await shop.nuggets()
        assert "wombats" in left
        assert "quokka" not in left
        assert (await work.extraction.find_next_due(frozenset())).record is None


async def test_the_text_of_a_deleted_message_is_found_nowhere(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open() as work:
        shop.model.next(EXTRACT, learned("x", facts=(fact("The quokkas live in Quokka Street."),)))
        await shop.taught(ASKED, ANSWERED)
        assert "fact" in await shop.found("quokka street")
        await work.learning.withdraw([MessageId("2")])
        await work.extraction.catch_up()
        assert await shop.found("quokka street") == []
        assert await shop.facts(active=None) == []


async def test_retiring_and_forgetting_look_at_what_they_touch_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path)
    async with shop.open() as work:
        await shop.taught(ASKED, ANSWERED)
        await shop.taught((11, MIA, "Which port?"), (12, ANN, "7480"), conversation="thread_2")
        looked_at_all = AsyncMock(side_effect=AssertionError("all were looked at"))
        for store, name in ((work.stores.search, "stamps"), (work.extraction.nuggets, "stamps")):
            monkeypatch.setattr(store, name, looked_at_all)
        for fact_id in [each.id for each in await work.extraction.facts.all(FactFilter())]:
            await work.extraction.retire(FactRetirement(fact_id=fact_id, why="wrong"))
        finds = await HybridSearch(work.stores.search).find(
            "wombats", SearchFilter(kinds=("fact",), status="retired"), 10
        )
        assert [each.document.status for each in finds] == ["retired"]
        await work.extraction.forget([MessageId("2")])
        assert await shop.found("wombats") == []
        assert len(await shop.nuggets()) == 1


async def test_what_an_operator_retired_is_shown_as_that_and_stays_so_after_an_edit(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open() as work:
        shop.model.next(EXTRACT, learned("x", facts=(fact("The spool is purged every night by decree."),)))
        await shop.taught(ASKED, ANSWERED)
        [wrong] = await work.extraction.facts.all(FactFilter())
        shop.clock.turn(minutes=1)
        await work.extraction.retire(FactRetirement(fact_id=wrong.id, why="wrong"))
        for wording in ("Every night, by decree, somebody purges the spool.", "By decree the spool is purged nightly."):
            shop.model.next(EXTRACT, learned("x", facts=(fact(wording),)))
            await shop.taught(
                (2, ANN, f"Run purge and wait a minute for the wombats! {len(wording)}"), at=wrong.last_seen_at
            )
            shown = shop.model.calls(EXTRACT)[-1].existing_facts
            assert "(retired: not to be said again) The spool is purged every night by decree." in shown
            assert await shop.facts() == []
            assert await shop.facts(active=None) == [wrong.content]


async def test_a_change_of_settings_reaches_stored_facts_at_the_next_start(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    data = {"data": {"dir": str(tmp_path)}}
    shop.settings = load_settings(environ={}, overrides={**data, "facts": {"keep_secret": True}})
    async with shop.open() as work:
        await work.extraction.extractor.repair_search()
        taught = (fact("The password of the spool is hunter2."), fact("The spool is purged by wombats."))
        shop.model.next(EXTRACT, learned(facts=taught))
        await shop.taught(ASKED, ANSWERED)
        assert len(await work.extraction.facts.all(FactFilter(secret=True))) == 2
    rule = {"contains": "wombats", "visibility": "private"}
    shop.settings = load_settings(environ={}, overrides={**data, "facts": {"overrides": [rule]}})
    async with shop.open() as work:
        await work.extraction.extractor.repair_search()
        [left] = await work.extraction.facts.all(FactFilter(active=None, secret=True))
        assert (left.content, left.visibility) == ("The spool is purged by wombats.", "private")
        [found] = await HybridSearch(work.stores.search).find("wombats", SearchFilter(kinds=("fact",)), 10)
        assert found.document.visibility == "private"
        await shop.db.scrub()
    assert shop.holding("hunter2") == []


async def test_a_fact_that_is_secret_by_now_is_found_no_more(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.open() as work:
        shop.model.next(EXTRACT, learned(facts=(fact("The wombats sleep in the cellar."),)))
        await shop.taught(ASKED, ANSWERED)
        assert await shop.found("wombats cellar") == ["fact"]
        shop.model.next(EXTRACT, learned(facts=(fact("The wombats sleep in the cellar.", visibility="secret"),)))
        await shop.taught((11, MIA, "Where do they sleep?"), (12, ANN, "There."), conversation="thread_2")
        assert await shop.found("wombats cellar") == []
        assert await work.extraction.facts.all(FactFilter(active=None, secret=True)) == ()
