"""What a load test can be told. The command line makes its flags of these fields; names are vLLM's where it has one.

Nothing heavy is imported here: `headway bench --help` reads this file and little else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from headway.setting import Setting

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Who is asked, and how. What may hold a key is never shown."""

    model: Annotated[str | None, Setting("Model to ask for.", "Server", default="the first that the server lists")] = (
        None
    )
    endpoint: Annotated[
        Literal["chat", "completions"] | None,
        Setting("Which of OpenAI's routes.", "Server", default="what the URL ends in, or chat"),
    ] = None
    api_key: Annotated[
        str | None,
        Setting(
            "Sent as a bearer token.",
            "Server",
            default="HEADWAY_API_KEY or OPENAI_API_KEY, over https or to a private host",
        ),
    ] = field(default=None, repr=False)
    header: Annotated[
        tuple[str, ...], Setting("Further header of every request, as NAME=VALUE; may be repeated.", "Server")
    ] = field(default=(), repr=False)
    extra_body: Annotated[
        str | None, Setting("Further fields of every body, as a JSON object: '{\"top_p\": 0.9}'.", "Server")
    ] = field(default=None, repr=False)
    stream: Annotated[bool, Setting("Ask for streams; without, there is no TTFT and no ITL.", "Server")] = True
    n: Annotated[int, Setting("Choices that are asked for in each request.", "Server", 1, 128)] = 1
    temperature: Annotated[float, Setting("Randomness of the answers.", "Server", 0, 2)] = 0.0
    tenant_header: Annotated[str | None, Setting("Header that carries the tenant's name.", "Server")] = None
    tenant_key: Annotated[tuple[str, ...], Setting("Key of a tenant, as NAME=KEY; may be repeated.", "Server")] = field(
        default=(), repr=False
    )
    insecure: Annotated[bool, Setting("Take any TLS certificate.", "Server")] = False
    ca: Annotated[str | None, Setting("File of certificates to trust.", "Server", names=("ca", "ca-cert"))] = None
    metrics_url: Annotated[
        str | None, Setting("Where the server's metrics are.", "Server", default="/metrics of the server")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """How long, and what of it counts."""

    duration: Annotated[
        float | None,
        Setting("Seconds for which load is offered, warm-up and cool-down included.", "Load", 0.1, 30 * DAY_S,
                default="what the percentile needs, a minute at least; the profile's own"),
    ] = None  # fmt: skip
    requests: Annotated[
        int | None,
        Setting("End after so many requests, if that is earlier.", "Load", 1, 100_000_000,
                names=("requests", "num-prompts")),
    ] = None  # fmt: skip
    warmup: Annotated[
        float | None,
        Setting("Seconds at the beginning that no figure is about.", "Load", 0, DAY_S,
                default="a tenth of the duration, at most 10"),
    ] = None  # fmt: skip
    cooldown: Annotated[
        float | None,
        Setting("Seconds at the end that no figure is about.", "Load", 0, DAY_S,
                default="a twentieth of the duration, at most 5"),
    ] = None  # fmt: skip
    seed: Annotated[
        int | None,
        Setting("Same seed: same requests at the same times.", "Load", 0, 2**62,
                default="0 for times and lengths, and texts that are new in each run"),
    ] = None  # fmt: skip
    percentile: Annotated[
        float | None,
        Setting("The highest that the run is for: the verdict asks for samples enough to tell it.", "Load", 50, 99.99,
                default="95; of a ramp or bursts, which are never the same for long, 50"),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseOptions:
    """What users accept. Sent to the server as x-slo-ttft-ms and x-slo-itl-ms as well."""

    slo_ttft: Annotated[float | None, Setting("Seconds to the first token, at most.", "Promises", 1e-6, DAY_S)] = None
    slo_itl: Annotated[
        float | None, Setting("Seconds between tokens, at most, at a request's own p99.", "Promises", 1e-6, DAY_S)
    ] = None
    slo_e2e: Annotated[float | None, Setting("Seconds to the end, at most.", "Promises", 1e-6, DAY_S)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """What is asked. Lengths: 512, 100:500, normal:MEAN,STD or lognormal:MEAN,STD, the last two with ,LOW:HIGH."""

    input_len: Annotated[
        str | None,
        Setting("Input tokens: 512, 100:500, normal:512,100, lognormal:512,300,16:2048.", "Prompts",
                default="the profile's own", names=("input-len", "random-input-len")),
    ] = None  # fmt: skip
    output_len: Annotated[
        str | None,
        Setting("Output tokens, in the same forms.", "Prompts", default="the profile's own",
                names=("output-len", "random-output-len")),
    ] = None  # fmt: skip
    prompts: Annotated[str, Setting("words, sample (of prose), sharegpt:FILE or jsonl:FILE.", "Prompts")] = "words"
    tokenizer: Annotated[
        str | None,
        Setting("tokenizer.json or its folder; server: its /tokenize; none: calibrated words.", "Prompts",
                default="server where it has one and prompts are words, else none"),
    ] = None  # fmt: skip
    shared_prefix_tokens: Annotated[
        int, Setting("Prompts begin alike for so many tokens, to try a prefix cache.", "Prompts", 0, 10_000_000)
    ] = 0
    shared_prefix_groups: Annotated[int, Setting("Different such beginnings.", "Prompts", 1, 1_000_000)] = 1
    shared_prefix_share: Annotated[float, Setting("Share of the requests that have one.", "Prompts", 0, 1)] = 1.0
    unique_prefix: Annotated[bool, Setting("Begin every prompt differently: no cache finds anything.", "Prompts")] = (
        False
    )
    tenants: Annotated[str | None, Setting("Who asks: 3 (equal ones), a,b or a=3,b=1.", "Prompts")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The client's own limits."""

    processes: Annotated[int, Setting("Client processes; more when one core is not enough.", "Client", 1, 64)] = 1
    timeout: Annotated[float, Setting("Seconds that a request may take.", "Client", 0.001, DAY_S)] = 600.0
    drain: Annotated[
        float | None,
        Setting("Seconds to wait for what is under way when the load is over.", "Client", 0, DAY_S,
                default="--timeout: the last request may take as long as the first"),
    ] = None  # fmt: skip
    respect_retry_after: Annotated[bool, Setting("Send a refused request again when the server says.", "Client")] = (
        False
    )
    scrape_interval: Annotated[
        float, Setting("Seconds between two looks at the server's metrics; 0: never.", "Client", 0, 3600)
    ] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything but the server's URL and the profile."""

    server: ServerOptions = ServerOptions()
    window: WindowOptions = WindowOptions()
    promise: PromiseOptions = PromiseOptions()
    text: TextOptions = TextOptions()
    client: ClientOptions = ClientOptions()
    noted: tuple[tuple[str, str], ...] = ()  # what the user says of the server
    rivals: tuple[str, ...] = ()  # "aiperf", "guidellm", "vllm": their definitions of the figures as well


# -- profiles: their docstrings are what `--help` says -----------------------------------------------------------------

MAX_RATE = 1e6
_CONCURRENCY = "Requests at a time."
_RATE = "Requests per second."


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """A fixed number of requests at a time: each slot sends its next when its last has ended (closed loop)."""

    concurrency: Annotated[
        int, Setting(_CONCURRENCY, "Profile", 1, 1_000_000, names=("concurrency", "max-concurrency"))
    ] = 8
    think: Annotated[float, Setting("Seconds between an answer and a slot's next request.", "Profile", 0, DAY_S)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Requests at a rate, whatever the server does (open loop): what independent users do to it."""

    request_rate: Annotated[float, Setting(_RATE, "Profile", 1e-6, MAX_RATE, names=("request-rate", "rate"))] = 2.0
    burstiness: Annotated[
        float, Setting("Shape of the gaps: 1 is Poisson, less is burstier, more is more even.", "Profile", 1e-3, 1e6)
    ] = 1.0
    constant: Annotated[bool, Setting("Equal gaps.", "Profile")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """A rate that rises until service degrades. The knee is found by a changepoint."""

    start_rate: Annotated[
        float, Setting(_RATE, "Profile", 1e-6, MAX_RATE, names=("start-rate", "ramp-up-start-rps"))
    ] = 0.5
    end_rate: Annotated[
        float | None,
        Setting(_RATE, "Profile", 1e-6, MAX_RATE, names=("end-rate", "ramp-up-end-rps"),
                default="twice what a short closed loop gets through"),
    ] = None  # fmt: skip
    steps: Annotated[int, Setting("Levels of equal length; 0: a straight line.", "Profile", 0, 10_000)] = 0
    until_degraded: Annotated[
        bool, Setting("End once service has clearly degraded: most requests fail, or wait eightfold.", "Profile")
    ] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """Short requests with long ones among them, at a rate, or with --concurrency in a closed loop."""

    share: Annotated[
        tuple[str, ...],
        Setting("NAME=WEIGHT/INPUT/OUTPUT, such as long=8%/1500:4000/64:256; may be repeated.", "Profile",
                default="92% short (40:160/32:96), 8% long (1500:4000/64:256)"),
    ] = ()  # fmt: skip
    request_rate: Annotated[float, Setting(_RATE, "Profile", 1e-6, MAX_RATE, names=("request-rate", "rate"))] = 2.0
    concurrency: Annotated[
        int | None,
        Setting(_CONCURRENCY, "Profile", 1, 1_000_000, names=("concurrency", "max-concurrency"),
                default="none: an open loop"),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LongContext(Concurrency):
    """Prompts near the longest the server takes, in a closed loop."""

    concurrency: Annotated[
        int, Setting(_CONCURRENCY, "Profile", 1, 1_000_000, names=("concurrency", "max-concurrency"))
    ] = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LongOutput(Concurrency):
    """Answers many times as long as their prompts, in a closed loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Calm, with bursts. Measures how long the server takes to recover from one."""

    base_rate: Annotated[float, Setting("Requests per second of the calm.", "Profile", 0, MAX_RATE)] = 2.0
    burst_rate: Annotated[float, Setting("Requests per second of a burst.", "Profile", 1e-6, MAX_RATE)] = 20.0
    period: Annotated[float, Setting("Seconds from burst to burst.", "Profile", 0.01, DAY_S)] = 60.0
    burst_share: Annotated[float, Setting("Share of a period that is burst.", "Profile", 0.001, 0.999)] = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What was really asked, when it was asked: Azure's CSV, Mooncake's JSON lines or our own."""

    file: str = ""
    time_scale: Annotated[
        float, Setting("Stretches the gaps: 2 is half the rate, 0.5 twice the rate.", "Profile", 1e-6, 1e6)
    ] = 1.0
    start: Annotated[float, Setting("Seconds of the trace that are skipped.", "Profile", 0, 30 * DAY_S)] = 0.0
    max_input_len: Annotated[int | None, Setting("Longest prompt; see --over.", "Profile", 1, 10_000_000)] = None
    max_output_len: Annotated[int | None, Setting("Longest answer; see --over.", "Profile", 1, 10_000_000)] = None
    over: Annotated[
        Literal["clip", "skip"], Setting("Shorten what is longer, or leave it out; the report counts both.", "Profile")
    ] = "clip"
    sort: Annotated[bool, Setting("Take a trace whose times go back, in order.", "Profile")] = False


Profile = Concurrency | Rate | Ramp | Mixed | LongContext | LongOutput | Burst | Trace

PROFILES: dict[str, type[Profile]] = {
    "concurrency": Concurrency,
    "rate": Rate,
    "ramp": Ramp,
    "mix": Mixed,
    "long-context": LongContext,
    "long-output": LongOutput,
    "burst": Burst,
    "trace": Trace,
}


# What else than a profile and prompts makes it another load.
_SHAPING = frozenset({"stream", "n", "temperature", "extra_body", "respect_retry_after"})
Told = bool | int | float | str | None


def load_options(*parts: Profile | TextOptions | ServerOptions | ClientOptions) -> dict[str, Told]:
    """Everything in them that shapes the load, as a saved run tells it. `extra_body` may hold a key."""
    return {
        field.name: ", ".join(value) if isinstance(value := getattr(part, field.name), tuple) else value
        for part in parts
        for field in fields(part)
        if field.name in _SHAPING or not isinstance(part, ServerOptions | ClientOptions)
    }


def name_of(profile: Profile) -> str:
    return next(name for name, kind in PROFILES.items() if type(profile) is kind)
