"""API keys. `KeyFile` creates, lists and revokes; `KeyRing` tells whose a presented key is, as the file stands now.

A key is 256 random bits, so one SHA-256 is all its hash needs: what cannot be guessed need not be slow to check. Of the
key itself only its last characters are kept, for its owner to recognise it by. One key is one line of JSON, and lines
are never taken out: who was let in, and until when, stays on record.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from time import time

import msgspec
from filelock import FileLock, Timeout

from headway.core.errors import ConfigError, NotFound

log = logging.getLogger("headway.gateway")

PREFIX = "hw-"
SECRET_BYTES = 32
SHOWN_CHARS = 4
MAX_PRESENTED_CHARS = 512  # more is nobody's key, and is not hashed
MAX_LABEL_CHARS = 120
LOCK_TIMEOUT_S = 10.0
TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
# What the digest of an unknown key is compared with, so that known and unknown take the same time.
_NOBODYS = bytes(32)


class Key(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key as it is kept. Times are seconds since the epoch; 0 is never."""

    id: str
    tenant: str
    sha256: str
    ends_with: str = ""
    label: str = ""
    admin: bool = False  # may use the admin API, and nothing else
    created_at_s: int = 0
    expires_at_s: int = 0
    revoked_at_s: int = 0

    def usable(self, now_s: float) -> bool:
        return not self.revoked_at_s and (not self.expires_at_s or now_s < self.expires_at_s)

    def state(self, now_s: float) -> str:
        return "revoked" if self.revoked_at_s else "valid" if self.usable(now_s) else "expired"


_line = msgspec.json.Decoder(Key)


class KeyFile:
    """The file of keys. Every change is one atomic replacement, so that a reader sees the old file or the new one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Key]:
        """Every key there ever was, oldest first. Raises ConfigError, naming file, line and field."""
        try:
            lines = self.path.read_bytes().splitlines()
        except OSError as error:
            raise ConfigError(
                f"{self.path}: the file of API keys cannot be read: {error.strerror}. "
                "Make one with `headway keys create`.",
                param="api_keys",
            ) from error
        keys: dict[str, Key] = {}
        digests: dict[str, int] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            key = _read(line, f"{self.path}:{number}")
            if key.id in keys:
                raise ConfigError(f"{self.path}:{number}: id: there is a key {key.id!r} above already.", param="id")
            if key.sha256 in digests:
                raise ConfigError(
                    f"{self.path}:{number}: sha256: this is the same key as in line {digests[key.sha256]}.",
                    param="sha256",
                )
            keys[key.id] = key
            digests[key.sha256] = number
        return list(keys.values())

    def create(
        self, tenant: str, now_s: float, *, label: str = "", expires_at_s: float = 0, admin: bool = False
    ) -> tuple[Key, str]:
        """A new key of `tenant`: what is kept, and the key itself, which nobody can tell again."""
        if not TENANT.fullmatch(tenant):
            raise ConfigError(
                f"The tenant {tenant[:80]!r} is not a usable name: 1 to 64 letters, digits, '.', '_' or '-', "
                "the first a letter or digit.",
                param="tenant",
            )
        if len(label) > MAX_LABEL_CHARS or not label.isprintable():
            raise ConfigError(f"A label has at most {MAX_LABEL_CHARS} printable characters.", param="label")
        presented = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        key = Key(
            id=f"key_{secrets.token_hex(6)}",
            tenant=tenant,
            sha256=digest_of(presented).hex(),
            ends_with=presented[-SHOWN_CHARS:],
            label=label,
            admin=admin,
            created_at_s=int(now_s),
            expires_at_s=int(expires_at_s),
        )
        with self._locked():
            self._write([*(self.read() if self.path.exists() else ()), key])
        return key, presented

    def revoke(self, which: str, now_s: float) -> Key:
        """End a key, named by its id. Raises NotFound. Revoking again changes nothing."""
        with self._locked():
            keys = self.read()
            for place, key in enumerate(keys):
                if key.id == which:
                    if not key.revoked_at_s:
                        keys[place] = msgspec.structs.replace(key, revoked_at_s=int(now_s))
                        self._write(keys)
                    return keys[place]
        raise NotFound(f"There is no key {which[:80]!r} in {self.path}. `headway keys list` shows their ids.")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Two commands at once must not lose each other's key."""
        lock = FileLock(f"{self.path}.lock", timeout=LOCK_TIMEOUT_S)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except (Timeout, OSError) as error:
            raise ConfigError(
                f"{self.path}: the file of API keys cannot be locked: {error}.", param="api_keys"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def _write(self, keys: Iterable[Key]) -> None:
        text = b"".join(msgspec.json.encode(key) + b"\n" for key in keys)
        try:
            # Made readable for its owner alone: the hashes are no secret worth much, the names of tenants may be.
            handle, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).replace(self.path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise ConfigError(f"{self.path}: the file of API keys cannot be written: {error.strerror}.") from error


class KeyRing:
    """Whose key is this? Looked up by hash; read again with `refresh` when the file has changed."""

    def __init__(self, path: Path) -> None:
        self._file = KeyFile(path)
        self._stamp = _stamp(path)
        self._keys = _by_digest(self._file.read())

    def find(self, presented: str, now_s: float) -> Key | None:
        """The key, if it is one that may be used. The time this takes tells nothing of any key."""
        if len(presented) > MAX_PRESENTED_CHARS:
            return None
        digest = digest_of(presented)
        # By a part of the hash, which says nothing of the key; the rest is compared in constant time.
        known, key = self._keys.get(digest[:8], (_NOBODYS, None))
        same = hmac.compare_digest(digest, known)
        return key if same and key is not None and key.usable(now_s) else None

    def refresh(self) -> bool:
        """Read the file again if it is another than before. A file that cannot be read changes nothing, and is told."""
        stamp = _stamp(self._file.path)
        if stamp == self._stamp:
            return False
        self._stamp = stamp  # told once
        try:
            self.reload()
        except ConfigError as error:
            log.error("the API keys stay as they were: %s", error.message)
            return False
        valid = sum(key.usable(time()) for _, key in self._keys.values())
        log.info("the API keys were read again: %d of %d are valid", valid, len(self._keys))
        return True

    def reload(self) -> None:
        """Read the file again. Raises ConfigError, and then nothing has changed."""
        stamp = _stamp(self._file.path)
        self._keys = _by_digest(self._file.read())
        self._stamp = stamp

    def __len__(self) -> int:
        return len(self._keys)


def digest_of(presented: str) -> bytes:
    return hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()


def _by_digest(keys: Iterable[Key]) -> Mapping[bytes, tuple[bytes, Key]]:
    found = {}
    for key in keys:
        digest = bytes.fromhex(key.sha256)
        found[digest[:8]] = (digest, key)
    return found


def _read(line: bytes, where: str) -> Key:
    try:
        key = _line.decode(line)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        field = path.rstrip("`")
        raise ConfigError(f"{where}: {field + ': ' if field else ''}{what}.", param=field or None) from None
    except msgspec.DecodeError:
        raise ConfigError(f"{where}: not a JSON object; every line is one key.") from None
    if not TENANT.fullmatch(key.tenant):
        raise ConfigError(f"{where}: tenant: {key.tenant[:80]!r} is not a usable name.", param="tenant")
    if not _DIGEST.fullmatch(key.sha256):
        raise ConfigError(f"{where}: sha256: 64 lower-case hexadecimal digits are needed.", param="sha256")
    return key


def _stamp(path: Path) -> tuple[int, int, int]:
    """Changes whenever the file does: a replacement is another inode."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)
