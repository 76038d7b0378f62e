"""The feed and its answers: what is new, changed, failed and gone, and every row of the table of failures."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

import pytest
from anyio import Path as AsyncPath
from structlog.testing import capture_logs

from intern.core.errors import ModelReplyError, ModelUnavailableError
from intern.search.hybrid_search import HybridSearch
from intern.sources.descriptions import SUMMARIZE_FILE, SummarizeFileIn, SummarizeFileOut
from intern.sources.discovery import SUMMARY_FAILED, DiscoveryReport
from intern.sources.scanning import FileText, FileUnreadableError, read_file
from tests.sources.discovered import desk, summed_up


async def test_each_file_becomes_a_question_documentation_first(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        at.write("relay.service", "[Unit]")
        at.write("a.py", "x = 1")
        at.write("conf/b.yaml", "x: 1")
        path = at.write("THE THESIS.md", "# Thesis", mtime=1_731_826_800)
        at.write("picture.png", b"\0")
        feed = await at.look()
        assert [question.type for question in feed] == [
            "documentation",
            "configuration",
            "source_code",
            "services",
        ]
        first = feed[0]
        assert first.question == f"What knowledge does {path} contain?"
        assert first.hypothesis == "UNINDEXED_KNOWLEDGE_THE_THESIS_md"
        assert first.evidence == (
            f"file_path: {path}",
            "file_type: documentation",
            "size: 8",
            "mtime: 2024-11-17T07:00:00+00:00",
        )
        assert (first.priority, first.why) == ("medium", "new")
        assert at.model.asked == []
        assert await at.known() == {}


async def test_an_answered_question_leaves_the_metadata_of_the_file(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        path = at.write("relay.md", "# Relay\n\nAll about ports.\n\n## Limits\n")
        done = await at.discovery.run_cycle()
        assert done == DiscoveryReport(indexed=(path,))
        [given] = at.model.calls(SUMMARIZE_FILE)
        assert given.structure == "Sections: Relay, Limits."
        document = (await at.known())["relay.md"]
        assert document.meta == {
            "file_path": path,
            "file_type": "markdown_doc",
            "file_size": 37,
            "indexed_mtime": 1_700_000_000.0,
            "indexed_at": at.clock.now().isoformat(),
            "summary": "All about relay.md.",
            "doc_id": hashlib.sha256(path.encode()).hexdigest(),
            "truncated": False,
            "original_size": None,
            "summary_failed": False,
            "reason": "",
        }
        assert (document.type, document.status) == ("documentation", "ok")
        [found] = await HybridSearch(at.store).find("limits of the relay")
        assert found.document.path == path


@pytest.mark.parametrize(("chars", "truncated"), [(1_000, False), (1_001, True)])
async def test_a_file_of_which_the_model_saw_a_part_is_remembered_as_truncated(
    tmp_path: Path,
    chars: int,
    truncated: bool,  # noqa: FBT001
) -> None:
    async with desk(tmp_path, max_chars=1_000) as at:
        at.write("sub/relay.md", "x" * chars)
        await at.discovery.run_cycle()
        [given] = at.model.calls(SUMMARIZE_FILE)
        assert len(given.text) <= 1_000
        assert given.file_path == "sub/relay.md"
        assert (await at.known())["relay.md"].meta["truncated"] is truncated


async def test_a_second_cycle_over_unchanged_files_asks_nothing_and_writes_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        at.write("a.md", "A")
        await at.discovery.run_cycle()
        at.model.asked.clear()
        at.clock.turn(days=1)
        before = await at.known()
        assert await at.discovery.run_cycle() == DiscoveryReport()
        assert at.model.asked == []
        assert await at.known() == before


async def test_what_changed_comes_after_what_is_new_and_what_is_gone_is_dropped(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        at.write("old.md", "old")
        gone = at.write("gone.md", "gone")
        await at.discovery.run_cycle()
        at.write("old.md", "changed", mtime=1_600_000_000)  # a restored backup is older, and changed all the same
        at.write("new.service", "new")
        await AsyncPath(gone).unlink()
        assert await at.why() == [("new.service", "new"), ("old.md", "changed"), ("gone.md", "gone")]
        done = await at.discovery.run_cycle()
        assert done.dropped == (gone,)
        assert sorted(await at.known()) == ["new.service", "old.md"]
        assert await HybridSearch(at.store).find("gone") == ()


async def test_a_cycle_takes_on_no_more_than_it_may_and_says_what_is_left(tmp_path: Path) -> None:
    async with desk(tmp_path, max_items=3) as at:
        for n in range(7):
            at.write(f"{n}.md", "text")
        assert len(await at.look()) == 7
        done = await at.discovery.run_cycle()
        assert (len(done.indexed), done.left) == (3, 4)
        assert len(at.model.asked) == 3
        await at.discovery.run_cycle()
        assert (await at.discovery.run_cycle()).left == 0


async def test_a_failed_summary_is_retried_once_then_remembered_and_asked_for_again_later(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        path = at.write("a.md", "A")
        at.model.next(SUMMARIZE_FILE, ModelUnavailableError("slow"), ModelReplyError("nonsense"))
        assert await at.discovery.run_cycle() == DiscoveryReport(failed=(path,))
        assert len(at.model.asked) == 2
        document = (await at.known())["a.md"]
        assert document.status == "summary_failed"
        assert document.meta["summary"] == SUMMARY_FAILED
        assert document.meta["summary_failed"] is True
        assert document.meta["reason"] == "nonsense"
        assert await at.why() == [("a.md", "summary_failed")]
        assert await at.discovery.run_cycle() == DiscoveryReport(indexed=(path,))
        assert await at.why() == []


async def test_one_retry_is_enough_where_it_helps_and_an_empty_reply_is_no_summary(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        path = at.write("a.md", "A")
        at.model.next(SUMMARIZE_FILE, SummarizeFileOut(summary=" \n "), summed_up)
        assert await at.discovery.run_cycle() == DiscoveryReport(indexed=(path,))


async def test_files_that_fail_for_ever_do_not_keep_the_others_waiting(tmp_path: Path) -> None:
    def bad_is_bad(given: SummarizeFileIn) -> SummarizeFileOut | ModelReplyError:
        return ModelReplyError("no") if "bad" in given.file_path else summed_up(given)

    async with desk(tmp_path, max_items=2) as at:
        at.model.always(SUMMARIZE_FILE, bad_is_bad)
        for n in range(4):
            at.write(f"bad{n}.md", "x")
        at.write("good.service", "x")
        seen: list[str] = []
        for _ in range(4):
            at.clock.turn(minutes=10)
            done = await at.discovery.run_cycle()
            seen += [path.rpartition("/")[2] for path in (*done.failed, *done.indexed)]
        assert set(seen[:6]) == {"bad0.md", "bad1.md", "bad2.md", "bad3.md", "good.service"}
        # The file that failed longest ago comes first.
        assert set(seen[6:]) == {"bad1.md", "bad2.md"}


@pytest.mark.parametrize("content", [b"\0binary", b"\xff\xfe latin \xe9"])
async def test_what_is_no_text_is_unsupported_and_not_looked_at_again_until_it_changes(
    tmp_path: Path, content: bytes
) -> None:
    async with desk(tmp_path) as at:
        path = at.write("a.md", content)
        assert await at.discovery.run_cycle() == DiscoveryReport(passed_over=(path,))
        assert (await at.known())["a.md"].status == "unsupported_type"
        assert at.model.asked == []
        assert await at.why() == []
        at.write("a.md", "text", mtime=1_800_000_000)
        assert await at.discovery.run_cycle() == DiscoveryReport(indexed=(path,))


async def test_what_may_not_be_read_is_named_and_tried_again(tmp_path: Path) -> None:
    may_read = False

    def read(path: str, secrets: Collection[str]) -> FileText:
        if not may_read:
            raise FileUnreadableError("permission_denied", "Permission denied")
        return read_file(path, secrets)

    async with desk(tmp_path) as at:
        at.discovery = at.made(read=read)
        path = at.write("a.md", "text")
        with capture_logs() as logs:
            assert await at.discovery.run_cycle() == DiscoveryReport(passed_over=(path,))
        told = {"log_level": "warning", "path": path, "trouble": "permission_denied", "reason": "Permission denied"}
        assert [log for log in logs if log["event"] == "file_unread"] == [{"event": "file_unread", **told}]
        document = (await at.known())["a.md"]
        assert (document.status, document.meta["reason"]) == ("permission_denied", "Permission denied")
        assert await at.why() == [("a.md", "unreadable")]
        may_read = True
        assert await at.discovery.run_cycle() == DiscoveryReport(indexed=(path,))


async def test_a_file_that_is_deleted_between_scan_and_reading_is_no_failure(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        path = at.write("b.md", "x")

        def vanish(given: SummarizeFileIn) -> SummarizeFileOut:
            Path(path).unlink(missing_ok=True)
            return summed_up(given)

        first = at.write("a.md", "x")
        at.model.always(SUMMARIZE_FILE, vanish)
        [a, b] = await at.look()
        assert (a.path, b.path) == (first, path)
        await AsyncPath(path).unlink()
        done = await at.discovery._answer_questions([a, b])
        assert done == DiscoveryReport(indexed=(first,), dropped=(path,))


async def test_of_a_very_long_file_the_first_and_the_last_lines_are_read(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        at.write("long.txt", "".join(f"line {n}\n" for n in range(10_001)))
        at.write("fits.txt", "".join(f"line {n}\n" for n in range(10_000)))
        await at.discovery.run_cycle()
        known = await at.known()
        assert (known["long.txt"].meta["truncated"], known["long.txt"].meta["original_size"]) == (True, 10_001)
        assert known["fits.txt"].meta["original_size"] is None
        for given in at.model.calls(SUMMARIZE_FILE):
            assert len(given.text) <= 8000


async def test_secrets_reach_neither_the_model_nor_the_store(tmp_path: Path) -> None:
    token = "ghp_" + "a1B2" * 10
    async with desk(tmp_path) as at:
        at.write("conf.yaml", f"github: {token}\npassword: hunter2-of-the-config\n")
        at.model.always(SUMMARIZE_FILE, SummarizeFileOut(summary=f"The token is {token}."))
        await at.discovery.run_cycle()
        [given] = at.model.calls(SUMMARIZE_FILE)
        document = (await at.known())["conf.yaml"]
        for said in (repr(given), repr(document)):
            assert token not in said
            assert "hunter2" not in said
            assert "masked" in said


async def test_somebody_who_finds_a_file_sees_it_as_it_is(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        changed, gone, same = (at.write(name, "x") for name in ("changed.md", "gone.md", "same.md"))
        other = at.write("other.md", "x")
        await at.discovery.run_cycle()
        at.model.asked.clear()
        at.write("changed.md", "y", mtime=1_800_000_000)
        at.write("other.md", "y", mtime=1_800_000_000)
        await AsyncPath(gone).unlink()
        done = await at.discovery.refresh_files([changed, gone, same])
        assert done == DiscoveryReport(indexed=(changed,), dropped=(gone,))
        assert len(at.model.asked) == 1
        assert await at.why() == [("other.md", "changed")]
        del other


async def test_a_scan_path_that_is_no_more_wanted_takes_its_files_along(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        at.write("a.md", "x")
        await at.discovery.run_cycle()
    async with desk(tmp_path, scan_paths=()) as at:
        assert await at.why() == [("a.md", "gone")]
        await at.discovery.run_cycle()
        assert await at.known() == {}


async def test_a_disk_that_is_not_mounted_takes_nothing_along(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        at.write("a.md", "x")
        await at.discovery.run_cycle()
        await AsyncPath(at.root).rename(tmp_path / "elsewhere")
        assert await at.why() == []
        assert list(await at.known()) == ["a.md"]
