"""Notes are learned once, again when they change, and withdrawn when they are deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from intern.core.errors import ConfigError
from intern.service.notes_import import import_notes
from intern.service.opening import open_intern
from intern.settings.loading import load_settings
from intern.settings.settings import Settings

pytestmark = pytest.mark.anyio

PORTS = "# Ports\n\nThe relay listens on port 7480 unless its operator sets another.\n"


def settings_in(folder: Path) -> Settings:
    return load_settings(environ={}, overrides={"data": {"dir": str(folder)}, "llm": {"provider": "offline"}})


async def nuggets(settings: Settings) -> list[str]:
    async with open_intern(settings) as intern:
        return sorted(each.detailed_analysis for each in (await intern.facts.list_nuggets(size=100)).rows)


async def test_notes_are_learned_once_then_changed_then_withdrawn(tmp_path: Path) -> None:
    notes, settings = tmp_path / "notes", settings_in(tmp_path / "data")
    (notes / "deep").mkdir(parents=True)
    (notes / "ports.md").write_text(PORTS)
    (notes / "deep" / "logs.md").write_text("The logs of the relay rotate every night at three.")
    (notes / ".hidden.md").write_text("Nobody shall know about these secret notes.")
    (notes / "other.txt").write_text("Nobody asked for this file of plain text.")
    first = await import_notes(settings, notes)
    assert (first.files, first.new, first.changed, first.unchanged, first.withdrawn) == (2, 2, 0, 0, 0)
    assert len(await nuggets(settings)) == 2
    again = await import_notes(settings, notes)
    assert (again.new, again.changed, again.unchanged) == (0, 0, 2)
    assert again.read is not None
    assert (again.read.unchanged, again.read.extracted) == (2, 0)
    (notes / "ports.md").write_text(PORTS.replace("7480", "9000"))
    (notes / "deep" / "logs.md").unlink()
    changed = await import_notes(settings, notes)
    assert (changed.new, changed.changed, changed.withdrawn) == (0, 1, 1)
    [left] = await nuggets(settings)
    assert "9000" in left
    async with open_intern(settings) as intern:
        assert await intern.search("rotate every night") == ()


async def test_a_dry_run_changes_nothing_and_tells_of_the_cost(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "ports.md").write_text(PORTS)
    endpoint = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    settings = load_settings(environ={}, overrides={"data": {"dir": str(tmp_path / "data")}, "llm": endpoint})
    planned = await import_notes(settings, notes, dry_run=True)
    assert (planned.new, planned.model_calls, planned.read) == (1, 1, None)
    assert planned.tokens is not None
    assert planned.tokens > 1000
    assert not (tmp_path / "data").exists()


async def test_a_long_note_is_several_conversations(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "long.md").write_text("\n\n".join(f"Paragraph {n} says: {'word ' * 150}" for n in range(40)))
    assert (await import_notes(settings_in(tmp_path / "data"), notes)).new > 1


async def test_while_a_file_cannot_be_read_nothing_is_withdrawn(tmp_path: Path) -> None:
    notes, settings = tmp_path / "notes", settings_in(tmp_path / "data")
    notes.mkdir()
    (notes / "ports.md").write_text(PORTS)
    await import_notes(settings, notes)
    (notes / "ports.md").write_bytes(b"\xff\xfe\x00")
    done = await import_notes(settings, notes)
    assert done.skipped == {"ports.md": "it is not UTF-8 text"}
    assert len(await nuggets(settings)) == 1


async def test_what_is_no_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        await import_notes(settings_in(tmp_path / "data"), tmp_path / "nowhere")
