"""
Classify images
===============

Train a model on a few labelled images, predict images of other patients, and show the patch map.
"""

# %%
# This example uses synthetic tissue. Real images are in a folder with one sub-folder per class, or
# in a CSV with the columns ``path`` and ``label``, and preferably ``patient`` and ``mpp``.
import tempfile
from pathlib import Path

import histodict
from histodict.synthetic.dataset import write_synthetic_dataset

folder = Path(tempfile.mkdtemp())
known = write_synthetic_dataset(
    folder / "known", n_patients=4, images_per_patient=2, size=(320, 240)
)
new = write_synthetic_dataset(
    folder / "new", n_patients=3, images_per_patient=2, size=(320, 240), seed=1
)

# %%
# The preset ``fast`` has one dictionary of pixels per class. The settings make it smaller for this
# example: omit them for real tissue, or use ``EnsembleClassifier()``, which is the most accurate.
model = histodict.TissueClassifier("fast", n_atoms=24, patches_per_class=800, n_iter=5)
model.fit(known)

# %%
# A path, an array or a Pillow image gives one prediction; a folder or a list gives several.
predictions = model.predict(new / "manifest.csv")
for row in predictions.rows()[:4]:
    print(row["path"].split("/")[-1], row["label"], f"{row['score']:+.2f}")
print("balanced accuracy on new patients:", model.score(new / "manifest.csv"))

# %%
# The map shows the predicted class of each patch.
predictions[0].plot()

# %%
# The atoms of the dictionaries of both classes.
model.plot_atoms(8)
