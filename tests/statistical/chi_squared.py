"""Goodness of fit with a stated failure probability."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2, ncx2


def p_value(observed: npt.NDArray[np.int64], expected: Sequence[float]) -> float:
    """Pearson's test of counts against probabilities; cells expected fewer than 10 times are pooled."""
    probabilities = np.asarray(expected, dtype=np.float64)
    total = int(observed.sum())
    wanted = probabilities * total
    common = wanted >= 10
    cells = [*zip(observed[common], wanted[common], strict=True)]
    rare_observed, rare_wanted = int(observed[~common].sum()), float(wanted[~common].sum())
    if rare_wanted >= 10:
        cells.append((rare_observed, rare_wanted))
    elif rare_observed > 10 + 100 * rare_wanted:
        return 0.0  # far more rare outcomes than there can be
    statistic = sum((seen - want) ** 2 / want for seen, want in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


def miss_probability(actual: Sequence[float], believed: Sequence[float], draws: int, sure: float) -> float:
    """How often so many draws from `actual` would pass for `believed` at that level."""
    p, q = np.asarray(actual, dtype=np.float64), np.asarray(believed, dtype=np.float64)
    common = q * draws >= 10
    noncentrality = draws * float(((p[common] - q[common]) ** 2 / q[common]).sum())
    cells = int(common.sum())
    return float(ncx2.cdf(chi2.isf(sure, cells - 1), cells - 1, noncentrality))
