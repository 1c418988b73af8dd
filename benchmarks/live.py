"""Checks a gateway in front of a real server of another kind: vLLM, llama.cpp's, or any that runs already.

Not a measurement: each line is a thing that has to be true, and one that is not fails the run. With `--python` and
`--hf-model` vLLM's server is started, with `--llama-server` and `--gguf` llama.cpp's; `--url` takes one that is there.
The gateway has the server twice, as workers `a` and `b`, so that routing has a choice.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks import servers
from headway.gateway.tenancy import KeyFile

SLOTS = 4  # that the server is started with
WORDS = "The ferry leaves the harbour at noon and comes back when the tide allows it. "
CHAT = "/v1/chat/completions"


class Failed(Exception):
    """A thing that had to be true is not; says what was seen."""


class Gateway:
    """What the checks speak to, and look into."""

    def __init__(self, session: aiohttp.ClientSession, url: str, keys: dict[str, str], model: str) -> None:
        self.session = session
        self.url = url
        self.model = model
        self._keys = keys

    def body(self, content: str, tokens: int, **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": content}]
        return {"model": self.model, "messages": messages, "max_tokens": tokens, "temperature": 0, **more}

    def post(self, body: dict[str, Any], tenant: str = "alice", path: str = CHAT) -> Any:
        headers = {"Authorization": f"Bearer {self._keys[tenant]}"}
        return self.session.post(self.url + path, json=body, headers=headers)

    async def ask(self, content: str, tokens: int, tenant: str = "alice", **more: Any) -> tuple[dict[str, Any], str]:
        """A whole answer, and where it ran."""
        async with self.post(self.body(content, tokens, **more), tenant) as answer:
            body = await answer.json()
            if answer.status != 200:
                raise Failed(f"{answer.status}: {body}")
            return body, answer.headers["x-headway-worker"]

    async def get(self, path: str, tenant: str = "") -> Any:
        headers = {"Authorization": f"Bearer {self._keys[tenant]}"} if tenant else {}
        async with self.session.get(self.url + path, headers=headers) as answer:
            return await answer.json()

    async def workers(self) -> dict[str, dict[str, Any]]:
        return {one["id"]: one for one in (await self.get("/admin/workers"))["data"]}

    async def says(self, name: str) -> float | None:
        """A signal of worker `a`."""
        found = (await self.workers())["a"]["says"][name]
        return None if found is None else float(found["value"])


Check = Callable[[Gateway, argparse.Namespace], Awaitable[str]]


async def its_kind_is_found_out(gateway: Gateway, given: argparse.Namespace) -> str:
    kinds = {name: one["kind"] for name, one in (await gateway.workers()).items()}
    need(set(kinds.values()) == {given.kind}, f"{kinds}, not {given.kind}")
    models = {model for one in (await gateway.workers()).values() for model in one["models"]}
    need(gateway.model in models, f"it lists {models}")
    return f"{given.kind}, serving {gateway.model}"


async def its_signals_are_read(gateway: Gateway, given: argparse.Namespace) -> str:
    await gateway.ask("Say a word.", 4)  # some are told only once there was work
    await asyncio.sleep(1.0)
    said = (await gateway.workers())["a"]["says"]
    known = {name: signal for name, signal in said.items() if signal is not None}
    need(set(given.signals) <= set(known), f"only {', '.join(known) or 'nothing'} is known")
    old = {name: one["age_s"] for name, one in known.items() if name in given.signals and one["age_s"] > 2}
    need(not old, f"out of date: {old}")
    return ", ".join(f"{name} {signal['value']:g}" for name, signal in known.items())


async def an_answer_is_whole_and_accounted_for(gateway: Gateway, _: argparse.Namespace) -> str:
    async with gateway.post(gateway.body("Name three rivers.", 12)) as answer:
        body, name = await answer.json(), answer.headers["x-request-id"]
        need(answer.status == 200, f"{answer.status}: {body}")
        need("worker;dur=" in answer.headers["Server-Timing"], answer.headers["Server-Timing"])
    usage = body["usage"]
    told = (await gateway.get(f"/v1/requests/{name}", "alice"))["tokens"]
    need((told["prompt"], told["output"]) == (usage["prompt_tokens"], usage["completion_tokens"]), f"{told} != {usage}")
    return f"prompt {told['prompt']} (estimated {told['prompt_estimate']}), output {told['output']}"


async def a_stream_comes_as_it_is_made(gateway: Gateway, _: argparse.Namespace) -> str:
    times, text = [], b""
    body = gateway.body("Count from one to twenty in words.", 40, stream=True)
    async with gateway.post(body) as answer:
        need(answer.status == 200, f"{answer.status}")
        async for data in answer.content.iter_any():
            times.append(time.perf_counter())
            text += data
    need(text.rstrip().endswith(b"data: [DONE]"), f"it ended with {text[-80:]!r}")
    need(b'"usage"' not in text.replace(b'"usage":null', b""), "the usage was not asked for")
    need(len(times) >= 10, f"it came in {len(times)} pieces")
    need(times[-1] - times[0] > 0.05, "it came all at once")
    return f"{len(times)} pieces over {times[-1] - times[0]:.2f} s"


async def work_goes_to_both_and_says_why(gateway: Gateway, _: argparse.Namespace) -> str:
    chosen = await asyncio.gather(*(gateway.ask(f"{number} {WORDS}", 24) for number in range(8)))
    names = [where.partition(";")[0] for _, where in chosen]
    need({"a", "b"} == set(names), f"all went to {set(names)}")
    need(all("score=" in where for _, where in chosen), "no score is told")
    return f"{names.count('a')} to a, {names.count('b')} to b"


async def a_prompt_goes_where_it_lies_in_the_cache(gateway: Gateway, _: argparse.Namespace) -> str:
    long = f"{time.time()} " + WORDS * 40
    first = (await gateway.ask(f"{long} What is it about?", 4))[1]
    found = [await gateway.ask(f"{long} Say that again, {number}.", 4) for number in range(3)]
    need(all(where.partition(";")[0] == first.partition(";")[0] for _, where in found), f"{first}, then {found}")
    need(all("prefix=-" in where for _, where in found), "the prefix is no term")
    return found[-1][1]


async def what_runs_is_seen(gateway: Gateway, _: argparse.Namespace) -> str:
    async with streams(gateway, 3):
        seen = await eventually(lambda: gateway.says("running"), lambda value: value is not None and value >= 3)
    return f"running {seen:g} with 3 streams"


async def who_leaves_ends_the_work(gateway: Gateway, _: argparse.Namespace) -> str:
    async with streams(gateway, 2):
        await eventually(lambda: gateway.says("running"), lambda value: bool(value) and (value or 0) >= 2)
    left = time.perf_counter()
    await eventually(lambda: gateway.says("running"), lambda value: value == 0)
    load = await gateway.get("/load")
    need((load["requests"], load["running"], load["claimed_tokens"]) == (0, 0, 0), f"left behind: {load}")
    return f"nothing runs {time.perf_counter() - left:.1f} s after"


async def what_is_too_much_waits_here(gateway: Gateway, given: argparse.Namespace) -> str:
    """The window: the server's own queue stays short, and the gateway's is where requests wait."""
    asked = [asyncio.create_task(gateway.ask(f"{number} {WORDS}", 24)) for number in range(6 * SLOTS)]
    inside, here = 0.0, 0
    while not all(task.done() for task in asked):
        await asyncio.sleep(0.1)
        said = await gateway.workers()
        inside = max(inside, *(one["says"]["waiting"]["value"] for one in said.values() if one["says"]["waiting"]))
        here = max(here, (await gateway.get("/load"))["waiting"])
    await asyncio.gather(*asked)
    windows = {name: one["window"]["sequences"] for name, one in (await gateway.workers()).items()}
    need(here > inside, f"up to {inside:g} waited inside it, and {here} here")
    return f"up to {here} waited here and {inside:g} inside {given.kind}; windows {windows}"


async def priority_and_salt_are_taken(gateway: Gateway, given: argparse.Namespace) -> str:
    if not given.cached:
        await gateway.ask("Hello.", 4, priority=3)
        return "a priority is not passed on to this kind, and hurts nobody"
    long = f"{time.time()} " + WORDS * 40
    await gateway.ask(long, 4, priority=3)
    mine, theirs = await gateway.ask(long, 4, priority=-1), await gateway.ask(long, 4, "bob")
    found = [body["usage"]["prompt_tokens_details"]["cached_tokens"] for body, _ in (mine, theirs)]
    need(
        found[0] > 100 and found[1] < 32, f"of alice's second {found[0]} tokens were cached, of bob's first {found[1]}"
    )
    return f"{found[0]} of alice's tokens were cached, {found[1]} of bob's"


async def its_own_refusal_is_handed_on(gateway: Gateway, _: argparse.Namespace) -> str:
    async with gateway.post(gateway.body(WORDS * 2000, 8)) as answer:
        body = await answer.json()
    need(answer.status == 400, f"{answer.status}: {str(body)[:200]}")
    return str(body["error"]["message"])[:90]


async def a_drained_one_gets_nothing(gateway: Gateway, _: argparse.Namespace) -> str:
    async with gateway.session.post(f"{gateway.url}/admin/workers/a/drain") as answer:
        need(answer.status == 200, await answer.text())
    chosen = {(await gateway.ask(f"{number}", 2))[1].partition(";")[0] for number in range(4)}
    async with gateway.session.post(f"{gateway.url}/admin/workers/a/undrain") as answer:
        need(answer.status == 200, await answer.text())
    need(chosen == {"b"}, f"{chosen}")
    return "all went to b"


async def one_that_dies_is_told(gateway: Gateway, given: argparse.Namespace) -> str:
    """The last check: the server is killed under a stream."""
    if given.server is None:
        return "not tried: somebody else's server"
    async with gateway.post(gateway.body("Tell a long story.", 400, stream=True, ignore_eos=True)) as answer:
        await answer.content.readany()
        given.server.kill()
        rest = await answer.content.read()
    need(b'"error"' in rest, f"the stream ended with {rest[-200:]!r}")
    need(b"[DONE]" not in rest, "a broken stream must not look whole")
    began = time.perf_counter()
    while True:
        async with gateway.post(gateway.body("Hello?", 2)) as answer:
            if answer.status == 503 and "Retry-After" in answer.headers:
                return f"error event, then 503 after {time.perf_counter() - began:.1f} s"
        need(time.perf_counter() - began < 20, f"still {answer.status}")


CHECKS: tuple[Check, ...] = (
    its_kind_is_found_out,
    its_signals_are_read,
    an_answer_is_whole_and_accounted_for,
    a_stream_comes_as_it_is_made,
    work_goes_to_both_and_says_why,
    a_prompt_goes_where_it_lies_in_the_cache,
    what_runs_is_seen,
    who_leaves_ends_the_work,
    what_is_too_much_waits_here,
    priority_and_salt_are_taken,
    its_own_refusal_is_handed_on,
    a_drained_one_gets_nothing,
    one_that_dies_is_told,
)


def need(true: bool, seen: str) -> None:
    if not true:
        raise Failed(seen)


async def eventually(
    look: Callable[[], Awaitable[float | None]], true: Callable[[float | None], bool], timeout_s: float = 15.0
) -> float:
    began = time.perf_counter()
    while not true(seen := await look()):
        need(time.perf_counter() - began < timeout_s, f"after {timeout_s:g} s it is {seen}")
        await asyncio.sleep(0.05)
    return seen or 0.0


@contextlib.asynccontextmanager
async def streams(gateway: Gateway, number: int) -> AsyncIterator[None]:
    """So many long ones, each begun; at the end their clients leave in the middle."""
    async with contextlib.AsyncExitStack() as stack:
        for one in range(number):
            body = gateway.body(f"Tell story number {one}, and make it long.", 1000, stream=True, ignore_eos=True)
            answer = await stack.enter_async_context(gateway.post(body))
            need(answer.status == 200, f"{answer.status}")
            await answer.content.readany()
            stack.callback(answer.close)
        yield


# -- what is started ---------------------------------------------------------------------------------------------------


def started(given: argparse.Namespace) -> servers.Server | None:
    if given.python:
        flags = ["--max-num-seqs", str(SLOTS), "--scheduling-policy", "priority", "--enable-prompt-tokens-details"]
        flags += ["--enable-prefix-caching"] + ["--enforce-eager"] * given.eager
        return servers.vllm(given.python, given.hf_model, *flags, all_cores=True, kv_cache_gib=1.0)
    if given.llama_server:
        port = servers.free_port()
        command = [given.llama_server, "-m", str(given.gguf), "--host", "127.0.0.1", "--port", str(port)]
        command += ["--alias", servers.NAME, "--metrics", "--slots", "-np", str(SLOTS), "-c", str(SLOTS * 2048)]
        return servers.Server(command, port)
    return None


def gateway_server(url: str, given: argparse.Namespace, folder: Path) -> tuple[servers.Server, dict[str, str]]:
    file = KeyFile(folder / "keys")
    keys = {tenant: file.create(tenant, time.time())[1] for tenant in ("alice", "bob")}
    config = folder / "gateway.toml"
    priority = "priority = true\n" if given.python else ""
    patience = "first-byte-timeout = 1800\n"  # this machine may be busy with other things
    workers = "".join(f'[[worker]]\nid = "{name}"\nurl = "{url}"\n{patience}{priority}' for name in ("a", "b"))
    config.write_text(f'api-keys = "{file.path}"\n{workers}')
    port = servers.free_port()
    command = [sys.executable, "-m", "headway", "serve", "--config", str(config), "--port", str(port)]
    return servers.Server(command, port), keys


async def checked(given: argparse.Namespace, url: str, keys: dict[str, str]) -> list[dict[str, Any]]:
    found = []
    timeout = aiohttp.ClientTimeout(total=1800)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        gateway = Gateway(session, url, keys, given.model)
        for check in CHECKS:
            name, told = check.__name__.replace("_", " "), ""
            if given.only not in name:
                continue
            try:
                good, told = True, await check(gateway, given)
            except (Failed, aiohttp.ClientError, TimeoutError, KeyError) as failed:
                good, told = False, f"{type(failed).__name__}: {failed}"
            print(f"{'PASS' if good else 'FAIL'}  {name}: {told}", flush=True)
            found.append({"check": name, "good": good, "told": told})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="the Python of vLLM's environment")
    parser.add_argument("--hf-model", type=Path, help="a Hugging Face folder, for vLLM")
    parser.add_argument("--eager", action="store_true", help="vLLM compiles nothing: it starts sooner and runs slower")
    parser.add_argument("--llama-server", help="llama.cpp's llama-server")
    parser.add_argument("--gguf", type=Path, help="a GGUF file, for llama.cpp")
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--kind", help="what it has to be found to be (with --url)")
    parser.add_argument("--model", default=servers.NAME, help="the model's name there (with --url)")
    parser.add_argument("--only", default="", metavar="WORDS", help="only the checks with these words in their line")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found to FILE")
    given = parser.parse_args()
    if bool(given.python) + bool(given.llama_server) + bool(given.url) != 1:
        parser.error("give --python and --hf-model, or --llama-server and --gguf, or --url and --kind")
    given.kind = given.kind or ("vllm" if given.python else "llamacpp")
    given.signals = ["running", "waiting"] + ["kv_used_ratio"] * (given.kind == "vllm")
    given.cached = bool(given.python)
    with contextlib.ExitStack() as stack:
        given.server = started(given)
        if given.server is not None:
            stack.enter_context(given.server)
            print(f"{given.kind} is up after {given.server.started_in_s:.0f} s", flush=True)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        front, keys = gateway_server(given.url or given.server.url, given, folder)
        stack.enter_context(front)
        found = asyncio.run(checked(given, front.url, keys))
        if not all(one["good"] for one in found):
            print(front.words())
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))
    bad = sum(not one["good"] for one in found)
    print(f"{len(found) - bad} passed, {bad} failed")
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
