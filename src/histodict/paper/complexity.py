"""Cost of training: operation counts of the paper, and measured and published times.

FORMULAS give the approximate number of operations for coding in one iteration, with c classes,
k bases and N samples per class, d features, L non-zeros per code and q steps of an l1 solver.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..methods.registry import get_method
from ..utils.parallel import ExecutionOptions, effective_n_jobs
from ..utils.progress import Progress
from ..utils.text_io import Row
from .setting import (
    PAPER_PROBLEM,
    SMALL_PROBLEM,
    Outcome,
    Problem,
    draw_bar,
    make_figure,
    method_style,
    paper_name,
    read_table,
)

NAME = "complexity"
STEPS = (1, 3, 10)  # values of q, the number of steps of the l1 solver
_TIME_COLUMNS = ("published seconds", "recorded seconds", "measured seconds")

# Numbers of operations, as functions of c, k, N, d, L and q (see above).
OPERATIONS: dict[str, Callable[..., int]] = {
    "dfdl": lambda c, k, N, d, L, q: c**2 * k * N * (2 * d + L**2),
    "lcksvd": lambda c, k, N, d, L, q: c**2 * k * N * (2 * d + 2 * c * k + L**2),
    "nayak": lambda c, k, N, d, L, q: c**2 * k * N * (2 * d + 2 * q * c * k) + c**2 * d * k**2,
    "fddl": lambda c, k, N, d, L, q: c**2 * k * N * (2 * d + 2 * q * c * k) + c**3 * d * k**2,
}
FORMULAS = {
    "dfdl": "c²kN(2d + L²)",
    "lcksvd": "c²kN(2d + 2ck + L²)",
    "nayak": "c²kN(2d + 2qck) + c²dk²",
    "fddl": "c²kN(2d + 2qck) + c³dk²",
}


def run(
    measured_problem: Problem = SMALL_PROBLEM,
    execution: ExecutionOptions = ExecutionOptions(),  # noqa: B008 (it is frozen)
    *,
    counted_problem: Problem = PAPER_PROBLEM,
) -> Outcome:
    """Count operations at one size, and measure times at another.

    Parameters
    ----------
    measured_problem : size of the measured training
    execution : number of threads, and progress callback
    counted_problem : size of the operation counts
    """
    seconds = measure_training_times(measured_problem, execution)
    rows = [_table_row(method, counted_problem, seconds[method]) for method in OPERATIONS]
    return Outcome(
        name=NAME,
        title="Operations and run times",
        note=(
            f"Operations of coding in one iteration at {counted_problem}. Times: published for "
            f"that size (MATLAB); measured for a whole training at {measured_problem}, "
            f"{measured_problem.n_iter} iterations, {effective_n_jobs(execution.n_jobs)} threads; "
            "recorded with histodict at the published size with its own number of iterations, for "
            "methods in the table of recorded times."
        ),
        rows=rows,
        text=_format_table(rows, counted_problem, measured_problem),
        draw=partial(_draw, rows, counted_problem, measured_problem),
    )


def count_operations(method: str, problem: Problem, q: int) -> int:
    """Return the operations of coding in one iteration, with `q` steps of the l1 solver."""
    p = problem
    sizes = p.n_classes, p.n_atoms, p.n_samples, p.n_features, p.n_nonzero
    return OPERATIONS[method](*sizes, q)


def format_scientific(number: float) -> str:
    """Format a number in scientific notation, such as 6.6e10 or 1.692e11."""
    mantissa, exponent = f"{number:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def _table_row(method: str, problem: Problem, seconds: float) -> Row:
    name = paper_name(method)
    printed = [row for row in read_table("operations") if row["method"] == name]
    times = next(row for row in read_table("run_times") if row["method"] == name)
    return {
        "method": name,
        "formula": FORMULAS[method],
        **{f"operations q={q}": count_operations(method, problem, q) for q in STEPS},
        **{f"published q={row['q']}": row["operations"] for row in printed},
        "published time": times["printed"],
        "published seconds": 3600 * float(times["hours"]),
        "measured seconds": seconds,
        **_recorded_time(method, problem),
    }


def _recorded_time(method: str, problem: Problem) -> Row:
    """Return the columns "recorded seconds" and "recorded iterations" for a problem of this size.

    The number of iterations may differ from `problem.n_iter`. Of several records, use those with
    the most iterations, and of these the fastest. Both columns are None if there is no record.
    """
    sizes = asdict(problem)
    del sizes["n_iter"]
    times = [
        (-int(row["n_iter"]), float(row["seconds"]))
        for row in read_table("recorded_times")
        if row["method"] == method and all(int(row[name]) == n for name, n in sizes.items())
    ]
    if not times:
        return {"recorded seconds": None, "recorded iterations": None}
    negative_iterations, seconds = min(times)
    return {"recorded seconds": seconds, "recorded iterations": -negative_iterations}


def _format_table(rows: list[Row], counted_problem: Problem, measured_problem: Problem) -> str:
    """Format the rows of all methods as a table for the terminal."""
    header = ["method", "operations", *(f"q = {q}" for q in STEPS), "published", "measured"]
    lines = [[*header, "recorded"]]
    for row in rows:
        counts = [format_scientific(row[f"operations q={q}"]) for q in STEPS]
        times = [row["published time"], f"{row['measured seconds']:.2f} s"]
        recorded, rounds = row["recorded seconds"], row["recorded iterations"]
        times.append("not recorded" if recorded is None else f"{recorded:.0f} s ({rounds} it.)")
        lines.append([row["method"], row["formula"], *counts, *times])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    sizes = (
        f"Operations of one iteration, and times recorded with histodict, at {counted_problem}; "
        f"times measured at {measured_problem}, {measured_problem.n_iter} iterations"
    )
    return "\n".join([*table, sizes])


# --- figure ---------------------------------------------------------------------------------------


def _draw(rows: list[Row], counted_problem: Problem, measured_problem: Problem) -> Figure:
    """Draw two panels: operations by number of solver steps q (left), training times (right).

    Times are published and recorded at the size `counted_problem`, and measured at the size
    `measured_problem`.
    """
    figure, (left, right) = make_figure(2, width=4.2, height=3.0)
    for row in rows:
        colour, marker = method_style(row["method"])
        counts = [row[f"operations q={q}"] for q in STEPS]
        # The line of FDDL nearly coincides with that of Nayak's.
        dash = "--" if row["method"] == "FDDL" else "-"
        left.plot(STEPS, counts, dash, color=colour, marker=marker, label=row["method"])
    left.set(xlabel="q, steps of the l1 solver", ylabel="operations", yscale="log")
    left.set_title(f"coding of one iteration\n{counted_problem}", fontsize=7)
    left.set_xticks(STEPS)
    _format_ticks(left.yaxis)
    left.legend(fontsize=8)
    for index, row in enumerate(rows):
        for i, kind in enumerate(_TIME_COLUMNS):
            if row[kind] is not None:
                draw_bar(right, index + 0.27 * (i - 1), row[kind], row["method"], i > 0, 0.24)
                label = f"{kind.split()[0]} {row[kind]:.3g} s"
                if kind == "recorded seconds":
                    label += f", {row['recorded iterations']} it."
                right.text(row[kind], index + 0.27 * (i - 1), f" {label}", va="center", fontsize=7)
    right.set_yticks(range(len(rows)), [row["method"] for row in rows])
    right.invert_yaxis()
    shortest = min(row["measured seconds"] for row in rows)
    right.set(xscale="log", xlabel="seconds", xlim=(shortest / 3, 2e7))
    right.set_title(f"training; measured at\n{measured_problem}", fontsize=7)
    _format_ticks(right.xaxis)
    return figure


def _format_ticks(axis: Axis) -> None:
    axis.set_major_formatter(lambda value, _: format_scientific(value))
    axis.set_minor_formatter(lambda value, _: "")


# --- measurement --------------------------------------------------------------------------------


def measure_training_times(problem: Problem, execution: ExecutionOptions) -> dict[str, float]:
    """Return the training time of each method in seconds."""
    seconds: dict[str, float] = {}
    for method in OPERATIONS:
        execution.callback(Progress("measure", len(seconds), len(OPERATIONS)))
        seconds[method] = measure_training_time(method, problem, n_jobs=execution.n_jobs)
    execution.callback(Progress("measure", len(seconds), len(OPERATIONS)))
    return seconds


def measure_training_time(
    method: str, problem: Problem, *, n_jobs: int | None = None, seed: int = 0
) -> float:
    """Return the training time in seconds on synthetic samples; compilation is not measured."""
    tiny = replace(problem, n_atoms=4, n_samples=20, n_nonzero=2, n_iter=1)
    _time_training(method, tiny, n_jobs, seed)
    return _time_training(method, problem, n_jobs, seed)


def _time_training(method: str, problem: Problem, n_jobs: int | None, seed: int) -> float:
    model = get_method(method).load_class()(random_state=seed, n_jobs=n_jobs)
    n_atoms = problem.n_atoms * (problem.n_classes if method == "nayak" else 1)
    parameters = {
        "n_atoms": n_atoms,
        "n_iter": problem.n_iter,
        "n_nonzero": problem.n_nonzero,
        "tol": 0.0,  # no early stop
    }
    model.set_params(**{k: v for k, v in parameters.items() if k in model.get_params()})
    X, y = synthetic_samples(problem, seed)
    started = time.perf_counter()
    model.fit(X, y)
    return time.perf_counter() - started


def synthetic_samples(problem: Problem, seed: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return unit-norm samples (sparse combinations of atoms of a class, plus noise) and labels."""
    rng = np.random.default_rng(seed)
    shape = problem.n_classes, problem.n_atoms, problem.n_features
    D = rng.standard_normal(shape, dtype=np.float32)
    D /= np.linalg.norm(D, axis=2, keepdims=True)
    n_used = min(problem.n_nonzero, problem.n_atoms)
    parts = []
    for atoms in D:
        S = np.zeros((problem.n_samples, problem.n_atoms), np.float32)
        chosen = rng.integers(problem.n_atoms, size=(problem.n_samples, n_used))
        values = rng.standard_normal(chosen.shape, dtype=np.float32)
        np.put_along_axis(S, chosen, values, axis=1)
        noise = rng.standard_normal((problem.n_samples, problem.n_features), dtype=np.float32)
        parts.append(S @ atoms + np.float32(0.05) * noise)
    X = np.concatenate(parts)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, np.repeat(np.arange(problem.n_classes), problem.n_samples)
