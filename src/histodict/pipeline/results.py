"""The answers for many images, as one thing: a sequence, a table, a sheet of pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from ..execution.tables import Row, column_names
from .answers import NO_TISSUE_LABEL, Prediction

if TYPE_CHECKING:
    import pandas

A = TypeVar("A", bound=Prediction)
_ON_CARD = 12
_NO_PANDAS = "a DataFrame is made with pandas, which is not installed: pip install pandas"


class Predictions(Sequence[A], Generic[A]):
    """Answers in the order of the images; a slice of them is `Answers` again.

    columns : of the table, those that come first
    """

    def __init__(self, answers: Iterable[A], columns: Sequence[str] = ()) -> None:
        self._predictions = list(answers)
        self._columns = tuple(columns)

    def __len__(self) -> int:
        return len(self._predictions)

    @overload
    def __getitem__(self, place: int) -> A: ...

    @overload
    def __getitem__(self, place: slice) -> Predictions[A]: ...

    def __getitem__(self, place: int | slice) -> A | Predictions[A]:
        if isinstance(place, slice):
            return Predictions(self._predictions[place], self._columns)
        return self._predictions[place]

    @property
    def labels(self) -> list[str]:
        """Of every image; "no tissue" where there is only glass."""
        return [answer.label or NO_TISSUE_LABEL for answer in self]

    def rows(self) -> list[Row]:
        """One per image, as in the table of the command line."""
        return [{"path": str(answer.path)} | answer.row() for answer in self]

    def to_frame(self) -> pandas.DataFrame:
        """A pandas DataFrame with the columns of the command line's table.

        Without `key`, which names files of its folder.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(_NO_PANDAS) from error
        rows = self.rows()
        return pandas.DataFrame(rows, columns=column_names(rows, self._columns))

    def plot(self, n_columns: int = 4) -> NDArray[np.object_]:
        """Every image with its patch map; matplotlib's axes (n_rows, n_columns)."""
        from matplotlib import pyplot

        n_columns = max(1, min(n_columns, len(self)))
        n_rows = max(1, -(-len(self) // n_columns))
        _, axes = pyplot.subplots(
            n_rows, n_columns, squeeze=False, figsize=(3 * n_columns, 3 * n_rows)
        )
        for ax in axes.flat:
            ax.set_axis_off()
        for answer, ax in zip(self, axes.flat, strict=False):
            answer.plot(ax)
        return axes

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {label}" for label, n in Counter(self.labels).most_common())
        return f"<{len(self)} answers: {counts}>" if self._predictions else "<no answers>"

    def _repr_html_(self) -> str:
        """The first of them as cards, and how many more there are."""
        cards = "".join(answer._repr_html_() for answer in self[:_ON_CARD])
        left = len(self) - _ON_CARD
        return cards + (f"<p>and {left} more</p>" if left > 0 else "")


def probabilities(answers: Iterable[Any], classes: Sequence[str]) -> NDArray[np.float64]:
    """(n_images, n_classes), NaN on glass."""
    return np.array(
        [[answer.probabilities.get(name, np.nan) for name in classes] for answer in answers]
    ).reshape(-1, len(classes))
