"""The command as the installed script starts it, and a note of when it has imported what it needs.

It imports when it knows what it is asked for, and then makes a console to speak on: that is when the note is taken.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console

from benchmarks.peers.programs.job import imported
from tidegate.pipelines import cli


def console(**options: Any) -> Console:
    imported()
    return Console(**options)


if __name__ == "__main__":
    cli.Console = console  # type: ignore[assignment,attr-defined]
    cli.main()
