"""The words and the author of a message, read alike from the gateway, from REST and from an export. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from intern.core.ids import MessageId, UserId
from intern.core.text.masking import whole
from intern.core.text.words import one_line, truncated
from intern.platforms.discord import payloads
from intern.platforms.discord.payloads import RawContent, readable

_MOST_BESIDE = 6000  # characters; Discord allows as many in all embeds of a message together
_DELETED_USER: Final = UserId("456226577798135808")


def read_text(*contents: RawContent) -> str:
    """Join the words of a message and of those that it forwards: their texts, then their embeds, stickers and polls."""
    beside = "\n".join(filter(None, chain.from_iterable(map(_beside, contents))))
    texts = (content.content for content in contents)
    return whole("\n".join(filter(None, (*texts, truncated(beside, _MOST_BESIDE)))))


def identify_author(user_id: UserId, message_id: MessageId | None) -> UserId:
    """Return the id of a message's author; for a deleted user, that of the message.

    Discord gives all deleted users one id and one name. So each of their messages counts as another member's.
    """
    return UserId(message_id) if message_id and user_id == _DELETED_USER else user_id


def _beside(content: RawContent) -> Iterator[str]:
    for embed in readable(content.embeds, payloads.RawEmbed):
        if not _is_preview(embed, content.content or ""):
            yield from (embed.title or "", embed.description or "")
            for field in readable(embed.fields, payloads.RawField):
                yield "\n".join(filter(None, (field.name, field.value)))
    for sticker in readable(content.sticker_items, payloads.RawSticker):
        yield f"[sticker: {one_line(sticker.name)}]"
    for poll in readable([content.poll], payloads.RawPoll):
        options = (option.poll_media.text for option in readable(poll.answers, payloads.RawOption))
        yield f"[poll: {' | '.join(one_line(words or '') for words in (poll.question.text, *options))}]"


def _is_preview(embed: payloads.RawEmbed, text: str) -> bool:
    """Return whether Discord made the embed of a link in the text: then its words are those of a foreign page.

    Only `rich` embeds are written by bots and webhooks. Previews of some pages are `rich`, too; they have the link's
    address. An export does not tell the type, and addresses of previews are often redirected ones. So below a text with
    a link, an embed with an address counts as a preview there.
    """
    if embed.type not in {None, "rich"}:
        return True
    link = embed.url if embed.type else embed.url and "://"
    return bool(link and link in text)
