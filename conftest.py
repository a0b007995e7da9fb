"""What every test in this checkout shares: pytest's own fixtures for testing plugins."""

from __future__ import annotations

pytest_plugins = ["pytester"]
