"""The places of the pairs in a week file. Blocks as we write them are recognised whole; only others are parsed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import datetime
from io import BytesIO
from typing import BinaryIO

from msgspec import Struct

from intern.core.captures import CapturedPair
from intern.core.clock import to_microseconds
from intern.core.ids import MessageId
from intern.core.messages import MARKER
from intern.stores.block_format import BlockWarning, scan_archive
from intern.stores.qa_ids import bare_message_id, make_qa_id

_MARK = f"\n{MARKER}\n".encode()
_WINDOW = 1 << 14  # bytes that are read at a time

# The parser reads each match as one block without a warning, so the two must agree; a test compares them.
_DATE = rb"(?!0000)\d{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
_MOMENT = _DATE + rb"T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d\.\d{6}Z"
_OURS = re.compile(
    _MARK[1:]
    + rb"id: (qa_(....)(..)(..)_(..)(..)(.........))\n"
    + rb"timestamp: (?=\2-\3-\4T\5:\6:\7Z)%s\n" % _MOMENT
    + rb"conversation_id: (\w+)\n"
    + rb"message_ids: (\w+(?:, \w+)*)\n"
    + rb"(?:author_ids: [\w, -]*\n)?"
    + rb"answered_at: %s\n" % _MOMENT
    + rb"(?:guild_id: \w*\n)?(?:channel_id: \w*\n)?length: \d+\n"
    + rb"(?:User|Team):(?: .*)?\n(?:(?:(?:User|Team):(?: .*)?|  .*)\n)*+\n"
    + rb"(?=%s|\Z)" % _MARK[1:]
)


class PairLocation(Struct, frozen=True, gc=False):
    """The place of a pair in its week file, and the ids by which it is looked up."""

    qa_id: str
    """The id of the pair, with its whole fraction."""
    conversation_id: str
    messages: str
    """Their ids, joined."""
    start: int
    length: int

    @property
    def time(self) -> int:
        """The time in its id, in microseconds since 1970."""
        return to_microseconds(datetime.fromisoformat(f"{self.qa_id[3:].replace('_', 'T')}+00:00"))

    @property
    def message_ids(self) -> Iterator[str]:
        """The ids of its messages, without prefixes."""
        return (bare_message_id(MessageId(each)) for each in self.messages.split(", ") if each)


def locate_pair(pair: CapturedPair, start: int, length: int) -> PairLocation:
    """Return the place of a pair that is known."""
    return PairLocation(make_qa_id(pair.timestamp), pair.conversation_id, ", ".join(pair.message_ids), start, length)


def scan_week(file: BinaryIO, *, name: str, window: int = _WINDOW) -> Iterator[PairLocation | BlockWarning]:
    """Yield the places of a week file's pairs, in its order, and warnings about the pieces that are no pairs."""
    held, start, line = bytearray(), 0, 1
    while (read := file.read(window)) or held:
        held += read
        # The text before the last marker is whole. The text kept so far has no marker but its first.
        end = held.rfind(_MARK, -len(read) - len(_MARK)) + 1 if read else len(held)
        piece = bytes(held[:end])
        del held[:end]
        yield from _scan_piece(piece, start, line, name)
        start += end
        line += piece.count(b"\n")


def _scan_piece(piece: bytes, start: int, line: int, name: str) -> Iterator[PairLocation | BlockWarning]:
    at = 0
    for found in _OURS.finditer(piece):
        begin, end = found.span()
        if begin and piece[begin - 1] != _MARK[0]:  # the marker is the end of a line
            continue
        try:
            found[0].decode()
        except UnicodeDecodeError:
            continue
        if at != begin:
            yield from _parse_piece(piece[at:begin], start + at, line + piece.count(b"\n", 0, at), name)
        qa_id, conversation, messages = found.group(1, 8, 9)
        yield PairLocation(qa_id.decode(), conversation.decode(), messages.decode(), start + begin, end - begin)
        at = end
    yield from _parse_piece(piece[at:], start + at, line + piece.count(b"\n", 0, at), name)


def _parse_piece(piece: bytes, start: int, line: int, name: str) -> Iterator[PairLocation | BlockWarning]:
    for each in scan_archive(BytesIO(piece), file=name):
        if isinstance(each, BlockWarning):
            yield each._replace(line=each.line + line - 1)
        else:
            yield locate_pair(each.pair, start + each.start, each.length)


def find_tail(file: BinaryIO, most: int, *, window: int = _WINDOW) -> int:
    """Return where the last blocks of a week file begin, `most` of them or more; 0 where it has fewer."""
    begin = file.seek(0, os.SEEK_END)
    markers, after = 0, b""
    while begin and markers <= most:
        read = min(begin, window)
        begin = file.seek(begin - read)
        after = file.read(read) + after[: len(_MARK) - 1]
        markers += after.count(_MARK)
    return begin and begin + after.find(_MARK) + 1
