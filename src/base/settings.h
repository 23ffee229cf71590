// The one table of settings: ours, and under their own names those of PyTorch's Lazy Tensor Core.
// Each is read from the environment once, at its first use, and can be changed later by name;
// docs/settings.md is made from the table.
#pragma once

#include "base/ranked_mutex.h"
#include <torch_lazy/export.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace torch_lazy {

/// A setting that is a string. `empty` is cheap enough for every call; `get` copies under a lock.
class TextSetting {
 public:
  bool empty() const { return empty_.load(std::memory_order_relaxed); }
  std::string get() const;
  void set(std::string value);

 private:
  mutable RankedMutex mutex_{Rank::settings};
  std::string value_;
  std::atomic<bool> empty_{true};
};

enum class AsyncMode : uint8_t { automatic, on, off };
enum class CompilerMode : uint8_t { off, on, force, check };
enum class ProductMode : uint8_t { automatic, own, onednn, aten };
enum class SaveFormat : uint8_t { text, dot, backend };

// A comment names the rows of the table that change the field; the first is the one to use.
struct Settings {
  // Where and when recorded work runs.
  std::atomic<bool> cuda;               // TORCH_LAZY_DEVICE, TORCH_LAZY_TS_CUDA, LTC_TS_CUDA
  TextSetting backend;                  // TORCH_LAZY_BACKEND
  std::atomic<AsyncMode> async_mode;    // TORCH_LAZY_ASYNC, TORCH_LAZY_USE_THREAD_POOL
  std::atomic<bool> step_on_optimizer;  // TORCH_LAZY_STEP_ON_OPTIMIZER
  std::atomic<int64_t> max_nodes;       // TORCH_LAZY_MAX_NODES
  std::atomic<int64_t> max_bytes_held;  // TORCH_LAZY_MAX_BYTES_HELD
  std::atomic<int64_t> trim_graph_check_frequency;  // TORCH_LAZY_TRIM_GRAPH_CHECK_FREQUENCY
  std::atomic<int64_t> trim_graph_size;             // TORCH_LAZY_TRIM_GRAPH_SIZE

  // The compiler.
  std::atomic<CompilerMode> compiler;  // TORCH_LAZY_COMPILER
  std::atomic<ProductMode> products;   // TORCH_LAZY_PRODUCTS
  std::atomic<bool> keep_weights;      // TORCH_LAZY_KEEP_WEIGHTS
  TextSetting compile_log;             // TORCH_LAZY_COMPILE_LOG
  TextSetting codegen_target;          // TORCH_LAZY_CODEGEN_TARGET
  TextSetting codegen_library;         // TORCH_LAZY_CODEGEN_LIBRARY

  // Recording.
  std::atomic<bool> reuse_ir;                     // TORCH_LAZY_REUSE_IR
  std::atomic<int64_t> trace_steps;               // TORCH_LAZY_TRACE_STEPS
  std::atomic<bool> handle_special_scalars;       // TORCH_LAZY_HANDLE_SPECIAL_SCALARS
  std::atomic<bool> all_numbers_special_scalars;  // TORCH_LAZY_ALL_NUMBERS_SPECIAL_SCALARS
  std::atomic<bool> dynamic_shapes;               // LTC_ENABLE_DYNAMIC_SHAPES
  std::atomic<bool> symbolic_shapes;              // LTC_ENABLE_SYMBOLIC_SHAPES
  TextSetting force_fallback;                     // LTC_FORCE_FALLBACK

  // Caches.
  std::atomic<int64_t> plan_cache;  // TORCH_LAZY_PLAN_CACHE, TORCH_LAZY_COMPILATION_CACHE_SIZE
  std::atomic<int64_t> plan_cache_bytes;  // TORCH_LAZY_PLAN_CACHE_BYTES
  std::atomic<int64_t> layout_cache;      // TORCH_LAZY_LAYOUT_CACHE, TORCH_LAZY_SHAPE_CACHE_SIZE
  std::atomic<bool> data_cache;           // TORCH_LAZY_ENABLE_DEVICE_DATA_CACHE
  std::atomic<int64_t> data_cache_size;   // TORCH_LAZY_DEVICE_DATA_CACHE_SIZE
  TextSetting cache_dir;                  // TORCH_LAZY_CACHE_DIR
  std::atomic<int64_t> cache_bytes;       // TORCH_LAZY_CACHE_BYTES

  // Seeing what happens.
  std::atomic<int64_t> metrics_samples;         // TORCH_LAZY_METRICS_SAMPLES
  TextSetting metrics_percentiles;              // TORCH_LAZY_METRICS_PERCENTILES
  std::atomic<bool> source_lines;               // TORCH_LAZY_SOURCE_LINES, LTC_ENABLE_SOURCE_INFO
  std::atomic<bool> ir_debug;                   // TORCH_LAZY_IR_DEBUG
  TextSetting save_tensors_file;                // LTC_SAVE_TENSORS_FILE
  std::atomic<SaveFormat> save_tensors_format;  // LTC_SAVE_TENSORS_FMT
  std::atomic<bool> check;                      // TORCH_LAZY_CHECK
  TextSetting fault;                            // TORCH_LAZY_FAULT

  // For Python code and programs written for the original.
  std::atomic<bool> drop_in;                 // TORCH_LAZY_DROP_IN
  std::atomic<int64_t> max_async_queue;      // LTC_MAX_ASYNC_QUEUE
  TextSetting experimental;                  // LTC_EXPERIMENTAL
  std::atomic<bool> param_aliasing;          // TORCH_LAZY_PARAM_ALIASING
  std::atomic<int64_t> io_thread_pool_size;  // TORCH_LAZY_IO_THREAD_POOL_SIZE
  std::atomic<bool> tensor_update_sync;      // TORCH_LAZY_TS_TENSOR_UPDATE_SYNC
};

TORCH_LAZY_API Settings& settings();

/// The settings of LTC_SAVE_TENSORS_*, which a program may still put into its environment before
/// the first graph runs. Reads them at the first call.
Settings& settings_at_sync();

/// Whether LTC_EXPERIMENTAL, names with colons between them, has this name.
TORCH_LAZY_API bool experiment_enabled(std::string_view name);

struct SettingRow {
  std::string name;
  std::string value;
  std::string default_value;
  std::string meaning;
};

TORCH_LAZY_API std::vector<SettingRow> settings_table();
std::string get_setting_value(const std::string& name);
void set_setting_value(const std::string& name, const std::string& value);

/// The numbers of a text like "0.1:0.5", which must lie strictly between 0 and 1.
std::vector<double> parse_percentiles(const std::string& text);

}  // namespace torch_lazy
