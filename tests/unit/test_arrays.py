"""gradred.buffers.arrays: the memory of an array, and the new arrays that it makes."""

from __future__ import annotations

import array
import importlib.util
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from gradred import DeviceError, UsageError
from gradred.buffers import arrays, cuda_interface, dlpack
from gradred.buffers.arrays import describe, new_like
from gradred.element_types import ELEMENT_TYPES, ITEMSIZES, numpy_dtype

ASKED = "allreduce of x"


class Exporter:
    """An array that supports only DLPack."""

    def __init__(self, data: npt.NDArray[Any], *, old: bool = False, device: int = 1) -> None:
        self.data, self.old, self.device = data, old, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **options: Any) -> Any:
        if self.old and options:
            raise TypeError("an exporter from before version 1.0 takes no options")
        return self.data.__dlpack__(**options)


class GpuArray:
    """The interface of CuPy and Numba for an array in GPU memory; by default there is no memory."""

    def __init__(self, **said: Any) -> None:
        nowhere = {"shape": (4,), "typestr": "<f4", "data": (0x1000, False), "version": 3}
        self.__cuda_array_interface__ = {**nowhere, **said}

    @classmethod
    def of(cls, x: npt.NDArray[Any], **said: Any) -> GpuArray:
        """The same interface for an array in host memory."""
        found = cls(**{**x.__array_interface__, **said})
        found.data = x  # type: ignore[attr-defined]
        return found


def first_bytes(found: arrays.Array, count: int) -> bytes:
    import ctypes

    return ctypes.string_at(found.address, count)


@pytest.mark.parametrize("dtype", ITEMSIZES)
def test_numpy_array_is_found_where_it_lies(dtype: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(numpy_dtype(dtype))
    found = describe(x, ASKED)
    assert (found.dtype, found.shape, found.count, found.nbytes) == (dtype, (2, 3), 6, x.nbytes)
    assert first_bytes(found, x.nbytes) == x.tobytes()
    assert found.writable


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1)])
def test_arrays_without_length_are_dense(shape: tuple[int, ...]) -> None:
    found = describe(np.zeros(shape, "float32"), ASKED)
    assert (found.shape, found.count) == (shape, int(np.prod(shape)))


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)])
def test_any_order_of_axes_is_dense(axes: tuple[int, ...]) -> None:
    x = np.zeros((2, 3, 4), "float32").transpose(axes)
    result = new_like(x, describe(x, ASKED), ASKED)
    assert result.finish().strides == x.strides
    assert result.array.layout == describe(x, ASKED).layout


def test_channels_last_is_dense() -> None:
    x = np.zeros((2, 5, 6, 3), "float32").transpose(0, 3, 1, 2)
    assert describe(x, ASKED).layout.order == (0, 2, 3, 1)


@pytest.mark.parametrize(
    "gaps",
    [
        lambda x: x[:, ::2],
        lambda x: x[::-1],
        lambda x: x[:, :2],
        lambda x: np.broadcast_to(x[0], (4, 4)),
        lambda x: np.lib.stride_tricks.as_strided(x, (3, 3), (16, 4)),
    ],
)
def test_gaps_and_overlaps_are_refused(gaps: Callable[[Any], Any]) -> None:
    with pytest.raises(UsageError, match=r"allreduce of x: the array is not dense.*ascontiguous"):
        describe(gaps(np.zeros((4, 4), "float32")), ASKED)


def layout_hash(x: npt.NDArray[Any]) -> int:
    return describe(x, ASKED).layout.hash


def test_layout_hash_tells_shapes_and_orders_apart() -> None:
    x = np.zeros((2, 3), "float32")
    hashes = [layout_hash(x), layout_hash(x.T), layout_hash(np.asfortranarray(x))]
    hashes += [layout_hash(x.reshape(3, 2)), layout_hash(x.reshape(6)), layout_hash(x[None])]
    assert len(set(hashes)) == 6


def test_layout_hash_does_not_see_strides_of_axes_of_length_one() -> None:
    x = np.zeros((1, 5), "float32")
    assert layout_hash(x) == layout_hash(np.asfortranarray(x))
    assert layout_hash(np.zeros((1, 5), "float64")) == layout_hash(x)


def test_layout_hash_is_the_same_in_every_process() -> None:
    """A constant, because ranks compare it."""
    assert layout_hash(np.zeros((2, 3), "float32")) == 9634274672377651742


@pytest.mark.parametrize("x", [np.zeros(2, "datetime64[s]"), np.zeros(2, "f4,i4"), np.array(["a"])])
def test_types_without_reductions_are_refused(x: npt.NDArray[Any]) -> None:
    with pytest.raises(TypeError, match=r"gradred has no reductions for .*Convert the array"):
        describe(x, ASKED)


def test_the_other_byte_order_is_named() -> None:
    with pytest.raises(TypeError, match=r"the other byte order .*Pass x.astype\('float32'\)"):
        describe(np.zeros(2, ">f4"), ASKED)


def test_object_arrays_are_refused() -> None:
    with pytest.raises(TypeError, match="gradred has no reductions for NumPy's dtype"):
        describe(np.array([1, "a"], object), ASKED)


def test_none_gets_advice_for_gradients() -> None:
    with pytest.raises(
        TypeError, match=r"None, as is the gradient of a parameter.*zeros, or leave it out"
    ):
        describe(None, ASKED)


@pytest.mark.parametrize("x", [3.0, "text", [1.0, 2.0], {"a": 1}])
def test_what_is_no_array_is_refused(x: Any) -> None:
    with pytest.raises(TypeError, match=r"is not an array\. Pass an array.*comm\.allreduce"):
        describe(x, ASKED)


def test_read_only_memory_is_seen() -> None:
    x = np.zeros(3)
    x.flags.writeable = False
    for readonly in (x, memoryview(x), memoryview(b"abc"), b"abc"):
        assert not describe(readonly, ASKED).writable


@pytest.mark.parametrize(
    ("x", "dtype", "shape"),
    [
        (array.array("f", [1, 2, 3]), "float32", (3,)),
        (array.array("l", [1, 2]), "int64", (2,)),
        (bytearray(5), "uint8", (5,)),
        (memoryview(np.ones((2, 3), "int16")), "int16", (2, 3)),
        (np.float32(3), "float32", ()),
        (Exporter(np.ones((2, 3), "float32")), "float32", (2, 3)),
        (Exporter(np.ones((2, 3), "complex64"), old=True), "complex64", (2, 3)),
        (Exporter(np.ones(4, "bool")), "bool", (4,)),
        (Exporter(np.ones((2, 3), "float32").T), "float32", (3, 2)),
    ],
)
def test_other_arrays_are_read_where_they_lie(x: Any, dtype: str, shape: tuple[int, ...]) -> None:
    found = describe(x, ASKED)
    assert (found.dtype, found.shape) == (dtype, shape)
    data = x.data if isinstance(x, Exporter) else np.asarray(x)
    assert first_bytes(found, found.nbytes) == data.tobytes("A")


def test_read_only_dlpack_is_seen() -> None:
    x = np.zeros(3)
    x.flags.writeable = False
    assert not describe(Exporter(x), ASKED).writable


@pytest.mark.parametrize(
    ("x", "where"),
    [
        (Exporter(np.ones(3), device=4), "a OpenCL device"),
        (Exporter(np.ones(3), device=10), "a ROCm device"),
    ],
)
def test_gpu_arrays_raise_device_error(x: Any, where: str) -> None:
    with pytest.raises(DeviceError, match=rf"{where}.*cannot reach\. Copy the array to host"):
        describe(x, ASKED)


def test_array_of_the_cuda_interface_at_no_address_of_the_process_raises_device_error() -> None:
    """As with a freed array, or an array of a GPU that the process cannot see."""
    message = r"no memory of this process, and no CUDA driver is loaded: address 0x1000\. Pass one"
    with pytest.raises(DeviceError, match=message):
        describe(GpuArray(), ASKED)


@pytest.mark.parametrize("dtype", [row.name for row in ELEMENT_TYPES.values() if row.is_numpys])
def test_array_of_the_cuda_interface_in_host_memory_is_found_where_it_lies(dtype: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    found = describe(GpuArray.of(x), ASKED)
    assert (found.address, found.dtype, found.shape, found.nbytes) == (
        x.ctypes.data,
        dtype,
        (2, 3),
        x.nbytes,
    )
    assert found.writable
    assert describe(GpuArray.of(x.T), ASKED).layout == describe(x.T, ASKED).layout
    assert not describe(GpuArray.of(x, data=(x.ctypes.data, True)), ASKED).writable


def test_nvidias_packages_are_found_newest_first(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files decide: the folder of CUDA 13 comes before that of 12 in the alphabet."""
    files = [
        "cu13/lib/libnvrtc.so.13",
        "cu13/lib/libnvJitLink.so.13",
        "cuda_nvrtc/lib/libnvrtc.so.12",
        "cuda_nvrtc/lib/libnvrtc.so.11.2",
        "nvjitlink/lib/libnvJitLink.so.12",
        "nccl/lib/libnccl.so.2",
    ]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    package = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: package)
    found = [pathlib.Path(file).name for file in cuda_interface.libraries.__wrapped__()]
    assert len(found) == len(files)
    for name in ("nvrtc", "nvJitLink"):
        versions = [file.partition(".so.")[2] for file in found if name in file]
        assert versions == sorted(versions, reverse=True)


def test_empty_array_of_the_cuda_interface_needs_no_address() -> None:
    assert describe(GpuArray(shape=(0,), data=(0, False)), ASKED).count == 0
    assert describe(GpuArray(shape=(0,)), ASKED).count == 0


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"shape": None}, "makes no sense: TypeError"),
        ({"typestr": "what"}, "makes no sense: TypeError"),
        ({"data": 5}, "makes no sense: TypeError"),
        ({"data": (0, False)}, "4 elements, but no memory"),
        ({"mask": GpuArray()}, "the array has a mask"),
        ({"strides": (8,)}, "the array is not dense"),
        ({"typestr": "<U4"}, "no reductions for"),
        ({"typestr": ">f4"}, "no reductions for >f4"),
    ],
)
def test_cuda_interface_that_cannot_be_served_is_refused(
    said: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        describe(GpuArray.of(np.zeros(4, "float32"), **said), ASKED)


def test_new_array_for_one_of_the_cuda_interface_has_to_be_given() -> None:
    x = GpuArray.of(np.zeros(4))
    with pytest.raises(UsageError, match="cannot make a new GpuArray"):
        new_like(x, describe(x, ASKED), ASKED)


@pytest.mark.parametrize(
    "x",
    [
        np.ones((2, 3), "float32"),
        np.ones(3, ml_dtypes.bfloat16),
        np.array(4.0),
        array.array("d", [1, 2, 3]),
        bytearray(b"abc"),
        memoryview(np.ones((2, 2))),
        np.float64(7),
        b"abc",
    ],
)
def test_new_array_is_of_the_same_kind(x: Any) -> None:
    given = describe(x, ASKED)
    result = new_like(x, given, ASKED)
    assert (result.array.dtype, result.array.shape) == (given.dtype, given.shape)
    assert result.array.writable
    import ctypes

    ctypes.memmove(result.array.address, given.address, given.nbytes)
    made = result.finish()
    assert type(made) is type(x)
    assert np.asarray(made).tobytes() == np.asarray(x).tobytes()


def test_new_array_of_another_shape_is_in_c_order() -> None:
    x = np.ones((2, 3), "int8", order="F")
    assert new_like(x, describe(x, ASKED), ASKED, (4, 3)).finish().flags.c_contiguous
    many = array.array("i", [1, 2])
    assert len(new_like(many, describe(many, ASKED), ASKED, (6,)).finish()) == 6


def test_dlpack_array_of_an_unknown_library_needs_out() -> None:
    x = Exporter(np.ones(3))
    with pytest.raises(UsageError, match=r"cannot make a new Exporter.*out="):
        new_like(x, describe(x, ASKED), ASKED)


def test_overlap_is_by_bytes() -> None:
    x = np.zeros(8)
    a, b, c = (describe(part, ASKED) for part in (x[:4], x[4:], x[3:5]))
    assert not arrays.overlap(a, b)
    assert arrays.overlap(a, c)
    assert arrays.overlap(c, b)


# ---- PyTorch: a stand-in for the properties that gradred reads, the real one for the rest -----


class FakeTensor:
    """The part of torch.Tensor that gradred reads."""

    layout = "torch.strided"
    requires_grad = is_meta = is_nested = False
    address: int | None = None
    """Another address than that of the elements."""
    lost = 0
    """Bytes that the storage lacks."""

    def __init__(self, data: npt.NDArray[Any], dtype: str, device: str = "cpu") -> None:
        self.array, self.dtype, self.shape = data, f"torch.{dtype}", data.shape
        self.device = types.SimpleNamespace(type=device)

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data) if self.address is None else self.address

    def untyped_storage(self) -> Any:
        return types.SimpleNamespace(nbytes=lambda: self.array.nbytes - self.lost)

    def storage_offset(self) -> int:
        return 0

    def element_size(self) -> int:
        return self.array.itemsize

    def is_conj(self) -> bool:
        return False

    def is_neg(self) -> bool:
        return False


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("torch")
    module.Tensor = FakeTensor  # type: ignore[attr-defined]
    module.nn = types.SimpleNamespace(Parameter=type("Parameter", (FakeTensor,), {}))  # type: ignore[attr-defined]
    module._C = types.SimpleNamespace(_increment_version=lambda tensors: None)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", module)


@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_torch_types_that_numpy_lacks_are_read_by_their_pointer(name: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(numpy_dtype(name))
    found = describe(FakeTensor(x.T, name), ASKED)
    assert (found.address, found.dtype, found.shape) == (x.ctypes.data, name, (3, 2))
    assert found.layout.order == (1, 0)


@pytest.mark.usefixtures("fake_torch")
def test_tensor_that_requires_grad_is_refused() -> None:
    x = FakeTensor(np.zeros(3), "float64")
    x.requires_grad = True
    with pytest.raises(UsageError, match=r"requires grad.*Pass x\.detach\(\), which") as caught:
        describe(x, ASKED)
    assert "gradred.torch" not in str(caught.value)  # there is no such module


@pytest.mark.usefixtures("fake_torch")
@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ({"address": 0}, "FakeTensor at address 0"),
        ({"lost": 24}, "storage holds 0 bytes, it needs 24"),
        ({"lost": 1}, "storage holds 23 bytes, it needs 24"),
        ({"is_meta": True}, "meta tensor"),
        ({"is_nested": True}, "nested"),
    ],
)
def test_tensor_whose_elements_do_not_exist_is_refused(
    attributes: dict[str, Any], found: str
) -> None:
    x = FakeTensor(np.zeros(3), "float64")
    vars(x).update(attributes)
    with pytest.raises(UsageError, match=found):
        describe(x, ASKED)


@pytest.mark.usefixtures("fake_torch")
def test_tensor_that_hides_its_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def data_ptr(self: FakeTensor) -> int:
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage\nmore")

    monkeypatch.setattr(FakeTensor, "data_ptr", data_ptr)
    with pytest.raises(UsageError, match=r"no memory.*Cannot access data pointer.*storage\)"):
        describe(FakeTensor(np.zeros(3), "float64"), ASKED)


@pytest.mark.usefixtures("fake_torch")
def test_tensor_without_elements_needs_no_memory() -> None:
    x = FakeTensor(np.zeros((0, 3)), "float64")
    x.address = 0
    assert (describe(x, ASKED).address, describe(x, ASKED).count) == (0, 0)


def test_dlpack_array_without_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Exporter(np.ones(3))
    said = dlpack.export(x, 1)
    monkeypatch.setattr(dlpack, "export", lambda *_, **__: said._replace(address=0))
    with pytest.raises(UsageError, match="3 elements, but no memory"):
        describe(x, ASKED)
    monkeypatch.setattr(dlpack, "export", lambda *_, **__: said._replace(address=0, shape=(0,)))
    assert describe(x, ASKED).count == 0


@pytest.mark.usefixtures("fake_torch")
def test_tensor_on_a_gpu_raises_device_error() -> None:
    with pytest.raises(DeviceError, match="memory of a xpu device"):
        describe(FakeTensor(np.zeros(3), "float64", "xpu"), ASKED)


@pytest.mark.usefixtures("fake_torch")
def test_tensor_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no reductions for torch\.float8_e8m0fnu"):
        describe(FakeTensor(np.zeros(3, "uint8"), "float8_e8m0fnu"), ASKED)


def test_torch_tensors_of_every_type() -> None:
    torch = pytest.importorskip("torch")
    for name in ITEMSIZES:
        x = torch.ones((2, 3, 4)).to(getattr(torch, name)).permute(0, 2, 1)
        result = new_like(x, describe(x, ASKED), ASKED)
        assert (result.finish().dtype, result.finish().stride()) == (x.dtype, x.stride())


def _resized(torch: Any) -> Any:
    x = torch.ones(4)
    x.untyped_storage().resize_(0)
    return x


def _fake(torch: Any) -> Any:
    with torch._subclasses.fake_tensor.FakeTensorMode():
        return torch.ones(3)


@pytest.mark.parametrize(
    "make",
    [
        _resized,
        _fake,
        lambda torch: torch.ones(3, device="meta"),
        lambda torch: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda torch: torch.ones(3).to_sparse(),
        lambda torch: torch.ones(3, dtype=torch.complex64).conj(),
        lambda torch: torch._neg_view(torch.ones(3)),
        lambda torch: torch.ones(1).expand(3),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_torch_tensors_without_plain_memory_are_refused(make: Callable[[Any], Any]) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch._subclasses.fake_tensor")
    with pytest.raises(UsageError):
        describe(make(torch), ASKED)


def test_expanded_torch_tensors_are_refused_for_their_layout_not_their_memory() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError, match=r"not dense.*Pass a contiguous copy.*x\.contiguous\(\)"):
        describe(torch.ones(1).expand(3), ASKED)
    x = torch.ones(8)
    x.untyped_storage().resize_(16)  # four of eight elements
    with pytest.raises(UsageError, match="has no memory"):
        describe(x, ASKED)


@pytest.mark.filterwarnings("ignore")
def test_torch_transforms_are_refused() -> None:
    torch = pytest.importorskip("torch")

    def looked_at(x: Any) -> Any:
        with pytest.raises(UsageError):
            describe(x, ASKED)
        return x.sum()

    torch.func.vmap(looked_at)(torch.ones(2, 3))
    torch.func.grad(looked_at)(torch.ones(3))
    torch.func.functionalize(looked_at)(torch.ones(3))


def test_jax_arrays_are_immutable() -> None:
    jnp = pytest.importorskip("jax.numpy")
    x = jnp.arange(6, dtype="bfloat16").reshape(2, 3)
    found = describe(x, ASKED)
    assert (found.dtype, found.shape, found.writable) == ("bfloat16", (2, 3), False)
    result = new_like(x, found, ASKED)
    import ctypes

    ctypes.memmove(result.array.address, found.address, found.nbytes)
    made = result.finish()
    assert type(made) is type(x)
    assert (made == x).all()
