"""Logs about the sample: only the log tells the error, and the right document is among the first five."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio import fail_after

from benchmarks.attached_logs import log_with, sought
from intern.service.opening import open_intern
from tests.sample.cases import SAMPLE
from tests.worlds.settings import make_settings

pytestmark = pytest.mark.anyio

ERRORS = {
    "ERROR agent: connect relay:7480: connection refused": "reference/troubleshooting.md",
    "2026-11-02 10:00:00 ERROR relay: agent web-3 refused: protocol too new": "guides/upgrade.md",
    "E1102 10:00:03.1234  7 tls.go:9] certificate name mismatch: relay.lan": "guides/tls.md",
    "ERROR relay: spool is full, cannot accept metrics": "reference/troubleshooting.md",
    "lumen.BackendError: prometheus backend failed, trying again in 5 seconds": "guides/backends.md",
    "WARN  relay: metrics rejected: two agents with the same name are connected": "reference/troubleshooting.md",
}


# Finding B2.
async def test_the_error_in_a_log_finds_its_document(tmp_path: Path) -> None:
    settings = {"data": {"dir": str(tmp_path)}, "kb": {"sources_dir": str(SAMPLE)}, "embeddings": {"provider": "none"}}
    found: dict[str, bool] = {}
    with fail_after(60):
        settings["llm"] = {"provider": "offline"}
        async with open_intern(make_settings(**settings)) as intern:
            await intern.index()
            for number, (error, document) in enumerate(ERRORS.items()):
                best = await intern.search(sought("it does not start, log attached", log_with(error, number)), limit=5)
                found[error] = f"kb:{document}" in {each.source_id for each in best}
    assert [error for error, is_found in found.items() if not is_found] == []
