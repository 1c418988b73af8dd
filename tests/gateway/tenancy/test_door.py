"""Who is let in, over a real socket, and what is said to whom is not."""

from __future__ import annotations

import time
from pathlib import Path

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.front.tenants import TenantLimits, Tenants
from headway.gateway.tenancy import KeyFile, KeyRing
from headway.gateway.tenancy.auth import duration
from tests.gateway.fleet.gateway import CHAT, HELLO, over
from tests.gateway.fleet.upstream import upstreams


async def test_who_has_no_good_key_is_not_let_in(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys")
    key, presented = file.create("alice", time.time())
    async with upstreams() as (one,), over([one], ring=KeyRing(file.path)) as fleet:
        for sent in ({}, {"Authorization": "Bearer hw-wrong"}, {"Authorization": f"Basic {presented}"}):
            status, body, headers = await fleet.post(CHAT, HELLO, **sent)
            assert (status, body["error"]["type"]) == (401, "invalid_request_error")
            assert headers["www-authenticate"] == "Bearer"
            assert "hw-wrong" not in str(body)
            assert (await fleet.post("/v1/embeddings", {}, **sent))[0] == 401
            async with fleet.session.get("/v1/models", headers=sent) as response:
                assert response.status == 401
        assert not one.asked
        async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key=presented, max_retries=0) as client:
            assert (await client.chat.completions.create(**HELLO)).choices
        async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="hw-no", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(**HELLO)
        assert "authorization" not in one.asked[-1].headers
        file.revoke(key.id, time.time())
        fleet.service.door.ring.refresh()  # type: ignore[union-attr] # there is one
        assert (await fleet.post(CHAT, HELLO, Authorization=f"Bearer {presented}"))[0] == 401


async def test_each_tenant_has_its_own_limits_salt_and_stories(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys")
    alice, bob = (f"Bearer {file.create(name, time.time())[1]}" for name in ("alice", "bob"))
    tenants = Tenants(TenantLimits(), {"alice": TenantLimits(requests_per_minute=1)})
    async with upstreams() as (one,), over([one], ring=KeyRing(file.path), tenants=tenants) as fleet:
        status, _, headers = await fleet.post(CHAT, HELLO, Authorization=alice)
        assert status == 200
        assert headers["x-ratelimit-remaining-requests"] == "0"
        status, body, headers = await fleet.post(CHAT, HELLO, Authorization=alice)
        assert (status, body["error"]["code"]) == (429, "requests_per_minute")
        assert "x-ratelimit-reset-requests" in headers
        status, _, headers = await fleet.post(CHAT, HELLO, Authorization=bob)
        assert status == 200
        assert "x-ratelimit-limit-requests" not in headers
        salts = [asked.body["cache_salt"] for asked in one.asked]
        assert len(set(salts)) == 2
        assert not {"alice", "bob"} & set(salts)
        story = f"/v1/requests/{headers['x-request-id']}"
        async with fleet.session.get(story, headers={"Authorization": bob}) as response:
            assert response.status == 200
        async with fleet.session.get(story, headers={"Authorization": alice}) as response:
            assert response.status == 404
        await fleet.empty()


async def test_strangers_are_let_in_where_that_was_said(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys")
    file.create("alice", time.time())
    tenants = Tenants(TenantLimits(), {"anonymous": TenantLimits(requests_per_minute=1)})
    ring = KeyRing(file.path)
    async with upstreams() as (one,), over([one], ring=ring, anonymous=True, tenants=tenants) as fleet:
        assert (await fleet.post(CHAT, HELLO))[0] == 200
        assert (await fleet.post(CHAT, HELLO))[0] == 429
        assert (await fleet.post(CHAT, HELLO, Authorization="Bearer hw-wrong"))[0] == 401


@given(st.floats(0, 10_000))
def test_durations_read_back(seconds: float) -> None:
    shown = duration(seconds)
    if shown.endswith("ms"):
        assert float(shown[:-2]) / 1000 == pytest.approx(seconds, abs=0.001)
        return
    minutes, _, rest = shown[:-1].rpartition("m")
    assert 60 * float(minutes or 0) + float(rest) == pytest.approx(seconds, abs=0.001)
