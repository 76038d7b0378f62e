"""The record of a question: what came of it, and its words unless it was chatter."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from intern.answering.answer_trace import list_steps
from intern.answering.triage import is_chatter
from intern.core.flow import AnswerRequest
from intern.stores.tables.answers import NOT_ASKED, AnswerStore, QuestionWords
from intern.stores.tables.store import save_record


async def record_question(
    records: AnswerStore,
    request: AnswerRequest,
    *,
    outcome: str,
    reason: str = "",
    debug: Mapping[str, Any] | None = None,
    with_words: bool = True,
) -> None:
    """Save the record of a question; a failure costs the record, never the answer."""
    messages, steps = request.batch.messages, list_steps(debug or {})
    is_idle = reason == NOT_ASKED and (not request.called or is_chatter(request.batch.text))
    # The wait of its author, including the pause that shows that the question is complete.
    waited = (records.clock.now() - messages[-1].at).total_seconds()
    words = QuestionWords(
        messages=messages,
        channel=request.channel,
        seconds=max((debug or {}).get("seconds", 0.0), waited),
        tokens=sum(step.get("tokens", 0) for step in steps),
        cost=sum(step.get("cost", 0) for step in steps),
    )
    keep = partial(
        records.save,
        [each.id for each in messages],
        request.batch.channel_id,
        outcome=outcome,
        reason=reason,
        debug=debug,
        words=words if with_words and not is_idle else None,
    )
    await save_record(keep, message_id=request.batch.last.id)
