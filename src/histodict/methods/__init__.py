"""Methods of the paper as classifiers of feature vectors, one module per method."""
