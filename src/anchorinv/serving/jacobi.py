"""Eigendecomposition of symmetric matrices in ONNX, which has no operator for it: parallel Jacobi rotations.

A round pairs all rows, and a rotation of each pair sets its off-diagonal entry to zero; a sweep is as many
rounds as it takes to pair every row with every other. The off-diagonal norm falls with each sweep, in the end
quadratically (Golub & Van Loan, Matrix Computations, 2013, section 8.5).
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from onnx import FunctionProto

#: Domain of our functions, before they are inlined in the graph.
DOMAIN = "anchorinv"
#: Maximum number of sweeps; matrices of 32 rows take about nine.
_SWEEPS = 12

# Rows 2i and 2i + 1 are a pair: a and b are their diagonal entries, c the off-diagonal one. `turn` holds the
# rotations of all pairs, followed by the permutation for the next round. The loop ends when every c was
# negligible next to its a and b for a whole sweep.
_EIGH = """
<opset_import: ["" : {opset}], domain: "{domain}">
{name} (matrices) => (values, vectors)
{{
    cosines = Constant <value = double[{half}, 2, {even}] {{{cosines}}}> ()
    sines = Constant <value = double[{half}, 2, {even}] {{{sines}}}> ()
    identity = Constant <value = double[{even}, {even}] {{{identity}}}> ()
    first = Constant <value_ints = [{first}]> ()
    second = Constant <value_ints = [{second}]> ()
    shared = Constant <value_ints = [{shared}]> ()
    flat = Constant <value_ints = [0, {square}]> ()
    rows = Constant <value_ints = [0, {even}, {even}]> ()
    behind = Constant <value_ints = [2, 3]> ()
    axis_1 = Constant <value_ints = [1]> ()
    axis_2 = Constant <value_ints = [2]> ()
    none = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    sweep = Constant <value_int = {sweep}> ()
    most = Constant <value_int = {most}> ()
    yes = Constant <value = bool {{1}}> ()
    zero = Constant <value = double {{0.0}}> ()
    unit = Constant <value = double {{1.0}}> ()
    two = Constant <value = double {{2.0}}> ()
    tiny = Constant <value = double {{1e-30}}> ()
    rounding = Constant <value = double {{1e-20}}> ()
    least = Constant <value = double {{1e-37}}> ()
    {padding}
    zeros = Mul (zero, whole)
    start = Add (identity, zeros)
    calm, diagonal, axes = Loop (most, yes, none, whole, start) <body = round
        (int64 i, bool going, int64 calm_before, double[n, {even}, {even}] matrix,
         double[n, {even}, {even}] turned)
        => (bool go_on, int64 calm_after, double[n, {even}, {even}] next_matrix,
            double[n, {even}, {even}] next_turned)
    {{
        entries = Reshape (matrix, flat)
        a = Gather <axis = 1> (entries, first)
        b = Gather <axis = 1> (entries, second)
        c = Gather <axis = 1> (entries, shared)
        apart = Sub (b, a)
        half = Div (apart, two)
        half_squared = Mul (half, half)
        c_squared = Mul (c, c)
        squares = Add (half_squared, c_squared)
        root = Sqrt (squares)
        size = Abs (half)
        sum = Add (size, root)
        divisor = Add (sum, tiny)
        below = Less (half, zero)
        minus_c = Neg (c)
        signed = Where (below, minus_c, c)
        tangent = Div (signed, divisor)
        tangent_squared = Mul (tangent, tangent)
        secant_squared = Add (tangent_squared, unit)
        secant = Sqrt (secant_squared)
        cosine = Div (unit, secant)
        sine = Mul (tangent, cosine)
        cosine_behind = Unsqueeze (cosine, behind)
        sine_behind = Unsqueeze (sine, behind)
        straight = Mul (cosine_behind, cosines)
        across = Mul (sine_behind, sines)
        pairs = Add (straight, across)
        turn = Reshape (pairs, rows)
        back = Transpose <perm = [0, 2, 1]> (turn)
        product = MatMul (matrix, turn)
        next_matrix = MatMul (back, product)
        next_turned = MatMul (turned, turn)
        a_times_b = Mul (a, b)
        level = Abs (a_times_b)
        share = Mul (level, rounding)
        bound = Add (share, least)
        large = Greater (c_squared, bound)
        counted = Cast <to = 7> (large)
        n_large = ReduceSum <keepdims = 0> (counted)
        is_calm = Equal (n_large, none)
        longer = Add (calm_before, one)
        calm_after = Where (is_calm, longer, none)
        go_on = Less (calm_after, sweep)
    }}>
    on_diagonal = Mul (diagonal, identity)
    unsorted = ReduceSum <keepdims = 0> (on_diagonal, axis_2)
    n_values = Constant <value_ints = [{size}]> ()
    values, order = TopK <axis = 1, largest = 0, sorted = 1> (unsorted, n_values)
    order_of_row = Unsqueeze (order, axis_1)
    every_row = Constant <value_ints = [1, {size}, 1]> ()
    order_of_rows = Expand (order_of_row, every_row)
    {cropping}
    vectors = GatherElements <axis = 2> (own_rows, order_of_rows)
}}
"""
# An odd size is padded by a row whose eigenvalue is larger than all others, and which is cropped at the end.
_PADDING = """
    pads = Constant <value_ints = [0, 0, 0, 0, 1, 1]> ()
    padded = Pad (matrices, pads)
    sizes = Abs (matrices)
    both = Constant <value_ints = [1, 2]> ()
    total = ReduceSum <keepdims = 1> (sizes, both)
    beyond = Add (total, unit)
    corner = Constant <value = double[{even}, {even}] {{{corner}}}> ()
    last = Mul (beyond, corner)
    whole = Add (padded, last)
"""
_CROPPING = """
    begin = Constant <value_ints = [0]> ()
    own_rows = Slice (axes, begin, n_values, axis_1)
"""


def eigh_name(size: int) -> str:
    """Return the name of the function for matrices of a size."""
    return f"Eigh{size}"


def eigh_function(size: int, *, opset: int) -> "FunctionProto":
    """Return ``torch.linalg.eigh`` as an ONNX function, for matrices (n, size, size).

    They are float64. Eigenvalues (n, size) ascend, eigenvectors (n, size, size) are in the columns.
    """
    from onnx import parser

    even = size + size % 2
    places = np.arange(even)
    seats = _next_seats(even)
    cosines, sines, corner = (np.zeros((even, even)) for _ in range(3))
    cosines[places, seats] = 1
    sines[places, seats[places ^ 1]] = np.where(places % 2, -1, 1)
    corner[-1, -1] = 1
    first = places[::2] * (even + 1)
    odd = size % 2
    text = _EIGH.format(
        name=eigh_name(size),
        domain=DOMAIN,
        opset=opset,
        size=size,
        even=even,
        half=even // 2,
        square=even * even,
        cosines=_listed(cosines),
        sines=_listed(sines),
        identity=_listed(np.eye(even)),
        first=_listed(first),
        second=_listed(first + even + 1),
        shared=_listed(first + 1),
        sweep=even - 1,
        most=_SWEEPS * even,
        padding=_PADDING.format(even=even, corner=_listed(corner)) if odd else "whole = Identity (matrices)",
        cropping=_CROPPING if odd else "own_rows = Identity (axes)",
    )
    return parser.parse_function(text)


def _next_seats(n: int) -> np.ndarray:
    """Return the permutation of n rows (n even) that pairs each with every other in n - 1 rounds.

    Places 2i and 2i + 1 are opposite each other. One stays, the others move on by one around the table.
    """
    table = np.arange(n).reshape(-1, 2)
    upper, lower = table[:, 0].tolist(), table[:, 1].tolist()
    if n > 2:
        upper, lower = [upper[0], lower[0], *upper[1:-1]], [*lower[1:], upper[-1]]
    return np.argsort(np.stack([upper, lower], axis=1).ravel())


def _listed(values: np.ndarray) -> str:
    return ", ".join(map(repr, values.ravel().tolist()))
