"""The dashboard: one page at `/`, and what it shows as JSON.

`history` keeps the last minutes, `engine` and `fleet` read what their applications keep anyway, `viewer` says who may
see what, `page` puts the page together, `routes` answers.
"""

from headway.gateway.dashboard.routes import DASHBOARD_ROUTES, add_dashboard

__all__ = ["DASHBOARD_ROUTES", "add_dashboard"]
