"""`Manifest`: what a batch was begun with, so that it can be gone on with by the name of its output alone."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from headway.offline.errors import BatchError, InputChanged, InputUnreadable
from headway.offline.files import Files, replace_file

VERSION = 1
_EDGE_BYTES, _SAMPLE_BYTES, _SAMPLES = 256 * 1024, 4096, 256

State = Literal["running", "done", "stopped"]


class Fingerprint(Struct, frozen=True, kw_only=True):
    """Which input it was: its size, and a hash of its ends and of pieces all over it.

    That is cheap for any size. What it cannot see, a changed body, each item's own hash does.
    """

    bytes: int
    digest: str


class Manifest(Struct, kw_only=True):
    """`settings` are those that the batch was begun with, by name. No key is ever written."""

    version: int = VERSION
    input: str
    fingerprint: Fingerprint
    settings: dict[str, Any]
    started_at: float
    state: State = "running"
    reason: str = ""  # why it was stopped
    # Lines of the input, and results of items that have left it; None until it has been read to its end.
    items: int | None = None
    runs: int = 1
    ran_s: float = 0.0  # of all runs that ended


def fingerprint(path: Path) -> Fingerprint:
    """Raises `InputUnreadable`."""
    digest = blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            places = {max(0, size - _EDGE_BYTES), *(size * step // _SAMPLES for step in range(1, _SAMPLES))}
            digest.update(file.read(_EDGE_BYTES))
            for place in sorted(places):
                file.seek(place)
                digest.update(file.read(_EDGE_BYTES if place == size - _EDGE_BYTES else _SAMPLE_BYTES))
    except OSError as error:
        raise InputUnreadable(f"The input {path} cannot be read: {error.strerror or error}.") from None
    return Fingerprint(bytes=size, digest=digest.hexdigest())


def load(files: Files) -> Manifest:
    """Raises `BatchError` where there is none, or one that cannot be read."""
    try:
        manifest = msgspec.json.decode(files.manifest.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise BatchError(
            f"There is no batch in {files.output}: {files.manifest} does not exist. Begin one with `headway batch run`."
        ) from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BatchError(f"{files.manifest} cannot be read: {error}.") from None
    if manifest.version != VERSION:
        raise BatchError(f"{files.manifest} is of another version ({manifest.version}) than this Headway ({VERSION}).")
    return manifest


def save(files: Files, manifest: Manifest) -> None:
    """Raises `OutputFailed`."""
    replace_file(files.manifest, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")


def check_input(manifest: Manifest) -> Fingerprint:
    """Raises `InputChanged` when the input is another than it was."""
    path = Path(manifest.input)
    now = fingerprint(path)
    if now != manifest.fingerprint:
        how = f"{now.bytes:,} bytes instead of {manifest.fingerprint.bytes:,}"
        how = how if now.bytes != manifest.fingerprint.bytes else "of the same size, with other contents"
        raise InputChanged(
            f"The input {path} has changed since the batch began: it is {how}. Put the old one back, or say "
            "--allow-changed-input: then items whose body changed run again, and new ones are added."
        )
    return now
