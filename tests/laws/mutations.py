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
    one("free a block in flight", "scheduler/base.py", "if seq.in_flight:", "if False:", "def cancel"),
    one("skip alignment", "scheduler/scheduler.py", "end -= end % self.limits.chunk_multiple_tokens", "pass"),
    one(
        "prefill before decode",
        "scheduler/scheduler.py",
        "            self._seat_priorities(draft)\n",
        "            self._feed_prompts(draft)\n",
    ),
    one(
        "forget to settle",
        "front/front.py",
        "self.admission.settle(reservation, usage.computed_tokens, now)",
        "pass",
        "def settle(",
    ),
    one(
        "ignore what is set aside",
        "scheduler/residents.py",
        "self.pool.free_blocks - self.set_aside_blocks",
        "self.pool.free_blocks",
    ),
    one(
        "publish a block before it is full",
        "scheduler/kv.py",
        "full = computed // self.block_size",
        "full = -(-computed // self.block_size)",
        "def publish",
    ),
    one("share across scopes", "scheduler/kv.py", 'return "root", scope', 'return "root", 0'),
    one("no ageing", "front/promises.py", "if self._age_bound_ns and", "if False and"),
    one("unlimited overtaking", "lanes.py", "place.overtaken >= self.max_overtakes", "False"),
    one(
        "the victim may be the oldest",
        "scheduler/residents.py",
        "for other in self.running[1:] if",
        "for other in self.running if",
    ),
    one("no pace", "scheduler/scheduler.py", "if self.policy.paced and draft.itl_ns:", "if False:"),
    one("no yield", "scheduler/scheduler.py", "if self._steps_without_prefill < YIELD_EVERY - 1:", "if True:"),
    one("yield too often", "scheduler/scheduler.py", "if self._steps_without_prefill < YIELD_EVERY - 1:", "if False:"),
    one("start who slows the others", "scheduler/scheduler.py", "or self._would_slow(request)", ""),
    one(
        "a batch uses all of a promise",
        "scheduler/scheduler.py",
        "self.policy.left_by_batch if request.pool == BATCH else",
        "",
    ),
    one("preempt without end", "scheduler/scheduler.py", "or seq.preemptions >= self.policy.max_preemptions", ""),
    one(
        "new ones before the preempted",
        "scheduler/scheduler.py",
        "if self._owed_to_preempted(request, draft.now):",
        "if False:",
    ),
    one(
        "take slots from equals",
        "scheduler/scheduler.py",
        "if seq.request.priority > request.priority",
        "if seq.request.priority >= request.priority",
    ),
    one("forget the caps of lanes", "lanes.py", "self.running < self.limits.slots and", ""),
    one(
        "start into promised blocks",
        "scheduler/scheduler.py",
        "free_blocks = self.residents.free_blocks - draft.promised_blocks",
        "free_blocks = self.residents.free_blocks",
        "draft.repeatable = not idle",
    ),
    one("a leap keeps what it took ahead", "scheduler/leap.py", "while self._taken:", "while False:"),
    one("leap past a rejection", "scheduler/scheduler.py", "or self._due:", "or False:"),
    one(
        "vllm starts after preempting",
        "scheduler/scheduler.py",
        "if not draft.preempted or self.policy.start_after_preemption:",
        "if True:",
    ),
    one(
        "count a resumed prompt as cached",
        "scheduler/residents.py",
        "seq = self.preempted.pop(0)\n",
        "seq = self.preempted.pop(0)\n        seq.cached_tokens += 1\n",
    ),
    one(
        "evict the youngest first",
        "scheduler/kv.py",
        "run = next(iter(self._idle))",
        "run = next(reversed(self._idle))",
        "def _evict",
    ),
    one("hold all of a run for its beginning", "scheduler/kv.py", "if same == len(found.blocks) else", "if True else"),
    one(
        "the last token comes from the cache too",
        "scheduler/kv.py",
        "(length - 1) // size",
        "length // size",
    ),
    one(
        "lost promises stay in front",
        "lanes.py",
        "if aged != YOUNG or group != PROMISED or latest_start_ns >= now:",
        "if True:",
    ),
    # -- tenants and quotas
    one(
        "a refusal for tokens takes a slot",
        "front/ledger.py",
        "        if missing := self",
        "        self._accounts.setdefault(tenant, _Account(now)).slots += 1\n        if missing := self",
    ),
    one(
        "count an answer's tokens only when it has ended",
        "front/ledger.py",
        "account.spend(total.requests, total.tokens)",
        "account.spend(total.requests, 0)",
    ),
    one(
        "refill beyond a minute's worth",
        "front/ledger.py",
        "self.parts = min(self.parts, per_minute * NS_PER_MINUTE)",
        "pass",
    ),
    one("keep the slot of what has ended", "front/ledger.py", "account.slots -= lease.amounts.slots", "pass"),
    one("take back what is taken", "front/ledger.py", "max(more.tokens, -max(0, account.tokens.whole))", "more.tokens"),
    one(
        "a flood keeps its places",
        "front/room.py",
        "if name != tenant and holds[COUNT] > 1 and",
        "if False and",
    ),
    one("anybody is displaced", "front/room.py", "and holds[measure] > room[measure] * weight(name) * parts", ""),
    one("displaced for more than a share", "front/room.py", "and own[measure] + asks[measure] > part", "and False"),
    one("a tenant's last is displaced", "front/room.py", "holds[COUNT] > 1 and", ""),
    one("displaced, and not told", "front/front.py", "self._gave_way[other.id] = Expire(", "Expire("),
    one("a better priority gives way", "front/room.py", "if one.priority >= priority", ""),
    # -- fairness
    one("weights do not matter", "fairness.py", "before + tokens / self.weight(tenant)", "before + tokens"),
    one(
        "idleness earns credit",
        "fairness.py",
        "self._service[tenant] = self.entering(tenant)",
        "self._service.setdefault(tenant, 0.0)",
    ),
    one(
        "never correct a charge",
        "fairness.py",
        "self._service.get(tenant, 0.0) + tokens / self.weight(tenant)\n",
        "self._service.get(tenant, 0.0)\n",
        "def correct",
    ),
    one(
        "the aged go before another's share",
        "lanes.py",
        "level = best if rank[0][0] == AGED else",
        "level = best - 1 if rank[0][0] == AGED else",
    ),
    one(
        "tenants do not take turns",
        "lanes.py",
        "(level, self.fairness.service(queue.tenant), rank, index, queue)",
        "(level, 0.0, rank, index, queue)",
    ),
    # -- routing
    one("no bound on a burst", "fleet/routing.py", "if count + 1 <= math.ceil", "if True or count + 1 <= math.ceil"),
    Mutation(
        "unknown is zero",
        "fleet/routing.py",
        tuple((f" + means[{place}] * (1.0 - {name})", "") for place, name in enumerate("abcdef")),
    ),
    one("an old answer overwrites a newer", "fleet/worker.py", "new.at_ns >= old.at_ns", "True"),
    one("own requests are counted twice", "fleet/worker.py", "inside - self._ours_at(running.at_ns)", "inside"),
    one(
        "a favourite does not yield",
        "fleet/routing.py",
        "-worker.cached_tokens(request) / typical_tokens",
        "-100.0 * (worker.cached_tokens(request) > 0)",
    ),
    one("try the same worker again", "fleet/fleet.py", "able = fresh or up", "able = up"),
    one("a lost request goes to the end", "lanes.py", "self._give_back(request).number, now)", "self._arrivals, now)"),
    one(
        "try again after the first byte",
        "front/front.py",
        "if began or len(reservation.tried) >= MAX_ATTEMPTS:",
        "if len(reservation.tried) >= MAX_ATTEMPTS:",
    ),
    one(
        "everybody finds out about a worker that is half-open",
        "fleet/breaker.py",
        "trust is Trust.HALF_OPEN and not self._probing",
        "trust is Trust.HALF_OPEN",
    ),
    one("a probe taken back keeps the worker out", "fleet/worker.py", "self.breaker.nothing_learnt()", "pass"),
    one("a window that never shrinks", "fleet/window.py", "self.sequences = max(1.0, min(self.sequences, to))", "pass"),
    one("a window grows though nothing is gained", "fleet/window.py", "if not self.pace.slope:", "if True:"),
    one(
        "promises are begun at the last moment",
        "front/promises.py",
        "request.slo.ttft_ns - self._fleet.first_token_by_ns(request)",
        "slack_ns",
    ),
    one(
        "a window grows over what its worker is silent about",
        "fleet/window.py",
        "hidden <= 1 + sequences / 8",
        "True",
    ),
    one("a window changes on what was true before", "fleet/window.py", "true_ns >= self._changed_ns", "True"),
    one(
        "a flood fills every window",
        "fleet/fleet.py",
        "BEYOND_RATIO if self.shares.beyond(tenant) else WITHIN_RATIO",
        "1.0",
    ),
    # -- the ladder
    one("down as fast as up", "front/ladder.py", "if now - self._calm_since_ns >= self._down_after_ns:", "if True:"),
    one(
        "no hysteresis",
        "front/ladder.py",
        "pressure.height < MARKS[Level(self.height)] - HYSTERESIS",
        "pressure.height < MARKS[Level(self.height)]",
    ),
    one(
        "relief looks like the end",
        "front/ladder.py",
        "pressure.demand_ratio is None or pressure.demand_ratio < 1.0",
        "True",
    ),
    one(
        "a pin does not hold",
        "front/ladder.py",
        "mode is Mode.ON or (mode is Mode.AUTO and level <= self.height)",
        "level <= self.height",
    ),
]


def broken_copy(mutation: Mutation, folder: Path) -> Path:
    source = folder / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    path = source / "headway" / "core" / mutation.file
    path.write_text(broken(mutation, path.read_text()))
    return source


def broken(mutation: Mutation, text: str) -> str:
    """Raises ValueError where the core has changed."""
    head, mark, rest = text.partition(mutation.after) if mutation.after else ("", "", text)
    for was, becomes in mutation.edits:
        if was not in rest or (not mutation.after and rest.count(was) != 1):
            raise ValueError(f"{mutation.name}: {was!r} is not there once in {mutation.file}; the core has changed")
        rest = rest.replace(was, becomes, 1)
    return head + mark + rest


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
