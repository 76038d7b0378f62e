"""The command that adds an extra to this installation, by how the program was installed."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "discord-intern"
_TREE: Final = Path(__file__).parents[2]


def format_install_hint(
    extra: str, *, is_binary: bool = hasattr(sys, "frozen"), prefix: Path = Path(sys.prefix), tree: Path = _TREE
) -> str:
    """Return the command that adds an extra and keeps those that are there; of a binary, what to use instead."""
    receipt, python = prefix / "uv-receipt.toml", shlex.quote(sys.executable)
    if is_binary:
        return f'replace this binary, which takes no extras: pipx install "{DISTRIBUTION}[{extra}]"'
    if (prefix / "pipx_metadata.json").is_file():
        return f'run: pipx runpip {prefix.name} install "{DISTRIBUTION}[{extra}]"'
    if receipt.is_file():
        held = re.search(rf'"{DISTRIBUTION}", extras = \[(.*?)\]', receipt.read_text(encoding="utf-8"))
        extras = sorted({*re.findall(r"[\w-]+", held[1] if held else ""), extra})
        return f'run: uv tool install "{DISTRIBUTION}[{",".join(extras)}]"'
    pip = f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
    if (tree / "pyproject.toml").is_file():  # a clone
        return f'run: {pip} -e "{tree}[{extra}]"'
    return f'run: {pip} "{DISTRIBUTION}[{extra}]"'
