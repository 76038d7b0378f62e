"""The form of a request: how each part of it is said so that a server takes it, found from the server's refusals. Pure.

Servers differ in what they take. A refusal that names parts moves these to their next value, all at once, and only
these. After four refusals, or after one that names nothing that is left, the smallest form is tried: one user message
without any optional field. What the server demands beyond that is added once. So a server that takes either is
answered within six tries. A known form that is refused belongs to an older version of the server: the search begins
anew, within the same six.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

VALUES: Mapping[str, tuple[Any, ...]] = {
    # Servers that do not know `max_completion_tokens` often ignore it, and then nothing bounds a reply.
    "limit": ("max_tokens", "max_completion_tokens", ""),
    "temperature": (True, False),
    "system": ("system", "developer", "user"),
    "examples": ("turns", "text"),
    "stream": (True, False),
    "counting": (True, False),
    "output": ("json_schema", "function_calling", "json_object", ""),
    "strict": (True, False),
    "bounds": (True, False),
    "choices": (True, False),
    "effort": (True, False),
}
"""The values of each part, the fullest first. `system` is the role of the system text, or that of the first user
message, which then begins with it. `counting` asks a stream for its tokens. `output` is how a reply is held to its
type; "" says the schema in words alone. `bounds` are lengths and ranges in schemas, `choices` short lists of ids."""

_NAMED_REFUSALS = 4


class RequestForm(NamedTuple):
    """For each part of `VALUES`, the place of its value."""

    limit: int = 0
    temperature: int = 0
    system: int = 0
    examples: int = 0
    stream: int = 0
    counting: int = 0
    output: int = 0
    strict: int = 0
    bounds: int = 0
    choices: int = 0
    effort: int = 0

    @property
    @cache  # noqa: B019 there are few forms
    def values(self) -> Mapping[str, Any]:
        """The value of each part."""
        return {part: values[place] for (part, values), place in zip(VALUES.items(), self, strict=True)}

    def step_down(self, parts: Collection[str]) -> RequestForm:
        """Return the form with the next value of these parts; a part at its last value keeps it.

        `schema` means the parts of a schema, and `output` once they are used up.
        """
        if "schema" in parts:
            inner = {"strict", "bounds", "choices"}
            parts = {*parts, *(inner if self.step_down(inner) != self else {"output"})}
        places = {part: min(getattr(self, part) + 1, len(VALUES[part]) - 1) for part in VALUES if part in parts}
        return self._replace(**places)

    def describe(self) -> str:
        """Return a text of the parts that the server does not take; empty for the fullest form."""
        return ", ".join(_LACKS[part][place - 1] for part, place in zip(VALUES, self, strict=True) if place)


SMALLEST = RequestForm(*(len(values) - 1 for values in VALUES.values()))

_LACKS: Mapping[str, tuple[str, ...]] = {
    "limit": ("max_tokens, but max_completion_tokens", "a token limit"),
    "temperature": ("a temperature",),
    "system": ("the role system, but developer", "a system message"),
    "examples": ("example turns",),
    "stream": ("streaming",),
    "counting": ("counts of tokens in streams",),
    "output": ("json_schema, but function calls", "json_schema or function calls, but json_object", "a reply format"),
    "strict": ("strict schemas",),
    "bounds": ("bounds in schemas",),
    "choices": ("choices in schemas",),
    "effort": ("llm.reasoning_effort",),
}


@dataclass
class FormSearch:
    """The search for a form that a server takes, for one call: six tries at most."""

    form: RequestForm
    """The form to try now."""
    smallest: RequestForm
    proven: RequestForm | None
    """The form that was answered before, if any."""
    fallback: RequestForm | None
    """The form that comes after one refusal, if any."""
    untried: RequestForm | None = field(default=None, init=False)
    """A fuller form that is worth a try, where the smallest one was tried instead."""

    def __post_init__(self) -> None:
        self._reached, self._refusals, self._is_last = self.form, 0, False
        self._demands: Collection[str] | None = None
        """The parts that the refusal of the smallest form names."""

    @property
    def is_narrowing(self) -> bool:
        """Whether `form` lacks nothing but the parts that were refused."""
        return self._reached == self.form

    def refuse(self, parts: Collection[str]) -> bool:
        """Choose the next form after a refusal that names these parts. Return False if there is none."""
        self._refusals += 1
        if self._is_last:
            return False
        if self.form == self.smallest:
            self._demands = parts
        if self.fallback is not None:
            self.form = self._reached = self.fallback
            self.fallback = None
            return True
        if self.form != self.smallest:
            before, self._reached = self._reached, self._reached.step_down(parts)
            is_news = self._reached != before
            if is_news and self._refusals < _NAMED_REFUSALS:
                self.form = self._reached
                return True
            # A proven form that was refused without a reason may have been refused for this one prompt.
            self.untried = self._reached if is_news else self.proven
        demands = self._demands or ()
        self._is_last = self._demands is not None
        self.form = self.smallest._replace(**{part: self._find_place(part) for part in VALUES if part in demands})
        return not self._is_last or self.form != self.smallest

    def _find_place(self, part: str) -> int:
        """Return the fullest value that was not refused; for one that was refused entirely, the first."""
        place: int = getattr(self._reached, part)
        return place if place < len(VALUES[part]) - 1 else 0
