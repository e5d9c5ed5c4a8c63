"""The whole way: images with labels in, a model; an image in, an answer and a map.

image ─► reduced, stain-normalised ─► patches on tissue ─► vectors ─► codes and distances
      ─► patch winners ─► rule (which class?) or connected patches (where?) ─► answer
"""

from .patch_model import BLANK, PatchMap
from .region_detector import Region, RegionAnswer, RegionDetector
from .tissue_classifier import ImageAnswer, TissueClassifier

__all__ = [
    "BLANK",
    "ImageAnswer",
    "PatchMap",
    "Region",
    "RegionAnswer",
    "RegionDetector",
    "TissueClassifier",
]
