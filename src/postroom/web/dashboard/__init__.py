"""The dashboard: see what is in the outbox, and act on it, in a browser.

::

    app.mount("/postroom", Dashboard("postgresql://…/shop", token="…"))
"""

from postroom.web.dashboard.access import Access
from postroom.web.dashboard.dashboard import Dashboard

__all__ = ["Access", "Dashboard"]
