"""Rules of markdown-it for the blocks that site builders add to Markdown.

Each makes `part_open` and `part_close` (tag and attributes: the element; content: a title), or `left_out` (info: why).
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from markdown_it.token import Token

from intern.documents.admonitions import REMARKS, default_admonition_title
from intern.documents.directives import directive_kind, has_title, is_part

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.ruler import RuleOptionsType
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_core import StateCore
    from markdown_it.rules_inline import StateInline

DEEPEST = 100
"""The deepest nesting of blocks; lists count twice. The time that parsers take grows with its square."""

# MkDocs: `!!! note "Title"`, `??? question "Title"`, `=== "Tab"`; the content is indented.
_INDENTED = re.compile(r"""(!!!|\?\?\?\+?|===[+!]?)[ ]+(?:([\w-]+)(?:[ ]+[\w-]+)*[ ]*)?(?:"(.*)")?[ ]*""")
# Docusaurus, VitePress, MyST, Quarto: `:::tip Title`, `:::tip[Title]`, `:::{note} Title`, `::: {.callout-tip}`; MyST
# also writes them as a fence.
_FENCE = re.compile(r"(:{3,}|`{3,}|~{3,})[ \t]*([^\n`]*)")
_CONTAINER = re.compile(
    r"(?:\{(?P<directive>\w[\w:+.-]*)\}|\{[ ]*(?:[#][\w-]+[ ]+)?\.(?P<class>[\w-]+)(?P<attrs>[^{}]*)\}"
    r"|(?P<name>[\w-]+))"
    r"[ ]*(?:\[(?P<bracketed>[^\[\]]*)\]|(?P<title>[^{}]*))(?:\{[^{}]*\})?[ ]*"
)
# GitBook, Jekyll, Zola: `{% tab title="x" %}`; Hugo: `{{< tab "x" >}}`, `{{% notice note %}}`.
_TAG = re.compile(r"\{%-?[ ]*(?P<liquid>[^{}\n]{0,2000}?)[ ]*-?%\}|\{\{[<%][ ]*(?P<hugo>[^{}]{0,2000}?)[ ]*[>%]\}\}")
_NAME = re.compile(r"(?s)(?P<end>end|/[ ]*)?(?P<name>[\w-]+)[ ]*(?P<rest>.*)")
# MDX: `<TabItem value="x">`; names of HTML have no small letters after a capital one.
_COMPONENT = re.compile(
    r"""(?x)<(?P<end>/?)(?P<name>[A-Z][\w.]*[a-z][\w.]*)
    (?P<rest>(?:[^<>{}"']|"[^"]{0,2000}"|'[^']{0,2000}'|\{(?:[^{}]|\{[^{}]{0,2000}\}){0,2000}+\}){0,2000}+)>"""
)
_ATTRIBUTE = re.compile(
    r"""(?P<name>[\w-]+)[ ]*=[ ]*(?:"(?P<a>[^"]*)"|'(?P<b>[^']*)'|\{["'`](?P<c>[^"'`{}]*)["'`]\}|(?P<d>[^\s"'{}]+))"""
    r"""|"(?P<e>[^"]*)"|'(?P<f>[^']*)'|(?P<g>[\w-]+)"""
)
_TITLED = ("title", "name", "header", "label", "summary", "text", "tabname", "")
_STYLED = ("style", "type", "kind", "color", "")
_OPTION = re.compile(r"[ ]*:([\w-]{1,40}):[ ]*(.*)")
_LINE_START = re.compile(r"[\s>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?")
# Of MDX, Hugo and Liquid. All repetitions are bounded, since each possible beginning starts a search for its end.
_COMMENT = re.compile(
    r"(?s)\{\{?[<%]?[ ]*/\*[^*]{0,5000}+(?:\*(?!/)[^*]{0,5000}+){0,200}+\*/[ ]*[>%]?\}?\}"
    r"|\{%-?[ ]*comment\b.{0,5000}?endcomment[ ]*-?%\}"
)
_IMPORT = re.compile(
    r"""import\s+(?:[\w{}*,$\s]+\sfrom\s+)?["'][^"'\n]+["'];?\s*|export\s+(?:default|const|let|var|function|async|\{).*"""
)
_ATTRS_LINE = re.compile(r"\{:[^{}\n]*\}\s*")
_NO_TEXT = re.compile(
    r"(?i)\[TOC\]|\[\[_?TOC_?\]\]|-{1,2}8<-{1,2}.*|\*\[[^\]]+\]:.*|\\(?:new|clear)page|%[ ].*|\([\w:. -]+\)=|<!---?>"
)
_BRACKET = re.compile(r"[\[\]]")
_MOST_BRACKETS = 100
_SIGNS = frozenset(":<{`~")
_ALERTS = frozenset({"notice", "hint", "alert", "admonition", "callout", "admonish"})
_VERBATIM = frozenset({"highlight", "comment", "raw", "verbatim", "codeblock"})


class _PartMarker(NamedTuple):
    """A line that begins or ends a part."""

    key: str
    """The same at its beginning and its end."""
    name: str
    title: str
    attrs: dict[str, str]
    after: int
    """The position of the text behind it."""
    ends: bool = False
    is_alone: bool = False
    """It cannot have content."""


def add_rules(parser: MarkdownIt) -> None:
    """Add all rules to a parser."""
    alternatives: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    parser.block.ruler.before("table", "depth", _check_depth, {"alt": []})
    for name, rule in (("indented", _read_indented), ("part", _read_part), ("unshown", _read_unshown)):
        parser.block.ruler.before("fence", name, rule, alternatives)
    parser.inline.ruler.before("html_inline", "builder", _read_inline)
    parser.core.ruler.at("inline", _parse_inline)


def _check_depth(state: StateBlock, _start: int, _end: int, _silent: bool) -> bool:  # noqa: FBT001 as markdown-it calls it
    """Refuse nesting that the parser would leave out silently."""
    if state.level >= DEEPEST:
        raise ValueError(f"its blocks are nested more than {DEEPEST} deep")
    return False


def _line_text(state: StateBlock, n: int) -> str:
    return state.src[state.bMarks[n] + state.tShift[n] : state.eMarks[n]]


def _first_sign(state: StateBlock, n: int) -> str:
    at = state.bMarks[n] + state.tShift[n]
    return state.src[at] if at < state.eMarks[n] else "\n"


def _leave_out(state: StateBlock | StateInline, text: str, reason: str) -> None:
    token = state.push("left_out", "", 0)
    token.content, token.info = text, reason


def _write_part(state: StateBlock, mark: _PartMarker, start: int, first: int, last: int) -> None:
    """Write a part that begins in a line; its content is the lines from `first` to before `last`, as blocks."""
    title, attrs = mark.title.strip(), dict[str, str]()
    tag: str = directive_kind(mark.name)
    if mark.key.startswith("<"):
        tag, attrs = mark.name, mark.attrs
    elif tag == "aside":
        attrs, title = {"class": "admonition", "title": title or default_admonition_title(mark.name)}, ""
    elif tag == "tab":
        attrs, title = {"label": title}, ""
    else:
        title = title if tag != "figure" and has_title(mark.name) else ""
        tag = "details" if tag == "details" else "section"
    token = state.push("part_open", tag, 1)
    token.content, token.map, token.attrs = title, [start, first], {**attrs}
    token.meta = {"items": [name.strip() for name in mark.attrs.get("items", "").split(",") if name.strip()]}
    within = [state.sCount[n] for n in range(first, last) if not state.isEmpty(n)]
    kept = state.lineMax, state.parentType, state.blkIndent
    state.lineMax, state.parentType, state.blkIndent = last, "container", min(within, default=state.blkIndent)
    state.md.block.tokenize(state, first, last)
    state.lineMax, state.parentType, state.blkIndent = kept
    token = state.push("part_close", tag, -1)
    token.map = [max(last - 1, start), last]


def _read_indented(state: StateBlock, start: int, end: int, silent: bool) -> bool:  # noqa: FBT001
    if _first_sign(state, start) not in "!?=" or not (found := _INDENTED.fullmatch(_line_text(state, start))):
        return False
    sign, name, title = found[1].rstrip("+!"), found[2] or "", found[3]
    if not name and title is None:
        return False
    if silent:
        return True
    last = after = start + 1
    while after < end and (state.isEmpty(after) or state.sCount[after] >= state.sCount[start] + 2):
        after += 1
        last = last if state.isEmpty(after - 1) else after
    # A title gives a foldable part a heading, which an admonition does not have.
    name = "tab" if sign == "===" else "details" if sign == "???" and title else name or "note"
    _write_part(state, _PartMarker("", name, title or "", {}, 0), start, start + 1, last)
    state.line = last
    return True


def _read_part(state: StateBlock, start: int, end: int, silent: bool) -> bool:  # noqa: FBT001
    """Read a part that has a line at its beginning, and one at its end."""
    if _first_sign(state, start) not in ":<{`~":
        return False
    mark = _parse_marker(state.src, state.bMarks[start] + state.tShift[start])
    if mark is None or (mark.ends and mark.key[0] in "`~:"):
        return False
    if silent:
        return True
    if "pairs" not in state.env:
        state.env["pairs"] = _pair_lines(state.src)
    first = next(n for n in range(start, end) if state.eMarks[n] >= mark.after or n == end - 1) + 1
    close = state.env["pairs"].get(start)
    if close is None and mark.key[0] in "`~:":
        close = end  # an unclosed part ends with the text
    state.line = first
    if mark.key[0] == "<" and (close is None or mark.ends):
        _write_part(state, mark, start, first, first)
    elif close is None or mark.ends or mark.is_alone:
        _leave_out(state, state.src[state.bMarks[start] + state.tShift[start] : mark.after], "a builder's tag")
    else:
        close = min(close, end)
        _read_between(state, mark, start, first, close)
        state.line = min(close + 1, end)
    return True


def _read_between(state: StateBlock, mark: _PartMarker, start: int, first: int, close: int) -> None:
    options: dict[str, str] = {}
    is_directive = mark.attrs.get("directive")
    if is_directive and first < close and _line_text(state, first) == "---":
        first = next((n + 1 for n in range(first + 1, close) if _line_text(state, n) == "---"), first)
    while is_directive and first < close and (option := _OPTION.fullmatch(_line_text(state, first))):
        options[option[1]], first = option[2], first + 1
    name = mark.name.rpartition(":")[2]
    kind = directive_kind(name) if is_directive or name in _VERBATIM else ""
    body = state.getLines(first, close, state.sCount[start], True) if kind in {"code", "left_out"} else ""
    if kind == "code":
        token = state.push("code_block", "", 0)
        token.content, token.map = body, [start, min(close + 1, state.lineMax)]
        token.info = mark.title.split()[0] if mark.title.split() and name != "math" else ""
        token.meta = {"title": options.get("caption", "")}
    elif kind == "left_out" or name == "comment":
        _leave_out(state, f"{mark.title}\n{body}", "a comment" if name == "comment" else f"the directive {name}")
    elif mark.name == "panel-tabset":
        _read_panels(state, start, first, close)
    else:
        _write_part(state, mark, start, first, close)


def _read_panels(state: StateBlock, start: int, first: int, last: int) -> None:
    """Read Quarto's tabs: each begins with a heading."""
    starts = [n for n in range(first, last) if _line_text(state, n).startswith("#")]
    level = min((_line_text(state, n).partition(" ")[0] for n in starts), default="")
    starts = [n for n in starts if _line_text(state, n).partition(" ")[0] == level]
    _write_part(state, _PartMarker("", "container", "", {}, 0), start, first, starts[0] if starts else last)
    for n, end in pairwise([*starts, last]):
        _write_part(state, _PartMarker("", "tab", _line_text(state, n).lstrip("# "), {}, 0), n, n + 1, end)


def _pair_lines(text: str) -> dict[int, int]:
    """Return the lines where parts end by those where they begin, in one pass: scans from each would be quadratic."""
    pairs: dict[int, int] = {}
    opened: list[tuple[str, int]] = []
    count: Counter[str] = Counter()
    at, fence = 0, ""
    for n, line in enumerate(text.split("\n")):
        begins = _LINE_START.match(line)
        start = at + (begins.end() if begins else 0)
        at += len(line) + 1
        if text[start : start + 1] not in _SIGNS:
            continue
        mark = _parse_marker(text, start)
        if fence or mark is None or (mark.ends and mark.key[0] in "`~" and not count[mark.key]):
            fence = _fence_after(fence, text, start)
        elif not mark.ends and not mark.is_alone:
            opened.append((mark.key, n))
            count[mark.key] += 1
        elif count[mark.key]:
            key = ""
            while key != mark.key:  # open parts inside end, too
                key, begin = opened.pop()
                count[key] -= 1
                if key == mark.key or key[0] in "`~:":
                    pairs[begin] = n
    return pairs


def _fence_after(fence: str, text: str, start: int) -> str:
    """Return the fence of the code that a line is in, or begins; empty after its end."""
    found = _FENCE.match(text, start)
    if found is None or found[1][0] == ":":
        return fence
    if not fence:
        return found[1]
    return "" if found[1].startswith(fence) and not found[2].strip() else fence


def _parse_marker(text: str, start: int) -> _PartMarker | None:
    """Return the part that begins or ends in a line, if the line contains nothing else."""
    mark: _PartMarker | None = None
    if text[start] == "<":
        if found := _COMPONENT.match(text, start):
            attrs = _parse_attributes(found["rest"])
            name = found["name"].lower()
            mark = _PartMarker(
                f"<{name}", name, "", attrs, found.end(), bool(found["end"]), found["rest"].endswith("/")
            )
    elif text[start] == "{":
        mark = _parse_tag(text, start)
    elif found := _FENCE.match(text, start):
        mark = _parse_container(found[1], found[2].strip(), found.end())
    rest = text.find("\n", mark.after) if mark else 0
    return None if mark is None or text[mark.after : rest if rest >= 0 else len(text)].strip() else mark


def _parse_container(fence: str, info: str, after: int) -> _PartMarker | None:
    if not info:
        return _PartMarker(fence, "", "", {}, after, ends=True)
    found = _CONTAINER.fullmatch(info)
    if not found or (fence[0] != ":" and not (found["directive"] and is_part(found["directive"]))):
        return None
    name = found["directive"] or (found["class"] or found["name"]).removeprefix("callout-")
    attrs = _parse_attributes(found["attrs"] or "")
    title = found["bracketed"] or found["title"] or attrs.get("title", "")
    return _PartMarker(fence, name, title, {"directive": name} if found["directive"] else {}, after)


def _parse_tag(text: str, start: int) -> _PartMarker | None:
    found = _TAG.match(text, start)
    parts = _NAME.fullmatch(found["liquid"] if found["liquid"] is not None else found["hugo"]) if found else None
    if not found or not parts:
        return None
    name, attrs = parts["name"].lower(), _parse_attributes(parts["rest"])
    title = next((attrs[key] for key in _TITLED if attrs.get(key)), "")
    shown = "container" if name in {"raw", "verbatim"} else name
    if name in _ALERTS:
        shown = next((attrs[key] for key in _STYLED if attrs.get(key) in REMARKS), "note")
        title = attrs.get("title", "")
    is_alone = parts["rest"].endswith("/") or not (is_part(name) or name in _ALERTS or name in _VERBATIM)
    return _PartMarker(f"%{name}", shown, title, attrs, found.end(), bool(parts["end"]), is_alone)


def _parse_attributes(text: str) -> dict[str, str]:
    """Return the attributes of a tag; the first one without a name has the empty name."""
    attrs: dict[str, str] = {}
    for found in _ATTRIBUTE.finditer(text):
        value = next((found[key] for key in "abcdefg" if found[key] is not None), "")
        attrs.setdefault((found["name"] or "").lower(), value)
    return attrs


def _read_unshown(state: StateBlock, start: int, end: int, silent: bool) -> bool:  # noqa: FBT001
    """Leave out imports, attributes and marks that are replaced by something else."""
    first = _first_sign(state, start)
    if first not in "ie{[-*\\%(":
        return False
    line, last, reason = _line_text(state, start), start + 1, "a builder's mark"
    if first in "ie":
        if state.sCount[start] or not _IMPORT.fullmatch(line):
            return False
        while last < end and not state.isEmpty(last):
            last += 1
        reason = "an import"
    elif first == "{" and (found := _COMMENT.match(state.src, state.bMarks[start] + state.tShift[start])):
        last = next((n + 1 for n in range(start, end) if state.eMarks[n] >= found.end()), end)
        if state.src[found.end() : state.eMarks[last - 1]].strip():
            return False
        reason = "a comment"
    elif not (_ATTRS_LINE.fullmatch(line) or _NO_TEXT.fullmatch(line)):
        return False
    if not silent:
        _leave_out(state, state.getLines(start, last, 0, False), reason)
        state.line = last
    return True


def _read_inline(state: StateInline, silent: bool) -> bool:  # noqa: FBT001
    """Leave out a builder's tag or a comment in a text."""
    if state.src[state.pos] != "{":
        return False
    patterns = (_COMMENT, _TAG, _ATTRS_LINE)
    found = next(filter(None, (each.match(state.src, state.pos) for each in patterns)), None)
    if found and not silent:
        _leave_out(state, found[0], "a builder's tag")
    state.pos = found.end() if found else state.pos
    return found is not None


def _parse_inline(state: StateCore) -> None:
    """Parse the text of blocks; one that brackets nest in deeply stays as it is, as the time grows with the square."""
    for token in state.tokens:
        if token.type == "inline" and _is_tangled(token.content):
            token.children = [Token("text", "", 0, content=token.content)]
        elif token.type == "inline":
            token.children = []
            state.md.inline.parse(token.content, state.md, state.env, token.children)


def _is_tangled(text: str) -> bool:
    depth = deepest = 0
    for sign in _BRACKET.findall(text) if text.count("[") > _MOST_BRACKETS else ():
        depth = max(depth + (1 if sign == "[" else -1), 0)
        deepest = max(deepest, depth)
    return deepest > _MOST_BRACKETS
