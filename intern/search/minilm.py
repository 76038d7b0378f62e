"""MiniLM as a graph that onnxruntime multiplies in 8 bits, built from the weights of the shipped model.

The shipped graph holds weights of 8 bits, but onnxruntime makes floats of them when it loads it and multiplies those.
That took two thirds of the time, and 68 MB. This graph holds the same weights and quantises each token's activations
by itself, so that a text's vector does not depend on the texts beside it. It takes texts of one length, without
padding. Only the few fields of ONNX's protobuf that are needed are read and written here: the package `onnx` would
install 31 MB and three further packages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Field: TypeAlias = "int | float | bytes | str"

LAYERS, HEADS = 6, 12
LAYER = "inner.encoder.layer.{}."
"""The beginning of the names of a layer's weights."""
_LEVELS = 127
"""Steps of an activation's quantisation to either side of zero, which is 128."""
_IR, _OPSET = 8, 17
_OURS = "com.microsoft"  # the domain of onnxruntime's own operators
_CONTRIBUTED = frozenset({"BiasGelu", "MatMulIntegerToFloat", "MultiHeadAttention", "SkipLayerNormalization"})
_DTYPES = {1: "<f4", 2: "|u1", 3: "|i1", 7: "<i8"}
_CODES = {np.dtype(name): code for code, name in _DTYPES.items()}
_FLOAT, _UINT8, _INT64 = 1, 2, 7
_EXTREME = 64  # rows and columns: enough for the kernels of large matrices
_EPSILON = 1e-12
_TINY = 1e-9  # instead of the largest number of a token that has none: zeros stay zeros


def build_graph(shipped: bytes) -> bytes:
    """Build the graph from `ids` (texts × tokens) to `hidden` (texts × tokens × 384), as a serialised ONNX model."""
    builder = _GraphBuilder(_read_constants(shipped))
    given = _encode_value_info("ids", _INT64, ("texts", "tokens"))
    return builder.build_model(given, builder.add_embeddings(), LAYERS)


def build_encoder_graph(weights: dict[str, Array], layers: int) -> bytes:
    """Build the graph from `embedded` (texts × tokens × 384) to `hidden`, for other weights of the same shape.

    They have the names of the shipped model's; matrices are numbered in the order of their use.
    """
    builder = _GraphBuilder(weights)
    given = _encode_value_info("embedded", _FLOAT, ("texts", "tokens", "width"))
    return builder.build_model(given, builder.add_embedding_norm("embedded"), layers)


def multiplies_exactly(run: Callable[[bytes, dict[str, Array]], Array]) -> bool:
    """Return whether this machine multiplies 8 bits without overflow; `run` runs a model on inputs.

    x86 without VNNI adds two products in 16 bits, which large ones do not fit into.
    """
    given = np.full((_EXTREME, _EXTREME), 255, np.uint8)
    product = run(_GraphBuilder({}).build_overflow_test(), {"given": given})
    return bool((product == 255 * _LEVELS * _EXTREME).all())


class _GraphBuilder:
    """The nodes and constants of a graph."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self._weights = weights
        # The weights of matrices have numbers for names, in the order of their use.
        self._matrices = iter(sorted(int(name[4:-2]) for name in weights if name[:4] == "val_" and name[-2:] == "_q"))
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []

    def build_model(self, given: bytes, hidden: str, layers: int) -> bytes:
        put = self._add_constant
        put("one_step", np.float32(1 / _LEVELS))
        put("middle", np.uint8(_LEVELS + 1))
        put("tiny", np.float32(_TINY))
        for n in range(layers):
            hidden = self._add_layer(LAYER.format(n), hidden)
        self._add_node("Identity", [hidden], "hidden")
        return self._serialise_model(given, _encode_value_info("hidden", _FLOAT, ("texts", "tokens", "width")))

    def build_overflow_test(self) -> bytes:
        """Build the graph of `multiplies_exactly`."""
        put = self._add_constant
        matrix = put("matrix", np.full((_EXTREME, _EXTREME), _LEVELS, np.int8))
        one = put("one", np.float32(1))
        scales = put("scales", np.ones(_EXTREME, np.float32))
        self._add_node("MatMulIntegerToFloat", ["given", matrix, one, scales], "product")
        return self._serialise_model(
            _encode_value_info("given", _UINT8, ("m", "k")), _encode_value_info("product", _FLOAT, ("m", "n"))
        )

    def _serialise_model(self, given: bytes, gives: bytes) -> bytes:
        nodes, constants = (
            (_encode_field(1, each) for each in self._nodes),
            (_encode_field(5, each) for each in self._constants),
        )
        graph = b"".join(
            [*nodes, _encode_field(2, "minilm"), *constants, _encode_field(11, given), _encode_field(12, gives)]
        )
        opsets = (
            _encode_field(8, _encode_field(1, domain) + _encode_field(2, n)) for domain, n in (("", _OPSET), (_OURS, 1))
        )
        return b"".join((_encode_field(1, _IR), *opsets, _encode_field(7, graph)))

    def add_embeddings(self) -> str:
        """Add the embeddings of tokens and of their places."""
        put, node, weights, name = self._add_constant, self._add_node, self._weights, "inner.embeddings."
        words, places = (f"{name}{kind}_embeddings.weight" for kind in ("word", "position"))
        # One word in a hundred is looked up: the others stay 8 bits.
        rows = node("Gather", [put(words, weights[f"{words}_q"]), "ids"])
        scales = node("Gather", [put(f"{words}_scale", weights[f"{words}_scale"]), "ids"])
        looked_up = node("Mul", [node("Cast", [rows], to=_FLOAT), scales])
        # Each text is of the first kind of the two that BERT knows.
        table = weights[f"{places}_q"] * weights[f"{places}_scale"] + weights[f"{name}token_type_embeddings.weight"][0]
        first = put("first", np.zeros(1, np.int64))
        length = node("Shape", ["ids"], start=1, end=2)
        placed = node("Slice", [put(places, table), first, length, first])
        return self.add_embedding_norm(node("Add", [looked_up, placed]))

    def add_embedding_norm(self, embedded: str) -> str:
        """Add the normalisation of the embeddings."""
        given = [embedded, *self._add_norm_weights("inner.embeddings.LayerNorm")]
        return self._add_node("LayerNormalization", given, axis=-1, epsilon=_EPSILON)

    def _add_layer(self, name: str, hidden: str) -> str:
        put, node, weights = self._add_constant, self._add_node, self._weights
        query_key_value = [f"{name}attention.self.{kind}" for kind in ("query", "key", "value")]
        bias = put(f"{name}bias", np.concatenate([weights[f"{each}.bias"] for each in query_key_value]))
        node("Split", [self._add_product(hidden, matrices=3)], query_key_value, axis=-1)
        attended = self._add_product(node("MultiHeadAttention", [*query_key_value, bias], num_heads=HEADS))
        hidden = self._add_residual(attended, hidden, f"{name}attention.output")
        wide = self._add_product(hidden)
        active = node("BiasGelu", [wide, self._add_weight(f"{name}intermediate.dense.bias")])
        return self._add_residual(self._add_product(active), hidden, f"{name}output")

    def _add_residual(self, new: str, to: str, name: str) -> str:
        given = [new, to, *self._add_norm_weights(f"{name}.LayerNorm"), self._add_weight(f"{name}.dense.bias")]
        return self._add_node("SkipLayerNormalization", given, epsilon=_EPSILON)

    def _add_product(self, given: str, matrices: int = 1) -> str:
        """Multiply with the next matrices, joined side by side; activations have 8 bits, scaled for each token."""
        put, node, names = self._add_constant, self._add_node, [f"val_{next(self._matrices)}" for _ in range(matrices)]
        matrix = np.concatenate([self._weights[f"{name}_q"] for name in names], axis=1)
        scale = np.concatenate([self._weights[f"{name}_scale"].reshape(-1) for name in names])
        largest = node("Max", [node("ReduceMax", [node("Abs", [given])], axes=[-1], keepdims=1), "tiny"])
        small = node("QuantizeLinear", [node("Div", [given, largest]), "one_step", "middle"])
        factors = [small, put(names[0], matrix), "one_step", put(f"{names[0]}_scale", scale), "middle"]
        return node("Mul", [node("MatMulIntegerToFloat", factors), largest])

    def _add_norm_weights(self, name: str) -> list[str]:
        return [self._add_weight(f"{name}.weight"), self._add_weight(f"{name}.bias")]

    def _add_weight(self, name: str) -> str:
        return self._add_constant(name, self._weights[name])

    def _add_constant(self, name: str, value: Array | np.generic) -> str:
        array = np.ascontiguousarray(value)  # which makes one number of none a list of one
        dims = b"".join(_encode_field(1, size) for size in np.shape(value))
        self._constants.append(
            dims + _encode_field(2, _CODES[array.dtype]) + _encode_field(8, name) + _encode_field(9, array.tobytes())
        )
        return name

    def _add_node(
        self, operator: str, inputs: Sequence[str], outputs: str | Sequence[str] = "", **attributes: float | list[int]
    ) -> str:
        """Add a node and return the name of its first output."""
        given = [outputs] if isinstance(outputs, str) else outputs
        named = [each or f"{operator}_{len(self._nodes)}" for each in given]
        fields = [
            *(_encode_field(1, each) for each in inputs),
            *(_encode_field(2, each) for each in named),
            _encode_field(4, operator),
        ]
        fields += [_encode_field(5, _encode_attribute(name, value)) for name, value in attributes.items()]
        self._nodes.append(b"".join([*fields, _encode_field(7, _OURS if operator in _CONTRIBUTED else "")]))
        return named[0]


def _encode_attribute(name: str, value: float | list[int]) -> bytes:
    if isinstance(value, list):
        return _encode_field(1, name) + b"".join(_encode_field(8, each) for each in value) + _encode_field(20, 7)
    # The numbers of the field and of its type.
    field, kind = (3, 2) if isinstance(value, int) else (2, 1)
    return _encode_field(1, name) + _encode_field(field, value) + _encode_field(20, kind)


def _encode_value_info(name: str, dtype: int, sizes: Sequence[str]) -> bytes:
    shape = b"".join(_encode_field(1, _encode_field(2, size)) for size in sizes)
    return _encode_field(1, name) + _encode_field(
        2, _encode_field(1, _encode_field(1, dtype) + _encode_field(2, shape))
    )


def _read_constants(model: bytes) -> dict[str, Array]:
    """Read the constants of a model, by name."""
    found: dict[str, Array] = {}
    for number, graph in _read_fields(memoryview(model)):
        for inner, tensor in _read_fields(graph) if number == 7 else ():
            if inner == 5:
                fields = list(_read_fields(tensor))
                dims = [value for n, value in fields if n == 1]
                [name], [dtype] = ([value for n, value in fields if n == wanted] for wanted in (8, 2))
                for data in (value for n, value in fields if n == 9 and dtype in _DTYPES):
                    found[str(name, "utf-8")] = np.frombuffer(data, _DTYPES[dtype]).reshape(dims)
    return found


def _read_fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a protobuf message: field number, and the value as number or bytes.

    The shipped model has no other kinds of fields where this looks.
    """
    at = 0
    while at < len(data):
        key, at = _read_number(data, at)
        value, at = _read_number(data, at)
        if key & 7:
            yield key >> 3, data[at : at + value]
            at += value
        else:
            yield key >> 3, value


def _read_number(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _encode_field(number: int, value: Field) -> bytes:
    match value:
        case int():
            return _encode_number(number << 3) + _encode_number(value)
        case float():
            return _encode_number(number << 3 | 5) + struct.pack("<f", value)
        case _:
            data = value.encode() if isinstance(value, str) else value
            return _encode_number(number << 3 | 2) + _encode_number(len(data)) + data


def _encode_number(value: int) -> bytes:
    value &= (1 << 64) - 1  # as protobuf writes negative numbers
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
