"""The HTTP edge: OpenAI's API over anything that can stream tokens (`Backend`).

It reads, checks, tokenises, hands over and tells; what is admitted, queued or refused is decided behind the backend.
"""

from headway.gateway.app import create_app
from headway.gateway.backend import Backend
from headway.gateway.config import GatewayConfig
from headway.gateway.listen import listening

__all__ = ["Backend", "GatewayConfig", "create_app", "listening"]
