"""Running the real transform on small inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import apache_beam as beam
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from tests.collecting import Collected
from tidegate.transforms import PrivateReleases, Release, Secret

TERMS: dict[str, Any] = {
    "stream": "searches",
    "columns": {"unit": "user", "key": "term", "time": "at", "time_unit": "s"},
    "window": {"size": "1h", "start": "2026-01-01T00:00:00Z", "end": "2026-01-01T02:00:00Z"},
    "bound": {"keys": 3},
    "gate": {"epsilon": 1.0, "delta": 1e-5},
}
T0 = 1767225600
NEARLY_EXACT = {"epsilon": 200.0, "delta": 1e-9}
"""An epsilon at which the noise is nil but with probability 1e-20, to see exact counts come out."""


def terms(**changes: Any) -> dict[str, Any]:
    merged = dict(TERMS)
    for name, change in changes.items():
        known = merged.get(name)
        merged[name] = {**known, **change} if isinstance(known, Mapping) and isinstance(change, Mapping) else change
    return merged


def release(
    events: Iterable[Any],
    *,
    secret: Secret | None = None,
    shards: int = 3,
    bundles: int = 1,
    dead_letters: Any = None,
    making: Any = None,
    **changes: Any,
) -> list[Release]:
    """The releases of some events (dicts or record batches), given to the transform in so many bundles.

    With `making`, a transform makes the events out of what is given.
    """
    events = list(events)
    # The one runner puts everything into one bundle, the other makes a bundle of every source.
    runner = FnApiRunner() if bundles == 1 else BundleBasedDirectRunner()
    size = max(1, -(-len(events) // bundles))
    with Collected[Release]() as sealed:
        with beam.Pipeline(runner=runner) as pipeline:
            parts = [
                pipeline | f"part {begin}" >> beam.Create(events[begin : begin + size])
                for begin in range(0, max(1, len(events)), size)
            ]
            flat = parts | beam.Flatten()
            _ = (
                (flat if making is None else flat | making)
                | PrivateReleases(
                    secret=secret or Secret.for_tests(1), shards=shards, dead_letters=dead_letters, **terms(**changes)
                )
                | sealed.collect()
            )
        return sorted(sealed.items, key=lambda item: item.window)


def values(found: Release) -> dict[str, float]:
    return dict(zip(found.rows["key"].to_pylist(), found.rows["value"].to_pylist(), strict=True))
