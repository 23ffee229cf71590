// LazyTensor: the states of a tensor seen from inside, and what changes them. Names carry the
// numbers of the behaviours they prove.
#include "executor_testing.h"
#include <torch_lazy/bridge.h>
#include <torch_lazy/lazy_tensor.h>
#include <torch_lazy/torch_lazy.h>

#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <future>
#include <set>
#include <thread>

namespace {

using torch_lazy::DataHandle;
using torch_lazy::IrValue;
using torch_lazy::Layout;
using torch_lazy::LazyTensor;
using torch_lazy::bridge::get;

using torch_lazy::testing::count;
using torch_lazy::testing::kDevice;
using torch_lazy::testing::kLazy;
using torch_lazy::testing::Mode;
using torch_lazy::testing::Setting;

const at::Device kOther{at::kLazy, 1};

int64_t runs() {
  return count("UncachedCompile") + count("CachedCompile");
}

/// Which of handle, value and host data a tensor has, as text: "handle ir host".
std::string state(const LazyTensor& tensor) {
  std::string text;
  text += tensor.current_data_handle() ? "handle " : "";
  text += tensor.current_ir_value() ? "ir " : "";
  text += tensor.current_tensor_data() ? "host " : "";
  return text;
}

torch::Tensor data(at::IntArrayRef sizes = {2, 3}) {
  torch::Tensor tensor = torch::randn(sizes).to(kDevice);
  torch_lazy::sync();
  return tensor;
}

class LazyTensors : public ::testing::Test {
 protected:
  void SetUp() override {
    torch_lazy::sync();
    torch_lazy::reset_metrics();
  }
};

TEST_F(LazyTensors, B82_StateAfterEachWayToMakeOne) {
  torch::Tensor host = torch::randn({2, 3});
  LazyTensor from_host = LazyTensor::create(host, kDevice);
  EXPECT_EQ(state(from_host), "handle host ");

  LazyTensor from_handle = LazyTensor::create(DataHandle::copy_of(host, kDevice));
  EXPECT_EQ(state(from_handle), "handle ");

  IrValue value = get(from_host.tensor() + 1).ir_value();
  LazyTensor from_value = LazyTensor::create(value);
  EXPECT_EQ(state(from_value), "ir ");

  LazyTensor from_data = LazyTensor::create(from_value.data());
  EXPECT_EQ(state(from_data), "ir ");

  EXPECT_EQ(state(get(torch::empty({2}, kLazy))), "");
  for (const LazyTensor& tensor : {from_host, from_handle, from_value, from_data}) {
    EXPECT_EQ(tensor.device(), kDevice);
    EXPECT_GT(tensor.id(), 0);
    EXPECT_EQ(tensor.generation(), 1);
  }
  EXPECT_TRUE(torch::equal(from_handle.to_tensor(true), host));
  EXPECT_TRUE(torch::equal(from_value.to_tensor(true), host + 1));
}

TEST_F(LazyTensors, B83_IdsIncreaseAndAreDistinctAcrossThreads) {
  int64_t first = LazyTensor::create(torch::ones({1}), kDevice).id();
  int64_t second = LazyTensor::create(torch::ones({1}), kDevice).id();
  EXPECT_GE(first, 1);
  EXPECT_GT(second, first);

  std::vector<std::vector<int64_t>> ids(4);
  std::vector<std::thread> threads;
  for (auto& mine : ids) {
    threads.emplace_back([&mine] {
      for (int i = 0; i < 100; ++i) {
        mine.push_back(LazyTensor::create(torch::ones({1}), kDevice).id());
      }
    });
  }
  std::set<int64_t> distinct;
  for (size_t i = 0; i < ids.size(); ++i) {
    threads[i].join();
    distinct.insert(ids[i].begin(), ids[i].end());
  }
  EXPECT_EQ(distinct.size(), 400u);
}

TEST_F(LazyTensors, B83_TensorsThatShareMemoryShareTheId) {
  torch::Tensor x = data();
  EXPECT_EQ(get(x).id(), get(x.t()).id());
  EXPECT_NE(get(x).id(), get(x.clone()).id());
}

TEST_F(LazyTensors, B84_GenerationGrowsWithEveryValue) {
  LazyTensor x = LazyTensor::create(torch::ones({3}), kDevice);
  EXPECT_EQ(x.generation(), 1);
  x.set_ir_value(get(x.tensor() * 2).ir_value());
  EXPECT_EQ(x.generation(), 2);
  x.tensor().add_(1);
  EXPECT_EQ(x.generation(), 3);
  x.set_ir_value(get(torch::ones({5}, kLazy)).ir_value());  // other sizes: another buffer
  EXPECT_EQ(x.generation(), 4);
  EXPECT_EQ(x.size(0), 5);
  torch_lazy::sync();
  EXPECT_EQ(x.generation(), 4);
}

TEST_F(LazyTensors, B85_AbsentIsFalseAndSaysSo) {
  LazyTensor absent;
  EXPECT_FALSE(absent);
  EXPECT_FALSE(torch_lazy::bridge::try_get(torch::ones({2})));
  EXPECT_THROW(absent.id(), c10::Error);
  EXPECT_THROW(LazyTensor::create(IrValue()), c10::Error);
  EXPECT_THROW(LazyTensor::create(DataHandle()), c10::Error);
  LazyTensor x = get(data());
  EXPECT_THROW(x.set_ir_value(IrValue()), c10::Error);
  EXPECT_THROW(x.set_data_handle(DataHandle()), c10::Error);
}

TEST_F(LazyTensors, B86_SharedDataIsTheSameTensor) {
  LazyTensor x = LazyTensor::create(torch::ones({3}), kDevice);
  LazyTensor same = LazyTensor::create(x.data());
  EXPECT_EQ(same.id(), x.id());
  same.set_ir_value(get(x.tensor() + 4).ir_value());
  EXPECT_TRUE(torch::equal(x.to_tensor(true), torch::full({3}, 5.0)));
}

TEST_F(LazyTensors, B86_EachNewTensorIsCountedAndASharedOneIsNot) {
  torch::Tensor host = torch::ones({3});
  DataHandle handle = DataHandle::copy_of(host, kDevice);
  IrValue value = get(torch::ones({3}, kLazy) + 1).ir_value();
  torch_lazy::reset_metrics();
  {
    LazyTensor from_host = LazyTensor::create(host, kDevice);
    EXPECT_EQ(count("CreateLtcTensor"), 1);
    LazyTensor from_handle = LazyTensor::create(handle);
    EXPECT_EQ(count("CreateLtcTensor"), 2);
    LazyTensor from_value = LazyTensor::create(value);
    EXPECT_EQ(count("CreateLtcTensor"), 3);
    LazyTensor shared = LazyTensor::create(from_value.data());
    EXPECT_EQ(count("CreateLtcTensor"), 3);
    EXPECT_EQ(count("DestroyLtcTensor"), 0);
  }
  EXPECT_EQ(count("DestroyLtcTensor"), 3);
}

TEST_F(LazyTensors, B87_LayoutIsRightInEveryState) {
  LazyTensor x = LazyTensor::create(torch::randn({2, 3}).to(at::kDouble), kDevice);
  EXPECT_EQ(x.layout().shape_text(), "Double[2,3]");
  EXPECT_EQ(x.dtype(), at::kDouble);
  x.set_ir_value(get(x.tensor().t().to(at::kInt)).ir_value());
  EXPECT_EQ(x.layout().shape_text(), "Int[3,2]");
  x.set_data_handle(DataHandle::copy_of(torch::ones({4}), kDevice));
  EXPECT_EQ(x.layout().shape_text(), "Float[4]");
  x.set_tensor_data(torch::tensor(true));
  EXPECT_EQ(x.layout().shape_text(), "Bool[]");
  EXPECT_THROW(x.size(0), c10::IndexError);
}

TEST_F(LazyTensors, B88_DataHandleRunsThePendingGraph) {
  torch::Tensor y = data() + 1;
  LazyTensor lazy = get(y);
  EXPECT_FALSE(lazy.current_data_handle());
  DataHandle handle = lazy.data_handle();
  EXPECT_TRUE(handle.has_value());
  EXPECT_EQ(runs(), 1);
  EXPECT_EQ(lazy.data_handle(), handle);
  EXPECT_EQ(runs(), 1);
  EXPECT_EQ(handle.id(), lazy.current_data_handle().id());
}

TEST_F(LazyTensors, B89_CurrentNeverComputes) {
  torch::Tensor x = data();
  torch_lazy::reset_metrics();
  torch::Tensor y = x + 1;
  state(get(x));
  state(get(y));
  EXPECT_EQ(runs(), 0);
  EXPECT_TRUE(torch_lazy::is_pending(y));
}

TEST_F(LazyTensors, B90_DataBecomesALeafAndStaysOne) {
  torch::Tensor x = data();
  EXPECT_FALSE(get(x).current_ir_value());
  IrValue leaf = get(x).ir_value();
  EXPECT_TRUE(leaf.is_leaf());
  EXPECT_EQ(leaf.op(), "lazy_tensors::device_data");
  EXPECT_EQ(get(x).ir_value(), leaf);
  EXPECT_EQ(get(x).current_ir_value(), leaf);
  x.add_(1);
  EXPECT_NE(get(x).ir_value(), leaf);
}

TEST_F(LazyTensors, B90_AnOperationsOutputIsItsNode) {
  torch::Tensor x = data();
  torch::Tensor y = x + x;
  IrValue value = get(y).ir_value();
  EXPECT_FALSE(value.is_leaf());
  EXPECT_EQ(value.op(), "aten::add.Tensor");
  EXPECT_EQ(value.index(), 0);
  ASSERT_EQ(value.operands().size(), 2u);
  EXPECT_EQ(value.operands()[0], get(x).ir_value());
  EXPECT_EQ(value.operands()[1], value.operands()[0]);
  torch_lazy::sync();
  EXPECT_TRUE(value.is_leaf());
  EXPECT_TRUE(value.operands().empty());
}

TEST_F(LazyTensors, B91_MakingALeafKeepsHandleAndHostData) {
  LazyTensor x = LazyTensor::create(torch::ones({3}), kDevice);
  x.ir_value();
  EXPECT_EQ(state(x), "handle ir host ");
  x.to_tensor(true);
  EXPECT_EQ(runs(), 0);
}

TEST_F(LazyTensors, B92_SettingAValueDropsHandleAndHostData) {
  LazyTensor x = LazyTensor::create(torch::ones({3}), kDevice);
  IrValue value = get(x.tensor() * 3).ir_value();
  x.set_ir_value(value);
  EXPECT_EQ(state(x), "ir ");
  EXPECT_EQ(x.current_ir_value(), value);
  EXPECT_TRUE(torch::equal(x.to_tensor(true), torch::full({3}, 3.0)));
}

TEST_F(LazyTensors, B92_TensorsOverTheSameMemorySeeAValueThatFits) {
  torch::Tensor x = data({2, 3});
  torch::Tensor row = x.select(0, 1);
  get(row).set_ir_value(get(torch::ones({3}, kLazy)).ir_value());
  EXPECT_TRUE(torch::equal(x.cpu()[1], torch::ones({3})));
  get(x).set_ir_value(get(torch::zeros({2, 3}, kLazy)).ir_value());
  EXPECT_TRUE(torch::equal(row.cpu(), torch::zeros({3})));
}

TEST_F(LazyTensors, B92_AValueOfOtherSizesLeavesTheSharedMemory) {
  torch::Tensor x = torch::ones({4}, kLazy);
  torch::Tensor view = x.view({2, 2});
  get(x).set_ir_value(get(torch::full({3}, 7, kLazy)).ir_value());
  EXPECT_TRUE(torch::equal(x.cpu(), torch::full({3}, 7)));
  EXPECT_TRUE(torch::equal(view.cpu(), torch::ones({2, 2})));
  EXPECT_FALSE(x.is_alias_of(view));
}

TEST_F(LazyTensors, B92_AValueCanBeSetOnTheTensorItWasMadeFrom) {
  torch::Tensor x = data({3, 3});
  torch::Tensor expected = x.cpu().t().clone();
  get(x).set_ir_value(get(x.t()).ir_value());
  EXPECT_TRUE(torch::equal(x.cpu(), expected));
}

TEST_F(LazyTensors, B93_SettingAHandleClearsTheValue) {
  LazyTensor x = LazyTensor::create(torch::ones({3}), kDevice);
  x.ir_value();
  DataHandle other = DataHandle::copy_of(torch::full({3}, 2.0), kDevice);
  x.set_data_handle(other, /*sync=*/false);
  EXPECT_EQ(state(x), "handle host ");
  EXPECT_EQ(x.current_data_handle(), other);
  x.ir_value();
  x.set_data_handle(x.current_data_handle());
  EXPECT_EQ(state(x), "handle ");
  EXPECT_TRUE(torch::equal(x.to_tensor(true), torch::full({3}, 2.0)));
}

TEST_F(LazyTensors, B93_MemoryOfAnotherTensorIsCopied) {
  torch::Tensor x = data({3});
  torch::Tensor y = data({3});
  torch::Tensor before = y.cpu();
  get(x).set_data_handle(get(y).data_handle());
  x.add_(1);
  EXPECT_TRUE(torch::equal(x.cpu(), before + 1));
  EXPECT_TRUE(torch::equal(y.cpu(), before));
}

TEST_F(LazyTensors, B94_SettingInPlaceCastsToTheTensorsDtype) {
  LazyTensor x = LazyTensor::create(torch::ones({3}), kDevice);
  x.set_in_place_ir_value(get(torch::full({3}, 2.5, kLazy.dtype(at::kDouble))).ir_value());
  EXPECT_EQ(x.dtype(), at::kFloat);
  EXPECT_EQ(x.current_ir_value().op(), "aten::_to_copy");
  EXPECT_TRUE(torch::equal(x.to_tensor(true), torch::full({3}, 2.5)));

  torch::Tensor y = torch::ones({3}, kLazy);
  y.add_(torch::ones({3}, kLazy.dtype(at::kDouble)));
  EXPECT_EQ(get(y).dtype(), at::kFloat);
}

class Watched : public LazyTensor::Data {
 public:
  using LazyTensor::Data::Data;
  void ir_value_assigned(const IrValue& value) override {
    seen.push_back(value ? value.op() : "none");
  }
  std::vector<std::string> seen;
};

TEST_F(LazyTensors, B95_AssignmentsCanBeWatched) {
  torch::Tensor x = data({3});
  auto watched = std::make_shared<Watched>(x);
  LazyTensor lazy = LazyTensor::create(watched);
  lazy.ir_value();
  lazy.ir_value();
  IrValue power = get(x.exp()).ir_value();
  lazy.set_ir_value(power);
  lazy.set_data_handle(DataHandle::copy_of(torch::ones({3}), kDevice));
  lazy.update_from_tensor(torch::zeros({3}), /*sync=*/true);
  const std::vector<std::string> expected{"lazy_tensors::device_data", "aten::exp", "none",
                                          "lazy_tensors::device_data"};
  EXPECT_EQ(watched->seen, expected);
}

TEST_F(LazyTensors, B96_ADetachedTensorMayBeWritten) {
  torch::Tensor x = torch::ones({3}, kLazy);
  get(x).to_tensor(/*detached=*/true).add_(5);
  EXPECT_TRUE(torch::equal(x.cpu(), torch::ones({3})));
  EXPECT_EQ(get(x).to_tensor(true).device(), at::kCPU);
}

TEST_F(LazyTensors, B97_ReadingKeepsHostData) {
  torch::Tensor x = torch::ones({3}, kLazy) * 2;
  torch::Tensor host = get(x).to_tensor(/*detached=*/false);
  EXPECT_TRUE(get(x).current_tensor_data().has_value());
  int64_t before = runs();
  EXPECT_TRUE(torch::equal(get(x).to_tensor(false), host));
  EXPECT_EQ(runs(), before);
  x.add_(1);
  EXPECT_FALSE(get(x).current_tensor_data().has_value());
}

TEST_F(LazyTensors, B97_HostDataStaysWhenTheTensorIsWritten) {
  torch::Tensor x = torch::ones({1024}, kLazy) * 2;
  torch::Tensor host = get(x).to_tensor(/*detached=*/false);
  x.add_(1);
  torch_lazy::sync();
  x.mul_(2);
  EXPECT_TRUE(torch::equal(x.cpu(), torch::full({1024}, 6.0)));
  EXPECT_TRUE(torch::equal(host, torch::full({1024}, 2.0)));
}

TEST_F(LazyTensors, B98_UpdatingFromATensor) {
  LazyTensor x = get(torch::ones({3}, kLazy) + 1);
  torch::Tensor source = torch::full({3}, 4.0);
  x.update_from_tensor(source, /*sync=*/false);
  EXPECT_EQ(state(x), "handle host ");
  x.update_from_tensor(source.to(at::kDouble), /*sync=*/true);
  EXPECT_EQ(state(x), "handle ir ");
  EXPECT_EQ(x.dtype(), at::kFloat);
  source.zero_();
  EXPECT_TRUE(torch::equal(x.to_tensor(true), torch::full({3}, 4.0)));
  x.update_from_tensor_out(torch::ones({2}));
  EXPECT_TRUE(torch::equal(x.to_tensor(true), torch::ones({2})));
  x.update_from_tensor_out(get(torch::zeros({2}, kLazy)));
  EXPECT_TRUE(torch::equal(x.to_tensor(true), torch::zeros({2})));
}

TEST_F(LazyTensors, B99_AShallowCopyHasTheValueAndNoMemoryInCommon) {
  torch::Tensor x = data({3});
  torch::Tensor y = x + 1;
  LazyTensor copy = get(torch::zeros({3}, kLazy));
  torch_lazy::sync();
  y = x + 1;
  torch_lazy::reset_metrics();
  get(y).shallow_copy_to(copy);
  EXPECT_EQ(runs(), 0);
  EXPECT_EQ(copy.current_ir_value().operands()[0], get(y).current_ir_value());
  y.add_(10);
  EXPECT_TRUE(torch::equal(copy.to_tensor(true), x.cpu() + 1));
  EXPECT_TRUE(torch::equal(y.cpu(), x.cpu() + 11));
}

TEST_F(LazyTensors, B100_OneTensorPerOutput) {
  torch::Tensor x = data({4, 5});
  torch::Tensor values = std::get<0>(x.max(1));
  IrValue value = get(values).ir_value();
  std::vector<LazyTensor> outputs = get(values).make_output_tensors(value);
  ASSERT_EQ(outputs.size(), 2u);
  auto expected = x.cpu().max(1);
  EXPECT_TRUE(torch::equal(outputs[0].to_tensor(true), std::get<0>(expected)));
  EXPECT_TRUE(torch::equal(outputs[1].to_tensor(true), std::get<1>(expected)));
  EXPECT_EQ(outputs[1].dtype(), at::kLong);
}

TEST_F(LazyTensors, B100_OutputsOfALeafAreTheLeaf) {
  torch::Tensor x = data({3});
  std::vector<LazyTensor> outputs = get(x).make_output_tensors(get(x).ir_value());
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_TRUE(torch::equal(outputs[0].to_tensor(true), x.cpu()));
}

TEST_F(LazyTensors, B101_ACopyOnADeviceIsMaterializedAndIndependent) {
  torch::Tensor x = torch::ones({3}, kLazy) + 1;
  LazyTensor copy = get(x).copy_to_device(kDevice);
  EXPECT_FALSE(torch_lazy::is_pending(x));
  EXPECT_EQ(state(copy), "handle ");
  EXPECT_NE(copy.id(), get(x).id());
  x.add_(1);
  EXPECT_TRUE(torch::equal(copy.to_tensor(true), torch::full({3}, 2.0)));
}

TEST_F(LazyTensors, B101_ACopyOnAnotherDevice) {
  torch::Tensor x = torch::ones({3}, kLazy) + 1;
  LazyTensor copy = get(x).copy_to_device(kOther);
  EXPECT_EQ(copy.device(), kOther);
  EXPECT_TRUE(torch::equal((copy.tensor() * 2).cpu(), torch::full({3}, 4.0)));
  EXPECT_THROW(copy.set_ir_value(get(x).ir_value()), c10::Error);
}

TEST_F(LazyTensors, B102_TheValueStaysBesideTheDataAfterARead) {
  torch::Tensor x = torch::ones({3}, kLazy) + 1;
  get(x).apply_pending_graph();
  EXPECT_EQ(state(get(x)), "handle ir ");
  torch::Tensor read = torch::ones({3}, kLazy) + 1;
  read.cpu();
  EXPECT_EQ(state(get(read)), "handle ir ");
  torch::Tensor y = torch::ones({3}, kLazy) + 1;
  torch_lazy::mark_step(/*wait=*/true);
  EXPECT_EQ(state(get(read)), "handle ");
  EXPECT_EQ(state(get(y)), "handle ");
}

TEST_F(LazyTensors, B103_LongGraphsAreCut) {
  Setting frequency("TORCH_LAZY_TRIM_GRAPH_CHECK_FREQUENCY", "10");
  Setting size("TORCH_LAZY_TRIM_GRAPH_SIZE", "45");
  torch::Tensor x = torch::ones({1}, kLazy);
  for (int i = 0; i < 200; ++i) {
    x = x + 1;
    EXPECT_LE(torch_lazy::pending_nodes(), 50);
  }
  EXPECT_GE(count("TrimIrGraph"), 3);
  EXPECT_EQ(x.item<float>(), 201);
}

TEST_F(LazyTensors, B103_ShortGraphsAreNotCut) {
  torch::Tensor x = torch::ones({1}, kLazy);
  for (int i = 0; i < 200; ++i) {
    x = x + 1;
  }
  EXPECT_EQ(count("TrimIrGraph"), 0);
  EXPECT_GE(torch_lazy::pending_nodes(), 200);
}

TEST_F(LazyTensors, ValuesOutliveTheTensorTheyCameFrom) {
  IrValue value;
  {
    torch::Tensor x = torch::ones({3}, kLazy) * 4;
    value = get(x).ir_value();
  }
  EXPECT_FALSE(value.is_leaf());
  torch_lazy::sync();
  EXPECT_TRUE(value.is_leaf());
  EXPECT_TRUE(torch::equal(LazyTensor::create(value).to_tensor(true), torch::full({3}, 4.0)));
}

// While a step repeats, its plan is known beforehand; a value that somebody holds this time only
// must be computed all the same.
TEST_F(LazyTensors, ValuesHeldOnceInARepeatedStepAreComputed) {
  torch::Tensor x = data({3});
  for (int i = 0; i < 6; ++i) {
    IrValue held;
    torch::Tensor y;
    {
      torch::Tensor between = x * (i + 2);
      y = between + 1;
      if (i == 3 || i == 4) {
        held = get(between).ir_value();
      }
    }
    torch_lazy::mark_step(/*wait=*/true);
    if (held) {
      EXPECT_TRUE(torch::equal(LazyTensor::create(held).to_tensor(true), x.cpu() * (i + 2)));
    }
    EXPECT_TRUE(torch::equal(y.cpu(), x.cpu() * (i + 2) + 1));
  }
}

TEST_F(LazyTensors, OutputsWantedOnceInARepeatedStepAreComputed) {
  torch::Tensor x = data({4, 5});
  for (int i = 0; i < 6; ++i) {
    torch::Tensor values = std::get<0>((x + i).max(1));
    std::vector<LazyTensor> outputs;
    if (i == 3 || i == 4) {
      outputs = get(x).make_output_tensors(get(values).ir_value());
    }
    torch_lazy::mark_step(/*wait=*/true);
    auto expected = (x.cpu() + i).max(1);
    EXPECT_TRUE(torch::equal(values.cpu(), std::get<0>(expected)));
    if (!outputs.empty()) {
      EXPECT_TRUE(torch::equal(outputs[1].to_tensor(true), std::get<1>(expected)));
    }
  }
}

TEST_F(LazyTensors, HeldValuesStayWhenTheTensorIsWrittenAtOnce) {
  torch::Tensor x = torch::ones({1024}, kLazy) * 2;
  IrValue value = get(x).ir_value();
  torch::Tensor host = get(x).to_tensor(/*detached=*/false);
  x.narrow(0, 0, 512).normal_();  // random numbers in a part of the memory: executed at once
  EXPECT_TRUE(torch::equal(host, torch::full({1024}, 2.0)));
  EXPECT_TRUE(torch::equal(LazyTensor::create(value).to_tensor(true), host));
  EXPECT_FALSE(torch::equal(x.cpu(), host));
}

/// Closed until the test opens it; an operation that waits for it runs for as long.
std::promise<void>* gate = nullptr;

torch::Tensor pass_gate(const torch::Tensor& x) {
  gate->get_future().wait();
  return x.clone();
}

TORCH_LIBRARY(lazy_tensor_test, m) {
  m.def("pass_gate(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(lazy_tensor_test, CPU, m) {
  m.impl("pass_gate", pass_gate);
}
TORCH_LIBRARY_IMPL(lazy_tensor_test, Meta, m) {
  m.impl("pass_gate", [](const torch::Tensor& x) { return torch::empty_like(x); });
}

TEST_F(LazyTensors, B126_WhatIsScheduledHasAHandleWithoutAValue) {
  Mode asynchronous(true);
  std::promise<void> opened;
  gate = &opened;
  auto op = c10::Dispatcher::singleton()
                .findSchemaOrThrow("lazy_tensor_test::pass_gate", "")
                .typed<torch::Tensor(const torch::Tensor&)>();
  torch::Tensor x = op.call(torch::ones({3}, kLazy)) + 1;
  EXPECT_EQ(state(get(x)), "ir ");
  torch_lazy::mark_step();
  EXPECT_EQ(state(get(x)), "handle ");
  DataHandle handle = get(x).current_data_handle();
  EXPECT_FALSE(handle.has_value());
  try {
    handle.tensor();
    ADD_FAILURE() << "there is nothing to read yet";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("async operation is in flight"), std::string::npos);
  }
  IrValue leaf = get(x).ir_value();
  EXPECT_TRUE(leaf.is_leaf());
  opened.set_value();
  EXPECT_TRUE(torch::equal(get(x).to_tensor(true), torch::full({3}, 2.0)));
  EXPECT_TRUE(handle.has_value());
  EXPECT_EQ(handle, get(x).current_data_handle());
}

TEST_F(LazyTensors, AFailedValueRaisesWhereItIsAskedFor) {
  torch::Tensor x = torch::zeros({2}, kLazy);
  torch::Tensor index = torch::full({1}, 9, kLazy.dtype(at::kLong));
  torch::Tensor bad = x.index_select(0, index);
  EXPECT_ANY_THROW(get(bad).data_handle());
  EXPECT_ANY_THROW(get(bad).ir_value());
  EXPECT_EQ(state(get(bad)), "");
}

TEST_F(LazyTensors, PlaceholdersTakeAValueOnce) {
  LazyTensor x = LazyTensor::create(torch::ones({3}), kDevice);
  DataHandle place = DataHandle::placeholder(x.layout(), kDevice);
  EXPECT_FALSE(place.has_value());
  EXPECT_NE(place.id(), x.data_handle().id());
  EXPECT_THROW(place.tensor(), c10::Error);
  LazyTensor y = LazyTensor::create(place);
  place.assign(x.data_handle());
  EXPECT_TRUE(place.has_value());
  EXPECT_EQ(place.layout().shape_text(), "Float[3]");
  EXPECT_TRUE(torch::equal(y.to_tensor(true), torch::ones({3})));
  EXPECT_THROW(place.assign(x.data_handle()), c10::Error);
  DataHandle larger = DataHandle::placeholder(Layout::of(torch::ones({4})), kDevice);
  EXPECT_THROW(larger.assign(place), c10::Error);
}

}  // namespace
