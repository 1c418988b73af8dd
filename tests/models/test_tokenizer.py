"""The text of tokens is the UTF-8 of their bytes: at once, in pieces, from any thread."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from headway.core.errors import InvalidRequest, ModelError
from headway.models import Tokenizer

VOCABULARY = 49_152
token_lists = st.lists(st.integers(0, VOCABULARY - 1), max_size=40)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
# Bytes that SmolLM2's vocabulary does not have, in this file and as published: control characters, and the first bytes
# of characters from U+40000 on, which are unassigned.
UNWRITABLE = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}
quick = settings(max_examples=300, deadline=None)


@pytest.fixture(scope="module")
def library(default_tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    return default_tokenizer._tokenizer


def in_pieces(tokenizer: Tokenizer, tokens: list[int], cuts: list[int], skip: bool = True) -> list[str]:
    stream = tokenizer.stream(skip_special_tokens=skip)
    bounds = sorted({0, len(tokens), *(cut % (len(tokens) + 1) for cut in cuts)})
    pieces = [stream.add(tokens[a:b]) for a, b in itertools.pairwise(bounds)]
    return [*pieces, stream.flush()]


@quick
@given(tokens=token_lists, cuts=st.lists(st.integers(0, 40)), skip=st.booleans())
@example(tokens=[0, 1, 2], cuts=[1, 2], skip=True)
def test_pieces_join_to_the_whole(default_tokenizer: Tokenizer, tokens: list[int], cuts: list[int], skip: bool) -> None:
    whole = default_tokenizer.decode(tokens, skip_special_tokens=skip)
    assert "".join(in_pieces(default_tokenizer, tokens, cuts, skip)) == whole
    one_by_one = default_tokenizer.stream(skip_special_tokens=skip)
    assert "".join(one_by_one.add([t]) for t in tokens) + one_by_one.flush() == whole


@quick
@given(tokens=token_lists, skip=st.booleans())
def test_the_whole_is_what_the_library_decodes(
    default_tokenizer: Tokenizer, library: tokenizers.Tokenizer, tokens: list[int], skip: bool
) -> None:
    assert default_tokenizer.decode(tokens, skip_special_tokens=skip) == library.decode(
        tokens, skip_special_tokens=skip
    )


@quick
@given(text=texts)
@example(text="👩‍👩‍👧 and 🇦🇹, नमस्ते")
def test_no_piece_of_a_valid_text_holds_half_a_character(default_tokenizer: Tokenizer, text: str) -> None:
    tokens = default_tokenizer.encode(text)
    stream = default_tokenizer.stream(skip_special_tokens=False)
    assume(UNWRITABLE.isdisjoint(text.encode()))
    pieces = [stream.add([token]) for token in tokens]
    assert stream.flush() == ""
    assert "".join(pieces) == text
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


def test_only_characters_of_no_language_cannot_be_written(default_tokenizer: Tokenizer) -> None:
    written = {data[0] for token in range(VOCABULARY) if len(data := default_tokenizer.token_bytes(token)) == 1}
    never_in_utf8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
    assert set(range(256)) - written - never_in_utf8 == UNWRITABLE


def test_an_emoji_over_several_tokens_comes_out_at_its_last(default_tokenizer: Tokenizer) -> None:
    tokens = default_tokenizer.encode("🦩")
    assert len(tokens) > 1
    stream = default_tokenizer.stream()
    assert [stream.add([token]) for token in tokens] == [""] * (len(tokens) - 1) + ["🦩"]
    cut = default_tokenizer.stream()
    assert (cut.add(tokens[:-1]), cut.flush()) == ("", "\ufffd")


@quick
@given(tokens=token_lists)
def test_bytes_join_to_the_text(default_tokenizer: Tokenizer, tokens: list[int]) -> None:
    joined = b"".join(default_tokenizer.token_bytes(token) for token in tokens)
    assert joined.decode("utf-8", "replace") == default_tokenizer.decode(tokens, skip_special_tokens=False)


def test_every_token_has_bytes_and_a_text(default_tokenizer: Tokenizer) -> None:
    assert default_tokenizer.vocab_size == VOCABULARY
    assert all(default_tokenizer.token_bytes(token) for token in range(VOCABULARY))
    assert default_tokenizer.token_text(2) == "<|im_end|>"
    assert default_tokenizer.token_id("<|im_end|>") == 2


@pytest.mark.parametrize("token", [-1, VOCABULARY, 10**9])
def test_an_id_that_no_token_has_is_silent(default_tokenizer: Tokenizer, token: int) -> None:
    assert default_tokenizer.token_bytes(token) == b""
    assert default_tokenizer.decode([token, *default_tokenizer.encode("x"), token]) == "x"


def test_special_tokens_are_recognised_in_text_and_left_out_of_it(default_tokenizer: Tokenizer) -> None:
    tokens = default_tokenizer.encode("<|im_start|>user\nhi<|im_end|>")
    assert (tokens[0], tokens[-1]) == (1, 2)
    assert default_tokenizer.decode(tokens) == "user\nhi"


def test_a_long_text_is_not_shortened(default_tokenizer: Tokenizer) -> None:
    assert len(default_tokenizer.encode("one two three four " * 5000)) == 20_001


def test_a_lone_surrogate_is_the_clients_error(default_tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        default_tokenizer.encode("ab\ud800c")


def test_many_threads_read_the_same(default_tokenizer: Tokenizer) -> None:
    many = [f"text {i} " * (i % 7 + 1) + "é🙂" for i in range(200)]
    alone = [default_tokenizer.encode(text) for text in many]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(default_tokenizer.encode, many)) == alone
        assert list(pool.map(default_tokenizer.decode, alone)) == many
    assert default_tokenizer.encode_batch(many) == alone


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The shape of Llama 2's and Mistral's tokenizers: spaces as U+2581, unknown characters as bytes."""
    specials = ["<unk>", "<s>", "</s>"]
    vocabulary = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"abcdehlorw", "\u2581h", "ll"]
    model = tokenizers.models.BPE(
        {token: i for i, token in enumerate(vocabulary)},
        [("\u2581", "h"), ("l", "l")],
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    tokenizer = tokenizers.Tokenizer(model)
    prepend, replace = tokenizers.normalizers.Prepend("\u2581"), tokenizers.normalizers.Replace(" ", "\u2581")
    tokenizer.normalizer = tokenizers.normalizers.Sequence([prepend, replace])
    parts = tokenizers.decoders
    tokenizer.decoder = parts.Sequence(
        [parts.Replace("\u2581", " "), parts.ByteFallback(), parts.Fuse(), parts.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(specials)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    file = tmp_path_factory.mktemp("sp") / "tokenizer.json"
    tokenizer.save(str(file))
    return Tokenizer(file)


@quick
@given(text=texts.filter(lambda text: not text.startswith("<")), cuts=st.lists(st.integers(0, 40)))
@example(text="hello world", cuts=[])
@example(text="  two spaces é 🙂", cuts=[3])
def test_a_sentence_piece_text_comes_back_as_the_library_gives_it(
    sentence_piece: Tokenizer, text: str, cuts: list[int]
) -> None:
    tokens = sentence_piece.encode(text)
    assert tokens[0] == 1
    whole = sentence_piece.decode(tokens)
    assert whole == sentence_piece._tokenizer.decode(tokens)
    assert "".join(in_pieces(sentence_piece, tokens, cuts)) == whole


def test_a_decoder_that_is_no_joining_of_bytes_is_refused_by_name(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelError, match=r"decoder \(WordPiece\) is not supported"):
        Tokenizer(tmp_path / "tokenizer.json")
