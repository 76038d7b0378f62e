"""Without a model: the closest passage is quoted, with a line that says so, or there is silence."""

from __future__ import annotations

from time import process_time
from typing import Any

import anyio
import pytest
from hypothesis import given, strategies as st

from intern.answering.answerer import Answerer
from intern.answering.closest_passage import CLOSEST, MOST_QUOTED
from intern.answering.offline_rules import RULES, is_question
from intern.answering.prompts import AnsweringOptions
from intern.core.ids import SourceId
from intern.core.messages import AnswerResult, Conversation, Message, RequestContext
from intern.models.prompt import OfflineModel
from tests.answering.shelf import Shelf

SPOOL = """\
# Spool

## Its size {#size}

When the spool is larger than 5 GB, the oldest data is dropped. Raise `spool.max_size` for more:

```toml
[spool]
max_size = "20 GB"
```
"""
ASKED = "when is the oldest data of the spool dropped?"


def shelf(**sources: str) -> Shelf:
    """Return knowledge of these documents, and of a filler, so that it is not shown whole."""
    made = Shelf({**{f"kb:{name}.md": text for name, text in sources.items()}, "kb:filler.md": "Nothing. " * 900})
    made.order = [SourceId(f"kb:{name}.md") for name in sources]
    return made


async def answered(known: Shelf, question: str = ASKED, *, addressed: bool = True, **options: Any) -> AnswerResult:
    answerer = Answerer(OfflineModel(RULES), known, AnsweringOptions(**options))
    with anyio.fail_after(5):
        asked = Conversation((Message(role="user", text=question),))
        return await answerer.answer(asked, RequestContext(), addressed=addressed)


@pytest.mark.anyio
async def test_the_closest_passage_is_quoted_with_its_code_below_its_heading() -> None:
    known = shelf(spool=SPOOL)
    known.urls["kb:spool.md"] = "https://docs.example/spool"
    result = await answered(known)
    lead, _, quote = (result.reply_text or "").partition("\n\n")
    assert lead == f"{CLOSEST}: [Spool › Its size](<https://docs.example/spool#size>)"
    assert quote == SPOOL.partition("{#size}\n\n")[2].strip()
    [citation] = result.citations
    assert (citation.source_id, citation.quote) == (
        "kb:spool.md",
        "When the spool is larger than 5 GB, the oldest data is dropped.",
    )


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("question", "fit", "addressed", "reason"),
    [
        (ASKED, 0.5, True, ""),
        (ASKED, 0.45, True, "no_answer"),
        (ASKED, 0.48, False, "no_answer"),
        (ASKED, 0.55, False, ""),
        ("thank you, solved now", 1.0, True, "not_a_question"),
        ("nice release", 1.0, False, "not_a_question"),
    ],
)
async def test_it_is_quoted_only_where_the_search_is_sure(
    question: str,
    fit: float,
    addressed: bool,  # noqa: FBT001
    reason: str,
) -> None:
    known = shelf(spool=SPOOL)
    known.fit = fit
    result = await answered(known, question, addressed=addressed)
    assert (result.should_reply, result.reason) == (not reason, reason)


@pytest.mark.anyio
async def test_what_others_fit_as_well_is_less_sure() -> None:
    alike = {f"copy{n}": SPOOL.replace("5 GB", f"{n} GB") for n in range(10, 20)}
    known = shelf(spool=SPOOL, **alike)
    known.fit = 0.68
    assert (await answered(known)).should_reply
    known.step = 0
    assert not (await answered(known)).should_reply


@pytest.mark.anyio
@pytest.mark.parametrize(
    "echo",
    [
        "When is the oldest data of the spool dropped?",
        "Which spool do you mean?",
        "The spool: when the oldest data of the spool is dropped, dropped data is the oldest.",
    ],
)
async def test_what_says_nothing_new_or_asks_back_is_not_quoted(echo: str) -> None:
    known = shelf(faq=f"# FAQ\n\n{echo}", spool=SPOOL)
    known.step = 0
    result = await answered(known)
    assert [citation.source_id for citation in result.citations] == ["kb:spool.md"]
    assert not (await answered(shelf(faq=f"# FAQ\n\n{echo}"))).should_reply


@pytest.mark.anyio
async def test_what_repeats_the_question_and_adds_code_is_quoted() -> None:
    result = await answered(shelf(modem="# Modem\n\nThe modem is reset with `modem reset`."), "How is the modem reset?")
    assert (result.reply_text or "").endswith("\n\nThe modem is reset with `modem reset`.")


@given(st.permutations(["Windows", "Linux", "macOS 15", "Docker, podman"]), st.integers(0, 3), st.booleans())
def test_a_quote_begins_at_the_block_whose_label_the_question_names(labels: list[str], n: int, code: bool) -> None:  # noqa: FBT001
    blocks = [
        f"{label}:\n```\nget relay-{at}\n```" if code else f"{label}: Get it {at}." for at, label in enumerate(labels)
    ]
    known = shelf(install="\n\n".join(["# Install the relay", *blocks]))
    question = f"How do I install the relay on {labels[n].replace(', ', ' with ')}?"
    reply = anyio.run(answered, known, question).reply_text or ""
    quote = reply.partition("\n\n")[2]
    assert quote.startswith(blocks[n])


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("# Backups\n\nRun `snap` every night for the relay.\n\nRelay: version 3.", "How do I back up the relay?"),
        ("# Ports\n\nDefault: 7480, set with `port`.\n\nPort: see above.", "How do I change the port?"),
    ],
)
async def test_a_quote_begins_at_no_word_that_only_looks_like_a_label(text: str, question: str) -> None:
    reply = (await answered(shelf(a=text), question)).reply_text or ""
    assert reply.partition("\n\n")[2] == text.partition("\n\n")[2]


def topic(reply: str) -> Shelf:
    head = "--- QA ---\nid: qa_20260201_031056.228000\ntimestamp: 2026-02-01T03:10:56.228000Z"
    text = f"{head}\nUser: how do I purge the spool?\n  Really.\nTeam: {reply}\n"
    known = Shelf({"team:spool.txt": text, "kb:filler.md": "Nothing. " * 900})
    known.order = [SourceId("team:spool.txt")]
    return known


@pytest.mark.anyio
async def test_the_team_is_quoted_without_the_user_and_without_the_indent() -> None:
    result = await answered(topic("Stop the relay.\n  Then purge it.\nUser: thanks\nTeam: And start it again."))
    assert (result.reply_text or "").partition("\n\n")[2] == "Stop the relay.\nThen purge it.\n\nAnd start it again."
    assert result.citations[0].source_id == "team:spool.txt#qa_20260201_031056.228000"
    assert not (await answered(topic("Which version of the relay?"))).should_reply


@pytest.mark.anyio
@pytest.mark.parametrize("reply", ["Purge the spool. " * 90, "Run:\n  ```\n  " + "purge --all\n  " * 90 + "```"])
async def test_of_a_long_answer_the_beginning_is_quoted_and_its_code_closed(reply: str) -> None:
    quote = ((await answered(topic(reply))).reply_text or "").partition("\n\n")[2]
    assert 400 < len(quote) <= MOST_QUOTED
    assert quote.endswith("[…]")
    assert quote.count("```") % 2 == 0


@given(
    st.integers(20, 3000), st.lists(st.sampled_from(["Word. ", "\n\n", "- item\n", "```\ncode\n```\n"]), max_size=60)
)
def test_an_answer_keeps_to_its_room(most: int, pieces: list[str]) -> None:
    known = shelf(spool=f"# Spool\n\n{''.join(pieces)} The oldest data is dropped.")
    result = anyio.run(lambda: answered(known, max_answer_chars=most))
    assert len((result.reply_text or "").partition("\n\n")[2]) <= min(most, MOST_QUOTED)


@pytest.mark.parametrize(
    ("text", "addressed", "asks"),
    [
        ("how does it work", False, True),
        ("it crashes with an error after the update", False, True),
        ("doesn't start", False, True),
        ("can't connect", False, True),
        ("Is it fast", False, True),
        ("怎么安装？", False, True),
        ("nice release", False, False),
        ("nice release notes", True, True),
        ("hello", True, False),
        ("thank you, solved now", True, False),
        ("thanks! but how do I undo it?", False, True),
    ],
)
def test_a_question_is_known_by_its_words(text: str, addressed: bool, asks: bool) -> None:  # noqa: FBT001
    assert is_question(text, addressed=addressed) == asks


@pytest.mark.parametrize("text", [".\n" * 3000, ". " * 3000, "x" * 6000, "how " * 1500, "-" * 6000])
def test_it_takes_no_more_than_its_length_in_work(text: str) -> None:
    began = process_time()
    is_question(text, addressed=False)
    assert process_time() - began < 2
