"""The pictures of docs/concepts.md, made anew from drawn tissue and the commands that it shows.

    python docs/draw_concepts.py             needs Chromium; some minutes

A pen mark is planted in the inflamed images of one of two sites, as benchmarks/confounders.py does.
`histodict atoms` flags it; a model of the same images without it is what the other two pictures
show.
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
HEIGHTS = {"concepts-leak": 864, "concepts-atoms": 640, "concepts-why": 622}


def photograph(page: Path, name: str, start: str) -> None:
    """What a browser shows of a page, from where this stands in it."""
    height, picture = HEIGHTS[name], DOCS / "screenshots" / f"{name}.png"
    text = page.read_text("utf-8")
    page.write_text(text[: text.index("<h1")] + text[text.index(start) :], "utf-8")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("there is no Chromium to photograph pages with")
    shot = page.with_suffix(".png")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    size = f"--window-size={WIDTH},{height}"
    taken = f"--screenshot={shot}"
    subprocess.run(
        [chromium, *options, size, taken, page.as_uri()], check=True, stderr=subprocess.DEVNULL
    )
    cut(shot, picture)


def cut(shot: Path, picture: Path) -> None:
    """Without the bare paper around it, in few colours."""
    with Image.open(shot) as opened:
        image = opened.convert("RGB")
    paper = Image.new("RGB", image.size, "white")
    _, top, _, bottom = ImageChops.difference(image, paper).getbbox() or (0, 0, *image.size)
    box = 0, max(0, top - 12), image.width, min(image.height, bottom + 12)
    image.crop(box).quantize(256).save(picture, optimize=True)
    print(picture, picture.stat().st_size)


def crowded(facts: list[AtomStatistics], class_name: str, n: int) -> list[int]:
    """The atoms of a class that tell it best."""
    own = [fact for fact in facts if fact.class_name == class_name]
    return [fact.atom for fact in sorted(own, key=lambda fact: -fact.auc)[:n]]


def named(model: TissueClassifier, found: AtomReportData) -> TissueClassifier:
    """As somebody would name them who had looked at their patches."""
    inflamed, healthy = (crowded(found.statistics, name, 4) for name in ("inflamed", "healthy"))
    annotations = AtomAnnotations().changed(inflamed, name="crowded dark nuclei")
    return model.with_atom_annotations(annotations.changed(healthy, name="wall of a gland"))


def pages(learn: Manifest, test: Manifest, folder: Path) -> None:
    positive = learn.classes[1]
    dirty = planted(
        learn, folder / "dirty", "pen", lambda r: r.label == positive and r.site == "B", 0
    )
    harmed = trained(dirty, 0, "fast")
    found = collect_atom_report(harmed, dirty, n_atoms=6)
    print(len(found.confounding), "flagged with a pen mark")
    write_atoms_page(folder / "leak.html", harmed, dirty, found)
    photograph(folder / "leak.html", "concepts-leak", "<h2>Atoms that look")

    clean = trained(learn, 0, "fast")
    found = collect_atom_report(clean, learn, n_atoms=6)
    print(len(found.confounding), "flagged without")
    model = named(clean, found)
    found = collect_atom_report(model, learn, n_atoms=6, n_trainings=1)
    write_atoms_page(folder / "atoms.html", model, learn, found)
    photograph(folder / "atoms.html", "concepts-atoms", '<h3 id="class-2"')
    ill = [record for record in test.records if record.label == positive]
    why = [model.explain(record.path, mpp=record.mpp) for record in ill]
    best = int(np.argmax([each.margin_to_runner_up(each.scores) for each in why]))
    write_explanation_page(folder / "explanation.html", model, [why[best]], [ill[best]], n_parts=6)
    photograph(folder / "explanation.html", "concepts-why", "<h2>")


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if len(sys.argv) > 1:  # where the pages stay, to be looked at
            folder = Path(sys.argv[1])
            folder.mkdir(parents=True)
        learn, test = synthetic_patients(0, folder)
        pages(with_sites(learn, 0), test, folder)


if __name__ == "__main__":
    main()
