"""The choice of keys keeps (epsilon, delta) and no choice beats it: whole numbers of 2^-128, at every step, both ways."""

from __future__ import annotations

from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exact.divergence import (
    ALL_WORDS,
    Distribution,
    assert_release_knows_no_order_and_no_shards,
    delta_between,
    masses_of,
    names,
    odds,
    row_numbers,
    together,
)
from tests.exact.test_sampler import WordsAsGiven
from tidegate.mechanisms.calibration import exact_delta
from tidegate.mechanisms.mechanism import Bounds
from tidegate.mechanisms.optimal_selection import OptimalSelection, recursion
from tidegate.mechanisms.table import ExactTable
from tidegate.mechanisms.truncated_geometric import TruncatedGeometric

STEPS = [
    (e, d, keys)
    for e in (0.05, 0.5, 1.0, 3.0, 20.0)
    for d in (0.3, 1e-2, 1e-5, 1e-19)
    for keys in (1, 3)
    if (e, keys) != (0.05, 3)
]
BOTH_GATES = [
    (1.0, 1e-5, 1, 1),
    (1.0, 1e-5, 3, 1),
    (1.0, 1e-5, 1, 5),
    (0.05, 1e-19, 1, 1),
    (3.0, 1e-2, 2, 2),
    (0.3, 1e-3, 1, 1),
    (8.0, 1e-12, 3, 4),
]


@lru_cache
def gate(epsilon: float, delta: float, keys: int, per_key: int) -> OptimalSelection:
    return OptimalSelection(Bounds(keys, per_key), epsilon=epsilon, delta=delta)


def growth(epsilon: float, keys: int) -> Fraction:
    """A fraction just below e^(epsilon/keys)."""
    with localcontext() as context:
        context.prec = 100
        exact = (Decimal(repr(epsilon)) / keys).exp()
        return Fraction(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 80), rounding=ROUND_FLOOR))


def one_keys_share(delta: float, keys: int) -> Fraction:
    """The delta of one key, 1 - (1 - delta)^(1/keys), in units of 2^-128, to a hundred digits."""
    with localcontext() as context:
        context.prec = 120
        exact = 1 - ((1 - Decimal(repr(delta))).ln() / keys).exp()
    return Fraction(exact) * Fraction(ALL_WORDS)


def keeps(less: int, more: int, e: Fraction, d: Fraction | int) -> bool:
    """Both conditions of privacy in both directions for chances of `less` and `more` 2^-128."""
    pairs = [(less, more), (ALL_WORDS - less, ALL_WORDS - more)]
    return all(p <= e * q + d and q <= e * p + d for p, q in pairs)


def appears(chance: int) -> Distribution:
    return Distribution({True: chance, False: ALL_WORDS - chance}, ALL_WORDS)


@pytest.mark.parametrize(("epsilon", "delta", "keys"), STEPS)
def test_both_conditions_hold_exactly_at_every_step(epsilon: float, delta: float, keys: int) -> None:
    chances, a_key = recursion(epsilon, delta, keys)
    e, d = growth(epsilon, keys), one_keys_share(delta, keys)
    assert chances[0] == 0
    assert chances[-1] == ALL_WORDS
    assert all(less < more for less, more in pairwise(chances))
    assert all(keeps(less, more, e, d) for less, more in pairwise(chances))
    assert a_key == chances[1] / ALL_WORDS


@pytest.mark.parametrize(("epsilon", "delta", "keys"), STEPS)
def test_any_chance_raised_by_one_unit_of_the_sampler_breaks_privacy(epsilon: float, delta: float, keys: int) -> None:
    # The first chance is the delta of one key itself, in whole units; beyond it nothing is left over at any step.
    chances, _ = recursion(epsilon, delta, keys)
    e, d = growth(epsilon, keys), one_keys_share(delta, keys)
    assert not keeps(0, chances[1] + 1, e, d)
    binding = [(less, more) for less, more in pairwise(chances) if more < ALL_WORDS]
    assert binding
    assert not any(keeps(less, more + 1, e, chances[1]) for less, more in binding)
    # Whatever the part of delta that is smaller than a unit could pay for, two units are beyond it.
    assert not any(keeps(less, more + 2, e, d) for less, more in binding)


@pytest.mark.parametrize(("epsilon", "delta", "keys"), STEPS)
def test_the_chance_is_the_closed_form_as_long_as_growth_is_what_binds(epsilon: float, delta: float, keys: int) -> None:
    # p(n) = d (e^n - 1)/(e - 1) with e = exp(epsilon/keys); then the other condition is the tighter one to the end.
    chances, _ = recursion(epsilon, delta, keys)
    e, d = growth(epsilon, keys), one_keys_share(delta, keys)
    closed, grows = d, True
    for n, (less, more) in enumerate(pairwise(chances), start=1):
        rising, falling = e * less + d, ALL_WORDS - (ALL_WORDS - less - d) / e
        if grows and rising <= min(falling, ALL_WORDS):
            assert float(more / closed) == pytest.approx(1, rel=1e-9)
            closed = closed * e + d
        else:
            assert n > 1
            grows = False
            assert more == pytest.approx(float(min(falling, Fraction(ALL_WORDS))), rel=1e-12)
    assert not grows


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key"), BOTH_GATES)
def test_no_key_appears_less_often_than_with_truncated_geometric_noise(
    epsilon: float, delta: float, keys: int, per_key: int
) -> None:
    chosen = gate(epsilon, delta, keys, per_key)
    noisy = TruncatedGeometric(Bounds(keys, per_key), epsilon=epsilon, delta=delta)
    k = noisy.half_width
    masses, total = masses_of(noisy.distribution)
    tail, strictly = 0, 0
    for n in range(1, 2 * k + 2):
        tail += masses[-n]  # Pr[n + j > k]
        chance = chosen.probabilities[min(-(-n // per_key), len(chosen.probabilities) - 1)]
        assert chance * total >= tail * ALL_WORDS
        strictly += chance * total > tail * ALL_WORDS
        assert chosen.survival(n) == chance / ALL_WORDS
    assert tail == total
    assert strictly > k / 2
    assert chosen.survival(2 * k + 1) == 1.0
    assert chosen.describe()["appears_always_at"] <= 2 * k + 1


@pytest.mark.parametrize(("epsilon", "k"), [(1.0, 11), (0.5, 7), (0.05, 300), (3.0, 2)])
def test_it_is_truncated_geometric_noise_where_that_uses_up_its_delta(epsilon: float, k: int) -> None:
    with localcontext() as context:
        context.prec = 60
        rate = Decimal(repr(epsilon))
    delta = exact_delta(k, rate, Bounds(1, 1)) * (1 + 1e-13)
    chosen = gate(epsilon, delta, 1, 1)
    noisy = TruncatedGeometric(Bounds(1, 1), epsilon=epsilon, delta=delta)
    assert noisy.half_width == k
    for n in range(2 * k + 2):
        assert chosen.survival(n) == pytest.approx(noisy.survival(n), rel=1e-9)
    # Certain at 2k + 1 and not before.
    assert len(chosen.probabilities) == 2 * k + 2
    assert chosen.survival(2 * k) < 1.0
    assert chosen.describe()["appears_always_at"] == 2 * k + 1


@pytest.mark.parametrize("per_key", [1, 2, 5])
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (0.4, 1e-2), (6.0, 1e-9)])
def test_one_key_keeps_delta_at_every_count_whatever_one_unit_adds(epsilon: float, delta: float, per_key: int) -> None:
    chosen = gate(epsilon, delta, 1, per_key)
    shown = published_chances(chosen, range(per_key * len(chosen.probabilities) + 2 * per_key))
    worst = max(
        delta_between(appears(shown[n]), appears(shown[n + added]), epsilon)
        for added in range(1, per_key + 1)
        for n in range(len(shown) - added)
    )
    assert worst <= Fraction(repr(delta))
    assert float(worst) == pytest.approx(delta, rel=1e-12)
    # One more than a unit may add would break it.
    assert any(
        delta_between(appears(shown[n]), appears(shown[n + per_key + 1]), epsilon) > Fraction(repr(delta))
        for n in range(len(shown) - per_key - 1)
    )


@pytest.mark.parametrize(
    ("epsilon", "delta", "keys"), [(1.0, 1e-5, 3), (2.0, 1e-2, 2), (1.0, 1e-10, 10), (0.2, 0.5, 4)]
)
def test_new_keys_cost_exactly_delta_together(epsilon: float, delta: float, keys: int) -> None:
    first = gate(epsilon, delta, keys, 1).probabilities[1]
    new = odds(appears(0), appears(first))
    exact = together([new] * keys).delta(epsilon)
    assert exact == 1 - (1 - Fraction(first, ALL_WORDS)) ** keys
    assert exact <= Fraction(repr(delta))
    assert float(exact) == pytest.approx(delta, rel=1e-9)
    raised = together([odds(appears(0), appears(first + 1))] * keys).delta(epsilon)
    assert raised > Fraction(repr(delta))


@pytest.mark.parametrize(("epsilon", "delta", "keys"), [(4.0, 1e-3, 2), (1.0, 5e-2, 2), (6.0, 1e-3, 3)])
def test_no_mix_of_counts_is_worse_than_new_keys(epsilon: float, delta: float, keys: int) -> None:
    chances = gate(epsilon, delta, keys, 1).probabilities
    steps = [odds(appears(less), appears(more)) for less, more in pairwise(chances)]
    steps += [step.turned() for step in steps]
    worst = max(together(chosen).delta(epsilon) for chosen in product(steps, repeat=keys))
    assert worst <= Fraction(repr(delta))
    assert float(worst) == pytest.approx(delta, rel=1e-9)


def published_chances(chosen: OptimalSelection, counts: range) -> list[int]:
    """How many of the 2^128 words publish a key with each count: found with the words around the coin's threshold.

    The release compares with a single threshold, so the words that publish are those below it.
    """
    found = []
    for n in counts:
        step = min(-(-n // chosen._per_key), len(chosen.probabilities) - 1)
        chance = chosen.probabilities[step]
        around = [word for word in (0, chance - 1, chance, ALL_WORDS - 1) if 0 <= word < ALL_WORDS]
        keys = names("key", len(around))
        table = ExactTable(pa.array(keys), np.full(len(around), n, dtype=np.int64))
        noise = WordsAsGiven([(word,) for word in around])
        rows = chosen.release(table, row_numbers(len(around)), noise)
        assert rows.keys.to_pylist() == [key for key, word in zip(keys, around, strict=True) if word < chance]
        assert np.isnan([rows.values, rows.low, rows.high]).all()
        found.append(chance)
    return found


@pytest.mark.parametrize(("epsilon", "delta", "keys", "per_key"), [(1.0, 1e-5, 1, 1), (2.0, 1e-3, 3, 4)])
def test_the_release_publishes_on_exactly_the_words_below_the_coins_threshold(
    epsilon: float, delta: float, keys: int, per_key: int
) -> None:
    chosen = gate(epsilon, delta, keys, per_key)
    found = published_chances(chosen, range(per_key * len(chosen.probabilities) + 3))
    assert found[0] == 0
    assert found[1] == chosen.probabilities[1]
    assert found[-1] == ALL_WORDS
    assert sorted(set(found)) == chosen.probabilities


def test_a_total_below_the_number_of_keys_bounds_the_keys() -> None:
    few = OptimalSelection(Bounds(5, 2, 3), epsilon=1.0, delta=1e-5)
    assert few.probabilities == gate(1.0, 1e-5, 3, 2).probabilities


@given(st.floats(0.1, 8.0), st.floats(1e-12, 0.4), st.integers(1, 4), st.floats(1.0, 4.0), st.floats(0.01, 1.0))
def test_chances_rise_with_epsilon_and_delta_and_fall_with_the_number_of_keys(
    epsilon: float, delta: float, keys: int, more: float, less: float
) -> None:
    def chance(table: list[int], n: int) -> int:
        return table[min(n, len(table) - 1)]

    here, _ = recursion(epsilon, delta, keys)
    larger, _ = recursion(epsilon * more, delta, keys)
    smaller, _ = recursion(epsilon, delta * less, keys)
    shared, _ = recursion(epsilon, delta, keys + 1)
    for n in range(len(here)):
        assert chance(larger, n) >= chance(here, n) >= max(chance(smaller, n), chance(shared, n))


@given(st.sampled_from(BOTH_GATES), st.integers(0, 3000), st.integers(0, 100))
def test_a_larger_count_survives_no_less_often(point: tuple[float, float, int, int], n: int, more: int) -> None:
    chosen = gate(*point)
    assert chosen.survival(n) <= chosen.survival(n + more)
    assert chosen.survival(0) == 0.0 < chosen.survival(1)


@given(st.dictionaries(st.text(max_size=4), st.integers(1, 24), min_size=1, max_size=20), st.data())
def test_the_rows_depend_neither_on_the_tables_order_nor_on_its_shards(
    counts: dict[str, int], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(counts))))
    cuts = data.draw(st.sets(st.integers(0, len(counts))))
    assert_release_knows_no_order_and_no_shards(gate(1.0, 1e-5, 1, 1), counts, order, cuts)
