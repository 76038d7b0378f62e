"""The pages about what members asked: found by filters, explained step by step; gaps are answered or dismissed."""

from __future__ import annotations

import re

import pytest

from intern.core.ids import ChannelId, MessageId
from intern.stores.tables.answers import AnswerStore
from intern.stores.tables.feedback import FeedbackStore
from tests.frontends.http.site import ANSWERED, OPEN, OUTDATED, TEAM, Site
from tests.frontends.http.test_server import get, post
from tests.worlds import samples


async def found(made: Site, query: str = "") -> list[str]:
    """Return the questions of a list, as they are shown."""
    return re.findall(r'<a href="/questions/\d+" dir="auto">(.+?)</a>', (await get(made, f"/questions{query}")).text)


async def test_questions_are_listed_by_their_words_with_sources_votes_and_cost(page: Site) -> None:
    text = (await get(page, "/questions")).text
    assert set(await found(page)) == {*OPEN, ANSWERED, OUTDATED}
    [answered] = re.findall(r'(?s)<li class="item">(?:(?!</li>).)*relay listen(?:(?!</li>).)*</li>', text)
    assert ">answered<" in answered
    assert "#help" in answered
    assert re.search(r"from <span[^>]*>Ports<", answered)
    assert "2 helpful" in answered
    assert "1 not helpful" in answered
    assert "1.2 s · 0.0042 USD" in answered
    assert "no source fits" in text


@pytest.mark.rest
@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("?outcome=answered", {ANSWERED, OUTDATED}),
        ("?outcome=silent", set(OPEN)),
        ("?outcome=no_sources&q=", set(OPEN)),
        ("?outcome=timeout", set[str]()),
        ("?votes=down", {ANSWERED}),
        ("?channel=201", {ANSWERED}),
        ("?q=DARK", {OPEN[2]}),
        ("?q=%25", set[str]()),
        ("?days=1&channel=201", {ANSWERED}),
        ("?offset=4", {OPEN[0]}),
        ("?days=-1&offset=x&votes=<b>", {*OPEN, ANSWERED, OUTDATED}),
    ],
)
async def test_filters_of_the_address_choose_the_questions(page: Site, query: str, wanted: set[str]) -> None:
    assert set(await found(page, query)) == wanted


async def test_a_link_to_a_message_leads_to_its_question(page: Site) -> None:
    asked = samples.message(OPEN[0], n=10_000)
    shown = await get(page, f"/questions?q=https://discord.com/channels/100/200/{asked.id}")
    assert (shown.status_code, shown.headers["Location"]) == (303, f"/questions/{asked.id}")


async def test_a_question_shows_its_conversation_sources_and_steps_in_plain_words(page: Site) -> None:
    asked = samples.message(ANSWERED, n=30_000)
    text = (await get(page, f"/questions/{asked.id}")).text
    assert re.search(rf"(?s)<b>Asker</b><p[^>]*>{re.escape(ANSWERED)}</p>.*<b>The answer</b>", text)
    assert re.search(r"(?s)Sources of the answer.*>Ports<.*<blockquote.*The relay listens on port 7480\.", text)
    assert re.search(r"(?s)<b>Search</b>.*1 source of \d+ may hold the answer|sources of \d+ may hold", text)
    assert re.search(r"(?s)<b>Check</b>.*By (code|the model): the answer holds\.", text)
    assert "All figures, as JSON" in text
    assert "nugget:" not in re.sub(r"(?s)<pre.*?</pre>", "", text)
    assert f"https://discord.com/channels/100/201/{asked.id}" in text


async def test_a_question_that_no_message_asked_is_not_looked_for_on_discord(own: Site) -> None:
    cases = [
        ("answer posted", "", True),
        ("passed over", "asked too much", True),
        ("silent", "not_a_question", True),
        # A question by a command.
        ("answered for one member", "", False),
        ("silent for one member", "no_sources", False),
    ]
    for n, (outcome, reason, is_on_discord) in enumerate(cases):
        asked, where = MessageId(f"133000000000000000{n}"), ChannelId("200")
        await AnswerStore(own.db, clock=own.clock).save([asked], where, outcome=outcome, reason=reason)
        text = (await get(own, f"/questions/{asked}")).text
        assert "Its words are not kept" in text
        assert (f'href="https://discord.com/channels/100/200/{asked}"' in text) is is_on_discord, outcome


async def test_a_recorded_question_is_replayed_and_compared(own: Site) -> None:
    asked = samples.message(ANSWERED, n=30_000)
    text = (await post(own, f"/questions/{asked.id}", {})).text
    assert "The answer would be the same today, to the letter." in text
    unrecorded = samples.message(OPEN[0], n=10_000)
    assert "nothing is recorded of" in (await post(own, f"/questions/{unrecorded.id}", {})).text


async def test_gaps_group_questions_that_ask_the_same_the_most_frequent_first(page: Site) -> None:
    text = (await get(page, "/gaps")).text
    often, once = text.index(">2 times<"), text.index(">once<")
    assert text.index(OPEN[1]) < often < text.index(OPEN[0]) < text.index(OPEN[2]) < once
    assert "no source fits" in text
    assert ANSWERED not in text


async def test_a_gap_is_answered_in_the_name_of_a_team_member_and_learned(own: Site) -> None:
    asked = samples.message(OPEN[1], n=10_001)
    fields = {"action": "answer", "question_id": asked.id, "answer": "Run `relay cert rotate`.", "by": TEAM}
    shown = await post(own, "/gaps", fields)
    assert (shown.status_code, shown.headers["Location"]) == (303, "/gaps?done=answer")
    text = (await get(own, "/gaps?done=answer")).text
    assert "Captured in the team&#39;s name." in text
    assert OPEN[0] not in text
    assert OPEN[1] not in text
    assert OPEN[2] in text
    [conversation] = own.writer.stores.archive.find_conversations(asked.id)
    pair = own.writer.stores.archive.latest_capture(conversation)
    assert pair is not None
    assert [(turn.speaker, turn.text) for turn in pair.turns] == [
        ("User", OPEN[1]),
        ("Team", "Run `relay cert rotate`."),
    ]
    assert pair.author_ids == (asked.author.id, TEAM)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"answer": " "}, "write an answer of at most"),
        ({"by": "999"}, "choose a member of the team who answers"),
        ({"question_id": "12345"}, "this question is no gap any more"),
    ],
)
async def test_an_answer_that_cannot_be_kept_says_why_and_loses_nothing_that_was_typed(
    page: Site, changed: dict[str, str], problem: str
) -> None:
    asked = samples.message(OPEN[1], n=10_001)
    fields = {"action": "answer", "question_id": asked.id, "answer": "So <b>it</b> goes.", "by": TEAM}
    shown = await post(page, "/gaps", fields | changed)
    assert shown.status_code == 409
    assert problem in shown.text
    if "by" in changed:
        assert ">So &lt;b&gt;it&lt;/b&gt; goes.</textarea>" in shown.text
    assert len(page.writer.stores.archive.find_conversations(asked.id)) == 0


async def test_a_dismissed_gap_goes_and_comes_back_when_it_is_asked_again(own: Site) -> None:
    first = samples.message(OPEN[2], n=10_002)
    shown = await post(own, "/gaps", {"action": "dismiss", "question_id": first.id})
    assert shown.headers["Location"] == "/gaps?done=dismiss"
    assert OPEN[2] not in (await get(own, "/gaps")).text
    assert OPEN[2] in await found(own)
    await samples.save_question(own.writer.stores.answers, [samples.message(OPEN[2], n=40_000)], "no_sources")
    assert OPEN[2] in (await get(own, "/gaps")).text


async def test_gaps_are_exported_as_markdown_in_which_no_word_is_markup(own: Site) -> None:
    marked = samples.message("# <b>Why</b>\n[x](http://e)?", n=40_000)
    await samples.save_question(own.writer.stores.answers, [marked], "no_sources")
    shown = await get(own, "/gaps.md")
    assert shown.headers["Content-Type"] == "text/markdown; charset=utf-8"
    assert 'filename="gaps.md"' in shown.headers["Content-Disposition"]
    assert f"## {OPEN[1]}\n\nAsked 2 times, last 2026-02-03.\n\n- {OPEN[0]}\n" in shown.text
    assert "## \\# \\<b\\>Why\\</b\\> \\[x\\](http://e)?\n" in shown.text


@pytest.mark.rest
async def test_a_page_of_many_questions_is_small_and_leads_to_the_next(own: Site) -> None:
    records, feedback = own.writer.stores.answers, FeedbackStore(own.db, clock=own.clock)
    for n in range(900):
        asked = samples.message(f"How do I set the option number {n} of my relay to a value that holds?", n=50_000 + n)
        await samples.save_question(records, [asked], ("no_sources", "", "timeout")[n % 3])
    await feedback.vote(samples.message(n=50_000).id, samples.author().id, up=True)
    first = await get(own, "/questions")
    assert len(first.content) < 60_000
    assert "1 to 50 of 905" in first.text
    assert 'href="/questions?offset=50">Older' in first.text
    last = await get(own, "/questions?outcome=timeout&offset=290")
    assert "291 to 300 of 300" in last.text
    assert 'href="/questions?outcome=timeout&amp;offset=240">Newer' in last.text
    assert len((await get(own, "/gaps")).content) < 60_000
