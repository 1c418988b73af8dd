"""A model's text side with no model: a tokenizer of words and bytes, so that the simulated executor needs no files.

Ids 0-255 are the bytes, 256 ends a sequence, then come the words without a space before them, as a text begins with
one, and every id from `FIRST_WORD` on is one piece of `_PIECES`. Any UTF-8 text survives encode and decode unchanged;
ordinary lower-case English takes about one token a word.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence as ReadOnlySequence
from dataclasses import dataclass, field

EOS = 256
_EOS_TEXT = "<|end|>"
_WORDS = """
a about above across after again air all almost along also always an and animal another answer any are around as ask at
away back be because been before began being below between big book both boy bring build but by call came can car care
carry change children city close cold color come could country cut day did different do does done door down draw each
early earth eat end enough even every example eye face family far farm father feel feet few field find fire first fish
five follow food for form found four from full game gave get girl give go good got great green group grow had half hand
hard has have he head hear help her here high him his home horse hour house how hundred idea if important in into is it
its just keep kind king knew know land large last late learn leave left letter life light like line list listen little
live long look made make man many map may me mean measure men might mile miss moon more morning most mother mountain
move much music must my name near need never new next night no north not note now number of off often old on once one
only open or order other our out over own page paper part pass people piece place plain plan plant play point power
press problem product pull put question quick rain ran read ready real red remember rest right river road rock room
round rule run said same saw say school science sea second see seem sentence set several she ship short should show
side simple since sing sit slow small snow so some song soon sound south space stand star start state stay step still
stop story street strong study such summer sun sure table take talk tell ten than that the their them then there these
they thing think this those thought three through time to together told too took top toward town travel tree true turn
two under unit until up us use usual very voice walk want war warm was watch water way we week well went were what wheel
when where which while white who whole why will wind winter with without wonder wood word work world would write year
you young your
"""
_BARE = tuple(_WORDS.split())
_PIECES = (*tuple(" " + word for word in _BARE), ",", ".", ";", "?", "\n")
FIRST_WORD = EOS + 1 + len(_BARE)
VOCAB_SIZE = FIRST_WORD + len(_PIECES)
_IDS = {piece: EOS + 1 + index for index, piece in enumerate((*_BARE, *_PIECES))}
_BYTES = (*(bytes([value]) for value in range(256)), b"", *(piece.encode() for piece in (*_BARE, *_PIECES)))
# Everything matches: a word with its space, the word that a text begins with, or one character.
_SPLIT = re.compile(r"(?: |\A)[a-z]+|[^ ]|.", re.DOTALL)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


class SimulatedDetokenizer:
    """Text of a growing sequence, complete characters only."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, tokens: ReadOnlySequence[int]) -> str:
        """The text that `tokens` complete; bytes of an unfinished character are kept for later."""
        return self._decoder.decode(b"".join(_BYTES[token] for token in tokens))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that never became complete."""
        return self._decoder.decode(b"", final=True)


class SimulatedTokenizer:
    """The interface of `headway.models.Tokenizer`. Stateless, so safe on any thread."""

    vocab_size = VOCAB_SIZE

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:  # noqa: ARG002 - the interface
        """Token ids of `text`; there are no special tokens to add."""
        tokens: list[int] = []
        for piece in _SPLIT.findall(text):
            word = _IDS.get(piece)
            if word is None:
                # A lone surrogate can reach us through JSON escapes; it has no bytes of its own.
                tokens.extend(piece.encode("utf-8", errors="replace"))
            else:
                tokens.append(word)
        return tokens

    def encode_batch(self, texts: list[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        return [self.encode(text, add_special_tokens=add_special_tokens) for text in texts]

    def decode(self, tokens: ReadOnlySequence[int], *, skip_special_tokens: bool = True) -> str:
        data = b"".join(self._shown(token, skip_special_tokens) for token in tokens)
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return self._shown(token, skip_special=False)

    def token_text(self, token: int) -> str:
        return self.token_bytes(token).decode("utf-8", errors="replace")

    def stream(self) -> SimulatedDetokenizer:
        return SimulatedDetokenizer()

    def _shown(self, token: int, skip_special: bool) -> bytes:
        return _EOS_TEXT.encode() if token == EOS and not skip_special else _BYTES[token]


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """What `headway.models.Model` says of a model, for the one that does not exist."""

    name: str = "simulated"
    chat_template: str | None = CHAT_TEMPLATE
    special_tokens: dict[str, str] = field(default_factory=lambda: {"eos_token": _EOS_TEXT})
    eos_token_ids: tuple[int, ...] = (EOS,)
    bos_token_id: int | None = None
    add_bos: bool = False
    context_tokens: int = 32_768
    vocab_size: int = VOCAB_SIZE
    tokenizer: SimulatedTokenizer = field(default_factory=SimulatedTokenizer)


def simulated_model() -> SimulatedModel:
    """The model behind `--executor simulated`: its tokenizer, template and limits."""
    return SimulatedModel()
