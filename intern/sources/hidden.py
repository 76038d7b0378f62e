"""Text that a document holds and its readers never see: comments, hidden elements, unused link definitions.

No reader would notice what a stranger wrote there, so no model is shown it, and no answer quotes it. In other files
than documents, such as settings, comments are what there is to read.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from intern.core.text.masking import without_invisible
from intern.core.text.patterns import regex
from intern.sources.html import is_unseen

# Of each format: code, where all is shown, or else what is hidden.
_IN_MARKDOWN = regex(
    r"""(?imsx)(?P<code>^[ \t>]*(?P<fence>`{3,}|~{3,})(?:.*?^[ \t>]*(?P=fence)[`~]*[ \t]*$|.*\Z)
    |(?<!`)(?P<ticks>`{1,2})(?!`)[^`\n]{1,300}(?P=ticks)(?!`))
    |<!--.*?(?:--!?>|\Z)|\{(?:\{<?[ ]?)?/\*.{0,4000}?\*/[ ]?>?\}\}?|\{%-?[ ]?comment\b.{0,4000}?endcomment[ ]?-?%\}
    |^[ ]{0,3}\[(?P<label>[^\]\[\n^][^\]\[\n]{0,200})\]:[ \t]*(?=\S*[/.#:]|\S+[ \t]*\n?[ \t]*["'(])(?P<target>\S+)
     (?:[ \t]*\n?[ \t]*(?:"[^"]*"|'[^']*'|\([^)]*\)))?[ \t]*$
    |<(?P<tag>[a-z][a-z0-9]*)(?P<attrs>\s[^<>]{0,2000})?>"""
)
_IN_ASCIIDOC = regex(
    r"""(?msx)(?P<code>^(?P<fence>-{4,}|\.{4,})[ \t]*\n.*?^(?P=fence)[ \t]*$)
    |^/{4,}[ \t]*$.*?(?:^/{4,}[ \t]*$|\Z)|^//(?!/)[^\n]*$"""
)
# Each line of a comment is indented further than its mark, which names nothing: no directive, target or footnote.
_IN_RST = regex(
    r"""(?mx)^(?P<indent>[ \t]*)\.\.(?:[ \t]+(?!(?:[\w:+-]{1,60}::|_[^\n]{1,200}:|\[[^\]\n]{1,60}\]
    |\|[^\n|]{1,100}\||__)(?:\s|$))\S[^\n]*
    |(?=[ \t]*\n(?P=indent)[ \t]+\S))(?:\n(?:[ \t]*$|(?P=indent)[ \t]+[^\n]*))*"""
)
_ATTRIBUTE = regex(r"""([\w:-]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"']+)))?""")
_FORMATS = {
    **dict.fromkeys((".rst", ".rest"), _IN_RST),
    **dict.fromkeys((".adoc", ".asciidoc", ".asc"), _IN_ASCIIDOC),
    **dict.fromkeys((".md", ".markdown", ".mdx", ".ipynb"), _IN_MARKDOWN),
}


def without_hidden(text: str, name: str) -> str:
    """Return a document, as written, without what is hidden in it. The ending of its name tells the format."""
    pattern = _FORMATS.get(PurePosixPath(name).suffix.lower())
    text = without_invisible(text)
    return text if pattern is None else "".join(_shown(text, pattern))


def _end_of_element(text: str, tag: str, start: int) -> int | None:
    """Return the end of its end tag, or of the last one there is for it; None where there is none."""
    end, depth = None, 1
    if f"</{tag.lower()}" not in text[start:].lower():
        return None
    for found in regex(rf"(?i)<(/?){tag}\b[^>]*>").finditer(text, start):
        depth += -1 if found[1] else 1
        end = found.end() if found[1] else end
        if not depth:
            break
    return end


def _attributes(text: str) -> dict[str, str]:
    """Return the attributes in a tag, as it is written."""
    each = (found.groups("") for found in _ATTRIBUTE.finditer(text))
    return {name.lower(): html.unescape(quoted or single or bare) for name, quoted, single, bare in each}


def _shown(text: str, pattern: re.Pattern[str]) -> Iterator[str]:
    at, plain = 0, text.casefold()
    while found := pattern.search(text, at):
        yield text[at : found.start()]
        at, groups = found.end(), found.groupdict("")
        if (tag := groups.get("tag", "")) and is_unseen(tag.lower(), _attributes(groups["attrs"])):
            end = _end_of_element(text, tag, at)
            # What is never closed hides the rest, unless it is a placeholder, as in "run <script>".
            if end is None and not groups["attrs"].strip():
                yield found[0]
            else:
                at = end or len(text)
        elif tag or groups.get("code"):
            yield found[0]
        elif (label := groups.get("label")) and plain.count(f"[{label.casefold()}]") > 1:
            yield f"[{label}]: {groups['target']}"  # its title shows on pointing at it only
    yield text[at:]
