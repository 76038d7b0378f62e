"""The trace of an answer: its steps, times and tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from logging import DEBUG
from typing import Any, TypeVar, cast

import anyio

from intern.answering.steps import StepResult
from intern.core.errors import InternError
from intern.core.log import Logger
from intern.core.text.masking import mask_start
from intern.models.prompt import Prompt
from intern.models.usage import measure_usage

ResultT = TypeVar("ResultT", bound=StepResult)


class Trace:
    """The fields of the steps of a question, from their results. It can be read at any time."""

    def __init__(self, log: Logger, prompts: Mapping[str, Prompt[Any, Any]]) -> None:
        self._steps: dict[str, dict[str, Any]] = {}
        self._words: dict[str, dict[str, Any]] = {}
        self._log, self._prompts = log, prompts
        self._began = anyio.current_time()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return round(anyio.current_time() - self._began, 6)

    async def run(self, name: str, step: Awaitable[ResultT]) -> ResultT:
        """Do a step, and write its fields and `seconds` down.

        Add `tokens`, `cached_tokens`, `cost` and `prompt` if a model was asked, `error` if the step failed, and
        `unfinished` if it was cancelled.
        """
        began = anyio.current_time()
        fields = self._steps[name] = {"unfinished": True}
        with measure_usage() as meter:
            try:
                result = await step
                del fields["unfinished"]
                fields.update(result.fields)
                self._words[name] = {
                    key: shorten_reply(said) if isinstance(said, str) else tuple(map(shorten_reply, said[:5]))
                    for key, said in result.words.items()
                }
                if result.of_gate:
                    self._steps["gate"].update(result.of_gate)
                return result
            except InternError as error:
                del fields["unfinished"]
                fields["error"] = str(error)
                raise
            finally:
                fields["seconds"] = round(anyio.current_time() - began, 6)
                if meter.calls:
                    fields["tokens"] = meter.tokens
                    fields.update({"prompt": self._prompts[name].name} if name in self._prompts else {})
                if meter.cost:
                    fields["cost"] = round(meter.cost, 9)
                if meter.cached_tokens:
                    fields["cached_tokens"] = meter.cached_tokens
                if self._log.isEnabledFor(DEBUG):
                    self._log.debug("ai_step", step=name, **{f"{name}.{key}": value for key, value in fields.items()})

    def debug(self) -> dict[str, dict[str, Any]]:
        """Return the steps' fields, with the model's words at each step."""
        return {step: {**fields, **self._words.get(step, {})} for step, fields in self._steps.items()}

    def fields(self) -> dict[str, Any]:
        """Return all steps' fields for one log line: `gate.kind` and so on."""
        return {f"{name}.{key}": value for name, fields in self._steps.items() for key, value in fields.items()}


def list_steps(debug: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of the steps of one question, from its `AnswerResult.debug`, in their order."""
    return [cast("dict[str, Any]", step) for step in debug.values() if isinstance(step, dict)]


def tokens_by_prompt(debug: Mapping[str, Any]) -> dict[str, int]:
    """Return the tokens of the prompts of one question, from its `AnswerResult.debug`, in the order of the steps."""
    return {step["prompt"]: int(step["tokens"]) for step in list_steps(debug) if "prompt" in step}


_MOST_CHARS = 300  # of a model's words, in `debug`; the log has only the gate's reason


def shorten_reply(text: str) -> str:
    """Shorten a model's reply for the trace, and mask secrets."""
    return mask_start(text, _MOST_CHARS)
