from __future__ import annotations

from hypothesis import given, strategies as st

from intern.core.text.words import word_overlap
from intern.sources.descriptions import (
    RULES,
    SUMMARIZE_FILE,
    SUMMARIZE_SOURCE,
    SUMMARIZE_TOPIC,
    SummarizeIn,
    describe_by_rules,
    describe_source,
    describe_topic,
    source_excerpt,
    summarize_source,
    summarize_topic,
    topic_excerpt,
)
from tests.sources.folders import block

DOCUMENT = """# Backups

How to keep what the relay holds.

## Making a backup

Run `lumen backup create`. It stops the spool for a moment.

## Restoring

Use the archive with the restore command. Certificates are not part of it.
"""


def test_a_document_is_described_by_its_beginning_its_headings_and_its_terms() -> None:
    description = summarize_source(SummarizeIn(source_id="kb:backups.md", text=DOCUMENT)).description
    assert description.startswith("Backups. How to keep what the relay holds. Covers: ")
    assert "Making a backup; Restoring" in description
    assert word_overlap("are certificates restored from the archive?", description) == 1


def test_a_topic_is_described_by_its_questions_newest_first_and_its_terms() -> None:
    blocks = [block("How do I start a node?", "Run the container."), block("Which GPU works?", "Any RTX.", n=1)]
    description = describe_by_rules(blocks)
    assert description.startswith("Questions such as: Which GPU works?; How do I start a node? Key terms: ")
    assert word_overlap("container for my rtx", description) == 1


@given(st.text(max_size=3000))
def test_every_description_is_one_short_paragraph(text: str) -> None:
    for rule in (summarize_source, summarize_topic):
        description = rule(SummarizeIn(source_id="kb:x", text=text)).description
        assert 0 < len(description) <= 600
        assert description == " ".join(description.split())
    for description in (describe_source(text), describe_topic([block(text, text)])):
        assert 0 < len(description) <= 300


@given(st.lists(st.text(max_size=600), max_size=40), st.integers(200, 3000))
def test_material_keeps_its_bound(texts: list[str], max_chars: int) -> None:
    blocks = [block(text, text, n=n) for n, text in enumerate(texts)]
    assert len(topic_excerpt(blocks, max_chars)) <= max_chars
    assert len(source_excerpt("\n".join(texts), max_chars)) <= max_chars


def test_the_beginning_of_a_document_is_its_heading_and_its_first_paragraph() -> None:
    assert describe_source(DOCUMENT) == "Backups. How to keep what the relay holds."
    assert describe_source("# Title\n\nBody text.") == "Title. Body text."
    assert describe_source("# Title") == "Title"
    assert describe_source("Only a line.") == "Only a line."
    assert describe_source("") == "No text."


def test_there_is_a_rule_for_each_prompt() -> None:
    assert set(RULES) == {SUMMARIZE_SOURCE.name, SUMMARIZE_TOPIC.name, SUMMARIZE_FILE.name}
