"""What the models' endpoints answer to one short question, for `intern doctor`. It costs tokens, and is counted."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final

import anyio
from anyio.to_thread import run_sync
from msgspec.structs import replace

from intern.answering.prompts import GATE, GateIn
from intern.app.checks import Finding, good
from intern.app.models import kept, remembering, templates_of
from intern.errors import (
    ConfigError,
    KnowledgeError,
    ModelAccessError,
    ModelBudgetError,
    ModelError,
    ModelReplyError,
    ModelUnavailableError,
)
from intern.knowledge.copying import schema_of
from intern.knowledge.database import Database
from intern.knowledge.forms import FormLog
from intern.knowledge.usage import UsageLog
from intern.llm.chat import STREAMING, Form
from intern.llm.endpoint import EndpointModel
from intern.llm.options import LlmOptions
from intern.llm.usage import Usage
from intern.observe.clock import SystemClock
from intern.observe.progress import tell
from intern.settings import Settings

_QUESTION: Final = GateIn(question="How do I reset my password?", history="", addressed=True)
_RETRIES: Final = 1


async def ask_endpoints(settings: Settings) -> list[Finding]:
    """Ask each model endpoint one question; return what came of it. Nothing is asked where a setting is missing.

    Each begins with the fullest form of requests, and replaces what was remembered of the endpoint: it may take more
    than it did. Without a database that can be written to, neither that nor the tokens are kept.
    """
    try:
        settings.require_model()
    except ConfigError:
        return []
    asked = [("llm", settings.llm)]
    if settings.llm_kb is not None and _asked_of(settings.llm_kb) != _asked_of(settings.llm):
        asked.append(("llm.kb", settings.llm_kb))
    asked = [(section, options) for section, options in asked if options.kind == "endpoint"]
    findings: list[Finding] = []
    if not asked:
        return findings
    async with AsyncExitStack() as stack:
        db = await _database(settings, stack)
        usage = Usage(None if db is None else UsageLog(db), clock=SystemClock())
        stack.push_async_callback(kept, usage)
        for done, (section, options) in enumerate(asked):
            tell("Asking {total} model endpoints", done, len(asked))
            findings.append(await _ask(settings, section, options, usage, None if db is None else FormLog(db)))
    return findings


def _asked_of(options: LlmOptions) -> tuple[object, ...]:
    return options.kind, options.base_url, options.api_key, options.model, options.structured_output


async def _database(settings: Settings, stack: AsyncExitStack) -> Database | None:
    """The database where there is one of today's schema that can be written to: none is made or migrated here."""
    path = settings.paths.database
    try:
        schema, newest = await run_sync(schema_of, path)
        return await stack.enter_async_context(await Database.open(path)) if schema == newest else None
    except KnowledgeError:
        return None  # the look at the folder says what is wrong


async def _ask(settings: Settings, section: str, options: LlmOptions, usage: Usage, forms: FormLog | None) -> Finding:
    # What learns may take its time.
    patience = settings.ai.request_timeout_seconds if section == "llm" else None
    try:
        async with EndpointModel(
            replace(options, max_retries=min(options.max_retries, _RETRIES)),
            templates=templates_of(settings),
            usage=usage,
            section=section,
            remember=remembering(forms, options),
        ) as model:
            with anyio.fail_after(patience):
                await model.ask(GATE, _QUESTION)
    except TimeoutError:
        too_slow = f"no whole reply to one short question in {patience:g} s"
        return _todo(section, too_slow, "use a faster model, or raise ai.request_timeout_seconds")
    except ModelBudgetError as error:
        return Finding(level="note", what=f"the model of [{section}] was not asked: {error}")
    except (ConfigError, ModelError) as error:
        return _todo(section, str(error), _mend(section, error))
    by = "" if section == "llm" else f", for [{section}]"
    return good(f"the endpoint at {model.where} answers as {options.model}{by}{_without(model.form)}")


def _todo(section: str, reason: str, mend: str) -> Finding:
    return Finding(level="todo", what=f"the model of [{section}] gave no answer: {reason}", do=mend)


def _mend(section: str, error: ConfigError | ModelError) -> str:
    match error:
        case ModelReplyError():
            return (
                f"try another {section}.structured_output, a larger {section}.max_tokens or another {section}.model;"
                f" its reply could not be used: {error}"
            )
        case ModelAccessError():
            return str(error)  # it names the settings to check
        case ModelUnavailableError():
            return (
                f"see that the endpoint runs, and check {section}.base_url; where it is only slow,"
                f" raise {section}.timeout_seconds: {error}"
            )
        case _:
            return str(error)


def _without(form: Form) -> str:
    """What the endpoint does not take, in words."""
    refused = [
        *(["bounds in schemas"] if not form.bounds else []),
        *(["a temperature"] if not form.temperature else []),
        *(["streaming"] if form.streaming == len(STREAMING) - 1 else []),
        *(["counts of tokens in streams"] if form.streaming == 1 else []),
    ]
    return f"; it does not take {', '.join(refused)}, so intern leaves that out" if refused else ""
