// Visibility of torch-lazy's public symbols.
#pragma once

#ifdef TORCH_LAZY_BUILDING
#define TORCH_LAZY_API __attribute__((visibility("default")))
#else
#define TORCH_LAZY_API
#endif
