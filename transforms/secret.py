"""The secret that all draws hang on: 32 bytes in a file that only its owner can read.

A secret is pickled as a reference, never as its bytes: a pipeline's graph is stored and shown by runners. Workers read the
file themselves and check that it is the same secret the launcher saw.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.mechanisms.keyed import KEY_BYTES, derive_key
from tidegate.transforms.problems import SpecError

VARIABLE = "TIDEGATE_SECRET_FILE"


@dataclass(frozen=True)
class Secret:
    """A reference to the secret, and a fingerprint to recognise it by."""

    path: str
    fingerprint: bytes
    _fixed: bytes | None = field(default=None, repr=False)

    @staticmethod
    def at(path: Path) -> Secret:
        """The secret in that file, which must exist."""
        return Secret(str(path), _fingerprint(_read(path)))

    @staticmethod
    def make_or_open(folder: Path) -> Secret:
        """The secret of a state folder, made on first use; the environment may name another file instead."""
        named = os.environ.get(VARIABLE)
        if named:
            return Secret.at(Path(named))
        path = folder / "secret"
        if not path.exists():
            _make(path)
        return Secret.at(path)

    @staticmethod
    def for_tests(seed: int) -> Secret:
        """A known secret, for tests and simulations: whoever knows the seed can undo every release."""
        fixed = derive_key(bytes(KEY_BYTES), "for tests", seed)
        return Secret("(a known secret, for tests)", _fingerprint(fixed), fixed)

    def load(self) -> bytes:
        """The bytes; to be called where they are used, and not kept in anything that is pickled."""
        if self._fixed is not None:
            return self._fixed
        value = _read(Path(os.environ.get(VARIABLE) or self.path))
        if not hmac.compare_digest(_fingerprint(value), self.fingerprint):
            raise SpecError(
                f"the secret in {self.path} on this worker is not the one the run was started with; "
                f"copy the launcher's file, or name it in {VARIABLE}"
            )
        return value


def _read(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii").strip()
        value = bytes.fromhex(text)
    except OSError as problem:
        raise SpecError(
            f"the secret file {path} cannot be read ({problem.strerror}); name a readable one in {VARIABLE}"
        ) from None
    except ValueError:
        value = b""
    if len(value) != KEY_BYTES:
        raise SpecError(
            f"the secret file {path} must hold {2 * KEY_BYTES} hexadecimal digits and nothing else; "
            f"restore it from your backup, or move it away to start a new stream of draws"
        )
    if stat.S_IMODE(mode) & 0o077:
        raise SpecError(
            f"the secret file {path} must be readable by its owner only, and its mode is "
            f"{stat.S_IMODE(mode):04o}; run chmod 600 {path}"
        )
    return value


def _make(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Written beside and linked into place: of two runs that start at once, both use the secret that came first.
        draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(KEY_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    except OSError as problem:
        raise SpecError(
            f"state must be a folder that can be written, and {path.parent} cannot ({problem.strerror}); "
            f"name another folder, or a secret file in {VARIABLE}"
        ) from None


def _fingerprint(value: bytes) -> bytes:
    return derive_key(value, "fingerprint")[:8]
