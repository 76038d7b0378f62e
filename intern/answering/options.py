"""What an operator can set about answers: the `[ai]` section."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class AnsweringOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds that hold exactly, and the words that prompts put in where they ask for them."""

    request_timeout_seconds: Annotated[float, Meta(gt=0)] = 300.0
    """For one question, from the first model call to the last; a local model may need minutes."""
    max_sources: Annotated[int, Meta(ge=1)] = 5
    """Of `separate` only: `fused` shows at most eight passages."""
    max_answer_chars: Annotated[int, Meta(ge=1)] = 3000
    """A longer answer is not posted at all: half an answer misleads. With `fused`, a reply has room for 4,000."""
    require_citations: bool = True
    """Of `separate` only: `fused` posts nothing without a quote that stands in a passage."""
    strict_grounding: bool = True
    """No reply with a command line or a version that stands in no cited source. Off: the verifying model decides."""
    steps: Literal["fused", "separate"] = "fused"
    """`fused`: the search chooses what is read, one call decides and answers, one checks. `separate`: four calls."""
    verify: Literal["always", "unsure"] = "always"
    """`unsure`: no second call where code alone is sure of an answer. Of `fused` only."""
    max_passage_chars: Annotated[int, Meta(ge=200)] = 5_000
    """For all passages of one question together. Of `fused` only."""
    max_index_chars: Annotated[int, Meta(ge=1)] = 12_000
    """The index goes to the model whole while it fits; beyond that, its best entries do. Of `separate` only."""
    max_source_chars: Annotated[int, Meta(ge=1)] = 8_000
    """For all loaded sources of one question together. Of `separate` only."""
    repeat: bool = True
    """Reuse the model's reply to the very same request, for a week at most."""
    retract: bool = False
    """Edit a posted answer to a note once a source that it cites has changed or was withdrawn."""
    project_introduction: str = ""
    answer_scope: str = ""
    refusal_policy: str = ""
