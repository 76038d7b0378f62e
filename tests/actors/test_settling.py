"""A message that is asked and captured is settled once, when both are done."""

from __future__ import annotations

from intern.actors.checkpointer import MessageSettler
from intern.core.ids import ChannelId, MessageId
from tests.worlds.actors import Settlements

HERE = ChannelId("7")
ONE, TWO, THREE = MessageId("1"), MessageId("2"), MessageId("3")


def test_what_is_asked_or_captured_is_settled_at_once() -> None:
    account = Settlements()
    settling = MessageSettler(account.settle)
    settling.settle(HERE, [ONE])
    settling.settle_captured(HERE, [TWO])
    assert account.ids == [ONE, TWO]


def test_what_is_asked_and_captured_is_settled_with_the_later_of_both() -> None:
    account = Settlements()
    settling = MessageSettler(account.settle)
    settling.expect_capture([ONE, TWO])
    settling.settle(HERE, [ONE, THREE])
    settling.settle(HERE, [ONE])
    assert account.ids == [THREE]
    settling.settle_captured(HERE, [ONE, TWO])
    assert account.ids == [THREE, ONE]
    settling.settle(HERE, [TWO])
    assert account.ids == [THREE, ONE, TWO]
