"""The whole way: images with labels in, a model; an image in, an answer and a map.

image ─► reduced, stain-normalised ─► patches on tissue ─► vectors ─► codes and distances
      ─► patch winners ─► rule (which class?) or connected patches (where?) ─► answer

view            an image as a recipe sees it
image_model     what stands between a method and a file: patch_model, whole_image_model
inputs, estimator, results    what people hand in; what all models can do in Python; many answers
tissue_classifier, region_detector    one model: which class, or where
trials          a model learns from some patients and answers for others; kept under one key
panel           several recipes, heard on unseen patients, that decide together
plan            which of these is made, and presets by name
"""

from .answers import NO_TISSUE, Answer, ImageAnswer, Region, RegionAnswer
from .panel import Panel
from .plan import PANELS, Model, Plan
from .region_detector import RegionDetector
from .results import Answers
from .saving import load_model, save_model
from .tissue_classifier import TissueClassifier

__all__ = [
    "NO_TISSUE",
    "PANELS",
    "Answer",
    "Answers",
    "ImageAnswer",
    "Model",
    "Panel",
    "Plan",
    "Region",
    "RegionAnswer",
    "RegionDetector",
    "TissueClassifier",
    "load_model",
    "save_model",
]
