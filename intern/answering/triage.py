"""What is surely nothing to answer, told without a model: for messages that nobody addressed to the bot. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from intern.domain import Hit

_THANKS = re.compile(r"\W*(many\ )?(thanks|thank you|thx|ty|cheers|great|perfect|never ?mind|solved)\b", re.IGNORECASE)


def is_chatter(question: str) -> bool:
    """Thanks and the like, in the languages that have rules; False says nothing."""
    return bool(_THANKS.match(question)) and "?" not in question


def nothing_fits(hits: Sequence[Hit]) -> bool:
    """Whether no passage is near enough to a message to be worth a call."""
    return not hits
