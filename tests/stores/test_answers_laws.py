"""Laws of the records of questions: no order of asking, posting, deleting and forgetting breaks them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import example, given, settings, strategies as st

from intern.core.ids import MessageId, SourceId
from intern.core.messages import Citation
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables import answers
from intern.stores.tables.answers import AnswerStore
from intern.stores.tables.outbox import Outbox
from tests.examples import examples
from tests.worlds.clock import HandClock
from tests.worlds.samples import message, reply, save_question

_ACTS = ("ask", "trace", "beside", "post", "uncited", "recall", "drop", "withdraw", "forget")
_STEPS = st.lists(st.tuples(st.sampled_from(_ACTS), st.sets(st.integers(1, 5), min_size=1, max_size=3)), max_size=12)
_CITED = (Citation(source_id=SourceId("kb:a.md"), title="A"),)


class _Life:
    """Records of five messages, each with a word of its own, and the messages whose words must not be kept."""

    def __init__(self, db: SqliteDatabase) -> None:
        self._db, self._clock = db, HandClock()
        self._records, self._posts = AnswerStore(db, clock=self._clock), Outbox(db, clock=self._clock)
        self.gone, self.forgotten = set[int](), set[int]()

    async def act(self, name: str, numbers: set[int]) -> None:
        self._clock.turn(seconds=1)
        messages = [message(f"word{n}", n=n) for n in sorted(numbers)]
        ids = [each.id for each in messages]
        match name:
            case "ask":
                await save_question(self._records, messages, "no_sources")
            case "trace" | "beside":
                await self._records.save(ids, messages[0].channel_id, outcome="silent", beside=name == "beside")
            case "post" | "uncited":
                fields = {
                    "citations": _CITED if name == "post" else (),
                    "asked": "\n".join(each.text for each in messages),
                }
                await self._posts.begin(
                    reply(ids[-1], messages[0].channel_id, "in_place", covers=ids, **fields), ["so"]
                )
            case "recall":
                await self._posts.delete_unsent(ids[-1])
                watched = "select 1 from answers where question_id = ? and retracted is not null"
                assert await self._db.row(watched, (ids[-1],)) is None, "what was not posted is not watched"
            case "drop":
                self._records.drop(ids)
                await self._records.store()
            case "withdraw":
                await self._records.withdraw(ids)
            case _:
                await self._records.forget(ids)
        if name in {"ask", "post"}:
            self.gone -= numbers
        elif name not in {"beside", "uncited", "recall"}:
            self.gone |= numbers
        if name == "forget":
            self.forgotten |= numbers
        elif name not in {"uncited", "recall"}:
            self.forgotten -= numbers

    async def check(self) -> None:
        rows = await self._db.rows("select question_id, debug, texts, retracted from answers")
        held = await self._db.rows("select question_id, message_id from answer_messages")
        for question_id, *parts in rows:
            named = [int(str(each)) for of, each in held if of == question_id]
            assert int(str(question_id)) == max(named), "the newest message names the record"
            assert any(part is not None for part in parts), "no record is empty"
        kept = " ".join(str(texts) for _, _, texts, _ in rows)
        assert [n for n in self.gone if f"word{n}" in kept] == []
        ids = {MessageId(str(each)) for _, each in held}
        assert [n for n in self.forgotten if message(n=n).id in ids] == []
        watched = {question_id for question_id, _, _, retracted in rows if retracted is not None}
        assert {each for (each,) in await self._db.rows("select question_id from answer_citations")} == watched


@pytest.mark.rest
@settings(max_examples=examples(60))
@given(_STEPS)
@example([("post", {1}), ("recall", {1})])
def test_each_message_has_one_record_and_no_word_outlives_its_message(steps: list[tuple[str, set[int]]]) -> None:
    async def main() -> None:
        with TemporaryDirectory() as folder, anyio.fail_after(20):
            async with await SqliteDatabase.open(Path(folder) / "intern.db") as db:
                life = _Life(db)
                for name, numbers in steps:
                    await life.act(name, numbers)
                    await life.check()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "KEPT_TRACES", 2)
        anyio.run(main)
