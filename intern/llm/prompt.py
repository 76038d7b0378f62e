"""A prompt is a template, a typed input and a typed output; a model answers it or raises a `ModelError`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from intern.domain import Image

Choices = Mapping[str, Sequence[str]]
"""The values that a text may take, by the name of its field; for a list of texts, those of its items."""

InT = TypeVar("InT")
OutT = TypeVar("OutT")


@dataclass(frozen=True, slots=True)
class Prompt(Generic[InT, OutT]):
    """One model call. `name` is also the template's: `prompts/<name>.md.j2`."""

    name: str
    takes: type[InT]
    """A msgspec Struct; its fields are the template's variables."""
    gives: type[OutT]
    """A msgspec Struct; the reply's JSON schema is made from it."""
    offers: Callable[[InT], Choices] | None = None
    """The values that fields of the reply may take for this input, such as ids that were shown. A schema may say so;
    whoever reads the reply must not rely on it."""
    bounded_by: tuple[str, ...] = ()
    """The settings that bound what is put into it, for an error that tells of a prompt too long."""


class Model(Protocol):
    """Whatever can answer prompts: an endpoint, rules without a model, a script in tests."""

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        """A reply that fits `prompt.gives`. Raises the `ModelError` family, and nothing else but bugs."""
        ...
