"""A mechanism added the way CONTRIBUTING.md says works, end to end, without touching anything else."""

from __future__ import annotations

import importlib
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
from tidegate.mechanisms.truncated_geometric import calibrate

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
    def release(self, summary, noise):
        value = int.from_bytes(summary, "little") + self.distribution.draw(noise, np.zeros((1, 2), np.uint64))
        value = value.astype(float)
        return Rows(pa.array(["all"]), value, value - self.half_width, value + self.half_width)
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example of the page as an installed package, with a mechanism of the other kind beside it."""
    for name, content in files_in("CONTRIBUTING.md").items():
        (tmp_path / name).write_text(content)
    (tmp_path / "total.py").write_text(PER_WINDOW)
    metadata = tmp_path / "example_mechanisms-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: example-mechanisms\nVersion: 0.1\n")
    points = (tmp_path / "entry_points.txt").read_text() + "total = total:Total\n"
    (metadata / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    for name in ("second_count", "total"):
        sys.modules.pop(name, None)


def events() -> list[dict[str, Any]]:
    popular = [{"user": f"u{key}-{user}", "term": f"t{key}", "at": T0} for key in range(10) for user in range(90)]
    return [*popular, {"user": "one", "term": "rare", "at": T0}]


def test_the_mechanism_of_the_page_runs_on_the_keys_that_passed(installed: Path) -> None:
    then = yaml.safe_load((installed / "then.yaml").read_text())["then"]
    found = release(events(), then=then)
    rows = found[0].rows.to_pylist()
    gated = {row["key"]: row for row in rows if row["mechanism"] == "truncated-geometric"}
    second = {row["key"]: row for row in rows if row["mechanism"] == "second-count"}
    assert gated.keys() == second.keys() == {f"t{key}" for key in range(10)}
    assert all(row["low"] <= 90 <= row["high"] for row in rows)
    assert [gated[key]["value"] for key in sorted(gated)] != [second[key]["value"] for key in sorted(second)]
    guarantee = found[0].manifest["guarantee"]
    assert guarantee["epsilon"] == pytest.approx(1.5)
    assert guarantee["delta"] == pytest.approx(1e-5 + 1e-9)
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
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(installed / "test_second_count.py")],
        cwd=ROOT,
        env={"PYTHONPATH": f"{installed}:{ROOT}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout


def test_what_stands_in_then_must_not_be_a_gate(installed: Path) -> None:
    with pytest.raises(SpecError, match=r"then\[0\]\.mechanism 'truncated-geometric' is a gate mechanism"):
        make_terms(**terms(then=[{"mechanism": "truncated-geometric", "epsilon": 1.0, "delta": 1e-9}]))


def test_a_gate_must_not_be_a_downstream_mechanism(installed: Path) -> None:
    with pytest.raises(SpecError, match=r"gate\.mechanism 'second-count' is a per-key mechanism"):
        make_terms(**terms(gate={"mechanism": "second-count"}))
