"""
Which class is it?
==================

Learn from a few labelled images, answer for patients that were not among them, and see why.
"""

# %%
# Tissue is drawn here. Yours lies in a folder with one sub-folder per class, or is listed in a CSV
# with the columns ``path``, ``label`` and, best, ``patient`` and ``mpp``.
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
# ``fast`` is one dictionary of pixels for each class. The settings behind it make it smaller
# still: leave them out for real tissue, or take ``EnsembleClassifier()``, which is the most
# accurate.
model = histodict.TissueClassifier("fast", n_atoms=24, patches_per_class=800, n_iter=5)
model.fit(known)

# %%
# A path, an array or a Pillow image gets one answer; a folder or a list gets many.
predictions = model.predict(new / "manifest.csv")
for row in predictions.rows()[:4]:
    print(row["path"].split("/")[-1], row["label"], f"{row['score']:+.2f}")
print("balanced accuracy on new patients:", model.score(new / "manifest.csv"))

# %%
# Every patch has a say, and the map shows what each said.
predictions[0].plot()

# %%
# What the classes' dictionaries look like: small pictures, which patches are written with.
model.plot_atoms(8)
