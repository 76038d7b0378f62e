"""Strings that mean harm as the text, the title and the addresses of web pages: nothing else is opened or dialled."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import cast

import httpcore
import pytest
from anyio import fail_after

from intern.core.errors import SourceError
from intern.core.ids import SourceId
from intern.models.templates import PromptTemplates
from intern.sources.addresses import GuardedBackend
from intern.sources.descriptions import SUMMARIZE_SOURCE, SummarizeOut
from intern.sources.fetching import PageFetcher
from intern.sources.library import PageCopies
from intern.sources.options import IndexingOptions, WebOptions
from intern.sources.pages import refresh_pages
from tests.eval.hostile import STRINGS, strings
from tests.sources.folders import Shelf
from tests.worlds.site import ADDRESS, Served, SiteDouble, site_double

pytestmark = [
    pytest.mark.on_asyncio,  # fetching is tested on both elsewhere; this is a thousand pages
    pytest.mark.anyio,
    pytest.mark.rest,
    pytest.mark.skipif(not STRINGS.is_file(), reason="needs the hostile strings, which are not part of the project"),
]

_HOSTS = 16


_SECRET = "planted-secret-9f31"


class Dialled(httpcore.AsyncNetworkBackend):
    """Connects, and writes down where to."""

    def __init__(self) -> None:
        self.places: set[tuple[str, int]] = set()
        self._really = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 as httpcore has it
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.places.add((host, port))
        return await self._really.connect_tcp(host, port, timeout, local_address, socket_options)


def laid(site: SiteDouble) -> list[str]:
    """Each string as a page's markup, escaped in a page, and as Markdown; their addresses."""
    urls: list[str] = []
    for n, string in enumerate(strings()):
        host = f"host{n % _HOSTS}.example.org"
        kinds = {
            "raw": (f"<title>{string}</title><main><p>{string}</p><p>Part {n}</main>", "text/html"),
            "escaped": (f"<title>Part</title><p>{html.escape(string)}</p><p>Part {n}", "text/html"),
        }
        if n % 10 == 0:
            kinds["plain"] = (f"# Part {n}\n\n{string}\n", "text/markdown")
        for name, (body, kind) in kinds.items():
            site.pages[f"{host}/{n}-{name}"] = Served(
                body=body.encode("utf-8", "replace"), headers={"Content-Type": f"{kind}; charset=utf-8"}
            )
            urls.append(site.url(f"/{n}-{name}", host=host))
    return urls


async def test_as_pages_they_dial_nothing_and_break_neither_index_nor_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERN__DISCORD__TOKEN", _SECRET)
    dialled = Dialled()
    copies = PageCopies(tmp_path / "web-cache")

    async def leads_here(host: str, port: int) -> Sequence[str]:
        del host, port
        return [ADDRESS]

    with site_double() as site, fail_after(120):
        async with Shelf.at(tmp_path) as shelf:
            shelf.model.always(SUMMARIZE_SOURCE, lambda given: SummarizeOut(description=given.text[:300]))
            urls = laid(site)
            # The same strings as lines of the list: private addresses, paths, markup.
            lines = [" ".join(string.split()) for string in strings()]
            (tmp_path / "links.txt").write_text("\n".join([*urls, *lines]), encoding="utf-8", errors="replace")

            def web() -> PageFetcher:
                backend = GuardedBackend(site.policy, resolve=leads_here, dial=dialled)
                return PageFetcher(WebOptions(pause_seconds=0), policy=site.policy, backend=backend)

            result = await refresh_pages(
                shelf.model,
                tmp_path / "links.txt",
                copies,
                shelf.catalogue,
                web=web,
                interval=timedelta(hours=24),
                options=IndexingOptions(),
                policy=site.policy,
                renders=False,
            )
            assert dialled.places == {(ADDRESS, site.port)}
            listed = set(shelf.index())
    named = {f"kb:{url}" for url in urls}
    assert listed <= named
    assert len(listed) > 0.97 * len(named)
    assert not result.pending
    templates = PromptTemplates()
    for given in shelf.model.calls(SUMMARIZE_SOURCE):
        prompt = templates.render(SUMMARIZE_SOURCE, given)
        assert _SECRET not in prompt.user + prompt.system
        marks = [line for line in prompt.user.splitlines() if line.startswith("===") and line.endswith("===")]
        assert len(marks) >= 2
        # The fence that closes is one that the text does not hold.
        assert given.text.count(marks[-1]) == 0, given.source_id
    for string in strings():
        with pytest.raises(SourceError):
            copies.load(string)
    assert {path.suffix for path in (tmp_path / "web-cache").iterdir()} == {".json"}
    assert all(SourceId(source_id) in listed for source_id in result.changed)
