"""Image sources: raster files, whole slides, OME-TIFF and OME-Zarr."""
