"""`discover`: what a server is and takes, found out before any load. Every failure is one clear `LoadTestError`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.loadtest.client.address import Tls
from headway.loadtest.client.reading import Reading, read_whole
from headway.loadtest.client.refusal import retry_after_s
from headway.loadtest.client.request import Accepted, RequestTemplate, RequestWriter
from headway.loadtest.errors import LoadTestError, Rejected, Unanswered, Unauthorised, UnknownModel, Unreachable
from headway.loadtest.record import Record
from headway.loadtest.side.aside import aside
from headway.loadtest.side.channel import channel_to
from headway.loadtest.side.models import read_models
from headway.loadtest.side.reach import reach
from headway.wire.blocking import Answer, Channel
from headway.wire.errors import error_text
from headway.workload.item import Item

PROBE = Item(input_tokens=8, output_tokens=4)
PROBE_PROMPT = "Say hello."
PROBE_TIMEOUT_S = 120.0
CONNECT_TIMEOUT_S = 10.0
MODELS_TIMEOUT_S = 10.0  # where the model is known: the list only checks it
MAX_WAITS, MAX_WAIT_S = 5, 10.0  # for a server that is busy
_SHOWN_MODELS = 20

# What may be left out of a request, by the words that a refusal names it with; tried in this order when it names none.
_OPTIONAL: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("continuous_usage", ("continuous_usage_stats",), "no running token counts: chunks share the total evenly"),
    ("min_tokens", ("min_tokens",), "no min_tokens"),
    ("ignore_eos", ("ignore_eos",), "no ignore_eos: outputs may end before the asked length"),
    ("usage", ("stream_options", "include_usage"), "no usage in streams: tokens are counted here"),
    ("temperature", ("temperature",), "no temperature: it is the server's choice"),
)


@dataclass(frozen=True, slots=True)
class Discovered:
    """`notes` are one line each, for people: what the server does not take or tell."""

    model: str
    accepted: Accepted
    notes: tuple[str, ...] = ()

    def applied(self, template: RequestTemplate) -> RequestTemplate:
        """The template that this server takes."""
        return dataclasses.replace(template, model=self.model, accepted=self.accepted)


async def discover(
    template: RequestTemplate,
    tls: Tls | None = None,
    *,
    timeout_s: float = PROBE_TIMEOUT_S,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
) -> Discovered:
    """Connects, lists models, sends a few requests of 4 tokens. Without a model, the first is taken."""
    tls = tls or Tls()
    await reach(template.address, tls.context_for(template.address), connect_timeout_s)
    channel = channel_to(template, tls, timeout_s)
    probe = _Probe(template, channel, timeout_s)
    try:
        return await aside(probe.run)
    except LoadTestError as error:
        raise type(error)(probe.redact(str(error), 1000)) from None
    finally:
        channel.close()


class _Probe:
    def __init__(self, template: RequestTemplate, channel: Channel, timeout_s: float) -> None:
        self._template = template
        self._channel = channel
        self._timeout_s = timeout_s
        self._notes: list[str] = []
        self.redact = template.redactor().line

    def run(self) -> Discovered:
        models = self._models()
        model = self._choose(models)
        template = dataclasses.replace(self._template, model=model)
        accepted, answer = self._negotiate(template, models)
        accepted = self._look_at(template, accepted, answer)
        return Discovered(model, accepted, tuple(self._notes))

    # -- models and keys -----------------------------------------------------------------------------------------------

    def _models(self) -> tuple[str, ...]:
        """Those listed; every tenant's key is tried on the way."""
        tenants = self._template.tenant_headers
        listed: tuple[str, ...] = ()
        timeout_s = min(self._timeout_s, MODELS_TIMEOUT_S) if self._template.model else self._timeout_s
        for tenant, headers in (tenants or {"": {}}).items():
            path = self._template.address.path("/models")
            try:
                answer = self._get(path, headers, timeout_s)
            except Unanswered:
                if not self._template.model:
                    raise
                self._notes.append("the server does not list its models")
                return listed
            if answer.status in (401, 403):
                raise self._unauthorised(answer, tenant)
            if answer.status == 200:
                listed = listed or tuple(card.id for card in read_models(answer.json))
        return listed

    def _get(self, path: str, headers: Mapping[str, str], timeout_s: float) -> Answer:
        names = {**self._template.common_headers(), **{name.lower(): value for name, value in headers.items()}}
        channel = self._channel.with_headers(names, timeout_s)
        try:
            return channel.get(path)
        except TimeoutError:
            words = f"{self._where} took a connection and did not answer GET {path} in {timeout_s:g} s."
            raise Unanswered(words) from None
        except OSError as error:
            raise Unreachable(f"{self._where} took a connection and gave no HTTP answer: {error}") from None
        finally:
            channel.close()

    @property
    def _where(self) -> str:
        return self._template.address.authority

    def _choose(self, models: Sequence[str]) -> str:
        wanted = self._template.model
        if wanted and models and wanted not in models:
            raise self._unknown(wanted, models)
        if wanted:
            return wanted
        if not models:
            raise UnknownModel(f"{self._where} lists no models. Name the one to test.")
        if len(models) > 1:
            self._notes.append(f"the server has {len(models)} models; the first is tested: {models[0]}")
        return models[0]

    def _unknown(self, wanted: str, models: Sequence[str]) -> UnknownModel:
        shown = ", ".join(models[:_SHOWN_MODELS]) + (" …" if len(models) > _SHOWN_MODELS else "")
        return UnknownModel(
            f"{self._where} does not serve the model {wanted!r}. "
            + (f"It serves: {shown}." if models else "It does not say which it serves.")
        )

    def _unauthorised(self, answer: Answer, tenant: str = "") -> Unauthorised:
        whose = f" of tenant {tenant!r}" if tenant else ""
        given = any(
            "authorization" in name.lower() or "key" in name.lower()
            for name in (*self._template.common_headers(), *self._template.tenant_headers.get(tenant, {}))
        )
        advice = (
            f"It does not accept the API key{whose}."
            if given
            else ("It wants an API key and none was given: --api-key, or HEADWAY_API_KEY in the environment.")
        )
        return Unauthorised(
            f"{self._where} answers {answer.status}: {self.redact(error_text(answer.body), 200)}. {advice}"
        )

    # -- a small request -----------------------------------------------------------------------------------------------

    def _negotiate(self, template: RequestTemplate, models: Sequence[str]) -> tuple[Accepted, Answer]:
        """Leave out what is refused, until the server answers."""
        accepted = template.accepted
        while True:
            answer = self._post(dataclasses.replace(template, accepted=accepted))
            if 200 <= answer.status < 300:
                return accepted, answer
            words = error_text(answer.body)
            if answer.status in (401, 403):
                raise self._unauthorised(answer)
            if answer.status == 404 and "model" in words.lower():
                raise self._unknown(template.model, models)
            fewer = self._without(accepted, words) if answer.status in (400, 422) else None
            if fewer is None:
                raise self._rejected(answer, words)
            accepted = fewer

    def _without(self, accepted: Accepted, words: str) -> Accepted | None:
        """One option less: the one that the refusal names, else the next; None when nothing is left to leave out."""
        words = words.lower()
        if accepted.limit_name == "max_tokens" and "max_completion_tokens" in words:
            return dataclasses.replace(accepted, limit_name="max_completion_tokens")
        left = [option for option in _OPTIONAL if getattr(accepted, option[0])]
        named = [option for option in left if any(name in words for name in option[1])]
        for name, _, note in named or left:
            self._notes.append(f"the server takes {note}")
            without: dict[str, Any] = {name: False}
            return dataclasses.replace(accepted, **without)
        return None

    def _post(self, template: RequestTemplate) -> Answer:
        writer = RequestWriter(template)
        tenant = "" if "authorization" in template.common_headers() else next(iter(template.tenant_headers), "")
        headers = {name: value for name, value in writer.headers(tenant).items() if name != "host"}
        body = writer.body(PROBE, PROBE_PROMPT)
        for attempt in range(MAX_WAITS + 1):
            try:
                answer = self._channel.ask(
                    "POST", writer.path, body, headers, finished=_finished if template.stream else None
                )
            except TimeoutError:
                raise Rejected(
                    f"{self._where} did not finish a request of {PROBE.output_tokens} tokens in {self._timeout_s:g} s. "
                    "Is the model loaded, and the server idle?"
                ) from None
            except OSError as error:
                raise Rejected(f"{self._where} broke off a small request: {error}") from None
            if answer.status not in (429, 503) or attempt == MAX_WAITS:
                break
            told = {name.encode(): value.encode("latin-1", "replace") for name, value in answer.headers.items()}
            wait_s = retry_after_s(told)
            time.sleep(min(MAX_WAIT_S, wait_s if wait_s >= 0 else 1.0))
        return answer

    def _rejected(self, answer: Answer, words: str) -> Rejected:
        path = f"{self._template.address.base}/…"
        advice = {
            404: f" There is no such route under {self._template.address.base or '/'}; check the URL's path.",
            405: f" Is {path} the path of an OpenAI-compatible API?",
            429: " It limits this client even now; try later.",
            503: " It is not ready, or has no capacity even now; try later.",
        }.get(answer.status, "")
        if 300 <= answer.status < 400:
            advice = f" It redirects to {answer.headers.get('location', 'nowhere')}: give that URL."
        words = self.redact(words, 300) or "no words"
        return Rejected(f"{self._where} answers a small request with {answer.status}: {words}.{advice}")

    # -- its answer ----------------------------------------------------------------------------------------------------

    def _look_at(self, template: RequestTemplate, accepted: Accepted, answer: Answer) -> Accepted:
        record = Record(0, "", "", PROBE.input_tokens, PROBE.output_tokens, 0)
        if not template.stream:
            wrong, _ = read_whole(record, answer.body)
            if not wrong and record.output_tokens < 0:
                self._notes.append("the server tells no usage: tokens are not counted")
        elif "application/json" in answer.kind:
            wrong = "it answers in one piece where a stream was asked for; test it without streaming"
        else:
            wrong = self._look_at_stream(template, accepted, answer, record)
        if wrong:
            raise Rejected(f"{self._where} answers a small request, and {wrong}.")
        return accepted

    def _look_at_stream(self, template: RequestTemplate, accepted: Accepted, answer: Answer, record: Record) -> str:
        reading = Reading(record, choices=template.choices)
        reading.feed(answer.body, 0)
        reading.judge()
        reading.settle()
        if reading.failed:
            return reading.error
        if accepted.usage and record.input_tokens < 0:
            self._notes.append("the server tells no usage in streams: tokens are counted here")
        self._notes += [note for note in (reading.error, reading.note) if note]
        return ""


def _finished(body: bytes) -> bool:
    """Nothing more can come of a stream but its usage and [DONE], which not every server sends."""
    reading = Reading(Record(0, "", "", PROBE.input_tokens, PROBE.output_tokens, 0))
    reading.feed(body, 0)
    return reading.finished or reading.failed
