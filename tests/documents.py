"""Reading code out of the documents, so that what they show is what is tested."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def files_in(document: str) -> dict[str, str]:
    """The code blocks that are marked with a file name."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return dict(re.findall(r"<!-- file: (\S+) -->\n```\w*\n(.*?)```", text, flags=re.DOTALL))


def commands_in(document: str) -> list[str]:
    """The command lines of all `sh` blocks, without comments."""
    text = (ROOT / document).read_text(encoding="utf-8")
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)).replace("\\\n", " ").splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip() and not line.startswith("#")]
