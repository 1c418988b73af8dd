"""Servers that are changed: how they are told, and that they get back what they had."""

from __future__ import annotations

import json
import shlex
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headway.loadtest.bench.server import command
from headway.loadtest.client.address import Tls, parse_url
from headway.loadtest.client.request import RequestTemplate
from headway.loadtest.errors import InvalidPlan, Rejected
from headway.tune import Http, NotRestored, Settings, find_target
from headway.tune.probe import LogMark
from headway.tune.target import WIDE, check_command


@dataclass
class Scripted:
    """What a server answers: by path, a status and a body. `config` is what /admin/reconfigure changes."""

    owner: str = "headway"
    config: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    url: str = ""

    def answer(self, path: str, body: bytes | None) -> tuple[int, Any]:
        if path in self.answers:
            return self.answers[path]
        if path == "/v1/models":
            return 200, {"data": [{"id": "m", "owned_by": self.owner}]}
        if path == "/admin/config" and self.config:
            return 200, self.config
        if path == "/admin/reconfigure" and body is not None:
            self.config |= json.loads(body)
            return 200, self.config
        return 404, {"error": {"message": "Not found."}}


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    state = Scripted()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.respond(None)

        def do_POST(self) -> None:
            self.respond(self.rfile.read(int(self.headers["content-length"])))

        def respond(self, body: bytes | None) -> None:
            status, told = state.answer(self.path, body)
            content = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def http(scripted: Scripted) -> Http:
    return Http(RequestTemplate(parse_url(scripted.url)[0], "m"), Tls())


OWN: dict[str, Any] = {"max_num_seqs": 7, "max_num_batched_tokens": 99, "long_prompt_slots": None}
OWN |= {"long_output_slots": 3, "slo_ttft": 2.0, "slo_itl": 0.0, "ttft_limit": 5.0, "policy": "headway"}


def test_our_engine_gets_back_all_that_it_had(scripted: Scripted) -> None:
    scripted.config = dict(OWN)
    target = find_target(http(scripted), None, None, 1.0)
    assert target.current == Settings(7, 99, None, 3)
    target.restore()
    assert scripted.config == OWN
    target.widen()
    assert scripted.config == {**OWN, **WIDE}
    target.apply(Settings(16, 256))
    assert Settings.of(scripted.config) == Settings(16, 256)
    assert scripted.config["slo_ttft"] == 2.0, "promises are the server's own again after the probing load"
    target.restore()
    assert scripted.config == OWN


def test_what_cannot_be_put_back_is_said_with_what_would_do_it(scripted: Scripted) -> None:
    scripted.config = dict(OWN)
    target = find_target(http(scripted), None, None, 1.0)
    target.apply(Settings(16, 256))
    scripted.answers["/admin/reconfigure"] = 503, {"error": {"message": "The engine is down."}}
    with pytest.raises(NotRestored, match=r"POST .*\"max_num_seqs\":7.* to 127.*The engine is down"):
        target.restore()
    scripted.answers["/admin/reconfigure"] = 200, {**OWN, "max_num_seqs": 16}
    with pytest.raises(NotRestored, match="has not put max_num_seqs back"):
        target.restore()


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"/admin/config": (403, {"error": {"message": "Only from this machine."}})}, "Only from this machine"),
        ({"/admin/config": (401, {"error": {"message": "A key is wanted."}})}, "A key is wanted"),
        ({"/admin/workers": (200, {"workers": []})}, "is a gateway"),
        ({"/admin/config": (200, {"no": "limits"})}, "does not let its settings be read"),
    ],
)
def test_settings_that_cannot_be_read_are_an_error_with_what_to_do(
    scripted: Scripted, answers: dict[str, tuple[int, Any]], words: str
) -> None:
    scripted.answers = answers
    with pytest.raises((Rejected, InvalidPlan), match=words):
        find_target(http(scripted), None, None, 1.0)


def test_another_server_is_fixed_without_a_command_and_told_by_its_own_flags(scripted: Scripted) -> None:
    scripted.owner = "vllm"
    target = find_target(http(scripted), None, Settings(8, 128), 1.0)
    assert (target.kind, target.changes, target.current) == ("vllm", False, Settings(8, 128))
    with pytest.raises(Rejected, match="cannot be changed from here"):
        target.apply(Settings(9, 128))
    assert Settings(8, 128).flags("vllm") == "--max-num-seqs 8 --max-num-batched-tokens 128"
    assert Settings(8, 128).flags("sglang") == "--max-running-requests 8 --chunked-prefill-size 128"
    assert Settings(8, 128, 2).flags("headway").endswith(" --long-prompt-slots 2")


def recorder(path: Path, status: int = 0) -> str:
    code = f"import sys; open({str(path)!r}, 'a').write(' '.join(sys.argv[1:]) + chr(10)); sys.exit({status})"
    return f"{shlex.join([sys.executable, '-c', code])} {{max_num_seqs}} {{max_num_batched_tokens}}"


def test_a_command_is_run_with_the_settings_and_with_the_old_ones_at_the_end(
    scripted: Scripted, tmp_path: Path
) -> None:
    scripted.owner = "vllm"
    path = tmp_path / "told"
    target = find_target(http(scripted), recorder(path), Settings(8, 128), 10.0)
    target.apply(Settings(8, 128))  # it has them
    target.apply(Settings(16, 256))
    target.apply(Settings(16, 256))
    target.restore()
    target.restore()
    assert path.read_text() == "16 256\n8 128\n"


def test_a_command_that_fails_is_an_error_and_a_restore_that_fails_is_a_loud_one(
    scripted: Scripted, tmp_path: Path
) -> None:
    scripted.owner = "vllm"
    target = find_target(http(scripted), recorder(tmp_path / "told", status=3), Settings(8, 128), 10.0)
    with pytest.raises(Rejected, match="ended with 3"):
        target.apply(Settings(16, 256))
    with pytest.raises(NotRestored, match=r"\(run .* 8 128\)"):
        target.restore()


def test_a_command_needs_to_know_what_is_to_be_put_back(scripted: Scripted) -> None:
    scripted.owner = "vllm"
    with pytest.raises(InvalidPlan, match="give what it has now with --max-num-seqs"):
        find_target(http(scripted), "x {max_num_seqs} {max_num_batched_tokens}", None, 1.0)
    scripted.answers["/get_server_info"] = 200, {"max_running_requests": 5, "chunked_prefill_size": 512}
    assert find_target(http(scripted), "x {max_num_seqs} {max_num_batched_tokens}", None, 1.0).current == Settings(
        5, 512
    )


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("run --max-num-seqs {max_num_seqs}", "no place for max_num_batched_tokens"),
        ("run {max_num_seqs} {max_num_batched_tokens} {other}", "other"),
        ("run '{max_num_seqs} {max_num_batched_tokens}", "cannot be read"),
        ("run {max_num_seqs", "cannot be read"),
    ],
)
def test_a_command_without_its_places_is_refused(template: str, words: str) -> None:
    with pytest.raises(InvalidPlan, match=words):
        check_command(template)


def test_values_stay_within_their_words() -> None:
    assert command("a 'b {max_num_seqs} c' -x{max_num_batched_tokens}", Settings(4, 32).given) == ["a", "b 4 c", "-x32"]


def test_of_a_step_log_only_what_came_after_the_mark_counts(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    header, old, new = '{"kind":"header","log":"step"}\n', '{"kind":"step","n":0}\n', '{"kind":"step","n":1}\n'
    path.write_text(header + old * 100)
    mark = LogMark.of(str(path))
    assert mark is not None
    assert mark.steps_since() is None
    with path.open("a") as file:
        file.write(
            new * 60 + '{"kind":"request","arrival_ns":5,"queue_s":0.25,"prefill_s":0.5}\n' + '{"kind":"step","n":'
        )
    content = mark.steps_since()
    assert content is not None
    assert content.decode() == header + new * 60
    assert mark.served_s() == [0.75]


def test_a_log_that_had_not_been_written_when_it_was_marked_has_its_header_later(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("")
    mark = LogMark.of(str(path))
    path.write_text('{"kind":"header","log":"step"}\n' + '{"kind":"step"}\n' * 60)
    assert mark is not None
    assert (mark.steps_since() or b"").startswith(b'{"kind":"header"')
    assert LogMark.of(None) is None
    assert LogMark.of(str(tmp_path / "elsewhere")) is None
