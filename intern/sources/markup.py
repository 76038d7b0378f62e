"""The markup that a chat does not show, taken out of a document: AsciiDoc, reStructuredText, HTML in Markdown.

Headings and code blocks become Markdown's. A text in plain words, and the inside of a code block, stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from intern.core.text.passages import GAP
from intern.core.text.patterns import regex

_FENCE = "```"
_GAP = GAP.strip()  # where a text was cut to fit a prompt
_OPENS_FENCE = regex(r"[ \t]*(`{3,}|~{3,})")
_INLINE_CODE = regex(r"(?<!`)(`{1,2})(?!`)[^`\n]{1,300}\1(?!`)")
_FRONT_MATTER = regex(r"\A(---|\+\+\+)[ \t]*\n(?:(?!\1)[^\n]*\n){0,60}?\1[ \t]*(?:\n|\Z)")

_COMMENT = regex(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_TAGS = (
    "a|abbr|article|aside|b|big|blockquote|body|br|button|center|code|dd|del|details|dfn|div|dl|dt|em|figcaption"
    "|figure|font|footer|h[1-6]|head|header|hr|html|i|iframe|img|input|ins|kbd|label|li|link|main|mark|meta|nav|ol|p"
    "|picture|pre|q|s|samp|script|section|small|source|span|strike|strong|style|sub|summary|sup|table|tbody|td|tfoot"
    "|th|thead|tr|tt|u|ul|var|video|wbr"
)
_TAG = regex(rf"</?(?:{_TAGS})(?:\s[^<>]{{0,1000}})?/?>", re.IGNORECASE)
_BLANKS = regex(r"(?<![ \t])[ \t]+\n")
_ENTITY = regex(r"&(nbsp|amp|lt|gt|quot|#39);")
_ENTITIES = {"nbsp": " ", "amp": "&", "lt": "<", "gt": ">", "quot": '"', "#39": "'"}
_IMAGE = regex(r"!\[([^\]\n]{0,200})\](?:\([^()\n]{0,1000}\)|\[[^\]\n]{0,200}\])")
_LOCAL_LINK = regex(r"(?<!!)\[([^\[\]\n]{1,300})\]\((?![a-z][a-z0-9+.-]{1,20}:)[^()\n]{0,500}\)", re.IGNORECASE)
# Of site builders: `{% tabs %}`, `:::note`, `> [!WARNING]`.
_BUILDER_LINE = regex(r"[ \t]*(?:\{%[^\n]*%\}|:{3,}[^\n]*|>[ \t]*\[!\w+\])[ \t]*")

_ASCIIDOC = regex(
    r"(?m)^(?:(?:ifdef|ifndef|endif|ifeval|include|image)::\S*\[[^\n]*\]|\[(?:verse|source|listing|quote|\[)[^\n]*\]"
    r"|={1,6}[ \t]+[^=\s][^\n]*|\|===)[ \t]*$|\b(?:linkgit|xref|link):[^\s\[]{1,200}\["
    r"|^[^\n|]{1,200}\S::[ \t]*$\n[ \t]+(?!::)",
)
_ADOC_LEFT_OUT = regex(
    r"(?:ifdef|ifndef|endif|ifeval|include|image|toc|video|audio)::\S*\[(?P<held>[^\n]*)\][ \t]*"
    r"|\[\[[^\]\n]+\]\][ \t]*|\[[A-Za-z#.%][^\]\n]{0,200}\][ \t]*|:!?[\w-]{1,60}!?:(?:[ \t][^\n]*)?|//(?!/)[^\n]*"
    r"|\*{4,}[ \t]*|_{4,}[ \t]*|={4,}[ \t]*|--[ \t]*|\|===[ \t]*|<<<[ \t]*"
)
_ADOC_CODE = regex(r"(?P<mark>-{4,}|\.{4,})[ \t]*")
_ADOC_HEADING = regex(r"(={1,6})[ \t]+(\S.*)")
_ADOC_TITLE = regex(r"\.([A-Z][^\n]*)")
_ADOC_ITEM = regex(r"([ \t]*)(?:\.{1,5}|\*{2,5})([ \t]+\S.*)")
_ADOC_TERM = regex(r"([ \t]*\S.{0,300}?):{2,4}(?=[ \t]|\Z)")
_ADOC_MACRO = regex(
    r"\b(?P<name>linkgit|link|xref|mailto|kbd|btn|menu|image|https?|ftp):(?P<target>[^\s\[\]]{1,500})"
    r"\[(?P<label>[^\[\]\n]{0,300})\]"
)
_ADOC_REFERENCE = regex(r"<<([^<>,\n]{1,200})(?:,[ \t]*([^<>\n]{1,200}))?>>")
_ADOC_PASSED = regex(r"(?<!\w)(?:`\+(.{1,300}?)\+`|\+\+\+(.{1,300}?)\+\+\+|\$\$(.{1,300}?)\$\$)(?!\w)")
_ADOC_SIGNS = {"nbsp": " ", "plus": "+", "caret": "^", "tilde": "~", "litdd": "--", "asterisk": "*", "apostrophe": "'"}
_ADOC_SIGN = regex(rf"\{{({'|'.join(_ADOC_SIGNS)})\}}")

_RST = regex(
    r"(?m)^[ \t]*\.\.[ \t]+(?:[\w:-]{1,60}::|_[^\n]{1,200}:|\|[^\n|]{1,100}\|[ \t]+\w+::)"
    r"|(?<![`\w]):[\w:+-]{1,40}:`[^`\n]|(?<![`\w])`[^`\n]{1,300}[^`\s]`_{1,2}(?![\w`])",
)
_RST_MARK = regex(r"(?P<indent>[ \t]*)\.\.(?:[ \t]+(?:(?P<name>[\w:+-]{1,60})::)?[ \t]*(?P<said>[^\n]*))?")
_RST_OPTION = regex(r"[ \t]+:[\w-]{1,60}:(?:[ \t][^\n]*)?")
_RST_CODE = frozenset({"code-block", "code", "sourcecode", "parsed-literal", "prompt"})
_RST_REMARKS = {
    name: "" if name in {"admonition", "rubric", "topic"} else f"{name.capitalize()}:"
    for name in "note tip hint warning important caution danger attention error admonition rubric topic".split()
} | {
    "seealso": "See also:",
    "versionadded": "Added in",
    "versionchanged": "Changed in",
    "deprecated": "Deprecated since",
}
_RST_LEFT_OUT = frozenset(
    (
        "image figure include literalinclude index toctree contents raw only highlight default-role meta module"
        " currentmodule sectionauthor moduleauthor testsetup testcleanup tabularcolumns centered"
    ).split()
)
_RST_SIGNATURE = regex(r"[\w.]{1,80}\(|--?\w|[\w.-]{1,80}\Z")
_RST_ROLE = regex(r"(?<![`\w]):(?:[\w+-]{1,40}:)?(?P<role>[\w+-]{1,40}):`(?P<text>[^`\n]{1,300})`")
_RST_WORDS = frozenset({"ref", "doc", "term", "numref", "any", "abbr", "title", "emphasis", "strong", "sub", "sup"})
_RST_LINK = regex(
    r"(?<![`\w])`(?P<label>[^`<>\s](?:[^`<>\n]{0,300}?[^`<>\s])?)(?:[ \t]*<(?P<target>[^<>\s]{1,500})>)?`__?(?![\w`])"
)
_RST_LITERAL = regex(r"(?<!`)``(?!`)([^`\n]{1,300})``(?!`)")
_UNDERLINE = regex(r"([=\-~^\"'*+#.:])\1{2,}[ \t]*")


def without_markup(text: str) -> str:
    """Return the text as a chat can show it. Unknown markup stays, and so does code."""
    if front := _FRONT_MATTER.match(text):
        text = text[front.end() :]
    kept: list[str] = []
    for is_code, part in parts_of(text):
        kept.append(part if is_code else _outside_code(part))
    return re.sub(r"\n{3,}", "\n\n", "".join(kept)).strip("\n")


def parts_of(text: str) -> Iterator[tuple[bool, str]]:
    """Divide the text into fenced code blocks, with their fences, and the text between them."""
    held: list[str] = []
    fence = ""
    for line in text.splitlines(keepends=True):
        found = _OPENS_FENCE.match(line)
        if found and not fence:
            yield False, "".join(held)
            held, fence = [line], found[1]
        elif found and found[1].startswith(fence) and line.strip() == found[1]:
            yield True, "".join([*held, line])
            held, fence = [], ""
        else:
            held.append(line)
    yield bool(fence), "".join(held)


def _outside_code(text: str) -> str:
    if _ASCIIDOC.search(text):
        text = "\n".join(_asciidoc(text.split("\n")))
    elif _RST.search(text):
        text = "\n".join(_restructured(text.split("\n")))
    # Either may have made code blocks.
    return "".join(
        part if is_code else _beside_code(_COMMENT.sub("", part), _markdown) for is_code, part in parts_of(text)
    )


def _beside_code(text: str, change: Callable[[str], str]) -> str:
    """Change the text outside of inline code."""
    kept: list[str] = []
    at = 0
    for code in _INLINE_CODE.finditer(text):
        kept += [change(text[at : code.start()]), code[0]]
        at = code.end()
    return "".join([*kept, change(text[at:])])


def _markdown(text: str) -> str:
    lines = [line for line in text.split("\n") if not _BUILDER_LINE.fullmatch(line)]
    text = _LOCAL_LINK.sub(r"\1", _IMAGE.sub(r"\1", "\n".join(lines)))
    return _ENTITY.sub(lambda found: _ENTITIES[found[1]], _BLANKS.sub("\n", _TAG.sub("", text)))


def _asciidoc(lines: list[str]) -> Iterator[str]:
    mark = ""
    for n, line in enumerate(lines):
        if mark and line.strip() == _GAP:
            mark = ""
            yield f"{_FENCE}\n{line}"
        elif mark:
            is_end = line.rstrip() == mark
            mark = "" if is_end else mark
            yield _FENCE if is_end else line
        elif _is_underline(lines[n - 1].strip() if n else "", line):
            continue
        elif code := _ADOC_CODE.fullmatch(line):
            # What was cut may begin within a code block: then this is its end.
            if n + 1 < len(lines) and lines[n + 1].strip() not in {"", "+"}:
                mark = code["mark"]
                yield _FENCE
        elif n + 1 < len(lines) and _is_underline(line.strip(), lines[n + 1]):
            yield f"## {_asciidoc_line(line.strip())}"
        else:
            yield from _asciidoc_lines(line)
    if mark:
        yield _FENCE


def _asciidoc_lines(line: str) -> Iterator[str]:
    left_out = _ADOC_LEFT_OUT.fullmatch(line)
    if left_out is None:
        yield "" if line.strip() == "+" else _asciidoc_line(line)
    elif left_out["held"] and line.startswith(("ifdef", "ifndef")):
        yield _asciidoc_line(left_out["held"])


def _asciidoc_line(line: str) -> str:
    if heading := _ADOC_HEADING.fullmatch(line):
        line = f"{'#' * len(heading[1])} {heading[2].rstrip(' =')}"
    elif title := _ADOC_TITLE.fullmatch(line):
        line = title[1]
    elif item := _ADOC_ITEM.fullmatch(line):
        line = f"{item[1]}-{item[2]}"
    else:
        line = _ADOC_TERM.sub(r"\1:", line, count=1)
    line = _ADOC_PASSED.sub(lambda found: f"`{found[1] or found[2] or found[3]}`", line)
    line = _beside_code(line, lambda text: _ADOC_REFERENCE.sub(lambda found: found[2] or found[1], text))
    line = _ADOC_MACRO.sub(_macro, line)
    return _ADOC_SIGN.sub(lambda found: _ADOC_SIGNS[found[1]], line)


def _macro(found: re.Match[str]) -> str:
    name, target, label = found["name"], found["target"], found["label"].partition(",")[0].strip("\"'^ ")
    if name == "linkgit":
        return f"{target}({label})" if label else target
    if name in {"http", "https", "ftp"}:
        return label or f"{name}:{target}"
    return label or target.strip("#")


def _restructured(lines: list[str]) -> Iterator[str]:
    n = 0
    while n < len(lines):
        line = lines[n]
        n += 1
        mark = _RST_MARK.fullmatch(line)
        if mark and line.strip() != "...":
            n, kept = _directive(lines, n, mark)
            yield from kept
        elif _is_underline(lines[n - 2].strip() if n > 1 else "", line):
            continue
        elif n < len(lines) and _is_underline(line.strip(), lines[n]):
            yield f"## {_restructured_line(line.strip())}"
        elif n + 1 < len(lines) and _UNDERLINE.fullmatch(line) and lines[n + 1].strip() == line.strip():
            continue  # the line above a heading
        elif line.rstrip().endswith("::"):
            if said := line.rstrip()[:-2].rstrip():
                yield _restructured_line(f"{said}:")
            end = _block_end(lines, n, _indent(line))
            yield from _code(lines[n:end])
            n = end
        else:
            yield _restructured_line(line)


def _directive(lines: list[str], n: int, mark: re.Match[str]) -> tuple[int, Sequence[str]]:
    """Return where the text goes on after a directive or comment, and the lines of it that stay."""
    while n < len(lines) and _RST_OPTION.fullmatch(lines[n]):
        n += 1
    end = _block_end(lines, n, len(mark["indent"]))
    name, said = (mark["name"] or "").rpartition(":")[2], mark["said"] or ""
    if name in _RST_CODE:
        return end, tuple(_code(lines[n:end]))
    if name in _RST_REMARKS:
        return n, (_restructured_line(f"{mark['indent']}{_RST_REMARKS[name]} {said}".rstrip()),)
    if name and name not in _RST_LEFT_OUT and _RST_SIGNATURE.match(said):
        return n, (f"{mark['indent']}`{said.strip()}`",)
    return (n, (_restructured_line(said),)) if said.startswith("[") else (end, ())


def _restructured_line(line: str) -> str:
    line = _RST_ROLE.sub(_role, line)
    line = _RST_LINK.sub(_link, line)
    return _RST_LITERAL.sub(r"`\1`", line)


def _role(found: re.Match[str]) -> str:
    text = found["text"].lstrip("~!")
    label = re.sub(r"[ \t]*<[^<>]*>\Z", "", text) or text
    return label if found["role"] in _RST_WORDS else f"`{label}`"


def _link(found: re.Match[str]) -> str:
    target = found["target"] or ""
    return f"[{found['label']}]({target})" if "://" in target else found["label"]


def _is_underline(title: str, line: str) -> bool:
    """Return whether a line underlines a title: it is as long as the title, or nearly."""
    if not _UNDERLINE.fullmatch(line) or not any(map(str.isalnum, title)):
        return False
    return abs(len(line.rstrip()) - len(title)) <= 2 or (len(line.rstrip()) > len(title) and line[0] != "-")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _block_end(lines: list[str], start: int, indent: int) -> int:
    """Return the end of the indented block that begins at `start`, without blank lines at its end."""
    end = start
    for n in range(start, len(lines)):
        if lines[n].strip():
            if _indent(lines[n]) <= indent:
                break
            end = n + 1
    return end


def _code(lines: list[str]) -> Iterator[str]:
    held = [line for line in lines if line.strip()]
    if not held:
        return
    indent = min(map(_indent, held))
    first = next(n for n, line in enumerate(lines) if line.strip())
    yield ""
    yield _FENCE
    yield from (line[indent:] for line in lines[first:])
    yield _FENCE
    yield ""
