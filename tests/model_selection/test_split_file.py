from __future__ import annotations

import hashlib
import json
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest

from histodict.datasets.manifest import Manifest
from histodict.model_selection.protocols import k_folds, learning_curve_splits
from histodict.model_selection.splits import (
    PatientLeakError,
    SplitFileError,
    load_splits,
    save_splits,
    splits_digest,
)
from tests.model_selection.manifests import GLAS, ROOT, UCSB, manifest_of

MANIFEST = manifest_of(UCSB)


@pytest.fixture
def file(tmp_path):
    return save_splits(k_folds(MANIFEST, 5, n_repeats=2), tmp_path / "new" / "splits.json")


def rewrite(path, change, *, forge):
    """Change the content; with `forge`, also the digest."""
    content = json.loads(path.read_text())
    change(content)
    if forge:
        del content["digest"]
        text = json.dumps(content, sort_keys=True).encode()
        content["digest"] = hashlib.sha256(text).hexdigest()
    path.write_text(json.dumps(content))


def in_folder(manifest: Manifest, root: Path) -> Manifest:
    """Return the same images in another folder."""
    records = (replace(r, path=root / r.path.relative_to(ROOT)) for r in manifest.records)
    return replace(manifest, records=tuple(records), root=root)


@pytest.mark.parametrize(
    "splits",
    [
        k_folds(MANIFEST, 5, n_repeats=2),
        learning_curve_splits(MANIFEST, (3, 5)),
        k_folds(MANIFEST, unit="image"),
    ],
)
def test_written_splits_are_read(tmp_path, splits):
    assert load_splits(save_splits(splits, tmp_path / "splits.json"), MANIFEST) == splits
    assert [path.name for path in tmp_path.iterdir()] == ["splits.json"]


def test_names_are_relative_and_the_folder_may_move(file):
    content = json.loads(file.read_text())
    assert content["images"][0] == "benign/g0_0.png"
    assert content["manifest"] == MANIFEST.digest()
    assert content["digest"] == splits_digest(k_folds(MANIFEST, 5, n_repeats=2))
    assert str(ROOT) not in file.read_text()
    elsewhere = in_folder(MANIFEST, Path("/elsewhere"))
    assert load_splits(file, elsewhere).splits == k_folds(MANIFEST, 5, n_repeats=2).splits


def test_manifest_in_another_order_gives_the_same_images(file):
    n = len(MANIFEST.records)
    turned = MANIFEST.select(range(n - 1, -1, -1))
    for a, b in zip(k_folds(MANIFEST, 5, n_repeats=2), load_splits(file, turned), strict=True):
        assert (a.train, a.test) == (
            sorted(n - 1 - place for place in b.train),
            sorted(n - 1 - place for place in b.test),
        )


def test_unicode_normalisation_does_not_matter(tmp_path):
    def spelt(form):
        records = (
            replace(r, path=r.path.with_name(unicodedata.normalize(form, f"é{r.path.name}")))
            for r in MANIFEST.records
        )
        return replace(MANIFEST, records=tuple(records))

    path = save_splits(k_folds(spelt("NFD"), 2), tmp_path / "s.json")
    assert len(load_splits(path, spelt("NFC"))) == 2


# --- refused ------------------------------------------------------------------------------------


def test_other_images_are_refused_by_name(file):
    with pytest.raises(SplitFileError, match=r"1 images are missing, such as benign/g0_0\.png"):
        load_splits(file, MANIFEST.select(range(1, 58)))
    more = replace(
        MANIFEST, records=(*MANIFEST.records, replace(MANIFEST.records[0], path=Path("/x")))
    )
    with pytest.raises(SplitFileError, match="1 images are new, such as /x"):
        load_splits(file, more)
    with pytest.raises(SplitFileError, match=r"are missing, .* and 165 images are new"):
        load_splits(file, manifest_of(GLAS))


@pytest.mark.parametrize("field", ["label", "patient"])
def test_other_labels_or_patients_are_refused(file, field):
    changed = replace(MANIFEST.records[0], **{field: "g5"})
    other = replace(MANIFEST, records=(changed, *MANIFEST.records[1:]))
    with pytest.raises(SplitFileError, match="labels or patients changed"):
        load_splits(file, other)


def move_an_image(content):
    split = content["splits"][0]
    split["test"].append(split["train"].pop())


def test_changed_file_is_refused(file):
    rewrite(file, move_an_image, forge=False)
    with pytest.raises(SplitFileError, match=r"the file was changed; use the original"):
        load_splits(file, MANIFEST)


def test_forged_patient_leakage_is_refused(file):
    rewrite(file, move_an_image, forge=True)
    with pytest.raises(
        PatientLeakError, match="'repeat 1, fold 1': patient 'g9' is in both training and test set"
    ):
        load_splits(file, MANIFEST)


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c.pop("splits"),
        lambda c: c["splits"][0].pop("test"),
        lambda c: c["splits"][0].update(test=[58]),
        lambda c: c["splits"][0].update(test=[-1]),
        lambda c: c["splits"][0].update(test=["0"]),
        lambda c: c["splits"][0].update(test=7),
        lambda c: c["splits"].append(3),
        lambda c: c["images"].__setitem__(0, "other.png"),
        lambda c: c.update(protocol=4),
    ],
)
def test_damaged_content_is_refused(file, damage):
    rewrite(file, damage, forge=True)
    with pytest.raises(SplitFileError, match=r"splits\.json: damaged split file"):
        load_splits(file, MANIFEST)


def test_files_of_another_kind_are_refused(tmp_path, file):
    with pytest.raises(SplitFileError, match="file not found"):
        load_splits(tmp_path / "none.json", MANIFEST)
    for text in ("{", "[]", "{}", '{"format": "other"}'):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(SplitFileError, match=r"x\.json: not a split file"):
            load_splits(tmp_path / "x.json", MANIFEST)
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SplitFileError, match="not a split file"):
        load_splits(tmp_path / "x.json", MANIFEST)
    rewrite(file, lambda content: content.update(schema=99), forge=True)
    with pytest.raises(SplitFileError, match=r"schema 99 is not supported, only 1"):
        load_splits(file, MANIFEST)


def test_failed_write_keeps_the_old_file(file, monkeypatch):
    before = file.read_bytes()

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match="disk full"):
        save_splits(k_folds(MANIFEST, 2), file)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["splits.json"]
