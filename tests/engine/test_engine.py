"""The Python API over a real child process, with the simulated executor."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import pytest

from headway import Engine
from headway.core.errors import ConfigError, EngineFailed, InvalidRequest, ModelError, QueueFull
from headway.core.request import SamplingParams
from headway.engine.config import EngineConfig, engine_config

ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


def test_generate_answers_in_order_more_prompts_than_may_wait():
    with Engine(executor="simulated", max_waiting=4, max_num_seqs=4) as engine:
        prompts = [f"number {i} of" for i in range(20)]
        outputs = engine.generate(prompts, max_tokens=[1 + i % 3 for i in range(20)], params=ENDLESS)
        assert [output.usage.output_tokens for output in outputs] == [1 + i % 3 for i in range(20)]
        assert [output.usage.prompt_tokens for output in outputs] == [len(engine.tokenizer.encode(p)) for p in prompts]
        assert all(output.text == engine.tokenizer.decode(output.tokens) for output in outputs)
        assert engine.snapshot().requests == 0


def test_token_ids_and_text_are_the_same_prompt_and_logprobs_come_when_asked():
    with Engine(executor="simulated") as engine:
        text = "the sea is"
        params = SamplingParams(temperature=0.0, ignore_eos=True, logprobs=2)
        prompts: list[Any] = [text, engine.tokenizer.encode(text)]
        by_text, by_ids = engine.generate(prompts, max_tokens=4, params=params)
        assert by_text.tokens == by_ids.tokens
        assert by_text.logprobs is not None
        assert [entry.token for entry in by_text.logprobs] == by_text.tokens
        assert engine.generate([text], max_tokens=4, params=ENDLESS)[0].logprobs is None


async def test_a_stream_is_async_and_closing_it_early_frees_its_place():
    async with Engine(executor="simulated", max_num_seqs=1) as engine:
        stream = engine.stream("once upon a time", max_tokens=500, params=ENDLESS)
        assert (await anext(stream)).tokens
        await stream.aclose()
        (after,) = await engine.agenerate(["and then"], max_tokens=2, params=ENDLESS)
        assert after.finish_reason == "length"


async def test_a_segfault_costs_the_running_requests_an_error_and_nothing_else():
    async with Engine(executor="simulated") as engine:
        streams = [engine.stream("story", max_tokens=500, params=ENDLESS) for _ in range(3)]
        for stream in streams:
            await anext(stream)
        assert engine.executor_pid is not None
        os.kill(engine.executor_pid, signal.SIGSEGV)
        for stream in streams:
            with pytest.raises(EngineFailed, match="SIGSEGV"):
                async for _ in stream:
                    pass
        async with asyncio.timeout(30):
            while not engine.ready:
                await asyncio.sleep(0.02)
        assert (await engine.agenerate(["story"], max_tokens=2, params=ENDLESS))[0].usage.output_tokens == 2
        snapshot = engine.snapshot()
        assert (snapshot.requests, snapshot.kv_blocks_used, snapshot.ended_total["failed"]) == (0, 0, 3)


async def test_the_waiting_room_is_limited_for_streams():
    async with Engine(executor="simulated", max_waiting=1, max_num_seqs=1) as engine:
        running = engine.stream("word", max_tokens=100, params=ENDLESS)
        await anext(running)
        waiting = asyncio.ensure_future(anext(engine.stream("word", max_tokens=100, params=ENDLESS)))
        while not engine.snapshot().waiting:
            await asyncio.sleep(0.01)
        with pytest.raises(QueueFull, match="1 requests are waiting"):
            await anext(engine.stream("word", max_tokens=100, params=ENDLESS))
        with pytest.raises(QueueFull):
            engine.check_door()
        await running.aclose()
        await waiting


def test_an_engine_that_cannot_start_leaves_no_process():
    engine = Engine(executor="simulated", max_model_len=10_000_000)
    with pytest.raises(ConfigError, match="trained for 32768"), engine:
        pass
    assert engine.executor_pid is None


def test_a_request_never_may_be_longer_than_the_kv_cache_holds():
    with Engine(executor="simulated", kv_cache_gib=0.01) as engine:
        assert engine.max_model_len == 14 * 32  # blocks of 32 tokens of 23,040 bytes in 0.01 GiB
    with (
        pytest.raises(ConfigError, match="hold 448 tokens"),
        Engine(executor="simulated", kv_cache_gib=0.01, max_model_len=1000),
    ):
        pass


def test_a_model_that_does_not_exist_is_named():
    with pytest.raises(ModelError, match="nosuch"), Engine("./nosuch.gguf"):
        pass


def test_generate_outside_with_says_what_to_do():
    with pytest.raises(RuntimeError, match="with Engine"):
        Engine(executor="simulated").generate(["x"])
    with pytest.raises(RuntimeError, match="not been started"):
        _ = Engine(executor="simulated").max_model_len


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_num_seq": 3}, "Did you mean 'max_num_seqs'"),
        ({"zzz": 3}, "Known are: max_model_len"),
        ({"max_num_seqs": 0}, "max_num_seqs must be between 1 and 4,096, not 0"),
        ({"max_num_seqs": float("nan")}, "max_num_seqs must be"),
        ({"max_num_seqs": "many"}, "max_num_seqs must be a number"),
        ({"max_num_seqs": True}, "max_num_seqs must be a number"),
        ({"kv_cache_gib": -1}, "kv_cache_gib must be"),
        ({"dtype": "f16"}, "dtype must be one of auto, bf16, f32"),
        ({"max_num_seqs": 300, "max_num_batched_tokens": 256}, "must be at least 300"),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 16, "kv_cache_dtype": "u8"}, "at least 39"),
        ({"step_timeout": 0}, "step_timeout must be at least 1"),
        ({"queue_timeout": float("inf")}, "queue_timeout must be at least 0, not inf"),
    ],
)
def test_a_bad_setting_is_named_with_its_limit(settings, words):
    with pytest.raises(ConfigError, match=words):
        engine_config(**settings)


def test_a_config_and_keywords_exclude_each_other():
    with pytest.raises(ConfigError, match="not both"):
        Engine("x", EngineConfig(), max_num_seqs=2)


def test_equal_prompts_get_different_answers_that_can_be_repeated():
    sampled = SamplingParams(temperature=1.0, ignore_eos=True, seed=5)
    with Engine(executor="simulated") as engine:
        first = [output.tokens for output in engine.generate(["the sea"] * 3, max_tokens=6, params=sampled)]
        again = [output.tokens for output in engine.generate(["the sea"] * 3, max_tokens=6, params=sampled)]
    assert first == again
    assert len({tuple(tokens) for tokens in first}) == 3


def test_static_batches_answer_everybody():
    with Engine(executor="simulated", batching="static", max_num_seqs=4) as engine:
        outputs = engine.generate(["word " * (1 + i % 5) for i in range(10)], max_tokens=5, params=ENDLESS)
        assert [output.usage.output_tokens for output in outputs] == [5] * 10
        assert engine.snapshot().requests == 0


def test_limits_change_while_serving_and_nothing_else_does():
    with Engine(executor="simulated", max_num_seqs=4) as engine:
        engine.reconfigure(max_num_seqs=2, slo_itl=0.5)
        outputs = engine.generate(["word"] * 6, max_tokens=3, params=ENDLESS)
        assert len(outputs) == 6
        assert engine.snapshot().max_num_seqs == 2
        assert engine.default_slo.itl_ns == 500_000_000
        with pytest.raises(ConfigError, match="cannot be changed while serving"):
            engine.reconfigure(dtype="f32")
        with pytest.raises(ConfigError, match="must be"):
            engine.reconfigure(max_num_seqs=0)
        assert engine.snapshot().max_num_seqs == 2


def test_both_logs_are_written_with_a_header_and_every_step(tmp_path):
    steps, decisions = tmp_path / "steps.jsonl", tmp_path / "decisions.jsonl"
    with Engine(executor="simulated", step_log=str(steps), decision_log=str(decisions)) as engine:
        engine.generate(["the sea", "the land"], max_tokens=4, params=ENDLESS)
        total = engine.snapshot().steps_total
    lines = [json.loads(line) for line in steps.read_text().splitlines()]
    assert (lines[0]["kind"], lines[0]["log"], lines[0]["version"]) == ("header", "step", 1)
    assert sum(line["kind"] == "step" for line in lines) == total
    requests = [line for line in lines if line["kind"] == "request"]
    assert [line["end"] for line in requests] == ["length", "length"]
    for line in requests:
        assert line["queue_s"] + line["prefill_s"] + line["decode_s"] == pytest.approx(line["e2e_s"])
    kinds = [
        line.get("decision") or line.get("stimulus") for line in map(json.loads, decisions.read_text().splitlines())
    ]
    for kind, times in {"submit": 4, "start": 2, "settle": 2, "end": 2, "commit": total}.items():
        assert kinds.count(kind) == times, kind


def test_a_log_that_cannot_be_written_is_an_error_at_start(tmp_path):
    with (
        pytest.raises(ConfigError, match="step log"),
        Engine(executor="simulated", step_log=str(tmp_path / "no" / "x")),
    ):
        pass


def test_what_people_write_is_understood():
    with Engine(executor="simulated") as engine:
        assert len(engine.generate("one prompt", max_tokens=2)) == 1
        assert len(engine.generate([300, 301, 302], max_tokens=2)) == 1
        loose: dict[str, Any] = {"stop": "end", "logit_bias": {5: 1.0}}
        assert (SamplingParams(**loose).stop, SamplingParams(**loose).logit_bias) == (("end",), ((5, 1.0),))


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1},
        {"top_p": 5},
        {"top_p": float("nan")},
        {"repetition_penalty": 1e-45},
        {"seed": 1.5},
        {"top_k": True},
        {"stop": ("",)},
        {"logit_bias": {5: float("inf")}},
    ],
)
def test_sampling_that_cannot_be_is_refused_by_name(bad):
    with pytest.raises(InvalidRequest, match=next(iter(bad))):
        SamplingParams(**bad)


def test_one_bad_prompt_costs_only_the_call_it_is_in():
    prompts: list[Any] = ["a good one", [99_999_999]]
    with Engine(executor="simulated") as engine:
        with pytest.raises(InvalidRequest, match=r"prompt\[0\] is 99999999"):
            engine.generate(prompts, max_tokens=4)
        prompts[1] = [1.5]
        with pytest.raises(InvalidRequest, match=r"prompt\[0\] is 1.5"):
            engine.generate(prompts, max_tokens=4)
        with pytest.raises(InvalidRequest, match="max_tokens is 0"):
            engine.generate(["x"], max_tokens=0)
        assert engine.ready
        assert len(engine.generate(["a good one"] * 1100, max_tokens=1, params=ENDLESS)) == 1100


def test_an_engine_is_started_once():
    engine = Engine(executor="simulated")
    with engine:
        with pytest.raises(RuntimeError, match="started before"), engine:
            pass
        assert len(engine.generate("still there", max_tokens=1)) == 1


def test_no_setting_is_taken_for_an_argument():
    with Engine(executor="simulated") as engine, pytest.raises(ConfigError, match="'self' cannot be changed"):
        engine.reconfigure(**dict([("self", 1)]))  # noqa: C406 - as a JSON body gives it
