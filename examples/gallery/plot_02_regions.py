"""
Detect regions
==============

Train a region detector on images with masks of inflamed tissue, and apply it to other images.
"""

# %%
# The table lists each image and, in the column ``mask``, an image of its inflamed area.
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image

import histodict
from histodict.synthetic.dataset import write_synthetic_dataset

folder = Path(tempfile.mkdtemp())
known = write_synthetic_dataset(
    folder / "known", n_patients=8, images_per_patient=1, size=(320, 240)
)
new = write_synthetic_dataset(
    folder / "new", n_patients=4, images_per_patient=1, size=(320, 240), seed=1
)
print((known / "regions" / "manifest.csv").read_text())

# %%
# The preset ``regions`` uses pixels; ``embeddings``, which needs PyTorch, is more accurate.
finder = histodict.RegionDetector(
    "regions", region="inflamed", n_atoms=32, patches_per_class=1500, n_iter=5
)
finder.fit(known / "regions" / "manifest.csv")

# %%
# A region is a group of adjacent patches with a minimum size.
found = finder.predict(new / "regions" / "manifest.csv")
for prediction in found:
    print(
        Path(prediction.path).name,
        prediction.label,
        [region.area_px for region in prediction.regions],
    )

# %%
# Detected and true regions.
shown = max(found, key=lambda prediction: len(prediction.regions))
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
shown.plot(axes[0])
axes[1].imshow(
    Image.open(next((new / "regions").rglob(f"{Path(shown.path).stem}*.png"))), cmap="gray"
)
axes[1].set(title="true regions", xticks=[], yticks=[])
