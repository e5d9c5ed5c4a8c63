"""
Accuracy with few images
========================

The test patients are fixed. One, two, four and eight images per class of the other patients are
used for training; each set contains the previous one.
"""

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import histodict
from histodict.metrics.scores import balanced_accuracy
from histodict.model_selection.protocols import learning_curve_splits
from histodict.synthetic.dataset import write_synthetic_dataset

folder = write_synthetic_dataset(
    Path(tempfile.mkdtemp()) / "set", n_patients=16, images_per_patient=2, size=(240, 180)
)
images = histodict.read_manifest(folder)
sizes = [1, 2, 4, 8]
splits = learning_curve_splits(images, sizes, n_repeats=2, random_state=0)

# %%
found = {size: [] for size in sizes}
for split in splits:
    train, test = images.select(split.train), images.select(split.test)
    model = histodict.TissueClassifier("fast", n_atoms=16, patches_per_class=300, n_iter=4)
    labels = model.fit(train).predict(test).top_labels
    found[len(train.records) // 2].append(balanced_accuracy(test.labels, labels))
for size, values in found.items():
    print(f"{size} per class: {np.mean(values):.2f}")

# %%
# With one image per class, a model also learns the stain of that image.
figure, ax = plt.subplots(figsize=(5, 3), layout="constrained")
for size, values in found.items():
    ax.plot([size] * len(values), values, "o", color="tab:blue", alpha=0.5)
ax.plot(sizes, [np.mean(values) for values in found.values()], color="tab:blue")
ax.set(xlabel="images per class", ylabel="balanced accuracy", ylim=(0.4, 1.03), xticks=sizes)
