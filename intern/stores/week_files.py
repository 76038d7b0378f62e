"""Where the pairs of a week file are. Blocks as we write them are recognised whole; only others are parsed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from io import BytesIO
from typing import BinaryIO

from msgspec import Struct

from intern.core.clock import micros_of
from intern.core.ids import ConversationId, MessageId
from intern.core.messages import MARKER
from intern.core.records import CapturedPair
from intern.core.text.patterns import regex
from intern.stores.blocks import BlockWarning, scan_archive

_MARK = f"{MARKER}\n".encode()
_LINE_BREAK = ord("\n")
_WINDOW = 1 << 14  # bytes that are read at a time

# A match is what the parser takes for one block without a remark, so the two must agree; a test compares them.
_MOMENT = rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z"
_OURS = regex(
    _MARK
    + rb"id: qa_(....)(..)(..)_(..)(..)(.........)\n"
    + rb"timestamp: (?=\1-\2-\3T\4:\5:\6Z)(%s)\n" % _MOMENT
    + rb"conversation_id: (\w+)\n"
    + rb"message_ids: (\w+(?:, \w+)*)\n"
    + rb"(?:author_ids: [\w, -]*\n)?"
    + rb"answered_at: (%s)\n" % _MOMENT
    + rb"(?:guild_id: \w*\n)?(?:channel_id: \w*\n)?length: [0-9]+\n"
    + rb"(?:User|Team):(?: .*)?\n(?:(?:(?:User|Team):(?: .*)?|  .*)\n)*+\n"
    + rb"(?=%s|\Z)" % _MARK
)


class PairPlace(Struct, frozen=True, gc=False):
    """The place of a pair in its week file, and the ids by which it is looked up."""

    time: int
    """Of its id, in microseconds since 1970."""
    conversation_id: ConversationId
    message_ids: tuple[MessageId, ...]
    start: int
    length: int


def place_of(pair: CapturedPair, start: int, length: int) -> PairPlace:
    """Return the place of a pair that is known."""
    return PairPlace(micros_of(pair.timestamp), pair.conversation_id, pair.message_ids, start, length)


def scan_week(file: BinaryIO, *, name: str, window: int = _WINDOW) -> Iterator[PairPlace | BlockWarning]:
    """Yield the places of a week file's pairs, in its order, and warnings about the pieces that are no pairs."""
    held, start, line = bytearray(), 0, 1
    while (read := file.read(window)) or held:
        held += read
        # What stands before the last marker is whole. What was held has no other marker than its first.
        end = held.rfind(b"\n" + _MARK, -len(read) - len(_MARK)) + 1 if read else len(held)
        piece = bytes(held[:end])
        del held[:end]
        yield from _scan_piece(piece, start, line, name)
        start += end
        line += piece.count(b"\n")


def _scan_piece(piece: bytes, start: int, line: int, name: str) -> Iterator[PairPlace | BlockWarning]:
    at = 0
    for found in _OURS.finditer(piece):
        begin, end = found.span()
        if begin and piece[begin - 1] != _LINE_BREAK:  # the marker is the end of a line
            continue
        block, timestamp, conversation, messages, answered = found.group(0, 7, 8, 9, 10)
        try:
            datetime.fromisoformat(answered.decode())
            time = micros_of(datetime.fromisoformat(timestamp.decode()))
            block.decode()
        except ValueError:
            continue
        if at != begin:
            yield from _parse(piece[at:begin], start + at, line + piece.count(b"\n", 0, at), name)
        ids = tuple(messages.decode().split(", "))
        yield PairPlace(time, ConversationId(conversation.decode()), ids, start + begin, end - begin)
        at = end
    yield from _parse(piece[at:], start + at, line + piece.count(b"\n", 0, at), name)


def _parse(piece: bytes, start: int, line: int, name: str) -> Iterator[PairPlace | BlockWarning]:
    for each in scan_archive(BytesIO(piece), file=name):
        if isinstance(each, BlockWarning):
            yield each._replace(line=each.line + line - 1)
        else:
            yield place_of(each.pair, start + each.start, each.length)
