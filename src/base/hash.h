// Hashing of sequences of words and bytes.
#pragma once

#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace torch_lazy {

using Hash = std::array<uint64_t, 2>;

inline uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9fb21c651e98df25ull;
  return hash ^ (hash >> 29);
}

inline uint64_t hash_words(c10::ArrayRef<uint64_t> words, uint64_t seed = 0x51ed270b7a3c4d1full) {
  uint64_t hash = seed ^ words.size();
  for (uint64_t word : words) {
    hash = mix(hash, word);
  }
  return hash ^ (hash >> 32);
}

inline Hash hash_bytes(std::string_view bytes, uint64_t seed) {
  uint64_t first = mix(0x8f14e45fceea167aull, seed);
  uint64_t second = mix(0xc9f0f895fb98ab91ull, seed);
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), bytes.size() - at));
    first = mix(first, word);
    second = mix(second, std::rotl(word, 32));
  }
  first = mix(mix(first, bytes.size()), second);
  second = mix(mix(second, bytes.size()), first);
  return {first, second};
}

}  // namespace torch_lazy
