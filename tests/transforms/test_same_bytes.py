"""Same data, same bytes; other data or another guarantee, wholly other draws."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner

from tests.collecting import Collected
from tests.transforms.running import T0, release, terms, values
from tidegate.mechanisms import table
from tidegate.transforms import PrivateReleases, Release, Secret
from tidegate.transforms.coders import ReleaseCoder
from tidegate.transforms.gate import GateFn

KEYS, USERS = 250, 45


def events(keys: int = KEYS, users: int = USERS) -> list[dict[str, Any]]:
    """Every key is touched by `users` units of its own, so all of them are published and all have the same exact count."""
    return [
        {"user": f"u{key}-{user}", "term": f"t{key:04}", "at": T0 + user}
        for key in range(keys)
        for user in range(users)
    ]


def as_bytes(releases: list[Release]) -> list[bytes]:
    return [ReleaseCoder().encode(found) for found in releases]


@pytest.fixture(scope="module")
def reference() -> list[Release]:
    return release(events())


def noise(found: Release, exact: int = USERS) -> dict[str, int]:
    return {row["key"]: int(row["value"]) - exact for row in found.rows.select(["key", "value"]).to_pylist()}


def chance_of_equal_noise() -> float:
    from tidegate.mechanisms.truncated_geometric import TruncatedGeometric
    from tidegate.transforms import make_terms

    gate = make_terms(**terms()).gate_mechanism
    assert isinstance(gate, TruncatedGeometric)
    return float(sum(p * p for p in gate.distribution.pmf()))


def assert_independent(one: dict[str, int], other: dict[str, int]) -> None:
    """Shared noise would agree on every key; independent noise on a binomial share. Eight deviations: below 1e-14."""
    shared = one.keys() & other.keys()
    assert len(shared) > KEYS * 0.8
    equal, chance = sum(one[key] == other[key] for key in shared), chance_of_equal_noise()
    assert abs(equal - chance * len(shared)) < 8 * np.sqrt(chance * len(shared))


def test_order_does_not_matter(reference: list[Release]) -> None:
    shuffled = events()
    random.Random(7).shuffle(shuffled)
    assert as_bytes(release(shuffled)) == as_bytes(reference)


@pytest.mark.parametrize("shards", [1, 8, 13])
def test_the_number_of_shards_does_not_matter(reference: list[Release], shards: int) -> None:
    assert as_bytes(release(events(), shards=shards)) == as_bytes(reference)


@pytest.mark.parametrize("shards", [1, 3])
def test_how_much_text_the_keys_are_does_not_matter(
    reference: list[Release], shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "MOST_BYTES", 1000)  # beyond it, keys are large strings
    assert as_bytes(release(events(), shards=shards, bundles=3)) == as_bytes(reference)


def test_bundles_and_repeated_events_do_not_matter(reference: list[Release]) -> None:
    assert as_bytes(release(events() + events()[:5000], bundles=5)) == as_bytes(reference)


def test_where_the_range_starts_and_how_long_we_wait_do_not_matter(reference: list[Release]) -> None:
    window = {"start": "2025-12-31T22:00:00Z", "end": "2026-01-01T05:00:00Z", "grace": "10m"}
    later = release(events(), window=window)
    assert later[2].rows.equals(reference[0].rows)


def test_a_retried_bundle_gives_the_same_draw() -> None:
    # This runner really tries a failed bundle again. The gate dies after its first draw, and draws once more.
    drawn: list[dict[str, float]] = []
    real = GateFn.process

    @functools.wraps(real)
    def dying(*arguments: Any) -> Iterator[Any]:
        outputs = list(real(*arguments))
        drawn.append(dict(zip(outputs[0][1].keys.to_pylist(), outputs[0][1].values, strict=True)))
        if len(drawn) == 1:
            raise RuntimeError("the worker died")
        yield from outputs

    with pytest.MonkeyPatch.context() as patch, Collected[Release]() as sealed:
        patch.setattr(GateFn, "process", dying)
        with beam.Pipeline(runner=BundleBasedDirectRunner()) as pipeline:
            _ = (
                pipeline
                | beam.Create(events(40))
                | PrivateReleases(secret=Secret.for_tests(1), shards=1, **terms())
                | sealed.collect()
            )
        assert len(drawn) == 2
        assert drawn[0] == drawn[1]
        assert [values(found) for found in sealed.items if len(found.rows)] == [drawn[0]]


def test_one_event_more_changes_every_draw(reference: list[Release]) -> None:
    more = release([*events(), {"user": "somebody", "term": "t0000", "at": T0}])
    assert_independent(noise(reference[0]), noise(more[0]))


def test_a_change_in_one_window_leaves_the_other_windows_alone(reference: list[Release]) -> None:
    more = release([*events(), {"user": "somebody", "term": "new", "at": T0 + 3600}])
    assert as_bytes(more)[0] == as_bytes(reference)[0]


@pytest.mark.parametrize(
    "change",
    [{"gate": {"epsilon": 1.000001}}, {"gate": {"delta": 1.1e-5}}, {"stream": "other"}, {"bound": {"keys": 2}}],
    ids=["epsilon", "delta", "stream", "bound"],
)
def test_another_guarantee_or_stream_changes_every_draw(reference: list[Release], change: dict[str, Any]) -> None:
    assert_independent(noise(reference[0]), noise(release(events(), **change)[0]))


def test_another_secret_changes_every_draw(reference: list[Release]) -> None:
    assert_independent(noise(reference[0]), noise(release(events(), secret=Secret.for_tests(2))[0]))


def test_windows_with_the_same_data_share_no_draw() -> None:
    both = release([event | {"at": event["at"] + shift} for event in events() for shift in (0, 3600)])
    assert_independent(noise(both[0]), noise(both[1]))


def test_the_noise_of_a_key_says_nothing_about_that_of_its_neighbour(reference: list[Release]) -> None:
    drawn = [amount for _, amount in sorted(noise(reference[0]).items())]
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 6.5 / np.sqrt(len(drawn))
