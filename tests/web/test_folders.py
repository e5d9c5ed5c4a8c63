"""Only what lies under the data folders can be reached, whatever names and links say."""

import pytest

from histodict.web.workspace import DataFolders, ForbiddenFileError


@pytest.fixture
def place(tmp_path):
    (tmp_path / "data" / "class a").mkdir(parents=True)
    (tmp_path / "data" / "set.csv").write_text("path,label\n")
    (tmp_path / "data" / ".hidden").mkdir()
    (tmp_path / "database").mkdir()  # begins like the folder's name
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
def test_ways_out_are_refused(place, inside):
    with pytest.raises(ForbiddenFileError):
        DataFolders([place / "data"]).find(0, inside)


@pytest.mark.parametrize("number", [-1, 1, 10**9])
def test_folders_that_were_not_given_are_refused(place, number):
    with pytest.raises(ForbiddenFileError):
        DataFolders([place / "data"]).find(number, "")


def test_what_is_inside_is_found_and_listed(place):
    folders = DataFolders([place / "data"])
    assert folders.find(0, "inside") == place / "data" / "class a"
    listing = folders.listing(0, "")
    assert listing["folders"] == ["class a", "inside"]
    assert listing["tables"] == ["set.csv"]
    with pytest.raises(FileNotFoundError):
        folders.find(0, "class b")


def test_the_work_of_users_is_no_data(place):
    work = place / "data" / "work" / "users"
    work.mkdir(parents=True)
    folders = DataFolders([place / "data"], [work])
    assert folders.listing(0, "work")["folders"] == []
    for inside in ("work/users", "work/users/anna/marks/1.png", "class a/../work/users"):
        with pytest.raises(ForbiddenFileError):
            folders.find(0, inside)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        DataFolders([tmp_path / "nowhere"])
