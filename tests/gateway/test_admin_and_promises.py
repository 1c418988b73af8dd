"""Promises in headers reach the core; settings change while serving, from this machine only."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request

from headway.cli.address import bound_socket
from headway.core.errors import ConfigError, InvalidRequest
from headway.core.request import Slo
from headway.executors.simulated import SimulatedExecutor
from headway.gateway import GatewayConfig, create_app, listening
from headway.gateway.promises import slo_of
from headway.gateway.viewer import is_local
from tests.gateway.fake import FakeBackend, serving

MS = 1_000_000
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def test_headers_replace_what_they_name_and_leave_the_rest():
    default = Slo(ttft_ns=500 * MS, itl_ns=100 * MS)
    assert slo_of({}, default) is default
    assert slo_of({"x-slo-itl-ms": "50"}, default) == Slo(500 * MS, 50 * MS)
    assert slo_of({"x-slo-ttft-ms": "0", "x-ttft-limit-ms": "1.5"}, default) == Slo(0, 100 * MS, 1_500_000)


@pytest.mark.parametrize("value", ["", "soon", "-1", "nan", "inf", "1e99", "3600001"])
def test_an_impossible_promise_is_refused_by_name(value):
    with pytest.raises(InvalidRequest, match="x-slo-ttft-ms") as caught:
        slo_of({"x-slo-ttft-ms": value}, Slo())
    assert caught.value.param == "x-slo-ttft-ms"


async def test_promises_priority_and_salt_reach_every_request_of_a_call():
    backend = FakeBackend()
    backend.slo = Slo(ttft_ns=9 * MS)
    async with serving(backend) as client:
        body = {**CHAT, "n": 2, "priority": 5, "cache_salt": "mine"}
        status, _, _ = await client.post("/v1/chat/completions", body, **{"x-slo-itl-ms": "40"})
    assert status == 200
    assert [one.slo for one in backend.requests] == [Slo(9 * MS, 40 * MS)] * 2
    assert [(one.priority, one.cache_scope) for one in backend.requests] == [(5, "mine")] * 2


async def test_a_bad_promise_is_a_400_before_anything_is_submitted():
    backend = FakeBackend()
    async with serving(backend) as client:
        status, body, _ = await client.post("/v1/chat/completions", CHAT, **{"x-slo-ttft-ms": "x"})
    assert (status, body["error"]["param"]) == (400, "x-slo-ttft-ms")
    assert not backend.requests


async def test_the_configuration_says_which_precision_came_of_auto():
    class Computing(FakeBackend):
        info = SimulatedExecutor().info

    async with serving(Computing()) as client:
        status, body = await client.get("/admin/config")
        assert (status, body["dtype"], body["precision"]) == (200, "auto", "none")


async def test_settings_change_while_serving():
    backend = FakeBackend()
    async with serving(backend) as client:
        status, body, _ = await client.post("/admin/reconfigure", {"max_num_seqs": 3})
        assert (status, body["max_num_seqs"]) == (200, 3)
        status, body = await client.get("/admin/config")
        assert (status, body["max_num_seqs"]) == (200, 3)


@pytest.mark.parametrize("changes", [{}, [], 3, {"max_num_seqs": 0}, {"nosuch": 1}])
async def test_bad_settings_change_nothing(changes):
    backend = FakeBackend()
    before = backend.config
    async with serving(backend) as client:
        status, body, _ = await client.post("/admin/reconfigure", changes)
    assert status == 400
    assert body["error"]["message"]
    assert backend.config is before


@pytest.mark.parametrize(
    ("header", "value"),
    [
        *((header, "10.0.0.1") for header in ("x-forwarded-for", "forwarded", "x-real-ip")),
        ("Via", "1.1 proxy"),
        ("X-Forwarded-Host", "localhost"),
        ("X-Forwarded-Proto", "http"),
        ("Origin", "http://localhost"),
        ("Sec-Fetch-Site", "same-site"),
        *(
            ("Host", host)
            for host in (
                "a.page",
                "a.page:8000",
                "localhost.a.page",
                "127.0.0.1.a.page",
                "[a.page]",
                ":80",
                "localhost..",
            )
        ),
        # Who forwards connections to this machine's loopback leaves the address that was asked.
        *(
            ("Host", host)
            for host in ("10.1.2.3", "203.0.113.5:8000", "0.0.0.0", "[2001:db8::1]:80", "[::ffff:10.1.2.3]")
        ),
    ],
)
async def test_administration_is_not_for_others_nor_for_web_pages(header, value):
    """Also not for a page whose own name was pointed at this machine (DNS rebinding): its name is in `Host`."""
    backend = FakeBackend()
    before = backend.config
    async with serving(backend) as client:
        status, body, _ = await client.post("/admin/reconfigure", {"max_num_seqs": 3}, **{header: value})
    assert (status, body["error"]["code"]) == (403, "not_local")
    assert (value in body["error"]["message"]) == (header == "Host")
    assert backend.config is before


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:8000", "localhost.", "localhost.:8000", "ip6-localhost:8000"),
        *("127.0.0.1:8000", "127.0.0.5", "[::1]:8000", "[::ffff:127.0.0.1]:8000"),
    ],
)
async def test_administration_answers_to_names_that_are_only_ours(host):
    async with serving(FakeBackend()) as client:
        assert (await client.post("/admin/reconfigure", {"max_num_seqs": 3}, Host=host))[0] == 200


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        *((peer, True) for peer in ("127.0.0.1", "::1", "::ffff:127.0.0.1")),
        # A mesh's sidecar has a loopback address of its own.
        *((peer, False) for peer in ("127.0.0.6", "::6", "::ffff:127.0.0.6", "10.1.2.3", "::ffff:10.1.2.3", "", "a")),
    ],
)
def test_this_machine_is_where_a_local_client_comes_from(peer, local):
    asked = make_mocked_request("GET", "/admin/config", {"Host": "localhost:8000"})
    assert is_local(asked.clone(remote=peer)) is local


def test_who_names_no_host_is_not_this_machine():
    assert not is_local(make_mocked_request("GET", "/admin/config").clone(remote="127.0.0.1"))


async def test_a_socket_of_both_families_knows_its_ipv4_locals():
    """`--host ::` shows them as ::ffff:127.0.0.1."""
    try:
        sock = bound_socket("::", 0)
    except ConfigError:
        pytest.skip("this machine has no IPv6")
    port = sock.getsockname()[1]
    with sock:
        async with listening(create_app(FakeBackend(), GatewayConfig()), sock), aiohttp.ClientSession() as session:
            for host in ("127.0.0.1", "[::1]"):
                async with session.get(f"http://{host}:{port}/admin/config") as response:
                    assert response.status == 200, host
