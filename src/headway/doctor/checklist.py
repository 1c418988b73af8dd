"""The ten questions of the brief before a launch, each answered yes, no or cannot tell, from what is `Known`.

Pure: who reads the server, the file or the load tests fills in `Known`; None is not known, and never a no.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["yes", "no", "cannot tell"]
MOST_SHOWN = 4  # workers, in one answer


@dataclass(frozen=True, slots=True)
class LoadTest:
    """A finished one: in which loop, and whether it had the percentiles."""

    loop: Literal["closed", "open"]
    described: str
    percentiles: frozenset[str]  # of "ttft", "itl", "e2e": those with a p99
    verdict: str = ""  # as the run itself has it; empty: an older headway did not judge
    why: str = ""  # the first line of evidence for that
    request_rate: float | None = None  # per second, as reached

    @property
    def quotable(self) -> bool:
        return self.verdict in ("", "VALID")


@dataclass(frozen=True, slots=True)
class Known:
    """`signals`: our names of what is exported; empty dict fields: nothing is known of them.

    `config`: settings by their flags' names. `kind`: whose server.
    """

    where: str
    kind: str = ""
    live: bool = False
    signals: frozenset[str] = frozenset()
    exports: frozenset[str] = frozenset()  # names as they are exported
    config: Mapping[str, object] = field(default_factory=dict)
    lanes: tuple[str, ...] = ()
    pools: frozenset[str] = frozenset()
    gateway: bool | None = None
    workers: tuple[str, ...] = ()  # a gateway's, by their URLs, as far as it tells
    limited: bool = False  # a tenant has limits of how much it may ask
    longest_input: float | None = None  # in tokens, of any tenant
    limits_output: bool | None = None
    max_model_len: float | None = None
    max_num_seqs: float | None = None
    kv_tokens: float | None = None
    refuses_overlong: bool | None = None  # tried with --run
    tests: tuple[LoadTest, ...] = ()

    @property
    def remote(self) -> bool:
        """Its engines are other servers."""
        return bool(self.gateway) and not self.config.get("local-workers")


@dataclass(frozen=True, slots=True)
class Item:
    """One question, answered. `fix` is empty where it is a yes."""

    number: int
    question: str
    verdict: Verdict
    evidence: str
    fix: str = ""


def checklist(known: Known) -> tuple[Item, ...]:
    """All ten, in the brief's order."""
    items = []
    for number, (question, rule) in enumerate(_ITEMS, 1):
        verdict, evidence, fix = rule(known)
        items.append(Item(number, question, verdict, evidence, "" if verdict == "yes" else fix))
    return tuple(items)


Answer = tuple[Verdict, str, str]


def _exported(known: Known, names: Mapping[str, str], fix: str) -> Answer:
    """Are all of these among its metrics? A configuration of headway always has them: it exports them all."""
    if not known.live:
        return "yes", "headway exports " + ", ".join(names.values()), ""
    if not known.signals:
        return "cannot tell", "the server shows no metrics that are known here", fix
    lacking = [words for name, words in names.items() if name not in known.signals]
    if lacking:
        return "no", f"its metrics lack {', '.join(lacking)}", fix
    return "yes", f"{known.kind} exports {', '.join(names.values())}", ""


def _lengths(known: Known) -> Answer:
    return _exported(
        known,
        {"h:prompt_tokens": "a histogram of prompt lengths", "h:output_tokens": "one of output lengths"},
        "Put `headway serve --worker URL` before it: the gateway counts both for any server; or upgrade the engine "
        "(vLLM: vllm:request_prompt_tokens and request_generation_tokens; SGLang: start it with "
        "--collect-tokens-histogram).",
    )


# What to do about each verdict of a run.
_UNTIL_VALID = {
    "CLIENT-LIMITED": "from a machine with time to spare, or with more --processes",
    "SERVER-ERRORS": "once the server no longer fails",
    "UNSTEADY": "at a load that the server holds",
    "TOO-FEW-SAMPLES": "for longer: without --duration it lasts as long as it must",
}


def _two_loops(known: Known) -> Answer:
    fix = (
        "Run both: `headway bench concurrency URL` and `headway bench rate URL`, and give the results with --bench; or "
        "`headway check URL --run`."
    )
    best = {test.loop: test for test in sorted(known.tests, key=lambda test: test.quotable)}
    if len(best) == 1:
        only = "a fixed concurrency" if "closed" in best else "a fixed rate"
        return "no", f"the results that were given are only of {only}", fix
    if doubtful := [test for test in best.values() if not test.quotable]:
        why = "; ".join(
            f"{test.described} ended {test.verdict}" + (f" ({test.why})" if test.why else "") for test in doubtful
        )
        todo = dict.fromkeys(_UNTIL_VALID.get(test.verdict, _UNTIL_VALID["UNSTEADY"]) for test in doubtful)
        return (
            "cannot tell",
            f"a load test is not to be relied on: {why}",
            f"Run it again, {' and '.join(todo)}, until its verdict is VALID.",
        )
    if best:
        closed, opened = best["closed"].described, best["open"].described
        return "yes", f"tested at a fixed concurrency ({closed}) and at a fixed rate ({opened})", ""
    return "cannot tell", "no load test was given; a server does not know whether it was tested", fix


def _latencies(known: Known) -> Answer:
    told = {"ttft", "itl", "e2e"}
    for test in known.tests:
        if told <= test.percentiles and test.quotable:
            return "yes", f"the load test has p99 of TTFT, ITL and E2E apart ({test.described})", ""
    return _exported(
        known,
        {"h:ttft_s": "TTFT", "h:itl_s": "ITL", "h:e2e_s": "E2E, each as a histogram with its p99"},
        "Measure it from outside with `headway bench … --percentile 99`, which lasts long enough for one, or put "
        "`headway serve --worker URL` before it.",
    )


def _of_workers(known: Known) -> str:
    """What to ask instead of a gateway."""
    several = [f"`headway check {url}`" for url in known.workers] or ["`headway check` of each worker"]
    more = f" and {len(several) - MOST_SHOWN} more" if len(several) > MOST_SHOWN else ""
    file = "; or `headway check FILE` with the gateway's file" if known.live else ""
    return f"Ask them: {', '.join(several[:MOST_SHOWN])}{more}{file}."


def _kv(known: Known) -> Answer:
    fix = "`headway kv URL` or `headway kv MODEL --gpu NAME` sizes it; then set max-num-seqs and max-model-len to fit."
    if known.kv_tokens is None:
        if "kv-cache-gib" in known.config:
            return "yes", f"kv-cache-gib is set to {known.config['kv-cache-gib']}; what it holds, `headway kv` says", ""
        if known.remote:
            return "cannot tell", "KV is its workers', and they do not tell it how much they have", _of_workers(known)
        if known.live:
            return "cannot tell", "the server does not say how many tokens its KV cache holds", fix
        return "no", "kv-cache-gib is not set: its default holds what it happens to hold", fix
    holds = f"its KV cache holds {known.kv_tokens:,.0f} tokens"
    if known.max_model_len is None:
        return "yes", holds, ""
    full = known.kv_tokens / known.max_model_len
    said = f"{holds}: {full:.1f} requests of the longest kind ({known.max_model_len:,.0f} tokens)"
    if full < 1:
        return "no", f"{said}: not even one", f"Lower max-model-len to at most {known.kv_tokens:,.0f}, or give it more."
    if known.max_num_seqs is not None:
        each = known.kv_tokens / known.max_num_seqs
        said += f"; with all {known.max_num_seqs:.0f} slots taken, {each:,.0f} tokens each"
    return "yes", said, ""


def _limits(known: Known) -> Answer:
    longest = known.max_model_len or known.config.get("max-model-len") or known.config.get("overlong-tokens")
    fix = (
        "Set --max-model-len, and for outputs max-output-tokens of each [[tenant]] (headway); for vLLM "
        "--max-model-len and max_tokens in --override-generation-config."
    )
    if known.refuses_overlong is False:
        return "no", "a request for more than its context was let in", fix
    tried = "; a request for more was refused when it was tried" if known.refuses_overlong else ""
    if known.longest_input and known.limits_output:
        return "yes", f"every tenant has a limit of both; the largest input has {known.longest_input:,.0f} tokens", ""
    if not longest and known.gateway:
        where = "is its workers', or in its file" if known.live else "is its workers': its file sets none for everybody"
        return "cannot tell", f"a gateway's longest input {where}", _of_workers(known)
    if not longest:
        return "cannot tell" if known.live else "no", "no longest input is known", fix
    shown = f"prompt and output together have at most {float(str(longest)):,.0f} tokens{tried}"
    if known.limits_output:
        return "yes", f"{shown}; outputs have a limit of their own", ""
    if known.limits_output is None:
        return "cannot tell", f"{shown}; whether outputs have a limit of their own is not told", fix
    return "no", f"{shown}, but an output may use all of it", fix


def _long_contexts(known: Known) -> Answer:
    fix = (
        "headway has a lane for long prompts (--long-prompt-tokens, --long-prompt-slots); for vLLM "
        "--max-long-partial-prefills with --long-prefill-token-threshold, or a pool of workers for long contexts."
    )
    long = [name for name in known.lanes if "long" in name]
    if long:
        return "yes", f"lanes of their own: {', '.join(long)}", ""
    if not known.live or known.kind == "headway":
        if known.gateway and not known.config.get("overlong-tokens"):
            return "cannot tell", "a gateway's workers queue by themselves; what they do is not told", fix
        length = known.config.get("long-prompt-tokens", 1024)
        return "yes", f"prompts of {length} tokens or more have a lane with slots of its own", ""
    return "cannot tell", f"{known.kind or 'the server'} does not say how it queues long prompts", fix


def _running(known: Known) -> Answer:
    return _exported(
        known,
        {"running": "running", "waiting": "waiting requests"},
        "SGLang: start it with --enable-metrics; llama.cpp: --metrics; else put a gateway before it.",
    )


def _memory(known: Known) -> Answer:
    if not known.live and not known.remote:
        return "yes", "headway exports KV use, KV memory reserved and memory used", ""
    answer = _exported(known, {"kv_ratio": "KV use"}, "Scrape /metrics of the engine; SGLang wants --enable-metrics.")
    if answer[0] != "yes":
        return answer
    reserved = [name for name in sorted(known.exports) if any(part in name for part in _RESERVED)]
    if reserved:
        return "yes", f"KV use, and memory as {', '.join(reserved[:3])}", ""
    if known.gateway:
        return "cannot tell", "KV use is exported by worker; memory is its workers' to tell", _of_workers(known)
    return (
        "no",
        "KV use is exported; of memory used and reserved nothing is",
        "Run NVIDIA's DCGM exporter beside it (DCGM_FI_DEV_FB_USED, DCGM_FI_DEV_FB_RESERVED) and alert on both.",
    )


_RESERVED = ("kv_reserved_bytes", "memory_used_bytes", "FB_USED", "FB_RESERVED", "cache_config_info")


def _overload(known: Known) -> Answer:
    fix = (
        "headway: --queue-timeout or --ttft-limit, --max-waiting, limits in [[tenant]] tables with --api-keys, and the "
        "ladder of a gateway; before another engine: `headway serve --worker URL` with these."
    )
    if known.kind not in ("", "headway"):
        return (
            "no",
            f"{known.kind} itself has neither limits by tenant nor degradation; a bound of its queue it does not tell",
            fix,
        )
    if not known.config and known.gateway:
        return "cannot tell", "a gateway's settings are in its file", f"`headway check FILE` answers it. {fix}"
    if not known.config:
        return "cannot tell", "its settings are not told (headway tells them only to its own machine)", fix
    timeout = known.config.get("queue-timeout") or known.config.get("ttft-limit")
    lacking = [
        words
        for there, words in (
            (bool(timeout), "a timeout (queue-timeout, ttft-limit)"),
            (known.limited, "limits by tenant ([[tenant]])"),
            (bool(known.config.get("api-keys")), "keys that tell tenants apart (api-keys)"),
            (bool(known.gateway), "degradation (a gateway's ladder)"),
        )
        if not there
    ]
    has = f"the queue is bounded at {known.config.get('max-waiting', 1024)} requests"
    if lacking:
        return "no", f"{has}, but without {', without '.join(lacking)}", fix
    return "yes", f"{has}; timeout {timeout} s, limits by tenant, and the ladder", ""


def _isolated(known: Known) -> Answer:
    fix = (
        'Give batch work workers of its own (pool = "batch" in a [[worker]]) or a store with few slots (--store, '
        '--batch-slots), and send it with "headway": {"batch": true}.'
    )
    if "batch" in known.pools:
        return "yes", "workers of the pool batch take what nobody waits for", ""
    if known.config.get("store"):
        return (
            "yes",
            f"batch work waits in a store and has at most {known.config.get('batch-slots') or 'half'} of the slots",
            "",
        )
    if known.config or known.pools:
        return "no", "online and batch work share the same workers and slots", fix
    return "cannot tell", "whether batch work runs here as well is not told", fix


_ITEMS: tuple[tuple[str, Callable[[Known], Answer]], ...] = (
    ("Are the distributions of input and output tokens recorded?", _lengths),
    ("Are load tests at a fixed concurrency and at a fixed rate told apart?", _two_loops),
    ("Are TTFT, ITL, E2E and their p99 observed each by itself?", _latencies),
    ("Was the KV cache estimated, and not only the weights?", _kv),
    ("Have input and output a longest length?", _limits),
    ("Have long contexts a queue or a limit of their own?", _long_contexts),
    ("Are running and waiting requests monitored?", _running),
    ("Are KV use and the memory that is reserved monitored?", _memory),
    ("Are there timeouts, rate limits and degradation?", _overload),
    ("Is online service isolated from batch work?", _isolated),
)
