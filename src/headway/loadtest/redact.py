r"""Keeps keys out of records, errors and reports. A server may echo a key: every text from outside passes here, and
every result as a whole when it is made. Reports trust results; files are cleaned again as they are written, and as
they are read, for older ones were not.

Known secrets (`--api-key`) are looked for as they are; others are told by the name they stand under (`api_key`,
`Authorization`, `--hf-token`, `?key=`) or by their shape (`sk-…`, a JWT). Better a word too many hidden than a key
shown.

What a server says is shown to people, on terminals and in tables, so what could steer one is made visible on the same
way: control characters and overrides of the direction of writing are written as Python writes them (`\x1b`).
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from itertools import pairwise
from typing import Any, TypeVar
from urllib.parse import quote, quote_plus, unquote, unquote_plus

import msgspec
import numpy as np

from headway.loadtest.record import Record
from headway.loadtest.result import Struct

MASK = "***"
# A known secret below this many characters, such as the "x" of somebody whose server wants any key, is hidden only
# where it is a word of its own.
SHORT = 6
MAX_ERROR_CHARS = 240
_ROUNDS = 8
_READ_CHARS = 16_384  # of a text that is cut to a line
_TEXTS = ("kind", "tenant", "finish_reason", "server_timing", "error")  # of a record
_REMEMBERED = 10_000
_LONGEST_KEY = 4096  # what is longer is a text

_STEERING = re.compile(
    "[\x00-\x1f\x7f-\x9f\N{LINE SEPARATOR}\N{PARAGRAPH SEPARATOR}\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LINE_ENDS = "\t\n\r"

Whole = TypeVar("Whole", bound=Struct)

# Names that tell a secret wherever they stand in a longer name, and those that do so only at its end: `max_key_len`
# and `key_cache_dtype` are none. The plural `tokens` is a count here.
_STRONG = {"apikey", "secret", "password", "passwd", "passphrase", "pwd", "authorization", "credential", "credentials"}
_STRONG |= {"bearer", "cookie", "jwt"}
_WEAK = {"key", "token", "auth", "signature", "sig"}
_OF_A_TOKENIZER = {"pad", "eos", "bos", "unk", "sep", "cls", "mask", "stop"}
# Values that many a request has and nobody keeps to himself: words, numbers, dates, versions, media types.
_ORDINARY = re.compile(
    r"[a-z]{1,12}(?:[_ -][a-z]{1,12}){0,3}|[A-Z]?[a-z]{1,11}|[A-Z]{1,8}|[\d.:TZ+-]{1,32}|v\d[\w.-]{0,8}"
    r"|(?:application|text|image|audio|video|multipart)/[\w.+*-]{1,40}(?:;\s*charset=[\w-]+)?|\*/\*"
    r"|gzip(?:,\s*\w+)*|Mozilla/5\.0 .*|curl/[\d.]+"
)
_LOOKS_RANDOM = 16  # characters; prose has shorter words behind "key:" and "token:"

# A header's whole value is hidden by less: it is sent, not shown, and nobody misses it.
_SECRET_HEADER = re.compile(r"auth|cookie|key|token|secret|passw|credential|signature|^sig$", re.IGNORECASE)

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_USERINFO = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)(?:[^/\s?#]*|[^/\s?#@:]+:(?!\d+(?:[/?#\s]|$))[^\s@]*)@")
_PARAMETER = re.compile(r"(?<=[?&;#])([\w.%-]+)=([^&#;\s\"'<>]*)")
_FLAG = re.compile(r"(--?[a-zA-Z][\w-]*)(\s+|=)(\"[^\"]*\"|'[^']*'|(?:(?<==)|(?!-))\S+)")
_ASSIGNED = re.compile(
    r"(?i)(\b(?:api )?[a-z][\w-]*(?: provided)?[\"']?\s*[:=]\s*)((?:bearer|basic)\s+)?"
    r"(\"[^\"]*\"|'[^']*'|[^\s\"',;&{}<>]+)"
)
_SCHEME = re.compile(r"(?i)\b(bearer|basic)\s+(?!auth|token|scheme|realm)[\w.~+/=-]{6,}")
_SHAPES = re.compile(
    r"\b(?:sk|pk|rk|hf|gsk|xai|ghp|gho|ghs|glpat|nvapi|fw|r8|pplx)[-_][\w*.-]{6,}"
    r"|\bAKIA[0-9A-Z]{12,}|\bAIza[\w-]{20,}|\beyJ[\w-]+\.[\w-]+\.?[\w-]*"
)


def harmless(text: str, keep: str = "") -> str:
    """Nothing in it moves a cursor, ends a line or turns the writing round, but for the signs to `keep`."""
    return _STEERING.sub(lambda m: m[0] if m[0] in keep else m[0].encode("unicode_escape").decode("ascii"), text)


def is_secret_name(name: str) -> bool:
    """Whether what stands under this name is to be hidden: a header, a flag, a query parameter, a key of a mapping."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    if _STRONG & set(words) or {("api", "key"), ("access", "key")} & set(pairwise(words)):
        return True
    return words[-1] in _WEAK and not (words[-1] == "token" and _OF_A_TOKENIZER & set(words[-2:-1]))


def secrets_in(headers: Mapping[str, str]) -> list[str]:
    """The values of headers, or of a query's fields, that carry credentials: with and without a scheme (`Bearer`)."""
    found = []
    for name, value in headers.items():
        if _SECRET_HEADER.search(name):
            found += [value, value.partition(" ")[2]]
    return [secret for secret in found if secret]


def hidden_in(values: object) -> list[str]:
    """What may be secret in headers or in a body of any depth, whose names tell nothing: better too much than a key."""
    if isinstance(values, str):
        return [values] if len(values) >= SHORT and not _ORDINARY.fullmatch(values) else []
    if isinstance(values, Mapping):
        named = [value for name, value in values.items() if isinstance(value, str) and is_secret_name(name)]
        return named + [secret for value in values.values() for secret in hidden_in(value)]
    if isinstance(values, Iterable):
        return [secret for value in values for secret in hidden_in(value)]
    return []


def in_urls(secret: str) -> list[str]:
    """A secret in all forms that it can have in a URL: as it is written there, decoded, and encoded again."""
    plain = {secret, unquote(secret), unquote_plus(secret)}
    forms = (
        plain
        | {one.replace(" ", "+") for one in plain}
        | {quoted for one in plain for quoted in (quote(one), quote(one, safe=""), quote_plus(one))}
    )
    lower = {re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), form) for form in forms}
    return sorted(forms | lower)


def forms_of(secret: str) -> set[str]:
    """A secret in every form in which a server may send it back: as it is, in a URL, in JSON, in HTML."""
    if len(secret) < SHORT:  # "x" is what every escape is made of
        return {secret}
    if len(secret) > _LONGEST_KEY:
        return {secret, *in_urls(secret)}
    in_json = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    forms = {secret, *in_urls(secret), *in_json}
    forms |= {re.sub(r"[\"'&<>]", lambda found: f"\\u{ord(found[0]):04x}", form) for form in {secret, *in_json}}
    forms |= {form.replace("/", escaped) for form in forms for escaped in ("\\/", "\\u002f")}
    forms |= {re.sub(r"\\u[0-9a-f]{4}", lambda found: "\\u" + found[0][2:].upper(), form) for form in forms}
    return {form for form in forms | _in_html(secret) if form}


def _in_html(secret: str) -> set[str]:
    """Names for what must be escaped, or numbers for that, for all but letters and digits, or for everything."""
    bare = html.escape(secret, quote=False)
    forms = {
        bare.replace('"', double).replace("'", single).replace("/", slash)
        for double in ('"', "&quot;", "&#34;", "&#x22;")
        for single in ("'", "&#x27;", "&#39;", "&#039;", "&apos;")
        for slash in ("/", "&#x2F;", "&#x2f;", "&#47;")
    }
    for pattern in (r"[\"'&<>]", r"[\"'&<>/]", r"[\"'&<>/=`]", r"[^0-9A-Za-z]", r"[\W_]", r"[^\w.-]", r"[^\w-]", r"."):
        for number in ("&#{};", "&#{:03};", "&#x{:x};", "&#x{:X};", "&#x{:02x};"):
            forms.add(re.sub(pattern, lambda found, number=number: number.format(ord(found[0])), secret))
    return forms


class Redactor:
    """Hides secrets in text, and in whole reports. Doing it twice changes nothing more."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        # The longest first, so that a key that is part of another leaves no rest of it.
        known = sorted({form for secret in secrets if secret for form in forms_of(secret)}, key=len, reverse=True)
        parts = (re.escape(one) if len(one) >= SHORT else rf"(?<!\w){re.escape(one)}(?!\w)" for one in known)
        self._known = re.compile("|".join(parts)) if known else None

    def __repr__(self) -> str:
        return f"Redactor({'some' if self._known else 'no'} known secrets)"

    def line(self, text: str, limit: int = MAX_ERROR_CHARS) -> str:
        """Clean, white space folded, and cut to a readable length."""
        read = text[:_READ_CHARS]
        if len(text) > len(read) and not read[-1].isspace():
            read = read.removesuffix(read.split()[-1][-1024:])  # a key that is cut in two would not be known
        text = " ".join(self.text(read).split())
        return text if len(text) <= limit else text[: limit - 1] + "…"

    def text(self, text: str) -> str:
        """Clean and harmless; it may have several lines."""
        return harmless(self._masked(text), _LINE_ENDS)

    def _masked(self, text: str) -> str:
        """Until nothing more is found: one mask may bring out what stood beside it."""
        for _ in range(_ROUNDS):
            before, text = text, self._once(text)
            if text == before:
                break
        return text

    def _once(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MASK, text)
        text = _USERINFO.sub(r"\1", text)
        text = _PARAMETER.sub(lambda m: f"{m[1]}={MASK}" if is_secret_name(m[1]) else m[0], text)
        text = _FLAG.sub(lambda m: f"{m[1]}{m[2]}{MASK}" if is_secret_name(m[1]) else m[0], text)
        text = _ASSIGNED.sub(_hide_assigned, text)
        text = _SCHEME.sub(rf"\1 {MASK}", text)
        return _SHAPES.sub(MASK, text)

    def records(self, records: Iterable[Record]) -> None:
        """Every text in them, in place; each is one line."""
        known = {"": ""}  # thousands of requests fail in the same words
        for record in records:
            for name in _TEXTS:
                text = getattr(record, name)
                clean = known.get(text)
                if clean is None:
                    clean = harmless(self.text(text))
                    if len(known) < _REMEMBERED:
                        known[text] = clean
                if clean != text:
                    setattr(record, name, clean)

    def struct(self, whole: Whole) -> Whole:
        """A copy of a run, a comparison, … in which every string and every key of a mapping is clean."""
        return msgspec.convert(self._walk(msgspec.to_builtins(whole, enc_hook=_number)), type(whole))

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self._walk(one) for one in value]
        if not isinstance(value, dict):
            return value
        clean: dict[str, Any] = {}
        for name, inner in value.items():
            hidden = isinstance(inner, str) and inner != "" and is_secret_name(name)
            key, new = self.text(name), MASK if hidden else self._walk(inner)
            if key in clean and isinstance(new, int):  # two error messages that differed only in the key they told
                new += clean[key]
            clean[key] = new
        return clean


def kept_text(text: str, redactor: Redactor, *, secret: bool = False) -> str:
    """Without keys; where one was, with a mark that another key would change. The mark has 16 bits, so that it cannot
    tell a short password to somebody who tries them all.
    """
    shown = MASK if secret else redactor.text(text)
    return shown if shown == text else f"{shown} (#{blake2b(text.encode(), digest_size=2).hexdigest()})"


def _number(value: Any) -> Any:
    """A numpy scalar that slipped into a result must not cost the report of a run of hours."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a report cannot hold a {type(value).__name__}")


def _hide_assigned(found: re.Match[str]) -> str:
    """`name: value` in prose or in JSON: a strong name hides its value, `key` and `token` only what looks random."""
    name = re.sub(r"(?i) provided|[\"'\s:=]+$", "", found[1]).replace(" ", "_")
    value = found[3].strip("\"'")
    strong = is_secret_name(name) and name.lower() not in _WEAK
    if strong or (is_secret_name(name) and len(value) >= _LOOKS_RANDOM):
        quote = found[3][0] if found[3][0] in "\"'" else ""
        return f"{found[1]}{quote}{MASK}{quote}"
    return found[0]
