"""Formats of a row a line: many lines at a time, and a bad one costs itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeAlias

import numpy as np
import pyarrow as pa

from tidegate.pipelines.formats.files import DAMAGE, Item
from tidegate.transforms.decode import DeadLetter

BLOCK_BYTES = 8 << 20
HEAD_BYTES = 1 << 20
LINES_A_PIECE = 128
LINES_A_ROW = 128
Fast: TypeAlias = Callable[[bytes, int], list[Item]]
Slow: TypeAlias = Callable[[list[bytes], int], Iterator[Item]]


def read_lines(path: str, file: BinaryIO, header: bool = False) -> Iterator[tuple[int, bytes] | DeadLetter]:
    """Whole lines, many at a time, and the number of the first; a header is number -1. Damage is the end of a file."""
    line, rest, damage = -1 if header else 0, b"", ""
    while not damage:
        some, damage = read_some(file, BLOCK_BYTES)
        if not some:
            break
        whole, newline, tail = (rest + some).rpartition(b"\n")
        if header and not damage and len(whole) < 2 * BLOCK_BYTES and open_quote(whole):
            # A value may go on in the next block: leave its line for that one.
            before, newline, _ = whole[: whole.rfind(b'"')].rpartition(b"\n")
            whole, tail = before, (rest + some)[len(before + newline) :]
        if newline:
            yield line, whole
            line += whole.count(b"\n") + 1
        rest = tail
    if damage:
        yield DeadLetter(damage, path, max(line, 0), rest.decode(errors="backslashreplace"))
    elif rest:
        yield line, rest.removesuffix(b"\n")


def read_some(file: BinaryIO, size: int) -> tuple[bytes, str]:
    """So many bytes, fewer at the end or before damage; and what damage, if any."""
    read = getattr(file, "read1", file.read)  # which gives what there is before it stumbles
    pieces: list[bytes] = []
    try:
        while size > 0 and (piece := read(size)):
            pieces.append(piece)
            size -= len(piece)
    except DAMAGE as problem:
        return b"".join(pieces), "truncated" if isinstance(problem, EOFError) else "corrupt"
    return b"".join(pieces), ""


def parse(block: bytes, line: int, fast: Fast, slow: Slow) -> Iterator[Item]:
    """A block in one go; if a row in it is bad, in pieces; and the piece with the bad row, row by row."""
    try:
        yield from fast(block, line)
        return
    except pa.ArrowInvalid:
        lines = block.split(b"\n")
    begin = 0
    while piece := lines[begin : begin + LINES_A_PIECE]:
        for more in lines[begin + len(piece) : begin + len(piece) + LINES_A_ROW]:
            if not open_quote(b"".join(piece)):
                break
            piece.append(more)  # rather than cut a value in two
        try:
            yield from fast(b"\n".join(piece), line + begin)
        except pa.ArrowInvalid:
            yield from slow(piece, line + begin)
        begin += len(piece)


def open_quote(text: bytes) -> bool:
    return bool(np.count_nonzero(np.frombuffer(text, np.uint8) == ord('"')) % 2)


def count_lines(block: bytes) -> int:
    return block.count(b"\n") + 1
