// The table of settings and its parsing.
#include "base/settings.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <functional>

namespace torch_lazy {
namespace {

struct Row {
  const char* name;
  const char* default_value;
  const char* meaning;
  std::function<void(Settings&, const std::string&)> set;
  std::function<std::string(const Settings&)> get;
};

[[noreturn]] void refuse(const char* name, const std::string& value, const char* expected) {
  TORCH_CHECK_VALUE(false, "torch-lazy: setting ", name, " is '", value, "', expected ", expected);
}

Row flag(const char* name, const char* default_value, const char* meaning,
         std::atomic<bool> Settings::* field) {
  return {name, default_value, meaning,
          [=](Settings& s, const std::string& value) {
            if (value == "1" || value == "on" || value == "true") {
              s.*field = true;
            } else if (value == "0" || value == "off" || value == "false") {
              s.*field = false;
            } else {
              refuse(name, value, "1 or 0");
            }
          },
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

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {"TORCH_LAZY_DEVICE", "cpu",
       "The device that does the work: cpu or cuda. Read when the first lazy tensor is made.",
       [](Settings& s, const std::string& value) {
         if (value != "cpu" && value != "cuda") {
           refuse("TORCH_LAZY_DEVICE", value, "cpu or cuda");
         }
         s.cuda = value == "cuda";
       },
       [](const Settings& s) { return s.cuda ? "cuda" : "cpu"; }},
      flag("TORCH_LAZY_STEP_ON_OPTIMIZER", "1",
           "An optimizer's step() on lazy parameters ends the step (mark_step).",
           &Settings::step_on_optimizer),
      number("TORCH_LAZY_MAX_NODES", "50000",
             "Run what is pending when this many operations are recorded. 0: no limit.",
             &Settings::max_nodes),
      number("TORCH_LAZY_MAX_BYTES_HELD", "1073741824",
             "Run what is pending when the graph alone keeps this many bytes alive. 0: no limit.",
             &Settings::max_bytes_held),
      number("TORCH_LAZY_PLAN_CACHE", "1024", "How many compiled graphs are kept.",
             &Settings::plan_cache),
      number("TORCH_LAZY_LAYOUT_CACHE", "65536",
             "How many descriptions of calls (operator, arguments, result layouts) are kept.",
             &Settings::layout_cache),
      flag("TORCH_LAZY_SOURCE_LINES", "0",
           "Keep the user's source line with every recorded operation, for errors and dumps.",
           &Settings::source_lines),
      flag("TORCH_LAZY_CHECK", "0",
           "Debugging: run every operation as soon as it is recorded, so that errors come at once.",
           &Settings::check),
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

void read_environment(Settings& s) {
  for (const Row& row : rows()) {
    row.set(s, row.default_value);
    if (const char* value = std::getenv(row.name)) {
      row.set(s, value);
    }
  }
}

}  // namespace

Settings& settings() {
  static Settings* instance = [] {
    auto* s = new Settings();
    read_environment(*s);
    return s;
  }();
  return *instance;
}

std::vector<SettingRow> settings_table() {
  std::vector<SettingRow> table;
  for (const Row& row : rows()) {
    table.push_back({row.name, row.get(settings()), row.default_value, row.meaning});
  }
  return table;
}

std::string get_setting_value(const std::string& name) {
  return find(name).get(settings());
}

void set_setting_value(const std::string& name, const std::string& value) {
  find(name).set(settings(), value);
}

}  // namespace torch_lazy
