"""The laws after a soak: nothing lost, nothing doubled, no one pinged.

Plain functions over the messages of people, the bot's data on disk and the messages on Discord.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, cast

from intern.core.captures import CapturedPair, TopicBlock, Turn
from intern.core.decisions import (
    Decision,
    MessagesForgotten,
    MessagesWithdrawn,
    PairDecision,
    PairFiled,
    PairParked,
    PairSkipped,
)
from intern.core.ids import MessageId, QAId
from intern.core.text.masking import mask_secrets
from intern.facts.segments import remove_person_ids
from intern.service.databases import open_read_only
from intern.settings.settings import Settings
from intern.stores.archive import Archive
from intern.stores.database import Database
from intern.stores.tables.knowledge import KnowledgeStore
from tests.soak.traffic import Role


class Said(NamedTuple):
    """A message of a person or a foreign bot, as Discord holds it."""

    id: str
    place: str
    author: str
    role: Role
    text: str
    at: datetime
    replies_to: str | None = None
    replies_to_role: Role | Literal["intern"] | None = None
    mentions_bot: bool = False
    asked_by: Role | None = None
    """In a thread: who wrote the message that it hangs on."""


class Posted(NamedTuple):
    """A message of the bot's, as Discord holds it."""

    id: str
    place: str
    text: str
    pings: tuple[str, ...]


class Part(NamedTuple):
    """One message of a reply, as the ledger has it."""

    question_id: str
    place: str
    text: str | None
    """None where the reply has no parts."""
    message_id: str | None
    state: str


class Books(NamedTuple):
    """The bot's data."""

    parts: Sequence[Part]
    covered: Mapping[str, int]
    """The messages that a reply is for, posted or dropped with a reason: how many replies hold each."""
    answered: Mapping[str, datetime]
    """The threads with an answer of the bot's, each with its time."""
    pairs: Sequence[CapturedPair]
    decisions: Sequence[Decision]
    blocks: Mapping[QAId, Sequence[TopicBlock]]
    counts: Mapping[str, int]


class Account(NamedTuple):
    """The outcome of a question, by the bot's own trace."""

    question_id: str
    outcome: str
    reason: str

    def __str__(self) -> str:
        return f"{self.outcome}: {self.reason}" if self.reason else self.outcome


class Shed(NamedTuple):
    """Questions that were named in the logs as shed."""

    question_ids: Sequence[str]
    """The questions, each as often as it was named."""
    late: int = 0
    """The number of them right before a kill, which may have lost their count."""
    kills: int = 0


def accounts_in(settings: Settings) -> dict[str, Account]:
    """Return the outcome of each message of a question, as far as the bot keeps it now."""
    return accounts_of(open_read_only(settings))


def accounts_of(db: Database) -> dict[str, Account]:
    """Return the same as `accounts_in`, from a community's database. Blocks."""
    records = "answer_messages join answers using (community, question_id)"
    asked = f"select message_id, question_id, outcome, reason from {records}"
    return {str(message): Account(*map(str, row)) for message, *row in db.read_blocking(lambda tx: tx.rows(asked))}


def books_in(settings: Settings) -> Books:
    """Return all data, read as in the next start; no process may write to the folder."""
    return books_of(open_read_only(settings), Archive(settings.paths.raw))


def books_of(db: Database, archive: Archive) -> Books:
    """Return the same as `books_in`, from a community's database. Blocks."""
    parts, holding, answered, counts = db.read_blocking(
        lambda tx: [tx.rows(each) for each in (_PARTS, _HOLDING, _ANSWERED, _COUNTS)]
    )
    knowledge = KnowledgeStore(db)
    blocks: defaultdict[QAId, list[TopicBlock]] = defaultdict(list)
    for name in knowledge.topic_names():
        for block in knowledge.read_topic(name):
            blocks[block.qa_id].append(block)
    return Books(
        parts=[Part(*cast("tuple[Any, ...]", row)) for row in parts],
        covered=Counter(str(row[0]) for row in holding),
        answered={str(place): datetime.fromisoformat(str(at)) for place, at in answered},
        pairs=list(archive.pairs_after(None)),
        decisions=knowledge.read_decisions(),
        blocks=blocks,
        counts={str(name): int(str(n)) for name, n in counts},
    )


_PARTS = """
    select question_id, coalesce(thread_id, channel_id), text, message_id, state
    from posts left join post_parts using (question_id) order by posts.rid, n
"""
_COUNTS = "select name, sum(number) from daily_counts group by name"

# The ledger names one reply for each message, the newest: that a reply is for its own question as well is what shows
# whether a message was answered alone and then once more with others.
_HOLDING = """
    select message_id, question_id from post_messages
    union select question_id, question_id from posts where state <> 'dropped'
    union select message_id, question_id
    from answer_messages join posts using (community, question_id)
    where state = 'finished' and message_id not in (
        select message_id from post_messages join posts using (question_id) where state = 'dropped'
    )
"""


_ANSWERED = """
    select thread_id, min(changed_at) from posts
    where state = 'finished' and thread_id is not null and notice = 0 group by thread_id
"""


# Expected work.


def questions(said: Iterable[Said], window: timedelta, answered: Mapping[str, datetime]) -> list[Said]:
    """Return the messages that surely ask, however the bot batched them.

    In a thread, the messages that follow the bot's answer, or call it.
    """
    runs: dict[tuple[str, str], list[Said]] = {}
    found: list[Said] = []
    for each in said:
        if each.role != "user":
            continue
        if each.asked_by:
            if each.mentions_bot or (each.place in answered and answered[each.place] < each.at):
                found.append(each)
            continue
        key = (each.place, each.author)
        run = runs.get(key, [])
        if run and each.at - run[-1].at > 2 * window:
            found += _surely_asking(runs.pop(key))
        runs.setdefault(key, []).append(each)
    for run in runs.values():
        found += _surely_asking(run)
    return found


def _surely_asking(run: Sequence[Said]) -> list[Said]:
    if all(each.replies_to is None or each.replies_to_role == "intern" for each in run):
        return list(run)
    return [each for each in run if each.mentions_bot]


def lessons(said: Iterable[Said]) -> list[Said]:
    """Return the team's replies that must be captured."""
    return [
        each
        for each in said
        if each.role == "team" and (each.replies_to_role in {"user", "intern"} or each.asked_by == "user")
    ]


# Faults.


def unaccounted(asked: Iterable[Said], accounts: Mapping[str, Account], books: Books) -> list[Said]:
    """Return the questions without a known outcome."""
    return [each for each in asked if each.id not in books.covered and not _has_ended(accounts.get(each.id))]


def _has_ended(account: Account | None) -> bool:
    """Return whether the account of a question is final: an answer made, or reported as posted, is in the ledger."""
    if account is None:
        return False
    kind, _, end = account.outcome.partition(" ")
    return kind not in {"answer", "notice"} or end in {"recalled", "dropped"}


def faults(
    said: Sequence[Said],
    posted: Sequence[Posted],
    accounts: Mapping[str, Account],
    books: Books,
    *,
    window: timedelta,
    shed: Shed | None = None,
) -> Iterator[str]:
    """Return all faults, in sentences. `shed` is None where the logs name no such questions."""
    for each in unaccounted(questions(said, window, books.answered), accounts, books):
        yield f"{each.id} asks {each.text!r} in {each.place}, and nobody knows what became of it"
    for account in sorted(set(accounts.values())):
        if account.outcome in _WITH_A_REASON and not account.reason:
            yield f"{account.question_id} is {account.outcome} without a reason"
        if account.reason == "knowledge_failed":
            yield f"{account.question_id} is {account.outcome}, for the database could not be read"
    yield from _shed(accounts, books, shed)
    for message_id, n in books.covered.items():
        if n > 1:
            yield f"{message_id} is held by {n} replies"
    yield from _posts(posted, books.parts)
    yield from _captures(lessons(said), books)
    yield from _decisions(books)


_WITH_A_REASON = frozenset({"silent", "shed", "passed over"})


def _shed(accounts: Mapping[str, Account], books: Books, named: Shed | None) -> Iterator[str]:
    # A word about it may stand on Discord; the reason stays.
    accounted = {each.question_id for each in accounts.values() if "shed" in (each.outcome, each.reason)}
    counted = books.counts.get("questions_shed", 0)
    if named is None:
        if accounted and not counted:
            yield f"{len(accounted)} questions were shed, and none was counted as shed"
        return
    for question_id in sorted(set(named.question_ids)):
        if question_id not in accounts and question_id not in books.covered:
            yield f"{question_id} was shed, and nobody knows that any more"
    # The account comes first: a kill may fall between it and the log, once.
    if len(unnamed := accounted.difference(named.question_ids)) > named.kills:
        yield f"{len(unnamed)} questions are said to be shed, and no log names them: {sorted(unnamed)[:3]}"
    told = len(named.question_ids)
    if not told - named.late <= counted <= told:
        least = f"at least {told - named.late} and at most " if named.late else ""
        yield f"{counted} questions are counted as shed, and {least}{told} were"


def _posts(posted: Sequence[Posted], parts: Sequence[Part]) -> Iterator[str]:
    known = {part.message_id: part for part in parts if part.message_id}
    unheard = Counter((part.place, part.text) for part in parts if not part.message_id)
    for post in posted:
        if post.pings:
            yield f"the bot's message {post.id} pings {post.pings}"
        if known.pop(post.id, None) is None:
            unheard[post.place, post.text] -= 1
            if unheard[post.place, post.text] < 0:
                yield f"the bot's message {post.id} in {post.place} is part of no reply, or was posted twice"
    for part in parts:
        if part.state != "finished":
            unheard[part.place, part.text] -= not part.message_id
        elif part.text is None:
            yield f"the reply to {part.question_id} is finished, and has no parts"
    for (place, text), n in unheard.items():
        if n > 0 and text is not None:
            yield f"{text!r} is finished in {place}, and not on Discord"
    for part in known.values():
        yield f"the ledger holds {part.message_id} for {part.question_id}, and Discord does not"
    for part in parts:
        if part.state == "open":
            yield f"the reply to {part.question_id} was left open"


def _captures(taught: Iterable[Said], books: Books) -> Iterator[str]:
    holders = _holders(books)
    for each in taught:
        pairs = holders.get(each.id, ())
        if not pairs:
            yield f"the team's {each.id} {each.text!r} is not captured"
        for pair in pairs:
            turns = [pair.turns[n] for n, own in enumerate(pair.message_ids) if own == MessageId(each.id)]
            # The others mentioned in it: a member, or a colleague.
            said = remove_person_ids([Turn("Team", mask_secrets(each.text).text)], ())[0].text
            as_said = [(turn.speaker, turn.text.replace("a team member", "the member")) for turn in turns]
            if as_said != [("Team", said)]:
                yield f"the team's {each.id} is not archived once as {each.text!r}, but as {turns}"
    captures = Counter((pair.conversation_id, pair.message_ids, pair.turns) for pair in books.pairs)
    for (conversation, _, _), n in captures.items():
        if n > 1:
            yield f"the same words of {conversation} are archived {n} times"
    newest = {pair.conversation_id: pair for pair in books.pairs}
    of_team = defaultdict[frozenset[MessageId], list[str]](list)
    for conversation, pair in newest.items():
        spoken = zip(pair.message_ids, pair.turns, strict=True)
        of_team[frozenset(each for each, turn in spoken if turn.speaker == "Team")].append(conversation)
    for replies, conversations in of_team.items():
        if len(conversations) > 1:
            yield f"the team's {sorted(replies)} are archived as {sorted(conversations)}"


def in_two_conversations(taught: Iterable[Said], books: Books) -> int:
    """Return the number of the team's replies that are context of another conversation, too."""
    holders = _holders(books)
    return sum(len(holders.get(each.id, ())) > 1 for each in taught)


def _holders(books: Books) -> Mapping[str, Sequence[CapturedPair]]:
    """Return for each message the newest pair of each conversation that contains it."""
    newest = {pair.conversation_id: pair for pair in books.pairs}
    holders: defaultdict[str, list[CapturedPair]] = defaultdict(list)
    for pair in newest.values():
        for message_id in frozenset(pair.message_ids):
            holders[message_id].append(pair)
    return holders


def undecided(books: Books) -> list[QAId]:
    """Return the pairs without a decision in `decisions.jsonl`."""
    decided = {getattr(decision, "qa_id", None) for decision in books.decisions}
    return [pair.qa_id for pair in books.pairs if pair.qa_id not in decided]


def _decisions(books: Books) -> Iterator[str]:
    for qa_id in undecided(books):
        yield f"nothing was decided on {qa_id}"
    last: dict[QAId, PairDecision] = {}
    times: Counter[QAId] = Counter()
    for decision in books.decisions:
        if not isinstance(decision, MessagesWithdrawn | MessagesForgotten):
            last[decision.qa_id] = decision
            times[decision.qa_id] += isinstance(decision, PairFiled | PairSkipped)
    for pair in books.pairs:
        match last.get(pair.qa_id):
            case PairSkipped(reason="") | PairParked(reason=""):
                yield f"{pair.qa_id} was left out without a reason"
            case PairFiled() if [block.turns for block in books.blocks.get(pair.qa_id, ())] != [pair.turns]:
                yield f"{pair.qa_id} is filed, and does not stand once and as it is in the topics"
            case _ if times[pair.qa_id] > 1:
                yield f"{pair.qa_id} was filed or skipped {times[pair.qa_id]} times"
            case _:
                pass
    for qa_id, blocks in books.blocks.items():
        if len(blocks) > 1:
            yield f"{qa_id} stands in the topics {len(blocks)} times"
    conversations = Counter(block.conversation_id for blocks in books.blocks.values() for block in blocks[:1])
    for conversation, n in conversations.items():
        if n > 1:
            yield f"{n} blocks survive of {conversation}"
