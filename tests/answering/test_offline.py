"""Without a model: what the sources hold is quoted, and what they do not hold is met with silence."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from time import process_time

import anyio
import pytest

from intern.answering.offline import NOTE, answer, gate, rules, select, verify
from intern.answering.prompts import (
    DECIDE,
    AnswerIn,
    AnsweringOptions,
    DecideIn,
    Decision,
    Draft,
    GateIn,
    SelectIn,
    ShownSource,
    VerifyIn,
)
from intern.answering.selecting import whole_sources
from intern.answering.workflow import Answerer
from intern.core.errors import ModelUnavailableError
from intern.core.ids import SourceId
from intern.core.messages import AIResult, Conversation, Message, RequestContext
from intern.core.records import IndexEntry, SourceText
from intern.models.prompt import OfflineModel
from tests.answering.shelf import Shelf

INSTALL = """\
# Install Lumen Relay on Debian, Ubuntu or with Docker

Debian and Ubuntu:

```sh
sudo apt install ./lumen-relay.deb
```

With Docker, mount a volume for the spool: `docker run -v spool:/var/lib/lumen-relay lumen/relay`.

The relay needs 60 MB of memory.
"""
PORTS = """\
# Configuration: port, spool size, log level of Lumen Relay

## Port

Agents connect to port 7480. To change it, set `listen = "0.0.0.0:9000"` in relay.toml and restart the relay.

## Spool

When the spool is larger than `spool.max_size` (5 GB), the oldest data is dropped.
"""
TLS = """\
# Encrypt connections to Lumen Relay with your own TLS certificate

Set `tls.certificate` and `tls.key`. Renewed certificates are picked up within a minute, without a restart.
"""
BACKUP = """\
# Back up and restore Lumen Relay

`lumen-relay backup create FILE` writes configuration and spool while the relay runs.
Restore with `lumen-relay backup restore FILE` on a stopped relay; agents reconnect without a new enrolment.
"""
TROUBLE = """\
# Troubleshooting Lumen Relay: connection refused, metrics arrive twice

**Connection refused.** The relay is not running, or a firewall blocks its port.

**Metrics arrive twice.** Two agents have the same name, usually after a virtual machine was cloned.
"""
CLOUDFLARE = """\
Does Lumen Relay work behind Cloudflare?
--- QA ---
id: qa_20260201_031056.228000
timestamp: 2026-02-01T03:10:56.228000Z
answered_at: 2026-02-01T03:10:00.000000Z
User: Does Lumen Relay work behind Cloudflare?
Team: Not with the orange cloud: agents do not speak HTTP.
  Use a DNS-only record.
User: thanks
Team: And open 7480.

--- QA ---
id: qa_20260203_000000
timestamp: 2026-02-03T00:00:00Z
User: can agents buffer for longer than a day?
Team: Raise agent.buffer.
"""
DOCS = {
    "kb:install.md": INSTALL,
    "kb:ports.md": PORTS,
    "kb:tls.md": TLS,
    "kb:backup.md": BACKUP,
    "kb:trouble.md": TROUBLE,
    "team:cloudflare.txt": CLOUDFLARE,
}


async def asked(question: str) -> AIResult:
    with anyio.fail_after(5):
        answerer = Answerer(OfflineModel(rules()), Shelf(DOCS), AnsweringOptions(steps="separate"))
        return await answerer.answer(Conversation((Message(role="user", text=question),)), RequestContext())


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("question", "source", "says"),
    [
        ("How do I change the port?", "kb:ports.md", "0.0.0.0:9000"),
        ("which port must be open for agents to connect?", "kb:ports.md", "7480"),
        ("can I install it with docker?", "kb:install.md", "docker run"),
        ("how can I use my own certificates", "kb:tls.md", "tls.certificate"),
        ("Do I need a restart after the TLS certificate was renewed?", "kb:tls.md", "without a restart"),
        ("How do I restore from a backup?", "kb:backup.md", "backup restore FILE"),
        ("my metrics arrive twice, why?", "kb:trouble.md", "cloned"),
        ("I get connection refused", "kb:trouble.md", "firewall"),
        (
            "is it possible to put the relay behind Cloudflare",
            "team:cloudflare.txt#qa_20260201_031056.228000",
            "DNS-only",
        ),
        (
            "my agents can't connect through cloudflare, help",
            "team:cloudflare.txt#qa_20260201_031056.228000",
            "DNS-only",
        ),
    ],
)
async def test_what_the_sources_hold_is_quoted_with_its_source(question: str, source: str, says: str) -> None:
    result = await asked(question)
    assert [citation.source_id for citation in result.citations] == [source]
    assert result.reply_text is not None
    assert says in result.reply_text
    assert result.reply_text.endswith(NOTE)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("Can I run Lumen Relay on Windows?", "no_answer no_sources"),
        ("Does Lumen Relay support LDAP login?", "no_answer no_sources"),
        ("Is there a Kubernetes helm chart for the relay?", "no_answer no_sources"),
        ("How do I bake a chocolate cake?", "no_sources"),
        ("anyone going to FOSDEM?", "no_sources"),
        ("why is the sky blue?", "no_sources"),
        ("thanks, that did it!", "not_a_question"),
        ("good morning all", "not_a_question"),
        ("?", "not_a_question"),
    ],
)
async def test_what_nothing_answers_is_met_with_silence(question: str, reason: str) -> None:
    result = await asked(question)
    assert not result.should_reply
    assert result.reason in reason.split()


@pytest.mark.anyio
async def test_the_same_question_gets_the_same_answer() -> None:
    first, second = [await asked("How do I change the port?") for _ in range(2)]
    assert (first.reply_text, first.citations) == (second.reply_text, second.citations)


class Meaning:
    """An embedder that knows how like the question a text is by what the text holds; else they are unrelated."""

    model = "meaning"
    dimensions = 2

    def __init__(self, question: str, **likeness: float) -> None:
        self._likeness = {question: 1.0} | likeness
        self.embedded: list[str] = []
        self.broken = False

    async def embed(self, texts: Sequence[str], /, *, asked: bool = False) -> Sequence[bytes]:
        if self.broken:
            raise ModelUnavailableError("the embedder is away")
        self.embedded += texts
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> bytes:
        like = max((like for part, like in self._likeness.items() if part in text), default=0.0)
        return struct.pack("<2f", like, math.sqrt(1 - like * like))


async def decided(question: str, embedder: Meaning | None, **docs: str) -> Decision:
    sources = [SourceText(source_id=SourceId(f"kb:{name}.md"), text=text, title=name) for name, text in docs.items()]
    given = DecideIn(passages=whole_sources(sources, 5000), history="", question=question, addressed=True)
    with anyio.fail_after(5):
        return await OfflineModel(rules(embedder)).ask(DECIDE, given)


RAM = "how much memory should I plan for?"


@pytest.mark.anyio
async def test_what_comes_nearest_in_meaning_is_quoted_and_nothing_beside_it() -> None:
    decision = await decided(RAM, Meaning(RAM, **{"60 MB": 0.8, "firewall": 0.3}), install=INSTALL, trouble=TROUBLE)
    assert decision.answer == f"The relay needs 60 MB of memory.\n\n{NOTE}"
    assert [quote.line for quote in decision.quotes] == ["The relay needs 60 MB of memory."]
    assert decision.citations == ("S1",)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("question", "likeness", "kind"),
    [
        (RAM, 0.58, "answer"),
        (RAM, 0.3, "not_covered"),
        ("how much does the relay need on FreeBSD?", 0.65, "not_covered"),  # of which nothing is said
        ("how much does the relay need on Debian?", 0.65, "answer"),
        ("thank you, solved now", 0.9, "chatter"),
    ],
)
async def test_what_is_not_near_enough_is_met_with_silence(question: str, likeness: float, kind: str) -> None:
    decision = await decided(question, Meaning(question, **{"60 MB": likeness}), install=INSTALL)
    assert decision.kind == kind
    assert bool(decision.answer) == (kind == "answer")


@pytest.mark.anyio
@pytest.mark.parametrize("broken", [False, True])
async def test_without_vectors_it_goes_by_words_alone(broken: bool) -> None:  # noqa: FBT001
    embedder = Meaning("nothing") if broken else None
    if embedder:
        embedder.broken = True
    decision = await decided("when is the oldest data dropped?", embedder, ports=PORTS, tls=TLS)
    assert decision.answer is not None
    assert decision.answer.startswith(
        "When the spool is larger than `spool.max_size` (5 GB), the oldest data is dropped."
    )
    assert (await decided("how is the weather in the mountains?", embedder, ports=PORTS)).kind == "not_covered"


@pytest.mark.anyio
async def test_whom_a_question_mentions_does_not_count() -> None:
    decision = await decided("@intern @everyone @Bob.the-Builder when is the oldest data dropped?", None, ports=PORTS)
    assert decision.kind == "answer"


@pytest.mark.anyio
async def test_what_each_piece_of_a_document_says_still_tells_something_about_it() -> None:
    spool = "The relay keeps a spool for its agents. Purge the spool while the relay is stopped. Agents fill it again."
    question = "Can I purge the spool while the relay is stopped, or must it run?"
    decision = await decided(question, None, spool=f"# Spool\n\n{spool}")
    assert decision.answer is not None
    assert "Purge the spool while the relay is stopped." in decision.answer


@pytest.mark.anyio
async def test_what_was_embedded_is_remembered_but_for_the_questions() -> None:
    embedder = Meaning(RAM, **{"60 MB": 0.8})
    sources = [SourceText(source_id=SourceId("kb:install.md"), text=INSTALL, title="Install")]
    given = DecideIn(passages=whole_sources(sources, 5000), history="", question=RAM, addressed=True)
    model = OfflineModel(rules(embedder))
    with anyio.fail_after(5):
        first = await model.ask(DECIDE, given)
        embedder.embedded.clear()
        assert await model.ask(DECIDE, given) == first
    assert embedder.embedded == [RAM]


def test_the_team_is_quoted_without_the_user_and_without_the_indent() -> None:
    draft = answer(answering("does it work behind cloudflare?", ("team:cloudflare.txt", CLOUDFLARE)))
    assert draft.answer == (
        f"Not with the orange cloud: agents do not speak HTTP.\nUse a DNS-only record.\n\nAnd open 7480.\n\n{NOTE}"
    )


def answering(question: str, *sources: tuple[str, str], room: int = 3000) -> AnswerIn:
    shown = tuple(ShownSource(source_id=source_id, title="", text=text) for source_id, text in sources)
    return AnswerIn(max_answer_chars=room, sources=shown, history="", question=question, query="")


def block(qa_id: str, question: str, reply: str) -> str:
    return f"--- QA ---\nid: {qa_id}\nUser: {question}\nTeam: {reply}\n\n"


def test_the_team_wins_over_documentation_that_fits_as_well() -> None:
    doc = ("kb:a.md", "Where is the signing key kept? In /etc.")
    team = ("team:a.txt", block("qa_1", "Where is the signing key kept?", "In /var."))
    assert answer(answering("where is the signing key?", doc, team)).citations == ("team:a.txt#qa_1",)


def test_of_two_team_answers_that_fit_alike_the_later_is_quoted() -> None:
    topic = block("qa_1", "Where is the signing key?", "In /old.") + block(
        "qa_2", "Where is the signing key?", "In /new."
    )
    assert answer(answering("where is the signing key?", ("team:a.txt", topic))).citations == ("team:a.txt#qa_2",)


@pytest.mark.parametrize("room", [1, len(NOTE) + 2, 60, 120, 3000])
def test_an_answer_never_exceeds_its_room(room: int) -> None:
    draft = answer(answering("How do I change the port?", ("kb:ports.md", PORTS), room=room))
    assert len(draft.answer or "") <= room
    assert bool(draft.answer) == bool(draft.citations)


LONG = "First stop the relay.\n\n" + "\n".join(f"Then look at spool file number {n} of the relay." for n in range(100))


def verified(draft: Draft, given: AnswerIn) -> bool:
    assert draft.answer is not None
    shown = VerifyIn(sources=given.sources, history="", question="", answer=draft.answer, citations=draft.citations)
    return verify(shown).is_good_enough


def test_of_a_team_answer_that_is_too_long_the_beginning_is_quoted() -> None:
    topic = block("qa_1", "How do I purge the spool?", LONG.replace("\n", "\n  "))
    given = answering("how can I purge the spool", ("team:spool.txt", topic))
    draft = answer(given)
    assert draft.answer is not None
    assert draft.answer.startswith("First stop the relay.\n\nThen look at spool file number 0 of the relay.\n")
    assert draft.answer.endswith(f" of the relay.\n\n[…]\n\n{NOTE}")
    assert 2900 <= len(draft.answer) <= 3000
    assert draft.citations == ("team:spool.txt#qa_1",)
    assert verified(draft, given)


def test_a_code_block_that_is_cut_is_closed() -> None:
    topic = block("qa_1", "How do I purge the spool?", "Run this:\n  ```\n  " + "purge --all\n  " * 400 + "```")
    given = answering("how can I purge the spool", ("team:spool.txt", topic))
    draft = answer(given)
    assert draft.answer is not None
    assert draft.answer.endswith(f"purge --all\n```\n\n[…]\n\n{NOTE}")
    assert verified(draft, given)


def test_a_team_answer_that_was_cut_to_fit_the_prompt_says_so() -> None:
    topic = block("qa_1", "How do I purge the spool?", "Stop the relay first.") + "[…]\n\n"
    draft = answer(answering("how can I purge the spool", ("team:spool.txt", topic)))
    assert draft.answer == f"Stop the relay first.\n\n[…]\n\n{NOTE}"


@pytest.mark.parametrize("said", ["Stop the relay, then delete its folder.", LONG])
def test_a_nugget_is_quoted_by_what_the_team_said_not_by_what_was_asked(said: str) -> None:
    asked = "How do I purge the spool of the relay?"
    text = f"FACT, 2026-03-04. {asked}\n\n{said[:200]}\n\nThe team's words:\n\n{said}"
    nugget = ShownSource(source_id="nugget:18bc737c", title="purge spool", text=text, said=said)
    given = AnswerIn(max_answer_chars=3000, sources=(nugget,), history="", question=asked, query="")
    draft = answer(given)
    assert draft.answer is not None
    assert draft.answer.startswith(said[:30])
    assert asked not in draft.answer
    assert "FACT" not in draft.answer
    assert verified(draft, given)


def test_what_ranks_below_is_not_quoted_though_its_passage_fits_better() -> None:
    best = ("kb:tls.md", TLS + "\n\nCertificates of agents are checked, too.\n")
    below = ("kb:old.md", "Own certificates, own certificates, own certificates: not supported.")
    draft = answer(answering("how can I use my own certificates", best, below))
    assert draft.citations != ("kb:old.md",)
    assert answer(answering("how can I use my own certificates", below, best)).citations == ("kb:old.md",)


@pytest.mark.anyio
async def test_an_answer_quotes_the_source_that_its_trace_names_first_or_there_is_none() -> None:
    docs = DOCS | {f"kb:note{n}.md": f"# Notes {n} about the relay\n\nOwn TLS certificates: own." for n in range(9)}
    answerer = Answerer(OfflineModel(rules()), Shelf(docs), AnsweringOptions(steps="separate"))
    for question in ("how can I use my own TLS certificate", "How do I restore from a backup?", "which port to open?"):
        with anyio.fail_after(5):
            result = await answerer.answer(Conversation((Message(role="user", text=question),)), RequestContext())
        assert result.debug is not None
        quoted = [citation.source_id.partition("#")[0] for citation in result.citations]
        assert quoted in ([], [result.debug["selection"]["source_ids"][0]])


def test_where_the_texts_were_searched_their_order_counts_most() -> None:
    entries = tuple(IndexEntry(SourceId(f"kb:{n}.md"), f"Key terms: spool, relay {n}") for n in range(9))
    given = SelectIn(
        entries=entries, max_sources=5, history="", question="relay spool", query="", ranked=("kb:1.md", "kb:3.md")
    )
    assert select(given).selected_source_ids == ("kb:1.md",)


def test_nothing_shown_is_nothing_answered() -> None:
    assert answer(answering("How do I change the port?")).answer is None
    assert answer(answering("", ("kb:ports.md", PORTS))).answer is None


def test_only_quotes_pass_verification() -> None:
    shown = (ShownSource(source_id="kb:ports.md", title="", text=PORTS),)

    def verdict(text: str) -> bool:
        given = VerifyIn(sources=shown, history="", question="", answer=text, citations=("kb:ports.md",))
        return verify(given).is_good_enough

    assert verdict(f"Agents connect  to port 7480.\n\n## Spool\n\n{NOTE}")
    assert not verdict(f"Agents connect to port 7481.\n\n{NOTE}")
    assert not verdict(NOTE)


def test_a_source_that_fits_much_better_stands_alone() -> None:
    entries = tuple(IndexEntry(SourceId(key), text.split("\n")[0]) for key, text in DOCS.items())
    given = SelectIn(entries=entries, max_sources=5, history="", question="own TLS certificate", query="")
    assert select(given).selected_source_ids == ("kb:tls.md",)


@pytest.mark.parametrize(
    ("text", "addressed", "is_question"),
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
def test_the_gate_knows_a_question_by_its_words(text: str, addressed: bool, is_question: bool) -> None:  # noqa: FBT001
    decision = gate(GateIn(question=text, history="", addressed=addressed))
    assert decision.kind == ("question" if is_question else "chatter")


@pytest.mark.parametrize("text", [".\n" * 3000, ". " * 3000, "x" * 6000, "how " * 1500, "-" * 6000])
def test_the_gate_takes_no_more_than_its_length_in_work(text: str) -> None:
    began = process_time()
    gate(GateIn(question=text, history="", addressed=False))
    assert process_time() - began < 2
