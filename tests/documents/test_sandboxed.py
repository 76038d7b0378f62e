"""A process for hostile input always ends, and reports the reason."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from intern.documents import sandboxed
from intern.documents.sandboxed import SandboxFailedError, SandboxTimeoutError, keep_processes, run_sandboxed

_AS = (
    "from intern.documents import sandboxed; sandboxed.SECONDS = 1;"
    " sandboxed.serve_sandboxed({}, load=lambda: __import__('itertools'))"
)


def as_work(monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    """Let the process do this instead."""
    start: Any = subprocess.Popen

    def instead(_: list[str], **options: object) -> object:
        started: object = start([sys.executable, "-c", _AS.format(work)], **options)
        return started

    monkeypatch.setattr(subprocess, "Popen", instead)


def test_what_it_says_is_told_and_nothing_of_our_environment_is_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERN__DISCORD__TOKEN", "planted-secret")
    as_work(monkeypatch, "lambda data: data + repr(sorted(__import__('os').environ)).encode()")
    said = run_sandboxed("any", b"given ")
    assert said.startswith(b"given ")
    assert b"INTERN" not in said


@pytest.mark.rest
def test_work_without_an_end_is_ended_by_the_time_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    as_work(monkeypatch, "lambda data: [0 for _ in __import__('itertools').count() if 0] or b''")
    with pytest.raises(SandboxTimeoutError):
        run_sandboxed("any", b"")


def test_a_process_that_sleeps_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxed, "_MOST_WAITING", 1)
    as_work(monkeypatch, "lambda data: __import__('time').sleep(60)")
    with pytest.raises(SandboxTimeoutError):
        run_sandboxed("any", b"")


@pytest.mark.parametrize("work", ["lambda data: bytes(2 << 30)", "lambda data: 1 / 0"])
def test_work_that_wants_too_much_memory_or_fails_is_broken(monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    as_work(monkeypatch, work)
    with pytest.raises(SandboxFailedError):
        run_sandboxed("any", b"")


def test_inputs_share_a_process_until_one_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    as_work(monkeypatch, "lambda data: 1 / 0 if data == b'bad' else str(__import__('os').getpid()).encode()")
    with keep_processes():
        first = run_sandboxed("any", b"1")
        assert run_sandboxed("any", b"2") == first
        with pytest.raises(SandboxFailedError):
            run_sandboxed("any", b"bad")
        assert run_sandboxed("any", b"3") != first
    assert run_sandboxed("any", b"4") != run_sandboxed("any", b"5")


def test_an_input_is_not_judged_by_what_earlier_ones_left(monkeypatch: pytest.MonkeyPatch) -> None:
    as_work(monkeypatch, "lambda data, seen=[]: 1 / 0 if seen else (seen.append(data), data)[1]")
    with keep_processes():
        assert [run_sandboxed("any", data) for data in (b"1", b"2", b"3")] == [b"1", b"2", b"3"]
