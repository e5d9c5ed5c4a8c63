"""
Probabilities and prediction sets
=================================

Scores are not probabilities. An ensemble is calibrated on out-of-fold scores of training patients,
and then also predicts probabilities and prediction sets.
"""

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import histodict
from histodict.synthetic.dataset import write_synthetic_dataset

folder = Path(tempfile.mkdtemp())
known = write_synthetic_dataset(
    folder / "known", n_patients=8, images_per_patient=2, size=(240, 180)
)
new = write_synthetic_dataset(
    folder / "new", n_patients=6, images_per_patient=2, size=(240, 180), seed=1
)

# %%
# Calibrate a single model; ``EnsembleClassifier()`` also combines several kinds of features.
ensemble = histodict.EnsembleClassifier(
    ["fast"], folds=2, n_atoms=16, patches_per_class=400, n_iter=4
).fit(known)
predictions = ensemble.predict(new / "manifest.csv", error_rate=0.2)

# %%
# ``prediction_set`` contains the classes that cannot be excluded at an error rate of 20 %: one,
# both, or none if the image is unlike both.
for prediction in predictions[:4]:
    probabilities = ", ".join(
        f"{name} {probability:.2f}" for name, probability in prediction.probabilities.items()
    )
    print(
        Path(prediction.path).name,
        "|",
        probabilities,
        "|",
        " or ".join(prediction.prediction_set) or "neither",
    )

# %%
truth = histodict.read_manifest(new).labels
figure, ax = plt.subplots(figsize=(5.5, 2.8), layout="constrained")
for name, colour in zip(ensemble.classes_, ("tab:blue", "tab:red"), strict=True):
    own = [
        a.probabilities[ensemble.classes_[1]]
        for a, label in zip(predictions, truth, strict=True)
        if label == name
    ]
    ax.plot(own, [name] * len(own), "o", color=colour, alpha=0.6)
ax.set(xlim=(0, 1), xlabel=f"probability of {ensemble.classes_[1]}")
ax.axvline(0.5, color="grey", lw=0.8)
