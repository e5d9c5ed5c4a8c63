"""
Which method is best on these patients?
=======================================

Every method is trained and tested on the same splits; no patient is on both sides, and every
figure has an interval. ``histodict evaluate`` does this with a report; here are its parts.
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
# A model for each split; its answers for the patients that were left out.
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
# Intervals resample patients, not images: with eight patients they are wide, and that is the
# truth.
figure, ax = plt.subplots(figsize=(6, 2.6), layout="constrained")
for place, got in enumerate(found.values()):
    ax.plot([got.low, got.high], [place, place], lw=3, color="tab:blue", alpha=0.4)
    ax.plot(got.value, place, "o", color="tab:blue")
ax.set(yticks=range(len(found)), yticklabels=found, xlabel="balanced accuracy", xlim=(0.3, 1.03))
ax.invert_yaxis()
