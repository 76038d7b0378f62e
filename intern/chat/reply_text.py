"""The text of a reply: its messages, the links in them, and the name of the thread that it opens."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby

from msgspec import Struct

from intern.chat.phrases import ENGLISH, Phrases, get_phrases
from intern.chat.platform import Capabilities
from intern.core.flow import Reply
from intern.core.messages import Citation
from intern.core.text.masking import mask_secrets
from intern.core.text.orders import is_plain_name

_LIMITS = Capabilities()
_TITLE_LIMIT = 80
_SMALLEST_LIMIT = 64  # room for a fence with the longest language that we reopen, and some code in it
_LONGEST_LANGUAGE = 20
_MOST_TICKS = 8  # of a code span that we close and reopen
# A fence as Discord's clients read it: it opens at any three ticks, and ends at the next three, regardless of the text
# around them. An empty one counts too, though clients do not agree on it.
_FENCE = re.compile(r"```(?:[\w+#.-]*\n+|(?:(?P<language>[\w+#.-]+)\n)?\n*(?P<code>[^\n][\s\S]*?)\n*)```", re.ASCII)
_SPAN = re.compile(r"(?P<ticks>`+)(?P<said>[\s\S]*?[^`])(?P=ticks)(?!`)")
# In the order of reading: an escaped tick opens nothing, nor do ticks in a code span.
_CODES = re.compile(rf"\\[^0-9A-Za-z\s]|(?P<fence>{_FENCE.pattern})|(?P<span>{_SPAN.pattern})|(?P<lone>`+)", re.ASCII)
# The model's reply was cut before it closed the fence. Clients show the ticks; we close the fence.
_OPENING = re.compile(r"^[ \t]*```(?P<language>[\w+#.-]*)[ \t]*\n(?P<code>[\s\S]*)\Z", re.ASCII | re.MULTILINE)
_WORD = re.compile(r"(\s*)(\S+)")


class _ReplyBlock(Struct, frozen=True):
    """A text that should stay together, and the white space between it and the text before."""

    gap: str
    text: str


def split_message(text: str, limit: int = _LIMITS.message_limit) -> list[str]:
    """Split a text into parts of at most `limit` characters (code points, as Discord counts), none of them blank.

    Cuts fall between paragraphs, else between lines, else between words, else anywhere. A code fence stays whole; one
    that is too long by itself is closed and reopened with its language. A text that fits is returned unchanged, a
    blank one has no parts. Raises ValueError for a limit under 64.
    """
    if limit < _SMALLEST_LIMIT:
        raise ValueError(f"limit must be at least {_SMALLEST_LIMIT}, got {limit}")
    if not text.strip():
        return []
    if len(text) <= limit:
        return [text]
    return _fill_parts(_split_blocks(text), limit, _split_block)


def _fill_parts(blocks: Iterable[_ReplyBlock], limit: int, cut: Callable[[str, int], list[str]]) -> list[str]:
    """Fill parts with whole blocks as far as they fit; a block too long by itself is cut by `cut`."""
    parts: list[str] = []
    for block in blocks:
        if parts and len(parts[-1]) + len(block.gap) + len(block.text) <= limit:
            parts[-1] += block.gap + block.text
        elif len(block.text) <= limit:
            parts.append(block.text)
        else:
            parts.extend(cut(block.text, limit))
    return parts


def _split_blocks(text: str) -> Iterator[_ReplyBlock]:
    """Yield the paragraphs and code fences, in order."""
    gap, at = "", 0
    for start, end in _find_whole_code(text):
        gap = yield from _split_paragraphs(text[at:start], gap)
        yield _ReplyBlock(gap, text[start:end])
        gap, at = "", end
    yield from _split_paragraphs(text[at:], gap)


def _find_whole_code(text: str) -> Iterator[tuple[int, int]]:
    """Find the spans of the fences, and of inline code with ticks that would open a fence elsewhere."""
    for token in _CODES.finditer(text):
        if token["lone"] and (opening := _OPENING.match(text, text.rfind("\n", 0, token.start()) + 1)):
            yield opening.span()
            return
        if token["fence"] or "```" in (token["span"] or ""):
            yield token.span()


def _split_paragraphs(text: str, gap: str) -> Generator[_ReplyBlock, None, str]:
    """Yield the paragraphs between fences; return the white space behind the last."""
    lines = text.split("\n")
    left = len(lines)
    for is_blank, group in groupby(lines, key=lambda line: not line.strip()):
        held = list(group)
        left -= len(held)
        block, ending = "\n".join(held), "\n" if left else ""
        if is_blank:
            gap += block + ending
        else:
            yield _ReplyBlock(gap, block)
            gap = ending
    return gap


def _split_block(block: str, limit: int) -> list[str]:
    if fence := _FENCE.fullmatch(block) or _OPENING.match(block):
        return _split_fence(fence["language"] or "", fence["code"] or "", limit)
    if "```" in block and (span := _SPAN.fullmatch(block)) and len(span["ticks"]) <= _MOST_TICKS:
        ticks = span["ticks"]
        pieces = _split_line(span["said"], limit - 2 * len(f"{ticks} "))
        return [f"{ticks} {piece} {ticks}" for piece in pieces]
    return _fill_parts((_ReplyBlock("\n", line) for line in block.split("\n")), limit, _split_line)


def _split_line(line: str, limit: int) -> list[str]:
    return _fill_parts((_ReplyBlock(word[1], word[2]) for word in _WORD.finditer(line)), limit, _slice_text)


def _split_fence(language: str, code: str, limit: int) -> list[str]:
    """Put the code's lines into fences of their own. White space counts in code, so long lines are cut anywhere."""
    if len(language) > _LONGEST_LANGUAGE:  # it could not be reopened within the limit
        language, code = "", f"{language}\n{code}"
    room = limit - len(f"```{language}\n\n```")
    pieces = _fill_parts((_ReplyBlock("\n", line) for line in code.split("\n")), room, _slice_text)
    # Clients read the closing ticks of an empty fence as its content.
    return [f"```{language}\n{piece}\n```" for piece in pieces if piece.strip("\n")]


def _slice_text(text: str, limit: int) -> list[str]:
    return [text[start : start + limit] for start in range(0, len(text), limit)]


def thread_name(question: str, limit: int = _LIMITS.thread_name_limit) -> str:
    """Name a thread after a question: one line of at most `limit` UTF-16 units, without secrets, mentions and markup.

    The name stays even if the question is deleted.
    """
    # Remove invisible characters first: they may split a mention, or a key.
    text = mask_secrets("".join(filter(_is_visible, question[:4000]))).text[:1000]
    text = re.sub(r"<a?:(\w+):\d+>", r":\1:", text)  # a custom emoji
    text = re.sub(r"<[@#/][^>\n]{1,100}>|<t:-?\d+(?::\w)?>|<id:\w+>", " ", text)
    text = re.sub(r"@+(?=everyone|here)", "", text)
    text = re.sub(r"(?<=\w)[`*~|\\]+(?=\w)|^\s*(?:>|#{1,3}\s|-#\s)+", " ", text, flags=re.MULTILINE)
    text = re.sub(r"[`*~|\\]+", "", text)
    line = " ".join(text.split())
    if not any(character.isalnum() for character in line):
        return "Answer"
    return _shorten_line(line, limit)


def reply_parts(reply: Reply, limit: int = _LIMITS.message_limit) -> list[str]:
    """Return the messages that a reply consists of."""
    if reply.notice and not reply.citations:
        return split_message(reply.text, limit)
    return format_parts(reply.text, reply.citations, limit, reply.language)


def format_parts(
    text: str, citations: Sequence[Citation] = (), limit: int = _LIMITS.message_limit, language: str = ENGLISH
) -> list[str]:
    """Return the messages with a text, and then its sources.

    Only cited links can be clicked, and no id shows a member's name, except in code, where Discord shows the id itself.
    """
    links = {url for citation in citations if (url := _citation_url(citation))}
    whole = "\n\n".join(filter(str.strip, (neutralise_links(text, links), _format_sources(citations, language))))
    # A cut may fall into a code span and so activate its content; so each part is neutralised again.
    parts = (neutralise_links(part, links) for part in split_message(whole, limit))
    return [piece for part in parts for piece in split_message(part, limit)]


# Pages that Discord shows as a card, even without a scheme.
_CARDS = r"discord(?:app)?\.(?:gg|new|gift|com/(?:invite|template|gifts?))"
# Code, escapes and clickable parts by Discord's own parser, in its order of precedence. Code is left alone (but see
# `_is_code_reliable`); elsewhere, only allowed links remain.
_TOKENS = re.compile(
    r"(?P<escape>\\[^0-9A-Za-z\s])"
    r"|(?P<code>```(?:[a-z0-9_+\-.#]+?\n)?\n*[^\n][\s\S]*?\n*```|(?P<ticks>`+)[\s\S]*?[^`](?P=ticks)(?!`))"
    r"|(?P<lone>`+)"  # opens no code, nor does a shorter run of the same ticks
    r"|(?P<masked>\[(?P<label>[^\[\]\n]*)\]\(\s*<?(?P<target>[^\s()<>]*:[^\s()<>]*)>?(?:\s+[\"'(][^\n]*?[\"')])?\s*\))"
    r"|(?P<member><@!?\d{1,20}>)"
    r"|(?P<auto><(?P<inner>[^<>\s]+(?::/|@)[^<>\s]*|(?:(?:tel|sms):|\+)[0-9+][^<>\s]*)>)"
    r"|(?P<bare>(?:[a-z][a-z0-9+.-]{0,30}:|(?<![:/0-9a-z])(?=discord))(?://|" + _CARDS + r"/)[^\s<]+)"
    r"|(?P<seam>\](?=\())",
    re.IGNORECASE,
)
_TRAILING = ".,:;!?\"')]}*_~|"


def neutralise_links(text: str, allowed: Collection[str]) -> str:
    """Show each link that is not allowed as code, without its `https://`, and name no member."""
    for _ in range(3):
        cleaned = _TOKENS.sub(partial(_rewrite_token, allowed=allowed, code_stays=_is_code_reliable(text)), text)
        if cleaned == text:
            return text
        text = cleaned
    # Still changing after all passes: without a scheme, there is no link.
    return _make_unclickable(text)


def _rewrite_token(token: re.Match[str], *, allowed: Collection[str], code_stays: bool) -> str:
    whole = token[0]
    match token.lastgroup:
        case "masked":
            return _rewrite_masked_link(token, allowed)
        case "auto":
            return whole if token["inner"] in allowed else _format_as_code(token["inner"])
        case "bare":
            url = whole.rstrip(_TRAILING)
            return whole if url in allowed else _format_as_code(url) + whole[len(url) :]
        case "seam" | "member":
            return "] " if token["seam"] else "the member"
        case "code" if not code_stays:
            return _make_unclickable(whole)
        case _:
            return whole


def _rewrite_masked_link(token: re.Match[str], allowed: Collection[str]) -> str:
    label = neutralise_links(token["label"], allowed)
    if token["target"] in allowed and "/" not in label:
        return token[0].replace(token["label"], label, 1)
    return f"{label} ({_format_as_code(token['target'])})".lstrip()


# The pairs that Discord matches, in this order, before it looks for code inside.
_SPANS = re.compile(
    r"\\[^0-9A-Za-z\s]"
    r"|```[\s\S]+?```|(?P<ticks>`+)[\s\S]*?[^`](?P=ticks)(?!`)"
    r"|(?P<pair>\*\*(?:\\.|[^\\])+?\*\*(?!\*)|\*(?!\s)(?:\\.|\*\*|[^*\\])+?(?<!\s) {0,2}\*(?!\*)"
    r"|__(?:\\.|[^\\])+?__(?!_)|_(?:\\.|__|[^_\\])+?_(?![0-9A-Za-z_])"
    r"|~~.+?~~|\|\|.+?\|\||\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()",
    re.DOTALL,
)
# Each may begin within a quote or a pair.
_HEADING = re.compile(r"^[ >*_~|]*(?:#{1,3}|-#)\s+[^\n]*\Z", re.MULTILINE)
_ITEM = re.compile(r"^[ >*_~|]*(?:[*-]|\d+\.) +[^\n]*(?:\n [^\n]*)*\Z", re.MULTILINE)


def _is_code_reliable(text: str) -> bool:
    """Whether Discord reads the same parts as code: no markup that begins before code may end in it.

    Emphasis may end there, and so may the line of a heading, a quote or a list item. Clients do not agree on empty
    fences. If one piece of code is none, all later ones may begin where they seem to end.
    """
    codes = [token for token in _TOKENS.finditer(text) if token.lastgroup == "code"]
    return not (
        any(re.match(r"```[^\n`]*\s*```", code[0]) for code in codes)
        or any(_ends_with_its_line(text[: code.start()], code[0]) for code in codes)
        # A span that begins before a piece of code, and ends in it.
        or any(a < code.start() < b < code.end() for a, b in _find_spans(text, codes) for code in codes)
    )


def _ends_with_its_line(before: str, code: str) -> bool:
    further = code.split("\n")[1:]
    if not further or _HEADING.search(before):
        return bool(further)
    if _ITEM.search(before):
        return not all(line.startswith(" ") for line in further)
    quoted = re.match(r"[ *_~|]*> ", before.rpartition("\n")[2])
    return bool(quoted) and not all(re.match(" *> ", line) for line in further)


def _find_spans(text: str, codes: Sequence[re.Match[str]]) -> Iterator[tuple[int, int]]:
    """Yield the spans of the pairs and of the pieces of code that may affect `codes`."""
    waiting = [(0, len(text))] if codes else []
    while waiting:
        at, end = waiting.pop()
        while (found := _SPANS.search(text, at, end)) and found.start() < codes[-1].start():
            yield found.span()
            at = found.end()
            if found.lastgroup == "pair" and any(found.start() < code.start() < at for code in codes):
                width = 2 if found[0][:2] in {"**", "__", "~~", "||"} else 1
                waiting.append((found.start() + width, at - width))


def _make_unclickable(text: str) -> str:
    """Change a text so that no part of it can be clicked."""
    return re.sub(rf"(?i):(?=//)|\](?=\()|<(?=@!?\d|[^\s<>]+@|\w+:/|tel:|sms:|\+)|{_CARDS}(?=/)", r"\g<0> ", text)


def _format_as_code(url: str) -> str:
    bare = re.sub(r"^(?:https?:)?[/\\]+", "", url.replace("`", ""), flags=re.IGNORECASE)
    return f"`{bare or 'link'}`"


def _format_sources(citations: Sequence[Citation], language: str) -> str:
    lines = dict.fromkeys(_format_source(citation, get_phrases(language)) for citation in citations)
    if not lines:
        return ""
    return "\n".join([get_phrases(language).sources, *(f"- {line}" for line in lines)])


def _format_source(citation: Citation, words: Phrases) -> str:
    """Format title, id and link of a source. A web page's id is its link; ids of nuggets and facts are omitted."""
    url = _citation_url(citation)
    title = clean_name(citation.title, "")
    kind, _, named = citation.source_id.partition(":")
    name = "" if url and citation.source_id.endswith((url, url.partition("#")[0])) else f"`{kind}:{clean_name(named)}`"
    name = {"nugget": words.conversation, "fact": words.fact}.get(kind, name)
    return " ".join(filter(None, (title, f"({name})" if title and name else name, url and f"<{url}>")))


def _citation_url(citation: Citation) -> str | None:
    url = citation.url or ""
    return url if re.fullmatch(r"https?://[^\s<>`]+", url, re.IGNORECASE) else None


def clean_name(text: str, instead: str = "…") -> str:
    """Return a title or file name as a plain line, or `instead` if it is more than a name.

    The author of a file or a page must not speak through the bot.
    """
    return plain_line(text) if is_plain_name(text) else instead


def plain_line(text: str) -> str:
    """Put a title or file name on one line, without anything that Discord reads as markup."""
    line = " ".join("".join(filter(_is_visible, re.sub(r"[`*~|\\<>\[\]]", "", text))).split())
    return _shorten_line(re.sub(r"(?i)(?:https?:)?//", "", line), _TITLE_LIMIT)


def _is_visible(character: str) -> bool:
    """Return False for a character without width or one that reverses the line; all spaces count as visible."""
    return character.isspace() or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Cn"}


def _shorten_line(line: str, limit: int) -> str:
    """Cut to at most `limit` UTF-16 units, the narrowest way to count; after a word if one ends near the cut."""
    if _count_units(line) <= limit:
        return line
    while _count_units(line) > limit - 1:
        line = line[: max(0, min(len(line) - 1, limit - 1))]
    head, _, tail = line.rpartition(" ")
    return (head if head and len(tail) < limit // 4 else line).rstrip(" ,;:.-") + "…"


def _count_units(line: str) -> int:
    return len(line.encode("utf-16-le", "surrogatepass")) // 2
