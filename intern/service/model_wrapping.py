"""All that sees the calls of a model, in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intern.answering.model_cache import CachingModel, make_key_function
from intern.models.endpoint import EndpointModel
from intern.models.prompt import Model
from intern.service.models import Models
from intern.service.stores import OpenTemplates, Stores

if TYPE_CHECKING:
    from intern.service.health import ModelWatch


def wrap_models(
    models: Models, stores: Stores, *, watch: ModelWatch | None = None, cached: OpenTemplates | None = None
) -> tuple[Models, Model]:
    """Wrap the models in all that sees their calls, from the inside out; return them, and the model of the writer.

    Usage is counted further in, in the endpoint, which knows of retries. `watch` notes how calls ended. With `cached`,
    which opens the templates of prompts, an equal call for an answer repeats the reply. The recorder comes last: it
    records each call of the writer, but no replays; answers are recorded as a whole, around the answerer.
    """
    settings, (answering, learning) = stores.settings, models[:2]
    if watch is not None:
        answering = watch.wrap_model(answering)
        section = "llm" if settings.llm_kb is None else "llm.kb"
        learning = watch.wrap_model(learning, work="learning", section=section)
    if cached is not None and settings.ai.repeat and isinstance(models.answering, EndpointModel):  # rules are free
        # With the writer's own store, which reuses no reply after a failed drop.
        answering = CachingModel(answering, stores.replies, make_key_function(settings.llm, cached(settings)))
    writing = stores.recorder.wrap_model(learning, settings.kb_model.display_name)
    return models._replace(answering=answering, learning=learning), writing
