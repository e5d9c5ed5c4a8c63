"""Export of predictions to AnnData, SpatialData and QuPath.

h5ad_writer  elements of the .h5ad format, written with h5py
anndata      patches of an image as AnnData or SpatialData
qupath       outlines as GeoJSON, and QuPath projects
"""
