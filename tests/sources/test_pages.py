"""Listed pages over real sockets: fetched when due, described when changed, and never lost over a broken one."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from anyio import fail_after
from anyio.lowlevel import checkpoint

from intern.core.errors import ModelReplyError, ModelUnavailableError, SourceError
from intern.core.ids import SourceId
from intern.sources import pages
from intern.sources.catalogue import PAUSES, respect_pauses
from intern.sources.descriptions import SUMMARIZE_SOURCE
from intern.sources.library import MOST_MISSING, Library, PageCopies, PageState, page_state
from intern.sources.pages import refresh_pages
from intern.sources.refresh import PendingSummary, RefreshReport
from intern.stores.archive import Archive
from intern.stores.source_cache import CachedPage, DescriptionAttempts
from intern.stores.tables.knowledge import KnowledgeStore
from tests.sources.folders import Shelf, praised
from tests.worlds.actors import running
from tests.worlds.clock import HandClock
from tests.worlds.knowledge import knowledge_in
from tests.worlds.site import Served, SiteDouble, page, redirect, site_double


class Desk(Shelf):
    """A shelf with a list of pages, all on the double."""

    def __init__(self, folder: Path, knowledge: KnowledgeStore, clock: HandClock, site: SiteDouble) -> None:
        super().__init__(folder, knowledge, clock)
        self.model.always(SUMMARIZE_SOURCE, praised)
        self.site = site
        self.links = folder / "links.txt"
        self.cache_dir = folder / "web-cache"
        self.copies = PageCopies(self.cache_dir)
        self.render_command: tuple[str, ...] = ()
        self.library = Library(
            indices=(self.catalogue, self.team),
            sources=self.folder,
            topics=knowledge,
            archive=Archive(folder / "raw", clock=self.clock),
            pages=self.copies,
        )

    def list(self, *paths: str) -> None:
        self.links.write_text("".join(f"{self.site.url(path)}\n" for path in paths))

    def id(self, path: str) -> SourceId:
        return SourceId(f"kb:{self.site.url(path)}")

    async def refresh(self) -> RefreshReport:
        with fail_after(20):
            return await refresh_pages(
                self.model,
                self.links,
                self.copies,
                self.catalogue,
                web=lambda: self.site.fetcher(render_command=self.render_command),
                interval=timedelta(hours=24),
                options=self.options,
                policy=self.site.policy,
                renders=bool(self.render_command),
            )

    def entry(self, path: str) -> CachedPage:
        page = self.catalogue.sources()[self.id(path)]
        assert isinstance(page, CachedPage)
        return page

    def state(self, path: str) -> PageState:
        return page_state(self.entry(path))

    def validators(self, path: str) -> Sequence[str | None]:
        """The If-None-Match of each request for it."""
        return [asked.headers.get("If-None-Match") for asked in self.site.requests if asked.path == path]

    def forget_traces(self) -> None:
        self.site.requests.clear()
        self.model.asked.clear()

    def written(self) -> tuple[int, Sequence[tuple[str, int]]]:
        """Return the position of the newest change, and the copies with their inodes."""
        copies = sorted((each.name, each.stat().st_ino) for each in self.cache_dir.iterdir())
        return self.newest_change(), copies


@pytest.fixture
async def desk(tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Desk]:
    clock = HandClock()
    with site_double() as site:
        async with knowledge_in(tmp_path, clock) as knowledge:
            yield Desk(tmp_path, knowledge, clock, site)


async def test_listed_pages_are_described_and_loaded_without_fetching(desk: Desk) -> None:
    desk.site.pages |= {"/a": page("All about spools.", "Spools"), "/b": page("All about drums.", "Drums")}
    desk.list("/a", "/b")
    desk.source("a.md", "# A file")
    await desk.refresh_sources()
    result = await desk.refresh()

    assert result == RefreshReport(changed=(desk.id("/a"), desk.id("/b")))
    assert list(desk.index()) == ["kb:a.md", desk.id("/a"), desk.id("/b")]
    desk.site.requests.clear()
    loaded = await desk.library.load(desk.id("/a"))
    assert (loaded.text, loaded.title, loaded.url) == ("All about spools.", "Spools", desk.site.url("/a"))
    assert await desk.library.citation_link(desk.id("/a")) == desk.site.url("/a")
    assert desk.site.requests == []
    assert desk.state("/a") == "fresh"


async def test_a_second_run_downloads_nothing_asks_nothing_and_writes_nothing(desk: Desk) -> None:
    desk.site.pages["/a"] = page("A.", ETag='"1"')
    desk.list("/a")
    await desk.refresh()
    desk.forget_traces()
    before = desk.written()
    desk.clock.turn(hours=23)
    assert await desk.refresh() == RefreshReport()
    assert (desk.site.requests, desk.model.asked, desk.written()) == ([], [], before)


async def test_a_page_that_did_not_change_costs_a_look_and_no_model_call(desk: Desk) -> None:
    desk.site.pages |= {"/a": page("A.", ETag='"1"'), "/b": page("B.")}
    desk.list("/a", "/b")
    await desk.refresh()
    desk.forget_traces()
    _, copies = desk.written()
    desk.clock.turn(hours=24)
    assert await desk.refresh() == RefreshReport()
    assert desk.site.asked == ["/a", "/b"]
    assert desk.model.asked == []
    assert desk.written()[1] == copies
    assert desk.entry("/a").last_fetched_at == desk.clock.now()


async def test_a_changed_page_costs_one_call_and_one_new_copy(desk: Desk) -> None:
    desk.site.pages |= {f"/{n}": page(f"Page {n}.") for n in range(5)}
    desk.list(*(f"/{n}" for n in range(5)))
    await desk.refresh()
    desk.forget_traces()
    _, copies = desk.written()
    desk.site.pages["/3"] = page("Page 3 is longer now.")
    desk.clock.turn(hours=24)
    assert await desk.refresh() == RefreshReport(changed=(desk.id("/3"),))
    assert len(desk.model.asked) == 1
    assert len(set(desk.written()[1]) - set(copies)) == 1
    assert (await desk.library.load(desk.id("/3"))).text == "Page 3 is longer now."


async def test_a_broken_page_or_line_keeps_no_other_from_being_indexed(desk: Desk) -> None:
    desk.site.pages |= {"/a": page("A."), "/b": Served(status=500), "/c": Served(body=b"", headers={})}
    desk.site.pages["/d"] = Served(body=b"x", headers={"Content-Type": "image/png"})
    desk.site.pages["/e"] = Served(body=b"<div>" * 10_000)
    desk.list("/a", "/b", "/c", "/d", "/e", "/f")
    with desk.links.open("a") as links:
        links.write("http://127.0.0.1/\nnonsense\nhttp://[::ffff:169.254.169.254]/x\n")
    result = await desk.refresh()
    assert result.changed == (desk.id("/a"),)
    assert list(desk.index()) == [desk.id("/a")]
    told = dict(result.skipped)
    assert told.keys() == {"links.txt:7", "links.txt:8", "links.txt:9"} | {desk.site.url(f"/{n}") for n in "bcdef"}
    assert "500" in told[desk.site.url("/b")]
    assert "nested" in told[desk.site.url("/e")]
    assert desk.state("/b") == "failing"
    with pytest.raises(SourceError):
        await desk.library.load(desk.id("/b"))


async def test_a_page_that_fails_keeps_its_entry_and_is_tried_after_growing_pauses(desk: Desk) -> None:
    desk.site.pages["/a"] = page("A.")
    desk.list("/a")
    await desk.refresh()
    listed = desk.index()
    desk.clock.turn(hours=24)
    desk.site.pages["/a"] = Served(status=503)
    for hours in (0.5, 1, 2, 4, 8, 16, 24, 24):
        await desk.refresh()
        assert desk.state("/a") == "failing"
        assert "503" in (desk.entry("/a").fetch_status or "")
        assert desk.entry("/a").next_check_at == desk.clock.now() + timedelta(hours=hours)
        assert desk.index() == listed
        assert (await desk.library.load(desk.id("/a"))).text == "A."
        desk.clock.turn(hours=hours)
    desk.site.pages["/a"] = page("A.")
    desk.model.asked.clear()
    assert await desk.refresh() == RefreshReport()
    assert (desk.state("/a"), desk.model.asked) == ("fresh", [])


async def test_a_site_that_asks_for_a_longer_pause_gets_it(desk: Desk) -> None:
    desk.site.pages["/a"] = Served(status=429, headers={"Retry-After": "100000"})
    desk.list("/a")
    await desk.refresh()
    assert desk.entry("/a").next_check_at == desk.clock.now() + timedelta(seconds=100_000)


async def test_a_page_is_gone_once_its_site_has_said_so_often_enough_and_may_come_back(desk: Desk) -> None:
    desk.site.pages |= {"/a": page("A."), "/b": page("B.")}
    desk.list("/a", "/b")
    await desk.refresh()
    desk.clock.turn(hours=24)
    del desk.site.pages["/a"]
    for n in range(1, MOST_MISSING + 1):
        assert desk.id("/a") in desk.index()
        result = await desk.refresh()
        assert result.removed == ((desk.id("/a"),) if n == MOST_MISSING else ())
        desk.clock.turn(hours=24)
    assert list(desk.index()) == [desk.id("/b")]
    assert len(list(desk.cache_dir.iterdir())) == 1
    assert desk.state("/a") == "gone"
    assert "404" in (desk.entry("/a").fetch_status or "")

    desk.site.pages["/a"] = page("A is back.")
    desk.clock.turn(days=7)
    assert (await desk.refresh()).changed == (desk.id("/a"),)
    assert desk.state("/a") == "fresh"


async def test_a_page_that_is_no_more_listed_leaves_index_cache_and_web_cache(desk: Desk) -> None:
    desk.site.pages |= {"/a": page("A."), "/b": page("B.")}
    desk.list("/a", "/b")
    await desk.refresh()
    desk.list("/b")
    desk.forget_traces()
    assert await desk.refresh() == RefreshReport(removed=(desk.id("/a"),))
    assert list(desk.index()) == [desk.id("/b")]
    assert list(desk.catalogue.sources()) == [desk.id("/b")]
    assert len(list(desk.cache_dir.iterdir())) == 1
    assert desk.site.requests == []
    desk.links.unlink()
    assert (await desk.refresh()).removed == (desk.id("/b"),)
    assert list(desk.cache_dir.iterdir()) == []


async def test_no_half_of_a_key_that_stands_in_a_broken_line_is_told(desk: Desk) -> None:
    key = "sk-proj-" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY"
    for before in range(40, 110):
        desk.links.write_text(f"ftp://x.example/{'a' * before}?k={key}\n", encoding="utf-8")
        [broken] = (await desk.refresh()).skipped
        assert key[:10] not in broken.reason


async def test_a_summary_that_failed_is_asked_for_again_without_a_download(desk: Desk) -> None:
    desk.site.pages["/a"] = page("A word or two. " * 5_000)
    desk.list("/a")
    desk.model.next(SUMMARIZE_SOURCE, ModelUnavailableError("down"))
    assert [owed.source_id for owed in (await desk.refresh()).pending] == [desk.id("/a")]
    assert desk.state("/a") == "pending"
    desk.site.requests.clear()
    assert await desk.refresh() == RefreshReport(changed=(desk.id("/a"),))
    assert desk.site.requests == []
    assert desk.state("/a") == "fresh"
    first, again = desk.model.calls(SUMMARIZE_SOURCE)
    assert again == first


async def test_a_page_that_the_model_cannot_describe_is_tried_again_after_growing_pauses_or_when_it_changes(
    desk: Desk,
) -> None:
    desk.site.pages["/a"] = page("A.")
    desk.list("/a")
    desk.model.always(SUMMARIZE_SOURCE, ModelReplyError("junk"))
    pending = RefreshReport(pending=(PendingSummary(desk.id("/a"), "junk"),))
    with respect_pauses():
        await desk.refresh()
        assert desk.cached(desk.id("/a")).described_at is None
        for pause in PAUSES[:3]:
            desk.forget_traces()
            before = desk.written()
            assert await desk.refresh() == pending
            assert desk.model.asked == []
            assert desk.written() == before
            desk.clock.turn(seconds=pause.total_seconds())
            assert await desk.refresh() == pending
            assert len(desk.model.asked) == 1
        desk.forget_traces()
        desk.clock.turn(hours=17)
        assert await desk.refresh() == pending
        assert [asked.path for asked in desk.site.requests] == [
            "/robots.txt",
            "/a",
        ]  # its own time has come; it is still the same
        assert desk.model.asked == []
        desk.site.pages["/a"] = page("A, and more.")
        desk.clock.turn(hours=24)
        desk.model.next(SUMMARIZE_SOURCE, ModelReplyError("junk of another kind"))
        await desk.refresh()
        assert len(desk.model.asked) == 1
        assert desk.cached(desk.id("/a")).tries == DescriptionAttempts(failed=1, next_at=desk.clock.now() + PAUSES[0])
        assert await desk.refresh() == RefreshReport(pending=(PendingSummary(desk.id("/a"), "junk of another kind"),))
        assert len(desk.model.asked) == 1
    desk.model.always(SUMMARIZE_SOURCE, praised)
    assert await desk.refresh() == RefreshReport(changed=(desk.id("/a"),))
    known = desk.cached(desk.id("/a"))
    assert (known.last_error, known.tries, known.described_at) == (None, None, desk.clock.now())


async def test_a_page_that_cannot_be_had_any_more_says_so_also_once_it_is_described(desk: Desk) -> None:
    desk.site.pages["/a"] = page("A.")
    desk.list("/a")
    desk.model.always(SUMMARIZE_SOURCE, ModelUnavailableError("down"))
    await desk.refresh()
    desk.site.pages["/a"] = Served(status=503)
    desk.clock.turn(hours=25)
    await desk.refresh()
    desk.model.always(SUMMARIZE_SOURCE, praised)
    assert (await desk.refresh()).changed == (desk.id("/a"),)
    assert "503" in (desk.cached(desk.id("/a")).last_error or "")


async def test_a_page_that_was_never_had_is_not_described(desk: Desk) -> None:
    desk.list("/gone")
    await desk.refresh()
    assert desk.cached(desk.id("/gone")).described_at is None
    desk.site.pages["/gone"] = page("Here.")
    desk.clock.turn(hours=1)
    await desk.refresh()
    assert desk.cached(desk.id("/gone")).described_at == desk.clock.now()


async def test_a_lost_copy_is_fetched_again_and_costs_no_call(desk: Desk) -> None:
    desk.site.pages["/a"] = page("A.", ETag='"1"')
    desk.list("/a")
    await desk.refresh()
    next(desk.cache_dir.iterdir()).unlink()
    desk.model.asked.clear()
    assert await desk.refresh() == RefreshReport()
    assert (await desk.library.load(desk.id("/a"))).text == "A."
    assert desk.model.asked == []


SHELL = Served(body=b"<title>App</title><div id=root></div><script src=a.js></script>")


async def test_a_page_that_needs_scripts_is_indexed_with_what_it_has_and_marked(desk: Desk) -> None:
    desk.site.pages["/a"] = SHELL
    desk.list("/a")
    assert (await desk.refresh()).changed == (desk.id("/a"),)
    assert (await desk.library.load(desk.id("/a"))).text == "App"
    assert (desk.state("/a"), desk.entry("/a").fetch_status) == ("fresh", "needs JavaScript")


async def test_such_a_page_is_rendered_once_and_not_again_while_it_is_unchanged(desk: Desk, tmp_path: Path) -> None:
    desk.site.pages |= {"/a": SHELL, "/b": page("Plain.")}
    desk.list("/a", "/b")
    await desk.refresh()
    runs = tmp_path / "runs"
    code = (
        f"import sys; open({str(runs)!r}, 'a').write(sys.argv[-1] + chr(10));"
        "print('<title>App</title><main><p>' + 'Rendered words. ' * 30 + '</main>')"
    )
    desk.render_command = (sys.executable, "-c", code)
    for _ in range(3):
        desk.clock.turn(hours=24)
        await desk.refresh()
        await desk.refresh()
    assert runs.read_text().splitlines() == [desk.site.url("/a")]
    assert (await desk.library.load(desk.id("/a"))).text.startswith("Rendered words.")
    assert desk.entry("/a").fetch_status == "rendered"
    assert len(desk.model.calls(SUMMARIZE_SOURCE)) == 3


TAGGED = replace(SHELL, headers={"ETag": '"1"'})
CHANGED = replace(SHELL, body=SHELL.body + b"<!-- -->", headers={"ETag": '"2"'})


def counting(runs: Path, then: str) -> tuple[str, ...]:
    """A render command that leaves an x in `runs`."""
    return sys.executable, "-c", f"open({str(runs)!r}, 'a').write('x'); {then}"


IN_VAIN = "print('<title>App</title><div id=root></div>')"


@pytest.mark.rest
async def test_a_page_that_cannot_be_rendered_is_tried_at_growing_pauses_and_asked_for_by_its_validators(
    desk: Desk, tmp_path: Path
) -> None:
    desk.site.pages["/a"] = TAGGED
    desk.list("/a")
    runs = tmp_path / "runs"
    runs.touch()
    desk.render_command = counting(runs, "raise SystemExit(1)")
    # After one day, two, four, and then every seven.
    for day, times in enumerate((1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 5)):
        before = runs.read_text()
        desk.site.requests.clear()
        for _ in range(3):
            await desk.refresh()
        assert runs.read_text() == "x" * times, day
        assert desk.validators("/a") == [None if len(before) < times else '"1"'], day
        assert (desk.state("/a"), desk.entry("/a").fetch_status) == ("fresh", "needs JavaScript")
        desk.clock.turn(hours=24)


@pytest.mark.rest
async def test_a_page_that_cannot_be_rendered_is_tried_at_once_when_it_changes_and_well_again_when_it_works(
    desk: Desk, tmp_path: Path
) -> None:
    desk.site.pages["/a"] = TAGGED
    desk.list("/a")
    runs = tmp_path / "runs"
    desk.render_command = counting(runs, "raise SystemExit(1)")
    for _ in range(2):
        await desk.refresh()
        desk.clock.turn(hours=24)
    desk.site.pages["/a"] = CHANGED
    desk.render_command = counting(runs, "print('<main><p>' + 'Rendered words. ' * 30 + '</main>')")
    for _ in range(4):
        await desk.refresh()
        desk.clock.turn(hours=24)
    assert runs.read_text() == "xxx"
    assert desk.validators("/a") == [None, None, '"1"', '"2"', '"2"', '"2"']
    assert desk.entry("/a").fetch_status == "rendered"


@pytest.mark.rest
@pytest.mark.parametrize("shell", [TAGGED, pytest.param(SHELL, marks=pytest.mark.rest)])
async def test_a_page_whose_rendering_brings_no_more_is_rendered_once_and_again_when_it_changed(
    desk: Desk, tmp_path: Path, shell: Served
) -> None:
    desk.site.pages["/a"] = shell
    desk.list("/a")
    runs = tmp_path / "runs"
    desk.render_command = counting(runs, IN_VAIN)
    for _ in range(30):
        await desk.refresh()
        desk.clock.turn(hours=24)
    assert runs.read_text() == "x"
    assert desk.validators("/a") == [None] + [shell.headers.get("ETag")] * 29
    assert (desk.state("/a"), desk.entry("/a").fetch_status) == ("fresh", "needs JavaScript")
    assert (await desk.library.load(desk.id("/a"))).text == "App"
    assert len(desk.model.calls(SUMMARIZE_SOURCE)) == 1

    desk.site.pages["/a"] = CHANGED
    for _ in range(3):
        await desk.refresh()
        desk.clock.turn(hours=24)
    assert runs.read_text() == "xx"


@pytest.mark.parametrize("was_set", [True, False])
async def test_a_copy_that_does_not_tell_of_a_rendering_is_rendered_with_its_next_look(
    desk: Desk, tmp_path: Path, *, was_set: bool
) -> None:
    desk.site.pages["/a"] = TAGGED
    desk.list("/a")
    runs = tmp_path / "runs"
    in_vain = counting(runs, IN_VAIN)
    desk.render_command = in_vain if was_set else ()
    await desk.refresh()
    # As versions that knew of no renderings have kept it.
    [path] = desk.cache_dir.iterdir()
    kept = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    del kept["rendering"]
    path.write_bytes(msgspec.json.encode(kept))
    runs.unlink(missing_ok=True)
    desk.render_command = in_vain
    await desk.refresh()
    assert not runs.exists(), "not before its time"
    for _ in range(3):
        desk.clock.turn(hours=24)
        await desk.refresh()
    assert runs.read_text() == "x"
    assert desk.validators("/a") == [None, None, '"1"', '"1"']


async def test_a_page_that_redirects_to_a_private_place_is_never_rendered(desk: Desk, tmp_path: Path) -> None:
    desk.site.pages |= {"/a": redirect("http://169.254.169.254/latest/"), "/b": redirect("/c"), "/c": SHELL}
    desk.list("/a", "/b")
    runs = tmp_path / "runs"
    code = f"import sys; open({str(runs)!r}, 'a').write(sys.argv[-1] + chr(10)); print('<p>Words.')"
    desk.render_command = (sys.executable, "-c", code)
    await desk.refresh()
    # The place where it was found, so that the command visits only the checked one.
    assert runs.read_text().splitlines() == [desk.site.url("/c")]
    assert "not fetched" in (desk.entry("/a").fetch_status or "")


@pytest.mark.rest
async def test_no_more_than_two_pages_are_rendered_at_a_time(desk: Desk, tmp_path: Path) -> None:
    links: list[str] = []
    for n in range(6):
        desk.site.pages[f"site{n}.example.org/a"] = SHELL
        links.append(desk.site.url("/a", host=f"site{n}.example.org"))
    desk.links.write_text("\n".join(links))
    runs = tmp_path / "runs"
    # Each counts those that run beside it.
    code = (
        f"import os,pathlib,time; at = pathlib.Path({str(runs)!r}); at.mkdir(exist_ok=True);"
        "me = at / str(os.getpid()); me.touch(); time.sleep(0.3);"
        "print('<main><p>' + 'beside ' + str(len(list(at.iterdir()))) + ' words' * 50); me.unlink()"
    )
    desk.render_command = (sys.executable, "-c", code)
    await desk.refresh()
    texts = [(await desk.library.load(SourceId(f"kb:{link}"))).text for link in links]
    assert len(texts) == 6
    assert all(text.startswith(("beside 1 ", "beside 2 ")) for text in texts), texts


@pytest.mark.rest
async def test_many_pages_are_listed_part_by_part_and_a_stop_loses_few(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_FIRST_PART", 2)
    desk.site.pages |= {f"/{n}": page(f"Page {n}.") for n in range(9)}
    desk.site.pages["/5"] = Served(stalls=True)
    desk.site.pages["other.example.org/a"] = page("Elsewhere.")
    desk.list(*(f"/{n}" for n in range(9)))
    elsewhere = desk.site.url("/a", host="other.example.org")
    with desk.links.open("a") as links:
        links.write(f"{elsewhere}\n")
    async with running(desk.refresh):
        while "/5" not in desk.site.asked:
            await checkpoint()
        # The first of each site, then as many again.
        assert set(desk.index()) == {*map(desk.id, ("/0", "/1", "/2")), f"kb:{elsewhere}"}
    desk.site.pages["/5"] = page("Page 5.")
    desk.forget_traces()
    assert (await desk.refresh()).changed == tuple(map(desk.id, ("/3", "/4", "/5", "/6", "/7", "/8")))
    assert "/0" not in desk.site.asked


async def test_a_page_whose_rendering_fails_keeps_what_it_has(desk: Desk) -> None:
    desk.site.pages["/a"] = SHELL
    desk.list("/a")
    desk.render_command = (sys.executable, "-c", "raise SystemExit(1)")
    assert (await desk.refresh()).changed == (desk.id("/a"),)
    assert desk.entry("/a").fetch_status == "needs JavaScript"


async def test_markdown_is_read_as_it_is(desk: Desk) -> None:
    kind = {"Content-Type": "text/markdown; charset=utf-8"}
    desk.site.pages["/a.md"] = Served(body="# Über\n\nText.".encode(), headers=kind)
    desk.list("/a.md")
    await desk.refresh()
    loaded = await desk.library.load(desk.id("/a.md"))
    assert (loaded.title, loaded.text) == ("Über", "# Über\n\nText.")
