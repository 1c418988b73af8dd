"""`bench` on real sockets: every profile on the simulated server, and what must not be told or be lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headway.loadtest.answers import Answers
from headway.loadtest.bench.files import Files, in_folder, read, save
from headway.loadtest.bench.oom import out_of_memory
from headway.loadtest.bench.options import (
    Burst,
    ClientOptions,
    Concurrency,
    LongContext,
    LongOutput,
    Mixed,
    Options,
    Profile,
    PromiseOptions,
    Ramp,
    Rate,
    ServerOptions,
    TextOptions,
    Trace,
    WindowOptions,
    name_of,
)
from headway.loadtest.bench.tester import INTERRUPTED, Result, bench
from headway.loadtest.errors import InvalidPlan, UnknownModel, Unreachable
from headway.loadtest.record import Fate, Record
from headway.loadtest.report.tables import evidence
from headway.loadtest.result import Word
from headway.loadtest.runner import run as runner
from headway.loadtest.runner.degraded import Degraded
from tests.cli.running import Server
from tests.loadtest.servers import Server as Speaking
from tests.loadtest.servers import Turn, error, serving, talks, whole
from tests.loadtest.speaking import speaking

HERE = ClientOptions(processes=0, scrape_interval=0.2, drain=20.0)
SHORT = TextOptions(input_len="60", output_len="4")


def options(**parts: Any) -> Options:
    window = parts.pop("window", WindowOptions(duration=1.0, requests=60, warmup=0.0, cooldown=0.0))
    return Options(**{"client": HERE, "text": SHORT, "window": window, **parts})


@pytest.fixture(scope="module")
def simulated() -> Iterator[str]:
    with Server("--executor", "simulated") as server:
        yield server.url


PROFILES: list[tuple[Profile, TextOptions]] = [
    (Concurrency(concurrency=4), SHORT),
    (Rate(request_rate=15, burstiness=0.5), SHORT),
    (Ramp(start_rate=5, end_rate=60), SHORT),
    (Mixed(request_rate=20, share=("a=1/50/3", "b=1/90/5")), TextOptions()),
    (LongContext(concurrency=2), TextOptions(input_len="300", output_len="4")),
    (LongOutput(concurrency=4), TextOptions(output_len="12")),
    (Burst(base_rate=0, burst_rate=60, period=0.8, burst_share=0.25), SHORT),
]


@pytest.mark.parametrize(
    ("profile", "text"),
    [
        pytest.param(*one, marks=pytest.mark.slow if isinstance(one[0], LongContext | LongOutput) else ())
        for one in PROFILES
    ],
    ids=[name_of(profile) for profile, _ in PROFILES],
)
async def test_every_profile_on_the_simulated_server(simulated: str, profile: Profile, text: TextOptions) -> None:
    result = await bench(simulated, profile, options(text=text, promise=PromiseOptions(slo_ttft=5.0)))
    run = result.run
    assert run.load.profile == name_of(profile)
    assert run.summary.overall.requests > 0
    assert set(run.summary.overall.fates) <= {"ok", "cancelled"}
    assert {record.output_tokens for record in result.records if record.ok} <= {3, 4, 5, 12}
    assert all(record.input_tokens == record.asked_input_tokens for record in result.records if record.ok)
    assert not [line for line in run.verdict.remarks if line.startswith("Prompt lengths")]
    assert run.load.options.keys() >= {one.name for one in fields(profile)} | {"shared_prefix_tokens", "stream", "n"}
    assert run.environment.framework
    assert run.environment.framework.startswith("headway")
    assert run.signals.source == "headway"
    assert run.summary.overall.good_ratio is not None
    assert (run.summary.knee is not None) == isinstance(profile, Ramp)
    assert (run.summary.recovery_s is not None) == isinstance(profile, Burst)
    assert set(run.summary.by_kind) == ({"a", "b"} if isinstance(profile, Mixed) else set())
    assert result.exit_code == run.verdict.name.exit_code


async def test_a_trace_is_replayed(simulated: str, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    rows = [{"at_s": place / 10, "input_tokens": 50 + 20 * place, "output_tokens": 4} for place in range(10)]
    path.write_text("\n".join(map(json.dumps, rows)))
    wanted = options(text=TextOptions(), window=WindowOptions())
    result = await bench(simulated, Trace(file=str(path), time_scale=0.5), wanted)
    assert [record.scheduled_ns for record in result.records] == [place * 50_000_000 for place in range(10)]
    assert [record.asked_input_tokens for record in result.records] == [50 + 20 * place for place in range(10)]
    assert result.run.load.requests == 10


async def test_a_ramp_without_an_end_finds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.loadtest.bench.tester.FEELER_S", 1.0)
    async with speaking(gap_s=0.05) as server:  # 32 at a time, four tokens: about 150 requests/s
        result = await bench(server.url, Ramp(start_rate=1), options(window=WindowOptions(duration=0.5)))
    assert result.run.load.rate is not None
    assert 2 <= result.run.load.rate < 600, "32 slots of a server that can do no more; a busy machine does less"


# -- the same requests -------------------------------------------------------------------------------------------------


async def bodies(seed: int | None, **text: Any) -> list[bytes]:
    window = WindowOptions(duration=0.4, requests=15, warmup=0.0, cooldown=0.0, seed=seed)
    wanted = options(window=window, text=replace(SHORT, **text))
    async with speaking() as server:
        await bench(server.url, Rate(request_rate=50), wanted)
        return [
            asked.body for asked in server.asked if asked.path.endswith("/chat/completions") and asked.json["stream"]
        ][1:]  # the first is the look at the server


@pytest.mark.slow
async def test_the_same_seed_gives_the_same_requests() -> None:
    once = await bodies(7)
    assert once == await bodies(7) != []
    assert once != await bodies(8)
    assert len(set(once)) == len(once), "no cache finds a whole prompt again"


@pytest.mark.slow
async def test_without_a_seed_times_are_the_same_and_texts_are_new() -> None:
    once, again = await bodies(None), await bodies(None)
    assert len(once) == len(again)
    assert set(once) & set(again) == set()


@pytest.mark.slow
async def test_several_processes_send_what_one_sends() -> None:
    window = WindowOptions(duration=0.3, warmup=0.0, cooldown=0.0, seed=1)
    sent = []
    for processes in (0, 2):
        wanted = options(window=window, client=replace(HERE, processes=processes))
        async with speaking() as server:
            result = await bench(server.url, Rate(request_rate=60), wanted)
            sent.append(sorted(asked.body for asked in server.asked if b'"stream":true' in asked.body))
            assert result.run.client.processes == max(1, processes)
    assert sent[0] == sent[1]


# -- prompts -----------------------------------------------------------------------------------------------------------


async def test_given_prompts_are_sent_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "one two", "max_tokens": 3}\n{"prompt": "three", "max_tokens": 2}\n')
    wanted = options(text=TextOptions(prompts=f"jsonl:{path}"), window=WindowOptions(requests=4))
    async with speaking() as server:
        result = await bench(server.url, Concurrency(concurrency=1), wanted)
        texts = [asked.json["messages"][0]["content"] for asked in server.asked if b'"stream":true' in asked.body][1:]
    assert texts == ["one two", "three"] * 2
    assert [record.output_tokens for record in result.records] == [3, 2, 3, 2]


async def test_without_a_tokenizer_words_are_calibrated_on_the_server() -> None:
    wanted = options(text=replace(SHORT, tokenizer="none"), window=WindowOptions(requests=3))
    async with speaking() as server:  # a token a word, and two around
        result = await bench(server.url, Concurrency(concurrency=1), wanted)
    assert {record.input_tokens for record in result.records} == {60}
    assert "calibrated" in result.run.load.settings["input lengths by"]


def test_lengths_that_the_server_counts_otherwise_are_told() -> None:
    records = [_counted(100, 100), _counted(100, 103), _counted(100, 130, output_tokens=5)]
    told = off(records)
    assert told["prompt lengths"].startswith("by the server's count 1 of 3 prompts were not as long as asked (+30%")
    assert told["output lengths"].startswith("by the server's count 1 of 3 answers were not as long as asked (-50%")
    assert "prompt lengths" not in off(records, given=True), "nobody asked for a length"
    assert not off([_counted(100, -1)]), "a server that counts nothing says nothing"
    assert not off([])
    assert not off([_counted(100, 100, output_tokens=30)], choices=3), "each is as long as asked"
    assert off([_counted(100, 100, output_tokens=10)], choices=3)


def off(records: list[Record], *, given: bool = False, choices: int = 1) -> dict[str, str]:
    return Answers(records, streamed=True, choices=choices).off_lengths([], of=len(records), given=given)


def _counted(asked: int, input_tokens: int, output_tokens: int = 10) -> Record:
    record = Record(0, "", "", asked, 10, 0)
    record.input_tokens, record.output_tokens, record.fate = input_tokens, output_tokens, Fate.OK
    return record


async def test_a_request_that_cannot_fit_is_told_before_the_load(simulated: str) -> None:
    with pytest.raises(InvalidPlan, match="does not fit"):
        await bench(simulated, Concurrency(), options(text=TextOptions(input_len="10000000")))


# -- ends --------------------------------------------------------------------------------------------------------------


async def _die_after(server: Speaking, requests: int) -> None:
    """Of its load: what it is asked before does not count."""
    while sum(one.path.endswith("/completions") for one in server.asked) < requests:
        await asyncio.sleep(0.01)
    await server.die()


async def test_a_server_that_dies_leaves_a_report() -> None:
    wanted = options(window=WindowOptions(duration=1.0, warmup=0.0, cooldown=0.0))
    async with speaking(gap_s=0.01) as server:
        dying = asyncio.create_task(_die_after(server, 60))
        result = await bench(server.url, Rate(request_rate=100), wanted)
        await dying
    fates = result.run.summary.overall.fates
    assert sum(fates.values()) > 0
    assert fates["connection"] > 0
    found = {finding.verdict for finding in result.run.verdict.findings}  # a busy machine adds that it was late
    assert Word.SERVER_ERRORS in found
    assert result.exit_code == result.run.verdict.name.exit_code != 0


async def test_who_is_not_there_or_does_not_serve_that_is_told() -> None:
    async with speaking() as server:
        with pytest.raises(UnknownModel, match="It serves: m"):
            await bench(server.url, Concurrency(), options(server=ServerOptions(model="other")))
    with pytest.raises(Unreachable, match="connection refused"):
        await bench(server.url, Concurrency(), options())


async def test_running_out_of_memory_is_told() -> None:
    async def script(turn: Turn) -> None:
        if not turn.asked.json["stream"]:
            turn.write(whole(json.dumps({"choices": [{"message": {"content": "w"}}]}).encode()))
        elif turn.number % 3 == 2:
            turn.write(whole(error("CUDA out of memory. Tried to allocate 2.00 GiB."), status=500))
        else:
            await talks(turn)

    wanted = options(text=replace(SHORT, tokenizer="none"), window=WindowOptions(requests=30))
    async with serving(script) as server:
        result = await bench(server.url, Concurrency(concurrency=2), wanted)
    failed = result.run.summary.overall.fates["server_error"]
    assert failed
    [told] = [line for line in evidence(result.run) if line.startswith("Out of memory: ")]
    assert told.startswith(f"Out of memory: {sum(not record.ok for record in result.records)} failed")
    assert "CUDA out of memory" in told


@pytest.mark.parametrize(
    "words",
    [
        "torch.OutOfMemoryError: CUDA out of memory", "std::bad_alloc", "HIP out of memory", "Out of device memory",
        "the worker was OOM killed", "ggml: failed to allocate buffer", "[Errno 12] Cannot allocate memory",
    ],
)  # fmt: skip
def test_the_words_for_no_memory(words: str) -> None:
    record = Record(0, "", "", 1, 1, 0, fate=Fate.SERVER_ERROR, error=f"HTTP 500: {words}")
    assert words in out_of_memory([record])
    assert not out_of_memory([Record(0, "", "", 1, 1, 0, fate=Fate.SERVER_ERROR, error="HTTP 500: zoom, room, doom")])
    assert not out_of_memory([replace(record, fate=Fate.OK)])


async def test_prompts_whose_length_cannot_be_made_are_counted() -> None:
    wanted = options(text=TextOptions(input_len="1", output_len="2"), window=WindowOptions(requests=7))
    async with speaking() as server:  # two tokens around each text: none is of one
        result = await bench(server.url, Concurrency(concurrency=1), wanted)
        exact = await bench(server.url, Concurrency(concurrency=1), options(window=WindowOptions(requests=7)))
    [told] = [line for line in evidence(result.run) if line.startswith("Prompt lengths: ")]
    counted = int(told.split()[2])
    assert 1 <= counted <= 7
    assert told.endswith("off by up to 2 tokens.")
    assert "prompt" not in " ".join(exact.run.verdict.remarks).lower()


@pytest.mark.slow
async def test_a_ramp_ends_when_service_has_clearly_degraded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.loadtest.runner.run.Degraded", lambda: Degraded(hold_s=0.5))
    one_at_a_time = asyncio.Semaphore(1)

    async def script(turn: Turn) -> None:
        if turn.asked.json["stream"]:
            async with one_at_a_time:
                await asyncio.sleep(0.02)
            await talks(turn)
        else:
            turn.write(whole(json.dumps({"choices": [{"message": {"content": "w"}}]}).encode()))

    window = WindowOptions(duration=12.0)
    wanted = options(text=replace(SHORT, tokenizer="none"), window=window)
    async with serving(script) as server:
        result = await bench(server.url, Ramp(start_rate=10, end_rate=200), wanted)
    last_s = max(record.scheduled_ns for record in result.records) / 1e9
    assert last_s < 11, "the rest of it would show nothing new"
    assert any("clearly degraded" in line for line in evidence(result.run))
    knee = result.run.summary.knee
    assert knee is not None
    assert "load" in knee, "it is still found"
    assert not result.run.interrupted
    assert result.run.verdict.name != Word.SERVER_ERRORS, "what was cancelled is our doing"


# -- files -------------------------------------------------------------------------------------------------------------


async def quick() -> Result:
    async with speaking() as server:
        return await bench(server.url, Concurrency(concurrency=2), options(window=WindowOptions(requests=40)))


async def test_files_say_the_same(tmp_path: Path) -> None:
    result = await quick()
    files = in_folder(tmp_path)
    save(result, files)
    run, records = read(tmp_path)
    assert run.summary == result.run.summary
    assert [record.scheduled_ns for record in records] == [record.scheduled_ns for record in result.records]
    assert run.summary.overall.requests <= len(records) == 40
    assert files.html is not None
    assert run.verdict.name in files.html.read_text()
    assert {path.name for path in files.paths} == {path.name for path in tmp_path.iterdir()}  # noqa: ASYNC240


async def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    save(await quick(), in_folder(tmp_path))
    with pytest.raises(InvalidPlan, match="holds a run already"):
        in_folder(tmp_path)


def test_a_place_that_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidPlan, match="folder"):
        Files(json=tmp_path).check()
    with pytest.raises(InvalidPlan, match="cannot be made"):
        Files(json=tmp_path / "file" / "run.json").check()


async def test_an_interrupted_run_says_so() -> None:
    result = await quick()
    cut = Result(replace_interrupted(result), result.records)
    assert cut.exit_code == INTERRUPTED


def replace_interrupted(result: Result) -> Any:

    return msgspec.structs.replace(result.run, interrupted=True)


async def test_a_load_that_cannot_go_on_says_so_in_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client failed, so it is the client that is blamed; and the run itself knows why, not only its settings."""
    real = runner.run

    async def broken(plan: Any, **more: Any) -> Any:
        measured = await real(plan, **more)
        measured.ended_early, measured.client_failed = "no further request could be made: line 31 is torn", True
        return measured

    monkeypatch.setattr(runner, "run", broken)
    async with speaking(gap_s=0.001) as server:
        result = await bench(server.url, Rate(request_rate=50), options(window=WindowOptions(duration=0.5)))
    assert "line 31 is torn" in result.run.ended_early
    assert result.exit_code == Word.CLIENT_LIMITED.exit_code
    assert "line 31 is torn" in result.run.verdict.findings[0].evidence
