// Small constants on the device: equal host data has one copy there. Bounded, per device.
#pragma once

#include "api/lru_cache.h"
#include "base/ranked_mutex.h"
#include <torch_lazy/device_lock.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/DimVector.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace torch_lazy {

class DataCache {
 public:
  static DataCache& instance();

  /// A lazy tensor with the content of a plain CPU tensor: the same one for the same dtype, sizes
  /// and bytes, if the content is small. It is not to be written; if it is, the next who asks gets
  /// another. Counts DeviceDataCacheMiss when the content has to be copied to the device.
  at::Tensor get(const at::Tensor& host, at::Device device);

  size_t size(at::Device device);
  void clear();

 private:
  struct Key {
    at::ScalarType dtype;
    at::DimVector sizes;
    std::string bytes;  // a private copy

    bool operator==(const Key& other) const {
      return dtype == other.dtype && sizes == other.sizes && bytes == other.bytes;
    }
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  struct Entry {
    at::Tensor tensor;
    int64_t version;  // of the tensor when its content was the key's
  };
  using Cache = LruCache<Key, Entry, KeyHash>;

  Cache& cache(at::Device device);

  RankedMutex mutex_{Rank::devices};
  std::map<at::Device, std::unique_ptr<Cache>, DeviceOrder> caches_;
};

}  // namespace torch_lazy
