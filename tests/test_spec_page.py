"""docs/spec.md names every field there is, and its spec is one."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import BaseModel

from tests.documents import ROOT, files_in
from tidegate.pipelines.runners import choose
from tidegate.pipelines.spec import Spec, parse_spec
from tidegate.transforms.prepare import _KINDS
from tidegate.transforms.problems import SpecError

TEXT = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")


def fields_of(model: type[BaseModel]) -> set[str]:
    found = set()
    for name, field in model.model_fields.items():
        found.add(name)
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                found |= fields_of(kind)
    return found


def test_every_field_is_on_the_page() -> None:
    fields = fields_of(Spec) | set(_KINDS)
    assert {"unit", "every", "per_key", "delta", "weights", "bucket", "format"} <= fields
    assert not [name for name in fields if f"{name}:" not in TEXT and f"`{name}`" not in TEXT]


def test_the_live_spec_of_the_page_has_no_end() -> None:
    spec = parse_spec(files_in("docs/spec.md")["live.yaml"])
    assert spec.source.endless
    assert spec.window.windows.endless
    assert [sink.place for sink in spec.sink] == ["releases/", "topic releases"]
    with pytest.raises(SpecError, match="must be one that runs live for a stream without an end, not direct"):
        choose("direct", [], spec.source.endless)
    with pytest.raises(SpecError, match="checkpointing_interval must be above 0 for a stream"):
        choose("flink", ["--checkpointing_interval=-1"], spec.source.endless)
    options = choose("flink", ["--job_endpoint=localhost:8099"], spec.source.endless).options.get_all_options()
    assert (options["streaming"], options["job_endpoint"]) == (True, "localhost:8099")


def test_the_spec_for_google_cloud_goes_from_a_subscription_to_a_table() -> None:
    spec = parse_spec(files_in("docs/spec.md")["cloud.yaml"])
    assert spec.source.endless
    assert [sink.place for sink in spec.sink] == ["table my-project.my_dataset.releases"]


def test_the_spec_without_units_makes_each_row_one() -> None:
    spec = parse_spec(files_in("docs/spec.md")["rows.yaml"])
    assert spec.columns.unit is None
    assert spec.event_columns == ["border", "at"]
    assert any("ten times epsilon" in warning for warning in spec.warnings())


def test_the_spec_of_the_page_means_what_it_says() -> None:
    spec = parse_spec(files_in("docs/spec.md")["whole.yaml"])
    assert spec.gate.measure.label == "sum(amount)"
    assert spec.bounds.per_key == 20_000
    assert spec.prepare.truncate == 30
    assert spec.measures(1) == ("average basket",)
    assert spec.event_columns == ["customer", "basket", "at", "amount", "status", "store"]


@pytest.mark.parametrize("changed", ["stream", "columns", "prepare", "bound", "gate", "then"])
def test_what_the_page_calls_meaning_is_in_the_digest(changed: str) -> None:
    text = files_in("docs/spec.md")["whole.yaml"]
    other: dict[str, tuple[str, str]] = {
        "stream": ("stream: checkouts", "stream: others"),
        "columns": ("unit: customer", "unit: household"),
        "prepare": ("truncate: 30", "truncate: 31"),
        "bound": ("keys: 4 ", "keys: 5 "),
        "gate": ("high: 200, resolution: 0.01}\n", "high: 100, resolution: 0.01}\n"),
        "then": ("epsilon: 0.5", "epsilon: 0.6"),
    }
    assert parse_spec(text.replace(*other[changed])).digest != parse_spec(text).digest


@pytest.mark.parametrize(
    "change",
    [
        ("orders/*.csv.gz", "archive/*.csv.gz"),
        ("releases/", "elsewhere/"),
        ("dead/", "bad/"),
        ("grace: 5m", "grace: 9m"),
    ],
)
def test_what_it_leaves_out_is_not(change: tuple[str, str]) -> None:
    text = files_in("docs/spec.md")["whole.yaml"]
    changed: Any = parse_spec(text.replace(*change))
    assert changed.digest == parse_spec(text).digest
