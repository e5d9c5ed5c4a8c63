"""What OME files say of lengths and of channels: µm, and whether three channels are colours."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .opened_slide import UnfitError

# Of OME-XML, by their signs, and of NGFF, by their names.
_MICROMETRES = {
    "m": 1e6,
    "dm": 1e5,
    "cm": 1e4,
    "mm": 1e3,
    "µm": 1.0,
    "um": 1.0,
    "nm": 1e-3,
    "pm": 1e-6,
    "å": 1e-4,
    "in": 25_400.0,
    "meter": 1e6,
    "decimeter": 1e5,
    "centimeter": 1e4,
    "millimeter": 1e3,
    "micrometer": 1.0,
    "micron": 1.0,
    "nanometer": 1e-3,
    "picometer": 1e-6,
    "angstrom": 1e-4,
    "inch": 25_400.0,
}
_COLOURS = (("r", "red", "ff0000"), ("g", "green", "00ff00"), ("b", "blue", "0000ff"))
# Names that programs give where nobody gave one.
_NO_NAME = re.compile(r"(channel|ch|c|image)?[\s:_#-]*\d*([\s:_#-]+\d+)*", re.IGNORECASE)
_MOST_NAMED = 4


def micrometres(length: float, unit: str) -> float | None:
    """A length in µm; None of a unit that says nothing, such as pixels."""
    # Two signs look like the Greek letter, and one of them folds to the other.
    factor = _MICROMETRES.get(unit.strip().replace("\u03bc", "\u00b5").lower())
    return None if factor is None else length * factor


@dataclass(frozen=True)
class Channel:
    """colour : six hexadecimal digits, or empty; glows : it is of fluorescence, by its own words"""

    name: str = ""
    colour: str = ""
    glows: bool = False

    def may_be(self, place: int) -> bool:
        """Whether nothing speaks against it as red, green or blue."""
        name, own = self.name.strip().lower(), _COLOURS[place]
        if self.glows:
            return False
        if name in own:
            return True
        return bool(_NO_NAME.fullmatch(name)) and self.colour.lower() in ("", "ffffff", own[2])


def check_channels(channels: list[Channel], n_channels: int) -> None:
    """Refuse all but red, green and blue, and grey."""
    shown = channels[:n_channels]
    if n_channels == 3 and all(channel.may_be(at) for at, channel in enumerate(shown)):
        return
    if n_channels == 1 and not any(channel.glows for channel in shown):
        return
    names = [channel.name for channel in shown if channel.name][:_MOST_NAMED]
    more = ", …" if names and n_channels > len(names) else ""
    named = f" ({', '.join(names)}{more})" if names else ""
    plural = "channel" if n_channels == 1 else "channels"
    raise UnfitError(
        f"has {n_channels} {plural}{named} that are not red, green and blue; fluorescence and "
        "other images of channels are not read: save it as RGB"
    )


def check_one_plane(sizes: dict[str, int]) -> None:
    """Refuse stacks and time series; `sizes` by the letters of their axes."""
    words = {"z": "planes of focus (z)", "t": "points in time (t)"}
    for letter, what in words.items():
        if sizes.get(letter, 1) != 1:
            raise UnfitError(
                f"has {sizes[letter]} {what}, of which one would have to be chosen: save one of "
                "them as an image of its own"
            )
