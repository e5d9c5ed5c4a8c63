"""
Predict a whole slide
=====================

Slides are read tile by tile, only where there is tissue, so memory does not grow with their size.
"""

# %%
# Write a small pyramid in the format of a scanner: tiles, a reduced level and the pixel size.
import tempfile
from pathlib import Path

import numpy as np
import tifffile
from PIL import Image

import histodict
from histodict.synthetic.dataset import write_synthetic_dataset

folder = Path(tempfile.mkdtemp())
known = write_synthetic_dataset(
    folder / "known", n_patients=4, images_per_patient=2, size=(320, 240)
)
pieces = [np.asarray(Image.open(path)) for path in sorted(known.glob("*/patient01_*.jpg"))]
slide = np.full((1536, 2048, 3), 242, np.uint8)  # background
for place, (row, column) in enumerate([(1, 1), (1, 2), (2, 2), (3, 2), (2, 3), (3, 3)]):
    slide[row * 240 :, column * 320 :][:240, :320] = pieces[place % len(pieces)]

with tifffile.TiffWriter(folder / "slide.tif") as writer:
    options = {"tile": (256, 256), "photometric": "rgb", "compression": "deflate"}
    micron = {"resolution": (20_000, 20_000), "resolutionunit": "CENTIMETER"}  # 0.5 µm
    writer.write(slide, subifds=0, **options, **micron)
    writer.write(slide[::4, ::4], subfiletype=1, **options)

# %%
# Models predict slides like images.
model = histodict.TissueClassifier("fast", n_atoms=24, patches_per_class=800, n_iter=5).fit(known)
prediction = model.predict(folder / "slide.tif")
print(prediction.label, prediction.proportions)

# %%
# Background is not coloured.
prediction.plot()

# %%
# The map has positions in level-0 pixels of the slide. For QuPath, use ``histodict predict MODEL
# slide.tif --output results/ --qupath-project``.
print(
    prediction.patch_map.predicted_classes.shape,
    "places,",
    prediction.patch_map.n_patches,
    "with tissue",
)
