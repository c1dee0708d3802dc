"""The count without privacy as a usual Beam pipeline: one element a row, on the runner in which tidegate runs as well.

To its advantage there is no window in it. There is one only, and this runner is many times slower with `FixedWindows`.
"""

from __future__ import annotations

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from benchmarks.peers.programs.job import Job, imported, write


def main() -> None:
    imported()
    job = Job.from_arguments()
    for _, out in job.draws:
        pipeline = beam.Pipeline(runner=FnApiRunner())
        _ = (
            pipeline
            | beam.io.ReadFromParquet(job.events, columns=["user", "term"])
            | beam.Map(lambda row: (row["term"], row["user"]))
            | beam.Distinct()
            | beam.Map(lambda pair: (pair[0], 1))
            | beam.CombinePerKey(sum)
            | beam.combiners.ToList()
            | beam.Map(lambda found, out=out: write([key for key, _ in found], [value for _, value in found], out))
        )
        pipeline.run().wait_until_finish()


if __name__ == "__main__":
    main()
