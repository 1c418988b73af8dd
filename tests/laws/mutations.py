"""Breaks one rule of the core at a time, in a copy, and shows which law notices.

`python tests/laws/mutations.py [NAME ...]`

A law that nothing can break says nothing. Exits with 1 when a broken rule goes unnoticed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    edits: tuple[tuple[str, str], ...]  # each found exactly once, and replaced
    after: str = ""  # only what follows this is searched


def one(name: str, file: str, was: str, becomes: str, after: str = "") -> Mutation:
    return Mutation(name, file, ((was, becomes),), after)


MUTATIONS = [
    one("free a block in flight", "scheduler.py", "if seq.in_flight:", "if False:", "def cancel"),
    one("skip alignment", "scheduler.py", "end -= end % self.limits.chunk_multiple_tokens", "pass"),
    one(
        "prefill before decode",
        "scheduler.py",
        "            self._seat_priorities(draft)\n",
        "            self._feed_prompts(draft)\n",
    ),
    one("forget to settle", "front.py", "self.admission.settle(reservation)", "pass", "def settle("),
    one(
        "ignore what is set aside",
        "residents.py",
        "self.pool.free_blocks - self.set_aside_blocks",
        "self.pool.free_blocks",
    ),
    one(
        "publish a block before it is full",
        "kv.py",
        "(table.published + 1) * size <= computed",
        "table.published * size < computed",
    ),
    Mutation(
        "share across scopes",
        "kv.py",
        (('_Chain(("root", table.scope))', '_Chain(("root", 0))'), ('_Chain(("root", scope))', '_Chain(("root", 0))')),
    ),
    one("no ageing", "front.py", "if self.limits.age_bound_ns:", "if False:"),
    one("unlimited overtaking", "lanes.py", "place.overtaken >= self.max_overtakes", "False"),
    one(
        "the victim may be the oldest",
        "residents.py",
        "for other in self.running[1:] if",
        "for other in self.running if",
    ),
    one("no pace", "scheduler.py", "if self.policy.paced and draft.itl_ns:", "if False:"),
    one("no yield", "scheduler.py", "if self._steps_without_prefill < YIELD_EVERY - 1:", "if True:"),
    one("yield too often", "scheduler.py", "if self._steps_without_prefill < YIELD_EVERY - 1:", "if False:"),
    one("start who slows the others", "scheduler.py", "or self._would_slow(request)", ""),
    one("preempt without end", "scheduler.py", "or seq.preemptions >= self.policy.max_preemptions", ""),
    one(
        "new ones before the preempted", "scheduler.py", "if self._owed_to_preempted(request, draft.now):", "if False:"
    ),
    one(
        "take slots from equals",
        "scheduler.py",
        "if seq.request.priority > request.priority",
        "if seq.request.priority >= request.priority",
    ),
    one("forget the caps of lanes", "lanes.py", "self.running < self.limits.slots and", ""),
    one(
        "start into promised blocks",
        "scheduler.py",
        "needed <= self.residents.free_blocks - draft.promised_blocks",
        "needed <= self.residents.free_blocks",
    ),
    one("a leap keeps what it took ahead", "leap.py", "while self._taken:", "while False:"),
    one("leap past a rejection", "scheduler.py", "or self._due:", "or False:"),
    one(
        "vllm starts after preempting",
        "scheduler.py",
        "if not draft.preempted or self.policy.start_after_preemption:",
        "if True:",
    ),
    one(
        "count a resumed prompt as cached",
        "residents.py",
        "seq = self.preempted.pop(0)\n",
        "seq = self.preempted.pop(0)\n        seq.cached_tokens += 1\n",
    ),
    one("evict the youngest first", "kv.py", "popitem(last=False)", "popitem()"),
    one("the last token comes from the cache too", "kv.py", "(len(tokens) - 1) // size", "len(tokens) // size"),
    one(
        "lost promises stay in front",
        "lanes.py",
        "group == PROMISED and latest_start_ns < now",
        "False",
    ),
]


def broken_copy(mutation: Mutation, folder: Path) -> Path:
    source = folder / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    path = source / "headway" / "core" / mutation.file
    text = path.read_text()
    head, mark, rest = text.partition(mutation.after) if mutation.after else ("", "", text)
    for was, becomes in mutation.edits:
        if was not in rest or (not mutation.after and rest.count(was) != 1):
            raise SystemExit(f"{mutation.name}: {was!r} is not there once in {mutation.file}; the core has changed")
        rest = rest.replace(was, becomes, 1)
    path.write_text(head + mark + rest)
    return source


def first_failure(source: Path) -> str:
    """The first test that fails over this source; empty when none does."""
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=unshrunk"]
    done = subprocess.run(
        [*command, "tests/laws", "tests/core"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    failed = re.search(r"^FAILED tests/(?:laws|core)/(\S+)", done.stdout, re.MULTILINE)
    if done.returncode and not failed:  # it does not even import
        raise SystemExit(done.stdout + done.stderr)
    where = re.findall(r"^(\S+\.py:\d+): ", done.stdout, re.MULTILINE)
    return f"{failed[1]}  at {where[-1] if where else '?'}" if failed else ""


def main(names: list[str]) -> int:
    unnoticed = 0
    for mutation in MUTATIONS:
        if names and mutation.name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            failure = first_failure(broken_copy(mutation, Path(folder)))
        unnoticed += not failure
        sys.stdout.write(f"{mutation.name:42} {failure or 'NOBODY NOTICED'}\n")
        sys.stdout.flush()
    return 1 if unnoticed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
