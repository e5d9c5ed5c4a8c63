"""
A whole slide
=============

Slides are read tile by tile, where there is tissue: memory does not grow with them. Nothing is
asked for but the file.
"""

# %%
# A small pyramid is written here as a scanner would: tiles, a reduced level, the size of a pixel.
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
slide = np.full((1536, 2048, 3), 242, np.uint8)  # glass
for place, (row, column) in enumerate([(1, 1), (1, 2), (2, 2), (3, 2), (2, 3), (3, 3)]):
    slide[row * 240 :, column * 320 :][:240, :320] = pieces[place % len(pieces)]

with tifffile.TiffWriter(folder / "slide.tif") as writer:
    options = {"tile": (256, 256), "photometric": "rgb", "compression": "deflate"}
    micron = {"resolution": (20_000, 20_000), "resolutionunit": "CENTIMETER"}  # 0.5 µm
    writer.write(slide, subifds=0, **options, **micron)
    writer.write(slide[::4, ::4], subfiletype=1, **options)

# %%
# Any model answers for slides as for images.
model = histodict.TissueClassifier("fast", n_atoms=24, patches_per_class=800, n_iter=5).fit(known)
prediction = model.predict(folder / "slide.tif")
print(prediction.label, prediction.proportions)

# %%
# Glass is left blank.
prediction.plot()

# %%
# The map knows where it lies in the slide's own pixels, which is what goes to QuPath: ``histodict
# predict MODEL slide.tif --output results/ --qupath-project``.
print(
    prediction.patch_map.predicted_classes.shape,
    "places,",
    prediction.patch_map.n_patches,
    "with tissue",
)
