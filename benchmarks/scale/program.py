"""`tidegate run` as it is, with somebody counting what goes through each GroupByKey.

    python -m benchmarks.scale.program counts.json run --quiet spec.yaml

Beam's direct runner hands the encoded bytes of every grouping to one method; that is where they are counted, at the cost of
an addition a chunk. Elements and rows of contributions are counted as they leave decoding, and again when they are encoded,
which tells how often they are copied on their way. With workers in processes of their own they would not be seen here.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def count_shuffles() -> Counter[str]:
    """Bytes by the name of the grouping, from here on."""
    from apache_beam.runners.portability.fn_api_runner import execution

    counted: Counter[str] = Counter()
    get_buffer, append = execution.BundleContextManager.get_buffer, execution.GroupingBuffer.append
    names: dict[int, str] = {}

    def get_named(self: Any, buffer_id: bytes, transform_id: str) -> Any:
        buffer = get_buffer(self, buffer_id, transform_id)
        kind, name = execution.split_buffer_id(buffer_id)
        if kind == "group":
            names[id(buffer)] = self.execution_context.pipeline_components.transforms[name].unique_name
        return buffer

    def append_counted(self: Any, elements: bytes) -> None:
        counted[names.get(id(self), "other")] += len(elements)
        append(self, elements)

    execution.BundleContextManager.get_buffer = get_named
    execution.GroupingBuffer.append = append_counted
    return counted


def count_contributions() -> Counter[str]:
    """Elements that leave decoding, their rows and dictionaries, and rows each time they are encoded, from here on."""
    from tidegate.transforms.coders import ContributionsCoder
    from tidegate.transforms.decode import DecodeFn

    counted: Counter[str] = Counter()
    send, encode = DecodeFn._send, ContributionsCoder.encode

    def send_counted(self: Any, whole: Any) -> Iterator[Any]:
        for sent in send(self, whole):
            counted["elements"] += 1
            part = sent.value[1]
            counted["rows"] += len(part)
            counted["units"] += len(part.units)
            counted["keys"] += len(part.keys)
            yield sent

    def encode_counted(self: Any, value: Any) -> bytes:
        counted["encoded rows"] += len(value)
        return encode(self, value)

    DecodeFn._send = send_counted  # type: ignore[method-assign]
    ContributionsCoder.encode = encode_counted  # type: ignore[method-assign]
    return counted


def main() -> None:
    counts, *arguments = sys.argv[1:]
    from tidegate.pipelines.cli import main as command

    shuffled, sent = count_shuffles(), count_contributions()
    sys.argv = ["tidegate", *arguments]
    command()
    Path(counts).write_text(json.dumps({"shuffled": shuffled, "sent": sent}), encoding="utf-8")


if __name__ == "__main__":
    main()
