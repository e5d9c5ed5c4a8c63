"""
Train on annotations from QuPath
================================

A few outlines per class are sufficient for training; tissue outside of them is ignored.
"""

# %%
# QuPath exports one GeoJSON file per image, with the name of the image. This example writes them
# from the masks of synthetic tissue.
import json
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from skimage.measure import approximate_polygon, find_contours

import histodict
from histodict.synthetic.dataset import write_synthetic_dataset

folder = Path(tempfile.mkdtemp())
known = write_synthetic_dataset(
    folder / "known", n_patients=8, images_per_patient=1, size=(320, 240)
)
images = histodict.read_manifest(known / "regions" / "manifest.csv", labelled=False)


def outline(ring, name):
    """A feature as QuPath writes it."""
    closed = [*ring, ring[0]]
    return {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [closed]},
        "properties": {"objectType": "annotation", "classification": {"name": name}},
    }


def box(x, y, side):
    return [[x, y], [x + side, y], [x + side, y + side], [x, y + side]]


(folder / "geojson").mkdir()
for record in images.records:
    mask = np.asarray(Image.open(record.mask).convert("L")) > 0
    found = [
        outline(approximate_polygon(ring[:-1, ::-1], 2).round(1).tolist(), "Inflamed")
        for ring in find_contours(np.pad(mask, 1).astype(float), 0.5)
        if len(ring) > 60
    ]
    corners = [
        (x, y) for x in (10, 180) for y in (10, 120) if not mask[y : y + 90, x : x + 90].any()
    ]
    found += [outline(box(x, y, 90), "Healthy") for x, y in corners]
    path = folder / "geojson" / f"{Path(record.path).stem}.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": found}))

# %%
# The Python equivalent of ``histodict train images.csv --annotations geojson/ --regions
# Healthy,Inflamed``: one part of an image for each class with outlines.
outlined = histodict.with_annotations(images, folder / "geojson")
parts = histodict.split_by_annotation(outlined, ["Healthy", "Inflamed"])
print(len(images.records), "images,", len(parts.records), "parts")

model = histodict.TissueClassifier("fast", n_atoms=24, patches_per_class=1000, n_iter=5).fit(parts)

# %%
# Predict a complete new image.
new = write_synthetic_dataset(
    folder / "new", n_patients=2, images_per_patient=1, size=(320, 240), seed=1
)
model.predict(next((new / "regions").rglob("*.jpg"))).plot()
