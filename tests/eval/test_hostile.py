"""Promise 5 against strings that mean harm: said by the model, asked, taught, written in documents and their names.

A failure names rows and what is wrong with them; the strings themselves are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

import pytest
from anyio import Event, create_task_group, fail_after

from intern.actors.activity import ActivityReporter
from intern.answering.answerer import Answerer
from intern.answering.prompts import (
    CONFIRM,
    DECIDE,
    MAX_LINE,
    AnswerDecision,
    AnsweringOptions,
    Claim,
    Confirmation,
    Quote,
)
from intern.chat.reply_text import reply_parts, thread_name
from intern.core.captures import TopicBlock, Turn
from intern.core.decisions import PairFiled, PairSkipped
from intern.core.errors import SourceError
from intern.core.flow import AnswerRequest, Reply
from intern.core.ids import ConversationId, MessageId, QAId, SourceId
from intern.core.knowledge import IndexEntry
from intern.core.messages import AnswerResult, Citation
from intern.core.text.topic_names import make_topic_name
from intern.runtime.bot import open_sandbox, run_on_discord
from intern.service.text_files import TextFiles
from intern.settings.loading import load_settings
from intern.sources.catalogue import Catalogue
from intern.sources.descriptions import SUMMARIZE_SOURCE, SummarizeIn, SummarizeOut
from intern.sources.options import IndexingOptions
from intern.sources.refresh import RefreshReport, refresh_sources
from intern.sources.source_folder import SourceFolder
from intern.stores.archive import Archive, parse_decisions
from intern.stores.block_format import parse_topic_file
from intern.stores.source_cache import format_index, is_source_id, parse_index
from tests.answering.shelf import Shelf
from tests.double.discord import DiscordDouble
from tests.double.world import Message
from tests.eval.hostile import STRINGS, Attack, attacks, strings
from tests.eval.links import uncited
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import endpoint_double, prompt_of, text_of
from tests.worlds.knowledge import knowledge_in
from tests.worlds.model import ScriptedModel
from tests.worlds.samples import START, answer_request, capture, message

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.rest,
    pytest.mark.skipif(not STRINGS.is_file(), reason="needs the hostile strings, which are not part of the project"),
]

FAQ = Citation(source_id=SourceId("kb:faq.md"), title="FAQ")


# What any reply must keep.


def faults_of(parts: Sequence[str], whole: str, cited: Collection[str] = ()) -> Iterator[str]:
    """Return the faults of the messages of one reply, in words that quote nothing."""
    if not parts:
        yield "nothing to post"
    for part in parts:
        if not part.strip():
            yield "blank"
        if len(part) > 2000:
            yield "too long"
        if uncited(part, cited):
            yield "a link that was not cited"
        if opens_a_fence(part) and not opens_a_fence(whole):
            yield "an open fence"


# What Discord's clients read as code, beside the escapes that they read before it.
_CODE = re.compile(
    r"\\[^0-9A-Za-z\s]|```(?:[a-z0-9_+\-.#]+?\n)?\n*[^\n][\s\S]*?\n*```|(`+)[\s\S]*?[^`]\1(?!`)", re.IGNORECASE
)


def opens_a_fence(text: str) -> bool:
    """Whether a line begins with a fence that nothing closes."""
    return re.search(r"^[ \t]*```", _CODE.sub(".", text), re.MULTILINE) is not None


def name_faults(name: str) -> Iterator[str]:
    """Return the faults of a thread's name."""
    if not 1 <= len(name.strip()) <= len(name) <= 100 or len(name.encode("utf-16-le")) > 200:
        yield "its length"
    if re.search(r"[\x00-\x1f\x7f\u0085\u2028\u2029]", name):
        yield "more than one line"
    if re.search(r"<(?:@[!&]?\d+|#\d+|/[^<>]+:\d+|t:-?\d+|a?:\w+:\d+|id:\w+)|@everyone|@here", name):
        yield "a mention"


def replied(text: str, *citations: Citation) -> Reply:
    return Reply(question=message("Why?"), target="new_thread", text=text, citations=citations)


def rows_with(find: Callable[[str], Iterable[str]]) -> list[tuple[str, str]]:
    """The rows that have a string in which something is found, and what."""
    return sorted({(attack.id, fault) for attack in attacks() for string in attack.strings for fault in find(string)})


def injections() -> set[str]:
    """The strings that are orders to a model, or canaries of these: to refuse one is no fault (finding A14)."""
    return {string for attack in attacks() if attack.category.endswith("injection") for string in attack.strings}


def tangles() -> Iterator[str]:
    """The strings joined at random by what opens and closes markup, some longer than a message."""
    random = Random(20150101)
    joints = ["\n", "\n\n", " ", "\n> ", "\n- ", "\n# ", " ` ", " ``` ", "\n```\n", " ** ", " _ ", "||", "[", "](", ")"]
    for _ in range(400):
        yield "".join(random.choice(strings()) + random.choice(joints) for _ in range(random.randint(2, 12)))


def test_no_string_becomes_a_reply_that_links_is_blank_or_too_long() -> None:
    assert len(attacks()) > 400
    assert rows_with(lambda string: faults_of(reply_parts(replied(string, FAQ)), string)) == []


def test_no_string_does_so_as_the_name_of_a_source() -> None:
    def faults(string: str) -> Iterator[str]:
        source = Citation(source_id=SourceId(f"kb:{string}"), title=string)
        return faults_of(reply_parts(replied("Run it.", source)), "")

    assert rows_with(faults) == []


def test_no_tangle_of_strings_does_so() -> None:
    found = {fault for tangle in tangles() for fault in faults_of(reply_parts(replied(tangle, FAQ)), tangle)}
    assert found == set()


def test_a_link_passes_unharmed_where_its_page_is_cited_and_nowhere_else() -> None:
    def faults(attack: Attack) -> Iterator[str]:
        page = attack.text
        cited_page = Citation(source_id=SourceId(f"kb:{page}"), title="Page", url=page)
        cited = reply_parts(replied(f"It is all here: {page}", cited_page))
        other = reply_parts(replied(f"It is all here: {page}", FAQ))
        if any(page not in uncited(part) for part in cited) or cited[0].count(page) != 2:
            yield "harmed"
        yield from faults_of(cited, "", [page])
        yield from faults_of(other, "")

    assert [(attack.id, fault) for attack in attacks() if attack.is_benign for fault in faults(attack)] == []


def test_every_thread_named_after_a_string_has_an_honest_name() -> None:
    assert rows_with(lambda string: name_faults(thread_name(string))) == []
    assert {fault for tangle in tangles() for fault in name_faults(thread_name(tangle))} == set()


@pytest.mark.parametrize(
    "question", ["@@everyone", "@\u200beveryone", "<\u200b@123>", "<<@1>@2>", "@here@here", "<@@here1>"]
)
def test_no_thread_s_name_is_a_mention_once_something_was_taken_out(question: str) -> None:
    assert list(name_faults(thread_name(question))) == []


# What the answering workflow lets through.


async def answered(model_says: str, url: str | None = None) -> AnswerResult:
    """Return the result if the model's answer is the string, and the document is the string, too."""
    source = f"kb:{url}" if url else "kb:notes.md"
    lines = ("Notes on this matter.", next(iter(model_says.strip().split("\n")))[:MAX_LINE])
    quotes = tuple(Quote(source="S1", line=line) for line in lines)
    claims = (Claim(claim=model_says, quote=1),)
    model = ScriptedModel()
    model.always(DECIDE, AnswerDecision(quotes=quotes, kind="answer", answer=model_says))
    model.always(
        CONFIRM, Confirmation(asked=model_says[:200], told=model_says[:200], verdict="answered", claims=claims)
    )
    shelf = Shelf({source: f"{lines[0]}\n\n{model_says}"}, urls={source: url} if url else {})
    request = answer_request(message("What do the notes say?"), addressed=True)
    options = AnsweringOptions(max_answer_chars=10_000, max_passage_chars=10_000)
    return await Answerer(model, shelf, options).answer(request.conversation, request.context, addressed=True)


async def test_what_the_workflow_lets_through_is_fit_to_post() -> None:
    faults: list[tuple[str, str]] = []
    silent = 0
    for attack in attacks():
        for string in attack.strings:
            result = await answered(string)
            if not result.should_reply:
                silent += string not in injections()
                continue
            assert [citation.source_id for citation in result.citations] == ["kb:notes.md"]
            parts = reply_parts(replied(result.reply_text or "", *result.citations))
            faults += [(attack.id, fault) for fault in faults_of(parts, string)]
    assert faults == []
    assert silent < 0.05 * len(set(strings()) - injections())


async def test_honest_links_come_through_the_workflow() -> None:
    for attack in attacks():
        if attack.is_benign:
            result = await answered(attack.text, url=attack.text)
            parts = reply_parts(replied(result.reply_text or "", *result.citations))
            harmed = any(attack.text not in part for part in parts)
            assert result.should_reply, attack.id
            assert not harmed, attack.id


# The whole bot.


class Parrot:
    """A model that says yes to everything, and answers case n with the nth few strings out of its document.

    A few at a time, for each question costs two calls over a socket; not more than a passage holds.
    """

    FEW = 3

    def __init__(self, extra: str = "") -> None:
        self.cases = ceil(len(strings()) / self.FEW)
        self._extra = extra

    def strings(self, n: int) -> Sequence[str]:
        return strings()[n * self.FEW : (n + 1) * self.FEW]

    def says(self, n: int) -> str:
        return "\n\n".join(self.strings(n)) + self._extra

    def question(self, n: int) -> str:
        return f"What do the notes say (case {n})?"

    def write(self, folder: Path) -> None:
        """The documents that it answers from, so that its links stand in what it quotes."""
        folder.mkdir(parents=True)
        for n in range(self.cases):
            (folder / f"{n}.md").write_text(
                f"# Notes on case {n}\n\nThe notes say:\n\n{self.says(n)}\n", encoding="utf-8", newline=""
            )

    def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        given = text_of(body, "user")
        cases: list[str] = re.findall(r"\(case (\d+)\)", given)
        n = int(cases[-1]) if cases else 0
        shown = re.search(rf"=== (S\d): {n}\.md", given)
        line = {"source": shown[1] if shown else "S1", "line": "The notes say:"}
        told = [{**line, "line": each[:MAX_LINE]} for each in self.says(n).split("\n") if each.strip()][:2]
        replies: dict[str, dict[str, Any]] = {
            "decide": {"quotes": [line, *told], "kind": "answer", "answer": self.says(n), "citations": []},
            "confirm": {"claims": [{"claim": "yes", "quote": 1}], "asked": "", "told": "", "verdict": "answered"},
            "summarize_source": {"description": "\n\n".join(strings()[len(given) % 50 :: 50])},
        }
        return replies[prompt_of(body)]


def settings_for(folder: Path, base_url: str, **discord: Any) -> Any:
    return load_settings(
        environ={},
        overrides={
            "data": {"dir": str(folder)},
            "llm": {"base_url": base_url, "model": "parrot"},
            "ai": {"max_answer_chars": 10_000},
            "discord": {"message_batch_wait_seconds": 0, **discord},
            "kb": {"settle_seconds": 0},
        },
    )


class Waiting(ActivityReporter):
    """Lets a test wait until the index stands and every question had its end."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: set[str] = set()
        self.silences: list[str] = []
        self._changed = Event()
        self._indexed = Event()

    async def until_indexed(self) -> None:
        await self._indexed.wait()

    async def until_ended(self, questions: Collection[str]) -> None:
        while not self.ended.issuperset(questions):
            await self._changed.wait()

    def _end(self, question_id: str) -> None:
        self.ended.add(question_id)
        self._changed.set()
        self._changed = Event()

    def report_answer(self, request: AnswerRequest, result: AnswerResult) -> None:
        super().report_answer(request, result)
        if not result.should_reply:
            self.silences.append(result.reason)
            self._end(request.batch.last.id)

    def report_post(self, reply: Reply, outcome: str) -> None:
        super().report_post(reply, outcome)
        self._end(reply.question.id)

    def report_index_refresh(self, refreshed: RefreshReport) -> None:
        super().report_index_refresh(refreshed)
        self._indexed.set()


AT_A_TIME = 16  # as many as the responder has in work


async def test_the_whole_bot_posts_no_string_that_breaks_a_promise(tmp_path: Path, anyio_backend: str) -> None:
    parrot, clock, events = Parrot(), HandClock(), Waiting()
    sandbox = Sandbox(clock)
    parrot.write(tmp_path / "knowledge-base" / "sources")
    # Each case once, on one backend or the other.
    cases = range(anyio_backend == "trio", parrot.cases, 2)
    asked: dict[MessageId, int] = {}
    with endpoint_double(parrot) as endpoint, fail_after(60):
        async with open_sandbox(settings_for(tmp_path, endpoint.base_url), sandbox, events=events, clock=clock):
            await events.until_indexed()
            for start in range(0, len(cases), AT_A_TIME):
                said = {sandbox.say(f"user{n}", parrot.question(n)).id: n for n in cases[start : start + AT_A_TIME]}
                asked |= said
                await events.until_ended(said)

    faults: list[tuple[int, str]] = []
    threads = sandbox.threads(sandbox.general)
    for thread in threads:
        n = asked[MessageId(thread.id)]
        parts = [said.text for said in sandbox.messages(thread.id)]
        faults += [(n, fault) for fault in (*faults_of(parts, parrot.says(n)), *name_faults(thread.name))]
    assert faults == []
    assert len(threads) + len(events.silences) == len(asked) == len(cases)
    # One of three strings refuses all of a case: an order always, of others one in twenty.
    ordinary = {message_id for message_id, n in asked.items() if not injections().intersection(parrot.strings(n))}
    # A string with markup does not stand in the text of its document any more, so that an answer with it is ungrounded.
    assert len(ordinary - {thread.id for thread in threads}) < 0.2 * len(ordinary), events.silences


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_nothing_pings_when_the_strings_mention_everybody(tmp_path: Path) -> None:
    async with DiscordDouble() as discord:
        pings = f" {discord.bob.mention} <@!{discord.tess.id}> <@&{discord.team_role.id}> @everyone @here"
        parrot, stop, events = Parrot(pings), Event(), Waiting()
        parrot.write(tmp_path / "knowledge-base" / "sources")
        asked: list[Message] = []
        sample = [n for n in range(0, parrot.cases, 10) if (await answered(parrot.says(n))).should_reply]
        with endpoint_double(parrot) as endpoint, fail_after(30):
            door = {"token": discord.token, "rest_url": discord.rest_url, "guild_ids": [discord.guild.id]}
            settings = settings_for(tmp_path, endpoint.base_url, **door)
            async with open_sandbox(settings, Sandbox(HandClock()), events=events):
                await events.until_indexed()
            async with create_task_group() as tg:
                tg.start_soon(partial(run_on_discord, settings, stop=stop))
                await discord.wait_ready()
                for n in sample:
                    member = discord.world.new_member(f"member{n}")
                    asked.append(await discord.say(member, f"{parrot.question(n)} {discord.bot.mention}"))
                for question in asked:
                    await discord.wait_for_answer(question)
                stop.set()

        bodies = [request.body for request in discord.requests if request.method in {"POST", "PATCH"}]
        said = [body for body in bodies if "content" in (body or {})]
        assert len(said) >= len(asked) > 10
        assert [body["allowed_mentions"].get("parse") for body in said] == [[]] * len(said)
        named = [body["allowed_mentions"].get(kind) for body in said for kind in ("users", "roles", "replied_user")]
        assert not any(named)
        assert all(body["flags"] & 4 for body in said)
        assert not any(post.mentions or post.mention_roles or post.mention_everyone for post in discord.said_by_bot())
        assert [fault for thread in discord.threads() for fault in name_faults(thread.name)] == []


# What is kept on disk.


async def test_archive_and_topics_give_back_every_string_exactly(tmp_path: Path) -> None:
    archive = Archive(tmp_path / "raw", clock=HandClock())
    pairs = [archive.append(capture(string, string[::-1], n=n)) for n, string in enumerate(strings())]
    blocks = [block_of(pair.qa_id, pair.timestamp, pair.turns) for pair in pairs[::20]]
    held = await projected(tmp_path, blocks)

    read_again = list(Archive(tmp_path / "raw").pairs_after(None))
    same = read_again == pairs
    assert same
    assert len(list((tmp_path / "raw").iterdir())) == 1
    same = held == blocks
    assert same


async def test_one_conversation_of_all_strings_is_one_block(tmp_path: Path) -> None:
    turns = tuple(Turn("Team" if n % 2 else "User", string) for n, string in enumerate(strings()))
    [block] = await projected(tmp_path, [block_of(QAId("qa_20260201_031056"), START, turns)])
    same = block.turns == turns
    assert same


async def projected(folder: Path, blocks: list[TopicBlock]) -> list[TopicBlock]:
    """Put blocks into one topic; return them as its text file has them, which is as the database has them."""
    paths, name = load_settings(environ={}, overrides={"data": {"dir": str(folder)}}).paths, make_topic_name("hostile")
    async with knowledge_in(folder) as knowledge:
        await knowledge.change(lambda change: change.file_blocks(name, *blocks))
        await TextFiles(knowledge, paths).catch_up()
        parsed = parse_topic_file((paths.topics / "hostile.txt").read_bytes(), file="hostile.txt")
        same = parsed.blocks == knowledge.read_topic(name)
        assert same
        assert parsed.warnings == ()
    return list(parsed.blocks)


def block_of(qa_id: QAId, at: Any, turns: tuple[Turn, ...]) -> TopicBlock:
    return TopicBlock(qa_id=qa_id, timestamp=at, turns=turns, conversation_id=ConversationId("reply_1"), answered_at=at)


def test_every_string_is_a_slug_or_no_topic() -> None:
    names: set[str] = set()
    for string in strings():
        with suppress(ValueError):
            names.add(make_topic_name(string))
    assert len(names) > 100
    strange = [name for name in names if not re.fullmatch(r"[a-z0-9-]{1,64}", name)]
    assert len(strange) == 0


async def test_a_string_as_reason_keeps_to_its_decision(tmp_path: Path) -> None:
    paths = load_settings(environ={}, overrides={"data": {"dir": str(tmp_path)}}).paths
    decisions: list[PairSkipped | PairFiled] = [
        *(PairSkipped(qa_id=QAId("qa_20260201_031056"), at=START, reason=string) for string in strings()[::4]),
        PairFiled(qa_id=QAId("qa_20260201_031057"), at=START, topic=make_topic_name("last")),
    ]
    async with knowledge_in(tmp_path) as knowledge:
        await knowledge.change(lambda change: change.decide(*decisions))
        await TextFiles(knowledge, paths).catch_up()
        for read in knowledge.read_decisions(), parse_decisions(paths.decisions.read_bytes(), "")[0]:
            same = read == decisions
            assert same


def test_no_string_forges_an_entry_of_an_index() -> None:
    forgery = "\n\nkb:forged.md\nForged.\n\n"
    honest = [IndexEntry(SourceId(f"kb:{n}.md"), string + forgery + string) for n, string in enumerate(strings())]
    told = parse_index(format_index(honest))
    assert sorted(entry.source_id for entry in told) == sorted(entry.source_id for entry in honest)
    named = [IndexEntry(SourceId(f"kb:{string}"), "About it.") for string in strings()]
    same = {entry.source_id for entry in parse_index(format_index(named))} == {
        entry.source_id for entry in named if is_source_id(entry.source_id)
    }
    assert same


async def test_files_named_by_strings_are_indexed_as_what_they_are_or_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "sources"
    folder.mkdir()
    made = 0
    for string in strings():
        name = f"{string}.md".encode()
        if b"/" not in name and len(name) <= 255:
            (folder / name.decode()).write_text(string, encoding="utf-8")
            made += 1
    scan = SourceFolder(folder, 10_000).scan()
    assert len(scan.files) + len(scan.skipped) == made > 250

    def described(given: SummarizeIn) -> SummarizeOut:
        return SummarizeOut(description=f"--- QA ---\n\nkb:forged.md\n{given.source_id}\n\nteam:forged.txt\nIt is.")

    model = ScriptedModel()
    model.always(SUMMARIZE_SOURCE, described)
    async with knowledge_in(tmp_path) as knowledge:
        catalogue = Catalogue(knowledge, "kb")
        await refresh_sources(model, SourceFolder(folder, 10_000), catalogue, IndexingOptions())
        listed = {entry.source_id for entry in parse_index(format_index(catalogue.entries().values()))}
    same = listed == {f"kb:{file.rel_path}" for file in scan.files}
    assert same


def test_no_string_as_a_path_is_read_from_outside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "sources" / "below").mkdir(parents=True)
    (tmp_path / "secret.md").write_text("secret")
    folder = SourceFolder(tmp_path / "sources" / "below", 10_000)
    read: list[str] = []
    for string in (*strings(), "../../secret.md", str(tmp_path / "secret.md"), "..\\..\\secret.md"):
        for path in (string, f"{string}.md", f"{string}/../../secret.md"):
            try:
                folder.read(path)
            except SourceError:
                continue
            read.append(path)
    assert len(read) == 0
