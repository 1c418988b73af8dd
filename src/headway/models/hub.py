"""A model from a Hugging Face hub, through `huggingface_hub`.

The library's own settings hold: `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE`. A dropped connection
resumes where it broke; a killed process keeps the files that were complete. Only what an OpenVINO model needs is
fetched, so the weights of other runtimes in the same repository cost nothing.
"""

from __future__ import annotations

import contextlib
import errno
import re
import threading
from collections.abc import Iterator
from pathlib import Path

from headway.core.errors import ModelError
from headway.models.cache import Progress, Report, no_space, require_space, tree_bytes
from headway.models.ir_directory import BIN, FILES, XML

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?", re.ASCII)
_POLL_S = 0.2


def is_repository(name: str) -> bool:
    """Whether `name` reads as `owner/name`, optionally `@revision`."""
    return _REPOSITORY.fullmatch(name) is not None


def fetch_repository(name: str, report: Report | None = None) -> Path:
    """The snapshot directory of `name` in the hub's cache, fetched if it is not there.

    Raises:
        ModelError: no such repository, no access, offline, no space, or no OpenVINO model in it.
    """
    from huggingface_hub import constants, snapshot_download  # half a second, and only this kind of name needs it

    repository, _, revision = name.partition("@")
    cache = Path(constants.HF_HUB_CACHE)

    def download() -> Path:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=list(FILES)))

    with _explained(name, cache):
        missing_bytes = _missing_bytes(name, repository, revision or None)
        if not missing_bytes:
            return download()
        cache.mkdir(parents=True, exist_ok=True)
        require_space(cache, missing_bytes, f"fetching {name}")
        with _watched(name, cache / f"models--{repository.replace('/', '--')}" / "blobs", missing_bytes, report):
            return download()


def _missing_bytes(name: str, repository: str, revision: str | None) -> int:
    """How much is still to fetch, after looking at what there is before any of it is fetched.

    0 also when the hub cannot be reached: what is cached may do, and if not the fetch itself says why.
    """
    from huggingface_hub import errors, snapshot_download

    try:
        files = snapshot_download(repository, revision=revision, allow_patterns=list(FILES), dry_run=True)
    except errors.DryRunError:
        return 0
    present = {file.filename for file in files}
    if missing := [file for file in (XML, BIN) if file not in present]:
        raise ModelError(
            f"{name} holds no OpenVINO model: {' and '.join(missing)} missing. Look for an export of it (often under "
            f"the owner OpenVINO), or make one: `optimum-cli export openvino --model {repository} DIRECTORY`.",
            code="not_a_model",
        )
    return sum(file.file_size or 0 for file in files if file.will_download)


@contextlib.contextmanager
def _watched(name: str, blobs: Path, total_bytes: int, report: Report | None) -> Iterator[None]:
    """Report how the folder grows, from a thread of its own, since the library blocks."""
    if report is None:
        yield
        return
    before, done = tree_bytes(blobs), threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            report(Progress("fetch", name, min(tree_bytes(blobs) - before, total_bytes), total_bytes))

    report(Progress("fetch", name, 0, total_bytes))
    watcher = threading.Thread(target=watch, name="fetch-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    report(Progress("fetch", name, total_bytes, total_bytes))


@contextlib.contextmanager
def _explained(name: str, cache: Path) -> Iterator[None]:
    """The library's errors as ours, each with what to do."""
    from huggingface_hub import errors

    try:
        yield
    except ModelError:
        raise
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{name} is gated: accept its terms on the hub and set HF_TOKEN to a token of that account",
            code="model_not_found",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"the hub knows no model {name}; if it is private, set HF_TOKEN", code="model_not_found"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"the hub knows no such revision: {name}", code="model_not_found") from error
    except errors.LocalEntryNotFoundError as error:
        raise ModelError(
            f"{name} is not complete in the cache ({cache}) and the hub cannot be reached: {_short(error)}",
            code="fetch_failed",
        ) from error
    except Exception as error:  # the library passes on its HTTP client's exceptions, whose type is its own affair
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_space(cache, f"fetching {name}") from error
        raise ModelError(
            f"could not fetch {name}: {_short(error)}. Run again to go on from the files that are complete.",
            code="fetch_failed",
        ) from error


def _short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
