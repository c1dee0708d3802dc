"""Holding every unit to its bounds, of rows as they are and as they come.

Bounding keeps, for each unit and window, the `keys` keys of smallest keyed rank. The rank is a pseudo-random function of
window, unit and key, so the choice is uniform over the unit's keys, the same in every retry, and mergeable: a key that is
not among the smallest of a part is not among the smallest of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tidegate.mechanisms.keyed import BlockCipher, Ids, KeyedHash, derive_key
from tidegate.mechanisms.mechanism import Bounds
from tidegate.transforms.contributions import Codes, Contributions, run_lengths

_ROWS_A_PORTION = 1 << 18


class Bounder:
    """Holds every unit to its bounds, given a key that nobody outside knows."""

    def __init__(self, key: bytes, bounds: Bounds, first_window: int) -> None:
        """`first_window` numbers window 0 on a clock of its own, so that ranks do not depend on where a range starts."""
        self._bounds = bounds
        self._first_window = first_window
        self._identify = KeyedHash(derive_key(key, "rank keys"))
        self._rank = BlockCipher(derive_key(key, "rank"))

    def __call__(self, rows: Contributions) -> Contributions:
        """At most `keys` keys a unit and window, at most `per_key` each, at most `total` in all."""
        if not len(rows):
            return rows
        sizes = _group_sizes(rows)
        full = sizes > self._bounds.keys
        keep = np.ones(len(rows), dtype=np.bool_)
        if full.any():
            keys, starts = self._identify(rows.keys), np.cumsum(sizes) - sizes
            for groups in _portions(np.flatnonzero(full), sizes):
                crowded = _positions(starts[groups], sizes[groups])
                keep[crowded] = self._smallest(self._ranks(rows, keys, crowded), sizes[groups])
        rows = rows.capped(self._bounds.per_key)
        if not keep.all():
            rows = rows.only(keep)
        return rows if self._bounds.total is None else self._truncated(rows, self._bounds.total)

    def _truncated(self, rows: Contributions, most: int) -> Contributions:
        """At most so many events of a unit and window: whole keys by rank, the last one in part.

        Mergeable as the choice of keys is: in the whole there is at least as much of smaller rank as in a part.
        """
        sizes = _group_sizes(rows)
        counts = np.ones(len(rows), np.int64) if rows.count is None else rows.count
        starts = np.cumsum(sizes) - sizes
        over = np.add.reduceat(counts, starts) > most
        if not over.any():
            return rows
        where = np.flatnonzero(np.repeat(over, sizes))
        rank = self._ranks(rows, self._identify(rows.keys), where)
        group = np.repeat(np.arange(int(over.sum())), sizes[over])
        order = np.lexsort((rank[:, 1], rank[:, 0], group))
        ordered = counts[where[order]]
        before = np.cumsum(ordered) - ordered
        first = np.cumsum(sizes[over]) - sizes[over]
        before -= np.repeat(before[first], sizes[over])
        allowed = counts.copy()
        allowed[where[order]] = np.clip(most - before, 0, ordered)
        kept = replace(rows, count=None if rows.count is None else allowed)
        return kept.only(allowed > 0)

    def _ranks(self, rows: Contributions, keys: Ids, where: Codes) -> Ids:
        block = rows.units[rows.unit[where]] ^ keys[rows.key[where]]
        block[:, 1] ^= (rows.window[where] + self._first_window).view(np.uint64)
        return self._rank(block)

    def _smallest(self, rank: Ids, sizes: Codes) -> npt.NDArray[np.bool_]:
        """Which ranks are among the smallest of their group; groups follow each other with these sizes."""
        group = np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes)
        starts = np.cumsum(sizes) - sizes
        # Sorting numbers is ten times faster than sorting positions: put group and the leading bits of the rank into one
        # number, sort, and read off the largest rank each group may keep.
        bits = max(1, int(len(sizes) - 1).bit_length())
        packed = (group << np.uint64(64 - bits)) | (rank[:, 0] >> np.uint64(bits))
        limit = np.sort(packed)[starts + self._bounds.keys - 1]
        keep: npt.NDArray[np.bool_] = packed <= np.repeat(limit, sizes)
        if int(keep.sum()) != len(sizes) * self._bounds.keys:
            # Two ranks agree in their leading bits: decide by all of them.
            order = np.lexsort((rank[:, 1], rank[:, 0], group))
            place = np.empty(len(order), dtype=np.int64)
            place[order] = np.arange(len(order)) - np.repeat(starts, sizes)
            keep = place < self._bounds.keys
        return keep


def _windows_of(rows: Contributions) -> tuple[Codes, Codes]:
    """The windows there are, and how many rows each has; they follow each other."""
    first = np.flatnonzero(np.diff(rows.window, prepend=-1))
    return rows.window[first], run_lengths(first, len(rows))


def _group_sizes(rows: Contributions) -> Codes:
    """How many rows each unit has in each window; its rows follow each other."""
    new_group = np.ones(len(rows), dtype=np.bool_)
    new_group[1:] = (np.diff(rows.window) != 0) | (np.diff(rows.unit) != 0)
    return np.diff(np.append(np.flatnonzero(new_group), len(rows)))


def _portions(groups: Codes, sizes: Codes) -> Iterator[Codes]:
    """Whole groups, so many at a time that what is made of their rows fits the processor's cache, or nearly."""
    rows = np.cumsum(sizes[groups])
    for portion in np.split(groups, np.searchsorted(rows, np.arange(_ROWS_A_PORTION, rows[-1], _ROWS_A_PORTION))):
        if len(portion):  # a group may be larger than a portion
            yield portion


def _positions(starts: Codes, sizes: Codes) -> Codes:
    """Where the rows of groups stand: `sizes` of them from each of `starts` on."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(int(sizes.sum()))


class Gathering:
    """Contributions arriving batch by batch, held in bounded form: memory follows distinct rows, not events.

    Streams mostly come in the order of their time. A window to which nothing was added from one merge to the next is done, or
    nearly: its rows are given back to be sent, and not merged again and again with those of later windows.
    """

    FIRST_COMPACTION = 1 << 21

    def __init__(self, bounder: Bounder) -> None:
        self._bounder = bounder
        self._begin()

    def _begin(self) -> None:
        self._parts: list[Contributions] = []
        self._rows, self._merged, self._compact_at = 0, 0, self.FIRST_COMPACTION

    def add(self, part: Contributions) -> Contributions | None:
        """Take rows in, and give those of windows that have come to rest, if there are any."""
        self._parts.append(part)
        self._rows += len(part)
        if self._rows < self._compact_at:
            return None
        rested = self._rest() if self._merged else None
        self._compact()
        return rested

    def __len__(self) -> int:
        return self._rows

    def drain(self) -> Contributions | None:
        """Everything so far, merged and bounded, or None; starts anew."""
        if not self._parts:
            return None
        if self._rows > self._merged:
            self._compact()
        whole = self._parts[0]
        self._begin()
        return whole

    def _rest(self) -> Contributions | None:
        merged, *added = self._parts
        windows, sizes = _windows_of(merged)
        rests = ~np.isin(windows, np.concatenate([_windows_of(part)[0] for part in added]))
        if not rests.any():
            return None
        rows = np.repeat(rests, sizes)
        rested, active = merged.take(np.flatnonzero(rows)), merged.take(np.flatnonzero(~rows))
        self._parts, self._rows = [active, *added], self._rows - len(rested)
        return rested

    def _compact(self) -> None:
        whole = self._bounder(Contributions.merge(self._parts))
        self._parts, self._rows, self._merged = [whole], len(whole), len(whole)
        # Doubling keeps the total work proportional to the rows that came in.
        self._compact_at = max(self.FIRST_COMPACTION, 2 * len(whole))
