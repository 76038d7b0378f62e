"""Heavy regular expressions are compiled at their first use, and each of ours can be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, cast

import pytest

import intern
from intern.core.text.patterns import _LazyPattern, regex


def test_a_pattern_is_compiled_when_it_is_first_used() -> None:
    wrong = regex("(")

    with pytest.raises(re.error, match="unterminated subpattern"):
        wrong.search("(")


def test_it_does_what_the_compiled_one_does() -> None:
    lamp = regex(r"l(am)p", re.IGNORECASE)

    assert lamp.sub(r"\1", "LAMP lamp") == "AM am"
    assert [found[1] for found in lamp.finditer("a lamp, a Lamp")] == ["am", "am"]
    assert (lamp.pattern, lamp.groups, lamp.flags & re.IGNORECASE) == (r"l(am)p", 1, re.IGNORECASE)


def test_every_pattern_of_a_module_can_be_compiled() -> None:
    modules = [module.name for module in walk_packages(intern.__path__, "intern.") if "__main__" not in module.name]

    ours = {name: [*_patterns(list(vars(import_module(name)).values()))] for name in modules}

    wrong = [f"{name}: {each.pattern}" for name, patterns in ours.items() for each in patterns if not _compiles(each)]
    assert wrong == []
    assert len({pattern for patterns in ours.values() for pattern in patterns}) > 120


def _compiles(pattern: re.Pattern[Any]) -> bool:
    with suppress(re.error):
        return pattern.groups >= 0
    return False


def _patterns(value: object) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, _LazyPattern):
        yield cast("re.Pattern[Any]", value)
    elif isinstance(value, tuple | list):
        for each in cast("Sequence[object]", value):
            yield from _patterns(each)
