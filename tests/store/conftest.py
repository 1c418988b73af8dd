from __future__ import annotations

import pytest

from tests.store.places import open_store, temporary


@pytest.fixture
def directory():
    with temporary() as made:
        yield made


@pytest.fixture
def store(directory):
    with open_store(directory) as opened:
        yield opened
