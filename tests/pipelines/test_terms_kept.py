"""A stream without an end keeps its terms: it is not resumed under others into the same sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.transforms.running import terms
from tidegate.pipelines.job import refuse_other_terms
from tidegate.pipelines.publish import publish
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
