"""
Detect a confounder
===================

All inflamed tissue comes from another laboratory with a slightly darker stain. A model that learns
the stain appears perfect, but fails on inflamed tissue with the stain of the healthy tissue.
"""

# %%
# The inflamed images of the training set are tinted; those of the clean set are not.
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

import histodict
from histodict.synthetic.dataset import write_synthetic_dataset

folder = Path(tempfile.mkdtemp())
tinted = write_synthetic_dataset(
    folder / "tinted", n_patients=8, images_per_patient=1, size=(240, 180)
)
clean = write_synthetic_dataset(
    folder / "clean", n_patients=8, images_per_patient=1, size=(240, 180), seed=1
)
for path in (tinted / "inflamed").glob("*.jpg"):
    pixels = np.asarray(Image.open(path)).astype(float) * [0.85, 0.8, 0.95]
    Image.fromarray(pixels.astype(np.uint8)).save(path, quality=95)

# %%
# Without stain normalisation, and with it, which removes the tint before training.
small = {"n_atoms": 16, "patches_per_class": 400, "n_iter": 4}
for stain in ("none", "reinhard"):
    model = histodict.TissueClassifier("fast", features="rgb", stain=stain, **small).fit(tinted)
    found = [f"{name} {model.score(folder / name):.2f}" for name in ("tinted", "clean")]
    print(f"stain={stain:9}", *found)

# %%
# Without confounding, scores of tinted and clean images of one class are similar.
model = histodict.TissueClassifier("fast", features="rgb", stain="none", **small).fit(tinted)
figure, ax = plt.subplots(figsize=(6, 2.2), layout="constrained")
for name in ("tinted", "clean"):
    scores = [prediction.score for prediction in model.predict(folder / name / "inflamed", mpp=0.5)]
    ax.plot(scores, [name] * len(scores), "o", alpha=0.6)
ax.axvline(0, color="grey", lw=0.8)
ax.set(xlabel="score of inflamed images (above 0: predicted inflamed)", ylim=(-0.6, 1.6))
