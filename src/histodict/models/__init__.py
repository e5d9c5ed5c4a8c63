"""Models: classifiers and detectors that are fitted on labelled images and applied to new ones.

image ─► reduced, stain-normalised ─► patches on tissue ─► feature vectors ─► codes, distances
      ─► predicted class of each patch ─► class of the image (aggregator), or
      regions (connected patches of the positive class)

================================================  ================================================
``inputs``, ``recipe``, ``plan``                  accepted inputs, settings, training plans
``prepared_image``                                image or feature file as a grid of patches
``image_pipeline``, ``patch_pipeline``            pipelines from image files to scores
``estimator``                                     base class with the scikit-learn interface
``tissue_classifier``, ``region_detector``        single models
``ensemble``, ``cross_validation``                several models; out-of-fold predictions
``predictions``, ``model_file``                   predictions; files of fitted models
``feature_extraction``                            feature files of images
================================================  ================================================
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
