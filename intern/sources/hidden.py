"""Text that a document holds and its readers never see: comments, hidden elements, unused link definitions.

No reader would notice what a stranger wrote there, so no model is shown it, and no answer quotes it. In other files
than documents, such as settings, comments are what there is to read.
"""

from __future__ import annotations

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
    |^[ ]{0,3}\[(?P<label>[^\]\[\n^][^\]\[\n]{0,200})\]:[ \t]*(?P<target>\S+)
     (?:[ \t]*\n?[ \t]*(?:"[^"]*"|'[^']*'|\([^)]*\)))?[ \t]*$
    |<(?P<tag>[a-z][a-z0-9]*)(?:\s[^<>]{0,2000})?>"""
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
_FORMATS = {
    **dict.fromkeys((".rst", ".rest"), _IN_RST),
    **dict.fromkeys((".adoc", ".asciidoc", ".asc"), _IN_ASCIIDOC),
    **dict.fromkeys(("", ".md", ".markdown", ".mdx", ".txt", ".ipynb"), _IN_MARKDOWN),
}


def without_hidden(text: str, name: str) -> str:
    """Return a document, as written, without what is hidden in it. The ending of its name tells the format."""
    pattern = _FORMATS.get(PurePosixPath(name).suffix.lower())
    text = without_invisible(text)
    return text if pattern is None else "".join(_shown(text, pattern))


def _shown(text: str, pattern: re.Pattern[str]) -> Iterator[str]:
    at, plain = 0, text.casefold()
    while found := pattern.search(text, at):
        yield text[at : found.start()]
        at, groups = found.end(), found.groupdict("")
        if (tag := groups.get("tag", "")) and is_unseen(found[0]):
            depth = 1
            while depth and (other := regex(rf"(?i)<(/?){tag}\b[^>]*>").search(text, at)):
                at, depth = other.end(), depth + (-1 if other[1] else 1)
            at = len(text) if depth else at
        elif tag or groups.get("code"):
            yield found[0]
        elif (label := groups.get("label")) and plain.count(f"[{label.casefold()}]") > 1:
            yield f"[{label}]: {groups['target']}"  # its title shows on pointing at it only
    yield text[at:]
