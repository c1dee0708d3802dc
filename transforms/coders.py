"""How elements travel between workers: as Arrow IPC bytes, since pickling a slice of a column ships the whole column.

Exact tables have a coder for the way between two stages and no other: they refuse pickling, so that no sink or file gets
one by way of a default.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from apache_beam import coders, typehints

from tidegate.mechanisms.table import ExactTable, Rows
from tidegate.transforms.contributions import Contributions, from_batch, to_batch
from tidegate.transforms.release import Release
from tidegate.transforms.rows import RowSums


class _ArrowCoder(coders.Coder):
    """A value as one record batch."""

    to_batch: Callable[[Any], pa.RecordBatch]
    from_batch: Callable[[pa.RecordBatch], Any]

    def encode(self, value: Any) -> bytes:
        batch = type(self).to_batch(value)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue().to_pybytes())

    def decode(self, encoded: bytes) -> Any:
        with pa.ipc.open_stream(pa.py_buffer(encoded)) as reader:
            batches = list(reader)
        return type(self).from_batch(batches[0])

    def estimate_size(self, value: Any) -> int:
        # Runners sample sizes; without this they would encode the whole element to learn one.
        return int(type(self).to_batch(value).nbytes)

    def is_deterministic(self) -> bool:
        return False


class RawBatchCoder(_ArrowCoder):
    """Raw rows on their way to decoding."""

    to_batch = staticmethod(lambda batch: batch)
    from_batch = staticmethod(lambda batch: batch)


class ContributionsCoder(_ArrowCoder):
    """Contributions on their way to bounding."""

    to_batch = staticmethod(to_batch)
    from_batch = staticmethod(from_batch)


class RowSumsCoder(_ArrowCoder):
    """Sums of rows on their way to those of other bundles."""

    to_batch = staticmethod(lambda sums: _sums_to_batch(sums))
    from_batch = staticmethod(lambda batch: _sums_from_batch(batch))


class ExactTableCoder(_ArrowCoder):
    """Exact numbers on their way to the gate."""

    to_batch = staticmethod(lambda table: _table_to_batch(table))
    from_batch = staticmethod(lambda batch: _table_from_batch(batch))


_TOTAL, _SPREAD = "total ", "spread "


def _table_to_batch(table: ExactTable) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "key": table.keys,
            "count": pa.array(table.counts),
            **{_TOTAL + name: pa.array(column) for name, column in table.totals.items()},
            **{_SPREAD + name: column for name, column in table.spreads.items()},
        }
    )


def _table_from_batch(batch: pa.RecordBatch) -> ExactTable:
    def named(prefix: str) -> dict[str, pa.Array]:
        return {n.removeprefix(prefix): batch.column(n) for n in batch.schema.names if n.startswith(prefix)}

    totals = {name: column.to_numpy() for name, column in named(_TOTAL).items()}
    return ExactTable(batch.column("key"), batch.column("count").to_numpy(), totals, named(_SPREAD))


def _sums_to_batch(sums: RowSums) -> pa.RecordBatch:
    told = json.dumps({"window": sums.window, "events": sums.events, "terms": sums.terms})
    return _table_to_batch(sums.table).replace_schema_metadata({"sums": told})


def _sums_from_batch(batch: pa.RecordBatch) -> RowSums:
    return RowSums(_table_from_batch(batch), **json.loads(batch.schema.metadata[b"sums"]))


class RowsCoder(_ArrowCoder):
    """Released rows on their way to the seal."""

    to_batch = staticmethod(
        lambda rows: pa.RecordBatch.from_pydict(
            {
                "key": rows.keys,
                "value": pa.array(rows.values),
                "low": pa.array(rows.low),
                "high": pa.array(rows.high),
                "part": pa.array(rows.parts),
            }
        )
    )
    from_batch = staticmethod(
        lambda batch: Rows(
            batch.column("key"), *(np.asarray(batch.column(name)) for name in ("value", "low", "high", "part"))
        )
    )


class ReleaseCoder(coders.Coder):
    """A sealed window on its way to sinks."""

    def encode(self, value: Release) -> bytes:
        header = {"window": value.window, "folder": value.folder, "manifest": value.manifest}
        sink = pa.BufferOutputStream()
        schema = value.rows.schema.with_metadata({"release": json.dumps(header)})
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(value.rows)
        return bytes(sink.getvalue().to_pybytes())

    def decode(self, encoded: bytes) -> Release:
        with pa.ipc.open_stream(pa.py_buffer(encoded)) as reader:
            table = reader.read_all()
        header = json.loads(table.schema.metadata[b"release"])
        return Release(header["window"], header["folder"], table.replace_schema_metadata(None), header["manifest"])

    def estimate_size(self, value: Release) -> int:
        return int(value.rows.nbytes)

    def is_deterministic(self) -> bool:
        return False


def typed(outputs: Any, **types: Any) -> Any:
    """Outputs of a ParDo with the types of the tagged ones, which older Beams have no other way to say.

    Without a type an element would be pickled, which is slow for columns and refused by exact tables.
    """
    for tag, kind in types.items():
        outputs[tag].element_type = typehints.native_type_compatibility.convert_to_beam_type(kind)
    return outputs


def register() -> None:
    """Make these the coders of their types. Idempotent; called by the transforms that need them."""
    for kind, coder in (
        (pa.RecordBatch, RawBatchCoder),
        (Contributions, ContributionsCoder),
        (RowSums, RowSumsCoder),
        (ExactTable, ExactTableCoder),
        (Rows, RowsCoder),
        (Release, ReleaseCoder),
    ):
        coders.registry.register_coder(kind, coder)
