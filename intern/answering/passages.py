"""The passages of sources that a model is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import TypeAlias

from msgspec import structs

from intern.answering.prompts import ALIASES, MOST_SHOWN, ShownPassage
from intern.core.ids import SourceId
from intern.core.knowledge import SourceText
from intern.core.messages import MARKER, block_ids, is_distilled, is_team_source
from intern.core.search_documents import PassageHit
from intern.core.text.orders import has_prompt_injection
from intern.core.text.passages import PASSAGE, Passage, join_headings, select_best_passages, split_passages
from intern.core.text.patterns import regex
from intern.core.text.words import collapse_whitespace, stem_set

# Characters at the end of a topic, its newest, if its blocks are no longer those in the search index.
_MOST_SEARCHED = 30_000
_BLOCK = regex(rf"^{MARKER}[ \t]*$", re.MULTILINE)
_HEADER = regex(r"\A\s*(?:[a-z_]+:[^\n]*\n)+\n?")
# The time of archiving, and behind it the time of the answer: an import has years between them.
_ANSWERED = regex(r"^(?:answered_at|timestamp):[ \t]*(\d{4}-\d\d-\d\d)", re.MULTILINE)
_SPEAKER = regex(r"^(?:Team|User): ", re.MULTILINE)
# The indent of the further lines of a message; a line that looks like the first line of a turn keeps it.
_INDENT = regex(r"^  (?!\s*(?:team|user)\s*:)", re.MULTILINE | re.IGNORECASE)


def select_passages(
    hits: Sequence[PassageHit], sources: Mapping[SourceId, SourceText], query: str, max_chars: int
) -> tuple[ShownPassage, ...]:
    """Cut the passages of the hits, as many as fit into `max_chars` characters, in an order of their own.

    The order depends only on the ids and the places in their sources. So questions about the same sources share the
    beginning of a prompt.
    """
    room, kept = max_chars, dict[_Place, ShownPassage]()
    for n, hit in enumerate(hits):
        source = sources.get(hit.source_id)
        found = None if source is None else _find_passage(source, hit, query)
        if found is None or found[0] in kept or len(kept) == MOST_SHOWN:
            continue
        place, passage, is_same = found
        if len(passage.text) > max_chars:
            passage = structs.replace(passage, text=select_best_passages(passage.text, query, max_chars))
        if len(passage.text) <= room:
            kept[place] = structs.replace(passage, hit=n if is_same else None)
            room -= len(passage.text)
    return _give_aliases(kept)


def select_whole_sources(
    hits: Sequence[PassageHit], sources: Mapping[SourceId, SourceText], query: str, max_chars: int
) -> tuple[ShownPassage, ...]:
    """Return all sources, passage by passage, if they are short enough to be shown; else nothing."""
    if sum(len(source.text) for source in sources.values()) > max_chars:
        return ()
    kept = {place: passage for source in sources.values() for place, passage in _iter_passages(source)}
    for n, hit in reversed([*enumerate(hits)]):
        found = _find_passage(sources[hit.source_id], hit, query) if hit.source_id in sources else None
        if found is not None and found[0] in kept:
            kept[found[0]] = structs.replace(kept[found[0]], hit=n if found[2] else None)
    return _give_aliases(kept) if len(kept) <= MOST_SHOWN else ()


_Place: TypeAlias = tuple[str, int]
"""The id to cite, and the start of a passage in its source."""


def _give_aliases(passages: Mapping[_Place, ShownPassage]) -> tuple[ShownPassage, ...]:
    """Order passages, team answers first, then by their places; give each its alias."""
    order = sorted(passages, key=lambda place: (not is_team_source(place[0]), place))
    called = zip(ALIASES, map(passages.__getitem__, order), strict=False)
    return tuple(structs.replace(each, alias=alias, label=f"{alias}: {each.label}") for alias, each in called)


def _iter_passages(source: SourceText) -> Iterator[tuple[_Place, ShownPassage]]:
    if is_team_source(source.source_id):
        yield from (_make_team_passage(source, qa_id, block, "") for qa_id, block in _split_blocks(source.text))
    elif is_distilled(source.source_id):
        yield _make_passage(source, source.text.strip())
    else:
        yield from (_make_document_passage(source, piece) for piece in _pieces(source.text))


def _find_passage(source: SourceText, hit: PassageHit, query: str) -> tuple[_Place, ShownPassage, bool] | None:
    """Return the current passage and True if it is the found one; else the one that fits the question best."""
    if is_distilled(source.source_id):
        return (*_make_passage(source, source.text.strip()), False) if source.text.strip() else None
    if is_team_source(source.source_id):
        found = _find_block(source.text, hit, query)
        return None if found is None else (*_make_team_passage(source, found[0], found[1], query), found[2])
    pieces = _pieces(source.text)
    same = [piece for piece in pieces if piece.text == hit.text]
    # Two sections may have the same text.
    best = next((piece for piece in same if join_headings(source.title, piece.heading) == hit.title), None)
    best = best or next(iter(same), None) or max(pieces, key=_make_overlap_key(query, hit.text), default=None)
    # For a discovered file, the search found a summary.
    return (
        None
        if best is None
        else (*_make_document_passage(source, best), bool(same) or source.source_id.startswith("file:"))
    )


# One question may find several passages of one source.
_pieces = lru_cache(maxsize=16)(partial(split_passages, max_chars=PASSAGE))


def _make_overlap_key(*texts: str) -> Callable[[Passage], tuple[int, ...]]:
    """Return a sort key: the number of words that a passage shares with the first text; for equals, with the second."""
    wanted = [stem_set(text) for text in texts]

    def count_overlap(piece: Passage) -> tuple[int, ...]:
        held = stem_set(f"{piece.heading}\n{piece.text}")
        return tuple(len(held & each) for each in wanted)

    return count_overlap


def _make_document_passage(source: SourceText, piece: Passage) -> tuple[_Place, ShownPassage]:
    place, shown = _make_passage(source, piece.text, piece.start)
    heading = "" if has_prompt_injection(piece.heading) else collapse_whitespace(piece.heading)
    # The innermost two: a marker has no room for more.
    label = ": ".join(filter(None, (shown.label, ", ".join(heading.split(" > ")[-2:]))))
    return place, structs.replace(shown, heading=heading, anchor=piece.anchor, label=label, start=piece.start)


def _find_block(text: str, hit: PassageHit, query: str) -> tuple[str, str, bool] | None:
    """Return id and text of the found block, and True; else of the block with most of its words, and False."""
    first, wanted = hit.text.partition("\n")[0], collapse_whitespace(hit.text)
    for qa_id, block in _split_blocks(text) if first else ():
        if f": {first}\n" in block and collapse_whitespace(_SPEAKER.sub("", _format_turns(block))) == wanted:
            return qa_id, block, True
    words, held = stem_set(hit.text or query), dict(_split_blocks(text[-_MOST_SEARCHED:]))
    best = max(held, key=lambda qa_id: len(stem_set(held[qa_id]) & words), default=None)
    return None if best is None else (best, held[best], False)


def _make_team_passage(source: SourceText, qa_id: str, block: str, query: str) -> tuple[_Place, ShownPassage]:
    said, days = _format_turns(block), _ANSWERED.findall(block)
    place, shown = _make_passage(structs.replace(source, source_id=SourceId(f"{source.source_id}#{qa_id}")), said)
    text = _shorten_turns(said, query)
    return place, structs.replace(shown, text=text, label=f"team {days[-1]}" if days else "team")


def _shorten_turns(said: str, query: str) -> str:
    """Cut the turns to the parts that fit a question best: a little of the question, most of the team's answer."""
    asked, answers, answered = said.partition("\nTeam: ")
    if len(said) <= PASSAGE or not answers:
        return select_best_passages(said, query, PASSAGE)
    asked = select_best_passages(asked, query, PASSAGE // 4)
    return asked + answers + select_best_passages(answered, query, PASSAGE - len(asked) - len(answers))


def _make_passage(source: SourceText, text: str, start: int = 0) -> tuple[_Place, ShownPassage]:
    kind, _, name = source.source_id.partition(":")
    shown = ShownPassage(
        alias="S1",
        source_id=source.source_id,
        label=name if kind in {"kb", "file"} else source.source_id,
        title=collapse_whitespace(source.title),
        text=text,
        url=source.url,
        said=source.said,
    )
    return (source.source_id, start), shown


def _split_blocks(text: str) -> Iterator[tuple[str, str]]:
    """Return the id and the text of each QA block."""
    for part in _BLOCK.split(text)[1:]:
        yield from ((qa_id, part) for qa_id in islice(block_ids(f"{MARKER}{part}"), 1))


def _format_turns(block: str) -> str:
    """Return the turns of a block, each led by its speaker, without ids and times."""
    return _INDENT.sub("", _HEADER.sub("", block).strip())
