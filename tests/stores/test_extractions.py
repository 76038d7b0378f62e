"""All that a conversation taught is kept, replaced, withdrawn and forgotten as a whole."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from anyio import fail_after
from msgspec.structs import replace

from intern.core.ids import FactId, MessageId, NuggetId
from intern.core.knowledge import AppliedExtraction, FactDecision, NewFact, RefusedFact, RepeatedFact, UpdatedFact
from intern.search.terms import split_search_terms
from intern.stores.database import Database
from intern.stores.search_file.word_matches import match_any
from intern.stores.tables import facts as facts_module, store as store_module
from intern.stores.tables.extractions import ExtractionLog
from intern.stores.tables.facts import FactFilter, FactStore
from intern.stores.tables.nuggets import NuggetStore
from tests.engines import ON_SQLITE, open_database
from tests.stores.taught import at, conversation, fact, nugget, outcome, said
from tests.worlds.clock import HandClock

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

PORT, NEW_PORT = "The relay listens on port 7480.", "The relay listens on port 7481."
ALL = FactFilter(active=None, secret=True)


class Stores(NamedTuple):
    db: Database
    log: ExtractionLog
    facts: FactStore
    nuggets: NuggetStore
    clock: HandClock


@asynccontextmanager
async def opened(folder: Path) -> AsyncGenerator[Stores]:
    clock = HandClock(at(10_000))
    with fail_after(10):
        async with await open_database(folder / "intern.db") as db:
            yield Stores(db, ExtractionLog(db, clock=clock), FactStore(db, clock=clock), NuggetStore(db), clock)


def new(name: str, content: str, n: int, minutes: int, snippet: str = "") -> NewFact:
    return NewFact(fact=fact(name, content, minutes), occurrence=said(name, n, minutes, snippet=snippet))


def update(name: str, content: str, n: int, minutes: int, of: str) -> UpdatedFact:
    return UpdatedFact(fact=fact(name, content, minutes, supersedes=FactId(of)), occurrence=said(name, n, minutes))


async def names(facts: FactStore, wanted: FactFilter | None = None) -> list[str]:
    return sorted(each.id for each in await facts.all(wanted or FactFilter()))


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def test_an_outcome_is_kept_whole_with_what_the_log_says_of_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        taught = outcome(
            conversation(1, 5), [new("a", PORT, 1, 5, "7480"), RefusedFact(reason="secret")], [nugget("n", 1)]
        )
        applied = await stores.log.apply(taught)
        assert applied == AppliedExtraction(facts_extracted=1, nuggets_extracted=1, refused=("secret",))
        assert await stores.nuggets.read_for_conversation(conversation(1).id) == (nugget("n", 1),)
        [link] = await stores.facts.read_chain(FactId("a"))
        assert link.fact == fact("a", PORT, 5)
        assert link.occurrences == (said("a", 1, 5, snippet="7480"),)
        entry = await stores.log.read_entry(conversation(1).id)
        assert entry is not None
        assert (entry.content_hash, entry.model_used, entry.error) == ("hash 1", "tiny", None)
        assert (entry.facts_extracted, entry.nuggets_extracted, entry.extracted_at) == (1, 1, at(10_000))
        assert await stores.log.read_conversation(conversation(1).id) == conversation(1, 5)


async def test_of_an_outcome_that_cannot_be_kept_nothing_is(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        twice = [new("a", PORT, 1, 5), new("a", NEW_PORT, 1, 5)]
        with pytest.raises(Exception, match=r"(?i:unique)"):
            await stores.log.apply(outcome(conversation(1, 5), twice, [nugget("n", 1)]))
        assert await stores.log.read_entry(conversation(1).id) is None
        assert await names(stores.facts, ALL) == []
        assert await stores.nuggets.all() == ()


async def test_what_changed_since_it_was_decided_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        await stores.log.apply(outcome(conversation(1, 1), [new("a", PORT, 1, 1)]))
        await stores.facts.retire(FactId("a"), "wrong from the start")
        late = outcome(
            conversation(2, 20_000),
            [
                update("b", NEW_PORT, 2, 20_000, "a"),
                RepeatedFact(occurrence=said("a", 2, 20_000)),
                RepeatedFact(occurrence=said("x", 2, 5)),
            ],
        )
        applied = await stores.log.apply(late)
        assert applied == AppliedExtraction(refused=("retired_id", "retired_id", "unknown_id"))
        assert await names(stores.facts, ALL) == ["a"]


async def test_a_repetition_that_is_refused_by_then_leaves_its_fact_unsaid_and_the_chain_whole(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        await stores.log.apply(outcome(conversation(1, 1), [new("a", PORT, 1, 1)]))
        await stores.log.apply(outcome(conversation(2, 3), [update("b", NEW_PORT, 2, 3, "a")]))
        late = RepeatedFact(occurrence=said("a", 1, 5))
        assert (await stores.log.apply(outcome(conversation(1, 5), [late]))).refused == ("retired_id",)
        assert [link.fact.id for link in await stores.facts.read_chain(FactId("b"))] == ["b"]
        assert await stores.facts.read_chain(FactId("a")) == ()


async def test_reading_a_conversation_again_replaces_what_it_taught(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        await stores.log.apply(
            outcome(
                conversation(1, 5), [new("a", PORT, 1, 5, "7480!"), new("b", "Nadia is away.", 1, 5)], [nugget("n", 1)]
            )
        )
        again = outcome(conversation(1, 6), [RepeatedFact(occurrence=said("b", 1, 6))], [nugget("m", 1, "Another.")])
        await stores.log.apply(replace(again, extracted_at=at(10_001)))
        assert [each.id for each in await stores.nuggets.all()] == ["m"]
        assert await names(stores.facts) == ["b"]
        assert await names(stores.facts, ALL) == ["b"]
        [stays] = await stores.facts.read_chain(FactId("b"))
        assert (stays.fact.occurrence_count, stays.fact.first_seen_at) == (1, at(6))
        assert [each.is_withdrawn for each in stays.occurrences] == [False]


async def test_withdrawing_an_update_brings_back_what_it_had_replaced(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        await stores.log.apply(outcome(conversation(1, 1), [new("a", PORT, 1, 1)]))
        await stores.log.apply(outcome(conversation(2, 2), [update("b", NEW_PORT, 2, 2, "a")], [nugget("n", 2)]))
        assert await names(stores.facts) == ["b"]
        await stores.log.withdraw([conversation(2).id])
        assert await names(stores.facts) == ["a"]
        assert await stores.nuggets.all() == ()
        assert await stores.log.read_entry(conversation(2).id) is None
        assert await stores.log.read_conversation(conversation(2).id) is None
        believed = [
            [each.id for each in await stores.facts.all(FactFilter(as_of=at(minute)))]
            for minute in (0, 1, 2, 9_999, 10_000)
        ]
        assert believed == [[], ["a"], ["a"], ["a"], ["a"]], "as if nobody had ever said otherwise"
        assert await names(stores.facts, ALL) == ["a"]


@ON_SQLITE
async def test_forgetting_leaves_no_trace_of_a_conversation_on_disk(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        await stores.log.apply(outcome(conversation(1, 1), [new("a", PORT, 1, 1)]))
        secret = "zanzibar"
        taught: list[FactDecision] = [
            update("b", f"The relay listens on port 7481 of {secret}.", 2, 2, "a"),
            new("c", f"Nadia is in {secret}.", 2, 2, f"off to {secret}"),
        ]
        await stores.log.apply(outcome(conversation(2, 2), taught, [nugget("n", 2, f"All about {secret}.")]))
        await stores.log.apply(outcome(conversation(3, 3), [update("d", NEW_PORT, 3, 3, "b")]))
        # Read again it says only one of them: the other goes.
        still = RepeatedFact(occurrence=said("c", 2, 2, snippet=f"off to {secret}", id_="still"))
        await stores.log.apply(outcome(conversation(2, 2), [still]))
        assert await names(stores.facts, ALL) == ["a", "c", "d"]
        assert await stores.log.find_conversations([MessageId("msg_21")]) == (conversation(2).id,)
        await stores.log.forget([MessageId("21")])
        assert await names(stores.facts, ALL) == ["a", "d"]
        assert [link.fact.id for link in await stores.facts.read_chain(FactId("d"))] == ["a", "d"]
        assert await stores.log.read_entry(conversation(2).id) is None
        await stores.db.scrub()
        assert await stores.db.read(lambda db: db.rows("pragma foreign_key_check")) == []
        assert secret.encode() not in on_disk(tmp_path)
        assert PORT.encode() in on_disk(tmp_path)


async def test_a_fact_that_others_said_too_outlives_forgetting_without_the_snippet(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        await stores.log.apply(outcome(conversation(1, 1), [new("a", PORT, 1, 1, "mine")]))
        await stores.log.apply(outcome(conversation(2, 2), [RepeatedFact(occurrence=said("a", 2, 2, snippet="yours"))]))
        await stores.log.forget([MessageId("12")])
        [link] = await stores.facts.read_chain(FactId("a"))
        assert [each.context_snippet for each in link.occurrences] == ["yours"]
        assert (link.fact.occurrence_count, link.fact.first_seen_at) == (1, at(2))


async def test_messages_that_a_conversation_once_had_are_forgotten_with_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        await stores.log.apply(outcome(conversation(1, 1), [new("a", PORT, 1, 1)]))
        less = replace(conversation(1, 1), message_ids=(MessageId("11"),))
        await stores.log.apply(outcome(less, [RepeatedFact(occurrence=said("a", 1, 1, id_="again"))]))
        assert await names(stores.facts, ALL) == ["a"]
        await stores.log.forget([MessageId("12")])
        assert await names(stores.facts, ALL) == []


async def test_the_log_tells_a_failure_from_nothing_to_learn(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        await stores.log.apply(outcome(conversation(1, 1)))
        for _ in range(2):
            await stores.log.log_failure(conversation(2, 1), model_used="tiny", error="cut off", next_at=at(10_010))
        nothing, failed = [await stores.log.read_entry(conversation(n).id) for n in (1, 2)]
        assert nothing is not None
        assert failed is not None
        assert (nothing.error, nothing.facts_extracted) == (None, 0)
        assert (failed.error, failed.attempts, failed.next_at) == ("cut off", 2, at(10_010))
        assert await stores.log.list_failed() == (failed,)
        changed = replace(conversation(2, 1), content_hash="another")
        await stores.log.log_failure(changed, model_used="tiny", error="no", next_at=None)
        anew = await stores.log.read_entry(changed.id)
        assert anew is not None
        assert anew.attempts == 1


async def test_a_failure_leaves_what_was_learned_before(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        await stores.log.apply(outcome(conversation(1, 1), [new("a", PORT, 1, 1)], [nugget("n", 1)]))
        await stores.log.log_failure(conversation(1, 2), model_used="tiny", error="cut off", next_at=None)
        entry = await stores.log.read_entry(conversation(1).id)
        assert entry is not None
        assert (entry.facts_extracted, entry.nuggets_extracted, entry.error) == (1, 1, "cut off")
        assert await names(stores.facts) == ["a"]
        assert len(await stores.nuggets.all()) == 1


async def test_a_position_is_where_it_was_moved_to(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        assert await stores.log.read_position("extractor") is None
        await stores.log.save_position("extractor", "17")
        await stores.log.save_position("extractor", "18")
        assert await stores.log.read_position("extractor") == "18"


async def test_secret_facts_are_shown_to_nobody_who_does_not_ask_for_them(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        hidden = NewFact(fact=fact("s", "The password is hunter2.", 1, visibility="secret"), occurrence=said("s", 1, 1))
        await stores.log.apply(outcome(conversation(1, 1), [hidden]))
        match, facts = match_any(split_search_terms("password").words), stores.facts
        assert await facts.all(FactFilter()) == ()
        assert await facts.search_facts(match, FactFilter(active=None), 10) == ()
        assert await facts.search_facts(None, FactFilter(), 10, holding=["password"]) == ()
        assert await facts.all(FactFilter(as_of=at(5))) == ()
        assert await facts.find_by_prefix("s") == ()
        assert await names(facts, FactFilter(secret=True)) == ["s"]
        assert [each.id for each in await facts.search_facts(match, FactFilter(secret=True), 10)] == ["s"]


async def test_facts_are_found_by_words_and_inside_of_scripts_without_spaces(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        taught = [new("a", PORT, 1, 1), new("z", "中继在端口七千监听", 1, 1), new("q", 'Say "NEAR" or *', 1, 1)]
        await stores.log.apply(outcome(conversation(1, 1), taught))

        async def found(text: str) -> list[str]:
            terms = split_search_terms(text)
            hits = await stores.facts.search_facts(
                match_any(terms.words), FactFilter(), 10, holding=[*terms.grams, *terms.short]
            )
            return [each.id for each in hits]

        assert await found("listening ports") == ["a"]
        assert await found("端口") == ["z"]
        assert await found('"near" * OR:') == ["q"]


async def test_facts_are_found_as_they_are_after_every_change(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        taught = [new("a", PORT, 1, 1), new("b", "Nadia is away.", 1, 1), new("c", "Omar is back.", 1, 1)]
        await stores.log.apply(outcome(conversation(1, 1), taught))
        await stores.log.apply(outcome(conversation(2, 1), [new("d", "Nadia prefers tea.", 2, 1)]))
        await stores.log.forget([MessageId("11")])
        await stores.db.write(lambda db: db.run("update facts set content = 'Nadia prefers coffee.' where id = 'd'"))
        await stores.db.scrub()
        for word, expected in (("tea", []), ("coffee", ["d"]), ("Omar", [])):
            found = await stores.facts.search_facts(match_any([word]), FactFilter(), 10)
            assert [each.id for each in found] == expected


# Finding B11.
async def test_a_search_among_many_facts_reads_those_that_match(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        taught = [new(f"f{n}", f"The relay listens on port {n}{', as they all do' * 40}.", 1, 1) for n in range(300)]
        await stores.log.apply(outcome(conversation(1, 1), taught))
        tracemalloc.start()
        try:
            [found] = await stores.facts.search_facts(match_any(["123"]), FactFilter(), 50)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert found.id == "f123"
        assert most < 100_000, "bytes; all texts take 200,000"


# Finding B11.
@ON_SQLITE
async def test_words_of_a_fact_that_is_forgotten_or_reworded_stay_nowhere_on_disk(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        words = ("xylographer", "quokkaesque", "zeugmatical")
        taught = [
            new(name, f"Nadia is {word}.", n, 1) for n, (name, word) in enumerate(zip("abc", words, strict=True), 1)
        ]
        for n, each in enumerate(taught, 1):
            await stores.log.apply(outcome(conversation(n, 1), [each]))
        await stores.log.forget([MessageId("11")])
        await stores.facts.apply_rules(
            lambda each: replace(each, content="Nadia is back.", summary="") if each.id == "b" else each
        )
        await stores.db.write(
            lambda db: db.run("insert into facts_fts (facts_fts, rank) values ('integrity-check', 1)")
        )
        kept = await stores.db.number(
            "select count(*) from facts_fts where facts_fts match 'xylographer OR quokkaesque'"
        )
        assert kept == 0
        await stores.db.scrub()
        stems = ("xylograph", "quokkaesqu", "zeugmat")
        assert [stem.encode() in on_disk(tmp_path) for stem in stems] == [False, False, True]


async def test_a_retired_fact_stays_with_its_reason_and_keeps_the_first_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        await stores.log.apply(outcome(conversation(1, 1), [new("a", PORT, 1, 1)]))
        stores.clock.turn(minutes=5)
        retired = await stores.facts.retire(FactId("a"), "it moved")
        assert (retired.is_active, retired.retired_at, retired.retired_why) == (False, at(10_005), "it moved")
        stores.clock.turn(minutes=5)
        assert await stores.facts.retire(FactId("a"), "again") == retired
        with pytest.raises(LookupError, match="no fact b"):
            await stores.facts.retire(FactId("b"), "")


async def test_text_that_a_column_cannot_hold_is_kept_as_far_as_it_can_be(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        hostile = "a\0b\ud800c'; drop table facts; --"
        odd = replace(nugget("n", 1), topic=hostile, keywords=(hostile,))
        await stores.log.apply(outcome(conversation(1, 1), [new("a", hostile, 1, 1, hostile)], [odd]))
        [kept] = await stores.facts.all(ALL)
        assert kept.content == "a b?c'; drop table facts; --"
        [same] = await stores.nuggets.by_ids([NuggetId("n")])
        assert same.keywords == (kept.content,)


async def test_nuggets_are_found_by_the_beginning_of_their_id(tmp_path: Path) -> None:
    async with opened(tmp_path) as stores:
        await stores.log.apply(outcome(conversation(1, 1), [], [nugget("ab1", 1), nugget("ab2", 1), nugget("c%", 1)]))
        assert [each.id for each in await stores.nuggets.find_by_prefix("AB")] == ["ab1", "ab2"]
        assert [each.id for each in await stores.nuggets.find_by_prefix("%")] == []


async def test_tens_of_thousands_of_rows_are_read_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as stores:
        await stores.log.apply(outcome(conversation(1, 1), [new("a", PORT, 1, 1)], [nugget("n", 1), nugget("m", 1)]))
        threads = set[int]()

        def converted(*given: Any, **more: Any) -> Any:
            threads.add(get_ident())
            return msgspec.convert(*given, **more)

        for module in (facts_module, store_module):
            monkeypatch.setattr(
                module, "msgspec", SimpleNamespace(convert=converted, json=msgspec.json, structs=msgspec.structs)
            )
        assert len(await stores.facts.all(ALL)) == 1
        assert set(await stores.facts.read_states()) == {"a"}
        assert set(await stores.nuggets.stamps()) == {"n", "m"}
        assert [each.id for each in await stores.nuggets.all("FACT", limit=1)] == ["m"]
        assert await stores.nuggets.count() == 2
        assert threads
        assert get_ident() not in threads
