"""`Engine`: a model ready to answer. It assembles model, executor, scheduler, front and driver, and is the Python API.

with Engine("smollm2-135m") as engine:                    # from a script
print(engine.generate(["The sea is"], max_tokens=16)[0].text)

async with Engine("smollm2-135m") as engine:              # from asyncio
async for delta in engine.stream("The sea is", max_tokens=16):
print(delta.text, end="", flush=True)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any, Literal, Self, TypeVar, cast

from headway.core.errors import ConfigError, EngineFailed, HeadwayError, InvalidRequest, QueueFull
from headway.core.front.front import Front
from headway.core.pace import Shape
from headway.core.request import Request, SamplingParams, Slo, Times, Usage
from headway.core.scheduler.base import SchedulerBase
from headway.core.scheduler.step import TokenLogprob
from headway.engine.assembly import assemble, default_slo, lanes, step_time_model
from headway.engine.config import EngineConfig, engine_config
from headway.engine.driver import Driver
from headway.engine.factories import LoadedModel, TextTokenizer, executor_factory, load
from headway.engine.journal import Journal, Journals
from headway.engine.memory import resident_bytes
from headway.engine.profile import profile
from headway.engine.snapshot import take_snapshot
from headway.engine.stream import Delta, Stream
from headway.engine.supervisor import SupervisedExecutor
from headway.executors.executor import ExecutorInfo
from headway.metrics.snapshot import RecentStep, Snapshot
from headway.models import DEFAULT_MODEL, ChatTemplate, Progress

Prompt = str | Sequence[int]
T = TypeVar("T")

RECONFIGURABLE = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "long_prompt_slots",
    "long_output_slots",
    "long_prompt_lane_tokens",
    "long_output_lane_tokens",
    "slo_ttft",
    "slo_itl",
    "ttft_limit",
)

RETRY_FULL_S = 0.05

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
        model: str = DEFAULT_MODEL,
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
        self._ids = count(1)
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
    def scheduler(self) -> SchedulerBase:
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
        return not self.not_ready_reason

    @property
    def not_ready_reason(self) -> str:
        return self._driver.front.not_ready_reason if self._driver is not None else "The engine has not been started."

    @property
    def dead(self) -> bool:
        """Down for good: only a new process can help."""
        return self._driver is not None and self._driver.dead

    def snapshot(self) -> Snapshot:
        """Every number of the engine at this moment, for `/load` and `/metrics`."""
        info = self.info
        return take_snapshot(
            _started(self._driver),
            kv_reserved_bytes=info.num_blocks * info.block_size * info.kv_bytes_per_token,
            memory_bytes=(resident_bytes() or 0) + (resident_bytes(self.executor_pid) or 0 if self.executor_pid else 0),
        )

    @property
    def recent_steps(self) -> Sequence[RecentStep]:
        """What the last steps carried, oldest first."""
        return tuple(_started(self._driver).recent_steps)

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the model, start the executor, and begin to drive. Raises `ModelError`; nothing is left behind then."""
        if self._executor is not None:
            raise RuntimeError("the engine has been started before; make another one")
        self._model = await asyncio.to_thread(load, self._model_name, self.config.executor, self._report)
        self._executor = SupervisedExecutor(
            executor_factory(self._model, self.config), step_timeout_s=self.config.step_timeout
        )
        self._tell("load")
        info = await asyncio.to_thread(self._executor.start)
        try:
            step_time = step_time_model(info)
            observations = [] if info.step_time else await asyncio.to_thread(self._profile, self._executor)
            step_time.profile(observations)
            journals = self._journals(info, observations)
            front, scheduler = assemble(self.config, info, step_time, journals.listener)
        except BaseException:
            await self.close()
            raise
        self._driver = Driver(front, scheduler, self._executor, self._model.tokenizer.stream, journals=journals)
        self._driver.start()

    def _tell(self, stage: Literal["load", "measure"]) -> None:
        """These take seconds, and nobody knows how many."""
        if self._report is not None and self.config.executor != "simulated":
            self._report(Progress(stage, self.model.name))

    def _journals(self, info: ExecutorInfo, observations: list[tuple[Shape, int]]) -> Journals:
        header = {
            "model": self.model.name,
            "config": asdict(self.config),
            "executor": asdict(info),
            "profile": observations,  # (shape, ns): what the step-time model began with
        }
        logs = ((self.config.step_log, "step"), (self.config.decision_log, "decision"))
        steps, decisions = (Journal(path, kind, header) if path else None for path, kind in logs)
        return Journals(steps, decisions)

    def _profile(self, executor: SupervisedExecutor) -> list[tuple[Shape, int]]:
        self._tell("measure")
        most = self.config
        limits = {"max_num_seqs": most.max_num_seqs, "max_num_batched_tokens": most.max_num_batched_tokens}
        return profile(executor.run, executor.info, **limits)

    def reconfigure(self, /, **changes: Any) -> EngineConfig:
        """Change limits while serving: those of `RECONFIGURABLE`. Returns the config now in effect.

        Raises `ConfigError`, with nothing changed, for anything else or out of range. It takes effect with the next
        step; fewer slots drain.
        """
        if self.dead:
            raise EngineFailed(self.not_ready_reason, code="engine_down")
        for name in changes:
            if name not in RECONFIGURABLE:
                known = ", ".join(RECONFIGURABLE)
                raise ConfigError(f"{name!r} cannot be changed while serving; what can: {known}.", param=name)
        config = engine_config(**{**asdict(self.config), **changes})
        _started(self._driver).reconfigure(
            replace(
                self.scheduler.limits,
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
            ),
            lanes(config, config.max_num_seqs),
        )
        self.config = config
        return config

    async def drain(self) -> None:
        """Take nothing new and return when everything inside has ended."""
        await _started(self._driver).drain()

    async def close(self) -> None:
        """Stop, now. Requests still inside end with an error. Idempotent."""
        if self._driver is not None:
            await self._driver.close()
            self._driver.journals.close()
        if self._executor is not None:
            await asyncio.to_thread(self._executor.close)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        background = _Background()
        try:
            background.call(self.start())
        except BaseException:
            background.stop()
            raise
        self._background = background
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

    def lane_of(self, request: Request) -> str:
        """The name of the lane that a request waits in, or would."""
        return self.front.lanes.lane_of(request)

    @property
    def default_slo(self) -> Slo:
        """What a request is promised that does not say otherwise."""
        return default_slo(self.config)

    def submit(self, request: Request) -> Stream:
        """Let a request in. Raises the `HeadwayError` with which it is refused. Close the stream to cancel it."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[Request]) -> list[Stream]:
        """Let all of them in, or none, as the samples and prompts of one call."""
        for request in requests:
            self._check_tokens(request)
            if self.config.prefix_cache_scope == "tenant":
                request.cache_scope = (request.tenant, request.cache_scope)
        return _started(self._driver).submit_all(requests)

    def _check_tokens(self, request: Request) -> None:
        """One id that the model has no row for would cost everybody in its step."""
        vocab_size = self.info.vocab_size
        prompt: Sequence[Any] = request.prompt
        for index, token in enumerate(prompt):
            if not isinstance(token, int) or not 0 <= token < vocab_size:
                raise InvalidRequest(
                    f"prompt[{index}] is {token!r}; this model's token ids are 0 to {vocab_size - 1}.", param="prompt"
                )

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
        return self.submit(Request(f"engine-{next(self._ids)}", ids, max_tokens, params=params, slo=self.default_slo))

    async def agenerate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        max_tokens: int | Sequence[int] = 64,
        params: SamplingParams = GREEDY,
    ) -> list[Output]:
        """The outputs of many prompts, in their order; any number of them. `max_tokens` for all, or one for each.

        Prompt i draws with the seed `params.seed + i`: equal prompts get different answers, and a run can be repeated.
        """
        several = _several(prompts)
        limits = [max_tokens] * len(several) if isinstance(max_tokens, int) else list(max_tokens)
        if len(limits) != len(several):
            raise ConfigError(f"{len(several)} prompts and {len(limits)} max_tokens were given.", param="max_tokens")
        # Enough to keep the engine full, few enough that a long list is not refused by the waiting room.
        room = asyncio.Semaphore(min(2 * self.config.max_num_seqs, self.config.max_waiting))

        async def answer(index: int, prompt: Prompt, limit: int) -> Output:
            drawn = replace(params, seed=(params.seed + index) % 2**64)
            async with room:
                while True:
                    try:
                        return await _gather(await self._open(prompt, limit, drawn))
                    except QueueFull:  # by tokens, or by somebody else's requests: a batch can wait
                        await asyncio.sleep(RETRY_FULL_S)

        try:
            async with asyncio.TaskGroup() as group:
                # The longest first: begun last, they would run on alone, in steps that are nearly empty.
                order = sorted(range(len(several)), key=lambda index: -limits[index])
                tasks = {index: group.create_task(answer(index, several[index], limits[index])) for index in order}
        except* HeadwayError as errors:
            raise errors.exceptions[0] from None  # one is enough to say what is wrong; the rest were cancelled
        return [tasks[index].result() for index in range(len(several))]

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        max_tokens: int | Sequence[int] = 64,
        params: SamplingParams = GREEDY,
    ) -> list[Output]:
        """`agenerate` for scripts: needs the engine to be entered with a plain `with`."""
        if self._background is None:
            raise RuntimeError("generate() needs `with Engine(...)`; under `async with`, await agenerate()")
        return self._background.call(self.agenerate(prompts, max_tokens=max_tokens, params=params))


def _several(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """A lone prompt is one prompt, not one for each of its characters or tokens."""
    if isinstance(prompts, str) or (prompts and all(isinstance(one, int) for one in prompts)):
        return [cast(Prompt, prompts)]
    return cast(Sequence[Prompt], prompts)


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
