"""`headway batch` as a person uses it: what it prints, the status it ends with, and that no traceback is ever seen."""

from __future__ import annotations

import asyncio
import html.parser
import json
import signal
import sys
from collections import Counter

import pytest

from headway import cli
from headway.child_process import environment
from headway.cli.batch.page import report
from headway.cli.batch.progress import told
from headway.core.batch.dispatch import Fault
from headway.offline.progress import Pace, Progress
from headway.offline.status import status_of
from tests.offline.fakes import FakeWorker, begin, failed, ids, openai_line, read_lines, write_lines
from tests.offline.test_remote import good, server
from tests.wire.scripted import whole


async def headway(*arguments):
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headway", "batch", *map(str, arguments)),
        env={**environment(), "COLUMNS": "200", "OPENAI_API_KEY": "sk-secret"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ran(*arguments):
    process = await headway(*arguments)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert b"Traceback" not in err, err.decode()
    return process.returncode, out.decode(), err.decode()


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.jsonl"
    write_lines(path, [openai_line(number) for number in range(40)])
    return path


async def test_run_retry_and_the_report(source, tmp_path):
    output, page = tmp_path / "out.jsonl", tmp_path / "report.html"
    failing = True

    def answer(body, _number):
        return whole(b'{"error":{"message":"<b>no</b>"}}', status=400) if failing and "7" in body["prompt"] else good()

    async with server(answer) as (found, _):
        status, out, _ = await ran("run", source, "-o", output, "--url", found.url, "--price-output", "4", "--quiet")
        assert status == 3
        assert "done, with failures" in out
        assert "4: 4 bad_item" in out
        assert "the first that failed, line " in out
        assert "sk-secret" not in (tmp_path / "out.job.json").read_text()
        failing = False
        status, out, _ = await ran("retry", output, "--class", "bad_item", "--html", page, "--quiet")
    assert status == 0
    assert "cost" in out
    assert Counter(ids(output)) == Counter(f"item-{number}" for number in range(40))
    assert len(page.read_text()) > 1_000_000, "plotly's script is in it"
    summary = json.loads((tmp_path / "out.summary.json").read_bytes())
    assert (summary["done"], summary["failed"], summary["output_tokens"]) == (40, 0, 120)
    assert summary["cost"] == pytest.approx(120 * 4e-6)


@pytest.mark.slow
async def test_an_interrupt_keeps_what_is_done_and_says_how_to_go_on(source, tmp_path):
    output = tmp_path / "out.jsonl"

    async def slow(_body, _number):
        await asyncio.sleep(0.3)
        return good()

    async with server(slow) as (found, _):
        for number in (signal.SIGINT, signal.SIGTERM):
            arguments = ["run", source] if number is signal.SIGINT else ["resume", output]
            own = ["-o", output, "--url", found.url, "--concurrency", 2] if number is signal.SIGINT else []
            before = len(read_lines(output))
            process = await headway(*arguments, *own, "--quiet")
            while len(read_lines(output)) < before + 4:
                await asyncio.sleep(0.01)
            process.send_signal(number)
            _, err = await asyncio.wait_for(process.communicate(), 30)
            assert process.returncode == 130
            assert f"interrupted. Go on with: headway batch resume {output}" in err.decode()
            assert status_of(output).word == "stopped"
        status, out, _ = await ran("status", output, "--json")
        assert status == 0
        told = json.loads(out)
        assert told["state"] == "stopped"
        assert 8 <= told["done"] < 40


async def test_a_batch_that_wrote_nothing_leaves_nothing(source, tmp_path):
    async with server(lambda *_: whole(b"{}", status=401)) as (found, _):
        status, out, err = await ran("run", source, "-o", tmp_path / "out.jsonl", "--url", found.url, "--quiet")
    assert status == 1
    assert "The server said 401" in err
    assert "Nothing was begun." in err
    assert "wrote" not in out
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out.job.lock"}


def complaint(capsys, *arguments):
    status = cli.status(["batch", *map(str, arguments)])
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-output", "0"], "at least 1"),
        (["--models", "override", "--url", "http://x"], "--models override needs --model"),
        (["--url", "http://x", "--max-num-seqs", "4"], "--max-num-seqs is of a model that runs here"),
        (["--url", "http://x", "--batching", "static"], "with --url the server decides"),
        (["--concurrency", "4"], "need --url"),
        (["--url", "ftp://x"], "begins with 'ftp'"),
        (["--url", "http://x", "--url", "http://x/v1"], "names a server twice"),
        (["--batch", "static"], "Unknown option"),
    ],
)
def test_what_does_not_go_together_is_said(source, tmp_path, capsys, arguments, words):
    status, err = complaint(capsys, "run", source, "-o", tmp_path / "out.jsonl", *arguments)
    assert status == 2, err
    assert words in err
    assert not (tmp_path / "out.job.json").exists()


def test_missing_files_are_said(tmp_path, capsys):
    status, err = complaint(capsys, "run", tmp_path / "no.jsonl", "-o", tmp_path / "out.jsonl", "--url", "http://x")
    assert (status, "cannot be read: No such file" in err) == (1, True), err
    status, err = complaint(capsys, "resume", tmp_path / "out.jsonl")
    assert (status, "There is no batch in" in err) == (1, True), err


async def test_the_report_escapes_what_comes_from_outside(tmp_path):
    source = tmp_path / "in<script>alert(1)<.jsonl"
    write_lines(source, [openai_line(number) for number in range(30)])
    output = tmp_path / "out.jsonl"
    await begin(source, output, FakeWorker(lambda item, _: failed(Fault.BAD) if item.line == 3 else None))
    found = status_of(output)
    found.manifest.reason = "</style><img src=x onerror=alert(1)>"
    found.manifest.state = "stopped"
    page = report(found.summary, found.tally, found.manifest)
    assert "<script>alert" not in page
    assert "<img" not in page.partition("</style>")[2].partition("<script>")[0]
    assert "default-src 'none'" in page

    class Reader(html.parser.HTMLParser):
        def __init__(self):
            super().__init__()
            self.open: list[str] = []
            self.tags: Counter[str] = Counter()

        def handle_starttag(self, tag, attrs):
            self.tags[tag] += 1
            places = (value for name, value in attrs if name in ("src", "href"))
            assert all(place.startswith("#") for place in places), "it needs no network"
            if tag != "meta":
                self.open.append(tag)

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert reader.tags["figure"] == 4
    figures = json.loads(page.partition('id="figure-data">')[2].partition("</script>")[0])
    assert set(figures) == {"throughput", "waits", "by-length", "lengths"}
    assert sum(figures["throughput"]["data"][0]["y"]) > 0


def test_progress_is_told_by_tokens():
    pace = Pace()
    for second in range(5):
        assert pace.rate(float(second)) == pytest.approx(0.0 if second == 0 else 100.0)
        pace.ended(50, 100)
    assert pace.scale == 2.0
    line = told(
        Progress(done=1200, failed=3, in_flight=64, limit=80, ratio=0.4, tokens_per_s=812.3, eta_s=4000, reading=False)
    )
    assert line == "1,200 done · 3 failed · 64 running · 812 tokens/s · 1 h 06 min left"
