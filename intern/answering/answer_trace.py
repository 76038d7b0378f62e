"""The trace of an answer: its steps, times and tokens."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from logging import DEBUG
from typing import Any, cast

import anyio

from intern.core.errors import InternError
from intern.core.log import Logger
from intern.core.text.masking import mask_start
from intern.models.prompt import Prompt
from intern.models.usage import measure_usage


class Trace:
    """The fields of the steps of a question. It is filled during the work, and can be read at any time."""

    def __init__(self, log: Logger) -> None:
        self.steps: dict[str, dict[str, Any]] = {}
        self._said: dict[str, dict[str, Any]] = {}
        self._log = log
        self._began = anyio.current_time()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return _seconds_since(self._began)

    @contextmanager
    def step(self, name: str, prompt: Prompt[Any, Any] | None = None) -> Generator[dict[str, Any]]:
        """Yield a dict for the step's fields, and add `seconds` to it.

        Add `tokens`, `cached_tokens`, `cost` and `prompt` if a model was asked, `error` if the step failed, and
        `unfinished` if it was cancelled.
        """
        began = anyio.current_time()
        fields = self.steps[name] = {"unfinished": True}
        with measure_usage() as meter:
            try:
                yield fields
                del fields["unfinished"]
            except InternError as error:
                del fields["unfinished"]
                fields["error"] = str(error)
                raise
            finally:
                fields["seconds"] = _seconds_since(began)
                if meter.calls:
                    fields["tokens"] = meter.tokens
                    fields.update({} if prompt is None else {"prompt": prompt.name})
                if meter.cost:
                    fields["cost"] = round(meter.cost, 9)
                if meter.cached_tokens:
                    fields["cached_tokens"] = meter.cached_tokens
                if self._log.isEnabledFor(DEBUG):
                    self._log.debug("ai_step", step=name, **prefix_fields(name, fields))

    def record_texts(self, step: str, **texts: str | Sequence[str]) -> None:
        """Keep a model's words at a step, for `debug`: a text, or the first few of several, cut and without secrets.

        The log does not contain them, because models may repeat people's words.
        """
        self._said.setdefault(step, {}).update(
            (name, shorten_reply(said) if isinstance(said, str) else tuple(map(shorten_reply, said[:5])))
            for name, said in texts.items()
        )

    def debug(self) -> dict[str, dict[str, Any]]:
        """Return the steps' fields, with the model's words at each step."""
        return {step: {**fields, **self._said.get(step, {})} for step, fields in self.steps.items()}

    def fields(self) -> dict[str, Any]:
        """Return all steps' fields for one log line: `gate.kind` and so on."""
        return {key: value for name, fields in self.steps.items() for key, value in prefix_fields(name, fields).items()}


def list_steps(debug: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of the steps of one question, from its `AnswerResult.debug`, in their order."""
    return [cast("dict[str, Any]", step) for step in debug.values() if isinstance(step, dict)]


def tokens_by_prompt(debug: Mapping[str, Any]) -> dict[str, int]:
    """Return the tokens of the prompts of one question, from its `AnswerResult.debug`, in the order of the steps."""
    return {step["prompt"]: int(step["tokens"]) for step in list_steps(debug) if "prompt" in step}


def prefix_fields(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return a step's fields with its name before theirs."""
    return {f"{name}.{key}": value for key, value in fields.items()}


def _seconds_since(began: float) -> float:
    return round(anyio.current_time() - began, 6)


_MOST_CHARS = 300  # of a model's words, in `debug`; the log has only the gate's reason


def shorten_reply(text: str) -> str:
    """Shorten a model's reply for the trace, and mask secrets."""
    return mask_start(text, _MOST_CHARS)
