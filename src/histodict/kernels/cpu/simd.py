"""Portable SIMD for the hot loops: values of 128 bytes (32 float32 or 16 float64) as one variable.

LLVM's loop vectoriser does not keep a row of accumulators in registers across an inner loop; a
vector-typed variable does, on every architecture (8 NEON, 4 AVX2 or 2 AVX-512 registers). Offsets
count elements of a one-dimensional contiguous array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

from ..compilation import CHECK_BOUNDS, jit

LANE_BYTES = 128
_FLAGS = ("contract", "nsz")  # allow fused multiply-add, nothing that reorders sums


def width(dtype: Any) -> int:
    """Number of elements of `dtype` in one lane value."""
    return LANE_BYTES // np.dtype(dtype).itemsize


class SimdVector(types.Type):
    """Numba type of one lane value of a scalar type."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(SimdVector)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: SimdVector) -> None:
        scalar = dmm.lookup(fe_type.dtype).get_value_type()
        count = LANE_BYTES * 8 // fe_type.dtype.bitwidth
        super().__init__(dmm, fe_type, ir.VectorType(scalar, count))


def _address(context, builder, array_type, array, offset, lanes):
    whole = context.make_array(array_type)(context, builder, array)
    vector = context.get_value_type(lanes)
    if CHECK_BOUNDS:
        _check(context, builder, whole.nitems, offset, vector.count)
    pointer = builder.gep(whole.data, [offset])
    return builder.bitcast(pointer, vector.as_pointer())


def _check(context, builder, size, offset, count):
    """IndexError unless 0 ≤ offset ≤ size − count."""
    last = builder.sub(size, size.type(count))
    outside = builder.or_(
        builder.icmp_signed("<", offset, size.type(0)), builder.icmp_signed(">", offset, last)
    )
    with builder.if_then(outside, likely=False):
        words = "a lane value lies outside its array"
        context.call_conv.return_user_exc(builder, IndexError, (words,))


@intrinsic
def load(typingctx, array, offset):
    """The lane value at array[offset : offset + width]."""
    lanes = SimdVector(array.dtype)

    def codegen(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], args[0], args[1], lanes)
        value = builder.load(address)
        value.align = array.dtype.bitwidth // 8
        return value

    return lanes(array, types.intp), codegen


@intrinsic
def store(typingctx, array, offset, value):
    """array[offset : offset + width] = value."""

    def codegen(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], args[0], args[1], value)
        written = builder.store(args[2], address)
        written.align = array.dtype.bitwidth // 8
        return context.get_dummy_value()

    return types.none(array, types.intp, value), codegen


@intrinsic
def splat(typingctx, array, scalar):
    """A lane value of the array's type with `scalar` in every element."""
    lanes = SimdVector(array.dtype)

    def codegen(context, builder, signature, args):
        value = context.cast(builder, args[1], signature.args[1], array.dtype)
        vector_type = context.get_value_type(lanes)
        empty = ir.Constant(vector_type, ir.Undefined)
        first = builder.insert_element(empty, value, ir.IntType(32)(0))
        mask = ir.VectorType(ir.IntType(32), vector_type.count)
        return builder.shuffle_vector(first, empty, ir.Constant(mask, [0] * vector_type.count))

    return lanes(array, scalar), codegen


@intrinsic
def subtract_product(typingctx, a, x, y):
    """a − x·y."""

    def codegen(context, builder, signature, args):
        product = builder.fmul(args[1], args[2], flags=_FLAGS)
        return builder.fsub(args[0], product, flags=_FLAGS)

    return a(a, x, y), codegen


@intrinsic
def add(typingctx, x, y):
    """x + y."""
    return x(x, y), lambda context, builder, signature, args: builder.fadd(*args, flags=_FLAGS)


@intrinsic
def multiply(typingctx, x, y):
    """x·y."""
    return x(x, y), lambda context, builder, signature, args: builder.fmul(*args, flags=_FLAGS)


@intrinsic
def divide(typingctx, x, y):
    """x / y."""
    return x(x, y), lambda context, builder, signature, args: builder.fdiv(*args, flags=_FLAGS)


@intrinsic
def maximum(typingctx, x, y):
    """Element-wise maximum of floats."""

    def codegen(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return x(x, y), codegen


@intrinsic
def bits(typingctx, x):
    """The elements' bit patterns as signed integers.

    For non-negative floats their order is the floats' order, and integer maxima vectorise where
    float maxima do not; their difference approximates 2^mantissa · log2(x / y) within ±0.0861.
    """
    lanes = SimdVector(types.int32 if x.dtype.bitwidth == 32 else types.int64)

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(lanes))

    return lanes(x), codegen


@intrinsic
def absolute(typingctx, x):
    """|x|: the sign bit cleared."""
    width_bits = x.dtype.bitwidth
    lanes = SimdVector(types.int32 if width_bits == 32 else types.int64)

    def codegen(context, builder, signature, args):
        integers = context.get_value_type(lanes)
        keep = ir.Constant(integers, [2 ** (width_bits - 1) - 1] * integers.count)
        return builder.bitcast(
            builder.and_(builder.bitcast(args[0], integers), keep), context.get_value_type(x)
        )

    return x(x), codegen


@intrinsic
def subtract_integers(typingctx, x, y):
    """x − y of integer lanes."""
    return x(x, y), lambda context, builder, signature, args: builder.sub(*args)


@intrinsic
def maximum_integers(typingctx, x, y):
    """Element-wise maximum of integers."""

    def codegen(context, builder, signature, args):
        return builder.select(builder.icmp_signed(">", *args), *args)

    return x(x, y), codegen


@intrinsic
def mask_ge(typingctx, x, least):
    """Which elements of an integer lane value are at least a scalar: bit i for element i."""

    def codegen(context, builder, signature, args):
        vector = args[0].type
        bound = context.cast(builder, args[1], signature.args[1], x.dtype)
        empty = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(empty, bound, ir.IntType(32)(0))
        mask = ir.VectorType(ir.IntType(32), vector.count)
        bounds = builder.shuffle_vector(first, empty, ir.Constant(mask, [0] * vector.count))
        reached = builder.icmp_signed(">=", args[0], bounds)
        packed = builder.bitcast(reached, ir.IntType(vector.count))
        return builder.zext(packed, ir.IntType(64))

    return types.int64(x, least), codegen


@intrinsic
def count_trailing_zeros(typingctx, word):
    """The place of the lowest bit set in an int64 that is not zero."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(types.int64), codegen


@intrinsic
def reduce_max(typingctx, x):
    """The largest element of an integer lane value."""

    def codegen(context, builder, signature, args):
        vector = args[0].type
        name = f"llvm.vector.reduce.smax.v{vector.count}i{vector.element.width}"
        reduce = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector.element, [vector]), name
        )
        return builder.call(reduce, [args[0]])

    return x.dtype(x), codegen


@jit()
def aligned(array, W):
    """A flat array without its first elements, and W fewer, that begins at a whole lane of memory.

    A register that is loaded across two cache lines costs two loads, on every load of the array.
    """
    first = (-(array.ctypes.data // array.itemsize)) % W
    return array[first : first + array.shape[0] - W]
