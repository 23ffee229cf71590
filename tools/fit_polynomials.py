"""Fits the polynomials of src/codegen/llvm/math_coefficients.h and prints that file.

Each fit minimizes the largest weighted error (Remez's exchange on a fine grid) in high precision;
coefficients are then rounded one after the other, lowest power first, the rest fitted again.

    python tools/fit_polynomials.py > src/codegen/llvm/math_coefficients.h
    python tools/fit_polynomials.py exp erf     # only those that start so: shows what they reach
"""

import sys
import textwrap

from mpmath import mp, mpf

mp.prec = 200

HEAD = """\
// Made by tools/fit_polynomials.py: lowest power first.
// clang-format off
#pragma once

#include <cstdint>

namespace torch_lazy::codegen::math {
"""


class Fit:
    """target(x) ~ a polynomial of that degree on [low, high], with the largest error (times
    weight; without one: the relative error) as small as possible. The name ends in the type of the
    coefficients."""

    def __init__(self, name, degree, low, high, target, weight=None):
        self.name, self.degree = name, degree
        self.bits = 24 if name.endswith("f32") else 53
        count = 24 * (degree + 2)
        low, high = mpf(low), mpf(high)
        nodes = [-mp.cos(mp.pi * (i + mpf(1) / 2) / count) for i in range(count)]
        self.grid = [(low + high) / 2 + (high - low) / 2 * node for node in nodes]
        self.values = [mpf(target(x)) for x in self.grid]
        if weight:
            self.weights = [abs(mpf(weight(x))) for x in self.grid]
        else:
            self.weights = [1 / abs(value) for value in self.values]
        self.coefficients, self.error = self.rounded()

    def rounded(self):
        fixed, free, points = [], None, None
        while len(fixed) <= self.degree:
            free, error, points = self.exchange(fixed, free, points)
            if not fixed:
                self.best = error
            with mp.workprec(self.bits):
                fixed.append(+free.pop(0))
        return fixed, max(map(abs, self.residuals(fixed)))

    def exchange(self, fixed, free, points):
        """Fits the powers above those fixed: the coefficients, their error, and where it
        alternates. What is given is where to start; it stays when nothing better is found."""
        powers = range(len(fixed), self.degree + 1)
        n = len(powers)
        best = None
        if free:
            errors = self.residuals(fixed + free)
            best = free, max(map(abs, errors))
            points = self.extrema(errors, n + 1)
        points = points or [i * (len(self.grid) - 1) // n for i in range(n + 1)]
        for _ in range(12):
            a, b = mp.matrix(n + 1, n + 1), mp.matrix(n + 1, 1)
            for row, i in enumerate(points):
                for column, p in enumerate(powers):
                    a[row, column] = self.grid[i] ** p
                a[row, n] = (-1) ** row / self.weights[i]
                known = mp.polyval(fixed[::-1], self.grid[i]) if fixed else 0
                b[row] = self.values[i] - known
            solution = mp.lu_solve(a, b)
            free, level = list(solution[:n]), abs(solution[n])
            errors = self.residuals(fixed + free)
            worst = max(map(abs, errors))
            if best is None or worst < best[1]:
                best = free, worst
            points = self.extrema(errors, n + 1)
            if points is None or worst <= level * mpf("1.01"):
                break
        return *best, points

    def residuals(self, coefficients):
        return [
            w * (v - mp.polyval(coefficients[::-1], x))
            for x, v, w in zip(self.grid, self.values, self.weights, strict=True)
        ]

    @staticmethod
    def extrema(errors, count):
        """`count` neighbours of alternating sign that include the largest error, if there are."""
        best = [0]
        for i, e in enumerate(errors):
            if (e > 0) != (errors[best[-1]] > 0):
                best.append(i)
            elif abs(e) > abs(errors[best[-1]]):
                best[-1] = i
        while len(best) > count:
            if len(best) - count == 1:
                best.pop(0 if abs(errors[best[0]]) < abs(errors[best[-1]]) else -1)
                continue
            i = min(range(1, len(best)), key=lambda k: abs(errors[best[k]]))
            del best[i - 1 : i + 1]  # a pair: what is left still alternates
        return best if len(best) == count else None

    def text(self):
        rounded, best = (mp.nstr(mp.log(e, 2), 4) for e in (self.error, self.best))
        comment = f"// error 2^{rounded} (2^{best} before rounding)\n"
        return comment + constants(self.name, self.coefficients)


def constant_name(name):
    return "k" + name.title().replace("_", "")


def numbers(name, values):
    text = ", ".join(hexadecimal(value, name.endswith("f32")) for value in values)
    lines = textwrap.wrap(text, 96, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def constants(name, values):
    return f"inline constexpr double {constant_name(name)}[] = {{\n{numbers(name, values)}}};\n"


def table(name, rows):
    length = len(rows[0])
    rows = ",\n".join(f"    {{{numbers(name, row).strip()}}}" for row in rows)
    return f"inline constexpr double {constant_name(name)}[][{length}] = {{\n{rows}}};\n"


def hexadecimal(number, is_short):
    with mp.workprec(24 if is_short else 53):
        text = float(+number).hex()
    return text.replace("0000000p", "p") if is_short else text


# ---- What is fitted ------------------------------------------------------------------------------


def odd_tail(function):
    """function(x) = x + x z p(z), z = x^2, relative error: target and weight in z."""
    return (
        lambda z: (function(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
        lambda z: z * mp.sqrt(z) / function(mp.sqrt(z)),
    )


def exp_tail(x):  # e^x = 1 + x + x^2 p(x)
    return (mp.expm1(x) - x) / x**2


def log_tail(x):  # log(1 + x) = x - x^2 / 2 + x^3 p(x)
    return (mp.log1p(x) - x + x**2 / 2) / x**3


def atanh_tail(z):  # 2 atanh(s) = 2 s + s z p(z), z = s^2
    s = mp.sqrt(z)
    return 2 * (mp.atanh(s) / s - 1) / z


def power_log_tail(z):  # 2 atanh(s) = 2 s + 2/3 s z + s z^2 p(z)
    return (atanh_tail(z) - 2 / mpf(3)) / z


def power_log2(z):  # log2((1 + s) / (1 - s)) = s p(z), z = s^2
    return mp.atanh(mp.sqrt(z)) / mp.sqrt(z) * 2 / mp.log(2)


def power_exp2(x):  # 2^x = 1 + x p(x)
    return mp.expm1(x * mp.log(2)) / x


def cos_tail(z):  # cos(x) = 1 - z / 2 + z^2 p(z), z = x^2
    return (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2


def acosh_factor(t):  # acosh(1 + t) = sqrt(2 t) p(t)
    return mp.acosh(1 + t) / mp.sqrt(2 * t)


def erf_rest(z):  # erf(x) = x + x p(z), z = x^2
    return mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1


def erf_pieces():
    """erf(j / 8 + t) = p(t) for |t| <= 1/16 and j from 0 to 31: a row for each power of t."""
    width = mpf(1) / 16
    columns = [[mpf(0), *Fit("erf_f32", 3, 0, width, lambda t: mp.erf(t) / t).coefficients]]
    for middle in (mpf(j) / 8 for j in range(1, 32)):
        fit = Fit("erf_f32", 4, -width, width, lambda t, middle=middle: mp.erf(middle + t))
        columns.append(fit.coefficients)
    return list(zip(*columns, strict=True))


def powers_of_two():
    """2^(j / 16) rounded, and what that took away, by what is left."""
    exact = [mpf(2) ** (mpf(j) / 16) for j in range(16)]
    near = [rounded(x, 24) for x in exact]
    return [near, [(x - y) / y for x, y in zip(exact, near, strict=True)]]


def log_erfc(x):  # erf(x) = 1 - exp(p(x))
    return mp.log(mp.erfc(x))


def rounded(number, bits):
    with mp.workprec(bits):
        return +number


def erfc_factor(offset, low, high, bits):
    """erfc(x) = exp(-x^2) u p(t) with u = 1 / (x + offset) and t = start + slope * u, about from
    -1 to 1 for x from high to low: the range of t, p, and (start, slope)."""

    def factor(u):
        x = 1 / u - offset
        return mp.exp(x * x) * mp.erfc(x) / u

    first, last = 1 / mpf(high + offset), 1 / mpf(low + offset)
    slope = rounded(2 / (last - first), bits)
    start = rounded(-(last + first) / (last - first), bits)

    # p(0) has to be nearly a number of that many bits, or its rounding is the largest error.
    def loss(start):
        value = factor(-start / slope)
        return abs(value - rounded(value, bits))

    start = min((start + i * mpf(2) ** -bits for i in range(1, 200)), key=loss)
    return (
        start + slope * first,
        start + slope * last,
        lambda t: factor((t - start) / slope),
        [start, slope],
    )


def inverse_erf(q):
    """erfinv(1 - q) by Newton's method."""
    if q > 0.1:
        return mp.erfinv(1 - q)
    y = mp.sqrt(-mp.log(q))
    for _ in range(60):
        step = (mp.erfc(y) - q) * mp.sqrt(mp.pi) / 2 * mp.exp(y * y)
        y += step / (1 - y * step) if abs(y * step) < 0.5 else step
    return y


def erfinv_factor(w):  # erfinv(x) / x with w = -log(1 - x^2)
    x = mp.sqrt(-mp.expm1(-w))
    return inverse_erf(mp.exp(-w) / (1 + x)) / x


def stirling(z):  # log(gamma(x)) = (x - 1/2) log(x) - x + log(2 pi) / 2 + p(z) / x, z = 1 / x^2
    x = 1 / mp.sqrt(z)
    return x * (mp.loggamma(x) - (x - mpf(1) / 2) * mp.log(x) + x - mp.log(2 * mp.pi) / 2)


def digamma_tail(z):  # digamma(x) = log(x) - 1 / (2 x) + z p(z), z = 1 / x^2
    x = 1 / mp.sqrt(z)
    return (mp.digamma(x) - mp.log(x) + 1 / (2 * x)) / z


def fits():
    """Names, and what Fit takes; or a list of numbers, or of rows of numbers, as they are."""
    third, half = mpf(1) / 3, mpf(1) / 2

    def absolute(x):
        return 1

    for name, degree in (("exp_f32", 4), ("exp_f64", 9)):
        yield name, (degree, -0.3475, 0.3475, exp_tail, lambda x: x**2 / mp.exp(x))
    part = mp.log(2) / 32 * mpf("1.001")
    yield "exp_part_f32", (1, -part, part, exp_tail, lambda x: x**2 / mp.exp(x))
    yield "exp_table_f32", powers_of_two()
    yield "log_f32", (8, -third, third, log_tail, lambda x: x**3 / mp.log1p(x))
    yield "log_f64", (7, 0, 0.0401, atanh_tail, absolute)
    odd = (
        ("tanh", mp.tanh, 0.626, 4, 11),
        ("sinh", mp.sinh, 1, 3, 6),
        ("asinh", mp.asinh, 1, 8, 19),
        ("atanh", mp.atanh, 0.5, 5, 12),
        ("asin", mp.asin, 0.5, 4, 12),
        ("atan", mp.atan, 0.4143, 4, 10),
        ("sin", mp.sin, 0.7854, 2, 5),
    )
    for name, function, high, f32, f64 in odd:
        for kind, degree in (("f32", f32), ("f64", f64)):
            yield f"{name}_{kind}", (degree, 0, mpf(high) ** 2, *odd_tail(function))
    for name, degree in (("cos_f32", 2), ("cos_f64", 5)):
        high = mpf(0.7854) ** 2
        yield name, (degree, 0, high, cos_tail, lambda z: z**2 / mp.cos(mp.sqrt(z)))
    for name, degree in (("acosh_f32", 5), ("acosh_f64", 11)):
        yield name, (degree, 0, half, acosh_factor)
    # The first two for powers of f32, which are computed in f64.
    yield "power_log2_f64", (5, 0, 0.0401, power_log2)
    yield "power_exp2_f64", (6, -half, half, power_exp2, lambda x: x)
    yield "power_log_f64", (7, 0, 0.0401, power_log_tail, absolute)

    for name, degree, high in (("erf_f32", 5, 0.8125), ("erf_f64", 11, 1)):
        yield name, (degree, 0, mpf(high) ** 2, erf_rest, lambda z: 1 / (1 + erf_rest(z)))
    for name, degree, low, high in (("erf_tail_f32", 6, 0.8, 3.95), ("erf_tail_f64", 18, 1, 5.95)):
        yield name, (degree, low, high, log_erfc, mp.erfc)
    yield "erf_table_f32", erf_pieces()
    erfc = (("erfc_f32", 24, 8, 2.5, 0.8, 10.1), ("erfc_f64", 53, 19, 3, 0.9, 27.3))
    for name, bits, degree, offset, low, high in erfc:
        low, high, factor, line = erfc_factor(offset, low, high, bits)
        yield name, (degree, low, high, factor)
        yield name.replace("_f", "_line_f"), line
    # erfinv(x) = x p(w - 2.5) up to w = 5, then x p(sqrt(w) - 3)
    yield "erfinv_f32", (9, -2.5, 2.5, lambda t: erfinv_factor(t + 2.5))
    for name, degree, high in (("erfinv_tail_f32", 9, 1.04), ("erfinv_tail_f64", 14, 3.1)):
        yield name, (degree, -0.77, high, lambda t: erfinv_factor((t + 3) ** 2))

    yield "lgamma_near_1_f64", (16, -0.2, 0.25, lambda t: mp.loggamma(1 + t) / t)
    yield "lgamma_between_f64", (16, -0.25, 0.25, lambda t: mp.loggamma(1 + half + t))
    yield "lgamma_near_2_f64", (16, -0.25, 0.5, lambda t: mp.loggamma(2 + t) / t)
    yield "stirling_f64", (6, mpf(10) ** -7, mpf(1) / 64, stirling, absolute)
    root = mp.findroot(mp.digamma, 1.46)
    middle = 1 + half
    yield (
        "digamma_f64",
        (22, -half, half, lambda t: mp.digamma(middle + t) / (middle + t - root)),
    )
    yield "digamma_tail_f64", (6, mpf(10) ** -7, mpf(1) / 36, digamma_tail, lambda z: z)
    yield "digamma_root_f64", [root, root - rounded(root, 53)]


def two_over_pi():
    """The digits of 2 / pi after the point, in words of 64 bits."""
    count = 20
    with mp.workprec(64 * count + 64):
        digits = int(mp.floor(2 / mp.pi * mpf(2) ** (64 * count)))
    words = [f"0x{digits >> 64 * i & (1 << 64) - 1:016x}" for i in reversed(range(count))]
    lines = textwrap.wrap(", ".join(words), 96, initial_indent="    ", subsequent_indent="    ")
    return "inline constexpr uint64_t kTwoOverPi[] = {\n" + "\n".join(lines) + "};\n"


def text(name, fit):
    if type(fit) is tuple:
        return Fit(name, *fit).text()
    return table(name, fit) if type(fit[0]) in (list, tuple) else constants(name, fit)


def main():
    wanted = sys.argv[1:]
    if not wanted:
        print(HEAD)
    for name, fit in fits():
        if not wanted or name.startswith(tuple(wanted)):
            print(text(name, fit), flush=True)
    if not wanted:
        print(two_over_pi())
        print("}  // namespace torch_lazy::codegen::math")


if __name__ == "__main__":
    main()
