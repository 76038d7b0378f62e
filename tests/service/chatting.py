"""Channels to export, in which time passes as people write."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from intern.core.ids import position_at

NOON = datetime(2025, 2, 1, 12, tzinfo=UTC)
ALICE, BOB, MAYA, TOM = "11", "12", "21", "22"
"""Members, and people of the team."""


class Town:
    """A server. All channels share its clock."""

    def __init__(self) -> None:
        self.now = NOON
        self.written = 0
        self.places: dict[str, Place] = {}

    def channel(self, place_id: str = "100", **about: Any) -> Place:
        """Return the channel of that id; add it if it is missing."""
        if place_id not in self.places:
            self.places[place_id] = Place(self, place_id, about)
        return self.places[place_id]

    def thread(self, place_id: str, kind: str = "GuildPublicThread", **about: Any) -> Place:
        """Return the thread in channel 100."""
        return self.channel(place_id, type=kind, categoryId="100", **about)

    def next_id(self) -> str:
        """Return the id of the next message or thread, if no time passes."""
        return position_at(self.now, self.written).id

    def wait(self, **delta: float) -> datetime:
        """Let time pass."""
        self.now += timedelta(**delta)
        return self.now

    def save(self, folder: Path) -> tuple[Path, ...]:
        """Save the export, a file for each channel."""
        folder.mkdir(parents=True, exist_ok=True)
        return tuple(place.save(folder) for place in self.places.values())


class Place:
    """A channel or thread."""

    def __init__(self, town: Town, place_id: str, about: dict[str, Any]) -> None:
        self._town = town
        self.about = {"id": place_id, "type": "GuildTextChat", "categoryId": None, "name": f"c{place_id}", **about}
        self.messages: list[dict[str, Any]] = []

    def say(self, who: str, text: str, *, to: str | None = None, after: float = 300, **more: Any) -> str:
        """Write a message so many seconds after the previous one."""
        town = self._town
        town.now += timedelta(seconds=after)
        message_id = more.pop("own_id", None) or town.next_id()
        town.written += 1
        self.messages.append(
            {
                "id": message_id,
                "type": "Reply" if to else "Default",
                "timestamp": town.now.isoformat(),
                "timestampEdited": None,
                "content": text,
                "author": {"id": who, "name": f"u{who}", "isBot": False, "roles": []},
                **({"reference": {"messageId": to}} if to else {}),
                **more,
            }
        )
        return str(message_id)

    def edit(self, message_id: str, text: str) -> None:
        """Edit a message. An export holds the last text, and when it was written."""
        for message in self.messages:
            if message["id"] == message_id:
                message.update(content=text, timestampEdited=self._town.now.isoformat())

    def save(self, folder: Path) -> Path:
        """Save the file."""
        path = folder / f"{self.about['id']}.json"
        path.write_text(
            json.dumps({"guild": {"id": "5", "name": "s"}, "channel": self.about, "messages": self.messages})
        )
        return path
