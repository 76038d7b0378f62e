"""Asks an intern that knows the sample documents, and tells how right it is and what that takes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import msgspec
from msgspec import Struct

from intern.core.clock import SystemClock
from intern.core.messages import LOOKUP_FAILURES, Conversation, Image, Message
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.models.usage import UsageMeter, measure_usage
from intern.service.intern import Intern
from intern.service.models import Models, open_models
from intern.service.opening import open_intern
from intern.settings.settings import Settings
from tests.sample.cases import SAMPLE, Case, Kind, Language, is_right
from tests.worlds.settings import make_settings

Verdict = Literal["right", "wrong", "silent", "failed"]
"""Failed: it could not look."""
VERDICTS: tuple[Verdict, ...] = ("right", "wrong", "silent", "failed")

Say = Callable[[str], None]
Tell = Callable[["Sequence[Outcome]"], None]
"""Hears the outcomes so far after each case."""


class Outcome(Struct, frozen=True, kw_only=True):
    """The outcome of one case."""

    name: str
    kind: Kind
    language: Language
    text: str
    verdict: Verdict
    reason: str
    """Why it was silent; empty where it was not."""
    found: bool
    """A right source was among those that were read."""
    cited: bool
    """A right source stands below the answer."""
    refused: bool
    """A right draft was not posted."""
    caught: bool
    """A wrong draft was not posted."""
    prompts: tuple[str, ...]
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    seconds: float
    answer: str
    drafts: tuple[str, ...]
    debug: dict[str, Any]

    @property
    def by_verifier(self) -> bool:
        """Whether a model's second look kept the draft back; else it was code."""
        return self.reason == "rejected"


class Total(Struct, frozen=True, kw_only=True):
    """The sum of some outcomes."""

    cases: int
    right: int
    wrong: int
    silent: int
    failed: int
    found: int
    cited: int
    falsely_refused: int
    """Right drafts that the verifying model kept back."""
    lost_to_code: int
    """Right drafts that code kept back."""
    caught: int
    """Wrong drafts that the verifying model kept back."""
    caught_by_code: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    seconds: float


class Watching:
    """Passes on what a model is asked, and keeps the prompts' names and the drafts of answers."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.prompts: list[str] = []
        self.drafts: list[str] = []

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        self.prompts.append(prompt.name)
        reply = await self._model.ask(prompt, given, images=images)
        draft = getattr(reply, "answer", None)
        if isinstance(draft, str):
            self.drafts.append(draft)
        return reply

    def forget(self) -> None:
        """Begin with the next case."""
        self.prompts.clear()
        self.drafts.clear()


def sample_settings(folder: Path, **sections: Mapping[str, Any]) -> Settings:
    """Settings over a copy of the sample documents in `folder`, indexed by rules, searched by words and by meaning."""
    shutil.copytree(SAMPLE, folder / "knowledge-base" / "sources")
    llm = {"kb": {"provider": "offline"}, **sections.pop("llm", {})}
    over: dict[str, Mapping[str, Any]] = {
        "data": {"dir": str(folder)},
        "kb": {"settle_seconds": 0},
        "embeddings": {"provider": "local"},
        "llm": llm,
        **sections,
    }
    return make_settings(**over)


async def ask_each(
    cases: Sequence[Case], settings: Settings, tell: Tell, *, addressed: bool | None = None
) -> list[Outcome]:
    """Index the documents and ask one case after the other.

    `addressed` says whether the cases are said to the bot; None: questions are, chatter is not, as people do.
    """
    clock = SystemClock()
    async with open_models(settings, None, clock) as models:
        watching = Watching(models.answering)
        watched = Models(watching, models.learning, models.usage, models.breakers, models.nearest)
        async with open_intern(settings, clock=clock, models=watched) as intern:
            await intern.index()
            outcomes: list[Outcome] = []
            for case in cases:
                to_bot = case.addressed if addressed is None else addressed
                outcomes.append(await _ask(case, intern, watching, addressed=to_bot))
                tell(outcomes)
    return outcomes


async def _ask(case: Case, intern: Intern, watching: Watching, *, addressed: bool) -> Outcome:
    watching.forget()
    began = perf_counter()
    with measure_usage() as meter:
        conversation = Conversation((Message(role="user", text=case.text),))
        result = await intern.answer(conversation, addressed=addressed)
    seconds = perf_counter() - began
    answer = (result.reply_text or "") if result.should_reply else ""
    verdict: Verdict
    if result.should_reply:
        verdict = "right" if is_right(case, answer) else "wrong"
    else:
        verdict = "failed" if result.reason in LOOKUP_FAILURES else "silent"
    debug = result.debug or {}
    unposted = () if result.should_reply else tuple(watching.drafts)
    return Outcome(
        name=case.name,
        kind=case.kind,
        language=case.language,
        text=case.text,
        verdict=verdict,
        reason=result.reason,
        found=_has_right(case, _read(debug)),
        cited=_has_right(case, (each.source_id for each in result.citations)),
        refused=any(is_right(case, draft) for draft in unposted),
        caught=any(not is_right(case, draft) for draft in unposted),
        prompts=tuple(watching.prompts),
        calls=meter.calls,
        prompt_tokens=meter.prompt_tokens,
        completion_tokens=meter.completion_tokens,
        cached_tokens=meter.cached_tokens,
        seconds=round(seconds, 3),
        answer=answer,
        drafts=tuple(watching.drafts),
        debug=debug,
    )


def _read(debug: Mapping[str, Any]) -> Sequence[str]:
    """The ids of what a model was shown: of the passages, or of the sources where these are shown as such."""
    shown: Sequence[str] | None = debug.get("loading", {}).get("shown")
    return debug.get("selection", {}).get("source_ids", ()) if shown is None else shown


def _has_right(case: Case, ids: Iterable[str]) -> bool:
    return any(source_id.partition("#")[0] in case.sources for source_id in ids)


def total_of(outcomes: Sequence[Outcome]) -> Total:
    """The sum."""
    verdicts = [outcome.verdict for outcome in outcomes]
    meter = UsageMeter()
    for each in outcomes:
        meter.add_counts(UsageMeter(each.calls, each.prompt_tokens, each.completion_tokens, 0.0, each.cached_tokens))
    return Total(
        cases=len(outcomes),
        right=verdicts.count("right"),
        wrong=verdicts.count("wrong"),
        silent=verdicts.count("silent"),
        failed=verdicts.count("failed"),
        found=sum(outcome.found for outcome in outcomes),
        cited=sum(outcome.cited for outcome in outcomes),
        falsely_refused=sum(outcome.refused and outcome.by_verifier for outcome in outcomes),
        lost_to_code=sum(outcome.refused and not outcome.by_verifier for outcome in outcomes),
        caught=sum(outcome.caught and outcome.by_verifier for outcome in outcomes),
        caught_by_code=sum(outcome.caught and not outcome.by_verifier for outcome in outcomes),
        calls=meter.calls,
        prompt_tokens=meter.prompt_tokens,
        completion_tokens=meter.completion_tokens,
        cached_tokens=meter.cached_tokens,
        seconds=round(sum(outcome.seconds for outcome in outcomes), 1),
    )


def totals_of(outcomes: Sequence[Outcome]) -> dict[str, Total]:
    """All together, each kind, and the answerable ones of each language."""
    parts: dict[str, list[Outcome]] = {"all": [*outcomes]}
    for outcome in outcomes:
        parts.setdefault(outcome.kind, []).append(outcome)
    for outcome in outcomes:
        if outcome.kind == "answerable":
            parts.setdefault(f"answerable, {outcome.language}", []).append(outcome)
    return {name: total_of(part) for name, part in parts.items()}


def line_of(outcome: Outcome) -> str:
    """One case in one line, with what it said where that is wrong or was not posted."""
    found = "found" if outcome.found else "-" if outcome.kind != "answerable" else "NOT FOUND"
    said = (
        outcome.answer if outcome.verdict == "wrong" else next(iter(outcome.drafts), "") if not outcome.answer else ""
    )
    note = f"{'right draft: ' if outcome.refused else ''}{' '.join(said.split())[:160]}"
    error = str(outcome.debug.get("error", "")) if outcome.verdict == "failed" else ""
    tokens = outcome.prompt_tokens + outcome.completion_tokens
    return (
        f"{outcome.verdict:7}{outcome.kind:12}{outcome.name:24}{found:10}{outcome.reason:18}"
        f"{outcome.calls:2} calls {tokens:6} tokens {outcome.seconds:7.2f} s  {note}{error}"
    ).rstrip()


def table_of(outcomes: Sequence[Outcome]) -> str:
    """The totals, to be printed."""
    columns = (
        *("cases", *VERDICTS, "found", "cited", "falsely_refused", "lost_to_code", "caught", "caught_by_code"),
        *("calls", "prompt_tokens", "completion_tokens", "cached_tokens", "seconds"),
    )
    heads = [column.replace("_", " ") for column in columns]
    lines = [f"{'':16}" + "  ".join(heads)]
    for name, total in totals_of(outcomes).items():
        held = [f"{getattr(total, column):>{len(head)}}" for column, head in zip(columns, heads, strict=True)]
        lines.append(f"{name:16}" + "  ".join(held))
    return "\n".join(lines)


def report_of(outcomes: Sequence[Outcome], **about: object) -> bytes:
    """All figures as JSON."""
    report = {**about, "totals": totals_of(outcomes), "cases": list(outcomes)}
    return msgspec.json.format(msgspec.json.encode(report, enc_hook=str))
