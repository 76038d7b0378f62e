"""Settings of indexing, of discovery, and of fetching pages."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from intern.core.search_documents import FileType


class IndexingOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of indexing."""

    concurrency: Annotated[int, Meta(ge=1)] = 4
    """Sources that are summarised at the same time."""
    max_source_chars: Annotated[int, Meta(ge=1)] = 8000
    """Characters of a source that the model sees; of a longer one its head and its tail."""
    max_topic_chars: Annotated[int, Meta(ge=1)] = 4000
    """Characters of a topic file that the model sees; of a longer one each question, and what fits of the answers."""
    max_description_chars: Annotated[int, Meta(ge=1, le=800)] = 800
    """Longer descriptions are cut at a word. A model's reply of more than 800 is refused, and requested again later."""


class DiscoveryOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[discovery]`: the places to scan, the files to find, and how often."""

    scan_paths: tuple[str, ...] = ()
    """Files, folders and patterns such as `/etc/systemd/system/*.service`; none: discovery is off."""
    documentation: tuple[str, ...] = ("*.md", "*.txt")
    configuration: tuple[str, ...] = ("*.yaml", "*.yml", "*.json", "*.toml")
    source_code: tuple[str, ...] = ("*.py",)
    services: tuple[str, ...] = ("*.service",)
    skip: tuple[str, ...] = ("__pycache__", ".venv", "*.pyc", ".git", "*.backup*", "node_modules", ".*")
    """Names of files and folders to skip. Hidden ones hold keys more often than knowledge."""
    interval_seconds: Annotated[float, Meta(ge=1)] = 600.0
    max_items: Annotated[int, Meta(ge=1)] = 10
    """Files that are summarised in one cycle."""
    max_chars: Annotated[int, Meta(ge=500)] = 8_000
    """Characters of a file that a model gets: some 2,200 tokens show its purpose."""
    answer: bool = False
    """Use discovered files for answers, too."""

    @property
    def patterns(self) -> tuple[tuple[FileType, tuple[str, ...]], ...]:
        """Each type and its patterns, the most useful first."""
        return (
            ("documentation", self.documentation),
            ("configuration", self.configuration),
            ("source_code", self.source_code),
            ("services", self.services),
        )


class WebOptions(Struct, frozen=True, kw_only=True):
    """Bounds of fetching."""

    max_bytes: int = 1_000_000
    """The size of a page; larger ones are left out."""
    concurrency: int = 8
    """Requests at the same time, to all sites together; one site is sent one at a time."""
    pause_seconds: float = 0.5
    """Between two requests to one site."""
    timeout_seconds: float = 30.0
    """For one request, from the first byte sent to the last one read."""
    render_command: tuple[str, ...] = ()
    """Prints a page after its scripts have run; the address is its last argument. Empty: no page is rendered."""
    render_seconds: float = 30.0
    max_rendered_bytes: int = 10_000_000
    """Larger than `max_bytes`, since such a page contains its scripts' data."""
