"""The laws of every run, for any dice: promises 1, 2 and 5 of the design, and deletions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

from intern.chat.context import BatchContext
from intern.chat.phrases import get_phrases
from intern.chat.routing import find_question_messages
from intern.core.captures import Turn
from intern.core.decisions import PairFiled, PairParked
from intern.core.flow import Batch, ButtonPressed, LearnCommand
from intern.core.ids import ChannelId, MessageId
from intern.facts.segments import remove_person_ids
from intern.learning.attempts import MOST_ATTEMPTS
from intern.service.databases import open_archive, open_database, open_read_only
from intern.stores.archive import Archive
from intern.stores.database import Row
from intern.stores.tables.knowledge import KnowledgeStore
from tests.simulation.community import Community
from tests.simulation.people import People, Said


class Part(NamedTuple):
    """One message of a reply, as the ledger has it."""

    question_id: MessageId
    place: ChannelId
    text: str
    message_id: MessageId | None
    mentions: bool
    state: str


class Books(NamedTuple):
    """The data that the last life left on disk."""

    archive: Archive
    knowledge: KnowledgeStore
    votes: set[tuple[str, str]]
    """By question and member."""
    accounts: set[MessageId]
    """The messages with a known outcome."""
    parts: list[Part]
    covered: dict[MessageId, MessageId]
    shed: int


async def books_of(run: People) -> Books:
    """Open all data as the next start would."""
    async with await open_database(run.settings) as db:
        rows = await db.read(
            lambda books: books.rows(
                "select question_id, coalesce(thread_id, question_id), text, message_id, mention_role, state"
                " from posts join post_parts using (question_id) order by posts.rid, n"
            )
        )
        covered = await db.read(lambda books: books.rows("select message_id, question_id from post_messages"))
        votes = await db.read(lambda books: books.rows("select question_id, user_id from feedback"))
        accounts = await db.read(lambda books: books.rows("select message_id from answer_messages"))
        shed = await db.read(
            lambda books: books.row("select sum(number) from daily_counts where name = 'questions_shed'")
        )
    return Books(
        archive=open_archive(run.settings, open_read_only(run.settings)),
        knowledge=KnowledgeStore(open_read_only(run.settings)),
        votes={(str(question), str(user)) for question, user in votes},
        accounts={MessageId(str(message)) for (message,) in accounts},
        parts=[_part(row) for row in rows],
        covered={MessageId(str(message)): MessageId(str(question)) for message, question in covered},
        shed=int(str(shed[0])) if shed and shed[0] else 0,
    )


def _part(row: Row) -> Part:
    question, place, text, message, role, state = row
    return Part(
        question_id=MessageId(str(question)),
        place=ChannelId(str(place)),
        text=str(text),
        message_id=MessageId(str(message)) if message else None,
        mentions=bool(role),
        state=str(state),
    )


def violations(run: People, books: Books) -> Iterator[str]:
    """Yield each broken law, in words."""
    yield from _replies(run, books)
    yield from _pings(run, books)
    yield from _captures(run, books)
    yield from _conversations(books)
    yield from _withdrawn(run, books)
    yield from _private(run, books)
    yield from _addressed(run, books)
    yield from _accounted(run, books)
    yield from run.strays


def _replies(run: People, books: Books) -> Iterator[str]:
    """Every message of the bot's is one part of one reply; no message got two; none came after the question went."""
    owed = list(books.parts)
    for post in run.stage.posts():
        if run.is_beside_replies(post):
            continue
        mine = [part for part in owed if part.message_id == post.id] or [
            part for part in owed if not part.message_id and (part.place, part.text) == (post.channel_id, post.text)
        ]
        if not mine:
            yield f"the bot's message {post.id} in {post.channel_id} is part of no reply, or was posted twice"
            continue
        owed.remove(mine[0])
        question = run.said.get(mine[0].question_id)
        if question is None:
            yield f"the bot's message {post.id} answers a message {mine[0].question_id} that nobody wrote"
        elif run.came_too_late(post, question):
            yield f"the bot's message {post.id} answers {question.id}, which was gone by then"
    if missing := [part for part in owed if part.message_id]:
        yield f"the ledger holds messages that are not there: {missing}"
    if open_parts := [part.question_id for part in owed if part.state == "open"]:
        yield f"replies were left open: {open_parts}"
    replies = {question: {question, *settles} for question, settles in run.looking.replied.items()}
    for message_id, question_id in books.covered.items():
        if any(part.message_id for part in books.parts if part.question_id == question_id):
            replies.setdefault(question_id, set()).add(message_id)
    for message_id, times in Counter(each for covers in replies.values() for each in covers).items():
        if times > 1:
            yield f"{message_id} got {times} replies: {[q for q, covers in replies.items() if message_id in covers]}"


def _pings(run: People, books: Books) -> Iterator[str]:
    handoffs = {part.message_id for part in books.parts if part.mentions}
    unheard = {part.text for part in books.parts if part.mentions and not part.message_id}
    for post in run.stage.posts():
        pinged = run.pinged_by(post)
        if pinged and (list(pinged) != [run.handoff] or not (post.id in handoffs or post.text in unheard)):
            yield f"the bot's message {post.id} pings {pinged}"


def qualifying(run: People) -> Iterator[Said]:
    """Yield the team's replies that must be captured: their question still exists, and all may read both."""
    found: set[MessageId] = set()
    for said in run.standing(lambda said: said.author.type == "team_member" and not run.is_private(said.place)):
        opening = run.said.get(MessageId(said.place))
        if (
            (opening is not said and _asks_still(opening))
            or _facts(run, said).is_teaching(said.message)
            or _names_an_asker(run, said)
            or (said.goes_on and said.goes_on.id in found)
        ):
            found.add(said.id)
            yield said


def _names_an_asker(run: People, said: Said) -> bool:
    """Return whether it answers by a mention, independent of other messages there."""
    if said.names is None or said.changes or run.parent_of(said.place):
        return False
    asked = [
        each
        for each in run.said.values()
        if (each.author.id, each.place) == (said.names, said.place) and int(each.id) < int(said.id)
    ]
    window = timedelta(seconds=run.settings.discord.mention_reply_window)
    in_time = any(said.message.at - each.message.at < window for each in asked)
    # What was deleted or is replied to there may be read or not, so that it is not sure which batch is the latest.
    return in_time and all(not each.changes and not each.message.reply_to for each in asked)


def _asks_still(said: Said | None) -> bool:
    return said is not None and said.deleted is None and said.author.type == "community_user"


def _facts(run: People, said: Said) -> BatchContext:
    """Return the reply context of a message; the bot's answers are left out, since their question may be gone."""
    replied = said.message.reply_to
    target = run.said.get(replied) if replied else None
    if replied is None or target is None or target.deleted is not None:
        return BatchContext()
    earlier = run.said.get(target.message.reply_to or MessageId(""))
    answered = earlier.author if earlier and target.author.id == said.author.id and _asks_still(earlier) else None
    return BatchContext(reply_authors={replied: target.author}, answered={replied: answered})


def _captures(run: People, books: Books) -> Iterator[str]:
    for said in qualifying(run):
        if run.is_excused(said):
            continue
        home = next(iter(books.archive.find_conversations(said.id)), None)
        pair = books.archive.latest_capture(home) if home else None
        if home is None or pair is None or said.id not in pair.message_ids:
            yield f"the team's {said.id} is not captured"
            continue
        edits = [change for change in said.changes if not run.had_effect(change)]
        written = [Turn("Team", text) for text in (said.texts if edits else said.texts[-1:])]
        texts = [turn.text for turn in remove_person_ids(written, ())]  # as in the archive: no author is named by an id
        turns = [turn.text for turn in pair.turns]
        if sum(turns.count(text) for text in texts) != 1:
            yield f"the team's {said.id} is not archived once with {texts}, but in {turns}"
            continue
        decision, topic = books.knowledge.last_decision(pair.qa_id), books.knowledge.find_topic(pair.qa_id)
        if isinstance(decision, PairParked) and run.crashes_after(said) >= MOST_ATTEMPTS:
            continue  # it was in work too often when the bot died, and waits for a person, who sees a notice
        if not isinstance(decision, PairFiled) or topic is None:
            yield f"the team's {said.id} is not in the topics: {pair.qa_id} {decision}"
            continue
        [block] = [block for block in books.knowledge.read_topic(topic) if block.qa_id == pair.qa_id]
        if block.turns != pair.turns and not any(_was_deleted(run, each) for each in pair.message_ids):
            yield f"the topic's block {pair.qa_id} differs from the archive"
        elif sum(turn.text in texts for turn in block.turns) != 1:
            yield f"the team's {said.id} is not once in the block {pair.qa_id}"


def _was_deleted(run: People, message_id: MessageId) -> bool:
    said = run.said.get(message_id)
    return said is not None and said.deleted is not None


def _conversations(books: Books) -> Iterator[str]:
    blocks = [block for name in books.knowledge.topic_names() for block in books.knowledge.read_topic(name)]
    for conversation, times in Counter(block.conversation_id for block in blocks).items():
        if times > 1:
            yield f"{times} blocks survive of {conversation}"
    for pair in books.archive.pairs_after(None):
        if books.knowledge.last_decision(pair.qa_id) is None:
            yield f"nothing was decided on {pair.qa_id}"


def _withdrawn(run: People, books: Books) -> Iterator[str]:
    texts = "\n".join(books.knowledge.read_text(name) for name in books.knowledge.topic_names())
    for said in run.said.values():
        if said.deleted is not None and run.had_effect(said.changes[-1]):
            for text in said.texts:
                if text in texts:
                    yield f"{said.id} is deleted, and {text!r} stands in a topic"


def _private(run: People, books: Books) -> Iterator[str]:
    for said in run.said.values():
        if said.while_private and books.archive.find_conversations(said.id):
            yield f"{said.id} from a private channel is captured"
    for post in run.stage.posts():
        if run.spoke_in_private(post):
            yield f"the bot's message {post.id} stands in a private channel"


def _addressed(run: People, books: Books) -> Iterator[str]:
    """Yield mentions of the bot without a reply or a reason in the ledger."""
    seen_to = {*books.covered, *(each for settles in run.looking.replied.values() for each in settles)}
    unanswered = [
        said.id
        for said in run.standing(lambda said: said.author.type == "community_user" and not run.is_private(said.place))
        if said.message.mentions_bot and len(said.texts) == 1 and said.id not in seen_to
        if not run.is_excused(said)
    ]
    if len(unanswered) > books.shed:
        yield f"the bot was mentioned, and nothing came of it: {unanswered}"


def _accounted(run: People, books: Books) -> Iterator[str]:
    """Yield messages for the responder, by the routing table, without a known outcome, such as silence."""
    known = books.accounts | books.covered.keys()
    lost = [
        said.id
        for said in run.standing(lambda said: not (said.while_private or run.is_private(said.place)))
        if _surely_asks(run, said) and said.id not in known
        if not run.is_excused(said)
    ]
    if lost:
        yield f"these ask, and nobody knows what became of it: {lost}"


def _surely_asks(run: People, said: Said) -> bool:
    """Return whether it asks, whichever of its author's other messages there are in its batch."""
    if said.message.mentions_bot:
        return _asks(run, said)
    return all(
        _asks(run, other)
        for other in run.said.values()
        if (other.author.id, other.place) == (said.author.id, said.place)
    )


def _asks(run: People, said: Said) -> bool:
    """Return whether it asks by itself. What replies to something that is gone may have been read before."""
    place, replied = run.place_of(said), said.message.reply_to
    authors = {each.id: each.author for each in run.standing()} | {each.id: each.author for each in run.stage.posts()}
    batch = Batch(channel_id=said.place, author=said.author, messages=(said.message,))
    facts = BatchContext(reply_authors={replied: authors.get(replied)} if replied else {})
    return said.author.type == "community_user" and bool(find_question_messages(batch, place, facts))


def desk_violations(run: Community, books: Books) -> Iterator[str]:
    """Yield each broken law on commands and buttons."""
    for used in run.used:
        interaction, told = used.interaction, run.responses.told.get(used.id)
        texts = told.texts if told else []
        in_time = used.heard.heard == used.heard.at and run.had_effect(used.heard)
        if in_time and not texts:
            yield f"{used.user.name} was told nothing on {used.id}"
        if isinstance(interaction, ButtonPressed) and get_phrases().thanks in texts:
            question = interaction.button.rpartition(":")[2]
            if (question, used.user.id) not in books.votes:
                yield f"the vote {used.id} is not kept"
        if isinstance(interaction, LearnCommand) and any("I learn from" in text for text in texts):
            on = run.said[interaction.on.id]
            if used.user.type != "team_member":
                yield f"{used.user.name} taught: {texts}"
            elif in_time and on.deleted is None and not books.archive.find_conversations(on.id):
                yield f"it said that it learns from {on.id}, and did not"
    shared = Counter(nonce for post in run.stage.posts() if (nonce := run.world.nonce_of(post.id)).startswith("s"))
    asked = {
        (each.interaction.button.rpartition(":")[2], each.user.id)
        for each in run.used
        if isinstance(each.interaction, ButtonPressed) and ":share:" in each.interaction.button
    }
    users = {used.id: used.user.id for used in run.used}
    for nonce, times in shared.items():
        ticket = nonce[1:].partition("-")[0]
        if times > 1 or (ticket, users[ticket]) not in asked:
            yield f"the answer to {ticket} was shared {times} times"
