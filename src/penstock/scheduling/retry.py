"""When a failed message comes back: arithmetic only; the backend applies the answer."""

from __future__ import annotations

import random

from penstock.settings import Retry


def retry_delay_s(retry: Retry, attempts: int, rng: random.Random) -> float:
    """Seconds until the next try of a message that has failed `attempts` times (1 = first failure)."""
    if retry.policy == "list":
        return retry.delays_s[min(attempts, len(retry.delays_s)) - 1]
    if retry.policy == "fixed":
        return retry.delay_s
    # 2**62 seconds is past every limit: the exponent is bounded so that it cannot overflow a float.
    ceiling_s = min(retry.delay_s * 2.0 ** min(attempts - 1, 62), retry.max_delay_s)
    return rng.uniform(0.0, ceiling_s) if retry.jitter else ceiling_s
