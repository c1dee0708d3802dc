"""PipelineDP: how many privacy ids each partition has, with partitions selected privately.

Modes are `beam` and `local`, its two backends here, and `local-threshold`: the same guarantee spent on one noisy count
that also selects, rather than half on selecting and half on counting, which PipelineDP does unless told otherwise.
"""

from __future__ import annotations

from typing import Any

import pipeline_dp as dp  # type: ignore[import-not-found,unused-ignore]

from benchmarks.peers.programs.job import Job, imported, write


def aggregate(rows: Any, backend: Any, job: Job, epsilon: float) -> Any:
    accountant = dp.NaiveBudgetAccountant(total_epsilon=epsilon, total_delta=job.delta)
    threshold = job.mode == "local-threshold"
    strategies = dp.PartitionSelectionStrategy
    parameters = dp.AggregateParams(
        metrics=[dp.Metrics.PRIVACY_ID_COUNT],
        noise_kind=dp.NoiseKind.LAPLACE,
        max_partitions_contributed=job.keys,
        max_contributions_per_partition=1,
        partition_selection_strategy=strategies.LAPLACE_THRESHOLDING if threshold else strategies.TRUNCATED_GEOMETRIC,
        post_aggregation_thresholding=threshold,
    )
    extractors = dp.DataExtractors(
        privacy_id_extractor=lambda row: row[0],
        partition_extractor=lambda row: row[1],
        value_extractor=lambda _: 0,
    )
    released = dp.DPEngine(accountant, backend).aggregate(rows, parameters, extractors)
    accountant.compute_budgets()
    return released


def save(released: Any, out: str) -> None:
    pairs = list(released)
    write([key for key, _ in pairs], [metrics.privacy_id_count for _, metrics in pairs], out)


def local(job: Job) -> None:
    import pyarrow.parquet as pq

    imported()
    for epsilon, out in job.draws:
        table = pq.read_table(job.events, columns=["user", "term"])
        rows = list(zip(table["user"].to_pylist(), table["term"].to_pylist(), strict=True))
        save(aggregate(rows, dp.LocalBackend(), job, epsilon), out)


def on_beam(job: Job) -> None:
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    imported()
    for epsilon, out in job.draws:
        pipeline = beam.Pipeline(runner=FnApiRunner())
        rows = (
            pipeline
            | beam.io.ReadFromParquet(job.events, columns=["user", "term"])
            | beam.Map(lambda row: (row["user"], row["term"]))
        )
        released = aggregate(rows, dp.BeamBackend(), job, epsilon)
        _ = released | beam.combiners.ToList() | beam.Map(save, out)
        pipeline.run().wait_until_finish()


def main() -> None:
    job = Job.from_arguments()
    if job.mode == "beam":
        on_beam(job)
    else:
        local(job)


if __name__ == "__main__":
    main()
