"""What an operator may set about discovery."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from intern.domain import FileType


class DiscoveryOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[discovery]`: where to look, for what, and how often."""

    scan_paths: tuple[str, ...] = ()
    """Files, folders and patterns such as `/etc/systemd/system/*.service`; none: discovery is off."""
    documentation: tuple[str, ...] = ("*.md", "*.txt")
    configuration: tuple[str, ...] = ("*.yaml", "*.yml", "*.json", "*.toml")
    source_code: tuple[str, ...] = ("*.py",)
    services: tuple[str, ...] = ("*.service",)
    skip: tuple[str, ...] = (
        "__pycache__",
        ".venv",
        "*.pyc",
        ".git",
        "*.backup*",
        "node_modules",
        ".*",
    )
    """Names of files and folders that are never looked at. Hidden ones hold keys more often than knowledge."""
    interval_seconds: Annotated[float, Meta(ge=1)] = 600.0
    max_items: Annotated[int, Meta(ge=1)] = 10
    """Files that are summarised in one cycle."""
    max_chars: Annotated[int, Meta(ge=500)] = 8_000
    """Characters of a file that a model is shown: some 2,200 tokens tell what it is for."""
    answer: bool = False
    """What was discovered serves answers, too."""

    @property
    def patterns(self) -> tuple[tuple[FileType, tuple[str, ...]], ...]:
        """Each type and its patterns, in the order of their worth."""
        return (
            ("documentation", self.documentation),
            ("configuration", self.configuration),
            ("source_code", self.source_code),
            ("services", self.services),
        )
