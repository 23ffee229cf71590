// Reductions, scans, sorting and norms, lazy against eager.
#include "upstream_ops.h"

namespace upstream_ops {
namespace {

#define REDUCTION(op)                                                                   \
  {#op, [](In& in) -> Tensors { return {torch::op(in({4, 3, 4}))}; }},                  \
      {#op "_dim", [](In& in) -> Tensors { return {torch::op(in({4, 3, 4}), 1)}; }}, {  \
    #op "_keep", [](In& in) -> Tensors { return {torch::op(in({4, 3, 4}), -1, true)}; } \
  }
#define REDUCTION_OVER_DIMS(op)                                                                   \
  {#op "_dims",                                                                                   \
   [](In& in) -> Tensors { return {torch::op(in({4, 3, 4}), at::IntArrayRef{0, 2})}; }},          \
  {                                                                                               \
    #op "_dims_keep",                                                                             \
        [](In& in) -> Tensors { return {torch::op(in({4, 3, 4}), at::IntArrayRef{0, 2}, true)}; } \
  }
#define PAIR(...)                       \
  [](In& in) -> Tensors {               \
    auto [first, second] = __VA_ARGS__; \
    return {first, second};             \
  }

const Case kReductions[] = {
    REDUCTION(sum),
    REDUCTION(mean),
    REDUCTION(nansum),
    REDUCTION(argmax),
    REDUCTION(argmin),
    REDUCTION_OVER_DIMS(sum),
    REDUCTION_OVER_DIMS(mean),
    REDUCTION_OVER_DIMS(amax),
    REDUCTION_OVER_DIMS(amin),
    REDUCTION_OVER_DIMS(logsumexp),
    {"sum_dtype", [](In& in) -> Tensors { return {torch::sum(in(), 0, false, at::kDouble)}; }},
    {"sum_of_bytes", [](In& in) -> Tensors { return {in.ints(0, 200).to(at::kByte).sum()}; }},
    {"sum_of_bools", [](In& in) -> Tensors { return {in.bools().sum(1)}; }},
    {"sum_of_nothing", [](In& in) -> Tensors { return {in({0, 3}).sum(0), in({0}).sum()}; }},
    {"prod", [](In& in) -> Tensors { return {torch::prod(in())}; }, true},
    {"prod_dim", [](In& in) -> Tensors { return {torch::prod(in(), 1, true)}; }, true},
    {"prod_of_integers", [](In& in) -> Tensors { return {torch::prod(in.ints(1, 4), 0)}; }},
    {"max", [](In& in) -> Tensors { return {torch::max(in())}; }, true},
    {"min", [](In& in) -> Tensors { return {torch::min(in())}; }, true},
    {"max_dim", PAIR(torch::max(in(), 1))},
    {"max_dim_keep", PAIR(torch::max(in(), 0, true))},
    {"min_dim", PAIR(torch::min(in(), 1))},
    {"max_of_integers", PAIR(torch::max(in.ints(-9, 9), 1))},
    {"aminmax", PAIR(torch::aminmax(in(), 1))},
    {"median", [](In& in) -> Tensors { return {torch::median(in())}; }, true},
    {"median_dim", PAIR(torch::median(in({3, 5}), 1))},
    {"mode", PAIR(torch::mode(in.ints(0, 3, {3, 7}), 1))},
    {"kthvalue", PAIR(torch::kthvalue(in({4, 5}), 3, 1))},
    {"all", [](In& in) -> Tensors { return {in.bools().all(), in.bools().all(1)}; }},
    {"any", [](In& in) -> Tensors { return {in.bools().any(), in.bools().any(0, true)}; }},
    {"all_of_bytes", [](In& in) -> Tensors { return {in.ints(0, 2).to(at::kByte).all()}; }},
    {"count_nonzero", [](In& in) -> Tensors { return {torch::count_nonzero(in.bools())}; }},
    {"std", [](In& in) -> Tensors { return {torch::std(in())}; }},
    {"std_dim", [](In& in) -> Tensors { return {torch::std(in(), 1, false)}; }},
    {"var", [](In& in) -> Tensors { return {torch::var(in())}; }},
    {"var_correction",
     [](In& in) -> Tensors { return {torch::var(in(), at::IntArrayRef{0}, 0, true)}; }},
    {"var_mean", PAIR(torch::var_mean(in(), at::IntArrayRef{1}, 1))},
    {"std_mean", PAIR(torch::std_mean(in(), at::IntArrayRef{1}, 1))},
    {"trace", [](In& in) -> Tensors { return {torch::trace(in({4, 4}))}; }},
    {"quantile", [](In& in) -> Tensors { return {torch::quantile(in({9}), 0.3)}; }},
    {"histc", [](In& in) -> Tensors { return {torch::histc(in.plain(), 5, -2, 2)}; }},
    {"bincount", [](In& in) -> Tensors { return {torch::bincount(in.ints(0, 6, {20}))}; }, true},
};

const Case kScans[] = {
    {"cumsum", [](In& in) -> Tensors { return {torch::cumsum(in(), 1)}; }},
    {"cumsum_dtype", [](In& in) -> Tensors { return {torch::cumsum(in(), 0, at::kDouble)}; }},
    {"cumprod", [](In& in) -> Tensors { return {torch::cumprod(in.between(0.5, 2), 1)}; }, true},
    {"cummax", PAIR(torch::cummax(in(), 1))},
    {"cummin", PAIR(torch::cummin(in(), 0))},
    {"logcumsumexp", [](In& in) -> Tensors { return {torch::logcumsumexp(in(), 1)}; }},
    {"diff", [](In& in) -> Tensors { return {torch::diff(in(), 2, 1)}; }},
    {"trapezoid", [](In& in) -> Tensors { return {torch::trapezoid(in(), 0.5, 1)}; }},
    {"cumsum_in_place",
     [](In& in) -> Tensors {
       torch::Tensor x = in() * 1;
       x.cumsum_(0);
       return {x};
     }},
};

const Case kSorting[] = {
    {"sort", PAIR(torch::sort(in({4, 5})))},
    {"sort_descending", PAIR(torch::sort(in({4, 5}), 0, true))},
    {"sort_stable", PAIR(torch::sort(in.ints(0, 3, {12}), true, 0, false))},
    {"argsort", [](In& in) -> Tensors { return {torch::argsort(in({4, 5}), 1, true)}; }},
    {"msort", [](In& in) -> Tensors { return {torch::msort(in({4, 5}))}; }},
    {"topk", PAIR(torch::topk(in({4, 5}), 3))},
    {"topk_smallest", PAIR(torch::topk(in({4, 5}), 2, 0, false))},
    {"searchsorted",
     [](In& in) -> Tensors { return {torch::searchsorted(in.range(9), in.plain({4}))}; }},
    {"bucketize", [](In& in) -> Tensors { return {torch::bucketize(in.plain(), in.range(3))}; }},
    {"unique", PAIR(at::_unique(in.ints(0, 4, {12}))), true},
    {"unique_consecutive",
     [](In& in) -> Tensors {
       auto [values, inverse, counts] = torch::unique_consecutive(in.ints(0, 2, {12}), true, true);
       return {values, inverse, counts};
     },
     true},
    {"nonzero", [](In& in) -> Tensors { return {torch::nonzero(in.bools())}; }, true},
};

const Case kNorms[] = {
    {"norm", [](In& in) -> Tensors { return {torch::norm(in())}; }},
    {"norm_1", [](In& in) -> Tensors { return {torch::norm(in(), 1)}; }},
    {"norm_dim", [](In& in) -> Tensors { return {torch::norm(in(), 3, 1)}; }},
    {"norm_0", [](In& in) -> Tensors { return {torch::norm(in(), 0, 1)}; }},
    {"frobenius",
     [](In& in) -> Tensors { return {torch::frobenius_norm(in({3, 4}), {0, 1}, true)}; }},
    {"nuclear", [](In& in) -> Tensors { return {torch::nuclear_norm(in({3, 4}))}; }},
    {"vector_norm", [](In& in) -> Tensors { return {torch::linalg_vector_norm(in(), 4)}; }},
    {"matrix_norm",
     [](In& in) -> Tensors { return {torch::linalg_matrix_norm(in({2, 3, 4}), 1, {-2, -1})}; }},
    {"renorm", [](In& in) -> Tensors { return {torch::renorm(in(), 2, 0, 1.5)}; }},
    {"normalize", [](In& in) -> Tensors { return {torch::nn::functional::normalize(in())}; }},
    {"cosine_similarity",
     [](In& in) -> Tensors { return {torch::cosine_similarity(in(), in(), 1)}; }},
    {"pairwise_distance",
     [](In& in) -> Tensors { return {torch::pairwise_distance(in(), in(), 3, 1e-5, true)}; }},
    {"cdist", [](In& in) -> Tensors { return {torch::cdist(in({2, 3, 4}), in({2, 5, 4}))}; }},
    {"cdist_1", [](In& in) -> Tensors { return {torch::cdist(in({3, 4}), in({5, 4}), 1)}; }},
    {"pdist", [](In& in) -> Tensors { return {torch::pdist(in({5, 3}))}; }},
};

COMPARE_WITH_EAGER(Reductions, kReductions);
COMPARE_WITH_EAGER(Scans, kScans);
COMPARE_WITH_EAGER(Sorting, kSorting);
COMPARE_WITH_EAGER(Norms, kNorms);

}  // namespace
}  // namespace upstream_ops
