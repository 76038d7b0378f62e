from __future__ import annotations

from functools import partial
from itertools import repeat

import pytest
from anyio import Event, create_memory_object_stream, create_task_group, fail_after, wait_all_tasks_blocked

from intern.actors.poster import AT_ONCE, TRIES, poster
from intern.actors.witness import Witness
from intern.domain import Reply
from intern.errors import DiscordRefusedError, DiscordUnavailableError, DiscordUnknownOutcomeError
from tests.samples import message

pytestmark = pytest.mark.anyio

NO_PAUSES = partial(repeat, 0.0)


class Posts:
    """Posts everything; texts in `trouble` fail with what is laid out for them, once each."""

    def __init__(
        self, gate: Event | None = None, resume: list[Exception] | None = None, **trouble: list[Exception]
    ) -> None:
        self.tried: list[str] = []
        self.posted: list[str] = []
        self._gate = gate
        self._resume = resume or []
        self._trouble = trouble

    async def post(self, reply: Reply, /) -> str:
        self.tried.append(reply.text)
        if self._gate:
            await self._gate.wait()
        if self._trouble.get(reply.text):
            raise self._trouble[reply.text].pop(0)
        self.posted.append(reply.text)
        return "posted"

    async def resume(self) -> int:
        self.tried.append("(resume)")
        if self._resume:
            raise self._resume.pop(0)
        self.posted.append("(resumed)")
        return 1


def reply(text: str, n: int = 0) -> Reply:
    return Reply(question=message(n=n), target="new_thread", text=text)


async def run(posts: Posts, *texts: str) -> None:
    replies, inbox = create_memory_object_stream[Reply](10)
    with fail_after(5):
        with replies:
            for n, text in enumerate(texts):
                replies.send_nowait(reply(text, n))
        await poster(inbox, posts=posts, witness=Witness(), pauses=NO_PAUSES)


async def test_what_was_left_half_posted_comes_first() -> None:
    posts = Posts(resume=[DiscordUnavailableError("away")])
    await run(posts, "a")
    assert posts.posted == ["(resumed)", "a"]


async def test_an_outage_is_waited_out_and_an_unknown_outcome_looked_into() -> None:
    posts = Posts(a=[DiscordUnavailableError("502"), DiscordUnknownOutcomeError("no reply")])
    await run(posts, "a", "b")
    assert sorted(posts.posted) == ["(resumed)", "a", "b"]


async def test_a_refusal_costs_its_own_reply_only_and_is_not_retried() -> None:
    posts = Posts(a=[DiscordRefusedError("missing permission")])
    await run(posts, "a", "b")
    assert posts.posted == ["(resumed)", "b"]
    assert posts.tried.count("a") == 1


async def test_an_outage_without_end_gives_up_until_the_next_start() -> None:
    posts = Posts(a=[DiscordUnavailableError("502")] * (TRIES + 1))
    await run(posts, "a")
    assert posts.tried.count("a") == TRIES
    assert posts.posted == ["(resumed)"]


async def test_replies_that_wait_for_discord_are_few_and_the_rest_is_felt_upstream() -> None:
    replies, inbox = create_memory_object_stream[Reply](20)
    posts = Posts(Event())
    with fail_after(5), replies:
        async with create_task_group() as tg:
            tg.start_soon(partial(poster, inbox, posts=posts, witness=Witness()))
            for n in range(10):
                replies.send_nowait(reply(f"r{n}", n))
            await wait_all_tasks_blocked()
            assert sorted(posts.tried) == ["(resume)", *(f"r{n}" for n in range(AT_ONCE))]
            tg.cancel_scope.cancel()
