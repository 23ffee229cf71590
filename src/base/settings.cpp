// The table of settings and its parsing.
#include "base/settings.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <optional>

namespace torch_lazy {
namespace {

/// From where a row takes its value in the environment, and when.
enum class Reading : uint8_t {
  value,     // at the first use of any setting
  presence,  // likewise, but the variable switches on by being there, whatever its value
  at_sync,   // when the first graph runs
};

struct Row {
  const char* name;
  const char* default_value;
  const char* meaning;
  std::function<void(Settings&, const std::string&)> set;
  std::function<std::string(const Settings&)> get;
  Reading reading = Reading::value;
  bool alias = false;  // a second name: no default of its own, and the first name wins
};

[[noreturn]] void refuse(const char* name, const std::string& value, const char* expected) {
  TORCH_CHECK_VALUE(false, "torch-lazy: setting ", name, " is '", value, "', expected ", expected);
}

bool parse_flag(const char* name, const std::string& value, const char* expected = "1 or 0") {
  if (value == "1" || value == "on" || value == "true") {
    return true;
  }
  if (value == "0" || value == "off" || value == "false") {
    return false;
  }
  refuse(name, value, expected);
}

Row flag(const char* name, const char* default_value, const char* meaning,
         std::atomic<bool> Settings::* field) {
  return {name, default_value, meaning,
          [=](Settings& s, const std::string& value) { s.*field = parse_flag(name, value); },
          [=](const Settings& s) { return (s.*field).load() ? "1" : "0"; }};
}

Row number(const char* name, const char* default_value, const char* meaning,
           std::atomic<int64_t> Settings::* field) {
  return {name, default_value, meaning,
          [=](Settings& s, const std::string& value) {
            size_t used = 0;
            int64_t parsed = -1;
            try {
              parsed = std::stoll(value, &used);
            } catch (const std::exception&) {
              refuse(name, value, "a whole number");
            }
            if (used != value.size() || parsed < 0) {
              refuse(name, value, "a whole number, zero or more");
            }
            s.*field = parsed;
          },
          [=](const Settings& s) { return std::to_string((s.*field).load()); }};
}

Row text(const char* name, const char* default_value, const char* meaning,
         TextSetting Settings::* field) {
  return {name, default_value, meaning,
          [=](Settings& s, const std::string& value) { (s.*field).set(value); },
          [=](const Settings& s) { return (s.*field).get(); }};
}

Row alias(Row row, Reading reading = Reading::value) {
  row.reading = reading;
  row.alias = true;
  return row;
}

Row reading(Reading how, Row row) {
  row.reading = how;
  return row;
}

const char* device_name(const Settings& s) {
  return s.cuda ? "cuda" : "cpu";
}

void set_device(Settings& s, const std::string& value) {
  if (value != "cpu" && value != "cuda") {
    refuse("TORCH_LAZY_DEVICE", value, "cpu or cuda");
  }
  s.cuda = value == "cuda";
}

const char* async_name(const Settings& s) {
  switch (s.async_mode.load()) {
    case AsyncMode::automatic:
      return "auto";
    case AsyncMode::on:
      return "1";
    case AsyncMode::off:
      return "0";
  }
  return "";
}

Row async(const char* name, const char* default_value, const char* meaning) {
  return {name, default_value, meaning,
          [=](Settings& s, const std::string& value) {
            if (value == "auto") {
              s.async_mode = AsyncMode::automatic;
              return;
            }
            s.async_mode = parse_flag(name, value, "auto, 1 or 0") ? AsyncMode::on : AsyncMode::off;
          },
          async_name};
}

const char* compiler_name(const Settings& s) {
  switch (s.compiler.load()) {
    case CompilerMode::off:
      return "off";
    case CompilerMode::on:
      return "on";
    case CompilerMode::force:
      return "force";
    case CompilerMode::check:
      return "check";
  }
  return "";
}

void set_compiler(Settings& s, const std::string& value) {
  if (value == "force" || value == "check") {
    s.compiler = value == "force" ? CompilerMode::force : CompilerMode::check;
    return;
  }
  s.compiler = parse_flag("TORCH_LAZY_COMPILER", value, "off, on, force or check")
                   ? CompilerMode::on
                   : CompilerMode::off;
}

const char* name_of(ProductMode mode) {
  switch (mode) {
    case ProductMode::automatic:
      return "auto";
    case ProductMode::own:
      return "own";
    case ProductMode::onednn:
      return "onednn";
    case ProductMode::aten:
      return "aten";
  }
  return "";
}

const char* products_name(const Settings& s) {
  return name_of(s.products);
}

void set_products(Settings& s, const std::string& value) {
  for (const ProductMode mode :
       {ProductMode::automatic, ProductMode::own, ProductMode::onednn, ProductMode::aten}) {
    if (value == name_of(mode)) {
      s.products = mode;
      return;
    }
  }
  refuse("TORCH_LAZY_PRODUCTS", value, "auto, own, onednn or aten");
}

const char* save_format_name(const Settings& s) {
  switch (s.save_tensors_format.load()) {
    case SaveFormat::text:
      return "text";
    case SaveFormat::dot:
      return "dot";
    case SaveFormat::backend:
      return "backend";
  }
  return "";
}

void set_save_format(Settings& s, const std::string& value) {
  if (value != "text" && value != "dot" && value != "backend") {
    std::cerr << "torch-lazy: Invalid save graph format: " << value << std::endl;
  }
  s.save_tensors_format = value == "dot"       ? SaveFormat::dot
                          : value == "backend" ? SaveFormat::backend
                                               : SaveFormat::text;
}

void set_percentiles(Settings& s, const std::string& value) {
  parse_percentiles(value);
  s.metrics_percentiles.set(value);
}

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      // ---- Where and when recorded work runs
      {"TORCH_LAZY_DEVICE", "cpu",
       "The device that does the work: cpu or cuda. Read when the first lazy tensor is made.",
       set_device, device_name},
      text("TORCH_LAZY_BACKEND", "",
           "A backend that compiles and runs graphs: the path of a shared library, or the name of "
           "an "
           "installed one. Empty: the built-in one, which calls PyTorch's kernels. Read when the "
           "first graph runs.",
           &Settings::backend),
      async("TORCH_LAZY_ASYNC", "auto",
            "Whether graphs run on a thread of their own while the program goes on: 1, 0, or auto "
            "(where a core is spare for it)."),
      {"TORCH_LAZY_COMPILER", "on",
       "Whether graphs are compiled into fused kernels: on (a graph that is seen again), force "
       "(every graph, before its first run), off (PyTorch's kernels alone: eager's bits), or check "
       "(both; the first operator whose values differ is warned about).",
       set_compiler, compiler_name},
      {"TORCH_LAZY_PRODUCTS", "auto",
       "Who multiplies matrices and convolves in compiled graphs: own (torch-lazy's kernels, for "
       "float32 with AVX2 or AVX-512), onednn (the oneDNN that is built in, for convolutions and "
       "gradients of their inputs with AVX-512; the rest as with own), aten (PyTorch's), or auto "
       "(whichever is the fastest for the processor and the size).",
       set_products, products_name},
      flag("TORCH_LAZY_KEEP_WEIGHTS", "1",
           "Weights of convolutions that stay the same from run to run are kept in oneDNN's layout "
           "as well, which takes as much memory again.",
           &Settings::keep_weights),
      text("TORCH_LAZY_COMPILE_LOG", "",
           "A file to which the compiler appends what it makes of each graph, pass by pass, with "
           "times; - for the standard error.",
           &Settings::compile_log),
      text("TORCH_LAZY_CODEGEN_TARGET", "",
           "The processor that kernels are compiled for: host, x86-64, x86-64-v3 or x86-64-v4; "
           "torch-lazy's own products and convolutions use no newer one either. Empty: host. Read "
           "when the first kernel is compiled.",
           &Settings::codegen_target),
      text("TORCH_LAZY_CODEGEN_LIBRARY", "",
           "The code generator's library. Empty: the one beside torch-lazy's own. Read when the "
           "first kernel is compiled.",
           &Settings::codegen_library),
      flag("TORCH_LAZY_STEP_ON_OPTIMIZER", "1",
           "An optimizer's step() on lazy parameters ends the step (mark_step).",
           &Settings::step_on_optimizer),
      number("TORCH_LAZY_MAX_NODES", "50000",
             "Run what is pending when this many operations are recorded. 0: no limit.",
             &Settings::max_nodes),
      number("TORCH_LAZY_MAX_BYTES_HELD", "1073741824",
             "Run what is pending when the graph alone keeps this many bytes alive. 0: no limit.",
             &Settings::max_bytes_held),
      number("TORCH_LAZY_TRIM_GRAPH_CHECK_FREQUENCY", "5000",
             "After every so many operations a thread looks how large the graph behind its last "
             "result is. 0: never.",
             &Settings::trim_graph_check_frequency),
      number("TORCH_LAZY_TRIM_GRAPH_SIZE", "100000",
             "A graph found to have more operations than this runs (counter TrimIrGraph).",
             &Settings::trim_graph_size),

      // ---- Recording
      flag("TORCH_LAZY_REUSE_IR", "1",
           "While a step repeats the last one, reuse what was recorded then instead of describing "
           "every call anew.",
           &Settings::reuse_ir),
      number("TORCH_LAZY_TRACE_STEPS", "65536",
             "How many recorded calls each thread remembers for reuse.", &Settings::trace_steps),
      flag("TORCH_LAZY_HANDLE_SPECIAL_SCALARS", "0",
           "The numbers 0, 1 and -1 are part of the graph instead of its inputs.",
           &Settings::handle_special_scalars),
      flag("TORCH_LAZY_ALL_NUMBERS_SPECIAL_SCALARS", "0",
           "Together with TORCH_LAZY_HANDLE_SPECIAL_SCALARS: all numbers are. A new value then "
           "needs a new compilation.",
           &Settings::all_numbers_special_scalars),
      reading(Reading::presence,
              flag("LTC_ENABLE_DYNAMIC_SHAPES", "0",
                   "Accepted for programs written for the original, without effect: a graph with "
                   "other sizes is another plan, which takes microseconds to make.",
                   &Settings::dynamic_shapes)),
      reading(Reading::presence,
              flag("LTC_ENABLE_SYMBOLIC_SHAPES", "0",
                   "Accepted for programs written for the original, without effect: an operator "
                   "whose sizes depend on data is executed at once, so its sizes are known.",
                   &Settings::symbolic_shapes)),
      text("LTC_FORCE_FALLBACK", "",
           "An operator without its overload, like aten::sub, that is executed at once instead of "
           "being recorded.",
           &Settings::force_fallback),

      // ---- Caches
      number("TORCH_LAZY_PLAN_CACHE", "1024", "How many compiled graphs are kept.",
             &Settings::plan_cache),
      number("TORCH_LAZY_PLAN_CACHE_BYTES", "536870912",
             "About how many bytes of memory they may hold, with their machine code; those used "
             "longest ago go first, and the latest stays. 0: no limit.",
             &Settings::plan_cache_bytes),
      number("TORCH_LAZY_LAYOUT_CACHE", "65536",
             "How many descriptions of calls (operator, arguments, result layouts) are kept.",
             &Settings::layout_cache),
      flag("TORCH_LAZY_ENABLE_DEVICE_DATA_CACHE", "1",
           "Small tensors made from equal host data share one copy on the device.",
           &Settings::data_cache),
      number("TORCH_LAZY_DEVICE_DATA_CACHE_SIZE", "128", "How many such copies each device keeps.",
             &Settings::data_cache_size),
      text("TORCH_LAZY_CACHE_DIR", "auto",
           "The folder in which compiled kernels are kept for the next process. auto: torch_lazy "
           "in $XDG_CACHE_HOME, else in ~/.cache. off, or empty: none are kept. It must belong to "
           "the user, and nobody else may be able to write to it.",
           &Settings::cache_dir),
      number("TORCH_LAZY_CACHE_BYTES", "268435456",
             "How many bytes of compiled kernels are kept there; those used longest ago go first. "
             "0: none.",
             &Settings::cache_bytes),

      // ---- Seeing what happens
      number("TORCH_LAZY_METRICS_SAMPLES", "1024",
             "How many samples a metric keeps for its percentiles and rates. Holds for metrics "
             "made, or reset, later.",
             &Settings::metrics_samples),
      {"TORCH_LAZY_METRICS_PERCENTILES", "0.01:0.05:0.1:0.2:0.5:0.8:0.9:0.95:0.99",
       "Which percentiles a report shows: numbers between 0 and 1 with colons between them.",
       set_percentiles, [](const Settings& s) { return s.metrics_percentiles.get(); }},
      flag("TORCH_LAZY_SOURCE_LINES", "0",
           "Keep the user's source line with every recorded operation, for errors and dumps.",
           &Settings::source_lines),
      flag("TORCH_LAZY_IR_DEBUG", "0",
           "Keep the scope and the innermost source line with every recorded operation, for dumps "
           "in the original's form.",
           &Settings::ir_debug),
      reading(
          Reading::at_sync,
          text("LTC_SAVE_TENSORS_FILE", "",
               "A file to which every graph that runs is appended. Read when the first one does.",
               &Settings::save_tensors_file)),
      {"LTC_SAVE_TENSORS_FMT", "text",
       "The form of graphs in that file: text, dot or backend. Anything else is reported to stderr "
       "and means text.",
       set_save_format, save_format_name, Reading::at_sync},
      flag("TORCH_LAZY_CHECK", "0",
           "Debugging: run every operation as soon as it is recorded, so that errors come at once.",
           &Settings::check),
      text("TORCH_LAZY_FAULT", "",
           "Tests: raise an error in a stage at a position, written stage:position.",
           &Settings::fault),

      // ---- For programs written for the original
      flag("TORCH_LAZY_DROP_IN", "0",
           "At import, put torch-lazy in the place of torch._lazy and its bindings.",
           &Settings::drop_in),
      number("LTC_MAX_ASYNC_QUEUE", "100", "How many asynchronous step closures may wait.",
             &Settings::max_async_queue),
      text("LTC_EXPERIMENTAL", "",
           "Names with colons between them, for experiment_enabled. torch-lazy asks for none.",
           &Settings::experimental),
      flag("TORCH_LAZY_PARAM_ALIASING", "1",
           "Accepted, no effect: memory that nobody needs any more is always reused.",
           &Settings::param_aliasing),
      number("TORCH_LAZY_IO_THREAD_POOL_SIZE", "1", "Accepted, no effect: a device has one thread.",
             &Settings::io_thread_pool_size),
      flag("TORCH_LAZY_TS_TENSOR_UPDATE_SYNC", "1",
           "Accepted, no effect: a copy from another device is always there at once.",
           &Settings::tensor_update_sync),

      // ---- The original's names for settings above
      alias({"TORCH_LAZY_TS_CUDA", "0", "The same as TORCH_LAZY_DEVICE: 1 is cuda, 0 is cpu.",
             [](Settings& s, const std::string& value) {
               s.cuda = parse_flag("TORCH_LAZY_TS_CUDA", value);
             },
             [](const Settings& s) { return s.cuda ? "1" : "0"; }}),
      alias(
          {"LTC_TS_CUDA", "0",
           "Likewise. In the environment any value, even 0, is cuda, as in the original.",
           [](Settings& s, const std::string& value) { s.cuda = parse_flag("LTC_TS_CUDA", value); },
           [](const Settings& s) { return s.cuda ? "1" : "0"; }},
          Reading::presence),
      alias(async("TORCH_LAZY_USE_THREAD_POOL", "auto", "The same as TORCH_LAZY_ASYNC.")),
      alias(number("TORCH_LAZY_COMPILATION_CACHE_SIZE", "1024",
                   "The same as TORCH_LAZY_PLAN_CACHE.", &Settings::plan_cache)),
      alias(number("TORCH_LAZY_SHAPE_CACHE_SIZE", "65536", "The same as TORCH_LAZY_LAYOUT_CACHE.",
                   &Settings::layout_cache)),
      alias(flag("LTC_ENABLE_SOURCE_INFO", "0", "The same as TORCH_LAZY_SOURCE_LINES.",
                 &Settings::source_lines)),
  };
  return table;
}

const Row& find(const std::string& name) {
  std::string names;
  for (const Row& row : rows()) {
    if (name == row.name) {
      return row;
    }
    names += names.empty() ? "" : ", ";
    names += row.name;
  }
  TORCH_CHECK_VALUE(false, "torch-lazy: no setting '", name, "'; there are ", names);
}

std::optional<std::string> from_environment(const Row& row) {
  const char* value = std::getenv(row.name);
  if (!value) {
    return std::nullopt;
  }
  return row.reading == Reading::presence ? "1" : value;
}

/// A value that cannot be read must not take `import torch` away: the setting stays as it is.
void set_from_environment(Settings& s, const Row& row) {
  const std::optional<std::string> value = from_environment(row);
  if (!value) {
    return;
  }
  try {
    row.set(s, *value);
  } catch (const c10::Error& error) {
    TORCH_WARN(error.what_without_backtrace(), "; the environment's value is ignored, it stays '",
               row.get(s), "'");
  }
}

void read_environment(Settings& s) {
  for (const Row& row : rows()) {
    if (!row.alias) {
      row.set(s, row.default_value);
    }
  }
  for (bool alias : {true, false}) {
    for (const Row& row : rows()) {
      if (row.alias == alias && row.reading != Reading::at_sync) {
        set_from_environment(s, row);
      }
    }
  }
}

/// Which of the settings that are read at the first sync are not read yet.
struct Unread {
  RankedMutex mutex{Rank::late_settings};
  std::vector<const Row*> rows;
  std::atomic<bool> any{true};

  Unread() {
    for (const Row& row : torch_lazy::rows()) {
      if (row.reading == Reading::at_sync) {
        rows.push_back(&row);
      }
    }
  }
};

Unread& unread() {
  static auto* instance = new Unread();
  return *instance;
}

}  // namespace

std::string TextSetting::get() const {
  std::lock_guard<RankedMutex> lock(mutex_);
  return value_;
}

void TextSetting::set(std::string value) {
  std::lock_guard<RankedMutex> lock(mutex_);
  value_ = std::move(value);
  empty_ = value_.empty();
}

Settings& settings() {
  static Settings* instance = [] {
    auto* s = new Settings();
    read_environment(*s);
    return s;
  }();
  return *instance;
}

Settings& settings_at_sync() {
  Unread& late = unread();
  if (late.any.load(std::memory_order_acquire)) {
    std::lock_guard<RankedMutex> lock(late.mutex);
    for (const Row* row : late.rows) {
      set_from_environment(settings(), *row);
    }
    late.rows.clear();
    late.any.store(false, std::memory_order_release);
  }
  return settings();
}

bool experiment_enabled(std::string_view name) {
  const std::string names = ":" + settings().experimental.get() + ":";
  return names.find(":" + std::string(name) + ":") != std::string::npos;
}

std::vector<SettingRow> settings_table() {
  std::vector<SettingRow> table;
  for (const Row& row : rows()) {
    table.push_back({row.name, get_setting_value(row.name), row.default_value, row.meaning});
  }
  return table;
}

std::string get_setting_value(const std::string& name) {
  const Row& row = find(name);
  if (row.reading == Reading::at_sync) {
    std::lock_guard<RankedMutex> lock(unread().mutex);
    if (std::find(unread().rows.begin(), unread().rows.end(), &row) != unread().rows.end()) {
      return from_environment(row).value_or(row.default_value);
    }
  }
  return row.get(settings());
}

void set_setting_value(const std::string& name, const std::string& value) {
  const Row& row = find(name);
  if (row.reading == Reading::at_sync) {
    std::lock_guard<RankedMutex> lock(unread().mutex);
    std::erase(unread().rows, &row);
  }
  row.set(settings(), value);
}

std::vector<double> parse_percentiles(const std::string& text) {
  std::vector<double> numbers;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    const std::string piece = text.substr(begin, end - begin);
    size_t used = 0;
    double parsed = 0;
    try {
      parsed = std::stod(piece, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used != piece.size() || !(parsed > 0 && parsed < 1)) {
      refuse("TORCH_LAZY_METRICS_PERCENTILES", text,
             "numbers between 0 and 1 with colons between them");
    }
    numbers.push_back(parsed);
    begin = end + 1;
  }
  return numbers;
}

}  // namespace torch_lazy
