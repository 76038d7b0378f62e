"""How a command ends: an error that the user can mend is one clear line, a bug is a traceback and exit code 70.

Neither shows a secret that logging knows of; where logging is set up, a bug is an event of the log.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from errno import EDQUOT, EIO, ENOSPC
from typing import NoReturn, cast

import click

from intern.core.errors import InternError, KnowledgeError

BUG = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 130  # 128 and SIGINT, as shells have it


class ReaderGoneError(Exception):
    """The reader of our output closed the pipe."""


def ending_well(work: Callable[[], object]) -> NoReturn:
    """Run `work` and leave the process with the exit code that its end deserves."""
    code = _code_of(work)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            _let_go(stream.fileno())
            code = code or _code_for(error)
    if code == INTERRUPTED:
        # A thread may still wait for the keyboard, and Python would wait for it. All else is put away by now.
        os._exit(code)
    sys.exit(code)


def _code_of(work: Callable[[], object]) -> int:
    try:
        code = work()
    except SystemExit as end:
        code = end.code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        code = INTERRUPTED
    except BaseException as error:  # noqa: BLE001 the last word of the process; what is no InternError is shown whole
        code = _code_for(error)
    return code if isinstance(code, int) else 0


def _code_for(error: BaseException) -> int:
    leaves = [_of_the_disk(leaf) or leaf for leaf in _leaves(error)]
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return INTERRUPTED
    bugs = [leaf for leaf in leaves if not isinstance(leaf, InternError | BrokenPipeError | ReaderGoneError)]
    if bugs:
        _tell_bug(error)
        return BUG
    known = [leaf for leaf in leaves if isinstance(leaf, InternError)]
    return _say(known) if known else 0


def _tell_bug(error: BaseException) -> None:
    try:
        # As commands do it: `--help` needs no log.
        from intern.core.log import tell_bug
    except ImportError:  # what is missing may be the very bug; then no secret is known yet
        traceback.print_exception(error)
    else:
        tell_bug(error)


def _say(errors: Iterable[InternError]) -> int:
    from intern.core.log import redacted

    said: dict[str, int] = {redacted(str(error)): error.exit_code for error in errors}
    for line in said:
        print(f"intern: {line}", file=sys.stderr)
    return min(said.values())


def _of_the_disk(error: BaseException) -> KnowledgeError | None:
    """Return the error of a full or broken disk, wherever it showed: our output may be a file."""
    if not isinstance(error, OSError) or error.errno not in {ENOSPC, EDQUOT, EIO}:
        return None
    return KnowledgeError(f"{error.filename or 'the output'} cannot be written ({error.strerror})")


def _let_go(fd: int) -> None:
    """Discard what may still be buffered, or Python complains of it at its very end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, fd)
    os.close(nowhere)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(inner)
    else:
        yield error
