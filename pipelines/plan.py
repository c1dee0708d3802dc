"""What a spec will let through, before launch: from the spec alone, or beside counts that the planner may look at.

How likely a key appears depends on its own count and on public numbers only, so everything here is computed, nothing is
drawn or sampled. Counts, where the planner gives some, are exact ones: what is said of them is not private.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.mechanisms.guarantee import share
from tidegate.mechanisms.literature import least_units
from tidegate.mechanisms.mechanism import Gate, Mechanism, admitted_by, public_keys_of
from tidegate.pipelines.plan_counts import LARGEST_COUNT, Seen
from tidegate.transforms.seal import rfc3339
from tidegate.transforms.terms import GateTerms, Terms, ThenTerms

GATES = ("truncated-geometric", "geometric-threshold", "optimal-selection")
MARKS = (1e-6, 0.01, 0.1, 0.5, 0.9, 0.99)
"""Chances that people ask for, and the classes that keys are sorted into."""

EYES = "for the planner's eyes: computed on exact counts, so it is not private and must not be published"
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
_POINTS = 240
_LARGEST_TABLE = 200_000  # chances of optimal selection, about a second

Counts = npt.NDArray[np.int64]
Chances = npt.NDArray[np.float64]
Row = dict[str, Any]


def plan(spec: Terms, seen: Seen | None = None) -> Row:
    """Everything a planner may ask, as data."""
    gates = compared(spec)
    return {
        "stream": spec.stream,
        "unit": spec.columns.one_unit,
        "each_row": spec.columns.unit is None,
        "protects": spec.protects,
        "measure": spec.gate.measure.label,
        "bounds": {"keys": spec.bounds.keys, "per_key": _number(spec, spec.bounds.per_key)},
        "gate": spec.gate.mechanism,
        "guarantee": _promise(spec),
        "mechanisms": _costs(spec),
        "survival": survival(spec),
        "notes": _notes(spec),
        "curves": {name: _curve(spec, gate) for name, gate in gates.items()},
        "tails": {name: _tail(spec, gate) for name, gate in gates.items()},
        "gates": [_gate_row(spec, name, gate) for name, gate in gates.items()],
        "not_compared": [name for name in GATES if name not in gates],
        "limit": _limits(spec),
        "what_if": {
            "epsilon": _what_if(spec, "epsilon", [_times(spec.gate.epsilon, factor) for factor in _FACTORS]),
            "delta": _what_if(spec, "delta", [_times(spec.gate.delta, factor) for factor in (1e-3, 1, 1e3)]),
            "keys": _what_if(spec, "keys", _key_bounds(spec.bound.keys) if spec.columns.unit else [1]),
            "window": _windows(spec),
        },
        **({} if seen is None else {"like": _like(spec, gates, seen)}),
    }


# The gate.


def compared(terms: Terms) -> dict[str, Gate]:
    """The spec's gate first, then those that could stand in its place, at the same budget and bounds."""
    found = {terms.gate.mechanism: terms.gate_mechanism}
    for name in GATES:
        if name not in found and not (name == "optimal-selection" and _table_size(terms) > _LARGEST_TABLE):
            try:
                found[name] = with_gate(terms, mechanism=name).gate_mechanism
            except ValueError:
                continue
    return found


def _table_size(terms: Terms) -> float:
    """About how many chances optimal selection would have to hold: twice the half-width, in a unit's steps."""
    try:
        gate = with_gate(terms, mechanism="truncated-geometric").gate_mechanism
    except ValueError:
        return float("inf")
    return 2 * float(gate.describe()["half_width"]) / terms.bounds.per_key


def with_gate(terms: Terms, **changes: Any) -> Terms:
    """The same terms with another gate; its mechanism's own parameters stay only where the mechanism does."""
    old = terms.gate
    if changes.get("mechanism", old.mechanism) != old.mechanism:
        fields = {name: getattr(old, name) for name in GateTerms.model_fields}
        gate = GateTerms.model_construct(**(fields | changes))
    else:
        gate = old.model_copy(update=changes)
    return _changed(terms, gate=gate)


def _changed(terms: Terms, **changes: Any) -> Terms:
    """Terms that are calibrated anew when they are asked."""
    return Terms.model_construct(**({name: getattr(terms, name) for name in Terms.model_fields} | changes))


def first_count(chance_of: Callable[[int], float], chance: float) -> int | None:
    """The smallest count, 1 or more, that appears with this chance; None if none does."""
    high = 1
    while chance_of(high) < chance:
        high *= 2
        if high > LARGEST_COUNT:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if chance_of(middle) < chance else (low, middle)
    return high


def survival(terms: Terms) -> list[Row]:
    """A key's chance to appear where it passes the marks that people ask for, and at the smallest count."""
    gate = terms.gate_mechanism
    counts = {1, *(n for n in (first_count(gate.survival, chance) for chance in MARKS) if n is not None)}
    return [{"count": _number(terms, n), "chance": gate.survival(n)} for n in sorted(counts)]


def _notes(terms: Terms) -> list[str]:
    """What the chances are not about."""
    gate, found = terms.gate_mechanism, []
    listed = len(public_keys_of(gate))
    if "chance_of_a_range" in gate.describe():
        found.append(f"This is for the {listed:,} listed keys, whatever their count; others never appear")
    elif listed:
        found.append(f"Of listed keys there are {listed:,}, sure to appear; the chances are those of the others")
    if terms.gate.weights is not None:
        found.append("Thresholds and widths are of weighted counts, chances those of a key without a weight of its own")
    return found


def _curve(terms: Terms, gate: Gate) -> list[Row]:
    """A key's chance from almost never to almost always, in even steps of its count."""
    ends = [first_count(gate.survival, chance) for chance in (1e-4, 0.999)]
    last = ends[1] or 2 * (ends[0] or 1)
    margin = max(2, (last - (ends[0] or 0)) // 8)
    first = max(0, (ends[0] or 0) - margin)
    counts = np.unique(np.linspace(first, last + margin, _POINTS).astype(np.int64)).tolist()
    return [{"count": _number(terms, n), "chance": gate.survival(n)} for n in counts]


def _tail(terms: Terms, gate: Gate) -> list[Row]:
    """A key's chance from its first unit on, up to where it is likely to appear."""
    last = first_count(gate.survival, 0.9) or 100
    counts = np.unique(np.linspace(1, last, 80).astype(np.int64)).tolist()
    return [{"count": _number(terms, n), "chance": gate.survival(n)} for n in counts]


def _gate_row(terms: Terms, name: str, gate: Gate) -> Row:
    told = gate.describe()
    counts = {f"at_{percent}": first_count(gate.survival, percent / 100) for percent in (50, 99)}
    described = {field: told.get(field) for field in ("threshold", "half_width")}
    return {"mechanism": name} | {
        field: None if steps is None else _number(terms, steps) for field, steps in (described | counts).items()
    }


def _limits(terms: Terms) -> list[Row]:
    """Counts below which no private mechanism can show a key, whatever it does."""
    bounds, epsilon, delta = terms.bounds, terms.gate.epsilon, terms.gate.delta
    keys = min(bounds.keys, bounds.l1)
    budgets = {"any mechanism": (epsilon, delta)}
    if keys > 1:
        budgets["an even share for each key"] = epsilon / keys, share(delta, keys)
    found = []
    for name, (e, d) in budgets.items():
        units = {f"at_{percent}": least_units(percent / 100, e, d) for percent in (50, 99)}
        counts = {field: _number(terms, (fewest - 1) * bounds.per_key + 1) for field, fewest in units.items()}
        found.append({"for": name, "epsilon": e, "delta": d, "units": units["at_50"], **counts})
    return found


def _number(terms: Terms, steps: float) -> float:
    """Steps of the gate's measure as people count it; whole numbers stay whole."""
    value = terms.gate.measure.value
    return steps if value is None else steps * value.resolution.numerator / value.resolution.denominator


# What it costs.


def _promise(terms: Terms) -> Row:
    whole, windows = terms.guarantee, terms.window.windows
    return {
        "epsilon": whole.epsilon,
        "delta": whole.delta,
        "delta_by_addition": min(1.0, sum(mechanism.guarantee.delta for mechanism in terms.mechanisms)),
        "words": whole.words(),
        "windows": None if windows.endless else windows.count,
        "start": rfc3339(windows.bounds(0)[0]),
        "end": None if windows.end is None else rfc3339(windows.end),
        "all_windows": {
            "windows": terms.horizon,
            "epsilon": whole.epsilon * terms.horizon,
            "delta": min(1.0, whole.delta * terms.horizon),
        },
    }


def _costs(terms: Terms) -> list[Row]:
    found = []
    for number, mechanism in enumerate(terms.mechanisms):
        told = dict(mechanism.describe())
        width, scale = _width_and_scale(terms, number, mechanism, told)
        found.append(
            {
                "place": f"then[{number - 1}]" if number else "gate",
                "mechanism": terms.mechanism_name(number),
                "publishes": list(terms.measures(number)),
                "epsilon": mechanism.guarantee.epsilon,
                "delta": mechanism.guarantee.delta,
                "half_width": width,
                "noise_scale": scale,
                "in_units": "half_width_of_units" in told,
                "described": told,
            }
        )
    return found


def _width_and_scale(
    terms: Terms, number: int, mechanism: Mechanism, told: Mapping[str, Any]
) -> tuple[float | None, float | None]:
    """What noise can do at most and about what it does, in what the mechanism publishes (a mean: in whole units)."""
    width, promised = told.get("half_width"), mechanism.guarantee
    if "rate" in told:  # choices, made in steps of the count
        return None, _number(terms, told.get("step", 1)) / told["rate"]
    if number == 0 or not getattr(mechanism, "needs", ()):  # noise on counts, in their steps
        rate = told.get("noise_rate")
        return None if width is None else _number(terms, width), None if rate is None else _number(terms, 1) / rate
    # Noise on values comes in steps of its own; on what one unit can change it follows from the promise.
    if "half_width_of_units" in told:
        return told["half_width_of_units"], promised.keys / promised.epsilon
    return width, None if width is None else promised.keys * promised.per_key / promised.epsilon


# What a change would do.


def _times(number: float, factor: float) -> float:
    """Without the last digits that only floating point put there."""
    return number if factor == 1 else float(f"{number * factor:.12g}")


def _key_bounds(keys: int) -> list[int]:
    return sorted({1, max(1, keys // 2), keys, min(1_000_000, 2 * keys)})


def _what_if(terms: Terms, field: str, values: Sequence[float]) -> list[Row]:
    """The gate and everything after it under other values: all epsilons or deltas in proportion, or another bound."""
    now = terms.bound.keys if field == "keys" else getattr(terms.gate, field)
    found: list[Row] = []
    for value in values:
        if field == "delta" and value >= 1:
            continue
        row: Row = {field: value, "now": value == now}
        try:
            found.append(row | _outcome(terms if value == now else _other(terms, field, value, now)))
        except ValueError as problem:
            found.append(row | {"problem": str(problem)})
    return found


def _other(terms: Terms, field: str, value: float, now: float) -> Terms:
    if field == "keys":
        other = _changed(terms, bound=terms.bound.model_copy(update={"keys": int(value)}))
    else:
        then = [_scaled(item, field, value / now) for item in terms.then]
        other = _changed(with_gate(terms, **{field: value}), then=tuple(then))
    if terms.gate.mechanism == "optimal-selection" and _table_size(other) > _LARGEST_TABLE:
        raise ValueError(f"the table of chances would have more than {_LARGEST_TABLE:,} entries")
    return other


def _scaled(item: ThenTerms, field: str, factor: float) -> ThenTerms:
    old = getattr(item, field)
    return item if old is None else item.model_copy(update={field: old * factor})


def _outcome(terms: Terms) -> Row:
    widths = [{name: row[name] for name in ("mechanism", "half_width", "noise_scale")} for row in _costs(terms)[1:]]
    whole = {"total_epsilon": terms.guarantee.epsilon, "total_delta": terms.guarantee.delta}
    return _gate_row(terms, terms.gate.mechanism, terms.gate_mechanism) | whole | {"then": widths}


def _windows(terms: Terms) -> list[Row]:
    """Other window sizes: thresholds stay, but a key gathers more or less, and a unit is in fewer or more windows."""
    half, whole, window = first_count(terms.gate_mechanism.survival, 0.5), terms.guarantee, terms.window
    every = window.every or window.size
    span = (window.horizon - 1) * every + window.size
    found: list[Row] = []
    for factor in _FACTORS:
        size, step = window.size * factor, every * factor
        if size % 1 or step % 1 or size > span:
            continue
        windows = int((span - size) // step) + 1
        hourly = None if half is None else _number(terms, half) * 3600 / size
        found.append(
            {
                "size_seconds": int(size),
                "now": factor == 1,
                "at_50_an_hour": hourly,
                "at_50_a_day": None if hourly is None else 24 * hourly,
                "windows": windows,
                "epsilon_of_all": whole.epsilon * windows,
                "delta_of_all": min(1.0, whole.delta * windows),
            }
        )
    return found


# Counts that the planner may look at.


def _like(terms: Terms, gates: Mapping[str, Gate], seen: Seen) -> Row:
    """How many keys and how much of the volume each gate is expected to show: sums over keys of their chances."""
    there = np.flatnonzero(np.rint(seen.counts / _number(terms, 1)) > 0)
    counts, keys = seen.counts[there], None if seen.keys is None else [seen.keys[int(place)] for place in there]
    steps, volume = np.rint(counts / _number(terms, 1)).astype(np.int64), float(counts.sum())
    rows, own = [], np.zeros(len(counts))
    for name, gate in gates.items():
        chances = _chances(with_gate(terms, mechanism=name), gate, steps, keys)
        rows.append({"mechanism": name, **_expected(counts, chances, volume)})
        own = chances if name == terms.gate.mechanism else own
    named = bool(public_keys_of(terms.gate_mechanism)) or terms.gate.weights is not None
    return {
        "name": seen.name,
        "private": False,
        "note": EYES,
        "keys": len(counts),
        "volume": volume,
        "keys_unknown": named and keys is None,
        "gates": rows,
        "classes": _classes(counts, own, volume),
    }


def _expected(counts: npt.NDArray[np.float64], chances: Chances, volume: float) -> Row:
    shown = float(chances.sum())
    return {
        "keys_expected": shown,
        "keys_deviation": sqrt(float((chances * (1 - chances)).sum())),
        "share_of_keys": shown / len(counts) if len(counts) else 0.0,
        "share_of_volume": float((chances * counts).sum()) / volume if volume else 0.0,
    }


def _classes(counts: npt.NDArray[np.float64], chances: Chances, volume: float) -> list[Row]:
    """Keys by their chance to appear, those that almost never do first."""
    found, place = [], np.searchsorted(np.array(MARKS), chances, side="right")
    for number, (low, high) in enumerate(zip((0.0, *MARKS), (*MARKS, 1.0), strict=True)):
        inside = place == number
        if inside.any():
            ends = {"fewest": float(counts[inside].min()), "most": float(counts[inside].max())}
            row = {"from_chance": low, "to_chance": high, **ends, "keys": int(inside.sum())}
            found.append(row | _expected(counts[inside], chances[inside], volume))
    return found


def _chances(terms: Terms, gate: Gate, steps: Counts, keys: Sequence[str] | None) -> Chances:
    """Each key's chance to appear. Without keys, all are taken for such that no list and no weight names."""
    chances = _by_count(gate, steps)
    if keys is None:
        return chances
    names = pa.array(keys, pa.string())
    for weight in sorted({float(w) for w in (terms.gate.weights or {}).values() if isfinite(w) and w}):
        listed = [key for key, own in (terms.gate.weights or {}).items() if own == weight]
        where = np.flatnonzero(pc.is_in(names, value_set=pa.array(listed, pa.string())).to_numpy(zero_copy_only=False))
        # A key without a weight of its own, had it this one, would fare as these do.
        chances[where] = _by_count(with_gate(terms, other_weight=weight).gate_mechanism, steps[where])
    public = pa.array(list(public_keys_of(gate)), pa.string())
    if "chance_of_a_range" not in gate.describe():  # a range is shown with its own chance, listed or not
        chances[pc.is_in(names, value_set=public).to_numpy(zero_copy_only=False)] = 1.0
    admitted = admitted_by(gate, names)
    return chances if admitted is None else np.where(admitted, chances, 0.0)


def _by_count(gate: Gate, steps: Counts) -> Chances:
    different, place = np.unique(steps, return_inverse=True)
    sure = first_count(gate.survival, 1.0)  # beyond it nothing changes
    certain = len(different) if sure is None else int(np.searchsorted(different, sure))
    chances = np.ones(len(different))
    chances[:certain] = [gate.survival(int(n)) for n in different[:certain]]
    return chances[place]
