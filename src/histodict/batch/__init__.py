"""A model over many images, into a folder: goes past bad files, and goes on where it was stopped.

    DIR/predictions.csv, .parquet    one row per image (detections.csv for regions)
    DIR/regions.csv, .parquet        one row per region found
    DIR/overlays/KEY.png             the image with its patch map, the regions' outlines, a legend
    DIR/maps/KEY.npz                 the patch map, for `PatchMap.load`
    DIR/geojson/KEY.geojson          areas of a class, the regions, or patches, for QuPath (.gz)
    DIR/qupath/                      a QuPath project of all images, where it was asked for
    DIR/anndata/KEY.h5ad             the patches with their codes, for scanpy and squidpy, if asked
    DIR/scores.json                  how good the answers are, where it is known what they should be
    DIR/failures.csv                 failed images of the last command, with the reasons
    DIR/done/KEY.json                one image's rows, and the digests of its files; what is there
                                     and whole is not done again

The tables hold all that is there: rows of earlier runs stay, if model and settings were the same.
KEY is the file's name and a few letters that tell equal names apart.
"""

from .image import output_key
from .run import RunResult, list_input_images, predict_images

__all__ = ["RunResult", "list_input_images", "output_key", "predict_images"]
