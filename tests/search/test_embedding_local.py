"""Embeddings on this machine: the same bytes for the same text, and nothing loaded without need."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Barrier

import pytest
from anyio import create_task_group

from intern.core.errors import ConfigError, ModelAccessError
from intern.search import embedding_local
from intern.search.embedding_local import (
    ENGLISH,
    LoadedEmbeddingModel,
    LocalEmbedder,
    LocalEmbeddingModel,
    WordPieceTokenizer,
    is_english_installed,
    load_english_model,
)


class Counting:
    """A model whose vector of a text is how many tokens it has; keeps the sizes of its batches."""

    def __init__(self) -> None:
        self.loads = 0
        self.batches: list[list[int]] = []

    @property
    def embedder(self) -> LocalEmbedder:
        return LocalEmbedder(LocalEmbeddingModel("counting", self.load))

    def load(self) -> LoadedEmbeddingModel:
        self.loads += 1
        return LoadedEmbeddingModel(self.tokens, self.encode)

    def tokens(self, text: str, asked: bool) -> Sequence[int]:  # noqa: FBT001
        return WordPieceTokenizer(["[UNK]", "[CLS]", "[SEP]", "a", "b"]).tokenize(f"b {text}" if asked else text, 256)

    def encode(self, tokens: Sequence[Sequence[int]], _asked: bool) -> Sequence[bytes]:  # noqa: FBT001
        self.batches.append([len(each) for each in tokens])
        return [bytes([min(len(each), 255)]) for each in tokens]


async def test_vectors_come_in_the_order_of_the_texts_and_no_text_is_padded() -> None:
    model = Counting()
    texts = ["a " * n for n in (9, 1, 300, 2, 200, 9)] + ["b " * 9]
    vectors = await model.embedder.compute_vectors(texts)
    assert vectors == [bytes([n]) for n in (11, 3, 255, 4, 202, 11, 11)]
    assert sorted(model.batches) == [[3], [4], [11, 11], [202], [256]]


async def test_many_short_texts_of_one_length_go_through_in_batches() -> None:
    model = Counting()
    texts = [" ".join("a" if n >> bit & 1 else "b" for bit in range(8)) for n in range(64)]
    await model.embedder.compute_vectors(texts)
    assert [len(batch) for batch in sorted(model.batches, reverse=True)] == [25, 25, 14]


async def test_identical_texts_are_embedded_once() -> None:
    model = Counting()
    vectors = await model.embedder.compute_vectors(["a a", "a", "a a", "A  a"])
    assert vectors == [bytes([n]) for n in (4, 3, 4, 4)]
    assert sorted(model.batches) == [[3], [4]]


async def test_several_cores_embed_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_local, "count_threads", lambda: 3)
    meeting = Barrier(3, timeout=5)

    class Meeting(Counting):
        def encode(self, tokens: Sequence[Sequence[int]], asked: bool) -> Sequence[bytes]:  # noqa: FBT001
            meeting.wait()  # breaks unless three threads come to it
            return super().encode(tokens, asked)

    await Meeting().embedder.compute_vectors(["a", "a a", "a a a"])


async def test_the_model_is_loaded_at_first_use_and_once() -> None:
    model = Counting()
    embedder = model.embedder
    assert model.loads == 0
    async with create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(embedder.compute_vectors, ["a"])
    assert await embedder.compute_vectors([]) == []
    assert model.loads == 1


async def test_questions_and_documents_are_told_apart() -> None:
    embedder = Counting().embedder
    for texts in (["a"], ["a", "a a"]):
        documents, asked = [await embedder.compute_vectors(texts, asked=asked) for asked in (False, True)]
        assert asked == [bytes([vector[0] + 1]) for vector in documents]


def test_without_the_extra_it_says_what_to_install() -> None:
    lacking = ENGLISH._replace(packages=("there_is_no_such_package",))
    assert not lacking.is_installed
    with pytest.raises(ConfigError, match=r"\[embeddings\]"):
        LocalEmbedder(lacking)


@pytest.mark.skipif(not is_english_installed(), reason="needs the extra: embeddings")
def test_other_weights_than_the_tested_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_local, "_WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(ModelAccessError, match="SHA-256"):
        load_english_model()


@pytest.mark.rest
@pytest.mark.skipif(not is_english_installed(), reason="needs the extra: embeddings")
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_texts_that_mean_the_same_are_alike_and_bytes_do_not_depend_on_company() -> None:
    texts = ["How do I install the nvidia driver?", "nvidia drivers setup on linux", "I baked a cake", "", "x " * 900]
    texts += [f"Agent number {n} was rejected." for n in range(10, 30)]  # these go through together
    embedder = LocalEmbedder()
    together = await embedder.compute_vectors(texts)
    alone = [(await embedder.compute_vectors([text]))[0] for text in texts]
    assert together == alone
    numbers = [struct.unpack("<384f", vector) for vector in together]
    assert all(abs(sum(n * n for n in each) - 1) < 1e-5 for each in numbers)
    question, paraphrase, other = [sum(map(float.__mul__, numbers[0], each)) for each in numbers[:3]]
    assert question == pytest.approx(1)
    assert paraphrase > 0.6
    assert other < 0.2


@pytest.mark.rest
def test_naming_the_embedder_imports_neither_numpy_nor_the_runtime() -> None:
    code = "import sys, intern.service.models; sys.exit(bool({'numpy', 'onnxruntime'} & set(sys.modules)))"
    root = Path(embedding_local.__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.rest
@pytest.mark.skipif(not is_english_installed(), reason="the extra `embeddings` is not installed")
def test_what_runs_the_model_tells_nobody_and_leaves_nothing_in_the_home_directory(tmp_path: Path) -> None:
    # onnxruntime 1.29 and later send telemetry, and keep an id for it, unless a setting forbids it before their import.
    code = (
        "from intern.search.embedding_local import load_english_model; load_english_model().encode([[101, 102]], False)"
    )
    environment = {"PATH": os.defpath, "HOME": str(tmp_path)}  # above all no CI, which would silence them, too
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []
