"""The status page over real sockets: what it shows, what it lets happen, and whom it turns away."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from anyio import Event, connect_tcp, create_task_group
from msgspec import structs

from intern import __version__
from intern.core.decisions import PairParked, PairReviewRequested
from intern.core.errors import ConfigError, KnowledgeError
from intern.core.flow import MessageCreated, MessagesDeleted
from intern.core.ids import GuildId, QAId, SourceId
from intern.core.messages import AnswerResult, Citation, Conversation
from intern.core.text.secret_values import Secret
from intern.frontends.http.metrics import Metrics
from intern.frontends.http.page_renderer import HEADERS, PAGES, STATIC
from intern.frontends.http.questions import MAX_QUESTION_CHARS
from intern.frontends.http.server import serve_pages
from intern.service.gateway_watch import drop_deleted
from intern.service.health import HealthCheck
from intern.settings.settings import PageOptions
from tests.eval.hostile import STRINGS, strings
from tests.frontends.http.site import OPEN, OUTDATED, Site, site
from tests.worlds import samples

TOKEN = "a-token-of-the-operator-8437"


class _Up(Metrics):
    def text(self, gauges: object = None) -> tuple[bytes, str]:
        del gauges
        return b"intern_up 1\n", "text/plain; version=1"


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncGenerator[Site]:
    async with site(tmp_path, token=TOKEN, metrics=_Up(prompts=(), version="1")) as made:
        yield made


def form_token(page: httpx.Response) -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', page.text)
    assert found is not None
    return found[1]


async def get(made: Site, path: str, **headers: str) -> httpx.Response:
    async with made.client() as client:
        return await client.get(path, headers=headers)


async def post(made: Site, path: str, fields: Mapping[str, str | Sequence[str]], **headers: str) -> httpx.Response:
    async with made.client() as client:
        token = form_token(await client.get("/ask"))
        return await client.post(path, data={"form_token": token, **fields}, headers=headers)


# The views.


@pytest.mark.rest
async def test_an_outdated_answer_is_shown_with_what_it_stood_on_and_what_its_source_says_now(own: Site) -> None:
    # With several servers, the answer says on which one it was posted.
    discord = structs.replace(own.settings.discord, guild_ids=(GuildId("100"), GuildId("200")))
    own.writer.stores.settings = structs.replace(own.settings, discord=discord)
    text = (await get(own, "/outdated")).text
    [answer] = await own.writer.stores.cited.list_outdated(9)
    assert f"https://discord.com/channels/100/{answer.place}/{answer.message_id}" in text
    assert re.search(rf"(?s)kb:gone.md.*was withdrawn.*stood on:.*{OUTDATED}.*It says now:.*\(withdrawn\)", text)
    (own.settings.paths.sources / "gone.md").write_text("# Quota\n\nThe quota is raised by mail.\n")
    await own.writer.indexing.refresh()
    assert "The quota is raised by mail." in (await get(own, "/outdated")).text


async def test_every_page_is_served_with_all_headers_and_one_script_of_our_own(page: Site) -> None:
    paths = [path for path, _ in PAGES]
    paths += ["/nuggets", "/healthz", "/readyz", *(f"/static/{name}" for name in STATIC)]
    for path in paths:
        shown = await get(page, path)
        assert (path, shown.status_code) == (path, 200)
        assert HEADERS.items() <= dict(shown.headers).items() or all(
            shown.headers[name] == value for name, value in HEADERS.items()
        )
        scripts = re.findall(r"<script[^>]*>", shown.text)
        assert scripts == ['<script src="/static/page.js" defer>'] * shown.headers["Content-Type"].startswith(
            "text/html"
        )
        assert " style=" not in shown.text
        assert " onclick" not in shown.text


@pytest.mark.parametrize("path", ["/nowhere", "/topics/no-such-topic", "/questions/1", "/facts/no-such", "/metrics"])
async def test_what_is_not_there_is_404_with_the_same_headers(page: Site, path: str) -> None:
    shown = await get(page, path)
    assert shown.status_code == 404
    assert {name: shown.headers[name] for name in HEADERS} == dict(HEADERS)


async def test_home_lists_first_what_needs_a_person(own: Site) -> None:
    text = (await get(own, "/")).text
    needs, _, rest = text.partition("The last 14 days")
    assert re.search(r'">2</span> <a href="/review">team answers wait', needs)
    assert re.search(r'">\d</span> <a href="/gaps">subjects without an answer', needs)
    assert re.search(r'">1</span> <a href="/outdated">posted answer may be outdated', needs)
    assert re.search(r'">1</span> <a href="/sources">source could not be read', needs)
    assert "/parked" not in needs  # it is tried again by itself
    assert OPEN[1] in rest  # the newest of two that ask the same
    own.outside.model = HealthCheck(name="model", ok=False, detail="it <b>fails</b>; see the log")
    needs, _, _ = (await get(own, "/")).text.partition("The last 14 days")
    assert re.search(r'(?s)<li class="item">\s*<span><span class="badge bad">problem</span>.*?it &lt;b&gt;fails', needs)


async def test_home_compares_a_period_with_the_one_before_and_plots_it(tmp_path: Path) -> None:
    async with site(tmp_path, empty=True, past=True) as made:
        fortnight, quarter = (await get(made, "/")).text, (await get(made, "/?days=90")).text
        nonsense = (await get(made, "/?days=-1")).text
    assert re.search(r'Questions answered</dt>\s*<dd class="value">73%</dd>', fortnight)
    assert "up from 6" in fortnight
    assert re.search(r'Cost of an answer</dt>\s*<dd class="value">0\.0\d+ <small>USD</small>', fortnight)
    assert re.search(r'Time to answer</dt>\s*<dd class="value">\d\.\d+ <small>seconds', fortnight)
    assert (fortnight.count("<g>"), quarter.count("<g>")) == (4 * 14, 4 * 90)
    assert "The last 90 days" in quarter
    assert "The last 14 days" in nonsense


async def test_system_shows_health_costs_versions_and_streams(page: Site) -> None:
    text = (await get(page, "/system")).text
    assert text.count('"badge good">well') == 4
    assert re.search(r'"row">batcher</th><td data-label="State">at work</td>.*>listener and backfill to batcher<', text)
    assert "0 of 1000" in text
    assert re.search(r'"row">answer</th><td class="number">3</td><td class="number">3\u202f450</td>', text)
    assert re.search(r'"row">2026-02-03</th><td class="number">3</td>', text)
    assert "0.0375 USD, no daily limit" in text
    assert "<meter" not in text
    assert "none since the start" in text
    assert f"<dt>intern</dt><dd>{__version__}</dd>" in text


@pytest.mark.rest
async def test_what_is_spent_of_each_budget_is_drawn_for_eyes_and_told_to_screen_readers(tmp_path: Path) -> None:
    llm = {"provider": "offline", "daily_token_budget": 10_000, "daily_cost_budget": 0.03}
    async with site(tmp_path, llm=llm) as made:
        text = (await get(made, "/system")).text
    assert "0.0375 of 0.03 USD (125%)" in text
    meters = re.findall(r'<meter min="0" max="(.+?)" value="(.+?)" aria-label="(.+?)"></meter>', text)
    assert meters == [
        ("10000", "3450", "Tokens of today's budget"),
        ("0.03", "0.03", "Cost of today's budget"),
    ]


@pytest.mark.rest
async def test_what_passes_the_gateway_is_noted_and_a_deleted_question_is_not_shown_any_more(own: Site) -> None:
    asked = samples.message(OPEN[2], n=10_002)
    own.overheard.receive(MessageCreated(message=samples.message()))
    deleted = MessagesDeleted(guild_id=samples.GUILD, channel_id=samples.CHANNEL, message_ids=(asked.id,))
    drop_deleted(own.writer.stores.answers.drop, deleted)
    await own.writer.stores.answers.store()
    assert "none since the start" not in (await get(own, "/")).text
    text = (await get(own, "/gaps")).text
    assert OPEN[2] not in text
    assert OPEN[1] in text


@pytest.mark.rest
async def test_lists_that_are_cut_say_how_much_there_is(own: Site) -> None:
    assert "these are the first" not in (await get(own, "/gaps")).text
    for n in range(120):
        asked = samples.message(f"what about zork{n}q{n}", n=20_000 + n)
        await samples.save_question(own.writer.stores.answers, [asked], "no_sources")
    at = own.clock.now()
    parked = [PairParked(qa_id=QAId(f"qa_20250101_000000.{n:06}"), at=at, reason="no topic") for n in range(1_200)]
    await own.writer.stores.knowledge.change(lambda db: db.decide(*parked))
    text = (await get(own, "/gaps")).text
    assert "122 gaps with 123 questions; these are the first 20." in text
    assert text.count("<article") == 20
    text = (await get(own, "/parked")).text
    assert "1 to 50 of 1\u202f201" in text
    assert '<a href="/parked?offset=50">Older</a>' in text
    assert text.count('<li class="item">') == 50
    text = (await get(own, "/")).text
    assert re.search(r'">122</span> <a href="/gaps">subjects', text)


@pytest.mark.rest
async def test_nothing_is_told_to_wait_where_all_that_was_seen_is_handled(own: Site) -> None:
    assert "<dt>In work</dt><dd>no message</dd>" in (await get(own, "/system")).text
    asked = [samples.message(n=n) for n in (1, 2)]
    for each in asked:
        assert own.checkpoints.begin(each)
    text = (await get(own, "/system")).text
    assert f'<dt>In work</dt><dd>2 messages, the oldest from <time datetime="{asked[0].at.isoformat()}' in text
    own.checkpoints.settle(asked[0].channel_id, [each.id for each in asked])
    own.checkpoints.fall_behind(samples.message(n=3))
    assert "<dt>To catch up</dt><dd>1 channel</dd>" in (await get(own, "/system")).text


async def test_an_empty_folder_has_pages_too(tmp_path: Path) -> None:
    async with site(tmp_path, empty=True) as made:
        for path, _ in PAGES:
            assert (path, (await get(made, path)).status_code) == (path, 200)


# Actions.


async def test_the_box_to_ask_answers_with_sources_and_trace(page: Site) -> None:
    shown = await post(page, "/ask", {"question": "Which port does the relay listen on?"})
    assert shown.status_code == 200
    assert "The relay listens on port 7480." in shown.text
    assert "kb:ports.md" in shown.text
    assert "<b>Is it a question?</b>" in shown.text
    silent = await post(page, "/ask", {"question": "Who won the chess match in Reykjavik?"})
    assert "Nothing known: " in silent.text


@pytest.mark.parametrize("question", ["", "   ", "x" * (MAX_QUESTION_CHARS + 1)])
async def test_an_empty_or_endless_question_is_not_asked(page: Site, question: str) -> None:
    assert (await post(page, "/ask", {"question": question})).status_code == 400


async def test_one_question_is_answered_at_a_time(tmp_path: Path) -> None:
    begun, go_on = Event(), Event()

    async def slowly(_: Conversation) -> AnswerResult:
        begun.set()
        await go_on.wait()
        return AnswerResult(should_reply=True, reply_text="At last.", citations=())

    seen: list[str] = []
    async with site(tmp_path, answers=slowly) as made, create_task_group() as tg:

        async def ask() -> None:
            seen.append((await post(made, "/ask", {"question": "First?"})).text)

        tg.start_soon(ask)
        await begun.wait()
        assert (await post(made, "/ask", {"question": "Second?"})).status_code == 429
        go_on.set()
    assert "At last." in seen[0]


async def test_a_link_of_a_source_is_only_followed_into_the_web(tmp_path: Path) -> None:
    async def hostile(_: Conversation) -> AnswerResult:
        sources = [("javascript:alert(1)", "bad"), ("https://docs.example.org/a", "good")]
        cited = tuple(Citation(source_id=SourceId(f"kb:{title}"), title=title, url=url) for url, title in sources)
        return AnswerResult(should_reply=True, reply_text="Yes.", citations=cited)

    async with site(tmp_path, answers=hostile) as made:
        text = (await post(made, "/ask", {"question": "Well?"})).text
    assert "javascript:" not in text
    assert '<a href="https://docs.example.org/a" rel="noreferrer noopener" dir="auto">good</a>' in text


# Refused requests.


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8300", "127.0.0.1.evil.example", "10.0.0.7", "0.0.0.0"])
async def test_a_stranger_s_name_for_this_machine_is_refused(page: Site, host: str) -> None:
    for path in ("/", "/healthz", "/review"):
        assert (await get(page, path, Host=host)).status_code == 421


@pytest.mark.parametrize("host", ["[", "[::1", "a]b"])
async def test_a_host_that_is_none_is_refused_with_the_same_headers(
    page: Site, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = httpx.URL(page.address).port
    assert port is not None
    async with await connect_tcp("127.0.0.1", port) as stream:
        await stream.send(f"GET /review HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        head, _, _ = b"".join([part async for part in stream]).decode().partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    assert status.startswith("HTTP/1.1 421 ")
    assert {f"{name}: {value}" for name, value in HEADERS.items()} <= set(lines)
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("host", ["localhost", "localhost:8300", "127.0.0.1", "[::1]:8300", "127.0.0.1:1"])
async def test_this_machine_s_own_names_are_not(page: Site, host: str) -> None:
    assert (await get(page, "/", Host=host)).status_code == 200


async def test_a_form_without_its_token_or_from_another_site_changes_nothing(own: Site) -> None:
    first, _ = own.waiting
    fields = {"action": "approve", "qa_id": first.qa_id}
    async with own.client() as client:
        assert (await client.post("/review", data=fields)).status_code == 403
        assert (await client.post("/review", data={"form_token": "0" * 64, **fields})).status_code == 403
        assert (
            await client.post("/review", content=b"form_token=%ff%fe&x", headers={"Content-Type": "a/b"})
        ).status_code == 403
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost:1"},
        {"Origin": "http://[::1"},
    ):
        assert (await post(own, "/review", fields, **headers)).status_code == 403, headers
    assert isinstance(own.writer.stores.knowledge.last_decision(first.qa_id), PairReviewRequested)
    assert (await post(own, "/review", fields, **{"Sec-Fetch-Site": "same-origin"})).status_code == 303


async def test_a_form_beyond_its_bound_is_not_read(page: Site) -> None:
    assert (await post(page, "/ask", {"question": "x" * 100_000})).status_code == 413


async def test_without_the_token_only_the_door_and_health_are_there(guarded: Site) -> None:
    for path in [path for path, _ in PAGES] + ["/nuggets", "/topics/x", "/nowhere"]:
        shown = await get(guarded, path)
        login = "/login" if path == "/" else f"/login?next={path}"
        assert (path, shown.status_code, shown.headers["Location"]) == (path, 303, login)
    assert (await get(guarded, "/metrics")).status_code == 401
    assert (await get(guarded, "/metrics", Authorization="Bearer wrong")).status_code == 401
    assert (await get(guarded, "/healthz")).json()["live"] is True
    async with guarded.client() as client:
        token = form_token(await client.get("/login"))
        fields = {"form_token": token, "action": "approve", "qa_id": guarded.waiting[0].qa_id}
        assert (await client.post("/review", data=fields)).status_code == 401
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert (await client.post("/review", data=fields, headers=bearer)).status_code == 401
    assert isinstance(guarded.writer.stores.knowledge.last_decision(guarded.waiting[0].qa_id), PairReviewRequested)


async def test_metrics_are_given_to_who_bears_the_token(guarded: Site) -> None:
    told = await get(guarded, "/metrics", Authorization=f"Bearer {TOKEN}")
    assert (told.status_code, told.text) == (200, "intern_up 1\n")
    assert told.headers["Content-Type"] == "text/plain; version=1"
    assert told.headers["Cache-Control"] == "no-store"


async def test_whoever_logs_in_gets_a_cookie_that_no_script_and_no_other_site_can_use(guarded: Site) -> None:
    async with guarded.client() as client:
        login = await client.get("/login")
        wrong = await client.post("/login", data={"form_token": form_token(login), "token": "wrong"})
        assert wrong.status_code == 401
        assert "That is not the token." in wrong.text
        right = await client.post("/login", data={"form_token": form_token(login), "token": TOKEN})
        assert right.status_code == 303
        cookie = right.headers["Set-Cookie"]
        assert TOKEN not in cookie
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        inside = await client.get("/review")
        assert inside.status_code == 200
        # The forms of before are no good any more, those of now are.
        fields = {"action": "reject", "qa_id": guarded.waiting[0].qa_id}
        assert (await client.post("/review", data={"form_token": form_token(login), **fields})).status_code == 403
        assert (await client.post("/review", data={"form_token": form_token(inside), **fields})).status_code == 303
        await client.post("/logout", data={"form_token": form_token(inside)})
        assert (await client.get("/review")).status_code == 303


async def test_who_guesses_tokens_is_made_to_wait(guarded: Site) -> None:
    async with guarded.client() as client:
        token = form_token(await client.get("/login"))
        for _ in range(10):
            await client.post("/login", data={"form_token": token, "token": "guess"})
        even_right = await client.post("/login", data={"form_token": token, "token": TOKEN})
        assert even_right.status_code == 429
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert [(await client.get(path, headers=bearer)).status_code for path in ("/metrics", "/review")] == [429, 429]
        elsewhere = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx.AsyncClient(base_url=guarded.address, transport=elsewhere) as operator:
            assert (await operator.get("/metrics", headers=bearer)).status_code == 200
            login = {"form_token": form_token(await operator.get("/login")), "token": TOKEN}
            assert (await operator.post("/login", data=login)).status_code == 303


async def test_a_login_leads_to_the_page_that_was_wanted_and_to_no_other_site(guarded: Site) -> None:
    ours = ("/review", "/questions?offset=100&why=no_sources")
    others = ("", "review", "//evil.example", "/\\evil.example", "/\t/evil.example", "https://evil.example")
    for wanted, leads in [*zip(ours, ours, strict=True), *((each, "/") for each in others)]:
        async with guarded.client() as client:
            login = await client.get("/login", params={"next": wanted})
            fields = {"form_token": form_token(login), "token": TOKEN, "next": wanted}
            assert f'name="next" value="{escape(leads)}"' in login.text
            assert (await client.post("/login", data=fields)).headers["Location"] == leads
            assert (await client.get("/login", params={"next": wanted})).headers["Location"] == leads


@pytest.mark.rest
async def test_who_guesses_tokens_as_a_program_is_made_to_wait_too(guarded: Site) -> None:
    async with guarded.client() as client:
        wrong, right = ({"Authorization": f"Bearer {token}"} for token in ("guess", TOKEN))
        # A page asks twice who it is for, and a wrong token counts once.
        told = [(await client.get("/login", headers=wrong)).status_code for _ in range(9)]
        assert told == [200] * 9
        assert (await client.get("/metrics", headers=right)).status_code == 200
        told = [(await client.get("/metrics", headers=wrong)).status_code for _ in range(21)]
        assert told == [429] * 21
        assert (await client.get("/metrics", headers=right)).status_code == 429
        login = {"form_token": form_token(await client.get("/login")), "token": TOKEN}
        assert (await client.post("/login", data=login)).status_code == 429


@pytest.mark.rest
async def test_who_is_in_stays_in_while_others_guess(guarded: Site) -> None:
    async with guarded.client() as client:
        token = form_token(await client.get("/login"))
        await client.post("/login", data={"form_token": token, "token": TOKEN})
        for _ in range(11):
            await get(guarded, "/metrics", Authorization="Bearer guess")
        assert (await client.get("/review")).status_code == 200


@pytest.mark.rest
@pytest.mark.parametrize(
    ("said", "is_secure"),
    [("https", True), ("HTTPS, http", True), ("http", False), ("http, https", False), ("", False)],
)
async def test_behind_a_proxy_that_speaks_https_the_cookie_is_for_https_only(
    guarded: Site, said: str, *, is_secure: bool
) -> None:
    proxied = {"X-Forwarded-Proto": said} if said else {}
    async with guarded.client() as client:
        fields = {"form_token": form_token(await client.get("/login")), "token": TOKEN}
        right = await client.post("/login", data=fields, headers=proxied)
        assert right.status_code == 303
        assert ("Secure" in right.headers["Set-Cookie"].split("; ")) is is_secure
        name, _, session = right.headers["Set-Cookie"].partition(";")[0].partition("=")
        inside = {"Cookie": f"{name}={session}", **proxied}
        fields = {"form_token": form_token(await client.get("/ask", headers=inside))}
        left = await client.post("/logout", data=fields, headers=inside)
        assert left.status_code == 303
        assert ("Secure" in left.headers["Set-Cookie"].split("; ")) is is_secure


# Health.


async def test_ready_says_what_is_not_and_live_stays_so(own: Site) -> None:
    ready = await get(own, "/readyz")
    assert (ready.status_code, ready.json()) == (
        200,
        {
            "live": True,
            "ready": True,
            "checks": {"discord": True, "database": True, "folder": True, "model": True},
            "notes": {},
        },
    )
    own.outside.is_open = False
    own.outside.model = HealthCheck(name="model", ok=False, detail="the endpoint is down <b>")
    (own.settings.data.dir / ".lock").rename(own.settings.data.dir / "taken")
    for path in ("/readyz", "/healthz?ready"):
        ready = await get(own, path)
        assert ready.status_code == 503
        assert ready.json()["checks"] == {"discord": False, "database": True, "folder": False, "model": False}
        assert "endpoint" not in ready.text, "anybody may ask"
    live = await get(own, "/healthz")
    assert (live.status_code, live.json()["live"], live.json()["ready"]) == (200, True, False)
    text = (await get(own, "/")).text
    assert text.count('"badge bad">problem') == 3
    assert "the endpoint is down &lt;b&gt;" in text


@pytest.mark.rest
async def test_what_waits_while_all_is_well_is_told_to_everybody_and_its_reason_on_the_page(own: Site) -> None:
    note = "the daily budget leaves no room for answers"
    own.outside.model = HealthCheck(name="model", ok=True, note=note, detail=f"{note}. gate may take 90 tokens <b>")
    ready = await get(own, "/readyz")
    assert (ready.status_code, ready.json()["ready"], ready.json()["notes"]) == (200, True, {"model": note})
    text = (await get(own, "/")).text
    assert '"badge warn">note</span> <a href="/system">Model' in text
    assert f"{note}. gate may take 90 tokens &lt;b&gt;" in text


async def test_a_database_that_takes_nothing_makes_it_not_ready_and_a_page_says_so(tmp_path: Path) -> None:
    async def full(_: object) -> None:
        raise KnowledgeError("the disk is full")

    async with site(tmp_path, empty=True) as made:
        made.db.write = made.db.read = full  # type: ignore[method-assign,assignment]
        ready = await get(made, "/readyz")
        assert (ready.status_code, ready.json()["checks"]["database"]) == (503, False)
        shown = await get(made, "/questions")
        assert (shown.status_code, "the disk is full" in shown.text) == (503, True)
        del made.db.write, made.db.read


async def test_a_page_with_a_bug_costs_the_bot_nothing(own: Site) -> None:
    async def bug(_: int) -> None:
        raise ZeroDivisionError

    own.running.questions.gaps = bug  # type: ignore[method-assign,assignment]
    shown = await get(own, "/gaps")
    assert shown.status_code == 500
    assert "ZeroDivision" not in shown.text
    assert (await get(own, "/knowledge")).status_code == 200


# The address of the page.


async def test_a_port_that_is_taken_is_told_with_what_to_change(page: Site) -> None:
    port = httpx.URL(page.address).port
    assert port is not None
    with pytest.raises(ConfigError) as told:
        async with serve_pages(PageOptions(enabled=True, port=port), page.running):
            pass
    assert str(told.value) == (
        f"page.port: the status page cannot be served at 127.0.0.1:{port} (address already in use);"
        " choose another page.port, or set page.enabled = false"
    )


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
async def test_a_host_that_is_not_this_machine_is_told_with_what_to_change(page: Site, host: str) -> None:
    options = PageOptions(enabled=True, host=host, port=0, token=Secret(TOKEN))
    with pytest.raises(ConfigError, match=rf"page\.host: .* at {host}:0 \(.*\); choose another page\.host"):
        async with serve_pages(options, page.running):
            pass


# Strangers' texts.


@pytest.mark.rest
@pytest.mark.skipif(not STRINGS.exists(), reason="the hostile strings are not at hand")
async def test_no_stranger_s_text_becomes_part_of_a_page(tmp_path: Path) -> None:
    signs = re.compile(r"[<>\"'&\x00-\x08\x80-\x9f\u202a-\u202e\ud800-\udfff]")
    texts = [text for text in strings() if signs.search(text)][::5][:60]
    assert len(texts) > 30

    async def echo(conversation: Conversation) -> AnswerResult:
        text = conversation.messages[-1].text
        cited = (Citation(source_id=SourceId(text), title=text, url=text, quote=text),)
        debug = {text[:80]: {text[:80]: [text]}}
        return AnswerResult(should_reply=True, reply_text=text, citations=cited, debug=debug)

    async with site(tmp_path, texts=texts, answers=echo) as made, made.client() as client:
        plain = [
            tags((await client.get(path)).text)
            for path in ("/gaps", "/review", "/knowledge", "/topics", "/facts", "/nuggets", "/parked")
        ]
        names = re.findall(r'href="(/topics/[^"]+)"', (await client.get("/topics")).text)
        names += [f"{each}/history" for each in names]
        names += re.findall(r'href="(/review/[^"]+)"', (await client.get("/review")).text)
        names += [str(httpx.URL("/knowledge", params={"q": text.encode("utf-8", "replace")})) for text in texts[:20]]
        ids = re.findall(r'href="(/questions/\d+)"', (await client.get("/questions")).text)
        plain += [tags((await client.get(path)).text) for path in [*names, *ids[:15]]]
        token = form_token(await client.get("/ask"))
        for text in texts[:20]:
            fields = {"form_token": token, "question": text.encode("utf-8", "replace").decode() or "?"}
            plain.append(tags((await client.post("/ask", data=fields)).text))
    assert len(plain) > 30
    assert frozenset[str]().union(*plain) <= OURS


OURS = frozenset(
    re.findall(
        r"\w+",
        "a article b blockquote body br button caption code datalist dd del details div dl dt figcaption figure footer"
        " form h1 h2 h3 head header html input ins kbd label li line link main mark meta meter nav ol optgroup option p"
        " pre rect section select small span strong summary svg table tbody td text textarea th thead time title tr ul",
    )
)


_FIXED = [
    ("script", [("src", "/static/page.js"), ("defer", None)]),
    ("img", [("src", "/static/icon.svg"), ("alt", "")]),
]


class _Tags(HTMLParser):
    """The tags of a page; a handler in one, or an address that runs code, counts as a tag."""

    def __init__(self) -> None:
        super().__init__()
        self.met: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if (tag, attrs) not in _FIXED:
            self.met.add(tag)
        for name, value in attrs:
            leads = name in {"href", "src", "action"} and not re.match(r"/|#|https?://", value or "")
            if name.startswith("on") or name == "style" or leads:
                self.met.add(f"{tag} {name}={value}")


def tags(text: str) -> set[str]:
    parser = _Tags()
    parser.feed(text)
    parser.close()
    return parser.met
