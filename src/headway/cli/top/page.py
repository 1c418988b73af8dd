"""`Page`: what a server tells at one moment, by its own names; fetched from `/metrics`, or from its load as JSON."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from headway.core.errors import ConfigError, HeadwayError
from headway.metrics.worker_signals import read_load
from headway.wire.http_address import HttpAddress

TIMEOUT_S = 5.0
MAX_PAGE_BYTES = 32 << 20
# Servers without `/metrics` that tell their load elsewhere.
LOAD_PATHS = ("/load", "/v1/loads", "/slots")
# The parser takes its time for each line: those that nobody looks at are not given to it.
_PREFIXES = ("headway_", "vllm:", "sglang:", "llamacpp:", "tgi_")
_UNUSED = ("_tokens_bucket", "headway_http_", "headway_lane_inter", "headway_lane_request_d", "headway_model_")


class Unreachable(HeadwayError):
    """There is no answer, or none that can be used."""

    code = "unreachable"


Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Page:
    """`series`: by name as a dashboard reads it, then by labels. `load`: of a server without metrics, by our names."""

    at_s: float
    series: dict[str, dict[Labels, float]] = field(default_factory=dict)
    load: Mapping[str, float] = field(default_factory=dict)

    def total(self, name: str) -> float | None:
        """Over all labels; None where the name is not there."""
        values = self.series.get(name)
        return sum(values.values()) if values else None

    def by(self, name: str, label: str, where: tuple[str, str] | None = None) -> dict[str, float]:
        """Summed by the values of one label; `where`: only those series that have that label with that value."""
        found: dict[str, float] = {}
        for labels, value in self.series.get(name, {}).items():
            for key, word in labels:
                if key == label and (where is None or where in labels):
                    found[word] = found.get(word, 0.0) + value
        return found


def page_of(text: str, at_s: float) -> Page:
    """Raises ValueError where it is not Prometheus' text."""
    lines = [line for line in text.splitlines() if line.startswith(_PREFIXES) and not _unused(line)]
    page = Page(at_s)
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            page.series.setdefault(sample.name, {})[labels] = sample.value
    return page


def _unused(line: str) -> bool:
    name = line.partition("{")[0]
    return name.endswith(_UNUSED[0]) or name.startswith(_UNUSED[1:])


class Source:
    """Asks one server. Raises `Unreachable`, and ConfigError where a key is missing or wrong."""

    def __init__(
        self,
        address: HttpAddress,
        key: str | None,
        *,
        insecure: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._key = key
        self._clock = clock
        self._tls = ssl.create_default_context()
        if insecure:
            self._tls.check_hostname = False
            self._tls.verify_mode = ssl.CERT_NONE
        self._path = "/metrics"

    def page(self) -> Page:
        if self._path == "/metrics":
            status, body = self._get(self._path)
            if status == 200:
                page = self._parsed(body)
                if page.series:
                    return page
            return self._load(status)
        status, body = self._get(self._path)
        return self._loaded(status, body) or self._load(status)

    def _parsed(self, body: bytes) -> Page:
        try:
            return page_of(body.decode("utf-8", "replace"), self._clock())
        except ValueError as error:
            raise Unreachable(f"What {self._url('/metrics')} says is not Prometheus' text: {error}") from error

    def _load(self, metrics_status: int) -> Page:
        for path in LOAD_PATHS:
            status, body = self._get(path)
            if (page := self._loaded(status, body)) is not None:
                self._path = path
                return page
        said = f"answers {metrics_status}" if metrics_status != 200 else "has no name that is known here"
        raise Unreachable(
            f"{self._url('/metrics')} {said}, and none of {', '.join(LOAD_PATHS)} tells a load. Is it an LLM server? "
            "SGLang needs --enable-metrics, llama.cpp --metrics."
        )

    def _loaded(self, status: int, body: bytes) -> Page | None:
        try:
            sample = read_load(json.loads(body)) if status == 200 else None
        except ValueError:
            sample = None
        return None if sample is None else Page(self._clock(), load=sample.values)

    def _url(self, path: str) -> str:
        address = self._address
        return f"{address.scheme}://{address.authority}{address.target(path)}"

    def _get(self, path: str) -> tuple[int, bytes]:
        request = urllib.request.Request(self._url(path))
        if self._key is not None:
            request.add_header("Authorization", f"Bearer {self._key}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._tls) as answer:
                return answer.status, answer.read(MAX_PAGE_BYTES)
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                wants = "refuses this key" if self._key is not None else "wants a key: give --api-key"
                raise ConfigError(f"{self._url(path)} {wants} (it answers {error.code}).", param="api-key") from error
            return error.code, b""
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise Unreachable(f"{self._url(path)} cannot be reached: {reason}") from error
