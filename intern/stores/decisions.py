"""The lines of `decisions.jsonl`, one decision each, as people, other programs and `intern restore` read them."""

from __future__ import annotations

from codecs import BOM_UTF8

import msgspec

from intern.core.records import Decision, Forgotten, Withdrawn
from intern.stores.blocks import BlockWarning, time_of

_DECODER: msgspec.json.Decoder[Decision] = msgspec.json.Decoder(Decision)


def decision_line(decision: Decision) -> bytes:
    """Return the line of a decision, with its line break."""
    return msgspec.json.encode(decision) + b"\n"


def parse_decisions(data: bytes, file: str) -> tuple[list[Decision], tuple[BlockWarning, ...]]:
    """Return the decisions of a file, oldest first, and what was passed over.

    A line that is torn, damaged or of a later version costs itself.
    """
    decisions: list[Decision] = []
    damaged: list[BlockWarning] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            decision = _DECODER.decode(line.removeprefix(BOM_UTF8))  # some editors begin a file with it
            if not isinstance(decision, Withdrawn | Forgotten):
                time_of(decision.qa_id)
            decisions.append(decision)
        except (msgspec.DecodeError, ValueError) as error:
            damaged.append(BlockWarning(file, number, str(error)))
    return decisions, tuple(damaged)
