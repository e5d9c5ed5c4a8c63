"""Simulate a system clock that is set back and forth by days while a program runs.

`attacks.chaos` puts this module on PYTHONPATH, so every process of the command loads it.
"""

import os
import random
import time

_true_time = time.time
_turns = random.Random(int(os.environ.get("HISTODICT_CHAOS_CLOCK", "0")))
_state = [0.0, 0.0]  # current offset, and the time until which it applies


def _jumping_time() -> float:
    now = time.monotonic()
    if now > _state[1]:
        _state[:] = [_turns.choice((-1, 1)) * _turns.uniform(0, 3 * 86400), now + 0.3]
    return _true_time() + _state[0]


time.time = _jumping_time
