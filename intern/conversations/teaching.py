"""From one message to the conversation around it, where somebody of the team says that it teaches something."""

from __future__ import annotations

from collections.abc import Sequence

from intern.conversations.addressing import split_by_target
from intern.conversations.capturing import capture_request, capture_requests
from intern.conversations.context import History, gather, in_order
from intern.conversations.options import ContextBounds
from intern.domain import Author, Batch, CaptureRequest, Channel, ChatMessage
from intern.errors import DiscordRefusedError

_PAGE = 100  # what Discord gives at most
_SHORTLY_BEFORE = 3600.0  # seconds: an answer that replies to nothing answers what was asked within the hour


async def conversation_around(
    on: ChatMessage, teacher: Author, history: History, bounds: ContextBounds
) -> CaptureRequest | None:
    """The conversation that a message belongs to; None where no member and the team speak in it.

    In a thread, or under a message that one hangs on, that is the whole thread. In a channel it is what the message
    replies to, what replies to any of that, and the lines around each. A team member's message that replies to nothing
    goes with what a member said last before it. Raises the DiscordError family.
    """
    place = await history.channel(on.channel_id)
    if place.is_thread:
        return await _in_thread(on, place, teacher, history, bounds)
    return await _under(on, teacher, history, bounds) or await _in_channel(on, place, history, bounds)


async def _in_thread(
    on: ChatMessage, thread: Channel, teacher: Author, history: History, bounds: ContextBounds
) -> CaptureRequest | None:
    # With a team member as its author, the batch stands for an answer: then the thread is read to its end.
    batch = Batch(channel_id=thread.id, author=teacher, messages=(on,))
    return next(iter(capture_requests(batch, thread, await gather(batch, thread, history, bounds))), None)


async def _under(on: ChatMessage, teacher: Author, history: History, bounds: ContextBounds) -> CaptureRequest | None:
    if on.thread_id is None:
        return None
    try:
        thread = await history.channel(on.thread_id)
    except DiscordRefusedError:  # deleted
        return None
    return await _in_thread(on, thread, teacher, history, bounds)


async def _in_channel(
    on: ChatMessage, channel: Channel, history: History, bounds: ContextBounds
) -> CaptureRequest | None:
    before = await history.before(channel.id, on.id, limit=_PAGE)
    near = in_order(before, await history.after(channel.id, on.id, limit=_PAGE), (on,))
    said = _run(on, near, bounds.window_seconds)
    batch = Batch(channel_id=channel.id, author=on.author, messages=said)
    chains = (await gather(batch, channel, history, bounds)).messages
    whole = _with_replies(in_order(chains, said), near, bounds.window_seconds)
    if on.author.type == "team_member" and not any(map(_is_members, whole)):
        whole = in_order(_asked_before(said[0], before, bounds.window_seconds), whole)
    return capture_request(batch, None, whole)


def _run(message: ChatMessage, near: Sequence[ChatMessage], window: float) -> tuple[ChatMessage, ...]:
    """The message with its author's lines around it, each within the window of the next, that go to the same."""
    run = [message]
    own = [other for other in near if other.author.id == message.author.id]
    at = next((n for n, other in enumerate(own) if other.id == message.id), 0)
    for earlier in reversed(own[:at]):
        if (run[0].at - earlier.at).total_seconds() > window:
            break
        run.insert(0, earlier)
    for later in own[at + 1 :]:
        if (later.at - run[-1].at).total_seconds() > window:
            break
        run.append(later)
    return tuple(next(group for group in split_by_target(run) if message in group))


def _with_replies(whole: Sequence[ChatMessage], near: Sequence[ChatMessage], window: float) -> tuple[ChatMessage, ...]:
    """The messages, with what replies to any of them, and so on; oldest first."""
    known = {message.id: message for message in whole}
    for message in near:  # oldest first, and nothing replies to what is not there yet
        if message.reply_to in known:
            known |= {line.id: line for line in _run(message, near, window)}
    return in_order(known.values())


def _asked_before(answer: ChatMessage, before: Sequence[ChatMessage], window: float) -> tuple[ChatMessage, ...]:
    asked = next((message for message in reversed(before) if _is_members(message)), None)
    if asked is None or (answer.at - asked.at).total_seconds() > _SHORTLY_BEFORE:
        return ()
    return _run(asked, before, window)


def _is_members(message: ChatMessage) -> bool:
    return message.author.type == "community_user"
