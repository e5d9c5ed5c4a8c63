import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from histodict.cli import app

N_AXES = 6


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    """Feature files of 8 patients, 2 slides each; the last 4 have more of axis 0, the others of 1.

    Every patient also has an individual axis of larger variance than all others.
    """
    folder = tmp_path_factory.mktemp("features")
    rng = np.random.default_rng(0)
    x, y = np.meshgrid(np.arange(10), np.arange(10))
    coords = 64 * np.stack([x.ravel(), y.ravel()], axis=1)
    for place in range(16):
        patient = place // 2
        S = rng.standard_normal((100, 24)) * (rng.random((100, 24)) < 0.2)
        S[:, N_AXES:] *= 0.05
        S[:, 1 if patient < 4 else 0] = 0.1 * rng.standard_normal(100)
        S[:, 0 if patient < 4 else 1] += 2 * (rng.random(100) < 0.5)
        S[:, 10 + patient] += 3 * rng.standard_normal(100)
        np.savez(folder / f"s{place}.npz", features=S.astype(np.float32), coords=coords)
    return folder


def table(folder, slides, labelled):
    lines = ["path,patient,label"]
    for place in range(16):
        label = ("healthy" if place < 8 else "ill") if place in labelled else ""
        lines.append(f"{slides / f's{place}.npz'},p{place // 2},{label}")
    file = folder / "slides.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def run(*text):
    return CliRunner().invoke(app, ["concepts", *map(str, text)])


def rows(file):
    with file.open() as text:
        return list(csv.DictReader(text))


def test_concepts_are_discovered_named_and_used_for_predictions(slides, tmp_path):
    output = tmp_path / "concepts"
    done = run(table(tmp_path, slides, ()), "--output", output, "--atoms", N_AXES, "--json")
    assert done.exit_code == 0, done.output
    info = json.loads(done.stdout)
    assert info["new"] and info["recurrence"] > 0.9
    found = rows(output / "concepts.csv")
    assert len(found) == N_AXES
    assert all(int(row["patients"]) == 8 for row in found)
    assert not (output / "predictions.csv").exists()

    text = (output / "concepts.csv").read_text()
    (output / "concepts.csv").write_text(text.replace('\n1,"",', "\n1,crowded nuclei,"))
    before = (output / "concepts.safetensors").read_bytes()
    done = run(
        *(table(tmp_path, slides, (0, 2, 4, 8, 10, 12)), "--output", output),
        *("--atoms", N_AXES, "--json"),
    )
    assert done.exit_code == 0, done.output
    info = json.loads(done.stdout)
    assert not info["new"]
    assert (info["labelled"], info["unseen"], info["leave_one_patient_out_accuracy"]) == (6, 6, 6)
    assert (output / "concepts.safetensors").read_bytes() == before
    assert rows(output / "concepts.csv")[0]["name"] == "crowded nuclei"
    assert "crowded nuclei" in rows(output / "usage.csv")[0]
    predictions = rows(output / "predictions.csv")
    assert [row["label"] for row in predictions] == ["healthy"] * 8 + ["ill"] * 8
    assert all("% of its patches; in labelled images: " in row["because"] for row in predictions)


def test_folder_of_other_concepts_is_refused(slides, tmp_path):
    output = tmp_path / "concepts"
    assert run(slides, "--output", output, "--atoms", 4).exit_code == 0
    before = (output / "concepts.safetensors").read_bytes()
    again = run(slides, "--output", output, "--atoms", 5)
    assert again.exit_code == 2
    assert "other settings (atoms)" in again.output
    assert (output / "concepts.safetensors").read_bytes() == before


def test_changed_settings_are_refused(slides, tmp_path):
    """Settings with different pixel sizes, outlines, or concept parameters do not match."""
    from histodict.annotations.annotation_file import AnnotationFile
    from histodict.datasets.record import ImageRecord
    from histodict.explain.concept_discovery import (
        ConceptTrainingSet,
        check_settings_match,
        concept_settings,
    )
    from histodict.images.pixel_size import PixelSizeOption

    outline = tmp_path / "o.geojson"
    outline.write_text("{}")
    record = ImageRecord(slides / "s0.npz", "", "p")

    def settings(record, options=None):
        source = ConceptTrainingSet.from_records(
            [record], "efficientnet-lite0", options or PixelSizeOption()
        )
        return concept_settings(source, 4, 0, ["key"])

    plain = settings(record)
    check_settings_match(tmp_path, plain, settings(record))
    for other, text in (
        (settings(replace(record, mpp=0.5)), r"settings \(sizes\)"),
        (settings(record, PixelSizeOption(override=0.25)), r"settings \(sizes\)"),
        (
            settings(replace(record, region_of_interest=AnnotationFile(outline, ("tumour",)))),
            r"settings \(within\)",
        ),
        (plain | {"format_version": 1}, r"settings \(format_version\)"),
    ):
        with pytest.raises(ValueError, match=text):
            check_settings_match(tmp_path, plain, other)


def test_mixed_or_unknown_pixel_sizes_are_warned_of(tmp_path):
    from histodict.datasets.record import ImageRecord
    from histodict.explain.concept_discovery import ConceptTrainingSet
    from histodict.images.pixel_size import PixelSizeOption
    from histodict.models.recipe import PRESETS

    Image.new("RGB", (64, 64), (200, 100, 150)).save(tmp_path / "a.png")
    records = [ImageRecord(tmp_path / "a.png", "", "p", mpp=mpp) for mpp in (0.25, 0.5, None)]

    def size_warning(*chosen, options=None):
        chosen = [records[place] for place in chosen]
        return ConceptTrainingSet(
            chosen, PRESETS["fast"], None, options or PixelSizeOption()
        ).describe_size_differences()

    assert "differ (0.25 to 0.5 µm)" in size_warning(0, 1)
    assert "--set mpp=0.5" in size_warning(0, 1, 2)
    assert "pixel size of 1 of 2 images is unknown" in size_warning(1, 2)
    assert (
        size_warning(1)
        == size_warning(2)
        == size_warning(0, 1, 2, options=PixelSizeOption(override=0.5))
        == ""
    )


def test_names_are_read_from_a_spreadsheet_with_semicolons(tmp_path):
    from histodict.explain.concept_discovery import read_concept_names

    (tmp_path / "concepts.csv").write_text("\ufeffconcept;name;share\n2; fat ;0,5\n", "utf-8")
    assert read_concept_names(tmp_path, 3) == ["concept 1", "fat", "concept 3"]
    (tmp_path / "concepts.csv").write_text("concept,name\n4,fat\n")
    with pytest.raises(ValueError, match="there is no concept 4"):
        read_concept_names(tmp_path, 3)
    (tmp_path / "concepts.csv").write_text("number,name\n4,fat\n")
    with pytest.raises(ValueError, match="must have the columns"):
        read_concept_names(tmp_path, 3)


def test_three_classes(slides, tmp_path):
    labels = {0: "a", 2: "a", 4: "b", 6: "b", 8: "c", 10: "c", 12: "c"}
    lines = [f"{slides / f's{n}.npz'},p{n // 2},{labels.get(n, '')}" for n in range(16)]
    file = tmp_path / "slides.csv"
    file.write_text("\n".join(["path,patient,label", *lines]) + "\n")
    done = run(file, "--output", tmp_path / "c", "--atoms", N_AXES)
    assert done.exit_code == 0, done.output
    predictions = rows(tmp_path / "c" / "predictions.csv")
    assert {row["label"] for row in predictions[8:]} == {"c"}
    for row in predictions:
        scores = {name: float(row[f"score_{name}"]) for name in "abc"}
        assert row["label"] == max(scores, key=scores.get)


def test_damaged_file_is_refused(slides, tmp_path):
    output = tmp_path / "concepts"
    assert run(slides, "--output", output, "--atoms", 4).exit_code == 0
    file = output / "concepts.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    again = run(slides, "--output", output, "--atoms", 4)
    assert again.exit_code == 2
    assert "is damaged" in again.output


def test_images_without_patients_count_separately_with_a_note(slides, tmp_path):
    done = run(slides, "--output", tmp_path / "c", "--atoms", 4)
    assert done.exit_code == 0
    assert "each image counts as one patient" in done.output


def test_insufficient_data_are_refused(slides, tmp_path):
    many = run(slides, "--output", tmp_path / "a", "--atoms", 100)
    assert many.exit_code == 2 and "use fewer atoms" in many.output
    one = run(table(tmp_path, slides, (0, 2, 8)), "--output", tmp_path / "b", "--atoms", 4)
    assert one.exit_code == 2 and "only one image has the label 'ill'" in one.output


def test_unstable_concepts_are_warned_of(tmp_path):
    rng = np.random.default_rng(0)
    x, y = np.meshgrid(np.arange(5), np.arange(5))
    coords = 64 * np.stack([x.ravel(), y.ravel()], axis=1)
    features = tmp_path / "features"
    features.mkdir()
    for place in range(6):  # only random directions: patients cannot agree
        vectors = rng.standard_normal((25, 60)).astype(np.float32)
        np.savez(features / f"s{place}.npz", features=vectors, coords=coords)
    done = run(features, "--output", tmp_path / "c", "--atoms", 6)
    assert done.exit_code == 0
    assert "other patients would give other concepts" in " ".join(done.output.split())
