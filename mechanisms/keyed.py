"""Keyed pseudo-random functions over whole columns: derived keys, identifiers of strings, digests of tables.

Everything random or secret in a release hangs on one 32-byte secret. This room turns it into

* `derive_key`: a key of its own for every purpose, stream, set of terms and window (HMAC-SHA256);
* `KeyedHash`: 128-bit identifiers of strings (AES-256 in CBC-MAC mode with the length in front, which is a pseudo-random
  function), computed for a column at a time: the loop runs over 16-byte positions, never over rows;
* `add_digests`: an order-free digest of a table as the sum of its rows' identifiers, mergeable over shards.

Without the secret the identifiers are indistinguishable from random, so they stand in for units from the first stage on.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Ids = npt.NDArray[np.uint64]
"""Identifiers: an array of shape (n, 2), 128 bits a row."""

KEY_BYTES = 32
_BLOCK = 16
_WORD_MASKS = np.array([(1 << (8 * used)) - 1 for used in range(9)], dtype=np.uint64)
_DIGEST_MARK = np.uint64(0x7469_6465_6761_7465)  # "tidegate": sets row digests apart from the identifiers they extend


def derive_key(secret: bytes, *labels: str | int | bytes) -> bytes:
    """A 32-byte key for the purpose that the labels spell; each label is length-prefixed, so no two lists collide."""
    if len(secret) != KEY_BYTES:
        raise ValueError(f"a key must be {KEY_BYTES} bytes, not {len(secret)}; derive it from the secret")
    message = bytearray()
    for label in labels:
        if not isinstance(label, (str, int, bytes)):
            # The text of some other object may hold its address: another key in every process, and nobody would notice.
            raise TypeError(f"a label must be text, a whole number or bytes, not a {type(label).__name__}")
        encoded = label if isinstance(label, bytes) else str(label).encode()
        message += len(encoded).to_bytes(8, "little") + encoded
    return hmac.new(secret, bytes(message), hashlib.sha256).digest()


class BlockCipher:
    """AES-256 applied to each 128-bit row of an array on its own."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __call__(self, blocks: Ids) -> Ids:
        # A new context each time: contexts are cheap, cannot be pickled, and are not safe to share between threads.
        encryptor = Cipher(algorithms.AES(self._key), modes.ECB()).encryptor()  # noqa: S305
        source = np.ascontiguousarray(blocks, dtype="<u8").view(np.uint8).reshape(-1)
        # The library asks for one block of slack behind the output.
        target = np.empty(source.size + _BLOCK, dtype=np.uint8)
        encryptor.update_into(source.data, target.data)
        return target[: source.size].view("<u8").reshape(-1, 2)


class KeyedHash:
    """128-bit identifiers of the strings in a column."""

    def __init__(self, key: bytes) -> None:
        self._cipher = BlockCipher(key)

    def __call__(self, strings: pa.Array) -> Ids:
        """One identifier a row; the column must be text or binary without nulls."""
        starts, lengths, data = _layout(strings)
        # First block: the length, then up to eight bytes, so that most identifiers cost a single block.
        state = np.empty((len(starts), 2), dtype="<u8")
        state[:, 0] = lengths.astype(np.uint64)
        state[:, 1] = _word(data, starts, lengths, 0)
        state = self._cipher(state)
        position = 8
        rows = np.flatnonzero(lengths > position)
        while rows.size:
            begins, sizes = starts[rows], lengths[rows]
            block = state[rows]
            block[:, 0] ^= _word(data, begins, sizes, position)
            block[:, 1] ^= _word(data, begins, sizes, position + 8)
            state[rows] = self._cipher(block)
            position += _BLOCK
            rows = rows[sizes > position]
        return state

    def digest(self, ids: Ids, values: npt.NDArray[np.int64]) -> bytes:
        """The order-free digest of the rows (identifier, value): the sum of one pseudo-random number each.

        Tables that differ in any row agree with probability 2^-128, as long as the key stays secret; the rows'
        identifiers must be distinct.
        """
        block = ids.copy()
        block[:, 0] ^= values.view(np.uint64)
        block[:, 1] ^= _DIGEST_MARK
        return _pack(self._cipher(block).sum(axis=0, dtype=np.uint64))


EMPTY_DIGEST = bytes(_BLOCK)


def add_digests(left: bytes, right: bytes) -> bytes:
    """The digest of two tables' rows together; associative and commutative."""
    return _pack(np.frombuffer(left, "<u8") + np.frombuffer(right, "<u8"))


def _pack(lanes: npt.NDArray[np.uint64]) -> bytes:
    return lanes.astype("<u8").tobytes()


def _layout(strings: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Where each string starts, how long it is, and the bytes, with slack for reading whole words past the end."""
    if strings.null_count:
        raise ValueError("identifiers are of present values only; drop nulls first")
    kind: Any = strings.type
    if not (pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)):
        strings = strings.cast(pa.large_binary())
    _, offsets_buffer, data_buffer = strings.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64, count=len(strings) + 1, offset=8 * strings.offset)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + _BLOCK, dtype=np.uint8)
    if last > first:
        data[: last - first] = np.frombuffer(data_buffer, dtype=np.uint8, count=last - first, offset=first)
    starts = offsets[:-1] - first
    return starts, np.diff(offsets), data


def _word(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], position: int
) -> npt.NDArray[np.uint64]:
    """Eight bytes of every string from `position` on, zeros past its end."""
    words: npt.NDArray[np.uint64] = np.ndarray((data.size - 7,), dtype="<u8", buffer=data.data, strides=(1,))
    left = np.clip(lengths - position, 0, 8)
    # A string that has ended reads from the start of the data instead of past it; its mask is zero anyway.
    return words[np.where(left > 0, starts + position, 0)] & _WORD_MASKS[left]
