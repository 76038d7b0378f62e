from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from intern.core.log import LogFormat, configure_logging, get_logger, redact_text
from intern.settings.loading import load_settings

SECRET = 'tok.en+with(regex"and-quote'


def sink(log_format: LogFormat = "json", *, level: Any = "info", secrets: tuple[str, ...] = (SECRET,)) -> io.StringIO:
    stream = io.StringIO()
    configure_logging(log_format=log_format, level=level, secrets=secrets, stream=stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_object_on_one_line() -> None:
    stream = sink()
    get_logger("intern.test").info("qa_pair_captured", qa_id="qa_1", turns=2, text="two\nlines")
    [line] = lines(stream)
    assert line["event"] == "qa_pair_captured"
    assert (line["qa_id"], line["turns"], line["text"]) == ("qa_1", 2, "two\nlines")
    assert (line["level"], line["logger"]) == ("info", "intern.test")
    assert line["timestamp"].endswith("Z")


def test_libraries_come_out_of_the_same_sink_but_only_when_something_is_wrong() -> None:
    stream = sink()
    logging.getLogger("hikari.gateway").info("chatter")
    logging.getLogger("hikari.gateway").warning("lost %s", "shard 0")
    [line] = lines(stream)
    assert (line["event"], line["logger"]) == ("lost shard 0", "hikari.gateway")


@pytest.mark.parametrize("log_format", ["json", "pretty"])
def test_a_secret_shows_nowhere_not_even_in_a_traceback_of_a_library(log_format: LogFormat) -> None:
    stream = sink(log_format)
    get_logger("intern.test").warning(SECRET, field=SECRET, nested={"a": [f"Authorization: Bearer {SECRET}"]})
    try:
        int(SECRET)
    except ValueError:
        get_logger("intern.test").exception("failed")
        logging.getLogger("httpx").exception("failed with %s", SECRET)
    assert "and-quote" not in stream.getvalue()
    assert stream.getvalue().count("[secret]") >= 5


@pytest.mark.parametrize("log_format", ["json", "pretty"])
def test_credentials_that_nobody_configured_are_masked_in_fields_and_tracebacks(log_format: LogFormat) -> None:
    stream = sink(log_format)
    url, header = "redis://:p#w0rd@cache:6379", "Authorization: Bearer abcd-efgh1-ijkl"
    get_logger("intern.test").warning("failed", url=url, nested={"headers": [header]}, error=OSError(url))
    try:
        int(url)
    except ValueError:
        logging.getLogger("httpx").exception("failed with %s", header)
    assert "w0rd" not in stream.getvalue()
    assert "efgh1" not in stream.getvalue()
    assert "w0rd" not in redact_text(url)


def test_a_mask_never_breaks_a_line_of_json() -> None:
    stream = sink()
    block = "-----BEGIN PRIVATE " + "KEY-----"
    get_logger("intern.test").info(
        "x", a=f"{block}\n{'MIIE' * 10}", b=block.replace("BEGIN", "END"), c="redis://h:1", d="b@c"
    )
    [line] = lines(stream)
    assert line["a"] == "[masked private_key]"
    assert line["b"] == block.replace("BEGIN", "END")


def test_debug_is_silent_unless_asked_for() -> None:
    stream = sink()
    get_logger("intern.test").debug("detail")
    assert stream.getvalue() == ""

    stream = sink(level="debug")
    get_logger("intern.test").debug("detail")
    assert len(lines(stream)) == 1


def test_a_terminal_gets_lines_for_people_and_a_pipe_gets_json() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, is_json in ((Terminal(), False), (io.StringIO(), True)):
        configure_logging(log_format="auto", stream=stream)
        get_logger("intern.test").info("hello")
        assert stream.getvalue().startswith("{") is is_json


HOST = """
import structlog
{before}
import anyio, logging, sys, pathlib
from intern.service import open_intern
from intern.core.messages import Conversation, Message
from intern.settings import load_settings
{after}
async def main():
    settings = load_settings(environ={{}}, overrides={{"data": {{"dir": sys.argv[1]}}}})
    async with open_intern(settings) as door:
        await door.index()
        result = await door.answer(Conversation((Message(role="user", text="Which port does the relay listen on?"),)))
    print(result.reply_text or result)
    structlog.get_logger("host").info("still mine", n=1)

anyio.run(main)
"""
CONFIGURE = """structlog.configure(
    processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()],
    wrapper_class=structlog.make_filtering_bound_logger(20),
    logger_factory=structlog.PrintLoggerFactory(),
    cache_logger_on_first_use=True,
)"""


@pytest.mark.rest
@pytest.mark.parametrize("when", ["before", "after", "never"])
def test_a_host_program_may_configure_structlog_as_it_likes(tmp_path: Path, when: str) -> None:
    sources = tmp_path / "knowledge-base" / "sources"
    sources.mkdir(parents=True)
    (sources / "ports.md").write_text("# Ports\n\nThe relay listens on port 7480.\n")
    program = HOST.format(**{"before": "", "after": "", when: CONFIGURE})
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "port 7480" in done.stdout
    if when != "never":
        assert json.loads(done.stdout.splitlines()[-1]) == {"event": "still mine", "n": 1, "level": "info"}


# Finding A8.
@pytest.mark.parametrize("log_format", ["json", "pretty"])
def test_the_documented_address_of_a_database_hides_no_name_of_ours(log_format: LogFormat) -> None:
    url, key = "postgresql://intern@127.0.0.1:5432/intern", "k"
    settings = load_settings(environ={"INTERN__DATA__URL": url, "INTERN__LLM__API_KEY": key})
    stream = sink(log_format, secrets=settings.secrets)
    get_logger("intern.answering.answerer").info("ask_kept", kind="key")
    assert "intern.answering.answerer" in stream.getvalue()
    assert "ask_kept" in stream.getvalue()
    assert "[secret]" not in stream.getvalue()
