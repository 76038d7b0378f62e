"""How a command ends: an error that somebody can mend is one clear line, a bug is a traceback and exit code 70."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn, cast

from intern.errors import InternError

BUG = 70  # EX_SOFTWARE of sysexits.h


def ending_well(work: Callable[[], object]) -> NoReturn:
    """Run `work` and leave the process with the exit code that its end deserves."""
    try:
        work()
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # noqa: BLE001 the last word of the process; what is no InternError is shown whole
        leaves = list(_leaves(error))
        if all(isinstance(leaf, InternError) for leaf in leaves):
            sys.exit(_say(leaf for leaf in leaves if isinstance(leaf, InternError)))
        traceback.print_exception(error)
        sys.exit(BUG)
    sys.exit(0)


def _say(errors: Iterator[InternError]) -> int:
    said: dict[str, int] = {str(error): error.exit_code for error in errors}
    for line in said:
        print(f"intern: {line}", file=sys.stderr)
    return min(said.values())


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(inner)
    else:
        yield error
