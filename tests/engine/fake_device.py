"""A pretend accelerator: tensors that say they are on ``cuda:0`` and are computed on the processor.

PyTorch's rules hold: an operation of tensors on both devices fails, unless a tensor of the
processor has no dimensions or is an index, and so does ``numpy()`` on the accelerator, or a
generator of the processor. PyTorch need not be built for one.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE, HERE = torch.device("cuda", 0), torch.device("cpu")
aten = torch.ops.aten
#: Operations that take tensors from one device to another, and those with indices.
COPIES = (aten.copy_.default, aten._to_copy.default)
INDEXED = (aten.index.Tensor, aten.index_put_.default)


class There(torch.Tensor):
    """A tensor on the accelerator; ``here`` has its numbers."""

    # what PyTorch itself sees is a device that needs no driver
    device, is_meta = DEVICE, False

    @staticmethod
    def __new__(cls, here):
        known = {"strides": here.stride(), "storage_offset": here.storage_offset()}
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, here.shape, **known, dtype=here.dtype, device="meta"
        )
        tensor.here = here
        return tensor

    def tolist(self):
        return self.here.tolist()

    def __repr__(self):
        return f"There({self.here})"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        """Compute an operation on the processor; its result is where PyTorch would have it."""
        outer, strangers, wanted = {}, [], []

        def here(x):
            if isinstance(x, There):
                outer[id(x.here)] = x
                return x.here
            if isinstance(x, torch.device):
                wanted.append(x)
                return HERE
            if isinstance(x, torch.Tensor) and x.ndim:
                strangers.append(x)
            return x

        args, kwargs = mapped(here, args), mapped(here, kwargs or {})
        if function in INDEXED:
            strangers = [x for x in strangers if not any(x is index for index in args[1])]
        if outer and strangers and function not in COPIES:
            raise RuntimeError(f"{function}: tensors on {DEVICE} and cpu, {strangers[0].shape}")
        there = wanted[0] != HERE if wanted else bool(outer)
        if there and kwargs.get("generator") is not None:
            raise RuntimeError(f"{function}: a generator of the processor on {DEVICE}")

        def placed(x):
            if not there or not isinstance(x, torch.Tensor):
                return x
            # operations in place return what they were given
            return outer[id(x)] if id(x) in outer else There(x)

        result = function(*args, **kwargs)
        with torch.inference_mode(False):  # PyTorch may want to count what is written to the result
            return mapped(placed, result)


def mapped(function, x):
    """A function of all entries of lists and dictionaries."""
    if isinstance(x, dict):
        return {name: mapped(function, entry) for name, entry in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(mapped(function, entry) for entry in x)
    return function(x)


class Accelerator(TorchDispatchMode):
    """Lets PyTorch make tensors on the accelerator, within a block."""

    def __enter__(self):
        # as for fake tensors: no driver is looked for, and tensors made of lists are moved
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE
        torch._C._set_only_lift_cpu_tensors(True)
        return super().__enter__()

    def __exit__(self, *error):
        torch._C._set_only_lift_cpu_tensors(False)
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return There.__torch_dispatch__(function, types, args, kwargs)
