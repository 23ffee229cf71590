// Scopes, places in a C++ program, and reports about graphs, in a process without Python.
#include "executor_testing.h"
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
using torch_lazy::testing::Setting;

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

  std::string path_ = ::testing::TempDir() + "graph_reports_" + std::to_string(getpid()) + ".txt";
};

TEST_F(GraphReports, NothingIsWrittenUnasked) {
  Setting file("LTC_SAVE_TENSORS_FILE", "");
  EXPECT_FALSE(torch_lazy::saves_graph_reports());
  torch::ones({2}, torch::kLazy).exp().cpu();
  EXPECT_FALSE(std::ifstream(path_).good());
}

TEST_F(GraphReports, AreAppendedWithFramesHashAndGraph) {
  torch::Tensor x = torch::ones({2}).to(torch::kLazy);
  torch_lazy::sync();
  Setting file("LTC_SAVE_TENSORS_FILE", path_);
  EXPECT_TRUE(torch_lazy::saves_graph_reports());
  (x * 3).cpu();
  const std::string saved = content();
  const std::string head =
      "[ScheduleSyncTensorsGraph]\n"
      "Python Stacktrace:\n"
      "   (No Python Frames:-1)\n"
      "\n"
      "Hashes: (";
  EXPECT_TRUE(saved.starts_with(head)) << saved;
  EXPECT_TRUE(
      saved.ends_with(")\n"
                      "\n"
                      "## BEGIN_GRAPH\n"
                      "IR {\n"
                      "  %0 = [Long[]] lazy_tensors::device_data(), device=CPU0, value=3\n"
                      "  %1 = [Float[2]] lazy_tensors::device_data(), device=CPU0\n"
                      "  %2 = [Float[2]] aten::mul(%1, %0), ROOT=0\n"
                      "}\n"
                      "\n"
                      "## END_GRAPH\n"
                      "\n"
                      "\n"))
      << saved;
  (x * 4).cpu();
  EXPECT_TRUE(content().starts_with(saved + head)) << content();
  EXPECT_NE(content().find("value=4"), std::string::npos) << content();
}

TEST_F(GraphReports, HashesAreNumbers) {
  EXPECT_EQ(torch_lazy::hash_text({0xab, 1}), "ab0000000000000001");
  EXPECT_EQ(torch_lazy::hash_text({0, 0x1f}), "1f");
}

TEST_F(GraphReports, AFileThatCannotBeWrittenStopsNothing) {
  static int run = 0;  // a file is named once
  Setting file("LTC_SAVE_TENSORS_FILE",
               ::testing::TempDir() + "no such folder/" + std::to_string(++run));
  testing::internal::CaptureStderr();
  EXPECT_EQ(torch::ones({2}, torch::kLazy).sum().item<float>(), 2);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("no such folder"), std::string::npos);
}

TEST_F(GraphReports, AreLoggedWherePyTorchLogsGraphs) {
  torch::Tensor x = torch::ones({2, 7, 3}).to(torch::kLazy);
  torch_lazy::sync();
  std::ostringstream log;
  torch::jit::set_jit_logging_output_stream(log);
  x.exp().cpu();
  EXPECT_EQ(log.str(), "");
  const std::string before = torch::jit::get_jit_logging_levels();
  torch::jit::set_jit_logging_levels("lazy_graph_executor");
  x.sin().cpu();
  const std::string first = log.str();
  x.sin().cpu();
  torch::jit::set_jit_logging_levels(before);
  torch::jit::set_jit_logging_output_stream(std::cerr);
  EXPECT_TRUE(first.starts_with("torch-lazy: Add a cached computation with hash ")) << first;
  EXPECT_NE(first.find("torch-lazy: Add a graph to cache: graph("), std::string::npos) << first;
  EXPECT_NE(first.find("aten::sin"), std::string::npos) << first;
  const std::string second = log.str().substr(first.size());
  EXPECT_TRUE(second.starts_with("torch-lazy: Run a cached graph: graph(")) << second;
}

}  // namespace
