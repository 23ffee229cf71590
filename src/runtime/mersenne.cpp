// Plain loops, which the compiler makes vectors of (-O3).
#include "runtime/mersenne.h"

#include <algorithm>
#include <cmath>

namespace torch_lazy {
namespace {

constexpr size_t kShift = 397;

uint32_t next_word(uint32_t word, uint32_t following, uint32_t shifted) {
  const uint32_t mixed = (word & 0x80000000u) | (following & 0x7fffffffu);
  return shifted ^ (mixed >> 1) ^ ((0u - (following & 1u)) & 0x9908b0dfu);
}

uint32_t tempered(uint32_t word) {
  word ^= word >> 11;
  word ^= (word << 7) & 0x9d2c5680u;
  word ^= (word << 15) & 0xefc60000u;
  return word ^ (word >> 18);
}

}  // namespace

void Mersenne::next_state() {
  uint32_t* s = state_.data();
  for (size_t i = 0; i < kWords - kShift; ++i) {
    s[i] = next_word(s[i], s[i + 1], s[i + kShift]);
  }
  for (size_t i = kWords - kShift; i < kWords - 1; ++i) {
    s[i] = next_word(s[i], s[i + 1], s[i + kShift - kWords]);
  }
  s[kWords - 1] = next_word(s[kWords - 1], s[0], s[kShift - 1]);
  used_ = 0;
}

void Mersenne::take(uint32_t* words, size_t count) {
  while (count > 0) {
    if (used_ == kWords) {
      next_state();
    }
    const size_t now = std::min(count, kWords - used_);
    for (size_t i = 0; i < now; ++i) {
      words[i] = tempered(state_[used_ + i]);
    }
    used_ += now;
    words += now;
    count -= now;
  }
}

template <typename Number>
void Mersenne::draw(double probability, Number one, Number* numbers, size_t count) {
  // 53 bits of two words are a fraction; those below the probability are these:
  const auto bound = static_cast<uint64_t>(std::ceil(std::ldexp(probability, 53)));
  const auto high = static_cast<uint32_t>(bound >> 32);
  const auto low = static_cast<uint32_t>(bound);
  uint32_t words[2 * kWords];
  while (count > 0) {
    const size_t now = std::min(count, kWords);
    take(words, 2 * now);
    for (size_t i = 0; i < now; ++i) {
      const uint32_t first = words[2 * i] & 0x1fffffu;
      const bool below = (first < high) | ((first == high) & (words[2 * i + 1] < low));
      numbers[i] = below ? one : Number{0};
    }
    numbers += now;
    count -= now;
  }
}

template void Mersenne::draw(double, uint8_t, uint8_t*, size_t);
template void Mersenne::draw(double, uint16_t, uint16_t*, size_t);
template void Mersenne::draw(double, uint32_t, uint32_t*, size_t);
template void Mersenne::draw(double, uint64_t, uint64_t*, size_t);

}  // namespace torch_lazy
