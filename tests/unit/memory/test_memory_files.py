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
    PeakRecord(5, BatchShape(2, (5, 9.5), (8, 11)), 1, None, None, 0, "ok", 0.0),
)
PROFILE = Profile(RECORDS, "cuda:0 (Kärtchen)", 3, 0.125, 7_000_001)
SHAPES = [BatchShape(n, longest, n * longest) for n in (1, 3, 8, 20) for longest in (16, 64, 300)]
MODEL = MemoryModel(coverage=0.99).fit(
    SHAPES, [max(1_000_000 + 700.7 * s.items * s.longest, 1_300_000) for s in SHAPES]
)
# Elements of n atoms and n squared bonds, and some errors, so that no number of the model is a round one.
PAIRS = [BatchShape(n, (a, a * a + n % 2), (n * a, n * (a * a - n // 5))) for n in (1, 3, 8, 20) for a in (4, 16, 60)]
PAIRS_PEAKS = [
    (1e6 + 70 * s.items * s.longest[1] + 900 * s.items * s.longest[0]) * (1 + i % 5 / 999) for i, s in enumerate(PAIRS)
]
PAIRS_MODEL = MemoryModel(coverage=0.5).fit(PAIRS, PAIRS_PEAKS)
BOTH = pytest.mark.parametrize("saved", [PROFILE, MODEL, PAIRS_MODEL], ids=["profile", "model", "two measures"])
MODELS = pytest.mark.parametrize(("saved", "seen"), [(MODEL, SHAPES), (PAIRS_MODEL, PAIRS)], ids=["one", "two"])


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
    assert (0.125, 7_000_001) == (loaded.fragmentation_fraction, loaded.drift_bytes)
    assert (float, int) == (type(loaded.fragmentation_fraction), type(loaded.drift_bytes))


def test_profile_of_shapes_in_two_measures_is_fitted_after_loading(tmp_path):
    """Tuples come back as tuples, and drift with them, so that a loaded profile gives the same model."""
    records = (
        PeakRecord(i, s, round(p), None, None, 0, "ok", 0.1)
        for i, (s, p) in enumerate(zip(PAIRS, PAIRS_PEAKS, strict=True))
    )
    profile = Profile(tuple(records), "cpu", drift_bytes=12_345)
    profile.save(tmp_path / "profile.json")
    loaded = Profile.load(tmp_path / "profile.json")
    assert profile == loaded
    assert [(tuple, tuple)] * len(PAIRS) == [(type(s.longest), type(s.total)) for s in loaded.features]
    model, again = MemoryModel().fit(profile), MemoryModel().fit(loaded)
    assert (2, model.margin_bytes) == (again.measures, again.margin_bytes)
    assert model.upper_bound(PAIRS).tolist() == again.upper_bound(PAIRS).tolist()


def test_empty_profile_round_trip(tmp_path):
    """A profile without records is one too."""
    Profile((), "cpu").save(str(tmp_path / "profile.json"))
    assert Profile((), "cpu", 0) == Profile.load(str(tmp_path / "profile.json"))


@MODELS
def test_model_round_trip(saved, seen, tmp_path):
    """A model read back predicts, bounds and describes itself exactly as before."""
    saved.save(tmp_path / "model.json")
    loaded = MemoryModel.load(tmp_path / "model.json")
    assert saved.summary() == loaded.summary()
    assert saved.coefficients == loaded.coefficients
    assert list(saved.coefficients) == list(loaded.coefficients)
    for name in ("fixed_bytes", "margin_factor", "margin_bytes", "measures", "held_out_error", "coverage"):
        assert getattr(saved, name) == getattr(loaded, name)
    grown = np.multiply(1.5, [np.hstack(shape) for shape in seen])
    assert saved.predict(seen).tolist() == loaded.predict(seen).tolist()
    assert saved.upper_bound(grown).tolist() == loaded.upper_bound(grown).tolist()
    assert saved.upper_bound(grown * 0).tolist() == loaded.upper_bound(grown * 0).tolist()


def test_models_of_these_tests():
    """The models saved here have a floor, a margin, and more than one measure, so that nothing is saved as zero."""
    assert "at least, however small the batch" in MODEL.summary()
    assert (1, ["items*longest"]) == (MODEL.measures, list(MODEL.coefficients))
    assert (2, ["items*longest[0]", "items*longest[1]"]) == (PAIRS_MODEL.measures, list(PAIRS_MODEL.coefficients))
    assert PAIRS_MODEL.margin_bytes > 0
    assert "7 of 12 held-out peaks below it" in PAIRS_MODEL.summary()


KEYS = {
    Profile: {"device", "warmup", "records", "fragmentation_fraction", "drift_bytes"},
    MemoryModel: {
        *("coverage", "fixed_bytes", "floor_bytes", "coefficients", "measures", "margin_factor", "margin_bytes"),
        *("held_out_error", "measurements", "covered"),
    },
}


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
    assert keys == KEYS[type(saved)]
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
        {"margin_factor": math.nan},
        {"margin_factor": None},
        {"margin_factor": "1.5"},
        {"margin_factor": True},
        {"margin_bytes": -1},
        {"margin_bytes": -1e-9},
        {"margin_bytes": math.inf},
        {"margin_bytes": math.nan},
        {"margin_bytes": None},
        {"margin_bytes": "1024"},
        {"margin_bytes": True},
        {"margin_bytes": [1]},
        {"margin_bytes": 1e302},
        {"margin_bytes": 10**400},
        {"measures": 0},
        {"measures": -1},
        {"measures": 65},
        {"measures": 10**400},
        {"measures": 1.0},
        {"measures": True},
        {"measures": "1"},
        {"measures": None},
        {"measures": [1]},
        {"measures": 2},
        {"covered": -1},
        {"covered": 1.0},
        {"covered": math.nan},
        {"covered": True},
        {"covered": "all"},
        {"covered": None},
        {"covered": [1]},
        {"measurements": -1},
        {"measurements": 12.0},
        {"measurements": True},
        {"coefficients": {"items*longest[0]": 1}},
        {"coefficients": {"items*longest": True}},
        {"coefficients": {"items*longest": [1]}},
        {"coefficients": {"items*longest": 1e302}},
        {"coefficients": 5},
        {"coefficients": None},
        {"coefficients": [["items", 1], 5]},
        {"held_out_error": [0.1, 0.2, 0.3]},
        {"held_out_error": {"a": 1, "b": 2}},
        {"held_out_error": [0.1, None]},
        {"held_out_error": None},
        {"floor_bytes": None},
        {"floor_bytes": True},
        {"fixed_bytes": True},
        {"coverage": 0},
        {"coverage": 1},
        {"coverage": None},
        {"coverage": True},
        {"coverage": math.nan},
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
        {"measures": 1},
        {"measures": 65},
        {"coefficients": {"total": 1}},
        {"coefficients": {"total[0]": 1, "items*longest": 1}},
        {"coefficients": {"total[2]": 1}},
        {"coefficients": {"total[-1]": 1}},
        {"coefficients": {"items[0]": 1}},
        {"coefficients": {"items*longest^2[1]": 1}},
    ],
    ids=repr,
)
def test_terms_of_other_measures_are_refused(change, tmp_path):
    """A model of two measures has terms of these two alone, by their names."""
    path = damaged(PAIRS_MODEL, tmp_path / "file", lambda document: document.update(change))
    with pytest.raises(FileFormatError, match="damaged size-aware-batching memory model file: ValueError"):
        MemoryModel.load(path)


def test_model_of_many_measures(tmp_path):
    """A model may have as many measures as sixty-four, with the terms of the last."""
    change = {"measures": 64, "coefficients": {"total[63]": 2}, "fixed_bytes": 5, "floor_bytes": 0}
    path = damaged(PAIRS_MODEL, tmp_path / "file", lambda document: document.update(change))
    model = MemoryModel.load(path)
    assert (64, {"total[63]": 2.0}) == (model.measures, model.coefficients)
    assert 5 + 2 * 63 == model.predict(BatchShape(1, tuple(range(64)), tuple(range(64))))


@pytest.mark.parametrize(
    "change",
    [
        {"covered": 13},
        {"measurements": 0, "covered": 0},
        {"measures": 0, "coefficients": {"items": 1}},
        {"coefficients": {"items*longest": 0}},
        {"coefficients": [["items*longest", 1]]},
        {"held_out_error": [0.2, 0.1]},
    ],
    ids=repr,
)
def test_models_that_contradict_themselves_are_refused(change, tmp_path):
    """No more peaks are covered than were measured, coefficients are positive, a mean is below the largest."""
    path = damaged(MODEL, tmp_path / "file", lambda document: document.update(change))
    with pytest.raises(FileFormatError, match="damaged size-aware-batching memory model file: ValueError"):
        MemoryModel.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"held_out_error": [0, 0]},
        {"held_out_error": [0.1, 0.1]},
        {"covered": 0},
        {"covered": 12, "measurements": 12},
        {"margin_factor": 1, "margin_bytes": 0},
        {"fixed_bytes": 0, "floor_bytes": 0},
        {"coefficients": {"total": 1e-9}},
        {"coverage": 0.001},
    ],
    ids=repr,
)
def test_models_that_are_just_possible(change, tmp_path):
    """Zeros, ones and whole numbers that a fit can come to are read, and written again."""
    path = damaged(MODEL, tmp_path / "file", lambda document: document.update(change))
    MemoryModel.load(path).save(tmp_path / "again")
    written = json.loads((tmp_path / "again").read_text())
    assert change == {name: written[name] for name in change}


def test_what_can_be_loaded_can_be_used(tmp_path):
    """A file is refused, or gives a model whose bytes are finite."""
    amounts = ("fixed_bytes", "floor_bytes", "margin_factor", "margin_bytes")

    def change(number):
        return lambda document: document.update(dict.fromkeys(amounts, number), coefficients={"items": number})

    with pytest.raises(FileFormatError, match="damaged size-aware-batching memory model file"):
        MemoryModel.load(damaged(MODEL, tmp_path / "file", change(2.0**100)))
    model = MemoryModel.load(damaged(MODEL, tmp_path / "file", change(2.0**99)))
    assert 2**198 == model.fixed_bytes
    assert 2.0**199 == model.upper_bound(BatchShape(1, 1, 1))
    assert 2.0**198 == model.element_bytes([1]).item()


@pytest.mark.parametrize(
    "change",
    [
        {"fragmentation_fraction": -0.01},
        {"fragmentation_fraction": math.nan},
        {"fragmentation_fraction": math.inf},
        {"fragmentation_fraction": 2.0**62},
        {"fragmentation_fraction": 10**400},
        {"fragmentation_fraction": None},
        {"fragmentation_fraction": True},
        {"fragmentation_fraction": "0.1"},
        {"fragmentation_fraction": [0.1]},
        {"drift_bytes": -1},
        {"drift_bytes": 1.0},
        {"drift_bytes": math.nan},
        {"drift_bytes": 2**63},
        {"drift_bytes": None},
        {"drift_bytes": True},
        {"drift_bytes": "9"},
        {"drift_bytes": [9]},
        {"warmup": -1},
        {"warmup": 1.0},
        {"warmup": None},
        {"warmup": True},
        {"device": None},
        {"device": 3},
    ],
    ids=repr,
)
def test_impossible_profiles_are_refused(change, tmp_path):
    """What a profile says beside its records is a text, counts, and a share that is not negative."""
    path = damaged(PROFILE, tmp_path / "file", lambda document: document.update(change))
    with pytest.raises(FileFormatError, match="damaged size-aware-batching profile file"):
        Profile.load(path)


def test_whole_fragmentation_is_a_fraction(tmp_path):
    """A share that was written without a point is read as the same number."""
    path = damaged(PROFILE, tmp_path / "file", lambda document: document.update(fragmentation_fraction=2))
    beyond = Profile.load(path).fragmentation_fraction
    assert (2.0, float) == (beyond, type(beyond))


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
        {"features": {"shape": [1, [1, 2], 3]}},
        {"features": {"shape": [1, 3, [1, 2]]}},
        {"features": {"shape": [1, [1, 2], [3]]}},
        {"features": {"shape": [1, [1], [2, 3]]}},
        {"features": {"shape": [[1, 2], [1, 2], [1, 2]]}},
        {"features": {"shape": [1, [1, math.nan], [1, 2]]}},
        {"features": {"shape": [1, [1, 2], [1, math.inf]]}},
        {"features": {"shape": [1, [1, -2], [1, 2]]}},
        {"features": {"shape": [1, [1, "a"], [1, 2]]}},
        {"features": {"shape": [1, [1, True], [1, 2]]}},
        {"features": {"shape": [1, [1, None], [1, 2]]}},
        {"features": {"shape": [1, [1, [2]], [1, 2]]}},
        {"features": {"shape": [1, [1, 2], "ab"]}},
        {"features": {"shape": [1, "ab", "ab"]}},
        {"features": {"shape": [1, {"a": 1}, {"a": 1}]}},
        {"features": {"shape": [1, [1, 2], {"a": 1, "b": 2}]}},
        {"features": {"shape": [1, [1, 2], [3, 4], 5]}},
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
        (BatchShape(2, (5, 9.5), (8, 11)), BatchShape(2, (5, 9.5), (8, 11))),
        (BatchShape(2, (5,), (8,)), BatchShape(2, (5,), (8,))),
        (BatchShape(2, (1, 2, 3), (4, 5, 6)), BatchShape(2, (1, 2, 3), (4, 5, 6))),
        (BatchShape(2, [5, 9], np.array([8, 11])), BatchShape(2, (5, 9), (8, 11))),
        (BatchShape(2, torch.tensor([5, 9]), (np.int32(8), 0)), BatchShape(2, (5, 9), (8, 0))),
        ([(1, BatchShape(2, (5, 9), (8, 11)))], [[1, BatchShape(2, (5, 9), (8, 11))]]),
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
    (BatchShape(1, (1, math.nan), (1, 2)), ValueError, "the features at index 0 cannot be saved: they hold nan"),
    (BatchShape(1, (1, 2), (1, 2j)), TypeError, "the features at index 0 cannot be saved: they hold complex"),
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
