"""Check the commands, versions, numbers and code of an answer against the sources that it cites. Pure.

Inventions do most harm in text that people copy. So a cited source must contain each command line and version. Other
code and numbers that no source contains are pointed out to the verifying model, which decides. So are the pieces of
commands within a sentence, because code cannot tell where such a command ends.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from msgspec import Struct

from intern.core.text.language import detect_language
from intern.core.text.patterns import regex
from intern.core.text.words import split_sentences, stem_set, stem_words

# Wherever a chat shows a block: ticks also open and end one within lists, quotations and lines.
_FENCED = regex(
    r"(?ms)(?:(?<!`)(?P<fence>`{3,}+)|^[ \t>]*(?:(?:[*+-]|\d{1,3}[.)])[ \t]+)?(?P<tildes>~{3,}+))"
    r"(?:(?P<line>[^\n`]+)(?P=fence)|(?P<info>[^\n`]*)\n(?P<code>.*?)(?:(?(fence)(?P=fence)|(?P=tildes))|\Z))",
)
_SPAN = regex(r"(?P<ticks>`{1,2})(?!`)(?P<code>(?:[^`\n]|\n(?![ \t]*\n))+)(?P=ticks)")
_URL = regex(r"[a-z][a-z0-9+.-]{0,30}://\S+", re.IGNORECASE)

_SHELLS = frozenset("sh bash shell zsh fish ksh csh tcsh nu nushell powershell ps1 pwsh cmd bat batch dos".split())
# Labels that a model may give a block without a program.
_SESSIONS = frozenset(
    (
        "console terminal term shell-session sh-session shellsession text txt plain plaintext none nohighlight ansi log"
        " output cli command commandline command-line linux unix ubuntu debian macos mac windows"
    ).split()
) | {""}
_PROMPT = regex(r"\A\s*(?:[$>%]|PS [^>\n]*>|[A-Za-z]:\\[^>\n]*>|[\w.-]{1,40}@[\w.-]{1,40}:[^\s$#]{0,80}[$#])\s+")
# A line that begins with a shell's prompt, also outside of code.
_PROMPTED = regex(r"(?:\$|PS [^>\n]*>|[A-Z]:\\[^>\n]*>)[ \t]+[A-Za-z./~]")
# A program, by name or path, and something after it. A line that assigns, opens a block or ends a sentence is none.
_COMMAND = regex(
    r"\A(?:[A-Za-z_]\w*=\S*\s+)*"
    r"(?:(?:\./|/|~/|[a-z]|(?i:sudo|doas)(?=\s)|[A-Z][a-z]+-[A-Z](?=\w))[\w./~+-]*(?:\s+(?![=:]|:=)\S.*))\Z"
)
# Code that begins like a name or a title: only a flag makes it a command.
_CAPITAL = regex(r"\A[A-Z][\w./~+-]*(?=\s).*?\s--?[A-Za-z]")
# Beginnings of program lines rather than shell lines.
_PROGRAM = regex(
    r"(?:import|from|return|let|const|var|def|class|if|elif|else|for|while|async|await|new|public|private|static|void|int"
    r"|function|func|fn|pub|struct|enum|type|interface|package|namespace|using|raise|throw|try|catch|with|yield)\s"
)
_SENTENCE = regex(r"[\w)\]'\"][.?!,]\Z|\{\Z")
# Sentences never contain these: a line with one is a command, however it ends.
_UNMISTAKABLE = regex(r"(?i:\A(?:sudo|doas)\s)|\s--?[A-Za-z]|[|&;<>]|\$\w")
_TROUBLE = regex(
    r"\b(?:errors?|exceptions?|fail(?:s|ed|ure)?|cannot|can't|could not|couldn't|denied|refused|rejected|not|no such"
    r"|invalid|unknown|unable|missing|time[d-]? ?out|unexpected|warnings?)\b",
    re.IGNORECASE,
)
# Marks of a line outside of code: a quotation, a heading, an item.
_MARKS = regex(
    r"^(?:[ \t>]|(?:[*+\u2022\u2023\u25e6\u2013\u2014-]|\d{1,3}[.)]|-?#{1,6}|\[[ xX]\])(?=[ \t]))*+", re.MULTILINE
)
_EMPHASIZED = regex(r"^(?P<mark>\*{1,3}|_{1,3}|~~|\|\|)(?=\S)(?P<words>[^\n]+?)(?P=mark)(?!\w)", re.MULTILINE)
_LAYERS = 2
_WORDY = regex(r"\A\S*\s.*[^:\s]\Z")
# The placeholder of a code span, which is checked by itself.
_CUT = "\0"
_CONTINUED = regex(r"(?<![ \t])[ \t]*\\\r?\n[ \t]*")
_SUDO_OR_FLAG = regex(r"\A(?:[A-Za-z_]\w*=\S*\s+)*(?i:sudo|doas)\s|\s--?[A-Za-z]")
# Words of sentences in the most common languages, which commands hardly ever contain.
_WORDS = (
    r"(?i:the|an?|is|are|was|be|to|of|for|with|without|and|or|but|if|when|then|it|its|this|that|these|those|which|you|your"
    r"|will|can|may|must|should|does|not|only|both|first|again|before|after|also|instead|as|from|in|on|has|have|using"
    r"|(?:use|add|run|need|mean|let|take|support|accept|require|give|ask|allow|work)s"
    r"|ist|sind|eine?[nmrs]?|der|das|und|oder|mit|f\u00fcr|est|une|les|et|ou|pour|avec|una|los|para|con|che|per|een|het)"
)
# Words that begin a sentence, but may also follow a program: `docker run`, `git add`.
_BIDS = r"(?i:use|add|run|try|see|type|pass|give|call|execute|enter|set|append|include|specify)"
_PROSE = regex(rf"(?<!\S){_WORDS}(?=[\s.,:;!?]|\Z)|\A{_BIDS}\s")
# A piece of a command within a sentence: a program and its flags, or a long flag by itself, and the paths after it.
_PIECE = regex(
    r"(?<![^\s(\"'*_])(?:"
    rf"(?i:sudo|doas)[ \t]+(?!{_WORDS}\b)[\w./~-]\S*"
    rf"|(?!(?:{_WORDS}|{_BIDS})[ \t])[A-Za-z./~][\w./~+-]{{0,60}}[ \t]+-[A-Za-z]\S*"
    r"|--[A-Za-z]\S*"
    r")(?:[ \t]+(?:--?[A-Za-z]|[/~.])\S*)*"
)
# A description after a command on its line, and the words before a command.
_REMARK = regex(r"(?<![ \t])[ \t]+(?:(?:--?|[\u2013\u2014\u2192])[ \t]|\()|:[ \t]")
_LABEL = regex(r"^(?![^\n:]{0,40}\b(?i:sudo|doas)\s)[^\W\d_](?:[\w ,.()'&/]|(?<=\w)-){0,40}:[ \t]+", re.MULTILINE)
_STOPS = regex(r"(?<=[\w)\]'\"/])[.,;:!?]+\Z")
_CHAINED = regex(r"&&|;")
# A shell ignores this and the rest of its line.
_COMMENT = regex(r"(?<!\s)\s+#(?:\s|\Z)")

# At the start of a line: the number of a list item, which is the answer's own.
_ORDINAL = regex(r"^[ \t>]*(?:[*+-][ \t]+)?\d{1,3}[.)](?=[ \t])", re.MULTILINE)
_UNIT = (  # follows a quantity rather than a version
    r"(?!\s?(?:%|°|[kmgt]?i?b(?:it|yte)?s?\b|m?s\b|(?:milli)?sec|min|hour|day|week|month|year|px\b|[kmg]?hz\b|x\b|times\b))"
)
_PRE = r"[-+.]?(?:alpha|beta|rc|dev|pre|post|snapshot|nightly|b|a)(?![a-z])[.-]?\d*"
_DATE = r"(?!\d{1,2}\.\d{1,2}\.(?:19|20)\d\d(?!\d|\.\d))"  # day first
_VERSION = regex(
    r"(?i)(?=[v0-9])(?:"
    # After a letter, too: `python3.12`, `relay_2.5.0_amd64.deb`.
    rf"(?<![^\W_])(?<!\.)v\d+(?:\.\d+)*(?:{_PRE})?"
    rf"|(?<![\d.]){_DATE}\d+(?:\.\d+){{2,}}(?:{_PRE}|[-+](?!\d+\.\d)(?=[a-z.-]*\d)[0-9a-z]+(?:[.-][0-9a-z]+)*)?"
    r"|(?<=[Vv]ersion )\d+(?:\.\d+)*|(?<=[Rr]elease )\d+(?:\.\d+)*"
    rf"|(?<![\d.]){_DATE}\d+\.\d+(?:{_PRE})?{_UNIT}"
    r")(?![^\W_]|\.\d)",
)
_THOUSANDS = regex(r"\d{1,3}(?:\.\d{3})+")
_NUMBER = regex(r"(?<![\w.,])\d++(?:[.,']\d++)*+")

# The inventions shown to the verifier are bounded; an answer full of them is refused without a list.
_MOST_SUSPICIONS = 10
_LONGEST_SUSPICION = 200
_LONG_NUMBER = 3  # digits; members also mention how many machines they have


class Grounding(Struct, frozen=True, kw_only=True):
    """The parts of an answer that its sources do not contain, except addresses."""

    strange_commands: tuple[str, ...] = ()
    """Command lines of the answer that no cited source contains."""
    strange_versions: tuple[str, ...] = ()
    """Versions that no cited source contains, and numbers, such as ports, that only the question contains."""
    suspicions: tuple[str, ...] = ()
    """Numbers that no cited source contains, and other code that is not in the conversation either. Bounded.

    Models are likeliest to affirm a number without a reason if only the question contains it.
    """

    @property
    def strange(self) -> tuple[str, ...]:
        """The commands and versions that are in no cited source."""
        return (*self.strange_commands, *self.strange_versions)


def check_grounding(answer: str, cited: Iterable[str], conversation: Iterable[str]) -> Grounding:
    """Check an answer against the texts of its cited sources. `conversation` is the members' words.

    Case, spacing, Markdown, typography and a shell's prompt make no difference.
    """
    known, asked, told = _ReferenceTexts(cited), _ReferenceTexts(conversation), _read_lines(answer)
    commands = [each for each in dict.fromkeys(_find_commands(answer, told)) if not _is_quoted_error(each, asked)]
    strange = [command for command in commands if not all(map(known.has_code, _list_needed_parts(command, known)))]
    bare = _URL.sub(" ", answer)
    versions = [*dict.fromkeys(found[0] for found in _VERSION.finditer(bare))]
    codes = [code for code in _find_code(answer, told) if code not in commands]
    suspicious = [code for code in dict.fromkeys(codes) if not (known.has_code(code) or asked.has_code(code))]
    numbers = [number for number in dict.fromkeys(_find_numbers(bare)) if number not in versions]
    unknown = [number for number in numbers if not known.has_number(number)]
    suspicious += unknown
    echoed = [number for number in unknown if len(number) >= _LONG_NUMBER and asked.has_number(number)]
    return Grounding(
        strange_commands=tuple(strange),
        strange_versions=(*(version for version in versions if not known.has_version(version)), *echoed),
        suspicions=tuple(each[:_LONGEST_SUSPICION] for each in suspicious[:_MOST_SUSPICIONS]),
    )


_ASKS = regex(
    r"(?is)(?!.*`)(?:\W*(?:(?:hello|please)\W+)*(?:(?:can|could|would) you|what|which|who|how|why|write|compose|explain"
    r"|describe|suggest|recommend|provide|tell|give|help|break|execute)\b.*|.*[?？][^\w?？]*)"
)
_DENIES = regex(r"(?i)\b(?:not?|none|nothing|unknown|cannot|\w+n['’]t|nichts?|kein\w*|pas|aucun\w*|ning\w+|não)\b")


def is_unfounded(answer: str, cited: Iterable[str], conversation: Sequence[str]) -> bool:
    """Return whether an answer adds nothing from the cited texts, or a sentence of it says something else.

    A sentence may leave a part of the question open. Answers in another language than the texts share too few words, so
    they are not judged.
    """
    texts, asked, told = "\n".join(cited), _collect_terms("\n".join(conversation)), _collect_terms(answer)
    if (language := detect_language(answer)) and language == detect_language(conversation[0]) != detect_language(texts):
        return False
    held = _collect_terms("\n".join(part for part in split_sentences(texts) if not part.endswith("?")))
    parts = [(stem_set(part), part) for part in split_sentences(answer)]
    if not (told - asked) & held or any(_ASKS.fullmatch(part) and not said & asked for said, part in parts):
        return True
    foreign = [(said, part) for said, part in parts if len(said) > 1 and not said & held]
    return any(not (said <= asked and _DENIES.search(part)) for said, part in foreign)


def _collect_terms(text: str) -> frozenset[object]:
    """Return the words of a text, and each two in a row: a command may consist of the question's words."""
    found = stem_words(text)
    return frozenset((*found, *pairwise(found)))


class _ReferenceTexts:
    """Texts to search for code and numbers."""

    def __init__(self, texts: Iterable[str]) -> None:
        held = [*texts]
        whole, outside = "\n".join(held), "\n".join(map(_strip_markup, held))
        self._flat, self._outside = f" {_normalise_code(whole)} ", f" {_normalise_code(outside)} "
        self._versions = {_normalise_version(found[0]) for found in _VERSION.finditer(whole)}
        self._numbers = {_normalise_number(found[0]) for found in _NUMBER.finditer(whole)}

    def has_code(self, code: str) -> bool:
        """Whether the texts contain a piece of code, not as part of a longer word."""
        flat = _normalise_code(code)
        return not flat or _has_whole_word(flat, self._flat) or _has_whole_word(flat, self._outside)

    def has_version(self, version: str) -> bool:
        """Whether the texts contain exactly this version."""
        plain = _normalise_version(version)
        # "10.000" means ten thousand to many; it only matches a number in the texts.
        number = plain.replace(".", "") if _THOUSANDS.fullmatch(plain) else plain
        return plain in self._versions or plain in self._numbers or number in self._numbers

    def has_number(self, number: str) -> bool:
        """Whether the texts contain this number, even within a version or an address."""
        return _normalise_number(number) in self._numbers or _has_whole_word(_normalise_code(number), self._flat)


def _find_commands(answer: str, told: _Lines) -> Iterator[str]:
    """Yield the command lines of an answer, without the shell's prompt."""
    for language, code in _iter_code_blocks(answer):
        for line in _iter_code_lines(code):
            if language in _SHELLS or _PROMPT.match(line) or (language in _SESSIONS and _is_runnable(line)):
                yield _strip_prompt(line)
    for code in _iter_code_spans(answer):
        if _PROMPT.match(code) or _is_runnable(code.strip()):
            yield _strip_prompt(code)
    yield from (command for _, command in told if command)


def _find_code(answer: str, told: _Lines) -> Iterator[str]:
    """Yield all code of an answer: the lines of its blocks, its spans, and the pieces of commands in its sentences."""
    for _, code in _iter_code_blocks(answer):
        yield from map(_strip_prompt, _iter_code_lines(code))
    yield from map(_strip_prompt, _iter_code_spans(answer))
    for line, command in told:
        pieces = (found[0].rstrip(".,;:!?)*_\"'") for found in _PIECE.finditer(line.replace(_CUT, "\n")))
        yield from (piece for piece in pieces if piece not in command)


_Lines: TypeAlias = Sequence[tuple[str, str]]


def _read_lines(answer: str) -> _Lines:
    """Return the lines outside of code, each with the command at its beginning."""
    return [(line, _find_command(line)) for line in _CONTINUED.sub(" ", _strip_markup(answer)).split("\n")]


def _strip_markup(text: str) -> str:
    """Return the text outside of code, without line marks and the emphasis at the beginnings of lines."""
    unmarked = _MARKS.sub("", _SPAN.sub(_CUT, _FENCED.sub("\n", text)))
    # Several bold words count as a span of their own; a label or a single word belongs to its line.
    for _ in range(_LAYERS):
        unmarked = _EMPHASIZED.sub(lambda it: it["words"] + _CUT * bool(_WORDY.search(it["words"])), unmarked)
    return _LABEL.sub("", unmarked)


def _find_command(line: str) -> str:
    """Return the command that a line outside of code begins with, without its prompt; empty if there is none."""
    command = _strip_prompt(line.partition(_CUT)[0].rstrip(" \t\r\\"))
    if _PROMPTED.match(line):
        return command if _is_command(command) else ""
    unmistakable = max((found.end() for found in _UNMISTAKABLE.finditer(command)), default=0)
    if remark := _REMARK.search(command, unmistakable):
        command = command[: remark.start()]
    command = _STOPS.sub("", command.rstrip(",;:!? \t"))
    is_one = _SUDO_OR_FLAG.search(command) and not _PROSE.search(command) and _is_command(command)
    return command if is_one else ""


def _iter_code_blocks(answer: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of each block of code."""
    for block in _FENCED.finditer(answer):
        if block["line"] is not None:
            yield "", block["line"]
            continue
        info = block["info"].strip()
        # A chat also shows the text after the ticks as code, unless it is one word.
        yield from [("", info)] if len(info.split()) > 1 else []
        yield re.split(r"[\s,:;{}]+", info.lstrip("{. "), maxsplit=1)[0].casefold(), block["code"]


def _iter_code_spans(answer: str) -> Iterator[str]:
    for span in _SPAN.finditer(_FENCED.sub("\n", answer)):
        yield " ".join(span["code"].split("\n"))


def _iter_code_lines(code: str) -> Iterator[str]:
    """Yield the lines of a block that are not blank or comments, joined where a backslash does."""
    begun = ""
    for each in [*code.split("\n"), ""]:
        line = begun + each.strip()
        is_silent = line.lstrip("> \t").startswith("#")
        begun = ""
        if line.endswith("\\") and not is_silent and not _COMMENT.search(line):
            begun = line[:-1].rstrip() + " "
        elif line.strip("> \t") and not is_silent:
            yield line.strip()
    if begun.strip():
        yield begun.strip()


def _strip_prompt(code: str) -> str:
    return _PROMPT.sub("", code).strip()


def _is_runnable(code: str) -> bool:
    """Return whether a line of code is a command, in upper or lower case."""
    return _is_command(code) or bool(_CAPITAL.match(code) and not _PROSE.search(code))


def _is_command(code: str) -> bool:
    if not _COMMAND.match(code) or _URL.match(code):
        return False
    return bool(_UNMISTAKABLE.search(code)) or not (_SENTENCE.search(code) or _PROGRAM.match(code))


def _is_quoted_error(code: str, asked: _ReferenceTexts) -> bool:
    """Whether it is an error message that the asker quoted, and cannot be run."""
    return bool(_TROUBLE.search(code)) and not _UNMISTAKABLE.search(code) and asked.has_code(code)


def _list_needed_parts(command: str, known: _ReferenceTexts) -> list[str]:
    """Return the parts that a source must contain: the whole line, or else a chain's commands, without a comment."""
    if known.has_code(command):
        return [command]
    ends = [command[: found.start()] for found in _COMMENT.finditer(command)]
    # The first comment outside of quotation marks.
    said = next((end for end in ends if end.count('"') % 2 == end.count("'") % 2 == 0), command)
    return [said] if known.has_code(said) else [part for part in _CHAINED.split(said) if part.strip()]


def _find_numbers(bare: str) -> Iterator[str]:
    return (found[0] for found in _NUMBER.finditer(_ORDINAL.sub("", bare)))


# Typesetting and copying change plain characters. A long dash was two hyphens.
_PLAIN = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201a\u201b", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb", '"')
    | dict.fromkeys("\u2010\u2011\u2212", "-")
    | dict.fromkeys("\u2013\u2014", "--")
    | dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", "")
)


def _normalise_code(text: str) -> str:
    """Normalise a text: ignore case, spacing, typography, emphasis, code marks and continued lines."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text.translate(_PLAIN)).translate(_PLAIN)
    joined = _CONTINUED.sub(" ", plain)
    unmarked = re.sub(r"\*\*|\\(?=[-_*#.`])", "", joined.replace("`", " "))
    return " ".join(unmarked.casefold().split())


def _normalise_version(text: str) -> str:
    return text.casefold().removeprefix("v")


def _normalise_number(text: str) -> str:
    return re.sub(r"[,']", "", text)


def _has_whole_word(flat: str, text: str) -> bool:
    at = text.find(flat)
    while at >= 0:
        if not (_is_one_word(text[at - 1], flat[0]) or _is_one_word(flat[-1], text[at + len(flat)])):
            return True
        at = text.find(flat, at + 1)
    return False


def _is_one_word(left: str, right: str) -> bool:
    """Whether two characters belong to one word."""
    return (left.isalnum() or left in "_-") and (right.isalnum() or right in "_-")
