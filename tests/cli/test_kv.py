"""`headway kv`: a file, a folder, a GGUF and a live server in; a table or JSON out; bad input told in one line."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from headway.cli.kv import app
from headway.core.errors import HeadwayError

CONFIG = {
    "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "llama-8b" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIG))
    return path


def run(*arguments: str | Path) -> None:
    app([str(argument) for argument in arguments], exit_on_error=False, result_action="return_value")


def test_bytes_alone(config, capsys):
    run(config)
    out = capsys.readouterr().out
    assert "131,072 bytes per token" in out
    assert "requests at once" not in out


def test_a_table_with_each_term(config, capsys):
    run(config, "--gpu", "RTX 4090", "--max-model-len", "32768")
    out = capsys.readouterr().out
    for term in (
        "may be used",
        "weights",
        "activations",
        "outside the allocator",
        "CUDA graphs",
        "KV cache",
        "requests at once",
    ):
        assert term in out


def test_json(config, capsys):
    run(config, "--gpu", "RTX 4090", "--max-model-len", "32768", "--json")
    document = json.loads(capsys.readouterr().out)
    assert document["token_bytes"] == 131_072
    assert document["blocks"] == pytest.approx(2588, rel=0.03)
    assert document["budget_bytes"] == sum(t["bytes"] for t in document["terms"]) + document["kv_cache_bytes"]
    assert document["sequences_at_max_model_len"] == pytest.approx(document["blocks"] / 2048, abs=0.001)


def test_a_request_that_does_not_fit_is_told(config, capsys):
    run(config, "--gpu", "RTX 4090")
    assert "use --max-model-len" in capsys.readouterr().out


def test_a_folder_with_its_weights(config, capsys):
    (config.parent / "model.safetensors").write_bytes(b"")
    with (config.parent / "model.safetensors").open("wb") as file:
        file.truncate(9 << 30)  # a sparse file: its size is all that is read
    run(config.parent, "--gpu", "RTX 4090", "--json", "--max-model-len", "4096")
    terms = {term["name"]: term for term in json.loads(capsys.readouterr().out)["terms"]}
    assert terms["weights"]["bytes"] == pytest.approx(9 << 30, rel=0.01)
    assert "files" in terms["weights"]["why"]


def gguf_file(path: Path) -> Path:
    """A whole small file: a header, eight keys and one tensor."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    keys = {
        "block_count": 2, "embedding_length": 64, "context_length": 512, "attention.head_count": 4,
        "attention.head_count_kv": 2, "feed_forward_length": 128, "vocab_size": 32,
    }  # fmt: skip
    body = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    for key, value in keys.items():
        body += text(f"llama.{key}") + struct.pack("<II", 4, value)
    tensor = text("token_embd.weight") + struct.pack("<IQQIQ", 2, 64, 32, 1, 0)
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys) + 1) + body + tensor
    header += b"\0" * (-len(header) % 32)
    path.write_bytes(header + b"\1" * (64 * 32 * 2))
    return path


def test_a_gguf(tmp_path, capsys):
    run(gguf_file(tmp_path / "tiny.gguf"), "--kv-cache-dtype", "f16", "--json")
    document = json.loads(capsys.readouterr().out)
    assert (document["model"], document["token_bytes"]) == ("tiny", 2 * 2 * 2 * 16 * 2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpu", "RTX 4091"], "RTX-4090"),
        (["--gpu", "T4"], "too large"),
        (["--gpu", "H100", "--gpu-memory-utilization", "nan"], "gpu-memory-utilization"),
        (["--tensor-parallel-size", "3"], "tensor-parallel-size 3"),
        (["--kv-cache-dtype", "fp9"], "fp8"),
        (["--engine", "vlllm"], "vllm"),
    ],
    ids=str,
)
def test_bad_settings_are_one_line(config, arguments, says):
    with pytest.raises(HeadwayError, match=says) as refused:
        run(config, *arguments)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("content", "says"),
    [("{", "no JSON"), ("[1]", "no JSON object"), ("{}", "hidden_size"), ('{"hidden_size": NaN}', "hidden_size")],
)
def test_bad_files(tmp_path, content, says):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(HeadwayError, match=says) as refused:
        run(path)
    assert str(path) in refused.value.message


def test_nothing_there(tmp_path):
    with pytest.raises(HeadwayError, match="no file or folder"):
        run(tmp_path / "nothing")
    with pytest.raises(HeadwayError, match=r"config\.json"):
        run(tmp_path)


class _Vllm(BaseHTTPRequestHandler):
    PAGES: ClassVar = {
        "/metrics": 'vllm:cache_config_info{block_size="16",num_gpu_blocks="2588"} 1.0\n',
        "/v1/models": json.dumps({"data": [{"id": "llama", "max_model_len": 32768}]}),
    }

    def do_GET(self):
        page = self.PAGES.get(self.path)
        self.send_response(404 if page is None else 200)
        self.end_headers()
        self.wfile.write((page or "").encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Vllm) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_a_live_server(server, capsys):
    run(server + "/v1")
    out = capsys.readouterr().out
    assert "41,408 tokens in 2,588 blocks of 16" in out
    assert "1.26 requests of 32,768 tokens" in out


def test_a_live_server_as_json(server, capsys):
    run(server, "--json", "--max-model-len", "4096")
    document = json.loads(capsys.readouterr().out)
    assert (document["tokens"], document["sequences_at_max_model_len"]) == (41_408, 10.109)


def test_nobody_listens(server):
    with pytest.raises(HeadwayError, match="nothing listens there"):
        run("http://127.0.0.1:9")
