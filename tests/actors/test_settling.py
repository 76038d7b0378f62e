"""A message that is asked and captured is settled once, when both are done."""

from __future__ import annotations

from collections.abc import Sequence

from intern.actors.checkpointer import MessageSettler
from intern.core.ids import ChannelId, MessageId

HERE = ChannelId("7")
ONE, TWO, THREE = MessageId("1"), MessageId("2"), MessageId("3")


class Account:
    def __init__(self) -> None:
        self.settled: list[MessageId] = []

    def settle(self, channel_id: ChannelId, message_ids: Sequence[MessageId], /) -> None:
        assert channel_id == HERE
        self.settled += message_ids


def test_what_is_asked_or_captured_is_settled_at_once() -> None:
    account = Account()
    settling = MessageSettler(account.settle)
    settling.settle(HERE, [ONE])
    settling.settle_captured(HERE, [TWO])
    assert account.settled == [ONE, TWO]


def test_what_is_asked_and_captured_is_settled_with_the_later_of_both() -> None:
    account = Account()
    settling = MessageSettler(account.settle)
    settling.expect_capture([ONE, TWO])
    settling.settle(HERE, [ONE, THREE])
    settling.settle(HERE, [ONE])
    assert account.settled == [THREE]
    settling.settle_captured(HERE, [ONE, TWO])
    assert account.settled == [THREE, ONE]
    settling.settle(HERE, [TWO])
    assert account.settled == [THREE, ONE, TWO]
