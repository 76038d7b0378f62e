from __future__ import annotations

from pathlib import Path

import pytest
from anyio import fail_after

from intern.core.errors import KnowledgeError
from intern.core.ids import TopicName
from intern.core.records import Filed, Moved, PairDecision, Removed
from intern.learning.draft import COMPLETE, DRAFTED, JOURNAL, finish_swap
from intern.learning.prompts import CLASSIFY, INTEGRATE
from intern.stores.decisions import DecisionLog
from intern.stores.files import FileLayer
from tests.learning.anew import KEEP, again, by_first_word, held, until_killed
from tests.learning.pairs import KilledError, KillingLayer, Team

pytestmark = pytest.mark.anyio


async def test_killed_at_any_step_one_whole_library_stands_and_a_start_completes_the_swap(tmp_path: Path) -> None:
    old, new = {"old": ["1", "2"]}, {"gpu": ["1"], "disk": ["2", "3"]}
    seen: list[dict[str, list[str]]] = []
    for steps in range(300):
        team = Team(tmp_path / str(steps))
        team.model.always(CLASSIFY, by_first_word)
        team.model.always(INTEGRATE, KEEP)
        team.placed("old", team.archived("gpu", "1"))
        team.placed("old", team.archived("disk", "2", after=1))
        (team.topics_dir / "Notes of mine.md").write_text("mine")
        # Not filed before; what counts as filed and stands in no topic, nobody would ever look for again.
        fresh = team.archived("disk", "3", after=2)
        layer = KillingLayer(steps)
        team.decisions = DecisionLog(team.decisions_path, layer)
        with fail_after(5):
            if await until_killed(team, files=layer) is not None:
                break
        _start_killed_again_and_again(team)
        seen.append(held(team.topics_dir))
        assert seen[-1] in (old, new)
        assert team.topics_dir.with_name("topics.next").exists() <= (seen[-1] == old)
        decided = DecisionLog(team.decisions_path)
        assert isinstance(decided.of(fresh.qa_id), Filed) == (seen[-1] == new)
        assert len(list(decided.all())) == (3 if seen[-1] == new else 0)
        finish_swap(team.topics_dir, decided)
        assert held(team.topics_dir) == seen[-1]
        assert {file.name for file in team.topics_dir.iterdir()} == {
            "Notes of mine.md",
            *(f"{name}.txt" for name in seen[-1]),
        }
        assert (team.topics_dir / "Notes of mine.md").read_text() == "mine"
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


@pytest.mark.parametrize("heard", [0, 1, 2])
async def test_several_decisions_about_a_pair_are_heard_once_and_in_order(tmp_path: Path, heard: int) -> None:
    team = Team(tmp_path)
    qa_id, at = team.archived("gpu", "1").qa_id, team.clock.now()
    drafted: list[PairDecision] = [
        Filed(qa_id=qa_id, topic=TopicName("gpu"), at=at),
        Moved(qa_id=qa_id, topic=TopicName("gpu-drivers"), at=at),
    ]
    DecisionLog(team.topics_dir / DRAFTED).extend(drafted)
    team.decisions.extend(drafted[:heard])
    finish_swap(team.topics_dir, team.decisions)

    assert list(team.decisions.all()) == drafted


@pytest.mark.parametrize("refused", [0, 1])
async def test_a_swap_that_failed_in_a_process_that_goes_on_happens_only_when_it_is_asked_for_again(
    tmp_path: Path, refused: int
) -> None:
    class Refusing(FileLayer):
        left = refused

        def rename(self, old: Path, new: Path) -> None:
            if old.is_dir():
                self.left -= 1
                if self.left == -1:
                    raise PermissionError(13, "Permission denied")
            super().rename(old, new)

    team = Team(tmp_path)
    team.model.always(CLASSIFY, by_first_word)
    team.placed("old", team.archived("gpu", "1"))
    with fail_after(5), pytest.raises(KnowledgeError, match="could not take the place"):
        await again(team, files=Refusing())

    assert list(team.decisions.all()) == []
    team.placed("old", team.archived("disk", "2", after=1))
    assert not finish_swap(team.topics_dir, team.decisions)
    assert held(team.topics_dir) == {"old": ["1", "2"]}
    asked = len(team.model.asked)
    with fail_after(5):
        await again(team)
    assert held(team.topics_dir) == {"gpu": ["1"], "disk": ["2"]}
    assert len(team.model.asked) == asked + 1


def _topic(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{TopicName(name)}.txt").write_text("")


async def test_a_start_after_an_undisturbed_end_changes_nothing(tmp_path: Path) -> None:
    topics = tmp_path / "topics"
    assert not finish_swap(topics)
    _topic(topics, "a")
    assert not finish_swap(topics)
    assert [file.name for file in topics.iterdir()] == ["a.txt"]


def test_a_start_leaves_an_unfinished_library_where_it_is(tmp_path: Path) -> None:
    _topic(tmp_path / "topics", "old")
    _topic(tmp_path / "topics.next", "new")
    assert not finish_swap(tmp_path / "topics")
    assert [path.name for path in sorted(tmp_path.rglob("*.txt"))] == ["old.txt", "new.txt"]


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


# What is no topic.


async def test_what_is_no_topic_comes_along_whatever_it_is_called(tmp_path: Path) -> None:
    team = Team(tmp_path)
    team.model.always(CLASSIFY, by_first_word)
    team.placed("old", team.archived("gpu", "1"))
    topics, previous = team.topics_dir, team.topics_dir.with_name("topics.prev")
    (topics / "README.md").write_text("about")
    (topics / ".old.txt.damaged").write_text("somebody's work")
    (topics / ".old.txt.tmp").write_text("half a fi")
    (topics / "todo.txt").write_text("a slug, and no block in it")
    (topics / "pictures").mkdir()
    (topics / "pictures" / "a.png").write_bytes(b"png")
    (topics / "link.txt").symlink_to("old.txt")
    for _ in range(2):
        with fail_after(5):
            await again(team)
        assert {path.name for path in topics.iterdir()} == {
            *("gpu.txt", "README.md", ".old.txt.damaged", ".old.txt.tmp", "todo.txt", "pictures", "link.txt")
        }
    assert (topics / "pictures" / "a.png").read_bytes() == b"png"
    assert (topics / "link.txt").is_symlink()
    # Of the old library nothing but topics is left; it goes at the next swap.
    assert [path.name for path in previous.iterdir()] == ["gpu.txt"]


async def test_a_foreign_file_whose_name_a_topic_takes_is_kept_beside_it(tmp_path: Path) -> None:
    team = Team(tmp_path)
    team.model.always(CLASSIFY, by_first_word)
    team.placed("old", team.archived("gpu", "1"))
    (team.topics_dir / "gpu.txt").write_text("remember to buy one")
    (team.topics_dir / "gpu.txt.kept").write_text("from before")
    with fail_after(5):
        await again(team)

    assert held(team.topics_dir) == {"gpu": ["1"]}
    texts = {path.read_text() for path in team.topics_dir.glob("gpu.txt.kept*")}
    assert texts == {"remember to buy one", "from before"}


async def test_a_stranger_that_cannot_be_moved_keeps_nobody_from_starting(tmp_path: Path) -> None:
    class Refusing(FileLayer):
        def rename(self, old: Path, new: Path) -> None:
            if old.name == "theirs":
                raise PermissionError(13, "Permission denied")
            super().rename(old, new)

    team = Team(tmp_path)
    team.model.always(CLASSIFY, by_first_word)
    team.placed("old", team.archived("gpu", "1"))
    (team.topics_dir / "theirs").mkdir()
    with fail_after(5):
        await again(team, files=Refusing())

    assert held(team.topics_dir) == {"gpu": ["1"]}
    assert (team.topics_dir.with_name("topics.prev") / "theirs").is_dir()
    assert not (team.topics_dir / JOURNAL).exists()
