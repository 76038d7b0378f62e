"""Each reply is posted once, despite failures; in order within a thread; held while the asker adds; then settled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat

import anyio.lowlevel
import pytest
import trio
import trio.testing
from anyio import Event, create_memory_object_stream, create_task_group, fail_after, wait_all_tasks_blocked
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from intern.actors.activity import ActivityReporter
from intern.actors.loops import exponential_backoff
from intern.actors.poster import AT_ONCE, DISK_TRIES, HOLDS, RESUME_TRIES, ROOM, TRIES, Poster
from intern.chat.delivery import NO_LONGER, PostOutcome, RecallableReplies, ReportOutcome
from intern.core.errors import ChatRefusedError, ChatUnavailableError, ChatUnknownOutcomeError, KnowledgeError
from intern.core.flow import Reply, ReplyTarget
from intern.core.ids import ChannelId, MessageId
from intern.frontends.http.metrics import Metrics
from intern.stores.tables.answers import AnswerStore
from intern.stores.tables.outbox import Post
from tests.worlds.actors import NO_PAUSES, Settlements, finishing, running
from tests.worlds.samples import answer_request, message

PATIENCE = 65.0
DOWN = ChatUnavailableError("502")


class Posts:
    """Posts everything. Texts in `trouble` fail, or end otherwise, once each; those in `slow` wait for a gate."""

    def __init__(self, **trouble: Sequence[Exception | PostOutcome]) -> None:
        self.tried: list[str] = []
        self.waited_for: list[MessageId | None] = []
        self.posted: list[str] = []
        self.gate = Event()
        self.slow: set[str] = set()
        self.resume_fails: list[Exception] = []
        self.resumes_slowly = False
        self.half_posted: list[tuple[Post, PostOutcome]] = []
        self._trouble = {text: list(laid_out) for text, laid_out in trouble.items()}

    async def post(self, reply: Reply, /, *, waited_for: MessageId | None = None) -> PostOutcome:
        self.tried.append(reply.text)
        self.waited_for.append(waited_for)
        if reply.text in self.slow:
            await self.gate.wait()
        if self._trouble.get(reply.text):
            what = self._trouble[reply.text].pop(0)
            if isinstance(what, Exception):
                raise what
            return what
        self.posted.append(reply.text)
        return PostOutcome(status="posted")

    async def resume(self, ended: ReportOutcome, /) -> int:
        self.tried.append("(resume)")
        if self.resumes_slowly:
            await self.gate.wait()
        if self.resume_fails:
            raise self.resume_fails.pop(0)
        self.posted.append("(resumed)")
        for entry, outcome in self.half_posted:
            await ended(entry, outcome)
        return len(self.half_posted)


class Records(AnswerStore):
    """Remembers the outcomes of questions."""

    def __init__(self, ends: dict[str, tuple[str, str]]) -> None:
        self._ends = ends
        self.failures = 0

    async def save_outcome(self, question_id: MessageId, *, outcome: str, reason: str = "") -> None:
        if self.failures:
            self.failures -= 1
            raise KnowledgeError("full")
        self._ends[question_id] = outcome, reason


class Desk:
    """The surroundings of the poster, as far as tests check them."""

    def __init__(self, posts: Posts) -> None:
        self.posts = posts
        self.outgoing = RecallableReplies()
        self.settlements = Settlements()
        self.settled = self.settlements.ids
        self.ends: dict[str, tuple[str, str]] = {}
        self.records = Records(self.ends)
        self.metrics = Metrics(prompts=(), version="1")
        events = ActivityReporter(self.metrics)
        self.replies, self.inbox = create_memory_object_stream[Reply](100)
        self.collaborators = Poster(
            posts=posts,
            outgoing=self.outgoing,
            records=self.records,
            settle=self.settlements.settle,
            events=events,
            hold_seconds=PATIENCE,
            backoff=NO_PAUSES,
        )

    def counted(self) -> dict[str, float]:
        """Count the reports of replies, by outcome."""
        families = text_string_to_metric_families(self.metrics.text()[0].decode())
        samples = next(family.samples for family in families if family.name == "intern_replies")
        return {each.labels["outcome"]: each.value for each in samples if each.value}

    async def run(self) -> None:
        await self.collaborators.run(self.inbox)

    def post(self, *replies: Reply) -> None:
        for each in replies:
            self.outgoing.add_reply(answer_request(each.question))
            self.replies.send_nowait(each)


def reply(text: str, n: int = 0, target: ReplyTarget = "new_thread", *, notice: bool = False) -> Reply:
    question = message(n=n)
    return Reply(question=question, target=target, text=text, settles=(MessageId("1"), question.id), notice=notice)


def left(question_id: str, *, notice: bool = False) -> Post:
    """Make a reply that an earlier run left half posted."""
    return Post(
        question_id=MessageId(question_id),
        channel_id=ChannelId("9"),
        target="new_thread",
        parts=(),
        changed_at=message().at,
        notice=notice,
    )


async def run(posts: Posts, *texts: str) -> Desk:
    desk = Desk(posts)
    desk.post(*(reply(text, n) for n, text in enumerate(texts)))
    desk.replies.close()
    with fail_after(5):
        await desk.run()
    return desk


def ids(*numbers: int) -> list[str]:
    return [each for n in numbers for each in ("1", message(n=n).id)]


class TestPoster:
    async def test_what_was_left_half_posted_comes_first(self) -> None:
        posts = Posts()
        posts.resume_fails = [DOWN]
        await run(posts, "a")
        assert posts.posted == ["(resumed)", "a"]

    async def test_what_became_of_what_was_left_half_posted_is_kept_and_counted(self) -> None:
        posts = Posts()
        posts.half_posted = [
            (left("1"), PostOutcome(status="posted")),
            (left("2"), PostOutcome(status="posted", reason="too_old", notice=True)),
            (left("3", notice=True), PostOutcome(status="dropped", reason="question_deleted")),
            (left("4"), PostOutcome(status="recalled", reason="superseded")),
        ]
        desk = await run(posts)
        assert desk.ends == {
            "1": ("answer posted", ""),
            "2": ("notice posted", "too_old"),
            "3": ("notice dropped", "question_deleted"),
            "4": ("answer recalled", "superseded"),
        }
        assert desk.counted() == {"posted": 1, "too_old": 1, "question_deleted": 1, "recalled": 1}

    async def test_others_can_wait_until_what_was_left_half_posted_is_posted(self) -> None:
        desk = Desk(Posts())
        desk.posts.resumes_slowly = True
        desk.replies.close()
        posted_by_then: list[str] = []

        async def wait() -> None:
            await desk.outgoing.wait_until_resumed()
            posted_by_then.extend(desk.posts.posted)

        async with create_task_group() as tg:
            tg.start_soon(desk.run)
            await wait_all_tasks_blocked()
            tg.start_soon(wait)
            await wait_all_tasks_blocked()
            desk.posts.gate.set()
        await desk.outgoing.wait_until_resumed()
        assert posted_by_then == ["(resumed)"]

    async def test_an_outage_is_waited_out_and_an_unknown_outcome_looked_into(self) -> None:
        posts = Posts(a=[DOWN, ChatUnknownOutcomeError("no reply")])
        await run(posts, "a", "b")
        assert sorted(posts.posted) == ["(resumed)", "a", "b"]

    async def test_a_full_disk_is_waited_out(self) -> None:
        posts = Posts(a=[KnowledgeError("full")] * 3)
        posts.resume_fails = [KnowledgeError("full")]
        desk = await run(posts, "a", "b")
        assert sorted(posts.posted) == ["(resumed)", "a", "b"]
        assert sorted(desk.settled) == sorted(ids(0, 1))

    async def test_a_refusal_costs_its_own_reply_only_and_is_not_retried(self) -> None:
        posts = Posts(a=[ChatRefusedError("missing permission")])
        await run(posts, "a", "b")
        assert posts.posted == ["(resumed)", "b"]
        assert posts.tried.count("a") == 1

    async def test_an_outage_without_end_gives_up_until_the_next_start(self) -> None:
        posts = Posts(a=[DOWN] * (TRIES + 1))
        posts.resume_fails = [DOWN] * (RESUME_TRIES + 1)
        desk = await run(posts, "a")
        assert posts.tried.count("(resume)") == RESUME_TRIES
        assert posts.tried.count("a") == TRIES
        assert posts.posted == []
        assert desk.settled == ids(0), "the ledger holds it"
        assert desk.ends == {message().id: ("answer failed", "")}

    async def test_whatever_becomes_of_a_reply_its_question_is_settled_and_its_end_is_kept(self) -> None:
        posts = Posts(
            gone=[PostOutcome(status="dropped", reason="question_deleted")],
            old=[PostOutcome(status="already_posted")],
        )
        desk = await run(posts, "a", "gone", "old")
        assert sorted(desk.settled) == sorted(ids(0, 1, 2))
        assert list(desk.ends.values()) == [
            ("answer posted", ""),
            ("answer dropped", "question_deleted"),
            ("answer already posted", ""),
        ]

    async def test_a_notice_is_told_from_an_answer(self) -> None:
        desk = Desk(Posts())
        desk.post(reply("unknown", notice=True))
        desk.replies.close()
        await desk.run()
        assert list(desk.ends.values()) == [("notice posted", "")]

    async def test_a_word_in_place_of_an_answer_is_told_from_one(self) -> None:
        desk = await run(Posts(a=[PostOutcome(status="posted", reason="refused", notice=True)]), "a")
        assert list(desk.ends.values()) == [("notice posted", "refused")]

    async def test_what_is_recalled_is_settled_by_who_took_it_back(self) -> None:
        desk = await run(Posts(a=[PostOutcome(status="recalled", reason="superseded")]), "a")
        assert desk.settled == []
        assert list(desk.ends.values()) == [("answer recalled", "superseded")]

    async def test_what_no_disk_holds_stays_unsettled_and_is_told_to_have_failed(self) -> None:
        desk = await run(Posts(a=[KnowledgeError("full")] * TRIES), "a", "b")
        assert desk.posts.tried.count("a") == DISK_TRIES
        assert desk.settled == ids(1)
        assert desk.posts.posted == ["(resumed)", "b"]
        assert desk.ends == {message().id: ("answer failed", ""), message(n=1).id: ("answer posted", "")}

    async def test_replies_are_counted_by_what_became_of_them(self) -> None:
        posts = Posts(
            gone=[PostOutcome(status="dropped", reason="question_deleted")],
            newer=[PostOutcome(status="recalled", reason="superseded")],
            deleted=[PostOutcome(status="recalled", reason="withdrawn")],
            refused=[ChatRefusedError("missing permission")],
            full=[KnowledgeError("full")] * TRIES,
        )
        desk = await run(posts, "a", "gone", "newer", "deleted", "refused", "full")
        assert desk.counted() == {"posted": 1, "question_deleted": 1, "recalled": 2, "failed": 2}

    async def test_when_it_is_done_with_a_reply_nobody_can_take_it_back(self) -> None:
        desk = await run(Posts(b=[KnowledgeError("full")] * TRIES), "a", "b")
        assert desk.outgoing.recall("withdrawn", lambda _: True) == ()

    async def test_replies_that_wait_for_discord_are_few_and_the_rest_is_felt_upstream(self) -> None:
        desk = Desk(Posts())
        with desk.replies:
            async with running(desk.run):
                desk.posts.slow = {f"slow {n}" for n in range(ROOM + 5)}
                desk.post(*(reply(f"slow {n}", n) for n in range(ROOM + 5)))
                await wait_all_tasks_blocked()
                assert desk.posts.tried == ["(resume)", *(f"slow {n}" for n in range(AT_ONCE))]
                assert desk.inbox.statistics().current_buffer_used == 4  # one more is in hand

    async def test_who_waits_out_an_outage_takes_no_place(self) -> None:
        desk = Desk(Posts(**{f"r{n}": [DOWN] for n in range(AT_ONCE)}))

        def for_ever() -> Iterator[float]:
            return repeat(1000.0)

        collaborators = Poster(
            posts=desk.posts,
            outgoing=desk.outgoing,
            records=Records(desk.ends),
            settle=desk.settlements.settle,
            events=ActivityReporter(),
            hold_seconds=PATIENCE,
            backoff=for_ever,
        )
        with desk.replies:
            async with running(collaborators.run, desk.inbox):
                desk.post(*(reply(f"r{n}", n) for n in range(AT_ONCE + 1)))
                await wait_all_tasks_blocked()
                assert desk.posts.posted == ["(resumed)", f"r{AT_ONCE}"]

    async def test_in_a_thread_one_reply_comes_after_the_other(self) -> None:
        desk = Desk(Posts())
        desk.posts.slow = {"slow one"}
        async with finishing(desk.run):
            desk.post(reply("slow one", 1, "in_place"), reply("two", 2, "in_place"), reply("three", 3))
            desk.replies.close()
            await wait_all_tasks_blocked()
            assert desk.posts.tried == ["(resume)", "slow one", "three"]
            desk.posts.gate.set()
        assert desk.posts.posted[-2:] == ["slow one", "two"]


def held(newest: str) -> PostOutcome:
    return PostOutcome(status="held", reason="asker_goes_on", newest=MessageId(newest))


def holding(desk: Desk, *replies: Reply, then: list[tuple[float, str]]) -> None:
    """Run the poster on a jumping clock; the replies stream stays open for 1000 seconds."""

    async def story() -> None:
        began = trio.current_time()
        with trio.fail_after(5000):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(desk.run)
                desk.post(*replies)
                for at, what in then:
                    await trio.sleep_until(began + at)
                    if what == "supersede":
                        desk.outgoing.recall("superseded", lambda _: True)
                    await trio.testing.wait_all_tasks_blocked()
                    assert (what == "supersede") or desk.posts.tried[-1] == what, (at, desk.posts.tried)
                desk.replies.close()

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_held_reply_is_posted_when_what_the_asker_added_turned_out_to_be_no_question() -> None:
    desk = Desk(Posts(a=[held("50")]))
    holding(desk, reply("a"), reply("b", 2, "in_place"), then=[(64, "b"), (66, "a")])
    assert desk.posts.posted == ["(resumed)", "b", "a"]
    assert desk.posts.waited_for == [None, None, "50"]
    assert desk.settled.count(message().id) == 1


def test_an_outage_of_an_hour_is_waited_out() -> None:
    desk = Desk(Posts(a=[DOWN] * 19))
    desk.collaborators = replace(desk.collaborators, backoff=exponential_backoff)
    holding(desk, reply("a"), then=[(3300, "a"), (3700, "a")])
    assert desk.posts.posted == ["(resumed)", "a"]
    assert desk.settled == ids(0)


def test_who_goes_on_and_on_gets_an_answer_to_the_beginning() -> None:
    desk = Desk(Posts(a=[held("50"), held("51")]))
    holding(desk, reply("a"), then=[(HOLDS * PATIENCE + 1, "a")])
    assert desk.posts.posted == ["(resumed)", "a"]
    assert desk.posts.waited_for == [None, "50", NO_LONGER]


def test_a_held_reply_that_is_taken_back_is_given_up_at_once() -> None:
    desk = Desk(Posts(a=[held("50"), PostOutcome(status="recalled", reason="superseded")]))
    holding(desk, reply("a"), then=[(10, "supersede"), (10, "a"), (500, "a")])
    assert desk.posts.posted == ["(resumed)"]
    assert desk.settled == []


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_posted_reply_whose_end_is_not_saved_is_saved_again_or_logged_and_never_posted_again(
    failures: int,
) -> None:
    desk = Desk(Posts())
    desk.records.failures = failures
    desk.post(asked := reply("a", 1))
    desk.replies.close()
    with capture_logs() as logs:
        await desk.run()
    question = asked.question.id
    assert desk.posts.posted == ["(resumed)", "a"]
    assert desk.settled == [*asked.settles]
    assert desk.ends == ({question: ("answer posted", "")} if failures == 1 else {})
    unusual = [log["event"] for log in logs if log["log_level"] in {"warning", "error"}]
    assert unusual == ["record_not_saved"] * (failures - 1)


async def test_the_trace_holds_the_end_of_a_reply_before_the_witness_hears_of_it() -> None:
    desk = Desk(Posts(b=[ChatRefusedError("403")]))
    traced: list[bool] = []

    class Hearing(ActivityReporter):
        def report_post(self, reply: Reply, outcome: str) -> None:
            traced.append(reply.question.id in desk.ends)

    desk.collaborators = replace(desk.collaborators, events=Hearing())
    desk.post(reply("a", 1), reply("b", 2))
    desk.replies.close()
    await desk.run()
    assert traced == [True, True]


async def test_at_the_end_nobody_is_waited_for() -> None:
    desk = await run(Posts(a=[held("50")]), "a")
    assert desk.posts.posted == ["(resumed)", "a"]
    await anyio.lowlevel.checkpoint()
