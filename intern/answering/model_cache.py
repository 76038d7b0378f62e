"""A model that gives its earlier reply where the request is the same.

The request contains everything that determines a reply: prompt, examples and settings, the question, every passage,
model and temperature. A change of any of these makes another request. Questions with a history or with images are
always sent to the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, cast

import msgspec
from msgspec import Struct, structs
from structlog.contextvars import get_contextvars

from intern.core.errors import KnowledgeError
from intern.core.ids import MessageId
from intern.core.log import get_logger
from intern.core.messages import Image
from intern.models.endpoint import build_chat_request
from intern.models.options import LlmOptions
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.models.templates import PromptTemplates
from intern.stores.tables.reply_cache import ReplyLookup, ReplyStore

_log = get_logger(__name__)

MakeKey = Callable[[Prompt[Any, Any], Struct], str]
"""Returns a digest of a prompt's request."""


class CachingModel:
    """A `Model` that caches the prompts of one question, those with `question` and `history`; others pass through."""

    def __init__(self, model: Model, store: ReplyStore, key_of: MakeKey) -> None:
        self._model = model
        self._store = store
        self._key_of = key_of

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        """Return the cached reply to the same request, or ask the model and cache its reply."""
        asked = _normalise_input(given)
        if asked is None or images:
            return await self._model.ask(prompt, given, images=images)
        key, found = self._key_of(prompt, asked), get_contextvars().get("message_id")
        question_id = MessageId(str(found)) if found else None
        recalled: ReplyLookup | None = None
        try:
            recalled = await self._store.recall(key, question_id)
            if recalled.reply is not None:
                return msgspec.json.decode(recalled.reply, type=prompt.gives)
        except (KnowledgeError, msgspec.MsgspecError) as error:
            _log.warning("reply_not_recalled", reason=str(error))
        reply = await self._model.ask(prompt, given, images=images)
        try:
            if recalled is not None:
                await self._store.save(key, msgspec.json.encode(reply), question_id, recalled.drops)
        except KnowledgeError as error:  # no reason to withhold an answer
            _log.warning("reply_not_kept", reason=str(error))
        return reply


def make_key_function(options: LlmOptions, templates: PromptTemplates) -> MakeKey:
    """Make a function that digests the request as an endpoint would get it, with its address."""

    def digest_request(prompt: Prompt[Any, Any], given: Struct) -> str:
        request = build_chat_request(prompt, given, templates.render(prompt, given), (), options)
        digest = blake2b(request.body, digest_size=24, key=blake2b(options.base_url.encode()).digest()[:32])
        return digest.hexdigest()

    return digest_request


def normalise_question(question: str) -> str:
    """Normalise a question: collapse white space, lower a capital at its start, drop marks at its end.

    A question mark is kept: without one, the message may not be a question.
    """
    line = " ".join(question.split())
    line = re.sub(r"\?[?!\s]*\Z", "?", line) if line.rstrip("! ").endswith("?") else line.rstrip(".!… ")
    return line[:1].casefold() + line[1:]


def _normalise_input(given: object) -> Struct | None:
    """Normalise the question of a prompt's input; None if it has none, or if it has a history."""
    if not isinstance(given, Struct) or not {"question", "history"} <= set(given.__struct_fields__):
        return None
    fields = cast("Any", given)
    return None if fields.history else structs.replace(given, question=normalise_question(fields.question))
