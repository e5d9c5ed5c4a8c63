"""
Inspect the atoms
=================

Patches are coded with atoms. Show the atoms, and the images that use them.
"""

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import histodict
from histodict.synthetic.dataset import write_synthetic_dataset

folder = Path(tempfile.mkdtemp())
known = write_synthetic_dataset(
    folder / "known", n_patients=4, images_per_patient=2, size=(320, 240)
)
model = histodict.TissueClassifier("paper", n_atoms=24, patches_per_class=1500, n_iter=8)
model.fit(known)

# %%
# The most used atoms of each class.
model.plot_atoms(12)

# %%
# Dictionaries are arrays with one unit-norm atom per row, the most used first.
dictionaries = model.model_.classifier_.dictionaries_
print(model.classes_, dictionaries.shape)

# %%
# The score of an image is a sum of contributions of atoms. Names that are assigned with ``histodict
# edit`` appear in explanations.
explanation = model.explain(next((known / "inflamed").glob("*.jpg")), mpp=0.5)
print(explanation.summary())
print(explanation.describe_change())

# %%
# In DFDL, the atoms of a class code its own patches well and other patches poorly. Compare the
# atoms of the two classes.
alike = np.abs(dictionaries[0] @ dictionaries[1].T)
figure, ax = plt.subplots(figsize=(4.6, 3.8), layout="constrained")
shown = ax.imshow(alike, vmin=0, vmax=1, cmap="magma")
ax.set(
    xlabel=f"atoms of {model.classes_[1]}", ylabel=f"atoms of {model.classes_[0]}", title="|cosine|"
)
figure.colorbar(shown)
