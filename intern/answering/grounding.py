"""What an answer claims beyond words: commands, versions, numbers, code. Held against the sources that it cites. Pure.

A model that invents does so most harmfully in what people copy. So a command line or a version must stand in a cited
source; other code and numbers that stand nowhere are pointed out to the verifying model, which decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

_FENCED = re.compile(
    r"^ {0,3}(?P<fence>`{3,}+|~{3,}+)(?P<info>[^\n`]*)\n(?P<code>.*?)(?:^ {0,3}(?P=fence)[^\n]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_SPAN = re.compile(r"(?P<ticks>`{1,2})(?!`)(?P<code>[^`\n]+)(?P=ticks)")
_URL = re.compile(r"[a-z][a-z0-9+.-]{0,30}://\S+", re.IGNORECASE)

_SHELLS = frozenset({"sh", "bash", "shell", "zsh", "fish", "powershell", "ps1", "pwsh", "cmd", "bat", "batch"})
_SESSIONS = frozenset({"", "console", "terminal", "shell-session", "sh-session", "text", "txt", "plain"})
_PROMPT = re.compile(r"\A\s*(?:[$>%]|PS [^>\n]*>)\s+")
# A program, by itself or by its path, and something after it. What assigns, opens a block or ends a sentence is none.
_COMMAND = re.compile(r"\A(?:\./|/|~/|[a-z])[\w./~+-]*(?:\s+(?![=:]|:=)\S.*)\Z")
_CHAINED = re.compile(r"\s*(?:&&|;)\s*")

# At the start of a line: the ordinal of a list, which is the answer's own.
_ORDINAL = re.compile(r"^[ \t>]*(?:[*+-][ \t]+)?\d{1,3}[.)](?=[ \t])", re.MULTILINE)
_UNIT = (  # what follows a quantity rather than a version
    r"(?!\s?(?:%|°|[kmgt]?i?b(?:it|yte)?s?\b|m?s\b|(?:milli)?sec|min|hour|day|week|month|year|px\b|[kmg]?hz\b|x\b|times\b))"
)
_VERSION = re.compile(
    r"(?<![\w.])(?:"
    r"v\d+(?:\.\d+)*(?:[-+.]?(?:alpha|beta|rc|dev|pre|post|b|a)[.-]?\d*)?"
    r"|\d+(?:\.\d+){2,}(?:[-+][0-9a-z][0-9a-z.-]*|(?:alpha|beta|rc|dev|b|a)\d+)?"
    rf"|(?<=[Vv]ersion )\d+(?:\.\d+)*|(?<=[Rr]elease )\d+(?:\.\d+)*|\d+\.\d+(?:rc\d+|b\d+|a\d+)?{_UNIT}"
    r")(?![\w]|\.\d)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?<![\w.,])\d++(?:[.,']\d++)*+")

# Of what an invention is shown to the verifier; an answer full of them needs no list to be refused.
_MOST_SUSPICIONS = 10
_LONGEST_SUSPICION = 200


class Grounding(Struct, frozen=True, kw_only=True):
    """How an answer stands to its sources, addresses apart."""

    strange_commands: tuple[str, ...] = ()
    """Command lines of the answer that stand in no cited source."""
    strange_versions: tuple[str, ...] = ()
    suspicions: tuple[str, ...] = ()
    """Other code and numbers that stand neither in a cited source nor in the conversation. Bounded."""

    @property
    def holds(self) -> bool:
        """Whether all commands and versions stand in a cited source."""
        return not (self.strange_commands or self.strange_versions)


def grounding(answer: str, cited: Iterable[str], conversation: Iterable[str]) -> Grounding:
    """Hold an answer against the texts of its cited sources. `conversation`: what the members said.

    Case, spacing, Markdown and a shell's prompt make no difference.
    """
    sources, said = [*cited], [*conversation]
    known = _Known(sources)
    anywhere = _Known([*sources, *said])
    commands = [*dict.fromkeys(_commands(answer))]
    strange = [command for command in commands if not all(map(known.holds, _parts(command, known)))]
    bare = _URL.sub(" ", answer)
    versions = [*dict.fromkeys(found[0] for found in _VERSION.finditer(bare))]
    codes = [code for code in _codes(answer) if code not in commands]
    suspicious = [code for code in dict.fromkeys(codes) if not anywhere.holds(code)]
    numbers = dict.fromkeys(_numbers(bare))
    suspicious += [number for number in numbers if number not in versions and not anywhere.holds_number(number)]
    return Grounding(
        strange_commands=tuple(strange),
        strange_versions=tuple(version for version in versions if not known.holds_version(version)),
        suspicions=tuple(each[:_LONGEST_SUSPICION] for each in suspicious[:_MOST_SUSPICIONS]),
    )


class _Known:
    """Texts to look in."""

    def __init__(self, texts: Iterable[str]) -> None:
        whole = "\n".join(texts)
        self._flat = f" {_flat(whole)} "
        self._versions = {_version(found[0]) for found in _VERSION.finditer(whole)}
        self._numbers = {_number(found[0]) for found in _NUMBER.finditer(whole)}

    def holds(self, code: str) -> bool:
        """Whether a piece of code stands there, not as part of a longer word."""
        flat = _flat(code)
        at = self._flat.find(flat)
        while flat and at >= 0:
            if not (_joins(self._flat[at - 1], flat[0]) or _joins(flat[-1], self._flat[at + len(flat)])):
                return True
            at = self._flat.find(flat, at + 1)
        return not flat

    def holds_version(self, version: str) -> bool:
        """Whether that very version stands there."""
        return _version(version) in self._versions or _version(version) in self._numbers

    def holds_number(self, number: str) -> bool:
        """Whether that number stands there, be it within a version or an address."""
        return _number(number) in self._numbers or self.holds(number)


def _commands(answer: str) -> Iterator[str]:
    """The command lines of an answer, without the shell's prompt."""
    for block in _FENCED.finditer(answer):
        language = block["info"].strip().partition(" ")[0].casefold()
        for line in _lines(block["code"]):
            if language in _SHELLS or _PROMPT.match(line) or (language in _SESSIONS and _is_command(line)):
                yield _bare(line)
    for span in _SPAN.finditer(_FENCED.sub("\n", answer)):
        if _PROMPT.match(span["code"]) or _is_command(span["code"].strip()):
            yield _bare(span["code"])


def _codes(answer: str) -> Iterator[str]:
    """All code of an answer: the lines of its blocks, and its spans."""
    for block in _FENCED.finditer(answer):
        yield from map(_bare, _lines(block["code"]))
    for span in _SPAN.finditer(_FENCED.sub("\n", answer)):
        yield _bare(span["code"])


def _lines(code: str) -> Iterator[str]:
    """The lines of a block that say something, joined where a backslash does; comments say nothing."""
    for line in re.sub(r"[ \t]*\\\n[ \t]*", " ", code).split("\n"):
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()


def _bare(code: str) -> str:
    return _PROMPT.sub("", code).strip()


def _is_command(code: str) -> bool:
    return bool(_COMMAND.match(code)) and not code.endswith((".", "?", "!", "{", ",")) and not _URL.match(code)


def _parts(command: str, known: _Known) -> list[str]:
    """What must stand in a source: the whole line, or else each command of a chain."""
    return [command] if known.holds(command) else [part for part in _CHAINED.split(command) if part]


def _numbers(bare: str) -> Iterator[str]:
    return (found[0] for found in _NUMBER.finditer(_ORDINAL.sub("", bare)))


def _flat(text: str) -> str:
    """The text as far as it matters: case, spacing, emphasis, code marks and continued lines do not."""
    joined = re.sub(r"[ \t]*\\\r?\n[ \t]*", " ", text)
    unmarked = re.sub(r"\*\*|\\(?=[-_*#.`])", "", joined.replace("`", " "))
    return " ".join(unmarked.casefold().split())


def _version(text: str) -> str:
    return text.casefold().removeprefix("v")


def _number(text: str) -> str:
    return re.sub(r"[,']", "", text)


def _joins(left: str, right: str) -> bool:
    """Whether two signs belong to one word."""
    return (left.isalnum() or left in "_-") and (right.isalnum() or right in "_-")
