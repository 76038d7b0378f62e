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
from intern.core.text.words import collapse_whitespace, stem_set

# Characters at the end of a topic, its newest, if its blocks are no longer those in the search index.
_MOST_SEARCHED = 30_000
_BLOCK = re.compile(rf"^{MARKER}[ \t]*$", re.MULTILINE)
_HEADER = re.compile(r"\A\s*(?:[a-z_]+:[^\n]*\n)+\n?")
# The time of archiving, and behind it the time of the answer: an import has years between them.
_ANSWERED = re.compile(r"^(?:answered_at|timestamp):[ \t]*(\d{4}-\d\d-\d\d)", re.MULTILINE)
_SPEAKER = re.compile(r"^(?:Team|User): ", re.MULTILINE)
# The indent of the further lines of a message; a line that looks like the first line of a turn keeps it.
_INDENT = re.compile(r"^  (?!\s*(?:team|user)\s*:)", re.MULTILINE | re.IGNORECASE)


def select_passages(
    hits: Sequence[PassageHit], sources: Mapping[SourceId, SourceText], query: str, max_chars: int, *, whole: bool
) -> tuple[ShownPassage, ...]:
    """Cut the passages of the hits, as many as fit into `max_chars` characters, in an order of their own.

    With `whole`, return all passages of all sources instead, if these are short enough to be shown.

    The order depends only on the ids and the places in their sources. So questions about the same sources share the
    beginning of a prompt.
    """
    numbered = ((n, hit, sources.get(hit.source_id)) for n, hit in enumerate(hits))
    found = [_find_passage(source, hit, query, n) for n, hit, source in numbered if source is not None]
    near = [each for each in found if each is not None]
    if whole and sum(len(source.text) for source in sources.values()) <= max_chars:
        all_of_it = {place: passage for source in sources.values() for place, passage in _iter_passages(source)}
        for place, passage in reversed(near):
            if place in all_of_it:
                all_of_it[place] = structs.replace(all_of_it[place], hit=passage.hit)
        if 0 < len(all_of_it) <= MOST_SHOWN:
            return _give_aliases(all_of_it)
    room, kept = max_chars, dict[_Place, ShownPassage]()
    for place, passage in near:
        if place in kept or len(kept) == MOST_SHOWN:
            continue
        fits = len(passage.text) <= max_chars
        text = passage.text if fits else select_best_passages(passage.text, query, max_chars)
        if len(text) <= room:
            kept[place] = structs.replace(passage, text=text)
            room -= len(text)
    return _give_aliases(kept)


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


def _find_passage(source: SourceText, hit: PassageHit, query: str, n: int) -> tuple[_Place, ShownPassage] | None:
    """Return the current passage with the hit's number if it is the found one; else the one that fits best."""
    is_same = False
    if is_distilled(source.source_id):
        if not source.text.strip():
            return None
        place, passage = _make_passage(source, source.text.strip())
    elif is_team_source(source.source_id):
        if (found := _find_block(source.text, hit, query)) is None:
            return None
        qa_id, block, is_same = found
        place, passage = _make_team_passage(source, qa_id, block, query)
    else:
        pieces = _pieces(source.text)
        same = [piece for piece in pieces if piece.text == hit.text]
        # Two sections may have the same text.
        best = next((piece for piece in same if join_headings(source.title, piece.heading) == hit.title), None)
        best = best or next(iter(same), None) or max(pieces, key=_make_overlap_key(query, hit.text), default=None)
        if best is None:
            return None
        place, passage = _make_document_passage(source, best)
        # For a discovered file, the search found a summary.
        is_same = bool(same) or source.source_id.startswith("file:")
    return place, structs.replace(passage, hit=n) if is_same else passage


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
