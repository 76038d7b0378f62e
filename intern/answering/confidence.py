"""The confidence of an answer: one score from 0 to 1, computed once it is drafted and checked.

Answers below the calibrated score are withheld; see `thresholds`. It is a fixed logistic score: each signal only
raises it or only lowers it, so that it can be explained. Calibration needs only an order: the score is no probability.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from intern.answering import steps
from intern.answering.citations import get_source_id
from intern.answering.prompts import ShownSource
from intern.core.ids import SourceId
from intern.core.messages import is_distilled, is_team_source
from intern.core.text.words import WordRarity, stem_set

_MOST_LINKS = 3
_UNSEEN = 10


class ConfidenceSignals(Struct, frozen=True, kw_only=True):
    """The signals of an answer's score; None where one is unknown."""

    likeness: float | None = None
    """The similarity of the question and its most similar passage."""
    margin: float | None = None
    """The lead of that passage's similarity over the next source's."""
    covered: float
    """The share of the question's informative words in the best cited passage."""
    near: bool = True
    """Whether a quote is so near to the question that rules would answer with it."""
    quoted: float = 1.0
    """The share of the quotes that the passages hold."""
    grounded: float
    """The share of the answer's words that the question and the cited passages hold."""
    agreement: float = 0.0
    """The largest share of the answer's words in a passage that is not cited."""
    team: bool
    """Whether a team answer is cited."""
    doubts: int = 0
    """The number of things pointed out to the check: numbers, code and names that are not in the sources."""
    confirmed: bool
    """Whether a second call confirmed it; else code alone did."""


WEIGHTS: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "likeness": (0.5, 0.5),
        "margin": (7.0, 0.05),
        "covered": (0.3, 0.5),
        "grounded": (1.0, 0.9),
        "near": (1.0, 1.0),
        "quoted": (2.0, 1.0),
        "agreement": (0.5, 0.3),
        "team": (0.3, 0.0),
        "doubts": (-0.5, 0.0),
        "confirmed": (0.5, 1.0),
    }
)
"""The weight of each signal, and its usual value, which replaces an unknown one.

The first four follow a logistic regression with weights of the right sign. It used half of 158 answers of rules to
labelled questions (factoids, a FAQ, the sample). In the other half, a right answer scores above a wrong one in .59 of
pairs; by likeness alone in .45. The other signals do not vary with rules, and are set by hand.
"""


def _collect_signals(
    selected: steps.SelectedSources,
    loaded: steps.LoadedSources[steps.ShownT],
    draft: steps.CheckedDraft,
    verified: steps.VerifiedDraft,
) -> ConfidenceSignals:
    """Compare an answer with the question and the shown passages."""
    question, shown = loaded.query, loaded.shown
    cited = {each.source_id for each in draft.cited}
    texts = [stem_set(f"{each.title}\n{each.text}") for each in shown]
    wanted = stem_set(question)
    # The question counts as a text, too. The empty texts keep words from looking common among a handful of texts.
    rarity = WordRarity([*texts, wanted, *[frozenset[str]()] * _UNSEEN])
    shares = zip(shown, rarity.compute_coverages(wanted, texts), strict=True)
    said, best = stem_set(draft.text), sorted(selected.likenesses, reverse=True)
    known = stem_set("\n".join((question, *(f"{each.title}\n{each.text}" for each in draft.cited))))
    others = (text for each, text in zip(shown, texts, strict=True) if each.source_id not in cited)
    return ConfidenceSignals(
        likeness=best[0] if best else None,
        margin=best[0] - best[1] if best[1:] else None,
        covered=max((share for each, share in shares if each.source_id in cited), default=0.0),
        near=draft.is_near,
        quoted=draft.quoted,
        grounded=len(said & known) / max(len(said), 1),
        agreement=max((len(said.intersection(text)) for text in others), default=0) / max(len(said), 1),
        team=any(map(is_team_source, cited)),
        doubts=len(draft.suspicions) + len(draft.unnamed),
        confirmed=verified.by_model,
    )


class ConfidenceResult(steps.StepResult, frozen=True, kw_only=True):
    """Whether an answer is sure enough."""

    links: tuple[steps.DraftCitation, ...] = ()
    """The sources to look at instead of the answer."""


def weigh_answer(
    work: steps.QuestionWork,
    selected: steps.SelectedSources,
    loaded: steps.LoadedSources[steps.ShownT],
    draft: steps.CheckedDraft,
    verified: steps.VerifiedDraft,
) -> ConfidenceResult:
    """Withhold an answer whose score does not reach the calibrated one, if there is a calibration. Blocks shortly.

    If judged answers show that no score keeps to the bound, every answer is withheld.

    With `ai.unsure = "links"`, an addressed question gets the best sources to look at, if it reaches the second score.
    """
    given = structs.asdict(_collect_signals(selected, loaded, draft, verified)).items()
    bar = work.calibration
    weighed = (WEIGHTS[name][0] * (value - WEIGHTS[name][1]) for name, value in given if value is not None)
    score = round(1 / (1 + math.exp(-math.fsum(weighed))), 4)
    least = None if bar is None else "no score keeps to the bound" if bar.score is None else bar.score
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in given}
    fields = {"score": score, "setup": work.setup, "threshold": least, **rounded}
    if bar is None or (bar.score is not None and score >= bar.score):
        return ConfidenceResult(fields=fields)
    links: list[steps.DraftCitation] = []
    if work.options.unsure == "links" and work.asked.addressed and bar.links is not None and score >= bar.links:
        # First those that the answer cites, then by the search's ranking.
        places = {hit.source_id: place for place, hit in enumerate(steps.first_per_source(selected.hits))}
        others = [each for each in loaded.shown if each not in draft.cited]
        others.sort(key=lambda each: places.get(get_source_id(each.source_id), len(places)))
        best: list[ShownSource] = [*draft.cited, *others]
        # A fact or a nugget is a claim, and has no page to link to.
        pages = (each for each in best if not is_distilled(each.source_id) and ":" in each.source_id)
        links = [
            steps.DraftCitation(SourceId(each.source_id), each, None)
            for each in steps.first_per_source(pages)[:_MOST_LINKS]
        ]
    fields["links"] = tuple(each.source_id for each in links)
    return ConfidenceResult(silence="unsure", fields=fields, links=tuple(links))
