"""The functions of torch that make a tensor from no other tensor, and so need to be told where."""

import torch

_NAMES = (
    # filled with one value, or not at all
    "empty_strided full ones zeros scalar_tensor tensor _efficientzerotensor "
    "_empty_affine_quantized from_file "
    # sequences and indices
    "arange range linspace logspace eye tril_indices triu_indices "
    # windows
    "bartlett_window blackman_window hamming_window hann_window kaiser_window "
    # random numbers
    "rand randint randn randperm _cudnn_init_dropout_state"
)

tensor_factory_functions = tuple(getattr(torch, name) for name in _NAMES.split())
