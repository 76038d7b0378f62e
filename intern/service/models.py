"""The models that the settings name: one for answers, one for capture and indexing, or rules where there is none."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from anyio import CancelScope

from intern.answering import offline as offline_answering
from intern.answering.nearest import Nearest
from intern.answering.prompts import ANSWER, CONFIRM, DECIDE, GATE, SELECT, VERIFY
from intern.core.clock import Clock
from intern.core.errors import KnowledgeError
from intern.core.log import get_logger
from intern.facts.prompts import EXTRACT
from intern.learning import classifying
from intern.learning.prompts import CLASSIFY, INTEGRATE, SPLIT_TOPIC, SUMMARIZE_IMAGES
from intern.models.chat import Form
from intern.models.endpoint import EndpointModel
from intern.models.limits import Breaker
from intern.models.options import LlmOptions
from intern.models.prompt import Model, OfflineModel, Prompt
from intern.models.templates import Templates
from intern.models.usage import Usage
from intern.search.embedding_endpoint import EndpointEmbedder, vectors_of
from intern.search.embedding_local import LOCAL_MODEL, LocalEmbedder, installed
from intern.search.finding import Embedder
from intern.settings.loading import Settings
from intern.sources import descriptions as offline_indexing
from intern.sources.descriptions import SUMMARIZE_FILE, SUMMARIZE_SOURCE, SUMMARIZE_TOPIC
from intern.stores.sqlite.database import Database
from intern.stores.sqlite.usage import FormLog, UsageLog, VectorMemory

_log = get_logger(__name__)

PROMPTS: tuple[Prompt[Any, Any], ...] = (
    GATE,
    SELECT,
    ANSWER,
    VERIFY,
    DECIDE,
    CONFIRM,
    CLASSIFY,
    INTEGRATE,
    SPLIT_TOPIC,
    SUMMARIZE_IMAGES,
    EXTRACT,
    SUMMARIZE_SOURCE,
    SUMMARIZE_TOPIC,
    SUMMARIZE_FILE,
)
"""The catalogue: every model call there is. A test compares it with the templates."""


class Models(NamedTuple):
    """Who answers which prompts."""

    answering: Model
    learning: Model
    """For capture and indexing: it never starves answers."""
    usage: Usage | None = None
    """Their usage; None where it is not counted."""
    breakers: Mapping[str, Breaker] = MappingProxyType({})
    """Those of the endpoints, by the table of the settings."""
    nearest: Nearest | None = None
    """Points the answering model at what comes nearest to a question."""


@asynccontextmanager
async def open_models(
    settings: Settings, log: UsageLog | None, clock: Clock, *, forms: FormLog | None = None
) -> AsyncGenerator[Models]:
    """Open the models. Raises ConfigError.

    What they cost is kept in `log`, and what their endpoints refuse in `forms`, where there are such.
    """
    usage = Usage(log, clock=clock)
    templates = templates_of(settings)
    bundled = LocalEmbedder() if embeddings_kind(settings) == "local" else None
    async with AsyncExitStack() as stack:
        stack.push_async_callback(kept, usage)

        async def model(options: LlmOptions, section: str) -> EndpointModel | OfflineModel:
            if options.kind == "offline":
                return OfflineModel(offline_rules(bundled))
            templates.check(PROMPTS)
            form = await _remembered(forms, options)
            return await stack.enter_async_context(
                EndpointModel(
                    options,
                    templates=templates,
                    usage=usage,
                    section=section,
                    form=form,
                    remember=remembering(forms, options),
                )
            )

        answering = await model(settings.llm, "llm")
        learning = answering if settings.llm_kb is None else await model(settings.llm_kb, "llm.kb")
        opened = {"llm": answering, "llm.kb": learning} if learning is not answering else {"llm": answering}
        yield Models(
            answering,
            learning.background() if isinstance(learning, EndpointModel) else learning,
            usage,
            {section: each.breaker for section, each in opened.items() if isinstance(each, EndpointModel)},
            Nearest(bundled) if isinstance(answering, EndpointModel) else None,
        )


def remembering(forms: FormLog | None, options: LlmOptions) -> Callable[[Form], Awaitable[None]] | None:
    """What keeps the form of requests that an endpoint takes; None where there is no place for it."""
    if forms is None:
        return None

    async def remember(form: Form) -> None:
        try:
            await forms.keep(form, *_named(options))
        except KnowledgeError as error:  # then the next start learns it anew
            _log.warning("model_form_not_kept", reason=str(error))

    return remember


async def _remembered(forms: FormLog | None, options: LlmOptions) -> Form | None:
    try:
        taken = forms and await forms.of(*_named(options))
    except KnowledgeError as error:
        _log.warning("model_form_not_read", reason=str(error))
        return None
    return Form(*taken) if taken else None


def _named(options: LlmOptions) -> tuple[str, ...]:
    """What a form belongs to; another one begins anew."""
    return options.base_url, options.model, options.structured_output


def embeddings_kind(settings: Settings) -> Literal["local", "endpoint", "none"]:
    """What embeds, once an empty `embeddings.provider` is settled."""
    return settings.embeddings.provider or ("local" if installed() else "none")


def embedding_model(settings: Settings) -> str | None:
    """The name of the vectors that are searched; None where there are none."""
    match embeddings_kind(settings):
        case "none":
            return None
        case "local":
            return LOCAL_MODEL
        case "endpoint":
            return vectors_of(settings.embeddings.over(settings.llm))


@asynccontextmanager
async def open_embedder(
    settings: Settings, db: Database | None, clock: Clock, usage: Usage | None = None
) -> AsyncGenerator[Embedder | None]:
    """Open what turns texts into vectors; None where search uses words alone. Raises ConfigError.

    Without a database, what was embedded before is not remembered, and calls are counted in `usage` alone, which
    stays its owner's to keep.
    """
    match embeddings_kind(settings):
        case "none":
            yield None
        case "local":
            yield LocalEmbedder()
        case "endpoint":
            counts = usage or Usage(None if db is None else UsageLog(db), clock=clock)
            memory = None if db is None else VectorMemory(db, clock=clock)
            options = settings.embeddings.over(settings.llm)
            async with AsyncExitStack() as stack:
                stack.push_async_callback(kept, counts)
                yield await stack.enter_async_context(EndpointEmbedder(options, usage=counts, memory=memory))


async def kept(usage: Usage) -> None:
    """Store what is not stored yet."""
    with CancelScope(shield=True):  # soon done
        await usage.keep()


def templates_of(settings: Settings) -> Templates:
    """The prompts' wording. Raises ConfigError."""
    return Templates(
        Path(settings.prompts.dir) if settings.prompts.dir else None,
        constants_of(settings),
    )


def constants_of(settings: Settings) -> dict[str, str]:
    """The operator's own words that every template may put in."""
    ai = settings.ai
    return {
        "project_introduction": ai.project_introduction,
        "answer_scope": ai.answer_scope,
        "refusal_policy": ai.refusal_policy,
    }


def what_decides_topics(settings: Settings) -> str:
    """All that decides what a regeneration makes of the archive, beside its bounds: model, prompts, and constants."""
    model = settings.kb_model
    if model.kind == "offline":
        return "offline"
    templates = templates_of(settings)
    wording = [templates.source(prompt) for prompt in (CLASSIFY, INTEGRATE, SPLIT_TOPIC)]
    ai = settings.ai
    return "\n".join([model.model, ai.project_introduction, ai.answer_scope, ai.refusal_policy, *wording])


def offline_rules(embedder: Embedder | None = None) -> dict[str, Callable[[Any], Any]]:
    """What answers each prompt where there is no model."""
    answering = offline_answering.rules(embedder)
    return {**answering, **classifying.RULES, **offline_indexing.RULES}
