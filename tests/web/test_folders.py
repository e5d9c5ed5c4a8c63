"""Only files under the data folders are accessible, for any names and links."""

import pytest

from histodict.web.workspace import DataFolders, ForbiddenFileError


@pytest.fixture
def place(tmp_path):
    (tmp_path / "data" / "class a").mkdir(parents=True)
    (tmp_path / "data" / "set.csv").write_text("path,label\n")
    (tmp_path / "data" / ".hidden").mkdir()
    (tmp_path / "database").mkdir()  # its name starts with that of the folder
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "data" / "way out").symlink_to(tmp_path)
    (tmp_path / "data" / "inside").symlink_to(tmp_path / "data" / "class a")
    return tmp_path


@pytest.mark.parametrize(
    "inside",
    [
        "..",
        "../secret.txt",
        "class a/../../secret.txt",
        "/etc/passwd",
        "way out/secret.txt",
        "way out",
        "../database",
        "a\0b",
    ],
)
def test_paths_outside_are_refused(place, inside):
    with pytest.raises(ForbiddenFileError):
        DataFolders([place / "data"]).find(0, inside)


@pytest.mark.parametrize("number", [-1, 1, 10**9])
def test_unknown_folder_numbers_are_refused(place, number):
    with pytest.raises(ForbiddenFileError):
        DataFolders([place / "data"]).find(number, "")


def test_content_is_found_and_listed(place):
    folders = DataFolders([place / "data"])
    assert folders.find(0, "inside") == place / "data" / "class a"
    listing = folders.list_folder(0, "")
    assert listing["folders"] == ["class a", "inside"]
    assert listing["tables"] == ["set.csv"]
    with pytest.raises(FileNotFoundError):
        folders.find(0, "class b")


def test_workspaces_are_not_listed(place):
    work = place / "data" / "work" / "users"
    work.mkdir(parents=True)
    folders = DataFolders([place / "data"], [work])
    assert folders.list_folder(0, "work")["folders"] == []
    for inside in ("work/users", "work/users/anna/marks/1.png", "class a/../work/users"):
        with pytest.raises(ForbiddenFileError):
            folders.find(0, inside)


def test_missing_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        DataFolders([tmp_path / "nowhere"])
