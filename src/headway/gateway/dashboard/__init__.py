"""The dashboard: one page at `/`, and what it shows as JSON.

`history` keeps the last minutes, `engine` and `fleet` read what their applications keep anyway, for whom
`gateway.viewer` says they may see it; `page` puts the page together, `routes` answers.
"""

from headway.gateway.dashboard.routes import DASHBOARD_ROUTES, add_dashboard

__all__ = ["DASHBOARD_ROUTES", "add_dashboard"]
