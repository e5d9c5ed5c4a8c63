"""Make the screenshots of docs/concepts.md with synthetic tissue.

    python docs/draw_concepts.py             needs Chromium; some minutes

The first page is that of a model of images with a pen mark, added to the inflamed images of one of
two sites as in benchmarks/confounders.py. The other two pages are those of a model of the same
images without the mark. With an argument, the pages stay in this folder.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageChops

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

from benchmarks.confounders import planted, synthetic_patients, trained, with_sites  # noqa: E402
from histodict import TissueClassifier  # noqa: E402
from histodict.datasets.manifest import Manifest  # noqa: E402
from histodict.decision.atom_annotations import AtomAnnotations  # noqa: E402
from histodict.explain.atom_statistics import AtomStatistics  # noqa: E402
from histodict.reports.atoms_page import AtomReportData, collect_atom_report, write_atoms_page  # noqa: E402
from histodict.reports.explanation_page import write_explanation_page  # noqa: E402

WIDTH = 1100
HEIGHTS = {"concepts-leak": 962, "concepts-atoms": 664, "concepts-why": 1010}


def save_screenshot(page: Path, name: str, start: str) -> None:
    """Save a screenshot of a page, whose content before `start` is removed."""
    height, picture = HEIGHTS[name], DOCS / "screenshots" / f"{name}.png"
    text = page.read_text("utf-8")
    page.write_text(text[: text.index("<h1")] + text[text.index(start) :], "utf-8")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("Chromium is needed for screenshots: install it")
    screenshot = page.with_suffix(".png")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    size = f"--window-size={WIDTH},{height}"
    output = f"--screenshot={screenshot}"
    subprocess.run(
        [chromium, *options, size, output, page.as_uri()], check=True, stderr=subprocess.DEVNULL
    )
    crop(screenshot, picture)


def crop(screenshot: Path, picture: Path) -> None:
    """Save a screenshot without its white margin, in 256 colours."""
    with Image.open(screenshot) as opened:
        image = opened.convert("RGB")
    white = Image.new("RGB", image.size, "white")
    _, top, _, bottom = ImageChops.difference(image, white).getbbox() or (0, 0, *image.size)
    box = 0, max(0, top - 12), image.width, min(image.height, bottom + 12)
    image.crop(box).quantize(256).save(picture, optimize=True)
    print(picture, picture.stat().st_size)


def best_atoms(statistics: list[AtomStatistics], class_name: str, n: int) -> list[int]:
    """Return the atoms of a class with the highest AUC."""
    of_class = [atom for atom in statistics if atom.class_name == class_name]
    return [atom.atom for atom in sorted(of_class, key=lambda atom: -atom.auc)[:n]]


def with_names(model: TissueClassifier, report: AtomReportData) -> TissueClassifier:
    """Return the model with names for the best atoms of each class."""
    inflamed, healthy = (best_atoms(report.statistics, name, 4) for name in ("inflamed", "healthy"))
    annotations = AtomAnnotations().with_changes(inflamed, name="crowded dark nuclei")
    return model.with_atom_annotations(annotations.with_changes(healthy, name="wall of a gland"))


def write_pages(train: Manifest, test: Manifest, folder: Path) -> None:
    """Write the three pages and their screenshots."""
    positive = train.classes[1]
    with_marks = planted(
        train, folder / "marks", "pen", lambda r: r.label == positive and r.site == "B", 0
    )
    confounded = trained(with_marks, 0, "fast")
    report = collect_atom_report(confounded, with_marks, n_atoms=6)
    print(len(report.confounded_atoms), "flagged atoms with a pen mark")
    write_atoms_page(folder / "confounded.html", confounded, with_marks, report)
    save_screenshot(folder / "confounded.html", "concepts-leak", "<h2>")

    model = trained(train, 0, "fast")
    report = collect_atom_report(model, train, n_atoms=6)
    print(len(report.confounded_atoms), "flagged atoms without a pen mark")
    model = with_names(model, report)
    report = collect_atom_report(model, train, n_atoms=6, n_trainings=1)
    write_atoms_page(folder / "atoms.html", model, train, report)
    save_screenshot(folder / "atoms.html", "concepts-atoms", '<h3 id="class-2"')
    records = [record for record in test.records if record.label == positive]
    explanations = [model.explain(record.path, mpp=record.mpp) for record in records]
    best = int(np.argmax([each.margin_to_runner_up(each.scores) for each in explanations]))
    page = folder / "explanation.html"
    write_explanation_page(page, model, [explanations[best]], [records[best]], n_concepts=3)
    save_screenshot(page, "concepts-why", "<h2>")


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if len(sys.argv) > 1:
            folder = Path(sys.argv[1])
            folder.mkdir(parents=True)
        train, test = synthetic_patients(0, folder)
        write_pages(with_sites(train, 0), test, folder)


if __name__ == "__main__":
    main()
