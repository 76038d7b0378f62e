"""The models that the settings name: one for answers, one for capture and indexing, or rules without a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from anyio import CancelScope
from msgspec.structs import replace

from intern.answering import offline_rules as offline_answering
from intern.answering.line_ranking import LineRanker
from intern.answering.prompts import ANSWER, CONFIRM, DECIDE, GATE, SELECT, VERIFY, AnsweringOptions
from intern.answering.wordings import Wordings, load_wordings
from intern.core.clock import Clock
from intern.core.errors import KnowledgeError
from intern.core.log import get_logger
from intern.core.memory import CacheBudget
from intern.facts.prompts import EXTRACT
from intern.learning import offline_rules, prompts
from intern.models.circuit_breaker import CircuitBreaker
from intern.models.endpoint import EndpointModel
from intern.models.http import SharedEndpoint
from intern.models.options import LlmOptions
from intern.models.prompt import InT, Model, OfflineModel, OutT, Prompt
from intern.models.request_forms import VALUES, RequestForm
from intern.models.templates import PromptTemplates
from intern.models.usage import UsageCounter, UsageMeter, estimate_tokens, measure_usage
from intern.search.embedder import Embedder
from intern.search.embedding_endpoint import CallEnded, EndpointEmbedder
from intern.search.embedding_local import LocalEmbedder
from intern.service.embedding import embeddings_kind, local_model
from intern.settings.settings import Settings
from intern.sources import descriptions as offline_indexing
from intern.sources.descriptions import SUMMARIZE_FILE, SUMMARIZE_SOURCE, SUMMARIZE_TOPIC
from intern.stores.database import Database
from intern.stores.options import SearchOptions
from intern.stores.tables.request_forms import RequestFormStore
from intern.stores.tables.usage import UsageLog
from intern.stores.tables.vector_cache import VectorMemory

# For the lab, which asks models and counts their usage.
__all__ = ["Embedder", "InT", "LlmOptions", "Model", "OutT", "Prompt", "UsageMeter", "estimate_tokens", "measure_usage"]

_log = get_logger(__name__)

PROMPTS: tuple[Prompt[Any, Any], ...] = (
    *(GATE, SELECT, ANSWER, VERIFY, DECIDE, CONFIRM),
    *(prompts.CLASSIFY, prompts.INTEGRATE, prompts.SPLIT_TOPIC, prompts.SUMMARIZE_IMAGES, EXTRACT),
    *(SUMMARIZE_SOURCE, SUMMARIZE_TOPIC, SUMMARIZE_FILE),
)
"""The catalogue of all model calls. A test compares it with the templates."""


class Models(NamedTuple):
    """The models that answer prompts, by purpose."""

    answering: Model
    learning: Model
    """The model for capture and indexing, which never starves answers."""
    usage: UsageCounter | None = None
    """The usage of both models; None where it is not counted."""
    breakers: Mapping[str, CircuitBreaker] = MappingProxyType({})
    """The circuit breakers of the endpoints, by the table of the settings."""
    nearest: LineRanker | None = None
    """Points the answering model at the lines nearest to a question."""


class SharedResources:
    """The resources that communities of a process share: connections to endpoints, templates, and memory.

    Everything is opened at first use. Leaving the block closes it.
    """

    def __init__(self, megabytes: int = SearchOptions().megabytes) -> None:
        self.room = CacheBudget(10**6 * megabytes)
        """The budget for vectors in memory."""
        self._part = 1.0
        self._lines: dict[tuple[str, ...], SharedEndpoint] = {}
        self._templates: dict[str, PromptTemplates] = {}
        self._wordings: dict[tuple[str, ...], Wordings] = {}
        self._loading = Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for line in self._lines.values():
            await line.aclose()

    def line(self, options: LlmOptions, section: str) -> SharedEndpoint:
        """Return the shared connection to an endpoint. Its limits are those of the options that opened it."""
        key = (section, options.base_url, options.api_key.reveal())
        if (line := self._lines.get(key)) is None:
            line = self._lines[key] = SharedEndpoint(options)
            line.turns.set_share(self._part)
        return line

    @property
    def breakers(self) -> Mapping[str, CircuitBreaker]:
        """The breakers of the endpoints that were called, by the table of the settings."""
        return {section: line.breaker for (section, *_), line in self._lines.items()}

    def share(self, part: float) -> None:
        """Limit this process to its part (above 0, at most 1) of the calls a minute; other processes make the rest."""
        self._part = part
        for line in self._lines.values():
            line.turns.set_share(part)

    def templates(self, settings: Settings) -> PromptTemplates:
        """Return the templates of prompts, compiled and checked once. Raises ConfigError."""
        with self._loading:  # worker threads ask, too
            known = self._templates.get(settings.prompts.dir)
            if known is None:
                known = load_templates(settings)
                known.check(PROMPTS)
                self._templates[settings.prompts.dir] = known
        return known.with_constants(template_constants(settings))

    def wordings(self, settings: Settings) -> Wordings:
        """Return the messages to members, in all languages. Raises ConfigError."""
        folder, introduction = settings.prompts.dir, settings.ai.project_introduction
        if (known := self._wordings.get((folder, introduction))) is None:
            known = load_wordings(Path(folder) if folder else None, {"project_introduction": introduction})
            if len(self._wordings) < _MOST_WORDINGS:
                self._wordings[folder, introduction] = known
        return known


_MOST_WORDINGS = 64  # 25 kB each; communities without a project description share one


@asynccontextmanager
async def open_models(
    settings: Settings,
    usage: UsageCounter | None,
    clock: Clock,
    *,
    forms: RequestFormStore | None = None,
    shared: SharedResources | None = None,
    party: str = "",
) -> AsyncGenerator[Models]:
    """Open the models. Raises ConfigError.

    Their cost is counted in `usage`, and the request forms that their endpoints refuse in `forms`, if these are given.
    Resources that are `shared` with other communities stay open; calls take turns there under the name of the `party`.
    """
    usage = usage or UsageCounter(clock=clock)
    own = shared or SharedResources()
    bundled = LocalEmbedder(local_model(settings)) if embeddings_kind(settings) == "local" else None
    async with AsyncExitStack() as stack:
        if shared is None:
            await stack.enter_async_context(own)
        stack.push_async_callback(save_usage, usage)

        async def open_model(options: LlmOptions, section: str) -> EndpointModel | OfflineModel:
            if options.kind == "offline":
                return OfflineModel(collect_offline_rules())
            return EndpointModel(
                options,
                templates=own.templates(settings),
                usage=usage,
                section=section,
                form=await _recall_form(forms, options),
                remember=build_form_saver(forms, options),
                line=own.line(options, section),
                party=party,
            )

        answering = await open_model(settings.llm, "llm")
        learning = answering if settings.llm_kb is None else await open_model(settings.llm_kb, "llm.kb")
        opened = {"llm": answering, "llm.kb": learning} if learning is not answering else {"llm": answering}
        yield Models(
            answering,
            learning.background() if isinstance(learning, EndpointModel) else learning,
            usage,
            {section: each.breaker for section, each in opened.items() if isinstance(each, EndpointModel)},
            LineRanker(bundled) if isinstance(answering, EndpointModel) else None,
        )


def build_form_saver(
    forms: RequestFormStore | None, options: LlmOptions
) -> Callable[[RequestForm], Awaitable[None]] | None:
    """Return a function that stores an endpoint's form of requests; None without a database."""
    if forms is None:
        return None

    async def remember(form: RequestForm) -> None:
        try:
            await forms.save_form(form, *_form_key(options))
        except KnowledgeError as error:  # then the next start learns the form again
            _log.warning("model_form_not_kept", reason=str(error))

    return remember


async def _recall_form(forms: RequestFormStore | None, options: LlmOptions) -> RequestForm | None:
    try:
        taken = forms and await forms.find_form(*_form_key(options))
    except KnowledgeError as error:
        _log.warning("model_form_not_read", reason=str(error))
        return None
    return RequestForm(*taken) if taken and len(taken) == len(VALUES) else None


def _form_key(options: LlmOptions) -> tuple[str, ...]:
    """Return the key of a form."""
    return options.base_url, options.model, options.structured_output


@asynccontextmanager
async def open_embedder(
    settings: Settings,
    db: Database | None,
    clock: Clock,
    usage: UsageCounter | None = None,
    *,
    shared: SharedResources | None = None,
    party: str = "",
    ended: CallEnded = lambda _error, _seconds: None,
) -> AsyncGenerator[Embedder | None]:
    """Open the embedder; None if search uses words alone. Raises ConfigError.

    Without a database, earlier vectors are not reused, and calls are counted in `usage` alone, which its owner has to
    store. `shared` works as for models, `ended` as for an embedder.
    """
    match embeddings_kind(settings):
        case "none":
            yield None
        case "local":
            yield LocalEmbedder(local_model(settings))
        case "endpoint":
            counts = usage or UsageCounter(None if db is None else UsageLog(db), clock=clock)
            memory = None if db is None else VectorMemory(db, clock=clock)
            options = settings.embeddings.merge_with_llm(settings.llm)
            async with AsyncExitStack() as stack:
                stack.push_async_callback(save_usage, counts)
                line = shared.line(options, "embeddings") if shared else None
                wanted = settings.embeddings.dimensions
                embedder = EndpointEmbedder(
                    options, usage=counts, dimensions=wanted, memory=memory, line=line, party=party, ended=ended
                )
                yield await stack.enter_async_context(embedder)


async def save_usage(usage: UsageCounter) -> None:
    """Store the usage that is not stored yet."""
    with CancelScope(shield=True):  # this ends soon
        await usage.flush()


def load_templates(settings: Settings) -> PromptTemplates:
    """Load the prompts' wording. Raises ConfigError."""
    return PromptTemplates(Path(settings.prompts.dir) if settings.prompts.dir else None, template_constants(settings))


def template_constants(settings: Settings) -> dict[str, str]:
    """Return the operator's own words that every template may use."""
    return {name: getattr(settings.ai, name) for name in ("project_introduction", "answer_scope", "refusal_policy")}


def describe_regeneration_basis(settings: Settings) -> str:
    """Describe the model, prompts and constants, which decide a regeneration's result besides its bounds."""
    model = settings.kb_model
    if model.kind == "offline":
        return "offline"
    templates = load_templates(settings)
    wording = [templates.read_source(prompt) for prompt in (prompts.CLASSIFY, prompts.INTEGRATE, prompts.SPLIT_TOPIC)]
    return "\n".join([model.model, *template_constants(settings).values(), *wording])


def collect_offline_rules() -> dict[str, Callable[[Any], Any]]:
    """Return the rules that answer prompts without a model."""
    return {**offline_answering.RULES, **offline_rules.RULES, **offline_indexing.RULES}


def answering_options(settings: Settings) -> AnsweringOptions:
    """Return the options of answering: without a model the steps of `fused`, for which there are rules."""
    return replace(settings.ai, steps="fused") if settings.llm.kind == "offline" else settings.ai
