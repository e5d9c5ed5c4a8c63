"""
Compare methods
===============

All methods are trained and tested on the same splits by patient, and every metric has a confidence
interval. ``histodict evaluate`` does this and writes a report; this example shows the steps.
"""

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import histodict
from histodict.metrics.intervals import bootstrap_interval
from histodict.metrics.scores import balanced_accuracy
from histodict.model_selection.protocols import collect_repeats, k_folds
from histodict.synthetic.dataset import write_synthetic_dataset

folder = write_synthetic_dataset(
    Path(tempfile.mkdtemp()) / "set", n_patients=8, images_per_patient=2, size=(240, 180)
)
images = histodict.read_manifest(folder)
splits = k_folds(images, 2, random_state=0)


# %%
# Train a model on each split and predict the test patients.
def tested(method, **settings):
    predictions = []
    for split in splits:
        model = histodict.TissueClassifier("fast", method=method, **settings)
        model.fit(images.select(split.train))
        predictions.append(model.predict(images.select(split.test)).top_labels)
    return bootstrap_interval(balanced_accuracy, collect_repeats(images, splits, predictions))


small = {"n_atoms": 16, "patches_per_class": 400}
found = {
    "dfdl": tested("dfdl", n_iter=5, **small),
    "odl": tested("odl", **small),
    "nearest-mean": tested("nearest-mean", patches_per_class=400),
    "lbp-colour": tested("lbp-colour"),
}
for method, interval in found.items():
    print(f"{method:13} {interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f})")

# %%
# Intervals resample patients instead of images, so they are wide with eight patients.
figure, ax = plt.subplots(figsize=(6, 2.6), layout="constrained")
for place, got in enumerate(found.values()):
    ax.plot([got.low, got.high], [place, place], lw=3, color="tab:blue", alpha=0.4)
    ax.plot(got.value, place, "o", color="tab:blue")
ax.set(yticks=range(len(found)), yticklabels=found, xlabel="balanced accuracy", xlim=(0.3, 1.03))
ax.invert_yaxis()
