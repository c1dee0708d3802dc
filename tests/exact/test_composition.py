"""A gate and what runs behind it keep their composed guarantee together, exactly.

What is seen of a key is what the gate publishes and what comes downstream on the exact numbers of the keys that passed: both
at once, for every mix of new keys (nobody else stands behind them) and old ones that a unit may have.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement, product
from math import expm1, log1p, prod

import pytest

from tests.exact.divergence import Distribution, common, delta_between, joint
from tests.exact.test_choices import apart, chances
from tests.exact.test_sums import noise_of
from tidegate.mechanisms.choose import Choose
from tidegate.mechanisms.geometric_threshold import GeometricThreshold
from tidegate.mechanisms.guarantee import Guarantee, compose
from tidegate.mechanisms.mechanism import Bounds
from tidegate.mechanisms.noise import BoundedGeometric
from tidegate.mechanisms.noisy_count import NoisyCount
from tidegate.mechanisms.sum import Sum
from tidegate.mechanisms.truncated_geometric import TruncatedGeometric

SomeGate = TruncatedGeometric | GeometricThreshold
PerKey = NoisyCount | Sum
GATES: list[type[SomeGate]] = [TruncatedGeometric, GeometricThreshold]


def masses(distribution: BoundedGeometric) -> tuple[dict[int, int], int]:
    found, total = common(distribution.pmf())
    return dict(zip(range(-distribution.k, distribution.k + 1), found, strict=True)), total


def from_gate(gate: SomeGate, n: int) -> Distribution:
    """What the gate publishes of a key with exact count n: a value, or nothing."""
    least = gate.threshold if isinstance(gate, GeometricThreshold) else gate.half_width + 1
    noise, total = masses(gate.distribution)
    seen: dict[Hashable, int] = {}
    for j, mass in noise.items():
        # A key that nobody touched is not in the table and gets no draw at all.
        outcome = n + j if n > 0 and n + j >= least else None
        seen[outcome] = seen.get(outcome, 0) + mass
    return Distribution(seen, total)


def of_key(gate: SomeGate, then: Sequence[PerKey], n: int, numbers: Sequence[int]) -> Distribution:
    """What is seen of a key in all: nothing, or what the gate and every mechanism behind it say."""
    published = from_gate(gate, n)
    behind = [masses(noise_of(mechanism)) for mechanism in then]
    total = prod(total for _, total in behind)
    seen: dict[Hashable, int] = {}
    for outcome, mass in published.mass.items():
        if outcome is None:
            seen[None] = mass * total
            continue
        for draws in product(*(noise.items() for noise, _ in behind)):
            values = tuple(number + j for number, (j, _) in zip(numbers, draws, strict=True))
            seen[outcome, values] = mass * prod(chance for _, chance in draws)
    return Distribution(seen, published.total * total)


Change = tuple[int, int, tuple[int, ...]]
"""(count without the unit, what it adds to the count, what it adds to the numbers behind)"""


def neighbours(gate: SomeGate, then: Sequence[PerKey], keys: Iterable[Change]) -> tuple[Distribution, Distribution]:
    absent, present = [], []
    for n, x, added in keys:
        absent.append(of_key(gate, then, n, [0] * len(then)))
        present.append(of_key(gate, then, n + x, added))
    return joint(absent), joint(present)


def exact(gate: SomeGate, then: Sequence[PerKey], keys: Iterable[Change]) -> Fraction:
    """Delta at the sum of the epsilons, both directions."""
    epsilon = gate.guarantee.epsilon + sum(mechanism.guarantee.epsilon for mechanism in then)
    return delta_between(*neighbours(gate, then, keys), epsilon)


def sure_to_pass(gate: SomeGate) -> int:
    """A count that the gate lets through always, or but for once in 10^30."""
    if isinstance(gate, TruncatedGeometric):
        return 2 * gate.half_width + 1
    return gate.threshold + int(70 / gate.distribution.rate)


def stages(gate: SomeGate) -> list[int]:
    """Counts of others: none, few, about the threshold, sure to pass."""
    threshold = gate.threshold if isinstance(gate, GeometricThreshold) else gate.half_width + 1
    return sorted({0, 1, 2, threshold - 1, threshold, threshold + 1, sure_to_pass(gate)})


def claim(gate: SomeGate, *then: PerKey | Choose) -> Fraction:
    # A floating-point number is the claim to within its last places.
    return Fraction(compose(gate.guarantee, *(part.guarantee for part in then)).delta) * (1 + Fraction(1, 10**14))


def key_cost(guarantee: Guarantee) -> float:
    assert guarantee.a_key is not None
    return guarantee.a_key


def count(epsilon: float, delta: float, keys: int = 1, per_key: int = 1) -> NoisyCount:
    return NoisyCount(Bounds(keys, per_key), epsilon=epsilon, delta=delta)


def total(epsilon: float, delta: float, keys: int = 1) -> Sum:
    return Sum(Bounds(keys, 1), epsilon=epsilon, delta=delta, column="x", low=-1, high=2, resolution=1)


# (epsilon and delta of the gate, of what is behind, per_key)
ONE_KEY = [(1.0, 1e-2, 1.0, 1e-2, 1), (4.0, 1e-4, 2.0, 1e-2, 1), (2.0, 1e-2, 4.0, 1e-4, 1), (5.0, 1e-2, 3.0, 2e-2, 2)]


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(("e1", "d1", "e2", "d2", "per_key"), ONE_KEY)
def test_a_gate_and_a_count_keep_the_composed_delta_at_every_count(
    kind: type[SomeGate], e1: float, d1: float, e2: float, d2: float, per_key: int
) -> None:
    gate, then = kind(Bounds(1, per_key), epsilon=e1, delta=d1), count(e2, d2, per_key=per_key)
    changes = [(n, x, (x,)) for n in stages(gate) for x in range(1, per_key + 1)]
    worst = max(exact(gate, [then], [change]) for change in changes)
    assert worst <= claim(gate, then)
    # It is reached: no smaller delta could be claimed.
    assert worst >= claim(gate, then) * (1 - Fraction(1, 10**9))


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(("e1", "d1", "e2", "d2"), [point[:4] for point in ONE_KEY[:3]])
def test_a_gate_and_a_sum_keep_the_composed_delta_for_every_value(
    kind: type[SomeGate], e1: float, d1: float, e2: float, d2: float
) -> None:
    gate, then = kind(Bounds(1, 1), epsilon=e1, delta=d1), total(e2, d2)
    changes = [(n, 1, (y,)) for n in stages(gate) for y in range(-1, 3)]
    worst = max(exact(gate, [then], [change]) for change in changes)
    assert worst <= claim(gate, then)
    assert worst >= claim(gate, then) * (1 - Fraction(1, 10**9))


def test_behind_the_truncated_gate_both_deltas_are_paid() -> None:
    # A key that passes for certain gives the unit away at the gate or behind it: 1 - (1 - d1)(1 - d2), and no less.
    gate, then = TruncatedGeometric(Bounds(1, 1), epsilon=1.0, delta=1e-2), count(1.0, 1e-2)
    both = 1 - (1 - key_cost(gate.guarantee)) * (1 - key_cost(then.guarantee))
    found = exact(gate, [then], [(sure_to_pass(gate), 1, (1,))])
    assert float(found) == pytest.approx(both, rel=1e-9)
    assert compose(gate.guarantee, then.guarantee).delta == pytest.approx(both, rel=1e-12)


@pytest.mark.parametrize(("d1", "d2"), [(1e-2, 1e-4), (1e-4, 1e-2), (1e-3, 1e-3)])
def test_behind_the_classical_gate_only_the_larger_delta_is_paid(d1: float, d2: float) -> None:
    # A new key pays p and is not there for what follows; an old one costs the gate nothing.
    gate, then = GeometricThreshold(Bounds(1, 1), epsilon=3.0, delta=d1), count(2.0, d2)
    p, behind = gate.guarantee.new_key, key_cost(then.guarantee)
    assert p is not None
    stated = compose(gate.guarantee, then.guarantee).delta
    assert stated == pytest.approx(max(p, behind), rel=1e-12)
    assert stated < (p + behind) * 0.999
    new, old = (exact(gate, [then], [(n, 1, (1,))]) for n in (0, sure_to_pass(gate)))
    assert float(new) == pytest.approx(p, rel=1e-9)
    assert float(old) == pytest.approx(behind, rel=1e-9)


@pytest.mark.parametrize("kind", GATES)
def test_claiming_the_delta_of_the_gate_alone_fails(kind: type[SomeGate]) -> None:
    gate, then = kind(Bounds(1, 1), epsilon=3.0, delta=1e-3), count(2.0, 2e-2)
    found = exact(gate, [then], [(sure_to_pass(gate), 1, (1,))])
    assert found > 2 * Fraction(gate.guarantee.delta)
    assert found <= claim(gate, then)


@pytest.mark.parametrize("kind", GATES)
def test_claiming_the_delta_of_what_is_behind_alone_fails(kind: type[SomeGate]) -> None:
    gate, then = kind(Bounds(1, 1), epsilon=3.0, delta=1e-2), count(2.0, 1e-4)
    found = exact(gate, [then], [(0, 1, (1,))])
    assert found > 2 * Fraction(then.guarantee.delta)
    assert found <= claim(gate, then)


@pytest.mark.parametrize("kind", GATES)
def test_claiming_the_epsilon_of_the_gate_alone_fails(kind: type[SomeGate]) -> None:
    gate, then = kind(Bounds(1, 1), epsilon=1.0, delta=1e-3), count(1.0, 1e-3)
    pair = neighbours(gate, [then], [(sure_to_pass(gate), 1, (1,))])
    assert delta_between(*pair, 1.0) > 2 * claim(gate, then)
    assert delta_between(*pair, 1.98) > claim(gate, then)
    assert delta_between(*pair, 2.0) <= claim(gate, then)


# (gate, epsilon and delta of the gate, of the count behind); two keys with hundreds of outcomes each.
TWO_KEYS: list[tuple[type[SomeGate], float, float, float, float]] = [
    (TruncatedGeometric, 6.0, 2e-2, 4.0, 5e-2),
    (TruncatedGeometric, 4.0, 1e-1, 8.0, 1e-2),
    (GeometricThreshold, 14.0, 1e-2, 8.0, 1e-3),
    (GeometricThreshold, 14.0, 1e-4, 8.0, 2e-2),
]


@pytest.mark.parametrize(("kind", "e1", "d1", "e2", "d2"), TWO_KEYS)
def test_two_keys_keep_the_composed_delta_in_every_mix_of_new_and_old(
    kind: type[SomeGate], e1: float, d1: float, e2: float, d2: float
) -> None:
    gate, then = kind(Bounds(2, 1), epsilon=e1, delta=d1), count(e2, d2, keys=2)
    counts = [0, 1, sure_to_pass(gate)]
    found = {mix: exact(gate, [then], [(n, 1, (1,)) for n in mix]) for mix in combinations_with_replacement(counts, 2)}
    stated = claim(gate, then)
    assert max(found.values()) <= stated
    assert max(found.values()) >= stated * (1 - Fraction(1, 10**9))
    if kind is GeometricThreshold:
        # What is paid for two new keys is not paid behind the gate as well.
        new, behind = gate.guarantee.new_key, key_cost(then.guarantee)
        assert new is not None
        mixed = [1 - (1 - new) ** m * (1 - behind) ** (2 - m) for m in range(3)]
        assert float(stated) == pytest.approx(max(mixed), rel=1e-12)
        assert [float(found[mix]) for mix in ((counts[2],) * 2, (0, counts[2]), (0, 0))] == pytest.approx(
            mixed, rel=1e-9
        )


def test_one_changed_key_of_two_allowed_costs_less() -> None:
    gate, then = TruncatedGeometric(Bounds(2, 1), epsilon=6.0, delta=2e-2), count(4.0, 5e-2, keys=2)
    one = exact(gate, [then], [(sure_to_pass(gate), 1, (1,))])
    assert float(one) == pytest.approx(1 - (1 - key_cost(gate.guarantee)) * (1 - key_cost(then.guarantee)), rel=1e-9)


@pytest.mark.parametrize("kind", GATES)
def test_several_mechanisms_behind_one_gate_keep_the_composed_delta(kind: type[SomeGate]) -> None:
    gate = kind(Bounds(1, 1), epsilon=4.0, delta=1e-2)
    then: list[PerKey] = [count(3.0, 2e-2), total(6.0, 1e-2)]
    changes = [(n, 1, (1, y)) for n in (0, 1, sure_to_pass(gate)) for y in (-1, 2)]
    worst = max(exact(gate, then, [change]) for change in changes)
    stated = claim(gate, *then)
    assert stated * (1 - Fraction(1, 10**9)) <= worst <= stated
    # Leaving one of them out of the composition would be too little.
    assert worst > claim(gate, then[0])
    assert worst > claim(gate, then[1])


# A choice behind the gate looks at all keys that passed, so keys are no longer on their own.


def with_choice(gate: SomeGate, choose: Choose, counts: Sequence[int], bystander: int) -> dict[Hashable, Fraction]:
    """What the gate says of the unit's keys, whether another key passed, and which key is chosen."""
    published = [from_gate(gate, n) for n in (*counts, bystander)]
    nobody = from_gate(gate, bystander)
    # What the gate says of a key that does not change is the same either way: only that it passed matters.
    passed = nobody.total - nobody.mass.get(None, 0)
    published[-1] = Distribution({None: nobody.mass.get(None, 0), "passed": passed}, nobody.total)
    chosen_from: dict[tuple[bool, ...], list[Fraction]] = {}
    seen: dict[Hashable, Fraction] = {}
    for outcome in product(*(part.mass for part in published)):
        chance = Fraction(
            prod(part.mass[o] for part, o in zip(published, outcome, strict=True)), prod(p.total for p in published)
        )
        there = tuple(o is not None for o in outcome)
        places = [place for place, is_there in enumerate(there) if is_there]
        if not places:
            seen[outcome, None] = chance
            continue
        if there not in chosen_from:
            chosen_from[there] = chances(choose.chooser, [(*counts, bystander)[place] for place in places])
        for place, likely in zip(places, chosen_from[there], strict=True):
            seen[outcome, place] = chance * likely
    return seen


def delta_with_choice(gate: SomeGate, choose: Choose, before: Sequence[int], bystander: int) -> Fraction:
    after = [n + 1 for n in before]
    pair = [with_choice(gate, choose, counts, bystander) for counts in (before, after)]
    outcomes = {**pair[0], **pair[1]}
    p, q = ({outcome: side.get(outcome, Fraction(0)) for outcome in outcomes} for side in pair)
    return apart(p, q, gate.guarantee.epsilon + choose.guarantee.epsilon)[0]


@pytest.mark.parametrize("method", ["permute-and-flip", "exponential"])
@pytest.mark.parametrize("kind", GATES)
def test_a_gate_and_a_choice_keep_the_composed_delta(kind: type[SomeGate], method: str) -> None:
    gate = kind(Bounds(1, 1), epsilon=4.0, delta=1e-2)
    choose = Choose(Bounds(1, 1), epsilon=1.0, delta=1e-9, method=method)
    counts = (0, 1, 3, sure_to_pass(gate)) if isinstance(gate, TruncatedGeometric) else (0, 1, gate.threshold)
    found = [delta_with_choice(gate, choose, [n], other) for n in counts for other in (2, counts[-1])]
    assert max(found) <= claim(gate, choose)
    assert max(found) >= claim(gate, choose) * (1 - Fraction(1, 10**9))


@pytest.mark.parametrize(("epsilon", "delta"), [(6.0, 2e-2), (3.0, 0.2)])
def test_two_keys_and_a_choice_keep_the_composed_delta(epsilon: float, delta: float) -> None:
    gate = TruncatedGeometric(Bounds(2, 1), epsilon=epsilon, delta=delta)
    choose = Choose(Bounds(2, 1), epsilon=1.0, delta=1e-9)
    found = [
        delta_with_choice(gate, choose, mix, other)
        for mix in combinations_with_replacement((0, 1, sure_to_pass(gate)), 2)
        for other in (1, sure_to_pass(gate))
    ]
    assert max(found) <= claim(gate, choose)
    assert max(found) >= claim(gate, choose) * (1 - Fraction(1, 10**9))


def test_a_choice_uses_the_epsilon_it_is_given() -> None:
    # With the gate's epsilon alone, the choice among keys that are sure to pass gives more away than delta.
    gate = TruncatedGeometric(Bounds(1, 1), epsilon=4.0, delta=1e-3)
    choose = Choose(Bounds(1, 1), epsilon=1.0, delta=1e-9)
    n = sure_to_pass(gate)
    pair = [with_choice(gate, choose, [m], n + 3) for m in (n, n + 1)]
    outcomes = {**pair[0], **pair[1]}
    p, q = ({outcome: side.get(outcome, Fraction(0)) for outcome in outcomes} for side in pair)
    assert apart(p, q, 4.0)[0] > claim(gate, choose)
    assert apart(p, q, 5.0)[0] <= claim(gate, choose)


# When composing is refused.


@pytest.mark.parametrize("keys", [1, 2, 5])
def test_composing_refuses_a_new_key_that_is_likelier_than_epsilon_allows(keys: int) -> None:
    epsilon = 0.4
    most = -expm1(-epsilon / keys)

    def gate(new: float) -> Guarantee:
        return Guarantee(epsilon / 2, 0.9, keys, 1, new)

    per_key, choice = Guarantee(epsilon / 2, 1e-3, keys, 1, 1e-3), Guarantee(epsilon / 2, 1e-3, keys, 1)
    assert compose(gate(most * 0.999), per_key).epsilon == epsilon
    with pytest.raises(ValueError, match=r"^delta must be small next to epsilon") as refused:
        compose(gate(most * 1.001), per_key)
    assert "\n" not in str(refused.value)
    # What a choice spends is not freed by a key that stays away.
    with pytest.raises(ValueError, match=r"write a smaller delta$"):
        compose(gate(most * 0.999), choice)
    assert compose(gate(-expm1(-epsilon / 2 / keys) * 0.999), choice).epsilon == epsilon
    # Alone, the gate's guarantee is its own.
    assert compose(gate(most * 2)) == gate(most * 2)


@pytest.mark.parametrize(("epsilon", "delta", "keys"), [(0.1, 0.3, 1), (0.05, 0.2, 1), (0.2, 0.4, 2)])
def test_a_real_gate_that_lets_new_keys_through_too_often_is_refused_on_the_safe_side(
    epsilon: float, delta: float, keys: int
) -> None:
    gate = TruncatedGeometric(Bounds(keys, 1), epsilon=epsilon, delta=delta)
    then = count(epsilon, 0.3, keys)
    new, behind = key_cost(gate.guarantee), key_cost(then.guarantee)
    assert -log1p(-new) > 2 * epsilon / keys
    with pytest.raises(ValueError, match=r"^delta must be small next to epsilon"):
        compose(gate.guarantee, then.guarantee)
    # A new key that stays away costs more than its share of epsilon, but never more than delta has room for: a key that
    # appears with probability `new` or not at all is within `new` of one that is not there, in both directions.
    formula = 1 - (1 - new) ** keys * (1 - behind) ** keys
    worst = max(
        exact(gate, [then], [(n, 1, (1,)) for n in mix])
        for mix in combinations_with_replacement((0, 1, sure_to_pass(gate)), keys)
    )
    assert float(worst) == pytest.approx(formula, rel=1e-9)


def test_a_gate_that_says_nothing_about_single_keys_is_composed_by_the_plain_rule() -> None:
    gate, then = Guarantee(1.0, 1e-2, 3, 1), Guarantee(0.5, 1e-3, 3, 1, 4e-4)
    composed = compose(gate, then)
    assert composed.epsilon == 1.5
    assert composed.delta == pytest.approx(1 - (1 - 1e-2) * (1 - 4e-4) ** 3, rel=1e-12)
    assert composed.a_key is None
    # And it is not refused, however likely a new key is: all of its delta is paid.
    assert compose(Guarantee(0.1, 0.9, 1, 1), then).delta > 0.9


@pytest.mark.parametrize("keys", range(1, 9))
@pytest.mark.parametrize(("new", "old", "behind"), [(1e-3, 1e-6, 4e-4), (1e-4, 1e-4, 1e-3), (1e-3, 0.0, 9e-4)])
def test_the_worst_mix_is_found_without_trying_all(keys: int, new: float, old: float, behind: float) -> None:
    gate = Guarantee(1.0, 0.5, keys, 1, old, new)
    per_key, choice = Guarantee(1.0, 0.5, keys, 1, behind), Guarantee(1.0, 2e-3, keys, 1)
    every = [
        1 - (1 - new) ** m * ((1 - old) * (1 - behind)) ** (keys - m) * (1 - 2e-3 if m < keys else 1)
        for m in range(keys + 1)
    ]
    assert compose(gate, per_key, choice).delta == pytest.approx(max(every), rel=1e-12)
