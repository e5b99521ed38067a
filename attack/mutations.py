"""Damage to files: bits, lengths, pieces of other places, and lies where a format tells sizes and types."""

import copy
import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

EDGE = 256
"""Bytes at either end of a file, where formats keep what they say of themselves: half of the damage is there."""
NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
BOMB = 2**24
"""Bytes of what unpacks to much more than its file."""
SHAPES = ((10**9, 8), (2**62, 8), (10**12,), (-1, 8), (0, 8), (2**31, 2**31, 2**31), (), (48, 8, 1), (48, 10**10))
TYPES = ("<f4", "<f8", "|O", "<U100000000", "|V8", "<M8[s]", "|S1", "<c16", "|b1", "<i8", "(2,3)<f4", "x")
PAYLOAD = "attack_payload:run"
"""A function that must never be imported: the module lies in the working folder."""
TEXTS = (
    "", " ", PAYLOAD, "attack_payload", "../canary.txt", "/etc/passwd", "\x1b[31mred", "a\nb", "\0", "\u202e", "\u00ad",
    "nan", "-1", "x" * 100_000, "{0.__class__}", "%s%n", "<script>alert(1)</script>", "~", "exact", "mtn", "knn",
    "practical", "hashing", "glyph", "image", "text", "int", "str", "float", "float16", "milvus", "cuda", "meta",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"), [], {}, [[]],
    [None], {"": None}, [1, "1"], [True, 2],
)  # fmt: skip

Damage = Callable[[bytes, random.Random], bytes]


def _position(content: bytes, rng: random.Random) -> int:
    size = max(len(content), 1)
    if rng.random() < 0.5 and size > 2 * EDGE:
        return rng.choice((rng.randrange(EDGE), size - 1 - rng.randrange(EDGE)))
    return rng.randrange(size)


def flip(content: bytes, rng: random.Random) -> bytes:
    """Some bits are changed."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        if changed:
            changed[_position(content, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(content: bytes, rng: random.Random) -> bytes:
    """The end is missing."""
    return content[: _position(content, rng)]


def remove(content: bytes, rng: random.Random) -> bytes:
    """A piece is missing."""
    start = _position(content, rng)
    return content[:start] + content[start + rng.choice((1, 4, 64, 1000)) :]


def repeat(content: bytes, rng: random.Random) -> bytes:
    """A piece is there twice or many times."""
    start = _position(content, rng)
    piece = content[start : start + rng.choice((1, 8, 100))]
    return content[:start] + piece * rng.choice((2, 2, 50)) + content[start + len(piece) :]


def overwrite(content: bytes, rng: random.Random) -> bytes:
    """A piece is zeros or noise."""
    start, length = _position(content, rng), rng.choice((1, 4, 16, 200))
    piece = bytes(length) if rng.random() < 0.5 else rng.randbytes(length)
    return content[:start] + piece + content[start + length :]


def splice(content: bytes, rng: random.Random) -> bytes:
    """A piece is from another place of the file, or its halves change places."""
    start, source, length = _position(content, rng), _position(content, rng), rng.choice((4, 32, 500))
    if rng.random() < 0.2:
        return content[start:] + content[:start]
    return content[:start] + content[source : source + length] + content[start + length :]


def lie(content: bytes, rng: random.Random) -> bytes:
    """A number in binary, or in digits, is another one, often an absurd one."""
    digits = [index for index, byte in enumerate(content[:5000]) if 48 <= byte <= 57]
    if digits and rng.random() < 0.5:
        start = rng.choice(digits)
        return content[:start] + rng.choice((b"9", b"-1", b"0", b"999999999", b"1e999", b"0x")) + content[start + 1 :]
    start, form = _position(content, rng), rng.choice(("<H", ">H", "<I", ">I", "<Q", ">Q"))
    size = struct.calcsize(form)
    number = rng.choice(NUMBERS) & (2 ** (8 * size) - 1)
    return content[:start] + struct.pack(form, number) + content[start + size :]


GENERAL: tuple[Damage, ...] = (flip, flip, cut, remove, repeat, overwrite, splice, lie, lie)


# ---- lies of a format


def lie_in_npy(content: bytes, rng: random.Random) -> bytes:
    """The header tells of another shape or type than the data have."""
    file = io.BytesIO(content)
    np.lib.format.read_magic(file)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    facts: dict[str, Any] = {"descr": dtype.str, "fortran_order": fortran, "shape": shape}
    if rng.random() < 0.7:
        facts["shape"] = rng.choice(SHAPES)
    if rng.random() < 0.5:
        facts["descr"] = rng.choice(TYPES)
    if rng.random() < 0.1:
        facts["fortran_order"] = rng.choice((None, "x", True))
    header = repr(facts).encode() if rng.random() < 0.95 else b"(" * rng.choice((50, 5000))
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n" + file.read()


def lie_in_zip(content: bytes, rng: random.Random) -> bytes:
    """A member lies, unpacks to much more, has another name, or another size than the directory says."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    name, kind = rng.choice(sorted(members)), rng.randrange(5)
    if kind == 0:
        members[name] = damaged(name, members[name], rng)
    elif kind == 1:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (BOMB // 8, 8)})
        members[name] = (header.getvalue() if name.endswith(".npy") else b"") + bytes(BOMB)
    elif kind == 2:
        members[rng.choice(("../canary.txt", "/tmp/x", "a" * 300, "x/../../y.png", "\0", "x_train.npy"))] = members[
            name
        ]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(zipfile.ZipInfo(member) if member else "x", data, zipfile.ZIP_DEFLATED)
    packed = bytearray(file.getvalue())
    if kind >= 3:  # sizes, offsets, flags, method of an entry of the directory
        start = packed.find(b"PK\x01\x02")
        offset, size = rng.choice(((8, 2), (10, 2), (20, 4), (24, 4), (28, 2), (42, 4)))
        packed[start + offset : start + offset + size] = rng.choice((0, 1, 99, 2**32 - 2)).to_bytes(4, "little")[:size]
    return bytes(packed)


def lie_in_safetensors(content: bytes, rng: random.Random) -> bytes:
    """The header tells of other tensors than there are."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.dumps(lie_in_values(json.loads(content[8 : 8 + length]), rng)).encode()
    stated = rng.choice((len(header), len(header), len(header), 2**63, 2**31, 0))
    return struct.pack("<Q", stated) + header + content[8 + length :]


def lie_in_png(content: bytes, rng: random.Random) -> bytes:
    """The size is another one, or a chunk unpacks to much more."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    if rng.random() < 0.2:
        return content[:33] + chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(BOMB), 9)) + content[33:]
    width, height = (rng.choice((0, 1, 24, 4000, 60_000, 2**31 - 1)) for _ in range(2))
    return content[:8] + chunk(b"IHDR", struct.pack(">II", width, height) + content[24:29]) + content[33:]


def lie_in_json(content: bytes, rng: random.Random) -> bytes:
    """A value is of another type, absurd, missing, or nested deeply."""
    if rng.random() < 0.05:
        depth = rng.choice((500, 50_000))
        return b"[" * depth + b"]" * depth if rng.random() < 0.5 else b'{"a":' * depth
    return json.dumps(lie_in_values(json.loads(content), rng)).encode("utf-8", "surrogatepass")


def lie_in_values(values: Any, rng: random.Random) -> Any:
    """The same for values that JSON can say."""
    changed = copy.deepcopy(values)
    for _ in range(rng.choice((1, 1, 2))):
        owner, key = _random_entry(changed, rng)
        if owner is None:
            return rng.choice(VALUES)
        if rng.random() < 0.15:
            del owner[key]
        else:
            owner[key] = copy.deepcopy(rng.choice(TEXTS) if rng.random() < 0.5 else rng.choice(VALUES))
    return changed


def _random_entry(values: Any, rng: random.Random) -> tuple[Any, Any]:
    """A container within the values, and a key or an index of it."""
    owner, key = None, None
    while isinstance(values, dict | list) and values and (owner is None or rng.random() < 0.75):
        owner = values
        key = rng.choice(sorted(values)) if isinstance(values, dict) else rng.randrange(len(values))
        values = owner[key]
    return owner, key


def lie_in_toml(content: bytes, rng: random.Random) -> bytes:
    """A key has an absurd value, or there is a section too many. Code may be named: a recipe is the user's own."""
    lines = content.decode().splitlines()
    values = ("-1", "0", "9" * 400, "1e999", "nan", "'x'", "true", "[]", "{a={b=1}}", "[" * 3000, "0x" + "f" * 5000,
              "1979-05-27", "2147483648", "99999999999", "'../canary.txt'")  # fmt: skip
    keyed = [number for number, line in enumerate(lines) if "=" in line]
    number = rng.choice(keyed)
    lines[number] = lines[number].partition("=")[0] + "= " + rng.choice(values)
    if rng.random() < 0.2:
        lines.insert(0, rng.choice(("[" + ".".join("a" * 3000) + "]", "[stream]", 'x."\x7f" = 1', "a.b.c = 1")))
    return "\n".join(lines).encode()


def lie_in_csv(content: bytes, rng: random.Random) -> bytes:
    """A cell is absurd, or there are many columns, long rows, odd characters."""
    lines = content.decode().splitlines()
    cells = (
        "1e999",
        "nan",
        "-inf",
        "9" * 5000,
        "",
        '"',
        '""',
        "a\0b",
        "\x1b[31m",
        "x" * 200_000,
        "=cmd()",
        "１２",
        "1_0",
    )
    row = rng.randrange(len(lines))
    fields = lines[row].split(",")
    fields[rng.randrange(len(fields))] = rng.choice(cells)
    lines[row] = ",".join(fields)
    if rng.random() < 0.1:
        lines = [f"{line}," + ",".join(f"{number}" for number in range(8000)) for line in lines[:5]]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


LIES: Mapping[str, Damage] = {
    ".npy": lie_in_npy,
    ".npz": lie_in_zip,
    ".zip": lie_in_zip,
    ".safetensors": lie_in_safetensors,
    ".png": lie_in_png,
    ".json": lie_in_json,
    ".toml": lie_in_toml,
    ".csv": lie_in_csv,
}
"""By the suffix of the file's name."""


def damaged(name: str, content: bytes, rng: random.Random) -> bytes:
    """The content of a file with this name, damaged."""
    special = LIES.get(name[name.rfind(".") :] if "." in name else "")
    if special is not None and content and rng.random() < 0.4:
        return special(content, rng)
    return rng.choice(GENERAL)(content, rng)
