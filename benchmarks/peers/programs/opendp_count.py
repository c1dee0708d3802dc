"""OpenDP: a thresholded count over keys that nobody listed.

Polars bounds the units, by a random choice of `keys` of each unit's distinct keys. OpenDP can do so itself for an
identifier, but in 0.16 a random choice of groups (`truncate_num_groups`, keep="sample") fails on a polars error about a
field named twice, and keep="first" takes the keys that come first in order, which would bias every count. So the frame is
bounded beforehand, and OpenDP is told the bound: one row in each of `keys` groups.

Modes are `context`, the interface its documentation begins with, which searches for scale and threshold in every query, and
`core`, to its advantage: the counts from polars into `make_laplace_threshold`, with the search on that measurement alone.
That measurement publishes noisy counts that equal the threshold, and leaves them out of the delta it states
(https://github.com/opendp/opendp/issues/2922). So it gets a threshold one higher than the one it calls private, with
which what it states is true: the mechanism of `context`, where only counts above the threshold are published.
"""

from __future__ import annotations

import warnings
from typing import Any

import opendp.prelude as dp  # type: ignore[import-not-found,unused-ignore]
import polars as pl
from opendp.extras.polars import Bound  # type: ignore[import-not-found,unused-ignore]

from benchmarks.peers.programs.job import Job, imported, write


def bounded(job: Job) -> pl.LazyFrame:
    distinct = pl.scan_parquet(job.events).select("user", "term").unique()
    return distinct.filter(pl.int_range(pl.len()).shuffle().over("user") < job.keys)


def context(job: Job, epsilon: float, out: str) -> None:
    bound = Bound(by=["term"], per_group=1, num_groups=job.keys)
    queries = dp.Context.compositor(
        data=bounded(job).select("term").collect().lazy(),
        privacy_unit=dp.unit_of(contributions=[bound]),
        privacy_loss=dp.loss_of(epsilon=epsilon, delta=job.delta),
        split_evenly_over=1,
    )
    released = queries.query().group_by("term").agg(dp.len()).release().collect()
    write(released["term"].to_arrow(), released["len"].to_arrow(), out)


def core(job: Job, epsilon: float, out: str) -> None:
    space = (
        dp.map_domain(dp.atom_domain(T=str), dp.atom_domain(T="i64")),
        dp.l01inf_distance(dp.absolute_distance(T="i64")),
    )
    unit = (job.keys, job.keys, 1)  # keys that change, by how much in all, and by how much in each

    def measurement(scale: float, threshold: int) -> Any:
        return dp.m.make_laplace_threshold(*space, scale=scale, threshold=threshold)

    scale = dp.binary_search(lambda s: measurement(s, 2**30).map(unit)[0] <= epsilon, bounds=(0.0, 1e6))
    threshold = dp.binary_search(lambda t: measurement(scale, t).map(unit)[1] <= job.delta, bounds=(1, 2**30))
    counts = bounded(job).group_by("term").len().collect()
    released = measurement(scale, threshold + 1)(dict(zip(counts["term"], counts["len"], strict=True)))
    write(released.keys(), released.values(), out)


def main() -> None:
    imported()
    warnings.simplefilter("ignore", FutureWarning)
    dp.enable_features("contrib")
    job = Job.from_arguments()
    for epsilon, out in job.draws:
        (context if job.mode == "context" else core)(job, epsilon, out)


if __name__ == "__main__":
    main()
