"""Portable SIMD vectors of 128 bytes (32 float32 or 16 float64) for Numba.

The loop vectoriser of LLVM does not keep a row of accumulators in registers across an inner loop. A
vector-typed variable stays in registers on every architecture (8 NEON, 4 AVX2 or 2 AVX-512
registers). Offsets count elements of a one-dimensional contiguous array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

from ..compilation import CHECK_BOUNDS, jit

VECTOR_BYTES = 128
_FLAGS = ("contract", "nsz")  # allow fused multiply-add, but no reordering of sums


def width(dtype: Any) -> int:
    """Return the number of elements of `dtype` in a SIMD vector."""
    return VECTOR_BYTES // np.dtype(dtype).itemsize


class SimdVector(types.Type):
    """Numba type of a SIMD vector of a scalar type."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(SimdVector)
class _SimdModel(models.PrimitiveModel):
    """LLVM representation of `SimdVector`."""

    def __init__(self, dmm: Any, fe_type: SimdVector) -> None:
        scalar = dmm.lookup(fe_type.dtype).get_value_type()
        count = VECTOR_BYTES * 8 // fe_type.dtype.bitwidth
        super().__init__(dmm, fe_type, ir.VectorType(scalar, count))


def _address(context, builder, array_type, array, offset, vector_type):
    """Return a pointer to the vector at array[offset], after a bounds check if enabled."""
    array_struct = context.make_array(array_type)(context, builder, array)
    vector = context.get_value_type(vector_type)
    if CHECK_BOUNDS:
        _check_offset(context, builder, array_struct.nitems, offset, vector.count)
    pointer = builder.gep(array_struct.data, [offset])
    return builder.bitcast(pointer, vector.as_pointer())


def _check_offset(context, builder, size, offset, count):
    """Emit code that raises IndexError unless 0 ≤ offset ≤ size − count."""
    last = builder.sub(size, size.type(count))
    outside = builder.or_(
        builder.icmp_signed("<", offset, size.type(0)), builder.icmp_signed(">", offset, last)
    )
    with builder.if_then(outside, likely=False):
        message = "index of a vector lane is outside the array"
        context.call_conv.return_user_exc(builder, IndexError, (message,))


@intrinsic
def load(typingctx, array, offset):
    """Load the vector at array[offset : offset + width]."""
    vector = SimdVector(array.dtype)

    def codegen(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], args[0], args[1], vector)
        value = builder.load(address)
        value.align = array.dtype.bitwidth // 8
        return value

    return vector(array, types.intp), codegen


@intrinsic
def store(typingctx, array, offset, value):
    """Store a vector to array[offset : offset + width]."""

    def codegen(context, builder, signature, args):
        address = _address(context, builder, signature.args[0], args[0], args[1], value)
        written = builder.store(args[2], address)
        written.align = array.dtype.bitwidth // 8
        return context.get_dummy_value()

    return types.none(array, types.intp, value), codegen


@intrinsic
def splat(typingctx, array, scalar):
    """Return a vector of the dtype of the array with `scalar` in every element."""
    vector = SimdVector(array.dtype)

    def codegen(context, builder, signature, args):
        value = context.cast(builder, args[1], signature.args[1], array.dtype)
        vector_type = context.get_value_type(vector)
        empty = ir.Constant(vector_type, ir.Undefined)
        first = builder.insert_element(empty, value, ir.IntType(32)(0))
        mask = ir.VectorType(ir.IntType(32), vector_type.count)
        return builder.shuffle_vector(first, empty, ir.Constant(mask, [0] * vector_type.count))

    return vector(array, scalar), codegen


@intrinsic
def subtract_product(typingctx, a, x, y):
    """Return a − x·y."""

    def codegen(context, builder, signature, args):
        product = builder.fmul(args[1], args[2], flags=_FLAGS)
        return builder.fsub(args[0], product, flags=_FLAGS)

    return a(a, x, y), codegen


@intrinsic
def add(typingctx, x, y):
    """Return x + y."""
    return x(x, y), lambda context, builder, signature, args: builder.fadd(*args, flags=_FLAGS)


@intrinsic
def multiply(typingctx, x, y):
    """Return x·y."""
    return x(x, y), lambda context, builder, signature, args: builder.fmul(*args, flags=_FLAGS)


@intrinsic
def divide(typingctx, x, y):
    """Return x / y."""
    return x(x, y), lambda context, builder, signature, args: builder.fdiv(*args, flags=_FLAGS)


@intrinsic
def maximum(typingctx, x, y):
    """Return the element-wise maximum of floats."""

    def codegen(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return x(x, y), codegen


@intrinsic
def bits(typingctx, x):
    """Return the bit patterns of the elements of x as signed integers.

    For non-negative floats the integers have the same order, and integer maxima vectorise where
    float maxima do not. With m mantissa bits the difference of the integers of x and y is
    2^m · log2(x / y), where the logarithm has an error of at most ±0.0861.
    """
    vector = SimdVector(types.int32 if x.dtype.bitwidth == 32 else types.int64)

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(vector))

    return vector(x), codegen


@intrinsic
def absolute(typingctx, x):
    """Return |x|, by clearing the sign bit."""
    width_bits = x.dtype.bitwidth
    vector = SimdVector(types.int32 if width_bits == 32 else types.int64)

    def codegen(context, builder, signature, args):
        integers = context.get_value_type(vector)
        keep = ir.Constant(integers, [2 ** (width_bits - 1) - 1] * integers.count)
        return builder.bitcast(
            builder.and_(builder.bitcast(args[0], integers), keep), context.get_value_type(x)
        )

    return x(x), codegen


@intrinsic
def subtract_integers(typingctx, x, y):
    """Return x − y of integer vectors."""
    return x(x, y), lambda context, builder, signature, args: builder.sub(*args)


@intrinsic
def maximum_integers(typingctx, x, y):
    """Return the element-wise maximum of integers."""

    def codegen(context, builder, signature, args):
        return builder.select(builder.icmp_signed(">", *args), *args)

    return x(x, y), codegen


@intrinsic
def mask_ge(typingctx, x, minimum):
    """Return a bit mask of the elements of an integer vector that are at least `minimum`."""

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

    return types.int64(x, minimum), codegen


@intrinsic
def count_trailing_zeros(typingctx, word):
    """Return the index of the lowest set bit of a non-zero int64."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(types.int64), codegen


@intrinsic
def reduce_max(typingctx, x):
    """Return the largest element of an integer vector."""

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
    """Return a view of a flat array whose address is a multiple of W elements.

    It is W elements shorter. An unaligned load across two cache lines costs two loads.
    """
    first = (-(array.ctypes.data // array.itemsize)) % W
    return array[first : first + array.shape[0] - W]
