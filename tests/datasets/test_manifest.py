from __future__ import annotations

import shutil

import numpy as np
import pytest
from PIL import Image

from histodict.datasets.manifest import ManifestError, read_manifest
from tests.images.files import save_plain

PIXELS = np.full((4, 4, 3), 200, np.uint8)


@pytest.fixture
def folder(tmp_path):
    """A folder with two classes of two images each."""
    for name in ("benign/a.png", "benign/b.png", "malignant/c.png", "malignant/d.png"):
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        save_plain(path, PIXELS)
    return tmp_path / "set"


TABLE = """path,label,patient,slide,site,mpp,split
benign/a.png,benign,P1,S1,north,0.5,train
benign/b.png,benign,P1,S2,north,,train
malignant/c.png,malignant,P2,,,0.25,test
malignant/d.png,malignant,P3,S4,south,0.25,
"""


@pytest.fixture
def table(folder):
    """Return a function that writes a CSV file beside the images and reads it."""

    def read(text, columns=None, encoding="utf-8"):
        (folder / "list.csv").write_text(text, encoding)
        return read_manifest(folder / "list.csv", columns)

    return read


# --- reading ------------------------------------------------------------------------------------


def test_table_with_all_columns(folder, table):
    manifest = table(TABLE)
    first, second, third, _ = manifest.records
    assert first.path == folder / "benign" / "a.png"
    assert (first.slide, first.site, first.mpp, first.split) == ("S1", "north", 0.5, "train")
    assert second.mpp is None
    assert (third.slide, third.site, third.mask) == (None, None, None)
    assert manifest.labels == ["benign", "benign", "malignant", "malignant"]
    assert manifest.patients == ["P1", "P1", "P2", "P3"]
    assert manifest.classes == ["benign", "malignant"]
    assert manifest.warnings == ()


def test_notes_name_the_table_of_a_folder_and_columns_of_other_names(folder, table):
    assert table(TABLE).notes == ()
    renamed = TABLE.replace("label,patient", "class, Group")
    note = "list.csv: label is read from column 'class', patient is read from column 'Group'"
    assert table(renamed).notes == (f"{folder / note}",)
    assert table(renamed, {"label": "class", "patient": "group"}).notes == ()
    (folder / "manifest.csv").write_text(TABLE)
    (note,) = read_manifest(folder).notes
    file = folder / "manifest.csv"
    assert note == f"the table {file} is used; folders are not searched"


def test_only_path_and_label_are_required_and_missing_patients_are_warned_of(table):
    manifest = table("path,label\nbenign/a.png,x\nbenign/b.png,x\n")
    assert manifest.patients == ["benign/a.png", "benign/b.png"]
    (warning,) = manifest.warnings
    assert "no patient is specified for 2 images" in warning
    assert "too high" in warning


def test_some_patients_missing(table):
    manifest = table(TABLE.replace("P3", " "))
    assert manifest.patients == ["P1", "P1", "P2", "malignant/d.png"]
    assert "no patient is specified for 1 image." in manifest.warnings[0]


@pytest.mark.parametrize("path", ["file", "Filename", "image", "PATH"])
@pytest.mark.parametrize("label", ["class", "Diagnosis"])
@pytest.mark.parametrize("patient", ["group", "patient_id", "case"])
def test_common_column_names(table, path, label, patient):
    header = f"{path},{label},{patient}"
    assert table(f"{header}\nbenign/a.png,x,1\nbenign/b.png,x,2\n").patients == ["1", "2"]


def test_named_columns(table):
    text = "where,what,who,label\nbenign/a.png,x,1,?\nbenign/b.png,y,2,?\n"
    manifest = table(text, {"path": "where", "label": "what", "patient": "who"})
    assert (manifest.labels, manifest.patients) == (["x", "y"], ["1", "2"])


def test_field_name_has_precedence_over_other_names(table):
    manifest = table("path,label,group,patient\nbenign/a.png,x,g,p\n")
    assert manifest.patients == ["p"]


def test_folder_per_class(folder):
    (folder / ".hidden").mkdir()
    manifest = read_manifest(folder)
    assert manifest.classes == ["benign", "malignant"]
    assert [record.path.name for record in manifest.records] == ["a.png", "b.png", "c.png", "d.png"]
    assert len(set(manifest.patients)) == 4
    assert "no patient" in manifest.warnings[0]


def test_folder_warns_of_skipped_entries(folder):
    (folder / "benign" / "notes.txt").write_text("x")
    (folder / "empty").mkdir()
    (folder / "benign" / "slide.mrxs").write_text("x")
    (folder / "benign" / "slide").mkdir()  # data of the slide: no class and no warning
    text = " ".join(read_manifest(folder).warnings)
    assert "notes.txt" in text
    assert "empty: skipped" in text
    assert "slide" not in text


def test_manifest_in_a_folder_is_used(folder):
    (folder / "manifest.csv").write_text("path,label,patient\nbenign/a.png,x,1\nbenign/b.png,x,2\n")
    assert read_manifest(str(folder)).labels == ["x", "x"]


@pytest.mark.parametrize("separator", [";", "\t", ","])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_spreadsheet_formats(table, separator, encoding, newline):
    text = TABLE.replace(",", separator).replace("\n", newline)
    assert table(text, encoding=encoding).records == table(TABLE).records


def test_decimal_comma_quotes_blank_lines_and_backslashes(table):
    text = 'path;label;patient;mpp\n\n"benign\\a.png";"x; y" ;1;0,5\n;;;\nbenign/b.png;x; 2 ;\n'
    manifest = table(text)
    assert manifest.records[0].mpp == 0.5
    assert manifest.labels == ["x; y", "x"]
    assert manifest.patients == ["1", "2"]


def test_names_outside_ascii(folder, table):
    save_plain(folder / "benign" / "Präparat №1 组织.png", PIXELS)
    manifest = table("path,label,patient\nbenign/Präparat №1 组织.png,gutartig ä,Müller\n")
    assert manifest.records[0].path.is_file()
    assert (manifest.labels, manifest.patients) == (["gutartig ä"], ["Müller"])


def test_masks_may_replace_labels(table):
    manifest = table("image,mask,patient\nbenign/a.png,malignant/c.png,1\n")
    assert manifest.records[0].mask.name == "c.png"
    assert (manifest.labels, manifest.classes) == ([""], [])


def test_class_of_one_image_is_warned_of(table):
    (warning,) = table(
        TABLE.replace("malignant,P3", "rare,P3").replace("malignant,P2", "benign,P2")
    ).warnings
    assert "'rare' has only one image" in warning


# --- digest and selection -----------------------------------------------------------------------


def test_digest_depends_only_on_names_labels_and_patients(folder, table, tmp_path):
    digest = table(TABLE).digest()
    assert len(digest) == 64
    header, *rows = TABLE.splitlines(keepends=True)
    assert table("".join([header, *rows[::-1]])).digest() == digest
    assert table(TABLE.replace("0.25", "0.5").replace("north", "east")).digest() == digest
    assert table(TABLE.replace("P3", "P2")).digest() != digest
    assert table(TABLE.replace("benign,P1", "other,P1")).digest() != digest
    shutil.copyfile(folder / "benign" / "b.png", folder / "benign" / "e.png")
    assert table(TABLE.replace("b.png", "e.png")).digest() != digest
    table(TABLE)
    shutil.copytree(folder, tmp_path / "moved")
    assert read_manifest(tmp_path / "moved" / "list.csv").digest() == digest


def test_digest_of_a_folder_does_not_depend_on_its_location(folder, tmp_path, monkeypatch):
    digest = read_manifest(folder).digest()
    monkeypatch.chdir(folder / "benign")
    assert read_manifest("..").digest() == digest
    monkeypatch.chdir(folder)
    assert read_manifest(".").digest() == digest


def test_select(table):
    manifest = table(TABLE)
    part = manifest.select(np.array([3, 0]))
    assert part.patients == ["P3", "P1"]
    assert part.digest() != manifest.digest()
    assert part.select([1, 0]).digest() == part.digest()


# --- invalid input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"list\.csv: the file is empty"),
        ("\n \n", "the file is empty"),
        ("path,label\n", "no rows below the header"),
        ("path,grade\nbenign/a.png,1\n", r"no column for label; the columns are path, grade"),
        ("a,b\n1,2\n", "no column for path and label"),
        (TABLE.replace("c.png,malignant", "c.png,Benign "), r"\['Benign ', 'benign'\] differ only"),
        (TABLE.replace("b.png,benign", "b.png,benign "), r"\['benign', 'benign '\] differ only"),
        (TABLE.replace("c.png,malignant", "c.png,"), "line 4: the field 'label' is empty"),
        (TABLE.replace("malignant/c.png", ""), "line 4: the field 'path' is empty"),
        (TABLE.replace("b.png", "a.png"), r"line 3: .*a\.png is already listed in line 2"),
        (TABLE.replace("b.png", "../benign/a.png"), "line 3: .* is already listed in line 2"),
        (TABLE.replace(",0.25,test", ",test"), "line 4: 6 values, but the header has 7 columns"),
        (TABLE.replace("0.25,test", "zero,test"), "line 4: mpp must be a positive .* not 'zero'"),
        (TABLE.replace("0.25,test", "0,test"), "line 4: mpp must be .* not '0'"),
        (TABLE.replace("0.25,test", "-1,test"), "line 4: mpp must be .* not '-1'"),
        (TABLE.replace("0.25,test", "nan,test"), "line 4: mpp must be .* not 'nan'"),
        (TABLE.replace("c.png", "x.png"), r"list\.csv: 1 file not found: .*x\.png \(line 4\)"),
        (
            "path,label,group,case\nbenign/a.png,x,1,2\n",
            r"\['group', 'case'\] all match the field 'pat",
        ),
        ("image,mask\nbenign/a.png,benign/x.png\n", r"not found: .*x\.png \(line 2\)"),
    ],
)
def test_invalid_tables_are_refused(table, text, message):
    with pytest.raises(ManifestError, match=message):
        table(text)


def test_many_missing_files_are_counted(table):
    text = "path,label\n" + "".join(f"{i}.png,x\n" for i in range(20))
    with pytest.raises(ManifestError, match=r"20 files not found: .*4\.png .*and 15 more"):
        table(text)


def test_text_that_is_not_utf8_is_refused(table):
    with pytest.raises(ManifestError, match=r"not UTF-8; save .*CSV UTF-8"):
        table(TABLE.replace("P1", "Müller"), encoding="latin-1")


def test_an_image_in_place_of_a_table_is_refused(tmp_path):
    file = tmp_path / "a.JPG"
    Image.new("RGB", (4, 4)).save(file, "JPEG")
    with pytest.raises(ManifestError, match=r"a\.JPG: is an image; give a folder with"):
        read_manifest(file)


def test_a_folder_of_images_without_classes_is_refused(tmp_path):
    for name in "ab":
        Image.new("RGB", (4, 4)).save(tmp_path / f"{name}.png")
    with pytest.raises(ManifestError, match="contains 2 images but no sub-folder per class"):
        read_manifest(tmp_path)


def test_missing_named_columns_are_refused(folder, table):
    with pytest.raises(ManifestError, match=r"column 'who' not found; the columns are path, label"):
        table(TABLE, {"patient": "who"})
    with pytest.raises(
        ManifestError, match=r"'lable' \(did you mean label\?\); the fields are path, l"
    ):
        table(TABLE, {"lable": "label"})
    with pytest.raises(ManifestError, match=r"no manifest\.csv"):
        read_manifest(folder, {"patient": "who"})


def test_invalid_folders_are_refused(tmp_path, folder):
    with pytest.raises(ManifestError, match="file or folder not found"):
        read_manifest(tmp_path / "nothing")
    (tmp_path / "hollow" / "a").mkdir(parents=True)
    with pytest.raises(ManifestError, match=r"neither manifest\.csv nor a sub-folder"):
        read_manifest(tmp_path / "hollow")
    shutil.copytree(folder / "benign", folder / "Benign")
    with pytest.raises(ManifestError, match=r"\['Benign', 'benign'\] differ only in case"):
        read_manifest(folder)


# --- real data sets -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "columns", "n_images", "n_patients"),
    [
        ("glas-colon", None, 165, 16),
        ("ucsb-breast", None, 58, 10),
        ("lc25000-lung", {"patient": "source_image"}, 247, 247),
        ("camelyon-tumour", None, 32, 32),
    ],
)
def test_real_manifests(data_folder, name, columns, n_images, n_patients):
    manifest = read_manifest(data_folder / name, columns)
    assert len(manifest.records) == n_images
    assert len(set(manifest.patients)) == n_patients
    if name == "camelyon-tumour":
        assert all(record.mask is not None for record in manifest.records)
        assert "no patient" in manifest.warnings[0]
    else:
        assert len(manifest.classes) == 2
        assert manifest.warnings == ()
