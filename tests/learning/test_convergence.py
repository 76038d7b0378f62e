"""However a conversation reaches the archive, it ends as one block, both live and after a regeneration."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from math import inf
from pathlib import Path
from typing import Literal

import anyio
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from intern.core.captures import CapturedPair
from intern.core.flow import TopicChoice
from intern.core.ids import MessageId, UserId
from intern.learning.filing import file_pairs
from intern.learning.forgetting import ForgetRequest, find_forget_scope, make_tombstone
from intern.learning.prompts import CLASSIFY, ClassifyOut
from intern.learning.regenerating import Regeneration
from intern.learning.withdrawing import remove_messages
from tests.examples import examples
from tests.worlds.actors import Attempts
from tests.worlds.team import NODES, Writers


class Library(Writers):
    """Writers whose captures are filed at once."""

    def open(self, steps: float = inf) -> None:
        super().open(steps)
        if cursor := self.knowledge.cursor():
            self.archive.reserve_ids_up_to(cursor)
        self.model.always(CLASSIFY, ClassifyOut(skip=False, topic_name=NODES))

    async def captured(self, *said: str, conversation: str = "thread_1") -> CapturedPair | None:
        pair = await super().captured(*said, conversation=conversation)
        await self.filed()
        return pair

    async def filed(self) -> None:
        async def choose(_: CapturedPair) -> TopicChoice:
            return TopicChoice(name=NODES)

        await file_pairs(
            self.archive.pairs_after(self.knowledge.cursor()), filer=self.filer, choose=choose, attempts=Attempts()
        )

    async def forgotten(self, asked: ForgetRequest) -> None:
        found = find_forget_scope(asked, self.archive, self.knowledge)
        decision = make_tombstone(asked, found, self.clock.now())
        if decision is not None:
            await self.knowledge.change(
                partial(remove_messages, self.knowledge, self.archive, decision, found.message_ids)
            )
        if asked.erase:
            self.archive.erase(found.message_ids)

    def held(self) -> list[list[str]]:
        return sorted(super().held())

    async def regenerated(self) -> list[list[str]]:
        await Regeneration(
            model=self.model,
            archive=self.archive,
            knowledge=self.knowledge,
            describe=lambda blocks: f"{len(blocks)} blocks",
            clock=self.clock,
        ).run()
        return self.held()


@pytest.fixture
async def library(tmp_path: Path) -> AsyncGenerator[Library]:
    async with Library.at(tmp_path) as library:
        yield library


@pytest.mark.rest
@pytest.mark.parametrize("replies", [False, True])
async def test_twenty_captures_of_one_growing_conversation_leave_one_block(library: Library, *, replies: bool) -> None:
    """In a thread, each capture has all messages; in a chain of replies, its end, under a new conversation id."""
    said = ["q1"]
    conversations: set[str] = set()
    for n in range(2, 22):
        said.append(f"{'q' if n % 3 == 0 else 'a'}{n}")
        seen = said[-4:] if replies else said
        pair = await library.captured(*seen, conversation=f"reply_{seen[0][1:]}" if replies else "thread_1")
        conversations.update({pair.conversation_id} if pair is not None else ())
    assert len(library.archive) == 20
    assert library.held() == [said]
    assert await library.regenerated() == [said]
    # Its id does not change.
    assert len(conversations) == 1


async def test_two_team_members_separate_answers_to_one_question_are_both_kept(library: Library) -> None:
    await library.captured("q1", "a2", conversation="reply_1")
    await library.captured("q1", "a3", conversation="reply_1")
    assert library.held() == [["q1", "a2", "a3"]]
    assert await library.regenerated() == [["q1", "a2", "a3"]]


async def test_an_edited_answer_wins_and_a_deleted_message_is_gone_live_as_after_a_regeneration(
    library: Library,
) -> None:
    await library.captured("q1", "a2", "a3")
    await library.captured("a2: better")
    await library.withdraw([MessageId("3")])
    assert library.held() == [["q1", "better"]]
    assert await library.regenerated() == [["q1", "better"]]


# Five messages of each of two conversations.
_NAMES = [[f"{kind}{conversation}{n}" for n, kind in enumerate("qaqaa")] for conversation in (1, 2)]
_ALL = [*_NAMES[0], *_NAMES[1]]
_Act = tuple[Literal["capture", "edit", "withdraw", "member", "message", "erase", "restart", "regenerate"], list[str]]
_ONE = st.lists(st.sampled_from(_ALL), min_size=1, max_size=1)
_ACTS: st.SearchStrategy[_Act] = st.one_of(
    *(st.tuples(st.just("capture"), st.lists(st.sampled_from(names), min_size=1, unique=True)) for names in _NAMES),
    st.tuples(st.sampled_from(["edit", "withdraw", "member", "message", "erase"]), _ONE),
    st.tuples(st.sampled_from(["restart", "regenerate"]), st.just([])),
)


class _Life:
    """The acts of people, and the texts that must be gone after them."""

    def __init__(self, library: Library) -> None:
        self.gone: set[str] = set()
        self.erased: set[str] = set()
        self._library = library
        self._texts: dict[str, str] = {}

    async def go_through(self, acts: list[_Act]) -> None:
        for act, names in acts:
            await self._act(act, sorted(names, key=lambda name: name[1:]))

    async def _act(self, act: str, names: list[str]) -> None:
        library = self._library
        ids = tuple(MessageId(name[1:]) for name in names)
        match act:
            case "capture":
                said = (f"{name}: {self._texts.get(name, f'{name} v0')}" for name in names)
                await library.captured(*said, conversation=f"thread_{names[0][1]}")
            case "edit":
                self._texts[names[0]] = f"{names[0]} v{len(self._texts) + 1}"
                await library.captured(f"{names[0]}: {self._texts[names[0]]}", conversation=f"thread_{names[0][1]}")
            case "withdraw":
                await library.withdraw(ids)
            case "member":
                await library.forgotten(ForgetRequest(user_id=UserId(f"50{ids[0]}")))
            case "message" | "erase":
                await library.forgotten(ForgetRequest(message_ids=ids, erase=act == "erase"))
            case "restart":
                library.open()
            case _:
                await library.regenerated()
        if act in {"withdraw", "member", "message", "erase"}:
            self.gone.update(names)
        if act == "erase":
            self.erased.update(names)


@pytest.mark.rest
@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(acts=st.lists(_ACTS, max_size=12))
def test_whatever_is_captured_edited_deleted_and_forgotten_live_equals_regeneration(
    tmp_path_factory: pytest.TempPathFactory, acts: list[_Act]
) -> None:
    async def live() -> None:
        async with Library.at(tmp_path_factory.mktemp("team")) as library:
            life = _Life(library)
            await life.go_through(acts)
            held = library.held()

            assert len(held) <= 2
            assert life.gone.isdisjoint(text.split()[0] for block in held for text in block)
            on_disk = "".join(path.read_text() for path in library.raw.glob("*"))
            assert not any(f"{name} v" in on_disk for name in life.erased)
            pairs = list(library.archive.pairs_after(None))
            assert all(pair.conversation_id == f"thread_{pair.message_ids[0][0]}" for pair in pairs)
            assert await library.regenerated() == held

    anyio.run(live)
