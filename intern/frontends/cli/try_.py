"""`intern try`."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from difflib import get_close_matches
from importlib.resources import as_file, files
from mimetypes import guess_type
from pathlib import Path
from shutil import which
from typing import NamedTuple

import click
from anyio import Event, move_on_after
from msgspec.structs import replace

from intern.core.captures import CapturedPair
from intern.core.clock import SystemClock
from intern.core.decisions import Decision, PairFiled
from intern.core.errors import ConfigError, ModelError
from intern.core.flow import AnswerRequest, Batch, QuestionDeclined, Reply
from intern.core.ids import MessageId
from intern.core.log import configure_logging
from intern.core.messages import MOST_FILE_BYTES, AnswerResult, Attachment, ChatMessage
from intern.core.progress import send_progress_to
from intern.core.tasks import open_task_group
from intern.frontends.cli.options import folder_overrides, read_settings, run_work
from intern.frontends.cli.output import INTERRUPTED, ProgressLine, printable, say
from intern.frontends.cli.terminal import Keyboard, TypedMessage, say_wrapped, write_lines
from intern.frontends.wording import explain_silence
from intern.runtime.bot import ActivityReporter, Sandbox, open_sandbox
from intern.service import Settings
from intern.service.job_kinds import RefreshReport
from intern.service.topics import open_topics

_TEAM_MEMBER = "mira"
_OWN = ("index_path", "index_cache_path", "team_raw_dir", "team_topics_dir", "team_index_path", "team_index_cache_path")
_IN_FOLDER = dict.fromkeys((*_OWN, "qa_raw_last_processed_id"), "")
_PATIENCE = 120.0  # seconds; a model on a slow machine takes its time


@click.command("try")
@click.argument("docs", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--play", is_flag=True, help="Play a short scene and end.")
@click.option("--page", is_flag=True, help="Serve the status page, too; the first line says where.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Keep what is learned in this folder.")
def try_(docs: Path | None, *, play: bool, page: bool, data: Path | None) -> None:
    """Try the whole bot in the terminal, without Discord.

    DOCS is a folder with your documents; without it, those in the --data folder serve, or else a bundled sample.
    Without an endpoint in the settings, no model is used: answers are quotes. With one, the first lines say which model
    answers; if none does, why, and which server of this machine could. Type `alice: how do I …?` as a member, `@mira:
    …` as the team (a reply to the last question), or /help.

    Exit code 0: done. 1: the scene of --play did not go as it should. 2: a setting is wrong. 3: the folder of --data is
    in use. 130: stopped by Ctrl-C.
    """
    with _open_folders(docs, data) as (sources, folder):
        settings = read_settings(_overrides(sources, folder, play=play, page=page), logs=True)
        if settings.llm.kind == "endpoint":
            settings.require_model()
        with _redirect_log(settings, folder / "try.log", kept=data is not None):
            code = run_work(_play if play else _interact, settings)
        sys.exit(code)


@contextmanager
def _redirect_log(settings: Settings, path: Path, *, kept: bool) -> Generator[None]:
    """Write log lines to a file instead of the chat; say afterwards whether there are warnings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as log:
        before = path.stat().st_size
        configure_logging(log_format="json", level=settings.log.level, secrets=settings.secrets, stream=log)
        try:
            yield
        finally:
            configure_logging(log_format=settings.log.format, level=settings.log.level, secrets=settings.secrets)
    if path.stat().st_size > before:
        say(f"warnings were logged to {path}" if kept else "warnings were logged; read them with: --data FOLDER")


@contextmanager
def _open_folders(docs: Path | None, data: Path | None) -> Generator[tuple[Path, Path]]:
    """Yield the folder of documents, and the one that the bot writes to."""
    with tempfile.TemporaryDirectory(prefix="intern-") as temporary:
        folder = data or Path(temporary)
        of_folder = folder / "knowledge-base" / "sources"
        if docs is not None or of_folder.is_dir():
            yield docs or of_folder, folder
            return
        packaged = files("intern") / "_sample"
        if packaged.is_dir():
            with as_file(packaged) as sample:
                yield sample, folder
            return
        in_tree = Path(__file__).parents[3] / "sample"
        if not in_tree.is_dir():
            raise ConfigError("the sample documents are missing from this installation; name a folder with documents")
        yield in_tree, folder


def _overrides(sources: Path, folder: Path, *, play: bool, page: bool) -> dict[str, dict[str, object]]:
    return {
        **folder_overrides(str(folder)),
        # People in a terminal do not wait for a quiet window.
        "discord": {"message_batch_wait_seconds": 0.0 if play else 0.5},
        # No other setting may write outside of the folder.
        "kb": {**_IN_FOLDER, "sources_dir": str(sources), "settle_seconds": 0.1},
        "log": {"level": "warning"},
        "page": {"enabled": page},
    }


class _SceneEvents(ActivityReporter):
    """The margin of the transcript, and the moments at which the next line may come."""

    def __init__(self) -> None:
        super().__init__()
        self.why = "there was no question yet"
        self._moments: dict[str, Event] = {}

    @contextmanager
    def expect(self, *moments: str) -> Generator[Callable[[], Awaitable[object]]]:
        """Watch for the given moments; the result can be awaited until one of them has come."""
        event = Event()
        mine = dict.fromkeys(moments, event)
        self._moments.update(mine)
        yield event.wait
        for moment in mine:
            self._moments.pop(moment, None)

    def _reach(self, moment: str) -> None:
        if moment in self._moments:
            self._moments[moment].set()

    def report_ignored_batch(self, batch: Batch) -> None:
        super().report_ignored_batch(batch)
        if batch.author.type == "bot":
            return
        self.why = "the message was not for the bot"
        _print_note("not for the bot")
        self._reach("done")

    def report_answer(self, request: AnswerRequest, result: AnswerResult) -> None:
        super().report_answer(request, result)
        self.why = explain_silence(result.reason)
        if not result.should_reply:
            _print_note(f"stays silent: {self.why}")

    def report_decline(self, declined: QuestionDeclined) -> None:
        super().report_decline(declined)
        self.why = explain_silence(declined.reason)
        _print_note(f"declined: {self.why}")

    def report_no_reply(self, request: AnswerRequest) -> None:
        super().report_no_reply(request)
        self._reach("done")

    def report_post(self, reply: Reply, outcome: str) -> None:
        super().report_post(reply, outcome)
        self._reach("done")

    def report_capture(self, pair: CapturedPair) -> None:
        super().report_capture(pair)
        _print_note(f"captured as {pair.qa_id}")

    def report_decision(self, decision: Decision) -> None:
        super().report_decision(decision)
        if isinstance(decision, PairFiled):
            _print_note(f"filed under the topic {decision.topic}")
        else:
            _print_note(f"{decision.__struct_config__.tag}: {decision.reason}")
            self._reach("learned")

    def report_index_refresh(self, refreshed: RefreshReport) -> None:
        super().report_index_refresh(refreshed)
        topics = [source_id for source_id in refreshed.changed if source_id.startswith("team:")]
        for source_id in topics:
            _print_note(f"index updated: {source_id}")
        self._reach("indexed")
        if topics or any(owed.source_id.startswith("team:") for owed in refreshed.pending):
            self._reach("learned")


class _SceneLine(NamedTuple):
    speaker: str
    text: str
    files: tuple[Attachment, ...] = ()


_STAGE = (
    _SceneLine("alice", "How do I change the port that the relay listens on?"),
    _SceneLine(
        "bob", "Since the relay runs on a Raspberry Pi, agents are rejected with `clock skew too large`. Any ideas?"
    ),
    _SceneLine(
        _TEAM_MEMBER,
        "A Raspberry Pi has no battery-backed clock, so after a power cut its time is wrong until NTP has run. Install "
        "chrony, run `chronyc makestep`, then `lumen-relay agents reset-skew`. The agents come back within a minute.",
    ),
    _SceneLine("carol", "My agents get rejected because of clock skew after the Pi lost power. What can I do?"),
)


async def _play(settings: Settings) -> int:
    """Play the scene of the README. Return 0 if everything that it promises was seen."""
    scene, sandbox = _SceneEvents(), Sandbox(SystemClock(), team={_TEAM_MEMBER})
    click.secho("#general, on a server that exists only in this terminal\n", bold=True)
    async with _run_bot(settings, sandbox, scene):
        documented, unknown, lesson, again = _STAGE
        first = await _ask(documented, sandbox, scene)
        silent = await _ask(unknown, sandbox, scene)
        await _teach(lesson, sandbox.messages(sandbox.general)[-1].id, sandbox, scene)
        second = await _ask(again, sandbox, scene)
    shown = ("kb:" in first, silent == "", "team:" in second)
    if all(shown):
        # `make demo` starts a program that is not on the PATH.
        started = sys.argv[0] if sys.argv[0].endswith("/intern") and not which("intern") else "intern"
        say(f"\nThat was all of it. Now with your own documents: {started} try FOLDER")
        say("Add --page to see the status page beside it.")
        return 0
    say("\nintern: the scene did not go as it should; with a model, try again or look at the settings")
    return 1


_HELP = f"""\
alice: How do I …?   a member asks; a new name is a new member
/file PATH           attach a text file, such as a log, to the next message
How do I …?          the member whose name the prompt shows (on a terminal)
@{_TEAM_MEMBER}: …             the team replies to the last question, and the bot learns
/topics              what was learned from the team
/why                 why the last question was answered, or not
/quit                end; Ctrl-D and Ctrl-C do that, too
On a terminal, ↑ and ↓ recall what you typed. A pasted block is one message."""
_COMMANDS = ("/file", "/help", "/topics", "/why", "/quit")
_NAMED = re.compile(r"(@?[^\W\d][\w.-]{0,31}):(?:\s+|$)")
# They begin lines of logs and compilers, and addresses.
_NO_NAMES = (
    *("caused", "critical", "debug", "error", "failed", "fatal", "file", "help", "hint", "http", "https", "info"),
    *("note", "panic", "todo", "traceback", "warn", "warning"),
)


async def _interact(settings: Settings) -> int:
    scene, sandbox, keyboard = _SceneEvents(), Sandbox(SystemClock(), team={_TEAM_MEMBER}), Keyboard()
    # The page answers gaps in the name of a team member.
    team = replace(settings.discord, team_member_ids=(sandbox.author(_TEAM_MEMBER).id,))
    settings = replace(settings, discord=team)
    say_wrapped(f"alice: …  asks as a member;  @{_TEAM_MEMBER}: …  replies as the team;  /help")
    async with _run_bot(settings, sandbox, scene):
        chat = _TerminalChat(settings, sandbox, scene, keyboard)
        try:
            while (typed := await keyboard.read(chat.member)) is not None and typed.text != "/quit":
                if typed.text:
                    await chat.handle(typed)
        except KeyboardInterrupt:  # the key, at the prompt; elsewhere it is a signal
            return INTERRUPTED
    return 0


class _TerminalChat:
    """The people at one keyboard."""

    def __init__(self, settings: Settings, sandbox: Sandbox, scene: _SceneEvents, keyboard: Keyboard) -> None:
        self._settings, self._sandbox, self._scene = settings, sandbox, scene
        self._is_terminal = keyboard.is_terminal
        self.member = "alice"
        """Says what is typed without a name."""
        self._members = {self.member}
        self._question: MessageId | None = None
        self._files: tuple[Attachment, ...] = ()
        """They go with the next message."""

    async def handle(self, typed: TypedMessage) -> None:
        """Run a typed command, or post a typed message."""
        if typed.text.startswith("/file "):
            self._attach(typed.text.removeprefix("/file ").strip())
            return
        if re.fullmatch(r"/[A-Za-z]+", typed.text):
            self._command(typed.text.lower())
            return
        speaker, text = self._split_speaker(typed)
        if not text or not speaker.strip("@"):
            if not self._is_terminal:
                say("write  NAME: what they say")
            return
        if not speaker.startswith("@"):
            line = _SceneLine(speaker, text, self._take_files())
            await _ask(line, self._sandbox, self._scene, echo=self._is_terminal)
            self._question = self._sandbox.messages(self._sandbox.general)[-1].id
        elif speaker.strip("@ ") != _TEAM_MEMBER:
            say(f"the team is @{_TEAM_MEMBER} here")
        elif self._question is None:
            say("there is no question that the team could reply to")
        else:
            line = _SceneLine(_TEAM_MEMBER, text, self._take_files())
            await _teach(line, self._question, self._sandbox, self._scene, echo=self._is_terminal)

    def _attach(self, name: str) -> None:
        path, stat = Path(name.strip("'\"")), None
        with suppress(OSError, RuntimeError, ValueError):  # a long name, an unknown home, a NUL
            path = path.expanduser().resolve()
            stat = path.stat()
        if stat is None or not path.is_file():
            say(f"there is no file {printable(str(path))}")
            return
        url, kind, size = path.as_uri(), guess_type(path.name)[0], stat.st_size
        self._files += (
            Attachment(id=f"{url}?{stat.st_mtime_ns}", filename=path.name, url=url, size=size, content_type=kind),
        )
        only = "" if size <= MOST_FILE_BYTES else f", by its name only: it has more than {MOST_FILE_BYTES // 1024} kB"
        say(f"{printable(path.name)} goes with the next message{only}")

    def _take_files(self) -> tuple[Attachment, ...]:
        """Take the files for a message that is said now."""
        files, self._files = self._files, ()
        return files

    def _command(self, command: str) -> None:
        match command:
            case "/file":
                say("write  /file PATH")
            case "/why":
                say(self._scene.why)
            case "/topics":
                _show_topics(self._settings)
            case "/help":
                say_wrapped(_HELP)
            case _:
                near = get_close_matches(command, _COMMANDS, n=1)
                say(f"there is no {command}; " + (f"did you mean {near[0]}?" if near else "/help lists the commands"))

    def _split_speaker(self, typed: TypedMessage) -> tuple[str, str]:
        """Return who speaks, with an @ for the team, and what they say."""
        if not self._is_terminal:
            speaker, _, text = typed.text.partition(":")
            return speaker.strip(), text.strip()
        named = _NAMED.match(typed.text)
        if named is None or not self._is_name(named[1], pasted=typed.pasted):
            return self.member, typed.text
        if not named[1].startswith("@"):
            self.member = named[1]
            self._members.add(self.member)
        return named[1], typed.text[named.end() :]

    def _is_name(self, name: str, *, pasted: bool) -> bool:
        """Return whether it is the name of a member or of the team. Pasted text introduces no new ones."""
        known = name in self._members or name == f"@{_TEAM_MEMBER}"
        return known or not (pasted or name.lower() in _NO_NAMES)


@asynccontextmanager
async def _run_bot(settings: Settings, sandbox: Sandbox, scene: _SceneEvents) -> AsyncGenerator[None]:
    """Run the bot, and yield once its documents are indexed. No progress is shown after that."""
    line = ProgressLine(sys.stderr)
    beside = None
    if settings.page.enabled:
        from intern.frontends.http.server import create_page_service  # aiohttp.web and Prometheus cost half a second

        beside = create_page_service(settings, tell=lambda address: say_wrapped(f"the page: {address}"))
    async with open_task_group() as tg:
        if settings.llm.kind == "endpoint":
            tg.start_soon(_introduce_model, settings, line)
        with scene.expect("indexed") as indexed, send_progress_to(line):
            async with open_sandbox(settings, sandbox, events=scene, beside=beside):
                await indexed()
                line.end()
                yield
        tg.cancel_scope.cancel()


async def _introduce_model(settings: Settings, line: ProgressLine) -> None:
    """Print which model answers; or why it does not, and which servers of this machine could."""
    from intern.service.model_servers import find_local_servers, ping_model

    try:
        said, found = f"{await ping_model(settings.llm, 'llm')} answers", []
    except ModelError as error:
        said, found = f"no model answers: {error}; `intern doctor` says more", await find_local_servers()
    line.clear()
    say_wrapped(said)
    for server in found:
        model = server.models[0]
        say_wrapped(f"{server.name} answers here; to use it, put into intern.toml:")
        say_wrapped(server.settings_for(model.id or model.name))


async def _ask(line: _SceneLine, sandbox: Sandbox, scene: _SceneEvents, *, echo: bool = True) -> str:
    """Let a member ask, show the outcome, and return the bot's answer; empty if it stays silent."""
    seen = len(sandbox.posts())
    if echo:
        _print_line(line)
    with scene.expect("done") as done:
        sandbox.say(line.speaker, line.text, attachments=line.files)
        await _wait_in_time(done)
    posts = sandbox.posts()[seen:]
    for post in posts:
        _show_post(post, sandbox)
    click.echo()
    return "\n".join(post.text for post in posts)


async def _teach(
    line: _SceneLine, question: MessageId, sandbox: Sandbox, scene: _SceneEvents, *, echo: bool = True
) -> None:
    """Let the team reply to a question, and wait until the bot has learned from it."""
    if echo:
        _print_line(line, note=" (team, replying)")
    with scene.expect("learned", "done") as learned:
        sandbox.say(line.speaker, line.text, reply_to=question, attachments=line.files)
        await _wait_in_time(learned)
    click.echo()


async def _wait_in_time(moment: Callable[[], Awaitable[object]]) -> None:
    with move_on_after(_PATIENCE) as patience:
        await moment()
    if patience.cancelled_caught:
        say(f"intern: nothing came of it within {_PATIENCE:.0f} seconds")


def _show_topics(settings: Settings) -> None:
    topics = open_topics(settings)
    names = [topic.name for topic in topics.list_all() if topic.blocks]
    for name in names:
        click.echo(name)
        for block in topics.read(name).blocks:
            question, *_ = *block.turns[0].text.splitlines(), ""
            click.echo(f"  {block.qa_id}  {printable(question)}")
    if not names:
        say("nothing was learned yet")


def _print_line(line: _SceneLine, note: str = "") -> None:
    styled = click.style(line.speaker, fg="yellow" if note else "cyan", bold=True) + click.style(note, dim=True)
    write_lines(f"{line.speaker}{note}: ", printable(line.text), shown=f"{styled}: ", below="  ")


def _show_post(post: ChatMessage, sandbox: Sandbox) -> None:
    thread = next((place for place in sandbox.threads() if place.id == post.channel_id), None)
    if thread is not None:
        write_lines("    ", f"in the thread “{printable(thread.name)}”", dim=True)
    write_lines("    intern │ ", printable(post.text), fg="green")


def _print_note(note: str) -> None:
    write_lines("    · ", note, below="      ", dim=True)
