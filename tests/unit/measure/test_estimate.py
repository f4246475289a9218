"""`estimate_peaks`: the peaks of steps that compute nothing, against those of steps that do."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from bionemo.size_aware_batching.measure import estimate_peaks, measure_peaks, suggest_shapes
from bionemo.size_aware_batching.memory import BatchShape, MemoryModel

pytestmark = pytest.mark.usefixtures("small_heap")

SHAPES = [(2, 64), (4, 128), (8, 96)]


def step_of(module, optimizer=None, make=lambda items, length: torch.ones(items, length, 64)):
    """Return a function that builds a module and returns its training step on a shape."""

    def build():
        model = module()
        update = optimizer(model.parameters()) if optimizer else None

        def work(shape):
            model(make(*shape)).float().sum().backward()
            if update:
                update.step()
            model.zero_grad(set_to_none=True)
            return BatchShape(shape[0], shape[1], shape[0] * shape[1])

        return work

    return build


class Attention(nn.Module):
    """Fused attention with or without a mask, between two projections."""

    def __init__(self, *, masked=False, dropout=0.0):
        super().__init__()
        self.qkv, self.out, self.masked, self.dropout = nn.Linear(64, 192), nn.Linear(64, 64), masked, dropout

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        mask = torch.ones(len(x), 1, 1, x.shape[1], dtype=torch.bool) if self.masked else None
        y = functional.scaled_dot_product_attention(q, k, v, mask, self.dropout)
        return self.out(y.transpose(1, 2).reshape(x.shape))


def tokens(items, length):
    return torch.ones(items, length, dtype=torch.int64)


class Tokens(nn.Module):
    """A loss over a vocabulary."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 64), nn.Linear(64, 50)

    def forward(self, x):
        return functional.cross_entropy(self.head(self.embed(x)).flatten(0, 1), x.flatten())


def adamw(parameters):
    return torch.optim.AdamW(parameters, foreach=False)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(step_of(lambda: nn.Linear(64, 256)), id="linear"),
        pytest.param(
            step_of(lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.LayerNorm(256)), adamw), id="adamw"
        ),
        pytest.param(step_of(Attention), id="attention"),
        pytest.param(step_of(lambda: Attention(masked=True), adamw), id="attention with a mask"),
        pytest.param(step_of(Tokens, adamw, tokens), id="tokens"),
    ],
)
def test_estimate_is_what_a_cpu_measures(build):
    """Shapes alone give the same peaks and baselines, byte for byte, as the steps themselves."""
    measured = measure_peaks(SHAPES, build(), "cpu", progress=False)
    estimated = estimate_peaks(SHAPES, build, progress=False)
    assert [(r.features, r.peak_bytes, r.baseline_bytes) for r in measured] == [
        (r.features, r.peak_bytes, r.baseline_bytes) for r in estimated
    ]
    assert [None] * 3 == [record.reserved_bytes for record in estimated]
    assert "without a device" in estimated.device


def test_nothing_is_allocated():
    """A layer of four terabytes takes none."""
    build = step_of(lambda: nn.Linear(10**6, 10**6, bias=False), make=lambda items, length: torch.ones(items, 10**6))
    (record,) = estimate_peaks([(1, 1)], build, warmup=0, progress=False)
    assert 8 * 10**12 <= record.peak_bytes <= 8.1 * 10**12


def test_workspaces_are_added():
    """What libraries hold is in every peak and every baseline."""
    plain, more = (estimate_peaks(SHAPES, step_of(Attention), workspace_bytes=n, progress=False) for n in (0, 1000))
    assert [peak + 1000 for peak in plain.peak_bytes] == more.peak_bytes
    assert [record.baseline_bytes + 1000 for record in plain] == [record.baseline_bytes for record in more]


def peak_of(module, **settings):
    return estimate_peaks([(8, 512)], step_of(module, **settings), progress=False).peak_bytes[0]


@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_keeps_a_byte_an_element(inplace):
    """As on CUDA, dropout keeps its mask in bytes, and in evaluation nothing."""
    elements, plain = 8 * 512 * 256, peak_of(lambda: nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 64)))
    dropped = peak_of(lambda: nn.Sequential(nn.Linear(64, 256), nn.Dropout(0.5, inplace), nn.Linear(256, 64)))
    assert elements <= dropped - plain <= (9 if inplace else 5) * elements
    still = peak_of(lambda: nn.Sequential(nn.Linear(64, 256), nn.Dropout(0.5, inplace), nn.Linear(256, 64)).eval())
    assert plain == still


@pytest.mark.parametrize("masked", [False, True])
def test_dropout_in_attention_is_fused(masked):
    """Dropout inside attention does not make the maps appear that CUDA's kernel never stores."""
    assert peak_of(lambda: Attention(masked=masked)) == peak_of(lambda: Attention(masked=masked, dropout=0.1))


class Autocast(nn.Module):
    """A function under autocast, whose result says its type."""

    seen = None

    def __init__(self, function):
        super().__init__()
        self.first, self.function = nn.Linear(64, 64), function

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.first(x)
            result = self.function(hidden)
        Autocast.seen = hidden.dtype, result.dtype
        return result


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: functional.layer_norm(x, (64,)), torch.float32),
        (lambda x: functional.softmax(x, dim=-1), torch.float32),
        (lambda x: functional.mse_loss(input=x, target=torch.zeros_like(x)), torch.float32),
        (functional.gelu, torch.bfloat16),
    ],
    ids=["layer_norm", "softmax", "mse_loss", "gelu"],
)
def test_autocast_follows_cuda(function, kind):
    """What CUDA's autocast runs in float32 is so here too; the rest stays in half precision."""
    estimate_peaks([(2, 8)], step_of(lambda: Autocast(function)), progress=False)
    assert (torch.bfloat16, kind) == Autocast.seen


@pytest.mark.parametrize(
    "look",
    [lambda x: float(x.sum().item()), lambda x: x[x > 0].sum(), lambda x: torch.unique(x).sum()],
    ids=["item", "mask", "unique"],
)
def test_steps_that_look_at_values(look):
    """A step that depends on what tensors hold is refused in words."""
    with pytest.raises(ValueError, match="the step depends on values of tensors, which an estimate does not have"):
        estimate_peaks([(1, 4)], lambda: lambda shape: look(torch.ones(shape)), progress=False)


def test_meta_tensors_count():
    """What a step makes on the meta device is counted like all else."""
    (record,) = estimate_peaks([1024], lambda: lambda n: (torch.ones(n, device="meta") + 1).numel(), progress=False)
    assert 2 * 4096 == record.peak_bytes


def test_suggested_shapes():
    """A whole profile needs no device: shapes are suggested by what they would take."""
    lengths = torch.randint(50, 300, (500,), generator=torch.Generator().manual_seed(0)).numpy()

    def build():
        layer = nn.Linear(64, 64)

        def work(indices):
            shape = BatchShape.of(lengths[indices])
            layer(torch.ones(shape.items, shape.longest, 64)).relu().sum().backward()
            layer.zero_grad(set_to_none=True)
            return shape

        return work

    profile = estimate_peaks(suggest_shapes(lengths, 30 * 2**20), build, progress=False)
    assert 0.8 * 30 * 2**20 < max(profile.peak_bytes) <= 30 * 2**20
    assert ["items*longest"] == list(MemoryModel().fit(profile).coefficients)


def test_random_states_are_put_back():
    """An estimate changes no random numbers that follow."""
    before = torch.get_rng_state()
    peak_of(lambda: nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)))
    assert torch.equal(before, torch.get_rng_state())


def test_errors_pass():
    """Errors of the user's functions reach the caller."""
    with pytest.raises(ZeroDivisionError, match="division"):
        estimate_peaks([1], lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError, match="division"):
        estimate_peaks([1], lambda: lambda n: n // 0, progress=False)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (([1], 3), TypeError, "`build` must be callable, got int"),
        (([1], lambda: 3), TypeError, "`work` must be callable, got int"),
        ((5, lambda: print), TypeError, "`dataset` must be iterable, got int"),
    ],
)
def test_arguments_of_the_wrong_kind(arguments, error, text):
    """Each is named."""
    with pytest.raises(error, match=text):
        estimate_peaks(*arguments)


def test_workspaces_are_bytes():
    """Workspaces are a whole number of bytes, not negative."""
    with pytest.raises(ValueError, match="`workspace_bytes` must be at least 0"):
        estimate_peaks([1], lambda: print, workspace_bytes=-1)
