// Scopes, places in a C++ program, and reports about graphs, in a process without Python.
#include "capture/tensor.h"
#include "runtime/graph_report.h"
#include <torch_lazy/scope.h>
#include <torch_lazy/torch_lazy.h>

#include <gtest/gtest.h>
#include <torch/csrc/jit/jit_log.h>
#include <torch/torch.h>

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

namespace {

using torch_lazy::current_scope;
using torch_lazy::ScopePusher;
using torch_lazy::SourceScope;

class Setting {
 public:
  Setting(std::string name, const std::string& value)
      : name_(std::move(name)), before_(torch_lazy::get_setting(name_)) {
    torch_lazy::set_setting(name_, value);
  }
  ~Setting() { torch_lazy::set_setting(name_, before_); }

 private:
  std::string name_;
  std::string before_;
};

// ---- Scopes
// --------------------------------------------------------------------------------------

TEST(Scopes, AreNumberedInsideTheirParent) {
  torch_lazy::reset_scopes();
  EXPECT_EQ(current_scope(), "");
  {
    ScopePusher model("model");
    EXPECT_EQ(current_scope(), "model.1");
    {
      ScopePusher layer("layer");
      EXPECT_EQ(current_scope(), "model.1/layer.1");
    }
    {
      ScopePusher layer("layer");
      EXPECT_EQ(current_scope(), "model.1/layer.2");
      ScopePusher inner("inner");
      EXPECT_EQ(current_scope(), "model.1/layer.2/inner.1");
    }
  }
  {
    ScopePusher loss("loss");
    EXPECT_EQ(current_scope(), "loss.2");
  }
  torch_lazy::reset_scopes();
  ScopePusher again("loss");
  EXPECT_EQ(current_scope(), "loss.1");
}

TEST(Scopes, OpenOnesAreAnErrorAtTheEndOfAStep) {
  torch_lazy::reset_scopes();
  ScopePusher scope("open");
  try {
    torch_lazy::reset_scopes();
    FAIL() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("open.1"), std::string::npos) << error.what();
  }
  EXPECT_EQ(current_scope(), "open.1");
}

TEST(Scopes, BelongToTheirThread) {
  torch_lazy::reset_scopes();
  ScopePusher scope("here");
  std::thread([] {
    EXPECT_EQ(current_scope(), "");
    torch_lazy::reset_scopes();
    ScopePusher there("there");
    EXPECT_EQ(current_scope(), "there.1");
  }).join();
  EXPECT_EQ(current_scope(), "here.1");
}

TEST(Scopes, AreKeptWithNodesOnRequest) {
  torch_lazy::reset_scopes();
  auto dump = [] {
    ScopePusher scope("part");
    SourceScope here;
    torch::Tensor x = torch::ones({2}, torch::kLazy);
    return torch_lazy::graph_text({x.exp()});
  };
  EXPECT_EQ(dump().find("scope"), std::string::npos);
  torch_lazy::reset_scopes();
  Setting debug("TORCH_LAZY_IR_DEBUG", "1");
  const std::string text = dump();
  EXPECT_NE(text.find("aten::exp(%0), scope=part.1, location="), std::string::npos) << text;
  EXPECT_NE(text.find("@test_reports.cpp:"), std::string::npos) << text;
}

// ---- Source locations
// ----------------------------------------------------------------------------

std::vector<torch_lazy::SourceLocation> frames_of_inner() {
  SourceScope here;
  return torch_lazy::source_frames();
}

TEST(SourceLocations, AProgramNamesItsOwn) {
  ASSERT_EQ(torch_lazy::source_frames().size(), 1);
  EXPECT_EQ(torch_lazy::source_frames()[0].file, "No Python Frames");
  EXPECT_EQ(torch_lazy::first_user_frame(), "");
  SourceScope here;
  const int line = __LINE__ - 1;
  auto frames = frames_of_inner();
  ASSERT_EQ(frames.size(), 2);
  EXPECT_EQ(frames[0].function, "frames_of_inner");
  EXPECT_TRUE(frames[1].file.ends_with("test_reports.cpp"));
  EXPECT_EQ(frames[1].line, line);
  EXPECT_TRUE(torch_lazy::first_user_frame().ends_with(" " + std::to_string(line)));
}

TEST(SourceLocations, AreKeptWithNodesAndInErrors) {
  Setting lines("TORCH_LAZY_SOURCE_LINES", "1");
  torch::Tensor x = torch::tensor({5}).to(torch::kLazy);
  torch::Tensor y = torch::zeros({2}, torch::kLazy);
  SourceScope here;
  const std::string place = "test_reports.cpp:" + std::to_string(__LINE__ - 1);
  torch::Tensor taken = y.index_select(0, x);
  EXPECT_NE(torch_lazy::graph_text({taken}).find("@" + place), std::string::npos)
      << torch_lazy::graph_text({taken});
  try {
    taken.cpu();
    FAIL() << "no error";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find(place), std::string::npos) << error.what();
  }
}

// ---- Reports about graphs
// ------------------------------------------------------------------------

class GraphReports : public ::testing::Test {
 protected:
  void TearDown() override { std::remove(path_.c_str()); }

  std::string content() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

  void save(const torch::Tensor& tensor) {
    std::vector<const torch_lazy::Value*> roots;
    {
      torch_lazy::GraphLock lock;
      roots.push_back(torch_lazy::buffer_of(tensor).current);
    }
    const std::vector<torch_lazy::GraphHash> hashes = {{0xab, 1}, {0, 0x1f}};
    torch_lazy::save_graph_report(roots, hashes, [] { return "text of the backend\n"; });
  }

  std::string path_ = ::testing::TempDir() + "graph_reports_" + std::to_string(getpid()) + ".txt";
};

TEST_F(GraphReports, NothingIsWrittenUnasked) {
  Setting file("LTC_SAVE_TENSORS_FILE", "");
  EXPECT_FALSE(torch_lazy::saves_graph_reports());
  save(torch::ones({2}, torch::kLazy));
  EXPECT_FALSE(std::ifstream(path_).good());
}

TEST_F(GraphReports, AreAppendedWithFramesHashesAndGraph) {
  torch::Tensor x = torch::ones({2}).to(torch::kLazy);
  torch_lazy::sync();
  torch::Tensor y = x.exp();
  Setting file("LTC_SAVE_TENSORS_FILE", path_);
  EXPECT_TRUE(torch_lazy::saves_graph_reports());
  save(y);
  const std::string head =
      "[ScheduleSyncTensorsGraph]\n"
      "Python Stacktrace:\n"
      "   (No Python Frames:-1)\n"
      "\n"
      "Hashes: (ab0000000000000001, 1f)\n"
      "\n"
      "## BEGIN_GRAPH\n";
  const std::string tail = "\n## END_GRAPH\n\n\n";
  const std::string text =
      "IR {\n"
      "  %0 = [Float[2]] lazy_tensors::device_data(), device=CPU0\n"
      "  %1 = [Float[2]] aten::exp(%0), ROOT=0\n"
      "}\n";
  EXPECT_EQ(content(), head + text + tail);
  const std::string first = content();
  {
    Setting format("LTC_SAVE_TENSORS_FMT", "dot");
    save(y);
  }
  EXPECT_EQ(content(),
            first + head +
                "digraph G {\n"
                "  node0 [label=\"lazy_tensors::device_data\\nFloat[2]\\ndevice=CPU0\"]\n"
                "  node1 [label=\"aten::exp\\nFloat[2]\\nROOT=0\"]\n"
                "  node0 -> node1\n"
                "}\n" +
                tail);
  std::remove(path_.c_str());
  {
    Setting format("LTC_SAVE_TENSORS_FMT", "backend");
    save(y);
  }
  EXPECT_EQ(content(), head + "text of the backend\n" + tail);
}

TEST_F(GraphReports, AFileThatCannotBeWrittenStopsNothing) {
  static int run = 0;  // a file is named once
  Setting file("LTC_SAVE_TENSORS_FILE",
               ::testing::TempDir() + "no such folder/" + std::to_string(++run));
  testing::internal::CaptureStderr();
  save(torch::ones({2}, torch::kLazy));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("no such folder"), std::string::npos);
}

TEST_F(GraphReports, AreLoggedWherePyTorchLogsGraphs) {
  std::ostringstream log;
  torch::jit::set_jit_logging_output_stream(log);
  auto text = [] { return "the graph"; };
  torch_lazy::log_graph(/*cached=*/true, {1, 2}, text);
  EXPECT_EQ(log.str(), "");
  const std::string before = torch::jit::get_jit_logging_levels();
  torch::jit::set_jit_logging_levels("lazy_graph_executor");
  torch_lazy::log_graph(/*cached=*/false, {1, 2}, text);
  torch_lazy::log_graph(/*cached=*/true, {1, 2}, text);
  torch::jit::set_jit_logging_levels(before);
  torch::jit::set_jit_logging_output_stream(std::cerr);
  EXPECT_EQ(log.str(),
            "torch-lazy: Add a cached computation with hash 10000000000000002\n"
            "torch-lazy: Add a graph to cache: the graph\n"
            "torch-lazy: Run a cached graph: the graph\n");
}

}  // namespace
