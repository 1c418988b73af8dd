"""`Fairness`: whose turn it is among tenants: the one that was served least, in tokens over weight.

Start-time fair queueing (Goyal, Vin, Cheng 1996) with tokens as work, as in virtual token counters (Sheng et al. 2024).
A tenant is charged when a request of its is started: input not expected to be cached, and the output its requests
usually have; and corrected to what it was when the request ends. Who comes back from idling starts where the others
are: idleness earns nothing. Who was held back (by priorities, or its lane) keeps a bounded claim.
"""

from __future__ import annotations

from collections.abc import Callable

from headway.core.request import Request

# How far behind the others a tenant may be served and still be owed the difference.
CREDIT_TOKENS = 65_536
# What an output is taken to be before any of the tenant's has ended, and how much each one counts afterwards.
FIRST_OUTPUT_TOKENS = 128
OUTPUT_RATE = 0.05


class Fairness:
    """Virtual service by tenant. `weight` says what share each is to have; not `apart`, they stand as one."""

    def __init__(self, weight: Callable[[str], float] = lambda _: 1.0, *, apart: bool = True) -> None:
        self.weight = weight
        self.apart = apart
        self._service: dict[str, float] = {}
        self._outputs: dict[str, float] = {}
        self._floor = 0.0  # what the tenant last served had been served before; never goes back

    def enter(self, tenant: str) -> None:
        """It had nobody waiting, and now has."""
        self._service[tenant] = self.entering(tenant)

    def entering(self, tenant: str) -> float:
        """What its service would count as if it came now."""
        return max(self._service.get(tenant, 0.0), self._floor)

    def service(self, tenant: str) -> float:
        """The least goes first."""
        if not self.apart:
            return 0.0
        return max(self._service.get(tenant, 0.0), self._floor - CREDIT_TOKENS / self.weight(tenant))

    def charge(self, tenant: str, tokens: float) -> None:
        """A request of so many tokens is started."""
        before = self.service(tenant)
        self._floor = max(self._floor, before)
        self._service[tenant] = before + tokens / self.weight(tenant)

    def correct(self, tenant: str, tokens: float) -> None:
        """It was so many more, or fewer if negative."""
        self._service[tenant] = self._service.get(tenant, 0.0) + tokens / self.weight(tenant)

    def expected_output_tokens(self, request: Request) -> int:
        """What its tenant's outputs usually are; no request tells how long its own will be."""
        return min(request.max_tokens, round(self._outputs.get(request.tenant, FIRST_OUTPUT_TOKENS)))

    def learn(self, tenant: str, output_tokens: int) -> None:
        """An output of the tenant's has ended."""
        usual = self._outputs.get(tenant, output_tokens)
        self._outputs[tenant] = usual + (output_tokens - usual) * OUTPUT_RATE
