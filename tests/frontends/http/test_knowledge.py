"""The sections Review and Knowledge over real sockets: what they show, and what they let a reviewer do."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from intern.core.decisions import PairFiled, PairRejected, PairReplaced, PairReviewRequested
from intern.core.ids import FactId, QAId, SourceId, TopicName
from intern.learning.forgetting import ForgetRequest
from tests.frontends.http.site import ANSWER, NEW_FACT, NUGGET, OLD_FACT, QUESTIONS, Site
from tests.frontends.http.test_server import get, post
from tests.worlds import samples


async def waits(made: Site, question: str, answer: str, *, n: int, conversation: str = "") -> QAId:
    """A further capture that waits for the team."""
    made.clock.turn(minutes=1)
    pair = await made.writer.learning.keep(samples.capture(question, answer, n=n, conversation=conversation))
    assert pair is not None
    waiting = PairReviewRequested(qa_id=pair.qa_id, at=made.clock.now())
    await made.writer.stores.knowledge.change(lambda db: db.decide(waiting))
    return pair.qa_id


# Review.


async def test_an_approved_capture_is_filed_and_a_rejected_one_is_not(own: Site) -> None:
    first, second = own.waiting
    done = await post(own, "/review", {"action": "approve", "qa_id": first.qa_id})
    assert (done.status_code, done.headers["Location"]) == (303, "/review?done=approve")
    assert isinstance(own.writer.stores.knowledge.last_decision(first.qa_id), PairFiled)
    done = await post(own, "/review", {"action": "reject", "qa_id": second.qa_id})
    assert done.headers["Location"] == "/review?done=reject"
    assert isinstance(own.writer.stores.knowledge.last_decision(second.qa_id), PairRejected)
    text = (await get(own, "/review?done=reject")).text
    assert "Nothing waits for the team." in text
    assert "Rejected: nothing is learned from it." in text


async def test_what_does_not_wait_any_more_is_told_and_changes_nothing(own: Site) -> None:
    first, _ = own.waiting
    await post(own, "/review", {"action": "reject", "qa_id": first.qa_id})
    again = await post(own, "/review", {"action": "approve", "qa_id": first.qa_id})
    assert again.status_code == 409
    assert 'role="alert"' in again.text
    assert isinstance(own.writer.stores.knowledge.last_decision(first.qa_id), PairRejected)
    assert (await post(own, "/review", {"action": "burn", "qa_id": first.qa_id})).status_code == 400
    assert (await get(own, f"/review/{first.qa_id}")).status_code == 404


@pytest.mark.rest
async def test_captures_stand_under_the_topic_that_they_are_like_and_are_approved_together(own: Site) -> None:
    question = QUESTIONS[0]
    alike = [await waits(own, question, f"Run `relay spool purge` {n} times.", n=3_000 + n) for n in (1, 2)]
    text = (await get(own, "/review")).text
    [name] = [each for each in own.writer.stores.knowledge.topic_names() if "spool" in each]
    head, _, rest = text.partition("No topic is like these")
    assert f'<a href="/topics/{name}">{name}</a></h2>' in head
    assert all(each in head for each in alike)
    assert all(each.qa_id in rest for each in own.waiting)
    assert "Close to it in" in head
    form = re.search(r'<form method="post" action="/review">(.*?)Approve these 2', head, re.DOTALL)
    assert form is not None
    assert re.findall(r'name="qa_id" value="(.*?)"', form[1]) == alike
    await post(own, "/review", {"action": "approve", "qa_id": alike})
    assert {own.writer.stores.knowledge.find_topic(each) for each in alike} == {name}


async def test_a_capture_says_what_it_changes_in_the_topic_of_its_conversation(own: Site) -> None:
    known = own.writer.stores.knowledge
    topic = next(iter(known.topic_names()))
    [block, *_] = known.read_topic(topic)
    assert block.conversation_id is not None
    more = samples.capture(
        "thanks", "Since 2.0: run `relay purge` instead.", n=4_000, conversation=block.conversation_id
    )
    pair = await own.writer.learning.keep(more)
    assert pair is not None
    await known.change(lambda db: db.decide(PairReviewRequested(qa_id=pair.qa_id, at=own.clock.now())))
    text = (await get(own, "/review")).text
    assert f'belongs to <a href="/topics/{topic}">' in text
    assert f"What changes in {topic}" in text
    assert re.search(r"(?s)<ins>.*Since 2\.0: run `relay purge` instead\.</ins>", text)
    await post(own, "/review", {"action": "approve", "qa_id": pair.qa_id})
    history = (await get(own, f"/topics/{topic}/history")).text
    assert history.index("The conversation went on") < history.index(">Added<")
    assert re.search(r"(?s)<ins>.*Since 2\.0: run `relay purge` instead\.</ins>", history)


async def test_an_edited_capture_is_filed_in_the_reviewer_s_words_and_what_was_typed_survives_an_error(
    own: Site,
) -> None:
    first, _ = own.waiting
    asked, answered = first.message_ids
    shown = (await get(own, f"/review/{first.qa_id}")).text
    assert "Port 7480.\nAnd one each.</textarea>" in shown
    typed = {f"text-{asked}": "Which port does the agent <b>use</b>?", f"text-{answered}": " ", "topic": "ports"}
    refused = await post(own, f"/review/{first.qa_id}", typed)
    assert refused.status_code == 409
    assert "would have no question or no answer" in refused.text
    assert "Which port does the agent &lt;b&gt;use&lt;/b&gt;?</textarea>" in refused.text
    done = await post(own, f"/review/{first.qa_id}", {**typed, f"text-{answered}": "Port 7480.\r\nOne each."})
    assert (done.status_code, done.headers["Location"]) == (303, "/review?done=approve")
    [block] = own.writer.stores.knowledge.read_topic(TopicName("ports"))
    assert [turn.text for turn in block.turns] == ["Which port does the agent <b>use</b>?", "Port 7480.\nOne each."]
    assert isinstance(own.writer.stores.knowledge.last_decision(first.qa_id), PairReplaced)


@pytest.mark.rest
async def test_a_rejection_is_of_the_whole_conversation_with_the_versions_that_wait(own: Site) -> None:
    older = await waits(own, "How do I drain a relay?", "Stop it.", n=5_000, conversation="thread_7")
    newer = await waits(own, "And then?", "Wait a minute.", n=5_001, conversation="thread_7")
    text = (await get(own, "/review")).text
    assert f'value="{newer}"' in text
    assert f'value="{older}"' not in text
    assert "with 1 earlier version" in text
    await post(own, "/review", {"action": "reject", "qa_id": newer})
    assert all(isinstance(own.writer.stores.knowledge.last_decision(each), PairRejected) for each in (older, newer))


@pytest.mark.rest
async def test_of_many_captures_some_are_shown_and_the_rest_is_a_page_away(own: Site) -> None:
    for n in range(14):
        await waits(own, f"What about zork{n}?", "So.", n=6_000 + n)
    text = (await get(own, "/review")).text
    assert "16 conversations wait" in text
    assert text.count("<article") == 12
    assert '<a href="/review?offset=12">Newer</a>' in text
    assert (await get(own, "/review?offset=12")).text.count("<article") == 4


async def test_a_parked_pair_is_tried_again(own: Site) -> None:
    (parked,) = own.parked
    shown = (await get(own, "/parked")).text
    assert "gave &lt;b&gt;nothing&lt;/b&gt; usable" in shown
    assert "tried 1 time ·" in shown
    done = await post(own, "/parked", {"qa_id": parked.qa_id})
    assert done.headers["Location"] == "/parked?done=done"
    assert isinstance(own.writer.stores.knowledge.last_decision(parked.qa_id), PairFiled)
    assert (await post(own, "/parked", {"qa_id": parked.qa_id})).status_code == 409


# Knowledge.


async def test_one_box_searches_topics_documents_facts_and_nuggets_and_marks_the_words(own: Site) -> None:
    await own.writer.extraction.extractor.repair_search()
    text = (await get(own, "/knowledge?q=listens")).text
    assert re.search(r"(?s)>document</span>.*The relay <mark>listens</mark> on port 7480\.", text)
    assert re.search(r'>topic</span>\s*<a href="/topics/[a-z-]+">', (await get(own, "/knowledge?q=purge")).text)
    assert re.search(
        r'>fact</span>\s*<a href="/facts/fact%3A2">', (await get(own, "/knowledge?q=spool&kind=fact")).text
    )
    only = (await get(own, "/knowledge?q=spool&kind=nugget")).text
    assert ">nugget</span>" in only
    assert ">topic</span>" not in only
    found = re.search(r'href="(/nuggets/[^"]+)"', only)
    assert found is not None
    assert NUGGET in (await get(own, found[1])).text
    assert "is on the yellow" not in (await get(own, "/knowledge?q=yellow+note")).text
    nothing = (await get(own, "/knowledge?q=zork&kind=bogus")).text
    assert "Nothing was found." in nothing
    assert 'value="zork"' in nothing


async def test_topics_show_their_pairs_and_history(page: Site) -> None:
    topics = (await get(page, "/topics?order=name")).text
    names = re.findall(r'href="/topics/([a-z0-9-]+)"', topics)
    assert names == sorted(page.writer.stores.knowledge.topic_names())
    shown = [(await get(page, f"/topics/{name}")).text for name in names]
    for question in QUESTIONS:
        (one,) = [text for text in shown if f">{question}</p>" in text]
        assert ANSWER in one
        assert "History (1)" in one
    assert (await get(page, f"/topics/{names[0]}/history")).text.count(">Added<") == 1


async def test_a_history_shows_nothing_of_forgotten_messages(own: Site) -> None:
    topic = next(iter(own.writer.stores.knowledge.topic_names()))
    [block, *_] = own.writer.stores.knowledge.read_topic(topic)
    pair = own.writer.stores.archive.get(block.qa_id)
    assert pair is not None
    await own.writer.forget(ForgetRequest(message_ids=pair.message_ids))
    history = (await get(own, f"/topics/{topic}/history")).text
    assert history.index(">Removed<") < history.index(">Added<")
    assert history.count("Its messages were deleted.") == 2
    assert pair.question not in history
    assert pair.question not in (await get(own, "/knowledge")).text


async def test_facts_show_their_chains_and_secret_ones_nowhere(page: Site) -> None:
    listed = (await get(page, "/facts?held=all")).text
    assert listed.index(NEW_FACT) < listed.index(OLD_FACT) < listed.index("not held any more")
    assert OLD_FACT not in (await get(page, "/facts")).text
    assert NEW_FACT not in (await get(page, "/facts?category=person")).text
    one = (await get(page, "/facts/fact:2")).text
    chain, _, said = one.partition("Where it was said")
    assert "holds <del>one</del><ins>two</ins>" in chain
    assert '<a href="/facts/fact%3A1">' in chain
    assert "by now" in said
    assert "it was so" not in said
    assert NUGGET in said
    assert (await get(page, "/facts/fact%3A1")).status_code == 200
    assert (await get(page, "/facts/fact:3")).status_code == 404
    assert NUGGET in (await get(page, "/nuggets?status=FACT")).text
    assert NUGGET not in (await get(page, "/nuggets?status=SPECULATION")).text
    for path in ("/facts?held=all", "/facts/fact:2", "/nuggets"):
        assert "yellow note" not in (await get(page, path)).text


async def test_a_fact_is_retired_with_a_reason(own: Site) -> None:
    assert (await post(own, "/facts/fact:2", {"why": " "})).status_code == 400
    done = await post(own, "/facts/fact:2", {"why": "It holds <i>three</i>."})
    assert (done.status_code, done.headers["Location"]) == (303, "/facts/fact:2?done=retire")
    assert "It holds &lt;i&gt;three&lt;/i&gt;." in (await get(own, "/facts/fact:2")).text
    [fact] = await own.writer.extraction.facts.by_ids([FactId("fact:2")])
    assert not fact.is_active
    assert (await post(own, "/facts/fact:3", {"why": "It is secret."})).status_code == 404


async def test_stale_sources_come_first_with_their_reasons(page: Site) -> None:
    text = (await get(page, "/sources")).text
    reason = text.index("the endpoint is &lt;i&gt;away&lt;/i&gt;")
    assert text.index("kb:broken.md") < reason < text.index("kb:ports.md")
    assert re.search(r'kb:broken\.md</span>\s*</th>.*<td data-label="Described">not yet</td>', text)
    assert text.index("stale: failed") < text.index(">in use<")
    only = (await get(page, "/sources?state=stale")).text
    assert "kb:broken.md" in only
    assert "kb:ports.md" not in only


async def test_a_source_that_is_gone_or_not_described_yet_is_told_with_why(own: Site) -> None:
    knowledge, sources, broken = own.writer.stores.knowledge, own.settings.paths.sources, SourceId("kb:broken.md")
    [known] = [each for each in knowledge.read_source_changes("kb", 0)[1].items() if each[0] == broken]
    assert known[1] is not None
    pending = replace(known[1], last_error=None, summary_pending=True)
    await knowledge.change(lambda db: db.update_sources("kb", {broken: pending}))
    (sources / "ports.md").unlink()
    text = (await get(own, "/sources")).text
    assert re.search(r"(?s)kb:ports\.md</span>\s*</th>.*stale: gone.*it is not there any more", text)
    assert re.search(r"(?s)kb:broken\.md</span>\s*</th>.*stale: pending.*its present text is not described yet", text)


async def test_what_is_left_out_is_told_with_its_reason(own: Site) -> None:
    assert "Every document and every link is in use." in (await get(own, "/sources?state=skipped")).text
    sources, links = own.settings.paths.sources, own.settings.paths.links
    (sources / "latin<b>.md").write_bytes(b"Gr\xfc\xdfe")
    (sources / "dangling.md").symlink_to("/nowhere/at/all")
    (sources / "forged\nteam.md").write_text("x")
    links.write_text("# ours\n<i>no</i> address\n")
    await own.writer.indexing.refresh()
    await own.writer.indexing.refresh_pages()
    text = (await get(own, "/sources")).text
    assert "Left out (4)" in text
    assert "kb:ports.md" in text
    assert "latin" not in text
    left_out = (await get(own, "/sources?state=skipped")).text
    assert re.search(r"sources/latin&lt;b&gt;\.md</span></th>.*it is not UTF-8 text", left_out)
    assert re.search(r"sources/dangling\.md</span></th>.*it is gone, or a link to nothing", left_out)
    assert re.search(r"links\.txt:2</span></th>.*&lt;i&gt;no&lt;/i&gt; address.*: the address holds blanks", left_out)
    assert re.search(r"sources/forged\\nteam\.md</span></th>.*its name holds control characters", left_out)
    assert "<i>no" not in left_out
    assert "1 stale, 4 left out" in (await get(own, "/knowledge")).text


@pytest.mark.rest
async def test_long_lists_are_cut_into_pages_with_their_filters_in_the_address(own: Site) -> None:
    for n in range(103):
        (own.settings.paths.sources / f"{n}.png").write_bytes(b"\x89PNG")
    await own.writer.indexing.refresh()
    text = (await get(own, "/sources?state=skipped")).text
    assert text.count(".png</span></th>") == 50
    assert '<a href="/sources?state=skipped&amp;offset=50">More</a>' in text
    last = (await get(own, "/sources?state=skipped&offset=100")).text
    assert "101 to 103 of 103" in last
    assert last.count(".png</span></th>") == 3
    assert (await get(own, "/sources?state=skipped&offset=999999999")).status_code == 200
