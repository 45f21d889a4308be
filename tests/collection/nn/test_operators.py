"""Operators on a CPU: what they mean, their gradients, and that a compiler takes them as they are."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from harness.collection import nn
from tests.one_test import one_test
from tests.rare import rare

pytestmark = pytest.mark.usefixtures("unmeasured_guards")

EVERY = {
    "one_window": (lambda x: nn.window_reverse(nn.window_partition(x, 4, 0), 4, 4, 4), [(1, 4, 4, 3)]),
    "masked_attention": (
        lambda qkv, bias: nn.window_attention(qkv, bias, torch.ones(2, 4, 4).triu().double()),
        [(4, 4, 18), (2, 4, 4)],
    ),
    "three_dropouts": (
        lambda x, b, y: nn.bias_dropout_residual(nn.dropout_add(nn.dropout(x, 0.3), y, 0.3), b, y, 0.3),
        [(5, 7), (7,), (5, 7)],
    ),
    "batch_norm_alone": (
        lambda x, w, b: nn.batch_norm_add_relu(x, None, torch.zeros(3).double(), torch.ones(3).double(), w, b),
        [(2, 3, 2, 3), (3,), (3,)],
    ),
}  # fmt: skip
"""What features.py has no example of."""


def restarted(function):
    """The function, with the same random numbers in every call."""

    def call(*inputs):
        torch.manual_seed(3)
        return function(*inputs)

    return call


@one_test("name", EVERY)
def test_gradients_and_their_gradients(tools, name):
    function, shapes = EVERY[name]
    inputs = [tools.normal(*shape) for shape in shapes]
    assert torch.autograd.gradcheck(restarted(function), inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(restarted(function), inputs, fast_mode=True)


@pytest.mark.slow  # the next tests have compiled functions, test_traceable.py what a trace holds
@pytest.mark.parametrize("name", EVERY)
def test_a_compiler_takes_them_without_a_break(tools, name):
    function, shapes = EVERY[name]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    inputs = [tools.normal(*shape) for shape in shapes]
    expected = tools.results(restarted(function), *inputs)
    tools.assert_close(tools.results(restarted(compiled), *inputs), expected, 1e-14)


@pytest.mark.slow  # the test above has all operators in compiled code
def test_a_compiled_function_takes_other_sizes(tools):
    def function(x, weight):
        return nn.softmax(nn.rms_norm(nn.window_partition(x, 2, 1), weight))

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for images in (2, 3, 5):
        x, weight = tools.normal(images, 4, 2 * images, 3), tools.normal(3)
        tools.assert_close(tools.results(compiled, x, weight), tools.results(function, x, weight), 1e-14)


def test_a_compiled_function_updates_running_statistics():
    x, vector = torch.randn(3, 4, 5, 6), torch.ones(4)
    running, wanted = ([torch.zeros(4), torch.ones(4)] for _ in range(2))
    compiled = torch.compile(nn.batch_norm_add_relu, fullgraph=True, backend="aot_eager")
    for function, statistics in ((compiled, running), (nn.batch_norm_add_relu, wanted)):
        for _ in range(2):
            function(x, None, *statistics, vector, vector)
    assert all(map(torch.equal, running, wanted))
    assert not torch.equal(running[0], torch.zeros(4))


def test_what_looks_at_calls_sees_the_operators(tools):
    class Names(TorchDispatchMode):
        seen: ClassVar[list[str]] = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(function.name())
            return function(*args, **(kwargs or {}))

    x = tools.normal(3, 5)
    with Names():
        nn.softmax(x)
    assert "harness::softmax" in Names.seen
    assert nn.softmax(x).grad_fn.name() == "softmaxBackward"
    with FakeTensorMode() as mode:
        assert nn.softmax(mode.from_tensor(x)).shape == (3, 5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_tracer_sees_the_operators():
    traced = torch.jit.trace(nn.softmax, torch.randn(3, 5), check_trace=False)
    assert "harness::softmax" in str(traced.graph)


def test_no_gradient_of_the_output_is_none_of_the_inputs(tools):
    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, slope):
            return None

    x, weight = tools.normal(3, 5), tools.normal(5)
    Cut.apply(nn.rms_norm(x, weight)).sum().backward()
    assert x.grad is None
    assert weight.grad is None


def test_autocast_changes_nothing_inside(tools):
    x = tools.normal(4, 9, 3 * 16, dtype=torch.float32)
    wanted = nn.window_attention(x, torch.zeros(2, 9, 9))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(nn.window_attention(x, torch.zeros(2, 9, 9)), wanted)


CALLED = {
    "layer_norm": ([(3, 7), (7,), (7,)], (1e-5,)),
    "rms_norm": ([(3, 7), (7,)], (1e-5,)),
    "softmax": ([(3, 7)], ()),
    "window_partition": ([(2, 4, 4, 3)], (2, 1)),
    "window_reverse": ([(8, 4, 3)], (4, 4, 2, 1)),
    "window_attention": ([(2, 4, 12), (2, 4, 4)], (None,)),
    "dropout": ([(5, 7)], (torch.zeros(1, dtype=torch.int64), 0.3)),
}


# Operators of partitions and of attention are registered as those of norms.
ALIKE = ("rms_norm", "window_partition", "window_reverse", "window_attention")


@pytest.mark.slow  # the tests around have gradients, compiled code and tracing
@pytest.mark.parametrize("name", [rare(name) if name in ALIKE else name for name in CALLED])
def test_they_are_what_torch_asks_of_operators(tools, name):
    shapes, others = CALLED[name]
    operator = getattr(torch.ops.harness, name).default
    torch.library.opcheck(operator, (*(tools.normal(*shape) for shape in shapes), *others))


@pytest.mark.slow  # the test above asks the same of other operators
@pytest.mark.parametrize("has_residual", [True, rare(False)])
def test_batch_norm_is_what_torch_asks_of_operators(tools, has_residual):
    x, weight, running = tools.normal(2, 3, 2, 3), tools.normal(3), torch.ones(3, dtype=torch.float64)
    given = x, x.detach() if has_residual else None, weight, weight, running, running.clone(), False
    torch.library.opcheck(torch.ops.harness.bn_add_relu.default, given)


def test_means_what_torch_means(tools):
    x, weight, bias = tools.normal(3, 5, 7), tools.normal(7), tools.normal(7)
    pairs = {
        nn.layer_norm: lambda x, w, b: functional.layer_norm(x, (7,), w, b),
        lambda x, w, b: nn.layer_norm(x, w, b, 1e-12): lambda x, w, b: functional.layer_norm(x, (7,), w, b, 1e-12),
        lambda x, w, _: nn.rms_norm(x, w): lambda x, w, _: functional.rms_norm(x, (7,), w, 1e-5),
    }
    for ours, theirs in pairs.items():
        tools.assert_close([ours(x, weight, bias)], [theirs(x, weight, bias)], 1e-13)
    for dim in (-1, 2, 0, -2):
        tools.assert_close([nn.softmax(x, dim)], [torch.softmax(x, dim)], 1e-13)


@one_test("training", [True, False])
@one_test("settings", [(0.1, 1e-5), (0.3, 1e-5), (0.1, 1e-3)])
def test_batch_norm_means_what_torch_means(tools, training, settings):
    x, z, weight, bias = (tools.normal(*shape) for shape in ((4, 3, 2, 5), (4, 3, 2, 5), (3,), (3,)))
    ours, theirs = ([torch.zeros(3).double(), torch.ones(3).double()] for _ in range(2))
    momentum, eps = settings
    y = nn.batch_norm_add_relu(x, z, *ours, weight, bias, training, momentum, eps)
    wanted = functional.batch_norm(x, *theirs, weight, bias, training, momentum, eps)
    tools.assert_close([y.detach(), *ours], [functional.relu(wanted + z).detach(), *theirs], 1e-13)


def test_batch_norm_without_vectors_is_that_of_torch(tools):
    x, weight = tools.normal(4, 3, 2, 5), tools.normal(3)
    for vectors in ((None, None, weight, weight), (torch.zeros(3).double(), torch.ones(3).double(), None, None)):
        y = nn.batch_norm_add_relu(x, x, *vectors)
        wanted = functional.relu(functional.batch_norm(x, *vectors, training=True) + x)
        tools.assert_close([y], [wanted], 1e-14)


def test_batch_norm_in_halves_throughout(tools):
    x, weight = tools.normal(4, 3, 2, 5, dtype=torch.float16), tools.normal(3, dtype=torch.float16)
    ours, theirs = ([torch.zeros(3).half(), torch.ones(3).half()] for _ in range(2))
    y = nn.batch_norm_add_relu(x, None, *ours, weight, weight)
    wanted = functional.batch_norm(x.float(), *(one.float() for one in theirs), weight.float(), weight.float(), True)
    tools.assert_close([y], [functional.relu(wanted)], 2e-3)
    assert ours[0].dtype == torch.float16
    assert ours[0].abs().max() > 0


def test_softmax_along_another_dimension_is_made_without_autocast(monkeypatch):
    """On a GPU autocast would make it float32. On a CPU it changes products alone, so one of them tells."""
    square, real, made = torch.ones(2, 2), torch.softmax, []

    def softmax(*given):
        made.append((square @ square).dtype)
        return real(*given)

    monkeypatch.setattr(torch, "softmax", softmax)
    with torch.autocast("cpu", torch.bfloat16):
        nn.softmax(square, 0)
    assert made == [torch.float32]


def test_autocast_changes_no_type(tools):
    x, weight = tools.normal(4, 6, dtype=torch.bfloat16), tools.normal(6, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = nn.softmax(nn.rms_norm(nn.layer_norm(x, weight, weight), weight))
        assert y.dtype == torch.bfloat16
        assert nn.layer_norm(x.float(), weight, weight).dtype == torch.float32
        assert nn.window_attention(torch.ones(2, 4, 12), torch.ones(2, 4, 4)).dtype == torch.float32
        assert nn.dropout(x, 0.5).dtype == torch.bfloat16
    y.float().square().sum().backward()
    assert (x.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.float32)


def test_dropout_draws_anew_and_can_be_repeated(tools):
    x = torch.ones(4096, dtype=torch.float64)
    first, second = nn.dropout(x, 0.25), nn.dropout(x, 0.25)
    assert not torch.equal(first, second)
    for y in (first, second):
        assert 0.7 < (y > 0).double().mean() < 0.8
        assert y.max() == 65536 / 49152
    torch.manual_seed(0)
    assert torch.equal(nn.dropout(x, 0.25), first)
    assert torch.equal(nn.dropout(x, 0.25), second)
    torch.manual_seed(1)
    assert not torch.equal(nn.dropout(x, 0.25), first)


def test_dropout_goes_on_from_a_saved_state_of_torchs_generator():
    x = torch.ones(256)
    nn.dropout(x, 0.5)
    state = torch.get_rng_state()
    wanted = [nn.dropout(x, 0.5), nn.dropout_add(x, x, 0.5), torch.rand(4)]
    torch.set_rng_state(state)
    assert all(map(torch.equal, [nn.dropout(x, 0.5), nn.dropout_add(x, x, 0.5), torch.rand(4)], wanted))


def test_vmap_decides_whether_samples_share_a_mask():
    x = torch.ones(3, 64)
    for randomness, masks in (("same", 1), ("different", 3)):
        y = torch.func.vmap(lambda row: nn.dropout(row, 0.5), randomness=randomness)(x)
        assert len(y.unique(dim=0)) == masks
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(lambda row: nn.dropout(row, 0.5))(x)


def test_a_checkpoint_of_compiled_dropout_draws_the_same_mask(tools):
    for reentrant in (False, True):
        x = torch.ones(5, 64, requires_grad=True)
        drop = torch.compile(lambda x: nn.dropout(x, 0.5), backend="aot_eager")
        y = checkpoint(lambda x, call=drop: call(x) * x, x, use_reentrant=reentrant)
        y.sum().backward()
        assert torch.equal(x.grad, 2 * y)


@pytest.mark.slow  # the test above has a checkpoint of compiled dropout
def test_a_checkpoint_inside_of_compiled_code_draws_the_same_mask(tools):
    x = torch.ones(5, 64, requires_grad=True)

    def function(x):
        return checkpoint(lambda x: nn.dropout(x, 0.5) * x, x, use_reentrant=False)

    y = torch.compile(function, fullgraph=True, backend="aot_eager_default_partitioner")(x)
    y.sum().backward()
    assert torch.equal(x.grad, 2 * y)


@pytest.mark.slow  # test_support.py has transforms and compiled code apart
def test_transforms_inside_of_compiled_code_are_those_of_eager_code(tools):
    def function(x):
        return nn.dropout(nn.softmax(x), 0.5)

    def products(x):
        return torch.func.jvp(function, (x,), (x,)), torch.func.grad(lambda x: function(x).square().sum())(x)

    def dual(x):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(nn.softmax(forward_ad.make_dual(x, x.cos()))).tangent

    x = tools.normal(3, 5, wanted=False)
    for call in (products, dual):
        torch.manual_seed(3)
        wanted = torch.utils._pytree.tree_leaves(call(x))
        torch.manual_seed(3)
        made = torch.utils._pytree.tree_leaves(torch.compile(call, fullgraph=True, backend="eager")(x))
        tools.assert_close(made, wanted, 1e-14)
        assert all(one.any() for one in made)


@pytest.mark.slow  # test_dropout_draws_anew_and_can_be_repeated has eager calls
def test_two_equal_calls_of_dropout_stay_two_in_a_compiled_function():
    compiled = torch.compile(lambda x: (nn.dropout(x, 0.5), nn.dropout(x, 0.5)), fullgraph=True, backend="aot_eager")
    x = torch.ones(256)
    first, second = compiled(x)
    assert not torch.equal(first, second)
    assert not torch.equal(compiled(x)[0], first)


def test_dropout_at_its_ends(tools):
    x, bias = tools.normal(3, 4), tools.normal(4)
    assert nn.dropout(x, 0.3, training=False) is x
    assert nn.dropout(x, 0.0) is x
    assert not nn.dropout(x, 1.0).any()
    assert torch.equal(nn.dropout_add(x, x, 0.3, training=False), x + x)
    assert torch.equal(nn.bias_dropout_residual(x, bias, x, 0.0), x + bias + x)
    assert torch.equal(nn.bias_dropout_residual(x, bias, x, 1.0), x)


def test_empty_tensors():
    weight = torch.ones(4, requires_grad=True)
    for shape in ((0, 4), (2, 0, 4)):
        x = torch.empty(shape, requires_grad=True)
        for function in (
            lambda x: nn.layer_norm(x, weight, weight),
            lambda x: nn.rms_norm(x, weight),
            nn.softmax,
            lambda x: nn.dropout(x, 0.5),
            lambda x: nn.bias_dropout_residual(x, weight, x, 0.5),
        ):
            y = function(x)
            y.sum().backward()
            assert y.shape == x.grad.shape == x.shape
    assert nn.window_partition(torch.empty(0, 4, 4, 3), 2).shape == (0, 4, 3)
    assert nn.window_reverse(torch.empty(0, 4, 3), 4, 4, 2).shape == (0, 4, 4, 3)
    assert nn.window_attention(torch.empty(0, 4, 12), torch.ones(2, 4, 4)).shape == (0, 4, 4)


@one_test(
    ("call", "reason"),
    [
        (lambda x: nn.layer_norm(x, x, x), "weight is"),
        (lambda x: nn.rms_norm(x, torch.ones(3)), r"weight is \(3,\); for x of \(2, 4\) it must be \(4,\)$"),
        (lambda x: nn.layer_norm(x.long(), torch.ones(4), torch.ones(4)), "floating-point"),
        (lambda x: nn.dropout(x.long(), 0.5), "floating-point"),
        (lambda x: nn.dropout(x, 1.5), "it is a share"),
        (lambda x: nn.dropout_add(x, x.half(), 0.5), "make them alike"),
        (lambda x: nn.bias_dropout_residual(x, torch.ones(3), x, 0.5), r"bias is \(3,\).* must be \(4,\)$"),
        (lambda x: nn.window_partition(x, 3), "don't tile"),
        (lambda x: nn.window_partition(x.view(1, 2, 2, 2), 2, -1), "0 or more"),
        (lambda x: nn.window_reverse(x.view(2, 2, 2), 2, 2, 2), "don't make images"),
        (lambda x: nn.norm_partition(x.view(1, 2, 2, 2), torch.ones(3), torch.ones(2), 2), r"must be \(2,\)"),
        (lambda x: nn.window_attention(x, x), r"must be \(N, T, 3C\)"),
        (lambda x: nn.window_attention(torch.ones(2, 4, 12), torch.ones(2, 4, 4), torch.ones(3, 4, 4)), "G divides"),
        (lambda x: nn.batch_norm_add_relu(x, None, *(x,) * 4), r"\(N, C, H, W\)"),
        (lambda x: nn.batch_norm_add_relu(x.view(1, 2, 2, 2), x, *(torch.ones(2),) * 4), "make them alike"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(call, reason):
    with pytest.raises(ValueError, match=reason):
        call(torch.ones(2, 4))
