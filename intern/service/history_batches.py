"""Exported history as the batches and captures that it would have been."""

from __future__ import annotations

from collections.abc import Iterator

from intern.chat.batching import OpenBatches
from intern.chat.context import gather_context
from intern.chat.conversations import build_answer_request, build_capture, build_capture_requests
from intern.chat.options import ConversationOptions
from intern.chat.platform import History
from intern.chat.routing import find_question_messages, is_addressed_to_bot, is_teaching, is_worth_gathering
from intern.core.captures import Capture
from intern.core.flow import AnswerRequest, Batch, ChannelCaughtUp, MessageBackfilled
from intern.core.messages import Channel
from intern.platforms.discord.exports import ExportedChannel
from intern.settings.settings import Settings


async def find_batch_captures(
    batch: Batch, channel: Channel, history: History, options: ConversationOptions, *, follow_ups: bool = False
) -> list[Capture]:
    """Return the captures that the bot would have made of a batch of the team; with `follow_ups` of a member's."""
    if not (follow_ups or is_worth_gathering(batch, channel)):
        return []
    gathered = await gather_context(batch, channel, history, options.bounds, follow_ups=follow_ups)
    if not (follow_ups or is_teaching(batch, channel, gathered)):
        return []
    # The links to images in an export have mostly expired, so they are named and not described.
    return [build_capture(request) for request in build_capture_requests(batch, channel, gathered)]


async def find_batch_question(
    batch: Batch, channel: Channel, history: History, options: ConversationOptions
) -> AnswerRequest | None:
    """Return the question that the bot would have seen in a member's batch; None where it would stay silent."""
    if not is_worth_gathering(batch, channel):
        return None
    gathered = await gather_context(batch, channel, history, options.bounds)
    if not find_question_messages(batch, channel, gathered):
        return None
    return build_answer_request(
        batch, channel, gathered, options, addressed=is_addressed_to_bot(batch, channel, gathered)
    )


def form_batches(place: ExportedChannel, wait: float) -> Iterator[Batch]:
    """Yield the batches that would have formed, in the order in which they would have ended."""
    if not place.messages:
        return
    batches = OpenBatches(wait)
    written = [message.at.timestamp() for message in place.messages]
    now = max(written) + wait + 1  # long after
    for message, at in zip(place.messages, written, strict=True):
        batches.add(MessageBackfilled(message=message), now, now - at)
        yield from batches.take_due(now)
    batches.add(ChannelCaughtUp(channel_id=place.channel.id), now)
    yield from batches.flush()


def find_exclusion_reason(place: ExportedChannel, settings: Settings) -> str | None:
    """Return the reason in words why nothing may be learned there; None if it may be.

    An export does not say whether everybody can read the channel: the person who imports it vouches for that.
    """
    channel = place.channel
    if place.direct:
        return "private messages"
    if channel.private and channel.id not in settings.discord.listed_channel_ids:
        return "messages in private threads"
    return "messages where the mode is off" if settings.conversations.channel_mode(channel) == "off" else None
