"""What goes wrong with an image file."""

from __future__ import annotations


class ImageError(ValueError):
    """An image cannot be read; the message says which one, why, and what to do."""


class UnknownImageError(ImageError):
    """A file that is none of the formats it was taken for."""


class NoRoomError(ImageError):
    """It can be read, but takes more memory than there is."""
