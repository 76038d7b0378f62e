"""Which passages a question is answered from: found by the search, cut from what stands in the sources now. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from intern.answering.citable import block_ids, is_team
from intern.domain import Hit, SourceId, SourceText
from intern.text.passages import best_passages
from intern.text.words import word_set

Alias = Literal["S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8"]
"""What a reply calls a passage: a schema that is the same for every question can be cached."""
_ALIASES: tuple[Alias, ...] = get_args(Alias)
MOST_SHOWN = len(_ALIASES)
"""Passages of one question."""

# A passage of fewer characters is shown with what follows it: a heading's section often goes on.
_ENOUGH = 700
_LONGEST = 1500  # characters of a passage
_WHOLE = 1200  # a source as short as this is shown whole
# Of the best one's score: of 30 questions in other words than the sample's documents, none loses the right one.
_NEAR_BEST = 0.75
_LEAST_SHOWN = 3

_MARKER = "--- QA ---"
_MOST_SEARCHED = (
    30_000  # characters at the end of a topic, the newest, where its blocks are not those that were indexed
)
_BLOCK = re.compile(r"^--- QA ---[ \t]*$", re.MULTILINE)
_HEADER = re.compile(r"\A\s*(?:[a-z_]+:[^\n]*\n)+\n?")
# When it was archived, and behind that when it was answered: an import has years between them.
_ANSWERED = re.compile(r"^(?:answered_at|timestamp):[ \t]*(\d{4}-\d\d-\d\d)", re.MULTILINE)
_SPEAKER = re.compile(r"^(?:Team|User): ", re.MULTILINE)
# Of the further lines of a message; one that reads like the beginning of somebody's words keeps it.
_INDENT = re.compile(r"^  (?!\s*(?:team|user)\s*:)", re.MULTILINE | re.IGNORECASE)


class Shown(Struct, frozen=True, kw_only=True):
    """A passage as a prompt shows it."""

    alias: Alias
    source_id: SourceId
    """By which it is cited: of a topic, `team:<topic>.txt#<qa id>`."""
    label: str
    """The name of its source, for the model: a path, or `team` and a day."""
    title: str
    text: str
    url: str | None = None
    said: str | None = None
    """The team's own words, whole, where the text is a model's account."""

    @property
    def vouched(self) -> str:
        """What an answer may take commands, versions and addresses from."""
        return self.text if self.said is None else self.said


def near_best(hits: Iterable[Hit]) -> list[Hit]:
    """The hits that are worth a look, best first; at equal score, what the team said before documents."""
    order = sorted(hits, key=lambda hit: (-round(hit.score, 2), not is_team(hit.source_id)))
    least = order[0].score * _NEAR_BEST if order else 0.0
    return [hit for n, hit in enumerate(order) if n < _LEAST_SHOWN or hit.score >= least]


def shown_passages(
    hits: Sequence[Hit], sources: Mapping[SourceId, SourceText], query: str, max_chars: int
) -> tuple[Shown, ...]:
    """The passages of the hits in at most `max_chars` characters, as many as fit, in an order of their own.

    The order depends on the ids alone, so that questions about the same sources share the beginning of a prompt.
    """
    room, kept = max_chars, dict[SourceId, Shown]()
    for hit in hits:
        source = sources.get(hit.source_id)
        passage = None if source is None else _passage(source, hit, query)
        if passage is not None and len(passage.text) > max_chars:
            passage = replace(passage, text=best_passages(passage.text, query, max_chars))
        if passage is None or passage.source_id in kept or len(kept) == MOST_SHOWN or len(passage.text) > room:
            continue
        kept[passage.source_id] = passage
        room -= len(passage.text)
    return aliased(kept.values())


def whole_sources(sources: Sequence[SourceText], max_chars: int) -> tuple[Shown, ...]:
    """All that is known, block by block, where it is little enough to be shown; else nothing."""
    if sum(len(source.text) for source in sources) > max_chars:
        return ()
    passages = [passage for source in sources if source.text.strip() for passage in _all(source)]
    return aliased(passages) if len(passages) <= MOST_SHOWN else ()


def aliased(passages: Iterable[Shown]) -> tuple[Shown, ...]:
    """What the team said first, then by id; each with its alias."""
    order = sorted(passages, key=lambda each: (not is_team(each.source_id), each.source_id))
    return tuple(
        replace(each, alias=alias, label=f"{alias}: {each.label}") for alias, each in zip(_ALIASES, order, strict=False)
    )


def _all(source: SourceText) -> Iterator[Shown]:
    if not is_team(source.source_id):
        yield _shown(source, source.source_id, source.text.strip())
        return
    for qa_id, block in _blocks(source.text):
        yield _of_team(source, qa_id, block, "")


def _passage(source: SourceText, hit: Hit, query: str) -> Shown | None:
    """What stands there now; where the passage was changed since it was indexed, what fits the question best."""
    if not is_team(source.source_id):
        text = source.text.strip()
        if len(text) > _WHOLE:
            text = _around(text, hit) or best_passages(text, query, _LONGEST)
        return _shown(source, source.source_id, text) if text.strip() else None
    found = _block_of(source.text, hit, query)
    return None if found is None else _of_team(source, *found, query)


def _block_of(text: str, hit: Hit, query: str) -> tuple[str, str] | None:
    """Id and text of the block that a hit is of: the one that begins with its words, else the one that holds most."""
    # A topic may hold thousands of blocks: those where the words stand are found without reading the others.
    first, wanted = hit.text.partition("\n")[0], _flat(hit.text)
    at = text.find(f": {first}\n") if first else -1
    while at >= 0:
        start = text.rfind(_MARKER, 0, at)
        end = text.find(f"\n{_MARKER}", at)
        for qa_id, block in _blocks(text[max(start, 0) : len(text) if end < 0 else end]):
            if _flat(_said(block)) == wanted:
                return qa_id, block
        at = text.find(f": {first}\n", at + 1)
    words, held = word_set(hit.text or query), dict(_blocks(text[-_MOST_SEARCHED:]))
    best = max(held, key=lambda qa_id: len(word_set(held[qa_id]) & words), default=None)
    return None if best is None else (best, held[best])


def _of_team(source: SourceText, qa_id: str, block: str, query: str) -> Shown:
    said, days = _said_by_whom(block), _ANSWERED.findall(block)
    passage = _shown(source, SourceId(f"{source.source_id}#{qa_id}"), _turns_cut(said, query))
    return replace(passage, label=f"team {days[-1]}" if days else "team")


def _turns_cut(said: str, query: str) -> str:
    """What of the turns fits a question best: a little of what was asked, and of what the team answered the most."""
    asked, answers, answered = said.partition("\nTeam: ")
    if len(said) <= _LONGEST or not answers:
        return best_passages(said, query, _LONGEST)
    asked = best_passages(asked, query, _LONGEST // 4)
    return asked + answers + best_passages(answered, query, _LONGEST - len(asked) - len(answers))


def _shown(source: SourceText, source_id: SourceId, text: str) -> Shown:
    kind, _, name = source_id.partition(":")
    return Shown(
        alias="S1",
        source_id=source_id,
        label=name if kind in {"kb", "file"} else source_id,
        title=" ".join(source.title.split()),
        text=text,
        url=source.url,
        said=source.said,
    )


def _around(text: str, hit: Hit) -> str:
    """The passage with its headings, and with what follows where it is short; empty where it stands there no more."""
    start = text.find(hit.text) if hit.text else -1
    if start < 0:
        return ""
    end = start + len(hit.text)
    while end - start < _ENOUGH and end < len(text):
        following = text.find("\n\n", end + 2)
        end_of_next = len(text) if following < 0 else following
        if end_of_next - start > _LONGEST:
            break
        end = end_of_next
    passage = text[start:end].strip()
    heading = " ".join(hit.title.split())
    return passage if not heading or heading in passage[:300] else f"{heading}\n\n{passage}"


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Each QA block's id and what follows it."""
    for part in _BLOCK.split(text)[1:]:
        for qa_id in block_ids(f"{_MARKER}{part}"):
            yield qa_id, part
            break


def _said_by_whom(block: str) -> str:
    """The turns of a block, each led by who spoke, without ids and times."""
    return _INDENT.sub("", _HEADER.sub("", block).strip())


def _said(block: str) -> str:
    return _SPEAKER.sub("", _said_by_whom(block))


def _flat(text: str) -> str:
    return " ".join(text.split())
