// The random numbers of PyTorch's CPU generator, a whole state at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace torch_lazy {

/// MT19937: as many words as the state has are made at once from the last ones.
class Mersenne {
 public:
  static constexpr size_t kWords = 624;
  using State = std::array<uint32_t, kWords>;

  /// The first `used` words of the state have been given out.
  Mersenne(const State& state, size_t used) : state_(state), used_(used) {}

  /// Two words for each number, which is `one` (its bits) with this probability, else 0. Number is
  /// an unsigned integer.
  template <typename Number>
  void draw(double probability, Number one, Number* numbers, size_t count);

  const State& state() const { return state_; }
  size_t used() const { return used_; }

 private:
  void next_state();
  void take(uint32_t* words, size_t count);

  State state_;
  size_t used_;
};

}  // namespace torch_lazy
