"""Reading proteins from FASTA files of every make."""

import gzip

import pytest

from bionemo.size_aware_batching.demo import bundled_proteome, read_fasta
from bionemo.size_aware_batching.errors import FileFormatError

TEXT = b">one first protein\nMKV\nLAA\n\n>two\nGGG\n"
PROTEINS = ["MKVLAA", "GGG"]


def written(tmp_path, data):
    path = tmp_path / "proteins.faa"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(TEXT, id="plain"),
        pytest.param(TEXT.rstrip(), id="no last newline"),
        pytest.param(TEXT.replace(b"\n", b"\r\n"), id="Windows"),
        pytest.param(TEXT.replace(b"\n", b"\r"), id="old Mac"),
        pytest.param(TEXT.lower().replace(b">one first protein", b">x"), id="lower case"),
        pytest.param(TEXT.replace(b"LAA\n", b"LAA*\n"), id="stop"),
        pytest.param(TEXT.replace(b"LAA\n", b"LAA\n*\n"), id="stop alone"),
        pytest.param(TEXT.replace(b"MKV", b"M-K--V"), id="gaps"),
        pytest.param(b"\n\n" + TEXT + b"\n\n", id="blank lines"),
        pytest.param(TEXT.replace(b"MKV", b"  MKV \t"), id="blanks around"),
        pytest.param(TEXT.replace(b"one first", b"one \xff\xfe first"), id="bytes in a header"),
        pytest.param(TEXT.replace(b">two", b">"), id="no name"),
        pytest.param(TEXT.replace(b">two", b">two > three"), id="sign in a header"),
        pytest.param(gzip.compress(TEXT), id="gzipped"),
        pytest.param(gzip.compress(TEXT[:20]) + gzip.compress(TEXT[20:]), id="gzipped in parts"),
    ],
)
def test_proteins_are_read(tmp_path, data):
    """Line ends, case, stops, gaps, blanks and compression make no difference to the sequences."""
    path = written(tmp_path, data)
    assert PROTEINS == read_fasta(path)
    assert PROTEINS == read_fasta(str(path))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        pytest.param(b"", "proteins.faa holds no sequence", id="empty"),
        pytest.param(b"\n \n\n", "proteins.faa holds no sequence", id="blank"),
        pytest.param(gzip.compress(b""), "proteins.faa holds no sequence", id="gzipped nothing"),
        pytest.param(b">one\n>two\n", "sequence 1, which ends before line 2, is empty", id="headers only"),
        pytest.param(b">one\nMKV\n>two\n", "sequence 2, which ends before line 4, is empty", id="last one empty"),
        pytest.param(
            b">one\nMKV\n>two\n\n>three\nMK\n", "sequence 2, which ends before line 5, is empty", id="one empty"
        ),
        pytest.param(b">one\n*\n>two\nMK\n", "sequence 1, which ends before line 3, is empty", id="stop alone"),
        pytest.param(b"MKV\n>one\nMKV\n", "is not a FASTA file: line 1 is neither", id="no header"),
        pytest.param(b"*\n", "is not a FASTA file: line 1 is neither", id="stop without a header"),
        pytest.param(b">one\nMKV\nM1V\n", "is not a FASTA file: line 3 is neither", id="a digit"),
        pytest.param(b">one\nMK V\n", "is not a FASTA file: line 2 is neither", id="a blank inside"),
        pytest.param(">one\nMKÄ\n".encode(), "is not a FASTA file: line 2 is neither", id="an umlaut"),
        pytest.param(bytes(range(256)), "is not a FASTA file: line 1 is neither", id="binary"),
        pytest.param(b"\x89PNG\r\n\x1a\n\x00", "is not a FASTA file: line 1 is neither", id="a picture"),
        pytest.param(b'{"a": 1}', "is not a FASTA file: line 1 is neither", id="JSON"),
        pytest.param(gzip.compress(TEXT)[:-5], "is a damaged gzip file", id="truncated gzip"),
        pytest.param(gzip.compress(TEXT)[:15], "is a damaged gzip file", id="cut gzip"),
        pytest.param(b"\x1f\x8b", "is a damaged gzip file", id="two bytes of gzip"),
        pytest.param(b"\x1f\x8b" + bytes(50), "is a damaged gzip file", id="false gzip"),
        pytest.param(gzip.compress(TEXT)[:-8] + bytes(8), "is a damaged gzip file", id="wrong checksum"),
        pytest.param(gzip.compress(TEXT)[:10] + b"\xff" * 40, "is a damaged gzip file", id="wrong bits"),
        pytest.param(gzip.compress(b"MKV"), "is not a FASTA file: line 1 is neither", id="gzipped text"),
    ],
)
def test_what_is_not_fasta(tmp_path, data, text):
    """What is not FASTA, is damaged, or has a record without a sequence is refused with the line."""
    with pytest.raises(FileFormatError, match=text):
        read_fasta(written(tmp_path, data))


def test_error_does_not_show_the_contents(tmp_path):
    """An error names file and line, and nothing of what is in them."""
    with pytest.raises(FileFormatError, match="line 2") as caught:
        read_fasta(written(tmp_path, b">one\nPRIVATE1\n"))
    assert "PRIVATE" not in str(caught.value)


def test_missing_file(tmp_path):
    """A file that is not there is an OSError."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_fasta(tmp_path / "nowhere")


def test_folder(tmp_path):
    """A folder is an OSError too."""
    with pytest.raises(OSError, match=r"directory|denied"):
        read_fasta(tmp_path)


def test_byte_order_mark(tmp_path):
    """Some editors put a mark before the first header."""
    assert PROTEINS == read_fasta(written(tmp_path, b"\xef\xbb\xbf" + TEXT))


def test_bundled_proteome():
    """The proteome that comes along has 2,100 proteins of 32 to 4,559 residues, in capital letters."""
    proteins = bundled_proteome()
    lengths = list(map(len, proteins))
    assert (2100, 32, 4559) == (len(lengths), min(lengths), max(lengths))
    assert set() == set("".join(proteins)) - set("ABCDEFGHIKLMNOPQRSTUVWXYZ")
    assert proteins == bundled_proteome()
