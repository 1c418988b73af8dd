"""One reading of a person's URL: what is told of it, and what never is."""

from __future__ import annotations

import pytest

from headway.core.errors import ConfigError
from headway.wire.http_address import any_address, http_address


@pytest.mark.parametrize(
    ("url", "shown", "metrics", "chat"),
    [
        ("h:8000", "http://h:8000/v1", "/metrics", "/v1/chat"),
        ("https://h:443/openai/v2/", "https://h/openai/v2", "/openai/metrics", "/openai/v2/chat"),
        ("http://[::1]:9/api", "http://[::1]:9/api/v1", "/api/metrics", "/api/v1/chat"),
    ],
)
def test_paths_of_an_api(url: str, shown: str, metrics: str, chat: str) -> None:
    address = http_address(url)
    assert (address.url, address.target("/metrics"), address.target("/v1/chat")) == (shown, metrics, chat)
    assert address.path("/chat") == chat


def test_what_may_be_secret_goes_where_it_belongs_and_is_never_shown() -> None:
    address = any_address("https://user:p%40ss@h/v1/?key=secret")
    assert address.path("/models") == "/v1/models?key=secret"
    assert address.authorization == "Basic dXNlcjpwQHNz"
    assert "secret" not in f"{address!r} {address.url}"
    assert "p@ss" not in f"{address!r} {address.url}"


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret@h",
        "http://user:sec/ret@h",
        "http://user:1/secret@h",
        "http://user:sec?ret@h",
        "http://user:sec#ret@h",
        "user:sec/ret@h",
        "ftp://user:sec/ret@h",
        "http://user:sec ret@h",
        "http://user:sec\u00e9ret@h",
        "http://h?key=secret",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_told(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        http_address(url)
    assert "sec" not in str(refused.value)
    assert "ret@" not in str(refused.value)
