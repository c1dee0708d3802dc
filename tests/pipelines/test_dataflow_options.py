"""--runner dataflow: what it needs is asked for in a sentence, what would break a promise is refused, and samples are off."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from apache_beam.options.pipeline_options import DebugOptions, GoogleCloudOptions, StandardOptions

from tidegate.pipelines import runners
from tidegate.pipelines.runners import SecretOptions, check_places, choose
from tidegate.pipelines.spec import Spec
from tidegate.transforms.problems import SpecError

NEEDED = {
    "project": "my-project",
    "region": "europe-west1",
    "temp_location": "gs://my-bucket/temp",
    "sdk_container_image": "europe-west1-docker.pkg.dev/my-project/images/tidegate:1",
    "tidegate_secret": "projects/my-project/secrets/tidegate/versions/1",
}


def arguments(**changed: str | None) -> list[str]:
    return [f"--{name}={value}" for name, value in {**NEEDED, **changed}.items() if value is not None]


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Google's packages seem to be there, or not; gives what was looked for."""
    looked_for: list[str] = []
    monkeypatch.setattr(runners, "import_module", looked_for.append)
    monkeypatch.setattr(runners, "create_runner", lambda _: None)
    return looked_for


@pytest.mark.parametrize("option", NEEDED)
@pytest.mark.parametrize("value", [None, ""])
def test_what_is_missing_is_asked_for(option: str, value: str | None) -> None:
    with pytest.raises(
        SpecError, match=rf"^the Beam option --{option} is required on dataflow: .+; write --{option}=\S+$"
    ):
        choose("dataflow", arguments(**{option: value}), endless=True)


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("option", NEEDED)
def test_the_example_in_each_sentence_would_do(option: str) -> None:
    with pytest.raises(SpecError) as refused:
        choose("dataflow", arguments(**{option: None}), endless=True)
    example = str(refused.value).rsplit("; write ", 1)[1]
    choose("dataflow", [*arguments(**{option: None}), example], endless=True)


def test_temp_location_must_be_in_a_bucket() -> None:
    with pytest.raises(SpecError, match="--temp_location must be in a bucket on dataflow, not '/tmp/x'; write"):
        choose("dataflow", arguments(temp_location="/tmp/x"), endless=False)  # noqa: S108


@pytest.mark.parametrize("value", ["projects/p/secrets/s/versions/latest", "projects/p/secrets/s", "ab" * 32])
def test_a_secret_is_named_with_its_version_and_never_repeated(value: str) -> None:
    with pytest.raises(SpecError, match="must be the name of a secret with the number of a version") as refused:
        choose("dataflow", arguments(tidegate_secret=value), endless=False)
    assert value not in str(refused.value)


@pytest.mark.usefixtures("packages")
def test_a_stream_without_an_end_runs_on_the_streaming_engine() -> None:
    chosen = choose("dataflow", arguments(), endless=True)
    assert chosen.runner == "DataflowRunner"
    assert chosen.options.view_as(StandardOptions).streaming
    assert chosen.options.view_as(GoogleCloudOptions).enable_streaming_engine
    assert chosen.options.view_as(SecretOptions).tidegate_secret == NEEDED["tidegate_secret"]
    assert not choose("dataflow", arguments(), endless=False).options.view_as(StandardOptions).streaming


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("name", ["dataflow", "DataflowRunner"])
def test_rows_are_not_sampled_whatever_else_is_asked_for(name: str) -> None:
    chosen = choose(name, [*arguments(), "--experiments=one,two", "--experiment=three"], endless=True)
    asked = chosen.options.view_as(DebugOptions).experiments
    assert asked == ["one", "two", "three", "disable_always_on_exception_sampling"]


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("name", ["dataflow", "DataflowRunner"])
@pytest.mark.parametrize("option", ["experiments", "dataflow_service_options"])
@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("streaming_mode_at_least_once", "counted twice after it was bounded"),
        ("enable_data_sampling", "exact rows would be kept"),
        ("enable_always_on_exception_sampling", "exact rows would be kept"),
    ],
)
def test_what_would_break_a_promise_is_refused(name: str, option: str, value: str, why: str) -> None:
    told = rf"^the Beam option --{option}={value} is refused: .*{why}.*; leave it out$"
    for given in ([f"--{option}={value}"], [f"--{option}=other,{value}", f"--{option}=last"], [f"--{option}", value]):
        with pytest.raises(SpecError, match=told):
            choose(name, [*arguments(), *given], endless=True)


def test_without_googles_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(runners, "import_module", missing)
    with pytest.raises(SpecError, match=r"needs the packages of apache-beam\[gcp\], which are not here; pip install"):
        choose("dataflow", arguments(), endless=True)


def test_the_runner_itself_is_there_with_the_packages() -> None:
    try:
        found = find_spec("google.cloud.dataflow") and find_spec("google.cloud.storage")
    except ModuleNotFoundError:
        found = None
    if found is None:
        pytest.skip("needs apache-beam[gcp]")
    assert choose("dataflow", arguments(), endless=True).runner == "DataflowRunner"


def spec(**changed: Any) -> Spec:
    whole = {
        "stream": "searches",
        "source": {"files": "gs://b/*.parquet"},
        "columns": {"unit": "user", "key": "term", "time": "at"},
        "window": {"size": "1h", "start": "2026-01-01T00:00:00Z", "end": "2026-01-01T06:00:00Z"},
        "bound": {"keys": 3},
        "gate": {"epsilon": 1.0, "delta": 1e-9},
        "sink": {"files": "gs://b/releases"},
    }
    return Spec.model_validate({**whole, **changed})


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"dead_letters": "dead/"},
            "^dead_letters must be left out on dataflow, .*lost, and it is 'dead/'; leave it out",
        ),
        (
            {"source": {"files": "in/*.csv"}},
            r"^source.files must be in a bucket .*, not 'in/\*.csv'; write gs://my-bucket/",
        ),
        ({"sink": {"files": "out/"}}, "^sink.files must be in a bucket .*, not 'out/'; write gs://my-bucket/out$"),
        ({"sink": [{"files": "gs://b/one"}, {"files": "two"}]}, "^sink.files must be in a bucket .*, not 'two'; write"),
    ],
)
def test_what_would_vanish_with_a_worker_is_refused_on_dataflow_alone(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        check_places("dataflow", spec(**changed))
    check_places("flink", spec(**changed))
    check_places("dataflow", spec())
