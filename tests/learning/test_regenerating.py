from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after

from intern.domain import CapturedPair, Filed, Parked, Removed, Replaced, TopicBlock, TopicName
from intern.errors import (
    KnowledgeError,
    ModelAccessError,
    ModelBudgetError,
    ModelError,
    ModelRefusedError,
    ModelReplyError,
    ModelUnavailableError,
)
from intern.knowledge.decisions import DecisionLog, read_state
from intern.knowledge.files import FileLayer
from intern.knowledge.topics import TopicLibrary
from intern.learning.prompts import CLASSIFY, INTEGRATE, ClassifyIn, ClassifyOut, IntegrateOut
from intern.learning.regenerating import COMPLETE, DRAFTED, Regenerated, finish_swap, regenerate
from intern.llm.prompt import Prompt
from tests.learning.pairs import KilledError, KillingLayer, Team

pytestmark = pytest.mark.anyio

KEEP = IntegrateOut(skip=False, remove_ids=())


def by_first_word(given: ClassifyIn) -> ClassifyOut:
    """The topic is what the question begins with."""
    return ClassifyOut(skip=False, topic_name=given.pair.split("User: ")[1].split()[0])


def describe(blocks: Sequence[TopicBlock]) -> str:
    return f"{len(blocks)} blocks"


async def again(team: Team, **options: Any) -> Regenerated:
    return await regenerate(
        team.model,
        team.archive,
        team.decisions,
        topics_dir=team.topics_dir,
        state_path=team.state_path,
        describe=describe,
        clock=team.clock,
        options=team.options,
        **options,
    )


@pytest.fixture
def team(tmp_path: Path) -> Team:
    team = Team(tmp_path)
    team.model.always(CLASSIFY, by_first_word)
    team.model.always(INTEGRATE, KEEP)
    return team


def held(folder: Path) -> dict[str, list[str]]:
    library = TopicLibrary(folder)
    return {name: [block.turns[-1].text for block in library.read(name)] for name in library.names()}


async def test_every_conversation_is_filed_once_by_its_most_complete_capture_oldest_answer_first(team: Team) -> None:
    late = team.archived("gpu late", "2", after=5)
    team.archived("gpu early", "1", after=1)
    first = team.archived("disk a", "3", conversation="thread_1", messages=2)
    fullest = team.archived("disk a", "3 and 4", conversation="thread_1", messages=4)
    same_size = team.archived("disk a", "3 and 5", conversation="thread_1", messages=4)
    told: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> None:
        told.append((done, total))

    with fail_after(5):
        result = await again(team, progress=tell)

    assert held(team.topics_dir) == {"gpu": ["1", "2"], "disk": ["3 and 5"]}
    assert (result.pairs, result.topics, result.parked) == (5, 2, ())
    assert (result.tally.filed, result.tally.replaced) == (3, 2)
    assert [type(team.decisions.of(pair.qa_id)) for pair in (first, fullest, same_size)] == [Replaced, Replaced, Filed]
    assert read_state(team.state_path) == same_size.qa_id
    assert told == [(1, 3), (2, 3), (3, 3)]
    # The classifier saw the library as it grew: the gpu topic was there when the later gpu question came.
    assert "team:gpu.txt" in team.model.calls(CLASSIFY)[-1].index
    assert isinstance(team.decisions.of(late.qa_id), Filed)


async def test_the_old_library_stays_beside_the_new_one(team: Team) -> None:
    team.placed("old", team.archived("gpu", "1"))
    with fail_after(5):
        await again(team)

    assert held(team.topics_dir) == {"gpu": ["1"]}
    assert held(team.topics_dir.with_name("topics.prev")) == {"old": ["1"]}
    assert not team.topics_dir.with_name("topics.next").exists()
    assert not (team.topics_dir / COMPLETE).exists()


async def test_a_pair_that_fails_is_parked_and_reported_and_the_others_go_on(team: Team) -> None:
    team.archived("gpu", "1")
    bad = team.archived("bad", "2", after=1)
    team.archived("disk", "3", after=2)

    def fails(given: ClassifyIn) -> ClassifyOut | Exception:
        return ModelReplyError("junk") if "bad" in given.pair else by_first_word(given)

    team.model.always(CLASSIFY, fails)
    with fail_after(5):
        result = await again(team)

    assert result.parked == (bad.qa_id,)
    assert isinstance(team.decisions.of(bad.qa_id), Parked)
    assert held(team.topics_dir) == {"gpu": ["1"], "disk": ["3"]}


async def test_a_model_that_is_down_leaves_the_old_library_and_its_decisions_alone(team: Team) -> None:
    for n in range(9):
        team.placed("old", team.archived(f"gpu {n}", str(n), after=n))
    team.model.always(CLASSIFY, ModelUnavailableError("down"))
    with fail_after(5), pytest.raises(ModelUnavailableError):
        await again(team)

    assert len(team.model.calls(CLASSIFY)) == 1
    assert list(held(team.topics_dir)) == ["old"]
    assert list(team.decisions.all()) == []


async def test_what_is_captured_meanwhile_is_filed_too(team: Team) -> None:
    team.archived("gpu", "1", conversation="thread_1")
    arrived: list[CapturedPair] = []

    def captures(given: ClassifyIn) -> ClassifyOut:
        if not arrived:
            arrived.append(team.archived("gpu", "1 and 2", conversation="thread_1", messages=3, after=1))
            arrived.append(team.archived("disk", "3", after=2))
        return by_first_word(given)

    team.model.always(CLASSIFY, captures)
    with fail_after(5):
        result = await again(team)

    assert result.pairs == 3
    assert held(team.topics_dir) == {"gpu": ["1 and 2"], "disk": ["3"]}


async def test_an_empty_archive_gives_an_empty_library(team: Team) -> None:
    with fail_after(5):
        result = await again(team)

    assert (result.pairs, result.topics) == (0, 0)
    assert held(team.topics_dir) == {}


async def test_an_empty_archive_does_not_empty_a_library_that_stands(team: Team, tmp_path: Path) -> None:
    team.placed("old", Team(tmp_path / "elsewhere").archived("gpu", "1"))
    with fail_after(5), pytest.raises(KnowledgeError, match=r"archive holds no pairs.*Put the archive back"):
        await again(team)

    assert held(team.topics_dir) == {"old": ["1"]}
    assert not finish_swap(team.topics_dir)
    assert held(team.topics_dir) == {"old": ["1"]}


@pytest.mark.parametrize("prompt", [CLASSIFY, INTEGRATE])
@pytest.mark.parametrize(
    "error", [ModelRefusedError("400"), ModelAccessError("401: check llm.api_key"), ModelBudgetError("spent")]
)
async def test_a_refusal_ends_it_and_the_old_library_stands(
    team: Team, prompt: Prompt[Any, Any], error: ModelError
) -> None:
    team.placed("old", team.archived("gpu one", "1"))
    team.placed("old", team.archived("gpu two", "2", after=1))
    team.model.always(prompt, error)
    with fail_after(5), pytest.raises(type(error), match=str(error)):
        await again(team)

    assert len(team.model.calls(prompt)) == 1
    assert held(team.topics_dir) == {"old": ["1", "2"]}
    assert list(team.decisions.all()) == []


async def test_where_no_reply_makes_sense_the_old_library_stands(team: Team) -> None:
    team.placed("old", team.archived("gpu", "1"))
    team.model.always(CLASSIFY, ModelReplyError("junk"))
    with fail_after(5), pytest.raises(KnowledgeError, match=r"no pair could be filed.*junk"):
        await again(team)

    assert held(team.topics_dir) == {"old": ["1"]}
    assert list(team.decisions.all()) == []


async def test_killed_at_any_step_one_whole_library_stands_and_a_start_completes_the_swap(tmp_path: Path) -> None:
    old, new = {"old": ["1", "2"]}, {"gpu": ["1"], "disk": ["2", "3"]}
    seen: list[dict[str, list[str]]] = []
    for steps in range(200):
        team = Team(tmp_path / str(steps))
        team.model.always(CLASSIFY, by_first_word)
        team.model.always(INTEGRATE, KEEP)
        team.placed("old", team.archived("gpu", "1"))
        team.placed("old", team.archived("disk", "2", after=1))
        # Not filed before; what counts as filed and stands in no topic, nobody would ever look for again.
        fresh = team.archived("disk", "3", after=2)
        layer = KillingLayer(steps)
        team.decisions = DecisionLog(team.decisions_path, layer)
        with fail_after(5):
            try:
                await again(team, files=layer)
                break
            except KilledError:
                _start_killed_again_and_again(team)
                seen.append(held(team.topics_dir))
                assert seen[-1] in (old, new)
                assert not team.topics_dir.with_name("topics.next").exists()
                decided = DecisionLog(team.decisions_path)
                assert isinstance(decided.of(fresh.qa_id), Filed) == (seen[-1] == new)
                assert len(list(decided.all())) == (3 if seen[-1] == new else 0)
                finish_swap(team.topics_dir, decided)
                assert held(team.topics_dir) == seen[-1]
                assert all(file.suffix == ".txt" for file in team.topics_dir.iterdir())
    else:
        pytest.fail("it never came to its end")

    # Both ends were met, and once the new library was whole, it stayed.
    assert old in seen
    assert new in seen
    assert seen == sorted(seen, key=lambda library: library == new)


def _start_killed_again_and_again(team: Team) -> None:
    """Starts that are killed one step later each, until one comes through."""
    for steps in range(50):
        layer = KillingLayer(steps)
        try:
            finish_swap(team.topics_dir, DecisionLog(team.decisions_path, layer), layer)
            return
        except KilledError:
            continue
    pytest.fail("no start came through")


async def test_decisions_that_nobody_takes_at_a_start_wait_for_the_next(tmp_path: Path) -> None:
    team = Team(tmp_path)
    pair = team.archived("gpu", "1")
    _topic(tmp_path / "topics.next", "gpu")
    DecisionLog(tmp_path / "topics.next" / DRAFTED).append(
        Filed(qa_id=pair.qa_id, topic=TopicName("gpu"), at=team.clock.now())
    )
    (tmp_path / "topics.next" / COMPLETE).touch()

    assert finish_swap(team.topics_dir)
    assert team.decisions.of(pair.qa_id) is None
    assert not finish_swap(team.topics_dir, team.decisions)
    assert isinstance(team.decisions.of(pair.qa_id), Filed)
    finish_swap(team.topics_dir, team.decisions)
    assert len(list(team.decisions.all())) == 1


async def test_a_decision_that_was_taken_since_is_not_undone_by_a_late_one(tmp_path: Path) -> None:
    team = Team(tmp_path)
    pair = team.archived("gpu", "1")
    DecisionLog(team.topics_dir / DRAFTED).append(Filed(qa_id=pair.qa_id, topic=TopicName("gpu"), at=team.clock.now()))
    team.clock.turn(seconds=1)
    removed = Removed(qa_id=pair.qa_id, at=team.clock.now())
    team.decisions.append(removed)
    finish_swap(team.topics_dir, team.decisions)

    assert team.decisions.of(pair.qa_id) == removed
    assert not (team.topics_dir / DRAFTED).exists()


@pytest.mark.parametrize("refused", [0, 1])
async def test_a_swap_that_failed_in_a_process_that_goes_on_never_happens_later(team: Team, refused: int) -> None:
    class Refusing(FileLayer):
        left = refused

        def rename(self, old: Path, new: Path) -> None:
            if old.is_dir():
                self.left -= 1
                if self.left == -1:
                    raise PermissionError(13, "Permission denied")
            super().rename(old, new)

    team.placed("old", team.archived("gpu", "1"))
    with fail_after(5), pytest.raises(KnowledgeError, match="could not take the place"):
        await again(team, files=Refusing())

    assert list(team.decisions.all()) == []
    team.placed("old", team.archived("disk", "2", after=1))
    assert not finish_swap(team.topics_dir, team.decisions)
    assert held(team.topics_dir) == {"old": ["1", "2"]}


def _topic(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{TopicName(name)}.txt").write_text("")


async def test_a_start_after_an_undisturbed_end_changes_nothing(tmp_path: Path) -> None:
    topics = tmp_path / "topics"
    assert not finish_swap(topics)
    _topic(topics, "a")
    assert not finish_swap(topics)
    assert [file.name for file in topics.iterdir()] == ["a.txt"]


async def test_a_swap_that_the_disk_refuses_is_a_knowledge_error(tmp_path: Path) -> None:
    class Refusing(FileLayer):
        def rename(self, old: Path, new: Path) -> None:
            raise PermissionError(13, "Permission denied")

    _topic(tmp_path / "topics", "old")
    _topic(tmp_path / "topics.next", "new")
    (tmp_path / "topics.next" / COMPLETE).touch()
    with pytest.raises(KnowledgeError, match="could not take the place"):
        finish_swap(tmp_path / "topics", None, Refusing())
    assert (tmp_path / "topics" / "old.txt").exists()
    assert (tmp_path / "topics.next" / "new.txt").exists()
