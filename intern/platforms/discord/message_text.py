"""The words and the author of a message, read alike from the gateway, from REST and from an export. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from intern.core.ids import MessageId, UserId
from intern.core.text.encoding import replace_surrogates
from intern.core.text.words import collapse_whitespace, truncate_text
from intern.platforms.discord import payloads
from intern.platforms.discord.payloads import RawContent, parse_items

_MOST_EMBEDDED = 6000  # characters; Discord allows as many in all embeds of a message together
_DELETED_USER: Final = UserId("456226577798135808")


def read_text(own: RawContent, *forwarded: RawContent, is_bots: bool) -> str:
    """Join the words of a message and of those that it forwards: their texts, then their embeds, stickers and polls."""
    texts = (content.content for content in (own, *forwarded))
    beside = chain(_read_extras(own, is_bots=is_bots), *map(_read_extras, forwarded))
    return replace_surrogates("\n".join(filter(None, (*texts, *beside))))


def identify_author(user_id: UserId, message_id: MessageId | None) -> UserId:
    """Return the id of a message's author; for a deleted user, that of the message.

    Discord gives all deleted users one id and one name. So each of their messages counts as another member's.
    """
    return UserId(message_id) if message_id and user_id == _DELETED_USER else user_id


def _read_extras(content: RawContent, *, is_bots: bool | None = None) -> Iterator[str]:
    """Yield the texts beside a message's own; Discord does not say whether a bot wrote a forwarded message."""
    yield truncate_text("\n".join(filter(None, _read_embeds(content, is_bots=is_bots))), _MOST_EMBEDDED)
    for sticker in parse_items(content.sticker_items, payloads.RawSticker):
        yield f"[sticker: {collapse_whitespace(sticker.name)}]"
    for poll in parse_items([content.poll], payloads.RawPoll):
        options = (option.poll_media.text for option in parse_items(poll.answers, payloads.RawPollOption))
        if words := list(filter(None, (collapse_whitespace(each or "") for each in (poll.question.text, *options)))):
            yield f"[poll: {' | '.join(words)}]"


def _read_embeds(content: RawContent, *, is_bots: bool | None) -> Iterator[str | None]:
    for embed in parse_items(content.embeds, payloads.RawEmbed):
        if not _is_preview(embed, content.content or "", is_bots=is_bots):
            yield from (embed.title, embed.description)
            for field in parse_items(embed.fields, payloads.RawEmbedField):
                yield from (field.name, field.value)


def _is_preview(embed: payloads.RawEmbed, text: str, *, is_bots: bool | None) -> bool:
    """Return whether Discord made the embed of a link in the text: then its words are those of a foreign page.

    People cannot write embeds, so all of theirs are previews. Bots write `rich` ones. A preview that is `rich`, or of
    an export, which has no types, has the link's address. Below a forwarded link, any embed with an address counts
    as a preview: some links are redirected.
    """
    link = "://" if is_bots is None else (embed.url or "").rstrip("/")
    return is_bots is False or embed.type not in {None, "rich"} or bool(embed.url and link in text)
