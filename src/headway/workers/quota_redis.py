"""`RedisStore`: a `QuotaStore` in Redis, or in anything that speaks its protocol and runs its scripts (Valkey).

One ask is one script, so it is one round trip, applied whole, and by the server's clock: those of the gateways need not
agree. The script keeps and limits numbers as `MemoryStore` does; what to ask for is decided in `core/front/sharing.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from headway.core.errors import ConfigError
from headway.core.front.ledger import Amounts
from headway.core.front.sharing import Answer, Ask, Got, Want
from headway.workers.quota_store import MAX_LEASE_S, SHORT_US, US_PER_MINUTE, QuotaStoreFault
from headway.workers.quota_url import check_url

# All keys of one deployment share a part of a Redis cluster, as one script needs. Others take another database.
PREFIX = "{headway}:quota"
TIMEOUT_S = 0.5
TENANT_KEPT_S = 600  # beyond the minute in which it would be full again, and the minute in which holders tell again
NUMBER_KEPT_S = 3600
_WANT_FIELDS = 10

# KEYS: epoch, leases, number of this gateway, tenants. Numbers are doubles: exact up to 150 million tokens a minute.
SCRIPT = f"""
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local me, number, lease, known, fresh = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6]
local leaves = ARGV[7] == '1'
local MINUTE, LONGEST = {US_PER_MINUTE}, {int(MAX_LEASE_S * 1_000_000)}
local function text(value) return string.format('%.0f', value) end

local state = redis.call('HMGET', KEYS[1], 'epoch', 'born', 'wait')
local epoch, born, wait = state[1], tonumber(state[2] or ''), tonumber(state[3] or '') or 0
if not epoch then
  epoch = fresh
  redis.call('HSET', KEYS[1], 'epoch', epoch)
end
if known ~= '' and known ~= epoch and not born then
  born, wait = now, now + lease
  redis.call('HSET', KEYS[1], 'born', text(born), 'wait', text(wait))
end
local before = tonumber(redis.call('GET', KEYS[3]) or '0')
if number <= before then return {{'late'}} end
redis.call('SET', KEYS[3], text(number), 'EX', {NUMBER_KEPT_S})
if wait - now > LONGEST then
  wait = now + lease
  redis.call('HSET', KEYS[1], 'wait', text(wait))
end
local left_us = math.max(0, wait - now)
local gives = left_us == 0

redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', text(now))
for _, gateway in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. text(now + LONGEST), '+inf')) do
  redis.call('ZADD', KEYS[2], text(now + lease), gateway)
end
if leaves then redis.call('ZREM', KEYS[2], me) else redis.call('ZADD', KEYS[2], text(now + lease), me) end
local leased, gateways = {{}}, redis.call('ZRANGE', KEYS[2], 0, -1)
for _, gateway in ipairs(gateways) do leased[gateway] = true end

local function refill(parts, limit, elapsed)
  if limit == 0 then return nil end
  if not parts then return limit * math.min(MINUTE, born and math.max(0, now - born) or MINUTE) end
  return math.min(limit * MINUTE, parts + limit * elapsed)
end
local function change(parts, more, owed, limit)
  if not parts then return nil, math.min(0, more) end
  parts = parts - owed * MINUTE
  local given = math.min(more, gives and math.max(0, math.floor(parts / MINUTE)) or 0)
  return math.min(limit * MINUTE, parts - given * MINUTE), given
end

local answer = {{'ok', epoch, text(before), #gateways, text(left_us)}}
for place = 4, #KEYS do
  local key, at = KEYS[place], 7 + (place - 4) * {_WANT_FIELDS}
  local want = {{}}
  for field = 1, {_WANT_FIELDS} do want[field] = tonumber(ARGV[at + field]) end
  local slots_limit, requests_limit, tokens_limit, held, wanted = want[1], want[2], want[3], want[4], want[5]
  local more_requests, more_tokens, owed_requests, owed_tokens = want[6], want[7], want[8], want[9]
  if before >= want[10] then owed_requests, owed_tokens = 0, 0 end

  local kept, others = {{}}, 0
  local found = redis.call('HGETALL', key)
  for field = 1, #found, 2 do
    local gateway = string.match(found[field], '^s:(.*)$')
    if not gateway then
      kept[found[field]] = found[field + 1]
    elseif not leased[gateway] then
      redis.call('HDEL', key, found[field])
    elseif gateway ~= me then
      others = others + tonumber(found[field + 1])
    end
  end
  local slots = math.max(held, math.min(wanted, gives and slots_limit - others or 0))
  if slots > 0 and leased[me] then
    redis.call('HSET', key, 's:' .. me, text(slots))
  else
    redis.call('HDEL', key, 's:' .. me)
  end

  local elapsed = math.max(0, now - (tonumber(kept.at or '') or now))
  local requests, tokens = tonumber(kept.requests or ''), tonumber(kept.tokens or '')
  local given_requests, given_tokens
  requests = refill(requests, requests_limit, elapsed)
  tokens = refill(tokens, tokens_limit, elapsed)
  requests, given_requests = change(requests, more_requests, owed_requests, requests_limit)
  tokens, given_tokens = change(tokens, more_tokens, owed_tokens, tokens_limit)
  redis.call('HSET', key, 'at', text(now))
  for name, parts in pairs({{requests = requests or false, tokens = tokens or false}}) do
    if parts then redis.call('HSET', key, name, text(parts)) else redis.call('HDEL', key, name) end
  end

  local since = now - (tonumber(kept.short_at or '') or -{SHORT_US})
  local others_short = kept.short ~= me and since >= 0 and since < {SHORT_US}
  if slots < wanted or given_requests < more_requests or given_tokens < more_tokens then
    redis.call('HSET', key, 'short', me, 'short_at', text(now))
  end
  redis.call('EXPIRE', key, {TENANT_KEPT_S})
  answer[#answer + 1] = {{
    text(slots), text(given_requests), text(given_tokens), text(slots_limit - others - slots),
    text(math.floor((requests or 0) / MINUTE)), text(math.floor((tokens or 0) / MINUTE)), others_short and '1' or '0'
  }}
end
return answer
"""
SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()


class RedisStore:
    """`url` as `redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]`; `rediss://` for TLS; `unix:///PATH?db=N`.

    Raises ConfigError for what is no such address. Connects when it is first asked.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = TIMEOUT_S,
        prefix: str = PREFIX,
        clock_us: Callable[[], int | str] = lambda: "",
    ) -> None:
        self._redis = _client(url, timeout_s)
        self._timeout_s = timeout_s
        self._prefix = prefix
        self._clock_us = clock_us  # the server's own where it says nothing
        self._fresh = secrets.token_hex(8)

    async def exchange(self, ask: Ask) -> Answer:
        keys = [self._key("epoch"), self._key("leases"), self._key("number", ask.gateway)]
        keys += [self._key("tenant", want.tenant) for want in ask.wants]
        arguments: list[str | int] = [self._clock_us(), ask.gateway, ask.number, ask.lease_ns // 1000, ask.epoch]
        arguments += [self._fresh, int(ask.leaves)]
        for want in ask.wants:
            arguments += _fields(want)
        try:
            async with asyncio.timeout(self._timeout_s):
                try:
                    found = await self._redis.evalsha(SHA, len(keys), *keys, *arguments)
                except NoScriptError:  # a server that has just started; nothing was applied
                    found = await self._redis.eval(SCRIPT, len(keys), *keys, *arguments)
        except TimeoutError as error:
            raise QuotaStoreFault(f"no answer within {self._timeout_s:g} s") from error
        except (RedisError, OSError, UnicodeError) as error:
            raise QuotaStoreFault(str(error) or type(error).__name__) from error
        return _answer(found, ask)

    async def close(self) -> None:
        await self._redis.aclose()

    def _key(self, *names: str) -> str:
        return ":".join((self._prefix, *names))


def _fields(want: Want) -> tuple[int, ...]:
    limit, more, owed = want.limit, want.more, want.owed
    slots = (limit.slots, limit.requests, limit.tokens, want.held, want.slots)
    fields = (*slots, more.requests, more.tokens, owed.requests, owed.tokens, want.owed_since)
    assert len(fields) == _WANT_FIELDS
    return fields


def _answer(found: Any, ask: Ask) -> Answer:
    try:
        match found:
            case ["late"]:
                raise QuotaStoreFault("the ask came after a later one")
            case ["ok", epoch, before, gateways, wait_us, *rest] if len(rest) == len(ask.wants):
                got = tuple(_got(want.tenant, one) for want, one in zip(ask.wants, rest, strict=True))
                return Answer(str(epoch), int(before), int(gateways), got, int(wait_us) * 1000)
    except (TypeError, ValueError):
        pass
    raise QuotaStoreFault("its answer is none that was expected")


def _got(tenant: str, found: Any) -> Got:
    slots, requests, tokens, left_slots, left_requests, left_tokens, short = map(int, found)
    return Got(
        tenant, slots, Amounts(0, requests, tokens), Amounts(left_slots, left_requests, left_tokens), bool(short)
    )


def _client(url: str, timeout_s: float) -> Redis:
    check_url(url)
    try:
        # Not repeated by itself: an ask is applied once. One connection, since one ask is under way at a time.
        return Redis.from_url(
            url,
            decode_responses=True,
            max_connections=2,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            client_name="headway",
        )
    except (ValueError, RedisError, OSError) as error:
        raise ConfigError(f"--quota-store: {error}", param="quota_store") from error
