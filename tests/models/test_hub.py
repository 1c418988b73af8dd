"""A hub's repository, through the real client library, from a stand-in on this machine.

The library reads its environment when it is imported, so each load is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.models import Model
from headway.models.hub import is_repository
from headway.models.ir_directory import BIN, XML
from tests.models.stand_in_hub import COMMIT, Hub, running
from tests.models.test_ir_directory import CONFIG

SOURCE = str(Path(__file__).parents[2] / "src")
REPOSITORY = "owner/tiny-ov"
LOAD = """
import json, sys
from headway.core.errors import ModelError
from headway.models import load_model
for name in sys.argv[1:]:
    reports = []
    try:
        model = load_model(name, report=lambda p: reports.append([p.stage, p.done_bytes, p.total_bytes]))
    except ModelError as error:
        answer = {"error": error.message, "code": error.code}
    else:
        answer = {"name": model.name, "vocab_size": model.vocab_size, "eos": model.eos_token_ids}
        answer["directory"] = str(model.directory)
    print(json.dumps({**answer, "reports": reports}))
"""


@pytest.fixture
def files(tiny_model: Model) -> dict[str, bytes]:
    content = {path.name: path.read_bytes() for path in tiny_model.directory.iterdir()}
    content["config.json"] = json.dumps(CONFIG).encode()
    content["chat_template.jinja"] = b"{{ messages }}"
    content["pytorch_model.bin"] = b"not wanted " * 1000
    content["README.md"] = b"# not wanted"
    return content


def load(hub: Hub, cache: Path, *names: str, **changes: str) -> list[dict[str, Any]]:
    """What each `load_model` gave, in one process whose hub is ours and whose cache is `cache`."""
    settings = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(cache),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
        "PYTHONPATH": SOURCE,
    }
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *(names or (REPOSITORY,))],
        env={**inherited, **settings, **changes},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_repository_is_fetched_once_and_only_what_serving_needs(files: dict[str, bytes], tmp_path: Path) -> None:
    with running(Hub(REPOSITORY, files)) as hub:
        (first, second) = load(hub, tmp_path, REPOSITORY, f"{REPOSITORY}@{COMMIT}")
        wanted = [XML, BIN, "tokenizer.json", "config.json", "chat_template.jinja"]
        assert hub.fetched() == sorted(wanted)
        total = sum(len(files[name]) for name in wanted)
        assert first["reports"][0] == ["fetch", 0, total]
        assert first["reports"][-1] == ["fetch", total, total]
        assert (first["name"], first["vocab_size"], first["eos"]) == (REPOSITORY, 300, [2])
        assert second == {**first, "reports": []}
    (offline,) = load(hub, tmp_path)  # the hub is gone; what is cached is complete
    assert offline["directory"] == first["directory"]
    (told,) = load(hub, tmp_path, HF_HUB_OFFLINE="1")
    assert told["directory"] == first["directory"]


def test_a_broken_connection_goes_on_where_it_broke(files: dict[str, bytes], tmp_path: Path) -> None:
    files[BIN] += bytes(24 << 20)  # the library counts in chunks of 10 MiB, so the file must have some
    broken_at = 11 << 20
    with running(Hub(REPOSITORY, files, break_after={BIN: broken_at})) as hub:
        (answer,) = load(hub, tmp_path)
        first, second = (span for name, span in hub.gets if name == BIN)
    assert first is None
    assert second is not None
    resumed_at = int(second.removeprefix("bytes=").rstrip("-"))
    assert 0 < resumed_at <= broken_at
    assert (Path(answer["directory"]) / BIN).read_bytes() == files[BIN]


def test_what_is_wrong_with_a_name_is_said_and_costs_nothing(files: dict[str, bytes], tmp_path: Path) -> None:
    names = ["owner/other", f"{REPOSITORY}@nowhere"]
    with running(Hub(REPOSITORY, files)) as hub:
        unknown, revision = load(hub, tmp_path, *names)
        assert hub.gets == []
    assert "the hub knows no model owner/other" in unknown["error"]
    assert f"no such revision: {REPOSITORY}@nowhere" in revision["error"]


def test_a_repository_of_another_runtime_is_refused_before_fetching(files: dict[str, bytes], tmp_path: Path) -> None:
    del files[XML]
    with running(Hub(REPOSITORY, files)) as hub:
        (answer,) = load(hub, tmp_path)
        assert hub.gets == []
    assert f"holds no OpenVINO model: {XML} missing" in answer["error"]
    assert answer["code"] == "not_a_model"


def test_a_gated_repository_wants_a_token(files: dict[str, bytes], tmp_path: Path) -> None:
    with running(Hub(REPOSITORY, files, token="hf_secret")) as hub:
        (without,) = load(hub, tmp_path)
        (given,) = load(hub, tmp_path, HF_TOKEN="hf_secret")
    assert "HF_TOKEN" in without["error"]
    assert given["vocab_size"] == 300


def test_no_hub_and_nothing_cached_is_said(files: dict[str, bytes], tmp_path: Path) -> None:
    with running(Hub(REPOSITORY, files)) as hub:
        pass
    (answer,) = load(hub, tmp_path)
    assert "the hub cannot be reached" in answer["error"]
    assert answer["code"] == "fetch_failed"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("owner/name", True),
        ("OpenVINO/Qwen3-0.6B-int8-ov", True),
        ("owner/name@main", True),
        ("owner/name@refs/pr/1", True),
        ("name", False),
        ("/abs/path", False),
        ("./name", False),
        ("../name", False),
        ("a/b/c", False),
        ("owner/", False),
        ("owner/na me", False),
        ("owner/näme", False),
        ("owner/name@", False),
    ],
)
def test_what_reads_as_a_repository(name: str, expected: bool) -> None:
    assert is_repository(name) == expected
