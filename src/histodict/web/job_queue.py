"""Jobs in processes of their own, one at a time, in the order in which they were asked for.

Trainings come before maps of slides: a map that is being made stands back, and is made later.

Work ends with the server, however that ends, and waits in its folder for the next one to go on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque

from .jobs import ACTIVE, CANCELLED, DONE, FAILED, INTERRUPTED, RUNNING, WAITING, Job, all_jobs
from .workspace import User, say_once

_SILENCE = 15.0  # seconds without a sign of life after which a worker counts as dead
_PAUSE = 0.3
_WORKER = "histodict.web.worker"


class JobQueue:
    """Starts waiting jobs one after another, and notices workers that died."""

    def __init__(self) -> None:
        self._active: list[Job] = []
        self._added: deque[Job] = deque()  # taken in at the next look around
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._heard: dict[str, tuple[tuple[int, int], float]] = {}  # signs of life, and when
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="jobs")

    def start(self, users: list[User]) -> None:
        """Take up what an earlier server left: waiting jobs, and workers that still end."""
        left = (job for user in users for job in all_jobs(user) if job.state()["state"] in ACTIVE)
        self._active = sorted(left, key=lambda job: job.summary["made"])
        self._thread.start()

    def close(self) -> None:
        """Stop watching, and the work; the next server goes on with it."""
        self._stop.set()
        with self._lock:
            for job in list(self._active):
                if job.id in self._processes:
                    _end(self._processes[job.id])
                    job.wait_for_the_next_server(job.state()["run"])
                    self._forget(job)

    def add(self, job: Job) -> None:
        """Without the lock, as `n_ahead`: nobody waits until a worker has been started."""
        self._added.append(job)

    def n_ahead(self, job: Job) -> int:
        """The one that runs is the first; of those that wait, trainings are."""
        ids = [other.id for other in sorted((*self._active, *self._added), key=_turn)]
        return ids.index(job.id) if job.id in ids else 0

    def cancel(self, job: Job) -> None:
        with self._lock:
            state = job.state()
            if state["state"] not in ACTIVE:
                return
            (job.folder / "cancel").touch()
            process = self._processes.get(job.id)
            if process is None:
                # A worker of an earlier server sees the file within a second and ends by itself.
                self._forget(job)
            else:
                _kill(process)  # on busy cores it takes a while to go; nobody waits for it here
            job.set_state(CANCELLED, state["run"])

    def drop(self, job: Job) -> None:
        """Nothing more is heard of it, whether it waits or its worker is still on its way out."""
        self.cancel(job)
        with self._lock:
            if job.id in self._processes:
                _end(self._processes[job.id])
            self._added = deque(other for other in self._added if other.id != job.id)
            self._forget(job)

    def resume(self, job: Job) -> None:
        """Once more, with what is there already: a finished model is not trained again."""
        with self._lock:
            state = job.state()
            if state["state"] in (*ACTIVE, DONE):
                return
            (job.folder / "cancel").unlink(missing_ok=True)
            job.set_state(WAITING, state["run"])
            if job not in (*self._active, *self._added):  # else its last worker is just going
                self.add(job)

    def _watch(self) -> None:
        while not self._stop.wait(_PAUSE):
            try:
                self._look_around()
            except OSError as error:  # a full disk, for example: the next time may be better
                say_once(f"the trainings cannot be looked after: {error}")

    def _look_around(self) -> None:
        with self._lock:
            if self._stop.is_set():
                return
            while self._added:
                self._active.append(self._added.popleft())
            for job in list(self._active):
                self._look_after(job)
            turns = sorted(self._active, key=_turn)
            waiting = [job for job in turns if job.state()["state"] == WAITING]
            is_free = not self._processes and len(waiting) == len(turns)
            if waiting and is_free:
                self._launch(waiting[0])
            elif waiting and waiting[0].is_training:
                for job in turns:
                    self._stand_back(job)

    def _stand_back(self, job: Job) -> None:
        """A map waits again; its worker is on its way out, and the next one begins after that."""
        process = self._processes.get(job.id)
        if process is not None and not job.is_training:
            _kill(process)
            job.wait_for_the_next_server(job.state()["run"])

    def _look_after(self, job: Job) -> None:
        process = self._processes.get(job.id)
        is_dead = self._is_silent(job) if process is None else process.poll() is not None
        state = job.state()  # after asking whether it lives: a worker says its last word, then ends
        if state["state"] == RUNNING and is_dead:
            code = process.returncode if process is not None else None
            job.set_state(FAILED if process else INTERRUPTED, state["run"], _why(job, code))
        if process is not None and is_dead:
            del self._processes[job.id]
        if job.state()["state"] not in ACTIVE and job.id not in self._processes:
            self._forget(job)

    def _is_silent(self, job: Job) -> bool:
        """Whether the worker of an earlier server has not been heard of for a while."""
        sign, now = job.sign_of_life(), time.monotonic()
        last_sign, heard = self._heard.get(job.id, (None, now))
        if sign != last_sign:
            self._heard[job.id] = sign, now
        return sign == last_sign and now - heard > _SILENCE

    def _launch(self, job: Job) -> None:
        run = job.state()["run"] + 1
        (job.folder / "progress.jsonl").unlink(missing_ok=True)
        job.set_state(RUNNING, run)
        server = str(os.getpid())
        command = [sys.executable, "-m", "histodict.execution.child_process", server, _WORKER]
        command += [str(job.folder), str(run), server]
        with (job.folder / "log.txt").open("wb") as log:
            self._processes[job.id] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl+C is for the server alone, which then ends the worker. But it gets no session
                # of its own: Linux shares the cores out among sessions, whatever `nice` says.
                process_group=0,
            )

    def _forget(self, job: Job) -> None:
        self._active = [other for other in self._active if other.id != job.id]
        self._processes.pop(job.id, None)


def _turn(job: Job) -> tuple[bool, bool]:
    """What is at work comes first, then trainings; in each the order in which they came."""
    return job.state()["state"] != RUNNING, not job.is_training


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a worker and what it started, and wait until they have."""
    _kill(process)
    process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """A worker and what it started, at once: its files are whole or not there."""
    if process.poll() is None and hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _why(job: Job, code: int | None) -> str:
    if code is None:
        return "The work was interrupted: the computer or the process was stopped."
    words = "The worker process ended unexpectedly"
    if code < 0:
        words += f" (signal {-code}; 9 often means that memory ran out)"
    return f"{words}. Nothing else was lost.\n{job.last_words()}".strip()
