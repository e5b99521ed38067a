"""A zip file -> its members, one after the other, and the bytes of each: `zipfile` would keep all of its directory."""

import bz2
import lzma
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zipfile import BadZipFile

END, END64, ENTRY, HEADER = map(struct.Struct, ("<4s4H2LH", "<4sQ2H2L4Q", "<4s6H3L5H2L", "<4s5H3L2H"))
"""Records of the format: where the directory is, and in 64 bits; its line of a member, and what precedes a member."""
LOCATOR = 20
"""Bytes between the 64-bit end and the other one."""
COMMENT = MOST = 1 << 16
"""Bytes that may follow the end; where counting members begins anew, if a zip has no 64-bit end."""
ENCRYPTED, UTF8 = 1, 0x800
"""Bits of a member's flags."""
IN_EXTRA = 0xFFFFFFFF
"""Stands for a number that is in the extra field because 32 bits do not hold it."""


class Entry(NamedTuple):
    """What the directory says of a member."""

    name: bytes
    flags: int
    start: int  # of its header
    packed: int  # bytes in the zip
    size: int  # bytes once they are unpacked
    checksum: int
    method: int


def entries(path: Path) -> Iterator[Entry]:
    with path.open("rb") as file:
        start, size, shift, members = _directory(file)
        file.seek(start)
        while file.tell() < start + size:
            yield _entry(file, shift)
            members -= 1
    if members % MOST:
        raise BadZipFile("its directory is damaged: members are missing")


def content(path: str, start: int, packed: int, size: int, checksum: int, method: int) -> bytes:
    """The bytes of a member, which are the ones that were put in."""
    with open(path, "rb") as file:
        if start < 0 or start + packed > os.fstat(file.fileno()).st_size:
            raise BadZipFile("the zip is cut off before its end")
        file.seek(start)
        signature, *_, name, extra = _read(file, HEADER)
        if signature != b"PK\3\4":
            raise BadZipFile("the zip is damaged: it does not begin where the directory says")
        file.seek(name + extra, 1)
        found = file.read(packed)
    if len(found) < packed:
        raise BadZipFile("the zip is cut off before its end")
    found = _unpacked(found, size, method)
    if zlib.crc32(found) != checksum:
        raise BadZipFile("the zip is damaged: its checksum is another one")
    return found


def _unpacked(found: bytes, size: int, method: int) -> bytes:
    """At most one byte more than there should be."""
    try:
        match method:
            case 0:
                return found
            case 8:
                return zlib.decompressobj(-zlib.MAX_WBITS).decompress(found, size + 1)
            case 12:
                return bz2.BZ2Decompressor().decompress(found, size + 1)
            case 14:  # as a file of its own it would have another header: no version, but a size, here unknown
                alone = found[4:9] + b"\xff" * 8 + found[9:]
                return lzma.LZMADecompressor(lzma.FORMAT_ALONE).decompress(alone, size + 1)
    except (zlib.error, lzma.LZMAError, OSError, EOFError, OverflowError) as error:
        raise BadZipFile(f"the zip is damaged: {error}") from None
    raise BadZipFile(f"it is compressed by method {method}, which is not known here: unzip it and give the folder")


def _directory(file: BinaryIO) -> tuple[int, int, int, int]:
    """Where it starts, its size, how much further all is than the zip says (something may precede it), its members."""
    length = file.seek(0, 2)
    before = max(length - END.size - COMMENT, 0)
    file.seek(before)
    tail = file.read()
    place = tail.rfind(b"PK\5\6")
    if place < 0 or place + END.size > len(tail):
        raise BadZipFile("it has no directory at its end")
    *_, members, size, offset, _ = END.unpack_from(tail, place)
    end = before + place
    if tail[max(place - LOCATOR, 0) : place].startswith(b"PK\6\7"):
        end -= LOCATOR + END64.size
        file.seek(max(end, 0))
        signature, *_, members, size, offset = _read(file, END64)
        if signature != b"PK\6\6":
            raise BadZipFile("it has no 64-bit directory where it should be")
    start = end - size
    if start < 0:
        raise BadZipFile("its directory is cut off")
    return start, size, start - offset, members


def _entry(file: BinaryIO, shift: int) -> Entry:
    signature, _, _, flags, method, _, _, checksum, packed, size, name, extra, comment, *_, start = _read(file, ENTRY)
    if signature != b"PK\1\2":
        raise BadZipFile("its directory is damaged")
    called, more = file.read(name), file.read(extra)
    file.read(comment)
    large = _large(more)
    size, packed, start = (next(large, one) if one == IN_EXTRA else one for one in (size, packed, start))
    return Entry(called.partition(b"\0")[0], flags, start + shift, packed, size, checksum, method)


def _large(extra: bytes) -> Iterator[int]:
    """The 64-bit numbers of an extra field: of fields that are each a kind, a size and a content, those of kind 1."""
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<2H", extra)
        if kind == 1:
            numbers = extra[4 : 4 + size]
            yield from struct.unpack_from(f"<{len(numbers) // 8}Q", numbers)
        extra = extra[4 + size :]


def _read(file: BinaryIO, record: struct.Struct) -> tuple[Any, ...]:
    found = file.read(record.size)
    if len(found) < record.size:
        raise BadZipFile("it is cut off")
    return record.unpack(found)
