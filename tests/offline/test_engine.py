"""The engine of this process as a worker, with the simulated executor: as the command line puts it together."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter

import pytest

from headway.cli.batch.flags import asked
from headway.cli.batch.workers import workers_of
from headway.offline.batch import Batch
from headway.offline.files import Files
from headway.offline.local import EngineWorker
from tests.offline.fakes import ids, openai_line, read_lines, write_lines

SIMULATED = {"executor": "simulated", "kv_cache_gib": 0.2}


def chat_line(number, text, **body):
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "seed": number, **body}
    return {"custom_id": f"item-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


class Running:
    """A batch in the making, and its engine's worker."""

    def __init__(self, folder, lines, **settings):
        self.output = folder / "out.jsonl"
        self.source = folder / "in.jsonl"
        write_lines(self.source, lines)
        wanted = asked({**SIMULATED, **settings})
        [worker] = workers_of(wanted)
        assert isinstance(worker, EngineWorker)
        self.worker = worker
        self.batch = Batch(Files(self.output), wanted.wanted, lambda: [worker])

    async def begin(self):
        return await asyncio.wait_for(self.batch.begin(self.source), 60)

    async def after(self, answers):
        while len(read_lines(self.output)) < answers:
            await asyncio.sleep(0.01)

    def kill_executor(self):
        pid = self.worker.engine.executor_pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


async def test_chats_and_completions_are_answered_as_the_server_would(tmp_path):
    lines = [
        chat_line(0, "hello world"),
        openai_line(1, n=2, logprobs=1, temperature=0),
        openai_line(2, prompt=[300, 301, 302], stop="."),
        openai_line(3, temperature=9),
        chat_line(4, "x " * 40_000),
    ]
    running = Running(tmp_path, lines, max_model_len=2000)
    ended = await running.begin()
    answers = {line["custom_id"]: line for line in read_lines(running.output)}
    assert answers.keys() == {"item-0", "item-1", "item-2"}
    chat = answers["item-0"]["response"]["body"]
    assert chat["object"] == "chat.completion"
    assert chat["choices"][0]["message"]["role"] == "assistant"
    two = answers["item-1"]["response"]["body"]
    assert [choice["index"] for choice in two["choices"]] == [0, 1]
    assert two["choices"][0]["logprobs"]["tokens"]
    for answer in answers.values():
        usage, record = answer["response"]["body"]["usage"], answer["headway"]
        assert (record["input_tokens"], record["output_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
        assert record["queue_s"] + record["prefill_s"] + record["decode_s"] <= record["wall_s"]
    errors = {line["custom_id"]: line["error"] for line in read_lines(Files(running.output).errors)}
    assert "`temperature`" in errors["item-3"]["message"]
    assert errors["item-4"]["code"] == "context_length_exceeded"
    assert ended.summary.errors == {"bad_item": 2}


def mixed(count):
    return [
        openai_line(number, prompt=[300 + number % 7] * (4 + number * 37 % 90), max_tokens=(2, 4, 8)[number % 3],
                    ignore_eos=True, seed=number)
        for number in range(count)
    ]  # fmt: skip


@pytest.mark.slow
async def test_static_batches_tell_their_padding_and_buckets_lessen_it(tmp_path):
    paddings = {}
    for order in ("auto", "input"):
        folder = tmp_path / order
        folder.mkdir()
        running = Running(folder, mixed(60), batching="static", max_num_seqs=6, order=order, prefix_cache_scope="off")
        ended = await running.begin()
        assert ended.summary.done == 60
        paddings[order] = 1 - ended.summary.padding_efficiency_ratio
    assert paddings["auto"] < 0.2
    assert paddings["input"] > 0.3


async def test_an_executor_that_dies_costs_no_item(tmp_path):
    running = Running(tmp_path, mixed(60), max_num_seqs=8)
    work = asyncio.create_task(running.begin())
    await running.after(10)
    running.kill_executor()
    ended = await work
    assert Counter(ids(running.output)) == Counter(f"item-{number}" for number in range(60))
    assert ended.summary.failed == 0
    assert 1 <= ended.summary.retried <= 12


async def test_an_engine_that_is_down_for_good_is_built_again(tmp_path):
    running = Running(tmp_path, mixed(60), max_num_seqs=8)
    work = asyncio.create_task(running.begin())
    await running.after(10)
    first = running.worker.engine
    while not first.dead:  # three losses within a minute
        running.kill_executor()
        await asyncio.sleep(0.02)
    ended = await work
    assert running.worker.engine is not first
    assert Counter(ids(running.output)) == Counter(f"item-{number}" for number in range(60))
    assert ended.summary.failed == 0


async def test_a_straggler_keeps_what_it_has(tmp_path):
    lines = [openai_line(number, ignore_eos=True, max_tokens=2) for number in range(40)]
    lines.append(openai_line(40, ignore_eos=True, max_tokens=3000))
    running = Running(tmp_path, lines, straggler_factor=2.0, max_num_seqs=8)
    ended = await running.begin()
    assert ended.summary.done == 41
    [cut] = [line for line in read_lines(running.output) if line["headway"].get("cut")]
    assert cut["custom_id"] == "item-40"
    assert 0 < cut["headway"]["output_tokens"] < 3000
    assert cut["response"]["body"]["choices"][0]["finish_reason"] == "length"
    assert ended.summary.cut == 1


async def test_the_order_does_not_change_the_answers(tmp_path):
    texts = []
    for order, slots in (("auto", 8), ("input", 2)):
        folder = tmp_path / order
        folder.mkdir()
        running = Running(folder, mixed(30), order=order, max_num_seqs=slots)
        await running.begin()
        answers = {line["custom_id"]: line["response"]["body"]["choices"] for line in read_lines(running.output)}
        texts.append(answers)
    assert texts[0] == texts[1]
    assert len(texts[0]) == 30
