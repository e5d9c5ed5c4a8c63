"""An image's patches as tables of the scverse: AnnData, SpatialData.

h5ad           how AnnData lies in a file, element by element, with h5py alone
patch_table    what of a model's answer goes where in it; codes are written as they come
objects        the same in memory, for those who have anndata or spatialdata installed
"""
