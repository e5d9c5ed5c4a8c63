"""Model files of earlier schemas, in the words of the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Header = dict[str, Any]
Arrays = dict[str, Any]
# Settings of a procedure, which a recipe held in schema 4.
_PROCEDURE = ("panel", "calibration_folds", "candidates")


def from_schema_4(header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """A classifier was model, panel and calibration at once; now a panel has members."""
    own, others, together = _parted(arrays)
    first = _member(header)
    words = {"schema": 5, "versions": header["versions"]}
    if "calibration.slopes" not in together:
        if "panel.scales" in together:  # of one model, adapted: an offset is a shift
            first["decision"]["shift"] -= header["offset"]
        return words | first, own
    members = [first | {"decision": {"shift": 0.0}}, *map(_member, header["others"])]
    training = header["training"] | {"folds": header["recipe"]["calibration_folds"]}
    decision = {"shift": header["shift"], "offset": header["offset"]}
    panel = first | {"kind": "panel", "decision": decision, "training": training}
    panel["members"] = members
    found = {f"member0.{name}": array for name, array in own.items()} | others
    found["combination.scales"] = together.pop("panel.scales")
    return words | panel, found | together


def _parted(arrays: Arrays) -> tuple[Arrays, Arrays, Arrays]:
    """Those of the first model, of the others under their new names, and of all together."""
    own, others, together = {}, {}, {}
    for name, array in arrays.items():
        start, _, rest = name.partition(".")
        if start.startswith("other"):
            others[f"member{int(start.removeprefix('other')) + 1}.{rest}"] = array
        elif start in ("panel", "calibration"):
            together[name] = array
        else:
            own[name] = array
    return own, others, together


def _member(header: Header) -> Header:
    decision = {"shift": header.get("shift", 0.0)}
    if "least_patches" in header:
        decision = {"least_patches": header["least_patches"]}
    return {
        **{name: header[name] for name in ("kind", "classes", "mpp", "n_features", "training")},
        "recipe": {k: v for k, v in header["recipe"].items() if k not in _PROCEDURE},
        "weights": header.get("network_digest", ""),
        "decision": decision,
        "members": [],
    }


def from_schema_5(header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """The same words; the file had no digest."""
    return header | {"schema": 6}, arrays


def from_schema_6(header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Patches were region where that class was the closest."""
    if header["kind"] == "region-detector":
        header = header | {"decision": header["decision"] | {"cut": 0.0}}
    return header | {"schema": 7}, arrays


def from_schema_7(header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """A panel's members had the same say; beyond an image a network filled up by itself."""
    n_members = len(header["members"])
    if n_members:
        arrays = arrays | {"combination.weights": np.full(n_members, 1 / n_members)}
    before = {"border": "filled"}
    members = [member | {"recipe": member["recipe"] | before} for member in header["members"]]
    own = {"schema": 8, "recipe": header["recipe"] | before, "members": members}
    return header | own, arrays


def from_schema_8(header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Members' scores were taken as they are."""
    if header["kind"] == "panel":
        header = header | {"decision": header["decision"] | {"bend": 0.0}}
    return header | {"schema": 9}, arrays


def from_schema_9(header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """All tissue was judged, also what is blurred, folded or under pen marks."""
    before = {"quality": "none"}
    members = [member | {"recipe": member["recipe"] | before} for member in header["members"]]
    own = {"schema": 10, "recipe": header["recipe"] | before, "members": members}
    return header | own, arrays


def from_schema_10(header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Nobody could say anything of atoms."""
    members = [member | {"atoms": []} for member in header["members"]]
    return header | {"schema": 11, "atoms": [], "members": members}, arrays


def from_schema_11(header: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Convert changes after training, formerly two entries without images and date."""
    training = dict(header["training"])
    unknown: Header = {"date": "", "images": [], "previous": None, "value": None}
    adapted, refit = training.pop("adapted", None), training.pop("line", None)
    found: list[Any] = []
    if adapted:
        found.append({"source": "adapted", "shift": adapted.get("threshold")} | unknown | adapted)
    if refit:
        found.append({"source": "refit", "shift": None} | unknown | refit)
    training |= {"tuning": found} if found else {}
    members = [from_schema_11(member, arrays)[0] for member in header["members"]]
    own: Header = {"training": training, "members": members}
    return header | own | ({"schema": 12} if "schema" in header else {}), arrays


UPGRADES: dict[int, Callable[[Header, Arrays], tuple[Header, Arrays]]] = {
    4: from_schema_4,
    5: from_schema_5,
    6: from_schema_6,
    7: from_schema_7,
    8: from_schema_8,
    9: from_schema_9,
    10: from_schema_10,
    11: from_schema_11,
}
