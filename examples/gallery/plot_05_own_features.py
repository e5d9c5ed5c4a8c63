"""
Use precomputed features
========================

Feature vectors of another encoder, one per patch, can replace the images for training and
prediction with histodict, or be used in a pipeline of scikit-learn.
"""

# %%
# One file per slide with ``features`` (n_patches, n_features) and ``coords``, the corners of the
# patches. TRIDENT and CLAM write the same arrays as ``.h5``. In this example they are random, and
# each class has its own main directions.
import tempfile
from pathlib import Path

import numpy as np

import histodict

rng = np.random.default_rng(0)
folder = Path(tempfile.mkdtemp())
directions = rng.standard_normal((2, 6, 64))
rows = ["slide,label,patient"]
for n in range(12):
    label = n % 2
    grid = np.stack(np.meshgrid(np.arange(12), np.arange(10)), axis=-1).reshape(-1, 2) * 256
    # A third of the patches show what the slide is, the others what both classes have.
    own = np.where(rng.random(len(grid)) < 0.35, label, 0)
    features = np.stack([rng.dirichlet(np.ones(6)) @ directions[k] for k in own])
    features += 0.2 * rng.standard_normal(features.shape) + 0.1 * rng.standard_normal(64)
    np.savez(folder / f"slide{n:02}.npz", features=features.astype(np.float32), coords=grid)
    rows.append(f"slide{n:02},{('normal', 'tumour')[label]},p{n:02}")
(folder / "slides.csv").write_text("\n".join(rows))

# %%
# On the command line: ``histodict train slides.csv --features DIR``.
slides = histodict.read_manifest(folder / "slides.csv", features=folder)
model = histodict.TissueClassifier("precomputed", n_atoms=20, n_components=30).fit(
    slides.select(range(8))
)
predictions = model.predict(slides.select(range(8, 12)))
print(predictions.top_labels, "for", slides.labels[8:])
predictions[1].plot()

# %%
# The methods are classifiers of vectors, for pipelines of scikit-learn.
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

X = np.concatenate([np.load(folder / f"slide{n:02}.npz")["features"] for n in range(12)])
y, patients = np.repeat(np.arange(12) % 2, 120), np.repeat(np.arange(12), 120)
pipeline = make_pipeline(Normalizer(), histodict.DFDL(n_atoms=20, penalty=0.3, random_state=0))
scores = cross_val_score(pipeline, X, y, groups=patients, cv=GroupKFold(3))
print("accuracy of single patches, by patient:", scores.round(2))
