"""`Engine`: a model ready to answer. It assembles model, executor, scheduler, front and driver, and is the Python API.

with Engine("smollm2-135m") as engine:                    # from a script
print(engine.generate(["The sea is"], max_tokens=16)[0].text)

async with Engine("smollm2-135m") as engine:              # from asyncio
async for delta in engine.stream("The sea is", max_tokens=16):
print(delta.text, end="", flush=True)
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from headway.core.admission import NS_PER_S, AdmissionLimits
from headway.core.errors import ConfigError
from headway.core.front import Front
from headway.core.kv import KvPool
from headway.core.request import Request, SamplingParams, Times, Usage
from headway.core.scheduler import Scheduler, SchedulerLimits
from headway.core.step import TokenLogprob
from headway.engine.config import EngineConfig, engine_config
from headway.engine.driver import Driver
from headway.engine.factories import BYTES_PER_GIB, LoadedModel, TextTokenizer, executor_factory, load
from headway.engine.snapshot import Snapshot, take_snapshot
from headway.engine.stream import Delta, Stream
from headway.engine.supervisor import SupervisedExecutor
from headway.executors.executor import ExecutorInfo
from headway.models import ChatTemplate, Progress

Prompt = str | Sequence[int]
T = TypeVar("T")

GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Output:
    """The whole answer to one prompt. `logprobs` is there when it was asked for."""

    text: str
    tokens: list[int]
    finish_reason: str
    usage: Usage
    times: Times
    logprobs: list[TokenLogprob] | None = None


class Engine:
    """One model, one scheduler, one supervised executor.

    `model` is what `headway.models.load_model` takes. Settings are those of `EngineConfig`, as a whole or as keywords;
    `report` is told the progress of a download. Nothing happens before the engine is started, by `with`,
    `async with` or `await start()`; then `ModelError` says what is wrong with the model.
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        config: EngineConfig | None = None,
        *,
        report: Callable[[Progress], None] | None = None,
        **settings: Any,
    ) -> None:
        if config is not None and settings:
            raise ConfigError(f"Give a config or keywords, not both; got {', '.join(sorted(settings))} as well.")
        self.config = config if config is not None else engine_config(**settings)
        self._model_name = model
        self._report = report
        self._ids = itertools.count(1)
        self._background: _Background | None = None
        self._executor: SupervisedExecutor | None = None
        self._driver: Driver | None = None
        self._model: LoadedModel | None = None

    # -- what is there, once started -----------------------------------------------------------------------------

    @property
    def model(self) -> LoadedModel:
        return _started(self._model)

    @property
    def tokenizer(self) -> TextTokenizer:
        return self.model.tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        return self.model.chat_template

    @property
    def info(self) -> ExecutorInfo:
        return _started(self._executor).info

    @property
    def front(self) -> Front:
        return _started(self._driver).front

    @property
    def scheduler(self) -> Scheduler:
        return _started(self._driver).scheduler

    @property
    def executor_pid(self) -> int | None:
        """Process id of the executor's child, None while there is none."""
        return self._executor.pid if self._executor is not None else None

    @property
    def max_model_len(self) -> int:
        """Longest prompt and output together, in tokens."""
        return self.front.admission.limits.max_model_len

    @property
    def ready(self) -> bool:
        return self._driver is not None and self._driver.ready and not self._driver.front.draining

    @property
    def not_ready_reason(self) -> str:
        if self._driver is None:
            return "The engine has not been started."
        if self._driver.front.draining and self._driver.ready:
            return "The server is shutting down."
        return self._driver.not_ready_reason

    def snapshot(self) -> Snapshot:
        """Every number of the engine at this moment, for `/load` and `/metrics`."""
        return take_snapshot(_started(self._driver))

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the model, start the executor, and begin to drive. Raises `ModelError`; nothing is left behind then."""
        self._model = await asyncio.to_thread(load, self._model_name, self.config.executor, self._report)
        self._executor = SupervisedExecutor(
            executor_factory(self._model, self.config), step_timeout_s=self.config.step_timeout
        )
        info = await asyncio.to_thread(self._executor.start)
        try:
            self._driver = self._assemble(info, self._executor, self._model.tokenizer)
        except BaseException:
            await self.close()
            raise
        self._driver.start()

    async def drain(self) -> None:
        """Take nothing new and return when everything inside has ended."""
        await _started(self._driver).drain()

    async def close(self) -> None:
        """Stop, now. Requests still inside end with an error. Idempotent."""
        if self._driver is not None:
            await self._driver.close()
        if self._executor is not None:
            await asyncio.to_thread(self._executor.close)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        self._background = _Background()
        try:
            self._background.call(self.start())
        except BaseException:
            self._background.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._background is not None
        self._background.call(self.close())
        self._background.stop()
        self._background = None

    # -- work ----------------------------------------------------------------------------------------------------

    def check_door(self) -> None:
        """Raise the `HeadwayError` with which any request would be refused now, before any work is done for one."""
        _started(self._driver).check_door()

    def submit(self, request: Request) -> Stream:
        """Let a request in. Raises the `HeadwayError` with which it is refused. Close the stream to cancel it."""
        return _started(self._driver).submit(request)

    async def stream(
        self, prompt: Prompt, *, max_tokens: int = 64, params: SamplingParams = GREEDY
    ) -> AsyncGenerator[Delta, None]:
        """The output of one prompt (text or token ids) as it appears. Closing it (`aclose`) cancels the request."""
        stream = await self._open(prompt, max_tokens, params)
        try:
            async for delta in stream:
                yield delta
        finally:
            stream.close()

    async def _open(self, prompt: Prompt, max_tokens: int, params: SamplingParams) -> Stream:
        ids = prompt if not isinstance(prompt, str) else await asyncio.to_thread(self.tokenizer.encode, prompt)
        return self.submit(Request(f"engine-{next(self._ids)}", ids, max_tokens, params=params))

    async def agenerate(
        self, prompts: Sequence[Prompt], *, max_tokens: int | Sequence[int] = 64, params: SamplingParams = GREEDY
    ) -> list[Output]:
        """The outputs of many prompts, in their order; any number of them. `max_tokens` for all, or one for each."""
        limits = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else list(max_tokens)
        # Enough to keep the engine full, few enough that a long list is not refused by the waiting room.
        room = asyncio.Semaphore(min(2 * self.config.max_num_seqs, self.config.max_waiting))

        async def answer(prompt: Prompt, limit: int) -> Output:
            async with room:
                return await _gather(await self._open(prompt, limit, params))

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(answer(*pair)) for pair in zip(prompts, limits, strict=True)]
        return [task.result() for task in tasks]

    def generate(
        self, prompts: Sequence[Prompt], *, max_tokens: int | Sequence[int] = 64, params: SamplingParams = GREEDY
    ) -> list[Output]:
        """`agenerate` for scripts: needs the engine to be entered with a plain `with`."""
        if self._background is None:
            raise RuntimeError("generate() needs `with Engine(...)`; under `async with`, await agenerate()")
        return self._background.call(self.agenerate(prompts, max_tokens=max_tokens, params=params))

    # -- assembly ------------------------------------------------------------------------------------------------

    def _assemble(self, info: ExecutorInfo, executor: SupervisedExecutor, tokenizer: TextTokenizer) -> Driver:
        config = self.config
        pool = KvPool(info.num_blocks, info.block_size)
        max_model_len = config.max_model_len or min(info.max_model_len, pool.capacity_tokens)
        if max_model_len > info.max_model_len:
            raise ConfigError(
                f"max_model_len is {max_model_len}; the model was trained for {info.max_model_len} positions.",
                param="max_model_len",
            )
        if max_model_len > pool.capacity_tokens:
            raise ConfigError(
                f"max_model_len is {max_model_len}; {config.kv_cache_gib:g} GiB of KV cache hold "
                f"{pool.capacity_tokens} tokens. Give at least "
                f"{max_model_len * info.kv_bytes_per_token / BYTES_PER_GIB:.2f} GiB, or lower max_model_len.",
                param="max_model_len",
            )
        front = Front(
            AdmissionLimits(max_model_len, pool.capacity_tokens, config.max_waiting, config.max_waiting_tokens),
            queue_timeout_ns=int(config.queue_timeout * NS_PER_S),
        )
        limits = SchedulerLimits(config.max_num_seqs, config.max_num_batched_tokens, info.chunk_multiple_tokens)
        return Driver(front, Scheduler(limits, pool, front.pull), executor, tokenizer.stream)


async def _gather(stream: Stream) -> Output:
    text: list[str] = []
    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []
    try:
        async for delta in stream:
            text.append(delta.text)
            tokens.extend(delta.tokens)
            logprobs.extend(delta.logprobs or ())
    finally:
        stream.close()
    assert delta.finish_reason is not None
    assert delta.usage is not None
    assert delta.times is not None
    asked = stream.request.params.logprobs is not None
    return Output("".join(text), tokens, delta.finish_reason, delta.usage, delta.times, logprobs if asked else None)


def _started(part: T | None) -> T:
    if part is None:
        raise RuntimeError("the engine has not been started")
    return part


class _Background:
    """An event loop in a thread of its own, for callers that have none."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headway-engine", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` there and wait for it. Ctrl-C cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
