// Layers of neural networks: convolutions, pooling, normalisation, activations, losses, lazy
// against eager with their gradients.
#include "upstream_ops.h"

namespace upstream_ops {
namespace {

namespace F = torch::nn::functional;

const Case kConvolutions[] = {
    {"conv1d",
     [](In& in) -> Tensors { return {torch::conv1d(in({2, 3, 9}), in({4, 3, 3}), in({4}))}; }},
    {"conv2d",
     [](In& in) -> Tensors {
       return {torch::conv2d(in({2, 3, 7, 7}), in({4, 3, 3, 3}), in({4}))};
     }},
    {"conv2d_no_bias",
     [](In& in) -> Tensors { return {torch::conv2d(in({2, 3, 7, 7}), in({4, 3, 3, 3}))}; }},
    {"conv2d_stride_padding",
     [](In& in) -> Tensors {
       return {torch::conv2d(in({2, 3, 7, 7}), in({4, 3, 3, 3}), in({4}), 2, 1)};
     }},
    {"conv2d_uneven",
     [](In& in) -> Tensors {
       return {torch::conv2d(in({2, 3, 7, 8}), in({4, 3, 3, 2}), in({4}), {2, 1}, {1, 0})};
     }},
    {"conv2d_dilation",
     [](In& in) -> Tensors {
       return {torch::conv2d(in({1, 3, 9, 9}), in({4, 3, 3, 3}), in({4}), {1, 1},
                             at::IntArrayRef{0, 0}, {2, 2})};
     }},
    {"conv2d_groups",
     [](In& in) -> Tensors {
       return {torch::conv2d(in({1, 4, 6, 6}), in({4, 2, 3, 3}), in({4}), {1, 1},
                             at::IntArrayRef{1, 1}, {1, 1}, 2)};
     }},
    {"conv2d_same",
     [](In& in) -> Tensors {
       return {torch::conv2d(in({1, 3, 6, 6}), in({4, 3, 3, 3}), in({4}), {1, 1}, "same")};
     }},
    {"conv3d",
     [](In& in) -> Tensors {
       return {torch::conv3d(in({1, 2, 5, 5, 5}), in({3, 2, 2, 2, 2}), in({3}))};
     }},
    {"conv_transpose1d",
     [](In& in) -> Tensors {
       return {torch::conv_transpose1d(in({1, 3, 5}), in({3, 2, 3}), in({2}))};
     }},
    {"conv_transpose2d",
     [](In& in) -> Tensors {
       return {torch::conv_transpose2d(in({1, 3, 5, 5}), in({3, 2, 3, 3}), in({2}), 2, 1, 1)};
     }},
    {"conv_transpose3d",
     [](In& in) -> Tensors {
       return {torch::conv_transpose3d(in({1, 2, 3, 3, 3}), in({2, 3, 2, 2, 2}), in({3}))};
     }},
    {"conv2d_channels_last",
     [](In& in) -> Tensors {
       return {torch::conv2d(in({2, 3, 7, 7}).contiguous(at::MemoryFormat::ChannelsLast),
                             in({4, 3, 3, 3}))};
     }},
    {"unfold",
     [](In& in) -> Tensors { return {F::unfold(in({1, 2, 5, 5}), F::UnfoldFuncOptions(3))}; }},
    {"fold",
     [](In& in) -> Tensors {
       return {F::fold(in({1, 8, 4}), F::FoldFuncOptions({3, 3}, {2, 2}))};
     }},
};

#define PAIR(...)                       \
  [](In& in) -> Tensors {               \
    auto [first, second] = __VA_ARGS__; \
    return {first, second};             \
  }

const Case kPooling[] = {
    {"avg_pool1d", [](In& in) -> Tensors { return {torch::avg_pool1d(in({2, 3, 9}), 3, 2, 1)}; }},
    {"avg_pool2d",
     [](In& in) -> Tensors { return {torch::avg_pool2d(in({2, 3, 7, 7}), 3, 2, 1, true, false)}; }},
    {"avg_pool2d_no_batch",
     [](In& in) -> Tensors { return {torch::avg_pool2d(in({3, 6, 6}), 2)}; }},
    {"avg_pool3d", [](In& in) -> Tensors { return {torch::avg_pool3d(in({1, 2, 4, 4, 4}), 2)}; }},
    {"max_pool1d", [](In& in) -> Tensors { return {torch::max_pool1d(in({2, 3, 9}), 3, 2)}; }},
    {"max_pool2d",
     [](In& in) -> Tensors { return {torch::max_pool2d(in({2, 3, 7, 7}), 3, 2, 1)}; }},
    {"max_pool2d_ceil",
     [](In& in) -> Tensors { return {torch::max_pool2d(in({2, 3, 7, 7}), 2, 2, 0, 1, true)}; }},
    {"max_pool2d_indices", PAIR(torch::max_pool2d_with_indices(in({2, 3, 6, 6}), 2))},
    {"max_pool3d", [](In& in) -> Tensors { return {torch::max_pool3d(in({1, 2, 4, 4, 4}), 2)}; }},
    {"max_unpool2d",
     [](In& in) -> Tensors {
       auto [values, indices] = torch::max_pool2d_with_indices(in({1, 2, 4, 4}), 2);
       return {torch::max_unpool2d(values, indices, {4, 4})};
     }},
    {"adaptive_avg_pool1d",
     [](In& in) -> Tensors { return {torch::adaptive_avg_pool1d(in({2, 3, 9}), 4)}; }},
    {"adaptive_avg_pool2d",
     [](In& in) -> Tensors { return {torch::adaptive_avg_pool2d(in({2, 3, 7, 5}), {3, 2})}; }},
    {"adaptive_avg_pool2d_global",
     [](In& in) -> Tensors { return {torch::adaptive_avg_pool2d(in({2, 3, 7, 5}), {1, 1})}; }},
    {"adaptive_avg_pool3d",
     [](In& in) -> Tensors {
       return {torch::adaptive_avg_pool3d(in({1, 2, 5, 5, 5}), {2, 3, 4})};
     }},
    {"adaptive_max_pool2d", PAIR(torch::adaptive_max_pool2d(in({2, 3, 7, 5}), {3, 2}))},
    {"lp_pool2d",
     [](In& in) -> Tensors {
       return {F::lp_pool2d(in.between(0.1, 1, {1, 2, 6, 6}), F::LPPool2dFuncOptions(2, 2))};
     }},
};

const Case kSpatial[] = {
    {"reflection_pad1d",
     [](In& in) -> Tensors { return {torch::reflection_pad1d(in({2, 3, 5}), {1, 2})}; }},
    {"reflection_pad2d",
     [](In& in) -> Tensors { return {torch::reflection_pad2d(in({2, 3, 5, 5}), {1, 2, 3, 1})}; }},
    {"replication_pad1d",
     [](In& in) -> Tensors { return {torch::replication_pad1d(in({2, 3, 5}), {1, 2})}; }},
    {"replication_pad2d",
     [](In& in) -> Tensors { return {torch::replication_pad2d(in({2, 3, 5, 5}), {1, 2, 3, 1})}; }},
    {"replication_pad3d",
     [](In& in) -> Tensors {
       return {torch::replication_pad3d(in({1, 2, 3, 3, 3}), {1, 1, 1, 1, 1, 1})};
     }},
    {"circular_pad",
     [](In& in) -> Tensors { return {torch::_pad_circular(in({1, 2, 4, 4}), {1, 1, 1, 1})}; }},
    {"nearest1d",
     [](In& in) -> Tensors { return {torch::upsample_nearest1d(in({1, 2, 4}), {8})}; }},
    {"nearest2d",
     [](In& in) -> Tensors { return {torch::upsample_nearest2d(in({1, 2, 4, 4}), {8, 6})}; }},
    {"bilinear",
     [](In& in) -> Tensors {
       return {torch::upsample_bilinear2d(in({1, 2, 4, 4}), {8, 6}, true)};
     }},
    {"bicubic",
     [](In& in) -> Tensors {
       return {torch::upsample_bicubic2d(in({1, 2, 4, 4}), {8, 6}, false)};
     }},
    {"trilinear",
     [](In& in) -> Tensors {
       return {torch::upsample_trilinear3d(in({1, 2, 3, 3, 3}), {4, 5, 6}, false)};
     }},
    {"pixel_shuffle",
     [](In& in) -> Tensors { return {torch::pixel_shuffle(in({1, 8, 2, 3}), 2)}; }},
    {"pixel_unshuffle",
     [](In& in) -> Tensors { return {torch::pixel_unshuffle(in({1, 2, 4, 6}), 2)}; }},
    {"grid_sampler",
     [](In& in) -> Tensors {
       return {torch::grid_sampler(in({1, 2, 4, 4}), in.between(-1, 1, {1, 3, 3, 2}), 0, 0, false)};
     }},
    {"affine_grid",
     [](In& in) -> Tensors {
       return {torch::affine_grid_generator(in({1, 2, 3}), {1, 1, 3, 3}, false)};
     }},
};

const Case kNormalisation[] = {
    {"batch_norm_training",
     [](In& in) -> Tensors {
       torch::Tensor mean = in.plain({3});
       torch::Tensor variance = in.between(0.5, 1, {3}).detach();
       torch::Tensor y = torch::batch_norm(in({4, 3, 5, 5}), in({3}), in({3}), mean, variance, true,
                                           0.1, 1e-5, false);
       return {y, mean, variance};
     }},
    {"batch_norm_evaluation",
     [](In& in) -> Tensors {
       return {torch::batch_norm(in({4, 3, 5, 5}), in({3}), in({3}), in.plain({3}),
                                 in.between(0.5, 1, {3}).detach(), false, 0.1, 1e-5, false)};
     }},
    {"batch_norm_1d",
     [](In& in) -> Tensors {
       return {torch::batch_norm(in({4, 3}), {}, {}, {}, {}, true, 0.1, 1e-5, false)};
     }},
    {"instance_norm",
     [](In& in) -> Tensors {
       return {torch::instance_norm(in({2, 3, 5, 5}), in({3}), in({3}), {}, {}, true, 0.1, 1e-5,
                                    false)};
     }},
    {"layer_norm",
     [](In& in) -> Tensors { return {torch::layer_norm(in({2, 3, 4}), {4}, in({4}), in({4}))}; }},
    {"layer_norm_two_dims",
     [](In& in) -> Tensors { return {torch::layer_norm(in({2, 3, 4}), {3, 4})}; }},
    {"group_norm",
     [](In& in) -> Tensors { return {torch::group_norm(in({2, 6, 4}), 3, in({6}), in({6}))}; }},
    {"local_response_norm",
     [](In& in) -> Tensors {
       return {F::local_response_norm(in({2, 4, 3, 3}), F::LocalResponseNormFuncOptions(2))};
     }},
    {"rms_norm", [](In& in) -> Tensors { return {torch::rms_norm(in({2, 3, 4}), {4}, in({4}))}; }},
    {"weight_norm",
     [](In& in) -> Tensors { return {torch::_weight_norm(in({4, 3}), in({4, 1}), 0)}; }},
};

const Case kActivations[] = {
    {"softmax", [](In& in) -> Tensors { return {torch::softmax(in(), 1)}; }},
    {"softmax_dtype", [](In& in) -> Tensors { return {torch::softmax(in(), 0, at::kDouble)}; }},
    {"log_softmax", [](In& in) -> Tensors { return {torch::log_softmax(in(), -1)}; }},
    {"elu", [](In& in) -> Tensors { return {torch::elu(in(), 0.7, 1.2)}; }},
    {"celu", [](In& in) -> Tensors { return {torch::celu(in(), 0.7)}; }},
    {"gelu", [](In& in) -> Tensors { return {torch::gelu(in())}; }},
    {"gelu_tanh", [](In& in) -> Tensors { return {torch::gelu(in(), "tanh")}; }},
    {"glu", [](In& in) -> Tensors { return {torch::glu(in(), 1)}; }},
    {"hardshrink", [](In& in) -> Tensors { return {torch::hardshrink(in(), 0.4)}; }},
    {"hardsigmoid", [](In& in) -> Tensors { return {torch::hardsigmoid(in())}; }},
    {"hardswish", [](In& in) -> Tensors { return {torch::hardswish(in())}; }},
    {"hardtanh", [](In& in) -> Tensors { return {torch::hardtanh(in(), -0.5, 0.5)}; }},
    {"leaky_relu", [](In& in) -> Tensors { return {torch::leaky_relu(in(), 0.1)}; }},
    {"log_sigmoid", [](In& in) -> Tensors { return {torch::log_sigmoid(in())}; }},
    {"mish", [](In& in) -> Tensors { return {torch::mish(in())}; }},
    {"prelu", [](In& in) -> Tensors { return {torch::prelu(in(), in({4}))}; }},
    {"relu6", [](In& in) -> Tensors { return {torch::relu6(in())}; }},
    {"rrelu_evaluation", [](In& in) -> Tensors { return {torch::rrelu(in(), 0.1, 0.3, false)}; },
     true},
    {"softplus", [](In& in) -> Tensors { return {torch::softplus(in(), 2, 1)}; }},
    {"softshrink", [](In& in) -> Tensors { return {torch::softshrink(in(), 0.4)}; }},
    {"softsign", [](In& in) -> Tensors { return {F::softsign(in())}; }},
    {"leaky_relu_in_place",
     [](In& in) -> Tensors {
       torch::Tensor x = in() * 1;
       torch::leaky_relu_(x, 0.1);
       return {x};
     }},
    {"dropout", [](In& in) -> Tensors { return {torch::dropout(in({8, 8}), 0.4, true)}; }},
    {"dropout_evaluation", [](In& in) -> Tensors { return {torch::dropout(in(), 0.4, false)}; }},
    {"feature_dropout",
     [](In& in) -> Tensors { return {torch::feature_dropout(in({2, 5, 3}), 0.4, true)}; }},
};

const Case kEmbeddings[] = {
    {"embedding",
     [](In& in) -> Tensors { return {torch::embedding(in({6, 3}), in.ints(0, 6, {2, 4}))}; }},
    {"embedding_padding",
     [](In& in) -> Tensors { return {torch::embedding(in({6, 3}), in.ints(0, 6, {2, 4}), 2)}; }},
    {"embedding_bag",
     [](In& in) -> Tensors {
       torch::Tensor offsets = torch::tensor({0, 3}).to(in.device);
       return {std::get<0>(torch::embedding_bag(in({6, 3}), in.ints(0, 6, {7}), offsets))};
     },
     true},
    {"attention",
     [](In& in) -> Tensors {
       return {torch::scaled_dot_product_attention(in({1, 2, 4, 8}), in({1, 2, 5, 8}),
                                                   in({1, 2, 5, 8}))};
     }},
    {"lstm_cell",
     [](In& in) -> Tensors {
       auto [h, c] = torch::lstm_cell(in({2, 3}), {in({2, 4}), in({2, 4})}, in({16, 3}),
                                      in({16, 4}), in({16}), in({16}));
       return {h, c};
     }},
    {"gru_cell",
     [](In& in) -> Tensors {
       return {
           torch::gru_cell(in({2, 3}), in({2, 4}), in({12, 3}), in({12, 4}), in({12}), in({12}))};
     }},
};

#define LOSS(name, ...)            \
  {name, [](In& in) -> Tensors {   \
     torch::Tensor x = in({5, 4}); \
     torch::Tensor y = in({5, 4}); \
     return {__VA_ARGS__};         \
   }}

const Case kLosses[] = {
    LOSS("l1", torch::l1_loss(x, y), torch::l1_loss(x, y, at::Reduction::Sum)),
    LOSS("mse", torch::mse_loss(x, y), torch::mse_loss(x, y, at::Reduction::None)),
    LOSS("smooth_l1", torch::smooth_l1_loss(x, y), torch::smooth_l1_loss(x, y, at::Reduction::Sum, 0.5)),
    LOSS("huber", torch::huber_loss(x, y, at::Reduction::Mean, 0.7)),
    LOSS("kl_div", torch::kl_div(x, y.softmax(1)), torch::kl_div(x, y, at::Reduction::Sum, true)),
    LOSS("soft_margin", torch::soft_margin_loss(x, y.detach().sign())),
    LOSS("poisson_nll", torch::poisson_nll_loss(x, y.exp(), true, false, 1e-8, at::Reduction::Mean)),
    LOSS("binary_cross_entropy", torch::binary_cross_entropy(x.sigmoid(), y.sigmoid(), in.plain({4}).abs())),
    LOSS("binary_cross_entropy_with_logits",
         torch::binary_cross_entropy_with_logits(x, y.sigmoid(), in.plain({4}).abs(), in.plain({4}).exp())),
    LOSS("hinge_embedding", torch::hinge_embedding_loss(x, y.detach().sign())),
    LOSS("margin_ranking", torch::margin_ranking_loss(x, y, in.plain({5, 4}).sign(), 0.3)),
    LOSS("cosine_embedding", torch::cosine_embedding_loss(x, y, in.plain({5}).sign(), 0.2)),
    LOSS("triplet_margin", torch::triplet_margin_loss(x, y, in({5, 4}), 1.0)),
    LOSS("multi_margin", torch::multi_margin_loss(x, in.ints(0, 4, {5}))),
    LOSS("multilabel_margin", torch::multilabel_margin_loss(x, in.ints(0, 4, {5, 4}))),
    LOSS("nll", torch::nll_loss(x.log_softmax(1), in.ints(0, 4, {5})),
         torch::nll_loss(x, in.ints(0, 4, {5}), in({4}).detach().exp(), at::Reduction::Sum)),
    LOSS("nll_ignored", torch::nll_loss(x, in.ints(0, 4, {5}), {}, at::Reduction::Mean, 2)),
    LOSS("cross_entropy", torch::cross_entropy_loss(x, in.ints(0, 4, {5})),
         torch::cross_entropy_loss(x, y.softmax(1)),
         torch::cross_entropy_loss(x, in.ints(0, 4, {5}), {}, at::Reduction::Mean, -100, 0.1)),
    {"nll_2d",
     [](In& in) -> Tensors {
       return {torch::nll_loss2d(in({2, 3, 4, 4}).log_softmax(1), in.ints(0, 3, {2, 4, 4}))};
     }},
};

COMPARE_WITH_EAGER(Convolutions, kConvolutions);
COMPARE_WITH_EAGER(Pooling, kPooling);
COMPARE_WITH_EAGER(Spatial, kSpatial);
COMPARE_WITH_EAGER(Normalisation, kNormalisation);
COMPARE_WITH_EAGER(Activations, kActivations);
COMPARE_WITH_EAGER(Embeddings, kEmbeddings);
COMPARE_WITH_EAGER(Losses, kLosses);

}  // namespace
}  // namespace upstream_ops
