"""The router gathers what a batch belongs to and hands it to whom it concerns: several at once, in order by channel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from anyio import Event, Semaphore, WouldBlock, create_task_group
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.actors.guard import surviving
from intern.actors.witness import Witness
from intern.domain import AnswerRequest, Batch, CaptureRequest, ChannelId

AT_ONCE = 8  # Discord allows 50 requests a second over all; a batch waits for a handful, one after the other


class Dispatch(Protocol):
    """Decides whom a batch concerns, reading on Discord what it needs to know."""

    async def dispatch(self, batch: Batch, /) -> Sequence[AnswerRequest | CaptureRequest]:
        """What follows from the batch; nothing where it concerns nobody. Raises the DiscordError family."""
        ...


async def router(
    inbox: MemoryObjectReceiveStream[Batch],
    answers: MemoryObjectSendStream[AnswerRequest],
    captures: MemoryObjectSendStream[CaptureRequest],
    *,
    dispatch: Dispatch,
    witness: Witness,
) -> None:
    """Route each batch until the inbox ends. A capture waits for room; a question that finds none is shed."""
    places = Semaphore(AT_ONCE)
    last_of: dict[ChannelId, Event] = {}

    async def work(batch: Batch, before: Event | None, done: Event) -> None:
        try:
            with surviving("router", channel_id=batch.channel_id, message_id=batch.last.id):
                requests = await dispatch.dispatch(batch)
                if before is not None:
                    await before.wait()
                await hand_on(batch, requests)
        finally:
            done.set()
            if last_of.get(batch.channel_id) is done:
                del last_of[batch.channel_id]
            places.release()

    async def hand_on(batch: Batch, requests: Sequence[AnswerRequest | CaptureRequest]) -> None:
        if not requests:
            witness.ignored(batch)
        for request in requests:
            if isinstance(request, CaptureRequest):
                await captures.send(request)
                continue
            try:
                answers.send_nowait(request)
            except WouldBlock:
                witness.shed(request)

    async with inbox, answers, captures, create_task_group() as tg:
        async for batch in inbox:
            await places.acquire()
            before, done = last_of.get(batch.channel_id), Event()
            last_of[batch.channel_id] = done
            tg.start_soon(partial(work, batch, before, done))
