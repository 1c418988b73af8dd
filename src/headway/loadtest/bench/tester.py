"""`bench`: one load test, from a URL and a profile to a `Result`. `Tester` makes several on one server.

result = await bench("http://localhost:8000", Rate(request_rate=4), Options())
result.run.verdict, result.run.summary.overall.distributions["ttft"], result.records
"""

from __future__ import annotations

import asyncio
import secrets as chance
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import msgspec

from headway.loadtest.answers import answers
from headway.loadtest.bench.oom import out_of_memory
from headway.loadtest.bench.options import Concurrency, Options, Profile, Ramp, Told, load_options
from headway.loadtest.bench.profiles import Offered, Terms, offer
from headway.loadtest.bench.rulers import TIMEOUT_S, FileCount, ruler_for
from headway.loadtest.bench.template import keys_of_tenants, template_of
from headway.loadtest.bench.texts import LOOKED_AT, Texts, kind_of
from headway.loadtest.client.address import Tls
from headway.loadtest.client.limits import Limits
from headway.loadtest.client.request import RequestTemplate
from headway.loadtest.errors import InvalidPlan, ResultFailed
from headway.loadtest.record import Record
from headway.loadtest.redact import Redactor, kept_text
from headway.loadtest.result import Load, Run, Slo, Target
from headway.loadtest.runner import run as runner
from headway.loadtest.runner.interrupts import keeping
from headway.loadtest.runner.plan import ClosedLoad, Plan
from headway.loadtest.runner.progress import Progress
from headway.loadtest.side.aside import aside
from headway.loadtest.side.channel import channel_to
from headway.loadtest.side.discover import Discovered, discover
from headway.loadtest.side.models import card_of, read_models
from headway.loadtest.side.noted import check_notes, note
from headway.loadtest.summary import client_figures, summarise
from headway.loadtest.table import RecordTable, offered_until_s, tabulate
from headway.loadtest.verdict import Tolerances, judge
from headway.metrics.latency import S_PER_NS
from headway.workload.tokens import Counted, Measure

INTERRUPTED = 130
RUN_ID_BYTES = 8
NO_SECRET = frozenset({"none", "empty", "null", "dummy"})  # for a key that is asked for and not needed
KNOWN_PROMPTS = 0.05  # share of input tokens found in the server's cache that is worth a remark
# A ramp that was not told where to end: what this closed loop gets through says where the knee should be.
FEELER = Concurrency(concurrency=32)
FEELER_S, FEELER_REQUESTS = 5.0, 2000
BEYOND = 2.0

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Result:
    """A run and its records. No key is in any of their fields, whatever the server echoed."""

    run: Run
    records: list[Record] = field(repr=False)

    @property
    def exit_code(self) -> int:
        """By the verdict; of an interrupted run that of every interrupted command."""
        return INTERRUPTED if self.run.interrupted else self.run.verdict.name.exit_code


async def bench(
    url: str, profile: Profile, options: Options | None = None, *, on_progress: OnProgress | None = None
) -> Result:
    """Test a server. Raises `LoadTestError` and `WorkloadError` for what is wrong before the first request.

    Ctrl-C ends the load; the result is of what was measured until then.
    """
    tester = await Tester.meet(url, options or Options())
    return await tester.measure(await tester.offer(profile), on_progress=on_progress)


@dataclass(frozen=True, slots=True)
class Tester:
    """A server that was asked what it is and takes, and the options for testing it."""

    options: Options
    template: RequestTemplate = field(repr=False)
    tls: Tls
    found: Discovered
    ruler: Measure = field(repr=False)
    measured_by: str  # how input lengths are measured, for people
    max_model_len: int | None

    @classmethod
    async def meet(cls, url: str, options: Options) -> Tester:
        """Raises `LoadTestError` when there is no server to test, or none that takes what is to be sent."""
        template = template_of(url, options.server, options.promise)
        kind_of(options.text.prompts)  # a wrong one is known before the network is
        check_notes(options.noted)
        tls = Tls(verify=not options.server.insecure, ca_file=options.server.ca)
        found = await discover(template, tls)
        template = found.applied(template)
        words = options.text.prompts == "words"
        measure, by = await aside(lambda: ruler_for(template, tls, options.text.tokenizer, words=words))
        max_model_len = await aside(lambda: _max_model_len(template, tls))
        return cls(options, template, tls, found, measure, by, max_model_len)

    async def offer(self, profile: Profile, options: Options | None = None) -> Offered:
        """The load of a profile on this server. A ramp without an end sends a short load to find one."""
        options = options or self.options
        if isinstance(profile, Ramp) and profile.end_rate is None:
            profile = replace(profile, end_rate=await self._end_rate(profile, options))
        terms = Terms(options.window, options.text, self.ruler, self.max_model_len)
        offered = await asyncio.to_thread(offer, profile, terms)
        await asyncio.to_thread(self._check_lengths, offered)
        check_tenants(keys_of_tenants(options.server), offered.tenants)
        return offered

    async def measure(
        self,
        offered: Offered,
        options: Options | None = None,
        *,
        text_seed: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Result:
        """Make the load and say what came of it. `text_seed`: of the prompts' texts; by default `new_text_seed`."""
        options = options or self.options
        texts = self._texts(options, new_text_seed(options) if text_seed is None else text_seed)
        settings = {**offered.described.settings, **self._settings(options, texts)}
        load = msgspec.structs.replace(offered.described, settings=settings, options=self._told(offered, options))
        interval_s = options.client.scrape_interval or None
        plan = Plan(
            template=self.template,
            load=offered.load,
            prompts=texts,
            limits=_limits(options),
            tls=self.tls,
            count_tokens=self._recount(),
            processes=options.client.processes,
            scrape_interval_s=interval_s,
            metrics_url=options.server.metrics_url,
            stop_when_degraded=offered.until_degraded,
            slo_e2e_s=options.promise.slo_e2e,
        )
        with keeping():
            measured = await runner.run(plan, on_progress=on_progress)
            redactor = Redactor(secrets_of(self.template))
            await asyncio.to_thread(redactor.records, measured.records)
            try:
                result = await asyncio.to_thread(self._result, options, offered, load, measured)
                return replace(result, run=redactor.struct(result.run))
            except Exception as error:
                words = f"The load was made, and its figures could not be ({type(error).__name__}: {error})."
                raise ResultFailed(redactor.line(words), measured.records) from error

    # -- before --------------------------------------------------------------------------------------------------------

    def _texts(self, options: Options, seed: int) -> Texts:
        text = options.text
        return Texts(self.ruler, seed, kind_of(text.prompts), self.template.endpoint, text.unique_prefix)

    def _recount(self) -> FileCount | None:
        """Output is counted again with a tokenizer of ours; the server's own would only cost it time."""
        counts = self.ruler.count if isinstance(self.ruler, Counted) else None
        return counts if isinstance(counts, FileCount) else None

    def _told(self, offered: Offered, options: Options) -> dict[str, Told]:
        told = offered.described.options | load_options(options.server, options.client)
        if options.server.extra_body is not None:
            told["extra_body"] = kept_text(options.server.extra_body, self.template.redactor())
        return told

    def _settings(self, options: Options, texts: Texts) -> dict[str, str]:
        """What shaped the load besides its numbers."""
        settings = {"prompts": texts.description, "text seed": str(texts.seed), "input lengths by": self.measured_by}
        if not self.template.stream:
            settings["stream"] = "no"
        if self.template.choices > 1:
            settings["n"] = str(self.template.choices)
        if options.client.respect_retry_after:
            settings["respect Retry-After"] = "yes"
        if self.found.notes:
            settings["server"] = "; ".join(self.found.notes)
        return settings

    def _check_lengths(self, offered: Offered) -> None:
        if self.max_model_len is None:
            return
        for item, _ in zip(offered.items(), range(LOOKED_AT), strict=False):
            if item.messages is None and item.input_tokens + item.output_tokens > self.max_model_len:
                raise InvalidPlan(
                    f"A request of {item.input_tokens:,} input and {item.output_tokens:,} output tokens does not fit: "
                    f"{self.template.address.authority} takes {self.max_model_len:,} together. Use a smaller "
                    "--input-len or --output-len; for a trace, --max-input-len and --max-output-len."
                )

    async def _end_rate(self, ramp: Ramp, options: Options) -> float:
        window = replace(options.window, duration=FEELER_S, requests=FEELER_REQUESTS, warmup=0.0, cooldown=0.0)
        offered = await self.offer(FEELER, replace(options, window=window))
        assert isinstance(offered.load, ClosedLoad)
        plan = Plan(
            template=self.template,
            load=offered.load,
            prompts=self._texts(options, chance.randbits(32)),  # the ramp's own stay unknown
            limits=_limits(options),
            tls=self.tls,
            processes=options.client.processes,
            scrape_interval_s=None,
        )
        with keeping() as interrupts:
            measured = await runner.run(plan)
            interrupts.forget()
        if measured.interrupted or interrupts.absorbed:
            raise KeyboardInterrupt
        ended = [record.ended_ns for record in measured.records if record.ok]
        if not ended:
            errors = next((record.error for record in measured.records if record.error), "no request ended well")
            raise InvalidPlan(f"Where a ramp should end could not be found out ({errors}). Give --end-rate.")
        return float(f"{max(BEYOND * len(ended) / (max(ended) * S_PER_NS), 2 * ramp.start_rate):.2g}")

    # -- afterwards ----------------------------------------------------------------------------------------------------

    def _result(self, options: Options, offered: Offered, load: Load, measured: runner.Measured) -> Result:
        table = tabulate(measured.records)
        slo = Slo(ttft_s=options.promise.slo_ttft, itl_s=options.promise.slo_itl, e2e_s=options.promise.slo_e2e)
        cut_short = measured.interrupted or bool(measured.ended_early) or bool(measured.degraded)
        # What was sent all at once ends with its last answer.
        until_s = measured.ran_out_s if len(table) > (load.concurrency or 0) else None
        if cut_short:
            load, came_s = _as_far_as_it_came(load, table)
            until_s = min(came_s, until_s or came_s)
        elif isinstance(offered.load, ClosedLoad) and offered.load.at_least and until_s is not None:
            load = msgspec.structs.replace(load, duration_s=max(load.duration_s or 0.0, until_s))
            until_s = None
        summary = summarise(
            table,
            load,
            slo,
            elapsed_s=until_s,
            rival_tools=options.rivals,
            bursts_s=offered.bursts_s,
        )
        client = client_figures(
            table,
            load,
            summary.window_s,
            processes=measured.processes,
            cpu_ratio=measured.cpu_ratio,
            loop_lags_s=measured.loop_lags_s(summary.window_s),
            freezes=measured.freezes,
            stolen_ratio=measured.stolen_ratio,
        )
        address = self.template.address
        note(measured.environment, options.noted)
        verdict = judge(
            table,
            summary,
            client,
            load,
            Tolerances(percentile=offered.percentile),
            interrupted=measured.interrupted or bool(measured.degraded),
            ended_early=measured.ended_early,
            client_failed=measured.client_failed,
        )
        verdict.remarks += [
            f"{name[:1].upper()}{name[1:]}: {told}." for name, told in _remarks(table, measured, options, load).items()
        ]
        run = Run(
            started_at=measured.started_at,
            # An open loop may be over with its last answer, before the time in which no further request was due is.
            elapsed_s=max(measured.elapsed_s, summary.window_s[1]),
            target=Target(url=address.url, endpoint=self.template.endpoint, model=self.template.model),
            load=load,
            slo=slo,
            environment=measured.environment,
            client=client,
            summary=summary,
            verdict=verdict,
            signals=measured.signals,
            interrupted=measured.interrupted,
            ended_early=measured.ended_early,
            run_id=chance.token_hex(RUN_ID_BYTES),
        )
        return Result(run, measured.records)


def check_tenants(keyed: Collection[str], tenants: Collection[str]) -> None:
    """A key that no request would carry is a mistake: raises InvalidPlan. `tenants`: of the load, "" for nobody."""
    if unknown := sorted(set(keyed) - set(tenants)):
        names = sorted(filter(None, tenants))
        there = f"there are {', '.join(names[:8])}{', …' * (len(names) > 8)}" if names else "give --tenants"
        raise InvalidPlan(f"--tenant-key {unknown[0]}: no request is of that tenant; {there}.")


def secrets_of(template: RequestTemplate) -> tuple[str, ...]:
    """What no report may tell."""
    return tuple(secret for secret in template.secrets() if secret and secret.lower() not in NO_SECRET)


def new_text_seed(options: Options, number: int = 0) -> int:
    """By the seed that was given, and otherwise such that no prefix cache knows the texts from a run before.

    `number`: of several runs, whose texts must differ for the same reason.
    """
    seed = options.window.seed
    return chance.randbits(32) if seed is None else seed * 1000 + number if number else seed


def _limits(options: Options) -> Limits:
    client = options.client
    drain_s = client.timeout if client.drain is None else client.drain
    return Limits(timeout_s=client.timeout, drain_s=drain_s, respect_retry_after=client.respect_retry_after)


def _as_far_as_it_came(load: Load, table: RecordTable) -> tuple[Load, float]:
    """A load that was ended early lasted until its last request was due. What is short has no edges to leave out."""
    until_s = offered_until_s(load, table)
    warmup_s = load.warmup_s if load.warmup_s < until_s else 0.0
    return msgspec.structs.replace(load, warmup_s=warmup_s, cooldown_s=0.0), until_s


def _remarks(table: RecordTable, measured: runner.Measured, options: Options, load: Load) -> dict[str, str]:
    """What went otherwise than one would think, by name."""
    remarks = {}
    if measured.notes:
        remarks["client"] = "; ".join(measured.notes)
    if measured.degraded:
        remarks["stopped"] = measured.degraded
    if failures := out_of_memory(table.records):
        remarks["out of memory"] = failures
    if replaced := sum(record.replaced > 0 for record in table.records):
        remarks["kept connections"] = (
            f"{replaced:,} of {len(table):,} requests were sent a second time: the server closed the kept connection "
            "that they went over"
        )
    if retries := sum(record.retries for record in table.records):
        again = sum(record.retries > 0 for record in table.records)
        remarks["retries"] = f"{retries:,} after Retry-After, of {again:,} of {len(table):,} requests"
    given = kind_of(options.text.prompts) == "given"
    remarks |= answers(table.records, load).off_lengths(measured.off_lengths, of=len(table), given=given)
    told = [record for record in table.records if record.cached_tokens >= 0 and record.input_tokens > 0]
    if told:
        share = sum(record.cached_tokens for record in told) / sum(record.input_tokens for record in told)
        if share > KNOWN_PROMPTS:
            remarks["input found in the server's cache"] = f"{share:.1%}"
            if not options.text.shared_prefix_tokens and options.window.seed is not None:
                remarks["input found in the server's cache"] += (
                    ": if that is not meant, leave --seed out, so that texts are new"
                )
    return remarks


def _max_model_len(template: RequestTemplate, tls: Tls) -> int | None:
    """The longest request, if the server's list of models tells."""
    channel = channel_to(template, tls, TIMEOUT_S)
    try:
        card = card_of(read_models(channel.json(template.address.path("/models"))), template.model)
    finally:
        channel.close()
    return card.max_model_len if card is not None else None
