"""Heavy regular expressions, compiled at their first use.

Six modules have half of the time that all patterns take: 37 of 69 ms of CPU, and a start takes 1.2 s.
"""

from __future__ import annotations

import re
from typing import AnyStr, Generic, cast


def regex(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return an object with the methods of a compiled pattern, compiled at the first use of one.

    A wrong pattern raises re.error there. The functions of `re` do not take it: call its own methods.
    """
    return cast("re.Pattern[AnyStr]", _LazyPattern(pattern, flags))


class _LazyPattern(Generic[AnyStr]):
    def __init__(self, pattern: AnyStr, flags: int) -> None:
        self.pattern: AnyStr = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):  # attributes that copying and pickling look for
            raise AttributeError(name)
        found = getattr(re.compile(self.pattern, self._flags), name)
        setattr(self, name, found)  # the next time it is found without this method
        return found
