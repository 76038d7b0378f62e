"""Summaries without a model: how a file begins, and the terms that it is most about. Deterministic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from intern.discovery.prompts import SUMMARIZE_FILE, SummarizeFileIn, SummarizeFileOut
from intern.text.words import key_terms

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
