r"""The plain text of archive and topic files, as values. No I/O.

    --- QA ---
    id: qa_20260201_031056.228000
    timestamp: 2026-02-01T03:10:56.228000Z
    conversation_id: thread_1458745245675032709
    length: 100
    User: The first line of a message
      and each further line, indented by two spaces.
    Team: Its answer.

An empty line ends a block. Only `\n` ends a line, and a message's further lines are indented. So no text can change
the structure, and reading returns exactly the written text.

Archives are only ever appended to. A block there that we wrote has `answered_at`, and `length`: the number of
characters of its turns below. If it lacks its empty line, the length tells an editor that trimmed the
end (nothing is missing) from a torn write, which is no block. Blocks that people and other programs write are read
leniently: further lines need no indent, and empty lines may be between them. A byte order mark and `\r\n` line
ends, which an editor may have added, are no part of the text.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence, Set as AbstractSet
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from intern.core.captures import Capture, CapturedPair, Speaker, TopicBlock, Turn
from intern.core.ids import ChannelId, ConversationId, GuildId, MessageId, QAId, UserId
from intern.core.messages import MARKER
from intern.stores.qa_ids import bare_message_id, format_timestamp, qa_id_time

_INDENT = "  "
_SPEAKERS: dict[str, Speaker] = {"User:": "User", "Team:": "Team"}
_TOPIC_HEADERS = frozenset({"id", "timestamp", "conversation_id", "answered_at"})
_RAW_HEADERS = _TOPIC_HEADERS | {"message_ids", "author_ids", "guild_id", "channel_id", "replaces", "length"}
_UNKNOWN = "-"  # an unknown author, so that the list keeps its places

_KEY = r"[^\s:](?:[^:\n]*[^\s:])?"
_HEADER = re.compile(rf"({_KEY}):(?: (.*))?", re.DOTALL)
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?Z")
C = TypeVar("C", bound=Capture)


class BlockWarning(NamedTuple):
    """A piece of a file that is no block and is ignored."""

    file: str
    line: int
    """Counted from 1."""
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.reason}"


class TopicFileContent(NamedTuple):
    """The blocks of a file, in its order, and warnings about the pieces that are ignored."""

    blocks: tuple[TopicBlock, ...]
    warnings: tuple[BlockWarning, ...]


class LocatedPair(NamedTuple):
    """An archived pair and the place of its bytes in the week file."""

    pair: CapturedPair
    start: int
    length: int


class WeekFilePiece(NamedTuple):
    """A piece of a week file as it will be without some messages."""

    data: bytes
    """Empty if nothing is left. A piece that lost nothing keeps each byte."""
    lost: int = 0
    """The number of messages that it lost."""
    qa_id: QAId | None = None
    """The pair that lost them; None if the piece is no block."""


def format_pair_block(pair: CapturedPair) -> str:
    """Return the block of a pair in the archive, its closing empty line included.

    Raises ValueError if authors and messages do not match, if there is no turn, or if the pair would be read back
    differently, such as with ids that break the format.
    """
    headers = [
        ("id", pair.qa_id),
        ("timestamp", _format_own_timestamp(pair)),
        ("conversation_id", pair.conversation_id),
        ("message_ids", ", ".join(pair.message_ids)),
        ("author_ids", ", ".join(each or _UNKNOWN for each in pair.author_ids) if any(pair.author_ids) else None),
        ("answered_at", format_timestamp(pair.answered_at)),
        ("guild_id", pair.guild_id),
        ("channel_id", pair.channel_id),
        ("replaces", pair.replaces),
        ("length", str(len(_format_turns(pair.turns)))),
    ]
    block = _format_block(headers, pair.extra_headers, _RAW_HEADERS, pair.turns)
    _check_read_back(pair, block)
    return block


def format_topic_block(block: TopicBlock) -> str:
    """Return the block of a pair in a topic file, with its closing empty line. Raises ValueError likewise."""
    headers = [
        ("id", block.qa_id),
        ("timestamp", _format_own_timestamp(block)),
        ("conversation_id", block.conversation_id),
        ("answered_at", format_timestamp(block.answered_at) if block.answered_at else None),
    ]
    return _format_block(headers, block.extra_headers, _TOPIC_HEADERS, block.turns)


def parse_topic_file(data: bytes, *, file: str) -> TopicFileContent:
    """Return the blocks of a topic file. `file` is the name for the warnings."""
    blocks: list[TopicBlock] = []
    warnings: list[BlockWarning] = []
    for chunk in _split_chunks(_split_lines(data)):
        try:
            blocks.append(_build_topic_block(_parse_chunk(chunk, _TOPIC_HEADERS, appended=False)))
        except _DamagedBlockError as damage:
            warnings.append(damage.warning(chunk, file))
    return TopicFileContent(tuple(blocks), tuple(warnings))


def scan_archive(lines: Iterable[bytes], *, file: str) -> Iterator[LocatedPair | BlockWarning]:
    r"""Yield the pairs of a week file, one in memory at a time. `lines` end in `\n` alone, as in a binary file."""
    for chunk in _split_chunks(lines):
        try:
            block = _parse_chunk(chunk, _RAW_HEADERS, appended=True)
            yield LocatedPair(_build_captured_pair(block), chunk.start, len(chunk.data))
        except _DamagedBlockError as damage:
            yield damage.warning(chunk, file)
        else:
            if block.stray is not None:
                yield block.stray.warning(chunk, file)


def erase_messages(lines: Iterable[bytes], message_ids: AbstractSet[str]) -> Iterator[WeekFilePiece]:
    """Yield a week file piece by piece, without these messages (ids without prefix).

    A pair keeps its id and its other messages. It is removed as a whole if nothing is left of it, or if it does not
    say which turn belongs to which message. So is a damaged piece that contains one of the ids.
    """
    for chunk in _split_chunks(lines):
        try:
            pair = _build_captured_pair(_parse_chunk(chunk, _RAW_HEADERS, appended=True))
        except _DamagedBlockError:
            named = not message_ids.isdisjoint(_extract_id_words(chunk.data))
            yield WeekFilePiece(b"", 1) if named else WeekFilePiece(chunk.data)
        else:
            kept = [n for n, each in enumerate(pair.message_ids) if bare_message_id(each) not in message_ids]
            lost = len(pair.message_ids) - len(kept)
            yield WeekFilePiece(_format_remaining(pair, kept), lost, pair.qa_id) if lost else WeekFilePiece(chunk.data)


def remove_blocks(data: bytes, doomed: Callable[[bytes], bool]) -> bytes:
    """Return a file without the pieces, from one marker to the next, that are `doomed`; they need not be whole."""
    return b"".join(chunk.data for chunk in _split_chunks(_split_lines(data)) if not doomed(chunk.data))


class _Chunk(NamedTuple):
    """The bytes from one marker to the next."""

    start: int
    line: int
    data: bytes


class _ParsedBlock(NamedTuple):
    headers: dict[str, str]
    extra: tuple[tuple[str, str], ...]
    turns: tuple[Turn, ...]
    stray: _DamagedBlockError | None
    """The text behind the block's end that belongs to nothing."""


class _DamagedBlockError(ValueError):
    """This is no block. `line` counts from 0, the marker."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason

    def warning(self, chunk: _Chunk, file: str) -> BlockWarning:
        return BlockWarning(file, chunk.line + self.line, self.reason)


def _check_read_back(pair: CapturedPair, block: str) -> None:
    """Raise ValueError if the block differs from the pair."""
    said = pair if any(pair.author_ids) else replace(pair, author_ids=())  # unknown authors are not listed
    [chunk] = _split_chunks(_split_lines(block.encode()))
    try:
        read = _build_captured_pair(_parse_chunk(chunk, _RAW_HEADERS, appended=True))
    except _DamagedBlockError as damage:
        raise ValueError(f"it cannot be archived, because it could not be read again: {damage.reason}") from None
    if read != said:
        wrong = [name for name in said.__struct_fields__ if getattr(read, name) != getattr(said, name)]
        raise ValueError(f"it cannot be archived, because it would be read differently: {', '.join(wrong)}")


def _format_remaining(pair: CapturedPair, kept: Sequence[int]) -> bytes:
    """Return the block of a pair with only these of its messages, by their places."""
    if not kept or len(pair.turns) != len(pair.message_ids):
        return b""
    return format_pair_block(select_messages(pair, kept)).encode()


def select_messages(capture: C, kept: Sequence[int]) -> C:
    """Return a capture with only these of its messages, by their places."""
    columns = {name: getattr(capture, name, ()) for name in ("turns", "message_ids", "author_ids", "author_names")}
    return replace(capture, **{name: tuple(each[n] for n in kept) for name, each in columns.items() if each})


def _extract_id_words(data: bytes) -> Iterator[str]:
    """Yield the words that may be message ids, in bytes that are no block."""
    for pattern in (rb"[A-Za-z0-9]+", rb"[\w.-]+"):
        yield from (found.decode() for found in re.findall(pattern, data))


def _format_block(
    headers: Sequence[tuple[str, str | None]],
    extra: tuple[tuple[str, str], ...],
    known: frozenset[str],
    turns: tuple[Turn, ...],
) -> str:
    if not turns:
        raise ValueError("a block needs a turn")
    lines = [MARKER]
    for key, value in headers:
        if value is not None:
            if value != value.strip() or "\n" in value:
                raise ValueError(f"{value!r} cannot stand as {key}")
            lines.append(_format_header(key, value))
    for key, value in extra:
        if key in known or f"{key}:" in _SPEAKERS or "\n" in value or not re.fullmatch(_KEY, key):
            raise ValueError(f"{key!r} cannot stand as a header")
        lines.append(_format_header(key, value))
    return "\n".join([*lines, _format_turns(turns)]) + "\n\n"


def _format_own_timestamp(block: CapturedPair | TopicBlock) -> str:
    """Return the timestamp with as many digits of a second as the id has."""
    fraction = block.qa_id.partition(".")[1:]
    return f"{format_timestamp(block.timestamp)[:19]}{''.join(fraction)}Z"


def _format_turns(turns: Iterable[Turn]) -> str:
    return "\n".join(f"{turn.speaker}: {turn.text}".replace("\n", f"\n{_INDENT}") for turn in turns)


def _format_header(key: str, value: str) -> str:
    return f"{key}: {value}" if value else f"{key}:"


def _split_lines(data: bytes) -> Iterator[bytes]:
    r"""Yield the lines, ended by `\n` alone."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        yield data[start:end]
        start = end


def _split_chunks(lines: Iterable[bytes]) -> Iterator[_Chunk]:
    markers = {f"{MARKER}{end}".encode() for end in ("", "\n", "\r\n")}
    held: list[bytes] = []
    start = at = 0
    first = number = 1
    for line in lines:
        bare_line = line.removeprefix(BOM_UTF8)
        if not at or bare_line in markers:  # files may have been joined, so any block may begin with a mark
            at += len(line) - len(bare_line)
        else:
            bare_line = line
        if bare_line in markers:
            if held:
                yield _Chunk(start, first, b"".join(held))
            held, start, first = [], at, number
        # Empty lines before the first block are nothing.
        if held or bare_line not in {b"\n", b"\r\n", b""}:
            if not held:
                start, first = at, number
            held.append(bare_line)
        at += len(bare_line)
        number += 1
    if held:
        yield _Chunk(start, first, b"".join(held))


def _parse_chunk(chunk: _Chunk, known: frozenset[str], *, appended: bool) -> _ParsedBlock:
    """Read a chunk. Raises _DamagedBlockError."""
    lines = _decode(chunk.data).split("\n")
    if lines[0] == f"{MARKER}\r":  # never ours, so an editor has changed every line
        lines = [line.removesuffix("\r") for line in lines]
    if lines[0] != MARKER:
        raise _DamagedBlockError(0, "text that belongs to no block")
    ended = not lines[-1]
    if ended:
        lines.pop()  # the text behind the last newline is no line
    headers, extra, first = _read_headers(lines, known)
    strict = appended and "answered_at" in headers
    turns, end = _read_turns(lines, first, strict=strict)
    stray: _DamagedBlockError | None = None
    if strict:
        # Blocks of other programs do not say their length; then the line break must do.
        length = len("\n".join(lines[first:]))
        if end == len(lines) and not (ended if "length" not in headers else headers["length"] == str(length)):
            raise _DamagedBlockError(end - 1, "the block breaks off here: it was not written to its end")
        if at := next((n for n in range(end, len(lines)) if lines[n]), None):
            stray = _DamagedBlockError(at, "text that belongs to no block")
    return _ParsedBlock(headers, extra, turns, stray)


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _DamagedBlockError(data.count(b"\n", 0, error.start), "bytes that are not UTF-8") from None


def _read_headers(lines: list[str], known: frozenset[str]) -> tuple[dict[str, str], tuple[tuple[str, str], ...], int]:
    """Return the known headers, the others, and the line of the first turn."""
    headers: dict[str, str] = {}
    extra: list[tuple[str, str]] = []
    for n, line in enumerate(lines[1:], 1):
        if line[:5] in _SPEAKERS and _parse_turn(line):
            return headers, tuple(extra), n
        key, _, value = line.partition(": ")
        if key not in known:
            found = _HEADER.fullmatch(line)
            if found is None:
                raise _DamagedBlockError(n, "neither a header line nor a turn")
            key, value = found[1], found[2] or ""
        if key not in known:
            extra.append((key, value))
        elif key in headers:
            raise _DamagedBlockError(n, f"a second {key}")
        else:
            headers[key] = value.strip()
    raise _DamagedBlockError(len(lines) - 1, "the block breaks off before its first turn")


def _parse_turn(line: str) -> Turn | None:
    speaker = _SPEAKERS.get(line[:5])
    if speaker is None or line[5:6] not in {"", " "}:
        return None
    return Turn(speaker, line[6:])


def _read_turns(lines: list[str], first: int, *, strict: bool) -> tuple[tuple[Turn, ...], int]:
    """Return the turns, and the line behind the last one."""
    turns: list[tuple[Speaker, list[str]]] = []
    empty = 0
    for n, line in enumerate(lines[first:], first):
        if not line:
            if strict:
                return _build_turns(turns), n
            empty += 1
            continue
        turn = None if line.startswith(_INDENT) else _parse_turn(line)
        if turn:
            turns.append((turn.speaker, [turn.text]))
        elif strict and not line.startswith(_INDENT):
            raise _DamagedBlockError(n, "neither a turn nor the indented line of one")
        else:
            turns[-1][1].extend([""] * empty + [line.removeprefix(_INDENT)])
        empty = 0
    return _build_turns(turns), len(lines)


def _build_turns(turns: list[tuple[Speaker, list[str]]]) -> tuple[Turn, ...]:
    return tuple(Turn(speaker, "\n".join(texts)) for speaker, texts in turns)


def _read_time(headers: dict[str, str], key: str) -> datetime | None:
    text = headers.get(key)
    if text is None:
        return None
    with suppress(ValueError):
        if _TIMESTAMP.fullmatch(text):
            return datetime.fromisoformat(text)
    raise _DamagedBlockError(0, f"{key} is no time like 2026-02-01T03:10:56.228000Z")


def _read_identity(headers: dict[str, str]) -> tuple[QAId, datetime]:
    timestamp = _read_time(headers, "timestamp")
    if timestamp is None or "id" not in headers:
        raise _DamagedBlockError(0, "id or timestamp is missing")
    qa_id = _read_qa_id(headers, "id")
    if qa_id_time(qa_id) != timestamp:
        raise _DamagedBlockError(0, "id and timestamp name different times")
    return qa_id, timestamp


def _read_qa_id(headers: dict[str, str], key: str) -> QAId:
    qa_id = QAId(headers[key])
    try:
        qa_id_time(qa_id)
    except ValueError as error:
        raise _DamagedBlockError(0, f"{key}: {error}") from None
    return qa_id


def _build_topic_block(block: _ParsedBlock) -> TopicBlock:
    headers = block.headers
    qa_id, timestamp = _read_identity(headers)
    conversation = headers.get("conversation_id")
    return TopicBlock(
        qa_id=qa_id,
        timestamp=timestamp,
        turns=block.turns,
        conversation_id=ConversationId(conversation) if conversation else None,
        answered_at=_read_time(headers, "answered_at"),
        extra_headers=block.extra,
    )


def _parse_author_ids(line: str, messages: int) -> tuple[UserId, ...]:
    """Return the author of each message; none where the line does not fit the messages, because it was edited."""
    authors = tuple(UserId("" if author == _UNKNOWN else author) for author in map(str.strip, line.split(",")))
    return authors if len(authors) == messages and any(authors) else ()


def _build_captured_pair(block: _ParsedBlock) -> CapturedPair:
    headers = block.headers
    qa_id, timestamp = _read_identity(headers)
    if not headers.get("conversation_id"):
        raise _DamagedBlockError(0, "conversation_id is missing")
    message_ids = tuple(MessageId(part) for each in headers.get("message_ids", "").split(",") if (part := each.strip()))
    guild, channel = headers.get("guild_id"), headers.get("channel_id")
    return CapturedPair(
        qa_id=qa_id,
        timestamp=timestamp,
        conversation_id=ConversationId(headers["conversation_id"]),
        turns=block.turns,
        message_ids=message_ids,
        author_ids=_parse_author_ids(headers.get("author_ids", ""), len(message_ids)),
        answered_at=_read_time(headers, "answered_at") or timestamp,
        guild_id=GuildId(guild) if guild else None,
        channel_id=ChannelId(channel) if channel else None,
        replaces=_read_qa_id(headers, "replaces") if headers.get("replaces") else None,
        extra_headers=block.extra,
    )
