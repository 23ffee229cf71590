// The one table of settings. Each is read from the environment once, at its first use, and can be
// changed later by name; docs/settings.md is made from the table.
#pragma once

#include <torch_lazy/export.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace torch_lazy {

struct Settings {
  std::atomic<bool> cuda;               // TORCH_LAZY_DEVICE
  std::atomic<bool> step_on_optimizer;  // TORCH_LAZY_STEP_ON_OPTIMIZER
  std::atomic<int64_t> max_nodes;       // TORCH_LAZY_MAX_NODES
  std::atomic<int64_t> max_bytes_held;  // TORCH_LAZY_MAX_BYTES_HELD
  std::atomic<int64_t> plan_cache;      // TORCH_LAZY_PLAN_CACHE
  std::atomic<int64_t> layout_cache;    // TORCH_LAZY_LAYOUT_CACHE
  std::atomic<bool> source_lines;       // TORCH_LAZY_SOURCE_LINES
  std::atomic<bool> check;              // TORCH_LAZY_CHECK
};

Settings& settings();

struct SettingRow {
  std::string name;
  std::string value;
  std::string default_value;
  std::string meaning;
};

TORCH_LAZY_API std::vector<SettingRow> settings_table();
std::string get_setting_value(const std::string& name);
void set_setting_value(const std::string& name, const std::string& value);

}  // namespace torch_lazy
