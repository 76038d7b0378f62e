"""Build conversations: for a question to answer, a team answer to archive, and a message to learn from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from msgspec import structs

from intern.chat.addressing import find_mentioned_account, lines_before, split_by_target
from intern.chat.context import BatchContext, gather_context, merge_messages
from intern.chat.options import ContextBounds, ConversationOptions
from intern.chat.platform import PAGE, History
from intern.core.captures import Capture, Turn
from intern.core.errors import ChatRefusedError
from intern.core.flow import AnswerRequest, Batch, CaptureRequest
from intern.core.ids import ConversationId, MessageId, parse_position, reply_conversation, thread_conversation
from intern.core.messages import Author, Channel, ChatMessage, Conversation, Message, RequestContext, Role


def build_capture_requests(batch: Batch, channel: Channel, gathered: BatchContext) -> tuple[CaptureRequest, ...]:
    """Return the conversations that a team member's batch answers, or that an asker's batch follows up.

    In a thread, that is the whole thread. In a channel, each reply belongs to the conversation that it points to, with
    the lines that follow it; lines before the first reply go with it. A message that is no reply, and mentions one
    account, counts as a reply to that account's message. Parts that lead to one conversation are joined.
    Bots' messages are left out: a correction leads through the bot's answer to the question. A conversation is kept
    only if both a user and the team say something in it.
    """
    if channel.is_thread:
        whole = merge_messages(gathered.messages, batch.messages)
        requests = [build_capture_request(batch, thread_conversation(channel.id), whole)]
    else:
        requests = [build_capture_request(batch, None, messages) for messages in _join_conversations(batch, gathered)]
    return tuple(request for request in requests if request is not None)


def build_capture(request: CaptureRequest, texts: Mapping[tuple[MessageId, str], str] | None = None) -> Capture:
    """Return the archive's form of a request: one turn a message.

    `texts` has the texts of attachments by message and attachment: a model's description of an image, the informative
    lines of a file. They follow the message's text.
    """

    def build_turn(message: ChatMessage) -> Turn:
        said = {id_: text for (of, id_), text in (texts or {}).items() if of == message.id}
        return Turn("Team" if message.author.type == "team_member" else "User", format_message(message, said))

    return Capture(
        conversation_id=request.conversation_id,
        turns=tuple(map(build_turn, request.messages)),
        message_ids=tuple(message.id for message in request.messages),
        author_ids=tuple(message.author.id for message in request.messages),
        author_names=tuple(message.author.names for message in request.messages),
        answered_at=max(message.at for message in request.messages),
        guild_id=request.guild_id,
        channel_id=request.channel_id,
    )


def format_message(message: ChatMessage, texts: Mapping[str, str] | None = None) -> str:
    """Return the message's text as written, then its attachments, with their `texts` by their ids."""
    known = texts or {}
    lines = [message.text] if message.text else []
    for each in message.attachments:
        said, name = known.get(each.id, ""), each.masked_name
        of_file = f"[file {name}: {said}]" if said else f"[file: {name}]"
        lines.append(f"[image: {name}] {said}".rstrip() if each.is_image else of_file)
    links = ((id_, said) for id_, said in known.items() if said and id_.startswith("https://"))
    lines += [f"[file {link.removeprefix('https://')}: {said}]" for link, said in links]
    return "\n".join(lines)


def _join_conversations(batch: Batch, gathered: BatchContext) -> list[tuple[ChatMessage, ...]]:
    """Join the batch's parts, each with the chains of its replies, if they share a message."""
    joined: list[tuple[tuple[ChatMessage, ...], bool]] = []
    parts = _split_batch(batch)
    if batch.author.type == "community_user":
        parts = [[message for message in part if message.id in gathered.goes_on] for part in parts]
    for part in filter(None, parts):
        messages = merge_messages(*(gathered.chains.get(message.id, ()) for message in part), part)
        taught = any(gathered.is_teaching(message) or message.id in gathered.goes_on for message in part)
        ids = {message.id for message in messages}
        same = [other for other in joined if not ids.isdisjoint(message.id for message in other[0])]
        joined = [other for other in joined if other not in same]
        whole = merge_messages(*(earlier for earlier, _ in same), messages)
        joined.append((whole, taught or any(teaching for _, teaching in same)))
    return [messages for messages, taught in joined if taught]


def _split_batch(batch: Batch) -> list[list[ChatMessage]]:
    first, *others = split_by_target(batch.messages)
    if others and not any(message.reply_to or find_mentioned_account(message) for message in first):
        others[0] = [*first, *others[0]]
        return others
    return [first, *others]


def build_capture_request(
    batch: Batch, of: ConversationId | None, messages: Sequence[ChatMessage]
) -> CaptureRequest | None:
    """Return the request to keep these messages, oldest first; None unless both a user and the team say something.

    Bots' messages and empty ones are left out. Without `of`, their conversation is that of the oldest.
    """
    kept = tuple(message for message in messages if message.author.type != "bot" and format_message(message).strip())
    if {message.author.type for message in kept} != {"community_user", "team_member"}:
        return None
    return CaptureRequest(
        # The oldest message is the root, however the chain branches.
        conversation_id=of or reply_conversation(kept[0].id),
        guild_id=batch.last.guild_id,
        channel_id=batch.channel_id,
        messages=kept,
    )


_LEADING_MENTION = re.compile(r"^\s*<@[!&]?\d+>[\s,:]*", re.MULTILINE)  # a title may come before it


def build_answer_request(
    batch: Batch, channel: Channel, gathered: BatchContext, options: ConversationOptions, *, addressed: bool
) -> AnswerRequest:
    """Return the question that a batch asks, with its context."""
    return AnswerRequest(
        batch=batch,
        channel=channel,
        conversation=build_conversation(batch, gathered, options),
        context=RequestContext(
            guild_id=batch.last.guild_id,
            channel_id=(channel.parent_id or channel.id) if channel.is_thread else channel.id,
            thread_id=channel.id if channel.is_thread else None,
            message_id=batch.last.id,
        ),
        addressed=addressed,
        called=is_calling_bot(batch, gathered),
        language=options.language,
    )


def merge_questions(older: AnswerRequest, newer: AnswerRequest, options: ConversationOptions) -> AnswerRequest:
    """Merge two questions of the same asker in the same place: the older one's messages first, then the newer's.

    The reply goes to the last message. If both have a message, the newer version counts.
    """
    messages = merge_messages(older.batch.messages, newer.batch.messages)
    said = {m.id: m for m in (*older.conversation.messages, *newer.conversation.messages)}
    asked = [m.id for m in messages]
    context = sorted((m for key, m in said.items() if key not in asked), key=lambda m: m.at or _LONG_AGO)
    question = [said[key] for key in asked if key in said]
    return structs.replace(
        max(newer, older, key=lambda request: parse_position(request.batch.last.id)),
        batch=structs.replace(newer.batch, messages=messages),
        conversation=_limit_conversation(context, question, options),
        addressed=older.addressed or newer.addressed,
        called=older.called or newer.called,
    )


def revise_question(
    request: AnswerRequest, versions: Mapping[MessageId, ChatMessage | None], options: ConversationOptions
) -> AnswerRequest | None:
    """Put newer versions of its messages into a question, and remove deleted ones (None); None if none is left."""
    before = request.batch.messages
    now = ((each, versions.get(each.id, each)) for each in before)
    # An edit's payload may lack the roles that identify a team member.
    left = tuple(structs.replace(newest, author=each.author) for each, newest in now if newest is not None)
    if not left or left == before:
        return request if left else None
    asked, known = [_convert_message(each) for each in left], {each.id for each in before}
    context = [each for each in request.conversation.messages if each.id not in known]
    batch = structs.replace(request.batch, messages=left)
    return structs.replace(request, batch=batch, conversation=_limit_conversation(context, asked, options))


def build_conversation(batch: Batch, gathered: BatchContext, options: ConversationOptions) -> Conversation:
    """Return the context, oldest first, then the asker's batch, which is the question.

    Bounded by `max_history_messages` of context and `max_history_chars` in all. The batch has precedence, then the
    question that opened the conversation, then the newest messages. Other bots' messages are left out.
    """
    asked = {message.id for message in batch.messages}
    said = (m for m in gathered.messages if m.id not in asked and (m.author.type != "bot" or m.author.is_self))
    context = [_convert_message(m) for m in said if format_message(m).strip()]
    return _limit_conversation(context, [_convert_message(m) for m in batch.messages], options)


def _limit_conversation(context: list[Message], asked: list[Message], options: ConversationOptions) -> Conversation:
    room = options.max_history_chars
    question = _keep_newest(asked, room) or asked[-1:]
    room -= _count_characters(question)
    opening = [message for message in context if message.role == "user"][:1]
    if not (options.max_history_messages and opening and _count_characters(opening) <= room):
        opening = []
    later = context[context.index(opening[0]) + 1 :] if opening else context
    first = max(0, len(later) - options.max_history_messages + len(opening))
    kept = _keep_newest(later[first:], room - _count_characters(opening))
    return Conversation((*opening, *kept, *question))


def is_calling_bot(batch: Batch, gathered: BatchContext) -> bool:
    """Return whether a batch mentions the bot or replies to it."""
    targets = (gathered.reply_authors.get(m.reply_to) for m in batch.messages if m.reply_to)
    return any(m.mentions_bot for m in batch.messages) or any(author and author.is_self for author in targets)


_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def _convert_message(message: ChatMessage) -> Message:
    text = message.text  # attachments are separate
    if message.mentions_bot:
        text = _LEADING_MENTION.sub("", text, 1)  # the mention of the addressee is not part of the question
    role: Role = "assistant" if message.author.is_self else "user"
    author_id, files = message.author.id, message.attachments
    return Message(role=role, text=text, at=message.at, author_id=author_id, attachments=files, id=message.id)


def _keep_newest(messages: Iterable[Message], room: int) -> list[Message]:
    """Return as many of the newest as fit in `room` characters, oldest first."""
    kept: list[Message] = []
    for message in reversed(list(messages)):
        if len(message.text) > room:
            break
        kept.append(message)
        room -= len(message.text)
    return kept[::-1]


def _count_characters(messages: Iterable[Message]) -> int:
    return sum(len(message.text) for message in messages)


_SHORTLY_BEFORE = 3600.0  # seconds: an answer that is no reply answers a question of the last hour


async def read_conversation_around(
    on: ChatMessage, teacher: Author, history: History, bounds: ContextBounds
) -> CaptureRequest | None:
    """Read the conversation of a message; None unless a member and the team speak in it.

    In a thread, or at the message that opens one, that is the whole thread. In a channel, it is the chain of the
    message's replies, the replies to any of these, and the lines around each. A team member's message that is no reply
    goes with a member's last message before it. Raises the ChatError family.
    """
    place, attached = await history.channel(on.channel_id), None
    if place.is_thread:
        return await _read_thread(on, place, teacher, history, bounds)
    if on.thread_id is not None:
        with suppress(ChatRefusedError):  # deleted
            attached = await history.channel(on.thread_id)
    found = await _read_thread(on, attached, teacher, history, bounds) if attached else None
    return found or await _read_nearby(on, place, history, bounds)


async def _read_thread(
    on: ChatMessage, thread: Channel, teacher: Author, history: History, bounds: ContextBounds
) -> CaptureRequest | None:
    # With a team member as its author, the batch counts as an answer, so the thread is read to its end.
    batch = Batch(channel_id=thread.id, author=teacher, messages=(on,))
    return next(iter(build_capture_requests(batch, thread, await gather_context(batch, thread, history, bounds))), None)


async def _read_nearby(
    on: ChatMessage, place: Channel, history: History, bounds: ContextBounds
) -> CaptureRequest | None:
    before = await history.before(place.id, on.id, limit=PAGE)
    near = merge_messages(before, await history.after(place.id, on.id, limit=PAGE), (on,))
    said = _collect_run(on, near, bounds.window_seconds)
    batch = Batch(channel_id=place.id, author=on.author, messages=said)
    chains = (await gather_context(batch, place, history, bounds)).messages
    whole = _add_replies(merge_messages(chains, said), near, bounds.window_seconds)
    if on.author.type == "team_member" and not any(map(_is_by_member, whole)):
        whole = merge_messages(_find_question_before(said[0], before, bounds.window_seconds), whole)
    return build_capture_request(batch, None, whole)


def _collect_run(message: ChatMessage, near: Sequence[ChatMessage], window: float) -> tuple[ChatMessage, ...]:
    """Return the message with its author's lines around it to the same addressee, each in the window of the next."""
    run = [*lines_before(message, near, window), message]
    own = [other for other in near if other.author.id == message.author.id]
    at = next((n for n, other in enumerate(own) if other.id == message.id), 0)
    for later in own[at + 1 :]:
        if (later.at - run[-1].at).total_seconds() > window:
            break
        run.append(later)
    return tuple(next(group for group in split_by_target(run) if message in group))


def _add_replies(whole: Sequence[ChatMessage], near: Sequence[ChatMessage], window: float) -> tuple[ChatMessage, ...]:
    """Add the replies to any of the messages, and the replies to those; oldest first."""
    known = {message.id: message for message in whole}
    for message in near:  # oldest first, because a reply is newer than its target
        if message.reply_to in known:
            known |= {line.id: line for line in _collect_run(message, near, window)}
    return merge_messages(known.values())


def _find_question_before(answer: ChatMessage, before: Sequence[ChatMessage], window: float) -> tuple[ChatMessage, ...]:
    asked = next((message for message in reversed(before) if _is_by_member(message)), None)
    if asked is None or (answer.at - asked.at).total_seconds() > _SHORTLY_BEFORE:
        return ()
    return _collect_run(asked, before, window)


def _is_by_member(message: ChatMessage) -> bool:
    return message.author.type == "community_user"
