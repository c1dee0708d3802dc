"""A mechanism added the way CONTRIBUTING.md says works, end to end, without touching anything else."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.documents import ROOT, files_in
from tests.transforms.running import T0, release, terms
from tidegate.transforms import SpecError, make_terms

PER_WINDOW = '''
"""The number of units behind all passed keys together, noisy: a mechanism that needs all shards of a window."""
import numpy as np
import pyarrow as pa
from tidegate.mechanisms.guarantee import Guarantee
from tidegate.mechanisms.noise import BoundedGeometric
from tidegate.mechanisms.table import Rows
from tidegate.mechanisms.calibration import calibrate

class Total:
    role = "per-window"
    def __init__(self, bounds, *, epsilon, delta):
        self.guarantee = Guarantee(epsilon, delta, bounds.keys, bounds.per_key)
        self.half_width, rate = calibrate(epsilon, delta, type(bounds)(1, bounds.keys * bounds.per_key))
        self.distribution = BoundedGeometric(rate, self.half_width)
    def describe(self):
        return {"half_width": self.half_width}
    def summarize(self, table):
        return int(table.counts.sum()).to_bytes(8, "little")
    def merge(self, left, right):
        return (int.from_bytes(left, "little") + int.from_bytes(right, "little")).to_bytes(8, "little")
    def release(self, summary, identify, noise):
        value = int.from_bytes(summary, "little") + self.distribution.draw(noise, np.zeros((1, 2), np.uint64))
        value = value.astype(float)
        return Rows(pa.array(["all"]), value, value - self.half_width, value + self.half_width)
'''


EXAMPLE = ROOT / "tests" / "example_mechanism"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example package, really installed into a folder of its own, with a mechanism of the other kind beside it."""
    source, target = tmp_path_factory.mktemp("source") / "example", tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, source)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(source)],
        check=True,
        capture_output=True,
    )
    (target / "total.py").write_text(PER_WINDOW)
    metadata = target / "total-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: total\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text("[tidegate.mechanisms]\ntotal = total:Total\n")
    return target


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    yield site
    for name in ("at_least", "total"):
        sys.modules.pop(name, None)


def test_the_page_shows_the_package_as_it_is() -> None:
    shown = files_in("CONTRIBUTING.md")
    for name in ("at_least.py", "setup.py", "proof_at_least.py"):
        assert shown[name] == (EXAMPLE / name).read_text()
    assert len((EXAMPLE / "at_least.py").read_text().splitlines()) < 40


def events() -> list[dict[str, Any]]:
    popular = [{"user": f"u{key}-{user}", "term": f"t{key}", "at": T0} for key in range(10) for user in range(90)]
    return [*popular, {"user": "one", "term": "rare", "at": T0}]


def test_the_mechanism_of_the_page_runs_on_the_keys_that_passed(installed: Path) -> None:
    then = yaml.safe_load(files_in("CONTRIBUTING.md")["then.yaml"])["then"]
    found = release(events(), then=then)
    rows = found[0].rows.to_pylist()
    gated = {row["key"]: row for row in rows if row["mechanism"] == "truncated-geometric"}
    second = {row["key"]: row for row in rows if row["mechanism"] == "at-least"}
    assert gated.keys() == second.keys() == {f"t{key}" for key in range(10)}
    assert all(row["low"] <= 90 <= row["high"] for row in rows)
    assert all(row["value"] <= 90 for row in second.values())
    assert [gated[key]["value"] for key in sorted(gated)] != [second[key]["value"] for key in sorted(second)]
    guarantee = found[0].manifest["guarantee"]
    assert guarantee["epsilon"] == pytest.approx(1.5)
    assert guarantee["delta"] == pytest.approx(1e-5, rel=0.5)
    assert len(found[1].rows) == 0


def test_a_mechanism_over_the_whole_window_merges_all_shards_and_keeps_its_draw(installed: Path) -> None:
    then = [{"mechanism": "total", "epsilon": 50.0, "delta": 1e-9}]
    one, other = (release(events(), then=then, shards=shards)[0].rows for shards in (1, 7))
    assert one.equals(other)
    totals = [row for row in one.to_pylist() if row["mechanism"] == "total"]
    assert [row["key"] for row in totals] == ["all"]
    assert totals[0]["low"] <= 900 <= totals[0]["high"]


def test_the_proof_of_the_page_holds_and_can_fail(installed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE / "proof_at_least.py")],
        cwd=ROOT,
        env={"PYTHONPATH": f"{installed}:{ROOT}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_what_stands_in_then_must_not_be_a_gate(installed: Path) -> None:
    with pytest.raises(SpecError, match=r"then\[0\]\.mechanism 'truncated-geometric' is a gate mechanism"):
        make_terms(**terms(then=[{"mechanism": "truncated-geometric", "epsilon": 1.0, "delta": 1e-9}]))


def test_a_gate_must_not_be_a_downstream_mechanism(installed: Path) -> None:
    with pytest.raises(SpecError, match=r"gate\.mechanism 'at-least' is a per-key mechanism"):
        make_terms(**terms(gate={"mechanism": "at-least"}))
