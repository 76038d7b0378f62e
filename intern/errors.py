"""Everything that can go wrong and that somebody can do something about.

    InternError
    ├── ConfigError              the operator must change a setting               exit code 2
    ├── ModelError               the language model could not give what we asked
    │   ├── ModelUnavailableError    down, slow or busy: asking later is worthwhile
    │   │   ├── ModelBudgetError         today's own budget is used up
    │   │   └── ModelAccessError         it lets us in only after somebody saw to it
    │   ├── ModelRefusedError        the endpoint will not answer this request
    │   └── ModelReplyError          it answered, but not what was asked for
    │       └── ModelReplyCutError       its reply was cut off by length
    ├── KnowledgeError           a store on disk could not be read or written
    │   ├── SourceError              one source could not be read
    │   └── FolderBusyError          another process holds the data folder
    └── DiscordError             Discord could not be reached or said no
        ├── DiscordRefusedError      asking again will not help
        ├── DiscordUnavailableError  asking later is worthwhile
        └── DiscordUnknownOutcomeError   the request may or may not have taken effect

A class writes its own message from typed values. No message ever holds a secret. Whatever is not an `InternError`
is a bug: it ends the process with exit code 70 and a traceback.
"""

from __future__ import annotations

from typing import ClassVar


class InternError(Exception):
    """Root of all errors that intern raises on purpose."""

    exit_code: ClassVar[int] = 3
    """What the command line ends with: 2 for wrong use or configuration, 3 for "could not look"."""


class ConfigError(InternError):
    """A setting is missing or wrong. The message names the key, the place, and what was expected."""

    exit_code: ClassVar[int] = 2


class ModelError(InternError):
    """The language model could not give us what we asked for."""


class ModelUnavailableError(ModelError):
    """The endpoint is down, slow or busy; asking later is worthwhile."""


class ModelBudgetError(ModelUnavailableError):
    """Today's token budget leaves no room for this call; tomorrow (UTC) it will."""


class ModelAccessError(ModelUnavailableError):
    """The endpoint refuses us, whatever we ask: expired key, unknown model, wrong address.

    Asking again at once will not help; once the operator or the provider saw to it, asking later will.
    """


class ModelRefusedError(ModelError):
    """The endpoint will not answer this one request, now or later: prompt too long, content filter."""


class ModelReplyError(ModelError):
    """The model answered, but not with what was asked for."""


class ModelReplyCutError(ModelReplyError):
    """The reply was cut off by length before it was complete."""


class KnowledgeError(InternError):
    """A store on disk could not be read or written."""


class SourceError(KnowledgeError):
    """One source could not be read; the others are not touched by it."""


class FolderBusyError(KnowledgeError):
    """Another process holds the data folder."""


class DiscordError(InternError):
    """Discord could not be reached, or said no."""


class DiscordRefusedError(DiscordError):
    """Discord will not do this, now or later: no permission, gone, not found."""


class DiscordUnavailableError(DiscordError):
    """Discord could not be reached or is out of order; asking later is worthwhile."""


class DiscordUnknownOutcomeError(DiscordError):
    """The request may or may not have taken effect; look before asking again."""
