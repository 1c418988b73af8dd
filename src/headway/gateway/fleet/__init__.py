"""The HTTP edge of a fleet: OpenAI's API over workers elsewhere, which `core.front.Front` sends requests to.

A call goes `forward` → `admit` (counted, treated) → `driver` (let in, placed) → `exchange` (sent, told, settled).
"""

from headway.gateway.fleet.app import create_fleet_app
from headway.gateway.fleet.config import MAX_MODEL_LEN, FleetConfig
from headway.gateway.fleet.counting import Counter
from headway.gateway.fleet.driver import FleetDriver
from headway.gateway.fleet.roster import Member, Roster
from headway.gateway.fleet.service import FleetService, Hooks

__all__ = [
    "MAX_MODEL_LEN",
    "Counter",
    "FleetConfig",
    "FleetDriver",
    "FleetService",
    "Hooks",
    "Member",
    "Roster",
    "create_fleet_app",
]
