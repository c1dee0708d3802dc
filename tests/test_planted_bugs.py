"""The tests catch what they are there for: each bug is planted, and the named test must fail."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from tests.exact import test_composition as composition
from tests.exact import test_geometric_threshold as threshold_exact
from tests.exact import test_truncated_geometric as exact
from tests.statistical import test_end_to_end as end_to_end
from tests.transforms import test_bounding as bounding
from tests.transforms import test_one_firing as one_firing
from tests.transforms import test_same_bytes as same_bytes
from tests.transforms.running import release
from tidegate.mechanisms import calibration, geometric_threshold, guarantee, truncated_geometric
from tidegate.mechanisms.mechanism import Bounds
from tidegate.mechanisms.noise import Noise
from tidegate.mechanisms.table import ExactTable
from tidegate.transforms import bound, closing, count, decode, gate, seal
from tidegate.transforms.problems import SafeError


def caught(test: Callable[..., None], *arguments: Any) -> None:
    with pytest.raises(AssertionError):
        test(*arguments)


def test_a_half_width_one_too_small_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = calibration.calibrate

    def planted(epsilon: float, delta: float, bounds: Bounds) -> tuple[int, Decimal]:
        k, rate = real(epsilon, delta, bounds)
        return k - 1, rate

    exact.test_one_key_keeps_delta_at_every_count_in_both_directions(1.0, 1e-6, 1, 2)
    monkeypatch.setattr(calibration, "calibrate", planted)
    caught(exact.test_one_key_keeps_delta_at_every_count_in_both_directions, 1.0, 1e-6, 1, 2)
    caught(exact.test_several_keys_keep_delta_together, 3.0, 1e-2, 3, 1)
    caught(end_to_end.test_these_two_distributions_keep_epsilon_and_delta)


def test_noise_keyed_by_window_and_key_only_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = gate.Draws.noise
    same_bytes.test_one_event_more_changes_every_draw(release(same_bytes.events()))
    monkeypatch.setattr(gate.Draws, "noise", lambda self, window, digest, number: real(self, window, b"", number))
    caught(same_bytes.test_one_event_more_changes_every_draw, release(same_bytes.events()))


def test_noise_keyed_by_key_only_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate.Draws, "noise", lambda self, window, digest, number: Noise(self._key))
    caught(same_bytes.test_windows_with_the_same_data_share_no_draw)


def test_noise_keyed_by_the_keys_own_value_only_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    # Keys whose count stayed the same would keep their draw, and so show which ones changed.
    real = truncated_geometric.TruncatedGeometric.release
    monkeypatch.setattr(gate.Draws, "noise", lambda self, window, digest, number: Noise(self._key))

    def planted(self: Any, table: Any, ids: Any, noise: Noise) -> Any:
        own = ids.copy()
        own[:, 0] ^= table.counts.view("uint64")
        return real(self, table, own, noise)

    monkeypatch.setattr(truncated_geometric.TruncatedGeometric, "release", planted)
    caught(same_bytes.test_one_event_more_changes_every_draw, release(same_bytes.events()))


def test_a_second_draw_on_retry_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    same_bytes.test_a_retried_bundle_gives_the_same_draw()
    monkeypatch.setattr(gate.Draws, "noise", lambda self, window, digest, number: Noise(secrets.token_bytes(32)))
    caught(same_bytes.test_a_retried_bundle_gives_the_same_draw)


def test_bounding_skipped_for_one_bundle_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = decode.make_bounder
    made = iter(range(10**6))

    def planted(terms: Any, key: bytes) -> Any:
        """The first bounder that the bounding stage makes lets everything through, the others work."""
        return (lambda rows: rows) if next(made) == 0 else real(terms, key)

    bounding.test_a_unit_counts_in_so_many_keys_across_bundles(5)
    monkeypatch.setattr(bound, "make_bounder", planted)
    caught(bounding.test_a_unit_counts_in_so_many_keys_across_bundles, 5)


def test_a_window_that_fires_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    one_firing.test_an_event_after_grace_is_dropped_and_does_not_fire_its_window_again(70)
    for stage in (closing, count, gate, seal):
        monkeypatch.setattr(stage, "is_first_firing", lambda pane: True)
    with pytest.raises((AssertionError, ValueError, SafeError)):
        one_firing.test_an_event_after_grace_is_dropped_and_does_not_fire_its_window_again(70)


def test_a_threshold_of_geometric_noise_one_too_small_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = geometric_threshold.calibrate

    def planted(epsilon: float, delta: float, bounds: Bounds) -> tuple[int, Decimal]:
        threshold, rate = real(epsilon, delta, bounds)
        return threshold - 1, rate

    proof = threshold_exact.test_one_key_keeps_delta_whatever_its_count_and_whatever_one_unit_adds
    proof(1.0, 1e-5, 1, 1)
    monkeypatch.setattr(geometric_threshold, "calibrate", planted)
    threshold_exact.gate.cache_clear()
    caught(proof, 1.0, 1e-5, 1, 1)
    threshold_exact.gate.cache_clear()


def test_a_digest_that_forgets_values_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    # The counts stay as they are when an amount changes; two versions of a window would then share their draws.
    from tests.transforms import test_gates_and_then as whole

    real = count.TableDigest.__call__
    monkeypatch.setattr(
        count.TableDigest, "__call__", lambda self, table: real(self, ExactTable(table.keys, table.counts))
    )
    caught(whole.test_the_same_data_give_the_same_bytes_whatever_the_shards_bundles_and_order)


def test_a_total_that_forgets_what_is_downstream_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarantee.Guarantee, "log_kept", lambda self, keys: 0.0)
    caught(composition.test_behind_the_truncated_gate_both_deltas_are_paid)


def test_a_threshold_one_too_small_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.mechanisms.table import Rows

    def planted(self: Any, table: Any, ids: Any, noise: Noise) -> Rows:
        values = table.counts + self.distribution.draw(noise, ids)
        passed = (values >= self.half_width).nonzero()[0]
        shown = values[passed].astype(float)
        return Rows(table.keys.take(passed), shown, shown - self.half_width, shown + self.half_width)

    monkeypatch.setattr(truncated_geometric.TruncatedGeometric, "release", planted)
    caught(end_to_end.test_neighbouring_inputs_give_the_two_distributions_of_the_proof, 12)
