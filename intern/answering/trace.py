"""What each step of an answer decided and how long it took: for the log, for `debug`, for whoever asks why."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from logging import DEBUG
from typing import Any, cast

import anyio

from intern.errors import InternError
from intern.llm.prompt import Prompt
from intern.llm.usage import metered
from intern.observe.log import Logger


class Trace:
    """Filled while a question is worked on; what stands in it is true whenever it is read."""

    def __init__(self, log: Logger) -> None:
        self.steps: dict[str, dict[str, Any]] = {}
        self._log = log
        self._began = anyio.current_time()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return _since(self._began)

    @contextmanager
    def step(self, name: str, prompt: Prompt[Any, Any] | None = None) -> Generator[dict[str, Any]]:
        """Takes the step's fields; adds `seconds`, and `tokens`, `cached_tokens` and `prompt` where one was asked.

        Adds `error` where it failed, and `unfinished` where it was given up.
        """
        began = anyio.current_time()
        fields = self.steps[name] = {"unfinished": True}
        with metered() as meter:
            try:
                yield fields
                del fields["unfinished"]
            except InternError as error:
                del fields["unfinished"]
                fields["error"] = str(error)
                raise
            finally:
                fields["seconds"] = _since(began)
                if meter.calls:
                    fields["tokens"] = meter.tokens
                    fields.update({} if prompt is None else {"prompt": prompt.name})
                if meter.cached_tokens:
                    fields["cached_tokens"] = meter.cached_tokens
                if self._log.isEnabledFor(DEBUG):
                    self._log.debug("ai_step", step=name, **flat(name, fields))

    def fields(self) -> dict[str, Any]:
        """All steps' fields for one log line: `gate.kind` and so on."""
        return {key: value for name, fields in self.steps.items() for key, value in flat(name, fields).items()}


def steps_of(debug: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields of the steps of one question, from its `AIResult.debug`, in their order."""
    return [cast("dict[str, Any]", step) for step in debug.values() if isinstance(step, dict)]


def tokens_by_prompt(debug: Mapping[str, Any]) -> dict[str, int]:
    """What the prompts of one question cost, from its `AIResult.debug`, in the order of the steps."""
    return {step["prompt"]: int(step["tokens"]) for step in steps_of(debug) if "prompt" in step}


def flat(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A step's fields with its name before theirs."""
    return {f"{name}.{key}": value for key, value in fields.items()}


def _since(began: float) -> float:
    return round(anyio.current_time() - began, 6)
