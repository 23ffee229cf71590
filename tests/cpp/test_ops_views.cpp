// Views, writes through views, joining and indexing, lazy against eager. Results that alias each
// other in eager must alias each other.
#include "upstream_ops.h"

namespace upstream_ops {
namespace {

using torch::indexing::Ellipsis;
using torch::indexing::None;
using torch::indexing::Slice;

/// Views of `x`, beside `x` itself; `x` has gradients.
#define VIEW(name, ...)               \
  {name, [](In& in) -> Tensors {      \
     torch::Tensor x = in({2, 3, 4}); \
     return {x, x.__VA_ARGS__};       \
   }}

const Case kViews[] = {
    VIEW("view", view({4, 6})),
    VIEW("view_minus_one", view({-1, 2})),
    VIEW("view_as", view_as(in({6, 4}))),
    VIEW("reshape", reshape({3, 8})),
    VIEW("reshape_copies", transpose(0, 2).reshape({6, 4})),
    VIEW("flatten", flatten(1)),
    VIEW("unflatten", unflatten(2, {2, 2})),
    VIEW("t", select(0, 1).t()),
    VIEW("transpose", transpose(0, -1)),
    VIEW("permute", permute({2, 0, 1})),
    VIEW("movedim", movedim(0, 2)),
    VIEW("swapaxes", swapaxes(0, 1)),
    VIEW("select", select(1, 2)),
    VIEW("slice", slice(2, 1, 4, 2)),
    VIEW("slice_negative", slice(2, -3, -1)),
    VIEW("slice_empty", slice(2, 3, 1)),
    VIEW("narrow", narrow(1, 1, 2)),
    VIEW("squeeze", unsqueeze(0).squeeze()),
    VIEW("squeeze_dim", unsqueeze(1).squeeze(1)),
    VIEW("squeeze_nothing", squeeze(0)),
    VIEW("unsqueeze", unsqueeze(-1)),
    VIEW("expand", select(0, 0).unsqueeze(0).expand({5, 3, 4})),
    VIEW("expand_as", select(0, 0).expand_as(in({5, 3, 4}))),
    VIEW("broadcast_to", select(0, 1).broadcast_to({2, 3, 4})),
    VIEW("diagonal", diagonal(1, 1, 2)),
    VIEW("unfold", unfold(2, 2, 1)),
    VIEW("as_strided", as_strided({2, 2}, {1, 3}, 2)),
    VIEW("detach", detach()),
    VIEW("alias", alias()),
    VIEW("view_as_real", to(at::kComplexDouble).conj().resolve_conj().mul(torch::Scalar(2)).abs()),
    VIEW("contiguous", transpose(0, 2).contiguous()),
    VIEW("contiguous_is_itself", contiguous()),
    {"split",
     [](In& in) -> Tensors {
       torch::Tensor x = in({7, 2});
       Tensors parts = x.split(3);
       parts.push_back(x);
       return parts;
     }},
    {"split_with_sizes", [](In& in) -> Tensors { return in({7, 2}).split_with_sizes({1, 4, 2}); }},
    {"chunk", [](In& in) -> Tensors { return in({7, 2}).chunk(3); }},
    {"tensor_split", [](In& in) -> Tensors { return in({7, 2}).tensor_split(3); }},
    {"unbind", [](In& in) -> Tensors { return in({3, 4}).unbind(1); }},
    {"meshgrid", [](In& in) -> Tensors { return torch::meshgrid({in({3}), in({4})}, "ij"); }},
    {"atleast_3d", [](In& in) -> Tensors { return {torch::atleast_3d(in({3}))}; }},
    {"real_and_complex",
     [](In& in) -> Tensors {
       torch::Tensor x = in({3, 4, 2});
       torch::Tensor z = torch::view_as_complex(x);
       return {x, z, torch::view_as_real(z), z.conj(), torch::imag(z)};
     }},
    {"view_dtype",
     [](In& in) -> Tensors {
       torch::Tensor x = in.plain({4});
       return {x, x.view(at::kInt)};
     }},
};

/// Writes through `view`, then gives both; the gradient of the base goes through the write.
#define UPDATE(name, make_view, ...)      \
  {name, [](In& in) -> Tensors {          \
     torch::Tensor leaf = in({3, 4});     \
     torch::Tensor base = leaf * 1;       \
     torch::Tensor view = base.make_view; \
     view.__VA_ARGS__;                    \
     return {base, view, base + 1};       \
   }}

const Case kUpdates[] = {
    UPDATE("view", view({4, 3}), add_(in({4, 3}))),
    UPDATE("reshape", reshape({12}), mul_(3)),
    UPDATE("t", t(), add_(in({4, 3}))),
    UPDATE("transpose", transpose(0, 1), zero_()),
    UPDATE("permute", permute({1, 0}), mul_(in({4, 3}))),
    UPDATE("select", select(0, 1), fill_(7)),
    UPDATE("select_column", select(1, 1), add_(in({3}))),
    UPDATE("slice", slice(1, 0, 4, 2), copy_(in({3, 2}))),
    UPDATE("narrow", narrow(0, 1, 2), add_(1)),
    UPDATE("narrow_of_narrow", narrow(0, 1, 2).narrow(1, 1, 2), add_(in({2, 2}))),
    UPDATE("diagonal", diagonal(), fill_(0)),
    UPDATE("unsqueeze", unsqueeze(1), sub_(in({3, 1, 4}))),
    UPDATE("squeeze", unsqueeze(0).squeeze(0), sub_(2)),
    UPDATE("as_strided", as_strided({2, 2}, {4, 1}, 1), zero_()),
    UPDATE("view_of_view", view({2, 6}).view({12}).slice(0, 3, 9), exp_()),
    {"one_of_several_views",
     [](In& in) -> Tensors {
       torch::Tensor base = in.plain();
       base.split(2, 1)[1].mul_(10);
       base.chunk(2, 1)[0].neg_();
       base.unbind(0)[1].add_(1);
       return {base};
     }},
    UPDATE("expanded_source", slice(0, 0, 2), copy_(in({1, 4}).expand({2, 4}))),
    {"all_views_see_a_write",
     [](In& in) -> Tensors {
       torch::Tensor base = in.plain({4, 4});
       torch::Tensor rows = base.narrow(0, 1, 2);
       torch::Tensor columns = base.t().narrow(0, 1, 2);
       base.add_(1);
       rows.mul_(2);
       columns.sub_(3);
       return {base, rows, columns, base.sum(0)};
     }},
    {"overlapping_writes_in_order",
     [](In& in) -> Tensors {
       torch::Tensor base = in.plain({6});
       torch::Tensor left = base.slice(0, 0, 4);
       torch::Tensor right = base.slice(0, 2, 6);
       left.copy_(right.clone());
       right.add_(left.clone());
       left.mul_(0.5);
       return {base, left, right};
     }},
    {"readers_keep_what_they_read",
     [](In& in) -> Tensors {
       torch::Tensor x = in.plain();
       torch::Tensor before = x * 2;
       x.add_(1);
       torch::Tensor between = x * 2;
       x.zero_();
       return {x, before, between};
     }},
    {"set_data",
     [](In& in) -> Tensors {
       torch::Tensor x = in.plain();
       torch::Tensor y = in.plain({2});
       x.set_data(y);
       y.add_(1);
       return {x, y};
     }},
    {"resize",
     [](In& in) -> Tensors {
       torch::Tensor x = in.plain({2, 3});
       x.resize_({3, 2});
       return {x};
     }},
    {"squeeze_in_place",
     [](In& in) -> Tensors {
       torch::Tensor x = in.plain({2, 1, 3});
       torch::Tensor y = x.detach();
       y.squeeze_(1).t_();
       return {x, y};
     }},
};

const Case kJoining[] = {
    {"cat", [](In& in) -> Tensors { return {torch::cat({in({2, 3}), in({4, 3})})}; }},
    {"cat_dim", [](In& in) -> Tensors { return {torch::cat({in({2, 3}), in({2, 1})}, -1)}; }},
    {"cat_types", [](In& in) -> Tensors { return {torch::cat({in({2}), in.ints(0, 5, {3})})}; }},
    {"stack", [](In& in) -> Tensors { return {torch::stack({in(), in(), in()}, 1)}; }},
    {"hstack", [](In& in) -> Tensors { return {torch::hstack({in(), in()})}; }},
    {"vstack", [](In& in) -> Tensors { return {torch::vstack({in(), in()})}; }},
    {"repeat", [](In& in) -> Tensors { return {in({2, 3}).repeat({4, 1, 2})}; }},
    {"tile", [](In& in) -> Tensors { return {in({2, 3}).tile({2})}; }},
    {"repeat_interleave", [](In& in) -> Tensors { return {in().repeat_interleave(2, 1)}; }},
    {"roll", [](In& in) -> Tensors { return {torch::roll(in(), {1, -2}, {0, 1})}; }},
    {"flip", [](In& in) -> Tensors { return {torch::flip(in(), {0, 1})}; }},
    {"rot90", [](In& in) -> Tensors { return {torch::rot90(in(), 1, {0, 1})}; }},
    {"tril", [](In& in) -> Tensors { return {torch::tril(in({4, 4}), -1)}; }},
    {"triu", [](In& in) -> Tensors { return {torch::triu(in({2, 3, 4}), 1)}; }},
    {"tril_in_place",
     [](In& in) -> Tensors {
       torch::Tensor x = in({4, 4}) * 1;
       x.tril_();
       return {x};
     }},
    {"diag", [](In& in) -> Tensors { return {torch::diag(in({3})), torch::diag(in({3, 3}))}; }},
    {"diag_embed", [](In& in) -> Tensors { return {torch::diag_embed(in({2, 3}), 1)}; }},
    {"block_diag", [](In& in) -> Tensors { return {torch::block_diag({in({2, 2}), in({3})})}; }},
    {"constant_pad",
     [](In& in) -> Tensors { return {torch::constant_pad_nd(in(), {1, 2, 0, 3}, 5)}; }},
    {"channel_shuffle",
     [](In& in) -> Tensors { return {torch::channel_shuffle(in.plain({1, 4, 2, 2}), 2)}; }},
    {"narrow_copy", [](In& in) -> Tensors { return {in.plain().narrow_copy(1, 1, 2)}; }},
    {"as_strided_copy",
     [](In& in) -> Tensors { return {torch::as_strided_copy(in.plain(), {2, 2}, {1, 3}, 1)}; }},
};

const Case kIndexing[] = {
    {"index", [](In& in) -> Tensors { return {in({5, 4}).index({in.ints(0, 5, {3})})}; }},
    {"index_two",
     [](In& in) -> Tensors {
       return {in({5, 4}).index({in.ints(0, 5, {3}), in.ints(0, 4, {3})})};
     }},
    {"index_broadcast",
     [](In& in) -> Tensors {
       return {in({5, 4, 3}).index({in.ints(0, 5, {2, 1}), in.ints(0, 4, {3})})};
     }},
    {"index_second",
     [](In& in) -> Tensors { return {in({5, 4}).index({Slice(), in.ints(0, 4, {6})})}; }},
    {"index_mixed",
     [](In& in) -> Tensors { return {in({5, 4, 3}).index({Slice(1, 4), None, Ellipsis, 1})}; }},
    {"index_of_cpu_indices",
     [](In& in) -> Tensors { return {in({5, 4}).index({torch::tensor({0, 2, 4})})}; }},
    {"index_mask", [](In& in) -> Tensors { return {in({5, 4}).index({in.bools({5, 4})})}; }, true},
    {"masked_select", [](In& in) -> Tensors { return {in().masked_select(in.bools())}; }, true},
    {"index_select", [](In& in) -> Tensors { return {in().index_select(1, in.ints(0, 4, {6}))}; }},
    {"gather", [](In& in) -> Tensors { return {in().gather(1, in.ints(0, 4, {3, 2}))}; }},
    {"take", [](In& in) -> Tensors { return {in().take(in.ints(0, 12, {5}))}; }},
    {"take_along_dim",
     [](In& in) -> Tensors { return {torch::take_along_dim(in(), in.ints(0, 3, {2, 4}), 0)}; }},
    {"scatter",
     [](In& in) -> Tensors {
       torch::Tensor index = torch::tensor({{0, 1, 2}, {2, 0, 1}}).to(in.device);
       return {in().scatter(1, index, in({2, 3})), in().scatter(1, index, 3.5)};
     }},
    {"scatter_add",
     [](In& in) -> Tensors { return {in().scatter_add(1, in.ints(0, 4, {2, 3}), in({2, 3}))}; }},
    {"scatter_reduce",
     [](In& in) -> Tensors {
       return {in.plain().scatter_reduce(1, in.ints(0, 4, {2, 3}), in.plain({2, 3}), "amax")};
     }},
    {"index_add",
     [](In& in) -> Tensors { return {in().index_add(0, in.ints(0, 3, {5}), in({5, 4}), 2)}; }},
    {"index_copy",
     [](In& in) -> Tensors {
       torch::Tensor index = torch::tensor({2, 0}).to(in.device);
       return {in().index_copy(0, index, in({2, 4}))};
     }},
    {"index_fill", [](In& in) -> Tensors { return {in().index_fill(1, in.ints(0, 4, {2}), 9)}; }},
    {"index_put",
     [](In& in) -> Tensors {
       torch::Tensor index = torch::tensor({2, 0}).to(in.device);
       return {in().index_put({index}, in({2, 4}))};
     }},
    {"index_put_accumulate",
     [](In& in) -> Tensors {
       torch::Tensor x = in() * 1;
       x.index_put_({in.ints(0, 3, {6}), in.ints(0, 4, {6})}, in({6}), true);
       return {x};
     }},
    {"index_put_mask",
     [](In& in) -> Tensors {
       torch::Tensor x = in() * 1;
       x.index_put_({in.bools()}, torch::tensor(4.0f).to(in.device));
       return {x};
     }},
    {"put",
     [](In& in) -> Tensors { return {in().put(torch::tensor({7, 1}).to(in.device), in({2}))}; }},
    {"masked_fill", [](In& in) -> Tensors { return {in().masked_fill(in.bools(), 2)}; }},
    {"masked_fill_tensor",
     [](In& in) -> Tensors {
       return {in().masked_fill(in.bools(), torch::tensor(2.0f).to(in.device))};
     }},
    {"masked_scatter", [](In& in) -> Tensors { return {in().masked_scatter(in.bools(), in())}; }},
    {"assign_slice",
     [](In& in) -> Tensors {
       torch::Tensor x = in() * 1;
       x.index_put_({Slice(0, 2), 1}, in({2}));
       return {x};
     }},
    {"diagonal_scatter", [](In& in) -> Tensors { return {in({3, 3}).diagonal_scatter(in({3}))}; }},
    {"select_scatter", [](In& in) -> Tensors { return {in().select_scatter(in({3}), 1, 2)}; }},
    {"slice_scatter", [](In& in) -> Tensors { return {in().slice_scatter(in({1, 4}), 0, 1, 2)}; }},
};

COMPARE_WITH_EAGER(Views, kViews);
COMPARE_WITH_EAGER(Updates, kUpdates);
COMPARE_WITH_EAGER(Joining, kJoining);
COMPARE_WITH_EAGER(Indexing, kIndexing);

}  // namespace
}  // namespace upstream_ops
