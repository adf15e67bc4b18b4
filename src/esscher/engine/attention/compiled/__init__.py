"""The compiled kernel: a block of keys past a block of queries in one call, on x86-64 processors.

It is optional. Where it has not been compiled, or the processor or the precision asks for
something else, PyTorch's operations do the same work
(:mod:`esscher.engine.attention.torch_stream`).
"""
