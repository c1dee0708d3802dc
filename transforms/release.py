"""A release: one window's rows and its manifest, as one element, so that a window is published whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

_INSTANT = pa.timestamp("us", "UTC")

ROW_SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string(), nullable=False),
        pa.field("window_start", _INSTANT, nullable=False),
        pa.field("window_end", _INSTANT, nullable=False),
        pa.field("measure", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("value", pa.float64()),
        pa.field("low", pa.float64()),
        pa.field("high", pa.float64()),
        pa.field("mechanism", pa.string(), nullable=False),
        pa.field("epsilon", pa.float64(), nullable=False),
        pa.field("delta", pa.float64(), nullable=False),
        pa.field("spec_digest", pa.string(), nullable=False),
    ]
)
"""One schema for every mechanism. Counts are whole numbers; other measures need not be.

A value is null where only the key is published, an end of the range where none is promised."""


@dataclass(frozen=True)
class Release:
    """What may be published of one window. Everything in it came out of a mechanism or out of the terms."""

    window: int
    folder: str
    rows: pa.Table
    manifest: Mapping[str, Any]
