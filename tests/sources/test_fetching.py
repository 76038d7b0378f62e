"""Fetching over real sockets, from sites that may do anything."""

from __future__ import annotations

import gzip
import shutil
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from anyio import create_task_group, fail_after, wait_all_tasks_blocked

from intern.core.errors import PageGoneError, PageRefusedError, PageUnavailableError, WebError
from intern.documents.html import read_html
from intern.sources.fetching import FetchedPage
from tests.worlds.site import ADDRESS, Served, SiteDouble, page, redirect, site_double


@pytest.fixture
def site() -> Generator[SiteDouble]:
    with site_double() as double:
        yield double


async def had(site: SiteDouble, path: str = "/a", **options: object) -> FetchedPage:
    with fail_after(10):
        async with site.fetcher(**options) as fetcher:
            fetched = await fetcher.fetch(site.url(path))
    assert fetched is not None
    return fetched


async def failure(site: SiteDouble, path: str = "/a", **options: object) -> WebError:
    with fail_after(10), pytest.raises(WebError) as raised:
        async with site.fetcher(**options) as fetcher:
            await fetcher.fetch(site.url(path))
    return raised.value


async def test_a_page_comes_as_it_is_with_what_its_site_says_of_it(site: SiteDouble) -> None:
    site.pages["/a"] = page("hello", ETag='"1"', Last_Modified="Mon, 02 Feb 2026 00:00:00 GMT")
    fetched = await had(site)
    assert b"hello" in fetched.body
    assert (fetched.url, fetched.is_html, fetched.charset) == (site.url("/a"), True, "utf-8")
    assert (fetched.etag, fetched.last_modified) == ('"1"', "Mon, 02 Feb 2026 00:00:00 GMT")
    assert [request.path for request in site.requests] == ["/robots.txt", "/a"]
    assert site.requests[1].headers["User-Agent"].startswith("intern/")
    assert site.requests[1].headers["Host"] == f"docs.example.org:{site.port}"


async def test_a_page_that_is_still_the_same_is_not_sent_again(site: SiteDouble) -> None:
    site.pages["/a"] = page("hello", ETag='"1"')
    site.pages["/b"] = page("hello", Last_Modified="Mon, 02 Feb 2026 00:00:00 GMT")
    async with site.fetcher() as fetcher:
        assert await fetcher.fetch(site.url("/a"), etag='"1"') is None
        assert await fetcher.fetch(site.url("/b"), last_modified="Mon, 02 Feb 2026 00:00:00 GMT") is None
        assert await fetcher.fetch(site.url("/a"), etag='"0"') is not None


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, PageGoneError),
        (410, PageGoneError),
        (401, PageRefusedError),
        (403, PageRefusedError),
        (451, PageRefusedError),
        (204, PageRefusedError),
        (304, PageRefusedError),
        (408, PageUnavailableError),
        (429, PageUnavailableError),
        (500, PageUnavailableError),
        (503, PageUnavailableError),
    ],
)
async def test_the_status_says_what_there_is(site: SiteDouble, status: int, kind: type[WebError]) -> None:
    site.pages["/a"] = Served(status=status, headers={"Retry-After": "120"})
    error = await failure(site)
    assert type(error) is kind
    assert str(status) in str(error)
    if isinstance(error, PageUnavailableError):
        assert error.retry_after == 120


async def test_redirects_are_followed_and_the_last_address_is_told(site: SiteDouble) -> None:
    site.pages |= {"/a": redirect("/b", 301), "/b": redirect("../c?d", 308), "/c?d": page("here")}
    fetched = await had(site, "/a#part")
    assert fetched.url == site.url("/c?d#part")


async def test_redirects_without_an_end_are_left(site: SiteDouble) -> None:
    site.pages["/a"] = redirect("/a")
    assert "5 redirects" in str(await failure(site))
    assert len(site.asked) == 6


@pytest.mark.parametrize(
    "to",
    [
        "http://127.0.0.1:1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]/",
        "//10.0.0.1/",
        "file:///etc/passwd",
        "http://user@docs.example.org/",
        "http://localhost/",
    ],
)
async def test_a_redirect_to_a_private_place_is_not_followed(site: SiteDouble, to: str) -> None:
    site.pages["/a"] = redirect(to)
    assert isinstance(await failure(site), PageRefusedError)
    assert site.asked == ["/a"]


async def test_what_robots_txt_forbids_is_not_asked_for_also_after_a_redirect(site: SiteDouble) -> None:
    rules = Served(body=b"User-agent: *\nDisallow: /private", headers={"Content-Type": "text/plain"})
    site.pages |= {"/robots.txt": rules, "/private/a": page("no"), "/a": redirect("/private/a"), "/b": page("yes")}
    for path in ("/private/a", "/a"):
        assert "robots.txt" in str(await failure(site, path))
    assert (await had(site, "/b")).body
    assert site.asked == ["/a", "/b"]


@pytest.mark.parametrize(("status", "reached"), [(404, True), (403, True), (500, False), (429, False)])
async def test_robots_txt_that_cannot_be_had(site: SiteDouble, status: int, *, reached: bool) -> None:
    site.pages |= {"/robots.txt": Served(status=status), "/a": page("yes")}
    if reached:
        await had(site)
    else:
        assert isinstance(await failure(site), PageUnavailableError)
    assert site.asked == (["/a"] if reached else [])


async def test_robots_txt_is_asked_for_once_for_all_pages_of_a_site(site: SiteDouble) -> None:
    site.pages["/robots.txt"] = Served(status=500)
    async with site.fetcher() as fetcher:
        for path in "abc":
            with pytest.raises(PageUnavailableError):
                await fetcher.fetch(site.url(f"/{path}"))
    assert len(site.requests) == 1


async def test_a_page_is_read_up_to_the_limit(site: SiteDouble) -> None:
    site.pages |= {"/a": Served(endless=True), "/b": Served(body=b"x" * 1001), "/c": Served(body=b"x" * 1000)}
    assert "larger" in str(await failure(site, "/a", max_bytes=100_000))
    assert "larger" in str(await failure(site, "/b", max_bytes=1000))
    assert len((await had(site, "/c", max_bytes=1000)).body) == 1000


async def test_packed_pages_are_unpacked_and_bombs_are_not(site: SiteDouble) -> None:
    packed = {"Content-Encoding": "gzip"}
    site.pages["/a"] = Served(body=gzip.compress(b"<p>hello"), headers=packed)
    site.pages["/b"] = Served(body=gzip.compress(bytes(50_000_000)), headers=packed)
    site.pages["/c"] = Served(body=b"no gzip", headers=packed)
    site.pages["/d"] = Served(body=gzip.compress(b"<p>hello")[:-6], headers=packed)
    site.pages["/e"] = Served(body=b"x", headers={"Content-Encoding": "br"})
    assert (await had(site)).body == b"<p>hello"
    assert "larger" in str(await failure(site, "/b"))
    assert "damaged" in str(await failure(site, "/c"))
    assert "damaged" in str(await failure(site, "/d"))
    assert "packed" in str(await failure(site, "/e"))


@pytest.mark.parametrize("kind", ["image/png", "application/pdf", "application/json", "text/css"])
async def test_what_is_no_page_is_refused_by_its_type(site: SiteDouble, kind: str) -> None:
    site.pages["/a"] = Served(body=b"x", headers={"Content-Type": kind})
    error = await failure(site)
    assert isinstance(error, PageRefusedError)
    assert kind in str(error)


@pytest.mark.parametrize("kind", ["text/plain", "text/markdown; charset=latin-1", "application/xhtml+xml"])
async def test_text_and_markdown_are_pages_too(site: SiteDouble, kind: str) -> None:
    site.pages["/a"] = Served(body=b"x", headers={"Content-Type": kind})
    assert (await had(site)).is_html == ("html" in kind)


async def test_a_site_that_stalls_is_left_and_its_other_pages_are_not_waited_for(site: SiteDouble) -> None:
    site.pages |= {f"/{name}": Served(stalls=True) for name in "abcd"}
    async with site.fetcher(timeout_seconds=0.3) as fetcher:
        for path in "abcd":
            with pytest.raises(PageUnavailableError):
                await fetcher.fetch(site.url(f"/{path}"))
    assert site.asked == ["/a", "/b"]


async def test_one_site_is_sent_one_request_at_a_time(site: SiteDouble) -> None:
    site.pages |= {"/a": Served(stalls=True), "/b": page("b")}
    async with site.fetcher() as fetcher, create_task_group() as tg:
        await fetcher.fetch(site.url("/b"))
        tg.start_soon(fetcher.fetch, site.url("/a"))
        await wait_all_tasks_blocked()
        tg.start_soon(fetcher.fetch, site.url("/b"))
        await wait_all_tasks_blocked()
        assert await fetcher.fetch(site.url("/b", host="other.example.org")) is not None
        assert site.asked.count("/b") == 2
        tg.cancel_scope.cancel()


async def test_no_cookie_is_kept(site: SiteDouble) -> None:
    site.pages |= {"/a": Served(body=b"x", headers={"Set-Cookie": "id=1; Path=/"}), "/b": page("b")}
    async with site.fetcher() as fetcher:
        await fetcher.fetch(site.url("/a"))
        await fetcher.fetch(site.url("/b"))
    assert all("Cookie" not in request.headers for request in site.requests)


async def test_a_hostile_validator_is_not_kept(site: SiteDouble) -> None:
    site.pages["/a"] = page("x", ETag='"' + "e" * 2000 + '"')
    assert (await had(site)).etag is None


# Rendering.


async def test_a_page_is_rendered_by_a_command_that_gets_its_address_and_none_of_our_settings(
    site: SiteDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERN__DISCORD__TOKEN", "planted-secret")
    tell = "import os,sys; print(sys.argv[-1], sorted(os.environ))"
    async with site.fetcher(render_command=(sys.executable, "-c", tell)) as fetcher:
        printed = await fetcher.render(site.url("/a;rm$(x)"))
    assert printed is not None
    assert site.url("/a;rm$(x)").encode() in printed
    assert b"INTERN" not in printed


async def test_nothing_renders_without_a_command(site: SiteDouble) -> None:
    async with site.fetcher() as fetcher:
        assert await fetcher.render(site.url("/a")) is None


async def test_a_private_address_is_never_given_to_the_command(site: SiteDouble, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    touch = f"open({str(touched)!r}, 'w')"
    async with site.fetcher(render_command=(sys.executable, "-c", touch)) as fetcher:
        for url in ("http://127.0.0.1/", "http://localhost/", "file:///etc/passwd"):
            with pytest.raises(PageRefusedError):
                await fetcher.render(url)
    assert not touched.exists()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import time; time.sleep(60)", "longer than"),
        ("while True: print('x' * 1000)", "larger than"),
        ("raise SystemExit(3)", "code 3"),
    ],
)
async def test_a_command_that_hangs_floods_or_fails_is_ended(site: SiteDouble, code: str, says: str) -> None:
    with pytest.raises(WebError, match=says):
        async with site.fetcher(
            render_command=(sys.executable, "-c", code), render_seconds=3, max_rendered_bytes=10_000
        ) as fetcher:
            await fetcher.render(site.url("/a"))


async def test_a_command_that_is_not_there_is_named(site: SiteDouble) -> None:
    with pytest.raises(PageUnavailableError, match="render_command"):
        async with site.fetcher(render_command=("/nowhere/browser",)) as fetcher:
            await fetcher.render(site.url("/a"))


CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser"))), None)


@pytest.mark.rest
@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium (apt-get install chromium-headless-shell)")
async def test_a_real_browser_prints_what_a_page_s_script_writes(
    site: SiteDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    script = "document.getElementById('root').innerHTML = '<main><p>' + 'Written later. '.repeat(30) + '</main>'"
    body = f"<title>App</title><div id=root></div><script>{script}</script>".encode()
    site.pages["/app"] = Served(body=body, headers={"Content-Type": "text/html"})
    command = (
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",  # tests may run as root
        "--disable-gpu",
        # Its own names, since it makes its own connections.
        f"--host-resolver-rules=MAP docs.example.org {ADDRESS}",
        "--dump-dom",
    )
    async with site.fetcher(render_command=command, render_seconds=50) as fetcher:
        printed = await fetcher.render(site.url("/app"))
    assert printed is not None
    read = read_html(printed.decode())
    assert read.document.blocks[0].text.startswith("Written later.")
    assert not read.needs_scripts


# Finding B2.
async def test_a_linked_file_is_fetched_from_its_own_address_only(site: SiteDouble) -> None:
    site.pages["/a"] = Served(body=b"ERROR: so")
    site.pages["/b"] = redirect("/a")
    site.pages["/c"] = Served(body=b"x" * 11)
    async with site.fetcher(max_bytes=10) as fetcher:
        assert await fetcher.fetch_file(site.url("/a")) == b"ERROR: so"
        for path in ("/b", "/c"):
            with pytest.raises(PageRefusedError):
                await fetcher.fetch_file(site.url(path))
        with pytest.raises(PageRefusedError):
            await fetcher.fetch_file("https://127.0.0.2/a")
    assert [request.path for request in site.requests] == ["/a", "/b", "/c"]
