"""The members of a zip file one after the other: `zipfile` would keep the whole directory in memory."""

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
"""Records of the format: end of the directory, its 64-bit version, the directory's entry of a member, its header."""
LOCATOR = 20
"""Bytes between the 64-bit end and the other one."""
COMMENT = MOST = 1 << 16
"""Longest comment after the end record; and the modulus of the member count of a zip without a 64-bit end."""
ENCRYPTED, UTF8 = 1, 0x800
"""Bits of a member's flags."""
IN_EXTRA = 0xFFFFFFFF
"""In the place of a number that needs 64 bits, which is in the extra field."""
LARGEST_MEMBER = 1 << 30
"""Bytes of a member that is unpacked into memory."""
LARGEST_DICTIONARY = 1 << 28
"""Bytes of memory that an LZMA stream may ask for."""


class Entry(NamedTuple):
    """A member as the directory describes it."""

    name: bytes
    flags: int
    start: int  # of its header
    packed: int  # bytes in the zip
    size: int  # bytes once they are unpacked
    checksum: int
    method: int


def read_entries(path: Path) -> Iterator[Entry]:
    """All entries of the directory."""
    with path.open("rb") as file:
        start, size, shift, members = _directory(file)
        file.seek(start)
        while file.tell() < start + size:
            yield _entry(file, shift)
            members -= 1
    if members % MOST:
        raise BadZipFile("its directory is damaged: members are missing")


def read_member(path: str, start: int, packed: int, size: int, checksum: int, method: int) -> bytes:
    """The unpacked bytes of a member; raises `BadZipFile` where their number or their checksum is another than the
    directory declares, and before anything is read where it declares too many."""
    with open(path, "rb") as file:
        if start < 0 or start + packed > os.fstat(file.fileno()).st_size:
            raise BadZipFile("the zip is cut off before its end")
        if max(size, packed) > LARGEST_MEMBER:
            raise BadZipFile(
                f"it has {max(size, packed) / 1e9:.1f} GB, at most {LARGEST_MEMBER / 1e9:.1f} GB are unpacked"
            )
        file.seek(start)
        signature, *_, name, extra = _read(file, HEADER)
        if signature != b"PK\3\4":
            raise BadZipFile("the zip is damaged: it does not begin where the directory says")
        file.seek(name + extra, 1)
        content = file.read(packed)
    if len(content) < packed:
        raise BadZipFile("the zip is cut off before its end")
    content = _unpack(content, size, method)
    if len(content) != size:
        raise BadZipFile(f"the zip is damaged: a member does not have the {size} bytes that the directory declares")
    if zlib.crc32(content) != checksum:
        raise BadZipFile("the zip is damaged: its checksum is another one")
    return content


def _unpack(content: bytes, size: int, method: int) -> bytes:
    """Stops one byte after `size`, so that a small file cannot fill the memory."""
    try:
        match method:
            case 0:
                return content
            case 8:
                return zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, size + 1)
            case 12:
                return bz2.BZ2Decompressor().decompress(content, size + 1)
            case 14:  # lzma's own file format has another header: no version, but a size, which is left open
                alone = content[4:9] + b"\xff" * 8 + content[9:]
                return lzma.LZMADecompressor(lzma.FORMAT_ALONE, LARGEST_DICTIONARY).decompress(alone, size + 1)
    except (zlib.error, lzma.LZMAError, OSError, EOFError, OverflowError, ValueError, MemoryError) as error:
        raise BadZipFile(f"the zip is damaged: {error}") from None
    raise BadZipFile(f"it is compressed by method {method}, which is not known here: unzip it and give the folder")


def _directory(file: BinaryIO) -> tuple[int, int, int, int]:
    """Start and size of the directory, what to add to the zip's offsets (a prefix may precede it), member count."""
    length = file.seek(0, 2)
    before = max(length - END.size - COMMENT, 0)
    file.seek(before)
    tail = file.read()
    position = tail.rfind(b"PK\5\6")
    if position < 0 or position + END.size > len(tail):
        raise BadZipFile("it has no directory at its end")
    *_, members, size, offset, _ = END.unpack_from(tail, position)
    end = before + position
    if tail[max(position - LOCATOR, 0) : position].startswith(b"PK\6\7"):
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
    name_bytes, extra_bytes = file.read(name), file.read(extra)
    file.read(comment)
    large = _large_numbers(extra_bytes)
    size, packed, start = (next(large, value) if value == IN_EXTRA else value for value in (size, packed, start))
    return Entry(name_bytes.partition(b"\0")[0], flags, start + shift, packed, size, checksum, method)


def _large_numbers(extra: bytes) -> Iterator[int]:
    """The 64-bit numbers of an extra field, which consists of parts (kind, size, content): those of kind 1."""
    start = 0
    while len(extra) >= start + 4:
        kind, size = struct.unpack_from("<2H", extra, start)
        if kind == 1:
            numbers = extra[start + 4 : start + 4 + size]
            yield from struct.unpack_from(f"<{len(numbers) // 8}Q", numbers)
        start += 4 + size


def _read(file: BinaryIO, record: struct.Struct) -> tuple[Any, ...]:
    content = file.read(record.size)
    if len(content) < record.size:
        raise BadZipFile("it is cut off")
    return record.unpack(content)
