"""One event, one line: a name and fields, scrubbed of secrets at the sink.

Names and fields are the specs' own. Fields hold ids rather than text. Libraries that log through the standard
library (hikari, httpx, aiohttp) come out of the same sink.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, MutableMapping
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, Literal, TextIO

import structlog

from intern.core.errors import LeaseLostError
from intern.core.progress import LOG_EVERY, ProgressEstimator
from intern.core.text.masking import mask_nested, mask_secrets
from intern.core.text.secret_values import make_hider

Logger = structlog.stdlib.BoundLogger
LogFormat = Literal["auto", "json", "pretty"]
LogLevel = Literal["debug", "info", "warning", "error", "auto"]

# Libraries are quieter than we are: their INFO logs each request.
_LIBRARIES = ("hikari", "httpx", "httpcore", "aiohttp", "asyncio")


def get_logger(name: str) -> Logger:
    """Return the logger of a module. Before `configure_logging`, only warnings and errors are logged, to stderr.

    It has processors of its own: a program that uses intern as a library may configure structlog as it likes.
    """
    logger: Logger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=PROCESSORS,
        wrapper_class=structlog.stdlib.BoundLogger,
        context_class=dict,
        cache_logger_on_first_use=False,
    )
    return logger


class ProgressLogger:
    """Writes an event every ten seconds: for programs whose output is a log."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now, self._told = now, now()
        self._pace = ProgressEstimator(now)

    def __call__(self, what: str, done: int, total: int, note: str = "") -> None:
        """Log the report if the last one is old enough."""
        left = self._pace.estimate_seconds_left(what, done, total)
        if total and self._now() - self._told >= LOG_EVERY:
            self._told = self._now()
            seconds_left, work = None if left is None else round(left), what.format(total=total)
            get_logger(__name__).info("progress", work=work, done=done, seconds_left=seconds_left, note=note)


@contextmanager
def bind_trace_id(trace_id: str) -> Generator[None]:
    """Add `trace_id`, the newest message of the batch, to every line that is logged inside.

    Tasks that are started inside inherit it. A task that receives from a stream binds its own.
    """
    with structlog.contextvars.bound_contextvars(trace_id=trace_id):
        yield


def configure_logging(
    *,
    log_format: LogFormat = "auto",
    level: LogLevel = "auto",
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Send every log line to `stream` (stderr), as JSON or, with `auto` on a terminal, for people to read.

    Each of `secrets` that is no plain word is replaced by `[secret]` everywhere, tracebacks and libraries' lines
    included: such a value has no shape by which it could be recognised. Anything that looks like a key is masked,
    too. `level` "auto" is "info".
    """
    out = stream or sys.stderr
    pretty = log_format == "pretty" or (log_format == "auto" and out.isatty())
    render = (
        # Prettier tracebacks show the values of variables.
        structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
        if pretty
        else structlog.processors.JSONRenderer(default=str)
    )
    scrubbed = _SecretMaskingFormatter(
        secrets,
        foreign_pre_chain=_SHARED,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _mask_fields,
            render,
        ],
    )
    root = logging.getLogger()
    root.handlers[:] = [_SecretMaskingHandler(out, scrubbed)]
    root.setLevel("INFO" if level == "auto" else level.upper())
    for library in _LIBRARIES:
        logging.getLogger(library).setLevel(max(logging.WARNING, root.level))
    # It warns of every pipeline on a lost connection; the error that we raise says so, too.
    logging.getLogger("psycopg").setLevel(logging.ERROR)


def failure_level(error: BaseException, level: int = logging.WARNING) -> int:
    """Return the level for logging a failure. The loss of a lease has a line already, one for its shard."""
    return logging.DEBUG if isinstance(error, LeaseLostError) else level


def redact_text(text: str) -> str:
    """Mask anything that looks like a secret, and the secrets that `configure_logging` was given."""
    sink = _find_handler()
    return mask_secrets(sink.scrubbed.hide(text) if sink else text).text


def log_bug(error: BaseException) -> None:
    """Log the error that ends the process: the event `bug` with its traceback, at any log level.

    It goes to stderr as plain text before `configure_logging`, and if the sink itself fails. Raises nothing.
    """
    if sink := _find_handler():
        trace = (type(error), error, error.__traceback__)
        with suppress(Exception):
            sink.emit_or_raise(logging.LogRecord("intern", logging.CRITICAL, __file__, 0, "bug", None, trace))
            return
    with suppress(OSError, ValueError):
        sys.stderr.write(redact_text("".join(traceback.format_exception(error))))
        sys.stderr.flush()


class _SecretMaskingFormatter(structlog.stdlib.ProcessorFormatter):
    """The last step before the stream: removes secrets from the rendered line."""

    def __init__(self, secrets: Iterable[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hide = make_hider(secrets)

    def format(self, record: logging.LogRecord) -> str:
        return self.hide(super().format(record))


class _SecretMaskingHandler(logging.StreamHandler[TextIO]):
    """The sink of all lines."""

    def __init__(self, stream: TextIO, scrubbed: _SecretMaskingFormatter) -> None:
        super().__init__(stream)
        self.scrubbed = scrubbed
        self.setFormatter(scrubbed)

    def emit_or_raise(self, record: logging.LogRecord) -> None:
        """Emit a record, but raise errors: logging itself would print the record as it is, secrets and all."""
        self.acquire()
        try:
            self.stream.write(self.format(record) + self.terminator)
            self.flush()
        finally:
            self.release()


def _find_handler() -> _SecretMaskingHandler | None:
    handlers = logging.getLogger().handlers
    return next((handler for handler in handlers if isinstance(handler, _SecretMaskingHandler)), None)


def _mask_fields(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Mask field by field, before JSON escapes the text: a mask must not reach across two fields."""
    return {name: mask_nested(value, redact_text) for name, value in event.items()}


def _drop_color_message(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event.pop("color_message", None)
    return event


_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
    _drop_color_message,
]

_HANDED_ON = structlog.stdlib.ProcessorFormatter.wrap_for_formatter
PROCESSORS: list[Any] = [structlog.stdlib.filter_by_level, *_SHARED, _HANDED_ON]
"""The steps of our events on their way to the standard library's logging."""
