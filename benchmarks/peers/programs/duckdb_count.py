"""The count without privacy, as one query of DuckDB from Parquet to Parquet."""

from __future__ import annotations

import duckdb

from benchmarks.peers.programs.job import Job, imported

QUERY = """
copy (
    select term as key, count(*)::double as value
    from (select distinct date_trunc('hour', "at") as hour, "user", term from read_parquet('{events}'))
    group by hour, term
) to '{out}' (format parquet)
"""


def main() -> None:
    imported()
    job = Job.from_arguments()
    for _, out in job.draws:
        duckdb.connect().execute(QUERY.format(events=job.events, out=out))


if __name__ == "__main__":
    main()
