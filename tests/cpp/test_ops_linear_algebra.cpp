// Matrix products, contractions and decompositions, lazy against eager.
#include "upstream_ops.h"

namespace upstream_ops {
namespace {

/// A matrix that is well conditioned, symmetric and positive.
torch::Tensor positive_definite(In& in, int64_t n) {
  torch::Tensor x = in({n, n});
  return torch::mm(x, x.t()) + torch::eye(n, in.options) * n;
}

const Case kProducts[] = {
    {"matmul_1x1", [](In& in) -> Tensors { return {torch::matmul(in({4}), in({4}))}; }},
    {"matmul_1x2", [](In& in) -> Tensors { return {torch::matmul(in({4}), in({4, 3}))}; }},
    {"matmul_2x1", [](In& in) -> Tensors { return {torch::matmul(in({3, 4}), in({4}))}; }},
    {"matmul_2x2", [](In& in) -> Tensors { return {torch::matmul(in({3, 4}), in({4, 5}))}; }},
    {"matmul_3x1", [](In& in) -> Tensors { return {torch::matmul(in({2, 3, 4}), in({4}))}; }},
    {"matmul_3x2", [](In& in) -> Tensors { return {torch::matmul(in({2, 3, 4}), in({4, 5}))}; }},
    {"matmul_2x3", [](In& in) -> Tensors { return {torch::matmul(in({3, 4}), in({2, 4, 5}))}; }},
    {"matmul_broadcast",
     [](In& in) -> Tensors { return {torch::matmul(in({6, 1, 3, 4}), in({2, 4, 5}))}; }},
    {"matmul_transposed",
     [](In& in) -> Tensors { return {torch::matmul(in({4, 3}).t(), in({5, 4}).t())}; }},
    {"mm", [](In& in) -> Tensors { return {torch::mm(in({3, 4}), in({4, 2}))}; }},
    {"mm_of_integers",
     [](In& in) -> Tensors { return {torch::mm(in.ints(0, 9, {3, 4}), in.ints(0, 9, {4, 2}))}; }},
    {"mv", [](In& in) -> Tensors { return {torch::mv(in({3, 4}), in({4}))}; }},
    {"dot", [](In& in) -> Tensors { return {torch::dot(in({4}), in({4}))}; }},
    {"vdot", [](In& in) -> Tensors { return {torch::vdot(in({4}), in({4}))}; }},
    {"inner", [](In& in) -> Tensors { return {torch::inner(in({2, 4}), in({3, 4}))}; }},
    {"outer", [](In& in) -> Tensors { return {torch::outer(in({3}), in({4}))}; }},
    {"kron", [](In& in) -> Tensors { return {torch::kron(in({2, 3}), in({4, 1}))}; }},
    {"bmm", [](In& in) -> Tensors { return {torch::bmm(in({2, 3, 4}), in({2, 4, 5}))}; }},
    {"baddbmm",
     [](In& in) -> Tensors {
       return {torch::baddbmm(in({3, 1}), in({2, 3, 4}), in({2, 4, 5}), 0.5, 2)};
     }},
    {"addbmm",
     [](In& in) -> Tensors { return {torch::addbmm(in({3, 5}), in({2, 3, 4}), in({2, 4, 5}))}; }},
    {"addmm",
     [](In& in) -> Tensors { return {torch::addmm(in({5}), in({3, 4}), in({4, 5}), 0.5, 2)}; }},
    {"addmm_beta_0",
     [](In& in) -> Tensors { return {torch::addmm(in({5}), in({3, 4}), in({4, 5}), 0, 1)}; }},
    {"addmv", [](In& in) -> Tensors { return {torch::addmv(in({3}), in({3, 4}), in({4}), 2)}; }},
    {"addr", [](In& in) -> Tensors { return {torch::addr(in({3, 4}), in({3}), in({4}), 2)}; }},
    {"addmm_in_place",
     [](In& in) -> Tensors {
       torch::Tensor x = in({3, 5}) * 1;
       x.addmm_(in({3, 4}), in({4, 5}));
       return {x};
     }},
    {"linear", [](In& in) -> Tensors { return {torch::linear(in({2, 3}), in({4, 3}), in({4}))}; }},
    {"linear_no_bias",
     [](In& in) -> Tensors { return {torch::linear(in({2, 5, 3}), in({4, 3}))}; }},
    {"bilinear",
     [](In& in) -> Tensors {
       return {torch::bilinear(in({2, 3}), in({2, 4}), in({5, 3, 4}), in({5}))};
     }},
    {"tensordot",
     [](In& in) -> Tensors {
       return {torch::tensordot(in({3, 4, 5}), in({4, 3, 2}), {1, 0}, {0, 1})};
     }},
    {"chain_matmul",
     [](In& in) -> Tensors {
       return {torch::linalg_multi_dot({in({3, 4}), in({4, 2}), in({2, 5})})};
     }},
    {"matrix_power", [](In& in) -> Tensors { return {torch::matrix_power(in({3, 3}), 3)}; }},
    {"matrix_exp", [](In& in) -> Tensors { return {torch::matrix_exp(in.plain({3, 3}))}; }},
};

#define EINSUM(name, equation, ...) \
  {name, [](In& in) -> Tensors { return {torch::einsum(equation, Tensors{__VA_ARGS__})}; }}

const Case kEinsum[] = {
    EINSUM("outer", "i,j->ij", in({3}), in({4})),
    EINSUM("inner", "i,i->", in({4}), in({4})),
    EINSUM("batch_matmul", "bij,bjk->bik", in({2, 3, 4}), in({2, 4, 5})),
    EINSUM("bilinear", "bn,anm,bm->ba", in({2, 3}), in({4, 3, 5}), in({2, 5})),
    EINSUM("diagonal", "ii->i", in({4, 4})),
    EINSUM("batch_diagonal", "...ii->...i", in({2, 4, 4})),
    EINSUM("batch_permute", "...ij->...ji", in({2, 3, 4})),
    EINSUM("sum", "ij->j", in({3, 4})),
    EINSUM("trace", "ii", in({4, 4})),
};

#define TRIPLE(...)                            \
  [](In& in) -> Tensors {                      \
    auto [first, second, third] = __VA_ARGS__; \
    return {first, second, third};             \
  }
#define PAIR(...)                       \
  [](In& in) -> Tensors {               \
    auto [first, second] = __VA_ARGS__; \
    return {first, second};             \
  }

// Those that raise an error for a singular matrix read whether it is one.
const Case kDecompositions[] = {
    {"cholesky", [](In& in) -> Tensors { return {torch::cholesky(positive_definite(in, 4))}; }},
    {"linalg_cholesky",
     [](In& in) -> Tensors { return {torch::linalg_cholesky(positive_definite(in, 4))}; }, true},
    {"inverse", [](In& in) -> Tensors { return {torch::inverse(positive_definite(in, 4))}; }, true},
    {"pinverse", [](In& in) -> Tensors { return {torch::pinverse(in.plain({4, 3}))}; }},
    {"det", [](In& in) -> Tensors { return {torch::det(positive_definite(in, 3))}; }},
    {"logdet", [](In& in) -> Tensors { return {torch::logdet(positive_definite(in, 3))}; }},
    {"slogdet", PAIR(torch::slogdet(positive_definite(in, 3)))},
    {"qr", PAIR(torch::linalg_qr(in({4, 3})))},
    {"svd", TRIPLE(torch::linalg_svd(in.plain({4, 3}), false))},
    {"svdvals", [](In& in) -> Tensors { return {torch::linalg_svdvals(in({4, 3}))}; }},
    {"eigh", PAIR(torch::linalg_eigh(positive_definite(in, 3).detach()))},
    {"eigvalsh",
     [](In& in) -> Tensors { return {torch::linalg_eigvalsh(positive_definite(in, 3))}; }},
    {"lu_factor", PAIR(torch::linalg_lu_factor(positive_definite(in, 3))), true},
    {"solve",
     [](In& in) -> Tensors { return {torch::linalg_solve(positive_definite(in, 3), in({3, 2}))}; },
     true},
    {"triangular_solve",
     [](In& in) -> Tensors {
       return {torch::linalg_solve_triangular(positive_definite(in, 3).tril(), in({3, 2}), false)};
     }},
    {"cholesky_solve",
     [](In& in) -> Tensors {
       return {torch::cholesky_solve(in({3, 2}), torch::linalg_cholesky(positive_definite(in, 3)))};
     },
     true},
    {"vander", [](In& in) -> Tensors { return {torch::vander(in.plain({3}))}; }},
    {"fft", [](In& in) -> Tensors { return {torch::fft_rfft(in({3, 8}))}; }},
    {"fftshift", [](In& in) -> Tensors { return {torch::fft_fftshift(in({5}))}; }},
};

COMPARE_WITH_EAGER(Products, kProducts);
COMPARE_WITH_EAGER(Einsum, kEinsum);
COMPARE_WITH_EAGER(Decompositions, kDecompositions);

}  // namespace
}  // namespace upstream_ops
