"""What cuBLASLt is asked: descriptors, leading dimensions, algorithms, and what becomes of its refusals."""

from __future__ import annotations

import pytest
import torch

from harness.cuda import cublaslt, racing
from harness.cuda.cublaslt import Gemm, Layout, Matmul, missing, obstacle
from harness.errors import MachineError

LINEAR = Gemm(m=5, n=3, k=7, dtype="float16", out="float16", bias=True)


def layout(kind, rows, columns, leading, **more):
    return {"type": f"CUDA_R_{kind}", "rows": rows, "columns": columns, "leading": leading, "ORDER": 0} | more


def call(lt, address, product, **more):
    """What is said of a product that is called once, and the call."""
    Matmul(product)(address(256), address(512), address(1024), **more)
    return *lt.described(lt.multiplied[-1]), lt.multiplied[-1]


def test_a_linear_layer_is_asked_for_as_the_transposed_product(lt, address):
    descriptor, a, b, d, said = call(lt, address, LINEAR, bias=address(4096))
    assert descriptor == {
        "compute": "COMPUTE_32F", "scale": "CUDA_R_32F", "TRANSA": 1, "TRANSB": 0, "EPILOGUE": 4,
        "BIAS_POINTER": 4096, "POINTER_MODE": 0,
    }  # fmt: skip
    # w (3, 7) row by row is (7, 3) column by column, and is transposed; x (5, 7) is (7, 5), and y (5, 3) is (3, 5).
    assert (a, b, d) == (layout("16F", 7, 3, 7), layout("16F", 7, 5, 7), layout("16F", 3, 5, 3))
    assert (said["a"], said["b"], said["c"], said["d"], said["of_c"]) == (512, 256, 1024, 1024, said["of_d"])
    assert (said["bytes"], said["stream"]) == (cublaslt.WORKSPACE, 77)


@pytest.mark.parametrize(
    ("bias", "activation", "name"),
    [
        (False, "", None),
        (True, "", "BIAS"),
        (False, "relu", "RELU"),
        (True, "relu", "RELU_BIAS"),
        (True, "gelu", "GELU_BIAS"),
    ],
)
def test_an_epilogue_is_asked_for_by_its_name(lt, address, bias, activation, name):
    product = Gemm(5, 3, 7, "float16", "float16", bias=bias, activation=activation)
    descriptor, *_ = call(lt, address, product, **({"bias": address(4096)} if bias else {}))
    assert descriptor.get("EPILOGUE") == (lt.Epilogue[name] if name else None)
    assert ("BIAS_POINTER" in descriptor) == bias


def test_weights_laid_out_ahead_are_not_transposed(lt, address):
    descriptor, a, *_ = call(lt, address, Gemm(5, 3, 7, "bfloat16", "bfloat16", as_rows=False))
    assert (descriptor["TRANSA"], a) == (0, layout("16BF", 3, 7, 3))
    assert "EPILOGUE" not in descriptor


def test_a_batch_has_strides_of_whole_matrices(lt, address):
    _, a, b, d, _ = call(lt, address, Gemm(49, 49, 32, "float16", "float16", batch=6))
    assert a == b == layout("16F", 32, 49, 32, BATCH_COUNT=6, STRIDED_BATCH_OFFSET=49 * 32)
    assert d == layout("16F", 49, 49, 49, BATCH_COUNT=6, STRIDED_BATCH_OFFSET=49 * 49)


@pytest.mark.parametrize(
    ("out", "alpha", "scale", "mode"),
    [
        ("int32", "one", "CUDA_R_32I", 0),
        ("int8", "one", "CUDA_R_32F", 0),
        ("int8", "device", "CUDA_R_32F", 1),
        ("int8", "columns", "CUDA_R_32F", 3),
    ],
)
def test_int8_adds_up_in_int32_and_is_scaled_on_its_way_out(lt, address, out, alpha, scale, mode):
    factor = {} if alpha == "one" else {"alpha": address(8192)}
    descriptor, a, b, d, said = call(lt, address, Gemm(16, 8, 32, "int8", out, alpha=alpha), **factor)
    assert (descriptor["compute"], descriptor["scale"]) == ("COMPUTE_32I", scale)
    assert descriptor["POINTER_MODE"] == mode
    assert (a, b) == (layout("8I", 32, 8, 32), layout("8I", 32, 16, 32))
    assert d == layout(f"{out[3:]}I", 8, 16, 8)
    assert (said["alpha"] == 8192) == (alpha != "one")


@pytest.mark.parametrize(("order", "leading"), [("COL4_4R2_8C", 32 * 40), ("COL32_2R_4R4", 32 * 64)])
def test_orders_of_cublaslts_own_are_of_the_matrices_themselves(lt, address, order, leading):
    descriptor, a, b, d, said = call(lt, address, Gemm(100, 36, 64, "int8", "int32", order=order))
    assert (descriptor["TRANSA"], descriptor["TRANSB"]) == (0, 1)
    assert a == layout("8I", 100, 64, 3200, ORDER=2)
    assert b == layout("8I", 36, 64, leading, ORDER=lt.Order[order])
    assert d == layout("32I", 100, 36, 3200, ORDER=2)
    assert (said["a"], said["b"]) == (256, 512)


def test_the_first_proposal_that_runs_is_taken_untimed(lt, address):
    Matmul(LINEAR)(address(256), address(512), address(1024), bias=address(256))
    assert lt.calls == ["descriptor", *["layout"] * 3, "preference", "create", "heuristic 8", *["matmul 0"] * 2]
    lt.broken = (0, 1)
    matmul = Matmul(LINEAR)
    for _ in range(2):
        matmul(address(256), address(512), address(1024), bias=address(256))
    assert lt.calls[-3:] == ["matmul 2"] * 3


def test_a_bias_of_another_alignment_has_an_algorithm_of_its_own(lt, address):
    matmul = Matmul(LINEAR)
    for place in (256, 512, 258, 514):
        matmul(address(256), address(512), address(1024), bias=address(place))
    assert [name for name in lt.calls if name.startswith("heuristic")] == ["heuristic 8"] * 2
    assert [said["bias"] for said in lt.multiplied] == [256, 256, 512, 258, 258, 514]


def test_the_fastest_of_several_is_chosen_once(lt, address):
    lt.broken, lt.failed = (3,), (4,)
    matmul = Matmul(LINEAR, 6)
    for bias in (256, 8192):
        matmul(address(256), address(512), address(1024), bias=address(bias))
    assert [name for name in lt.calls if name.startswith("heuristic")] == ["heuristic 6"]
    # 2 is next to the fastest, which doesn't run.
    assert lt.calls[-2:] == ["matmul 2", "matmul 2"]
    assert [said["bias"] for said in lt.multiplied[-2:]] == [256, 8192]
    assert {said["algorithm"] for said in lt.multiplied} == {0, 1, 2, 5}


@pytest.mark.parametrize(("hot", "sets"), [(False, [2]), (True, [1])])
def test_algorithms_are_timed_in_or_out_of_the_cache_as_the_case_is(lt, address, hot, sets):
    Matmul(LINEAR, 6, hot=hot)(address(256), address(512), address(1024), bias=address(256))
    assert lt.sets == sets


def test_each_set_of_buffers_has_a_bias_of_its_own(lt, address, monkeypatch):
    copies = [address(2**13 + place) for place in (0, 256, 512, 1024)]
    monkeypatch.setattr(racing, "rotated", lambda tensors: [tensors, (*copies, None)])
    Matmul(LINEAR, 2)(address(256), address(512), address(1024), bias=address(256))
    told = {(said["a"], said["b"], said["d"], said["bias"]) for said in lt.multiplied}
    assert told == {(512, 256, 1024, 256), tuple(copy.address for copy in copies)}


def test_cublaslts_own_first_choice_stays_where_no_other_is_surely_faster(lt, address, monkeypatch):
    monkeypatch.setattr(racing.HeldClock, "of", lambda launch, sets: lambda place: 1.0)
    matmul = Matmul(LINEAR, 6)
    matmul(address(256), address(512), address(1024), bias=address(256))
    assert lt.calls[-1] == "matmul 0"


def test_algorithms_are_asked_for_by_the_alignment_of_each_tensor(lt, address):
    matmul = Matmul(LINEAR)
    for x in (256, 512, 258, 770):
        matmul(address(x), address(4096 + 16), address(1024), bias=address(256))
    asked = [made for made in lt.objects.values() if "MAX_WORKSPACE_BYTES" in made]
    names = [f"MIN_ALIGNMENT_{name}_BYTES" for name in "ABCD"]
    assert [[said[name] for name in names] for said in asked] == [[16, 256, 256, 256], [16, 2, 256, 256]]
    assert {said["REDUCTION_SCHEME_MASK"] for said in asked} == {2}


def test_descriptors_are_given_back(lt, address):
    matmul = Matmul(LINEAR)
    matmul(address(256), address(512), address(1024), bias=address(256))
    matmul.close()
    assert obstacle(LINEAR) is None
    assert lt.alive == {cublaslt._handle()}


def test_products_of_a_stream_share_its_workspace_but_a_graph_has_its_own(lt, address, monkeypatch):
    products = [Matmul(LINEAR), Matmul(LINEAR)]

    def workspaces():
        for product in products:
            product(address(256), address(512), address(1024), bias=address(256))
        return {said["workspace"] for said in lt.multiplied[-2:]}

    first = workspaces()
    assert len(first) == 1
    assert workspaces() == first
    monkeypatch.setattr(cublaslt, "stream_handle", lambda: 78)
    second = workspaces()
    assert len(second) == 1
    assert second != first
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not workspaces() & (first | second)


def test_each_device_has_its_handle(lt, address, monkeypatch):
    product = Matmul(LINEAR)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for device in (0, 1, 0):
        monkeypatch.setattr(torch.cuda, "current_device", lambda own=device: own)
        product(address(256), address(512), address(1024), bias=address(256))
    _, first, second, third = (said["handle"] for said in lt.multiplied)
    assert first == third != second


def test_a_refusal_is_told_in_cublaslts_words(lt, address):
    lt.refused = True
    words = "the requested functionality is not supported (CUBLAS_STATUS_NOT_SUPPORTED)"
    assert obstacle(LINEAR) == f"cuBLASLt: {words}"
    with pytest.raises(MachineError) as raised:
        Matmul(LINEAR)(address(256), address(512), address(1024), bias=address(256))
    assert raised.value.message == f"cuBLASLt refuses the product: {words}"


@pytest.mark.parametrize("setting", [{"proposed": 0}, {"failed": (0,), "proposed": 1}])
def test_nothing_proposed_is_an_obstacle_too(lt, address, setting):
    vars(lt).update(setting)
    assert obstacle(LINEAR) == "cuBLASLt: it has no algorithm for this product"
    with pytest.raises(MachineError, match="has no algorithm"):
        Matmul(LINEAR)(address(256), address(512), address(1024), bias=address(256))


def test_a_library_that_can_not_be_loaded_is_an_obstacle(lt, monkeypatch):
    def fail():
        raise RuntimeError("CUDA driver is not found")

    monkeypatch.setattr(lt, "create", fail)
    assert obstacle(LINEAR) == "cuBLASLt: CUDA driver is not found"


def test_without_nvmath_the_way_out_is_told(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert missing() == obstacle(LINEAR)
    assert "pip install 'gpu-bench-harness[gemm]'" in missing()


def test_layouts_of_a_linear_layer():
    assert LINEAR.layouts[0] == Layout("float16", 7, 3, 7, stride=21)
