"""What `intern doctor` can tell without a call: model, prices, database, text files, scan paths. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from intern.app.searching import never_discovered
from intern.app.status import lost_folders, outdated_answers, vectors_told
from intern.discovery.scanning import Scanner
from intern.errors import ConfigError, KnowledgeError
from intern.knowledge.archive import Archive
from intern.knowledge.copying import problems, schema_of, unsearchable
from intern.knowledge.decisions import DecisionLog
from intern.knowledge.topics import TopicLibrary
from intern.settings import NO_PRICE, Settings

NAMED_AT_MOST: Final = 5
"""Channels, or damaged pieces, in one line."""

Level = Literal["ok", "note", "todo"]


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    level: Level
    """`todo`: intern cannot do all of its work. `note`: it can, but for a nicety."""
    what: str
    do: str = ""
    """What mends it; empty where nothing needs to be."""


def good(what: str) -> Finding:
    """What needs nothing."""
    return Finding(level="ok", what=what)


class LocalChecks:
    """What can be told without Discord."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def model(self) -> Finding:
        """Whether questions can be answered."""
        try:
            self._settings.require_model()
        except ConfigError as error:
            return Finding(level="todo", what="no model is chosen", do=str(error))
        return good("a model is chosen")

    def _embeddings(self) -> Finding:
        try:
            model, documents, lacking = vectors_told(self._settings)
        except KnowledgeError as error:
            return Finding(level="todo", what=f"the search could not be looked at: {error}", do=str(error))
        if model is None and self._settings.embeddings.provider == "none":
            return good("the search goes by words alone, as embeddings.provider says")
        if model is None:
            return Finding(
                level="note",
                what='the search goes by words alone; pip install "intern[embeddings]" or see [embeddings] for more',
            )
        vectors = "all" if not lacking else f"{documents - lacking}"
        return good(f"embeddings: {model}; {vectors} of {documents} documents have a vector")

    def folder(self) -> list[Finding]:
        """How the data folder stands, and what discovery can look at. Blocks; beside a bot at work, too."""
        return [*self._database(), *self._outdated(), *self._texts(), *self._scan_paths()]

    def _outdated(self) -> Iterator[Finding]:
        """Whether posted answers still stand on their sources."""
        try:
            number = outdated_answers(self._settings)
        except KnowledgeError:
            return  # whatever is wrong with the database is told above
        if number:
            some = "1 posted answer cites" if number == 1 else f"{number} posted answers cite"
            what = f"{some} what has changed or was withdrawn since; the status page lists them under Outdated"
            yield Finding(level="note", what=what)

    def _texts(self) -> Iterator[Finding]:
        """What of the archive, the topics and the decisions is passed over."""
        paths = self._settings.paths
        try:
            decisions = DecisionLog(paths.decisions)
            for what in lost_folders(paths, decisions):
                yield Finding(level="todo", what=what, do=what)
            damaged = [
                *((paths.raw, each) for each in Archive(paths.raw).damaged),
                *((paths.topics, each) for each in TopicLibrary(paths.topics).damaged),
                *((paths.decisions.parent, each) for each in decisions.damaged),
            ]
        except KnowledgeError as error:
            yield Finding(
                level="todo", what=f"archive, topics or decisions could not be looked at: {error}", do=str(error)
            )
            return
        if not damaged:
            return
        named = "; ".join(str(each) for _, each in damaged[:NAMED_AT_MOST])
        more = f"; and {len(damaged) - NAMED_AT_MOST} more" if len(damaged) > NAMED_AT_MOST else ""
        folder, first = damaged[0]
        yield Finding(
            level="todo",
            what=f"{len(damaged)} damaged pieces of text files are passed over: {named}{more}",
            do=f"mend {folder / first.file} at line {first.line} with a text editor, or put a backup in its place; "
            "what a crash left half-written may be deleted",
        )

    def _scan_paths(self) -> Iterator[Finding]:
        never = never_discovered(self._settings)
        for path, reason in Scanner(self._settings.discovery, never=never).troubles().items():
            yield Finding(
                level="todo",
                what=f"discovery cannot look at {path} ({reason})",
                do=f"correct discovery.scan_paths, or let the user that intern runs as read {path}",
            )

    def _database(self) -> list[Finding]:
        path = self._settings.paths.database
        try:
            if not self._settings.paths.is_made():
                what = f"there is no data folder {path.parent.absolute()}, and so no database yet"
                return [good(f"{what}; `intern init` or the first start makes them"), self._embeddings()]
            if not path.exists():
                return [good("there is no database yet; the first start makes it"), self._embeddings()]
            schema, newest = schema_of(path)
            if schema > newest:
                return [_newer(path, schema, newest)]
            found = [*_sound(path)]
        except KnowledgeError as error:
            return [Finding(level="todo", what=f"the database could not be looked at: {error}", do=str(error))]
        if schema < newest:
            what = f"the database has schema {schema}; the next start makes it {newest}; `intern backup` comes first"
            return [*found, Finding(level="note", what=what)]
        return [*found, self._embeddings()]

    def prices(self) -> Iterator[Finding]:
        """Whether each model that is asked has one, where any has."""
        for table in self._settings.without_price:
            yield Finding(level="note", what=NO_PRICE.format(table))


def _newer(path: Path, schema: int, newest: int) -> Finding:
    return Finding(
        level="todo",
        what=f"the database is of a newer intern: it has schema {schema}, and this one knows schemas up to {newest}",
        do=f"install the intern that wrote {path}, or a newer one; or go back to a backup of before",
    )


def _sound(path: Path) -> Iterator[Finding]:
    """What SQLite finds of pages, rows and full-text tables. Raises KnowledgeError."""
    if wrong := problems(path, NAMED_AT_MOST):
        yield Finding(
            level="todo",
            what=f"the database is damaged: {'; '.join(wrong)}",
            do=f"end the bot, move {path} away with its -wal and -shm files, and put a backup in its place, or "
            "nothing: archive, decisions and topics are kept elsewhere, and the rest is made anew",
        )
        return
    yield good("the database is sound, and each row points to what is there")
    try:
        lacking = unsearchable(path)
    except (KnowledgeError, OSError) as error:
        yield Finding(level="note", what=f"the full-text tables could not be looked at: {error}")
        return
    if lacking:
        yield Finding(
            level="todo",
            what=f"full-text tables do not say what stands in the database: {', '.join(lacking)}",
            do=f"end the bot, move {path} away with its -wal and -shm files and run `intern index`: search, nuggets "
            "and facts are made anew",
        )
    else:
        yield good("the full-text tables say what stands in the database")
