"""Recordings as `intern why` shows them."""

from __future__ import annotations

from intern.answering.answer_tape import AnswerRecording
from intern.core.messages import AnswerResult, Attachment, Conversation, Message, RequestContext
from intern.service.recordings import _read_messages
from tests.worlds.clock import HandClock


def test_the_names_of_a_questions_files_are_shown_masked() -> None:
    file = Attachment(id="1", filename="mira@example.org\n10.1.2.3.log", url="", size=1)
    answered = AnswerRecording(
        at=HandClock().now(),
        conversation=Conversation((Message(role="user", text="Why?", attachments=(file,)),)),
        context=RequestContext(),
        addressed=True,
        entries=0,
        result=AnswerResult(should_reply=False),
    )
    [message] = _read_messages(answered)
    assert message.text == "Why?\n[attached: [masked email] [masked ip_address].log]"
