"""The embedding models of this machine: the cost of the first text, and of many.

In a process of its own, so that only the model's memory is counted, on top of intern's imports by then.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from time import perf_counter, process_time

import anyio
from anyio.to_thread import run_sync

from benchmarks.figures import Figure
from benchmarks.made_up import document
from benchmarks.memory import peak, resident
from intern.search.embedding_local import ENGLISH, MULTILINGUAL, LocalEmbedder, LocalEmbeddingModel

QUESTION = "Agents are rejected since the clock of the machine is wrong. What can I do?"
TEXTS = 200
CHARACTERS = 1000


MODELS = {"embedding model": (ENGLISH, 200), "multilingual embedding model": (MULTILINGUAL, 250)}
"""Each model by its name, with its limit in megabytes."""


def measure() -> Iterator[Figure]:
    """Embed a question first, as in a new bot; then the passages of a knowledge base."""
    for model, (local, most) in MODELS.items():
        if not local.is_installed:
            print(f"the {model} is not measured: it needs the extra {local.extra}", file=sys.stderr)
            continue
        command = [sys.executable, "-m", "benchmarks.embedding", model]
        said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        yield Figure(f"{model}, the first question", said["first"], "s", math.inf)
        yield Figure(f"{model}, memory after the first question", said["memory"], "MB", most)
        yield Figure(f"{model}, memory at most while it is loaded", said["peak"], "MB", math.inf)
        yield Figure(f"{model}, a question (CPU)", said["question"] * 1000, "ms", math.inf)
        name = f"{model}, {TEXTS} texts of {CHARACTERS:,} characters"
        yield Figure(f"{name}, CPU of one", said["text"] * 1000, "ms", math.inf)
        yield Figure(f"{name}, memory after them", said["after"], "MB", math.inf)
        yield Figure(f"{name}, memory at most", said["most"], "MB", math.inf)


async def _cost(model: LocalEmbeddingModel) -> dict[str, float]:
    import_module("intern.service")  # earlier imports of a command are not the model's
    before, began = await run_sync(resident), perf_counter()
    embedder = LocalEmbedder(model)
    await embedder.compute_vectors([QUESTION], asked=True)
    first, memory, loading = perf_counter() - began, await run_sync(resident) - before, await run_sync(peak) - before
    spent = process_time()
    for n in range(20):
        await embedder.compute_vectors([f"{QUESTION} {n}"], asked=True)
    question = (process_time() - spent) / 20
    spent = process_time()
    await embedder.compute_vectors([document(n)[:CHARACTERS] for n in range(TEXTS)])
    text = (process_time() - spent) / TEXTS
    after, most = await run_sync(resident) - before, await run_sync(peak) - before
    return {
        "first": first,
        "memory": memory,
        "peak": loading,
        "question": question,
        "text": text,
        "after": after,
        "most": most,
    }


if __name__ == "__main__":
    print(json.dumps(anyio.run(_cost, MODELS[sys.argv[1]][0])))
