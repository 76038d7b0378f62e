"""The lines of `decisions.jsonl`, one decision each, as people, other programs and `intern restore` read them."""

from __future__ import annotations

from codecs import BOM_UTF8
from contextlib import suppress
from pathlib import Path

import msgspec

from intern.core.records import Decision, Forgotten, Withdrawn
from intern.stores.blocks import BlockWarning, time_of
from intern.stores.files import FileLayer

_DECODER: msgspec.json.Decoder[Decision] = msgspec.json.Decoder(Decision)


def decision_line(decision: Decision) -> bytes:
    """Return the line of a decision, with its line break."""
    return msgspec.json.encode(decision) + b"\n"


def read_withdrawals(path: Path) -> list[Withdrawn | Forgotten]:
    """Return the withdrawals and tombstones of a file, passing over all else. Raises KnowledgeError."""
    lines = (FileLayer().read(path) or b"").split(b"\n")
    found = [line for line in lines if line.startswith((b'{"action":"withdrawn"', b'{"action":"forgotten"'))]
    with suppress(msgspec.DecodeError):
        return [msgspec.json.decode(line, type=Withdrawn | Forgotten) for line in found]
    return []


def read_decisions(path: Path, files: FileLayer | None = None) -> tuple[list[Decision], tuple[BlockWarning, ...]]:
    """Return the decisions of a file, oldest first, and what was passed over. Raises KnowledgeError.

    A line that is torn, damaged or of a later version costs itself.
    """
    decisions: list[Decision] = []
    damaged: list[BlockWarning] = []
    for number, line in enumerate(((files or FileLayer()).read(path) or b"").split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            decision = _DECODER.decode(line.removeprefix(BOM_UTF8))  # some editors begin a file with it
            if not isinstance(decision, Withdrawn | Forgotten):
                time_of(decision.qa_id)
            decisions.append(decision)
        except (msgspec.DecodeError, ValueError) as error:
            damaged.append(BlockWarning(path.name, number, str(error)))
    return decisions, tuple(damaged)
