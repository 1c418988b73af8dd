"""Prompts have exactly the asked number of tokens, share what they should share and nothing else."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.executors.simulated_text import SimulatedTokenizer
from headway.workload.errors import WorkloadError
from headway.workload.item import Item
from headway.workload.passages import sample
from headway.workload.prompts import AsGiven, Prompt, Synthetic, plain_text
from headway.workload.tokens import Calibration, Counted, TokenizerFile, words_in
from headway.workload.words import WORDS, single_token_words

quick = settings(deadline=None)
Text = Literal["words", "sample"]
TEXTS: list[Text] = ["words", "sample"]
SIZE = 48
some = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
lengths = st.integers(1, 400) | st.sampled_from([1, 2, 3, 511, 512, 513, 3000])
indices = st.integers(0, 10**9)


@pytest.fixture(scope="module", params=TEXTS)
def text(request: pytest.FixtureRequest) -> Text:
    found: Text = request.param
    return found


@pytest.fixture(scope="module")
def plain(any_tokenizer: TokenizerFile, text: Text) -> Synthetic:
    return Synthetic(Counted(any_tokenizer), seed=1, text=text)


@pytest.fixture(scope="module")
def unique(any_tokenizer: TokenizerFile, text: Text) -> Synthetic:
    return Synthetic(Counted(any_tokenizer), seed=1, text=text, unique_prefix=True)


def content(prompt: Prompt) -> str:
    [message] = prompt.messages
    assert message["role"] == "user"
    assert message["content"] == prompt.text
    said: str = message["content"]
    assert said == said.strip() != ""  # templates trim, and a trimmed text has fewer tokens
    return said


def ids(tokenizer: TokenizerFile, text: str) -> list[int]:
    return list(tokenizer._tokenizer.encode(text, add_special_tokens=False).ids)


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How long their common beginning is."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@some
@given(tokens=lengths, index=indices)
def test_a_prompt_has_exactly_the_asked_tokens(
    any_tokenizer: TokenizerFile, plain: Synthetic, tokens: int, index: int
) -> None:
    prompt = plain.make(Item(tokens, 1), index)
    assert any_tokenizer(content(prompt)) == tokens == prompt.tokens
    assert prompt.off_by == 0


@some
@given(tokens=lengths, index=indices)
def test_unique_first_words_are_counted(
    any_tokenizer: TokenizerFile, unique: Synthetic, tokens: int, index: int
) -> None:
    assert any_tokenizer(content(unique.make(Item(tokens, 1), index))) == tokens


@some
@given(
    tokens=st.integers(1, 6 * SIZE),
    blocks=st.lists(st.integers(0, 2**62), min_size=1, max_size=8).map(tuple),
    index=indices,
)
def test_blocks_fill_exactly_the_asked_tokens(
    any_tokenizer: TokenizerFile, plain: Synthetic, tokens: int, blocks: tuple[int, ...], index: int
) -> None:
    item = Item(tokens, 1, prefix_blocks=blocks, prefix_block_tokens=SIZE)
    assert any_tokenizer(content(plain.make(item, index))) == tokens


@some
@given(
    shared=st.lists(st.integers(0, 99), min_size=1, max_size=4),
    tails=st.lists(st.lists(st.integers(100, 199), max_size=3), min_size=2, max_size=2, unique_by=tuple),
    extra=st.tuples(st.integers(1, 90), st.integers(1, 90)),
)
def test_equal_blocks_are_equal_tokens(
    real_tokenizer: TokenizerFile, text: Text, shared: list[int], tails: list[list[int]], extra: tuple[int, int]
) -> None:
    """Token by token, as a prefix cache compares them; and not much further."""
    made = Synthetic(Counted(real_tokenizer, 7), seed=3, text=text)
    both = []
    for index, (tail, more) in enumerate(zip(tails, extra, strict=True)):
        blocks = (*shared, *tail)
        item = Item(7 + len(blocks) * SIZE + more, 1, prefix_blocks=blocks, prefix_block_tokens=SIZE)
        prompt = made.make(item, index)
        assert prompt.tokens == item.input_tokens
        both.append(ids(real_tokenizer, content(prompt)))
    same = len(shared) + alike(*tails)
    common = alike(*both)
    assert same * SIZE <= common < same * SIZE + 12


def test_a_block_cut_short_is_a_beginning_of_the_whole_one(real_tokenizer: TokenizerFile, text: Text) -> None:
    """As in Mooncake's traces, whose last block is whatever is left."""
    made = Synthetic(Counted(real_tokenizer), text=text)
    prompts = [
        ids(real_tokenizer, content(made.make(Item(n, 1, prefix_blocks=(5, 6, 7), prefix_block_tokens=512), n)))
        for n in (1124, 1300, 1536)
    ]
    assert [len(ids) for ids in prompts] == [1124, 1300, 1536]
    for short, long in itertools.pairwise(prompts):
        assert long[: len(short) - 3] == short[:-3]  # at the very end a text may be filled up to its length


def test_a_block_is_the_same_wherever_it_stands(real_tokenizer: TokenizerFile) -> None:
    made = Synthetic(Counted(real_tokenizer))
    one = ids(real_tokenizer, content(made.make(Item(200, 1, prefix_blocks=(1, 9), prefix_block_tokens=100), 0)))
    other = ids(real_tokenizer, content(made.make(Item(300, 1, prefix_blocks=(2, 3, 9), prefix_block_tokens=100), 1)))
    assert one[100:] == other[200:]
    assert one[:100] != other[:100]


@settings(some, max_examples=5)  # a tokenizer takes its time to be pickled
@given(order=st.permutations(range(12)), unique=st.booleans())
def test_a_prompt_depends_on_its_seed_and_index_alone(
    real_tokenizer: TokenizerFile, text: Text, order: list[int], unique: bool
) -> None:
    items = [
        Item(30 + 11 * i, 1, prefix_blocks=(i % 3, i) if i % 2 else (), prefix_block_tokens=20 if i % 2 else 0)
        for i in range(12)
    ]
    there = Synthetic(Counted(real_tokenizer), seed=5, text=text, unique_prefix=unique)
    back = pickle.loads(pickle.dumps(there))  # as in another process
    made = {i: there.make(items[i], i) for i in order}
    assert [made[i] for i in range(12)] == [back.make(items[i], i) for i in range(12)]
    assert len({prompt.text for prompt in made.values()}) == 12


def test_another_seed_says_something_else(real_tokenizer: TokenizerFile, text: Text) -> None:
    said = {Synthetic(Counted(real_tokenizer), seed=seed, text=text).make(Item(40, 1), 0).text for seed in range(20)}
    assert len(said) == 20


def test_unique_first_words_are_unique_and_differ_at_once_from_their_neighbours(
    real_tokenizer: TokenizerFile, text: Text
) -> None:
    made = Synthetic(Counted(real_tokenizer), seed=2, text=text, unique_prefix=True)
    blocks = {"prefix_blocks": (1, 2, 3), "prefix_block_tokens": 16}  # which are left aside
    first = [tuple(ids(real_tokenizer, content(made.make(Item(16, 1, **blocks), i)))[:4]) for i in range(3000)]  # type: ignore[arg-type]
    assert len(set(first)) == len(first)
    assert all(one[0] != other[0] for one, other in itertools.pairwise(first))
    again = Synthetic(Counted(real_tokenizer), seed=3, text=text, unique_prefix=True)
    assert ids(real_tokenizer, content(again.make(Item(16, 1), 0)))[:4] != list(first[0])


def test_what_a_template_adds_is_taken_off(real_tokenizer: TokenizerFile, text: Text) -> None:
    prompt = Synthetic(Counted(real_tokenizer, overhead_tokens=31), text=text).make(Item(100, 1), 0)
    assert real_tokenizer(content(prompt)) == 69
    assert (prompt.tokens, prompt.off_by) == (100, 0)


@pytest.mark.parametrize("asked", [1, 5, 31])
def test_an_item_shorter_than_the_overhead_gets_the_shortest_text_and_says_so(
    real_tokenizer: TokenizerFile, asked: int
) -> None:
    prompt = Synthetic(Counted(real_tokenizer, overhead_tokens=31)).make(Item(asked, 1), 0)
    assert real_tokenizer(content(prompt)) == 1
    assert (prompt.tokens, prompt.off_by) == (32, 32 - asked)


STRANGE: dict[str, tuple[Callable[[str], int], Callable[[int], int]]] = {
    "nothing is a token": (lambda text: 0, lambda asked: -asked),
    "a start token": (lambda text: 1 + words_in(text), lambda asked: 0 if asked > 1 else 1),
    "pairs only": (lambda text: 2 * words_in(text), lambda asked: asked % 2 * (1 if asked == 1 else -1)),
    "four letters a token": (lambda text: -(-len(text) // 4), lambda asked: 0),
    "longer texts of fewer tokens": (lambda text: max(1, len(text) // 5 - words_in(text) // 2), lambda asked: 0),
    "all the same": (lambda text: 9, lambda asked: 9 - asked),
}


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("asked", [1, 2, 7, 100, 1001])
def test_a_strange_tokenizer_gets_the_nearest_there_is(kind: str, asked: int, text: Text) -> None:
    """And an end: what cannot be reached is not looked for for ever."""
    count, off_by = STRANGE[kind]
    prompt = Synthetic(Counted(count), text=text).make(Item(asked, 1), 0)
    assert prompt.tokens == count(content(prompt))
    assert prompt.off_by == prompt.tokens - asked
    assert abs(prompt.off_by) == abs(off_by(asked))


def test_most_common_words_are_one_token_to_a_real_model(real_tokenizer: TokenizerFile) -> None:
    singles = single_token_words(real_tokenizer)
    assert 400 < len(singles) <= 512
    assert set(singles) < set(WORDS)
    assert real_tokenizer(" ".join(reversed(singles))) == len(singles)
    assert len(WORDS) == len(set(WORDS))


def test_a_byte_tokenizer_has_no_such_words(characters: TokenizerFile) -> None:
    assert single_token_words(characters) == ()


def test_special_tokens_are_left_to_the_overhead(real_tokenizer: TokenizerFile, tmp_path) -> None:
    import tokenizers

    path = tmp_path / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "a": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.enable_truncation(2)
    tokenizer.save(str(path))
    assert ids(TokenizerFile(path), "a a a") == [1, 1, 1]


def test_a_file_that_is_no_tokenizer_is_refused_by_name(tmp_path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    for path in (tmp_path / "tokenizer.json", tmp_path / "none.json"):
        with pytest.raises(WorkloadError, match=str(path)):
            TokenizerFile(path)


@quick
@given(st.floats(0, 50), st.floats(0.5, 3), st.lists(st.integers(1, 5000), max_size=30))
def test_a_calibration_finds_the_line(overhead: float, slope: float, words: list[int]) -> None:
    """Up to what is lost by telling whole tokens."""
    calibration = Calibration()
    words = [10, 5000, *words]
    for many in words:
        calibration.add(many, max(1, round(overhead + slope * many)))
    assert calibration.samples == len(words)
    for many in words:
        assert abs(calibration.tokens_for(many) - (overhead + slope * many)) <= 2 + 0.001 * slope * many
        assert abs(calibration.words_for(calibration.tokens_for(many)) - many) <= 1 + 1 / slope


def test_a_calibration_of_one_length_is_a_ratio() -> None:
    calibration = Calibration()
    for _ in range(3):
        calibration.add(100, 150)
    assert (calibration.tokens_per_word, calibration.overhead_tokens) == (1.5, 0)
    assert calibration.words_for(300) == 200


def test_a_calibration_that_makes_no_sense_is_still_one() -> None:
    calibration = Calibration()
    calibration.add(100, 10)
    calibration.add(10, 100)
    assert calibration.tokens_per_word > 0
    assert calibration.words_for(1) >= 1


@pytest.mark.parametrize(("words", "tokens"), [(0, 5), (5, 0), (-1, 5), (5, math.nan)])
def test_a_calibration_refuses_what_cannot_be(words: Any, tokens: Any) -> None:
    with pytest.raises(WorkloadError):
        Calibration().add(words, tokens)


@some
@given(tokens=st.integers(1, 3000), index=indices)
def test_without_a_tokenizer_words_are_counted(text: Text, tokens: int, index: int) -> None:
    calibration = Calibration(1.25, 20)
    prompt = Synthetic(calibration, text=text).make(Item(tokens, 1), index)
    assert words_in(content(prompt)) == calibration.words_for(tokens)
    assert (prompt.tokens, prompt.off_by) == (-1, 0)


def test_without_a_tokenizer_blocks_are_shared_all_the_same(text: Text) -> None:
    made = Synthetic(Calibration(1.25, 20), text=text)
    one, other = (
        content(made.make(Item(400, 1, prefix_blocks=(4, 5), prefix_block_tokens=100), index)).split()
        for index in (0, 1)
    )
    assert one[:160] == other[:160]
    assert one[160:165] != other[160:165]


def test_given_messages_are_sent_as_they_are() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?", "name": "x"}]
    item = Item(12, 5, messages=messages)
    for source in (AsGiven(), Synthetic(Calibration(), unique_prefix=True)):
        prompt = source.make(item, 0)
        assert prompt.messages is messages
        assert prompt.text == "Be brief.\n\nWhy?"
        assert prompt.tokens == 12


def test_an_item_without_text_needs_a_source_of_it() -> None:
    with pytest.raises(WorkloadError, match="request 7 has no messages"):
        AsGiven().make(Item(5, 5), 7)
    with pytest.raises(WorkloadError, match="text must be words or sample, not 'poems'"):
        Synthetic(Calibration(), text="poems")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a", "a"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\n\nb"),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}], None),
        ([{"type": "text"}], None),
        ([5], None),
        (None, ""),
        ([], ""),
    ],
)
def test_a_plain_prompt_has_room_for_text_only(content: Any, text: str | None) -> None:
    assert plain_text([{"role": "user", "content": content}]) == text


def test_the_sample_is_prose_of_a_known_size() -> None:
    said = sample()
    assert 2500 <= words_in(said) <= 3500
    assert said.isascii()
    assert "  " not in said
    assert said.endswith(".")


def test_a_small_vocabulary_without_the_first_of_our_words_is_enough() -> None:
    """The simulated executor's: most of our words are bytes to it."""
    count = lambda text: len(SimulatedTokenizer().encode(text))  # noqa: E731 - a Count
    words = single_token_words(count)
    assert WORDS[0] not in words
    assert len(words) > 100
    assert count(" ".join(words)) == len(words)
    made = Synthetic(Counted(count, 16))
    assert all(made.make(Item(tokens, 1), tokens).tokens == tokens for tokens in range(20, 600, 7))
    assert single_token_words(lambda text: len(text.encode())) == ()
