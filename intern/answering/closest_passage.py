"""The closest passage, quoted where there is no model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from intern.answering.line_ranking import extract_team_words
from intern.answering.prompts import ClosestPassage, ShownPassage
from intern.chat.reply_text import clean_name, plain_line
from intern.core.ids import SourceId
from intern.core.knowledge import SourceText
from intern.core.messages import is_distilled, is_team_source
from intern.core.search_documents import PassageHit
from intern.core.text.passages import GAP, find_blocks, join_headings, read_following_blocks
from intern.core.text.words import PLEASANTRIES, WordRarity, stem_set

_CODE = re.compile(r"`[^`\n]+`")
# A label that `write_blocks` puts before a block: of a tab, an operating system, a version, a term.
_LABEL = re.compile(r"([^\n:`]{1,60}):(?:\s|$)")
CLOSEST = "Closest passage, quoted"
"""The line above an answer that is quoted without a model."""
MOST_QUOTED = 700
"""Characters of a quoted passage: a paragraph with its code can be read at a glance."""
_UNSEEN = 10  # empty texts, so that not every word of a handful of texts looks common
_LIKENESS = 0.7  # the weight of the cosine, beside that of the words
_FOLLOWING = 8  # hits to compare the best one with
SURE = 0.59
SURE_BY_WORDS = 0.7
"""The least fit of a quoted passage, found with vectors or by words alone. The fit includes half of the distance to the
mean of the next eight passages. If there are fewer, the missing ones count as 0.

These two, `_LIKENESS`, `_FOLLOWING` and `hybrid_search._HALF` were fitted on 96 questions over six documentation sets
(pytest, JupyterHub, FastAPI, AI SDK, SQLite, Git). Of 72 questions with an answer there, 17 get it and 8 get another
passage; of 24 without one, one gets a passage; by words alone 10, 1 and 1. Among some 20 files of each set, it is 19,
10 and 2. Tested on 60 questions over four other sets (Borg, Node.js, the Debian handbook, Hatch): of 48 with an answer,
10 get it and 3 get another passage; of 12 without, one gets a passage; by words alone 0, 1 and 0.
"""


def find_closest(
    question: str,
    hits: Sequence[PassageHit],
    shown: Sequence[ShownPassage],
    sources: Mapping[SourceId, SourceText],
    most: int = MOST_QUOTED,
) -> ClosestPassage | None:
    """Return the best informative passage, to be quoted in `most` characters; None without one.

    `hits` are in their order, `shown` the passages cut from them, `sources` the readable texts, without copies. A
    passage that only repeats the question is not informative, nor is an answer that asks back.
    """
    sure, fits = _rank_passages(question, hits, shown, sources)
    for n, (passage, _) in enumerate(fits):
        if passage is None:
            continue
        text = _quote_passage(question, passage, sources.get(SourceId(passage.source_id)), most)
        has_news = stem_set(text) - stem_set(question) - PLEASANTRIES or any(
            code not in question for code in _CODE.findall(text)
        )
        if has_news and not text.rstrip().endswith(("?", "？")):
            best, *others = (fit for _, fit in fits[n : n + 1 + _FOLLOWING])
            margin = best - sum(others) / _FOLLOWING
            return ClosestPassage(passage=passage, text=text, surplus=best + margin / 2 - sure)
    return None


def _quote_passage(question: str, passage: ShownPassage, source: SourceText | None, most: int) -> str:
    if is_team_source(passage.source_id):
        return shorten_text(extract_team_words(passage.text), most)
    text = (
        ""
        if source is None
        else read_following_blocks(source.text, _find_named_block(question, passage, source.text), most)
    )
    return text or shorten_text(passage.text, most)


def _find_named_block(question: str, passage: ShownPassage, text: str) -> int:
    """Return the start of the block whose label the question names, if the passage begins with another label."""
    end = passage.start + len(passage.text)
    about = stem_set(question) - stem_set(f"{passage.title} {passage.heading}")
    starts = (span.start for span in find_blocks(text) if passage.start <= span.start < end)
    labels = [(stem_set(found[1]), found.start()) for start in starts if (found := _LABEL.match(text, start))]
    named = [start for label, start in labels if label and label <= about]
    return named[0] if named and labels[0][1] == passage.start else passage.start


def _rank_passages(
    question: str, hits: Sequence[PassageHit], shown: Sequence[ShownPassage], sources: Mapping[SourceId, SourceText]
) -> tuple[float, Sequence[tuple[ShownPassage | None, float]]]:
    """Return the fit of each passage, best first, and the fit that is sure enough.

    If texts could not be searched, the share of the question's words in a passage replaces the search's score by words.
    """
    if not any(hit.text for hit in hits):
        shown = [each for each in shown if not is_distilled(each.source_id)]
        held = [stem_set(f"{each.title}\n{each.heading}\n{each.text}") for each in shown]
        shares = WordRarity([*held, *[frozenset[str]()] * _UNSEEN]).compute_coverages(stem_set(question), held)
        return SURE_BY_WORDS, sorted(zip(shown, shares, strict=True), key=lambda each: -each[1])
    passages = {each.hit: each for each in shown}
    by_words = hits[0].likeness is None or not hits[0].is_measured
    asked = stem_set(question)
    fits: list[float] = []
    for hit in hits:
        score = hit.by_words if by_words else (1 - _LIKENESS) * hit.by_words + _LIKENESS * (hit.likeness or 0.0)
        # The share of words that the question has in common with an answered one, common words included.
        answered = stem_set(hit.title) if is_team_source(hit.source_id) else frozenset[str]()
        fits.append(max(score, len(asked & answered) / max(len(asked | answered), 1)))
    # Nuggets, facts, copies of shown passages and unreadable sources do not count.
    found = [(passages.get(n), fits[n]) for n, hit in enumerate(hits) if hit.text and hit.source_id in sources]
    return SURE_BY_WORDS if by_words else SURE, found


def format_quoted_passage(closest: ClosestPassage) -> str:
    """Return the passage below a line that calls it a quote, with its heading as a link to its page."""
    passage = closest.passage
    heading = join_headings(passage.title, passage.heading).replace(" > ", " › ")
    name = next(
        filter(None, (clean_name(each, "") for each in (heading, passage.title))), plain_line(passage.source_id)
    )
    where = f"[{name.replace('/', '∕')}](<{passage.address}>)" if passage.address else f"**{name}**"
    return f"{CLOSEST}: {where}\n\n{closest.text}"


_TICKS = "```"


def shorten_text(text: str, room: int) -> str:
    """Return the text, or the beginning that fits, with a sign that more follows."""
    if len(text) <= room:
        return text
    room -= len(GAP.rstrip()) + len(f"\n{_TICKS}")
    if room < 1:
        return ""
    begun = text[:room]
    borders = (begun.rfind(mark) for mark in ("\n\n", "\n", " "))
    begun = begun[: next((at for at in borders if at >= room // 2), room)].rstrip()
    return f"{begun}\n{_TICKS}{GAP.rstrip()}" if begun.count(_TICKS) % 2 else f"{begun}{GAP.rstrip()}"
