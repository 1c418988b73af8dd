"""Every rule that `mutations.py` breaks is where it looks for it: a change of the core must not disarm the check."""

from __future__ import annotations

import ast

import pytest

from tests.laws.mutations import MUTATIONS, ROOT, Mutation, broken


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_rule_is_there_to_be_broken(mutation: Mutation) -> None:
    text = (ROOT / "src/headway/core" / mutation.file).read_text()
    ast.parse(broken(mutation, text))
    assert broken(mutation, text) != text
