"""Two communities in one process: all that one shows or stores is searched for words planted in the other."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from inspect import iscoroutinefunction, isfunction, signature
from pathlib import Path
from typing import Any

import anyio
import apsw
import pytest
from anyio import Event, fail_after
from anyio.to_thread import run_sync
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from intern.core import flow
from intern.core.decisions import PairFiled
from intern.core.errors import ConfigError
from intern.core.ids import MessageId
from intern.core.messages import AnswerResult, Image
from intern.core.text.secret_values import Secret
from intern.facts.prompts import ExtractIn, ExtractOut
from intern.frontends.http.server import create_metrics
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.runtime.bot import _LocalFiles, _NoCommands
from intern.runtime.hosting import build_communities
from intern.runtime.parts import open_community_parts
from intern.runtime.resources import FrontEndHooks, open_process_resources
from intern.service.community_registry import build_community, open_registry
from intern.service.hosting_state import HostingState
from intern.service.models import Models, open_models
from intern.service.opening import open_intern
from intern.service.questions import QuestionFilter
from intern.service.server_setup import ServerSetup
from intern.service.sources import open_sources
from intern.service.status import read_status
from intern.service.status_page import StatusPage
from intern.settings.loading import load_settings
from intern.sources.refresh import RefreshReport
from intern.stores.engines.sqlite.database import SqliteTransaction
from intern.stores.tables.communities import CommunityStore
from intern.stores.tables.facts import FactFilter
from tests.facts.test_distilling import fact, nugget
from tests.worlds import samples
from tests.worlds.actors import finishing
from tests.worlds.bot import Watching
from tests.worlds.chat import Town
from tests.worlds.clock import HandClock
from tests.worlds.settings import OFFLINE, WORDS_ALONE, make_settings

pytestmark = [pytest.mark.parametrize("anyio_backend", ["asyncio"])]

PLANTED = ("zanzibork", "quuxolotl", "vermilith")
"""In a document, in a question, and in the team's answer to it."""
TABLES = ("documents", "blocks", "decisions", "sources", "answers", "facts", "nuggets", "recordings")


class Listening:
    """A model that records its questions and its replies."""

    def __init__(self, model: Model, said: list[str]) -> None:
        self._model, self._said = model, said

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        self._said.append(repr(given))
        reply = learned(given) if isinstance(given, ExtractIn) else await self._model.ask(prompt, given, images=images)
        self._said.append(repr(reply))
        return reply


def learned(given: ExtractIn) -> Any:
    """Make a nugget and a fact of a conversation that has a planted word."""
    if PLANTED[2] not in given.transcript:
        return ExtractOut(nuggets=(), facts=())
    answer = f"The {PLANTED[1]} is reset by {PLANTED[2]}."
    return ExtractOut(nuggets=(nugget(answer),), facts=(fact(answer),))


class Two:
    """Two communities at work, with all results of each, in words."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, HandClock()
        self.town = Town(self.clock, team={"mira"})
        self.said: dict[str, list[str]] = {"one": [], "other": []}
        self.events = {"one": Watching(), "other": Watching()}
        self.metrics = create_metrics(load_settings(environ={}))
        self.pages: dict[str, StatusPage] = {}
        self.places: dict[str, Any] = {}

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        defaults = self.defaults = make_settings(
            self.folder,
            llm=OFFLINE,
            embeddings=WORDS_ALONE,
            discord={"message_batch_wait_seconds": 0},
            kb={"settle_seconds": 0},
        )
        documents = {"one": (PLANTED[0], f"The {PLANTED[0]} port is 7480."), "other": ("spool", "It is in /var/spool.")}
        for name, (title, text) in documents.items():
            sources = self.folder / "communities" / name / "knowledge-base/sources"
            await run_sync(partial(sources.mkdir, parents=True))
            await run_sync((sources / f"{title}.md").write_text, f"# Ports\n\n{text}\n")
        stop = Event()
        async with open_process_resources(defaults, self.clock) as host:
            chat = build_communities(
                lambda _: host, defaults, self.town, _NoCommands(), _LocalFiles(), parts=self._parts
            )
            for name in self.said:
                guild_id, self.places[name] = self.town.add_server()
                known, _ = await CommunityStore(host.db, clock=self.clock).add_server(guild_id, name)
                await chat.add(build_community(known))
            async with finishing(partial(chat.run, stop=stop)):
                await self.town.wait_ready()
                yield
                stop.set()

    @asynccontextmanager
    async def _parts(self, host: Any, name: str, settings: Any, platform: Any, **_: Any) -> AsyncGenerator[Any]:
        @asynccontextmanager
        async def models(*given: Any) -> AsyncGenerator[Models]:
            async with open_models(*given, shared=host.shared, party=name) as opened:
                answering, learning = (Listening(each, self.said[name]) for each in (opened.answering, opened.learning))
                yield opened._replace(answering=answering, learning=learning)

        @asynccontextmanager
        async def serving(running: StatusPage | HostingState) -> AsyncGenerator[None]:
            assert isinstance(running, StatusPage)
            self.pages[name] = running
            yield

        how: dict[str, Any] = {"models": models, "beside": FrontEndHooks(self.metrics, serving)}
        async with open_community_parts(host, name, settings, platform, events=self.events[name], **how) as parts:
            yield parts

    async def ask(self, name: str, question: str) -> MessageId:
        events = self.events[name]
        before = len(events.all_of(AnswerResult))
        asked = self.town.say("bob", f"@intern {question}", channel_id=self.places[name])
        await events.one_of(AnswerResult, after=before)
        return asked.id

    async def shown(self, name: str) -> str:
        """Return all that a community shows or stores, except the names of its own files."""
        page = self.pages[name]
        views: list[Any] = [self.events[name].told, self.metrics.text(await page.gauges())]
        given = {"offset": 0, "length": 14, "gaps": 1, "most": 20, "wanted": QuestionFilter(), "now": self.clock.now()}
        subjects = (page.topics, page.captures, page.facts, page.sources, page.figures, page.questions)
        for part in (page, *subjects):
            for view in sorted(name for name in dir(type(part)) if not name.startswith("_")):
                method = getattr(type(part), view)
                if isfunction(method):
                    wanted = [each for each in signature(method).parameters.values() if each.name != "self"]
                    if all(each.default is not each.empty or each.name in given for each in wanted):
                        arguments = [part, *(given[n.name] for n in wanted if n.default is n.empty)]
                        waits = iscoroutinefunction(method)
                        views.append(await (method(*arguments) if waits else run_sync(method, *arguments)))
        names = [each.name for each in page.topics.list_all()]
        views += [view(name) for name in names for view in (page.topics.read_page, page.topics.list_changes)]
        views += [page.topics.read(name) for name in names]
        assert len(views) >= 25
        unknown: Any = "00000000-0000-0000-0000-000000000000"
        for look in (page.topics.read_page, page.topics.list_changes, page.facts.read_page, page.facts.read_nugget):
            with pytest.raises(ConfigError) as refused:
                await look(unknown)  # type: ignore[misc]
            views.append(refused.value)
        views += [await page.search.find_page("How do I reset it?", None), await page.questions.format_gaps()]
        guild = next(each.guild_id for each in self.town._channels.values() if each.id == self.places[name])
        posts = [each for each in self.town.posts() if each.guild_id == guild]
        views += [view async for view in self._told(name)]
        return "\n".join([*map(repr, views), *map(repr, posts), *self.said[name], *await run_sync(self._kept, name)])

    async def _told(self, name: str) -> AsyncGenerator[Any]:
        """Yield the output of commands about a community, by operators and on its server."""
        copy = self.folder / f"copy-{name}"
        async with open_registry(self.defaults, clock=self.clock) as registry:
            yield await registry.show(name)
            await registry.export(name, copy)
            settings, setup = await registry.settings(name), ServerSetup(registry, name, self.clock)
            for kind in (flow.SetupCommand, flow.StatusCommand):
                ticket = flow.InteractionTicket(
                    id="1", token=Secret("t"), application_id="2", guild_id=None, channel_id=self.places[name]
                )
                yield await setup(kind(interaction=ticket, user=samples.author(), manages=True))
        yield await run_sync(
            lambda: (read_status(settings, clock=self.clock), open_sources(settings, self.clock).list_all())
        )
        async with open_intern(settings, clock=self.clock) as intern:
            yield [await intern.entries(), await intern.explain(), await intern.facts.list_nuggets()]
            yield await intern.facts.list_all(FactFilter(active=None, secret=True), 9)
        for path in copy.rglob("*.*"):
            yield await run_sync(path.read_text)

    def _kept(self, name: str) -> list[str]:
        return [*self._rows(name), *self._files(name)]

    def _rows(self, name: str) -> Iterator[str]:
        db: Any = apsw.Connection(str(self.folder / "intern.db"))
        for (table,) in db.execute("select name from sqlite_schema where type = 'table'").fetchall():
            columns = {each for _, each, *_ in db.execute(f"pragma table_info({table})")}
            if "community" in columns:
                yield from map(repr, db.execute(f"select * from {table} where community = ?", (name,)))
        db.close()

    def _files(self, name: str) -> Iterator[str]:
        for path in (self.folder / "communities" / name).rglob("*"):
            if path.is_file():
                yield path.read_bytes().decode("utf-8", "replace")


async def lived(two: Two) -> tuple[str, str]:
    """Let both communities learn and answer; return all that each of them shows."""
    with fail_after(60):
        async with two.at_work():
            here = two.places["one"]
            asked = two.town.say("bob", f"How do I reset the {PLANTED[1]}?", channel_id=here)
            two.town.say("mira", f"Run {PLANTED[2]} --reset on it.", channel_id=here, reply_to=asked.id)
            await two.events["one"].one_of(PairFiled)
            await two.events["one"].one_of(RefreshReport, after=1)
            for question in (f"How do I reset the {PLANTED[1]}?", "Which port is it?"):
                await two.ask("one", question)
            for question in ("How do I reset it?", "Which port is it?", "Where is the spool?"):
                await two.ask("other", question)
            while not (await two.pages["one"].facts.list_page()).rows:  # noqa: ASYNC110 the extractor sets no events
                await anyio.sleep(0.01)
            for page in two.pages.values():  # else they are stored within a second
                await page.stores.recorder.store()
            return await two.shown("one"), await two.shown("other")


async def test_words_of_one_community_are_in_nothing_of_the_other(tmp_path: Path) -> None:
    with capture_logs(processors=[merge_contextvars]) as log:
        one, other = await lived(Two(tmp_path))
    for word in PLANTED:
        assert word in one
        assert word not in other
    assert {line["community"] for line in log} == {"one", "other"}, "each line names its community"
    assert not [line for line in log if line["community"] == "other" and any(word in repr(line) for word in PLANTED)]


@pytest.mark.parametrize("table", [TABLES[0], *(pytest.param(each, marks=pytest.mark.rest) for each in TABLES[1:])])
async def test_a_filter_that_is_forgotten_is_seen(tmp_path: Path, monkeypatch: Any, table: str) -> None:
    rows = SqliteTransaction.rows

    def unfiltered(self: SqliteTransaction, statement: str, values: Any = ()) -> Any:
        if statement.startswith("select") and re.search(rf"\b(?:from|join) {table}\b", statement):
            statement = re.sub(
                r"where (\w+\.)?community = :community", r"where \1community <> :community || 'x'", statement
            )
        return rows(self, statement, values)

    monkeypatch.setattr(SqliteTransaction, "rows", unfiltered)
    _, other = await lived(Two(tmp_path))
    assert any(word in other for word in PLANTED)
