"""Compare an answer's citations with the sources that were shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from intern.answering.prompts import ShownSource
from intern.answering.quotes import find_nearest_sentence
from intern.core.ids import SourceId
from intern.core.messages import block_lines, find_citation_ids, is_team_source

_NOTHING = frozenset({"", "null", "none", "nil", "n/a", "undefined"})

_AROUND_NOTHING = " \t\r\n\"'`*_~.,:;!?-–—…()[]{}<>|"


def clean_answer(answer: str | None) -> str:
    """Strip the answer; return an empty text for the ways in which models say that they have none."""
    text = (answer or "").strip()
    return "" if text.strip(_AROUND_NOTHING).casefold() in _NOTHING else text


def check_citations(citations: Iterable[str], sources: Sequence[ShownSource]) -> tuple[tuple[SourceId, ...], int]:
    """Return each citation of a shown source or block (`team:<topic>.txt#<qa id>`) once, and the number of others.

    A whole topic is not cited beside one of its answers.
    """
    known = {each for source in sources for each in find_citation_ids(source.source_id, source.text)}
    asked_for = [each.strip() for each in citations]
    kept = dict.fromkeys(each for each in asked_for if each in known)
    dropped = sum(each not in known for each in asked_for)
    precise = {get_source_id(citation) for citation in kept if citation != get_source_id(citation)}
    return tuple(SourceId(citation) for citation in kept if citation not in precise), dropped


def find_quote(answer: str, citation: str, source: ShownSource) -> str | None:
    """Return the sentence of a cited source that shares most words with the answer, weighted by rarity.

    It is quoted word for word from the shown text and cut to MAX_QUOTE; from a topic, it quotes the team's words in the
    cited block. None if they share no words.
    """
    text = source.said or source.text
    if is_team_source(citation):
        text = "\n".join(block_lines(source.text, citation.partition("#")[2]))
    return find_nearest_sentence(answer, text)


def get_source_id(citation: str) -> SourceId:
    """Return the source of a citation: the topic of a team answer, else the citation itself."""
    return SourceId(citation.partition("#")[0] if is_team_source(citation) else citation)
