"""The models that the settings name: one for answers, one for capture and indexing, or rules where there is none."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from intern.answering import offline as offline_answering
from intern.answering.prompts import ANSWER, GATE, SELECT, VERIFY
from intern.indexing import offline as offline_indexing
from intern.indexing.prompts import SUMMARIZE_SOURCE, SUMMARIZE_TOPIC
from intern.knowledge.usage import UsageLog
from intern.learning import offline as offline_learning
from intern.learning.prompts import CLASSIFY, INTEGRATE
from intern.llm.endpoint import EndpointModel
from intern.llm.offline import OfflineModel
from intern.llm.options import LlmOptions
from intern.llm.prompt import Model, Prompt
from intern.llm.templates import Templates
from intern.llm.usage import Usage
from intern.observe.clock import Clock
from intern.settings import Settings

PROMPTS: tuple[Prompt[Any, Any], ...] = (
    GATE,
    SELECT,
    ANSWER,
    VERIFY,
    CLASSIFY,
    INTEGRATE,
    SUMMARIZE_SOURCE,
    SUMMARIZE_TOPIC,
)
"""The catalogue: every model call there is. A test compares it with the templates."""


class Models(NamedTuple):
    """Who answers which prompts."""

    answering: Model
    learning: Model
    """For capture and indexing: it never starves answers."""


@asynccontextmanager
async def open_models(settings: Settings, log: UsageLog | None, clock: Clock) -> AsyncGenerator[Models]:
    """Open the models; what they cost is kept in `log`, if there is one. Raises ConfigError."""
    usage = Usage(log, clock=clock)
    templates = Templates(
        Path(settings.prompts.dir) if settings.prompts.dir else None,
        {
            "project_introduction": settings.ai.project_introduction,
            "answer_scope": settings.ai.answer_scope,
            "refusal_policy": settings.ai.refusal_policy,
        },
    )
    async with AsyncExitStack() as stack:

        async def model(options: LlmOptions, section: str) -> EndpointModel | OfflineModel:
            if options.kind == "offline":
                return OfflineModel(offline_rules())
            templates.check(PROMPTS)
            return await stack.enter_async_context(
                EndpointModel(options, templates=templates, usage=usage, section=section)
            )

        answering = await model(settings.llm, "llm")
        learning = answering if settings.llm_kb is None else await model(settings.llm_kb, "llm.kb")
        yield Models(answering, learning.background() if isinstance(learning, EndpointModel) else learning)


def offline_rules() -> dict[str, Callable[[Any], Any]]:
    """What answers each prompt where there is no model."""
    return {**offline_answering.RULES, **offline_learning.RULES, **offline_indexing.RULES}
