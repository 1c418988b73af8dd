"""A batch with a worker that does what the test says: every item once, and every way to end and go on."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from headway.core.batch.dispatch import Fault
from headway.core.errors import ConfigError
from headway.offline.errors import BatchError, InputChanged, InputUnreadable, NothingWorks, OutputBusy, OutputFailed
from headway.offline.files import Files
from headway.offline.inputs import Format
from headway.offline.intake import Fitting
from headway.offline.job import JobLimits
from headway.offline.status import status_of
from tests.offline.fakes import (
    QUICK,
    FakeWorker,
    batch,
    begin,
    failed,
    ids,
    openai_line,
    read_lines,
    wanted,
    write_lines,
)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.jsonl"
    write_lines(path, [openai_line(number) for number in range(100)])
    return path


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out.jsonl"


EVERY = {f"item-{number}" for number in range(100)}


async def test_every_item_is_answered_once(source, output):
    worker = FakeWorker()
    ended = await begin(source, output, worker)
    assert Counter(ids(output)) == Counter(EVERY)
    assert not ended.reason
    assert (ended.summary.items, ended.summary.done, ended.summary.failed) == (100, 100, 0)
    assert (ended.summary.input_tokens, ended.summary.output_tokens) == (1000, 500)
    assert worker.closed
    line = read_lines(output)[0]
    assert line["response"]["status_code"] == 200
    assert line["response"]["body"]["choices"][0]["text"] == f"answer to {line['custom_id']}"
    assert line["error"] is None
    assert status_of(output).word == "done"


async def test_wrong_lines_are_set_aside_and_the_rest_goes_on(tmp_path, output):
    source = tmp_path / "in.jsonl"
    lines = [json.dumps(openai_line(number)) for number in range(20)]
    lines[4] = '{"broken'
    lines[9] = json.dumps(openai_line(3))
    lines[12] = json.dumps({**openai_line(12), "url": "/v1/embeddings"})
    source.write_text("\n".join(lines))
    ended = await begin(source, output, FakeWorker())
    assert ended.summary.done == 17
    errors = {line["headway"]["line"]: line for line in read_lines(Files(output).errors)}
    assert {line: one["error"]["code"] for line, one in errors.items()} == {
        5: "invalid_json",
        10: "duplicate_id",
        13: "invalid_url",
    }
    assert {one["headway"]["error_class"] for one in errors.values()} == {"bad_item"}
    assert errors[13]["custom_id"] == "item-12"
    told = [line["custom_id"] for line in (*read_lines(output), *errors.values()) if line["custom_id"]]
    assert max(Counter(told).values()) == 1, "an id is told once over both files"


async def test_strict_begins_nothing(tmp_path, output):
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(openai_line(1)) + "\n{\n" + json.dumps(openai_line(1)) + "\n")
    worker = FakeWorker()
    with pytest.raises(InputUnreadable, match=r"Line 2: it is not a JSON object.*1 more lines are wrong"):
        await begin(source, output, worker, wanted(strict=True))
    assert not worker.started
    assert {path.name for path in tmp_path.iterdir()} <= {"in.jsonl", "out.job.lock"}


@pytest.mark.parametrize("data", ["", "\n\n  \n", "\ufeff"])
async def test_an_input_without_items_is_an_error(tmp_path, output, data):
    source = tmp_path / "in.jsonl"
    source.write_text(data)
    if data:
        ended = await begin(source, output, FakeWorker())
        assert "holds no items" in ended.reason
    else:
        with pytest.raises(InputUnreadable, match="is empty"):
            await begin(source, output, FakeWorker())
    assert not Files(output).manifest.exists()


# -- models, and what is sent ------------------------------------------------------------------------------------------


async def test_a_line_of_another_model_is_bad_unless_told_otherwise(tmp_path):
    source = tmp_path / "in.jsonl"
    models = ["a", "a", "b", None]
    write_lines(source, [openai_line(n, **({"model": m} if m else {})) for n, m in enumerate(models)])
    ended = await begin(source, tmp_path / "same.jsonl", FakeWorker())
    assert ended.summary.errors == {"bad_item": 1}
    [error] = read_lines(Files(tmp_path / "same.jsonl").errors)
    assert error["error"]["code"] == "mismatched_model"
    assert "Line 3" in error["error"]["message"]
    ended = await begin(source, tmp_path / "any.jsonl", FakeWorker(), wanted(fitting=Fitting(models="any")))
    assert ended.summary.done == 4
    worker = FakeWorker()
    await begin(source, tmp_path / "o.jsonl", worker, wanted(fitting=Fitting(models="override", model="mine")))
    assert {json.loads(body)["model"] for body in worker.bodies.values()} == {"mine"}


async def test_a_batch_for_another_model_than_ours_does_not_begin(tmp_path, output):
    source = tmp_path / "in.jsonl"
    write_lines(source, [openai_line(1, model="gpt-4o")])
    with pytest.raises(ConfigError, match=r"Line 1 asks for the model 'gpt-4o', and this is ours\. --models override"):
        await begin(source, output, FakeWorker(models=("ours",)))
    assert not Files(output).manifest.exists()


async def test_a_later_line_for_another_model_costs_itself_alone(tmp_path, output):
    source = tmp_path / "in.jsonl"
    models = [None, "gpt-4o", "ours", None, "gpt-4o"]
    write_lines(source, [openai_line(n, **({"model": m} if m else {})) for n, m in enumerate(models)])
    ended = await begin(source, output, FakeWorker(models=("ours",)))
    assert not ended.reason
    assert set(ids(output)) == {"item-0", "item-2", "item-3"}
    messages = [line["error"]["message"] for line in read_lines(Files(output).errors)]
    assert "its model is 'gpt-4o', and the batch's is ours" in messages[0]
    assert "Line 5: its model is 'gpt-4o', and the batch's, by its first line, is 'ours'" in messages[1]
    write_lines(source, [openai_line(n, **({"model": m} if m else {})) for n, m in enumerate([*models, "ours"])])
    ended = await batch(output, FakeWorker(models=("ours",))).resume(allow_changed_input=True)
    assert (ended.summary.done, ended.summary.failed) == (4, 2)


async def test_outputs_are_capped_and_streams_are_not_asked_for(tmp_path, output):
    source = tmp_path / "in.jsonl"
    chat = {"messages": [{"role": "user", "content": "x"}]}
    lines = [
        openai_line(0, max_tokens=500, stream=True, stream_options={"include_usage": True}),
        openai_line(1, max_tokens=3),
        {"custom_id": "c", "url": "/v1/chat/completions", "body": {**chat, "max_completion_tokens": 99}},
        {"custom_id": "d", "url": "/v1/chat/completions", "body": chat},
    ]
    write_lines(source, lines)
    worker = FakeWorker()
    await begin(source, output, worker, wanted(fitting=Fitting(max_output=50)))
    sent = {name: json.loads(body) for name, body in worker.bodies.items()}
    assert sent["item-0"] == {"prompt": "prompt 0", "max_tokens": 50}
    assert sent["item-1"]["max_tokens"] == 3
    assert sent["c"] == {**chat, "max_completion_tokens": 50}
    assert sent["d"] == {**chat, "max_tokens": 50}


# -- failures ----------------------------------------------------------------------------------------------------------


async def test_failures_are_told_by_class_with_their_tries(source, output):
    faults = {
        "item-1": Fault.BAD,
        "item-2": Fault.TIMEOUT,
        "item-3": Fault.SERVER,
        "item-4": Fault.LOST,
        "item-5": Fault.OUT_OF_MEMORY,
        "item-6": Fault.REFUSED,
    }

    def outcome(item, _tries):
        return failed(faults[item.custom_id]) if item.custom_id in faults else None

    limits = JobLimits(retry=QUICK.__class__(refusals=3, first_rest_ns=1000, longest_rest_ns=1000))
    ended = await begin(source, output, FakeWorker(outcome), wanted().__class__(limits=limits))
    errors = {line["custom_id"]: line["headway"] for line in read_lines(Files(output).errors)}
    classes = {name: record["error_class"] for name, record in errors.items()}
    assert classes == {
        "item-1": "bad_item",
        "item-2": "timeout",
        "item-3": "server",
        "item-4": "server",
        "item-5": "oom",
        "item-6": "limit",
    }
    assert errors["item-1"]["tries"] == 1
    assert errors["item-2"]["tries"] == errors["item-3"]["tries"] == limits.retry.tries
    assert set(ids(output)) == EVERY - faults.keys()
    assert ended.summary.errors == {"bad_item": 1, "limit": 1, "oom": 1, "server": 2, "timeout": 1}


async def test_what_passes_is_tried_again(source, output):
    worker = FakeWorker(lambda item, tries: failed(Fault.SERVER) if tries < 3 and item.line % 10 == 0 else None)
    ended = await begin(source, output, worker)
    assert ended.summary.done == 100
    assert ended.summary.retried == 10
    assert {line["headway"]["tries"] for line in read_lines(output)} == {1, 3}


async def test_a_defect_in_a_worker_costs_its_item_alone(source, output):
    def outcome(item, _tries):
        if item.custom_id == "item-7":
            raise ZeroDivisionError("a defect")

    ended = await begin(source, output, FakeWorker(outcome))
    [error] = read_lines(Files(output).errors)
    assert ended.summary.done == 99
    assert "ZeroDivisionError: a defect. Please report it" in error["error"]["message"]


async def test_retry_takes_the_failed_ones_alone(source, output):
    await begin(source, output, FakeWorker(lambda item, _: failed(Fault.TIMEOUT) if item.line <= 5 else None))
    assert len(read_lines(Files(output).errors)) == 5
    worker = FakeWorker()
    ended = await batch(output, worker).resume(retry=("timeout",))
    assert set(worker.tries) == {f"item-{number}" for number in range(5)}
    assert ended.summary.done == 100
    assert ended.summary.failed == 0
    assert Counter(ids(output)) == Counter(EVERY)
    assert read_lines(Files(output).errors) == []


async def test_resume_leaves_failures_alone(source, output):
    await begin(source, output, FakeWorker(lambda item, _: failed(Fault.BAD) if item.line == 1 else None))
    worker = FakeWorker()
    ended = await batch(output, worker).resume()
    assert not worker.started, "nothing is missing: no model needs to be loaded"
    assert (ended.summary.done, ended.summary.failed) == (99, 1)


async def test_a_worker_that_is_given_up_stops_the_batch_which_can_go_on(source, output):
    worker = FakeWorker(lambda item, _: failed(Fault.UNREACHABLE) if item.line > 40 else None)
    ended = await begin(source, output, worker)
    assert "No worker takes anything any more. fake: it has not been there for" in ended.reason
    assert ended.summary.done >= 40
    assert ended.summary.failed == 0
    assert status_of(output).word == "stopped"
    assert NothingWorks("x").status == 503
    again = FakeWorker()
    ended = await batch(output, again).resume()
    assert ended.summary.done == 100
    assert not set(again.tries) & {f"item-{number}" for number in range(40)}
    assert Counter(ids(output)) == Counter(EVERY)


async def test_the_last_ones_are_cut_off_when_they_run_on(source, output):
    class Slow(FakeWorker):
        async def run(self, item, cut):
            if item.custom_id == "item-50":
                await cut.wait()
                return failed(Fault.TIMEOUT, final=True)
            return await super().run(item, cut)

    limits = JobLimits(retry=QUICK, straggler_factor=3.0)
    worker = Slow(delay_s=0.01)
    ended = await asyncio.wait_for(begin(source, output, worker, wanted().__class__(limits=limits)), 20)
    assert ended.summary.errors == {"timeout": 1}


# -- going on ----------------------------------------------------------------------------------------------------------


async def test_what_was_interrupted_goes_on_where_it_was(source, output):
    work = asyncio.create_task(begin(source, output, FakeWorker(delay_s=0.02)))
    while len(read_lines(output)) < 20:
        await asyncio.sleep(0.005)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    done = set(ids(output))
    assert 20 <= len(done) < 100
    assert status_of(output).manifest.reason == "interrupted"
    worker = FakeWorker()
    await batch(output, worker).resume()
    assert set(worker.tries) == EVERY - done
    assert Counter(ids(output)) == Counter(EVERY)


async def test_a_torn_line_is_done_again(source, output):
    await begin(source, output, FakeWorker())
    data = output.read_bytes()
    output.write_bytes(data[:-17])
    worker = FakeWorker()
    ended = await batch(output, worker).resume()
    assert worker.tries.total() == 1
    assert Counter(ids(output)) == Counter(EVERY)
    assert ended.summary.done == 100


async def test_a_changed_input_is_refused_unless_told(source, output):
    await begin(source, output, FakeWorker())
    lines = [openai_line(number) for number in range(105)]
    lines[3]["body"]["prompt"] = "another prompt"
    write_lines(source, lines)
    with pytest.raises(InputChanged, match=r"bytes instead of .* --allow-changed-input"):
        await batch(output, FakeWorker()).resume()
    worker = FakeWorker()
    await batch(output, worker).resume(allow_changed_input=True)
    assert set(worker.tries) == {"item-3", *(f"item-{number}" for number in range(100, 105))}
    assert Counter(ids(output)) == Counter(f"item-{number}" for number in range(105))


async def test_results_of_items_that_left_the_input_are_kept(source, output):
    await begin(source, output, FakeWorker())
    write_lines(source, [openai_line(number) for number in range(90)] + [openai_line(200)])
    ended = await batch(output, FakeWorker()).resume(allow_changed_input=True)
    assert ended.surplus == 10
    assert len(ids(output)) == 101


async def test_what_left_the_input_is_not_taken_for_what_is_missing(source, output):
    await begin(source, output, FakeWorker())
    write_lines(source, [openai_line(number) for number in range(200, 205)])
    await batch(output, FakeWorker()).resume(allow_changed_input=True)
    whole = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(b"".join(whole[:-3]))
    worker = FakeWorker()
    ended = await batch(output, worker).resume()
    assert worker.tries.total() == 3, "though there are more answers than lines"
    assert (ended.summary.done, ended.summary.missing) == (105, 0)


async def test_outputs_that_differ_in_their_ending_are_batches_of_their_own(source, tmp_path):
    await begin(source, tmp_path / "out.jsonl", FakeWorker())
    await begin(source, tmp_path / "out.txt", FakeWorker())
    for name in ("out.jsonl", "out.txt"):
        assert Counter(ids(tmp_path / name)) == Counter(EVERY)


async def test_what_a_kill_left_half_written_is_swept(source, output):
    await begin(source, output, FakeWorker())
    left = [output.with_name(f"{name}.0123abcd.new") for name in ("out.jsonl", "out.job.json")]
    others = output.with_name("out.jsonl.mine.new")
    for path in (*left, others):
        path.write_text("half")
    await batch(output, FakeWorker()).resume()
    assert not any(path.exists() for path in left)
    assert others.read_text() == "half"


async def test_a_body_that_changed_unseen_is_found_by_its_hash(source, output):
    """The fingerprint looks at samples of a large input; what it misses, each item's hash finds."""
    await begin(source, output, FakeWorker())
    lines = output.read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["custom_id"] != "item-99"]
    broken = kept[0].replace(json.loads(kept[0])["headway"]["hash"], "00000000000000aa")
    output.write_text("\n".join([broken, *kept[1:]]) + "\n")
    ended = await batch(output, FakeWorker()).resume()
    assert "another body than when it was finished" in ended.reason


async def test_two_runs_do_not_share_an_output(source, output):
    work = asyncio.create_task(begin(source, output, FakeWorker(delay_s=0.05)))
    while not read_lines(output):
        await asyncio.sleep(0.005)
    with pytest.raises(OutputBusy, match="Another run is writing"):
        await batch(output, FakeWorker()).resume()
    assert status_of(output).word == "running"
    await work
    assert Counter(ids(output)) == Counter(EVERY)


async def test_run_does_not_begin_over_something_else(source, output):
    output.write_text("something\n")
    with pytest.raises(ConfigError, match="exists and is not this batch's"):
        await begin(source, output, FakeWorker())
    assert output.read_text() == "something\n"
    output.unlink()
    await begin(source, output, FakeWorker())
    with pytest.raises(ConfigError, match=r"headway batch resume .* goes on with it"):
        await begin(source, output, FakeWorker())


async def test_no_batch_and_no_folder(source, tmp_path):
    with pytest.raises(BatchError, match="There is no batch in"):
        await batch(tmp_path / "x.jsonl", FakeWorker()).resume()
    with pytest.raises(OutputFailed, match="cannot be written"):
        await begin(source, tmp_path / "nowhere" / "out.jsonl", FakeWorker())


async def test_a_template_for_csv_reaches_the_worker(tmp_path, output):
    source = tmp_path / "in.csv"
    source.write_text("a,b\nx,1\ny,2\n")
    worker = FakeWorker()
    await begin(source, output, worker, wanted(format=Format(template="{a}={b}")))
    assert {json.loads(body)["prompt"] for body in worker.bodies.values()} == {"x=1", "y=2"}
    assert set(ids(output)) == {"row-2", "row-3"}


async def test_prices_make_a_cost(source, output):
    from headway.offline.summary import Prices

    ended = await begin(source, output, FakeWorker(), wanted(prices=Prices(input=2.0, output=10.0)))
    assert ended.summary.cost == pytest.approx(1000 * 2e-6 + 500 * 10e-6)
    assert (await batch(output, FakeWorker()).resume()).summary.cost is None
