"""What an operator can set about a language model: the table `[llm]`, and `[llm.kb]` over it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from intern.domain.secret import Secret

StructuredOutput = Literal["json_schema", "function_calling", "json_object"]
"""How a reply is held to its type: by the response format, by a forced function call, or by words alone."""


class LlmOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model. An empty `provider` means the endpoint where `base_url` is set, and the offline rules elsewhere."""

    provider: Literal["", "endpoint", "offline"] = ""
    base_url: str = ""
    """Up to, not including, `/chat/completions`."""
    api_key: Secret = Secret()
    """Empty: no Authorization header is sent, as local servers like it."""
    model: str = ""
    timeout_seconds: Annotated[float, Meta(gt=0)] = 60.0
    """For each attempt, from the first byte sent to the last one read; waiting for a free slot is not counted."""
    max_retries: Annotated[int, Meta(ge=0, le=10)] = 3
    max_tokens: Annotated[int, Meta(ge=1)] = 4096
    """The longest reply; models that think aloud need room for that, too."""
    structured_output: StructuredOutput = "json_schema"
    schema_bounds: bool = False
    """Send bounds like `maxLength`, and ids that were shown as enums, with the schema. They hold on decoding anyway;
    some endpoints refuse them."""
    images: bool = False
    """The model can look at pictures; otherwise they are left out."""
    max_in_flight: Annotated[int, Meta(ge=1)] = 8
    calls_per_minute: Annotated[int, Meta(ge=0)] = 0
    """0: no limit. Retries count."""
    daily_token_budget: Annotated[int, Meta(ge=0)] = 0
    """Prompt and reply tokens of one UTC day; 0: no limit."""

    @property
    def kind(self) -> Literal["endpoint", "offline"]:
        """The provider, once the empty one is settled."""
        return self.provider or ("endpoint" if self.base_url else "offline")
