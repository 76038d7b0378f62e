"""The marks that show how a text is built, where it came from a format that has others: headings and code blocks."""

from __future__ import annotations

import re

# What no reader sees: control characters but for tab and line break.
_UNWANTED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_HALVES = re.compile(r"[\ud800-\udfff]")
_GAPS = re.compile(r"\n{3,}")
_BACKTICKS = re.compile(r"`{3,}")


def headed(title: str, text: str) -> str:
    """The text below its title, unless it has a first heading of its own."""
    line = " ".join(cleaned(title).split())
    return f"# {line}\n\n{text}" if line and not text.startswith("# ") else text


def code_block(code: str, language: str = "") -> str:
    """A code block that nothing in the code can end."""
    fence = "`" * (max(map(len, _BACKTICKS.findall(code)), default=2) + 1)
    body = code.strip("\n")
    return f"{fence}{language}\n{body}\n{fence}"


def cleaned(text: str) -> str:
    """Without control characters and halves of characters, blanks at the ends of lines, and runs of empty lines."""
    bare = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n")
    whole = _HALVES.sub("\ufffd", _UNWANTED.sub("", bare))
    return _GAPS.sub("\n\n", "\n".join(line.rstrip() for line in whole.split("\n"))).strip("\n")
