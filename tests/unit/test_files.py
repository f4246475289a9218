"""Files that are replaced whole or not at all, and documents that say what they are."""

import json
import os
import stat

import pytest

from bionemo.size_aware_batching._files import read_document, replace_file, write_document
from bionemo.size_aware_batching.errors import FileFormatError


def test_file_appears_when_the_block_ends(tmp_path):
    """Until then there is nothing under its name."""
    path = tmp_path / "file"
    with replace_file(path) as file:
        file.write(b"new")
        assert not path.exists()
        assert 1 == len(list(tmp_path.iterdir()))
    assert b"new" == path.read_bytes()
    assert ["file"] == [path.name for path in tmp_path.iterdir()]


def test_file_is_replaced(tmp_path):
    """The old contents are there until the new ones are whole."""
    path = tmp_path / "file"
    path.write_bytes(b"a longer old one")
    with replace_file(str(path)) as file:
        file.write(b"new")
        file.flush()
        assert b"a longer old one" == path.read_bytes()
    assert b"new" == path.read_bytes()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_failed_block_leaves_everything_as_it_was(tmp_path, error):
    """After an error the old file is there, and no temporary one."""
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write():
        with replace_file(path) as file:
            file.write(b"half of it")
            raise error("stop")

    with pytest.raises(error, match="stop"):
        write()
    assert b"old" == path.read_bytes()
    assert ["file"] == [path.name for path in tmp_path.iterdir()]


def test_place_that_cannot_be_taken(tmp_path):
    """A folder under the file's name stays, and no temporary file beside it."""
    (tmp_path / "file").mkdir()

    def write():
        with replace_file(tmp_path / "file") as file:
            file.write(b"new")

    with pytest.raises(OSError, match="file"):
        write()
    assert ["file"] == [path.name for path in tmp_path.iterdir()]


def test_folder_that_is_not_there(tmp_path):
    """A file in no folder cannot be written."""
    with pytest.raises(FileNotFoundError, match="nowhere"), replace_file(tmp_path / "nowhere" / "file"):
        pytest.fail("opened")


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_mode_is_that_of_a_new_file(tmp_path, mask):
    """The file has the mode that `open` would have given it, and the process keeps its mask."""
    before = os.umask(mask)
    try:
        with replace_file(tmp_path / "file") as file:
            file.write(b"new")
        assert mask == os.umask(mask)
    finally:
        os.umask(before)
    assert 0o666 & ~mask == stat.S_IMODE((tmp_path / "file").stat().st_mode)


def test_document_comes_back(tmp_path):
    """A document is read as it was written, and says first what it is."""
    write_document(tmp_path / "file", "a kind", 3, {"number": 1.5, "text": "ä", "list": [None, True]})
    expected = {"kind": "a kind", "version": 3, "number": 1.5, "text": "ä", "list": [None, True]}
    assert expected == read_document(tmp_path / "file", "a kind", 3)
    assert list(expected) == list(json.loads((tmp_path / "file").read_text(encoding="utf-8")))
    assert (tmp_path / "file").read_bytes().endswith(b"}\n")


def test_older_document_is_read(tmp_path):
    """A newer release reads what an older one wrote."""
    write_document(tmp_path / "file", "a kind", 1, {"number": 1})
    assert 1 == read_document(tmp_path / "file", "a kind", 5)["version"]


def test_newer_document_is_refused(tmp_path):
    """A document of a newer version is refused with both versions."""
    write_document(tmp_path / "file", "a kind", 3, {})
    with pytest.raises(FileFormatError, match=r"a kind file of version 3; this release reads versions up to 2"):
        read_document(tmp_path / "file", "a kind", 2)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_does_not_know(tmp_path, value):
    """NaN and infinity are not written, and the old file stays."""
    write_document(tmp_path / "file", "a kind", 1, {"number": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_document(tmp_path / "file", "a kind", 1, {"number": value})
    assert 1 == read_document(tmp_path / "file", "a kind", 1)["number"]
    assert ["file"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize("data", [b"", b"{", b"\x80\x81", b'{"kind": "a kind", "version": 1', b"[" * 10**5])
def test_what_is_not_json(tmp_path, data):
    """What cannot be read as JSON is refused, with the reason as its cause."""
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(FileFormatError, match="file is not a JSON file: ") as caught:
        read_document(tmp_path / "file", "a kind", 1)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    "text", ["[]", "3", "null", '"a kind"', "{}", '{"kind": null}', '{"kind": "A KIND", "version": 1}']
)
def test_what_is_another_document(tmp_path, text):
    """JSON that is no object of that kind is refused."""
    (tmp_path / "file").write_text(text)
    with pytest.raises(FileFormatError, match="file is not a a kind file"):
        read_document(tmp_path / "file", "a kind", 1)


@pytest.mark.parametrize("version", ["null", "0", "-1", "1.0", '"1"', "true", "[1]", "2"])
def test_what_is_no_version(tmp_path, version):
    """A version is a whole number from one to the release's own."""
    (tmp_path / "file").write_text(f'{{"kind": "a kind", "version": {version}}}')
    with pytest.raises(FileFormatError, match=r"a kind file of version .*; this release reads versions up to 1"):
        read_document(tmp_path / "file", "a kind", 1)


def test_number_with_thousands_of_digits(tmp_path):
    """A number that Python refuses to read makes the file no less damaged."""
    (tmp_path / "file").write_text(f'{{"kind": "a kind", "version": {"1" * 5000}}}')
    error = None
    try:
        read_document(tmp_path / "file", "a kind", 1)
    except FileFormatError as caught:
        error = caught
    assert error is not None


def test_missing_document(tmp_path):
    """A file that is not there is not a damaged one."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_document(tmp_path / "nowhere", "a kind", 1)
