"""Where untrusted or unbounded work runs.

Untrusted text is never evaluated outside this room. For now the room holds the probe that says
which kind of isolation this machine offers; the runner and its backends build on it.
"""

from __future__ import annotations

from flowzoo.sandbox.tier import Check, Tier, TierName, probe

__all__ = ["Check", "Tier", "TierName", "probe"]
