"""The decisions on facts that a model proposes, rule by rule."""

from __future__ import annotations

from itertools import count
from math import nan

import pytest
from msgspec.structs import replace

from intern.core.ids import FactId
from intern.core.knowledge import (
    UNSAID,
    DistilledConversation,
    Fact,
    FactDecision,
    KnownFacts,
    NewFact,
    RefusedFact,
    RepeatedFact,
    UpdatedFact,
)
from intern.facts.reconciliation import (
    MAX_SNIPPET,
    MAX_SUMMARY,
    FactProposal,
    decide_proposals,
    reapply_visibility,
    rules_hash,
)
from intern.facts.visibility import FactOptions, VisibilityRule
from tests.stores.taught import AGENT, at, conversation, fact

PORT = fact("port", "The relay listens on port 7480.", 1)
NEW_PORT = "The relay listens on port 7481."
NOW = conversation(9, 5)


def proposal(content: str = NEW_PORT, **more: str) -> FactProposal:
    return replace(FactProposal(category="technical", content=content), **more)


def decided(
    *proposals: FactProposal,
    known: tuple[Fact, ...] = (PORT,),
    only_here: tuple[str, ...] = (),
    retired_here: tuple[str, ...] = (),
    of: DistilledConversation = NOW,
    options: FactOptions | None = None,
) -> tuple[FactDecision, ...]:
    ids = count()
    facts = KnownFacts(
        facts=known,
        only_here=frozenset(map(FactId, only_here)),
        retired_here=frozenset(map(FactId, retired_here)),
    )
    return decide_proposals(proposals, of, facts, options or FactOptions(), new_id=lambda: f"new {next(ids)}")


def test_what_nobody_said_before_is_new_with_all_that_was_proposed() -> None:
    [new] = decided(
        FactProposal(
            category="decision",
            content="  Deploys happen on Fridays. ",
            summary="Deploys: Fridays",
            visibility="private",
            confidence=0.7,
            sentiment="confirmation",
            context_snippet="yes, Fridays",
        )
    )
    assert isinstance(new, NewFact)
    made = new.fact
    assert (made.id, made.agent_id, made.category) == ("new 0", AGENT, "decision")
    assert (made.content, made.summary, made.visibility) == (
        "Deploys happen on Fridays.",
        "Deploys: Fridays",
        "private",
    )
    assert (made.confidence, made.first_seen_at, made.last_seen_at) == (0.7, at(5), at(5))
    assert (made.is_active, made.supersedes, made.occurrence_count) == (True, None, 1)
    said = new.occurrence
    assert (said.fact_id, said.conversation_id, said.timestamp) == (made.id, NOW.id, at(5))
    assert (said.context_snippet, said.sentiment) == ("yes, Fridays", "confirmation")


@pytest.mark.parametrize("field", ["duplicate_of", "supersedes"])
def test_an_id_that_does_not_exist_is_refused(field: str) -> None:
    assert decided(proposal(**{field: "port 2"})) == (RefusedFact(reason="unknown_id"),)


@pytest.mark.parametrize("field", ["duplicate_of", "supersedes"])
def test_a_retired_id_is_refused(field: str) -> None:
    retired = replace(PORT, is_active=False, retired_at=at(2))
    assert decided(proposal(**{field: "port"}), known=(retired,)) == (RefusedFact(reason="retired_id"),)


@pytest.mark.parametrize("field", ["duplicate_of", "supersedes"])
def test_a_fact_of_another_community_is_refused(field: str) -> None:
    foreign = fact("port", PORT.content, 1, agent_id="umbra")
    assert decided(proposal(**{field: "port"}), known=(foreign,)) == (RefusedFact(reason="other_agent"),)


@pytest.mark.parametrize("field", ["duplicate_of", "supersedes"])
def test_a_secret_fact_counts_as_unknown_since_no_model_was_shown_it(field: str) -> None:
    secret = fact("port", PORT.content, 1, visibility="secret")
    assert decided(proposal(**{field: "port"}), known=(secret,)) == (RefusedFact(reason="unknown_id"),)


def test_a_duplicate_adds_an_occurrence_with_its_snippet_and_sentiment() -> None:
    [again] = decided(
        proposal(duplicate_of="port", context_snippet="again, 7480!", sentiment="frustration"), known=(PORT,)
    )
    assert isinstance(again, RepeatedFact)
    assert (again.occurrence.fact_id, again.occurrence.timestamp) == ("port", at(5))
    assert (again.occurrence.context_snippet, again.occurrence.sentiment) == ("again, 7480!", "frustration")


@pytest.mark.parametrize(
    "content", [PORT.content, " the RELAY  listens on port 7480", "The relay listens on port 7480!"]
)
def test_what_the_model_did_not_notice_to_be_the_same_is_a_duplicate_all_the_same(content: str) -> None:
    [again] = decided(proposal(content))
    assert isinstance(again, RepeatedFact)
    assert again.occurrence.fact_id == "port"


def test_what_differs_in_a_sign_is_not_the_same() -> None:
    [new] = decided(proposal("Nadia prefers C#."), known=(fact("c", "Nadia prefers C++."),))
    assert isinstance(new, NewFact)


def test_a_duplicate_that_also_replaces_retires_nothing() -> None:
    [again] = decided(proposal(duplicate_of="port", supersedes="port"))
    assert isinstance(again, RepeatedFact)


def test_an_update_takes_the_place_of_exactly_the_one_that_it_names() -> None:
    other = fact("other", "The relay listens on port 7480 behind a proxy.", 2)
    [update] = decided(proposal(supersedes="port"), known=(PORT, other))
    assert isinstance(update, UpdatedFact)
    assert (update.fact.supersedes, update.fact.first_seen_at) == ("port", at(5))


def test_an_update_of_another_subject_is_a_fact_of_its_own() -> None:
    [new] = decided(proposal("Nadia looks after the invoices.", supersedes="port"))
    assert isinstance(new, NewFact)
    assert new.fact.supersedes is None


def test_what_was_said_later_is_not_replaced_by_what_was_said_before() -> None:
    later = replace(PORT, last_seen_at=at(8), occurrence_count=2)
    assert decided(proposal(supersedes="port"), known=(later,)) == (RefusedFact(reason="not_older"),)


def test_what_was_said_at_the_same_time_stands_beside() -> None:
    [new] = decided(proposal(supersedes="port"), known=(fact("port", PORT.content, 5),))
    assert isinstance(new, NewFact)


def test_of_two_updates_of_one_fact_the_second_stands_by_itself() -> None:
    first, second = decided(proposal(supersedes="port"), proposal("The relay listens on port 7482.", supersedes="port"))
    assert isinstance(first, UpdatedFact)
    assert isinstance(second, NewFact)


def test_the_same_twice_in_one_conversation_counts_once() -> None:
    assert decided(proposal(), proposal())[1] == RefusedFact(reason="said_already")
    twice = decided(
        *[proposal(PORT.content, context_snippet="so")] * 2, proposal(PORT.content, context_snippet="and so")
    )
    assert [type(each) for each in twice] == [RepeatedFact, RefusedFact, RepeatedFact]


def test_nothing_is_taken_from_an_empty_proposal() -> None:
    assert decided(proposal(" \n")) == (RefusedFact(reason="empty"),)


def test_reading_an_old_conversation_again_brings_back_nothing_that_was_retired_since() -> None:
    retired = replace(PORT, is_active=False, retired_at=at(7))
    [again] = decided(proposal(PORT.content), known=(retired,))
    assert isinstance(again, RepeatedFact)
    [anew] = decided(proposal(PORT.content), known=(replace(retired, retired_at=at(5)),))
    assert isinstance(anew, NewFact), "said again after it was retired, it is news"
    [unsaid] = decided(proposal(PORT.content), known=(replace(retired, retired_why=UNSAID),))
    assert isinstance(unsaid, NewFact)


def test_other_words_for_what_only_this_conversation_said_take_its_place_in_the_chain() -> None:
    first = replace(PORT, is_active=False, retired_at=at(5))
    mine = replace(fact("mine", NEW_PORT, 5), supersedes=FactId("port"))
    for link in ({}, {"supersedes": "mine"}):
        [update] = decided(
            proposal("The relay listens on port 7482.", **link), known=(first, mine), only_here=("mine",)
        )
        # `mine` retires the first one, and goes, since the conversation does not say it any more.
        assert isinstance(update, UpdatedFact)
        assert update.fact.supersedes == "port"


def test_other_words_for_what_was_replaced_since_are_old_news() -> None:
    mine = replace(fact("mine", PORT.content, 5), is_active=False, retired_at=at(6))
    newer = replace(fact("newer", NEW_PORT, 6), supersedes=FactId("mine"))
    [refused] = decided(proposal("The relay listens on port 7479."), known=(mine, newer), only_here=("mine",))
    assert refused == RefusedFact(reason="not_older")


def test_what_the_conversation_still_says_word_for_word_is_not_what_it_reworded() -> None:
    mine = replace(fact("mine", PORT.content, 5), is_active=False, retired_at=at(6))
    again, new = decided(
        proposal(PORT.content), proposal("The relay listens on port 7479, too."), known=(mine,), only_here=("mine",)
    )
    assert isinstance(again, RepeatedFact)
    assert isinstance(new, NewFact)


def test_secret_facts_are_refused_unless_they_are_kept() -> None:
    secret = proposal("The password of the relay is hunter2.", context_snippet="it is hunter2")
    assert decided(secret) == (RefusedFact(reason="secret"),)
    assert decided(proposal("Nadia is away.", visibility="secret")) == (RefusedFact(reason="secret"),)
    [kept] = decided(secret, options=FactOptions(keep_secret=True))
    assert isinstance(kept, NewFact)
    assert (kept.fact.visibility, kept.occurrence.context_snippet) == ("secret", "it is hunter2")


def test_a_secret_snippet_is_not_kept_beside_a_fact_that_all_may_read() -> None:
    [again] = decided(proposal(duplicate_of="port", context_snippet="the password is hunter2"))
    assert isinstance(again, RepeatedFact)
    assert not again.occurrence.context_snippet


def test_a_key_is_masked_even_where_the_operator_shares_all() -> None:
    rules = FactOptions(overrides=(VisibilityRule(visibility="shared"),))
    key = "AKIAIOSFODNN7EXAMPLE"
    [new] = decided(proposal(f"The key is {key}.", summary=key), options=rules)
    assert isinstance(new, NewFact)
    assert new.fact.visibility == "shared"
    assert key not in new.fact.content + new.fact.summary


def test_whatever_a_model_says_texts_and_numbers_keep_their_bounds() -> None:
    long = replace(proposal("x " * 50), summary="s" * 500, context_snippet="c" * 5_000)
    [new] = decided(replace(long, confidence=7.0))
    assert isinstance(new, NewFact)
    assert (len(new.fact.summary), len(new.occurrence.context_snippet)) == (MAX_SUMMARY, MAX_SNIPPET)
    assert new.fact.confidence == 1.0
    [unsure] = decided(replace(long, confidence=nan))
    assert isinstance(unsure, NewFact)
    assert unsure.fact.confidence == 0.0


def test_what_is_secret_by_now_leaves_no_snippet_beside_what_all_may_read() -> None:
    keeps = FactOptions(keep_secret=True)
    said = proposal(
        "The password of the relay is hunter2.",
        duplicate_of="port",
        visibility="secret",
        context_snippet="hunter2 it is",
    )
    [again] = decided(said, options=keeps)
    assert isinstance(again, RepeatedFact)
    assert (again.occurrence.context_snippet, again.visibility) == ("", None), (
        "another subject: the fact stays as it is"
    )


@pytest.mark.parametrize("named", [{}, {"duplicate_of": "port"}])
@pytest.mark.parametrize("visibility", ["private", "secret"])
def test_a_fact_that_is_said_again_is_for_as_few_as_the_strictest_says(named: dict[str, str], visibility: str) -> None:
    said = proposal(PORT.content, visibility=visibility, context_snippet="7480", **named)
    [again] = decided(said, options=FactOptions(keep_secret=True))
    assert isinstance(again, RepeatedFact)
    assert again.visibility == visibility
    shares = VisibilityRule(contains="port", visibility="shared")
    [ruled] = decided(said, options=FactOptions(keep_secret=True, overrides=(shares,)))
    assert isinstance(ruled, RepeatedFact)
    assert ruled.visibility is None


@pytest.mark.parametrize("named", [{}, {"duplicate_of": "port"}])
def test_a_fact_that_turns_out_to_be_secret_goes_where_none_is_kept(named: dict[str, str]) -> None:
    said = proposal(PORT.content, visibility="secret", **named)
    assert decided(said) == (RefusedFact(reason="secret", gone=FactId("port")),)
    other = proposal("The password of Nadia is hunter2.", duplicate_of="port")
    assert decided(other) == (RefusedFact(reason="secret"),), "a wrong name takes nothing along"


def test_what_an_operator_retired_does_not_come_back_from_the_same_messages_in_other_words() -> None:
    refuted = replace(fact("r", "The relay listens on port 7480.", 5), is_active=False, retired_at=at(9))
    refuted = replace(refuted, retired_why="wrong")
    reworded = proposal("Its port, the relay uses 7480 for that.")
    [again] = decided(reworded, known=(refuted,), retired_here=("r",))
    assert isinstance(again, RepeatedFact)
    assert again.occurrence.fact_id == "r"
    assert isinstance(decided(reworded, known=(refuted,))[0], NewFact), "other messages may say so"
    put_right = proposal("The relay listens on port 7481.")
    assert isinstance(decided(put_right, known=(refuted,), retired_here=("r",))[0], NewFact)
    later = decided(reworded, known=(refuted,), retired_here=("r",), of=conversation(9, 10))
    assert isinstance(later[0], NewFact), "said again since"


def test_what_the_settings_want_of_a_stored_fact_holds_anew() -> None:
    secret = fact("s", "The password is hunter2.", visibility="secret")
    assert reapply_visibility(secret, FactOptions()) is None
    assert reapply_visibility(secret, FactOptions(keep_secret=True)) == secret
    stricter = FactOptions(overrides=(VisibilityRule(contains="relay", visibility="private"),))
    assert reapply_visibility(PORT, stricter) == replace(PORT, visibility="private")
    shares = FactOptions(overrides=(VisibilityRule(visibility="shared"),))
    key = fact("k", "The key is AKIAIOSFODNN7EXAMPLE.", visibility="secret")
    assert reapply_visibility(key, shares) == replace(key, visibility="shared", content="The key is [masked aws_key].")
    assert rules_hash(shares) != rules_hash(FactOptions())
