"""`python -m benchmarks.compare [OLD] [NEW]`: what changed from one kept run to another; by default, the last two."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import change, load

RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str], folder: Path = RESULTS) -> int:
    """Find a run by its file, or by the beginning of its name."""
    kept = sorted(folder.glob("*.json"))
    if len(arguments) > 2 or len(kept) < 2:
        print(
            f"there are {len(kept)} runs in {folder}; name at most two of them, `make bench` makes another",
            file=sys.stderr,
        )
        return 2
    chosen = kept[-2:]
    for n, name in enumerate(arguments):
        found = [path for path in kept if path.name.startswith(Path(name).name)]
        if len(found) != 1:
            print(f"{name} names {len(found)} of: {', '.join(path.name for path in kept)}", file=sys.stderr)
            return 2
        chosen[n] = found[0]
    print("\n".join(change(*map(load, chosen))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
