"""Handle commands and buttons: answer one member, learn from a conversation, take a vote, explain an answer.

Each reply goes through the same link check and splitting as a reply in the channel.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, cast

from msgspec import Struct, structs

from intern.answering.answerer import QuestionAnswerer
from intern.answering.replies import answer_buttons, button_id
from intern.answering.why_line import why_line
from intern.answering.wordings import Wordings
from intern.chat.context import BatchContext, gather_context
from intern.chat.conversations import build_answer_request, read_conversation_around
from intern.chat.options import ConversationOptions
from intern.chat.phrases import ENGLISH, Phrases, get_phrases, select_language
from intern.chat.platform import History, Outlet
from intern.chat.reply_text import format_parts, thread_name
from intern.core import flow
from intern.core.errors import ChatError, ChatRefusedError
from intern.core.ids import GuildId, MessageId, UserId, parse_position
from intern.core.log import get_logger
from intern.core.messages import SILENCES, AnswerResult, Button, Channel, ChatMessage, Citation
from intern.core.text.language import SPOKEN, detect_language
from intern.stores.tables.answers import AnswerRecord, AnswerStore
from intern.stores.tables.feedback import FeedbackStore, Votes
from intern.stores.tables.store import save_record

_log = get_logger(__name__)

_LANGUAGES = "|".join(sorted(SPOKEN))
_BUTTON = re.compile(rf"intern:(?P<act>up|down|why|share):(?P<of>[0-9]{{1,20}})(?::(?P<language>{_LANGUAGES}))?")
ANSWERS_KEPT = 500  # for sharing; a few kilobytes each. A member who closes Discord does not see the button again

NOTHING_TO_LEARN = (
    "I found no question of a member with an answer of the team around this message, so there is nothing to learn. "
    "Use this on the team's answer, best on one that replies to the question."
)
NO_MESSAGE = "That is neither a message id nor a link to a message."
NO_RECORD = "I hold nothing on that: I did not take it for a question to me, or it was too long ago."

Manage = Callable[[flow.ServerCommand], Awaitable[str]]
"""Carries out a command of a member who may give it, and returns the reply. Raises the KnowledgeError family."""


class InteractionReply(Struct, frozen=True, kw_only=True):
    """The reply to an interaction, after its `captures` were handed on."""

    parts: tuple[str, ...]
    """One or more messages of at most 2,000 characters."""
    buttons: tuple[Button, ...] = ()
    """The buttons under the last part."""
    captures: tuple[flow.CaptureRequest, ...] = ()


def make_text_reply(text: str) -> InteractionReply:
    """Make a reply from a text: without links, split if it is long."""
    return InteractionReply(parts=tuple(format_parts(text)))


def language_of_interaction(interaction: flow.Interaction, otherwise: str = ENGLISH) -> str:
    """Return the language of the reply: the question's, or that of the answer whose button was pressed."""
    if isinstance(interaction, flow.AskCommand):
        return detect_language(interaction.question) or otherwise
    pressed = _BUTTON.fullmatch(interaction.button) if isinstance(interaction, flow.ButtonPressed) else None
    return (pressed and pressed["language"]) or (ENGLISH if pressed else otherwise)


@dataclass(kw_only=True)
class _ShareableAnswer:
    """An answer that its asker may share."""

    user_id: UserId
    parts: tuple[str, ...]
    buttons: tuple[Button, ...]
    shared: bool = False


@dataclass(kw_only=True)
class InteractionHandler:
    """Handles interactions, many at once. Remembers the last answers, so that they can be shared."""

    answers: QuestionAnswerer
    history: History
    admits: Callable[[Channel], bool]
    outlet: Outlet
    feedback: FeedbackStore
    records: AnswerStore
    options: ConversationOptions
    guild_ids: Collection[GuildId]
    wordings: Wordings
    count_question: Callable[[UserId], flow.DeclineReason | None] = lambda _: None
    """Counts a question of a member, and returns the limit that it exceeds, if any."""
    count: Callable[[AnswerResult], object] = lambda _: None
    """Called with each result."""
    turned_away: Callable[[flow.DeclineReason], object] = lambda _: None
    """Called for each question beyond a limit."""
    manage: Manage | None = None
    """Carries out the commands for a server; None if the server uses the operator's settings."""
    answers_kept: int = ANSWERS_KEPT
    _shareable: OrderedDict[str, _ShareableAnswer] = field(
        default_factory=OrderedDict[str, _ShareableAnswer], init=False
    )

    async def handle(self, interaction: flow.Interaction) -> InteractionReply:
        """Handle an interaction; return the reply to the member. Raises the ChatError and KnowledgeError families."""
        ticket, language = interaction.interaction, language_of_interaction(interaction, self.options.language)
        words = get_phrases(language)
        if ticket.guild_id not in self.guild_ids:
            return make_text_reply(words.in_private if ticket.guild_id is None else words.foreign_server)
        match interaction:
            case flow.UnknownInteraction(what=what):
                _log.warning("interaction_unknown", interaction_id=ticket.id, what=what)
                return make_text_reply(words.unknown_command)
            case flow.ButtonPressed():
                return make_text_reply(await self._handle_button(interaction, words))
            case flow.AskCommand():
                return await self._ask(interaction, language, words)
            case flow.LearnCommand() | flow.WhyCommand():
                return await self._handle_team_command(interaction, words)
            case flow.SetupCommand() | flow.StatusCommand():
                return make_text_reply(await self._manage_server(interaction, words))

    async def _manage_server(self, command: flow.ServerCommand, words: Phrases) -> str:
        if self.manage is None:
            return words.unknown_command
        by_team = isinstance(command, flow.StatusCommand) and command.user.type == "team_member"
        return await self.manage(command) if command.manages or by_team else words.managers_only

    async def _handle_team_command(
        self, command: flow.LearnCommand | flow.WhyCommand, words: Phrases
    ) -> InteractionReply:
        if command.user.type != "team_member":
            return make_text_reply(words.team_only)
        if await self._get_public_channel(command.interaction) is None:
            return make_text_reply(words.not_public)
        return await (self._learn(command) if isinstance(command, flow.LearnCommand) else self._explain(command))

    async def _ask(self, command: flow.AskCommand, language: str, words: Phrases) -> InteractionReply:
        channel = await self._get_public_channel(command.interaction)
        if channel is None:
            return make_text_reply(words.not_public)
        question = _make_question(command)
        if question.author.type == "bot":
            return make_text_reply(words.from_bot)
        if not (question.text.strip() or question.attachments):
            return make_text_reply(words.no_text)
        wording = select_language(self.wordings, language)
        if command.user.type != "team_member" and (limit := self.count_question(command.user.id)):
            self.turned_away(limit)
            return make_text_reply(wording.get_text(limit))
        request = await self._build_request(question, channel, with_context=command.on is not None)
        result = await self.answers.answer(request.conversation, request.context, addressed=True)
        await self._record_answer(command, result)
        if result.should_reply and result.reply_text:
            return self._build_answer_reply(command, question, result.reply_text, result.citations, language)
        text = wording.links if result.citations else wording.get_text(result.reason, words.not_known)
        return InteractionReply(parts=tuple(format_parts(text, result.citations, language=language)))

    async def _record_answer(self, command: flow.AskCommand, result: AnswerResult) -> None:
        self.count(result)
        # Under an id of its own, so that the outcome of the message itself stays known, too.
        ticket = command.interaction
        ids = (*([command.on.id] if command.on else []), MessageId(ticket.id))
        outcome = f"{'answered' if result.should_reply else 'silent'} for one member"
        keep = partial(
            self.records.save,
            ids,
            ticket.channel_id,
            outcome=outcome,
            reason=result.reason,
            debug=result.debug,
            beside=True,
        )
        await save_record(keep, interaction_id=ticket.id)

    async def _build_request(
        self, question: ChatMessage, channel: Channel, *, with_context: bool
    ) -> flow.AnswerRequest:
        batch = flow.Batch(channel_id=channel.id, author=question.author, messages=(question,))
        gathered = BatchContext()
        if with_context:
            try:
                gathered = await gather_context(batch, channel, self.history, self.options.bounds)
            except ChatError as error:
                # A question without its context is still a question, and a member waits.
                _log.info("context_unreadable", channel_id=channel.id, reason=str(error))
        return build_answer_request(batch, channel, gathered, self.options, addressed=True)

    def _build_answer_reply(
        self, command: flow.AskCommand, question: ChatMessage, text: str, citations: tuple[Citation, ...], language: str
    ) -> InteractionReply:
        ticket_id = command.interaction.id
        parts = format_parts(f"**{thread_name(question.text)}**\n\n{text}", citations, language=language)
        buttons = answer_buttons(MessageId(ticket_id), language)
        self._shareable[ticket_id] = _ShareableAnswer(user_id=command.user.id, parts=tuple(parts), buttons=buttons)
        if len(self._shareable) > self.answers_kept:
            self._shareable.popitem(last=False)
        share = Button(custom_id=button_id("share", ticket_id, language), label=get_phrases(language).share)
        return InteractionReply(
            parts=tuple(format_parts(text, citations, language=language)), buttons=(share, *buttons)
        )

    async def _learn(self, command: flow.LearnCommand) -> InteractionReply:
        # Read the message again: the payload has no author's roles.
        on = await self.history.message(command.on.channel_id, command.on.id)
        bounds = self.options.bounds
        request = await read_conversation_around(on, command.user, self.history, bounds) if on else None
        if request is None:
            return make_text_reply(NOTHING_TO_LEARN)
        return structs.replace(make_text_reply(_summarise_capture(request)), captures=(request,))

    async def _explain(self, command: flow.WhyCommand) -> InteractionReply:
        if not command.about:
            record = await self.records.find_newest_in(command.interaction.channel_id)
        else:
            named = re.search(r"(?<!\d)(\d{15,20})/?>?\s*\Z", command.about)
            if named is None:
                return make_text_reply(NO_MESSAGE)
            record = await self.records.find(MessageId(named[1]))
        if record is None or record.debug is None:
            return make_text_reply(NO_RECORD)
        return make_text_reply(format_trace(record, await self.feedback.read_votes(record.question_id)))

    async def _handle_button(self, press: flow.ButtonPressed, words: Phrases) -> str:
        pressed = _BUTTON.fullmatch(press.button)
        match (pressed["act"], pressed["of"]) if pressed else ():
            case ("up" | "down" as vote, question_id):
                await self.feedback.vote(MessageId(question_id), press.user.id, up=vote == "up")
                return words.thanks
            case ("why", question_id):
                record = await self.records.find(MessageId(question_id))
                return (why_line(record.debug or {}, words) if record else "") or words.why_unknown
            case ("share", ticket_id):
                return await self._share(press, ticket_id, words)
            case _:
                _log.warning("interaction_unknown", interaction_id=press.interaction.id, what=press.button[:100])
                return words.unknown_command

    async def _share(self, press: flow.ButtonPressed, ticket_id: str, words: Phrases) -> str:
        answer = self._shareable.get(ticket_id)
        if answer is None:
            return words.gone
        if answer.user_id != press.user.id:
            return words.not_yours
        if answer.shared:
            return words.shared_already
        channel = await self._get_public_channel(press.interaction)
        if channel is None or self.options.channel_mode(channel) in {"capture_only", "off"}:
            return words.not_public if channel is None else words.not_speaking
        answer.shared = True  # before the first wait, so that pressing twice shares once
        try:
            for n, part in enumerate(answer.parts, 1):
                buttons = answer.buttons if n == len(answer.parts) else ()
                await self.outlet.send(channel.id, part, f"s{ticket_id}-{n}", buttons=buttons)
        except ChatRefusedError as refusal:
            _log.info("share_refused", channel_id=channel.id, reason=str(refusal))
            answer.shared = False
            return words.cannot_speak
        except BaseException:
            answer.shared = False  # pressing again continues here: the nonces are the same
            raise
        return words.shared

    async def _get_public_channel(self, ticket: flow.InteractionTicket) -> Channel | None:
        """Return the channel of the interaction; None if not everybody may read it, or we may not see it."""
        try:
            channel = await self.history.channel(ticket.channel_id)
        except ChatRefusedError:
            return None
        return channel if self.admits(channel) else None


def format_trace(record: AnswerRecord, votes: Votes | None = None) -> str:
    """Explain the outcome of a question to the team, with the votes on its answer."""
    silence = SILENCES.get(record.reason)
    reason = _format_value(silence.words if silence else record.reason or "it was answered")
    lines = [f"Message {record.question_id}: **{_format_value(record.outcome)}**. {reason[:1].upper()}{reason[1:]}."]
    debug = record.debug or {}
    if line := why_line(debug) if not record.reason else "":
        lines.append(f"- {line}")
    if votes and (votes.up or votes.down):
        lines.append(f"- votes: 👍 {votes.up}, 👎 {votes.down}")
    for name, told in debug.items():
        fields = cast("Mapping[str, object]", told if isinstance(told, Mapping) else {"": told})
        lines.append(f"- {name}: {_format_fields(fields)}")
    return "\n".join(lines)


def _format_fields(fields: Mapping[str, object]) -> str:
    shown = {name: value for name, value in fields.items() if value not in _EMPTY}
    return (
        "; ".join(f"{name.replace('_', ' ')} {_format_value(value)}".lstrip() for name, value in shown.items())
        or "done"
    )


_EMPTY: Final[tuple[object, ...]] = ("", None, [], ())


def _format_value(value: object) -> str:
    """Format any value on one line of bounded length; several values as code."""
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        return ", ".join(f"`{_format_value(item).replace('`', '')}`" for item in items[:10])
    return " ".join(str(value).split())[:300]


def _summarise_capture(request: flow.CaptureRequest) -> str:
    team = sum(message.author.type == "team_member" for message in request.messages)
    members = len(request.messages) - team
    counts = f"{_format_count(members)} of members and {_format_count(team)} of the team"
    return f"I learn from this conversation: {counts}, beginning with “{thread_name(request.messages[0].text)}”."


def _format_count(messages: int) -> str:
    return "1 message" if messages == 1 else f"{messages} messages"


def _make_question(command: flow.AskCommand) -> ChatMessage:
    """Return the question as if the member had written it on the channel."""
    if command.on is not None:
        return command.on
    ticket = command.interaction
    return ChatMessage(
        id=MessageId(ticket.id),
        guild_id=ticket.guild_id,
        channel_id=ticket.channel_id,
        author=command.user,
        text=command.question,
        at=parse_position(ticket.id).time,
        attachments=command.attachments,
    )
