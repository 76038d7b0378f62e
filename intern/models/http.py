"""Any OpenAI-compatible endpoint: one POST by httpx a call, retried where that can help, within our own limits.

A reply may come whole or as a stream. `timeout_seconds` bounds each silence, so a slow model may write for longer.

An attempt that failed for a passing reason (408, 409, 429, 5xx, a timeout, a broken connection) is repeated, and no
other. The pause grows and is jittered, unless the endpoint named a delay, in `Retry-After` or in words.
Errors name the call, the endpoint and the setting to look at; they never hold the key, and little of the endpoint's
text.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import count
from logging import DEBUG
from typing import Any, NamedTuple, Self

import anyio
import httpx

from intern.core import errors
from intern.core.log import get_logger
from intern.core.text.secret_values import make_hider
from intern.models.circuit_breaker import AttemptPermit, AttemptRefusal, CircuitBreaker
from intern.models.clients import HOST, open_client
from intern.models.endpoint_failures import FailureKind, parse_retry_after, read_failure, read_retry_delay
from intern.models.limits import EndpointLimits, StillFits, make_call_queue
from intern.models.options import LlmOptions
from intern.models.replies import UnfitReplyError, find_hidden_failure, has_ended, is_stream, join_events, make_excerpt
from intern.models.usage import UsageCounter

_log = get_logger(__name__)

_LARGEST_REPLY = 8 * 1024 * 1024  # bytes; a stream takes some 200 for each token, so 40,000 tokens fit
_LONGEST_END = 0.25  # seconds after the last event for the end of the response, which frees the connection for reuse
_LONGEST_IDLE = 30.0  # seconds; routers forget silent connections without a word
_LONGEST_PAGE = 5.0  # seconds
_SILENCES = 10  # timeouts that a whole attempt may take; one byte a minute must not hold a slot for ever
_FIRST_PAUSE, _LONGEST_PAUSE, _JITTER = 0.5, 20.0, 1.0  # seconds between attempts
# A share of `timeout_seconds`. The caller gives up a hanging call before the call's own timeout if its question began
# long before, or if `ai.request_timeout_seconds` is shorter.
_TELLING_SHARE = 0.25
_ADVICE: Mapping[FailureKind, str] = {
    "key": "check {0}.api_key, and what it may do",
    "quota": "the account of {0}.api_key has no credit left",
    "model": "check {0}.model and {0}.base_url",
    "address": "check {0}.base_url",
}
"""The settings to look at, for a failure that the next request would meet, too."""

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[ -~]{0,4000}")
_KEY = re.compile(r"[!-~]*")  # visible ASCII: all that a header can carry without trouble


class EndpointUnavailableError(errors.ModelUnavailableError):
    """An attempt failed for a reason that may pass."""

    def __init__(self, message: str, retry_after: float | None = None, *, busy: bool = False) -> None:
        super().__init__(message)
        self.busy = busy
        """The endpoint works, but wants fewer requests."""
        self.retry_after = retry_after
        """Seconds that the endpoint asked us to wait, within our own bounds; None if it did not say."""


class FormRefusedError(errors.ModelRefusedError):
    """The endpoint does not take a request in this form, as far as it says why."""

    def __init__(self, message: str, parts: Collection[str]) -> None:
        super().__init__(message)
        self.parts = parts
        """The parts of the request that it names, as `intern.models.request_forms` does; none without a reason."""


Client = httpx.AsyncClient


class SharedEndpoint:
    """An endpoint as all communities of a process share it: its connections, their turns and its circuit breaker."""

    def __init__(self, options: LlmOptions, client: Client | None = None) -> None:
        """Without a client, calls go through the proxy that the environment names. Raises ConfigError."""
        self.client = client or _open_client(options)
        self._owned = None if client else self.client
        self.turns, self.breaker = make_call_queue(options), CircuitBreaker()

    async def aclose(self) -> None:
        """Close the connections, also when cancelled. A client that was handed in stays the caller's to close."""
        with anyio.move_on_after(2, shield=True):
            if self._owned is not None:
                await self._owned.aclose()


class Endpoint:
    """The calls of one community to an endpoint, with their limits and errors.

    Close it with `aclose`, or use it as an async context manager; a `client` or a `line` that is handed in stays the
    caller's to close. On a line, the calls take turns with those of other parties. Raises `ConfigError` for a missing
    or malformed `base_url`, `api_key` or `model`; `section` is the table that the message names.
    """

    def __init__(
        self,
        options: LlmOptions,
        *,
        path: str,
        usage: UsageCounter,
        section: str,
        client: Client | None = None,
        line: SharedEndpoint | None = None,
        party: str = "",
    ) -> None:
        self._url = _build_url(options.base_url, path, section)
        self._key = _check_key(options, section)
        self._hide = make_hider([self._key])
        if not options.model:
            raise errors.ConfigError(
                f"{section}.model is missing: the name of a model that {_show_address(self._url)} serves"
            )
        self.where = _show_address(self._url)
        """Its address, for messages."""
        self._options, self._section, self._usage = options, section, usage
        self._is_shared, self._line = line is not None, line or SharedEndpoint(options, client)
        self._client, self.breaker = self._line.client, self._line.breaker
        self._limits = EndpointLimits(options, usage, turns=self._line.turns, party=party)
        headers = httpx.Headers(
            {
                "Content-Type": "application/json",
                "Accept": "text/event-stream, application/json",
                "Accept-Encoding": "identity",  # nothing that grows while it is read
                **_credentials(self._url, self._key),
            }
        )
        headers.update(_check_headers(options, section))  # names in any case
        self._headers = dict(headers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close its own connections, also when cancelled."""
        if not self._is_shared:
            await self._line.aclose()

    async def fetch_page(self, path: str) -> bytes:
        """Return the body at a path of the server, such as `/v1/models`; empty if there is none. Costs no tokens.

        Raises EndpointUnavailableError.
        """
        url = self._url.copy_with(path=path)
        for is_last in (False, True):
            request = self._client.build_request("GET", url, headers=self._headers, timeout=_LONGEST_PAGE)
            try:
                with anyio.fail_after(_LONGEST_PAGE):
                    response = await self._client.send(request, stream=True, follow_redirects=False)
                    async with aclosing(response):
                        body = await _read_body(response, LastActivity(anyio.current_time()))
            except (httpx.RequestError, TimeoutError) as error:
                if not is_last:
                    continue  # on a kept connection: llama.cpp closes it after each streamed reply
                reason = self._scrub(_find_reason(error)) or type(error).__name__
                raise EndpointUnavailableError(f"{_show_address(url)} cannot be read: {reason}") from error
            return body if response.status_code == HTTPStatus.OK and len(body) <= _LARGEST_REPLY else b""
        raise AssertionError("the last attempt returns or raises")

    async def send(self, limits: EndpointLimits, call: EndpointCall, still_fits: StillFits) -> bytes:
        """Return the final answer of the endpoint, after retries. Raises the `ModelError` family."""
        for tried in count():
            try:
                return await self._attempt(limits, call)
            except EndpointUnavailableError as error:
                if tried >= self._options.max_retries:
                    raise
                pause = pause_before_retry(error, tried)
                _log.warning("model_call_retried", seconds=round(pause, 3), reason=str(error))
            await anyio.sleep(pause)
            await still_fits()  # a failed attempt may have cost something
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, limits: EndpointLimits, call: EndpointCall) -> bytes:
        if refused := self.breaker.check_refusal(anyio.current_time(), background=limits.is_background):
            raise self._make_circuit_error(refused, call.what)  # before it waits for a slot
        async with limits.hold_attempt():
            return await self._try_once(limits, call)

    async def _try_once(self, limits: EndpointLimits, call: EndpointCall) -> bytes:
        """Make one attempt, and report its outcome to the circuit breaker."""
        breaker, now = self.breaker, anyio.current_time
        started = now()
        heard = LastActivity(started)
        permit = breaker.request_attempt(started, background=limits.is_background)
        if isinstance(permit, AttemptRefusal):
            raise self._make_circuit_error(permit, call.what)
        try:
            answer = await self._request_answer(call, heard)
        except EndpointUnavailableError as error:
            if error.busy:
                breaker.record_success(permit)
            else:
                self._record_failure(permit, str(error))
            raise
        except errors.ModelError:
            breaker.record_success(permit)  # it said no, so it is there
            raise
        except anyio.get_cancelled_exc_class():
            self._record_giving_up(permit, call, now() - heard.at)
            raise
        except BaseException:
            breaker.record_giving_up(permit)
            raise
        if breaker.record_success(permit):
            _log.info("model_circuit_closed", section=self._section)
        if _log.isEnabledFor(DEBUG):
            _log.debug("model_replied", model=self._options.model, seconds=round(now() - started, 3))
        return answer.body

    def _record_failure(self, permit: AttemptPermit, reason: str) -> None:
        if self.breaker.record_failure(permit, anyio.current_time(), reason):
            _log.warning("model_circuit_opened", section=self._section, seconds=self.breaker.pause, reason=reason)

    def _record_giving_up(self, permit: AttemptPermit, call: EndpointCall, silence: float) -> None:
        """Record that the caller gave up. This detects most hanging endpoints: questions have their own time limit.

        A silence of a good part of `timeout_seconds` counts as a failure. A model that is still writing is only slow.
        """
        if silence >= self._options.timeout_seconds * _TELLING_SHARE:
            self._record_failure(
                permit, f"{call.what} had said nothing for {round(silence, 1):g} s, when it was given up"
            )
        else:
            self.breaker.record_giving_up(permit)

    async def _request_answer(self, call: EndpointCall, heard: LastActivity) -> RawReply:
        """Return the answer of one attempt. Raises the `ModelError` family."""
        what, timeout = call.what, self._options.timeout_seconds
        setting = f"({self._section}.timeout_seconds)"
        try:
            with anyio.fail_after(timeout * _SILENCES):
                answer = await self._exchange(call, heard)
        except httpx.TimeoutException as error:
            raise EndpointUnavailableError(f"{what} said nothing for {timeout:g} s {setting}") from error
        except TimeoutError as error:
            limit = f"{timeout * _SILENCES:g} s, {_SILENCES} times {setting[1:-1]}"
            raise EndpointUnavailableError(f"{what} had not finished after {limit}") from error
        except httpx.DecodingError as error:
            raise errors.ModelReplyError(f"{what}: the reply is damaged: {self._scrub(str(error))}") from error
        except httpx.RequestError as error:
            reason = self._scrub(_find_reason(error)) or type(error).__name__
            raise EndpointUnavailableError(f"{what} cannot be reached: {reason}") from error
        self._raise_for_failure(answer, call)
        return answer

    def _make_circuit_error(self, refused: AttemptRefusal, what: str) -> errors.ModelUnavailableError:
        return errors.ModelUnavailableError(
            f"{what} failed too often and is left alone; it is tried again in {refused.seconds:.0f} s."
            f" The last failure: {self.breaker.reason}"
        )

    async def _exchange(self, call: EndpointCall, heard: LastActivity) -> RawReply:
        """Send the request and read the reply, whole or streamed, up to the largest one that we take."""
        is_sent = is_new = False

        async def send_body() -> AsyncIterator[bytes]:
            nonlocal is_sent
            yield call.body
            is_sent = True  # httpx asks for more once this is out

        async def watch_connection(event: str, _: Any) -> None:
            nonlocal is_new
            is_new = is_new or event.startswith("connection.connect_")

        def build_request() -> httpx.Request:
            return self._client.build_request(
                "POST",
                self._url,
                content=send_body(),
                headers={**self._headers, "Content-Length": str(len(call.body))},
                timeout=self._options.timeout_seconds,
                extensions={"trace": watch_connection},
            )

        try:
            try:
                response = await self._client.send(build_request(), stream=True, follow_redirects=False)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                if is_new:
                    raise
                # A kept connection that the endpoint closed meanwhile: llama.cpp does so after each streamed reply.
                is_sent = False
                response = await self._client.send(build_request(), stream=True, follow_redirects=False)
            async with aclosing(response):
                body = await _read_body(response, heard)
            return _join_stream(RawReply(response.status_code, response.headers.get("Retry-After"), body), call.what)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError):
            raise
        except BaseException:
            if is_sent:
                self.count_lost(call)
            raise

    def count_lost(self, call: EndpointCall) -> None:
        """Count a request without a readable answer: the endpoint likely worked on it and bills it."""
        self._usage.count(call.prompt, call.prompt_tokens, 0, self._options.price.compute_cost(call.prompt_tokens, 0))

    def _raise_for_failure(self, answer: RawReply, call: EndpointCall) -> None:
        """Return if the endpoint answered, else raise the error that its answer means."""
        if answer.status == HTTPStatus.OK:
            return
        failure, says = read_failure(answer.status, answer.body), f"{call.what} answered {answer.status}"
        # Not quoted: endpoints like to repeat parts of the key.
        says += "" if failure.kind == "key" else self._quote(answer)
        if advice := _ADVICE.get(failure.kind):
            raise errors.ModelAccessError(f"{says}: {advice.format(self._section)}")
        match failure.kind:
            case "busy" | "away":
                named = parse_retry_after(answer.retry_after or read_retry_delay(answer.body), datetime.now(UTC))
                raise EndpointUnavailableError(says, named, busy=failure.kind == "busy")
            case "content":
                raise errors.ModelRefusedError(f"{says}: its content filter stopped the prompt or the reply")
            case "unfit":
                raise UnfitReplyError(call.what, "does not fit the schema, the server says", self._quote(answer))
            case "too_long":
                counted = f"{failure.tokens} tokens" if failure.tokens else f"about {call.prompt_tokens} tokens"
                fits = f", and the model takes {failure.room}" if failure.room else ""
                # Some endpoints count the longest reply in.
                lower = " or ".join((*call.bounded_by, f"{self._section}.max_tokens"))
                raise errors.ModelPromptTooLongError(
                    f"{says}; the prompt is too long ({counted}{fits}): lower {lower}, or serve more context"
                )
            case _ if answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and not failure.parts:
                raise errors.ModelRefusedError(says)
            case _:
                hint = "no simpler form of the request helps, or none was tried: run `intern doctor`"
                raise FormRefusedError(f"{says}; {hint}", failure.parts)

    def _quote(self, answer: RawReply) -> str:
        said = self._scrub(answer.body.decode("utf-8", "replace"))
        return f": {said}" if said else ""

    def _scrub(self, text: str) -> str:
        """Return the beginning of an endpoint's text, without our key."""
        return make_excerpt(self._hide(text))


class RawReply(NamedTuple):
    """A reply as it came, or as it would have come without streaming."""

    status: int
    retry_after: str | None
    body: bytes


@dataclass
class LastActivity:
    """The time at which an endpoint last sent anything in an attempt."""

    at: float
    """Seconds of anyio's clock; the start of the attempt where it has said nothing yet."""


class EndpointCall(NamedTuple):
    """One request."""

    prompt: str
    """The name under which it is counted."""
    what: str
    """Prompt and endpoint, for errors."""
    body: bytes
    prompt_tokens: int
    """Estimated."""
    bounded_by: tuple[str, ...]


def _open_client(options: LlmOptions) -> httpx.AsyncClient:
    """Make a client that keeps connections for all calls in flight; `EndpointLimits` does the waiting."""
    most = options.max_in_flight
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=most, keepalive_expiry=_LONGEST_IDLE)
    return open_client(options.base_url, limits=limits)


async def _read_body(response: httpx.Response, heard: LastActivity) -> bytes:
    """Read the body, up to little more than the largest size.

    A stream is complete with its last event. The end of the response is then waited for shortly, since only a
    connection whose response was read to its end can be used again.
    """
    read = bytearray()
    is_complete = False
    with anyio.CancelScope() as enough:
        try:
            async for chunk in response.aiter_bytes():
                read += chunk
                heard.at = anyio.current_time()
                if len(read) > _LARGEST_REPLY:
                    # Not `break`: that would leave httpx's inner generators open, to be found by the collector.
                    enough.cancel()
                elif not is_complete and has_ended(read, len(chunk)):
                    is_complete = True
                    enough.deadline = heard.at + _LONGEST_END
        except httpx.TransportError:
            if not is_complete:
                raise
    return bytes(read)


def _join_stream(reply: RawReply, what: str) -> RawReply:
    """Join a streamed reply. Raises httpx's `RemoteProtocolError` if it ends too early."""
    if len(reply.body) > _LARGEST_REPLY:
        raise errors.ModelReplyError(f"{what}: the reply is larger than {_LARGEST_REPLY} bytes")
    if reply.status != HTTPStatus.OK:
        return reply
    if not is_stream(reply.body):
        return reply._replace(status=find_hidden_failure(reply.body) or reply.status)
    whole = join_events(reply.body, what=what)
    if not whole.is_whole:
        raise httpx.RemoteProtocolError("the stream ended before the reply did")
    return RawReply(whole.status, reply.retry_after, whole.body)


def _find_reason(error: BaseException) -> str:
    """Return the message of an error, or else of its cause: on trio, httpx leaves the message empty."""
    said, cause = str(error), error.__cause__ or error.__context__
    return said or (_find_reason(cause) if cause else "")


def pause_before_retry(error: EndpointUnavailableError, tried: int) -> float:
    """Return the seconds that the endpoint named, or else a jittered pause that doubles with each retry."""
    if error.retry_after is not None:
        return error.retry_after
    growing = _FIRST_PAUSE * 2.0 ** min(tried, 10) + random.uniform(0, _JITTER)  # noqa: S311
    return min(growing, _LONGEST_PAUSE)


def _build_url(base_url: str, path: str, section: str) -> httpx.URL:
    wrong = f"{section}.base_url must be an address like https://api.example.com/v1"
    try:
        url = httpx.URL(base_url.strip())
    except httpx.InvalidURL as error:
        raise errors.ConfigError(wrong) from error
    strange = url.scheme not in {"http", "https"} or not HOST.fullmatch(url.raw_host)
    if strange or url.username or url.password:
        raise errors.ConfigError(wrong + (", without a password in it" if url.username or url.password else ""))
    return url.copy_with(path=url.path.rstrip("/") + path, fragment=None)


def _check_key(options: LlmOptions, section: str) -> str:
    key = options.api_key.reveal().strip()
    if not _KEY.fullmatch(key):
        raise errors.ConfigError(f"{section}.api_key holds characters that no key has: blanks or letters beyond ASCII")
    return key


def _credentials(url: httpx.URL, key: str) -> dict[str, str]:
    """Return the header with the key. Azure's own takes keys; `Authorization` is for its tokens."""
    if not key:
        return {}
    is_of_azure = url.host.endswith((".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com"))
    return {"api-key": key} if is_of_azure else {"Authorization": f"Bearer {key}"}


def _check_headers(options: LlmOptions, section: str) -> dict[str, str]:
    headers = {name: value.reveal() for name, value in options.headers.items()}
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise errors.ConfigError(f"{section}.headers: {name[:60]!r} or its value cannot be sent as a header")
    return headers


def _show_address(url: httpx.URL) -> str:
    """Return an address for messages, without its query, which may hold secrets."""
    return str(url.copy_with(query=None)).removesuffix("/chat/completions").removesuffix("/embeddings")
