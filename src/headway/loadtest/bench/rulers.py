"""How long prompts are: by a tokenizer file, by the server's `/tokenize`, or by words that were tried out on it.

Everything here pickles, because prompts are made in the client's processes: what cannot travel (a tokenizer, a
connection) is made again where it is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headway.loadtest.client.address import Tls
from headway.loadtest.client.request import RequestTemplate, RequestWriter
from headway.loadtest.errors import InvalidPlan, LoadTestError, Rejected
from headway.loadtest.side.channel import channel_to
from headway.workload.item import Item
from headway.workload.tokens import Calibration, Counted, Measure, TokenizerFile
from headway.workload.words import WORDS, single_token_words

TIMEOUT_S = 60.0
# Texts whose tokens are asked of the server, in words: a line through their counts tells words from overhead.
CALIBRATION_WORDS = (16, 64, 256)

MOST_KNOWN = 4096  # counts of the server's that are kept: those of single words come first

T = TypeVar("T")


class Local:
    """Something that is made when it is first asked for, and again in every process it is sent to."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: Any = None

    def __reduce__(self) -> tuple[type[Local], tuple[()]]:
        return Local, ()

    def get(self, make: Callable[[], T]) -> T:
        if self._made is None:
            self._made = make()
        made: T = self._made
        return made


@dataclass(frozen=True)
class FileCount:
    """Tokens by a tokenizer.json."""

    path: str
    _tokenizer: Local = field(default_factory=Local, repr=False, compare=False)

    def __call__(self, text: str) -> int:
        return self._tokenizer.get(lambda: TokenizerFile(self.path))(text)


@dataclass(frozen=True)
class ServerCount:
    """Tokens by the server's `/tokenize`. Not for while a load is measured, but for a few texts."""

    template: RequestTemplate
    tls: Tls
    body: Mapping[str, Any]  # what goes beside the text
    text_field: str
    # What is known travels along, so that no process asks for the same words again.
    _known: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    _channel: Local = field(default_factory=Local, repr=False, compare=False)

    def __call__(self, text: str) -> int:
        tokens = self._known.get(text)
        if tokens is None:
            tokens = self._asked(text)
            if len(self._known) < MOST_KNOWN:
                self._known[text] = tokens
        return tokens

    def _asked(self, text: str) -> int:
        channel = self._channel.get(lambda: channel_to(self.template, self.tls, TIMEOUT_S))
        body = msgspec.json.encode({**self.body, self.text_field: text})
        try:
            answer = channel.ask("POST", f"{self.template.address.root}/tokenize", body)
        except OSError as error:
            raise Rejected(f"The server's /tokenize cannot be asked: {error}. Use --tokenizer PATH or none.") from None
        reply = answer.json if answer.status == 200 else None
        if isinstance(reply, dict):
            if isinstance(reply.get("count"), int):
                return int(reply["count"])
            if isinstance(reply.get("tokens"), list):
                return len(reply["tokens"])
        raise Rejected(f"The server's /tokenize answers {answer.status}. Use --tokenizer PATH or none.")


def server_count(template: RequestTemplate, tls: Tls) -> ServerCount | None:
    """The server's own tokenizer; None when it has none that can be asked."""
    shapes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"model": template.model, "add_special_tokens": False}, "prompt"),  # headway, vLLM
        ({"add_special": False}, "content"),  # llama.cpp
    )
    for body, text_field in shapes:
        count = ServerCount(template, tls, body, text_field)
        with contextlib.suppress(LoadTestError):
            if count(" ".join(WORDS[:16])) >= 16:
                return count
    return None


def tokenizer_path(text: str) -> Path:
    path = Path(text).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise InvalidPlan(f"--tokenizer {text}: no such file, and no folder with a tokenizer.json. Or: server, none.")
    return path


def ruler_for(template: RequestTemplate, tls: Tls, tokenizer: str | None, *, words: bool) -> tuple[Measure, str]:
    """How input lengths are measured, and that in a few words. Sends the server a few small requests. Blocks.

    `tokenizer`: a path, "server", "none", or None for what suits `words` (random ones, of which few are counted).
    """
    count: FileCount | ServerCount | None = None
    singles: tuple[str, ...] = ()
    if tokenizer not in {None, "server", "none"}:
        count = FileCount(str(tokenizer_path(str(tokenizer))))
        count(WORDS[0])  # a file that is no tokenizer is known before the load
    elif tokenizer == "server" or (tokenizer is None and words):
        count = server_count(template, tls)
        if count is None and tokenizer == "server":
            raise InvalidPlan(
                "--tokenizer server: this server has no /tokenize that answers. Give a tokenizer.json, or none."
            )
        if count is not None:
            singles = single_token_words(count)
            if tokenizer is None and not singles:
                count = None  # every prompt would have to be counted, again and again, while the server is measured
    if count is None:
        calibration = calibrated(template, tls)
        by = f"words calibrated on {calibration.samples} answers" if calibration.samples else "words, uncalibrated"
        return calibration, by
    overhead = _overhead(template, tls, count, singles or WORDS)
    by = "the server's /tokenize" if isinstance(count, ServerCount) else Path(count.path).name
    return Counted(count, overhead), f"{by}, and {overhead} tokens around each text"


def calibrated(template: RequestTemplate, tls: Tls) -> Calibration:
    """Tokens of words as the server counts them; the first guess when it tells no usage."""
    calibration = Calibration()
    for words in CALIBRATION_WORDS:
        text = " ".join((WORDS * (words // len(WORDS) + 1))[:words])
        tokens = input_tokens_of(template, tls, text)
        if tokens is None:
            break
        calibration.add(words, tokens)
    return calibration


def _overhead(template: RequestTemplate, tls: Tls, count: FileCount | ServerCount, words: tuple[str, ...]) -> int:
    """What the chat template or a start token adds. 0 when the server does not say.

    `words`: those that prompts are made of; another may be of other lengths behind the template than alone.
    """
    text = " ".join(words[:16])
    tokens = input_tokens_of(template, tls, text)
    return max(0, tokens - count(text)) if tokens is not None else 0


def input_tokens_of(template: RequestTemplate, tls: Tls, text: str) -> int | None:
    """How many tokens a prompt is to the server, template included; None when it does not say."""
    writer = RequestWriter(replace(template, stream=False, choices=1))
    tenant = next(iter(template.tenant_headers), "")
    headers = {name: value for name, value in writer.headers(tenant).items() if name != "host"}
    channel = channel_to(template, tls, TIMEOUT_S)
    try:
        answer = channel.ask("POST", writer.path, writer.body(Item(1, 1), text), headers)
    except OSError:
        return None
    finally:
        channel.close()
    body = answer.json if answer.status == 200 else None
    usage = body.get("usage") if isinstance(body, dict) else None
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) and 0 < tokens < 2**31 else None
