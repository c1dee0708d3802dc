"""The whole transform, from events to releases, has the exact distribution that the privacy proof is about."""

from __future__ import annotations

from fractions import Fraction

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest

from tests.exact.divergence import delta_between, release_of_one_key
from tests.statistical.chi_squared import miss_probability, p_value
from tests.transforms.running import T0, release, terms, values
from tidegate.mechanisms.truncated_geometric import TruncatedGeometric
from tidegate.transforms import Release, make_terms

SURE = 1e-9
"""Probability of a false alarm of each test here; noise 10% off is missed with less than 1e-9 too."""
KEYS = 60_000
GATE = {"epsilon": 0.5, "delta": 1e-3}


def events_with(n: int) -> pa.RecordBatch:
    """KEYS keys in one window, each touched by exactly n units, nobody touching two: KEYS independent experiments."""
    rows = np.arange(n * KEYS)
    return pa.RecordBatch.from_pydict(
        {
            "user": pa.array(rows).cast(pa.string()),
            "term": pa.array(rows % KEYS).cast(pa.string()),
            "at": pa.array(np.full(len(rows), T0)),
        }
    )


def release_of(n: int) -> Release:
    # Made inside the pipeline: a source that holds them all would travel with its graph.
    return release([n], making=beam.Map(events_with), bound={"keys": 1}, gate=GATE)[0]


def gate_of(**gate: float) -> TruncatedGeometric:
    chosen = make_terms(**terms(bound={"keys": 1}, gate=gate)).gate_mechanism
    assert isinstance(chosen, TruncatedGeometric)
    return chosen


def observed(n: int) -> tuple[list[int], int]:
    """What became of the keys: how often each value appeared, and how many keys did not appear."""
    released = values(release_of(n))
    k = gate_of(**GATE).half_width
    seen = np.array(list(released.values()), dtype=np.int64)
    counted = np.bincount(seen - n + k, minlength=2 * k + 1)
    return counted.tolist(), KEYS - len(seen)


def expected(gate: TruncatedGeometric, n: int) -> tuple[list[float], float]:
    seen = release_of_one_key(gate.distribution.pmf(), gate.half_width, n)
    masses = {key: float(Fraction(mass, seen.total)) for key, mass in seen.mass.items()}
    k = gate.half_width
    return [masses.get(n + j, 0.0) if n + j > k else 0.0 for j in range(-k, k + 1)], masses.get(None, 0.0)


@pytest.mark.parametrize("n", [gate_of(**GATE).half_width, gate_of(**GATE).half_width + 1])
def test_neighbouring_inputs_give_the_two_distributions_of_the_proof(n: int) -> None:
    gate = gate_of(**GATE)
    counted, missing = observed(n)
    chances, none = expected(gate, n)
    assert p_value(np.array([*counted, missing]), [*chances, none]) > SURE
    for factor in (0.9, 1.1):
        # Released with a tenth more or less noise than we believe, the same data would be rejected.
        values_believed, none_believed = expected(_with_noise_scaled(gate, factor), n)
        believed = [*values_believed, none_believed]
        assert p_value(np.array([*counted, missing]), believed) < SURE
        assert miss_probability([*chances, none], believed, KEYS, SURE) < SURE


def test_these_two_distributions_keep_epsilon_and_delta() -> None:
    gate = gate_of(**GATE)
    k, noise = gate.half_width, gate.distribution.pmf()
    worst = max(
        delta_between(release_of_one_key(noise, k, n), release_of_one_key(noise, k, n + 1), GATE["epsilon"])
        for n in range(2 * k + 3)
    )
    assert worst <= Fraction(repr(GATE["delta"]))


def test_every_range_holds_the_truth() -> None:
    n = gate_of(**GATE).half_width + 3
    rows = release_of(n).rows
    low, high = rows["low"].to_numpy(), rows["high"].to_numpy()
    assert len(rows) > KEYS / 10
    assert np.all((low <= n) & (n <= high))


def _with_noise_scaled(gate: TruncatedGeometric, factor: float) -> TruncatedGeometric:
    from copy import copy
    from decimal import Decimal

    from tidegate.mechanisms.noise import BoundedGeometric

    other = copy(gate)
    other.distribution = BoundedGeometric(gate.distribution.rate / Decimal(repr(factor)), gate.half_width)
    return other
