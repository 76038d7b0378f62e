"""Fixtures for every package, and the choice of tests to run.

`make test` runs `--part=test`: all on asyncio except tests marked `rest` or `process`, and the tests in EDGES on trio,
too. `make test-all` runs `--part=rest`, which is exactly the rest, with more examples of the tests by examples. Without
`--part`, all named tests run.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import ssl
import tempfile
from collections.abc import Generator, Mapping
from contextlib import suppress
from functools import wraps
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from threading import Lock
from types import CodeType
from typing import Any

import certifi
import pytest
import structlog
from anyio import fail_after
from hypothesis import is_hypothesis_test
from jinja2 import Environment
from trio.testing import MockClock

from intern.core.log import PROCESSORS
from intern.stores.engines.sqlite import database
from tests import examples
from tests.engines import engine, postgres, server
from tests.wording import Wording
from tests.worlds.clock import leaping

__all__ = ["engine", "postgres", "server"]  # fixtures

EDGES = (
    "actors/",
    "frontends/http/",
    "models/",
    "platforms/",
    "search/test_embedding_endpoint.py",
    "sources/test_addresses.py",
    "sources/test_fetching.py",
    "sources/test_robots.py",
    "stores/",
)
"""Folders and files whose tests all run on both backends each time: actors, and code that waits for other tasks.

A test with several cases runs one of them on trio.
"""
WAITING = ("platforms/",)
HERE = Path(__file__).parent
SEEDS = {"INTERN_KILL_SEED": "1", "INTERN_TEST_SEED": "1"}  # variables that set others, and their default values
PATIENCE = 100.0  # seconds for an async test without a timeout of its own; a loaded machine takes half of them
FOR_EVER = 1e9  # seconds of a clock that jumps
FOR_THE_REST = ("rest", "process")  # marks
MEMORY = Path("/dev/shm")
ROOM = 2 * 2**30  # bytes, several times a run's usual garbage

structlog.configure(processors=PROCESSORS)  # so that structlog's capture_logs takes our events


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-wording", action="store_true", help="write tests/wording.txt, see tests/wording.py")
    parser.addoption("--part", choices=["test", "rest", "all"], default="all", help="what make test runs, or the rest")


def pytest_report_header(config: pytest.Config) -> str:
    """Show the seeds that repeat this run; simulations have numbers, and report those that fail."""
    named = [f"{name}={os.environ.get(name, seed)}" for name, seed in SEEDS.items()]
    seeds = [f"--hypothesis-seed={config.getoption('--hypothesis-seed')}", *named]
    return f"part: {config.getoption('--part')}; seeds: {' '.join(seeds)}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import test modules, each worker beginning at another one, so that they share the work in a fresh clone.

    pytest rewrites asserts at import and caches the result; workers in step would each rewrite every module.
    """
    gc.disable()  # until all are collected
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    paths = sorted(HERE.rglob("test_*.py"))
    first = len(paths) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in [*paths[first:], *paths[:first]]:
        with suppress(Exception, pytest.skip.Exception):  # collecting it reports the error
            import_module(".".join(path.relative_to(HERE.parent).with_suffix("").parts))


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None]:
    """Make no cases of another event loop than the test's, and none that `--part=test` omits: each costs time."""
    yield
    for mark, other in (("on_asyncio", "trio"), ("jumps", "asyncio")):
        if metafunc.definition.get_closest_marker(mark):
            metafunc._calls = [case for case in metafunc._calls if _backend_of(case.params) != other]
    if metafunc.config.getoption("--part") != "test":
        return
    wanted = [case for case in metafunc._calls if not any(mark.name in FOR_THE_REST for mark in case.marks)]
    if any(map(metafunc.definition.get_closest_marker, FOR_THE_REST)):
        wanted = []
    elif not _is_in(metafunc.definition, EDGES) and any(_backend_of(case.params) == "asyncio" for case in wanted):
        wanted = [case for case in wanted if _backend_of(case.params) != "trio"]
    metafunc._calls = wanted or metafunc._calls[:1]  # of a test without cases pytest makes one


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests of this part. Tests that mostly wait begin first, for others compute meanwhile.

    The slowest follow: no run shall end with waiting for one of them.
    """
    items.sort(key=lambda item: (_is_in(item, WAITING), _patience(item)), reverse=True)
    part = config.getoption("--part")
    if part == "all":
        return
    assert all((HERE / edge).exists() for edge in EDGES), "something of EDGES is gone"
    on_asyncio = {_function(item) for item in items if _backend(item) == "asyncio"}
    on_both, kept, left = set[str](), list[pytest.Item](), list[pytest.Item]()
    for item in items:
        resting = any(map(item.get_closest_marker, FOR_THE_REST))
        if not resting and _backend(item) == "trio" and (function := _function(item)) in on_asyncio:
            resting = not _is_in(item, EDGES) or function in on_both
            on_both.add(function)
        wanted = resting or _by_examples(item) if part == "rest" else not resting
        (kept if wanted else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


def pytest_collection_finish() -> None:
    """Exempt the collected tests from garbage collection: it would check nine thousand of them again and again."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


def _backend(item: pytest.Item) -> object:
    """Return the backend of the test, if it asks for one."""
    return _backend_of(item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {})


def _backend_of(params: Mapping[str, object]) -> object:
    return params.get("anyio_backend") or params.get("backend")


def _patience(item: pytest.Item) -> float:
    """Return the seconds that the test asks for, if any."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark and mark.args else 0.0


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _by_examples(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)


def _is_in(item: pytest.Item, places: tuple[str, ...]) -> bool:
    return item.path.relative_to(HERE).as_posix().startswith(places)


def pytest_configure(config: pytest.Config) -> None:
    """Report the number of examples, and let tests write to memory if there is room: they mostly wait for fsync.

    A killed process loses as much there as on a disk: no written data. TMPDIR names another place.
    """
    examples.use(each_time=config.getoption("--part") == "test")
    if "TMPDIR" not in os.environ and _has_room(MEMORY):
        os.environ["TMPDIR"] = str(MEMORY)  # and for the processes that tests start
        tempfile.tempdir = None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return twice the number of cores, for many tests wait: for sockets, for processes, for hikari's pauses."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else 2 * (os.cpu_count() or 1)


def _has_room(folder: Path) -> bool:
    if not os.access(folder, os.W_OK):
        return False
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize >= ROOM and not disk.f_flag & os.ST_NOEXEC


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Let no async test wait for longer than `PATIENCE`, or than its own timeout.

    A clock that `jumps` reaches any limit at once if all tasks wait for ever. A test whose clock `leaps` has a limit
    of its own: here, none says anything.
    """
    test, jumps = pyfuncitem.obj, pyfuncitem.get_closest_marker("jumps")
    if (jumps or isinstance(pyfuncitem.funcargs.get("anyio_backend"), str)) and iscoroutinefunction(test):
        limit = _patience(pyfuncitem) or (PATIENCE if pyfuncitem.get_closest_marker("timeout") is None else None)
        limit = FOR_EVER if jumps else limit

        @wraps(test)
        async def bounded(**arguments: object) -> None:
            with fail_after(limit):
                await test(**arguments)

        pyfuncitem.obj = bounded
    return (yield)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str | tuple[str, dict[str, Any]]:
    """Run a test on both, or as its mark says (`jumps`, `leaps`, `on_asyncio`)."""
    if request.node.get_closest_marker("jumps"):
        return "trio", {"clock": MockClock(autojump_threshold=0)}
    return leaping(request.param) if request.node.get_closest_marker("leaps") else str(request.param)


@pytest.fixture
def wording(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Wording]:
    """The recorded words of the test, the same on both event loops."""
    test = re.sub(r"\[(asyncio|trio)\]|(?<=\[)(asyncio|trio)-", "", request.node.nodeid.removeprefix("tests/"))
    words = Wording(test, {str(tmp_path): "folder"}, records=bool(request.config.getoption("--record-wording")))
    yield words
    words.end()


@pytest.fixture(autouse=True, scope="session")
def words_alone() -> Generator[None]:
    """Avoid loading the embedding model by accident: unless a setting names one, it counts as not installed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("intern.service.embedding.is_english_installed", lambda: False)
        yield


@pytest.fixture(autouse=True, scope="session")
def templates_compiled_once() -> Generator[None]:
    """Reuse compiled templates: every bot of a test compiles the same prompts."""
    compile_anew, compiled = Environment.compile, dict[object, CodeType]()

    def compile_once(self: Environment, source: str, name: str | None = None, filename: str | None = None) -> CodeType:
        key = (type(self), self.trim_blocks, self.lstrip_blocks, self.autoescape, source, name, filename)
        if key not in compiled:
            compiled[key] = compile_anew(self, source, name, filename)
        return compiled[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Environment, "compile", compile_once)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_authorities() -> Generator[None]:
    """Load no certificates: that takes 30 to 50 ms for each client, and no test contacts a stranger."""
    load, load_from, named = (
        ssl.SSLContext.load_default_certs,
        ssl.SSLContext.load_verify_locations,
        os.environ.get("SSL_CERT_FILE"),
    )

    def load_what_is_named(self: ssl.SSLContext, purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH) -> None:
        if os.environ.get("SSL_CERT_FILE") != named:
            load(self, purpose)

    def load_of_others(self: ssl.SSLContext, cafile: Any = None, capath: Any = None, cadata: Any = None) -> None:
        if cafile is None or cafile not in (named, certifi.where()):
            load_from(self, cafile, capath, cadata)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ssl.SSLContext, "load_default_certs", load_what_is_named)
        patched.setattr(ssl.SSLContext, "load_verify_locations", load_of_others)
        yield


@pytest.fixture(autouse=True, scope="session")
def tables_made_once(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Copy a database with existing tables: thousands of tests open a new one, and a copy costs a fifth."""
    opened, made, one_at_a_time = database._open_file, dict[str, bytes](), Lock()
    ours = {schema: schema.read_text(encoding="utf-8") for schema in database.SCHEMA.parent.glob("*.sql")}
    for schema in ours.values():
        path = tmp_path_factory.mktemp("made") / "made.db"
        opened(path, schema).close()
        made[schema] = path.read_bytes()

    def opened_from_copy(path: Path, schema: str | None) -> Any:
        copy = made.get(schema or ours[database.SCHEMA])
        with one_at_a_time, suppress(OSError):  # the tested code reports a wrong path
            if copy is not None and path.name != ":memory:" and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(copy)
        return opened(path, schema)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(database, "_open_file", opened_from_copy)
        yield


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Generator[None]:
    """Restore the logging: a command's settings for its process must not outlive its test."""
    root, libraries = (
        logging.getLogger(),
        [logging.getLogger(name) for name in ("hikari", "httpx", "httpcore", "aiohttp", "asyncio")],
    )
    handlers, levels = root.handlers[:], [logger.level for logger in (root, *libraries)]
    yield
    root.handlers[:] = handlers
    for logger, level in zip((root, *libraries), levels, strict=True):
        if logger.level != level:  # setting it clears the caches of all loggers
            logger.setLevel(level)
