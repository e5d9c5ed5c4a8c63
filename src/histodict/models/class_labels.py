"""Conversion of class labels `y` (text, int, bool or float) to class names, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TEXT = "str"
# For each type of labels other than text, the function that converts a name to a label.
LABEL_TYPES: dict[str, Callable[[str], Any]] = {
    "bool": lambda name: {"False": False, "True": True}[name],
    "int": int,
    "float": float,
}
# Name of the label type of each `dtype.kind`.
_LABEL_TYPE_BY_KIND = {"U": TEXT, "b": "bool", "i": "int", "u": "int", "f": "float"}


@dataclass(frozen=True)
class NamedLabels:
    """Class labels `y`, converted to text.

    Attributes
    ----------
    names : text of each label
    classes : class names in the sorted order of the labels
    label_type : type of the labels: "str" or a key of `LABEL_TYPES`
    """

    names: list[str]
    classes: tuple[str, ...]
    label_type: str

    @classmethod
    def from_labels(cls, y: Any) -> NamedLabels:
        """Convert labels of one type to text with `str`.

        Raises
        ------
        ValueError
            If a label is empty, or if the labels are continuous or of several types.
        """
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import column_or_1d

        values = _to_common_type(column_or_1d(y))
        label_type = _LABEL_TYPE_BY_KIND.get(values.dtype.kind)
        if label_type is None:
            raise ValueError(f"y must be text, integers or booleans, not {values.dtype}")
        if len(values):
            check_classification_targets(values)
        names = [str(value) for value in values.tolist()]
        for index, name in enumerate(names):
            if not name.strip():
                raise ValueError(f"the label of image {index} is empty")
        classes = tuple(str(value) for value in np.unique(values).tolist())
        return cls(names, classes, label_type)


def _to_common_type(values: NDArray[Any]) -> NDArray[Any]:
    """Convert an object array to the type of its elements; raise ValueError if types differ."""
    if values.dtype.kind != "O":
        return values
    types = {type(value) for value in values.tolist()}
    if all(issubclass(kind, str) for kind in types):
        return values.astype(str)
    if len(types) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in types))
        raise ValueError(
            f"all labels y must have one type (text, integers or booleans), not {names}"
        )
    return np.array(values.tolist())


def labels_from_names(names: Sequence[str], label_type: str) -> NDArray[Any]:
    """Convert class names back to labels of the type that `y` had.

    Parameters
    ----------
    names : class names
    label_type : type of the labels, as in `NamedLabels`

    Returns
    -------
    ndarray of shape (n_names,)

    Raises
    ------
    ValueError
        If a name does not represent a value of the type.
    """
    if label_type == TEXT:
        return np.array(names, dtype=str)
    try:
        return np.array([LABEL_TYPES[label_type](name) for name in names], dtype=label_type)
    except (KeyError, OverflowError, ValueError) as error:
        raise ValueError(
            f"labels of type {label_type} cannot have the names {list(names)}"
        ) from error


def groups_to_patients(groups: Iterable[Any]) -> list[str]:
    """Convert the argument `groups` of scikit-learn to patient names, one per image.

    Raises
    ------
    ValueError
        If a group is missing.
    """
    names = []
    for index, group in enumerate(groups):
        is_missing = group is None or type(group).__name__ == "NAType" or group != group  # NaN
        if is_missing or not str(group).strip():
            raise ValueError(f"groups has no patient for image {index}")
        names.append(str(group))
    return names
