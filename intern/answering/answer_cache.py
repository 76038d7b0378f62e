"""Exact cache of model replies: the same request gets the same reply without a call.

The request holds all that decides about a reply: prompt, examples and settings, the question, every passage that is
shown, model and temperature. A change of any of these makes another request. Questions with a history or with images
are always asked.
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
from intern.models.chat import chat_request
from intern.models.options import LlmOptions
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.models.templates import Templates
from intern.stores.sqlite.replies import Recalled, ReplyStore

_log = get_logger(__name__)

KeyOf = Callable[[Prompt[Any, Any], Struct], str]
"""A digest of the request that a prompt makes."""


class RepeatingModel:
    """Serves `Model` for the prompts of one question, those with a `question` and a `history`; others pass through."""

    def __init__(self, model: Model, store: ReplyStore, key_of: KeyOf) -> None:
        self._model = model
        self._store = store
        self._key_of = key_of

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        """Return the kept reply to the same request, or ask the model and keep its reply."""
        asked = _plain(given)
        if asked is None or images:
            return await self._model.ask(prompt, given, images=images)
        key, question_id = self._key_of(prompt, asked), _question_id()
        recalled = await self._recalled(key, question_id)
        if recalled is not None and recalled.reply is not None:
            try:
                return msgspec.json.decode(recalled.reply, type=prompt.gives)
            except msgspec.MsgspecError as error:
                _log.warning("reply_not_recalled", reason=str(error))
        reply = await self._model.ask(prompt, given, images=images)
        try:
            if recalled is not None:
                await self._store.keep(key, msgspec.json.encode(reply), question_id, recalled.drops)
        except KnowledgeError as error:  # no reason to withhold an answer
            _log.warning("reply_not_kept", reason=str(error))
        return reply

    async def _recalled(self, key: str, question_id: MessageId | None) -> Recalled | None:
        try:
            return await self._store.recall(key, question_id)
        except KnowledgeError as error:
            _log.warning("reply_not_recalled", reason=str(error))
            return None


def request_key(options: LlmOptions, templates: Templates) -> KeyOf:
    """Digest the request as an endpoint would get it, with its address."""

    def key(prompt: Prompt[Any, Any], given: Struct) -> str:
        request = chat_request(prompt, given, templates.render(prompt, given), (), options)
        digest = blake2b(request.body, digest_size=24, key=blake2b(options.base_url.encode()).digest()[:32])
        return digest.hexdigest()

    return key


def normalised(question: str) -> str:
    """Normalise a question: collapse white space, lower a capital at its start, drop marks at its end.

    A question mark stays: without one, the message may not be a question.
    """
    line = " ".join(question.split())
    line = re.sub(r"\?[?!\s]*\Z", "?", line) if line.rstrip("! ").endswith("?") else line.rstrip(".!… ")
    return line[:1].casefold() + line[1:]


def _plain(given: object) -> Struct | None:
    """Normalise the question of a prompt's input; None if it has none, or if it has a history."""
    if not isinstance(given, Struct) or not {"question", "history"} <= set(given.__struct_fields__):
        return None
    fields = cast("Any", given)
    return None if fields.history else structs.replace(given, question=normalised(fields.question))


def _question_id() -> MessageId | None:
    found = get_contextvars().get("message_id")
    return MessageId(str(found)) if found else None
