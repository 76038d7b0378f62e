r"""Digests of text files that people attach: the lines that say what went wrong, the beginning and the end; masked.

The rule is general: words and levels of logs, exceptions, exit codes, the last line of a traceback. It knows no
program. Lines that differ in numbers and addresses only are one.

Whole files take too long to mask (0.14 s for 256 kB), so pieces are chosen first, and nothing but masked pieces leaves
this module. A private key is masked in the whole text. Each piece is masked with the text around it, so that it holds
no half of another secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from string import digits

from intern.core.messages import FileDigest
from intern.core.text.masking import mask_file
from intern.core.text.orders import remove_prompt_injection
from intern.documents.parsing import NotADocumentError, decode_text

MOST_TELLING = 300
"""Characters of the telling lines that are archived, and lead the search."""
MOST_WHOLE = 4000
"""Characters of a file that a model is shown whole."""
MOST_CHARS = 2000
"""Characters of the digest of another file."""
GAP = "\n[…]\n"

_LONGEST_LINE = 200
_READ_LINE = 800  # characters of a line that are read; half a secret at their end is far behind the shown part
_RANKED_LINE = 300
_MASKED_BEFORE = 400  # characters before a telling line that are masked with it
_MOST_PLACES = 40  # of each clue, from either end
_HALF = 100  # of the candidates: the first, and the last
_LONGEST_PROSE = 20_000
_LONGEST_TRACEBACK = 20_000
_MOST_MASKED = 12  # telling lines

# In small letters.
_CLUES = (
    "abort|already in use|already exists|already running|caused by|could not|can't|cannot|conflict|corrupt|crash"
    "|critical|denied|erro|err]| err|exceed|exception|exit code|exit status|exited|expired|fail|fatal|illegal|invalid"
    "|killed|malformed|mismatch|missing|no such|not found|not allowed|not permitted|not supported|not available|not a "
    "|not valid|out of memory|panic|refused|reject|severe|timed out|timeout|too many|too large|too old|unable|undefined"
    "|unexpected|unknown|unsupported|unreachable|violat| e |e/|emerg|fehler|erreur|échec|fallo|falha|ошибк|エラー"
).split("|")
_LEVEL = r"(?:^|[\s\[(|<]|level[\"']?\s?[=:]\s?[\"']?)"
_WRONG = re.compile(
    rf"{_LEVEL}(?i:ERRO?|FATAL|CRITICAL|SEVERE|PANIC|EMERG(?:ENCY)?)\b|^E[/ ]\w|(?<=\d )E (?=\S)|\bCaused by:"
    r"|\bpanicked\b|(?i:\berr(?:ors?)?\b)|\b[A-Za-z]\w*(?:Error|Exception)\b"
    r"|(?i:\b(?:fehler|erreur|échec|fallo|falha)\b|ошибк|エラー)"
)
# Reports, and ends that only say that there was an error.
_LITTLE = re.compile(
    rf"{_LEVEL}(?i:INFO|DEBUG|TRACE|VERBOSE|NOTICE)\b|^[IDV][/ ]\w|(?<=\d )[IDV] (?=\S)|(?i:\bexit(?:ed|ing)?\b"
    r"|\bnon-?zero\b|\baborting\b|failed with result|see (?:the )?(?:log|output|above)|during handling|direct cause"
    r"|completed with)"
)
_NONE = re.compile(
    r"(?i)\b(?:no|0|zero|without(?: any)?|ignor\w+) (?:\w+ )?(?:errors?|failures?|exceptions?|failed)\b"
    r"|\b(?:errors?|fail(?:ed|ures?)|exceptions?|exit(?:ed)? (?:code|status))[\"']?\s*[:=]?\s*[\"']?"
    r"(?:0|none|null|false)\b"
)
# Text that no message has, except in a paste.
_LOGGED = re.compile(
    rf"(?m){_LEVEL}(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERRO?|ERROR|FATAL|CRITICAL|SEVERE|PANIC)\b|\d\d:\d\d:\d\d"
    r"|\b[A-Za-z]\w*(?:Error|Exception)\b|Traceback \("
)
_ASKING = re.compile(r"(?m)[？؟⁇⁈]|(?<=\S)\?(?=[\s\"')*_]|\Z)|\?\s*$")
_TRACEBACK = "Traceback (most recent call last)"
# Frames of a stack, and lines of code.
_NO_LINE = re.compile(
    r".*Traceback \(most|\s*(?:at [\w$.<]|File \"|\.{3} \d+ more|\d+: 0x|#|//|/?\*|[})]|(?:if|for|while|try|except"
    r"|catch|raise|throw|return|def|class|import|from|function|const|let|var|func?|else|elif|finally|assert)\b"
    r"(?!.*:\s\S))"
)
_NOT_INDENTED = re.compile(r"\n(?=\S)")
_STAMP = re.compile(
    r"^[\[(\s]*(?:[A-Z][a-z]{2},? )?(?:[\d/.-]+|[A-Z][a-z]{2} +\d+|\d+/[A-Z][a-z]{2}/\d+)?[T ,_:]{0,2}\d\d:\d\d"
    r"(?::[\d.,]+)?(?:Z| ?[+-]\d\d:?\d\d| UTC| [AP]M)?[\])]?[\s|:-]*"
    r"|[\"']?\b(?:ts|time|timestamp|@timestamp)[\"']?\s?[=:]\s?(?:\"[^\"]*\"|[\w:.+-]+),?\s*"
)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F-]{8,}\b")
_NO_DIGITS = str.maketrans("", "", digits)
# Backwards: a mask, or half a long secret, on one line or several.
_READ_END = re.compile(
    r"\][a-z_]+ deksam\[|(?P<run>(?=(?:[\w+/=.-]*+\s{1,40})?[\w+/=.-]{40})[\w+/=.-]*+(?:\s{1,40}[\w+/=.-]{40,}+)*+)"
)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?:[\s\S]*?-----END[^\n]*|[\s\S]*)")


def digest_file(data: bytes) -> FileDigest | None:
    """Return the digest of a file, with about `MOST_WHOLE` at most; None if the bytes are not text."""
    try:
        text = decode_text(data)[0].strip()
    except NotADocumentError:
        return None
    if not text:
        return None
    text = _PRIVATE_KEY.sub("[masked private_key]", text) if "PRIVATE KEY" in text else text
    asking = _find_questions(text[:_LONGEST_PROSE])
    telling = [_mask_line(text, start) for start in (asking or _find_telling(text))[:_MOST_MASKED]]
    is_whole = len(text) <= MOST_WHOLE
    start = _mask_start(text, MOST_WHOLE if is_whole else MOST_CHARS // 4)
    # Without such lines (a configuration), its beginning represents it.
    short = _fit_lines(telling, MOST_TELLING) or _fit_lines(
        [line for line in start.split("\n") if line.strip()], MOST_TELLING
    )
    end = _mask_start(text, MOST_CHARS // 4, backwards=True)
    parts = (start,) if is_whole else (_fit_lines(telling, MOST_CHARS // 2), start, end)
    excerpt = remove_prompt_injection(GAP.join(filter(None, parts)))
    return FileDigest(telling=remove_prompt_injection(short), went_wrong=bool(telling and not asking), excerpt=excerpt)


def _find_questions(text: str) -> list[int]:
    """Return the beginnings of lines that ask something: Discord's client makes a file of a long message."""
    places = [] if _LOGGED.search(text) else [found.start() for found in _ASKING.finditer(text)]
    return [*dict.fromkeys(text.rfind("\n", 0, place) + 1 for place in places)]


def _find_telling(text: str) -> list[int]:
    """Return the beginnings of lines that say what went wrong, best first; equals from either end, the last first."""
    small = text.replace("\u0130", "i").lower()  # the only letter whose length changes
    # The line that names the exception is the first behind a traceback that is not indented.
    traced = (_NOT_INDENTED.search(text, at, at + _LONGEST_TRACEBACK) for at in _find_places(text, _TRACEBACK))
    ends = {found.end() for found in traced if found}
    found = {text.rfind("\n", 0, at) + 1 for clue in _CLUES for at in _find_places(small, clue)} | ends
    firsts = {_line_at(text, start, _RANKED_LINE).translate(_NO_DIGITS): start for start in sorted(found, reverse=True)}
    starts = [*firsts.values()]
    ranked: dict[int, dict[str, int]] = {}
    for start in dict.fromkeys((*starts[:_HALF], *starts[-_HALF:])):
        line = _line_at(text, start, _RANKED_LINE)
        rank = 4 if start in ends else _rank_line(line)
        ranked.setdefault(rank, {})[_ADDRESS.sub("", _STAMP.sub("", line)).translate(_NO_DIGITS)] = start
    ranked.pop(0, None)
    best: list[int] = []
    for rank in sorted(ranked, reverse=True):
        # Errors follow each other, and the cause is at either end.
        left = sorted(ranked[rank].values())
        best += [left.pop(-1 if n % 2 == 0 else 0) for n in range(len(left))]
    return best


def _line_at(text: str, start: int, most: int) -> str:
    return text[start : start + most].partition("\n")[0]


def _find_places(text: str, wanted: str) -> Iterator[int]:
    """Yield the first and the last places where a text is found, one for each line."""
    first, last = text.find(wanted), text.rfind(wanted)
    for _ in range(_MOST_PLACES):
        if 0 <= first <= last:
            yield from (first, last)
            first = text.find(wanted, text.find("\n", first) % (len(text) + 1))
            last = text.rfind(wanted, 0, text.rfind("\n", 0, last) + 1)


def _rank_line(line: str) -> int:
    """Return how much a line says about what went wrong; 0: nothing."""
    said = _NONE.sub(" ", _STAMP.sub("", line).strip())
    if len(said) < 8 or " " not in said or _NO_LINE.match(line):
        return 0
    if not any(clue in f"{said} ".lower() for clue in _CLUES):
        return 0
    return 1 if _LITTLE.search(said) else 3 if _WRONG.search(said) else 2


def _mask_line(text: str, start: int) -> str:
    line = _line_at(text, start, _READ_LINE)
    masked = mask_file(text[max(0, start - _MASKED_BEFORE) : start] + line).rpartition("\n")[2]
    return _truncate_masked(_STAMP.sub("", masked).strip(), _LONGEST_LINE, is_whole=len(line) < _READ_LINE)


def _mask_start(text: str, most: int, *, backwards: bool = False) -> str:
    """Return the beginning of a text, or with `backwards` its end."""
    way = slice(None, None, -1 if backwards else 1)
    seen = text[way][: 4 * most]
    return _truncate_masked(mask_file(seen[way])[way], most, is_whole=len(seen) == len(text))[way]


def _truncate_masked(masked: str, most: int, *, is_whole: bool) -> str:
    """Cut a masked text. The text that was read may end with half a secret, which masks may have drawn near."""
    end = _READ_END.match(masked[::-1])
    hidden = 0 if is_whole else len(end["run"] or "") if end else most
    return masked[: max(0, min(most, len(masked) - hidden))]


def _fit_lines(lines: Sequence[str], most: int) -> str:
    """Return the first lines that fit; of a longer first one, its beginning."""
    text = "\n".join(lines)
    return text if len(text) <= most else text[:most].rpartition("\n")[0] or text[:most]
