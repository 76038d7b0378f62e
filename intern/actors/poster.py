"""The poster brings replies to Discord, each exactly once, whatever breaks in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

from anyio import Semaphore, create_task_group, sleep
from anyio.streams.memory import MemoryObjectReceiveStream

from intern.actors.guard import surviving
from intern.actors.pauses import Pauses, growing_pauses
from intern.actors.witness import Witness
from intern.domain import Reply
from intern.errors import DiscordUnavailableError, DiscordUnknownOutcomeError
from intern.observe.log import get_logger

T = TypeVar("T")

AT_ONCE = 4  # replies on their way; one that waits for a rate limit does not hold up the others
TRIES = 6  # with growing pauses, about half a minute; what stays open is taken up at the next start

_log = get_logger(__name__)


class Posts(Protocol):
    """Posts replies by way of a ledger: doing it again is harmless."""

    async def post(self, reply: Reply, /) -> str:
        """What became of the reply. Raises the DiscordError and KnowledgeError families."""
        ...

    async def resume(self) -> int:
        """Finish what an earlier run left half posted, and say how many that were."""
        ...


async def poster(
    inbox: MemoryObjectReceiveStream[Reply], *, posts: Posts, witness: Witness, pauses: Pauses = growing_pauses
) -> None:
    """Finish what was left half done, then post each reply until the inbox ends."""
    places = Semaphore(AT_ONCE)

    async def work(reply: Reply) -> None:
        try:
            with surviving("poster", message_id=reply.question.id):
                witness.posted(
                    reply, await _persistently(partial(posts.post, reply), pauses, message_id=reply.question.id)
                )
        finally:
            places.release()

    async with inbox, create_task_group() as tg:
        with surviving("poster"):
            resumed = await _persistently(posts.resume, pauses)
            if resumed:
                _log.info("posts_resumed", count=resumed)
        async for reply in inbox:
            await places.acquire()
            tg.start_soon(partial(work, reply))


async def _persistently(act: Callable[[], Awaitable[T]], pauses: Pauses, **ids: str) -> T:
    """Try until it works; the last failure passes through."""
    for pause in islice(pauses(), TRIES - 1):
        try:
            return await act()
        except (DiscordUnavailableError, DiscordUnknownOutcomeError) as error:
            _log.warning("post_delayed", reason=str(error), again_in_seconds=pause, **ids)
            await sleep(pause)
    return await act()
