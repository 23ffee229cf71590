// Counters, metrics and their report; settings.
#include "base/metrics.h"
#include "base/settings.h"
#include "executor_testing.h"
#include <torch_lazy/torch_lazy.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

namespace {

namespace metrics = torch_lazy::metrics;
using metrics::format_sample;
using metrics::Kind;
using torch_lazy::get_setting;
using torch_lazy::set_setting;
using torch_lazy::testing::Setting;

using Names = std::vector<std::string>;

constexpr int64_t kSecond = 1'000'000'000;

class Metrics : public ::testing::Test {
 protected:
  void SetUp() override {
    torch_lazy::sync();
    metrics::reset();
  }
};

TEST_F(Metrics, CountersAreListedWhileTheyAreNotZero) {
  metrics::Counter& counter = metrics::counter("TestCounter");
  EXPECT_EQ(&counter, &metrics::counter("TestCounter"));
  EXPECT_EQ(metrics::counter_value("TestCounter"), std::nullopt);
  counter.add();
  counter.add_guarded(4);
  metrics::counter("ATestCounter").add(2);
  EXPECT_EQ(metrics::counter_value("TestCounter"), 5);
  EXPECT_EQ(metrics::counter_names(), (Names{"ATestCounter", "TestCounter"}));
  EXPECT_EQ(metrics::counter_value("no such counter"), std::nullopt);
}

TEST_F(Metrics, AMetricKeepsTheLastSamplesAndTheSumOfAll) {
  Setting samples("TORCH_LAZY_METRICS_SAMPLES", "4");
  metrics::Metric& metric = metrics::metric("TestRing");
  metric.reset();  // takes the new size
  for (int i = 1; i <= 6; ++i) {
    metric.add(i, i * kSecond);
  }
  metrics::MetricData data = *metrics::metric_data("TestRing");
  EXPECT_EQ(data.total_samples, 6);
  EXPECT_EQ(data.accumulator, 21);
  ASSERT_EQ(data.samples.size(), 4);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(data.samples[i].value, i + 3);
    EXPECT_EQ(data.samples[i].timestamp_ns, (i + 3) * kSecond);
  }
}

TEST_F(Metrics, TheFirstCallerDecidesWhatAMetricIs) {
  metrics::Metric& metric = metrics::metric("TestKind", Kind::bytes);
  EXPECT_EQ(&metric, &metrics::metric("TestKind", Kind::time));
  EXPECT_EQ(metric.kind(), Kind::bytes);
}

TEST_F(Metrics, SamplesAreWrittenByKind) {
  EXPECT_EQ(format_sample(Kind::value, 3), "3.00");
  EXPECT_EQ(format_sample(Kind::value, 2.345), "2.35");
  EXPECT_EQ(format_sample(Kind::bytes, 1023), "1023.00B");
  EXPECT_EQ(format_sample(Kind::bytes, 1536), "1.50KB");
  EXPECT_EQ(format_sample(Kind::bytes, 5.0 * (1 << 20)), "5.00MB");
  EXPECT_EQ(format_sample(Kind::bytes, 2.0 * (1ll << 30)), "2.00GB");
  EXPECT_EQ(format_sample(Kind::bytes, 3.0 * (1ll << 40)), "3.00TB");
  EXPECT_EQ(format_sample(Kind::bytes, 2048.0 * (1ll << 50)), "2048.00PB");
  EXPECT_EQ(format_sample(Kind::time, 0), "000.000us");
  EXPECT_EQ(format_sample(Kind::time, 12108), "012.108us");
  EXPECT_EQ(format_sample(Kind::time, 2'600'414), "002ms600.414us");
  EXPECT_EQ(format_sample(Kind::time, 1'310'822'588), "01s310ms822.588us");
  EXPECT_EQ(format_sample(Kind::time, 60e9), "01m00s000ms000.000us");
  EXPECT_EQ(format_sample(Kind::time, 2 * 86400e9 + 3600e9), "02d01h00m00s000ms000.000us");
}

TEST_F(Metrics, ReportHasMetricsThenCountersSortedByName) {
  for (int i = 0; i < 10; ++i) {
    metrics::metric("TestSizes").add(i, kSecond * i / 2);
  }
  metrics::metric("TestBytes", Kind::bytes).add(2048, kSecond);
  metrics::metric("DeviceLockWait", Kind::time).add(1500, 1);
  metrics::metric("DeviceLockWait", Kind::time).add(2500, 1 + 2 * kSecond);
  metrics::counter("TestB").add(7);
  metrics::counter("TestA").add(1);
  const std::string expected =
      "Metric: DeviceLockWait\n"
      "  TotalSamples: 2\n"
      "  Accumulator: 004.000us\n"
      "  ValueRate: 002.000us / second\n"
      "  Rate: 1 / second\n"
      "  Percentiles: 1%=001.500us; 5%=001.500us; 10%=001.500us; 20%=001.500us; 50%=002.500us; "
      "80%=002.500us; 90%=002.500us; 95%=002.500us; 99%=002.500us\n"
      "Metric: TestBytes\n"
      "  TotalSamples: 1\n"
      "  Accumulator: 2.00KB\n"
      "  Percentiles: 1%=2.00KB; 5%=2.00KB; 10%=2.00KB; 20%=2.00KB; 50%=2.00KB; 80%=2.00KB; "
      "90%=2.00KB; 95%=2.00KB; 99%=2.00KB\n"
      "Metric: TestSizes\n"
      "  TotalSamples: 10\n"
      "  Accumulator: 45.00\n"
      "  ValueRate: 10.00 / second\n"
      "  Rate: 2.22222 / second\n"
      "  Percentiles: 1%=0.00; 5%=0.00; 10%=1.00; 20%=2.00; 50%=5.00; 80%=8.00; 90%=9.00; "
      "95%=9.00; 99%=9.00\n"
      "Counter: TestA\n"
      "  Value: 1\n"
      "Counter: TestB\n"
      "  Value: 7\n";
  EXPECT_EQ(metrics::report(), expected + "Backend: aten\n");
  EXPECT_EQ(metrics::report({"TestB", "TestA"}, {"TestSizes", "TestBytes", "DeviceLockWait"}),
            expected);
}

TEST_F(Metrics, NamedReportAlsoHasWhatWasExecutedAtOnce) {
  metrics::counter("TestA").add();
  metrics::counter("TestB").add();
  metrics::metric("TestSizes").add(1);
  torch::nonzero(torch::ones({2}, torch::kLazy));
  EXPECT_EQ(metrics::report({"TestB"}, {}),
            "Counter: TestB\n  Value: 1\nCounter: aten::nonzero\n  Value: 1\n");
  EXPECT_EQ(metrics::report({"aten::nonzero"}, {"TestNothing"}),
            "Counter: aten::nonzero\n  Value: 1\n");
}

TEST_F(Metrics, ReportEndsWithWhatWasExecutedAtOnce) {
  torch::nonzero(torch::ones({2}, torch::kLazy));
  EXPECT_TRUE(
      metrics::report().ends_with("Backend: aten\nExecuted at once: aten::nonzero, 1 times\n"))
      << metrics::report();
}

TEST_F(Metrics, PercentilesAreASetting) {
  metrics::metric("TestSizes").add(1, 0);
  metrics::metric("TestSizes").add(2, 0);
  Setting percentiles("TORCH_LAZY_METRICS_PERCENTILES", "0.25:0.5");
  EXPECT_EQ(metrics::report({}, {"TestSizes"}),
            "Metric: TestSizes\n"
            "  TotalSamples: 2\n"
            "  Accumulator: 3.00\n"
            "  Percentiles: 25%=1.00; 50%=2.00\n");
  for (const char* wrong : {"", "0", "1", "0.5:", "0.5:x", "0.5 0.6", "-0.1", "nan"}) {
    EXPECT_THROW(set_setting("TORCH_LAZY_METRICS_PERCENTILES", wrong), c10::ValueError) << wrong;
  }
  EXPECT_EQ(get_setting("TORCH_LAZY_METRICS_PERCENTILES"), "0.25:0.5");
}

TEST_F(Metrics, ResetLeavesOnlyTheBackendsLine) {
  metrics::counter("TestA").add();
  metrics::metric("TestSizes").add(1);
  torch::nonzero(torch::ones({2}, torch::kLazy));
  metrics::reset();
  EXPECT_TRUE(metrics::counter_names().empty());
  EXPECT_TRUE(metrics::metric_names().empty());
  EXPECT_EQ(metrics::metric_data("TestSizes").has_value(), false);
  EXPECT_EQ(metrics::report(), "Backend: aten\n");
}

TEST_F(Metrics, ATimedSectionIsOneSample) {
  metrics::Metric& metric = metrics::metric("TestTime", Kind::time);
  const int64_t start = metrics::Metric::now_ns();
  {
    metrics::TimedSection timed(metric);
    EXPECT_EQ(metric.total_samples(), 0);
    EXPECT_GE(timed.elapsed(), 0);
  }
  const auto most = static_cast<double>(metrics::Metric::now_ns() - start);
  EXPECT_EQ(metric.total_samples(), 1);
  EXPECT_GE(metric.data().accumulator, 0);
  EXPECT_LE(metric.data().accumulator, most);
}

TEST_F(Metrics, ThreadsLoseNothing) {
  constexpr int kThreads = 8;
  constexpr int kAdds = 2000;
  std::mutex guard;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kAdds; ++i) {
        metrics::counter("TestShared").add();
        metrics::metric("TestSharedMetric").add(1);
        {
          std::lock_guard<std::mutex> lock(guard);
          metrics::counter("TestGuarded").add_guarded();
        }
        if (i % 500 == 0) {
          metrics::report();
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(metrics::counter_value("TestShared"), kThreads * kAdds);
  EXPECT_EQ(metrics::counter_value("TestGuarded"), kThreads * kAdds);
  EXPECT_EQ(metrics::metric_data("TestSharedMetric")->accumulator, kThreads * kAdds);
}

// ---- Settings
// ------------------------------------------------------------------------------------

TEST(Settings, StringsAreReadWhileTheyChange) {
  auto& setting = *new torch_lazy::TextSetting();  // a RankedMutex lasts as long as the process
  EXPECT_TRUE(setting.empty());
  const std::string a(100, 'a');
  const std::string b(200, 'b');
  setting.set(a);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 0; i < 20000; ++i) {
      setting.set(i % 2 ? a : b);
    }
    stop = true;
  });
  while (!stop) {
    const std::string seen = setting.get();
    ASSERT_TRUE(seen == a || seen == b);
    ASSERT_FALSE(setting.empty());
  }
  writer.join();
}

TEST(Settings, ExperimentsAreWholeNames) {
  Setting names("LTC_EXPERIMENTAL", "one:two.b");
  EXPECT_TRUE(torch_lazy::experiment_enabled("one"));
  EXPECT_TRUE(torch_lazy::experiment_enabled("two.b"));
  EXPECT_FALSE(torch_lazy::experiment_enabled("two"));
  EXPECT_FALSE(torch_lazy::experiment_enabled("three"));
}

TEST(Settings, SecondNamesChangeTheSameSetting) {
  Setting plans("TORCH_LAZY_COMPILATION_CACHE_SIZE", "7");
  EXPECT_EQ(get_setting("TORCH_LAZY_PLAN_CACHE"), "7");
  EXPECT_EQ(torch_lazy::settings().plan_cache.load(), 7);
  Setting lines("LTC_ENABLE_SOURCE_INFO", "1");
  EXPECT_TRUE(torch_lazy::settings().source_lines.load());
  for (const auto& [value, mode] :
       {std::pair("1", torch_lazy::AsyncMode::on), std::pair("0", torch_lazy::AsyncMode::off),
        std::pair("auto", torch_lazy::AsyncMode::automatic)}) {
    Setting async("TORCH_LAZY_USE_THREAD_POOL", value);
    EXPECT_EQ(get_setting("TORCH_LAZY_ASYNC"), value);
    EXPECT_EQ(torch_lazy::settings().async_mode.load(), mode);
  }
}

}  // namespace
