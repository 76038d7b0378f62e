"""robots.txt as RFC 9309 has it: our group of rules, the longest match wins, `*` and `$` mean something. Pure.

The standard library's parser knows neither, and takes the first match. Hostile rules cost no more than their length.
"""

from __future__ import annotations

from typing import NamedTuple, Self
from urllib.parse import quote, unquote

AGENT = "intern"
"""Our name in robots.txt."""
LARGEST = 500 * 1024
"""Bytes that are read of a robots.txt; the standard wants no less."""

_MOST_RULES = 5000
_LONGEST_DELAY = 5.0  # seconds; whoever wants more would hold up all other sites' pages


class _Rule(NamedTuple):
    pattern: str
    allows: bool

    def matches(self, path: str) -> bool:
        pieces = self.pattern.removesuffix("$").split("*")
        if not path.startswith(pieces[0]):
            return False
        at = len(pieces[0])
        for piece in pieces[1:]:
            found = path.find(piece, at)
            if found < 0:
                return False
            at = found + len(piece)
        if not self.pattern.endswith("$"):
            return True
        return at == len(path) if len(pieces) == 1 else path.endswith(pieces[-1])


class Robots(NamedTuple):
    """What a site allows us."""

    rules: tuple[_Rule, ...] = ()
    delay: float = 0.0
    """Seconds that it wants between two requests."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Our group, or the one for everybody; a line that makes no sense is passed over."""
        ours: list[_Rule] = []
        everybody: list[_Rule] = []
        delays = {AGENT: 0.0, "*": 0.0}
        named = False
        agents: set[str] = set()
        in_rules = False
        for line in text.splitlines():
            key, colon, value = line.partition("#")[0].partition(":")
            key, value = key.strip().lower(), value.strip()
            if not colon:
                continue
            if key == "user-agent":
                agents = set() if in_rules else agents
                in_rules = False
                agent = value.partition("/")[0].strip().lower()
                agents.add(agent)
                named = named or agent == AGENT
            elif key in {"allow", "disallow", "crawl-delay"}:
                in_rules = True
                for group, rules in ((AGENT, ours), ("*", everybody)):
                    if group not in agents:
                        continue
                    if key == "crawl-delay":
                        delays[group] = _seconds(value)
                    elif value and len(rules) < _MOST_RULES:
                        rules.append(_Rule(_plain(value), key == "allow"))
        return cls(tuple(ours), delays[AGENT]) if named else cls(tuple(everybody), delays["*"])

    def allows(self, target: str) -> bool:
        """Whether we may ask for this path and query."""
        path = _plain(target)
        matching = [rule for rule in self.rules if rule.matches(path)]
        return max(matching, key=lambda rule: (len(rule.pattern), rule.allows)).allows if matching else True


NOBODY = Robots((_Rule("/", allows=False),))
"""A site that cannot say what it allows."""


def _plain(path: str) -> str:
    """One spelling for what may be percent-encoded."""
    return quote(unquote(path, errors="replace"), safe="/?&=*$;,:@!+'()~-._%#[]")


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), _LONGEST_DELAY) if seconds == seconds else 0.0  # noqa: PLR0124 NaN is not itself
