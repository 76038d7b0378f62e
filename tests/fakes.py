"""Small stand-ins for the outside, each held to the Protocol of the real thing."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from inspect import isawaitable
from pathlib import Path
from typing import Any

from intern.chat.checkpoints import Checkpoints
from intern.core.decisions import PairDecision
from intern.core.errors import ModelRefusedError
from intern.core.ids import ChannelId, GuildId, MessageId, QAId
from intern.core.messages import Image
from intern.models.prompt import InT, OutT, Prompt
from intern.models.usage import UsageCounter, UsageMeter
from intern.stores.files import FileLayer


class HandClock:
    """A clock that only a test advances."""

    def __init__(self, now: datetime = datetime(2026, 2, 1, 3, 10, 56, tzinfo=UTC)) -> None:
        self._now = now

    def now(self) -> datetime:
        return self._now

    def turn(self, **delta: float) -> None:
        self._now += timedelta(**delta)


def calls_of(usage: UsageCounter, prompt: str, day: date | None = None) -> UsageMeter:
    """Return the counts of a usage without a store for a prompt."""
    return usage._owed.get((day or usage.today(), prompt), UsageMeter())


def mark_of(checkpoints: Checkpoints, channel_id: ChannelId, guild_id: GuildId | None = None) -> MessageId:
    """Return the checkpoint of a channel; one without recent messages has that of its server."""
    channel = checkpoints._channels.get(channel_id)
    return (channel.mark if channel else checkpoints._open_guild(guild_id).until).id


class ScriptedModel:
    """Answers each prompt with the prepared answers; a prompt without an answer fails the test.

    An answer is a reply, an exception to raise, or a function of the input that gives either (it may be async).
    """

    def __init__(self) -> None:
        self._queued: dict[str, deque[Any]] = defaultdict(deque)
        self._always: dict[str, Any] = {}
        self.asked: list[tuple[str, Any]] = []
        self.images: list[tuple[Image, ...]] = []

    def next(self, prompt: Prompt[Any, OutT], *replies: OutT | Exception | Callable[[Any], Any]) -> None:
        """Answer the next calls with these, one each."""
        self._queued[prompt.name].extend(replies)

    def always(self, prompt: Prompt[Any, OutT], reply: OutT | Exception | Callable[[Any], Any]) -> None:
        """Answer every further call with this."""
        self._always[prompt.name] = reply

    def calls(self, prompt: Prompt[InT, Any]) -> list[InT]:
        """Return the inputs of this prompt, oldest first."""
        return [given for name, given in self.asked if name == prompt.name]

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        self.asked.append((prompt.name, given))
        self.images.append(tuple(images))
        queue = self._queued[prompt.name]
        reply: Any
        if queue:
            reply = queue.popleft()
        elif prompt.name in self._always:
            reply = self._always[prompt.name]
        else:
            raise AssertionError(f"nobody planned a model call for {prompt.name!r}")
        if callable(reply) and not isinstance(reply, Exception):
            reply = reply(given)
        if isawaitable(reply):
            reply = await reply
        if isinstance(reply, Exception):
            raise reply
        assert isinstance(reply, prompt.gives)
        return reply


def refused() -> ModelRefusedError:
    return ModelRefusedError("the endpoint refused, as the test asked it to")


class Uncounted:
    """Attempts that are not counted."""

    async def begin(self, qa_id: QAId, /) -> int:
        return 1

    async def clear(self, qa_id: QAId, /) -> None: ...

    async def end(self, decision: PairDecision, /, *, again: bool = True) -> None: ...


UNCOUNTED = Uncounted()


class KilledError(BaseException):
    """The process is gone: no code cleans up after it."""


class MortalDisk(FileLayer):
    """A disk that runs a check before each of its steps, and after some of them ends the process."""

    def __init__(
        self,
        steps: int = -1,
        *,
        look: Callable[[], None] = lambda: None,
        error: Callable[[], BaseException] = KilledError,
    ) -> None:
        """`steps`: the number of steps before the end; if negative, there is no end."""
        self.left = steps
        self._look = look
        self._error = error

    def _step(self) -> None:
        self._look()
        if self.left == 0:
            raise self._error()
        self.left -= 1

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._step()
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self._step()
        super().fsync(fd)

    def rename(self, old: Path, new: Path) -> None:
        self._step()
        super().rename(old, new)
        self._look()

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)
