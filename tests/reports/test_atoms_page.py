"""Tests of the report of atoms, for pixels and for encoder features."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import histodict
from histodict import RegionDetector, TissueClassifier
from histodict.cli import app
from histodict.datasets.manifest import read_manifest
from histodict.explain.patch_sample import PatchSample
from histodict.models import EnsembleClassifier, save_model
from histodict.models.recipe import Recipe
from histodict.reports.atoms_page import (
    collect_atom_report,
    ensemble_note,
    to_json_dict,
    write_atoms_page,
)
from histodict.reports.html import draw_outline, patch_images, square_around
from histodict.synthetic.dataset import write_synthetic_dataset

PIXELS = Recipe(
    method_parameters={"n_atoms": 12, "n_iter": 3},
    patch_px=12,
    patches_per_class=300,
    features="centred",
    context_scale=2,
    aggregation="margin",
)
IMAGES = re.compile(r'<img src="(data:image/jpeg[^"]+)" title="([^"]+)"')


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 4, 2, size=(160, 120))
    return read_manifest(folder / "manifest.csv")


@pytest.fixture(scope="module")
def model(manifest):
    return TissueClassifier(PIXELS).fit(manifest)


@pytest.fixture(scope="module")
def model_file(model, tmp_path_factory):
    return save_model(model, tmp_path_factory.mktemp("model") / "m.histodict")


def page_of(model, manifest, path, n_atoms):
    found = collect_atom_report(model, manifest, n_atoms=n_atoms)
    write_atoms_page(path, model, manifest, found)
    return found, path.read_text(encoding="utf-8")


def run(*arguments):
    return CliRunner().invoke(app, ["atoms", *map(str, arguments)])


# --- images -------------------------------------------------------------------------------------


def test_patch_is_in_the_centre_of_its_image(tmp_path):
    """A black patch on grey; the square is white outside the image."""
    pixels = np.full((60, 60, 3), 128, np.uint8)
    pixels[0:10, 20:30] = 0
    Image.fromarray(pixels).save(tmp_path / "a.png")
    from histodict.datasets.manifest import ImageRecord

    gallery = PatchSample(np.zeros(1, np.int64), np.array([[20, 0]]), np.full(1, 10.0), None)
    assert square_around(gallery, 0, 4) == ((5, -15), 40)
    uri = patch_images(gallery, [ImageRecord(tmp_path / "a.png", "a", "p")], [0, 0])[0]
    square = np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))))
    n = len(square)
    assert square.shape == (n, n, 3)
    assert square[n // 2, n // 2].max() < 20
    assert square[n // 5, n // 2].min() > 235
    assert np.abs(square[n // 2, n // 5].astype(int) - 128).max() < 12
    assert np.abs(square[4 * n // 5, n // 2].astype(int) - 128).max() < 12


def test_outline_surrounds_the_patch_without_covering_it():
    synthetic = draw_outline(np.full((100, 100, 3), 128, np.uint8), 5)
    assert (synthetic[41:60, 41:60] == 128).all() and (synthetic[:39] == 128).all()
    assert (synthetic[40, 40:60] == 0).all() and (synthetic[39, 39:62] == 255).all()


# --- the report ---------------------------------------------------------------------------------


def test_report_shows_the_collected_data(model, manifest, tmp_path):
    found, page = page_of(model, manifest, tmp_path / "atoms.html", 5)
    lines = [line for use in found.classes for line in use.atoms]
    assert len(lines) == 10
    labels = [found.statistics[line.atom].label for line in lines]
    assert re.findall(r"<b>([a-z]+:\d+)</b>", page) == labels
    assert page.count('class="atom-picture"') == 10
    names = [manifest.name(record) for record in manifest.records]
    titles = [
        f"{names[found.sample.images[patch]]}: {found.labels[patch]}, weight {weight:.2f}"
        for line in lines
        for patch, weight in line.patches
    ]
    assert [title for _, title in IMAGES.findall(page)] == titles
    percents = [f"{100 * share:.0f} %" for line in lines for share in line.fractions.values()]
    assert re.findall(r"<span>(\d+ %)</span>", page) == percents
    assert "at lower magnification (right)" in page


def test_flagged_atom_is_shown_even_if_rarely_used(model, manifest, tmp_path, monkeypatch):
    from histodict.explain import atom_statistics as atoms_in_use

    reference, requested = atoms_in_use.compute_atom_statistics, []

    def with_flagged_atom(*arguments):
        statistics = reference(*arguments)
        own = [atom for atom in statistics if atom.class_name == "inflamed" and atom.n_patients]
        rare = min(own, key=lambda atom: atom.fractions["inflamed"])
        requested.append(rare.label)
        confounded = {
            "is_site_confounded": True,
            "site": "B",
            "site_variance_fraction": 0.9,
            "site_p_value": 0.001,
        }
        statistics[rare.atom] = replace(rare, site_excess=0.2, **confounded)
        return statistics

    monkeypatch.setattr(atoms_in_use, "compute_atom_statistics", with_flagged_atom)
    found, page = page_of(model, manifest, tmp_path / "atoms.html", 1)
    (label,) = requested
    assert label not in [found.statistics[use.atoms[0].atom].label for use in found.classes]
    assert [found.statistics[line.atom].label for use in found.flagged for line in use.atoms] == [
        label
    ]
    section = page[
        page.index("Atoms confounded with the site</h2>") : page.index("How to read this page")
    ]
    assert "images from B use it in 20 % more of their patches" in section
    assert (
        section.count('class="atom-picture"') == 1
        and 'class="atom-statistics confounded"' in section
    )
    assert f"--disable &#34;{label}&#34;" in section or f'--disable "{label}"' in section
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(set(ids)) == len(ids)


def test_statistics_are_available_in_python(model, manifest):
    statistics = histodict.atom_statistics(model, manifest)
    found = collect_atom_report(model, manifest, n_atoms=3)
    assert [atom.row() for atom in statistics] == [atom.row() for atom in found.statistics]
    ensemble = EnsembleClassifier([PIXELS, PIXELS], n_jobs=1)
    with pytest.raises(ValueError, match="fit"):
        histodict.atom_statistics(ensemble, manifest)


def test_report_is_self_contained(model, manifest, tmp_path):
    _, page = page_of(model, manifest, tmp_path / "atoms.html", 2)
    assert "<script" not in page and "http" not in page
    assert all(uri.startswith("data:") for uri in re.findall(r'src="([^"]+)"', page))
    assert len(re.findall(r"<img", page)) == len(re.findall(r'alt="[^"]', page))


def test_top_patches_are_at_most_two_per_image(model, manifest):
    found = collect_atom_report(model, manifest, n_atoms=3)
    codes = np.abs(found.sample.codes.toarray())
    for use in found.classes:
        for line in use.atoms:
            weights = np.abs([weight for _, weight in line.patches])
            images = found.sample.images[[patch for patch, _ in line.patches]].tolist()
            assert weights[0] == codes[:, line.atom].max()
            assert (np.diff(weights) <= 0).all()
            assert all(images.count(image) <= 2 for image in images)
            for name, share in line.fractions.items():
                own = np.array(found.labels) == name
                assert share == pytest.approx((codes[own, line.atom] > 0).mean())


def test_names_are_escaped(model, manifest, tmp_path):
    from dataclasses import replace

    odd = [replace(record, label="<b>& co") for record in manifest.records]
    _, page = page_of(model, replace(manifest, records=tuple(odd)), tmp_path / "a.html", 2)
    assert "<b>& co" not in page and "&lt;b&gt;&amp; co" in page


def test_encoder_atoms_are_shown_by_their_patches(manifest, tmp_path):
    torch = pytest.importorskip("torch", reason="learned vectors need PyTorch")
    from histodict.encoders import ENCODERS, clear_encoder_cache, register_encoder
    from histodict.encoders.torch_encoder import TorchEncoder

    def make():
        torch.manual_seed(0)
        module = torch.nn.Conv2d(3, 20, 16, stride=16)
        return TorchEncoder(module, 16, (127.0,) * 3, (128.0,) * 3)

    clear_encoder_cache()
    register_encoder("tiny", make)
    try:
        recipe = PIXELS.with_changes(patch_px=16, context_scale=1, features="tiny", n_components=8)
        model = TissueClassifier(recipe).fit(manifest)
        found, page = page_of(model, manifest, tmp_path / "atoms.html", 4)
        cache = tmp_path / "cache"
        first = collect_atom_report(model, manifest, n_atoms=4, cache=cache)
        assert any(cache.iterdir())
        assert to_json_dict(first, [""] * 99) == to_json_dict(found, [""] * 99)
    finally:
        ENCODERS.pop("tiny")
        clear_encoder_cache()
    assert 'class="atom-picture"' not in page and "tiny vectors" in page
    n_users = sum(len(line.patches) for use in found.classes for line in use.atoms)
    assert len(IMAGES.findall(page)) == n_users >= 40


def test_detector_has_atoms(manifest, tmp_path):
    recipe = PIXELS.with_changes(aggregation="proportion")
    model = RegionDetector(recipe, region="inflamed").fit(manifest)
    found, page = page_of(model, manifest, tmp_path / "atoms.html", 2)
    assert [use.name for use in found.classes] == ["healthy", "inflamed"]
    assert page.count('class="atom-users') == 4 and ensemble_note(model) == ""


# --- the command --------------------------------------------------------------------------------


def test_atoms_command(model_file, manifest, tmp_path):
    page = tmp_path / "atoms.html"
    done = run(model_file, manifest.root, "--atoms", 3, "-o", page, "--json")
    assert done.exit_code == 0, done.output
    statistics = json.loads(done.output.splitlines()[-1])
    assert [group["name"] for group in statistics["classes"]] == ["healthy", "inflamed"]
    assert all(len(group["atoms"]) == 3 for group in statistics["classes"])
    patch = statistics["classes"][0]["atoms"][0]["patches"][0]
    assert (manifest.root / patch["image"]).is_file() and patch["side"] == 12
    assert page.is_file()
    done = run(model_file, manifest.root, "--atoms", 3, "-o", page)
    assert done.exit_code == 0 and "The page shows the 6 most used of" in done.output


def test_first_member_of_an_ensemble_is_shown(model, manifest, tmp_path):
    ensemble = EnsembleClassifier([PIXELS, PIXELS.with_changes(stain="macenko")], folds=2).fit(
        manifest
    )
    assert "an ensemble of 2" in ensemble_note(ensemble) and ensemble_note(model) == ""
    _, page = page_of(ensemble, manifest, tmp_path / "a.html", 2)
    assert "shows the atoms of base model 1" in page


@pytest.mark.parametrize(
    ("method", "message"), [("nearest-mean", "has no atoms"), ("lbp-colour", "uses whole images")]
)
def test_methods_without_atoms_are_refused(manifest, tmp_path, method, message):
    recipe = Recipe(method=method, patch_px=12, patches_per_class=200, aggregation="margin")
    path = save_model(TissueClassifier(recipe).fit(manifest), tmp_path / "m.histodict")
    done = run(path, manifest.root, "-o", tmp_path / "atoms.html")
    assert done.exit_code == 2 and message in done.output.replace("\n", " ")
    assert not (tmp_path / "atoms.html").exists()


def test_missing_files_are_reported(model_file, manifest, tmp_path):
    page = tmp_path / "atoms.html"
    for arguments, text in (
        ((model_file, tmp_path / "nothing", "-o", page), "file or folder not found"),
        ((tmp_path / "no.histodict", manifest.root, "-o", page), "no.histodict"),
        ((model_file, manifest.root, "-o", page, "--atoms", 0), "atoms must be"),
        ((model_file, manifest.root, "-o", page, "--split", "x"), "no row has the value 'x'"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2 and text in done.output, (arguments, done.output)
    assert not page.exists()
