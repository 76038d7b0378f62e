"""Summaries without a model: how a file begins, and the terms that it is most about. Deterministic.

What is asked of a model about a discovered file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, Struct

from intern.core.text.words import key_terms
from intern.models.prompt import Prompt


class SummarizeFileIn(Struct, frozen=True, kw_only=True):
    """The file."""

    file_path: str
    file_type: str
    structure: str
    """What its structure tells; may be empty."""
    text: str


class SummarizeFileOut(Struct, frozen=True, kw_only=True):
    """What it holds."""

    summary: Annotated[str, Meta(max_length=2000, description="3 to 6 sentences of plain English text.")]


SUMMARIZE_FILE = Prompt("summarize_file", takes=SummarizeFileIn, gives=SummarizeFileOut)


_LEAD = 240
_TERMS = 20


def summarize_file(given: SummarizeFileIn) -> SummarizeFileOut:
    """The beginning of the file, its structure, and its key terms."""
    lead = " ".join(given.text.split())
    if len(lead) > _LEAD:
        lead = f"{lead[:_LEAD].rpartition(' ')[0] or lead[:_LEAD]}…"
    terms = ", ".join(key_terms(given.text, _TERMS))
    parts = (lead, given.structure, f"Key terms: {terms}." if terms else "")
    return SummarizeFileOut(summary=" ".join(part for part in parts if part) or "It is empty.")


RULES: dict[str, Callable[[Any], Any]] = {SUMMARIZE_FILE.name: summarize_file}
"""For `OfflineModel`."""
