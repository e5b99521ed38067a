"""What an .onnx file may ask of onnxruntime, looked up before onnxruntime sees it: a model may come from a stranger.

Refused are weights in other files, which could be any file of this machine, and operators of other libraries. The file
is read as what it is, messages of Protocol Buffers: a field is a number, a kind and a value; the numbers are those of
onnx.proto.
"""

from collections.abc import Iterator
from pathlib import Path

from mtn.errors import InputError

LARGEST = 1 << 31
"""Bytes of a model: Protocol Buffers have no larger messages."""
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Operators that are part of ONNX or of onnxruntime."""
READS_FILES = ("EPContext",)
"""Operators of those that read further files."""
DEEPEST = 50
"""Graphs within nodes of graphs."""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Operators = set[tuple[str, str]]
"""Domains and names."""
Fields = Iterator[tuple[int, "int | memoryview"]]


class Damaged(Exception):
    """It is no message of Protocol Buffers."""


def check_onnx(path: Path, name: str) -> None:
    """Raise if a model is too large, has weights in other files, or operators that are not onnxruntime's own."""
    size = path.stat().st_size
    if size > LARGEST:
        raise InputError(f"encoder {name!r} has {size / 1e9:.1f} GB, an ONNX model has at most {LARGEST / 1e9:.1f} GB")
    try:
        problem = _model_problem(memoryview(path.read_bytes()))
    except (Damaged, UnicodeDecodeError) as error:
        raise InputError(f"encoder {name!r} is not a readable ONNX model: {error}") from None
    except OSError as error:
        raise InputError(f"encoder {name!r} cannot be read: {error.strerror}") from None
    if problem:
        raise InputError(f"encoder {name!r} {problem}")


def _model_problem(model: memoryview) -> str | None:
    """Of ModelProto: graph 7, training_info 20, functions 25."""
    functions = [value for number, value in _messages(model) if number == 25]
    local = {_function_name(function) for function in functions}
    for number, value in _messages(model):
        if number == 7 and (problem := _graph_problem(value, local)):
            return problem
        if number == 20:
            return "has a graph for training, which is not for here"
    for function in functions:  # FunctionProto: node 7
        for number, value in _messages(function):
            if number == 7 and (problem := _node_problem(value, local, 1)):
                return problem
    return None


def _function_name(function: memoryview) -> tuple[str, str]:
    """Domain and name of an operator that is written out in the file: of FunctionProto, domain 10 and name 1."""
    fields = dict(_messages(function))
    return _text(fields.get(10, memoryview(b""))), _text(fields.get(1, memoryview(b"")))


def _graph_problem(graph: memoryview, local: Operators, depth: int = 0) -> str | None:
    """Of GraphProto: node 1, initializer 5, sparse_initializer 15."""
    if depth > DEEPEST:
        return f"has graphs within graphs, more than {DEEPEST} deep"
    for number, value in _messages(graph):
        problem = None
        if number == 1:
            problem = _node_problem(value, local, depth + 1)
        elif number in (5, 15):
            problem = _tensor_problem(value, number == 15)
        if problem:
            return problem
    return None


def _node_problem(node: memoryview, local: Operators, depth: int) -> str | None:
    """Of NodeProto: op_type 4, attribute 5, domain 7."""
    operator, domain = "", ""
    for number, value in _messages(node):
        if number == 4:
            operator = _text(value)
        elif number == 7:
            domain = _text(value)
        elif number == 5 and (problem := _attribute_problem(value, local, depth)):
            return problem
    if (domain not in DOMAINS and (domain, operator) not in local) or operator in READS_FILES:
        return f"needs the operator {domain[:40]}:{operator[:40]}, which is not onnxruntime's own"
    return None


def _attribute_problem(attribute: memoryview, local: Operators, depth: int) -> str | None:
    """Of AttributeProto: t 5, g 6, tensors 10, graphs 11, sparse_tensor 22, sparse_tensors 23."""
    for number, value in _messages(attribute):
        problem = None
        if number in (5, 10, 22, 23):
            problem = _tensor_problem(value, number in (22, 23))
        elif number in (6, 11):
            problem = _graph_problem(value, local, depth)
        if problem:
            return problem
    return None


def _tensor_problem(tensor: memoryview, sparse: bool) -> str | None:
    """Of TensorProto: external_data 13, data_location 14 (1: external); of SparseTensorProto: values 1, indices 2."""
    for number, value in _fields(tensor):
        if sparse and number in (1, 2) and isinstance(value, memoryview):
            if problem := _tensor_problem(value, sparse=False):
                return problem
        elif not sparse and (number == 13 or (number == 14 and value != 0)):
            return "has weights in another file, which is not opened: save it as one file (onnx.save with all weights)"
    return None


def _text(value: memoryview) -> str:
    return bytes(value).decode()


def _messages(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of a message that are messages or text."""
    for number, value in _fields(message):
        if isinstance(value, memoryview):
            yield number, value


def _fields(message: memoryview) -> Fields:
    """Number and value of each field of a message."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, position = _varint(message, position)
            yield number, value
            continue
        if kind == BYTES:
            length, position = _varint(message, position)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise Damaged(f"a field of kind {kind}")
        if position + length > len(message):
            raise Damaged("it is cut off")
        if kind == BYTES:
            yield number, message[position : position + length]
        position += length


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """A number of any length, seven bits a byte, and the position after it."""
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise Damaged("it is cut off")
        byte = message[position]
        number |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return number, position
    raise Damaged("a number has more than 64 bits")
