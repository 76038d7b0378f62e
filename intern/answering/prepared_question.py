"""A question as prompts show it, with the messages before it."""

from __future__ import annotations

import re

from msgspec import Struct

from intern.core.messages import Conversation, Image, Message

# A batch of fifty pasted logs must not fill a prompt. Both bounds are a page or two; the point of a question is at its
# ends.
MAX_QUESTION_CHARS = 6000
MAX_HISTORY_CHARS = 4000
_MAX_REMARK_CHARS = 1000
_CUT = "\n[…]\n"

_URL = re.compile(r"://\S+")
_QUESTION_MARK = re.compile("[?？؟⁇⁈]")  # Western, Chinese and Japanese, Arabic, and the doubled ones


class PreparedQuestion(Struct, frozen=True, kw_only=True):
    """A question, ready for prompts."""

    question: str
    """Empty if there is no message of the asker."""
    history: str
    images: tuple[Image, ...]
    addressed: bool
    said: str = ""
    """The words of the question without its files."""
    telling: str = ""
    """The lines of its files that describe an error."""
    begun: str = ""
    """The questions in its other files, or their first lines."""

    @property
    def looks_like_a_question(self) -> bool:
        """Whether it is probably a question, before any model decides; a question mark in an address does not count."""
        return self.addressed or bool(_QUESTION_MARK.search(_URL.sub(" ", self.said or self.begun)))

    def build_query(self, query: str = "") -> str:
        """Return the search text: the error lines of files come before the words about them."""
        return "\n".join(filter(None, (self.telling, query or self.said, self.begun)))


def prepare_question(conversation: Conversation, *, addressed: bool) -> PreparedQuestion:
    """Take the last consecutive `user` messages of one author as the question, and all others as its history."""
    messages, place = conversation.messages, conversation.asked
    question = messages[place]
    asker = question[-1].author_id if question else None
    digests = [file.digest for each in question for file in each.attachments if file.digest]
    return PreparedQuestion(
        question=_shorten_middle("\n".join(filter(None, map(_format_message, question))), MAX_QUESTION_CHARS),
        said=_shorten_middle("\n".join(filter(None, (each.text.strip() for each in question))), MAX_QUESTION_CHARS),
        telling="\n".join(each.telling for each in digests if each.went_wrong),
        begun="\n".join(each.telling for each in digests if not (each.went_wrong or each.problem)),
        history=_format_history([*messages[: place.start], *messages[place.stop :]], asker),
        images=tuple(image for message in question for image in message.images),
        addressed=addressed,
    )


def _format_message(message: Message) -> str:
    """Return a message with the names of its files and their digests, each line of these indented."""
    said = [message.text.strip()]
    for file in message.attachments:
        name, problem = file.masked_name, file.digest and file.digest.problem
        said.append(f"[attached: {name}, {problem}]" if problem else f"[attached: {name}]")
        said += [f"  {line}" for line in file.digest.excerpt.splitlines()] if file.digest else []
    if message.images and not message.attachments:
        said += ["[attached: image]"] * len(message.images)
    return "\n".join(filter(None, said))


def _format_history(messages: list[Message], asker: str | None) -> str:
    """Join the newest messages that fit, oldest first. Further lines are indented, so none can forge a speaker."""
    kept: list[str] = []
    room = MAX_HISTORY_CHARS
    for message in reversed(messages):
        if not (said := _format_message(message)):
            continue
        if message.role == "assistant":
            speaker = "bot"
        else:
            speaker = "asker" if asker is not None and message.author_id == asker else "member"
        line = f"{speaker}: " + "\n  ".join(_shorten_middle(said, _MAX_REMARK_CHARS).splitlines())
        if len(line) + 1 > room:
            break
        kept.append(line)
        room -= len(line) + 1
    return "\n".join(reversed(kept))


def _shorten_middle(text: str, max_chars: int) -> str:
    """Keep head and tail, with a gap between: a log has the attempt at its head and the error at its end."""
    if len(text) <= max_chars:
        return text
    room = max_chars - len(_CUT)
    tail = room // 3
    return text[: room - tail] + _CUT + text[-tail:]
