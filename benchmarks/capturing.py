"""The cost of a captured pair for the model: calls, characters and time, over an endpoint of 50 ms for each reply.

The endpoint answers by the offline rules, so topics form and prompts have the size that they have in a community. A
burst of pairs goes to the learning actors, and counts until the last topic has its final description.
"""

from __future__ import annotations

import asyncio
import math
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from benchmarks.answering import prefixes
from benchmarks.figures import Figure
from intern.core.captures import Turn
from intern.core.clock import SystemClock
from intern.core.ids import ConversationId, position_at
from intern.core.text.words import stem_set
from intern.facts.prompts import EXTRACT
from intern.learning.prompts import CLASSIFY, INTEGRATE, SPLIT_TOPIC, ClassifyOut, IntegrateIn
from intern.service.models import collect_offline_rules, open_models
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.sources.descriptions import SUMMARIZE_TOPIC, SummarizeIn
from intern.stores.archive import Archive
from intern.stores.engines.sqlite.database import ReadOnlySqliteDatabase
from intern.stores.tables.knowledge import KnowledgeStore
from tests.eval.chats import EVAL, chat_lines, exchanges
from tests.model.test_classify import LABELS
from tests.worlds.endpoint import EndpointDouble, Reply, Request, endpoint_double, prompt_of, text_of
from tests.worlds.history import Taught
from tests.worlds.learners import learners
from tests.worlds.samples import START

LATENCY = 0.05  # seconds
REPLIES = 20  # of the team, in one thread
_REAL_SUBJECTS = 40  # of real exchanges: as many topics, and one for all others

_SUBJECTS = [
    subject.split()
    for subject in (
        "gpu driver docker container cuda runtime passthrough nvidia toolkit kernel image device",
        "certificate rotation relay tls expiry chain issuer renewal handshake trust bundle pem",
        "spool disk quota retention purge segment partition inode volume mount compaction archive",
        "tenant login saml group claim redirect callback session cookie provider audience role",
        "webhook signature retry payload delivery timeout header digest endpoint queue backoff replay",
        "dashboard panel query variable refresh legend threshold annotation export timezone axis unit",
        "agent install systemd service unit permission selinux package repository upgrade rollback pin",
        "cluster node election quorum raft follower leader snapshot membership heartbeat partition term",
        "backup restore schedule bucket encryption incremental checksum manifest prune region lifecycle copy",
        "alert rule silence receiver escalation template severity grouping inhibition route pager mute",
        "index shard replica mapping analyzer refresh merge heap breaker reindex alias template",
        "plugin sandbox manifest permission hook loader version dependency registry signature bundle cache",
        "proxy ingress nginx upstream websocket buffering header rewrite prefix path gateway balancer",
        "token scope rotation revoke audience expiry refresh bearer introspection client credential grant",
        "parser grok pattern timestamp multiline field extraction filter pipeline codec charset locale",
        "license seat renewal invoice trial activation offline fingerprint entitlement edition counter portal",
        "mobile push notification badge apns firebase topic silent payload locale sound channel",
        "database migration schema lock column constraint rollback vacuum replication lag pool connection",
        "dns resolver record zone delegation ttl cache split horizon search domain suffix",
        "terraform module provider state drift import workspace backend lockfile plan variable output",
        "python client library async retry exception session adapter timeout wheel typing decorator",
        "windows installer registry firewall service path powershell policy signing reboot event msi",
        "storage tier latency throughput benchmark cache writeback journal raid controller nvme firmware",
        "search ranking synonym stopword relevance boost facet highlight suggestion typo language stemming",
    )
]
_ASKED = [
    "Hi all, since the upgrade to {n} the {a} does not see the {b} any more and the {c} log only says error {x}.",
    "Our {a} works, but whenever the {b} changes the {c} has to be started by hand, which nobody here wants.",
    "I have read the page on {a} twice and still cannot tell whether the {b} needs a {c} of its own.",
    "Does the {a} have to match the {b}, or is it enough that the {c} is newer than {n}?",
    "We tried another {a} with the same {b} and got {x} again after a few minutes.",
]
_ANSWERED = [
    "The {a} has to be there before the {b} starts, so put the {c} first and set `{a}.{b} = {n}`.",
    "Error {x} means that the {a} was found but the {b} was refused; look for the line about the {c} above it.",
    "Since {n} the {a} reads the {b} only once, and a changed {c} is picked up after `relay {a} reload`.",
    "Remove the old {a}, wait until the {b} has settled, then create the {c} again; nothing is lost by that.",
    "Please do not edit the {a} by hand, the {b} writes it anew whenever the {c} comes back.",
    "If that does not help, send us the output of `relay {a} inspect --{b}` and the size of the {c}.",
]
_FENCED = re.compile(r"^=== ([\w ]+?)(?: #\d+)? ===\n(.*?)\n=== end of \1(?: #\d+)? ===$", re.DOTALL | re.MULTILINE)
_QA_ID = re.compile(r"^id: (\S+)$", re.MULTILINE)


class Cost(NamedTuple):
    """The cost of a burst."""

    pairs: int
    requests: Sequence[Request]
    place: dict[str, int]
    """The number of each pair, by its id."""
    seconds: float

    @property
    def calls_a_pair(self) -> float:
        """The calls for each pair, those for descriptions included."""
        return len(self.requests) / self.pairs

    def characters_a_pair(self, first: int, last: int) -> float:
        """Return the characters for each of these pairs, counted from 1, with an equal share of the descriptions."""
        descriptions = sum(_size(each) for each in self.requests if each.prompt == SUMMARIZE_TOPIC.name)
        own = sum(_size(each) for each in self.requests if first <= self._pair_of(each) <= last)
        return own / (last - first + 1) + descriptions / self.pairs

    def _pair_of(self, request: Request) -> int:
        pair = _fences(request.user).get("pair")
        found = _QA_ID.search(pair) if pair else None
        return self.place[found[1]] if found else 0


def measure() -> Iterator[Figure]:
    """Measure fifty pairs, two hundred, and a thread in a library with earlier topics."""
    with endpoint_double(by_rules) as endpoint:
        for pairs in (50, 200):
            yield from _burst(endpoint, pairs)
        yield from _thread(endpoint)
        yield from _extracted(endpoint, 50)
    yield from _real()


def _real() -> Iterator[Figure]:
    """Measure all calls for real exchanges.

    The model skips those that people labelled as not worth keeping. It files each other one under its most frequent
    distinctive word.
    """
    if not EVAL.is_dir():
        print(f"real exchanges are not measured: there are none in {EVAL}", file=sys.stderr)
        return
    told = list(_exchanged())
    lines = LABELS.read_text(encoding="utf-8").splitlines()
    labels = {name: label for label, name in map(str.split, lines)}
    skipped = [text for each, text in zip(exchanges(), told, strict=True) if labels.get(each.conversation_id) == "skip"]
    with endpoint_double(_Clusters(told, skipped)) as endpoint, tempfile.TemporaryDirectory() as folder:
        settings = _settings(Path(folder), endpoint, extract=True)
        cost = asyncio.run(_cost(endpoint, settings, told))
        topics = len(KnowledgeStore(ReadOnlySqliteDatabase(settings.paths.database)).topic_names())
    filing = sum(each.prompt in {CLASSIFY.name, INTEGRATE.name} for each in cost.requests)
    yield Figure(f"{cost.pairs} real exchanges, classify and integrate, calls a pair", filing / cost.pairs, "", 1.6)
    yield Figure(f"{cost.pairs} real exchanges, with descriptions and distilling", cost.calls_a_pair, "", 2.5)
    yield Figure("real exchanges, topics", topics, "")
    yield Figure("real exchanges, labelled as not worth keeping", len(skipped), "")
    for prompt in (CLASSIFY, INTEGRATE, SPLIT_TOPIC, SUMMARIZE_TOPIC, EXTRACT):
        count = sum(each.prompt == prompt.name for each in cost.requests)
        yield Figure(f"real exchanges, calls of {prompt.name}", count, "")
    for prefix in prefixes(cost.requests):
        begins = f"real exchanges, `{prefix.prompt}` before the first difference"
        yield Figure(begins, prefix.bytes, "bytes")
        yield Figure(f"{begins}, of the shortest", prefix.share * 100, "%")


def _exchanged() -> Iterator[Taught]:
    lines = chat_lines()
    for n, each in enumerate(exchanges()):
        ids = [position_at(START + timedelta(minutes=10 * n, seconds=k)).id for k in range(len(each.ids))]
        said = [lines[line] for line in each.ids]
        turns = [Turn("Team" if line.author in each.team else "User", line.text) for line in said]
        yield Taught(ConversationId(f"reply_{ids[0]}"), tuple(zip(ids, turns, strict=True)))


def _burst(endpoint: EndpointDouble, pairs: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        cost = asyncio.run(_cost(endpoint, _settings(Path(folder), endpoint), invented(pairs)))
    name = f"{pairs} pairs captured"
    theirs = pairs == 50
    yield Figure(f"{name}, calls a pair{' (a comparable system: 2.72)' if theirs else ''}", cost.calls_a_pair, "", 2.1)
    for prompt in (CLASSIFY, INTEGRATE, SUMMARIZE_TOPIC):
        count = sum(each.prompt == prompt.name for each in cost.requests)
        yield Figure(f"{name}, calls of {prompt.name}", count, "", math.inf)
    whole = cost.characters_a_pair(1, pairs)
    yield Figure(f"{name}, characters a pair{' (11,901)' if theirs else ''}", whole, "", math.inf)
    first, last = cost.characters_a_pair(1, 10), cost.characters_a_pair(pairs - 9, pairs)
    yield Figure(f"{name}, characters of the first ten", first, "", math.inf)
    yield Figure(f"{name}, characters of the last ten", last, "", math.inf if theirs else 9000)
    yield Figure(f"{name}, last ten to first ten ({'2.2' if theirs else '3.7'})", last / first, "x", math.inf)
    if not theirs:
        yield Figure(f"{name}, 191-200 to 91-100", last / cost.characters_a_pair(91, 100), "x", 1.1)
    yield Figure(f"{name}, wall time", cost.seconds, "s", math.inf)
    yield Figure(f"{name}, wall time to calls x latency", cost.seconds / (len(cost.requests) * LATENCY), "x", math.inf)


def _thread(endpoint: EndpointDouble) -> Iterator[Figure]:
    before, [question, *others] = invented(50), invented(50 + REPLIES)[50:]
    conversation = ConversationId("thread_77")
    replies = [question.messages[1], *(other.messages[1] for other in others)]
    thread = [Taught(conversation, (question.messages[0], *replies[: n + 1])) for n in range(REPLIES)]
    with tempfile.TemporaryDirectory() as folder:
        settings = _settings(Path(folder), endpoint)
        asyncio.run(_cost(endpoint, settings, before))
        cost = asyncio.run(_cost(endpoint, settings, thread))
        knowledge = KnowledgeStore(ReadOnlySqliteDatabase(settings.paths.database))
        topics = {name: knowledge.read_topic(name) for name in knowledge.topic_names()}
    name = f"a thread of {REPLIES} team replies"
    said = {turn for _, turn in thread[-1].messages}
    blocks = [block for topic in topics.values() for block in topic if said.intersection(block.turns)]
    yield Figure(f"{name}, blocks (20)", len(blocks), "", 1)
    yield Figure(f"{name}, messages missing from its block", len(said.difference(*(b.turns for b in blocks))), "", 0)
    yield Figure(f"{name}, calls a reply", cost.calls_a_pair, "", 2.1)
    yield Figure(f"{name}, characters a reply", cost.characters_a_pair(1, REPLIES), "", math.inf)


def _extracted(endpoint: EndpointDouble, pairs: int) -> Iterator[Figure]:
    """Measure extraction from filed pairs; its cost comes on top of theirs."""
    with tempfile.TemporaryDirectory() as folder:
        settings = _settings(Path(folder), endpoint, extract=True)
        cost = asyncio.run(_cost(endpoint, settings, invented(pairs)))
    calls = [each for each in cost.requests if each.prompt == EXTRACT.name]
    yield Figure(f"{pairs} pairs distilled, calls a pair", len(calls) / pairs, "", 1)
    yield Figure(f"{pairs} pairs distilled, characters a pair", sum(map(_size, calls)) / pairs, "", math.inf)


async def _cost(endpoint: EndpointDouble, settings: Settings, told: Sequence[Taught]) -> Cost:
    endpoint.requests.clear()
    known = len(Archive(settings.paths.raw))
    began = perf_counter()
    async with (
        open_models(settings, None, SystemClock()) as models,
        learners(settings, models.learning) as at_work,
    ):
        for each in told:
            await at_work.captures.send(each.request())
    seconds = perf_counter() - began
    pairs = [pair.qa_id for pair in Archive(settings.paths.raw).pairs_after(None)][known:]
    assert len(pairs) == len(told)
    return Cost(len(told), tuple(endpoint.requests), {qa_id: n for n, qa_id in enumerate(pairs, 1)}, seconds)


def _settings(folder: Path, endpoint: EndpointDouble, *, extract: bool = False) -> Settings:
    (folder / "knowledge-base" / "sources").mkdir(parents=True)
    llm = {"base_url": endpoint.base_url, "model": "rules"}
    extraction = {"auto": extract, "max_per_minute": 10_000}
    overrides = {"data": {"dir": str(folder)}, "llm": llm, "extraction": extraction, "embeddings": {"provider": "none"}}
    return load_settings(environ={}, overrides=overrides)


def invented(count: int) -> list[Taught]:
    """Questions of 200 to 400 characters on a few subjects, with answers of 300 to 800; always the same."""
    random = Random(17)
    return [_pair(random, n) for n in range(count)]


def _pair(random: Random, n: int) -> Taught:
    subject = random.choice(_SUBJECTS)
    question = _text(random, subject, _ASKED, random.randint(200, 400))
    answer = _text(random, subject, _ANSWERED, random.randint(300, 800))
    asked, answered = (position_at(START + timedelta(minutes=n, seconds=s)).id for s in (0, 40))
    return Taught(ConversationId(f"reply_{asked}"), ((asked, Turn("User", question)), (answered, Turn("Team", answer))))


def _text(random: Random, subject: Sequence[str], sentences: Sequence[str], length: int) -> str:
    text = ""
    while len(text) < length:
        a, b, c = random.sample(subject, 3)
        x, n = f"0x{random.randrange(1 << 16):04x}", f"{random.randint(1, 9)}.{random.randint(0, 30)}"
        text += random.choice(sentences).format(a=a, b=b, c=c, x=x, n=n) + " "
    return text[:length].rpartition(" ")[0]


# The endpoint.


def by_rules(body: dict[str, Any]) -> Reply:
    """Take the subject as the topic, as a model would; use the offline rule of the prompt for all else."""
    prompt, fences = prompt_of(body), _fences(text_of(body, "user"))
    if prompt == EXTRACT.name:
        return Reply(content={"nuggets": [], "facts": []}, delay=LATENCY)
    said = (
        _subject_of(fences["pair"])
        if prompt == CLASSIFY.name
        else collect_offline_rules()[prompt](_given(prompt, fences))
    )
    return Reply(content=msgspec.to_builtins(said), delay=LATENCY)


class _Clusters:
    """Skips the given exchanges, and files each other pair under its most frequent distinctive word.

    The offline rules answer all other prompts.
    """

    def __init__(self, told: Sequence[Taught], skipped: Sequence[Taught]) -> None:
        texts = [_words_of(each) for each in told]
        self._skipped = [_words_of(each) for each in skipped]
        counts = Counter(word for text in texts for word in text if word.isalpha() and len(word) > 3)
        # A word in more than a tenth of the exchanges is no subject.
        self._subjects = dict([each for each in counts.most_common() if each[1] < len(texts) / 10][:_REAL_SUBJECTS])

    def __call__(self, body: dict[str, Any]) -> Reply:
        prompt, fences = prompt_of(body), _fences(text_of(body, "user"))
        if prompt == EXTRACT.name:
            return Reply(content={"nuggets": [], "facts": []})
        if prompt == SPLIT_TOPIC.name:
            ids = [line.split()[0] for line in fences["questions"].split("\n")]
            return Reply(content={"topic_name": f"more-{fences['topic']}"[:60], "move_ids": ids[len(ids) // 2 :]})
        if prompt != CLASSIFY.name:
            return Reply(content=msgspec.to_builtins(collect_offline_rules()[prompt](_given(prompt, fences))))
        said = stem_set(fences["pair"])
        if any(words <= said for words in self._skipped):
            return Reply(content=msgspec.to_builtins(ClassifyOut(reason="It is small talk.", skip=True, topic_name="")))
        held = said & self._subjects.keys()
        subject = max(sorted(held), key=self._subjects.__getitem__, default="other")
        return Reply(content=msgspec.to_builtins(ClassifyOut(skip=False, topic_name=f"about-{subject}")))


def _words_of(taught: Taught) -> frozenset[str]:
    return stem_set("\n".join(turn.text for _, turn in taught.messages))


def _subject_of(pair: str) -> ClassifyOut:
    said = set(re.findall("[a-z]+", pair))
    subject = max(_SUBJECTS, key=lambda each: len(said.intersection(each)))
    return ClassifyOut(skip=False, topic_name="-".join(subject[:3]))


def _given(prompt: str, fences: dict[str, str]) -> IntegrateIn | SummarizeIn:
    """Take a rendered prompt apart again."""
    if prompt == INTEGRATE.name:
        return IntegrateIn(topic=fences["topic"], blocks=fences["blocks"], pair=fences["pair"])
    return SummarizeIn(source_id=fences["identifier"], text=fences["topic"])


def _fences(user: str) -> dict[str, str]:
    return {found[1]: found[2] for found in _FENCED.finditer(user)}


def _size(request: Request) -> int:
    return len(request.system) + len(request.user)
