"""Handing a spec to a runner: what a stream may not change, and what its workers must find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.transforms.running import terms
from tidegate.pipelines.job import refuse_other_terms
from tidegate.pipelines.publish import publish
from tidegate.pipelines.runners import Chosen, choose
from tidegate.pipelines.spec import Spec
from tidegate.transforms.problems import SpecError
from tidegate.transforms.release import ROW_SCHEMA, Release
from tidegate.transforms.seal import manifest

ENDLESS = {"size": "10s", "start": "2026-01-01T00:00:00Z", "end": None}


def spec(folder: Path, **changes: Any) -> Spec:
    fields = terms(**{"window": ENDLESS, **changes})
    places = {"source": {"files": str(folder / "*.jsonl"), "follow": True}, "sink": {"files": str(folder / "out")}}
    return Spec.model_validate({**fields, **places, "state": str(folder / "state")})


def published(folder: Path, window: int, **changes: Any) -> None:
    made = spec(folder, **changes)
    name = made.window.windows.folder(window)
    publish(Release(window, name, ROW_SCHEMA.empty_table(), manifest(made, window, 0)), str(folder / "out"), "avro")


def test_the_same_terms_go_on_whatever_the_range(tmp_path: Path) -> None:
    refuse_other_terms(spec(tmp_path))
    published(tmp_path, 3)
    refuse_other_terms(spec(tmp_path))
    refuse_other_terms(spec(tmp_path, window={**ENDLESS, "start": "2026-01-01T01:00:00Z", "grace": "5s"}))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"gate": {"epsilon": 2.0}}, "epsilon is 1.0 there and 2.0 here"),
        ({"window": {**ENDLESS, "size": "20s"}}, "window.size is 10 there and 20 here"),
        ({"columns": {"key": "place"}}, "its spec_digest differs"),
        ({"stream": "other"}, "holds the stream 'searches', not 'other'"),
    ],
)
def test_other_terms_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    published(tmp_path, 3)
    with pytest.raises(SpecError) as refused:
        refuse_other_terms(spec(tmp_path, **changes))
    assert told in str(refused.value)
    assert str(tmp_path / "out") in str(refused.value)


def test_paths_are_made_absolute_for_workers_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fields = terms(window={"size": "10s", "start": "2026-01-01T00:00:00Z", "end": None})
    kafka = {
        "servers": "localhost:9092",
        "topic": "events",
        "security": "in.properties",
        "format": "avro",
        "schema_file": "a.avsc",
    }
    sinks = [
        {"files": "out"},
        {"files": "gs://bucket/out"},
        {"kafka": {"servers": "k:1", "topic": "t", "security": "/etc/k"}},
    ]
    spec = Spec.model_validate({**fields, "source": {"kafka": kafka}, "sink": sinks, "dead_letters": "dead"})
    moved = spec.with_absolute_paths()
    assert moved.digest == spec.digest
    assert moved.source.kafka is not None
    assert (moved.source.kafka.security, moved.source.kafka.schema_file) == (
        f"{tmp_path}/in.properties",
        f"{tmp_path}/a.avsc",
    )
    assert [sink.files for sink in moved.sink] == [f"{tmp_path}/out", "gs://bucket/out", None]
    assert moved.sink[2].kafka is not None
    assert moved.sink[2].kafka.security == "/etc/k"
    assert (moved.dead_letters, moved.state) == (f"{tmp_path}/dead", f"{tmp_path}/.tidegate")
    followed = Spec.model_validate(
        {**fields, "source": {"files": "in/*.jsonl", "follow": True}, "sink": {"files": "out"}}
    )
    assert followed.with_absolute_paths().source.files == f"{tmp_path}/in/*.jsonl"


def given(chosen: Chosen) -> dict[str, Any]:
    return dict(chosen.options.get_all_options(drop_default=True, retain_unknown_options=True))


@pytest.mark.parametrize("where", [["--job_endpoint=localhost:1"], []], ids=["cluster", "embedded"])
def test_flink_holds_back_no_row_of_a_stream(where: list[str]) -> None:
    assert given(choose("flink", where, endless=True))["finish_bundle_before_checkpointing"]
    assert given(choose("flink", [*where, "--streaming"], endless=False))["finish_bundle_before_checkpointing"]
    assert "finish_bundle_before_checkpointing" not in given(choose("flink", where, endless=False))


@pytest.mark.parametrize("endless", [True, False])
def test_flink_counts_nothing_twice(endless: bool) -> None:
    choose("flink", ["--checkpointing_mode=EXACTLY_ONCE"], endless)
    for mode in (["--checkpointing_mode=AT_LEAST_ONCE"], ["--checkpointing_mode", "at_least_once"]):
        with pytest.raises(SpecError, match="--checkpointing_mode must be EXACTLY_ONCE"):
            choose("flink", mode, endless)
    with pytest.raises(SpecError, match="must be above 0 for a stream"):
        choose("flink", ["--checkpointing_interval=-1"], endless=True)
