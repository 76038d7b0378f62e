"""The lines of an AsciiDoc text: with those that it includes, without those below conditions that do not hold."""

from __future__ import annotations

import operator
import posixpath
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from intern.core.text.patterns import regex
from intern.documents.writer import DocumentWriter

Read = Callable[[str], str | None]
"""Returns the text of a file of the folder by its path there; None if there is none."""

_DEEPEST = 16
_MOST_ADDED = 1_000_000  # characters, by attributes and includes
_LEAST_ADDED = 500  # that each include counts for, be it empty

_DIRECTIVE = regex(r"(\\?)(include|ifdef|ifndef|ifeval|endif)::([^\[]{0,500})\[(.*)\]\s*")
_REFERENCE = regex(r"(\\?)\{(\w[\w-]*)\}")
_LINE_ENDS = regex(r"\r\n?|\n")
_COMPARISON = regex(r"\s*(\S.{0,500}?)\s*(==|!=|<=|>=|<|>)\s*(\S.{0,500}?)\s*")
_OPTION = regex(r"""(\w+)\s*=\s*(?:"([^"]*)"|([^,]*))""")
_TAGGED = regex(r"\b(tag|end)::([\w.-]{1,100})\[\]")
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
# As references, which are resolved after AsciiDoc was read: some of these signs mean something to it.
_SIGNS = """
nbsp=160 zwsp=8203 wj=8288 deg=176 brvbar=166 lsquo=8216 rsquo=8217 ldquo=8220 rdquo=8221 apos=39 quot=34 plus=43 amp=38
lt=60 gt=62 startsb=91 endsb=93 caret=94 asterisk=42 tilde=126 backslash=92 backtick=96
"""
_BUILT_IN = {
    **{name: f"&#{code};" for name, code in (each.split("=") for each in _SIGNS.split())},
    **dict.fromkeys(("cpp", "cxx"), "C&#43;&#43;"),
    "pp": "&#43;&#43;",
    "vbar": "|",
    "sp": " ",
    "two-colons": "::",
    "two-semicolons": ";;",
    "litdd": "--",
    "backend": "html5",
    "basebackend": "html",
    **dict.fromkeys(("backend-html5", "basebackend-html", "asciidoctor", "empty", "blank"), ""),
}


_ITEM = regex(
    r"\s*(?P<marker>\*{1,10}|-|\.{1,10}|•|\d{1,5}\.|[a-zA-Z]\.|[ivxIVX]{1,8}\)|<(?:\d{1,3}|\.)>)\s+(?P<rest>\S.*)"
    r"|\s*(?P<term>\S.*?)(?P<colons>(?<!:):{2,4}|;;)(?:\s+(?P<text>.*))?"
)


class Line(NamedTuple):
    """A line; those of another file have the number of the line that includes them."""

    number: int
    text: str
    shift: int = 0
    """Levels by which a heading there is moved."""


class Attributes(dict[str, str]):
    """The attributes that a text has set so far. What they add to it is bounded."""

    def __init__(self) -> None:
        super().__init__(_BUILT_IN)
        self._room = _MOST_ADDED

    def spend(self, size: int) -> None:
        """Count characters that are added. Raises ValueError where they are too many."""
        self._room -= size
        if self._room < 0:
            raise ValueError(f"its attributes and includes add more than {_MOST_ADDED} characters")

    def expand(self, text: str) -> str:
        """Return the text with the values of attributes in the places of their names."""
        return _REFERENCE.sub(self._value, text) if "{" in text else text

    def _value(self, found: re.Match[str]) -> str:
        if found[1]:
            return found[0][1:]
        value = self.get(found[2].lower(), found[0])
        self.spend(len(value))
        return value


class ListItem(NamedTuple):
    """The line that an item of a list begins with."""

    key: str
    """The same for all items of a list."""
    marker: str
    rest: str
    term: str | None = None


def item_of(text: str) -> ListItem | None:
    """Return the item of a list that a line begins."""
    if not (found := _ITEM.fullmatch(text)) or text.startswith("//"):
        return None
    if found["colons"]:
        return ListItem(found["colons"], "", (found["text"] or "").strip(), found["term"])
    marker = found["marker"]
    kind = "1" if marker[0].isdecimal() else "<" if marker[0] == "<" else "a" if marker[0].islower() else "A"
    key = marker if marker[0] in "*-.•" else f"{kind}{marker[-1]}"
    shown = "" if marker[0] == "." or marker == "<.>" else "-" if marker[0] in "*-•" else f"{marker.strip('<>.')}."
    return ListItem(key, shown if marker[-1] != ")" else marker, found["rest"])


class _Source(NamedTuple):
    lines: Iterator[Line]
    path: str
    depth: int


class LineReader:
    """Gives one line after the other. Attributes count as they are when a line is first looked at."""

    def __init__(
        self,
        lines: Iterable[Line],
        attributes: Attributes,
        writer: DocumentWriter,
        read: Read | None = None,
        path: str = "",
    ) -> None:
        self._attributes = attributes
        self._writer = writer
        self._read = read
        self._sources = [_Source(iter(lines), path, 0)]
        self._ready: deque[Line] = deque()
        self._conditions: list[bool] = []
        self._off = 0
        self._skipped: list[str] = []

    def peek(self, ahead: int = 0) -> Line | None:
        """Return the next line, or one after it, without taking it; None at the end."""
        while len(self._ready) <= ahead and self._sources:
            line = next(self._sources[-1].lines, None)
            if line is None:
                self._sources.pop()
                continue
            directive = _DIRECTIVE.fullmatch(line.text) if "::" in line.text else None
            if directive and not directive[1]:
                self._obey(line, directive[2], directive[3].strip(), directive[4])
            elif self._off:
                self._skipped.append(line.text)
            else:
                self._ready.append(line._replace(text=line.text[1:]) if directive else line)
        if not self._sources:
            self._leave_out_skipped()
        return self._ready[ahead] if len(self._ready) > ahead else None

    def pop(self) -> Line:
        """Take the next line, which is there."""
        return self._ready.popleft()

    def _obey(self, line: Line, name: str, target: str, options: str) -> None:
        if name == "endif":
            self._off -= bool(self._conditions) and not self._conditions.pop()
            if not self._off:
                self._leave_out_skipped()
        elif name == "include":
            if self._off:
                self._skipped.append(line.text)
            elif reason := self._include(line, self._attributes.expand(target), options):
                self._writer.leave_out(line.text, reason)
        else:
            holds = self._compares(options) if name == "ifeval" else self._is_set(target) == (name == "ifdef")
            if not options or name == "ifeval":
                self._conditions.append(holds)
                self._off += not holds
            elif holds and not self._off and len(self._sources) < 4 * _DEEPEST:
                above = self._sources[-1]
                self._sources.append(above._replace(lines=iter([line._replace(text=options)])))
            else:
                self._skipped.append(options)

    def _leave_out_skipped(self) -> None:
        self._writer.leave_out("\n".join(self._skipped), "it stands below a condition that does not hold")
        self._skipped = []

    def _is_set(self, names: str) -> bool:
        if "+" in names:
            return all(name.strip().lower() in self._attributes for name in names.split("+"))
        return any(name.strip().lower() in self._attributes for name in names.split(","))

    def _compares(self, expression: str) -> bool:
        if not (found := _COMPARISON.fullmatch(expression)):
            return False
        sides = [_REFERENCE.sub("", self._attributes.expand(side)).strip("\"'") for side in (found[1], found[3])]
        try:
            return _COMPARED[found[2]](*map(float, sides))
        except ValueError:
            return _COMPARED[found[2]](*sides)

    def _include(self, line: Line, target: str, options: str) -> str:
        """Go on with the lines of another file; return why not if it cannot be."""
        above = self._sources[-1]
        if target.startswith("/") or ":" in target:
            return "an include from elsewhere"
        path = posixpath.normpath(posixpath.join(posixpath.dirname(above.path), target))
        if above.depth >= _DEEPEST:
            return f"an include more than {_DEEPEST} deep"
        text = None if path.startswith("..") or self._read is None else self._read(path)
        if text is None:
            return "an include that is not in the folder"
        try:
            self._attributes.spend(max(len(text), _LEAST_ADDED))
        except ValueError:
            return "an include beyond the size allowed"
        chosen = {found[1]: found[2] or found[3] for found in _OPTION.finditer(options)}
        offset = self._attributes.expand(chosen.get("leveloffset", "")).strip()
        shift = line.shift + int(offset) if offset.lstrip("+-").isdecimal() else line.shift
        rows = _choose(_LINE_ENDS.split(text), chosen.get("lines", ""), chosen.get("tag", "") or chosen.get("tags", ""))
        lines = (Line(line.number, row, shift) for row in rows)
        self._sources.append(_Source(lines, path, above.depth + 1))
        return ""


def _choose(rows: list[str], numbers: str, tags: str) -> Iterator[str]:
    """Return the rows of these numbers (`1..3;7`), or between these tags; all by default, without the tags' own."""
    ranges = [part.partition("..") for part in numbers.replace(",", ";").split(";") if part.strip()]
    wanted, inside = set(tags.replace(",", ";").split(";")), set[str]()
    for n, row in enumerate(rows, 1):
        if found := _TAGGED.search(row):
            inside = inside | {found[2]} if found[1] == "tag" else inside - {found[2]}
        elif ranges:
            if any(_number(a, 1) <= n <= (_number(b, len(rows)) if dots else _number(a, 0)) for a, dots, b in ranges):
                yield row
        elif not tags or wanted & inside or "**" in wanted or ("*" in wanted and inside):
            yield row


def _number(text: str, other: int) -> int:
    return int(text) if text.strip().isdecimal() else other
