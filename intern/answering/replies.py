"""Build replies to the asker: an answer with its buttons, or the reason for silence if the asker called the bot.

Also decline questions before any work. Declined questions are recorded. The bot gives a member the same reason only
once in a while, so that it is no nuisance. No reply here needs a model.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from intern.answering.question_records import record_question
from intern.answering.wordings import Wordings
from intern.chat.options import ConversationOptions
from intern.chat.phrases import ENGLISH, detect_reply_language, get_phrases, select_language
from intern.core.clock import Clock
from intern.core.flow import AnswerRequest, DeclineReason, QuestionDeclined, Reply
from intern.core.ids import MessageId, RoleId, UserId
from intern.core.messages import LOOKUP_FAILURES, AnswerResult, Button
from intern.stores.tables.answers import AnswerStore

_VOTES = {"up": "👍", "down": "👎"}


@dataclass(frozen=True)
class ReplyBuilder:
    """Builds replies from questions and results, by the operator's settings."""

    wordings: Wordings
    options: ConversationOptions
    handoff_role_id: RoleId | None = None

    def decide_reply(self, request: AnswerRequest, result: AnswerResult) -> Reply | None:
        """Return the reply to post, or None for silence.

        A member who mentions the bot or replies to it always gets a reply. In its own thread, and in a new forum post,
        people also talk to each other: there, only a message that led to a search, or should have, gets one.
        """
        if result.should_reply and result.reply_text:
            buttons = answer_buttons(request.batch.last.id, detect_reply_language(request))
            return _make_reply(request, result.reply_text, citations=result.citations, buttons=buttons)
        nothing_to_look_for = result.reason in {"not_a_question", "not_answerable"}
        if not request.called and (nothing_to_look_for or not request.addressed):
            return None
        wording = select_language(self.wordings, detect_reply_language(request))
        links = wording.links if result.citations else ""
        if result.reason in LOOKUP_FAILURES or nothing_to_look_for or self.handoff_role_id is None:
            text = links or wording.get_text(result.reason)
            return _make_reply(request, text, notice=True, citations=result.citations)
        # This message itself has called the team, or the team is not called.
        text = f"{links}\n{wording.handoff} <@&{self.handoff_role_id}>".lstrip()
        return _make_reply(request, text, notice=True, citations=result.citations, mention_role=self.handoff_role_id)


def answer_buttons(question_id: MessageId, language: str = ENGLISH) -> tuple[Button, ...]:
    """Make the buttons under an answer: two votes, and "Why?". Their ids contain the question's id."""
    votes = [Button(custom_id=button_id(vote, question_id, language), emoji=emoji) for vote, emoji in _VOTES.items()]
    return (*votes, Button(custom_id=button_id("why", question_id, language), label=get_phrases(language).why))


def button_id(act: str, of: str, language: str) -> str:
    """Make the id of a button. It contains the language for the reply to a press, unless that is English."""
    return f"intern:{act}:{of}" + ("" if language == ENGLISH else f":{language}")


def make_notice(request: AnswerRequest, text: str) -> Reply:
    """Make a reply that gives the reason for a missing answer."""
    return _make_reply(request, text, notice=True)


def _make_reply(request: AnswerRequest, text: str, **more: Any) -> Reply:
    return Reply(
        question=request.batch.last,
        target="in_place" if request.channel.is_thread else "new_thread",
        text=text,
        called=request.called,
        settles=tuple(message.id for message in request.batch.messages),
        asked=request.batch.text,
        language=detect_reply_language(request),
        **more,
    )


# The time during which a member does not get the same reason again. A full queue empties soon, so a member who asks
# again then gets a new notice.
_TOLD_FOR: Final[Mapping[DeclineReason, timedelta]] = MappingProxyType(
    {
        "asked too much": timedelta(hours=1),
        "day used up": timedelta(days=1),
        "too old": timedelta(hours=1),
        "shed": timedelta(minutes=1),
        "voice": timedelta(minutes=10),
    }
)


class Decliner:
    """Declines questions. Remembers for a while which member got which reason."""

    def __init__(self, wordings: Wordings, *, records: AnswerStore, clock: Clock) -> None:
        self._wordings = wordings
        self._records = records
        self._clock = clock
        self._told: dict[DeclineReason, OrderedDict[UserId, datetime]] = {each: OrderedDict() for each in _TOLD_FOR}

    async def record_decline(self, declined: QuestionDeclined) -> None:
        """Record the reason for a declined question."""
        outcome = "shed" if declined.reason == "shed" else "passed over"
        # What was spoken has no words, so it cannot be a gap.
        with_words = declined.reason != "voice"
        await record_question(
            self._records, declined.request, outcome=outcome, reason=declined.reason, with_words=with_words
        )

    def decide_reply(self, declined: QuestionDeclined) -> Reply | None:
        """Return the reply, and remember it; None if the bot was not called, or gave this reason lately."""
        if not declined.request.called or self._has_told(declined.reason, declined.request.batch.author.id):
            return None
        wording = select_language(self._wordings, detect_reply_language(declined.request))
        return make_notice(declined.request, wording.get_text(declined.reason))

    def _has_told(self, reason: DeclineReason, user_id: UserId) -> bool:
        told, now = self._told[reason], self._clock.now()
        # In the order of the notices, so expired entries come first. The clock may have been put back.
        while told and not abs(now - next(iter(told.values()))) < _TOLD_FOR[reason]:
            told.popitem(last=False)
        if user_id in told:
            return True
        told[user_id] = now
        return False
