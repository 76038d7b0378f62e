"""The stories of the frozen checks, each in a folder of its own, recorded in golden texts.

A story runs command lines and looks at files. It uses nothing that is inside of the program.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sqlite3
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.frozen import community
from tests.frozen.normalising import WRITTEN_AT, Normaliser, readable
from tests.frozen.running import Ended, Shell, shell, start

_GIVEN: Final = Path(__file__).with_name("given")
_IMPORT: Final = ("exports/help.json", "exports/thread.json", "--team-role-id", community.TEAM_ROLE)
_NO_TEXT: Final = (".db", ".db-wal", ".db-shm", ".zip", ".lock")


class Scene:
    """A working folder with a shell, and the texts that are told of it."""

    def __init__(self, folder: Path, terminal: Shell, normaliser: Normaliser) -> None:
        self.folder = folder
        self.texts: dict[str, str] = {}
        self._shell = terminal
        self._normaliser = normaliser

    def run(self, name: str, *commands: str) -> str:
        """Run command lines, tell all they print in the text `name`, and return what the last one wrote to stdout."""
        done = Ended(0, "", "")
        for line in commands:
            done = self._shell.run(*shlex.split(line))
            self._tell(name, line, done)
        return done.out

    def run_cold(self, name: str, line: str) -> None:
        """Run a command line as a process of its own from the beginning."""
        self._tell(name, line, start(self.folder, *shlex.split(line)))

    def look(self, name: str, *paths: str) -> None:
        """Tell all text files below these paths, each with its name."""
        found = sorted(file for path in paths for file in _files(self.folder / path))
        for file in found:
            text = readable(file.read_bytes().decode())
            self._add(name, f"=== {file.relative_to(self.folder).as_posix()}\n{text}")

    def keep_digests(self, path: str) -> None:
        """Keep the digests of a file as they are: they depend on nothing that a run changes."""
        self._normaliser.keep_digests((self.folder / path).read_text(encoding="utf-8"))

    def look_into_database(self, name: str, database: str) -> None:
        """Tell a database's version, schema and numbers of rows."""
        with closing(sqlite3.connect(self.folder / database)) as opened:
            [[version]] = opened.execute("pragma user_version")
            schema = opened.execute("select type, name, sql from sqlite_master where sql is not null order by name")
            rows = [(kind, table, sql) for kind, table, sql in schema if not table.startswith("sqlite_")]
            full_text = tuple(table for _, table, sql in rows if sql.lower().startswith("create virtual"))
            for kind, table, sql in rows:
                if kind != "table" or table in full_text:
                    self._add(name, f"=== {kind} {table}\n{sql}\n")
                elif not table.startswith(tuple(f"{each}_" for each in full_text)):  # those are SQLite's own
                    [[counted]] = opened.execute(f'select count(*) from "{table}"')
                    self._add(name, f"=== {kind} {table}: {counted} rows\n{sql}\n")
        self._add(name, f"=== version {version}\n")

    def write(self, path: str, text: str) -> None:
        """Write a file of the folder."""
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text, encoding="utf-8")

    def _tell(self, name: str, line: str, done: Ended) -> None:
        told = f"$ intern {line}\nexit code {done.code}\n"
        for stream, text in (("stdout", done.out), ("stderr", done.err)):
            told += f"--- {stream}\n{readable(text)}" if text else ""
            told += "" if not text or text.endswith("\n") else "\n(no line end)\n"
        self._add(name, f"{told}\n")

    def _add(self, name: str, text: str) -> None:
        self.texts[name] = self.texts.get(name, "") + self._normaliser.normal(text)


def tell(story: str, folder: Path) -> dict[str, str]:
    """Play a story in an empty folder, and return its golden texts by name."""
    with _scene(folder, derived_ids_differ=story == "notes") as scene:
        try:
            STORIES[story](scene)
        except (LookupError, OSError, ValueError, sqlite3.Error) as error:
            # A command gave less than the story goes on with, so the texts so far show why.
            scene.texts["broken-off"] = f"the story broke off: {error!r}\n"
    return {name: text.rstrip("\n") + "\n" for name, text in scene.texts.items()}


@contextmanager
def _scene(folder: Path, *, derived_ids_differ: bool) -> Generator[Scene]:
    work = folder / "work"
    for part in ("notes", "scan", "wording", "sources"):
        shutil.copytree(_GIVEN / part, work / part)
    for file in work.rglob("*"):
        os.utime(file, (WRITTEN_AT, WRITTEN_AT))
    shutil.copy(_GIVEN / "questions.jsonl", work)
    shutil.copy(_GIVEN / "settings.toml", work / "intern.toml")
    community.write_exports(work / "exports")
    kept = community.fixed_ids() | {f"{WRITTEN_AT}{0:09}"}
    normaliser = Normaliser(work, kept, derived_ids_differ=derived_ids_differ)
    with shell(work, folder / "shell") as terminal:
        yield Scene(work, terminal, normaliser)


def _play(scene: Scene) -> None:
    """Tell what `make demo` prints."""
    (scene.folder / "intern.toml").unlink()
    scene.run_cold("play", "try --play")


def _help(scene: Scene) -> None:
    """Tell what each command says of itself, by the list that the program gives."""
    names = re.findall(r"(?m)^  ([a-z-]+)  ", scene.run("help", "--help").partition("Commands:")[2])
    assert names, "the program lists no commands"
    for name in names:
        _, _, below = scene.run("help", f"{name} --help").partition("Commands:")
        for each in re.findall(r"(?m)^  ([a-z-]+)  ", below):
            scene.run("help", f"{name} {each} --help")
    scene.run("help", "--version", "init here")
    scene.look("init", "here")


def _history(scene: Scene) -> None:
    """Import a community, read all that was learned, rebuild it, and forget some of it."""
    _put_documents(scene)
    whole = " ".join(_IMPORT)
    scene.run("import", f"import {whole} --dry-run")
    scene.run_cold("import", f"import {whole}")
    scene.run("import", "index", f"import {whole} --json", "index --json --wait", "index --extract")
    # A digest of a document that changed would have each document described again, at a cost.
    scene.keep_digests("data/knowledge-base/index-cache.json")
    scene.look("files", "data")
    scene.run("status", "status", "status --json", "status --sources", "status --sources --json")
    scene.run("doctor", "doctor", "doctor --json")
    first, *_, last = re.findall(r"(?m)^qa_\S+", scene.run("archive", "archive list"))
    scene.run("archive", "archive", "archive list --all --json", f"archive show {first}", f"archive show {last} --json")
    scene.run("topics", "topics", "topics list --json", "topics show tidepool-keep-thumbnails")
    scene.run("topics", "topics show change-port-tidepool --removed", "topics show qa-log-mean --json")
    scene.run("topics", "topics history change-port-tidepool", "topics history change-port-tidepool --json")
    _read_learned(scene)
    _search_and_ask(scene)
    scene.run("prompts", "prompts", "prompts list --json", "prompts check", "prompts check --json", "prompts diff")
    scene.run("prompts", "prompts diff --json", "prompts show decide", "prompts show classify --json")
    scene.run("prompts", "prompts show summarize_topic --source", "prompts show messages/retracted")
    scene.run("regenerate", "regenerate --dry-run", "regenerate --dry-run --json", "regenerate", "index")
    scene.look("regenerate", "data/team-knowledge/topics", "data/team-knowledge/state.json")
    scene.run("retry", "retry", "retry --json", f"retry {first}")
    _forget(scene)
    scene.run("backup", "backup copy.db", "backup copy.db", "backup copy.db --force --json")
    scene.look_into_database("database", "copy.db")


def _read_learned(scene: Scene) -> None:
    fact = scene.run("facts", "facts list").split()[0]
    scene.run("facts", "facts list --json", "facts list --category person", "facts search windows")
    scene.run("facts", f"facts show {fact}", f"facts show {fact} --json", f"facts history {fact}")
    scene.run("facts", "facts list --as-of 2024-03-07", "facts search nothing-of-it")
    scene.run("facts", f"facts retire {fact} --why 'it was a test'", "facts list --all", f"facts history {fact} --json")
    nugget = scene.run("nuggets", "nuggets list").split()[0]
    scene.run("nuggets", "nuggets list --json --top 3", "nuggets list --status SPECULATION")
    scene.run("nuggets", f"nuggets show {nugget}", f"nuggets show {nugget[:8]} --json")


def _search_and_ask(scene: Scene) -> None:
    scene.run("search", "search thumbnails", "search thumbnails --json", "search backup --kind source --top 2")
    scene.run("search", "search windows --kind fact --json", "search zzz", "search port --after 2024-03-08 --json")
    port = "'How do I change the port that Tidepool listens on?'"
    scene.run("ask", f"ask {port}", f"ask {port} --trace", f"ask {port} --json")
    scene.run("ask", "ask 'How do I run a backup of Tidepool every night?' --json --trace")
    scene.run("ask", "ask 'How far away is the moon?'", "ask 'good morning' --json")
    older = scene.run("eval", "eval questions.jsonl --json")
    scene.write("older.json", older)
    scene.run("eval", "eval questions.jsonl --compare older.json")


def _forget(scene: Scene) -> None:
    """Forget a message, and then a member whole."""
    scene.run("forget", f"forget --message {community.DESKTOP_QUESTION}", f"forget --message {community.BOT} --json")
    scene.run("forget", f"forget --user {community.SAM} --erase", f"forget --user {community.SAM} --erase --yes")
    scene.run("forget", "archive list", "topics list", "facts list", "nuggets list", "status", "index --json")
    scene.look("files-forgotten", "data")


def _review(scene: Scene) -> None:
    """Let the team approve what is learned."""
    _put_documents(scene)
    settings = (scene.folder / "intern.toml").read_text(encoding="utf-8")
    scene.write("intern.toml", f"{settings}\n[kb]\nreview = true\n")
    scene.run("review", f"import {' '.join(_IMPORT)}")
    ids = re.findall(r"(?m)^(qa_\S+),", scene.run("review", "review"))
    scene.run("review", "status", "review list --json", "archive list", "topics", "nuggets")
    scene.run("review", f"review approve {ids[0]}", f"review reject {ids[1]}", f"review approve {ids[1]}")
    scene.run("review", "review approve", "review reject", f"review approve {ids[2]} --json", "status --json")
    scene.run("review", "review approve --all", "review", "archive list", "topics")
    scene.look("files", "data/team-knowledge")


def _notes(scene: Scene) -> None:
    """Learn from notes and from files that are discovered; their ids depend on where they lie."""
    scene.run("notes", "import-notes notes --dry-run", "import-notes notes --json", "import-notes notes")
    scene.write(
        "notes/more.md", "# Printers\n\nAs of version 2 prints are made by the print service, not by the worker.\n"
    )
    scene.run("notes", "import-notes notes", "nuggets list", "facts list --json")
    (scene.folder / "notes" / "more.md").unlink()
    scene.run("notes", "import-notes notes", "nuggets list", "facts list")
    scene.run("discover", "discover", "discover --json", "discover --once", "discover --once --json", "discover")
    scene.run("discover", "search 'photo library' --kind file", "status --sources")
    (scene.folder / "scan" / "limits.toml").unlink()
    scene.run("discover", "discover", "discover --once", "status")


def _backtest(scene: Scene) -> None:
    """Replay the history."""
    _put_documents(scene)
    whole = f"exports --team-role-id {community.TEAM_ROLE}"
    scene.run("backtest", f"backtest {whole} --dry-run", f"backtest {whole}", f"backtest {whole}")
    scene.look("backtest-files", "backtest.json", "backtest.html")
    scene.run(
        "backtest", f"backtest {whole} --since 2024-03-06 --limit 3 --no-documents --result some.json --html x.html"
    )


_ARCHIVE: Final = f"""\
--- QA ---
id: qa_20240304_090500.000000
timestamp: 2024-03-04T09:05:00.000000Z
conversation_id: reply_{community.PORT_QUESTION}
message_ids: {community.PORT_QUESTION}, {community.DESKTOP_QUESTION}
author_ids: {community.SAM}, {community.NORA}
answered_at: 2024-03-04T09:04:00.000000Z
a_later_header: stays as it is
length: 59
User: How do I change the album cover?
Team: Click on the star.

--- QA ---
id: qa_20240304_090600.000000
timestamp: not a time
conversation_id: reply_5
User: How do I print?
Team: With a printer.

--- QA ---
id: qa_20240304_090700.000000
timestamp: 2024-03-04T09:07:00.000000Z
conversation_id: reply_6
message_ids: 6, 7
answered_at: 2024-03-04T09:06:00.000000Z
length: 900
User: Is this block torn?
Team: Yes, for it
"""


def _mistakes(scene: Scene) -> None:
    """Make the mistakes that people make, and read a data folder that is damaged."""
    scene.run("wrong-use", "status", "ask hello", "topics", "retry", "backup x.db", "frobnicate", "status --colour")
    scene.run("wrong-use", "ask", "--config none.toml status", "run", "import none.json", "forget", "doctor --json")
    scene.run("wrong-use", f"forget --user {community.SAM} --erase", "search x --kind dream", "import intern.toml")
    scene.run("wrong-use", "import exports/help.json --team-id nora", "import-notes nowhere", "eval none.jsonl")
    scene.write("broken.jsonl", '{"question": "Is this well?"}\n{"question": 5}\n')
    (scene.folder / "exports" / "cut.json").write_bytes((scene.folder / "exports" / "help.json").read_bytes()[:900])
    scene.write("unknown.toml", "[llm]\nprovider = 'offline'\nmodle = 'x'\n")
    scene.write("bad.toml", "[llm]\nmax_retries = 'many'\n")
    scene.write("torn.toml", "[llm\n")
    scene.run("wrong-use", *(f"--config {name}.toml status" for name in ("unknown", "bad", "torn")))
    scene.run("wrong-use", "import exports/cut.json", "backtest nowhere", "prompts show nothing", "init intern.toml")
    scene.write("data/team-knowledge/raw/2024-W10.txt", _ARCHIVE)
    scene.write("data/team-knowledge/decisions.jsonl", '{"action":"filed"}\nno JSON\n')
    scene.run("damaged", "status", "status --json", "doctor", "archive list", "archive list --json", "topics list")
    scene.run("damaged", "topics show nothing", "archive show qa_20240304_090600.000000", "facts show abc")
    scene.run("damaged", "nuggets show abc", "review approve qa_20240304_090500.000000", "eval broken.jsonl")
    scene.run("damaged", "regenerate", "archive show qa_20240304_090500.000000", "status")
    scene.look("damaged-files", "data/team-knowledge")
    scene.write("wording/decide.md.j2", "{% block system %}{{ nothing }}{% endblock %}\n")
    scene.run("damaged", "prompts check", "prompts check --json", "prompts diff nothing")


STORIES: Final[Mapping[str, Callable[[Scene], None]]] = MappingProxyType(
    {
        "play": _play,
        "help": _help,
        "history": _history,
        "review": _review,
        "notes": _notes,
        "backtest": _backtest,
        "mistakes": _mistakes,
    }
)
"""All stories by name."""


def _put_documents(scene: Scene) -> None:
    shutil.copytree(scene.folder / "sources", scene.folder / "data" / "knowledge-base" / "sources")


def _files(path: Path) -> list[Path]:
    files = [path] if path.is_file() else path.rglob("*")
    return [file for file in files if file.is_file() and not file.name.endswith(_NO_TEXT)]
