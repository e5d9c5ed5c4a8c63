"""Worker that locks its job, reports one iteration and then does nothing until it is killed.

It replaces histodict.web.worker in tests of processes: it starts ten times faster.
"""

import json
import os
import sys
import time
from pathlib import Path

from histodict.web.jobs import Job


def main(folder: Path) -> None:
    """Run as the worker of the job in this folder."""
    job = Job(folder)
    with job.try_lock() as is_free:
        assert is_free
        job.lock_file.write_text(str(os.getpid()), "utf-8")
        step = {"stage": "train", "done": 1, "total": 2, "objective": [1.0], "seconds": 0.0}
        with (folder / "progress.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(step | {"seconds_left": None}) + "\n")
        while True:
            time.sleep(60)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
