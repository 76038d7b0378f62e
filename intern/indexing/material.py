"""What a model gets to see of a source or a topic: the whole while it fits, else a bounded part that stands for it."""

from __future__ import annotations

from collections.abc import Sequence

from intern.domain import TopicBlock, Turn
from intern.text.passages import GAP

# A conversation shown with less says nothing.
_LEAST_BLOCK = 160


def source_material(text: str, max_chars: int) -> str:
    """The text, or three quarters from its head and one from its tail, cut at lines where there are any."""
    if len(text) <= max_chars:
        return text
    room = max(max_chars - len(GAP), 2)
    head, tail = text[: room * 3 // 4], text[len(text) - room // 4 :]
    return f"{head.rpartition(chr(10))[0] or head}{GAP}{tail.partition(chr(10))[2] or tail}"


def topic_material(blocks: Sequence[TopicBlock], max_chars: int) -> str:
    """The conversations, a line for each turn and an empty line after each, without ids and dates.

    Where that is too long, each question and the beginning of its answer; of very many, some from all along the file.
    """
    whole = "\n\n".join("\n".join(map(_line, block.turns)) for block in blocks)
    if len(whole) <= max_chars:
        return whole
    most = max(max_chars // _LEAST_BLOCK, 1)
    # The newest always, the others evenly spread.
    shown = blocks if len(blocks) <= most else [blocks[-1 - n * len(blocks) // most] for n in reversed(range(most))]
    room = max_chars // len(shown)
    return "\n\n".join(_brief(block, room - len("\n\n")) for block in shown)


def question_of(turns: Sequence[Turn]) -> str:
    """The first thing that a user said; the first turn where no user spoke."""
    return next((turn.text for turn in turns if turn.speaker == "User"), turns[0].text if turns else "")


def shortened(text: str, max_chars: int) -> str:
    """The text on one line, cut at a word where it is longer than `max_chars`."""
    line = " ".join(text.split())
    if len(line) <= max_chars:
        return line
    kept = line[: max(max_chars - 1, 0)]
    return f"{kept.rpartition(' ')[0] or kept}…"[: max(max_chars, 0)]


def _line(turn: Turn) -> str:
    return f"{turn.speaker}: {' '.join(turn.text.split())}"


def _brief(block: TopicBlock, room: int) -> str:
    question = shortened(f"User: {question_of(block.turns)}", room // 2)
    answer = " ".join(turn.text for turn in block.turns if turn.speaker == "Team")
    return "\n".join(line for line in (question, shortened(f"Team: {answer}", room - len(question) - 1)) if line)
