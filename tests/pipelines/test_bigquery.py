"""BigQuery, against a stub that keeps its two promises: a window is in the table whole and once, whoever dies when."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
import yaml
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from tests.needed import needs_modules
from tests.pipelines.bigquery_stub import Service, running_service
from tests.pipelines.test_publish import OTHERS, release
from tidegate.pipelines.job import _place, run
from tidegate.pipelines.publish import PublishError, release_digest
from tidegate.pipelines.reader import ReadError, read_releases
from tidegate.pipelines.simulate import Simulation, simulate
from tidegate.pipelines.sinks import FolderOfReleases, Place, PublishInOrder
from tidegate.pipelines.spec import BigQueryTable, Sink, load_spec
from tidegate.transforms.coders import register
from tidegate.transforms.problems import SafeError, SpecError
from tidegate.transforms.release import Release

needs_modules("google.cloud.bigquery")

from tidegate.pipelines.bigquery import TableOfReleases, WriteBigQuery, check_table  # noqa: E402

TABLE = "my-project.data.releases"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with running_service() as started:
        monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", started.url)
        check_table(TABLE)
        yield started


def publish(item: Release) -> bool:
    place = TableOfReleases(TABLE)
    try:
        return place.publish(item)
    finally:
        place.close()


def keys(service: Service) -> list[tuple[str, float]]:
    return [(row["key"], row["value"]) for row in service.rows[TABLE] if "manifest" not in row]


def manifests(service: Service) -> list[dict[str, Any]]:
    return [json.loads(row["manifest"]) for row in service.rows[TABLE] if "manifest" in row]


# Once and for all.


def test_a_window_is_its_rows_and_a_manifest_in_one_job(service: Service) -> None:
    sealed = release({"tide": 50, "moon": 40.5})
    assert publish(sealed)
    assert keys(service) == [("moon", 40.5), ("tide", 50)]
    (manifest,) = manifests(service)
    assert manifest["release_digest"] == release_digest(sealed)
    (name, job), *others = service.jobs.items()
    assert not others
    assert sealed.folder in name
    assert job["configuration"]["labels"]["tidegate_release"] == release_digest(sealed)[:40]
    assert service.tables[TABLE]["timePartitioning"]["field"] == "window_start"


def test_a_window_of_no_rows_is_a_manifest(service: Service) -> None:
    assert publish(release({}))
    assert keys(service) == []
    assert manifests(service)[0]["rows"] == 0


def test_publishing_the_same_again_changes_nothing(service: Service) -> None:
    assert publish(release({"tide": 50}))
    before = list(service.rows[TABLE])
    assert not publish(release({"tide": 50}))
    assert service.rows[TABLE] == before


def test_other_windows_are_published_beside(service: Service) -> None:
    assert all(publish(release({"tide": 50}, window)) for window in range(4))
    assert len({row["window_start"] for row in service.rows[TABLE]}) == 4


@pytest.mark.parametrize("forgotten", [False, True], ids=["job known", "job forgotten"])
@pytest.mark.parametrize(("other", "why"), OTHERS.values(), ids=OTHERS.keys())
def test_a_second_release_of_a_window_is_refused_and_leaves_no_trace(
    service: Service, other: Release, why: str, forgotten: bool
) -> None:
    publish(release({"tide": 50}))
    before = list(service.rows[TABLE])
    if forgotten:
        service.jobs.clear()
    with pytest.raises(PublishError) as refused:
        publish(other)
    assert why in str(refused.value)
    assert f"{other.folder} in table {TABLE}" in str(refused.value)
    assert service.rows[TABLE] == before


def test_what_was_published_months_ago_is_found_in_the_table(service: Service) -> None:
    publish(release({"tide": 50}))
    service.jobs.clear()
    assert not publish(release({"tide": 50}))
    assert keys(service) == [("tide", 50)]


def test_what_was_deleted_may_come_back_as_it_was_and_not_otherwise(service: Service) -> None:
    publish(release({"tide": 50}))
    service.rows[TABLE].clear()
    with pytest.raises(PublishError, match="is published already"):
        publish(release({"tide": 51}))
    assert publish(release({"tide": 50}))
    assert keys(service) == [("tide", 50)]


def test_of_different_releases_published_at_once_exactly_one_wins(service: Service) -> None:
    count = 4
    start = threading.Barrier(count)

    def one(number: int) -> bool | PublishError:
        start.wait()
        try:
            return publish(release({"tide": 50 + number}))
        except PublishError as refused:
            return refused

    with ThreadPoolExecutor(count) as pool:
        results = list(pool.map(one, range(count)))
    assert results.count(True) == 1
    assert all("second release" in str(result) for result in results if result is not True)
    assert keys(service) == [("tide", 50 + results.index(True))]


# Accidents.

ALONE = """
from tests.pipelines.test_bigquery import publish
from tests.pipelines.test_publish import release
publish(release({"tide": 50}))
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_around_the_load_the_window_is_there_once_in_the_end(service: Service, moment: str) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def hold(*_: Any) -> None:
        reached.set()
        go_on.wait(60)

    def hold_upload(verb: str, _: str) -> tuple[int, str] | None:
        if verb == "PUT":
            hold()
            return 503, "the one who asked is gone"
        return None

    if moment == "before":
        service.before = hold_upload
    else:
        service.after_load = hold
    started = subprocess.Popen([sys.executable, "-W", "ignore", "-c", ALONE], cwd=ROOT, stderr=subprocess.PIPE)
    assert reached.wait(60)
    started.send_signal(signal.SIGKILL)
    started.communicate()
    assert started.returncode == -signal.SIGKILL
    service.before, service.after_load = lambda verb, path: None, lambda: None
    go_on.set()
    assert len(manifests(service)) == (moment == "after")
    assert publish(release({"tide": 50})) == (moment == "before")
    assert keys(service) == [("tide", 50)]
    assert len(manifests(service)) == 1
    with pytest.raises(PublishError, match="is published already"):
        publish(release({"tide": 51}))


def test_an_answer_that_is_lost_is_no_second_copy(service: Service) -> None:
    sent: list[tuple[int, Any]] = []

    def lose(verb: str, _: str) -> tuple[int, str] | None:
        if verb == "PUT" and not sent:
            sent.append(service.load(service.uploads[-1], body()))
            return 503, "backendError"
        return None

    def body() -> bytes:
        from tidegate.pipelines.bigquery import _lines

        sealed = release({"tide": 50})
        return _lines(sealed, {**sealed.manifest, "release_digest": release_digest(sealed)})

    service.before = lose
    assert not publish(release({"tide": 50}))
    assert sent[0][0] == 200
    assert keys(service) == [("tide", 50)]


def test_an_error_of_the_service_is_one_sentence_without_what_it_quotes(service: Service) -> None:
    service.before = lambda verb, path: (403, "accessDenied") if path.startswith("/upload") else None
    with pytest.raises(PublishError) as refused:
        publish(release({"tide": 50}))
    assert str(refused.value).startswith(
        f"window {release({}).folder} could not be loaded into table {TABLE} (Forbidden, accessDenied); see to the table"
    )
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None
    service.before = lambda verb, path: None
    assert publish(release({"tide": 50}))


def test_a_load_that_fails_quotes_no_row_and_the_next_try_has_another_number(service: Service) -> None:
    fields = service.tables[TABLE]["schema"]["fields"]
    kept = list(fields)
    fields[:] = [item for item in fields if item["name"] != "high"]
    with pytest.raises(PublishError) as refused:
        publish(release({"the term of somebody": 50}))
    assert "somebody" not in str(refused.value)
    assert "(BadRequest, invalid)" in str(refused.value)
    assert not service.rows[TABLE]
    fields[:] = kept
    assert publish(release({"the term of somebody": 50}))
    assert [name[-2:] for name in service.jobs] == ["-0", "-1"]


# What is published, for the places that come after and for whoever goes on.


def test_what_is_published_is_given_back_as_it_was_sealed(service: Service) -> None:
    sealed = [release({"tide": 50 + window, "moon": 0.1}, window) for window in range(2)]
    place = TableOfReleases(TABLE)
    assert place.newest() is None
    for item in sealed:
        place.publish(item)
    service.rows[TABLE].reverse()  # a table has no order
    for item in sealed:
        manifest, rows = place.published(item.folder)
        assert manifest == item.manifest
        assert rows.equals(item.rows)
    assert (place.newest() or {})["window"] == sealed[1].manifest["window"]
    service.rows[TABLE].pop()
    with pytest.raises(ReadError, match=r"is not what its manifest says|manifests of window"):
        place.published(sealed[0].folder)
    place.close()


def test_the_next_place_gets_what_the_table_has_and_not_what_came_later(service: Service, tmp_path: Path) -> None:
    places: list[Callable[[], Place]] = [partial(TableOfReleases, TABLE), partial(FolderOfReleases, str(tmp_path))]
    register()

    def go(sealed: Release, transform: Any) -> None:
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            _ = pipeline | beam.Create([sealed]).with_output_types(Release) | transform

    go(release({"tide": 50, "moon": 40}), WriteBigQuery(TABLE))
    with pytest.raises(Exception, match="is published already"):
        go(release({"tide": 51}), PublishInOrder(places))
    assert not list(tmp_path.iterdir())
    go(release({"tide": 51}), PublishInOrder(places, keep_first=True))
    assert read_releases(str(tmp_path), allow_gaps=True).equals(release({"tide": 50, "moon": 40}).rows)
    assert keys(service) == [("moon", 40), ("tide", 50)]


# The table.


def test_without_its_packages_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.bigquery", None)
    with pytest.raises(SpecError, match=r"bigquery needs the packages of Google Cloud.*pip install 'tidegate\[gcp\]'"):
        _place(Sink(bigquery=BigQueryTable(table=TABLE)))


def test_a_table_that_forgets_is_refused(service: Service) -> None:
    service.expiration = "1999999999000"
    with pytest.raises(SpecError, match="must keep every row, and it or its partitions expire"):
        check_table("my-project.data.short")


def test_a_table_of_other_columns_is_refused_by_name(service: Service) -> None:
    service.tables[TABLE]["schema"]["fields"][3]["type"] = "INTEGER"
    with pytest.raises(SpecError, match="must have the columns of a release, and measure as STRING is not among them"):
        check_table(TABLE)


def test_a_table_out_of_reach_is_named(service: Service) -> None:
    service.before = lambda verb, path: (403, "accessDenied")
    with pytest.raises(SafeError, match=rf"table {TABLE} cannot be reached \(Forbidden, accessDenied\)"):
        check_table(TABLE)


# The whole job.


def write_spec(folder: Path, **changes: Any) -> Path:
    fields = {
        "stream": "searches",
        "source": {"files": f"{folder}/events/events-*.parquet"},
        "columns": {"unit": "user", "key": "term", "time": "at"},
        "window": {"size": "1h", "start": "2026-01-01T00:00:00Z", "end": "2026-01-01T02:00:00Z"},
        "bound": {"keys": 3},
        "gate": {"epsilon": 1.0, "delta": 1e-5},
        "sink": {"bigquery": {"table": TABLE}},
        "dead_letters": f"{folder}/dead",
        "state": f"{folder}/state",
        **changes,
    }
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(fields))
    return path


def test_a_run_to_a_table_can_be_repeated(service: Service, tmp_path: Path) -> None:
    simulate(tmp_path / "events", Simulation(events=4_000, units=500, keys=10, windows=2, files=1))
    spec = load_spec(write_spec(tmp_path))
    assert run(spec)["windows_published"] == 2
    assert len(keys(service)) > 2
    assert len(manifests(service)) == 2
    before = list(service.rows[TABLE])
    assert run(spec)["windows_unchanged"] == 2
    assert service.rows[TABLE] == before


DRY_RUN = """
import sys
from pathlib import Path
import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from tidegate.pipelines.job import assemble
from tidegate.pipelines.spec import load_spec, open_secret
spec = load_spec(Path(sys.argv[1]))
pipeline = beam.Pipeline(runner="DataflowRunner", options=PipelineOptions(sys.argv[2:]))
published = assemble(pipeline, spec, [], open_secret(spec), 2, None)
pipeline.run()
print(published.is_bounded, *sorted(part.full_label for part in pipeline.transforms_stack[0].parts))
"""


def test_dataflow_takes_a_job_from_a_subscription_to_a_table(service: Service, tmp_path: Path) -> None:
    needs_modules("google.cloud.pubsub")
    path = write_spec(
        tmp_path,
        source={"pubsub": {"subscription": "projects/my-project/subscriptions/events", "time_attribute": "at"}},
        window={"size": "1h", "start": "2026-01-01T00:00:00Z"},
    )
    options = ["--project=my-project", "--region=europe-west1", "--temp_location=gs://bucket/tmp"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DRY_RUN, str(path), *options, "--dry_run=True", "--streaming"],
        cwd=ROOT,
        env={**os.environ, "NO_GCE_CHECK": "true"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    bounded, *stages = done.stdout.split()
    assert bounded == "False"
    assert {"source", "releases", "sink"} <= set(stages)
