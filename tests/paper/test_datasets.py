"""Tests of the folder layouts of public data sets: images, classes and patients."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from histodict.datasets.manifest import ManifestError
from histodict.paper.image_sets import DATA_VARIABLE, LAYOUTS, load_datasets


def lay_out(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def only(folder: Path):
    (task,) = load_datasets(folder)
    return task


def labels_and_patients(manifest) -> dict[str, tuple[str, str]]:
    """Return (label, patient) by file name."""
    return {record.path.name: (record.label, record.patient) for record in manifest.records}


# --- public sets --------------------------------------------------------------------------------


def test_tcga_barcodes_give_patient_site_and_slide(tmp_path):
    names = (
        "MVP/TCGA-06-0137-01A-01-BS1_roi3.png",
        "MVP/TCGA-06-0137-01A-02-TS2.png",
        "not MVP/TCGA-12-0616-01Z-00-DX1.png",
        "not MVP/unknown.png",
        "masks/TCGA-06-0137-01A-01-BS1_roi3.png",
    )
    task = only(lay_out(tmp_path / "gbm", *names))
    assert task.diseased_class == task.region == "MVP" and task.name == "gbm"
    first, second, third, fourth = task.images.records
    assert first.patient == second.patient == "TCGA-06-0137" and first.site == "06"
    assert (first.slide, second.slide) == ("TCGA-06-0137-01A-01-BS1", "TCGA-06-0137-01A-02-TS2")
    assert third.patient == "TCGA-12-0616" and fourth.patient == "not MVP/unknown.png"
    assert "1 images" in task.warnings[0]
    assert first.mask is not None and second.mask is None and task.regions is task.images
    other = only(lay_out(tmp_path / "brca", "lobular/TCGA-A1-A0SB.png", "ductal/TCGA-A2-A04P.png"))
    assert other.images.classes == ["ductal", "lobular"]


def test_glas_table_gives_patients_and_grades(tmp_path):
    names = ("train_1.bmp", "train_1_anno.bmp", "testA_1.bmp", "testA_1_anno.bmp")
    root = lay_out(tmp_path / "Warwick QU", *names)
    table = root / "Grade.csv"
    table.write_text(
        "name, patient ID, grade (GlaS), grade (Sirinukunwattana et al. 2015)\n"
        "train_1, 7, benign, healthy\ntestA_1, 12, malignant, poorly differentiated\n"
    )
    task = only(root)
    assert labels_and_patients(task.images) == {
        "testA_1.bmp": ("malignant", "12"),
        "train_1.bmp": ("benign", "7"),
    }
    assert [record.split for record in task.images.records] == ["testA", "train"]
    assert [r.mask.name for r in task.images.records] == ["testA_1_anno.bmp", "train_1_anno.bmp"]
    assert task.regions is None  # glands are no disease
    table.write_text(table.read_text() + "train_2, 7, benign, healthy\n")
    with pytest.raises(
        ManifestError, match=r"train_2 is in Grade\.csv, but the image does not exist"
    ):
        load_datasets(root)
    table.write_text("name,grade\ntrain_1,benign\n")
    with pytest.raises(ManifestError, match="not the table of GlaS"):
        load_datasets(root)


def test_ucsb_names_give_groups(tmp_path):
    names = (
        "Images/ytma10_010704_benign1_ccd.tif",
        "Images/ytma10_010704_malignant2_ccd.tif",
        "Images/ytma12_010804_benign3_ccd.tif",
        "Truth/ytma10_010704_benign1.TIF",  # its outlines, not an image
    )
    task = only(lay_out(tmp_path, *names))
    assert labels_and_patients(task.images) == {
        "ytma10_010704_benign1_ccd.tif": ("benign", "ytma10_010704"),
        "ytma10_010704_malignant2_ccd.tif": ("malignant", "ytma10_010704"),
        "ytma12_010804_benign3_ccd.tif": ("benign", "ytma12_010804"),
    }
    assert not task.warnings


def test_breakhis_has_a_task_for_each_magnification(tmp_path):
    top = "BreaKHis_v1/histology_slides/breast"
    names = (
        f"{top}/benign/SOB/adenosis/SOB_B_A_14-22549AB/40X/SOB_B_A-14-22549AB-40-001.png",
        f"{top}/benign/SOB/adenosis/SOB_B_A_14-22549AB/100X/SOB_B_A-14-22549AB-100-001.png",
        f"{top}/malignant/SOB/ductal/SOB_M_DC_14-13412/40X/SOB_M_DC-14-13412-40-007.png",
        f"{top}/malignant/SOB/lobular/SOB_M_LC_14-13412/40X/SOB_M_LC-14-13412-40-008.png",
    )
    low, high = load_datasets(lay_out(tmp_path, *names))
    assert (low.name, high.name) == ("breakhis-40x", "breakhis-100x")
    assert sorted(labels_and_patients(low.images).values()) == [
        ("benign", "14-22549AB"),
        ("malignant", "14-13412"),
        ("malignant", "14-13412"),
    ]
    assert [task.name for task in load_datasets(tmp_path, "100X")] == ["breakhis-100x"]
    with pytest.raises(ManifestError, match=r"unknown part '400'.*breakhis-40x"):
        load_datasets(tmp_path, "400")


def test_lc25000_warns_of_its_copies(tmp_path):
    top = "lung_colon_image_set"
    names = (
        f"{top}/lung_image_sets/lung_n/lungn1.jpeg",
        f"{top}/lung_image_sets/lung_aca/lungaca1.jpeg",
        f"{top}/lung_image_sets/lung_scc/lungscc1.jpeg",
        f"{top}/colon_image_sets/colon_n/colonn1.jpeg",
        f"{top}/colon_image_sets/colon_aca/colonca1.jpeg",
    )
    lung, colon = load_datasets(lay_out(tmp_path, *names))
    assert len(lung.classes) == 3 and lung.diseased_class is None
    assert (
        colon.classes == ["normal", "adenocarcinoma"] and colon.diseased_class == "adenocarcinoma"
    )
    assert "copies" in lung.warnings[0]


def test_kather_tiles_of_both_years(tmp_path):
    names = [f"{kind}/{kind}-AAA{i}.tif" for kind in ("ADI", "LYM", "TUM") for i in range(2)]
    newer = only(lay_out(tmp_path / "NCT-CRC-HE-100K", *names))
    assert newer.classes == ["ADI", "LYM", "TUM"] and "CRC-VAL-HE-7K" in newer.warnings[0]
    older = only(
        lay_out(
            tmp_path / "Kather_texture_2016",
            "01_TUMOR/10009_CRC-Prim-HE-03_009.tif_Row_301_Col_151.tif",
            "02_STROMA/10062_CRC-Prim-HE-02_003.tif_Row_1_Col_301.tif",
            "08_EMPTY/17F_CRC-Prim-HE-03_013.tif_Row_1_Col_1.tif",
        )
    )
    assert sorted(r.patient for r in older.images.records) == [
        "CRC-Prim-HE-02",
        "CRC-Prim-HE-03",
        "CRC-Prim-HE-03",
    ]
    assert not older.warnings


def test_camelyon_tiles_are_matched_with_their_masks(tmp_path):
    stems = ("patient_004_node_4_x1", "tumor_012_77", "10670", "10679", "10680")
    names = [f"{side}/{stem}.png" for stem in stems for side in ("images", "masks")]
    task = only(lay_out(tmp_path, *names))
    assert task.images is None and task.region == "tumour" and task.diseased_class is None
    assert {r.path.stem: r.patient for r in task.regions.records} == {
        "patient_004_node_4_x1": "patient_004",
        "tumor_012_77": "tumor_012",
        "10670": "1067x",
        "10679": "1067x",
        "10680": "1068x",
    }
    assert all(r.mask.stem == r.path.stem for r in task.regions.records)
    assert "NO SLIDE is known for 3 images" in task.warnings[0]
    (tmp_path / "masks" / "10680.png").unlink()
    with pytest.raises(ManifestError, match=r"1 images have no mask, such as 10680\.png"):
        load_datasets(tmp_path)


# --- PCam ---------------------------------------------------------------------------------------


@pytest.fixture
def pcam(tmp_path):
    parts = [f"camelyonpatch_level_2_split_{s}_{p}.h5" for s in ("train", "test") for p in "xy"]
    root = lay_out(tmp_path, *parts)
    for split, slides in (("train", "aabb"), ("test", "cccc")):
        lines = "".join(f"{i},{slide}\n" for i, slide in enumerate(slides))
        (root / f"camelyonpatch_level_2_split_{split}_meta.csv").write_text(f",wsi\n{lines}")
    return root


class FakeFile(dict):
    """Stub of h5py.File: arrays by key."""

    def __init__(self, path, mode):
        pixels = np.arange(4, dtype=np.uint8)[:, None, None, None] * np.ones((4, 8, 8, 3), np.uint8)
        labels = np.array([0, 1, 1, 0]).reshape(4, 1, 1, 1)
        super().__init__(x=pixels, y=labels)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


def test_pcam_is_unpacked_once(pcam, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", SimpleNamespace(File=FakeFile))
    task = only(pcam)
    assert task.classes == ["normal", "tumour"] and task.diseased_class == "tumour"
    records = {record.path.relative_to(pcam).as_posix(): record for record in task.images.records}
    assert len(records) == 8
    third = records["pcam-images/train/000002.png"]
    assert (third.label, third.patient, third.split) == ("tumour", "b", "train")
    assert (np.asarray(Image.open(third.path)) == 2).all()
    third.path.write_bytes(b"kept")
    only(pcam)
    assert third.path.read_bytes() == b"kept"
    # A subset of a large file, with both classes and from all of it.
    monkeypatch.setattr("histodict.paper.image_sets._MAX_PER_CLASS", 1)
    assert sorted(only(pcam).images.labels) == ["normal", "normal", "tumour", "tumour"]


def test_pcam_without_h5py_is_refused(pcam, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ManifestError, match="pip install h5py"):
        load_datasets(pcam)


def test_pcam_as_files(tmp_path):
    kaggle = lay_out(tmp_path / "kaggle", "train/f38a.tif", "train/c18f.tif", "train/none.tif")
    (kaggle / "train_labels.csv").write_text("id,label\nf38a,0\nc18f,1\n")
    task = only(kaggle)
    assert {name: label for name, (label, _) in labels_and_patients(task.images).items()} == {
        "f38a.tif": "normal",
        "c18f.tif": "tumour",
    }
    names = [f"{split}/{i}/{i}.png" for split in ("train", "valid") for i in "01"]
    task = only(lay_out(tmp_path / "folders", *names))
    assert [(r.label, r.split) for r in task.images.records] == [
        ("normal", "train"),
        ("tumour", "train"),
        ("normal", "valid"),
        ("tumour", "valid"),
    ]
    assert len(set(task.images.patients)) == 4 and "no patient" in task.warnings[0]


# --- any folder ---------------------------------------------------------------------------------


def test_manifest_with_patients_has_precedence_over_the_layout(tmp_path):
    root = lay_out(tmp_path / "My Colon", "colon_n/1.jpeg", "colon_aca/1.jpeg")
    rows = "path,label{}\ncolon_n/1.jpeg,normal{}\ncolon_aca/1.jpeg,tumour{}\n"
    (root / "manifest.csv").write_text(rows.format(",patient", ",A", ",B"))
    task = only(root)
    assert task.name == "my-colon" and sorted(task.images.patients) == ["A", "B"]
    (root / "manifest.csv").write_text(rows.format("", "", ""))
    assert only(root).name == "lc25000-colon"


@pytest.mark.parametrize(
    ("classes", "diseased"),
    [
        (("benign", "malignant"), "malignant"),
        (("abnormal", "normal"), "abnormal"),
        (("MVP", "not MVP"), "MVP"),
        (("DCIS", "UDH"), "DCIS"),
        (("grade 1", "grade 2"), "grade 2"),
    ],
)
def test_folders_of_any_name(tmp_path, classes, diseased):
    task = only(lay_out(tmp_path / "any", *(f"{name}/1.png" for name in classes)))
    assert task.diseased_class == diseased and task.classes[-1] == diseased


def test_names_are_resolved_in_the_data_folder(tmp_path, monkeypatch):
    lay_out(tmp_path / "mine", "a/1.png", "b/1.png")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert only("mine").images.classes == ["a", "b"]
    with pytest.raises(ManifestError, match="HISTODICT_DATA has mine"):
        load_datasets("yours")
    monkeypatch.delenv(DATA_VARIABLE)
    with pytest.raises(ManifestError, match="is not set"):
        load_datasets("mine")


def test_layouts_do_not_claim_other_folders(tmp_path):
    root = lay_out(tmp_path, "healthy/1.png", "inflamed/1.png", "inflamed/2.png")
    assert [name for name, find in LAYOUTS.items() if find(root)] == []


def test_real_folders(data_folder):
    groups = {"ucsb-breast": 10, "glas-colon": 16, "camelyon-tumour": 4}
    for name, n_groups in groups.items():
        task = only(data_folder / name)
        assert len(set((task.images or task.regions).patients)) == n_groups
