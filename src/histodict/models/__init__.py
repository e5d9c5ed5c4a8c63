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

from .ensemble import EnsembleClassifier
from .plan import ENSEMBLE_PRESETS, Model, Plan, load_model, save_model
from .predictions import (
    NO_TISSUE_LABEL,
    DetectedRegion,
    ImagePrediction,
    Prediction,
    Predictions,
    RegionPrediction,
)
from .region_detector import RegionDetector
from .tissue_classifier import TissueClassifier

__all__ = [
    "ENSEMBLE_PRESETS",
    "NO_TISSUE_LABEL",
    "DetectedRegion",
    "EnsembleClassifier",
    "ImagePrediction",
    "Model",
    "Plan",
    "Prediction",
    "Predictions",
    "RegionDetector",
    "RegionPrediction",
    "TissueClassifier",
    "load_model",
    "save_model",
]
