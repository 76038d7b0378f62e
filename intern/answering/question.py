"""What is asked: the question of a conversation, and what was said before it, both bounded."""

from __future__ import annotations

import re

from msgspec import Struct

from intern.domain import Conversation, Image, Message

# A batch of fifty pasted logs must not fill a prompt. Both are a page or two; a question's point is at its ends.
MAX_QUESTION_CHARS = 6000
MAX_HISTORY_CHARS = 4000
_MAX_REMARK_CHARS = 1000
_CUT = "\n[…]\n"

_URL = re.compile(r"://\S+")
_QUESTION_MARK = re.compile("[?？؟⁇⁈]")  # Western, Chinese and Japanese, Arabic, and the doubled ones


class Asked(Struct, frozen=True, kw_only=True):
    """A question, ready for prompts."""

    question: str
    """Empty where nobody asked anything."""
    history: str
    images: tuple[Image, ...]
    addressed: bool

    @property
    def looks_like_a_question(self) -> bool:
        """Worth guessing before any model has said so; a question mark in an address is none."""
        return self.addressed or bool(_QUESTION_MARK.search(_URL.sub(" ", self.question)))


def asked(conversation: Conversation, *, addressed: bool) -> Asked:
    """The last `user` messages of one author in a row are the question; all others are its history."""
    messages, place = conversation.messages, conversation.asked
    question = messages[place]
    asker = question[-1].author_id if question else None
    return Asked(
        question=_shortened("\n".join(filter(None, map(_said, question))), MAX_QUESTION_CHARS),
        history=_history([*messages[: place.start], *messages[place.stop :]], asker),
        images=tuple(image for message in question for image in message.images),
        addressed=addressed,
    )


def _said(message: Message) -> str:
    names = [f"[attached: {' '.join(file.filename.split())}]" for file in message.attachments]
    if message.images and not names:
        names = ["[attached: image]"] * len(message.images)
    return "\n".join(filter(None, [message.text.strip(), *names]))


def _history(messages: list[Message], asker: str | None) -> str:
    """The newest messages that fit, oldest first. Further lines of a message are indented: none can forge a speaker."""
    kept: list[str] = []
    room = MAX_HISTORY_CHARS
    for message in reversed(messages):
        if not (said := _said(message)):
            continue
        if message.role == "assistant":
            speaker = "bot"
        else:
            speaker = "asker" if asker is not None and message.author_id == asker else "member"
        line = f"{speaker}: " + "\n  ".join(_shortened(said, _MAX_REMARK_CHARS).splitlines())
        if len(line) + 1 > room:
            break
        kept.append(line)
        room -= len(line) + 1
    return "\n".join(reversed(kept))


def _shortened(text: str, max_chars: int) -> str:
    """Head and tail, a gap between: what went wrong stands at the end of a log, what was tried at its head."""
    if len(text) <= max_chars:
        return text
    room = max_chars - len(_CUT)
    tail = room // 3
    return text[: room - tail] + _CUT + text[-tail:]
