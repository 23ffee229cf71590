// Visibility of torch-lazy's public symbols.
#pragma once

// The same on both sides: a plug-in compiled with hidden visibility must still see the library's
// classes as the library's.
#define TORCH_LAZY_API __attribute__((visibility("default")))
