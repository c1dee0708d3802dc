"""Every gate and downstream mechanism on the real pipeline: right answers, and the same bytes however it is run."""

from __future__ import annotations

import math
import pickle
import random
from collections import defaultdict
from typing import Any

import pytest

from tests.transforms.running import NEARLY_EXACT, T0, release, terms
from tidegate.transforms import Release, SpecError, make_terms

HOUR = 3600
KEYS = [f"t{number}" for number in range(6)]
COLUMN = {"column": "amount", "low": 0, "high": 50, "resolution": 0.5}
NOISE = 10.0
"""Words of 128 bits have some noise for a hundred steps at any epsilon: more than this with probability 1e-4 a number, and
the secret is fixed."""


def events(seed: int = 0, users: int = 300) -> list[dict[str, Any]]:
    """Two windows of users with one to three keys each and several amounts in a key."""
    rng, found = random.Random(seed), []
    for window in range(2):
        for user in range(users):
            for key in rng.sample(KEYS, rng.randint(1, 3)):
                for _ in range(rng.randint(1, 3)):
                    amount = rng.randint(-20, 140) / 2
                    at = T0 + window * HOUR + rng.randrange(HOUR)
                    found.append({"user": f"u{user}", "term": key, "at": at, "amount": amount})
    rng.shuffle(found)
    return found


def truth(rows: list[dict[str, Any]], window: int) -> dict[str, dict[str, list[float]]]:
    """key → unit → amounts."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if (row["at"] - T0) // HOUR == window:
            found[row["term"]][row["user"]].append(row["amount"])
    return found


def clip(value: float, low: float = 0, high: float = 50) -> float:
    return min(max(value, low), high)


def numbers(found: Release, mechanism: str) -> dict[tuple[str, str], tuple[Any, Any, Any]]:
    rows = [row for row in found.rows.to_pylist() if row["mechanism"] == mechanism]
    return {(row["key"], row["measure"]): (row["value"], row["low"], row["high"]) for row in rows}


def run(then: list[dict[str, Any]] | None = None, rows: list[dict[str, Any]] | None = None, **changes: Any) -> Any:
    changes.setdefault("gate", NEARLY_EXACT)
    return release(events() if rows is None else rows, then=then or [], **changes)


# Downstream mechanisms, at an epsilon at which they are all but exact.


def test_a_sum_adds_up_what_each_unit_has_clipped_for_each() -> None:
    found = run([{"mechanism": "sum", "epsilon": 1e4, **COLUMN}])
    for window in range(2):
        for key, units in truth(events(), window).items():
            value, low, high = numbers(found[window], "sum")[key, "sum(amount)"]
            exact = sum(clip(sum(amounts)) for amounts in units.values())
            assert low <= exact <= high
            assert value == pytest.approx(exact, abs=NOISE)


@pytest.mark.parametrize(
    ("each", "of"), [("sum", sum), ("mean", lambda a: sum(a) / len(a)), ("min", min), ("max", max)]
)
def test_a_mean_and_a_variance_are_over_one_value_a_unit(each: str, of: Any) -> None:
    found = run(
        [
            {"mechanism": "mean", "epsilon": 1e6, "each": each, **COLUMN},
            {"mechanism": "variance", "epsilon": 1e6, "each": each, **COLUMN},
        ]
    )
    for key, units in truth(events(), 0).items():
        values = [clip(math.floor(of(amounts) / 0.5 + 0.5) * 0.5) for amounts in units.values()]
        mean = sum(values) / len(values)
        variance = sum((value - mean) ** 2 for value in values) / len(values)
        value, low, high = numbers(found[0], "mean")[key, "mean(amount)"]
        assert low <= mean <= high
        assert value == pytest.approx(mean, rel=2e-3)
        value, low, high = numbers(found[0], "variance")[key, "variance(amount)"]
        assert low <= variance <= high
        assert value == pytest.approx(variance, rel=1e-2)


def test_a_histogram_counts_units_by_bucket() -> None:
    edges = [0, 10, 20.5, 50]
    found = run([{"mechanism": "histogram", "epsilon": 1e3, "column": "amount", "edges": edges, "each": "max"}])
    names = ["histogram(amount) [0, 10)", "histogram(amount) [10, 20.5)", "histogram(amount) [20.5, 50]"]
    for key, units in truth(events(), 1).items():
        values = [clip(max(amounts)) for amounts in units.values()]
        exact = [sum(left <= v < right for v in values) for left, right in ((0, 10), (10, 20.5), (20.5, 51))]
        assert [numbers(found[1], "histogram")[key, name][0] for name in names] == exact
        assert sum(exact) == len(units)


def test_quantiles_are_within_a_bucket_and_in_order() -> None:
    then = [{"mechanism": "quantiles", "epsilon": 1e5, "at": [0.25, 0.5, 0.95], "buckets": 64, **COLUMN}]
    found = run(then)
    for key, units in truth(events(), 0).items():
        values = sorted(clip(math.floor(sum(a) / len(a) / 0.5 + 0.5) * 0.5) for a in units.values())
        shown = [numbers(found[0], "quantiles")[key, f"quantile(amount, {q})"][0] for q in (0.25, 0.5, 0.95)]
        assert shown == sorted(shown)
        for q, value in zip((0.25, 0.5, 0.95), shown, strict=True):
            exact = values[math.ceil(q * len(values)) - 1]
            assert abs(value - exact) <= 50 / 64 + 0.5


def test_choices_and_ranks_follow_the_counts_and_hold_no_number_of_theirs() -> None:
    found = run([{"mechanism": "choose", "epsilon": 50.0}, {"mechanism": "top-k", "k": 3, "epsilon": 150.0}])
    counts = {key: len(units) for key, units in truth(events(), 0).items()}
    order = sorted(counts, key=lambda key: -counts[key])
    assert len({counts[key] for key in order[:4]}) == 4  # no ties, or the order would be anybody's guess
    assert numbers(found[0], "choose") == {(order[0], "choice"): (None, None, None)}
    assert numbers(found[0], "top-k") == {(key, "rank"): (rank + 1, None, None) for rank, key in enumerate(order[:3])}


def test_a_second_count_is_drawn_apart_from_the_first() -> None:
    found = run([{"mechanism": "noisy-count", "epsilon": 0.5}], gate={"epsilon": 0.5, "delta": 1e-3})
    first, second = (numbers(found[0], name) for name in ("truncated-geometric", "noisy-count"))
    assert {key for key, _ in first} == {key for key, _ in second} == set(KEYS)
    assert [first[key, "units"][0] for key in KEYS] != [second[key, "noisy-count"][0] for key in KEYS]
    for key, units in truth(events(), 0).items():
        assert all(low <= len(units) <= high for (shown, _), (_, low, high) in second.items() if shown == key)


ALL = [
    {"mechanism": "sum", "epsilon": 1.0, **COLUMN},
    {"mechanism": "mean", "epsilon": 1.0, **COLUMN},
    {"mechanism": "variance", "epsilon": 1.0, **COLUMN},
    {"mechanism": "histogram", "epsilon": 1.0, "column": "amount", "edges": [0, 10, 50]},
    {"mechanism": "quantiles", "epsilon": 2.0, "at": [0.5, 0.9], "each": "max", **COLUMN},
    {"mechanism": "noisy-count", "epsilon": 0.5},
    {"mechanism": "choose", "epsilon": 0.1},
    {"mechanism": "choose", "epsilon": 0.1, "method": "exponential", "name": "classical choice"},
    {"mechanism": "top-k", "k": 4, "epsilon": 0.4},
]


def test_the_same_data_give_the_same_bytes_whatever_the_shards_bundles_and_order() -> None:
    gate = {"epsilon": 2.0, "delta": 1e-4}
    one = run(ALL, gate=gate, shards=1)
    shuffled = events()
    random.Random(9).shuffle(shuffled)
    other = run(ALL, rows=shuffled, gate=gate, shards=5, bundles=4)
    assert [a.rows for a in one] == [b.rows for b in other]
    assert len(one[0].rows) == 6 * 9 + 2 + 4
    # One amount changes, no count does: every draw of that window is new, since the digest covers the values too.
    changed = events()
    lone = {
        (key, user)
        for key, units in truth(changed, 0).items()
        for user, a in units.items()
        if len(a) == 1 and 5 < a[0] < 40
    }
    row = next(row for row in changed if (row["term"], row["user"]) in lone and row["at"] < T0 + HOUR)
    row["amount"] += 0.5
    third = run(ALL, rows=changed, gate=gate)
    assert third[1].rows == one[1].rows
    before, after = (numbers(found[0], "truncated-geometric") for found in (one, third))
    assert sum(before[place] == after.get(place) for place in before) < len(before) / 2


# Gates.


def test_a_sum_in_fixed_point_can_be_the_gates_measure_negatives_too() -> None:
    measure = {"sum": "amount", "low": -10, "high": 30, "resolution": 0.5}
    found = run(gate={"epsilon": 1e6, "delta": 1e-9, "measure": measure})
    shown = numbers(found[0], "truncated-geometric")
    for key, units in truth(events(), 0).items():
        exact = sum(clip(sum(amounts), -10, 30) for amounts in units.values())
        value, low, high = shown[key, "sum(amount)"]
        assert low <= exact <= high
        assert value == pytest.approx(exact, abs=NOISE)
    assert found[0].manifest["gate"]["measure"] == measure
    # A key whose sum is negative never appears.
    loss = [{"user": f"u{i}", "term": "loss", "at": T0, "amount": -5} for i in range(500)]
    assert not len(run(rows=loss, gate={"epsilon": 10.0, "delta": 1e-6, "measure": measure})[0].rows)


def test_public_keys_appear_in_every_window_and_no_other_key_does() -> None:
    rows = [row for row in events() if row["at"] < T0 + HOUR]  # nothing in the second window
    gate = {**NEARLY_EXACT, "mechanism": "public-keys", "keys": ["t0", "t1", "nobody's"]}
    found = run([{"mechanism": "mean", "epsilon": 1e6, **COLUMN}], rows=rows, gate=gate, bound={"keys": 3})
    for window in range(2):
        shown = numbers(found[window], "public-keys")
        assert {key for key, _ in shown} == {"t0", "t1", "nobody's"}
        exact = truth(rows, window)
        assert all(shown[key, "units"][0] == len(exact.get(key, {})) for key in ("t0", "t1", "nobody's"))
        assert {key for key, _ in numbers(found[window], "mean")} == {"t0", "t1", "nobody's"}
    low, high = numbers(found[1], "mean")["t0", "mean(amount)"][1:]
    assert (low, high) == (0, 50)  # nothing is known of the mean of nobody


def test_a_units_bound_is_not_spent_on_keys_that_are_left_out() -> None:
    rows = [{"user": f"u{u}", "term": f"t{k}", "at": T0} for u in range(40) for k in range(6)]
    gate = {**NEARLY_EXACT, "mechanism": "public-keys", "keys": ["t0"]}
    found = run(rows=rows, gate=gate, bound={"keys": 1})
    assert numbers(found[0], "public-keys")["t0", "units"][0] == 40


def test_keys_that_are_not_listed_can_fall_to_a_second_gate() -> None:
    rows = [{"user": f"u{u}", "term": term, "at": T0} for term, n in (("new", 30), ("rare", 1)) for u in range(n)]
    gate = {
        "epsilon": 5.0,
        "delta": 1e-6,
        "mechanism": "public-keys",
        "keys": ["listed"],
        "otherwise": "truncated-geometric",
    }
    found = run(rows=rows, gate=gate, bound={"keys": 1})
    assert {key for key, _ in numbers(found[0], "public-keys")} == {"listed", "new"}
    assert {key for key, _ in numbers(found[1], "public-keys")} == {"listed"}


def test_weights_keep_keys_out_lift_them_and_let_them_in() -> None:
    sizes = {"plain": 14, "lifted": 14, "barred": 500, "rare": 1}
    rows = [{"user": f"{k}{u}", "term": k, "at": T0} for k, size in sizes.items() for u in range(size)]
    gate = {"epsilon": 2.0, "delta": 1e-6, "weights": {"barred": 0, "lifted": 8, "always": math.inf}, "other_weight": 2}
    found = run(rows=rows, gate=gate, bound={"keys": 1})
    shown = numbers(found[0], "truncated-geometric")
    # Eight times the weight of the noise: 14 lifted units weigh 112, 14 plain ones 28, and the threshold is between.
    assert {key for key, _ in shown} == {"lifted", "always"}
    assert 28 < found[0].manifest["gate"]["threshold"] < 112
    for key in ("lifted", "always"):
        _, low, high = shown[key, "units"]
        assert low <= sizes.get(key, 0) <= high
        assert low == int(low)
    assert {key for key, _ in numbers(found[1], "truncated-geometric")} == {"always"}


def test_a_threshold_on_geometric_noise_publishes_counts_without_a_range() -> None:
    found = run(gate={**NEARLY_EXACT, "mechanism": "geometric-threshold"})
    exact = truth(events(), 0)
    shown = numbers(found[0], "geometric-threshold")
    assert shown == {(key, "units"): (len(exact[key]), None, None) for key in KEYS}


def test_optimal_selection_publishes_keys_and_nothing_about_them() -> None:
    found = run(
        [{"mechanism": "noisy-count", "epsilon": 100.0}], gate={**NEARLY_EXACT, "mechanism": "optimal-selection"}
    )
    assert numbers(found[0], "optimal-selection") == {(key, "units"): (None, None, None) for key in KEYS}
    assert numbers(found[0], "noisy-count")["t0", "noisy-count"][0] == len(truth(events(), 0)["t0"])


def test_ranges_hold_for_listed_keys_or_nothing_is_said() -> None:
    keys = [f"k{number}" for number in range(200)]
    rows = [{"user": f"u{u}", "term": key, "at": T0} for key in keys for u in range(5)]
    gate = {"epsilon": 1.0, "delta": 0.1, "mechanism": "range", "keys": keys}
    found = run(rows=rows, gate=gate, bound={"keys": 1})[0]
    # One unit a key and window counts, so the truth is at most 5; with a large delta some ranges are withheld.
    shown = numbers(found, "range")
    assert 100 < len(shown) < 200
    assert all(high - low == 2 * found.manifest["gate"]["half_width"] for _, low, high in shown.values())


# Preparation.


def test_rows_are_prepared_before_they_are_counted_and_bounded() -> None:
    rows = [
        {"user": f"u{u}", "url": f"https://host{h}/page{u}", "status": 200 if h else 500, "at": T0}
        for u in range(50)
        for h in range(3)
    ]
    found = release(
        rows,
        columns={"unit": "user", "key": "host", "time": "at", "time_unit": "s"},
        prepare={"where": "status < 400", "derive": {"host": "regexp_extract(url, '//([^/]+)', 1)"}},
        bound={"keys": 2},
        gate=NEARLY_EXACT,
    )
    assert {key: value[0] for (key, _), value in numbers(found[0], "truncated-geometric").items()} == {
        "host1": 50,
        "host2": 50,
    }


def test_a_row_that_cannot_be_prepared_becomes_a_dead_letter_and_the_others_go_on() -> None:
    from tests.collecting import Collected
    from tidegate.transforms.decode import DeadLetter

    rows = [{"user": f"u{u}", "term": "t", "at": T0, "age": "old" if u == 7 else str(u)} for u in range(40)]
    rows.append({"user": "u99", "term": None, "at": T0, "age": "3"})
    with Collected[DeadLetter]() as dead:
        found = release(rows, prepare={"where": "age::int < 100"}, gate=NEARLY_EXACT, dead_letters=dead.collect())
        assert sorted((letter.reason, letter.row) for letter in dead.items) == [
            ("missing_key", 40),
            ("not_prepared", 7),
        ]
        assert "old" in next(letter.raw for letter in dead.items if letter.reason == "not_prepared")
    assert numbers(found[0], "truncated-geometric")["t", "units"][0] == 39


@pytest.mark.parametrize("bundles", [1, 4])
def test_no_more_than_so_many_of_a_units_events_count(bundles: int) -> None:
    rows = [{"user": "loud", "term": f"t{k}", "at": T0 + e} for k in range(5) for e in range(9)]
    rows += [{"user": f"u{u}", "term": f"t{u % 5}", "at": T0} for u in range(50)]
    random.Random(1).shuffle(rows)
    found = release(
        rows,
        prepare={"truncate": 7},
        bound={"keys": 4, "per_key": 3},
        gate={**NEARLY_EXACT, "epsilon": 2000.0, "measure": "events"},
        bundles=bundles,
    )
    shown = {key: value[0] for (key, _), value in numbers(found[0], "truncated-geometric").items()}
    # Whole keys by rank: 3 + 3 + 1 of the loud one.
    assert sorted(value - 10 for value in shown.values()) == [0, 0, 1, 3, 3]


def test_values_that_are_no_numbers_are_dead_letters() -> None:
    from tests.collecting import Collected
    from tidegate.transforms.decode import DeadLetter

    amounts: list[Any] = [1, 2.5, "3.5", " 4e0 ", "1e999", "five", None, math.nan, math.inf, True, "0x10", 10**30]
    rows = [{"user": f"u{i}", "term": "t", "at": T0, "amount": amount} for i, amount in enumerate(amounts)]
    with Collected[DeadLetter]() as dead:
        found = run([{"mechanism": "sum", "epsilon": 1e4, **COLUMN}], rows=rows, dead_letters=dead.collect())
        reasons = {letter.row: letter.reason for letter in dead.items}
    assert reasons == {
        4: "bad_value",
        5: "bad_value",
        6: "missing_value",
        7: "bad_value",
        8: "bad_value",
        9: "wrong_type",
        10: "bad_value",
    }
    value = numbers(found[0], "sum")["t", "sum(amount)"][0]
    assert value == pytest.approx(1 + 2.5 + 3.5 + 4 + 50, abs=NOISE)


# Specs.


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gate": {"utility": "share"}}, "gate.utility must be a key's own measure times a public weight, and 'share'"),
        ({"gate": {"weights": {"a": -1}}}, "gate.weights of 'a' must be a whole number from 0 to 1000000 or .inf"),
        ({"gate": {"weights": {"a": 0}, "other_weight": 0}}, "gate.weights must let some key in"),
        ({"gate": {"other_weight": 2}}, "gate.other_weight must stand beside weights"),
        ({"gate": {"other_weight": math.inf, "weights": {"a": 1}}}, "gate.other_weight must be finite"),
        ({"gate": {"mechanism": "public-keys"}}, "gate.keys is required by public-keys"),
        ({"gate": {"mechanism": "public-keys", "keys": []}}, "gate.keys must be a list of keys"),
        ({"gate": {"mechanism": "public-keys", "keys": ["a", "a"]}}, "gate.keys must name each key once, and 'a'"),
        ({"gate": {"mechanism": "range", "keys": ["a"], "weights": {"a": 2}}}, "gate.weights must belong to a gate"),
        (
            {"gate": {"mechanism": "public-keys", "keys": ["a"], "otherwise": "range"}},
            "gate.otherwise must be a gate for keys that nobody listed, not 'range'",
        ),
        ({"gate": {"measure": {"sum": "x", "low": 0}}}, "gate.measure must say high"),
        (
            {"gate": {"measure": {"sum": "x", "low": 5, "high": 1}}},
            "gate.measure must be a sum in fixed point, and its high",
        ),
        ({"gate": {"measure": {"sum": "user", "low": 0, "high": 1}}}, "columns.unit must not be summed or averaged"),
        ({"then": [{"mechanism": "sum", "epsilon": 1.0, "column": "x"}]}, "then[0].low is required by sum"),
        (
            {"then": [{"mechanism": "mean", "epsilon": 1.0, "column": "x", "low": 0, "high": 1, "each": "median"}]},
            "then[0].each must be sum, mean, min or max, not 'median'",
        ),
        (
            {"then": [{"mechanism": "sum", "epsilon": 1.0, "column": "x", "low": 0, "high": 0.5, "resolution": 0.3}]},
            "then[0].high must be a whole number of steps of resolution 0.3, not 0.5",
        ),
        ({"then": [{"mechanism": "top-k", "epsilon": 1.0, "k": 0}]}, "then[0].k must be a whole number from 1 to 1000"),
        (
            {"then": [{"mechanism": "choose", "epsilon": 1.0}, {"mechanism": "choose", "epsilon": 2.0}]},
            "then[1].name is needed, since then[0] publishes choice too",
        ),
        (
            {"then": [{"mechanism": "quantiles", "epsilon": 1.0, "column": "x", "low": 0, "high": 1, "at": [2]}]},
            "then[0].at must hold numbers above 0 and below 1, not 2",
        ),
        (
            {"gate": {"epsilon": 0.01, "delta": 0.5}, "then": [{"mechanism": "noisy-count", "epsilon": 0.01}]},
            "gate.delta must be small next to epsilon when mechanisms follow the gate",
        ),
        ({"prepare": {"where": "sum(x) > 3"}}, "prepare.where must be a function of one row"),
        ({"prepare": {"truncate": 0}}, "prepare.truncate must"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as refused:
        make_terms(**terms(**changes))
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)
    assert "; " in str(refused.value)


def test_downstream_mechanisms_share_the_gates_delta_unless_they_say_otherwise() -> None:
    then = [{"mechanism": "noisy-count", "epsilon": 0.5}, {"mechanism": "noisy-count", "epsilon": 0.5, "name": "again"}]
    made = make_terms(**terms(gate={"mechanism": "geometric-threshold"}, then=then))
    assert [mechanism.guarantee.delta for mechanism in made.mechanisms] == [1e-5, 5e-6, 5e-6]
    # An old key costs only what is downstream, a new one only what is at the gate: together no more than the dearer.
    assert made.guarantee.delta <= 1e-5
    assert made.guarantee.epsilon == 2.0
    truncated = make_terms(**terms(then=then))
    assert 1.5e-5 < truncated.guarantee.delta <= 2e-5


def test_terms_that_mean_something_else_have_another_digest() -> None:
    plain = make_terms(**terms())
    changed: list[dict[str, Any]] = [
        {"prepare": {"where": "true"}},
        {"prepare": {"truncate": 5}},
        {"gate": {"weights": {"a": 2}}},
        {"gate": {"weights": {"a": 3}}},
        {"gate": {"mechanism": "public-keys", "keys": ["a"]}},
        {"gate": {"mechanism": "public-keys", "keys": ["a", "b"]}},
        {"gate": {"measure": {"sum": "x", "low": 0, "high": 1}}},
        {"gate": {"measure": {"sum": "x", "low": 0, "high": 2}}},
        {"then": [{"mechanism": "noisy-count", "epsilon": 0.5}]},
        {"then": [{"mechanism": "noisy-count", "epsilon": 0.5, "delta": 1e-7}]},
    ]
    digests = {plain.digest, *(make_terms(**terms(**change)).digest for change in changed)}
    assert len(digests) == len(changed) + 1
    assert make_terms(**terms(prepare={})).digest == plain.digest


def test_terms_travel_without_what_is_computed_from_them() -> None:
    gate = {"epsilon": 0.01, "mechanism": "optimal-selection"}
    made = make_terms(**terms(gate=gate, then=[{"mechanism": "choose", "epsilon": 0.01}], prepare={"where": "true"}))
    assert len(made.gate_mechanism.probabilities) > 3_000  # type: ignore[attr-defined]
    packed = pickle.dumps(made)
    assert len(packed) < 4_000
    again = pickle.loads(packed)  # noqa: S301
    assert again.digest == made.digest
    assert again.gate_mechanism.survival(3_000) == made.gate_mechanism.survival(3_000)


def test_values_are_in_every_window_that_slides_over_their_event() -> None:
    window = {"size": "1h", "every": "30m", "start": "2026-01-01T00:00:00Z", "end": "2026-01-01T02:00:00Z"}
    found = release(
        events(),
        window=window,
        gate=NEARLY_EXACT,
        then=[{"mechanism": "histogram", "epsilon": 1e3, "column": "amount", "edges": [0, 25, 50], "each": "max"}],
    )
    assert len(found) == 3
    for place, one in enumerate(found):
        begin = T0 + place * HOUR // 2
        best: dict[tuple[str, str], float] = {}
        for row in events():
            if begin <= row["at"] < begin + HOUR:
                pair = row["term"], row["user"]
                best[pair] = max(best.get(pair, -math.inf), row["amount"])
        # A unit may have more than three keys in a window that slides, and then some of them do not count.
        for key in KEYS:
            low = numbers(one, "histogram")[key, "histogram(amount) [0, 25)"][0]
            high = numbers(one, "histogram")[key, "histogram(amount) [25, 50]"][0]
            units = numbers(one, "truncated-geometric")[key, "units"][0]
            assert low + high == units
            values = [clip(value) for (term, _), value in best.items() if term == key]
            assert low <= sum(value < 25 for value in values)
            assert high <= sum(value >= 25 for value in values)
            if place != 1:  # aligned with how the events were made: nobody exceeds the bound
                assert (low, high) == (sum(value < 25 for value in values), sum(value >= 25 for value in values))
