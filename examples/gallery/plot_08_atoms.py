"""
What has it learnt?
===================

Atoms are what patches are written with. They can be looked at, and so can what uses them.
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
# Below, the dictionaries are plain arrays: one atom per row, of length 1, most used first.
dictionaries = model.model_.method_.dictionaries_
print(model.classes_, dictionaries.shape)

# %%
# An image's answer is a sum of what its atoms say. Give them names with ``histodict edit``, and it
# speaks in your words.
explanation = model.explain(next((known / "inflamed").glob("*.jpg")), mpp=0.5)
print(explanation.summary())
print(explanation.describe_change())

# %%
# DFDL wants a class's atoms to code its own patches well and the others' badly. How alike are the
# atoms of the two classes?
alike = np.abs(dictionaries[0] @ dictionaries[1].T)
figure, ax = plt.subplots(figsize=(4.6, 3.8), layout="constrained")
shown = ax.imshow(alike, vmin=0, vmax=1, cmap="magma")
ax.set(
    xlabel=f"atoms of {model.classes_[1]}", ylabel=f"atoms of {model.classes_[0]}", title="|cosine|"
)
figure.colorbar(shown)
