"""What is asked of a model about a discovered file."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from intern.llm.prompt import Prompt


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
