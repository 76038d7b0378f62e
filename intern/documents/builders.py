"""Rules of markdown-it for the blocks that site builders add to Markdown.

Each makes `part_open` and `part_close` (info: what it is; content: its title), or `left_out` (info: why).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from intern.core.text.patterns import regex

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline

DEEPEST = 60
"""Tokens that may be open at once: a list and its item are two."""

# MkDocs: `!!! note "Title"`, `??? question "Title"`, `=== "Tab"`; what belongs to it is indented.
_INDENTED = regex(r"""(!!!|\?\?\?\+?|===[+!]?)[ ]+(?:([\w-]+)(?:[ ]+[\w-]+)*[ ]*)?(?:"(.*)"|(.*?))[ ]*""")
# Containers: `:::tip Title`, `:::tip[Title]`, `:::{note} Title`, `::: {.callout-tip title="Title"}`.
_COLONS = regex(r"(:{3,})[ ]*(.*)")
_CONTAINER = regex(
    r"(?:\{(?P<directive>[\w:+-]+)\}|\{\.?(?P<class>[\w-]+)(?P<attrs>[^{}]*)\}|(?P<name>[\w-]+))?"
    r"[ ]*(?:\[(?P<bracketed>[^\[\]]*)\]|(?P<title>[^{}]*))?(?:\{[^{}]*\})?[ ]*"
)
# GitBook, Jekyll, Zola: `{% tab title="x" %}`; Hugo: `{{< tab "x" >}}`, `{{% notice note %}}`; MDX: `{/* comment */}`.
# Their lengths are bounded, as each sign could begin one.
_TAG = regex(r"\{%-?[ ]*(?P<liquid>.{0,1000}?)[ ]*-?%\}|\{\{[<%][ ]*(?P<hugo>.{0,1000}?)[ ]*[>%]\}\}", re.DOTALL)
_NAME = regex(r"(?P<end>end|/[ ]*)?(?P<name>[\w-]+)[ ]*(?P<rest>.*)", re.DOTALL)
_ATTRIBUTE = regex(r"""(?P<name>[\w-]+)[ ]*=[ ]*(?:"(?P<a>[^"]*)"|'(?P<b>[^']*)'|(?P<c>[^\s"']+))|"(?P<d>[^"]*)"|'(?P<e>[^']*)'|(?P<f>[\w-]+)""")
_TITLED = ("title", "name", "header", "label", "summary", "text", "")
_STYLED = ("style", "type", "kind", "color")
_HIDDEN = regex(r"\{\{?[<%]?[ ]{0,9}/\*.{0,2000}?\*/[ ]{0,9}[>%]?\}?\}", re.DOTALL)
_IMPORT = regex(r"""import\s+(?:[\w{}*,$\s]+\sfrom\s+)?["'][^"'\n]+["'];?\s*|export\s+(?:default|const|let|var|function|async|\{).*""")
_ATTRS_LINE = regex(r"\{:[^{}\n]*\}\s*")
_NO_TEXT = regex(r"\[TOC\]|\[\[_?TOC_?\]\]|-{1,2}8<-{1,2}.*|\*\[[^\]]+\]:.*|\\(?:new|clear)page", re.IGNORECASE)
_ALERTS = {"notice", "hint", "alert", "admonition", "callout", "admonish"}


def add_rules(parser: MarkdownIt) -> None:
    """Add all rules to a parser."""
    alternatives = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    for name, rule in (("indented", _read_indented), ("container", _read_container), ("builder", _read_tag)):
        parser.block.ruler.before("fence", name, rule, alternatives)
    parser.block.ruler.before("table", "depth", _check_depth)
    parser.block.ruler.before("fence", "unshown", _read_unshown, alternatives)
    parser.inline.ruler.before("html_inline", "builder", _read_inline)


def _check_depth(state: StateBlock, _start: int, _end: int, _silent: bool) -> bool:
    """Raise ValueError where markdown-it would drop what is nested deeper."""
    if state.level >= DEEPEST:
        raise ValueError("it is nested too deeply to be read")
    return False


def _line(state: StateBlock, n: int) -> str:
    return state.src[state.bMarks[n] + state.tShift[n] : state.eMarks[n]]


def _first_sign(state: StateBlock, n: int) -> str:
    at = state.bMarks[n] + state.tShift[n]
    return state.src[at] if at < state.eMarks[n] else ""


def _open(state: StateBlock, kind: str, title: str, line: int, end: int, **meta: object) -> None:
    token = state.push("part_open", "", 1)
    token.info, token.content, token.map, token.meta = kind.lower(), title, [line, end], dict(meta)


def _close(state: StateBlock, kind: str, line: int) -> None:
    token = state.push("part_close", "", -1)
    token.info, token.map = kind.lower(), [line, line]


def _leave_out(state: StateBlock | StateInline, text: str, reason: str) -> None:
    token = state.push("left_out", "", 0)
    token.content, token.info = text, reason


def _tokenize(state: StateBlock, start: int, end: int) -> None:
    """Read lines as blocks of a part."""
    kept = state.lineMax, state.parentType
    state.lineMax, state.parentType = end, "container"
    state.md.block.tokenize(state, start, end)
    state.lineMax, state.parentType = kept


def _read_indented(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    if _first_sign(state, start) not in "!?=" or not (found := _INDENTED.fullmatch(_line(state, start))):
        return False
    marker = found[1].rstrip("+!") if found[1][0] != "!" else found[1]
    kind, title = (found[2] or "").lower(), found[3] or found[4] or ""
    if marker == "===":
        kind, title = "tab", title or found[2] or ""
    if not kind or (marker == "===" and found[3] is None):
        return False
    if silent:
        return True
    indent, after, last = state.sCount[start] + 2, start + 1, start + 1
    while after < end and (state.isEmpty(after) or state.sCount[after] >= indent):
        after += 1
        last = last if state.isEmpty(after - 1) else after
    if marker == "???" and title:
        kind = "details"
    _open(state, kind, title, start, last)
    within = [state.sCount[n] for n in range(start + 1, last) if not state.isEmpty(n)]
    kept, state.blkIndent = state.blkIndent, min([*within, state.sCount[start] + 4])
    _tokenize(state, start + 1, last)
    state.blkIndent = kept
    _close(state, kind, last)
    state.line = last
    return True


def _read_container(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    if _first_sign(state, start) != ":" or not (fence := _COLONS.fullmatch(_line(state, start))):
        return False
    found = _CONTAINER.fullmatch(fence[2])
    if not found or not (name := found["directive"] or found["class"] or found["name"]):
        return False
    if silent:
        return True
    kind = name.rpartition(":")[2].removeprefix("callout-")
    attrs = _attributes(found["attrs"] or "")
    title = found["bracketed"] or found["title"] or attrs.get("title", "")
    close, depth = start + 1, 0
    while close < end:
        other = _COLONS.fullmatch(_line(state, close)) if _first_sign(state, close) == ":" else None
        if other and not other[2]:
            if len(other[1]) == len(fence[1]) and depth == 0:
                break
            depth -= depth > 0 and len(other[1]) == len(fence[1])
        elif other and len(other[1]) == len(fence[1]):
            depth += 1
        close += 1
    first = start + 1
    while found["directive"] and first < close and _line(state, first).startswith(":") and _line(state, first)[1:2].isalpha():
        first += 1
    _open(state, kind, title.strip(), start, close)
    _tokenize(state, first, close)
    _close(state, kind, close)
    state.line = min(close + 1, end)
    return True


def _read_tag(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    if _first_sign(state, start) != "{":
        return False
    begins = state.bMarks[start] + state.tShift[start]
    found = _TAG.match(state.src, begins, state.eMarks[min(start + 20, end) - 1])
    if not found:
        return False
    last = next(n for n in range(start, end) if state.eMarks[n] >= found.end())
    parts = _NAME.fullmatch(found["liquid"] if found["liquid"] is not None else found["hugo"])
    if state.src[found.end() : state.eMarks[last]].strip() or not parts:
        return False  # there is more in this line: the rule for tags in a text takes it
    if silent:
        return True
    name, after = parts["name"].lower(), last + 1
    if not parts["end"] and name in {"highlight", "comment", "raw", "verbatim", "codeblock"}:
        ends = next((n for n in range(after, end) if _ends(_line(state, n), name)), None)
        if ends is not None and name not in {"raw", "verbatim"}:
            body = state.getLines(after, ends, state.blkIndent, True)
            if name == "comment":
                _leave_out(state, body, "a comment")
            else:
                token = state.push("code_block", "", 0)
                token.content, token.map = body, [start, ends + 1]
                token.info = (parts["rest"].split() or [""])[0]
            state.line = ends + 1
            return True
    attrs = _attributes(parts["rest"])
    title = next((attrs[key] for key in _TITLED if attrs.get(key)), "")
    kind = name
    if name in _ALERTS:
        kind = next((attrs[key] for key in _STYLED if key in attrs), title if not attrs.get("title") else name)
        kind = kind if kind in {"note", "tip", "info", "warning", "danger", "success", "caution", "important"} else "note"
        title = attrs.get("title", "")
    if parts["end"]:
        _close(state, "note" if name in _ALERTS else name, last)
    elif name in _PARTS:
        items = [item.strip() for item in attrs.get("items", "").split(",") if item.strip()]
        _open(state, kind, "" if name == "tabs" else title, start, after, **({"items": items} if items else {}))
    else:
        _leave_out(state, found[0], "a builder's tag")
    state.line = after
    return True


_PARTS = frozenset(
    "tab tabs tabpane details expand spoiler note tip info warning danger caution important step stepper column"
    " dropdown faq question".split()
) | _ALERTS


def _ends(line: str, name: str) -> bool:
    found = _TAG.match(line.strip())
    parts = _NAME.fullmatch(found["liquid"] if found["liquid"] is not None else found["hugo"]) if found else None
    return bool(parts and parts["end"] and parts["name"].lower() == name)


def _attributes(text: str) -> dict[str, str]:
    """Return the attributes of a tag; the first one without a name stands under the empty one."""
    attrs: dict[str, str] = {}
    for found in _ATTRIBUTE.finditer(text):
        value = next((found[key] for key in "abcdef" if found[key] is not None), "")
        attrs.setdefault((found["name"] or "").lower(), value)
    return attrs


def _read_unshown(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Leave out imports, attributes and marks that stand for something else."""
    first = _first_sign(state, start)
    if first not in "ie{[-*\\":
        return False
    line, last = _line(state, start), start + 1
    if first in "ie" and state.sCount[start] == 0 and _IMPORT.fullmatch(line):
        while last < end and not state.isEmpty(last):
            last += 1
        reason = "an import"
    elif first == "{" and (hidden := _HIDDEN.match(state.src, state.bMarks[start] + state.tShift[start])):
        last = next((n + 1 for n in range(start, end) if state.eMarks[n] >= hidden.end()), end)
        if state.src[hidden.end() : state.eMarks[last - 1]].strip():
            return False
        reason = "a comment"
    elif _ATTRS_LINE.fullmatch(line) or _NO_TEXT.fullmatch(line):
        reason = "a builder's mark"
    else:
        return False
    if not silent:
        _leave_out(state, state.getLines(start, last, 0, False), reason)
        state.line = last
    return True


def _read_inline(state: StateInline, silent: bool) -> bool:
    """Leave out a builder's tag or a comment in a text."""
    if state.src[state.pos] != "{":
        return False
    found = next(filter(None, (each.match(state.src, state.pos) for each in (_HIDDEN, _TAG, _ATTRS_LINE))), None)
    if not found:
        return False
    if not silent:
        _leave_out(state, found[0], "a builder's tag")
    state.pos = found.end()
    return True
