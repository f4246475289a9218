"""Profiles and models as files: the same after reading, and refused when they are not what they should be."""

import json
import math
import os

import numpy as np
import pytest
import torch

from bionemo.size_aware_batching.errors import FileFormatError
from bionemo.size_aware_batching.memory import BatchShape, MemoryModel, PeakRecord, Profile

RECORDS = (
    PeakRecord(0, BatchShape(2, 10.5, 20), 3000, 4096, 9000, 100, "ok", 0.25),
    PeakRecord(1, None, None, 4096, 9000, 100, "oom", 0.5),
    PeakRecord(2, [1, 2.5, "three"], 5000, None, None, 0, "ok", 1e-9),
    PeakRecord(3, 7, 1, None, None, 0, "ok", 0.0),
    PeakRecord(4, "kind", 1, None, None, 0, "ok", 0.0),
)
PROFILE = Profile(RECORDS, "cuda:0 (Kärtchen)", 3)
SHAPES = [BatchShape(n, longest, n * longest) for n in (1, 3, 8, 20) for longest in (16, 64, 300)]
MODEL = MemoryModel(coverage=0.99).fit(
    SHAPES, [max(1_000_000 + 700.7 * s.items * s.longest, 1_300_000) for s in SHAPES]
)
BOTH = pytest.mark.parametrize("saved", [PROFILE, MODEL], ids=["profile", "model"])


def damaged(saved, path, change):
    """Save, change the document, and write it back."""
    saved.save(path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return path


def test_profile_round_trip(tmp_path):
    """A profile read back is equal, batch shapes included."""
    PROFILE.save(tmp_path / "profile.json")
    loaded = Profile.load(tmp_path / "profile.json")
    assert PROFILE == loaded
    assert BatchShape is type(loaded[0].features)


def test_empty_profile_round_trip(tmp_path):
    """A profile without records is one too."""
    Profile((), "cpu").save(str(tmp_path / "profile.json"))
    assert Profile((), "cpu", 0) == Profile.load(str(tmp_path / "profile.json"))


def test_model_round_trip(tmp_path):
    """A model read back predicts, bounds and describes itself exactly as before."""
    MODEL.save(tmp_path / "model.json")
    loaded = MemoryModel.load(tmp_path / "model.json")
    assert MODEL.summary() == loaded.summary()
    assert MODEL.coefficients == loaded.coefficients
    assert (MODEL.fixed_bytes, MODEL.margin_factor) == (loaded.fixed_bytes, loaded.margin_factor)
    assert (MODEL.held_out_error, MODEL.coverage) == (loaded.held_out_error, loaded.coverage)
    shapes = [BatchShape(0, 0, 0), *SHAPES, BatchShape(99, 999, 5000)]
    assert MODEL.upper_bound(shapes).tolist() == loaded.upper_bound(shapes).tolist()


@BOTH
def test_second_save_is_the_same(saved, tmp_path):
    """Saving what was loaded writes the same bytes."""
    saved.save(tmp_path / "one")
    type(saved).load(tmp_path / "one").save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@BOTH
def test_file_says_what_it_is(saved, tmp_path):
    """The first keys are kind and version."""
    saved.save(tmp_path / "file")
    assert ["kind", "version"] == list(json.loads((tmp_path / "file").read_text()))[:2]


@BOTH
def test_truncated_files_are_refused(saved, tmp_path):
    """A file cut short anywhere before its closing brace is refused."""
    saved.save(tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes().rstrip()
    for end in range(0, len(data), 7):
        (tmp_path / "cut").write_bytes(data[:end])
        with pytest.raises(FileFormatError, match="cut is not a JSON file"):
            type(saved).load(tmp_path / "cut")


@BOTH
@pytest.mark.parametrize("data", [b"", b"\x00\x01\xfe", b"\xff\xfe{\x00", b"not json", b"[" * 100_000, b"{}{}"])
def test_what_is_not_json_is_refused(saved, data, tmp_path):
    """Binary, empty and endlessly nested files are refused in one way."""
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(FileFormatError, match="file is not a JSON file"):
        type(saved).load(tmp_path / "file")


@BOTH
@pytest.mark.parametrize("text", ["{}", "[]", "null", "3", '"text"', '{"kind": "something else", "version": 1}'])
def test_foreign_json_is_refused(saved, text, tmp_path):
    """JSON of another kind is refused with what was wanted."""
    (tmp_path / "file").write_text(text)
    with pytest.raises(FileFormatError, match="file is not a size-aware-batching"):
        type(saved).load(tmp_path / "file")


def test_profile_is_no_model(tmp_path):
    """A profile is not taken for a model, nor the other way round."""
    PROFILE.save(tmp_path / "profile")
    MODEL.save(tmp_path / "model")
    with pytest.raises(FileFormatError, match="profile is not a size-aware-batching memory model file"):
        MemoryModel.load(tmp_path / "profile")
    with pytest.raises(FileFormatError, match="model is not a size-aware-batching profile file"):
        Profile.load(tmp_path / "model")


@BOTH
@pytest.mark.parametrize("version", [2, 99, 0, -1, "1", 1.0, True, None])
def test_other_versions_are_refused(saved, version, tmp_path):
    """A newer version, or what is no version, is refused with the versions that can be read."""
    path = damaged(saved, tmp_path / "file", lambda document: document.update(version=version))
    with pytest.raises(FileFormatError, match=rf"of version {version!r}; this release reads versions up to 1"):
        type(saved).load(path)


@BOTH
@pytest.mark.parametrize("name", ["kind", "version"])
def test_missing_kind_or_version(saved, name, tmp_path):
    """A document that does not say what it is, or in which version, is refused."""
    path = damaged(saved, tmp_path / "file", lambda document: document.pop(name))
    with pytest.raises(FileFormatError, match=r"not a size-aware-batching|of version None"):
        type(saved).load(path)


@BOTH
def test_every_key_is_needed(saved, tmp_path):
    """A document without any one of its keys is damaged."""
    saved.save(tmp_path / "whole")
    keys = set(json.loads((tmp_path / "whole").read_text())) - {"kind", "version"}
    assert len(keys) >= 3
    for key in keys:
        path = damaged(saved, tmp_path / "file", lambda document, key=key: document.pop(key))
        with pytest.raises(FileFormatError, match=r"damaged size-aware-batching .* file: KeyError"):
            type(saved).load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"coverage": 1.5},
        {"coverage": "0.9"},
        {"fixed_bytes": None},
        {"fixed_bytes": -1},
        {"fixed_bytes": math.nan},
        {"fixed_bytes": "many"},
        {"floor_bytes": math.inf},
        {"floor_bytes": -1},
        {"coefficients": []},
        {"coefficients": {}},
        {"coefficients": {"items": -1}},
        {"coefficients": {"items": math.nan}},
        {"coefficients": {"items": None}},
        {"coefficients": {"weight": 1}},
        {"coefficients": {"items": 1, "weight": 1}},
        {"margin_factor": 0.99},
        {"margin_factor": math.inf},
        {"held_out_error": [0.1]},
        {"held_out_error": 0.1},
        {"held_out_error": [0.1, -0.2]},
        {"held_out_error": "ab"},
        {"measurements": "some"},
        {"measurements": None},
    ],
    ids=repr,
)
def test_impossible_models_are_refused(change, tmp_path):
    """Numbers that no fit could have written are refused."""
    path = damaged(MODEL, tmp_path / "file", lambda document: document.update(change))
    with pytest.raises(FileFormatError, match="damaged size-aware-batching memory model file"):
        MemoryModel.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"index": -1},
        {"index": "0"},
        {"index": True},
        {"peak_bytes": None},
        {"peak_bytes": -5},
        {"peak_bytes": 1.5},
        {"baseline_bytes": None},
        {"status": "fine"},
        {"status": None},
        {"seconds": math.nan},
        {"seconds": math.inf},
        {"seconds": "long"},
        {"features": {}},
        {"features": {"shape": [1, 2]}},
        {"features": {"shape": 3}},
        {"features": {"shape": [1, 2, 3], "dict": {}}},
        {"features": {"dict": [1]}},
        {"features": {"another": [1, 2, 3]}},
        {"features": [1, math.inf]},
        {"features": [[{"dict": {"a": math.nan}}]]},
    ],
    ids=repr,
)
def test_impossible_records_are_refused(change, tmp_path):
    """Values that no measurement could have written are refused."""
    path = damaged(PROFILE, tmp_path / "file", lambda document: document["records"][0].update(change))
    with pytest.raises(FileFormatError, match="damaged size-aware-batching profile file"):
        Profile.load(path)


@pytest.mark.parametrize("name", ["index", "features", "peak_bytes", "reserved_bytes", "status", "seconds"])
def test_every_field_of_a_record_is_needed(name, tmp_path):
    """A record without one of its fields is damaged."""
    path = damaged(PROFILE, tmp_path / "file", lambda document: document["records"][1].pop(name))
    with pytest.raises(FileFormatError, match="damaged size-aware-batching profile file: KeyError"):
        Profile.load(path)


@pytest.mark.parametrize("records", [None, 3, [None], [3], ["text"], [[]], {"a": 1}], ids=repr)
def test_records_of_another_kind_are_refused(records, tmp_path):
    """Records that are no list of objects are refused."""
    path = damaged(PROFILE, tmp_path / "file", lambda document: document.update(records=records))
    with pytest.raises(FileFormatError, match="damaged size-aware-batching profile file"):
        Profile.load(path)


@pytest.mark.parametrize(
    "change", [{"fixed_bytes": 10**400}, {"measurements": math.inf}, {"coefficients": {"items": 10**400}}]
)
def test_numbers_beyond_a_model_are_refused(change, tmp_path):
    """Numbers that overflow are no numbers of a fit."""
    path = damaged(MODEL, tmp_path / "file", lambda document: document.update(change))
    with pytest.raises(FileFormatError, match="damaged"):
        MemoryModel.load(path)


def test_numbers_beyond_a_profile_are_refused(tmp_path):
    """Numbers that overflow are no measurements."""
    path = damaged(PROFILE, tmp_path / "file", lambda document: document.update(warmup=10**400))
    with pytest.raises(FileFormatError, match="damaged"):
        Profile.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"reserved_bytes": "abc"},
        {"reserved_bytes": -3},
        {"device_bytes": [1]},
        {"seconds": -1},
        {"features": {"shape": ["a", "b", "c"]}},
        {"features": {"shape": "abc"}},
        {"features": {"shape": [math.nan, 1, 1]}},
        {"status": "oom"},
        {"status": "oom", "peak_bytes": None},
        {"seconds": True},
        {"index": 2**63},
    ],
    ids=repr,
)
def test_more_impossible_records_are_refused(change, tmp_path):
    """Text for bytes, negative times, shapes that are no numbers and a peak beside "oom" are refused as well."""
    path = damaged(PROFILE, tmp_path / "file", lambda document: document["records"][0].update(change))
    with pytest.raises(FileFormatError, match="damaged"):
        Profile.load(path)


@pytest.mark.parametrize(
    ("features", "loaded"),
    [
        ({"atoms": 3, "name": None}, {"atoms": 3, "name": None}),
        ({"shape": [1, 2, 3]}, {"shape": [1, 2, 3]}),
        ({"dict": {"shape": BatchShape(1, 2, 3)}}, {"dict": {"shape": BatchShape(1, 2, 3)}}),
        ((1, [BatchShape(1, 2, 3), "a"]), [1, [BatchShape(1, 2, 3), "a"]]),
        (BatchShape(np.int64(3), np.float32(0.5), torch.tensor(7)), BatchShape(3, 0.5, 7)),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (torch.tensor([1.5, 2.0]), [1.5, 2.0]),
        (np.float64(1.5), 1.5),
        (True, True),
        ({}, {}),
    ],
    ids=repr,
)
def test_features_come_back(features, loaded, tmp_path):
    """Features of numbers, text, lists and dicts come back, those of numpy and torch as Python's own."""
    Profile((PeakRecord(0, features, 10, None, None, 0, "ok", 0.1),), "cpu").save(tmp_path / "file")
    record = Profile.load(tmp_path / "file")[0]
    assert loaded == record.features
    assert type(loaded) is type(record.features)


@pytest.mark.parametrize(("features", "error", "text"), [
    ({1, 2}, TypeError, "the features at index 0 cannot be saved: they hold set"),
    ([3, object()], TypeError, "the features at index 0 cannot be saved: they hold object"),
    ({3: "a key"}, TypeError, "the features at index 0 cannot be saved: they hold dict"),
    (math.nan, ValueError, "the features at index 0 cannot be saved: they hold nan"),
    (BatchShape(1, math.inf, 1), ValueError, "the features at index 0 cannot be saved: they hold inf"),
])  # fmt: skip
def test_features_that_json_cannot_hold(features, error, text, tmp_path):
    """Features that cannot be written are refused, and the old file is still there, alone."""
    PROFILE.save(tmp_path / "file")
    with pytest.raises(error, match=text):
        Profile((PeakRecord(0, features, 10, None, None, 0, "ok", 0.1),), "cpu").save(tmp_path / "file")
    assert PROFILE == Profile.load(tmp_path / "file")
    assert ["file"] == [path.name for path in tmp_path.iterdir()]


@BOTH
def test_failed_save_leaves_the_old_file(saved, tmp_path, monkeypatch):
    """A disk that fails while writing leaves the file that was there, and nothing beside it."""
    (tmp_path / "file").write_text("the old one")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        saved.save(tmp_path / "file")
    assert "the old one" == (tmp_path / "file").read_text()
    assert ["file"] == [path.name for path in tmp_path.iterdir()]


@BOTH
def test_missing_file(saved, tmp_path):
    """A file that is not there is an OSError, as everywhere."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        type(saved).load(tmp_path / "nowhere")
