"""Text to tokens and back, over one `tokenizer.json`.

The text of tokens is the UTF-8 of their bytes, joined. Everything here follows from that one sentence: `decode` reads
it at once, a `Detokenizer` reads it piece by piece and holds back a character until its last byte has come, and the two
agree on every sequence of ids because they are the same reading. Bytes that are no UTF-8 become U+FFFD.

Encoding is the `tokenizers` library's, which releases the GIL: a long prompt does not stall an event loop whose thread
pool does the work.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from headway.core.errors import InvalidRequest, ModelError

_SPACE = "\u2581"  # how sentence-piece vocabularies write a space


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-in for every byte in byte-level vocabularies: itself where printable, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {**{chr(byte): byte for byte in printable}, **{chr(0x100 + i): byte for i, byte in enumerate(others)}}


_BYTES = _byte_alphabet()


class Tokenizer:
    """Thread-safe: nothing changes after construction.

    Raises (constructor):
        ModelError: the file is unreadable, or decodes in a way that is not a joining of bytes.
    """

    def __init__(self, file: Path) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
            description = json.loads(file.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"cannot read the tokenizer {file}: {error}", code="bad_tokenizer") from error
        self._tokenizer.no_truncation()  # a tokenizer that silently shortens a prompt cannot be counted with
        self._tokenizer.no_padding()
        kind = _decoder_kind(description, file)
        self._strip_first_space = kind == "spaces" and _strips_first_space(description)
        added = self._tokenizer.get_added_tokens_decoder()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self._special = frozenset(token for token, entry in added.items() if entry.special)
        self._bytes = [b""] * self.vocab_size  # ids no token has, as in padded vocabularies, are silent
        to_bytes = _bytes_of_byte_level if kind == "bytes" else _bytes_of_spaces
        for text, token in vocabulary.items():
            self._bytes[token] = text.encode() if token in added else to_bytes(text)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Special tokens written in it are recognised. `add_special_tokens` adds what the model
        wants around a plain text (often a beginning-of-sequence); a rendered chat template already holds it. A
        character whose bytes the vocabulary lacks is left out, as in the model's published tokenizer: SmolLM2's lacks
        six control characters and the first bytes of planes no language uses.

        Raises:
            InvalidRequest: `text` is not valid Unicode (a lone surrogate).
        """
        return self.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def encode_batch(self, texts: list[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """`encode` of each text, over several cores when there are several texts."""
        try:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        except TypeError:
            for text in texts:
                _check_unicode(text)
            raise
        return [encoding.ids for encoding in encodings]

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `tokens`."""
        detokenizer = Detokenizer(self, skip_special_tokens)
        return detokenizer.add(tokens) + detokenizer.flush()

    def token_bytes(self, token: int) -> bytes:
        """What the token adds to the text, as bytes; empty for an id that no token has."""
        return self._bytes[token] if 0 <= token < self.vocab_size else b""

    def token_text(self, token: int) -> str:
        """The token alone, for people to read; a part of a character shows as U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def token_id(self, text: str) -> int | None:
        """The id of the token written `text`, e.g. a special token."""
        token: int | None = self._tokenizer.token_to_id(text)
        return token

    def stream(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """A reader for one sequence's tokens as they come."""
        return Detokenizer(self, skip_special_tokens)


class Detokenizer:
    """Reads one sequence's tokens as they come. Not shared between sequences.

    Law: the texts of `add` and of the final `flush`, joined, are `decode` of all the tokens.
    """

    __slots__ = ("_at_start", "_decoder", "_skip_special", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = tokenizer._strip_first_space

    def add(self, tokens: Iterable[int]) -> str:
        """The text that is now complete: whole characters only, possibly none."""
        source = self._tokenizer
        data = b"".join(source.token_bytes(t) for t in tokens if not (self._skip_special and t in source._special))
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """What is left at the end: nothing, or one U+FFFD for a character that never became whole."""
        return self._decoder.decode(b"", final=True)


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the text is not valid Unicode: a lone surrogate at character {error.start}") from error


def _decoder_parts(description: dict[str, Any]) -> list[dict[str, Any]]:
    decoder = description.get("decoder") or {}
    return list(decoder.get("decoders", [])) if decoder.get("type") == "Sequence" else [decoder]


def _decoder_kind(description: dict[str, Any], file: Path) -> str:
    """`bytes` for byte-level vocabularies, `spaces` for sentence-piece ones with byte fallback."""
    types = {part.get("type") for part in _decoder_parts(description)}
    if types == {"ByteLevel"}:
        return "bytes"
    if types <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"} and types & {"Replace", "Metaspace"}:
        return "spaces"
    names = ", ".join(sorted(str(t) for t in types))
    raise ModelError(
        f"{file}: its decoder ({names}) is not supported; byte-level and sentence-piece decoders are",
        code="unsupported_tokenizer",
    )


def _strips_first_space(description: dict[str, Any]) -> bool:
    parts = {part.get("type"): part for part in _decoder_parts(description)}
    metaspace = parts.get("Metaspace", {})
    return "Strip" in parts or metaspace.get("prepend_scheme", "always" if metaspace else "never") != "never"


def _bytes_of_byte_level(text: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in text)
    except KeyError:  # a token outside the alphabet is its own text, as in the library
        return text.encode()


def _bytes_of_spaces(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return bytes([int(text[3:5], 16)])
        except ValueError:
            pass
    return text.replace(_SPACE, " ").encode()
