"""The work on one question: bounded question and history, the inputs and trace of its steps, and the reply cache.

The cache is exact: the same request gets the same reply without a call. The request contains everything that determines
a reply: prompt, examples and settings, the question, every passage, model and temperature. A change of any of these
makes another request. Questions with a history or with images are always sent to the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from logging import DEBUG
from typing import Any, Protocol, TypeVar, cast

import anyio
import msgspec
from msgspec import Struct, structs
from structlog.contextvars import get_contextvars

from intern.answering.citing import find_strange_urls
from intern.answering.grounding import check_grounding, is_unfounded
from intern.answering.nearest import LineRanker
from intern.answering.prompts import AnsweringOptions, ShownPassage, ShownSource
from intern.core.errors import InternError, KnowledgeError
from intern.core.ids import MessageId, SourceId
from intern.core.log import Logger, get_logger
from intern.core.messages import AnswerResult, Citation, Conversation, Image, Message, SilenceReason, is_team_source
from intern.core.records import IndexEntry, LearnedMatches, PassageHit, SourceText
from intern.core.text.masking import mask_start
from intern.core.text.orders import has_prompt_injection, remove_prompt_injection
from intern.core.text.passages import remove_headings
from intern.core.text.patterns import regex
from intern.models.endpoint import build_chat_request
from intern.models.options import LlmOptions
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.models.templates import PromptTemplates
from intern.models.usage import measure_usage
from intern.stores.sqlite.judgements import Calibration
from intern.stores.sqlite.usage import ReplyLookup, ReplyStore

_log = get_logger(__name__)

ShownT = TypeVar("ShownT", bound=ShownSource)
FromSourceT = TypeVar("FromSourceT", bound=ShownSource | PassageHit)

# A batch of fifty pasted logs must not fill a prompt. Both bounds are a page or two; the point of a question is at its
# ends.
MAX_QUESTION_CHARS = 6000
MAX_HISTORY_CHARS = 4000
_MAX_REMARK_CHARS = 1000
_CUT = "\n[…]\n"

_URL = regex(r"://\S+")
_QUESTION_MARK = regex("[?？؟⁇⁈]")  # Western, Chinese and Japanese, Arabic, and the doubled ones


class PreparedQuestion(Struct, frozen=True, kw_only=True):
    """A question, ready for prompts."""

    question: str
    """Empty if there is no message of the asker."""
    history: str
    images: tuple[Image, ...]
    addressed: bool
    said: str = ""
    """The words of the question without its files."""
    telling: str = ""
    """The lines of its files that describe an error."""
    begun: str = ""
    """The questions in its other files, or their first lines."""

    @property
    def looks_like_a_question(self) -> bool:
        """Whether it is probably a question, before any model decides; a question mark in an address does not count."""
        return self.addressed or bool(_QUESTION_MARK.search(_URL.sub(" ", self.said or self.begun)))

    def build_query(self, query: str = "") -> str:
        """Return the search text: the error lines of files come before the words about them."""
        return "\n".join(filter(None, (self.telling, query or self.said, self.begun)))


def prepare_question(conversation: Conversation, *, addressed: bool) -> PreparedQuestion:
    """Take the last consecutive `user` messages of one author as the question, and all others as its history."""
    messages, place = conversation.messages, conversation.asked
    question = messages[place]
    asker = question[-1].author_id if question else None
    digests = [file.digest for each in question for file in each.attachments if file.digest]
    return PreparedQuestion(
        question=_shorten_middle("\n".join(filter(None, map(_format_message, question))), MAX_QUESTION_CHARS),
        said=_shorten_middle("\n".join(filter(None, (each.text.strip() for each in question))), MAX_QUESTION_CHARS),
        telling="\n".join(each.telling for each in digests if each.went_wrong),
        begun="\n".join(each.telling for each in digests if not (each.went_wrong or each.problem)),
        history=_format_history([*messages[: place.start], *messages[place.stop :]], asker),
        images=tuple(image for message in question for image in message.images),
        addressed=addressed,
    )


def _format_message(message: Message) -> str:
    """Return a message with the names of its files and their digests, each line of these indented."""
    said = [message.text.strip()]
    for file in message.attachments:
        name, problem = file.masked_name, file.digest and file.digest.problem
        said.append(f"[attached: {name}, {problem}]" if problem else f"[attached: {name}]")
        said += [f"  {line}" for line in file.digest.excerpt.splitlines()] if file.digest else []
    if message.images and not message.attachments:
        said += ["[attached: image]"] * len(message.images)
    return "\n".join(filter(None, said))


def _format_history(messages: list[Message], asker: str | None) -> str:
    """Join the newest messages that fit, oldest first. Further lines are indented, so none can forge a speaker."""
    kept: list[str] = []
    room = MAX_HISTORY_CHARS
    for message in reversed(messages):
        if not (said := _format_message(message)):
            continue
        if message.role == "assistant":
            speaker = "bot"
        else:
            speaker = "asker" if asker is not None and message.author_id == asker else "member"
        line = f"{speaker}: " + "\n  ".join(_shorten_middle(said, _MAX_REMARK_CHARS).splitlines())
        if len(line) + 1 > room:
            break
        kept.append(line)
        room -= len(line) + 1
    return "\n".join(reversed(kept))


def _shorten_middle(text: str, max_chars: int) -> str:
    """Keep head and tail, with a gap between: a log has the attempt at its head and the error at its end."""
    if len(text) <= max_chars:
        return text
    room = max_chars - len(_CUT)
    tail = room // 3
    return text[: room - tail] + _CUT + text[-tail:]


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


class KnowledgeLookup(Protocol):
    """The knowledge that steps look up. Each method raises the `KnowledgeError` family."""

    async def entries(self) -> Sequence[IndexEntry]:
        """Return the index, in its own order."""
        ...

    async def load_each(self, source_ids: Sequence[SourceId], /) -> Sequence[SourceText | KnowledgeError]:
        """Return whole sources of the index, or the errors of reading them; one for each id, in their order."""
        ...

    async def find_hits(self, query: str, limit: int, /) -> Sequence[PassageHit] | None:
        """Return the best passages, best first, several of a source; None if the search fails. Raises nothing."""
        ...

    async def find_learned(self, query: str, /) -> LearnedMatches:
        """Return the nuggets and facts that fit a question; none if the search fails. Raises nothing."""
        ...

    async def citation_link(self, source_id: SourceId, /) -> str | None:
        """Return the jump link of a team answer (`team:<topic>.txt#<qa id>`); None if there is none."""
        ...


def shorten_reply(text: str) -> str:
    """Shorten a model's reply for the trace, and mask secrets."""
    return mask_start(text, _MOST_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweringContext:
    """One question, and everything that its steps need."""

    model: Model
    knowledge: KnowledgeLookup
    options: AnsweringOptions
    asked: PreparedQuestion
    nearest: LineRanker | None
    """Finds the lines to point a model at; None where rules answer, which need no pointer."""
    trace: Trace
    calibration: Calibration | None = None
    """The score that an answer must reach; None without a calibration."""
    setup: str = ""
    """The setup that a score belongs to: scores of other models or steps cannot be compared."""


class CheckedDraft(Struct, frozen=True, kw_only=True):
    """An answer, checked against its cited sources. With a `reason`, it must not be posted."""

    reason: SilenceReason
    text: str = ""
    cited: tuple[ShownSource, ...] = ()
    urls: tuple[str, ...] = ()
    """Addresses that no cited source contains."""
    strange: tuple[str, ...] = ()
    """Commands and versions that no cited source contains."""
    suspicions: tuple[str, ...] = ()
    """These commands and versions, and numbers and other code, for the verifying model."""
    quotes: tuple[tuple[ShownPassage, str], ...] = ()
    """The quoted lines behind it, each with its passage. Of `fused` only, as are the next fields."""
    quoted: float = 1.0
    """The share of the quotes that the passages hold."""
    unnamed: tuple[str, ...] = ()
    """Names in the question that no passage contains, for the second call."""
    is_near: bool = True
    """Whether its quotes are so near to the question that rules would answer with them, as far as is known."""


def check_draft(
    work: AnsweringContext, text: str, cited: Sequence[ShownSource], vouching: Sequence[ShownSource], *, is_cited: bool
) -> CheckedDraft:
    """Check an answer as far as code can. It may take a while, because answers and sources are untrusted text.

    `vouching` are the sources of the found quotes: an answer may take links, commands and numbers from these.
    """
    texts = [remove_headings(source.trusted_text) for source in vouching]
    conversation = (work.asked.question, work.asked.history)
    urls = find_strange_urls(text, texts, [source.url for source in vouching if source.url])
    held = check_grounding(text, texts, conversation)
    shown = [f"{source.text}\n{source.said or ''}" for source in vouching or cited]
    is_own = bool(shown) and is_unfounded(text, shown, conversation)
    reason: SilenceReason = ""
    if not text:
        reason = "no_answer"
    elif len(text) > work.options.max_answer_chars:
        reason = "too_long"
    elif not is_cited:
        reason = "no_citations"
    elif urls or is_own or has_prompt_injection(text) or (work.options.strict_grounding and held.strange):
        reason = "ungrounded"
    return CheckedDraft(
        reason=reason,
        text=text,
        cited=tuple(cited),
        urls=tuple(urls),
        strange=held.strange,
        suspicions=(*held.strange, *held.suspicions),
    )


def first_per_source(items: Iterable[FromSourceT]) -> list[FromSourceT]:
    """Return the first item of each source, in their order."""
    firsts: dict[str, FromSourceT] = {}
    for item in items:
        firsts.setdefault(item.source_id, item)
    return [*firsts.values()]


def has_strange_parts(text: str, texts: Sequence[str]) -> bool:
    """Return whether a text contains an address, a command or a version that none of these texts contains."""
    return bool(find_strange_urls(text, texts, ()) or check_grounding(text, texts, ()).strange)


async def read_sources(knowledge: KnowledgeLookup, source_ids: Sequence[SourceId]) -> list[SourceText]:
    """Read the sources that can be read; log the others."""
    reads = await knowledge.load_each(source_ids) if source_ids else ()
    for source_id, read in zip(source_ids, reads, strict=True):
        if not isinstance(read, SourceText):
            _log.warning("source_unreadable", source_id=source_id, error=str(read))
    return [read for read in reads if isinstance(read, SourceText)]


def drop_orders(shown: Sequence[ShownT]) -> list[ShownT]:
    """Return the passages that give no orders to a model; log the sources of the others."""
    kept = [
        structs.replace(
            each, text=remove_prompt_injection(each.text), said=each.said and remove_prompt_injection(each.said)
        )
        for each in shown
        if not has_prompt_injection(each.source_id)
    ]
    if kept != [*shown]:
        _log.warning("orders_left_out", source_ids=[each.source_id for each in shown if each not in kept])
    return [each for each in kept if each.text.strip()]


async def make_citation(
    work: AnsweringContext, source_id: SourceId, source: ShownSource, quote: str | None
) -> Citation:
    """Cite a source, or one team answer of it. A link that cannot be found is logged, and does not fail the answer."""
    url = source.address
    if is_team_source(source_id) and "#" in source_id:  # the address of a page may contain one, too
        try:
            url = await work.knowledge.citation_link(source_id)
        except KnowledgeError as error:
            _log.warning("citation_link_failed", source_id=source_id, error=str(error))
            url = None
    return Citation(source_id=source_id, title=source.title, url=url, quote=quote)


REFUSALS: Mapping[str, SilenceReason] = {
    "chatter": "not_a_question",
    "out_of_scope": "not_answerable",
    "unclear": "not_answerable",
    "not_covered": "no_answer",
}
"""The reasons for silence by a model's kind of a message."""


def make_silence(reason: SilenceReason) -> AnswerResult:
    """Make a result without an answer, with the reason."""
    return AnswerResult(should_reply=False, reason=reason)


KeyOf = Callable[[Prompt[Any, Any], Struct], str]
"""Returns a digest of a prompt's request."""


class ReplyCachingModel:
    """A `Model` that caches the prompts of one question, those with `question` and `history`; others pass through."""

    def __init__(self, model: Model, store: ReplyStore, key_of: KeyOf) -> None:
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


def make_key_function(options: LlmOptions, templates: PromptTemplates) -> KeyOf:
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
