"""Keyed identifiers and digests: distinct, independent of how a column is laid out, and equal to a plain reference."""

from __future__ import annotations

import struct
from functools import reduce
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.mechanisms.keyed import EMPTY_DIGEST, KeyedHash, add_digests, derive_key

KEY = bytes(range(32))
ALL_LENGTHS = [b"\x00" * length for length in range(71)]
binaries = st.binary(max_size=70)


def ids(values: list[bytes], kind: Any = None, key: bytes = KEY) -> list[bytes]:
    return [row.astype("<u8").tobytes() for row in KeyedHash(key)(pa.array(values, kind or pa.binary()))]


def one_by_one(value: bytes, key: bytes = KEY) -> bytes:
    """AES-256 in CBC-MAC mode over the length (8 bytes) and the value, padded with zeros to whole blocks."""
    message = struct.pack("<Q", len(value)) + value
    message += bytes(-len(message) % 16)
    # The last block of CBC with a zero first block is the CBC-MAC.
    encryptor = Cipher(algorithms.AES(key), modes.CBC(bytes(16))).encryptor()
    return (encryptor.update(message) + encryptor.finalize())[-16:]


@settings(max_examples=60, deadline=None)
@given(st.lists(binaries, min_size=1, max_size=20), st.binary(min_size=32, max_size=32))
def test_identifiers_are_the_mac_of_each_value(values: list[bytes], key: bytes) -> None:
    assert ids(values, key=key) == [one_by_one(value, key) for value in values]


def test_every_length_is_the_mac_of_its_value() -> None:
    values = [bytes(range(1, length + 1)) for length in range(200)]
    assert ids(values) == [one_by_one(value) for value in values]


def test_values_that_differ_in_length_alone_have_other_identifiers() -> None:
    assert len(set(ids(ALL_LENGTHS))) == len(ALL_LENGTHS)


def test_prefixes_have_other_identifiers() -> None:
    whole = bytes(range(100, 170))
    prefixes = [whole[:length] for length in range(len(whole) + 1)]
    assert len(set(ids(prefixes))) == len(prefixes)


def test_a_zero_byte_anywhere_makes_another_identifier() -> None:
    values = [b"tide" * 8]
    values += [values[0][:place] + b"\0" + values[0][place:] for place in range(len(values[0]) + 1)]
    values += [values[0][:place] + b"\0" + values[0][place + 1 :] for place in range(len(values[0]))]
    assert len(set(ids(values))) == len(set(values))


@settings(max_examples=60, deadline=None)
@given(st.sets(binaries, max_size=40))
def test_distinct_values_have_distinct_identifiers(values: set[bytes]) -> None:
    assert len(set(ids(sorted(values)))) == len(values)


@settings(max_examples=60, deadline=None)
@given(st.lists(binaries, min_size=1, max_size=30), st.data())
def test_a_slice_has_the_identifiers_that_its_rows_have_in_the_whole(values: list[bytes], data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(values)))
    length = data.draw(st.integers(0, len(values) - begin))
    for kind in (pa.binary(), pa.large_binary()):
        part = pa.array(values, kind).slice(begin, length)
        expected = [one_by_one(value) for value in values[begin : begin + length]]
        assert [row.tobytes() for row in KeyedHash(KEY)(part)] == expected


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
def test_the_kind_of_column_does_not_matter(kind: Any) -> None:
    texts = ["", "a", "tide tables", "\0", "ä" * 40, "🌊" * 9, "x" * 70]
    assert ids([text.encode() for text in texts], kind) == [one_by_one(text.encode()) for text in texts]


@pytest.mark.parametrize("empty", [pa.array([], pa.string()), pa.array([], pa.large_binary()), pa.array(["a"])[1:]])
def test_no_rows_have_no_identifiers(empty: Any) -> None:
    assert KeyedHash(KEY)(empty).shape == (0, 2)


def test_rows_of_nothing_but_empty_values_are_identified() -> None:
    assert ids([b"", b""]) == [one_by_one(b"")] * 2


def test_nulls_are_refused_and_not_quoted() -> None:
    with pytest.raises(ValueError, match="drop nulls first") as refused:
        KeyedHash(KEY)(pa.array(["canary", None]))
    assert "canary" not in str(refused.value)


def test_another_key_gives_wholly_other_identifiers() -> None:
    other = ids(ALL_LENGTHS, key=bytes(32))
    assert not set(other) & set(ids(ALL_LENGTHS))


rows = st.dictionaries(binaries, st.integers(-(2**62), 2**62), max_size=12)


def digest(table: dict[bytes, int], key: bytes = KEY) -> bytes:
    hashed = KeyedHash(key)
    return hashed.digest(hashed(pa.array(list(table), pa.binary())), np.array(list(table.values()), np.int64))


@settings(max_examples=60, deadline=None)
@given(rows, st.randoms(use_true_random=False))
def test_a_digest_does_not_know_the_order_of_rows(table: dict[bytes, int], chance: Any) -> None:
    shuffled = list(table.items())
    chance.shuffle(shuffled)
    assert digest(dict(shuffled)) == digest(table)


@settings(max_examples=60, deadline=None)
@given(rows, rows)
def test_a_digest_is_the_sum_of_the_digests_of_any_parts(one: dict[bytes, int], two: dict[bytes, int]) -> None:
    two = {key: count for key, count in two.items() if key not in one}
    assert add_digests(digest(one), digest(two)) == digest(one | two)


@settings(max_examples=60, deadline=None)
@given(rows.filter(bool), st.data())
def test_any_key_or_count_changes_the_digest(table: dict[bytes, int], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(table)))
    other_count = data.draw(st.integers(-(2**62), 2**62).filter(lambda count: count != table[key]))
    other_key = data.draw(binaries.filter(lambda name: name not in table))
    without = {name: count for name, count in table.items() if name != key}
    changed = [{**table, key: other_count}, {**without, other_key: table[key]}, {**table, other_key: 0}, without]
    assert digest(table) not in [digest(other) for other in changed]


def test_counts_that_are_exchanged_between_keys_change_the_digest() -> None:
    assert digest({b"a": 1, b"b": 2}) != digest({b"a": 2, b"b": 1})


def test_a_digest_is_no_sum_of_identifiers() -> None:
    # Were a row with count 0 its own identifier, a key could be made to cancel another's row.
    assert digest({b"a": 0}) != ids([b"a"])[0]


def test_a_digest_depends_on_the_key() -> None:
    assert digest({b"a": 1}) != digest({b"a": 1}, bytes(32))


def test_the_digest_of_no_rows_is_the_neutral_one() -> None:
    assert digest({}) == EMPTY_DIGEST
    assert add_digests(EMPTY_DIGEST, digest({b"a": 1})) == digest({b"a": 1})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(min_size=16, max_size=16), min_size=3, max_size=3))
def test_digests_add_up_in_any_order_and_grouping(parts: list[bytes]) -> None:
    sums = {reduce(add_digests, order) for order in permutations(parts)}
    one, two, three = parts
    assert sums == {add_digests(one, add_digests(two, three))}


def test_sums_of_digests_wrap_around() -> None:
    most = b"\xff" * 16
    assert add_digests(most, most) == struct.pack("<QQ", 2**64 - 2, 2**64 - 2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (("abc",), ("ab", "c")),
        (("a",), ("a", "")),
        ((), ("",)),
        (("a", "b"), ("b", "a")),
        (("\0",), ("",)),
        ((12,), (1, 2)),
        ((b"\x01" + bytes(7) + b"a",), ("a",)),
    ],
)
def test_other_labels_derive_another_key(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert derive_key(KEY, *one) != derive_key(KEY, *other)


@settings(max_examples=60, deadline=None)
@given(st.sets(st.lists(st.text(max_size=5), max_size=4).map(tuple), min_size=2, max_size=10))
def test_no_two_lists_of_labels_derive_one_key(labels: set[tuple[str, ...]]) -> None:
    assert len({derive_key(KEY, *each) for each in labels}) == len(labels)


def test_keys_derive_from_the_secret_alone_and_always_the_same() -> None:
    assert derive_key(KEY, "units", 3) == derive_key(KEY, "units", 3)
    assert derive_key(KEY, "units") != derive_key(bytes(32), "units")
    assert len(derive_key(KEY)) == 32


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_secret_of_another_length_is_refused_without_being_shown(length: int) -> None:
    with pytest.raises(ValueError, match=f"must be 32 bytes, not {length}") as refused:
        derive_key(b"s" * length, "units")
    assert "ss" not in str(refused.value)


def test_a_label_must_be_what_it_looks_like_in_every_process() -> None:
    # The text of an object may hold its address in memory; a key made of it would be another one in every worker.
    for label in (object(), None, 1.5, ["a"]):
        with pytest.raises(TypeError, match="a label must be text, a whole number or bytes"):
            derive_key(b"k" * 32, "window", label)  # type: ignore[arg-type]
