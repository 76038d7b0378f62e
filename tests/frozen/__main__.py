"""`python -m tests.frozen`: show how commands and files differ from what is recorded; `--record` records them anew.

Names of stories limit it to these, as in `python -m tests.frozen --record help`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.frozen.golden_files import differences, record
from tests.frozen.stories import STORIES, tell


def main(arguments: list[str]) -> int:
    names = [each for each in arguments if each != "--record"]
    if unknown := set(names) - STORIES.keys():
        print(f"no such story: {', '.join(sorted(unknown))}; there are {', '.join(STORIES)}", file=sys.stderr)
        return 2
    differs = False
    for story in names or STORIES:
        with tempfile.TemporaryDirectory(prefix="intern-frozen-") as folder:
            texts = tell(story, Path(folder))
        found = differences(story, texts)
        print(found, end="")
        differs = differs or bool(found)
        if "--record" in arguments:
            record(story, texts)
    return 1 if differs and "--record" not in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
