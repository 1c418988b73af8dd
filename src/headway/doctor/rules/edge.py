"""Before the engine: the client that measures, the network, and what is done to a prompt before it may wait."""

from __future__ import annotations

from headway.doctor.finding import Change, Finding
from headway.doctor.rules.case import Case

# Below this nobody notices (Nielsen 1993: up to 0.1 s feels instantaneous).
NOTICED_S = 0.1
# The larger half of the time to a first token.
MOST = 0.5
OFTEN = 0.1  # of the calls


def network_delay(case: Case) -> Finding | None:
    network_s = case.split.network_s
    if network_s is None or network_s < NOTICED_S or case.split.share(network_s) < MOST:
        return None
    client, server_s = case.facts.client, case.split.ttft_s
    told = client.ttft_s is not None and client.server_ttft_s is not None
    how = (
        f"the client's TTFT is {network_s * 1e3:.0f} ms above the server's of the same requests"
        if told
        else f"a round trip that asks the server for nothing takes {network_s * 1e3:.0f} ms (least of "
        f"{client.network_probes})"
    )
    served = "" if server_s is None else f", and the server's own TTFT is {server_s * 1e3:.0f} ms"
    return Finding(
        "network-delay",
        "The way to the server takes longer than the server",
        "low-rate",
        (how + served,),
        "high" if told or client.network_probes >= 3 else "medium",
        (
            Change("serve nearer to the users, or terminate TLS and HTTP at an edge with kept connections"),
            Change("look at what lies between: a proxy that buffers streams delays first tokens"),
        ),
        cost_s=network_s,
    )


def slow_preprocessing(case: Case) -> Finding | None:
    before_s = case.split.preprocess_s
    if before_s is None or before_s < NOTICED_S or case.split.share(before_s) < MOST:
        return None
    told = case.service.spread("tokenise_s")
    if told is not None and told.share_above(NOTICED_S) < OFTEN:
        return None  # a few are slow, as a server's first ones are
    if told is None and case.waited is not None and case.waited.queued_share > 0.5:
        return None  # inferred from what the stations leave over; while a queue grows, they tell of other requests
    idle = case.running < 0.5 * (case.waited.limit or 8.0) if case.waited is not None else None
    how = (
        f"receiving and tokenising a call takes {before_s * 1e3:.0f} ms of a TTFT of {case.split.total_s * 1e3:.0f} ms"
        if told is not None
        else f"of a TTFT of {case.split.total_s * 1e3:.0f} ms, queue and prefill account for all but "
        f"{before_s * 1e3:.0f} ms"
    )
    seen = f"meanwhile {case.running:.1f} sequences run on average: the engine waits for work"
    return Finding(
        "slow-preprocessing",
        "Requests are late before they reach the engine: tokenizer, template or what builds prompts",
        "low-rate" if idle else "concurrency",
        (how, seen) if idle else (how,),
        "high" if told is not None else "medium",
        (
            Change("use a fast tokenizer (tokenizer.json), and keep chat templates plain"),
            Change("give the server's front another core, or a process of its own"),
            Change("several such processes: --api-server-count 2", "api_server_count", 2),
            Change("send shorter prompts: retrieval, tool definitions and history are tokenised on each call"),
        ),
        cost_s=before_s,
        explains=("long-prompts",),
    )


def client_limited(case: Case) -> Finding | None:
    """The load tester was late: what it measured is its own."""
    lag_s, found = case.facts.client.lag_s, case.facts.client.ttft_s
    if lag_s is None or found is None or lag_s < NOTICED_S or lag_s < MOST * found.quantile(0.5):
        return None
    return Finding(
        "client-limited",
        "The client that measures is late itself",
        "low-rate",
        (f"it sent 1 in 100 requests {lag_s * 1e3:.0f} ms after they were due",),
        "high",
        (Change("give `headway bench --processes` more cores, or test from another machine"),),
        cost_s=lag_s,
        explains=("network-delay",),
    )
