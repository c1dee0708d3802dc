"""Differentially private releases, window by window, from streams whose keys nobody listed beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.version import __version__

if TYPE_CHECKING:
    from tidegate.pipelines.reader import read_releases

__all__ = ["__version__", "read_releases"]


def __getattr__(name: str) -> Any:
    """Load what needs Beam only when asked for, so that `tidegate.mechanisms` stays free of it."""
    if name == "read_releases":
        from tidegate.pipelines.reader import read_releases

        return read_releases
    raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
