"""Progress: what was done, how fast, and what is left, from totals alone."""

from __future__ import annotations

from tidegate.pipelines.progress import Pace


def test_nothing_is_promised_before_something_is_known() -> None:
    pace = Pace(windows=24)
    assert pace.words() == "0 rows read, 0 of 24 windows released"
    pace.see(0.0, {})
    pace.see(0.2, {})
    assert pace.words() == "0 rows read, 0 of 24 windows released"
    assert pace.left() is None


def test_reading_has_a_rate_and_an_end() -> None:
    pace = Pace(windows=24)
    pace.see(0.0, {"expected": 10_000_000})
    pace.see(2.0, {"expected": 10_000_000, "rows": 2_000_000})
    assert pace.words() == (
        "2,000,000 rows read of about 10,000,000, 1,000,000 a second, 0 of 24 windows released, 8 s left to read"
    )


def test_the_speed_is_that_of_the_last_seconds() -> None:
    pace = Pace(windows=1)
    for second in range(100):
        pace.see(float(second), {"expected": 10**9, "rows": second * 1_000_000 if second < 80 else 80_000_000})
    assert pace.rate("rows") == 0
    assert pace.left() is None


def test_more_rows_than_were_expected_leave_nothing_to_say_about_the_end() -> None:
    pace = Pace(windows=1)
    pace.see(0.0, {"expected": 10})
    pace.see(1.0, {"expected": 10, "rows": 20})
    assert pace.words() == "20 rows read, 20 a second, 0 of 1 windows released"


def test_releasing_has_an_end_too() -> None:
    pace = Pace(windows=8_760)
    pace.see(0.0, {"expected": 10, "rows": 10})
    pace.see(10.0, {"expected": 10, "rows": 10, "windows": 60})
    assert pace.words() == "10 rows read, 60 of 8,760 windows released, 24 min left"


def test_without_an_estimate_there_is_a_rate() -> None:
    pace = Pace(windows=2)
    pace.see(0.0, {})
    pace.see(4.0, {"rows": 8})
    assert pace.words() == "8 rows read, 2 a second, 0 of 2 windows released"
