"""A real redis-server on a port of its own, for as long as the tests of a folder run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.redis_server import RedisServer, installed


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if not installed():
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server
