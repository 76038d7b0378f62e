"""Descriptions for the meantime: the beginning of a text, until the model's summary takes their place."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import anyio.to_thread

from intern.domain import SourceId, TopicBlock, TopicName
from intern.errors import KnowledgeError
from intern.indexing.catalogue import Catalogue
from intern.indexing.material import question_of, shortened
from intern.knowledge.indices import CachedFile, content_hash
from intern.knowledge.topics import TopicLibrary
from intern.observe.clock import Clock
from intern.text.passages import passages

BLANK = "No text."
"""Describes what holds none."""
_LENGTH = 300
"""Characters of a provisional description."""
# Enough for a heading and a paragraph; a document may have megabytes.
_BEGINNING = 4000


def describe_source(text: str) -> str:
    """A document's first heading and first paragraph."""
    pieces = passages(text[:_BEGINNING], _BEGINNING)
    heading = pieces[0].heading.partition(" > ")[0] if pieces else ""
    paragraph = next((body for piece in pieces if (body := _first_paragraph(piece.text, piece.heading))), "")
    lead = ". ".join(part for part in (heading, paragraph) if part)
    return shortened(lead or text[:_BEGINNING], _LENGTH) or BLANK


def describe_topic(blocks: Sequence[TopicBlock]) -> str:
    """A topic's first question."""
    asked = (question_of(block.turns).strip() for block in blocks)
    return shortened(next((question for question in asked if question), ""), _LENGTH) or BLANK


async def add_topic_provisionally(
    topics: TopicLibrary,
    topics_dir: Path,
    name: TopicName,
    *,
    catalogue: Catalogue,
    clock: Clock,
    behind: bool = False,
) -> bool:
    """List a new topic in the team index at once; its summary stays owed. Say whether it was not listed yet.

    `topics_dir` is the library's folder, `behind` as in `Catalogue.add`. A topic that is listed already costs nothing
    but a look. Raises KnowledgeError.
    """

    def add() -> bool:
        source_id = SourceId(f"team:{name}.txt")
        if source_id in catalogue.sources():
            return False
        return catalogue.add(source_id, _entry(topics, topics_dir, name, clock), behind=behind)

    return await anyio.to_thread.run_sync(add)


async def describe_provisionally(
    topics: TopicLibrary,
    topics_dir: Path,
    outdated: Collection[TopicName],
    *,
    catalogue: Catalogue,
    clock: Clock,
) -> None:
    """Put what stands in these topics now in the place of their descriptions, however new those are.

    Topics that are gone are listed no more, and those that are not listed stay so; a summary is owed for the others.
    Raises KnowledgeError.
    """

    def describe() -> None:
        listed = catalogue.sources()
        # The time of a description proves nothing: the clock may have gone back since.
        stale = {source_id: name for name in outdated if (source_id := SourceId(f"team:{name}.txt")) in listed}
        there = set(topics.names())
        put = {each: _entry(topics, topics_dir, name, clock) for each, name in stale.items() if name in there}
        catalogue.change(put, frozenset(stale).difference(put))

    await anyio.to_thread.run_sync(describe)


def _entry(topics: TopicLibrary, topics_dir: Path, name: TopicName, clock: Clock) -> CachedFile:
    rel_path = f"{name}.txt"
    try:
        stat = (topics_dir / rel_path).stat()
    except OSError as error:
        raise KnowledgeError(f"topic {name} could not be read ({error.strerror}), so it was not listed") from error
    return CachedFile(
        content_hash=content_hash(topics.text(name)),
        summary_text=describe_topic(topics.read(name)),
        last_indexed_at=clock.now(),
        summary_pending=True,
        provisional=True,
        rel_path=rel_path,
        size_bytes=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
    )


def _first_paragraph(text: str, heading: str) -> str:
    """The first paragraph below the heading line, which a passage begins with."""
    title = heading.rpartition(" > ")[2]
    lines = text.split("\n")
    if title and title in lines[0]:
        lines = lines[1:]
    # What underlines a heading holds no letter.
    paragraphs = "\n".join(line for line in lines if not line or any(map(str.isalnum, line))).strip().split("\n\n")
    return paragraphs[0]
