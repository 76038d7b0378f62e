"""All errors that an operator, a retry or the program itself can do something about.

    InternError
    ├── ConfigError              the operator must change a setting               exit code 2
    ├── ModelError               the language model did not give the requested reply
    │   ├── ModelUnavailableError    down, slow or busy: asking later is worthwhile
    │   │   ├── ModelBudgetError         today's own budget is used up
    │   │   └── ModelAccessError         the operator or the provider must act first
    │   ├── ModelRefusedError        the endpoint will not answer this request
    │   │   ├── ModelPromptTooLongError  the prompt does not fit into what the model takes
    │   │   ├── ModelBudgetTooSmallError the call fits into no day's budget
    │   │   └── ModelSchemaError         it cannot enforce the requested form of a reply
    │   └── ModelReplyError          it answered, but without the requested content
    │       └── ModelReplyCutError       its reply was cut off by length
    ├── KnowledgeError           a store on disk could not be read or written
    │   ├── SourceError              one source could not be read
    │   ├── FolderBusyError          another process holds the data folder
    │   ├── LeaseLostError           another process serves the community by now
    │   └── VectorEngineError        the vector engine is away or said no; local vectors do meanwhile
    ├── WebError                 a web page could not be fetched
    │   ├── PageRefusedError         we do not fetch it, or its site does not give it to us
    │   ├── PageGoneError            its site says that there is no such page
    │   └── PageUnavailableError     its site is down, slow or busy: asking later is worthwhile
    └── ChatError                the chat platform could not be reached or said no
        ├── ChatRefusedError         asking again will not help, unless a permission changes
        │   ├── ChatNotFoundError        it says that there is no such thing (any more)
        │   └── UnusableFileError       no link will make this file usable
        ├── ChatUnavailableError     asking later is worthwhile
        │   ├── ChatUnauthorizedError    the operator must set a valid token first
        │   └── LinkExpiredError         the message may hold a fresh link to the file
        └── ChatUnknownOutcomeError  the request may or may not have taken effect

A class writes its own message from typed values. No message ever holds a secret. Any other exception is a
bug: it ends the process with exit code 70 and a traceback.
"""

from __future__ import annotations

from typing import ClassVar


class InternError(Exception):
    """Root of all errors that intern raises on purpose."""

    exit_code: ClassVar[int] = 3
    """The exit code of the command line: 2 for wrong use or configuration, 3 for "could not look"."""
    outcome: ClassVar[str] = "failed"
    """The outcome of the model or platform call that it ended, in the words of `/metrics`."""


class ConfigError(InternError):
    """A setting is missing or wrong. The message names the key, the place, and what was expected."""

    exit_code: ClassVar[int] = 2


class ModelError(InternError):
    """The language model did not give the requested reply."""


class ModelUnavailableError(ModelError):
    """The endpoint is down, slow or busy; asking later is worthwhile."""

    outcome = "unavailable"


class ModelBudgetError(ModelUnavailableError):
    """Today's token budget leaves no room for this call; tomorrow (UTC) it will."""

    outcome = "over_budget"


class ModelAccessError(ModelUnavailableError):
    """The endpoint refuses all requests: expired key, unknown model, wrong address.

    Asking again at once will not help; it will once the operator or the provider has acted.
    """


class ModelRefusedError(ModelError):
    """The endpoint will not answer this one request, now or later: a content filter, or one of the subclasses."""

    outcome = "refused"


class ModelPromptTooLongError(ModelRefusedError):
    """The prompt does not fit into what the model takes. The message names the settings to lower."""


class ModelBudgetTooSmallError(ModelRefusedError):
    """The call fits into no day's budget, so it was not made. The message names the setting to raise."""

    outcome = "over_budget"


class ModelSchemaError(ModelRefusedError):
    """The endpoint cannot enforce the requested schema, or not in the requested way; settings change both."""


class ModelReplyError(ModelError):
    """The model answered, but without the requested content."""

    outcome = "bad_reply"


class ModelReplyCutError(ModelReplyError):
    """The reply was cut off by length before it was complete."""


class KnowledgeError(InternError):
    """A store on disk could not be read or written."""


class SourceError(KnowledgeError):
    """One source could not be read; the others are not affected."""


class FolderBusyError(KnowledgeError):
    """Another process holds the data folder."""


class LeaseLostError(KnowledgeError):
    """The lease on the community's shard ended, so nothing was written. Trying again cannot help."""

    def __init__(self, place: str, shard: int) -> None:
        ended = f"the lease on shard {shard} at {place} ended"
        super().__init__(f"{ended}; another process serves it, or will within seconds")
        self.shard = shard


class VectorEngineError(KnowledgeError):
    """The vector engine could not be reached, or said no."""


class WebError(InternError):
    """A web page could not be fetched; the others are not affected."""


class PageRefusedError(WebError):
    """We do not fetch this page, or its site does not give it to us: address, robots.txt, type, size."""


class PageGoneError(WebError):
    """Its site says that there is no such page (any more)."""


class PageUnavailableError(WebError):
    """Its site is down, slow or busy; asking later is worthwhile."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds that the site asked us to wait; None if it did not say."""


class ChatError(InternError):
    """The chat platform could not be reached, or said no."""

    outcome = "unknown"


class ChatRefusedError(ChatError):
    """The platform will not do this: no permission, gone, not found. Asking again at once will not help."""

    outcome = "refused"


class ChatNotFoundError(ChatRefusedError):
    """There is no such channel, message or member (any more); permissions change nothing about that."""

    outcome = "not_found"


class ChatUnavailableError(ChatError):
    """The platform could not be reached or is out of order; asking later is worthwhile."""

    outcome = "unavailable"


class ChatUnauthorizedError(ChatUnavailableError):
    """The platform does not accept our token; nothing was done. Once it does, asking later will help."""

    outcome = "unauthorized"


class ChatUnknownOutcomeError(ChatError):
    """The request may or may not have taken effect; look before asking again."""


class LinkExpiredError(ChatUnavailableError):
    """The platform does not serve the file under this link (any more). The message may hold a fresh one."""


class UnusableFileError(ChatRefusedError):
    """No link will make this file usable: too large, or no image at all. The message says only why."""
