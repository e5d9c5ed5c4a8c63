"""Classifiers of patch vectors and of image feature vectors, one module per method."""
