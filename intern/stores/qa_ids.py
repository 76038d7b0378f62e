"""Ids of captured pairs, which tell a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime

from intern.core.ids import MessageId, QAId

_QA_ID = re.compile(r"qa_([0-9]{8})_([0-9]{6}(?:\.[0-9]{1,6})?)")


def format_timestamp(moment: datetime) -> str:
    """Return a time by RFC 3339 in UTC, with microseconds and `Z`. Raises ValueError for a time without a zone."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone")
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def make_qa_id(timestamp: datetime) -> QAId:
    """Return the id of the pair archived at that time: the timestamp without its separators."""
    text = format_timestamp(timestamp).replace("-", "").replace(":", "").replace("T", "_").removesuffix("Z")
    return QAId(f"qa_{text}")


def qa_id_time(qa_id: QAId) -> datetime:
    """Return when the pair was archived (UTC). Ids are compared by this, never as strings: fractions may be missing.

    Raises ValueError for an invalid id.
    """
    found = _QA_ID.fullmatch(qa_id)
    if found is None:
        raise ValueError(f"{qa_id[:80]!r} is no id of a pair; expected one like qa_20260201_031056.228000")
    return datetime.fromisoformat(f"{found[1]}T{found[2]}+00:00")


def normalize_qa_id(qa_id: QAId) -> QAId:
    """Return an id with its whole fraction: these can be compared as strings. Raises ValueError as `qa_id_time`."""
    return make_qa_id(qa_id_time(qa_id))


def qa_id_times(qa_ids: Iterable[str]) -> Iterator[datetime]:
    """Yield the times of the valid ids; a model may name anything."""
    for qa_id in qa_ids:
        with suppress(ValueError):
            yield qa_id_time(QAId(qa_id))


def bare_message_id(message_id: MessageId) -> str:
    """Return the id by which messages are compared: Discord's are bare, other programs wrote `msg_<id>`."""
    return message_id.removeprefix("msg_")
