// Hashing of sequences of words.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace torch_lazy {

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

}  // namespace torch_lazy
