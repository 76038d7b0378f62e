"""The checks of settings and data folder that need no network. They change nothing."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from intern.core import errors
from intern.core.install_hints import format_install_hint
from intern.core.text.language import detect_any_language
from intern.search.embedding_local import ENGLISH
from intern.service.databases import DatabaseServer, examine_server, is_made, open_learned, open_read_only
from intern.service.embedding import embedding_model, embeddings_kind, local_model
from intern.service.indexing import list_ignored_paths
from intern.service.status import count_without_vectors, describe_folder_problems
from intern.settings.settings import Paths, Settings
from intern.sources.scanning import Scanner
from intern.stores.engines.sqlite.copies import find_broken_indexes, find_problems
from intern.stores.tables.figures_at_rest import read_figures, read_newest_texts
from intern.stores.tables.skipped_sources import read_skipped_sources

NAMED_AT_MOST: Final = 5
"""Channels, or damaged pieces, in one line."""
_LITTLE_SPACE: Final = 200 * 1024 * 1024


class Finding(Struct, frozen=True, kw_only=True):
    """The result of one check."""

    level: Literal["ok", "note", "todo"]
    """`todo`: intern cannot do all of its work. `note`: only a minor function is missing."""
    what: str
    do: str = ""
    """The remedy; empty if none is needed."""


def todo(what: str, do: str) -> Finding:
    """Return a finding that keeps intern from some of its work, with the remedy."""
    return Finding(level="todo", what=what, do=do)


def note(what: str) -> Finding:
    """Return a finding that costs at most a minor function."""
    return Finding(level="note", what=what)


def good(what: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(level="ok", what=what)


def _check_embeddings(settings: Settings) -> Iterator[Finding]:
    try:
        model, figures = embedding_model(settings), read_figures(open_read_only(settings))
        documents, lacking = figures.documents, count_without_vectors(settings, figures)
    except errors.ConfigError as error:
        yield todo("the embedding model cannot be used", str(error))
        return
    except errors.KnowledgeError as error:
        yield todo(f"the search could not be looked at: {error}", str(error))
        return
    if model is None and settings.embeddings.provider == "none":
        yield good("search uses words alone, as embeddings.provider says")
    elif model is None:
        yield note(
            f"search uses words alone; for paraphrases, see [embeddings], or {format_install_hint('embeddings')}"
        )
    else:
        vectors = f"{documents - lacking if lacking else 'all'} of {documents} documents have a vector"
        yield good(f"embeddings: {model}; {vectors if documents else 'no document is indexed yet'}")
        if others := sum(number for name, number in figures.vectors if name != model):
            yield note(f"{others} documents have a vector of another model, and get new ones once the bot runs")
        yield from _check_own_model(settings)
        if model == ENGLISH.name:
            yield from _check_languages(settings)


def _check_own_model(settings: Settings) -> Iterator[Finding]:
    """Check whether the operator's own model file can be loaded."""
    if embeddings_kind(settings) == "local" and settings.embeddings.is_own:
        try:
            local_model(settings).load()
        except errors.ModelAccessError as error:
            yield todo("the embedding model cannot be loaded", str(error))


def _check_languages(settings: Settings) -> Iterator[Finding]:
    """Check whether most documents or questions are in a language that the English model does not know."""
    try:
        documents, questions = read_newest_texts(open_read_only(settings))
    except errors.KnowledgeError:
        return  # the check of the database reports that
    for what, texts in (("documents", documents), ("questions", questions)):
        found = Counter(filter(None, map(detect_any_language, texts)))
        foreign = [language for language, _ in found.most_common() if language != "en"]
        if sum(found[each] for each in foreign) > found["en"]:
            told = f"most {what} whose language can be told are not in English ({', '.join(foreign)}), which the model"
            yield note(
                f'{told} knows best; set embeddings.model = "multilingual", and {format_install_hint("multilingual")}'
            )


def check_folder(settings: Settings) -> list[Finding]:
    """Check the data folder, and the places that discovery reads. Blocks; works beside a running bot, too."""
    found = [*_check_writable(settings.paths), *_check_database(settings)]
    for check in (_check_left_out, _check_posted_answers):
        with suppress(errors.KnowledgeError):  # the check of the database reports that
            found += check(settings)
    found += [*_check_text_files(settings), *_check_scan_paths(settings)]
    # An unreachable database fails several checks.
    return [each for n, each in enumerate(found) if not each.do or each.do not in (before.do for before in found[:n])]


def _check_writable(paths: Paths) -> Iterator[Finding]:
    """Check whether the folders can be written to or created, and whether there is room."""
    folders = (paths.data, paths.raw, paths.topics, paths.web_cache)
    looked_at = dict.fromkeys(map(_nearest_existing_path, folders))
    for folder in looked_at:
        if not folder.is_dir():
            yield todo(f"{folder} is not a folder", f"move the file {folder} away, or set data.dir to a folder")
        elif not os.access(folder, os.W_OK | os.X_OK):
            mend = f"let the user that intern runs as write to {folder}"
            yield todo(f"{folder} cannot be written to by this user", mend)
    place = _nearest_existing_path(paths.data)
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        yield note(f"the free space below {place} could not be read ({error.strerror})")
        return
    if free < _LITTLE_SPACE:
        told = f"only {free // 1024**2:,} MB are free on the disk of {place.absolute()}"
        yield todo(told, f"free at least {_LITTLE_SPACE // 1024**2} MB there: with a full disk, intern stores nothing")


def _nearest_existing_path(path: Path) -> Path:
    """Return the path, or the nearest one above it that exists."""
    for each in (path, *path.parents):
        with suppress(OSError):  # this user may have no access to a folder above it
            if each.exists():
                return each
    return path


def _check_left_out(settings: Settings) -> Iterator[Finding]:
    """Check the files and links that the last refresh did not accept as sources."""
    if skipped := read_skipped_sources(open_read_only(settings)) if is_made(settings) else ():
        named = "; ".join(f"{each.place} ({each.reason})" for each in skipped[:NAMED_AT_MOST])
        number = "1 document or link is" if len(skipped) == 1 else f"{len(skipped)} documents or links are"
        more = ", and more" if len(skipped) > NAMED_AT_MOST else ""
        yield note(f"{number} left out: {named}{more}; `intern status --sources` lists all")


def _check_posted_answers(settings: Settings) -> Iterator[Finding]:
    """Check whether the sources of posted answers still support them."""
    if number := read_figures(open_read_only(settings)).outdated_answers:
        some = "1 posted answer cites" if number == 1 else f"{number} posted answers cite"
        yield note(f"{some} what has changed or was withdrawn since; the status page lists them under Outdated")


def _check_text_files(settings: Settings) -> Iterator[Finding]:
    """Find damaged or lost text files."""
    paths = settings.paths
    try:
        knowledge, archive = open_learned(settings)
        yield from (todo(what, what) for what in describe_folder_problems(paths, knowledge, moves=settings.moves))
        damaged = archive.damaged
    except errors.KnowledgeError as error:
        yield todo(f"archive or decisions could not be looked at: {error}", str(error))
        return
    if not damaged:
        return
    named = "; ".join(map(str, damaged[:NAMED_AT_MOST]))
    more = f"; and {len(damaged) - NAMED_AT_MOST} more" if len(damaged) > NAMED_AT_MOST else ""
    yield todo(
        f"{len(damaged)} damaged pieces of the archive are passed over: {named}{more}",
        f"mend {paths.raw / damaged[0].file} at line {damaged[0].line} with a text editor, or put a backup in its "
        "place; what a crash left half-written may be deleted",
    )


def _check_scan_paths(settings: Settings) -> Iterator[Finding]:
    never = list_ignored_paths(settings)
    for path, reason in Scanner(settings.discovery, never=never).find_unreadable_paths().items():
        yield todo(
            f"discovery cannot look at {path} ({reason})",
            f"correct discovery.scan_paths, or let the user that intern runs as read {path}",
        )


def _check_database(settings: Settings) -> list[Finding]:
    path = settings.paths.database
    try:
        if (server := examine_server(settings)) is not None:
            return [
                *_check_database_server(server),
                *_check_search_file(settings.paths.search),
                *_check_embeddings(settings),
            ]
        if not settings.paths.is_made():
            folder = path.parent.absolute()
            what = f"{folder} holds nothing of intern's" if folder.is_dir() else f"there is no data folder {folder}"
            return [good(f"{what}; `intern init` or the first start sets it up"), *_check_embeddings(settings)]
        if not path.exists():
            return [good("there is no database yet; the first start makes it"), *_check_embeddings(settings)]
        if not is_made(settings):
            return [good("the database is empty; the next start makes its tables"), *_check_embeddings(settings)]
        return [_check_integrity(path), *_check_search_file(settings.paths.search), *_check_embeddings(settings)]
    except errors.KnowledgeError as error:
        return [todo(f"the database could not be looked at: {error}", str(error))]


def _check_database_server(server: DatabaseServer) -> Iterator[Finding]:
    if server.trouble:
        yield todo(*server.trouble)
    elif server.found.is_made:
        yield good(f"the database is {server.place} (PostgreSQL {server.found.version})")
    else:
        yield good(f"{server.place} (PostgreSQL {server.found.version}) is empty; the next start makes its tables")
    if server.found.is_unguarded:
        yield note(
            f"{server.found.role} is a superuser or may bypass row-level security, which keeps communities apart even"
            " where a statement is wrong; better give intern a role of its own: create role intern login"
        )


def _check_integrity(path: Path) -> Finding:
    """Check pages and rows. Raises KnowledgeError."""
    if wrong := find_problems(path, NAMED_AT_MOST):
        return todo(
            f"the database is damaged: {'; '.join(wrong)}",
            f"end the bot, move {path} away with its -wal and -shm files, and put a backup in its place, or make "
            f"it anew from the text files: intern restore {path.parent}",
        )
    return good("the database is sound, and each row points to what is there")


def _check_search_file(path: Path) -> Iterator[Finding]:
    """Check the search's file, if there is one."""
    if not path.exists():
        return
    try:
        wrong = find_problems(path, NAMED_AT_MOST) or find_broken_indexes(path)
    except (errors.KnowledgeError, OSError) as error:
        wrong = (str(error),)
    if wrong:
        yield todo(
            f"the search file {path} is damaged: {'; '.join(wrong)}",
            "run `intern index --rebuild-search`: the file is made anew from the database, without a model",
        )
    else:
        yield good("the search file is sound")
