"""From a name to a `Model`: files that are complete and checked, and the facts that serving needs.

`load_model` is the whole story: tell what kind of name it is, get the files, convert a GGUF once, read the facts.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from headway.core.errors import ModelError
from headway.models.cache import Progress, Report, building, cache_folder, explained
from headway.models.convert import check_convertible, convert
from headway.models.fetch import BUILT_IN, SMOLLM2, fetch
from headway.models.gguf_file import GgufFile, check_not_blank, read_gguf
from headway.models.gguf_tokenizer import check_tokenizer, control_tokens, token_id, write_tokenizer
from headway.models.hub import fetch_repository, is_repository
from headway.models.ir_directory import TOKENIZER, check_extents, check_is_model, read_facts
from headway.models.tokenizer import Tokenizer

DEFAULT_MODEL = SMOLLM2.name
_FORMAT = "1"  # of what we write into a converted directory; a change makes new directories
_log = logging.getLogger(__name__)

# Control tokens that end a turn or a text whatever the metadata calls them: the file names one end of sequence, and
# chat models have two.
_END_TOKENS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|eot|>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "</s>",
    }
)
_ROLES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
    "seperator": "sep_token",
}


@dataclass(frozen=True, slots=True)
class Model:
    """A model on this machine, ready to be compiled and served."""

    name: str  # the default served name, e.g. "smollm2-135m"
    directory: Path  # holds openvino_model.xml and .bin
    tokenizer_file: Path  # tokenizer.json
    chat_template: str | None
    special_tokens: dict[str, str]  # bos_token, eos_token, … as templates want them
    eos_token_ids: tuple[int, ...]  # every id that ends generation
    context_tokens: int  # positions the model was trained for
    vocab_size: int  # width of the logits, which may exceed the tokens that exist
    # What its makers recommend, by the names of `SamplingParams`; empty when they say nothing.
    sampling_defaults: dict[str, float] = field(default_factory=dict)


def load_model(name: str = DEFAULT_MODEL, *, cache: Path | None = None, report: Report | None = None) -> Model:
    """Find, fetch, check and convert `name`: a built-in name, a `.gguf` file, an OpenVINO IR directory, or a hub's
    `owner/name`. Blocks, for minutes the first time; `report` is told how far it is, possibly from another thread.

    Raises:
        ModelError: with what is wrong and what to do.
    """
    if built_in := BUILT_IN.get(name):
        folder = cache_folder(cache)
        model = _from_gguf(built_in.name, fetch(built_in, folder, report), folder, report)
        return replace(model, sampling_defaults=dict(built_in.sampling_defaults))
    path = _local(name)
    if path is not None and path.is_dir():
        return _from_directory(path.name if path.name not in ("", "..") else path.resolve().name, path)
    if path is not None or name.lower().endswith(".gguf"):
        file = path or Path(name).absolute()
        return _from_gguf(file.stem, file, cache_folder(cache), report)
    if is_repository(name):
        return _from_directory(name.partition("@")[0], fetch_repository(name, report))
    raise ModelError(
        f"no model {name!r}: it is no file or directory here, no built-in name ({', '.join(BUILT_IN)}) and no hub "
        "repository (owner/name)",
        code="model_not_found",
    )


def _local(name: str) -> Path | None:
    """The existing file or directory `name` means, or None."""
    try:
        path = Path(name).expanduser().absolute()  # not resolved: a link's own name is the better one to serve under
        path.stat()
        return path
    except PermissionError as error:
        raise ModelError(f"cannot read {error.filename}: {error.strerror}", code="model_not_found") from error
    except (OSError, RuntimeError, ValueError):  # not there, or impossible as a path: no such home, too long, a NUL
        return None


def _from_gguf(name: str, file: Path, cache: Path, report: Report | None) -> Model:
    gguf = read_gguf(file)
    check_convertible(gguf)
    check_tokenizer(gguf)
    if gguf.own("rope.scaling.type") not in (None, "none") or "rope_freqs.weight" in gguf.tensors:
        _log.warning(
            "%s scales its rotary positions, which the converter ignores: long contexts will suffer",
            file,
        )
    directory = _converted(gguf, cache, report)
    vocabulary = control_tokens(gguf)
    ends = [token_id(gguf, role) for role in ("eos", "eot", "eom")] + [
        i for text, i in vocabulary.items() if text in _END_TOKENS
    ]
    tokens = gguf.metadata["tokenizer.ggml.tokens"]
    template = gguf.metadata.get("tokenizer.chat_template")
    return Model(
        name=name,
        directory=directory,
        tokenizer_file=directory / TOKENIZER,
        chat_template=template if isinstance(template, str) else None,
        special_tokens={role: tokens[i] for key, role in _ROLES.items() if (i := token_id(gguf, key)) is not None},
        eos_token_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
        context_tokens=int(gguf.own("context_length")),
        vocab_size=gguf.tensors["token_embd.weight"].shape[1],
    )


def _converted(gguf: GgufFile, cache: Path, report: Report | None) -> Path:
    """The directory with the IR and tokenizer of this file, made once. Holding the lock is rare: only to make it."""
    place = cache / "converted" / _key(gguf)
    if not place.exists():
        check_not_blank(gguf)
        with building(place) as folder:
            if not place.exists():
                ready = folder / "ready"
                ready.mkdir()
                convert(gguf, ready, report)
                if report:
                    report(Progress("tokenizer", gguf.path.name))
                with explained(folder, f"writing the tokenizer of {gguf.path.name}"):
                    write_tokenizer(gguf, ready / TOKENIZER)
                    ready.rename(place)
    check_extents(place)
    return place


def _key(gguf: GgufFile) -> str:
    """What a conversion depends on: this copy of this file, the converter, and our own format.

    The header tells models apart and the time of writing tells copies apart. A digest of everything would read many
    gigabytes at every start; a path would convert again after a move. The title is for people who look in.
    """
    written_ns = gguf.path.stat().st_mtime_ns
    converter = importlib.metadata.version("openvino-genai")
    parts = (_FORMAT, gguf.header_sha256, str(gguf.size_bytes), str(written_ns), converter)
    title = re.sub(r"[^\w.-]+", "-", str(gguf.metadata.get("general.name", gguf.architecture)), flags=re.ASCII)
    return f"{title[:60].strip('-.')}-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:20]}"


def _from_directory(name: str, directory: Path) -> Model:
    check_is_model(directory)
    facts = read_facts(directory)
    tokenizer = Tokenizer(directory / TOKENIZER)
    if tokenizer.vocab_size > facts.vocab_size:  # an id beyond the embedding would fail the step that feeds it
        raise ModelError(
            f"{directory} does not go together: {TOKENIZER} has token ids up to {tokenizer.vocab_size - 1:,}, and the "
            f"model's vocab_size in config.json is {facts.vocab_size:,}. Take the tokenizer that the model was "
            "exported with.",
            code="not_a_model",
        )
    ends = facts.eos_token_ids
    if not ends and (eos := facts.special_tokens.get("eos_token")) and (i := tokenizer.token_id(eos)) is not None:
        ends = (i,)
    return Model(
        name=name,
        directory=directory,
        tokenizer_file=directory / TOKENIZER,
        chat_template=facts.chat_template,
        special_tokens=facts.special_tokens,
        eos_token_ids=ends,
        context_tokens=facts.context_tokens,
        vocab_size=facts.vocab_size,
        sampling_defaults=facts.sampling_defaults,
    )
