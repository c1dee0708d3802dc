"""Which keys of a unit count is a uniform choice, anew in every window, and the same however the events arrive."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tests.statistical.chi_squared import p_value
from tidegate.mechanisms.keyed import KeyedHash
from tidegate.mechanisms.mechanism import Bounds
from tidegate.transforms.bounding import Bounder
from tidegate.transforms.contributions import Contributions

SURE = 1e-9
UNITS, KEYS, BOUND, WINDOWS = 20_000, 7, 3, 2


def everybody_touches_everything() -> Contributions:
    window, unit, key = (grid.ravel() for grid in np.meshgrid(*map(np.arange, (WINDOWS, UNITS, KEYS)), indexing="ij"))
    units = KeyedHash(b"u" * 32)(pa.array([f"u{i}" for i in range(UNITS)]))
    return Contributions.gather(window, unit, key, None, units, pa.array([f"k{i}" for i in range(KEYS)]))


def test_every_key_of_a_unit_is_equally_likely_to_count() -> None:
    # A false alarm has probability 1e-9; all sets of 3 of 7 keys are tested, 35 cells of 571 expected units each.
    kept = Bounder(b"b" * 32, Bounds(BOUND, 1), 0)(everybody_touches_everything())
    assert len(kept) == WINDOWS * UNITS * BOUND
    for window in range(WINDOWS):
        chosen = kept.key[kept.window == window].reshape(-1, BOUND)
        code = (1 << chosen).sum(axis=1)
        observed = np.bincount(code, minlength=1 << KEYS)
        sets = [number for number in range(1 << KEYS) if bin(number).count("1") == BOUND]
        assert observed[sets].sum() == UNITS
        assert p_value(observed[sets], [1 / len(sets)] * len(sets)) > SURE


def test_the_choice_is_made_anew_in_every_window() -> None:
    # Two independent choices of 3 of 7 keys are equal with probability 1/35: 571 of 20,000 units, deviation 24.
    kept = Bounder(b"b" * 32, Bounds(BOUND, 1), 0)(everybody_touches_everything())
    first, second = (kept.key[kept.window == window].reshape(-1, BOUND) for window in (0, 1))
    agreeing = int((first == second).all(axis=1).sum())
    assert abs(agreeing - UNITS / 35) < 7 * np.sqrt(UNITS / 35)


def test_a_skewed_choice_would_be_noticed() -> None:
    # The same test on the first three keys of every unit, the choice a plain `head` would make.
    rows = everybody_touches_everything()
    head = rows.key[rows.window == 0].reshape(-1, KEYS)[:, :BOUND]
    observed = np.bincount((1 << head).sum(axis=1), minlength=1 << KEYS)
    sets = [number for number in range(1 << KEYS) if bin(number).count("1") == BOUND]
    assert p_value(observed[sets], [1 / len(sets)] * len(sets)) < SURE
