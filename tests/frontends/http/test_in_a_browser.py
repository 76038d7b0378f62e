"""The status page as people see it: in a real Chromium, light and dark, narrow and wide, by keyboard alone.

Screenshots are left in `build/screenshots` for people to check.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Literal

import pytest
from msgspec import structs
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request

from intern.core.decisions import PairFiled, PairRejected
from intern.frontends.http.page_renderer import PAGES
from intern.lab.report import render_page
from intern.service.health import HealthCheck
from tests.eval.hostile import STRINGS, strings
from tests.frontends.http.chromium import CHROMIUM, WANTED, chromium
from tests.frontends.http.site import OPEN, QUESTIONS, Site, site
from tests.lab.test_report import answered, backtest

AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
SCREENSHOTS = Path(__file__).parents[3] / "build" / "screenshots"
Scheme = Literal["light", "dark"]
GROUNDS: dict[Scheme, str] = {"light": "rgb(245, 247, 249)", "dark": "rgb(17, 22, 29)"}
"""The colour behind all else."""

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.rest,
    pytest.mark.skipif(CHROMIUM is None, reason=WANTED),
]


@pytest.fixture(scope="module")
async def browser() -> AsyncGenerator[Browser]:
    async with chromium() as launched:
        yield launched


class Watched:
    """The errors of a page, and its requests to other sites."""

    def __init__(self, page: Page, address: str) -> None:
        self.complaints: list[str] = []
        self._address = address
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.on("request", self._asked)

    def _said(self, message: ConsoleMessage) -> None:
        self.complaints.append(f"{message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith(self._address):
            self.complaints.append(f"request: {request.url}")


@asynccontextmanager
async def opened(
    browser: Browser,
    made: Site,
    *,
    width: int = 1280,
    scheme: Scheme = "light",
    scripts: bool = True,
    missing: Sequence[str] = (),
) -> AsyncGenerator[Page]:
    """A page in a window; it must have complained of nothing by the end."""
    context: BrowserContext = await browser.new_context(
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
        java_script_enabled=scripts,
        base_url=made.address,
    )
    page = await context.new_page()
    watched = Watched(page, made.address)
    yield page
    await context.close()
    # The browser says of each page that is not there that it is not.
    assert [each for each in watched.complaints if not (missing and "404" in each)] == []


async def shown_pages(page: Page) -> list[str]:
    """The addresses of all pages, one topic with its history, one fact and one question among them."""
    paths = [path for path, _ in PAGES]
    paths += ["/?days=90", "/outdated", "/ask", "/topics", "/facts", "/nuggets", "/sources", "/sources?state=skipped"]
    paths += ["/parked", "/knowledge?q=spool"]
    for listing in ("/topics", "/questions", "/facts", "/review"):
        await page.goto(listing)
        first = page.locator(f'main a[href^="{listing}/"]').first
        if await first.count():
            href = await first.get_attribute("href")
            assert href is not None
            paths += [href, f"{href}/history"] if listing == "/topics" else [href]
    return list(dict.fromkeys(paths))


async def overflow(page: Page) -> int:
    """By how much the page is wider than its window."""
    wider = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return int(wider)


async def barriers(page: Page, *, of_colours: bool = False) -> list[str]:
    """Return axe's findings by WCAG 2.2, A and AA, and by its best practices; or by its rules of colours alone."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE)
    rules = {"runOnly": ["color-contrast", "link-in-text-block"]} if of_colours else {}
    found = (await page.evaluate("rules => axe.run(rules)", rules | {"resultTypes": ["violations"]}))["violations"]
    return [f"{each['id']}: {node['html'][:200]}" for each in found for node in each["nodes"]]


_SMALL = """() => [...document.querySelectorAll("nav a, main :is(button, summary, select, input)")]
    .filter(each => each.offsetParent && !["hidden", "checkbox", "radio"].includes(each.type))
    .filter(each => each.getBoundingClientRect().height < 43.5)
    .map(each => `${each.outerHTML.slice(0, 100)}: ${each.getBoundingClientRect().height} px`)"""

# Controls that no key reaches, and buttons that need a script.
_DEAD = """() => [...document.querySelectorAll("main :is(a, button, select, input, textarea, summary)")]
    .filter(each => each.type != "hidden")
    .filter(each => each.tabIndex < 0 || each.localName == "button" && !(each.form && each.type == "submit"))
    .map(each => each.outerHTML.slice(0, 100))"""


@pytest.mark.timeout(300)  # half a minute alone on a core
@pytest.mark.parametrize("width", [360, 768, 1920])
async def test_every_page_fits_its_window_has_no_barrier_and_complains_of_nothing(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    async with (
        site(tmp_path, past=True, patience=280) as made,
        opened(browser, made, width=width, missing=("/nowhere",)) as page,
    ):
        for path in [*await shown_pages(page), "/nowhere"]:
            await page.goto(path)
            assert await page.locator("h1").count() == 1
            assert await page.locator("polyline.curve").count() == (path == "/system")
            parts = path.strip("/").split("/")
            name = parts[0].replace("?days=", "home-") + ("", "-one", "-history")[len(parts) - 1] or "home"
            for scheme, ground in GROUNDS.items():
                await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                assert (path, await overflow(page)) == (path, 0)
                await page.screenshot(path=SCREENSHOTS / f"{name}-{scheme}-{width}.png", full_page=True)
                assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
            await page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
            assert (path, await overflow(page)) == (path, 0)
            assert (path, await barriers(page, of_colours=True)) == (path, [])  # dark; the others depend on no scheme
            await page.emulate_media(color_scheme="light")
            assert (path, await overflow(page)) == (path, 0)
            assert (path, await barriers(page)) == (path, [])
            assert (path, await page.evaluate(_DEAD)) == (path, [])
            if width == 360:
                assert (path, await page.evaluate(_SMALL)) == (path, [])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
async def test_the_report_of_a_backtest_shows_the_calibration_curve_without_any_request(
    browser: Browser, tmp_path: Path, width: int, scheme: Scheme
) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    report = tmp_path / "backtest.html"
    given = (answered(n, 0.5, "differed" if n % 9 == 0 and n < 120 else "agreed") for n in range(200))
    scored = (structs.replace(each, score=n / 200) for n, each in enumerate(given))
    report.write_bytes(render_page(structs.replace(backtest(*scored), max_wrong=0.05)))
    context = await browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = await context.new_page()
    watched = Watched(page, report.as_uri())
    await page.goto(report.as_uri())
    assert await page.locator("svg.plot polyline.curve").count() == 1
    assert await overflow(page) == 0
    await page.screenshot(path=SCREENSHOTS / f"backtest-{scheme}-{width}.png", full_page=True)
    await context.close()
    assert watched.complaints == []


async def test_the_login_fits_every_window_and_has_no_barrier(browser: Browser, tmp_path: Path) -> None:
    async with site(tmp_path, token="a-token-of-the-operator", patience=180) as made:
        for width, scheme in product((360, 768, 1920), GROUNDS):
            async with opened(browser, made, width=width, scheme=scheme) as page:
                await page.goto("/knowledge")
                await page.screenshot(path=SCREENSHOTS / f"login-{scheme}-{width}.png")
                assert (await overflow(page), await barriers(page)) == (0, [])
                assert width > 360 or await page.evaluate(_SMALL) == []


async def test_the_days_of_a_plot_are_read_by_keyboard_and_pointer(browser: Browser, tmp_path: Path) -> None:
    async with site(tmp_path, past=True) as made, opened(browser, made) as page:
        await page.goto("/")
        await pressed_until(page, "svg[data-plot]")
        said = page.locator("figure.plot output").first
        assert (await said.inner_text()).startswith("3 Feb: ")
        await page.keyboard.press("ArrowLeft")
        assert (await said.inner_text()).startswith("2 Feb: ")
        await page.keyboard.press("Home")
        assert (await said.inner_text()).startswith("21 Jan: ")
        await page.locator("figure.plot g").nth(3).hover()
        assert (await said.inner_text()).startswith("24 Jan: ")
        await page.locator("h1").hover()
        assert await said.inner_text() == ""


async def test_figures_refresh_by_themselves_but_for_what_is_in_use(browser: Browser, tmp_path: Path) -> None:
    async with site(tmp_path) as made, opened(browser, made) as page:
        await page.clock.install()
        await page.goto("/")
        assert await page.get_by_text("fails <b>now</b>").count() == 0
        made.outside.model = HealthCheck(name="model", ok=False, detail="it fails <b>now</b>")
        await page.locator("#needs a").first.focus()
        async with page.expect_response("**/"):
            await page.clock.run_for(31_000)
        assert await page.get_by_text("fails <b>now</b>").count() == 0
        await page.locator("h1").click()
        await page.evaluate("document.activeElement.blur()")
        async with page.expect_response("**/"):
            await page.clock.run_for(31_000)
        await page.get_by_text("fails <b>now</b>").wait_for()


async def pressed_until(page: Page, selector: str, *, key: str = "Tab", most: int = 60) -> None:
    """Press a key until what is meant has the focus, which must be seen."""
    for _ in range(most):
        await page.keyboard.press(key)
        if await page.evaluate("selector => document.activeElement.matches(selector)", selector):
            outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid"
            return
    raise AssertionError(f"{selector} is not reached by {key}")


async def test_a_capture_is_approved_by_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    async with site(tmp_path) as made, opened(browser, made) as page:
        first, second = made.waiting
        await page.goto("/")
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Skip to the content"
        assert (await page.locator(".skip").bounding_box() or {"x": -1})["x"] >= 0
        await pressed_until(page, 'nav a[href="/review"]')
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/review")
        await pressed_until(page, 'button[value="approve"]')
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/review?done=approve")
        assert await page.get_by_role("status").inner_text() == "Approved: it is filed next."
        assert await page.locator(f'[data-item] input[value="{second.qa_id}"]').count() == 1
        assert await page.locator(f'[data-item] input[value="{first.qa_id}"]').count() == 0
        assert isinstance(made.writer.stores.knowledge.last_decision(first.qa_id), PairFiled)


async def test_single_keys_review_captures_where_the_focus_is_on_one(browser: Browser, tmp_path: Path) -> None:
    async with site(tmp_path) as made, opened(browser, made) as page:
        first, second = made.waiting
        await page.goto("/review")
        await page.keyboard.press("r")
        assert page.url.endswith("/review"), "no capture has the focus"
        await pressed_until(page, 'button[value="approve"]')
        await page.keyboard.press("j")
        focused = page.locator("[data-item]:focus input[name=qa_id]")
        assert await focused.get_attribute("value") == second.qa_id
        await page.keyboard.press("r")
        await page.wait_for_url("**/review?done=reject")
        assert isinstance(made.writer.stores.knowledge.last_decision(second.qa_id), PairRejected)
        await pressed_until(page, 'button[value="approve"]')
        await page.keyboard.press("e")
        await page.wait_for_url(f"**/review/{first.qa_id}")
        await page.locator("textarea").last.fill("Port 7480.")
        await page.keyboard.press("a")
        await page.get_by_role("button", name="Approve as edited").click()
        await page.wait_for_url("**/review?done=approve")
        latest = made.writer.stores.archive.latest_capture(first.conversation_id)
        assert latest is not None
        assert latest.turns[-1].text == "Port 7480.a"


async def test_a_question_is_asked_by_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    async with site(tmp_path) as made, opened(browser, made, width=360) as page:
        await page.goto("/ask")
        await pressed_until(page, "textarea")
        await page.keyboard.type("Which port does the relay listen on?")
        await pressed_until(page, "main button")
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="Sources").wait_for()
        assert "The relay listens on port 7480." in await page.locator("main").inner_text()
        assert await overflow(page) == 0
        await page.screenshot(path=SCREENSHOTS / "asked-light-360.png", full_page=True)


async def test_it_works_without_scripts_and_behind_a_token(browser: Browser, tmp_path: Path) -> None:
    async with (
        site(tmp_path, token="a-token-of-the-operator") as made,
        opened(browser, made, scripts=False) as page,
    ):
        await page.goto("/knowledge")
        assert page.url.endswith("/login?next=/knowledge")
        await page.get_by_label("token").fill("a-token-of-the-operator")
        await page.get_by_role("button", name="Log in").click()
        await page.wait_for_url("**/knowledge")
        await page.goto("/parked")
        await page.get_by_role("button", name="Try").click()
        await page.wait_for_url("**/parked?done=done")
        await page.get_by_role("button", name="Log out").click()
        assert page.url.endswith("/login")


async def test_a_gap_is_answered_and_another_dismissed_by_keyboard_and_without_scripts(
    browser: Browser, tmp_path: Path
) -> None:
    async with site(tmp_path) as made, opened(browser, made, width=360, scripts=False) as page:
        await page.goto("/gaps")
        await pressed_until(page, ".choices summary")
        await page.keyboard.press("Enter")
        await pressed_until(page, "textarea")
        await page.keyboard.type("Run `relay cert rotate`.")
        await pressed_until(page, 'button[value="answer"]')
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/gaps?done=answer")
        assert OPEN[0] not in await page.locator("main").inner_text()
        await pressed_until(page, 'button[value="dismiss"]')
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/gaps?done=dismiss")
        assert "No gaps." in await page.locator("main").inner_text()
        await page.goto("/questions")
        await page.get_by_label("Outcome").select_option("answered")
        await page.get_by_role("button", name="Show").click()
        assert "outcome=answered" in page.url
        assert await page.locator(".item").count() == 2


@pytest.mark.skipif(not STRINGS.exists(), reason="the hostile strings are not at hand")
async def test_hostile_texts_neither_run_nor_reach_out_nor_break_the_page(browser: Browser, tmp_path: Path) -> None:
    texts = [text for text in strings() if any(sign in text for sign in "<>\"'&\u202e")][::10][:60]
    assert len(texts) > 20
    async with site(tmp_path, texts=texts) as made, opened(browser, made, width=360) as page:
        for path in await shown_pages(page):
            await page.goto(path)
            assert await page.locator("footer").last.inner_text(), path
            assert (path, await overflow(page)) == (path, 0)
        await page.goto("/knowledge")
        assert QUESTIONS[0] not in page.url
