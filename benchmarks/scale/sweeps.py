"""What is run: in each sweep one thing grows, and the rest stays or grows with it as it would in life."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.scale.streams import Stream

MILLION = 10**6
LARGEST = 100 * MILLION
STARTUP = "start-up"
WORDS = {
    "events": "more events, in more windows of half a million each",
    "keys": "more keys in one window, three for each unit",
    "units": "more units in one window, eight keys each",
    "windows": "the same events in more windows",
    "bound": "more keys that a unit may count in, of a hundred that it has",
    "repeats": "more events of the same pairs in one window",
    "many-pairs": "the same, with ten times as many pairs that count",
    "shards": "more parts that a window is split into; one part is the default on one machine, and a simpler graph",
    "skew": "a unit or a key with half of all events, next to an even stream",
}


@dataclass(frozen=True)
class Case:
    """One run: what is different in it, how many keys a unit may count in, and shards, unless it is the command's default."""

    sweep: str
    label: str
    stream: Stream
    bound: int = 3
    shards: int | None = None

    @property
    def name(self) -> str:
        return f"{self.sweep}: {self.label}"


# In one window, so that windows are no part of what start-up takes; they are a part of the work.
TINY = Case(STARTUP, "100 events", Stream(100, 1, 100, 10, 1))


def cases(largest: int, base: int) -> list[Case]:
    """All of them, with no more than so many events; `base` is the number where events are not what grows."""

    def sized(events: int) -> int:
        return min(events, largest)

    def growing(*sizes: int) -> list[int]:
        return list(dict.fromkeys(map(sized, sizes)))

    scale = base / (10 * MILLION)  # units and keys go with the events, lest a small try be all pairs and no repeats

    def some(number: int) -> int:
        return max(1, round(number * scale))

    even = Stream(sized(base), 1, some(100_000), 20_000, 8)
    found = [
        Case("events", f"{n:,}", Stream(n, max(1, n * 2 // MILLION), some(40_000), 20_000, 8, "as they come"))
        for n in growing(MILLION, 10 * MILLION, 100 * MILLION)
    ]
    # Every key is there, once at least: units times three are the pairs, and as many as the most keys.
    pairs = some(10 * MILLION)
    found += [
        Case("keys", f"{keys:,}", Stream(sized(base), 1, -(-pairs // 3), keys, 3))
        for keys in (some(n) for n in (10_000, 100_000, MILLION, 10 * MILLION))
    ]
    found += [
        Case("units", f"{units:,}", replace(even, units=units))
        for units in (some(n) for n in (10_000, 100_000, 400_000, 800_000, 1_200_000))
    ]
    # As many pairs in all, so that a window is what is paid for.
    found += [
        Case(
            "windows", f"{windows:,}", replace(even, units=max(1, some(350_000) // windows), keys=300, windows=windows)
        )
        for windows in (24, 168, 1_440, 8_760)
        if windows <= sized(base)
    ]
    found += [
        Case("bound", f"{bound}", replace(even, keys_per_unit=100, units=some(50_000)), bound)
        for bound in (1, 3, 10, 30, 100)
    ]
    found += [Case("repeats", f"{n:,}", replace(even, events=n)) for n in growing(4 * base // 10, 2 * base, 10 * base)]
    many = replace(even, units=some(MILLION), keys_per_unit=3)
    found += [Case("many-pairs", f"{n:,}", replace(many, events=n)) for n in growing(base // 2, 2 * base, 10 * base)]
    # With rows to publish, so that all groupings have something to do.
    found += [
        Case("shards", f"{shards}", replace(even, units=some(400_000)), shards=shards) for shards in (1, 2, 8, 32)
    ]
    skewed = replace(even, events=sized(2 * base), keys=some(100_000))
    found += [
        Case("skew", "even", skewed),
        Case("skew", "one unit has half", replace(skewed, hot="unit")),
        Case("skew", "one key has half", replace(skewed, hot="key")),
    ]
    return found
