"""The secret of a job on Dataflow: fetched from Secret Manager into memory, where tidegate finds it as a file like any other.

The job itself carries only the name of the secret. Whoever may read the job, its options, its graph or its logs has not got
the secret; whoever runs as the workers' service account has.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from tidegate.transforms.problems import SafeError
from tidegate.transforms.secret import VARIABLE


def fetch(name: str, client: Any = None) -> Path:
    """Put that version of a secret where TIDEGATE_SECRET_FILE says, for the owner alone."""
    return _keep(_read(name, client or _client()), Path(os.environ[VARIABLE]))


def _client() -> Any:
    from google.cloud.secretmanager import SecretManagerServiceClient

    return SecretManagerServiceClient()


def _read(name: str, client: Any) -> bytes:
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError

    try:
        return bytes(client.access_secret_version(name=name).payload.data)
    except (GoogleAPICallError, GoogleAuthError) as problem:
        raise SafeError(
            f"the secret {name} cannot be fetched ({type(problem).__name__}); "
            f"grant roles/secretmanager.secretAccessor on it to the service account of the job"
        ) from None


def _keep(value: bytes, path: Path) -> Path:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Renamed into place: workers that share a machine may share its memory, and all write at the same moment.
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(value)
        draft.replace(path)
    except OSError as problem:
        raise SafeError(
            f"the secret cannot be kept in {path} ({problem.strerror}); name a file in memory in {VARIABLE}"
        ) from None
    return path
