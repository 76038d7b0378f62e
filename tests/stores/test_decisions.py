"""The lines of `decisions.jsonl`: each can be read by people and programs, and a damaged one costs itself."""

from __future__ import annotations

from datetime import UTC, datetime

from intern.core.decisions import PairFiled
from intern.core.ids import QAId, TopicName
from intern.stores.archive import encode_decision, parse_decisions

FIRST, SECOND = (QAId(f"qa_20260201_03105{n}.000000") for n in (6, 7))


def filed(qa_id: QAId) -> PairFiled:
    at = datetime(2026, 2, 1, 3, 10, 56, tzinfo=UTC)
    return PairFiled(qa_id=qa_id, topic=TopicName("gpu"), removed=(FIRST,), at=at, reason="it\nfits\u2028 ü")


def test_a_decision_is_a_line_that_people_can_read() -> None:
    assert encode_decision(filed(FIRST)).decode() == (
        '{"action":"filed","at":"2026-02-01T03:10:56Z","reason":"it\\nfits\u2028 ü",'
        '"qa_id":"qa_20260201_031056.000000","topic":"gpu","removed":["qa_20260201_031056.000000"]}\n'
    )


def test_a_torn_or_damaged_line_costs_that_line() -> None:
    good = encode_decision(filed(FIRST))
    later = b'{"action":"dreamt_of","at":"2026-02-01T03:10:56Z","qa_id":"qa_20260201_031057"}\n'
    strange = good.replace(b'"qa_id":"qa_2026', b'"qa_id":"qq_2026')
    last = b"\xef\xbb\xbf" + encode_decision(filed(SECOND))
    data = b"\0\0\n\n" + good + b"\xff\xfe{\n" + later + strange + last + good[:-20]

    decisions, damaged = parse_decisions(data, "decisions.jsonl")
    assert decisions == [filed(FIRST), filed(SECOND)]
    assert [(each.file, each.line) for each in damaged] == [("decisions.jsonl", n) for n in (1, 4, 5, 6, 8)]
