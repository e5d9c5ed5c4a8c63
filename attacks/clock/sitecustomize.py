"""Python's clock as it is on a machine whose clock is set while it works: back and forth by days.

Put on PYTHONPATH by `attacks.chaos`; every process of the command has it.
"""

import os
import random
import time

_true_time = time.time
_turns = random.Random(int(os.environ.get("HISTODICT_CHAOS_CLOCK", "0")))
_state = [0.0, 0.0]  # by how much it is wrong, and until when


def _jumping_time() -> float:
    now = time.monotonic()
    if now > _state[1]:
        _state[:] = [_turns.choice((-1, 1)) * _turns.uniform(0, 3 * 86400), now + 0.3]
    return _true_time() + _state[0]


time.time = _jumping_time
