"""A whole story: a capture is filed and distilled, answers a later question with a link, and is withdrawn."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after
from anyio.to_thread import run_sync
from msgspec.structs import replace

from intern.answering.answerer import Answerer
from intern.answering.distilled_sources import DistilledSourceFinder
from intern.answering.prompts import CONFIRM, DECIDE, AnswerDecision, Claim, Confirmation, DecideIn, Quote
from intern.core.captures import Capture, Turn
from intern.core.errors import KnowledgeError, SourceError
from intern.core.flow import FilingDecision, TopicChoice
from intern.core.ids import ChannelId, ConversationId, FactId, GuildId, MessageId, SourceId, TopicName, UserId
from intern.core.knowledge import LearnedMatches, SourceText
from intern.core.messages import AnswerResult, Conversation, Message, RequestContext
from intern.facts.prompts import EXTRACT, ExtractIn, ExtractOut, FactOut, NuggetOut
from intern.facts.reconciliation import FactRetirement
from intern.learning.forgetting import ForgetRequest
from intern.learning.prompts import INTEGRATE, IntegrateOut
from intern.search.hybrid_search import HybridSearch
from intern.service.opening import open_intern
from intern.service.writer import Writer
from intern.settings.loading import load_settings
from intern.sources.catalogue import Catalogue
from intern.sources.library import Library
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.facts import FactFilter
from tests.service.writers import open_writer
from tests.worlds import samples
from tests.worlds.clock import HandClock
from tests.worlds.model import ScriptedModel

pytestmark = pytest.mark.anyio

MIA, ANN = UserId("100000000000000501"), UserId("100000000000000900")
QUESTION = "How do I purge the spool of the relay?"
LINK = "https://discord.com/channels/77/88/{}"
CONTEXT = RequestContext(platform="script")
SAID = "Stop it first, then run `relay spool purge --all` and wait a minute."


def reading(given: ExtractIn) -> ExtractOut:
    """Extract a nugget as a model that also invents a command."""
    del given
    nugget = NuggetOut(
        topic="Purging the spool",
        topic_summary="How the spool is purged.",
        detailed_analysis="Purge the spool of the relay while it is stopped. Also try `relay spool shred --now`.",
        status="FACT",
        keywords=("spool", "purge"),
        source_message_ids=("m1", "m2"),
    )
    fact = FactOut(
        category="technical",
        content="The spool of the relay is purged while the relay is stopped.",
        summary="The spool is purged while the relay is stopped.",
        visibility="shared",
        confidence=0.9,
        sentiment="neutral",
        duplicate_of="",
        supersedes="",
        note="",
        source_message_ids=("m2",),
    )
    return ExtractOut(nuggets=(nugget,), facts=(fact,))


class Town:
    """A folder where the team teaches and members ask."""

    def __init__(self, folder: Path, work: Writer, model: ScriptedModel, library: Library) -> None:
        self.folder = folder
        self.work = work
        self.model = model
        self.library = library
        self.given: list[DecideIn] = []

    async def teach(self) -> None:
        pair = await self.work.learning.keep(
            Capture(
                conversation_id=ConversationId("thread_1"),
                turns=(Turn("User", "The spool of my relay is full, what now?"), Turn("Team", SAID)),
                message_ids=(MessageId("101"), MessageId("102")),
                author_ids=(MIA, ANN),
                guild_id=GuildId("77"),
                channel_id=ChannelId("88"),
                answered_at=self.work.stores.archive.newest_time() or HandClock().now(),
            )
        )
        assert pair is not None
        await self.work.learning.file(FilingDecision(pair=pair, choice=TopicChoice(name=TopicName("spool"))))
        await self.work.extraction.catch_up()

    async def ask(self, kind: str, answer: str) -> AnswerResult:
        """Ask; the answer quotes the first shown passage of a kind."""

        def decide(given: DecideIn) -> AnswerDecision:
            self.given.append(given)
            fit = [each for each in given.passages if each.source_id.startswith(f"{kind}:")][:1]
            quotes = tuple(Quote(source=each.alias, line=each.text.split("\n")[0]) for each in fit)
            return AnswerDecision(quotes=quotes, kind="answer" if fit else "not_covered", answer=answer)

        claims = (Claim(claim="purge", quote=1),)
        right = Confirmation(asked="how", told="how", verdict="answered", claims=claims)
        self.model.always(DECIDE, decide)
        self.model.always(CONFIRM, right)
        answerer = Answerer(self.model, self.library, load_settings(environ={}).ai)
        return await answerer.answer(Conversation((Message(role="user", text=QUESTION),)), CONTEXT, addressed=True)


@asynccontextmanager
async def town(folder: Path, more: Mapping[str, Any] | None = None) -> AsyncGenerator[Town]:
    settings = load_settings(environ={}, overrides={"data": {"dir": str(folder)}, **(more or {})})
    settings.paths.sources.mkdir(parents=True)
    model, clock = ScriptedModel(), HandClock()
    model.always(EXTRACT, reading)
    model.always(INTEGRATE, IntegrateOut(skip=False, remove_ids=()))
    with fail_after(30):
        async with await SqliteDatabase.open(settings.paths.database) as db:
            work = await run_sync(open_writer, settings, db, model, clock)
            learned = DistilledSourceFinder(
                db,
                work.stores.search,
                HybridSearch(work.stores.search),
                archive=work.stores.archive,
                decisions=work.stores.knowledge,
                clock=clock,
                min_confidence=settings.facts.min_confidence,
            )
            yield Town(folder, work, model, library_of(work, learned))


def library_of(work: Writer, learned: DistilledSourceFinder | Broken) -> Library:
    knowledge = work.stores.knowledge
    return Library(
        indices=(Catalogue(knowledge, "kb"), Catalogue(knowledge, "team")),
        sources=work.stores.sources,
        topics=knowledge,
        archive=work.stores.archive,
        distilled=learned,
    )


async def test_a_later_question_is_answered_from_a_nugget_with_a_link_to_its_conversation(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        assert (await here.ask("nugget", "Run `relay spool purge --all`.")).reason == "no_sources"
        await here.teach()
        result = await here.ask("nugget", "Stop the relay, then run `relay spool purge --all`.")
        assert result.should_reply, result.reason
        [citation] = result.citations
        [made] = await here.work.extraction.nuggets.all()
        assert (citation.source_id, citation.title) == (f"nugget:{made.id}", "Purging the spool")
        assert citation.url == LINK.format(102)
        [passage] = [each for each in here.given[-1].passages if each.source_id.startswith("nugget:")]
        assert "\n(the team said so, 20" in passage.text
        assert "FACT" not in passage.text
        assert "How the spool is purged." in passage.text


async def test_a_fact_that_fits_is_shown_and_can_be_cited(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        await here.teach()
        result = await here.ask("fact", "Purge the spool while the relay is stopped.")
        assert [each.source_id.partition(":")[0] for each in result.citations] == ["fact"]
        assert [each.url for each in result.citations] == [LINK.format(102)]


async def test_a_fact_that_is_too_uncertain_is_no_material_and_the_more_certain_comes_first(tmp_path: Path) -> None:
    def unsure(given: ExtractIn) -> ExtractOut:
        read = reading(given)
        said = "The spool of the relay is purged while the relay {}."
        sure = {"is stopped": 0.55, "sleeps": 0.95, "runs": 0.05, "is new": 0.49, "rests": 0.5}
        facts = (replace(read.facts[0], content=said.format(how), confidence=value) for how, value in sure.items())
        return ExtractOut(nuggets=(), facts=tuple(facts))

    async with town(tmp_path) as here:
        here.model.always(EXTRACT, unsure)
        await here.teach()
        facts = (await here.library.find_distilled(QUESTION)).facts
        kept = await here.work.extraction.facts.all(FactFilter())
    assert [fact.text.partition(", said")[0] for fact in facts] == [
        "The spool of the relay is purged while the relay sleeps.\n(confidence 0.95",
        "The spool of the relay is purged while the relay is stopped.\n(confidence 0.55",
        "The spool of the relay is purged while the relay rests.\n(confidence 0.50",
    ]
    assert len(kept) == 5


@pytest.mark.rest
@pytest.mark.parametrize(("least", "shown"), [(0.5, 1), (0.6, 0)])
async def test_the_operator_says_how_certain_a_fact_must_be(tmp_path: Path, least: float, shown: int) -> None:
    overrides = {"data": {"dir": str(tmp_path)}, "facts": {"min_confidence": least}}
    settings = load_settings(environ={}, overrides=overrides)
    settings.paths.sources.mkdir(parents=True)
    with fail_after(30):
        async with open_intern(settings, clock=HandClock()) as intern:
            asked, said = (
                "How do I purge the spool?",
                "As of now the spool of the relay is purged with the relay stopped.",
            )
            assert await intern.capture(samples.capture(asked, said)) is not None
            await intern.index()
            result = await intern.answer(Conversation((Message(role="user", text=QUESTION),)))
    assert result.debug is not None
    assert len(result.debug["selection"]["facts"]) == shown


async def test_a_fact_about_something_else_is_no_material(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        await here.teach()
        assert (await here.library.find_distilled("Which fonts can the terminal show on Windows?")).facts == ()
        assert len((await here.library.find_distilled("purge spool relay")).facts) == 1


@pytest.mark.rest
@pytest.mark.parametrize("kind", ["nugget", "fact"])
async def test_what_a_model_made_up_vouches_for_no_command_and_no_link(tmp_path: Path, kind: str) -> None:
    async with town(tmp_path) as here:
        await here.teach()
        assert (await here.ask(kind, "Run `relay spool shred --now`.")).reason == "ungrounded"
        assert (await here.ask(kind, "See https://relay.example.net/spool for it.")).reason == "ungrounded"
        assert (await here.ask(kind, "Run `relay spool purge --all`.")).should_reply


@pytest.mark.parametrize("erase", [False, True])
async def test_what_was_forgotten_is_in_no_list_and_no_material(tmp_path: Path, *, erase: bool) -> None:
    async with town(tmp_path) as here:
        await here.teach()
        [made] = await here.work.extraction.nuggets.all()
        await here.work.forget(ForgetRequest(user_id=ANN, erase=erase))
        result = await here.ask("nugget", "Run `relay spool purge --all`.")
        assert (result.should_reply, result.reason) == (False, "no_sources")
        [gone] = await here.library.load_each([SourceId(f"nugget:{made.id}")])
        assert isinstance(gone, SourceError)
        assert here.given == []


async def test_what_was_withdrawn_is_gone_before_anybody_reads_the_conversation_again(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        await here.teach()
        [made] = await here.work.extraction.nuggets.all()
        assert (await here.library.find_distilled(QUESTION)).nuggets
        await here.work.learning.withdraw([MessageId("102")])
        assert len(await here.work.extraction.nuggets.all()) == 1  # the extractor has not read it yet
        known = await here.library.find_distilled(QUESTION)
        assert (known.nuggets, known.facts) == ((), ())
        [gone] = await here.library.load_each([SourceId(f"nugget:{made.id}")])
        assert isinstance(gone, SourceError)


async def test_a_retired_fact_and_one_that_is_not_shared_are_no_material(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        await here.teach()
        [fact] = await here.work.extraction.facts.all(FactFilter())
        [shown] = await here.library.load_each([SourceId(f"fact:{fact.id}")])
        assert isinstance(shown, SourceText)
        await here.work.extraction.retire(FactRetirement(fact_id=FactId(fact.id), why="it is wrong"))
        assert (await here.library.find_distilled(QUESTION)).facts == ()
        [gone] = await here.library.load_each([SourceId(f"fact:{fact.id}")])
        assert isinstance(gone, SourceError)
    private = {"facts": {"overrides": [{"category": "technical", "visibility": "private"}]}}
    async with town(tmp_path / "other", private) as here:
        await here.teach()
        [fact] = await here.work.extraction.facts.all(FactFilter())
        assert fact.visibility == "private"
        assert (await here.library.find_distilled(QUESTION)).facts == ()
        [gone] = await here.library.load_each([SourceId(f"fact:{fact.id}")])
        assert isinstance(gone, SourceError)


class Broken:
    """Fails to search."""

    async def find_distilled(self, query: str, /) -> LearnedMatches:
        raise KnowledgeError(f"the disk is gone, {query}")

    async def load_each(self, source_ids: Collection[SourceId], /) -> Mapping[SourceId, SourceText | KnowledgeError]:
        raise KnowledgeError(f"the disk is gone, {source_ids}")


async def test_where_nuggets_cannot_be_looked_up_the_rest_still_answers(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        library = library_of(here.work, Broken())
        assert await library.find_distilled(QUESTION) == LearnedMatches()
        [why] = await library.load_each([SourceId("nugget:1")])
        assert isinstance(why, KnowledgeError)
