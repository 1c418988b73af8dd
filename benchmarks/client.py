"""A small streaming client that tells the truth: times from the scheduled send, gaps per token, and its own lateness.

One coroutine a request; nothing limits concurrency but the schedule. Used by the benchmarks that need a load over time.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

# Ordinary words, about 1.2 tokens each. No two prompts share more than chance lets them: no cache helps.
WORDS = (  # noqa: SIM905 - a hundred quoted words are harder to read
    "river stone bridge garden window letter market winter summer island mountain teacher doctor engine signal station "
    "captain village forest harbour kitchen library concert history science weather journey question answer picture "
    "machine number paper water light sound colour music metal glass bread butter apple orange paper silver golden "
    "quiet early late open narrow broad heavy gentle bitter sweet simple modern ancient public private central "
    "walks carries builds follows answers repairs measures describes remembers considers improves collects returns "
    "between beside under above across around without toward before after while because although therefore perhaps "
    "seven twelve hundred first second third every many several another nothing something whole half double "
).split()


@dataclass(frozen=True, slots=True)
class Planned:
    """One request of a schedule."""

    at_s: float  # after the schedule's start
    prompt: str
    output_tokens: int
    ttft_s: float  # promised
    itl_s: float
    kind: str = "short"
    key: str = ""  # of whoever asks; none for nobody


@dataclass(slots=True)
class Sample:
    """What became of a request. Times are seconds after the schedule's start."""

    planned: Planned
    sent_s: float = 0.0
    first_s: float | None = None
    ended_s: float = 0.0
    tokens: int = 0
    gaps_s: list[float] = field(default_factory=list)  # one for each token after the first
    error: str = ""
    retry_after_s: float | None = None  # as a refusal said

    def forget_refusal(self) -> None:
        """Before it is sent again."""
        self.error, self.retry_after_s = "", None

    @property
    def lag_s(self) -> float:
        """How late the client sent it."""
        return self.sent_s - self.planned.at_s

    @property
    def ttft_s(self) -> float | None:
        """From the scheduled send, so that a late client cannot hide queueing."""
        return None if self.first_s is None else self.first_s - self.planned.at_s

    @property
    def gap_p99_s(self) -> float:
        return percentile(self.gaps_s, 0.99) if self.gaps_s else 0.0

    @property
    def verdict(self) -> str:
        """The word "good", or the first promise that was broken."""
        if self.error:
            return self.error
        if self.ttft_s is None or self.ttft_s > self.planned.ttft_s:
            return "ttft"
        if self.gap_p99_s > self.planned.itl_s:
            return "gap"
        return "good" if self.tokens == self.planned.output_tokens else "tokens"


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between closest ranks, as numpy does."""
    ranked = sorted(values)
    if not ranked:
        return float("nan")
    place = share * (len(ranked) - 1)
    low = int(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)


def text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(WORDS, k=words))


def new_session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)


async def stream(session: aiohttp.ClientSession, url: str, model: str, sample: Sample, zero: float) -> None:
    """Send it as a streaming chat now and fill `sample`. `zero` is `time.perf_counter()` at the schedule's start."""
    planned = sample.planned
    body = {
        "model": model,
        "messages": [{"role": "user", "content": planned.prompt}],
        "max_tokens": planned.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    headers = {"x-slo-ttft-ms": f"{planned.ttft_s * 1e3:g}", "x-slo-itl-ms": f"{planned.itl_s * 1e3:g}"}
    if planned.key:
        headers["Authorization"] = f"Bearer {planned.key}"
    sample.sent_s = time.perf_counter() - zero
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
            if response.status != 200:
                sample.error = f"http {response.status}"
                if "Retry-After" in response.headers:
                    sample.retry_after_s = float(response.headers["Retry-After"])
                return
            last_s = 0.0
            async for line in response.content:
                now_s = time.perf_counter() - zero
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    sample.error = "error event"
                    return
                if not event["choices"]:
                    sample.tokens = event["usage"]["completion_tokens"]
                    continue
                content = event["choices"][0]["delta"].get("content")
                # A server that counts as it goes is believed; of one that does not, each event is a token.
                usage = event.get("usage")
                new = usage["completion_tokens"] - sample.tokens if usage else int(bool(content))
                if new <= 0:
                    continue
                sample.tokens += new
                if sample.first_s is None:
                    sample.first_s = now_s
                else:
                    sample.gaps_s += [(now_s - last_s) / new] * new
                last_s = now_s
    except (aiohttp.ClientError, TimeoutError) as error:
        sample.error = type(error).__name__
    finally:
        sample.ended_s = time.perf_counter() - zero


async def run(url: str, model: str, schedule: Sequence[Planned], drain_s: float) -> list[Sample]:
    """Send each at its time, whatever the server does. What has not ended `drain_s` after the last is given up."""
    samples = [Sample(planned) for planned in schedule]
    async with new_session() as session:
        zero = time.perf_counter()
        tasks = []
        for sample in samples:
            await asyncio.sleep(max(0.0, zero + sample.planned.at_s - time.perf_counter()))
            tasks.append(asyncio.create_task(stream(session, url, model, sample, zero)))
        done, late = await asyncio.wait(tasks, timeout=drain_s) if tasks else (set(), set())
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for task in done:
            task.result()  # a defect of the client is no result of the server
        for sample, task in zip(samples, tasks, strict=True):
            if task in late:
                sample.error = "unfinished"
    return samples


async def settle(url: str, model: str, limit_s: float = 120.0) -> None:
    """Return once the server has forgotten the last run: a tiny request is answered within a second, twice."""
    calm = 0
    give_up = time.perf_counter() + limit_s
    draw = random.Random(time.time_ns())
    async with new_session() as session:
        while calm < 2:
            sample = Sample(Planned(0.0, text(draw, 8), 2, 60.0, 60.0))
            began = time.perf_counter()
            await stream(session, url, model, sample, began)
            calm = calm + 1 if not sample.error and sample.ended_s < 1.0 else 0
            if time.perf_counter() > give_up:
                print(f"warning: {url} did not calm down in {limit_s:.0f} s ({sample.error or sample.ended_s})")
                return
            await asyncio.sleep(0.2)


async def model_of(url: str) -> str:
    """The first model that a server names."""
    async with new_session() as session, session.get(f"{url}/v1/models") as response:
        response.raise_for_status()
        name: str = (await response.json())["data"][0]["id"]
        return name
