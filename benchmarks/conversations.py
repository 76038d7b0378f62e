"""Live capture of real chat: the conversations kept together, each log in a channel, with names as mentions."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure
from tests.eval import channels
from tests.eval.chats import EVAL

_WAYS: Final[Mapping[channels.Links, str]] = {
    "all": "replies and mentions",
    "unmentioned": "mentions, and replies where nobody is named",
}


def measure() -> Iterator[Figure]:
    """Return the shares for each way of addressing a person."""
    if not EVAL.is_dir():
        print(f"live capture is not measured: there are no real chats in {EVAL}", file=sys.stderr)
        return
    for links, way in _WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            kept = channels.play(Path(folder) / "data", links=links)
        yield Figure(
            f"live, {way}: question and answer whole in one block, share",
            kept.whole / kept.asked,
            "",
            least=channels.WHOLE_BAR[links],
        )
        yield Figure(
            f"live, {way}: the asker's follow-ups in that block, share",
            kept.followed / kept.follow_ups,
            "",
            least=channels.FOLLOW_UPS_BAR,
        )
        yield Figure(
            f"live, {way}: messages of a block that belong elsewhere, share",
            kept.foreign / kept.messages,
            "",
            bar=channels.FOREIGN_BAR,
        )
        yield Figure(f"live, {way}: the same in the blocks of exchanges, mean share", kept.beside, "")
        yield Figure(f"live, {way}: exchanges", kept.asked, "")
