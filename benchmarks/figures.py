"""A measured figure with its bar; a stored run of figures; and the tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct


class Figure(NamedTuple):
    """A figure: `value` should be at most `bar` and at least `least`; without either, it is only reported."""

    name: str
    value: float
    unit: str
    bar: float = inf
    least: float = -inf

    @property
    def holds(self) -> bool:
        """Return whether it keeps to both."""
        return self.least <= self.value <= self.bar

    @property
    def verdict(self) -> str:
        """Return the verdict beside its value; empty if it holds."""
        return "" if self.holds else "   OVER" if self.value > self.bar else "   UNDER"

    @property
    def kept(self) -> Measured:
        """Return it as it is stored, without its name."""
        bar, least = (limit if isfinite(limit) else None for limit in (self.bar, self.least))
        return Measured(value=self.value, unit=self.unit, bar=bar, least=least)


class Measured(Struct, frozen=True, kw_only=True):
    """A figure as it is stored."""

    value: float
    unit: str = ""
    bar: float | None = None
    least: float | None = None

    def figure(self, name: str) -> Figure:
        """Return it under its name."""
        bar = inf if self.bar is None else self.bar
        return Figure(name, self.value, self.unit, bar, -inf if self.least is None else self.least)


class Run(Struct, frozen=True, kw_only=True):
    """All figures of one time, with the machine."""

    at: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    load: float
    """The load before it began; figures of a busy machine are unreliable."""
    commit: str
    figures: Mapping[str, Measured]
    missing: Mapping[str, str] = {}
    """Benchmarks without figures, each with the reason."""

    @classmethod
    def of(
        cls,
        figures: Sequence[Figure],
        *,
        at: str,
        machine: Mapping[str, str],
        versions: Mapping[str, str],
        load: float,
        commit: str,
        missing: Mapping[str, str],
    ) -> Run:
        """Return the figures, ready to be stored. Raises ValueError for two figures of one name."""
        kept = {figure.name: figure.kept for figure in figures}
        if len(kept) < len(figures):
            raise ValueError("two figures have the same name")
        return cls(at=at, machine=machine, versions=versions, load=load, commit=commit, figures=kept, missing=missing)

    @property
    def all(self) -> list[Figure]:
        """Return the figures, in the order in which they were measured."""
        return [measured.figure(name) for name, measured in self.figures.items()]


def save(run: Run, folder: Path) -> Path:
    """Store a run; return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run.at.replace(':', '')}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")
    return path


def load(path: Path) -> Run:
    """Read a stored run. Raises msgspec.ValidationError if the file holds none."""
    return msgspec.json.decode(path.read_bytes(), type=Run)


def table(run: Run) -> Iterator[str]:
    """Return all figures as a table, a line a figure."""
    yield ", ".join([run.at, *run.machine.values()])
    yield ", ".join([*(f"{name} {version}" for name, version in run.versions.items()), f"commit {run.commit}"])
    yield f"load before it began: {run.load:.1f}"
    yield ""
    width = max(map(len, run.figures), default=0)
    for each in run.all:
        bar = f"  bar {_number(each.bar)}" if isfinite(each.bar) else ""
        least = f"  at least {_number(each.least)}" if isfinite(each.least) else ""
        yield f"{each.name:<{width}}  {_number(each.value):>10} {each.unit:<4}{bar}{least}{each.verdict}".rstrip()
    for name, reason in run.missing.items():
        yield f"{name}: not measured: {reason}"


def change(old: Run, new: Run) -> Iterator[str]:
    """Return the change of each figure from one run to the other."""
    yield f"{old.at} ({old.commit}, load {old.load:.1f}) to {new.at} ({new.commit}, load {new.load:.1f})"
    if old.machine != new.machine:
        yield "They ran on different machines: times say nothing."
    moved = [name for name in new.versions if old.versions.get(name) != new.versions[name]]
    for name in moved:
        yield f"{name}: {old.versions.get(name, 'none')} to {new.versions[name]}"
    yield ""
    width = max(map(len, [*old.figures, *new.figures]), default=0)
    for each in new.all:
        before = old.figures.get(each.name)
        told = f"{'' if before is None else _number(before.value):>10} {_number(each.value):>10} {each.unit:<4}"
        yield f"{each.name:<{width}}  {told} {_share(before, each.value):>8}{each.verdict}".rstrip()
    for name in old.figures.keys() - new.figures.keys():
        yield f"{name:<{width}}  {_number(old.figures[name].value):>10}       gone"


def _share(before: Measured | None, value: float) -> str:
    if before is None:
        return "new"
    if before.value == value:
        return "="
    return f"{(value / before.value - 1) * 100:+.0f}%" if before.value else "from 0"


def _number(value: float) -> str:
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"  # of a share, two digits would hide changes
